"""The directory that TensorDict.memmap writes and TensorDict.load reads, by JSON and NumPy alone.

Each nest is a directory with a `meta.json` about its leaves; each leaf is a file `NAME.memmap` of its raw values, and,
if it is nested, `NAME.shape.memmap` int64 [K, axes] with the shape of each trajectory. What is no array (here numbers)
is a directory with a `meta.json` of its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any

import numpy as np

from functional_rb.base import files, nest
from functional_rb.base.arrays import NumpyArray as Array
from functional_rb.base.descriptors import Descriptor
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.base.nest import Path, show
from functional_rb.base.strict_json import Json
from functional_rb.structures.row_layout import kept_dtype
from functional_rb.ted import sources
from functional_rb.ted.padded import EXTRA, RESERVED, WHO, FileLeaf, Header, Padded, Piece, pieces
from functional_rb.ted.sources import DamagedError, Opened, Source, Span

META, DATA, SHAPE = "meta.json", ".memmap", ".shape.memmap"
NEST, NUMBER = "<class 'tensordict._td.TensorDict'>", "<class 'tensordict.tensorclass.NonTensorData'>"
# Characters that are written as % and two hexadecimal digits in the names of files.
UNSAFE = frozenset('/<>:"|?*\\ %\x7f') | {chr(i) for i in range(32)}
OF_META = ("shape", "device", "_type")


def write(padded: Padded, directory: str, nested: bool) -> None:
    target = File(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{WHO}: {target} is there already; give another directory, or remove it")
    for path in padded.leaves:
        if path[0] in (*RESERVED[:3], *OF_META):
            raise ValueError(f"{WHO}: leaf {show(path)!r}: files have {path[0]!r} for something else; rename the leaf")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the rename stays on one file system and happens at one instant.
    with files.aside(os.fspath(target.parent)) as scratch:
        unfinished = File(scratch) / "made"
        unfinished.mkdir()
        _write(padded, unfinished, list(pieces(padded)) if nested else None)
        os.replace(unfinished, target)


@contextlib.contextmanager
def opened(directory: str, who: str) -> Iterator[Opened]:
    root = File(directory)
    with sources.naming(str(root)):
        try:
            os.lstat(root / META)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{who}: {root / META} is missing, so no form is there; give the path that form.save wrote, or of a "
                f"dumped ReplayBuffer its directory 'storage'; a file of HDF5 ends with .h5 or .hdf5"
            ) from None
        leaves = _Directory(root)
        shape: Any = _json(root / "_storage_shape" / META).get("data")  # a single number where there is one axis
        shape = tuple(shape) if isinstance(shape, list) else (shape,)
        header = Header(_value(root, "is_full", bool), _value(root, "shift", int), shape)
        sources.checked(header, str(root))
        try:
            extra = _content(root / f"{EXTRA}.json")
        except FileNotFoundError:
            extra = None
        yield Opened(header, leaves, extra)


def _write(padded: Padded, root: File, nested: list[Piece] | None) -> None:
    header, metas = padded.header, {}
    for path, file_leaf in padded.leaves.items():
        place = root.joinpath(*map(_encoded, path[:-1]))
        place.mkdir(parents=True, exist_ok=True)
        name, row = _encoded(path[-1]), file_leaf.row_bytes
        if row * file_leaf.rows:  # tensordict has no file for an empty leaf
            with open(place / (name + DATA), "wb") as stream:
                stream.truncate(row * file_leaf.rows)  # to a sparse file: zeros are not written
                for block in file_leaf.blocks or ():
                    stream.seek(row * block.start)
                    stream.write(np.ascontiguousarray(block.rows).data)
        shape = [file_leaf.rows, *file_leaf.shape]
        if nested is not None:
            is_shared, shape = path in padded.shared, [len(nested), 1 + len(file_leaf.shape)]
            lengths = [one.shared_stop - one.shared if is_shared else one.stop - one.start for one in nested]
            shapes = np.array([(length, *file_leaf.shape) for length in lengths])
            (place / (name + SHAPE)).write_bytes(np.ascontiguousarray(shapes, "<i8").tobytes())
        dtype = f"torch.{file_leaf.dtype}"
        metas[path] = {"device": "cpu", "shape": shape, "dtype": dtype, "is_nested": nested is not None}
    lead = [] if nested is None else [len(nested)]
    numbers = {"is_full": header.is_full, "shift": header.shift, "_storage_shape": list(header.storage_shape)}
    for name, value in numbers.items():
        (root / name).mkdir()
        _dump(root / name / META, {"_type": NUMBER, "data": value, "_is_non_tensor": True, "_metadata": None})
    _write_metas(root, nest.nested(metas), lead, {name: {"type": "NonTensorData"} for name in numbers})
    _dump(root / "storage_metadata.json", {"metadata": {}, "is_pytree": False, "len": header.stored})
    (root / f"{EXTRA}.json").write_text(padded.extra)


def _write_metas(place: File, metas: Mapping[str, Json], lead: list[int], numbers: Mapping[str, Json]) -> None:
    entries = dict(numbers)
    for name, meta in metas.items():
        if isinstance(meta.get("dtype"), str):
            entries[str(name)] = meta
        else:
            entries[str(name)] = {"type": "TensorDict"}
            _write_metas(place / _encoded(name), meta, lead, {})
    _dump(place / META, entries | {"shape": lead, "device": "cpu", "_type": NEST})


def _encoded(name: str | int) -> str:
    text = str(name)
    if text in ("", ".", ".."):  # which name no file
        return "%2E" * len(text) or "%"
    return "".join(f"%{ord(c):02X}" if c in UNSAFE else c for c in text)


def _dump(file: File, value: object) -> None:
    file.write_text(json.dumps(value))


def _content(file: File) -> bytes:
    opened, size = _opened(file)
    with opened:
        if not files.holds(opened.fd, size, size):
            raise DamagedError(f"{file}: {size} bytes that are little but holes; the file is damaged")
        return files.stream(opened).read()


def _opened(file: File) -> tuple[Descriptor, int]:
    try:
        return files.open_regular(os.fspath(file))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is missing") from None


def _json(file: File) -> dict[str, object]:
    value = sources.parsed(_content(file), str(file))
    if not isinstance(value, dict):
        raise DamagedError(f"{file}: expected a JSON object, got {type(value).__name__}; the file is damaged")
    return value


def _value(root: File, name: str, kind: type) -> Any:
    # For bools TorchRL has 0 and 1 too.
    file = root / name / META
    data = _json(file).get("data")
    if kind is bool and type(data) is int and data in (0, 1):
        return bool(data)
    if type(data) is not kind:
        raise DamagedError(f"{file}: expected a number under 'data', got {data!r:.60}; the file is damaged")
    return data


class _Directory(Source):
    """The leaves of a directory."""

    def __init__(self, root: File) -> None:
        self.where = str(root)
        self.file_leaves: dict[Path, FileLeaf] = {}
        self._files: dict[Path, File] = {}
        self._seen: set[tuple[int, int]] = set()
        self._look(root, ())
        for path, file_leaf in self.file_leaves.items():  # refuse files of another size before anything is read
            if file_leaf.rows * file_leaf.row_bytes:
                self._open(path).close()

    def _look(self, place: File, prefix: Path) -> None:
        status = os.stat(place / META)
        sources.check_depth(prefix, str(place))
        # A link to a folder above would be gone down for ever.
        if (status.st_dev, status.st_ino) in self._seen:
            raise DamagedError(f"{place}: the same nest again, by a link; the directory is damaged")
        self._seen.add((status.st_dev, status.st_ino))
        for name, meta in _json(place / META).items():
            path = (*prefix, name)
            if not isinstance(meta, dict) or (not prefix and name in RESERVED):
                continue
            if "dtype" in meta:
                self.file_leaves[path] = _file_leaf(place, path, meta)
                self._files[path] = place / (_encoded(name) + DATA)
            elif meta.get("type") == "TensorDict":
                self._look(place / _encoded(name), path)
            else:
                raise DamagedError(
                    f"{place / META}: leaf {show(path)!r}: expected an array or a nest of them, got "
                    f"{meta.get('type')!r:.60}; leave it out before saving"
                )

    def _open(self, path: Path) -> Descriptor:
        file, file_leaf = self._files[path], self.file_leaves[path]
        opened, size = _opened(file)
        expected, shape = file_leaf.rows * file_leaf.row_bytes, (file_leaf.rows, *file_leaf.shape)
        if size != expected:
            opened.close()
            raise DamagedError(f"{file}: expected {expected} bytes for {file_leaf.dtype} {shape}, got {size}; damaged")
        return opened

    def rows(self, path: Path, spans: Sequence[Span]) -> Array:
        file_leaf = self.file_leaves[path]
        row, count = file_leaf.row_bytes, sum(stop - start for start, stop in spans)
        values = np.empty((count, *file_leaf.shape), kept_dtype(file_leaf.dtype))
        if not values.size:
            return values
        content: Any = values.reshape(-1).view(np.uint8)
        into, at = memoryview(content), 0
        with self._open(path) as file:
            stream = files.stream(file)
            for start, stop in spans:
                stream.seek(start * row)
                end = at + (stop - start) * row
                while at < end:
                    if not (got := stream.readinto(into[at:end])):
                        raise DamagedError(f"{self._files[path]}: it is shorter than it was")
                    at += got
        return sources.check_flags(values, path, str(self._files[path]))

    def written(self, path: Path) -> Iterator[Span]:
        file_leaf = self.file_leaves[path]
        if row := file_leaf.row_bytes:
            with self._open(path) as file:
                for start, stop in files.extents(file.fd, file_leaf.rows * row):
                    yield start // row, -(-stop // row)

    def holds(self, claimed: int) -> bool:
        there = 0
        for path, file_leaf in self.file_leaves.items() if claimed > files.SMALL else ():
            if size := file_leaf.rows * file_leaf.row_bytes:
                with self._open(path) as file:
                    there += files.written(file.fd, size, -(-claimed // files.DENSEST) - there)
        return files.believed(claimed, there)


def _file_leaf(place: File, path: Path, meta: Mapping[str, object]) -> FileLeaf:
    dtype = str(meta["dtype"]).removeprefix("torch.")
    shape = meta.get("shape")
    if not (isinstance(shape, list) and shape and all(type(n) is int and 0 <= n < sources.LARGEST for n in shape)):
        raise DamagedError(f"{place / META}: leaf {show(path)!r}: expected a shape, got {shape!r:.80}; damaged")
    if dtype not in ITEMSIZE:
        raise DamagedError(
            f"{place / META}: leaf {show(path)!r}: expected one of the dtypes {', '.join(ITEMSIZE)}, "
            f"got {meta['dtype']!r:.80}; convert it before saving"
        )
    if not meta.get("is_nested"):
        return FileLeaf(shape[0], tuple(shape[1:]), dtype)
    file = place / (_encoded(path[-1]) + SHAPE)
    data = _content(file)
    if len(shape) != 2 or 0 in shape or len(data) != 8 * math.prod(shape):
        raise DamagedError(f"{file}: expected {8 * math.prod(shape)} bytes for {shape}, got {len(data)}; damaged")
    shapes = np.frombuffer(data, "<i8").reshape(shape)
    most = sources.LARGEST // len(shapes)
    if (shapes < 0).any() or (shapes >= most).any() or (shapes[:, 1:] != shapes[:1, 1:]).any():
        raise DamagedError(f"{file}: expected trajectories that differ in length alone; the file is damaged")
    return FileLeaf(int(shapes[:, 0].sum()), tuple(map(int, shapes[0, 1:])), dtype)
