"""What functions of images are made of: lines that are resampled, and windows that are cut out."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from functional_rb.items import crops
from functional_rb.items.resize import weights
from functional_rb.ops import numpy_ops, part_kernels
from jax_backend.arrays import ops as jax_ops
from torch_backend.arrays import ops as torch_ops
from torch_backend.kernels import cpu_kernels

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("before", "after"), [(9, 13), (60, 4)])
def test_lines_are_resampled_by_few_elements_and_by_many(before: int, after: int) -> None:
    matrix, x = weights(before, after, "linear", True), RNG.random((2, before, 3)).astype(np.float32)
    most = (matrix != 0).sum(1).max()
    assert (most > jax_ops.MOST_ADDED) == (before == 60)
    for axis in (1, -2):
        expected = np.einsum("nbc,ab->nac", x, matrix)
        np.testing.assert_allclose(numpy_ops.resampled(x, matrix, axis), expected, rtol=1e-5)
        np.testing.assert_allclose(jax_ops.resampled(x, matrix, axis), expected, rtol=1e-5)


def test_windows_reach_over_the_edge() -> None:
    x = RNG.integers(0, 256, (1, 3, 4, 2)).astype(np.uint8)
    top, left = np.array([-5], np.int32), np.array([2], np.int32)
    made = crops.windows(numpy_ops, x, top, left, (4, 5))
    np.testing.assert_array_equal(made[0], x[0][np.zeros(4, int)][:, [2, 3, 3, 3, 3]])


@pytest.mark.usefixtures("tensors_of_the_cpu")
@hypothesis.settings(max_examples=30)
@hypothesis.given(st.data(), st.sampled_from(["uint8", "float32", "bool"]), st.integers(1, 3))
def test_the_kernel_takes_the_same_windows(data: Any, dtype: str, channels: int) -> None:
    height, width, *size = (data.draw(st.integers(1, 6)) for _ in range(4))
    x = RNG.integers(0, 256, (3, height, width, channels)).astype(dtype)
    corners = [np.array(data.draw(st.lists(st.integers(-8, 8), min_size=3, max_size=3)), np.int32) for _ in range(2)]
    expected = crops.windows(numpy_ops, x, *corners, tuple(size))
    given = torch.from_numpy(x.transpose(0, 2, 1, 3).copy()).transpose(1, 2)  # not as kernels read it
    with part_kernels.using(cpu_kernels.TABLE):
        made = crops.windows(torch_ops, given, *map(torch.from_numpy, corners), tuple(size))
    np.testing.assert_array_equal(made.numpy(), expected)
