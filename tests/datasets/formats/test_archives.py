"""Archives, streams, images, TFRecords and NumPy's files: read as they are written, refused where they mean harm."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import examples, images, npy, tars, tfrecord
from functional_rb.datasets.formats.streams import Inflated
from tests.datasets import protobuf
from tests.support.effort import effort

CONTENT = np.random.default_rng(0).integers(0, 9, 150_000, np.uint8).tobytes()
COMPRESS = {"plain": lambda x: x, "gzip": gzip.compress, "xz": lzma.compress}


def inflated(content: bytes, limit: int = 2**30, piece: int = 70_000) -> bytes:
    return b"".join(read_all(Inflated(io.BytesIO(content), limit, "a file"), piece))


def read_all(stream: Inflated, piece: int) -> list[bytes]:
    return [*iter(lambda: stream.read(piece) or b"", b"")]


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
def test_streams_hold_what_was_compressed(compress: Any) -> None:
    for content in (CONTENT, b"", b"a", bytes(200_000)):
        for piece in (3000, 70_000):
            assert inflated(compress(content), piece=piece) == content


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_streams_follow_on_each_other(kind: str) -> None:
    compress = COMPRESS[kind]
    assert inflated(compress(b"one") + compress(b"two") + bytes(8)) == b"onetwo"


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_what_was_cut_or_changed_is_found_out(kind: str) -> None:
    whole = COMPRESS[kind](CONTENT)
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole + b"rest", whole[:-20] + bytes(20)):
        with pytest.raises(DatasetError, match="a file: it cannot be decompressed"):
            inflated(damaged)


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_bombs_are_refused_in_bounded_memory(kind: str) -> None:
    bomb = COMPRESS[kind](bytes(8_000_000))
    assert len(bomb) < 30_000
    stream = Inflated(io.BytesIO(bomb), 2_000_000, "a file")
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="expected at most 2000000 bytes, and more come out"):
            read_all(stream, 2**16)
        assert tracemalloc.get_traced_memory()[1] < 2**24  # xz goes by the last 8 MB
    finally:
        tracemalloc.stop()


def test_a_decompressor_that_wants_much_memory_is_refused() -> None:
    header = bytearray(lzma.compress(b"abc", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    assert inflated(bytes(header)) == b"abc"
    header[16] = 38  # the byte that tells the size of the dictionary: 2 GiB
    header[20:24] = zlib.crc32(bytes(header[12:20])).to_bytes(4, "little")
    with pytest.raises(DatasetError, match=r"cannot be decompressed: .*[Mm]emory"):
        inflated(bytes(header))


def write(path: Path, members: list[tarfile.TarInfo], mode: str = "w") -> str:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # the modes are texts
        for member in members:
            archive.addfile(member, io.BytesIO(CONTENT[: member.size]))
    return str(path)


def member(name: str, size: int = 5, **more: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    for key, value in more.items():
        setattr(made, key, value)
    return made


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_members_are_read_in_order(mode: str, tmp_path: Path) -> None:
    written = [member("a/b", 100_000), member("c" * 150, 0), member("folder", 0, type=tarfile.DIRTYPE), member("d", 7)]
    path = write(tmp_path / "a.tar", written, mode)
    found = [(name, stream.read(3)) for name, stream in tars.members(path)]
    assert found == [("a/b", CONTENT[:3]), ("c" * 150, b""), ("d", CONTENT[:3])]
    assert os.listdir(tmp_path) == ["a.tar"]


HOSTILE = {
    "above": member("../a"),
    "in the midst": member("a/../../b"),
    "absolute": member("/etc/a"),
    "a drive": member("C:/a"),
    "backslashes": member("..\\a"),
    "a symbolic link": member("a", 0, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": member("a", 0, type=tarfile.LNKTYPE, linkname="../b"),
    "a device": member("a", 0, type=tarfile.CHRTYPE),
    "a pipe": member("a", 0, type=tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_hostile_members_are_refused_by_name(hostile: tarfile.TarInfo, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [member("fine"), hostile])
    found = tars.members(path)
    assert next(found)[0] == "fine"
    with pytest.raises(DatasetError, match=r"a.tar: member '") as caught:
        next(found)
    assert repr(hostile.name) in str(caught.value)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_a_bomb_of_an_archive_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.addfile(member("a", 12_000_000), io.BytesIO(bytes(12_000_000)))
    (tmp_path / "a").write_bytes(content.getvalue())
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="expected at most 4000000 bytes"):
            [*tars.members(str(tmp_path / "a"), limit=4_000_000)]
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_headers_that_take_much_memory_are_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 12_000_000
    (tmp_path / "a").write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + b"a" * 12_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="bytes of headers"):
            [*tars.members(str(tmp_path / "a"))]
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for content in (b"text", CONTENT, gzip.compress(CONTENT)):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DatasetError, match="archive of tar"):
            [*tars.members(str(tmp_path / "a"))]
    with pytest.raises(DatasetError, match="regular"):
        [*tars.members(str(tmp_path))]


def npy_bytes(array: Any, **more: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **more)
    return file.getvalue()


def test_arrays_are_read_row_by_row() -> None:
    array = np.arange(70).reshape(10, 7).astype(">i4")
    stream = npy.NpyStream(io.BytesIO(npy_bytes(array)), "a file")
    assert (stream.shape, stream.dtype, stream.nbytes) == ((10, 7), np.dtype(">i4"), 280)
    np.testing.assert_array_equal(np.concatenate([stream.rows(4), stream.rows(4), stream.rows(4)]), array)
    for whole in (array, np.asfortranarray(array), np.zeros((0, 3)), np.array(2.5), np.arange(3)):
        np.testing.assert_array_equal(npy.NpyStream(io.BytesIO(npy_bytes(whole)), "a file").whole(), whole)
    with pytest.raises(DatasetError, match="columns"):
        npy.NpyStream(io.BytesIO(npy_bytes(np.asfortranarray(array))), "a file").rows(1)


def claims(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)


NO_ARRAYS = {
    "objects": (npy_bytes(np.array([None]), allow_pickle=True), "array of objects is a pickle"),
    "cut": (claims("(100,)"), "736 are missing"),
    "gigabytes": (claims("(10**12,)".replace("10**12", "1000000000000")), "expected at most"),
    "a negative shape": (claims("(-5,)"), "expected the shape"),
    "a shape of truth": (claims("(True,)"), "expected the shape|as numpy.save"),
    "code": (claims("__import__('os')"), "as numpy.save"),
    "text": (b"text", "as numpy.save"),
    "no size": (claims("(1000000000,)", "'V0'"), "with a size"),
    "a long header": (b"\x93NUMPY\x02\x00\xff\xff\xff\x00" + b"(" * 10**6, "as numpy.save"),
}


@pytest.mark.parametrize("case", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_what_is_no_array_of_numbers_is_refused(case: tuple[bytes, str]) -> None:
    content, message = case
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match=message) as caught:
            npy.NpyStream(io.BytesIO(content), "a file").whole()
        assert str(caught.value).startswith("a file")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_has_arrays_by_name(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=np.arange(5), y=np.ones((2, 3)))
    with npy.opened(str(tmp_path / "a.npz")) as file:
        assert sorted(file.names) == ["x", "y"]
        np.testing.assert_array_equal(file.read("x"), np.arange(5))
        np.testing.assert_array_equal(file.read("y"), np.ones((2, 3)))
        with file.stream("x") as stream:
            np.testing.assert_array_equal(stream.rows(2), [0, 1])
        with pytest.raises(DatasetError, match="'z': there is no such array"):
            file.read("z")


def test_hostile_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb.npy", claims("(1000000,)") + bytes(8_000_000 - 64))
        file.writestr("objects.npy", claims("()", "'|O'"))
    with npy.opened(str(path)) as arrays:
        with pytest.raises(DatasetError, match="expected at most 1000000 bytes"):
            arrays.read("bomb", 1_000_000)
        with pytest.raises(DatasetError, match="a pickle"):
            arrays.read("objects")
    np.savez_compressed(path, x=np.frombuffer(CONTENT, np.uint8))
    damaged = bytearray(path.read_bytes())
    damaged[20_000:20_020] = bytes(20)
    path.write_bytes(damaged)
    with npy.opened(str(path)) as arrays, pytest.raises(DatasetError, match="damaged"):
        arrays.read("x")
    path.write_bytes(b"text")
    with pytest.raises(DatasetError, match=r"expected a file of .npz"), npy.opened(str(path)):
        pass
    path.unlink()
    os.mkfifo(path)  # which would keep who opens it waiting
    with pytest.raises(DatasetError, match=r"a\.npz: no regular file"), npy.opened(str(path)):
        pass


def marked(path: Path, flags: int = 0, version: int = 20) -> None:
    """Set the flags of the first member of an archive, and the version of zip that it takes to read it."""
    content = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x03\x04", 4), (b"PK\x01\x02", 6)):
        begin = content.index(signature) + at
        content[begin : begin + 4] = version.to_bytes(2, "little") + flags.to_bytes(2, "little")
    path.write_bytes(content)


@pytest.mark.parametrize("flags", [1, 1 << 5, 1 << 6], ids=["a password", "a patch", "strong encryption"])
def test_npz_that_zip_files_cannot_give_are_refused(flags: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(5))
    marked(path, flags)
    with npy.opened(str(path)) as arrays, pytest.raises(DatasetError, match=r"a\.npz, 'x': the file is damaged"):
        arrays.read("x")
    marked(path, version=99)
    with pytest.raises(DatasetError, match=r"expected a file of \.npz: zip file version 9\.9"), npy.opened(str(path)):
        pass
    marked(path, 1 << 11)  # names are in UTF-8
    path.write_bytes(path.read_bytes().replace(b"x.npy", b"\xff.npy", 1))  # that beside the array
    with (
        npy.opened(str(path)) as arrays,
        pytest.raises(DatasetError, match=r"a\.npz, 'x': the file is damaged: 'utf-8"),
    ):
        arrays.read("x")
    path.write_bytes(path.read_bytes().replace(b"x.npy", b"\xff.npy"))
    with pytest.raises(DatasetError, match=r"expected a file of \.npz: 'utf-8' codec"), npy.opened(str(path)):
        pass


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_npz_of_methods_that_unpack_without_a_limit_are_refused(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as file:
        file.writestr("bomb.npy", bytes(2**24))
    tracemalloc.start()
    try:
        with (
            npy.opened(str(tmp_path / "a.npz")) as arrays,
            pytest.raises(DatasetError, match=r"method \d+ of compression; refused"),
        ):
            arrays.read("bomb")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_images_of_16_bits_are_not_cut_to_8(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.fromarray(np.full((4, 4), 999, np.uint16)).save(content, "PNG")
    with pytest.raises(DatasetError, match=r"a file, image 0: expected uint8 .*colours are of another kind"):
        images.decoded([content.getvalue()], (4, 4, 1), np.uint8, "a file")


# --- TFRecords and Examples: against a naive writer -------------------------------------------------------------------


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


# Of letters that UTF-8 has, without the table of it that hypothesis would make in seconds.
names = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
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
@given(st.dictionaries(names, values, max_size=4), st.booleans())
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
