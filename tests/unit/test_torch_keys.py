"""Keys of torch: the numbers that they split into and draw, by the definition of SplitMix64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from torch_backend.arrays import random

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, cuda])]
GAMMA, M = 0x9E3779B97F4A7C15, 2**64


def splitmix(state: int, k: int) -> int:
    """The k-th output (from 1) of SplitMix64 with a given state, by its definition."""
    z = (state + k * GAMMA) % M
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % M
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % M
    return z ^ (z >> 31)


def unsigned(tensor: torch.Tensor) -> list[int]:
    return [x % M for x in tensor.reshape(-1).tolist()]


def draws(key: torch.Tensor, batch: int, words: int) -> torch.Tensor:
    """Of numbers that may be any of 31 bits the words that were drawn are left as they are."""
    return rb.rand(frb.Bounded(0, 2**31 - 1, (words,), "int32"), key, batch, device=key.device)


def test_the_reference_is_splitmix64() -> None:
    # Outputs of Vigna's splitmix64.c for the seed 1234567, as published with many implementations.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [splitmix(1234567, k) for k in range(1, 6)] == published


@pytest.mark.parametrize("seed", [0, 1, 1234567, 2**31, 2**32, 2**63, 2**64 - 1, -1, 2**64 + 5])
@pytest.mark.parametrize("device", DEVICES)
def test_known_answers(seed: int, device: str) -> None:
    key = rb.key(seed)
    assert key.dtype == torch.int64
    assert key.shape == ()
    [value] = unsigned(key)
    assert value == splitmix(seed % M, 1)
    split_base = splitmix((value + 0x5851F42D4C957F2D - GAMMA) % M, 1)
    assert unsigned(rb.split(key.to(device), 5)) == [splitmix(split_base, k) for k in range(1, 6)]
    draw_base = splitmix((value + 0x14057B7EF767814F - GAMMA) % M, 1)
    drawn = draws(key.to(device), 4, 3)
    assert drawn.dtype == torch.int32
    assert drawn.reshape(-1).tolist() == [splitmix(draw_base, k) >> 33 for k in range(1, 13)]


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_the_kernel_draws_the_same_numbers() -> None:
    for seed in (0, 1, 2**63, 2**64 - 1):
        words = draws(rb.key(seed), 257, 5)
        with frb.kernels(False):
            np.testing.assert_array_equal(words.numpy(), draws(rb.key(seed), 257, 5).numpy())


def test_keys_of_their_own_are_those_of_a_split_whatever_the_default_device_is() -> None:
    key, expected = rb.key(3), rb.split(rb.key(3), 3).tolist()
    with torch.device("meta"):
        apart = random.split_at_once(key, 3)
        assert [int(one) for one in apart] == expected
        assert random.draws(apart[1], 2, 3).device.type == "cpu"


def test_split_keys_and_draws_are_unrelated() -> None:
    """No draw of a key, of its children or of neighbouring seeds coincides: 62-bit collisions would be no chance."""
    keys = [rb.key(seed) for seed in range(20)]
    children = [child for key in keys for child in rb.split(key, 20)]
    grandchildren = [child for key in children[:50] for child in rb.split(key)]
    everything = [*keys, *children, *grandchildren]
    assert len({int(k) for k in everything}) == len(everything)
    pairs = torch.cat([draws(key, 100, 2) for key in everything]).tolist()
    assert len({tuple(pair) for pair in pairs}) == len(pairs)
    # Each of the 31 bits is set half of the time: 50,000 draws, 5 standard deviations are 1.1 %.
    words = torch.cat([draws(key, 50, 2) for key in everything]).reshape(-1)
    ones = torch.stack([(words >> bit) & 1 for bit in range(31)], 1).float().mean(0)
    assert ((ones - 0.5).abs() < 5 * 0.5 / len(words) ** 0.5).all()
