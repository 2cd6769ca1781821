"""The state of a converted dataset: its files mapped as they are, and what the sampler keeps made of them."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from functional_rb.base import lazy
from functional_rb.base.arrays import DeviceLike
from functional_rb.buffer import respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core import counters
from functional_rb.core.draft import Arrays
from functional_rb.datasets.description import Description, spec_of
from functional_rb.ops import numpy_ops, part_kernels
from functional_rb.samplers import Uniform
from functional_rb.samplers.base import SamplerBase
from functional_rb.storage import mapped
from functional_rb.storage.directory import file_name, filed
from functional_rb.storage.host_state import NumPy
from functional_rb.storage.private import PrivateArray, PrivateFiles
from functional_rb.structures import frame_ring
from functional_rb.structures.ring import RingState
from functional_rb.transforms import n_step

WHO = "datasets.load"


def opened(
    description: Description,
    backend: str,
    sampler: SamplerBase | None,
    transforms: object,
    batch_size: int | None,
    device: DeviceLike,
) -> State:
    storage = Memmap(description.path)
    more = {"transforms": transforms, "batch_size": batch_size, "storage": storage}
    spec = spec_of(description, sampler=Uniform() if sampler is None else sampler, **more)
    for transform in spec.transforms:
        if transform.columns(spec.plan) or transform.auxiliary(spec.plan) or spec.on_add is not None:
            raise ValueError(
                f"{WHO}: transforms: expected some of what is sampled, as n_step(at='sample'), her, map_items, got "
                f"{transform!r:.60}, which changes what is added; a dataset has been stored already: see Dataset.map"
            )
    # What a process writes stays its own: many may have the same dataset open.
    files = PrivateFiles(spec, description.path)
    # A spec whose arrays beside the items are all in files, the steps in episodes too, which a transform asks for.
    base = spec_of(description, transforms=n_step(2, 1.0), storage=storage)
    is_in_files = (
        spec.plan.tree_shape is None
        and spec.plan.auxiliary.keys() <= base.plan.auxiliary.keys()
        and set(spec.plan.counter_names) <= set(base.plan.counter_names)
        and spec.plan.boundaries in (None, base.plan.boundaries)
    )
    if is_in_files:
        arrays = _arrays(spec, files, description)
    else:
        # A tree of priorities, say, is made in memory, by the reference or by native code.
        host = NumPy()
        table = host.kernels.TABLE if host.may_use_kernels else part_kernels.NONE
        with np.errstate(all="ignore"), part_kernels.using(table):
            arrays = respec.with_spec(numpy_ops.OPS, _arrays(base, files, description), base, spec)
    restore: Callable[..., State] = lazy.imported(f"{backend}_backend.engines.restore").restore
    return restore(spec, arrays, device, files=files)


def _arrays(spec: BufferSpec, files: PrivateFiles, description: Description) -> Arrays:
    plan, steps = spec.plan, description.steps
    auxiliary = {
        name: PrivateArray(os.path.join(description.path, file_name(name)), array.shape, array.dtype).array
        for name, array in plan.auxiliary.items()
        if name not in filed(spec)
    }
    # A ring that is just full: its cursor is back at the first slot, modulo the limit of handles.
    ends = RingState(np.full(1, steps % plan.ring.limit, np.int32), np.full(1, steps, np.int32))
    numbers = counters.read(plan, np.zeros(counters.length(plan), np.int32)).replace(ends=ends)
    if plan.frames is not None:
        cursor = np.full(1, description.frames % plan.frames.limit, np.int32)
        numbers = numbers.with_more(**{frame_ring.CURSOR: cursor})
    vector = counters.write(numpy_ops.OPS, plan, numbers)
    # The plan's order, which is part of what a state is: both backends go through auxiliary arrays by it.
    ordered = {name: (auxiliary | files.auxiliary)[name] for name in plan.auxiliary}
    return mapped.within(files, Arrays(files.rows, files.wide, None, vector, ordered))
