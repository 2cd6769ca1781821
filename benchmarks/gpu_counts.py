"""What a call asks of a GPU, which no machine's speed changes: launches, copies, and how often the host waits."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.profiler import profile, supported_activities

import torch_backend as trb
from benchmarks.ours import buffer_spec
from benchmarks.torch_loop import synchronizer, to_tensors
from benchmarks.workload import Workload


class Counted(NamedTuple):
    """What one call comes to.

    Attributes:
        launches: of kernels.
        copies: and fillings, of memory, which a GPU has no kernel for.
        waits: of the host for the GPU.
        seconds: that the GPU worked.
        kernels: their names.
    """

    launches: float
    copies: float
    waits: float
    seconds: float
    kernels: list[str]


def counted(call: Callable[[], object], device: str, calls: int = 20) -> Counted:
    """The mean over several calls, which must not wait for the GPU by themselves."""
    for _ in range(2):
        call()
    warned = _warned(call, calls) if torch.device(device).type == "cuda" else 0
    found, nothing = _seen(call, calls, device), _seen(call, 0, device)
    waited = sum(found.host.values()) - sum(nothing.host.values())
    launches, copies = sum(found.kernels.values()), sum(found.copies.values())
    waits, kernels = max(warned, waited) / calls, sorted(found.kernels)
    return Counted(launches / calls, copies / calls, waits, found.seconds / calls, kernels)


class _Seen(NamedTuple):
    kernels: Counter[str]
    copies: Counter[str]
    host: Counter[str]
    seconds: float


def _seen(call: Callable[[], object], calls: int, device: str) -> _Seen:
    """What torch's profiler sees, of the host's doings those that wait."""
    synchronizer(device)()
    with profile(activities=supported_activities()) as profiled:
        for _ in range(calls):
            call()
    seen = _Seen(Counter(), Counter(), Counter(), 0.0)
    seconds = 0.0
    for event in profiled.events() or ():
        if event.device_type.name == "CUDA":
            (seen.copies if event.name.startswith("Mem") else seen.kernels)[event.name] += 1
            seconds += event.time_range.elapsed_us() / 1e6
        elif event.name.endswith("Synchronize"):
            seen.host[event.name] += 1
    return seen._replace(seconds=seconds)


def _warned(call: Callable[[], object], calls: int) -> int:
    """How often torch says that one of its operations waits."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(calls):
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in told)


class Crossing(NamedTuple):
    """A state that goes from torch to JAX and back.

    Attributes:
        nbytes: of its arrays.
        arrays: how many there are.
        there: how many of them are in the same memory on JAX.
        back: how many are again on torch.
        there_seconds: the least that the way there took.
        back_seconds: the least that the way back took.
    """

    nbytes: int
    arrays: int
    there: int
    back: int
    there_seconds: float
    back_seconds: float


def crossing(work: Workload, device: str, times: int = 5) -> Crossing:
    """A prioritized buffer of the workload's items, brought over by DLPack."""
    import jax_backend as jrb  # the other parts need torch alone

    state = trb.init(buffer_spec(work, "prioritized"), device)
    state = trb.add(state, to_tensors(work.chunk(), device))
    own, there_seconds, back_seconds = _arrays(state), [], []
    for _ in range(times):
        synchronizer(device)()
        began = time.perf_counter()
        other = jrb.from_dlpack(state)
        crossed = time.perf_counter()
        back = trb.from_dlpack(other)
        there_seconds.append(crossed - began)
        back_seconds.append(time.perf_counter() - crossed)
    places = [array.data_ptr() for array in own]
    same_there = sum(x.unsafe_buffer_pointer() == place for x, place in zip(_arrays(other), places, strict=True))
    same_back = sum(x.data_ptr() == place for x, place in zip(_arrays(back), places, strict=True))
    nbytes = sum(array.nbytes for array in own)
    return Crossing(nbytes, len(own), same_there, same_back, min(there_seconds), min(back_seconds))


def _arrays(state: Any) -> list[Any]:
    return [state.rows, *state.wide, state.tree, state.counters]
