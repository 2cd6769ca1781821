"""Several choices held as floats, and rows of which each has its own numbers of choices."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

DTYPES = ["int8", "int32", "float16", "bfloat16", "float32"]
NVEC, START = np.array([[3, 5], [2, 2]]), np.array([[1, 0], [3, 4]])
EVEN = frb.specs.MultiCategorical([3, 5], start=[0, 1])
UNEVEN = frb.specs.MultiCategorical(NVEC, start=START)


def of(spec: frb.specs.MultiCategorical, dtype: str) -> frb.specs.MultiCategorical:
    return frb.specs.MultiCategorical(spec.nvec, None, spec.shape, dtype, spec.start)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("whole", [EVEN, UNEVEN], ids=["a row", "rows"])
def test_each_element_keeps_its_choices(whole: frb.specs.MultiCategorical, dtype: str) -> None:
    """Where a spec of int64, whose tables NumPy has, has them after the same change."""
    spec, wide = of(whole, dtype), of(whole, "int64")
    for change in (
        lambda x: x[0],
        lambda x: x[..., 1],
        lambda x: x[(-1,) * len(whole.shape)],
        lambda x: x.expand(3, *whole.shape),
        lambda x: x.reshape(-1),
        lambda x: x.reshape(1, *whole.shape),
        lambda x: x.unsqueeze(0).squeeze(0),
        lambda x: frb.specs.stack([x, x]),
    ):
        made, expected = change(spec), change(wide)
        assert made.dtype == dtype
        assert made.shape == expected.shape
        kind: Any = type(expected)
        assert made == kind(*(dtype if name == "dtype" else getattr(expected, name) for name in kind.arguments))


def test_numbers_of_choices_of_rows() -> None:
    assert frb.specs.MultiCategorical([[3, 5], [3, 5]]).counts == (3, 5)
    for read in ("counts", "choices"):
        with pytest.raises(ValueError, match=r"counts: expected the same numbers of choices in all rows, .* read nvec"):
            getattr(UNEVEN, read)
    with pytest.raises(ValueError, match=r"to_one_hot: expected the same numbers of choices in all rows, .* a part of"):
        UNEVEN.to_one_hot()


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_rows_of_their_own_numbers(library: Backend, dtype: str) -> None:
    spec, rb = of(UNEVEN, dtype), library.rb
    low, high = START, START + NVEC - 1
    values = library.numpy(rb.rand(spec, rb.key(0), 200)).astype(int)
    assert (values.min(0) == low).all()
    assert (values.max(0) == high).all()
    assert rb.contains(spec, rb.rand(spec, rb.key(0), 5)).tolist() == [True] * 5
    every = library.numpy(rb.enumerate(spec)).astype(int).reshape(-1, 4)
    ranges = [range(a, b + 1) for a, b in zip(low.reshape(-1), high.reshape(-1), strict=True)]
    assert list(map(tuple, every.tolist())) == list(itertools.product(*ranges))
    for far, nearest in ((-9, low), (9, high)):
        given = rb.enumerate(spec)[:1] * 0 + far
        assert rb.contains(spec, given).tolist() == [False]
        np.testing.assert_array_equal(library.numpy(rb.project(spec, given)).astype(int)[0], nearest)


def test_such_leaves_are_stored(library: Backend) -> None:
    item = {"action": of(UNEVEN, "float32"), "other": of(EVEN, "float16")}
    spec = frb.BufferSpec(item, 4)
    assert frb.convert.from_json(frb.convert.to_json(spec)) == spec
    assert dataclasses.replace(spec, capacity=8).item["action"] == item["action"]
    rows = {
        name: np.broadcast_to(leaf.table("start"), (3, *leaf.shape)).astype(leaf.dtype) for name, leaf in item.items()
    }
    state = library.add(library.init(spec), rows)
    np.testing.assert_array_equal(library.numpy(library.rb.items(state)["action"])[:3], rows["action"])
