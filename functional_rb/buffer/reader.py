"""Reading a state piece by piece, as it was when the reader was made, whatever is written meanwhile."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.base.dtypes import shown
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters
from functional_rb.core.draft import HasArrays, by_name
from functional_rb.core.plan import Plan
from functional_rb.core.save_history import NEW, SaveHistory
from functional_rb.structures import stored_arrays, sum_tree
from functional_rb.structures.stored_arrays import Shapes, auxiliary_name

Piece = NumpyArray


class Snapshot(Protocol):
    """The instant of a save to the directory that the buffer's own files lie in, from which on they are logged."""

    @property
    def number(self) -> int:
        """The number of the first log that rolls the files back to the instant."""

    @property
    def present(self) -> Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
        """The blocks of each array that lies in files outside of which nothing was ever written."""

    def sync(self) -> None:
        """Have files and logs on the disk."""

    def committed(self) -> None:
        """The checkpoint is there."""

    def close(self) -> None:
        """The save has ended, well or not."""


# Takes the snapshot of a buffer's mapped files (None for other buffers), if they lie where a save goes to.
TakeSnapshot = Callable[[Any], Snapshot | None]


def shapes_of(plan: Plan) -> Shapes:
    """The arrays of a state, and their shapes and dtypes: "rows", "wide_0", ..., "tree", "kept_<name>", "counters".

    Of the tree the rows that hold the leaves: the nodes above follow from them.

    Example:
        >>> import functional_rb as frb
        >>> shapes_of(frb.BufferSpec((frb.Unbounded((2,)),), 5).plan)
        {'rows': ((5, 2), 'int32'), 'counters': ((6,), 'int32')}
    """
    groups = sum_tree.geometry(plan.capacity).levels[0].groups
    tree = {} if plan.tree_shape is None else {"tree": ((groups, sum_tree.FANOUT), "float32")}
    auxiliary = {auxiliary_name(name): (array.shape, array.dtype) for name, array in plan.auxiliary.items()}
    rows = stored_arrays.shapes(plan.layout, plan.capacity)
    return {**rows, **tree, **auxiliary, "counters": ((counters.length(plan),), "int32")}


def misfit(arrays: HasArrays, plan: Plan) -> str | None:
    """A description of the first array that is not as the spec says, or None. Kernels must be given no such array."""
    expected = shapes_of(plan)
    whole = {name: shape if name != "tree" else plan.tree_shape for name, (shape, _) in expected.items()}
    for name, array in by_name(arrays, plan).items():
        shape, kind = tuple(getattr(array, "shape", ())), shown(getattr(array, "dtype", type(array)))
        if shape != whole.get(name):
            return f"state.{name} has the shape {shape}, and by the spec it is {whole.get(name)}"
        if kind != expected[name][1]:
            return f"state.{name} has the dtype {kind}, and by the spec it is {expected[name][1]}"
    return None


def check_fits(arrays: HasArrays, plan: Plan, function: str) -> None:
    """Refuse arrays of other shapes than the spec says: beyond them kernels would write, and a GPU's context ends."""
    problem = misfit(arrays, plan)
    if problem is not None:
        raise ValueError(f"{function}: {problem}; give a state whose arrays were not cut, reshaped or put together")


class Reader:
    """Reads a state of NumPy arrays, or of arrays that NumPy can read; other states have readers of their own.

    Attributes:
        spec: of the buffer.
        shapes: see `shapes_of`.
        stamp: what a checkpoint of this state is known by, see `save_history`.
        save_history: the saves that the state succeeds, see `save_history`.
        in_place: the snapshot of the buffer's own files, if the save goes to their directory; None of all others.
    """

    in_place: Snapshot | None = None

    def __init__(self, spec: BufferSpec, save_history: SaveHistory = NEW) -> None:
        self.spec, self.save_history = spec, save_history
        self.shapes = shapes_of(spec.plan)
        self.stamp = secrets.token_hex(16)

    def read(self, name: str, start: int, stop: int) -> Piece:
        """Rows [start, stop) along axis 0 of an array, contiguous; only to be read, and only until the next call."""
        raise KeyError(name)

    def objects(self, name: str, piece: Piece) -> dict[int, dict[int, object]]:
        """The Python objects whose tokens are in rows of an array: by leaf, by token."""
        return {}

    def close(self) -> None:
        """Let go of the state."""

    def check_array(self, name: str, array: BackendArray) -> None:
        """Refuse states that `vmap` made, whose arrays hold many, and arrays of another dtype than the spec's."""
        expected, dtype = self.shapes[name]
        whole, shape = (expected if name != "tree" else self.spec.plan.tree_shape) or (), tuple(array.shape)
        if shape != whole:
            raise ValueError(
                f"state.{name}: expected an array of shape {whole}, as the spec says, got {shape}; "
                f"take the states of a batch apart and save each by itself"
            )
        if shown(array.dtype) != dtype:
            raise TypeError(
                f"state.{name}: expected an array of dtype {dtype}, as the spec says, got {shown(array.dtype)}; "
                f"save the state whose arrays were not cast"
            )


class ArrayReader(Reader):
    """Reads arrays that do not change."""

    def __init__(self, state: HasArrays, spec: BufferSpec, lasting: bool) -> None:
        """Take a state's arrays; copied if `lasting`, as what holds them may write or delete them meanwhile."""
        super().__init__(spec)
        take = np.array if lasting else np.asarray
        self._arrays: dict[str, Piece] = {}
        for name, array in by_name(state, spec.plan).items():
            self.check_array(name, array)
            try:
                self._arrays[name] = take(array)
            except Exception as error:
                raise TypeError(
                    f"state.{name}: {type(array).__name__} cannot be read as an array of NumPy; outside of jit, vmap "
                    f"and the like it can"
                ) from error

    def read(self, name: str, start: int, stop: int) -> Piece:
        # A view, where the array is contiguous.
        return np.ascontiguousarray(self._arrays[name][start:stop])

    def close(self) -> None:
        self._arrays = {}
