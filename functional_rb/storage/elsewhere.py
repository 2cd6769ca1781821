"""States under another spec, by way of NumPy's arrays: into another storage, or out of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional_rb.buffer import respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core.draft import Arrays
from functional_rb.ops import numpy_ops
from functional_rb.storage.mapped import MappedFiles
from functional_rb.structures import row_layout
from functional_rb.versions.object_table import held_objects
from functional_rb.versions.state import VersionedState
from functional_rb.versions.version import separate


@np.errstate(all="ignore")
def with_spec(
    arrays: Arrays, old: BufferSpec, new: BufferSpec, create: Callable[[BufferSpec], MappedFiles]
) -> tuple[Arrays, MappedFiles | None]:
    """Arrays of NumPy under another spec, with memory of their own, and the mapped files that some of them lie in.

    `create` makes the files of a `Memmap` buffer.

    Raises:
        OSError: for files that cannot be made, as for `init`, or filled; then what was made is removed.
    """
    files = create(new) if isinstance(new.storage, Memmap) and not new.storage.shared else None
    try:
        step = respec.step_of(new)
        if files is None:
            rows, wide = row_layout.allocate(numpy_ops.OPS, new.plan.layout, new.capacity)
            moved = respec.with_spec(numpy_ops.OPS, arrays, old, new, stored=(rows, wide, {}), step=step)
        else:
            stored, prepare = (files.rows, files.wide, files.auxiliary), (files.prepare_slots, files.prepare_places)
            moved = respec.with_spec(numpy_ops.OPS, arrays, old, new, None, stored, step, *prepare)
    except BaseException:
        if files is not None:
            files.discard()
        raise
    return separate(moved, arrays, numpy_ops.copy), files


def of_version(
    state: VersionedState, new: BufferSpec, create: Callable[[BufferSpec], MappedFiles]
) -> tuple[Arrays, MappedFiles | None, dict[int, object] | None]:
    """What `with_spec` gives of a state's arrays, and its Python objects by token; the state stays as it is."""
    with state.lock():  # until all is copied, as later states write to the same memory
        memory = state.own()
        arrays = memory.state_arrays(state._counters).each(memory.as_numpy)
        return *with_spec(arrays, state.spec, new, create), held_objects(memory)
