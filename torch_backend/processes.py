"""States on their way to other processes by `multiprocessing`, torch's or Python's own.

A process that is started with a state gets it in shared memory, which nobody writes to any more, and so does who reads
what the first process has put in a queue. What a process that was itself started puts there goes as bytes: see
`versions.sending`. Torch would move tensors that it sends to shared memory, and free what other threads may be
reading, so it gets copies; that of a state with which a process is started becomes the state's own memory, so that one
copy is made, however many processes are started.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing

from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.storage import sending
from functional_rb.storage.sending import Filed
from torch_backend.memory import Memory
from torch_backend.placement import Placement
from torch_backend.state import State, locked, readable, signed, unpickled


def _sent(state: State) -> tuple[Any, ...]:
    with locked(readable(state)):
        memory: Any = state._version.own()
        if memory.files is not None:
            filed = sending.take_apart(state._give_out(), state._counters)
            return _received_files, (state.spec, memory.placement.target, filed)
        lasting = sending.lasting()
        memory = _shared(state) if lasting else memory.copy()
        arrays, held = Arrays(memory.rows, memory.wide, memory.tree, state._counters, memory.auxiliary), None
        if memory.table is not None:
            with memory.table.lock:
                held = memory.table.held(arrays)
    arrays = signed(arrays)
    if lasting:
        sending.keep(memory)
        arrays = arrays._replace(counters=memory.as_numpy(arrays.counters))  # the state's own stay where they are
    else:
        arrays = _each(memory.as_numpy, arrays)
    return _received, (state.spec, memory.placement.target, memory.rows.device, arrays, held, lasting)


def _shared(state: State) -> Memory:
    """The content of a state in shared memory: in the state's own from now on, if a process is started with it."""
    version = state._version
    memory: Any = version.own()
    strategy = torch.multiprocessing.get_sharing_strategy()
    if memory.sharing != strategy:
        memory = memory.copy()
        for array in memory.arrays:
            array.share_memory_()
        memory.sharing, memory.pinned = strategy, True
        if sending.starting():
            version.move(memory)
    shared: Memory = memory
    return shared


def _each(change: Callable[[Any], Any], arrays: Arrays) -> Arrays:
    tree = None if arrays.tree is None else change(arrays.tree)
    auxiliary = {name: change(array) for name, array in arrays.auxiliary.items()}
    return Arrays(change(arrays.rows), tuple(map(change, arrays.wide)), tree, change(arrays.counters), auxiliary)


def _received(
    spec: BufferSpec,
    target: torch.device | None,
    device: torch.device,
    arrays: Arrays,
    held: dict[int, Any] | None,
    shared: bool,
) -> State:
    arrays = _each(functools.partial(torch.as_tensor, device=device), arrays)
    return unpickled(arrays, spec, held, target, pinned=shared)


def _received_files(spec: BufferSpec, target: torch.device | None, state: Filed) -> State:
    files, arrays = sending.put_together(spec, state)
    place = Placement(spec, target)
    return State.of_arrays(_each(torch.from_numpy, arrays), spec, pinned=state.inherited, place=place, files=files)


ForkingPickler.register(State, _sent)
