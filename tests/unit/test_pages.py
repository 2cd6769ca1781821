"""Large tensors of buffers lie on large pages, where the system gives such to those who ask."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import functional_rb as frb
import torch_backend as rb

WIDTH = 16
# Bytes from which on an array has pages of its own.
LEAST = 2**22
SPEC = frb.BufferSpec({"x": frb.Unbounded((WIDTH,))}, LEAST // (4 * WIDTH))

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


def bytes_on_large_pages() -> int:
    """Of all mappings of which the system was told so."""
    total = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if first == "Size:":
            size = int(rest[0])
        elif first == "VmFlags:" and "hg" in rest:
            total += size
    return total


@needs_large_pages
def test_small_arrays_lie_where_torch_puts_them() -> None:
    before = bytes_on_large_pages()
    arrays = [rb.zeros(frb.Unbounded((LEAST // 4 - 1,), "int32"))]
    assert bytes_on_large_pages() <= before  # it may lie where a large array has been
    arrays.append(rb.zeros(frb.Unbounded((LEAST // 4,), "int32")))
    assert asks_for_large_pages(arrays[1])


@pytest.mark.parametrize("device", ["meta", "fake"])
def test_torch_makes_what_is_elsewhere(device: str) -> None:
    with FakeTensorMode() if device == "fake" else torch.device("meta"):
        rows = rb.init(SPEC).rows
    assert (rows.device.type, type(rows).__name__) == {"meta": ("meta", "Tensor"), "fake": ("cpu", "FakeTensor")}[
        device
    ]


@pytest.mark.parametrize(("n", "message"), [(2**28, "allocate memory"), (2**31, "overflow")])
def test_torch_words_the_error_where_there_is_no_memory(n: int, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        rb.zeros(frb.Unbounded((n,)), n)
