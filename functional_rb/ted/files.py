"""Forms in files: a directory of memory-mapped leaves, or a file of HDF5, by what the path ends with."""

from __future__ import annotations

import os
from collections.abc import Iterable

from functional_rb.base.files import as_path
from functional_rb.base.nest import Key
from functional_rb.ted import hdf5, memmaps
from functional_rb.ted.forms import Flat, Nested

SUFFIXES = (".h5", ".hdf5")
"""What names of files of HDF5 end with."""


def save(form: Flat | Nested, path: str | os.PathLike[str], *, compression: str | None = None) -> None:
    """Write steps to a directory, or to a file of HDF5, that TorchRL reads as well.

    A directory holds the flat or the nested form, as TensorDict.load reads it. A storage of TorchRL with as many rows
    loads it with the hook Flat2TED, or Nested2TED:
    `storage.register_load_hook(Flat2TED()); storage.loads(pathlib.Path(path))`. Rows of empty slots are there too, as
    it expects them, but take no space on a file system that has sparse files.

    A path that ends with ".h5" or ".hdf5" is that of a file with a group for each trajectory, which TorchRL's
    H5StorageCheckpointer loads into a storage with as many rows. Rows of empty slots are trajectories of zeros there,
    which take no space. Leaves of bfloat16, which HDF5 lacks, are uint16 with an attribute that says so; TorchRL does
    not know it.

    Args:
        form: the steps.
        path: what to make; it is written under another name first, and then renamed.
        compression: of the leaves in a file, by the name that h5py has for it: "gzip", "lzf".

    Raises:
        FileExistsError: if the file is there, or the directory is and is not empty.
        ImportError: for a file, if h5py is not installed.
        ValueError: for a leaf whose name means something else there; for a compression of a directory.

    Example:
        >>> import tempfile
        >>> import torch_backend as rb
        >>> from functional_rb import Binary, BufferSpec, Unbounded, ted
        >>> flags = dict.fromkeys(("done", "terminated", "truncated"), Binary())
        >>> step = {"observation": Unbounded(()), **flags}
        >>> item = step | {"action": Unbounded(()), "next": step | {"reward": Unbounded(())}}
        >>> form = ted.to_form(rb.init(BufferSpec(item, capacity=3)))
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     for name in ("flat", "flat.h5"):
        ...         save(form, f"{scratch}/{name}")
        ...         type(load(f"{scratch}/{name}")).__name__
        'Flat'
        'Nested'
    """
    where = as_path(path, "ted.save")
    if where.endswith(SUFFIXES):
        hdf5.save(form, where, compression)
    elif compression is None:
        memmaps.save(form, where)
    else:
        raise ValueError(f"ted.save: compression is of files of HDF5, and {where!r} does not end with .h5 or .hdf5")


def load(path: str | os.PathLike[str], *, reward_key: Key = "reward", known: Iterable[object] = ()) -> Flat | Nested:
    """Read what `save` wrote, or TorchRL: the form that lies there, of a file of HDF5 always the nested one.

    Args:
        path: the directory of the form, of a dumped ReplayBuffer its "storage"; or a file that ends with ".h5" or
            ".hdf5".
        reward_key: path of the reward in what TorchRL wrote.
        known: classes that the spec names, as for `frb.convert.from_json`.

    Returns:
        The steps, in arrays of their own. If TorchRL wrote them, the spec is None.

    Raises:
        FileNotFoundError: if a file is missing, naming it.
        ImportError: for a file of HDF5, if h5py is not installed.
        ValueError: for a file that is damaged, unreadable, or without this form, naming it.
    """
    where = as_path(path, "ted.load")
    read = hdf5.load if where.endswith(SUFFIXES) else memmaps.load
    return read(where, reward_key, known)
