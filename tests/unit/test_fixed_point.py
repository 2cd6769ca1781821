"""Powers in fixed point: their error, and that each way to compute them gives the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb import samplers
from functional_rb.ops import fixed_point, numpy_ops
from functional_rb.ops.part_kernels import using
from functional_rb.samplers.importance import stored_value
from functional_rb.storage import host_kernels
from jax_backend.arrays import ops as jax_ops
from tests.support.backends import Backend
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops

ALPHAS = [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.6, 0.7, 0.9, 0.999999, 1.0, 1.5, 2.0, 3.7]
# The bits of 1.0; the binade from there on has every mantissa once.
ONE = 0x3F800000
Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int32]]


def by_jax(x: Floats, alpha: float) -> Floats:
    stored = jax.jit(lambda p: stored_value(jax_ops, p, alpha)[0])
    return np.asarray(stored(x))


def by_torch(x: Floats, alpha: float) -> Floats:
    return stored_value(torch_ops, torch.from_numpy(x), alpha)[0].numpy()


def by_kernel(x: Floats, alpha: float) -> Floats:
    with using(host_kernels.TABLE):
        return stored_value(numpy_ops, x, alpha)[0]


def weights_by_kernel(values: Floats, smallest: Any, beta: Any) -> Floats:
    with using(host_kernels.TABLE):
        return samplers.importance_weights(numpy_ops, values, np.float32(smallest), np.float32(beta))


WAYS: list[Callable[[Floats, float], Floats]] = [by_jax, by_torch, by_kernel]


def ulps(got: Floats, exact: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The error in units of the last place that a float32 of the exact value's binade has."""
    _, exponent = np.frexp(exact)
    return np.abs(got.astype(np.float64) - exact) / np.ldexp(1.0, exponent - 24)


def bits(x: Any) -> Ints:
    return np.asarray(x).view(np.int32)


def same_bits(x: Floats, alpha: float) -> Floats:
    first, *others = (way(x, alpha) for way in WAYS)
    for other in others:
        np.testing.assert_array_equal(bits(first), bits(other))
    return first


def spread(alpha: float, n: int = 1 << 15) -> Floats:
    """Normal floats of every exponent, both edges of each binade included, whose power is not clamped."""
    reach = 94 / max(alpha, 0.8)
    rng = np.random.default_rng(0)
    low, high = max(int((127 - reach) * 2**23), 1 << 23), min(int((127 + reach) * 2**23), 0x7F7FFFFF)
    chosen = rng.integers(low, high, n, dtype=np.int32)
    edges = np.arange(low >> 23, high >> 23, dtype=np.int32)[1:] << 23
    return np.sort(np.concatenate([chosen, edges - 1, edges, edges + 1])).view(np.float32)


def test_mantissas() -> None:
    # Measured: 0.518 ulp, where rounding alone costs 0.5; 0.51 to 0.53 for other alphas <= 1, 0.58 for 3.7.
    x = (ONE + np.arange(0, 2**23, effort(9, 1), dtype=np.int32)).view(np.float32)
    y = same_bits(x, 0.6)
    assert ulps(y, x.astype(np.float64) ** 0.6).max() < 0.52
    assert (np.diff(bits(y)) >= 0).all()
    assert y[0] == 1


def test_logarithm_is_strictly_monotonic() -> None:
    # Else a weight could exceed 1, as the distance from the smallest priority could be negative.
    every = np.arange(2**23 + 1, dtype=np.int32)
    mantissas = ONE + every[effort(every >> 13 & 7 == 0, every >= 0)]  # runs of 2^13, one in eight
    log = fixed_point.log2_biased(torch_ops, torch.from_numpy(mantissas))
    value = (log.whole.to(torch.int64) << 31) + log.fraction
    assert (torch.diff(value) > 0).all()
    assert int(log.whole[0]) == fixed_point.BIAS
    assert int(log.fraction[0]) == 0
    exact = np.log2(mantissas.view(np.float32).astype(np.float64)) + fixed_point.BIAS
    assert np.abs(value.numpy() / 2.0**31 - exact).max() < 2.0**-28


@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_exponent(alpha: float) -> None:
    # Alpha is rounded to 2^-31, which counts where the logarithm is large: 0.77 ulp from the exact power at
    # the ends of the range, but never more than 0.53 from that of the rounded alpha. Above 1 the logarithm's
    # own error is magnified as well.
    x = spread(alpha)
    y = same_bits(x, alpha)
    if alpha == 1.0:
        np.testing.assert_array_equal(bits(y), bits(x))
    whole, fraction = fixed_point.fixed_constant(alpha)
    error = ulps(y, x.astype(np.float64) ** (whole + fraction / 2**31)).max()
    assert error <= (0.53 if alpha <= 1 else 0.6), error
    error = ulps(y, x.astype(np.float64) ** alpha).max()
    assert error <= (0.8 if alpha <= 1 else 1), error
    assert (np.diff(bits(y)) >= 0).all()


@pytest.mark.parametrize("alpha", [*ALPHAS, 100.0])
def test_one_is_kept_and_extremes_are_held(alpha: float) -> None:
    x = np.float32([1, 3.4028235e38, 1.1754944e-38, 1e-45, 0.0, -0.0])
    y = same_bits(x, alpha)
    assert y[0] == 1
    assert alpha < 1 or y[1] == 2.0**95
    assert np.all(y[:4] >= np.float32(2.0**-100))
    assert np.all(y[:4] <= np.float32(2.0**95))
    assert y[3] == y[2], "a subnormal counts as the smallest normal"
    assert bits(y[4:]).tolist() == [0, 0], "zero stays zero, and loses its sign"


def test_squares_of_powers_of_two_have_exact_roots() -> None:
    x = np.ldexp(np.float32(1), np.arange(-126, 127, 2)).astype(np.float32)
    np.testing.assert_array_equal(same_bits(x, 0.5), np.sqrt(x))


@pytest.mark.parametrize("ops", [jax_ops, torch_ops], ids=["jax", "torch"])
def test_bad_priorities_are_told_apart(ops: Any) -> None:
    x = np.float32([np.nan, -np.nan, np.inf, -np.inf, -1, -1e-45, 0, -0.0, 1e-45, 1, 3.4e38])
    x = np.concatenate([x, np.array([0x7F800001, -4194304], np.int32).view(np.float32)])  # NaNs of other payloads
    array = torch.from_numpy(x) if ops is torch_ops else jnp.asarray(x)
    stored = functools.partial(stored_value, ops, alpha=0.6)
    _, good = (jax.jit(stored) if ops is jax_ops else stored)(array)
    expected = np.isfinite(x) & (x >= 0)
    assert np.asarray(good).tolist() == expected.tolist()
    with using(host_kernels.TABLE):
        assert stored_value(numpy_ops, x, 0.6)[1].tolist() == expected.tolist()


words = st.integers(0, 2**31 - 1) | st.sampled_from([0, 1, 2**16 - 1, 2**16, 2**30, 2**31 - 2, 2**31 - 1])
vectors = hnp.arrays(np.int32, 64, elements=words)


@hypothesis.settings(max_examples=50)
@hypothesis.given(a=vectors, b=vectors)
def test_wide_product(a: Ints, b: Ints) -> None:
    exact = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    for ops, x, y in (
        (torch_ops, torch.from_numpy(a), torch.from_numpy(b)),
        (jax_ops, jnp.asarray(a), jnp.asarray(b)),
    ):
        high, low = ops.mul_wide(x, y)
        assert np.asarray(high).dtype == np.asarray(low).dtype == np.int32
        assert np.asarray(high).tolist() == [e >> 31 for e in exact]
        assert np.asarray(low).tolist() == [e & (2**31 - 1) for e in exact]


fixed_numbers = st.tuples(st.integers(0, 2**14), st.integers(0, 2**31 - 1))


@hypothesis.settings(max_examples=effort(100, 400))
@hypothesis.given(x=fixed_numbers, y=fixed_numbers)
def test_fixed_point_arithmetic(x: tuple[int, int], y: tuple[int, int]) -> None:
    def made(parts: tuple[int, int]) -> fixed_point.Fixed:
        return fixed_point.Fixed(*(torch.tensor([part], dtype=torch.int32) for part in parts))

    def number(value: fixed_point.Fixed) -> int:
        return (int(value.whole) << 31) + int(value.fraction)

    a, b = (x[0] << 31) + x[1], (y[0] << 31) + y[1]
    assert number(fixed_point.plus(torch_ops, made(x), made(y))) == a + b
    assert number(fixed_point.minus(torch_ops, made(x), made(y))) == a - b
    # times() drops what is below 2^-31 of the product of the fractions, and nothing else.
    assert number(fixed_point.times(torch_ops, made(x), made(y))) == a * b >> 31


weights_by_jax = jax.jit(functools.partial(samplers.importance_weights, jax_ops))


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.4, 0.7, 1.0, 2.5, 40.0])
def test_importance_weights(beta: float) -> None:
    # Measured, up to a ratio of 2^60: 0.511 ulp for beta <= 1, 0.52 at 2.5, 0.92 at 40; not counting that
    # float32 rounds beta.
    smallest = np.float32(1.5e-9)
    ratio = np.exp2(np.linspace(0, 60 / max(beta, 1), 1 << 15))
    values = np.sort(np.maximum(np.float32(smallest * ratio), smallest))
    level = np.float32(beta)
    by_torch = samplers.importance_weights(
        torch_ops, torch.from_numpy(values), torch.tensor(smallest), torch.tensor(level)
    ).numpy()
    by_jax = np.asarray(weights_by_jax(values, smallest, level))
    np.testing.assert_array_equal(bits(by_torch), bits(by_jax))
    np.testing.assert_array_equal(bits(by_torch), bits(weights_by_kernel(values, smallest, level)))
    exact = (values.astype(np.float64) / np.float64(smallest)) ** -np.float64(level)
    error = ulps(by_torch, exact).max()
    assert error <= (0.52 if beta <= 1 else 1), error
    assert by_torch[0] == 1
    assert (np.diff(by_torch) <= 0).all()
    assert (by_torch > 0).all()


@pytest.mark.parametrize("beta", [0.0, -1.0, np.nan, np.inf, 2.0**30])
def test_a_beta_gives_weights_within_zero_and_one_or_says_that_it_is_none(beta: float) -> None:
    values = np.float32([2.0**-100, 1e-20, 1, 1e20, 2.0**95])
    smallest, level = np.float32(2.0**-100), np.float32(beta)
    tensor = torch.tensor(smallest)
    by_torch = samplers.importance_weights(torch_ops, torch.from_numpy(values), tensor, torch.tensor(level)).numpy()
    by_jax = np.asarray(weights_by_jax(values, smallest, level))
    np.testing.assert_array_equal(bits(by_torch), bits(by_jax))
    np.testing.assert_array_equal(bits(by_torch), bits(weights_by_kernel(values, smallest, level)))
    if not beta >= 0:
        assert np.isnan(by_torch).all()
        return
    assert by_torch[0] == 1
    if beta > 0:
        assert np.all(by_torch[1:] < 2.0**-125)  # and positive still: an item's weight never vanishes
        assert np.all(by_torch[1:] >= 2.0**-126)
    else:
        assert np.all(by_torch == 1)


def test_subnormal_priorities_on_every_variant(backend: Backend) -> None:
    # XLA's threads take subnormals for zero: a kernel that compared floats let negative ones pass and lost the rest.
    given = np.float32([1e-45, 1e-40, 1.1754944e-38, 0.0, -0.0, -1e-45, -1e-40, np.nan, 5])
    for alpha in (0.5, 1.0):
        spec = frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 9, frb.Prioritized(alpha=alpha))
        state = backend.init(spec)
        ids = np.arange(9, dtype=np.int32)
        least = max(np.float32(2.0**-126) ** np.float32(alpha), np.float32(fixed_point.SMALLEST))
        state = backend.add(state, backend.tree({"n": ids}), None, backend.array(given))
        expected = [least, least, least, 0, 0, 1, 1, 1, np.float32(5) ** np.float32(alpha)]
        np.testing.assert_array_equal(backend.numpy(state.tree).reshape(-1)[:9], np.float32(expected))
        state = backend.update(state, backend.array(ids), backend.array(given[::-1].copy()))
        # Slot 0 gets 5; slots 1 to 3 (a NaN and two negative ones) keep what they have; the rest goes by the rules.
        expected = [expected[8], least, least, 0, 0, 0, least, least, least]
        np.testing.assert_array_equal(backend.numpy(state.tree).reshape(-1)[:9], np.float32(expected))
        assert int(backend.rb.counts(state).rejected) == 6


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_the_largest_priority_is_read_back(library: Backend, alpha: float) -> None:
    """Though what is stored of it is rounded up to the power of 2^128, which float32 does not have."""
    largest = np.finfo(np.float32).max
    state = library.rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, 2, frb.Prioritized(alpha=alpha)))
    state = library.rb.add(state, {"x": np.zeros(1, np.float32)}, priorities=np.array([largest]))
    assert library.numpy(library.rb.priorities(state, np.zeros(1, np.int32))).tolist() == [largest]
