"""Random bits: those of `jax.random.bits`, by the kernel's Threefry too; and torch's keys, wherever they are split."""

from __future__ import annotations

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import functional_rb as frb
import jax_backend
import torch_backend

ITEM = {"x": frb.Unbounded(())}


def draws(key: Any, batch: int, words: int) -> Any:
    """Of numbers that may be any of 31 bits the words that were drawn are left as they are."""
    return jax_backend.rand(frb.Bounded(0, 2**31 - 1, (words,), "int32"), key, batch)


def both(function: Any, *args: Any) -> tuple[np.ndarray, np.ndarray]:
    with frb.kernels(False):
        without = np.asarray(function(*args))
    return np.asarray(function(*args)), without


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31 + 7])
@pytest.mark.parametrize(("batch", "words"), [(1, 1), (7, 2), (256, 5), (1000, 6)])
def test_bits_are_those_of_jax_random(seed: int, batch: int, words: int) -> None:
    expected = np.asarray(jax.random.bits(jax.random.key(seed), (batch, words), jnp.uint32)) >> 1
    for found in both(draws, jax.random.key(seed), batch, words):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("generator", "is_the_kernel"), [("threefry2x32", True), ("rbg", False)])
def test_the_kernel_is_what_runs(generator: str, is_the_kernel: bool) -> None:
    """Other generators are left to JAX."""
    key = jax.random.key(0, impl=generator)
    text = jax.jit(draws, static_argnums=(1, 2)).lower(key, 4, 2).compile().as_text()
    assert text is not None
    assert ("functional_rb_threefry" in text) == is_the_kernel
    np.testing.assert_array_equal(*both(draws, key, 8, 3))


def test_batches_of_keys_and_legacy_keys() -> None:
    keys = jax.random.split(jax.random.key(3), 4)
    found = both(lambda keys: jax.vmap(lambda key: draws(key, 8, 3))(keys), keys)
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0][2], draws(keys[2], 8, 3))
    np.testing.assert_array_equal(*both(draws, jax.random.PRNGKey(5), 8, 3))


@hypothesis.given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 50))
def test_few_keys_of_torch_are_the_first_of_many(number: int, n: int) -> None:
    """Few are computed by Python's numbers, and many by torch's."""
    key = torch.tensor(number)
    few, many = torch_backend.split(key, n), torch_backend.split(key, 50)
    assert few.dtype == many.dtype
    assert torch.equal(few, many[:n])


def test_keys_that_vmap_takes_apart_are_split_by_torch() -> None:
    keys = torch_backend.split(torch_backend.key(0), 5)
    each = torch.stack([torch_backend.split(key, 3) for key in keys])
    assert torch.equal(torch.vmap(lambda key: torch_backend.split(key, 3))(keys), each)


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_keys_stay_where_they_are_whatever_the_default_device() -> None:
    """Also those that transforms and the buffers of a mixture are given."""
    rb, key = torch_backend, torch_backend.key(0)
    keyed = frb.map_items(lambda items, key: {"x": items["x"] + key % 2}, keyed=True)
    states = [rb.init(frb.BufferSpec(ITEM, 4, frb.Prioritized(), transforms=keyed), items={"x": torch.ones(3)})] * 2
    with torch.device("meta"):
        made = [rb.split(key, 3), rb.split(key, 50), rb.sample(states[0], key, 5)[1].items["x"]]
        made.append(rb.sample(frb.Mixture(states), key, 5)[1].items["x"])
    assert {x.device.type for x in made} == {"cpu"}


def test_keys_without_values_are_split_by_torch() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = torch_backend.split(mode.from_tensor(torch_backend.key(0)), 3)
    assert (type(made).__name__, made.shape, made.dtype) == ("FakeTensor", (3,), torch.int64)
