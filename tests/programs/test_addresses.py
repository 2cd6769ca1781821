"""No address is handed on without what keeps its array alive: neither by Python nor by compiled code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from functional_rb.native import addresses
from tests.support import beside_allocations
from torch_backend import addresses as torch_addresses

ROOT = Path(addresses.__file__).parents[2]
ASKING = {"ctypes", "data_ptr", "untyped_storage", "unsafe_buffer_pointer", "addressof", "from_buffer", "from_address"}
ASKING |= {"__array_interface__", "__array_struct__", "__cuda_array_interface__"}
ALLOWED = {
    # NumPy's and torch's ways of asking, which the rest of these modules binds to the arrays.
    ("functional_rb/native/addresses.py", "of_numpy", "addressof"),
    ("functional_rb/native/addresses.py", "of_numpy", "from_buffer"),
    ("functional_rb/native/addresses.py", "of_numpy", "ctypes"),
    ("functional_rb/ops/numpy_ops.py", "aligned", "ctypes"),
    # Of a mapping, whose parts the system is asked to change.
    ("functional_rb/storage/mapped_array.py", "MappedArray", "ctypes"),
    ("torch_backend/addresses.py", "addresses", "data_ptr"),
    # Looked at while the arrays live, and handed to nobody.
    ("functional_rb/ops/numpy_ops.py", "bitcast", "ctypes"),
    ("torch_backend/carried.py", "_carried", "untyped_storage"),
    ("torch_backend/carried.py", "_carried", "data_ptr"),
    ("torch_backend/tree_loops.py", "_backup", "data_ptr"),
    ("jax_backend/compat.py", "shared", "data_ptr"),
    ("jax_backend/compat.py", "shared", "ctypes"),
    ("jax_backend/compat.py", "shared", "unsafe_buffer_pointer"),
    ("torch_backend/dlpack.py", "_lent", "untyped_storage"),
    # What is let go of on a GPU is given to nothing that comes before the kernel on the same stream.
    ("torch_backend/gpu/kernels.py", "Kernels", "data_ptr"),
    ("torch_backend/gpu/kernels.py", "_at", "data_ptr"),
    ("torch_backend/gpu/kernels.py", "_set_all", "data_ptr"),
    ("torch_backend/gpu/driver.py", "Driver", "addressof"),
}


def places(path: Path) -> Iterator[tuple[str, str, str]]:
    """Where a module asks for addresses: its path, the outermost function, and what it asks by."""
    text = path.read_text()
    for top in ast.parse(text).body if any(word in text for word in (*ASKING, "vector")) else ():
        for node in ast.walk(top):
            name = path.relative_to(ROOT).as_posix(), getattr(top, "name", "")
            if isinstance(node, ast.Attribute) and node.attr in ASKING:
                yield *name, node.attr
            elif isinstance(node, ast.Attribute) and node.attr == "vector" and not is_held(node.value):
                yield *name, "vector"


def is_held(owner: ast.expr) -> bool:
    """Whether a name stands for what the addresses are taken of, which so outlives the expression."""
    if isinstance(owner, ast.Attribute):
        return is_held(owner.value)
    return isinstance(owner, ast.Name)


def test_only_one_module_asks_for_addresses() -> None:
    modules = [
        path for package in ("functional_rb", "jax_backend", "torch_backend") for path in (ROOT / package).rglob("*.py")
    ]
    assert len(modules) > 150
    found = {place for path in modules for place in places(path)}
    assert found == ALLOWED, "call kernels by native.addresses.caller, or hold the arrays by its Held"


@pytest.mark.parametrize(
    "line",
    [
        "f(x.contiguous().data_ptr())",
        "f(scratch.ctypes.data)",
        "np.array([x.data_ptr() for x in y])",
        "f(Held([x]).vector)",
    ],
)
def test_a_bare_address_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(f"def function(x):\n    {line}\n")
    assert [place[:2] for place in places(tmp_path / "module.py")] == [("module.py", "function")]


@pytest.mark.parametrize("size", [0, 5])
def test_an_address_is_that_of_numpy(size: int) -> None:
    """Also of arrays whose buffer cannot be asked for: read-only ones, and empty ones."""
    array = np.zeros(size, np.int16)
    for writeable in (True, False):
        array.flags.writeable = writeable
        assert addresses.of_numpy(array) == array.ctypes.data


def test_arrays_live_until_the_kernel_returns() -> None:
    freed: list[int] = []

    class Noted(np.ndarray):
        def __del__(self) -> None:
            freed.append(1)

    def made() -> np.ndarray:
        return np.zeros(3).view(Noted)

    def kernel(*given: object) -> tuple[int, ...]:
        assert not freed
        return tuple(np.size(x) for x in given)

    assert addresses.caller(addresses.of_vectors)(kernel, (made(), made()), 7) == (1, 1, 1)
    assert len(freed) == 2
    freed.clear()
    call = addresses.storage_caller(addresses.of_vectors)
    assert call(kernel, (made(),), addresses.Held([made()]), [made(), made()], 7) == (1, 1, 2, 1)
    assert len(freed) == 4


@pytest.mark.parametrize("place", range(3))
def test_arrays_outside_of_the_memory_of_the_host_are_refused(place: int) -> None:
    """Before the kernel begins, whichever of the arrays it is, and on each of the ways to a kernel."""
    find, here = torch_addresses.addresses, [torch.zeros(2, device="cpu") for _ in range(3)]
    given = [x.to("meta") if k == place else x for k, x in enumerate(here)]
    held = addresses.Held(here, find)
    assert held.vector.tolist() == [x.data_ptr() for x in here]
    ways = [
        lambda: addresses.caller(find)(pytest.fail, given),
        lambda: addresses.storage_caller(find)(pytest.fail, given, held, here),
        lambda: addresses.storage_caller(find)(pytest.fail, here, held, given),
        lambda: addresses.Held(given, find),
    ]
    for way in ways:
        with pytest.raises(ValueError, match="a kernel of the CPU: expected tensors on the CPU, got one on meta"):
            way()


@pytest.mark.parametrize(
    "array", [torch.zeros(2, device="meta"), jnp.zeros(2), object()], ids=["torch", "jax", "other"]
)
def test_only_arrays_of_numpy_have_addresses_of_numpy(array: object) -> None:
    with pytest.raises(AttributeError, match="ctypes"):
        addresses.of_numpy(array)


def test_kernels_beside_threads_that_allocate() -> None:
    """In a process that gives large blocks back to the system as they are freed, and overwrites small ones."""
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "165", "MALLOC_TOP_PAD_": "0"}
    malloc["MALLOC_MMAP_THRESHOLD_"] = str(beside_allocations.FENCED)
    run = subprocess.run(
        [sys.executable, "-m", beside_allocations.__name__],
        env=os.environ | malloc,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    assert run.stdout == "the same bits\n"
