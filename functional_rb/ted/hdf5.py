"""Trajectories in HDF5, a group for each, as TorchRL's H5Split and PersistentTensorDict have them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path as File
from typing import Any

import numpy as np

from functional_rb.dtypes import ITEMSIZE
from functional_rb.layout import KEPT_AS
from functional_rb.nest import Key, Path, show
from functional_rb.ted import padded
from functional_rb.ted.check import path_of
from functional_rb.ted.forms import Array, Flat, Nested, flat_to_nested, kept_dtype, leaves_of_form, nested_to_flat
from functional_rb.ted.padded import Header, Piece, Table

GROUP = "traj_"
DTYPE = "dtype"
"""An attribute of leaves whose dtype HDF5 lacks."""


def h5_split(form: Flat | Nested, path: str | os.PathLike[str], *, compression: str | None = None) -> None:
    """Write a file of HDF5 with a group for each trajectory.

    TorchRL's H5StorageCheckpointer loads it into a storage with as many rows. Rows of empty slots are there too, as
    trajectories of zeros, which take no space. Leaves of bfloat16, which HDF5 lacks, are uint16 with an attribute that
    says so; TorchRL does not know it.

    Args:
        form: the steps.
        path: of the file; it is written beside it first, and then renamed.
        compression: of the leaves, as h5py has it: "gzip", "lzf".

    Raises:
        ImportError: if h5py is not installed.
        FileExistsError: if the file is there.
        ValueError: for a leaf whose name the file has for something else.

    Example:
        >>> import tempfile
        >>> import torch_backend as rb
        >>> from functional_rb import Binary, BufferSpec, Unbounded, ted
        >>> flags = dict.fromkeys(("done", "terminated", "truncated"), Binary())
        >>> step = {"observation": Unbounded(()), **flags}
        >>> item = step | {"action": Unbounded(()), "next": step | {"reward": Unbounded(())}}
        >>> form = ted.ted_to_nested(rb.init(BufferSpec(item, capacity=3)))
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     h5_split(form, f"{scratch}/x.h5")
        ...     h5_combine(f"{scratch}/x.h5").spec == form.spec
        True
    """
    h5py = _h5py("h5_split")
    target = File(path)
    if target.exists():
        raise FileExistsError(f"ted.h5_split: {target} is there already; give another path, or remove it")
    flat = nested_to_flat(form) if isinstance(form, Nested) else form
    for leaf in leaves_of_form(flat.data):
        if any(name in (".", "") or "/" in name for name in map(str, leaf)):
            raise ValueError(f"ted.h5_split: leaf {show(leaf)!r}: HDF5 has '/' and '.' for something else; rename it")
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with h5py.File(scratch, "w") as file:
            _write(flat, file, compression)
        os.replace(scratch, target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def h5_combine(path: str | os.PathLike[str], *, reward_key: Key = "reward", known: Iterable[Any] = ()) -> Nested:
    """Read what `h5_split` wrote, or TorchRL.

    Args:
        path: of the file.
        reward_key: path of the reward, where TorchRL wrote it.
        known: classes that the spec names, as for `frb.from_json`.

    Returns:
        The trajectories, in arrays of their own. If TorchRL wrote it, the spec is None.

    Raises:
        ImportError: if h5py is not installed.
        OSError: if it is no file of HDF5.
        ValueError: for what is damaged, or no such form, naming the file.
    """
    h5py = _h5py("h5_combine")
    with h5py.File(path, "r") as file, padded.believing_none(os.fspath(path)):
        return flat_to_nested(_read(file, str(path), path_of(reward_key), known))


def _h5py(function: str) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"ted.{function} needs h5py: pip install 'functional-rb[hdf5]'") from error
    return h5py


def _write(flat: Flat, file: Any, compression: str | None) -> None:
    header, tables = padded.tables(flat)
    pieces = list(padded.pieces(header, padded.done_of(tables["done",])))
    file.attrs[padded.EXTRA] = padded.extra_of(flat)
    numbers = {"is_full": header.is_full, "shift": header.shift, "_len": header.stored}
    for name, number in (numbers | {"_storage_shape": list(header.storage_shape)}).items():
        file[name] = np.asarray(number)
    digits = len(str(len(pieces) - 1))
    for k, piece in enumerate(pieces):
        group = file.create_group(f"{GROUP}{k:0{digits}}")
        for path, table in tables.items():
            _write_leaf(group, path, table, piece, path in flat.shared, compression)


def _write_leaf(group: Any, path: Path, table: Table, piece: Piece, shared: bool, compression: str | None) -> None:
    """A leaf of a trajectory; zeros are left out, which is what HDF5 gives for what was not written."""
    start, stop = (piece.shared, piece.shared_stop) if shared else (piece.start, piece.stop)
    shape = (stop - start, *table.shape)
    filters = {"compression": compression} if compression and 0 not in shape else {}
    leaf = group.create_dataset("/".join(map(str, path)), shape, kept_dtype(table.dtype), **filters)
    if table.dtype in KEPT_AS:
        leaf.attrs[DTYPE] = table.dtype
    for block in padded.rows_of(table, start, stop):
        leaf[block.start : block.start + len(block.rows)] = block.rows


def _read(file: Any, where: str, reward: Path, known: Iterable[Any]) -> Flat:
    missing = [name for name in padded.RESERVED[:3] if name not in file]
    groups = {int(name.removeprefix(GROUP)): name for name in file if name.removeprefix(GROUP).isdecimal()}
    names = [groups[k] for k in sorted(groups)]
    if missing or not names:
        what = f"a value {missing[0]!r}" if missing else f"groups {GROUP}0, ..."
        raise ValueError(f"{where}: expected {what} as H5Split writes; not trajectories in TED")
    shape = tuple(int(n) for n in np.atleast_1d(file["_storage_shape"][()]))
    header = Header(bool(file["is_full"][()]), int(file["shift"][()]), shape)
    parts = [_leaves(file[name], (), where) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise ValueError(f"{where}: expected the leaves {sorted(map(show, parts[0]))} in {name}; damaged")
    columns = {path: [part[path] for part in parts] for path in parts[0]}
    starts = {path: np.concatenate([[0], np.cumsum([len(x) for x in leaves])]) for path, leaves in columns.items()}
    found = {path: _table(leaves, path, where) for path, leaves in columns.items()}

    def rows(path: Path, start: int, stop: int) -> Array:
        first = int(np.searchsorted(starts[path], start, "right")) - 1
        read = [np.zeros((0, *found[path].shape), kept_dtype(found[path].dtype))]
        for k in range(first, len(columns[path])):
            low, high = start - int(starts[path][k]), stop - int(starts[path][k])
            if high <= 0:
                break
            read.append(columns[path][k][max(low, 0) : high])
        return np.concatenate(read)

    extra = file.attrs.get(padded.EXTRA)
    told = padded.told(header, None if extra is None else str(extra), reward, where, known)
    return padded.read(header, found, rows, told, where)


def _leaves(group: Mapping[str, Any], prefix: Path, where: str) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    for name, value in group.items():
        if hasattr(value, "dtype"):
            found[*prefix, name] = value
        else:
            found |= _leaves(value, (*prefix, name), where)
    return found


def _table(leaves: list[Any], path: Path, where: str) -> Table:
    dtype = str(leaves[0].attrs.get(DTYPE, leaves[0].dtype.name))
    if dtype not in ITEMSIZE or len({(x.shape[1:], x.dtype) for x in leaves}) > 1:
        raise ValueError(
            f"{where}: leaf {show(path)!r}: expected trajectories of one of the dtypes {', '.join(ITEMSIZE)} that "
            f"differ in length alone; the file is damaged, or not in TED"
        )
    return Table(sum(len(x) for x in leaves), tuple(leaves[0].shape[1:]), dtype)
