"""The unpickler that knows arrays alone: what it reads as the standard library does, and what it refuses, unrun."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats.unpickle import unpickle
from tests.support.effort import effort

# Of all that UTF-8 has, without the table of it that hypothesis would make in seconds.
letters = st.characters(exclude_categories=("Cs",))
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(letters, max_size=8),
    st.binary(max_size=8),
    st.sampled_from(["b1", "i1", "<i2", ">i4", "u8", "<f4", ">f8", "f2", "c8", "S3", "U2"]).map(
        lambda dtype: np.arange(6).reshape(2, 3).astype(dtype)
    ),
    st.sampled_from([np.float32(0.5), np.int64(3), np.bool_(True), np.asfortranarray(np.arange(6.0).reshape(2, 3))]),
    st.sampled_from([np.zeros((0, 3)), np.array(2.5), np.arange(3)[::-1]]),
)
nests = st.recursive(
    plain,
    lambda parts: (
        st.lists(parts, max_size=4)
        | st.lists(parts, max_size=4).map(tuple)
        | st.dictionaries(st.text(letters, max_size=4) | st.integers(), parts, max_size=4)
    ),
    max_leaves=8,
)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, np.ndarray | np.generic):
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert type(found) is dict
        assert [*found] == [*expected]
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert type(found) is type(expected)
        assert found == expected


@settings(max_examples=effort(30, 5000), deadline=None)
@given(nests, st.integers(2, 5))
@example({"a": [np.ones(3), (np.ones(2),)]}, 2)
def test_what_was_pickled_is_read(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    assert_same(unpickle(content, "here"), value)


def test_the_pickles_of_other_versions_are_read() -> None:
    """NumPy 1 named its modules otherwise; Python 2's pickles of protocol 2 hold texts of bytes, which are refused."""
    now = pickle.dumps({"x": np.arange(3.0), "y": np.float64(2)}, 4)
    here, other = b"numpy._core.multiarray", b"numpy.core.multiarray"
    if here not in now:
        here, other = other, here
    then = now.replace(b"\x8c" + bytes([len(here)]) + here, b"\x8c" + bytes([len(other)]) + other)
    assert then != now
    assert_same(unpickle(then, "here"), {"x": np.arange(3.0), "y": np.float64(2)})


def test_ordered_dicts_and_what_comes_twice_are_read() -> None:
    shared = [np.ones(2)]
    found = unpickle(pickle.dumps([collections.OrderedDict(a=shared), shared]), "here")
    assert found[0]["a"] is found[1]
    circle: list[Any] = []
    circle.append(circle)
    found = unpickle(pickle.dumps(circle), "here")
    assert found[0] is found


def test_only_the_pickle_is_read_of_a_stream() -> None:
    stream = io.BytesIO(pickle.dumps(1) + b"rest")
    assert unpickle(stream, "here") == 1
    assert stream.read() == b"rest"


class Runs:
    """Its pickle has the machine call a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __reduce__(self) -> Any:
        return self.what


class Own:
    pass


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (lambda path: Runs(os.system, f"touch {path}"), "system"),
        (lambda path: Runs(exec, f"open({str(path)!r}, 'w')"), "exec"),
        (lambda path: {"a": [Runs(open, str(path), "w")]}, "open"),
        (lambda path: Runs(np.load, str(path)), "load"),
        (lambda path: Own(), "Own|_reconstructor"),
        (lambda path: {1, 2}, "set|instruction"),
    ],
    ids=["system", "exec", "open", "load", "object", "set"],
)
def test_pickles_that_run_code_are_refused_by_name(value: Any, name: str, protocol: int, tmp_path: Path) -> None:
    content = pickle.dumps(value(tmp_path / "ran"), protocol)
    with pytest.raises(DatasetError, match=rf"a file: the pickle holds .*({name}|instruction).*no code is run"):
        unpickle(content, "a file")
    assert not (tmp_path / "ran").exists()


STRUCTURED = np.zeros(2, [("a", "f4"), ("b", "i4")])
UNKNOWN = {
    "tables of objects": np.array([[1, None]], object),
    "fields": STRUCTURED,
    "dates": np.zeros(2, "M8[s]"),
    "long doubles": np.zeros(2, "V3"),
}


@pytest.mark.parametrize("array", UNKNOWN.values(), ids=UNKNOWN)
def test_arrays_of_other_kinds_are_refused(array: Any) -> None:
    with pytest.raises(DatasetError, match=r"array of (dtype|objects)"):
        unpickle(pickle.dumps(array), "here")


def test_arrays_of_objects_become_lists() -> None:
    for content in ({"a": np.ones(2)}, [1, [np.zeros(2)]], None):
        whole = np.empty((), object)
        whole[()] = content
        assert_same(unpickle(pickle.dumps(whole), "here"), content)
    several = np.empty(2, object)
    several[:] = [{"a": np.ones(2)}, "b"]
    assert_same(unpickle(pickle.dumps(several), "here"), [{"a": np.ones(2)}, "b"])
    circle = np.empty(1, object)
    circle[0] = circle
    found = unpickle(pickle.dumps(circle), "here")
    assert found[0] is found


def array_with(shape: bytes, content: bytes = b"C\x08" + bytes(8), dtype: bytes = b"\x8c\x02f8") -> bytes:
    """A pickle of an array, written by hand."""
    kind = (
        b"\x8c\x05numpy\x8c\x05dtype\x93"
        + dtype
        + b"\x89\x88\x87R(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    name = b"\x8c\x16numpy._core.multiarray\x8c\x0c_reconstruct\x93\x8c\x05numpy\x8c\x07ndarray\x93K\x00\x85C\x01b\x87R"
    return b"\x80\x04" + name + b"(K\x01" + shape + kind + b"\x89" + content + b"tb."


def doubled(times: int) -> bytes:
    """A list that has the one before twice, whose text would be twice as long each time; it is left on the stack."""
    return b"]\x940" + b"".join(b"](h%ch%ce\x940" % (k, k) for k in range(times)) + b"h%c" % times


HOSTILE = {
    "more values than bytes": array_with(b"K\x02\x85"),
    "a negative length": array_with(b"J\xff\xff\xff\xff\x85"),
    "a length that is none": array_with(b"\x88\x85"),
    "a shape that is none": array_with(b"K\x01"),
    "no bytes": array_with(b"K\x01\x85", b"N"),
    "objects in disguise": array_with(b"K\x01\x85", dtype=b"\x8c\x02O8"),
    "objects that are missing": array_with(b"K\x02\x85", b"]", dtype=b"\x8c\x02O8"),
    "no object without axes": array_with(b")", b"]", dtype=b"\x8c\x02O8"),
    "many values of a text": array_with(b"K\x01\x85", dtype=b"\x8c\x1099999999999999f8"),
    "a dtype of a module": array_with(b"K\x01\x85", dtype=b"\x8c\x05V8,f8"),
    "more bytes than there are": b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"abc.",
    "a number of gigabytes": b"\x80\x04\x8b\xff\xff\xff\x7fabc.",
    "a mark without parts": b"(.",
    "parts without a mark": b"K\x01t.",
    "parts of another container": b"](K\x01K\x02\x86(a.",
    "nothing": b"\x80\x04.",
    "no end": b"\x80\x04K\x01",
    "a memory that is empty": b"h\x05.",
    "an array as a key": array_with(b"K\x01\x85")[:-1] + b"\x94}h\x00K\x01s.",
    "a class as a value": b"\x8c\x05numpy\x8c\x05dtype\x93.",
    "a state of a dict": b"}}b.",
    "a call of a number": b"K\x01K\x01\x85R.",
    "an array made of a class": b"\x8c\x16numpy._core.multiarray\x8c\x0c_reconstruct\x93K\x01\x85R.",
    "an array without a state": array_with(b"K\x01\x85").split(b"(K\x01K")[0] + b".",
    "from outside": b"\x80\x05\x97.",
    "depth": b"]" * 200 + b"a" * 199 + b".",
    "a name of lists in lists": doubled(21) + b"\x8c\x01a\x93.",
    "a call of lists in lists": doubled(21) + b")R.",
    "a shape of lists in lists": array_with(doubled(21) + b"\x85"),
    "objects of such a shape": array_with(doubled(21) + b"\x85", b"]", dtype=b"\x8c\x02O8"),
    "a name of what is far too deep": b"]" * 3000 + b"a" * 2999 + b"\x8c\x01a\x93.",
    "a call of what is far too deep": b"]" * 3000 + b"a" * 2999 + b")R.",
    "a name with what is no escape": b"cnum\\py\nndarray\n.",
    "a name that does not end": b"c" + b"a" * 10**6,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pickles_are_refused_in_bounded_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="a file"):
            unpickle(content, "a file")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_the_array_written_by_hand_is_one() -> None:
    np.testing.assert_array_equal(unpickle(array_with(b"K\x01\x85"), "here"), [0.0])


# A text of 100,000 letters, kept at 0, and what is called 100 times, each time giving a copy of it.
LETTERS = (100_000).to_bytes(4, "little") + b"a" * 100_000
ENCODED = b"X" + LETTERS + b"\x94c_codecs\nencode\n\x94X\6\0\0\0latin1\x94](" + b"h\1h\0h\2\x86R" * 100 + b"e."
NUMBERS = b"B" + LETTERS + b"\x94cnumpy._core.multiarray\nscalar\n\x94cnumpy\ndtype\n\x8c\7S100000\x85R\x94]("
NUMBERS += b"h\1h\2h\0\x86R" * 100 + b"e."


def test_memory_is_bounded_by_what_may_be_taken() -> None:
    every = b"]" * 100_000, pickle.dumps(bytes(5_000_000)), b"K\x00" + b"\x85" * 100_000, ENCODED, NUMBERS
    for content in every:
        with pytest.raises(DatasetError, match="more than may be taken of memory"):
            unpickle(content, "here", most=2**20)


def test_of_a_name_that_does_not_end_little_is_read() -> None:
    stream = io.BytesIO(b"c" + b"a" * 10**6)
    with pytest.raises(DatasetError, match="a line that is no name of NumPy's"):
        unpickle(stream, "here")
    assert stream.tell() < 10_000


@settings(max_examples=effort(50, 10_000), deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(DatasetError):
        unpickle(content, "here", most=2**20)
