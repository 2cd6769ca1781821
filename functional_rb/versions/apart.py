"""States under another spec, by way of NumPy's arrays: into another storage, or out of a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.buffer import respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core.draft import Arrays
from functional_rb.ops import numpy_ops
from functional_rb.storage import mapped
from functional_rb.storage.mapped import MappedFiles
from functional_rb.structures import row_layout


@np.errstate(all="ignore")
def with_spec(arrays: Arrays, old: BufferSpec, new: BufferSpec) -> tuple[Arrays, MappedFiles | None]:
    """Arrays of NumPy under another spec, with memory of their own, and the mapped files that some of them lie in.

    Raises:
        OSError: for files that cannot be made, as for `init`, or filled; then what was made is removed.
    """
    files = mapped.create(new) if isinstance(new.storage, Memmap) and not new.storage.shared else None
    try:
        made = _moved(arrays, old, new, files)
    except BaseException:
        if files is not None:
            files.discard()
        raise
    return apart(made, arrays), files


def _moved(arrays: Arrays, old: BufferSpec, new: BufferSpec, files: MappedFiles | None) -> Arrays:
    step = respec.step_of(new)
    if files is None:
        rows, wide = row_layout.allocate(numpy_ops, new.layout, new.capacity)
        return respec.with_spec(numpy_ops, arrays, old, new, stored=(rows, wide, {}), step=step)
    stored, prepare = (files.rows, files.wide, files.auxiliary), (files.prepare_slots, files.prepare_places)
    return respec.with_spec(numpy_ops, arrays, old, new, None, stored, step, *prepare)


def apart(arrays: Arrays, others: Any) -> Arrays:
    """The same, with copies of the arrays that others have."""
    theirs = {id(x) for x in (others.rows, *others.wide, others.tree, others.counters, *others.auxiliary.values())}

    def own(array: Any) -> Any:
        return numpy_ops.copy(array) if array is not None and id(array) in theirs else array

    auxiliary = {name: own(array) for name, array in arrays.auxiliary.items()}
    return Arrays(own(arrays.rows), tuple(map(own, arrays.wide)), own(arrays.tree), own(arrays.counters), auxiliary)
