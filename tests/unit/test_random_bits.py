"""Random bits: the kernel's Threefry gives those of `jax.random.bits`, and Python's numbers give torch's keys."""

from __future__ import annotations

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from jax_backend.compiling import compile
from torch_backend.arrays import random


@compile.program
def draws(key: jax.Array, batch: int, words: int) -> jax.Array:
    return compile.draws(key, batch, words)


def both(key: jax.Array, batch: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    with_kernel, without = (np.asarray(draws(key, batch, words, kernels=kernels)) for kernels in (True, False))
    return with_kernel, without


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31 + 7])
@pytest.mark.parametrize(("batch", "words"), [(1, 1), (7, 2), (256, 5), (1000, 6)])
def test_bits_are_those_of_jax_random(seed: int, batch: int, words: int) -> None:
    expected = np.asarray(jax.random.bits(jax.random.key(seed), (batch, words), jnp.uint32)) >> 1
    for found in both(jax.random.key(seed), batch, words):
        np.testing.assert_array_equal(found, expected)


def test_the_kernel_is_what_runs() -> None:
    text = jax.jit(lambda key: draws(key, 4, 2, kernels=True)).lower(jax.random.key(0)).compile().as_text()
    assert text is not None
    assert "functional_rb_threefry" in text


def test_batches_of_keys_and_legacy_keys() -> None:
    keys = jax.random.split(jax.random.key(3), 4)
    found = [
        jax.vmap(lambda key, kernels=kernels: draws(key, 8, 3, kernels=kernels))(keys) for kernels in (True, False)
    ]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0][2], both(keys[2], 8, 3)[0])
    np.testing.assert_array_equal(*both(jax.random.PRNGKey(5), 8, 3))


def test_other_generators_are_left_to_jax() -> None:
    key = jax.random.key(0, impl="rbg")
    text = jax.jit(lambda key: draws(key, 4, 2, kernels=True)).lower(key).compile().as_text()
    assert text is not None
    assert "functional_rb_threefry" not in text
    np.testing.assert_array_equal(*both(key, 8, 3))


@hypothesis.given(st.integers(-(2**63), 2**63 - 1), st.integers(0, random.FEW))
def test_few_keys_of_torch_are_the_first_of_many(number: int, n: int) -> None:
    """Few are computed by Python's numbers, and many by torch's."""
    key = torch.tensor(number)
    few, many = random.split(key, n), random.split(key, random.FEW + 1)
    assert few.dtype == many.dtype
    assert torch.equal(few, many[:n])


def test_keys_that_vmap_takes_apart_are_split_by_torch() -> None:
    keys = random.split(random.key(0), 5)
    each = torch.stack([random.split(key, 3) for key in keys])
    assert torch.equal(torch.vmap(lambda key: random.split(key, 3))(keys), each)


def test_keys_stay_where_they_are_whatever_the_default_device() -> None:
    key = random.key(0)
    with torch.device("meta"):
        made = [random.split(key, 3), random.split(key, 3 * random.FEW), random.draws(key, 2, 2), random.for_maps(key)]
        made += random.split_at_once(key, 3)
    assert {x.device.type for x in made} == {"cpu"}


def test_keys_without_values_are_split_by_torch() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = random.split(mode.from_tensor(random.key(0)), 3)
    assert (type(made).__name__, made.shape, made.dtype) == ("FakeTensor", (3,), torch.int64)
