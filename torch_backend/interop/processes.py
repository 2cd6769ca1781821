"""States on their way to other processes by `multiprocessing`, torch's or Python's own.

A process that is started with a state gets it in shared memory, which nobody writes to any more; so does a process that
reads what the first process has put in a queue. What a process that was itself started puts there goes as bytes: see
`versions.sending`. Torch would move tensors that it sends to shared memory, and free what other threads may be reading,
so it gets copies; that of a state with which a process is started becomes the state's own memory, so that one copy is
made, however many processes are started.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing

from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.storage import sending
from functional_rb.storage.sending import Filed
from functional_rb.versions.object_table import held_objects
from torch_backend.memory.memory import Memory
from torch_backend.memory.state import State, signed, unpickled


def _sent(state: State) -> tuple[Any, ...]:
    with state.lock():
        memory = state.own()
        if memory.files is not None:
            # Exported, so that nobody writes to what the other process reads.
            filed = sending.take_apart(state.exported_memory(), state._counters)
            return _received_files, (state.spec, state._target, filed)
        lasting = sending.lasting()
        memory = _shared(state) if lasting else memory.copy()
        held = held_objects(memory)
    arrays = signed(memory.state_arrays(state._counters))
    if lasting:
        sending.keep(memory)
        arrays = arrays._replace(counters=memory.as_numpy(arrays.counters))  # the state's own stay where they are
    else:
        arrays = arrays.each(memory.as_numpy)
    return _received, (state.spec, state._target, memory.rows.device, arrays, held, lasting)


# The content of a state in shared memory: in the state's own from now on, if a process is started with it.
def _shared(state: State) -> Memory:
    memory: Any = state.own()
    strategy = torch.multiprocessing.get_sharing_strategy()
    if memory.sharing != strategy:
        copied = memory.copy()
        for array in copied.arrays:
            array.share_memory_()
        # So the same memory serves each process that is started with this state, and later writes move away from it.
        if sending.starting():
            memory.take(copied.by_name)
        else:
            memory = copied
        memory.sharing, memory.pinned = strategy, True
    shared: Memory = memory
    return shared


def _received(
    spec: BufferSpec,
    target: torch.device | None,
    device: torch.device,
    arrays: Arrays,
    held: Mapping[int, object] | None,
    shared: bool,
) -> State:
    arrays = arrays.each(functools.partial(torch.as_tensor, device=device))
    return unpickled(arrays, spec, held, target, pinned=shared)


def _received_files(spec: BufferSpec, target: torch.device | None, state: Filed) -> State:
    files, arrays = sending.put_together(spec, state)
    tensors = arrays.each(torch.from_numpy)
    return State.of_arrays(tensors, spec, pinned=state.inherited, target=target, files=files)


ForkingPickler.register(State, _sent)
