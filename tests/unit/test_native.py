"""The native code: what it declares is what Python has, and calls that are wrong, or for which there is no memory."""

from __future__ import annotations

import array
import ast
import contextlib
import importlib
import math
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb import _native, native
from functional_rb.buffer.known import Chooses, Draws
from functional_rb.core import counters
from functional_rb.mixture import shares
from functional_rb.native import descriptor, shared_control, sources
from functional_rb.native.chain import known_buffer
from functional_rb.ops import fixed_point, random_bits
from functional_rb.samplers.base import LEAST_CHANCE
from functional_rb.storage.host_state import NUMPY
from functional_rb.structures import episode_windows, exponential_race, hash_map, min_tree, ring, sum_tree
from tests.children import native_life
from tests.support import headers
from tests.support.backends import needs_native
from tools import native_build
from torch_backend.kernels.chain import CHAIN

ROOT = Path(__file__).parents[2]


# --- what is declared twice ------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_reference() -> None:
    found = headers.constants("tables.h")
    assert exponential_race._SERIES[:3] == fixed_point.EXP_COEFFICIENTS
    assert {name: table.tobytes() for name, table in fixed_point.TABLES.items()} == _native.TABLES
    assert found == {
        "LN_2": math.log(2),
        **dict(zip(("C1", "C2", "C3"), fixed_point.LOG_COEFFICIENTS, strict=True)),
        **dict(zip(("E1", "E2", "E3", "E4", "E5", "E6"), exponential_race._SERIES, strict=True)),
        **{name: getattr(fixed_point, name) for name in ("MASK", "BIAS", "SMALLEST", "LARGEST")},
        "GAMMA": random_bits.GAMMA,
        "DRAW": random_bits.DRAW,
        "SPLIT": random_bits.SPLIT,
        **dict(zip(("FACTOR_1", "FACTOR_2"), random_bits.FACTORS, strict=True)),
        **dict(zip(("SHIFT_1", "SHIFT_2", "SHIFT_3"), random_bits.SHIFTS, strict=True)),
    }


def test_the_constants_are_those_of_the_reference() -> None:
    found = {
        name: value for path in headers.SOURCES.glob("*.h") for name, value in headers.constants(path.name).items()
    }
    expected = {
        "EMPTY": hash_map.EMPTY,
        "PADDING": min_tree.PADDING,
        "UNRANKED": min_tree.EMPTY,
        "FANOUT": sum_tree.FANOUT,
        "INT32_MOST": ring.INT32_MAX,
        "LEAST_CHANCE": LEAST_CHANCE,
        **{name: getattr(shares, name) for name in ("STEPS", "BELOW", "ROUNDING")},
        "PART": 2.0**shares.STEPS,
        "LEAST_SHARE": shares.LEAST,
        "MOST_SHARE": shares.MOST,
        "LONGEST": episode_windows.LONGEST,
        "SLOT": shared_control.SLOT,
        "SLOT_WORDS": shared_control.SLOT_WORDS,
        "TRIES": shared_control.TRIES,
        "INFINITY_BITS": int(np.float32(np.inf).view(np.int32)),
    }
    assert {name: found[name] for name in expected} == expected
    maps = headers.enumerations("hash_map.h")["MapCounter"]
    assert maps == {"MAP_SIZE": hash_map.SIZE, "MAP_REFUSED": hash_map.REFUSED}


def test_the_counters_are_those_of_the_core() -> None:
    found = headers.enumerations("records.h")["Counter"]
    assert found.pop("COUNTERS") == counters.BASE == len(found)
    assert found == {name: getattr(counters, name) for name in found}


def test_what_is_drawn_and_how_slots_are_chosen_is_numbered_alike() -> None:
    found = headers.enumerations("records.h")
    for kind in (Draws, Chooses):
        assert [*found[kind.__name__].items()][1:] == [(each.name, each.value) for each in kind][1:]
    assert [name.lower().replace("_", " ") for name in found["Reduction"]] == [*descriptor.REDUCTIONS]


def test_the_protocol_of_shared_buffers_is_the_same() -> None:
    found = headers.enumerations("shared.h")
    words = found.pop("ControlWord")
    assert words.pop("CONTROL_COUNTERS") == shared_control.COUNTERS
    assert found.keys() == {"WriteKind", "Read", "Problem"}
    for numbers in (words, *found.values()):
        assert numbers == {name: getattr(shared_control, name) for name in numbers}
    assert headers.constants("shared.h")["LOST"] == "COUNTERS"
    assert shared_control.LOST == counters.BASE


def test_what_type_checkers_know_of_types_is_there() -> None:
    for declared in ast.parse((ROOT / "functional_rb" / "_native.pyi").read_text()).body:
        if isinstance(declared, ast.ClassDef):
            functions = {each.name for each in declared.body if isinstance(each, ast.FunctionDef)} - {"__buffer__"}
            assert functions <= {*dir(getattr(_native, declared.name))}, declared.name


# --- records ---------------------------------------------------------------------------------------------------------


def test_the_extension_is_compiled_from_these_records() -> None:
    assert headers.records("records.h") == _native.RECORDS
    assert _native.RECORDS["LevelRecord"] == "nodes, groups, sums, smallest, largest"


def test_an_extension_of_other_sources_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "compiler", list)  # there is none
    copied = tmp_path / "copied.so"
    copied.write_bytes(native_build.TARGET.read_bytes())
    assert native_build.build(target=copied) == copied  # nothing is compiled

    stale = copied.read_bytes().replace(sources.digest().encode(), b"0" * 16)
    copied.write_bytes(stale)  # newer than all sources
    with pytest.raises(SystemExit, match="needs a C\\+\\+ compiler"):
        native_build.build(target=copied)


def test_an_extension_of_other_sources_is_refused_before_anything_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.reload(native)
    monkeypatch.setattr(sources, "digest", lambda: "0" * 16)
    with pytest.raises(ImportError, match=r"_native\.\S+ was compiled from other sources .*; run python .*build\.py"):
        importlib.reload(native)
    monkeypatch.setattr(sources, "BUILD", Path("no checkout"))
    importlib.reload(native)


def test_a_record_has_its_fields_in_their_order() -> None:
    for name, fields in _native.RECORDS.items():
        names = fields.split(", ")
        values = {field: k + 1 for k, field in enumerate(names)}
        assert descriptor.record(name, **dict(reversed(values.items()))) == list(values.values())
        assert descriptor.record(name, **{names[-1]: True}) == [0] * (len(names) - 1) + [1]


def test_a_field_that_the_native_code_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match=r"EpochRecord has no fields \['age'\]; rebuild the extension: python tools/"):
        descriptor.record("EpochRecord", age=2)


def test_what_a_chain_knows_of_a_buffer_is_refused_in_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = descriptor.encode_known(words=2, batch_size=-1)
    monkeypatch.setattr(descriptor, "encode_known", lambda **settings: whole[:-1])
    with pytest.raises(ValueError, match=f"expected a record of {whole.nbytes} bytes, got {whole.nbytes - 4}"):
        known_buffer(frb.BufferSpec({"x": frb.Unbounded(())}, 4))


# --- calls -----------------------------------------------------------------------------------------------------------


def numbers(*shape: int, dtype: Any = np.int32, writeable: bool = True) -> Any:
    made = np.zeros(shape, dtype)
    made.flags.writeable = writeable
    return made


CONTROL = np.zeros(512, np.int64)
TREE = descriptor.encode_tree(300)
DRAWN = [], CONTROL, TREE, numbers(0, dtype=np.float32), numbers(0, 2)
FETCHED = numbers(0), numbers(0, dtype=np.uint8)
SELECTION = numbers(0), None, None
WRONG: dict[str, tuple[str, tuple[Any, ...], type[Exception], str]] = {
    "none": ("shared_unchanged", (), TypeError, "expected 2 arguments, got 0"),
    "too few": ("shared_unchanged", (CONTROL,), TypeError, "expected 2 arguments, got 1"),
    "too many": ("shared_unchanged", (CONTROL, 1, 0), TypeError, "expected 2 arguments, got 3"),
    "an address": ("shared_unchanged", (CONTROL.ctypes.data, 1), TypeError, "buffer|bytes-like"),
    "of another width": ("shared_unchanged", (numbers(6), 1), TypeError, "expected elements of 8 bytes, got 4 bytes"),
    "of read-only memory": ("shared_unchanged", (numbers(6, dtype=np.int64, writeable=False), 1), ValueError,
                            "read-only"),
    "a fraction": ("shared_unchanged", (CONTROL, 1.5), TypeError, "float"),
    "a number that is too large": ("shared_unchanged", (CONTROL, 2**63), OverflowError, "int"),
    "no number": ("shared_unchanged", (CONTROL, None), TypeError, "None"),
    "no float": ("shared_draw", ([None], *DRAWN, "x", *SELECTION), TypeError, "real number"),
    "no list": ("shared_draw", (None, *DRAWN, 0.0, *SELECTION), TypeError, "not iterable"),
    "no array in a list": ("shared_draw", ([1], *DRAWN, 0.0, *SELECTION), TypeError, "buffer|bytes-like"),
    "no array": ("shared_read_counters", (CONTROL, None), TypeError, "buffer|bytes-like"),
    "another width": ("shared_read_counters", (CONTROL, numbers(6, dtype=np.int64)), TypeError,
                      "expected elements of 4 bytes, got 8 bytes"),
    "other axes": ("longest", (numbers(4),), TypeError, "array of 2 axes with elements of 4 bytes, got 1 axes"),
    "not contiguous": ("longest", (numbers(4, 4)[:, ::2],), ValueError, "contiguous"),
    "read-only": ("shared_read_counters", (CONTROL, numbers(6, writeable=False)), ValueError, "read-only"),
    "a short record": ("shared_fetch", ([], [], CONTROL, TREE[:10], *FETCHED), ValueError,
                       "expected a BufferRecord, got 40 bytes"),
    "no record": ("shared_fetch", ([], [], CONTROL, None, *FETCHED), TypeError, "buffer|bytes-like"),
    "a wide record": ("shared_fetch", ([], [], CONTROL, TREE.astype(np.int64), *FETCHED), TypeError,
                      "elements of 4 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused(case: str) -> None:
    name, given, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        getattr(_native, name)(*given)


def test_no_kernel_takes_another_number_of_arguments_or_names() -> None:
    kernels = {name: kernel for name, kernel in vars(_native).items() if isinstance(kernel, types.BuiltinFunctionType)}
    assert len(kernels) > 15
    for name in [
        name for name in kernels if name.startswith("gpu_") or name == "seal"
    ]:  # which tell of kernels, or ask
        with pytest.raises(TypeError, match=r"exactly \d argument"):
            kernels.pop(name)(*[0] * 30)
    for name, kernel in kernels.items():
        with pytest.raises(TypeError, match=r"expected \d+ arguments, got 30"):
            kernel(*[0] * 30)
        with pytest.raises(TypeError, match="keyword"):
            kernel(count=0)
        assert re.search(rf"\b{name}\b", (ROOT / "functional_rb/native/src/kernels.cpp").read_text())


def called(operands: Any, results: Any, name: str = "below") -> None:
    """A kernel on arrays of NumPy."""
    NUMPY.chain.call(_native.HANDLERS[name], (), operands, results)


def test_a_handler_takes_arrays_of_any_layout_and_gives_to_arrays_in_a_row() -> None:
    """Also of subclasses and numbers of NumPy; what it takes may be read-only, what it gives may not."""
    words, n, made = numbers(6, 4)[:, 1:3] + 2**30, np.int32(7), numbers(6)
    words.flags.writeable = False
    for given in (words, np.asfortranarray(words), np.repeat(words, 2, 0)[::2], words.view(np.memmap)):
        made[...] = 0
        called((given, n), [made])
        assert made.tolist() == [3] * 6
    for result in (numbers(12)[::2], numbers(6, writeable=False)):
        with pytest.raises(ValueError, match="a kernel: expected an array in a row that may be written"):
            called((words, n), [result])


@pytest.mark.parametrize("place", range(3))
def test_a_handler_refuses_elements_of_another_size(place: int) -> None:
    given = [numbers(6, 2), numbers(1), numbers(6)]
    given[place] = given[place].astype(np.int64)
    with pytest.raises(TypeError, match="a kernel: an array has elements of another size than it takes"):
        called(given[:2], given[2:])


@pytest.mark.parametrize("case", [((), 1, ()), (None, (), ()), ((), ("x",), ())])
def test_a_handler_refuses_what_is_no_array(case: Any) -> None:
    records, operands, results = case
    with pytest.raises((TypeError, ValueError)):
        NUMPY.chain.call(_native.HANDLERS["barrier"], records, operands, results)
    with pytest.raises(TypeError, match="expected 4 arguments, or 6 for a GPU, got 1"):
        NUMPY.chain.call(_native.HANDLERS["barrier"])
    with pytest.raises(ValueError, match="PyCapsule"):
        NUMPY.chain.call(None, (), (), ())


def test_what_a_call_has_looked_at_is_let_go_though_it_is_refused() -> None:
    """A buffer that is still held cannot grow."""
    whole = array.array("i", descriptor.encode(frb.BufferSpec((frb.Unbounded(()),), 8)).tolist())
    short = whole[:3]
    for encoded, live, fits in ((whole, FETCHED[1], True), (whole, None, False), (short, FETCHED[1], False)):
        before = sys.getrefcount(encoded)
        with contextlib.nullcontext() if fits else pytest.raises((TypeError, ValueError)):
            _native.shared_fetch([], [], CONTROL, encoded, FETCHED[0], live)
        after = sys.getrefcount(encoded)
        assert after == before
        encoded.append(0)


def test_where_there_is_no_memory_an_error_says_so() -> None:
    """There are addresses for what is given, but not for what a kernel takes of the same size; nothing is touched."""
    resource = pytest.importorskip("resource")
    count = 2**28
    given = [np.zeros(count, dtype) for dtype in (np.int32, np.float32, np.uint8)]
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2 * count, most))
    try:
        with pytest.raises(MemoryError, match="no memory for a kernel"):
            NUMPY.chain.call(_native.HANDLERS["stored_values"], [descriptor.encode_alpha(1.0)], given[:1], given[1:])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


def test_kernels_run_without_the_lock_of_the_interpreter() -> None:
    """Where Python takes the lock from no thread, only a kernel that lets it go can let another thread come on."""
    room, key, before = np.empty(2**16, np.int32), np.ones(1, np.int64), sys.getswitchinterval()
    stop, entered, calls = threading.Event(), threading.Event(), []

    def work() -> None:
        entered.set()
        for _ in range(20_000):
            if stop.is_set():
                return
            NUMPY.chain.call(_native.HANDLERS["fill_draws"], (), [key], [room])
            calls.append(None)

    thread = threading.Thread(target=work)
    try:
        sys.setswitchinterval(1000)
        thread.start()
        entered.wait()
        stop.set()
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(calls) < 20_000


# --- sets of instructions, and none ----------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize(
    ("variable", "given", "expected"),
    [
        ("FUNCTIONAL_RB_NATIVE", "0", "None"),
        ("FUNCTIONAL_RB_INSTRUCTIONS", "baseline", "baseline"),
        ("FUNCTIONAL_RB_INSTRUCTIONS", "v3", "v3"),
    ],
)
def test_other_instructions_give_the_same_bits_and_so_does_the_reference(
    variable: str, given: str, expected: str
) -> None:
    """Where the kernels are switched off, nothing is loaded of them."""
    if _native.INSTRUCTIONS in (expected, "baseline") and variable == "FUNCTIONAL_RB_INSTRUCTIONS":
        pytest.skip(f"what follows in this process is {_native.INSTRUCTIONS} as well")
    command = [sys.executable, "-m", native_life.__name__]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {variable: given}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [native_life.digest(), expected]


@pytest.mark.parametrize("place", range(3))
def test_arrays_outside_of_the_memory_of_the_host_are_refused(place: int) -> None:
    """Before the kernel begins, whichever of the arrays it is."""
    tensors = [torch.zeros(2, dtype=torch.int32, device="cpu") for _ in range(3)]
    tensors[place] = tensors[place].to("meta")
    with pytest.raises(ValueError, match="a kernel of the CPU: expected tensors on the CPU, got one on meta"):
        CHAIN.call(_native.HANDLERS["barrier"], [], tensors[:2], tensors[2:])


@pytest.mark.parametrize("array", [torch.zeros(2, device="meta"), object()], ids=["torch", "other"])
def test_only_what_is_an_array_in_the_memory_of_the_host_is_one_of_numpy(array: object) -> None:
    with pytest.raises(TypeError, match="expected an array of NumPy's, got"):
        NUMPY.chain.call(_native.HANDLERS["barrier"], [], [array], [])
