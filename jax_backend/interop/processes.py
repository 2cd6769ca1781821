"""Host states on their way to other processes: of those in files, the files; of the others, the bytes."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

from functional_rb.buffer.spec import BufferSpec
from functional_rb.storage import sending
from functional_rb.storage.host_state import HostState
from functional_rb.storage.sending import Filed


def _sent(state: HostState) -> tuple[Any, ...]:
    with state.lock():
        if state.own().files is None:
            return state.__reduce__()
        exported = state.exported_memory()
    return _received, (state.spec, sending.take_apart(exported, state._counters))


def _received(spec: BufferSpec, state: Filed) -> HostState:
    files, arrays = sending.put_together(spec, state)
    return HostState.of_arrays(arrays, spec, pinned=state.inherited, files=files)


ForkingPickler.register(HostState, _sent)
