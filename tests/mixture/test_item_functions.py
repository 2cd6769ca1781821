"""Functions of items that mix rows: what they are given is the same eagerly, compiled, and without native code."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from tests.mixture.mixtures import ITEM
from tests.support.effort import effort

BATCH = 8
UNIFORM = frb.Uniform()
# How a sample is drawn by a key: in each of these ways its rows are the same.
WAYS = [
    "torch",
    "torch without kernels",
    "torch traced",
    "jax",
    *effort([], ["jax without kernels"]),
    "jax compiled",
    "jax on a host",
]


def centered(items: Any) -> Any:
    return {"x": items["x"] - items["x"].mean(0)}


def summed(items: Any) -> Any:
    return {"x": items["x"] + items["x"].sum(0)}


def mixed(rb: Any, functions: list[Any], sampler: Any, storage: Any, how: Any) -> frb.Mixture:
    """Buffers of numbers below and above 10, with these functions."""
    states = []
    for k, function in enumerate(functions):
        transforms = () if function is None else frb.map_items(function)
        spec = frb.BufferSpec(ITEM, 8, sampler, storage=storage, transforms=transforms)
        states.append(rb.add(rb.init(spec), {"x": np.arange(10 * k, 10 * k + 6, dtype=np.float32)}))
    return frb.Mixture(states, p=[0.4, 0.6], how=how)


def sampled(way: str, functions: list[Any], sampler: Any = UNIFORM, how: Any = "items") -> Any:
    """A sample's items and handles in NumPy, as it is drawn in one of the ways."""
    library, *_ = way.split()
    rb: Any = {"torch": torch_backend, "jax": jax_backend}[library]
    mixture = mixed(rb, functions, sampler, frb.Host() if "host" in way else frb.Device(), how)

    def draw(key: Any) -> Any:
        sample = rb.sample(mixture, key, BATCH)[1]
        return sample.items["x"], sample.indices

    key = rb.key(3)
    with frb.kernels(False) if "without" in way else contextlib.nullcontext():
        if "traced" in way:  # by a map, as in a compiled program no number is known
            found = [x[0] for x in torch.func.vmap(draw)(key[None])]
        else:
            found = (jax.jit(draw) if "compiled" in way else draw)(key)
    return [np.asarray(x.cpu() if isinstance(x, torch.Tensor) else x) for x in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "sampler",
    [UNIFORM, frb.Slices(2, end_keys=()), frb.Slices(2, end_keys=(), flat=True)],
    ids=repr,
)
def test_one_function_of_all_buffers_is_given_the_batch_of_the_mixture(way: str, sampler: Any) -> None:
    stored, handles = sampled(way, [None, None], sampler)
    found, same = sampled(way, [centered, centered], sampler)
    np.testing.assert_array_equal(same, handles)
    assert set(handles.reshape(-1, 2)[:, 0]) == {0, 1}
    np.testing.assert_allclose(found, stored - stored.mean(0), rtol=1e-5, atol=1e-5)


def masked(items: Any, mask: Any) -> Any:
    return items if mask is None else {"x": items["x"] * mask}  # none of what is only described


@pytest.mark.parametrize("library", [torch_backend, jax_backend], ids=lambda library: library.__name__)
@pytest.mark.parametrize("flat", [False, True])
def test_one_function_of_all_buffers_is_given_the_mask_of_the_mixture(library: Any, flat: bool) -> None:
    sampler = frb.Slices(3, end_keys=(), strict_length=False, flat=flat)
    spec = frb.BufferSpec(ITEM, 8, sampler, transforms=frb.map_items(masked, masked=True))
    states = [library.add(library.init(spec), {"x": np.arange(n, n + n, dtype=np.float32)}) for n in (2, 5)]
    sample = library.sample(frb.Mixture(states, p=[0.5, 0.5]), library.key(0), 4)[1]
    x, mask = np.asarray(sample.items["x"]), np.asarray(sample.mask)
    assert x.shape == mask.shape == ((12,) if flat else (4, 3))
    assert mask.reshape(4, 3).sum(-1).tolist() == [2, 2, 3, 3]  # one buffer holds two steps alone
    assert ((x > 0) == mask).all()
    assert np.asarray(sample.weights).tolist() == [1.0] * 4  # short slices count as others do


@pytest.mark.parametrize("how", ["items", *effort([], ["exact", "buffers"])])
def test_other_functions_are_given_a_whole_batch_of_their_buffer(how: Any) -> None:
    """As many rows as the mixture's batch has, drawn from one buffer; those that the mixture takes come first."""
    for library in ("torch", "jax"):
        ways = [way for way in WAYS if way.startswith(library)]
        found = {way: sampled(way, [centered, summed], how=how) for way in ways if "host" not in way}
        expected, handles = found[library]
        assert set(handles[:, 0]) == {0, 1}
        for items, other in found.values():
            np.testing.assert_array_equal(other, handles)
            np.testing.assert_allclose(items, expected, rtol=1e-5, atol=1e-5)
    # The sum of eight numbers, of which each is between 10 and 15.
    rows = expected[handles[:, 0] == 1]
    assert 90 <= rows.min() <= rows.max() <= 8 * 15 + 15


@pytest.mark.parametrize("library", [torch_backend, jax_backend], ids=lambda library: library.__name__)
def test_rows_that_only_a_function_is_given_are_not_remembered(library: Any) -> None:
    """Each function is given five rows, of which two and three come: in two batches no item comes twice."""
    mixture = mixed(library, [centered, summed], frb.WithoutReplacement(), frb.Device(), "exact")
    handles = []
    for k in range(2):
        mixture, sample = library.sample(mixture, library.key(k), 5)
        handles += np.asarray(sample.indices).tolist()
    assert [sum(buffer == k for buffer, _ in handles) for k in range(2)] == [4, 6]
    assert len({tuple(handle) for handle in handles}) == 10


@pytest.mark.parametrize("library", [torch_backend, jax_backend], ids=lambda library: library.__name__)
def test_chances_beside_rows_that_only_a_function_is_given_are_those_of_the_rows_that_come(library: Any) -> None:
    mixture = mixed(library, [centered, summed], frb.Prioritized(alpha=1.0), frb.Device(), "items")
    handles = np.array([[k, slot] for k in range(2) for slot in range(6)], np.int32)
    mixture = library.update(mixture, handles, np.tile(np.arange(1, 7, dtype=np.float32), 2))
    sample = library.sample(mixture, library.key(0), BATCH, 0.0)[1]
    buffers, slots = np.asarray(sample.indices).T
    expected = np.array([0.4, 0.6])[buffers] * (slots + 1) / 21
    np.testing.assert_allclose(np.asarray(sample.probabilities), expected, rtol=1e-6)
