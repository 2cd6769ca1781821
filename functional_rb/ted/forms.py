"""The flat and the nested form of what a buffer holds in TED: trajectories with each observation stored once.

Along a trajectory the observation in "next" of one step is that at the root of the following one. So T steps have
T + 1 observations, and both forms keep these and no more:

    flat    every leaf is one array: all lanes one after the other, each from its oldest step to its newest
    nested  these arrays, cut where trajectories end

A trajectory ends with a step that is done, and at the newest step of its lane. Names are those of TorchRL's TED2Flat:
the leaf "reward" and the flags are those of "next" (the flags at the root are False), other leaves those at the root.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Mapping

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.files import ASIDE, as_path, explained_read_only
from functional_rb.base.nest import Path
from functional_rb.buffer.spec import BufferSpec
from functional_rb.convert.json import to_json
from functional_rb.storage import disk
from functional_rb.ted import hdf5, memmaps
from functional_rb.ted.lanes import Lanes
from functional_rb.ted.padded import FORMAT, SUFFIXES, WHO, Block, FileLeaf, Header, Padded

Array = NumpyArray
# Leaves by their path; those of bfloat16, which NumPy lacks, are uint16.
Leaves = dict[Path, Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """What the flat and the nested form have in common.

    Attributes:
        lanes: where the steps lie in the buffer.
        dtypes: the dtypes of the leaves by name; arrays of bfloat16, which NumPy lacks, are uint16 here.
        shared: the leaves that steps have in "next" as well, each stored once.
        reward_key: path of the reward.
        spec: the spec of the buffer; None where a file does not have it.
    """

    lanes: Lanes
    dtypes: dict[str, str]
    shared: frozenset[Path]
    reward_key: Path
    spec: BufferSpec | None

    def __len__(self) -> int:
        return sum(self.lanes.sizes)

    def save(self, path: str | os.PathLike[str], *, compression: str | None = None) -> None:
        """Write the steps to a directory, or to a file of HDF5, that TorchRL reads as well.

        A directory holds the flat or the nested form, as TensorDict.load reads it. A storage of TorchRL with as many
        rows loads it with the hook Flat2TED, or Nested2TED:
        `storage.register_load_hook(Flat2TED()); storage.loads(pathlib.Path(path))`. Rows of empty slots are there too,
        as it expects them, but take no space on a file system that has sparse files.

        A path that ends with ".h5" or ".hdf5" is that of a file with a group for each trajectory, which TorchRL's
        H5StorageCheckpointer loads into a storage with as many rows. Rows of empty slots are trajectories of zeros
        there, which take no space. Leaves of bfloat16, which HDF5 lacks, are uint16 with an attribute that says so;
        TorchRL does not know it.

        Args:
            path: what to make; it is written under another name first, and then renamed.
            compression: of the leaves in a file, by the name that h5py has for it: "gzip", "lzf".

        Raises:
            FileExistsError: if the file is there, or the directory is and is not empty.
            ImportError: for a file, if h5py is not installed.
            StorageFullError: if there is no room; nothing is left of it.
            ValueError: for a leaf whose name means something else there; for a compression of a directory.

        Example:
            >>> import tempfile
            >>> import torch_backend as rb
            >>> flags = dict.fromkeys(("done", "terminated", "truncated"), frb.Binary())
            >>> step = {"observation": frb.Unbounded(()), **flags}
            >>> item = step | {"action": frb.Unbounded(()), "next": step | {"reward": frb.Unbounded(())}}
            >>> form = frb.ted.to_form(rb.init(frb.BufferSpec(item, capacity=3)))
            >>> with tempfile.TemporaryDirectory() as scratch:
            ...     for name in ("steps", "steps.h5"):
            ...         form.save(f"{scratch}/{name}")
            ...         len(frb.ted.to_form(f"{scratch}/{name}", "nested").trajectories)
            0
            0
        """
        to = os.path.abspath(as_path(path, WHO))
        if compression is not None and not to.endswith(SUFFIXES):
            raise ValueError(f"{WHO}: compression is of files of HDF5, and {to!r} does not end with .h5 or .hdf5")
        padded, aside = _padded(flat_of(self)), os.path.join(os.path.dirname(to), ASIDE)
        with (
            explained_read_only(WHO, "give a path in a folder that can be written to", to, aside),
            disk.explained_if_full(to, "make room there (df; quota; ulimit -f) and call again"),
        ):
            if to.endswith(SUFFIXES):
                hdf5.write(padded, to, compression)
            else:
                memmaps.write(padded, to, isinstance(self, Nested))


@dataclasses.dataclass(frozen=True, eq=False)
class Flat(Form):
    """Steps in the flat form.

    Attributes:
        data: nested dicts of NumPy arrays: [N + K, *shape] of the observations, for N steps in K trajectories,
            [N, *shape] of all other leaves.
    """

    data: dict[str, Nest]

    @property
    def ends(self) -> Array:
        """Which steps are the last of their trajectory, bool [N]."""
        return ends_of(self.data["done"], self.lanes.sizes)

    @property
    def lengths(self) -> Array:
        """How many steps each trajectory has, int64 [K]."""
        return np.diff(np.flatnonzero(self.ends) + 1, prepend=0)

    def __repr__(self) -> str:
        return f"Flat({len(self)} steps in {len(self.lengths)} trajectories, {_shown(self.data)})"


@dataclasses.dataclass(frozen=True, eq=False)
class Nested(Form):
    """Steps in the nested form: a sequence of trajectories, lane by lane, the oldest first.

    Attributes:
        trajectories: nested dicts of NumPy arrays each: [T + 1, *shape] of the observations, for T steps, [T, *shape]
            of all other leaves. They are views of the flat form's arrays if they were made of these.
        empty: arrays of no trajectory, [0, *shape], which have shapes and dtypes even where there is no trajectory.
    """

    trajectories: tuple[dict[str, object], ...]
    empty: dict[str, Nest]

    def __repr__(self) -> str:
        return f"Nested({len(self)} steps in {len(self.trajectories)} trajectories, {_shown(self.empty)})"


def flat_to_nested(flat: Flat) -> Nested:
    """Cut the flat form where trajectories end; arrays are views.

    Example:
        >>> data = {"observation": np.array([0, 1, 2, 2, 9]), "done": np.array([False, True, False])}
        >>> lanes, dtypes = Lanes(4, (3,), (3,), False), {"observation": "int64", "done": "bool"}
        >>> flat = Flat(lanes, dtypes, frozenset({("observation",)}), ("reward",), None, data)
        >>> [trajectory["observation"].tolist() for trajectory in flat_to_nested(flat).trajectories]
        [[0, 1, 2], [2, 9]]
    """
    lengths = flat.lengths
    last = np.cumsum(lengths)
    leaves = leaves_of_form(flat.data)
    episodes = []
    for k, (length, stop) in enumerate(zip(lengths.tolist(), last.tolist(), strict=True)):
        rows, shared = slice(stop - length, stop), slice(stop - length + k, stop + k + 1)
        episodes.append(nest.nested({path: x[shared if path in flat.shared else rows] for path, x in leaves.items()}))
    empty = nest.nested({path: x[:0] for path, x in leaves.items()})
    return Nested(flat.lanes, flat.dtypes, flat.shared, flat.reward_key, flat.spec, tuple(episodes), empty)


def flat_of(form: Form) -> Flat:
    if isinstance(form, Flat):
        return form
    assert isinstance(form, Nested)
    # The arrays of no trajectory are joined too: they have shapes and dtypes where there is none.
    each = [leaves_of_form(trajectory) for trajectory in (form.empty, *form.trajectories)]
    data = nest.nested({path: np.concatenate([leaves[path] for leaves in each]) for path in each[0]})
    return Flat(form.lanes, form.dtypes, form.shared, form.reward_key, form.spec, data)


def ends_of(done: Array, sizes: tuple[int, ...]) -> Array:
    """Which steps are the last of their trajectory, bool [N], by flags [N] or [N, 1] of lanes one after the other."""
    ends = done.reshape(-1).copy()
    # What a lane goes on with is not there: its newest step is the last of the trajectory here.
    ends[np.cumsum([size for size in sizes if size], dtype=np.int64) - 1] = True
    return ends


def leaves_of_form(data: Mapping[str, object]) -> Leaves:
    leaves, structure = nest.flatten(data, lambda x: isinstance(x, np.ndarray))
    return dict(zip(structure.paths, leaves, strict=True))


def _padded(flat: Flat) -> Padded:
    header = Header.of(flat.lanes)
    sizes, ends = flat.lanes.sizes, flat.ends
    done = np.zeros((header.count, header.length), bool)
    done[np.arange(header.length) < np.array(sizes)[:, None]] = flat.data["done"].reshape(-1)
    # Where the rows of each lane begin: `steps` in the flat form, `first` in the file; `shared_...` of shared leaves.
    extra_rows = header.extra_rows(done)
    steps = np.concatenate([[0], np.cumsum(sizes)])
    more = [int(ends[start:stop].sum()) for start, stop in itertools.pairwise(steps)]
    shared_steps = steps + np.concatenate([[0], np.cumsum(more)])
    shared_first = np.concatenate([[0], np.cumsum(header.length + extra_rows.sum(1))])
    first = np.arange(header.count + 1) * header.length
    leaves = {}
    for path, leaf in leaves_of_form(flat.data).items():
        in_file, in_flat = (shared_first, shared_steps) if path in flat.shared else (first, steps)
        blocks = [Block(int(in_file[k]), leaf[in_flat[k] : in_flat[k + 1]]) for k in range(header.count)]
        leaves[path] = FileLeaf(int(in_file[-1]), leaf.shape[1:], flat.dtypes[nest.show(path)], tuple(blocks))
    return Padded(header, leaves, flat.shared, _extra(flat))


def _extra(flat: Flat) -> str:
    lanes, spec = flat.lanes, None
    if flat.spec is not None:
        with contextlib.suppress(TypeError, ValueError):  # a spec with classes of others has no JSON form
            spec = json.loads(to_json(flat.spec))
    content = {"format": FORMAT, "sizes": list(lanes.sizes), "cursors": list(lanes.cursors)}
    return json.dumps({**content, "reward_key": list(flat.reward_key), "spec": spec})


def _shown(data: Mapping[str, object]) -> str:
    return ", ".join(f"{nest.show(path)} {leaf.shape}" for path, leaf in leaves_of_form(data).items())
