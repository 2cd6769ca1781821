"""The directory that TensorDict.memmap writes and TensorDict.load reads, by JSON and NumPy alone.

Each nest is a directory with a `meta.json` about its leaves; each leaf is a file `NAME.memmap` of its raw values, and,
if it is nested, `NAME.shape.memmap` int64 [K, axes] with the shape of each trajectory. What is no array (here numbers)
is a directory with a `meta.json` of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path as File
from typing import Any

import numpy as np

from functional_rb.dtypes import ITEMSIZE
from functional_rb.nest import Key, Path, show
from functional_rb.ted import padded
from functional_rb.ted.check import path_of
from functional_rb.ted.forms import Array, Flat, Nested, as_nest, flat_to_nested, kept_dtype, nested_to_flat
from functional_rb.ted.padded import Header, Piece, Table

META, DATA, SHAPE = "meta.json", ".memmap", ".shape.memmap"
NEST, NUMBER = "<class 'tensordict._td.TensorDict'>", "<class 'tensordict.tensorclass.NonTensorData'>"
UNSAFE = frozenset('/<>:"|?*\\ %\x7f') | {chr(i) for i in range(32)}
"""What names of files have not; there it is %, and two hexadecimal digits."""
OF_META = ("shape", "device", "_type")


def save(form: Flat | Nested, directory: str | os.PathLike[str]) -> None:
    """Write the flat or the nested form to a directory that TensorDict.load reads, and TorchRL's storages load.

    A storage of TorchRL with as many rows loads it with the hook Flat2TED, or Nested2TED:
    `storage.register_load_hook(Flat2TED()); storage.loads(pathlib.Path(directory))`. Rows of empty slots are there too,
    as it expects them, but take no space on a file system that has sparse files.

    Args:
        form: the steps.
        directory: to be made; everything is written beside it first, and then it is renamed.

    Raises:
        FileExistsError: if it is there and not empty.
        ValueError: for a leaf whose name the directory has for something else.

    Example:
        >>> import tempfile
        >>> import torch_backend as rb
        >>> from functional_rb import Binary, BufferSpec, Unbounded, ted
        >>> flags = dict.fromkeys(("done", "terminated", "truncated"), Binary())
        >>> step = {"observation": Unbounded(()), **flags}
        >>> item = step | {"action": Unbounded(()), "next": step | {"reward": Unbounded(())}}
        >>> form = ted.ted_to_flat(rb.init(BufferSpec(item, capacity=3)))
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     save(form, f"{scratch}/flat")
        ...     load(f"{scratch}/flat").spec == form.spec
        True
    """
    target = File(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"ted.save: {target} is there already; give another directory, or remove it")
    nested = isinstance(form, Nested)
    flat = nested_to_flat(form) if isinstance(form, Nested) else form
    padded.check_names(flat, (*padded.RESERVED[:3], *OF_META), "ted.save")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = File(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        os.chmod(scratch, 0o777 & ~_umask())
        _write(flat, scratch, nested)
        os.replace(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def load(directory: str | os.PathLike[str], *, reward_key: Key = "reward", known: Iterable[Any] = ()) -> Flat | Nested:
    """Read what `save` wrote, or TorchRL: the form that lies there.

    Args:
        directory: that of the form; of a dumped ReplayBuffer its "storage".
        reward_key: path of the reward, where TorchRL wrote it.
        known: classes that the spec names, as for `frb.from_json`.

    Returns:
        The steps, in arrays of their own. If TorchRL wrote it, the spec is None.

    Raises:
        FileNotFoundError: if a file is missing, naming it.
        ValueError: for what is damaged, or no such form, naming the file.
    """
    with padded.believing_none(os.fspath(directory)):
        return _read(File(directory), path_of(reward_key), known)


def _read(root: File, reward: Path, known: Iterable[Any]) -> Flat | Nested:
    files, nested = _files_of(root, ())
    header = Header(bool(_number(root, "is_full")), _number(root, "shift"), _storage_shape(root))
    found = {path: table for path, (_, table) in files.items()}
    mapped = {path: _mapped(file, table) for path, (file, table) in files.items()}
    beside = root / f"{padded.EXTRA}.json"
    told = padded.told(header, _content(beside).decode() if beside.exists() else None, reward, str(root), known)

    def rows(path: Path, start: int, stop: int) -> Array:
        return np.array(mapped[path][start:stop])

    flat = padded.read(header, found, rows, told, str(root))
    return flat_to_nested(flat) if nested else flat


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write(flat: Flat, root: File, nested: bool) -> None:
    header, tables = padded.tables(flat)
    done = padded.done_of(tables["done",])
    pieces = list(padded.pieces(header, done)) if nested else None
    for path, table in tables.items():
        place = root.joinpath(*map(_encoded, path[:-1]))
        place.mkdir(parents=True, exist_ok=True)
        name = _encoded(path[-1])
        _write_rows(place / (name + DATA), table)
        if pieces is not None:
            shapes = _shapes(table, pieces, path in flat.shared)
            (place / (name + SHAPE)).write_bytes(np.ascontiguousarray(shapes, "<i8").tobytes())
    lead = [] if pieces is None else [len(pieces)]
    metas = {path: _meta(table, pieces) for path, table in tables.items()}
    numbers = {"is_full": header.is_full, "shift": header.shift, "_storage_shape": list(header.storage_shape)}
    for name, value in numbers.items():
        (root / name).mkdir()
        _dump(root / name / META, {"_type": NUMBER, "data": value, "_is_non_tensor": True, "_metadata": None})
    _write_metas(root, as_nest(metas), lead, {name: {"type": "NonTensorData"} for name in numbers})
    _dump(root / "storage_metadata.json", {"metadata": {}, "is_pytree": False, "len": header.stored})
    (root / f"{padded.EXTRA}.json").write_text(padded.extra_of(flat))


def _write_rows(file: File, table: Table) -> None:
    """Zeros are left out: the file is sparse."""
    row = int(np.prod(table.shape, dtype=np.int64)) * ITEMSIZE[table.dtype]
    if not row * table.rows:
        return  # tensordict has no file for nothing
    with open(file, "wb") as stream:
        stream.truncate(row * table.rows)
        for block in table.blocks or ():
            stream.seek(row * block.start)
            stream.write(np.ascontiguousarray(block.rows).data)


def _shapes(table: Table, pieces: list[Piece], shared: bool) -> Array:
    lengths = [piece.shared_stop - piece.shared if shared else piece.stop - piece.start for piece in pieces]
    return np.array([(length, *table.shape) for length in lengths])


def _meta(table: Table, pieces: list[Piece] | None) -> dict[str, Any]:
    shape = [table.rows, *table.shape] if pieces is None else [len(pieces), 1 + len(table.shape)]
    return {"device": "cpu", "shape": shape, "dtype": f"torch.{table.dtype}", "is_nested": pieces is not None}


def _write_metas(place: File, metas: Mapping[Any, Any], lead: list[int], numbers: Mapping[str, Any]) -> None:
    """The `meta.json` of a nest and of those in it; what has a dtype is a leaf."""
    own: dict[str, Any] = dict(numbers)
    for name, meta in metas.items():
        if isinstance(meta.get("dtype"), str):
            own[str(name)] = meta
        else:
            own[str(name)] = {"type": "TensorDict"}
            _write_metas(place / _encoded(name), meta, lead, {})
    _dump(place / META, own | {"shape": lead, "device": "cpu", "_type": NEST})


def _encoded(name: str | int) -> str:
    """A name as files have it."""
    text = str(name)
    if text in ("", ".", ".."):
        return "%2E" * len(text) or "%"
    return "".join(f"%{ord(c):02X}" if c in UNSAFE else c for c in text)


def _dump(file: File, value: Any) -> None:
    file.write_text(json.dumps(value))


def _content(file: File) -> bytes:
    """Of a file; reading a pipe would wait for ever."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{file}: no regular file; damaged")
    return file.read_bytes()


def _json(file: File) -> dict[str, Any]:
    try:
        value = json.loads(_content(file))
    except ValueError as error:
        raise ValueError(f"{file}: expected JSON: {error}; the file is damaged") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file}: expected a JSON object, got {type(value).__name__}; the file is damaged")
    return value


def _number(root: File, name: str) -> Any:
    data = _json(root / name / META).get("data")
    if not isinstance(data, int):
        raise ValueError(f"{root / name / META}: expected a number under 'data', got {data!r}; the file is damaged")
    return data


def _storage_shape(root: File) -> tuple[int, ...]:
    file = root / "_storage_shape" / META
    data = _json(file).get("data")
    shape = [data] if isinstance(data, int) else data
    if not isinstance(shape, list) or not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"{file}: expected the shape of a storage under 'data', got {data!r}; the file is damaged")
    return tuple(shape)


def _files_of(place: File, prefix: Path) -> tuple[dict[Path, tuple[File, Table]], bool]:
    """The leaves of a nest by path, with their files, and whether they are nested."""
    found: dict[Path, tuple[File, Table]] = {}
    nested = False
    for name, meta in _json(place / META).items():
        path = (*prefix, name)
        if not isinstance(meta, dict) or (not prefix and name in padded.RESERVED):
            continue
        if "dtype" in meta:
            found[path] = place / (_encoded(name) + DATA), _table(place, path, meta)
            nested = nested or bool(meta.get("is_nested"))
        elif meta.get("type") == "TensorDict":
            below, of_below = _files_of(place / _encoded(name), path)
            found |= below
            nested = nested or of_below
        else:
            raise ValueError(
                f"{place / META}: leaf {show(path)!r}: expected an array or a nest of them, got {meta.get('type')!r}; "
                f"leave it out before saving"
            )
    return found, nested


def _table(place: File, path: Path, meta: dict[str, Any]) -> Table:
    dtype = str(meta["dtype"]).removeprefix("torch.")
    shape = meta.get("shape")
    if dtype not in ITEMSIZE or not isinstance(shape, list) or not shape:
        raise ValueError(
            f"{place / META}: leaf {show(path)!r}: expected one of the dtypes {', '.join(ITEMSIZE)} and a shape, "
            f"got {meta}; convert it before saving"
        )
    if not meta.get("is_nested"):
        return Table(shape[0], tuple(shape[1:]), dtype)
    file = place / (_encoded(path[-1]) + SHAPE)
    data = _content(file)
    if len(data) != 8 * shape[0] * shape[1]:
        raise ValueError(f"{file}: expected {8 * shape[0] * shape[1]} bytes, got {len(data)}; the file is damaged")
    shapes = np.frombuffer(data, "<i8").reshape(shape)
    if (shapes < 0).any() or (shapes[:, 1:] != shapes[:1, 1:]).any():
        raise ValueError(f"{file}: expected trajectories that differ in length alone; the file is damaged")
    return Table(int(shapes[:, 0].sum()), tuple(map(int, shapes[0, 1:])), dtype)


def _mapped(file: File, table: Table) -> Array:
    """The rows of a leaf, read as they are used."""
    dtype, shape = kept_dtype(table.dtype), (table.rows, *table.shape)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.zeros(shape, dtype)
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing")
    if file.stat().st_size != size:
        raise ValueError(f"{file}: expected {size} bytes for {table.dtype} {shape}, got {file.stat().st_size}; damaged")
    return np.memmap(file, dtype, "r", shape=shape)
