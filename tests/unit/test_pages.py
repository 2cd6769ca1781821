"""Large tensors of buffers lie on large pages, where the system gives such to those who ask."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import functional_rb as frb
import torch_backend as rb
from torch_backend.arrays import pages

WIDTH = 16
CAPACITY = pages.LEAST // (4 * WIDTH)
SPEC = frb.BufferSpec({"x": frb.Unbounded((WIDTH,))}, CAPACITY)

needs_large_pages = pytest.mark.skipif(
    not (hasattr(mmap, "MADV_HUGEPAGE") and Path("/sys/kernel/mm/transparent_hugepage").exists()),
    reason="the system has no large pages for those who ask",
)


def asks_for_large_pages(array: torch.Tensor) -> bool:
    """Whether the system was told so of the memory that a tensor begins in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *flags = line.split()
        if "-" in first and not first.endswith(":"):
            start, stop = (int(x, 16) for x in first.split("-"))
            inside = start <= array.data_ptr() < stop
        elif inside and first == "VmFlags:":
            return "hg" in flags
    raise AssertionError("the memory is of no mapping")


@needs_large_pages
def test_rows_lie_on_large_pages_and_those_of_a_copy_do_too() -> None:
    state = rb.init(SPEC)
    given_out = state.rows  # so that the next write goes to a copy
    after = rb.add(state, {"x": torch.ones(2, WIDTH)})
    copied = after.rows
    assert copied.data_ptr() != given_out.data_ptr()
    assert asks_for_large_pages(given_out)
    assert asks_for_large_pages(copied)
    assert not given_out.any()
    assert torch.equal(rb.items(after)["x"][:3, 0], torch.tensor([1.0, 1.0, 0.0]))


@needs_large_pages
def test_small_arrays_lie_where_torch_puts_them() -> None:
    assert pages.large((pages.LEAST // 4 - 1,), torch.int32) is None
    assert pages.large((pages.LEAST // 4,), torch.int32) is not None


@pytest.mark.parametrize("device", ["meta", "fake", "none", "no number"])
def test_torch_makes_what_is_elsewhere_or_has_no_memory(device: str) -> None:
    """And words the error, if there is one."""
    given: dict[str, Any] = {"device": "meta"} if device == "meta" else {}
    size = {"none": 2**55, "no number": 2**62}.get(device, pages.LEAST)
    if device == "fake":
        with FakeTensorMode():
            assert pages.large((size,), torch.int32) is None
    else:
        assert pages.large((size,), torch.int32, **given) is None
