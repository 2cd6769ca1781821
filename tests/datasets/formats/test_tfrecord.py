"""TFRecords and Examples: against a naive writer, and what is damaged or means harm."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import examples, tfrecord
from tests.datasets import protobuf
from tests.support.effort import effort


@pytest.mark.parametrize("content", [b"", b"a", bytes(32), bytes(range(256)) * 5])
def test_checksums_are_those_of_the_definition(content: bytes) -> None:
    assert tfrecord.masked(memoryview(content)) == protobuf.masked(content)


def read(path: Path, first: int = 0) -> list[bytes]:
    return [bytes(record) for record in tfrecord.records(str(path), first)]


def test_records_are_read_from_any_on(tmp_path: Path) -> None:
    contents = [b"", b"a", bytes(1000), b"last"]
    protobuf.write_records(tmp_path / "a", contents)
    for first in range(5):
        assert read(tmp_path / "a", first) == contents[first:]
    (tmp_path / "empty").touch()
    assert read(tmp_path / "empty") == []


def test_every_byte_that_was_changed_or_cut_is_found_out(tmp_path: Path) -> None:
    whole = protobuf.record(b"first one") + protobuf.record(b"second")
    path = tmp_path / "a"
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(DatasetError, match=r"a, record [01], byte (0|25).*fetch it again"):
            read(path)
    for cut in set(range(1, len(whole))) - {25}:
        path.write_bytes(whole[:cut])
        with pytest.raises(DatasetError, match="cut"):
            read(path)


def test_a_length_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**62)
    (tmp_path / "a").write_bytes(length + struct.pack("<I", protobuf.masked(length)) + b"abc")
    with pytest.raises(DatasetError, match=f"expected {2**62} bytes, and the file is cut"):
        read(tmp_path / "a")
    with pytest.raises(DatasetError, match="no regular file"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "b")


values = st.one_of(
    st.lists(st.binary(max_size=9), max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9).map(lambda x: np.array(x, np.int64)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=9).map(lambda x: np.array(x, np.float32)),
)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert [bytes(x) for x in found] == expected
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=effort(20, 2000), deadline=None)
@given(st.dictionaries(st.text(max_size=5), values, max_size=4), st.booleans())
def test_examples_are_read_as_written(features: dict[str, Any], packed: bool) -> None:
    found = examples.example(memoryview(protobuf.example(features, packed)), "here")
    assert found.keys() == features.keys()
    for name, expected in features.items():
        assert_equal(found[name], expected)


DAMAGED = {
    "a field of no number": b"\x00\x01",
    "a group": b"\x0b",
    "a length beyond the end": b"\x0a\x7f\x00",
    "a number without an end": b"\x08" + b"\x80" * 11,
    "a cut number": b"\x08\x80",
    "half a float": protobuf.field(1, protobuf.entry("x", protobuf.field(2, protobuf.field(1, b"abc")))),
    "a cut packed number": protobuf.field(1, protobuf.entry("x", protobuf.field(3, protobuf.field(1, b"\x80")))),
    "a packed number too long": protobuf.field(
        1, protobuf.entry("x", protobuf.field(3, protobuf.field(1, b"\x80" * 11 + b"\x00")))
    ),
    "a name that is no text": protobuf.field(1, protobuf.field(1, protobuf.field(1, b"\xff"))),
}


@pytest.mark.parametrize("message", DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_example_is_refused(message: bytes) -> None:
    with pytest.raises(DatasetError, match=r"here.*fetch it again"):
        examples.example(memoryview(message), "here")


def test_names_that_are_no_text_are_refused_by_protobuf_in_python_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class InPython:
        """As protobuf's messages are where `PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION` is "python"."""

        @staticmethod
        def FromString(content: bytes) -> Any:
            return content.decode()

    monkeypatch.setattr(examples, "_example", lambda: InPython)
    with pytest.raises(DatasetError, match=r"here.*fetch it again"):
        examples.example(memoryview(b"\xff"), "here")


@settings(max_examples=effort(30, 5000), deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with contextlib.suppress(DatasetError):
        examples.example(memoryview(message), "here")


def test_lists_that_would_take_much_more_memory_than_the_file_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MOST", 10)
    with pytest.raises(DatasetError, match="at most 10"):
        examples.example(memoryview(protobuf.example({"x": [b""] * 11})), "here")
