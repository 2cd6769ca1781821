"""No address is handed on without what keeps its array alive: neither by Python nor by compiled code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import functional_rb
from tests.children import beside_allocations

ROOT = Path(functional_rb.__file__).parents[1]
ASKING = {"ctypes", "data_ptr", "untyped_storage", "unsafe_buffer_pointer", "addressof", "from_buffer", "from_address"}
ASKING |= {"__array_interface__", "__array_struct__", "__cuda_array_interface__"}
ALLOWED = {
    # For compiled code, which holds the tensor meanwhile, of a torch that has no interface of C.
    ("torch_backend/kernels/chain.py", "look", "data_ptr"),
    ("functional_rb/ops/numpy_ops.py", "aligned", "ctypes"),
    # Of a mapping, whose parts the system is asked to change.
    ("functional_rb/storage/mapped_array.py", "MappedArray", "ctypes"),
    # Looked at while the arrays live, and handed to nobody.
    ("functional_rb/ops/numpy_ops.py", "bitcast", "ctypes"),
    ("torch_backend/engines/carried.py", "_carried", "untyped_storage"),
    ("torch_backend/engines/carried.py", "_carried", "data_ptr"),
    ("torch_backend/compiling/tree_loops.py", "_backup", "data_ptr"),
    ("functional_rb/scale/ray/arrays.py", "BackendArrays", "ctypes"),
    ("jax_backend/compat.py", "shared", "data_ptr"),
    ("jax_backend/compat.py", "shared", "ctypes"),
    ("jax_backend/compat.py", "shared", "unsafe_buffer_pointer"),
    ("torch_backend/interop/dlpack.py", "_lent", "untyped_storage"),
}


def places(path: Path) -> Iterator[tuple[str, str, str]]:
    """Where a module asks for addresses: its path, the outermost function, and what it asks by."""
    text = path.read_text()
    for top in ast.parse(text).body if any(word in text for word in ASKING) else ():
        for node in ast.walk(top):
            name = path.relative_to(ROOT).as_posix(), getattr(top, "name", "")
            if isinstance(node, ast.Attribute) and node.attr in ASKING:
                yield *name, node.attr


def test_modules_that_ask_for_addresses() -> None:
    modules = [
        path for package in ("functional_rb", "jax_backend", "torch_backend") for path in (ROOT / package).rglob("*.py")
    ]
    assert len(modules) > 150
    found = {place for path in modules for place in places(path)}
    assert found == ALLOWED, "call kernels by native.calls, which hands over arrays"


@pytest.mark.parametrize(
    "line",
    [
        "f(x.contiguous().data_ptr())",
        "f(scratch.ctypes.data)",
        "np.array([x.data_ptr() for x in y])",
    ],
)
def test_a_bare_address_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(f"def function(x):\n    {line}\n")
    assert [place[:2] for place in places(tmp_path / "module.py")] == [("module.py", "function")]


def test_kernels_beside_threads_that_allocate() -> None:
    """In a process that gives large blocks back to the system as they are freed, and overwrites small ones."""
    run = subprocess.run(
        [sys.executable, "-m", beside_allocations.__name__],
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    assert run.stdout == "the same bits\n"
