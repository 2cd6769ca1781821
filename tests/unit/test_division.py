"""Quotients rounded to the nearest, where what divides is up to 2 units off, as XLA's is on a GPU; and square roots."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import functional_rb as frb
import jax_backend as rb
from functional_rb.ops import numpy_ops
from functional_rb.samplers import group_rewards
from jax_backend.arrays import ops
from tests.support import gpu

COUNT = 100_000


def off_by(units: int) -> Any:
    """A division that misses the nearest number by some units in the last place."""

    def divided(x: jax.Array, y: jax.Array) -> jax.Array:
        bits = lax.bitcast_convert_type(lax.div(x, y), jnp.int32)
        return lax.bitcast_convert_type(bits + units, jnp.float32)

    return divided


def numbers(rng: np.random.Generator) -> np.ndarray:
    """Normal numbers of all sizes and signs, and of the size of priorities and counts."""
    wide = (
        (rng.integers(2**23, 255 * 2**23, COUNT) | rng.integers(0, 2, COUNT) << 31).astype(np.uint32).view(np.float32)
    )
    return np.concatenate([wide, rng.random(COUNT, np.float32), rng.integers(1, 2**24, COUNT).astype(np.float32)])


@pytest.mark.parametrize("units", [-2, -1, 0, 1, 2])
def test_quotients_are_the_nearest(units: int) -> None:
    rng = np.random.default_rng(units + 2)
    x, y = numbers(rng), numbers(rng)
    y[::7] = 1 / np.float32(3)
    x[::5] = 1
    rng.shuffle(y)
    with np.errstate(over="ignore", under="ignore"):
        wanted = x / y
    found = np.array(jax.jit(lambda x, y: ops.nearest_quotient(x, y, off_by(units)))(x, y))
    normal = (np.abs(wanted) >= 2.0**-126) & np.isfinite(wanted)
    assert normal.mean() > 0.7
    np.testing.assert_array_equal(found[normal].view(np.int32), wanted[normal].view(np.int32))


def test_other_quotients_are_those_of_the_device() -> None:
    x = np.float32([0, 1, -1, np.inf, np.nan, 1, 0, 2.0**-130, 2.0**100, 2.0**-100])
    y = np.float32([5, 0, 0, 2, 1, np.inf, 0, 3, 2.0**-100, 2.0**100])
    wanted = jax.jit(lambda x, y: x / y)(x, y)
    np.testing.assert_array_equal(jax.jit(lambda x, y: ops.nearest_quotient(x, y, lax.div))(x, y), wanted)


def test_this_device_divides_as_numpy_does() -> None:
    """On a GPU this is what tells whether the bits are those of other devices."""
    rng = np.random.default_rng(7)
    x, y = rng.random(COUNT, np.float32) + 1, rng.random(COUNT, np.float32) + 1
    found = np.array(jax.jit(ops.divide)(x, y))
    np.testing.assert_array_equal(found.view(np.int32), (x / y).view(np.int32))
    assert ops.divides_roughly() == gpu.ASKED or jax.default_backend() == "gpu"


@pytest.mark.parametrize("sampler", [frb.Prioritized(), frb.Prioritized(replacement=False), frb.Uniform()], ids=repr)
def test_samplers_divide_so(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No probability comes from the device's own division."""
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 23, sampler)
    state = rb.add(rb.init(spec), {"x": np.arange(23, dtype=np.float32)})
    if sampler != frb.Uniform():
        state = rb.update(state, np.arange(23, dtype=np.int32), np.arange(1, 24, dtype=np.float32) / 7)
    draws = jnp.asarray(np.random.default_rng(0).integers(0, 2**31, spec.draw_shape(9), np.int64).astype(np.int32))

    def drawn() -> list[np.ndarray]:
        found = jax.jit(lambda s: frb_draw(s, spec, draws))(state)
        return [np.array(x) for x in jax.tree.leaves(found)]

    wanted = drawn()
    monkeypatch.setattr(ops, "divides_roughly", lambda: True)
    exact = ops.nearest_quotient
    monkeypatch.setattr(ops, "nearest_quotient", lambda x, y, roughly: exact(x, y, off_by(1)))
    for one, two in zip(drawn(), wanted, strict=True):
        np.testing.assert_array_equal(one, two)


def frb_draw(state: Any, spec: Any, draws: Any) -> Any:
    """The core's draw, traced anew at each call."""
    from functional_rb.buffer import functions

    _, _, selection = functions.draw(ops, state, spec, draws, jnp.float32(0.4), 9)
    return selection.handles, selection.weights, selection.probabilities


def test_roots_are_as_exact_as_their_numbers() -> None:
    rng = np.random.default_rng(0)
    squares = (rng.uniform(1, 4, 2000) * 2.0 ** rng.integers(-126, 126, 2000)).astype(np.float32)
    found = group_rewards._square_root(numpy_ops, squares)
    np.testing.assert_allclose(found, np.sqrt(squares.astype(np.float64)), rtol=2.0**-22)
    rest = np.float32([0, 1e-45, np.inf, np.nan])
    np.testing.assert_array_equal(group_rewards._square_root(numpy_ops, rest), np.float32([0, 0, np.inf, np.nan]))
