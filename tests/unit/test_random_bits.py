"""The kernel's Threefry gives the bits of `jax.random.bits`, and steps aside where JAX uses another generator."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_backend import compile


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
