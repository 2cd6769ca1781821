"""Running moments: equal to NumPy's over all that was met, whichever way it came, compiled and saved."""

from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import functional_rb as frb
import jax_backend
import torch_backend
from tests.items.item_functions import on_numpy
from tests.support.backends import Backend


def batches(sizes: list[int]) -> list[np.ndarray]:
    """Batches of vectors far from 0, of which sums of squares would lose digits.

    Numbers around 1000 are rounded to 6e-5, and so deviations of 1 are known to some 1e-4 of themselves.
    """
    rng = np.random.default_rng(0)
    return [(1000 + rng.normal(size=(n, 2))).astype(np.float32) for n in sizes]


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.lists(st.sampled_from([0, 1, 2, 9]), min_size=1, max_size=5), st.integers(0, 4))
def test_moments_are_those_of_all_vectors(library: Backend, sizes: list[int], at: int) -> None:
    rb, met = library.rb, batches(sizes)
    found = others = rb.moments(np.zeros((0, 2), np.float32), (2,))
    for k, x in enumerate(met):
        own = rb.moments(x, (2,))
        found = found.merge(own) if k <= at else found
        others = others.merge(own) if k > at else others
    both, whole = jax.tree.map(library.numpy, found.merge(others)), np.concatenate(met)
    assert both.count == len(whole)
    if len(whole):
        np.testing.assert_allclose(both.mean, whole.mean(0, np.float64), rtol=1e-6)
        np.testing.assert_allclose(both.m2 / both.count, whole.var(0, dtype=np.float64), rtol=1e-3, atol=1e-6)
    else:
        assert not both.mean.any()


def test_masked_vectors_do_not_count(library: Backend) -> None:
    rb = library.rb
    x, mask = batches([12])[0].reshape(3, 4, 2), np.random.default_rng(1).random((3, 4)) < 0.5
    x[0, 0] = x[0, 0] if mask[0, 0] else np.nan
    found = rb.moments(x, (2,), mask)
    assert found.count == mask.sum()
    np.testing.assert_allclose(library.numpy(found.mean), x[mask].mean(0), rtol=1e-6)
    np.testing.assert_allclose(library.numpy(found.m2), x[mask].var(0) * mask.sum(), rtol=1e-3)
    backwards = rb.moments(x[::-1], (2,), mask[::-1])  # whose strides torch's own functions refuse
    assert backwards.count == mask.sum()
    np.testing.assert_allclose(library.numpy(backwards.mean), x[mask].mean(0), rtol=1e-6)
    none = found.merge(rb.moments(x, (2,), mask & False))
    assert all(np.array_equal(library.numpy(a), library.numpy(b)) for a, b in zip(none, found, strict=True))


def test_both_backends_compute_save_and_normalize(library: Backend, tmp_path: Path) -> None:
    rb, (x, y) = library.rb, (library.array(x) for x in batches([8, 8]))
    start = rb.moments(np.zeros((0, 2), np.float32), (2,))

    def both(value: Any) -> Any:
        value = value.merge(rb.moments(x, (2,))).merge(rb.moments(y, (2,)))
        return value, (x - value.mean) / value.deviation()

    if library.library == "jax":
        import jax
        import jax.numpy as jnp

        value, made = jax.jit(both)(start)
        scanned, _ = jax.lax.scan(lambda m, x: (m.merge(rb.moments(x, (2,))), None), start, jnp.stack([x, y]))
        for one, other in zip(scanned, value, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4)
    else:
        import torch

        value, made = torch.compile(both, fullgraph=True, backend="eager")(start)
    assert type(value).__name__ == "Moments"
    whole = np.concatenate([library.numpy(x), library.numpy(y)])
    wanted = (library.numpy(x) - whole.mean(0)) / np.sqrt(whole.var(0))
    np.testing.assert_allclose(library.numpy(made), wanted, rtol=1e-3, atol=1e-3)
    frb.save(value, tmp_path / "kept")
    again = frb.load(tmp_path / "kept", rb)
    assert all((library.numpy(a) == library.numpy(b)).all() for a, b in zip(again, value, strict=True))
    function = frb.items.normalize(value.mean, value.deviation(), "x")
    fixed = on_numpy(function, {"x": frb.Unbounded((2,))}, {"x": library.numpy(x)}, (8,))["x"]
    np.testing.assert_allclose(fixed, library.numpy(made), rtol=1e-4, atol=1e-4)
    of_numpy = rb.moments(batches([8])[0], (2,), np.arange(8) < 3)
    assert int(of_numpy.count) == 3
    least = (x - start.mean) / start.deviation()
    np.testing.assert_allclose(library.numpy(least), library.numpy(x) * 100, rtol=1e-5)


def test_moments_on_two_devices_are_refused() -> None:
    rb = torch_backend
    one, other = rb.moments(np.ones((3, 2), np.float32), (2,)), rb.moments(torch.ones(3, 2, device="meta"), (2,))
    with pytest.raises(ValueError, match=r"^merge: expected moments on one device, cpu, got meta; .*x\.to\('cpu'\)"):
        one.merge(other)


def test_errors_name_the_shapes() -> None:
    with pytest.raises(ValueError, match=r"moments: expected x of shape \('...', 2\), got \(3, 4\)"):
        torch_backend.moments(np.ones((3, 4), np.float32), (2,))
    with pytest.raises(ValueError, match=r"got \(3, 2\) with a mask of shape \(4,\)"):
        torch_backend.moments(np.ones((3, 2), np.float32), (2,), np.ones(4, bool))


def test_what_are_no_moments_or_no_numbers_is_refused(library: Backend) -> None:
    rb, other = library.rb, jax_backend if library.library == "torch" else torch_backend
    x = np.ones((3, 2), np.float32)
    seen, single = rb.moments(library.array(x), (2,)), rb.moments(x)
    seen_map, theirs = rb.init(frb.HashMapSpec(frb.Unbounded(()), 2)), other.moments(x, (2,))
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: seen.merge(3), TypeError, "merge: expected moments, as rb.moments makes them, got int$"),
        (lambda: seen.merge(seen_map), TypeError, "merge: expected moments, .* makes them, got HashMap$"),
        (lambda: seen.merge(theirs), TypeError, r"merge: .* one backend, .*; bring them over by rb\.from_dlpack"),
        (lambda: theirs.merge(seen), TypeError, "merge: expected moments of one backend, got count as"),
        (lambda: seen.merge(single), ValueError, r"merge: .* the same shape, \(2,\), got \(\)$"),
        (lambda: rb.moments([1.0]), TypeError, "moments: x: expected an array of this backend or NumPy, got builtins"),
        (
            lambda: rb.moments(theirs.mean),
            TypeError,
            "moments: x: expected an array .* bring it over by rb.from_dlpack",
        ),
        (lambda: rb.moments(x.astype(np.complex64)), TypeError, "moments: x: expected numbers of .* got complex64"),
        (
            lambda: rb.moments(x, (2,), np.ones(3, np.int32)),
            TypeError,
            "moments: mask: expected .* kind bool, got int32",
        ),
        (lambda: rb.moments(x, 2), TypeError, r"moments: expected shape as a sequence of ints, .* got 2$"),
        (lambda: rb.moments(x, "2"), TypeError, "moments: expected shape as a sequence of ints, .* got '2'$"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=f"^{text}"):
            call()
    assert int(seen.merge(rb.from_dlpack(theirs)).count) == 6  # the remedy
    assert float(single.deviation()) == pytest.approx(0.01)


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_a_mask_of_numpy_goes_where_the_numbers_are() -> None:
    found = torch_backend.moments(torch.ones(3, 2, device="meta"), (2,), np.array([True, False, True]))
    assert {part.device.type for part in found} == {"meta"}


FORGED = {
    "a count below nothing": ("count", -1.0, "counted less than nothing"),
    "a count that is none": ("count", np.nan, "counted less than nothing"),
    "squares below nothing": ("m2", [-1.0, 0.0], "squares below nothing"),
    "another shape": ("m2", [0.0], r"its count, mean and m2 have the shapes \(\), \(2,\) and \(1,\)"),
    "more counts than means": ("count", [1.0, 1.0, 1.0], "have the shapes"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_moments_do_not_load(library: Backend, tmp_path: Path, kind: str) -> None:
    name, value, text = FORGED[kind]
    rb = library.rb
    seen = rb.moments(library.array(np.array([[1, np.nan], [2, 3]], np.float32)), (2,))
    frb.save({"seen": seen}, tmp_path)
    assert float(frb.load(tmp_path, rb)["seen"].count) == 2.0  # of what is no number the mean is none, that is all
    frb.save({"seen": seen._replace(**{name: library.array(np.array(value, np.float32))})}, tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=f"Moments: .*{text}"):
        frb.load(tmp_path, rb)
    frb.save({"seen": seen._replace(mean=library.array(np.zeros(2, np.int32)))}, tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError, match="Moments: expected floats"):
        frb.load(tmp_path, rb)
