"""`add`, `update` and draws of usual buffers on a GPU, one launch each: calls of the kernels of `native/src/gpu.h`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch

from functional_rb.buffer.spec import BufferSpec
from functional_rb.native import descriptor
from functional_rb.structures import stored_arrays
from functional_rb.versions.memory import TREE, Entry
from functional_rb.versions.recorder import OVERHEAD
from torch_backend import modes, ops
from torch_backend.memory import Memory

MOST: Final = 40
"""Leaves, and arrays of the storage, that a call can name: as `gpu.h` has it."""
FIELDS: Final = (
    *("plan", "tree", "counters", "new_counters", *["storage"] * MOST, *["leaves"] * MOST, *["saved"] * MOST),
    *("saved_slots", "saved_values", "saved_arrays", "mask", "priorities", "handles_given", "scratch", "scratch_size"),
    *("batch", "key_at", "key", "words", "beta", "handles", "weights", "probabilities", "tile"),
)
"""The fields of the record that a kernel is called with, of eight bytes each."""
PLACES: Final = {name: FIELDS.index(name) for name in FIELDS}
_Record = ctypes.c_int64 * len(FIELDS)

THREADS, THREADS_OF_ONE = 256, 1024
"""Of a block of many, and of the only one."""
BLOCKS = 1024
"""So many blocks are enough for any GPU, which has up to 150 multiprocessors."""
SHARE = 4096
"""Bytes of an item that the threads of one block read together; of more several blocks."""
MOST_DRAWS = 64
"""Of a block, whose slots its threads share."""


class Launcher(Protocol):
    """Who carries kernels out."""

    def ready(self, device: int) -> bool:
        """Whether kernels can be carried out on a device."""

    def launch(
        self, device: int, name: str, call: ctypes.Array[Any], grid: tuple[int, int], threads: int, done: list[int]
    ) -> None:
        """Have a kernel carried out, after all that was asked for before; at once put 0 into `done`."""


class SavedRows(NamedTuple):
    """What was in some slots before a kernel overwrote them; see `versions.memory.Saved`.

    Attributes:
        slots: int32 [n]; equal ones have equal content, also of those that were not overwritten.
        values: float32 [n], the tree's leaves, or None.
        rows: of each array of items that is written, [n, *shape].
        done: 0 once the kernel was launched: before that nothing is saved, and nothing written.
    """

    slots: torch.Tensor
    values: torch.Tensor | None
    rows: tuple[torch.Tensor, ...]
    done: list[int]

    @property
    def nbytes(self) -> int:
        """Of all that was saved, and of what it takes to keep it."""
        tensors = [self.slots, *self.rows, *([] if self.values is None else [self.values])]
        return sum([x.nbytes + OVERHEAD for x in tensors])

    @property
    def has_leaves_alone(self) -> bool:
        """If priorities were saved."""
        return self.values is not None

    def writes(self, memory: Any) -> Sequence[Entry]:
        """Of rows, of wide arrays, and of the tree's leaves."""
        if 0 not in self.done:
            return []
        names = stored_arrays.named(memory.rows, memory.wide)
        found = [Entry(name, False, self.slots, rows) for name, rows in zip(names, self.rows, strict=False)]
        if self.values is not None:
            found.append(Entry(TREE, True, self.slots, self.values))
        return found


class Kernels:
    """The kernels for memory on one kind of device.

    Args:
        launcher: who carries them out.
        device_type: torch's name of the kind.
    """

    def __init__(self, launcher: Launcher, device_type: str = "cuda") -> None:
        """Take them; nothing is compiled yet."""
        self._launcher, self._device_type = launcher, device_type

    def take(self, memory: Memory, spec: BufferSpec) -> bool:
        """Whether they can work on a memory: of a usual buffer, whole, of torch's own and in one piece."""
        if not spec.known.buffer or spec.plan.objects or len(spec.plan.layout.leaves) > MOST:
            return False
        if memory.on_gpu is None:
            arrays = [memory.rows, *memory.wide, *([] if memory.tree is None else [memory.tree])]
            there = all(x.device.type == self._device_type and memory.is_plain_array(x) for x in arrays)
            fits = memory.fits and len(arrays) <= MOST and there
            memory.on_gpu = fits and self._launcher.ready(memory.rows.device.index or 0)
        return memory.on_gpu

    def room(self, memory: Memory, n: int, rows: bool) -> SavedRows:
        """Room to save so many slots in, with or without their items."""
        with modes.outside_inference():
            like = memory.rows
            slots = torch.empty(n, dtype=torch.int32, device=like.device)
            values = None if memory.tree is None else torch.empty(n, dtype=torch.float32, device=like.device)
            arrays = (like, *memory.wide) if rows else ()
            return SavedRows(slots, values, tuple([x.new_empty((n, *x.shape[1:])) for x in arrays]), [])

    def add(
        self,
        memory: Memory,
        spec: BufferSpec,
        counters: torch.Tensor,
        leaves: Sequence[torch.Tensor],
        batch: int,
        mask: torch.Tensor | None,
        priorities: torch.Tensor | None,
        saved: SavedRows | None,
    ) -> torch.Tensor:
        """Write a batch; returns the new counters."""
        places = min(batch, spec.capacity)
        after, call = self._begun(memory, spec, counters, batch, saved)
        _set_all(call, "leaves", leaves)
        tile = -(-places // BLOCKS)
        _set(call, priorities=_at(priorities), tile=tile, scratch_size=places)
        if mask is not None:
            scratch = counters.new_empty(places + 1)
            _set(call, mask=mask.data_ptr(), scratch=scratch.data_ptr())
            self._launch(memory, "rank", call, (1, 1), THREADS_OF_ONE, [])
        self._launch(memory, "add", call, (1 + -(-places // tile), 1), THREADS, [] if saved is None else saved.done)
        return after

    def update(
        self,
        memory: Memory,
        spec: BufferSpec,
        counters: torch.Tensor,
        handles: torch.Tensor,
        priorities: torch.Tensor,
        saved: SavedRows | None,
    ) -> torch.Tensor:
        """Set priorities by handles; returns the new counters."""
        batch = handles.shape[0]
        after, call = self._begun(memory, spec, counters, batch, saved)
        size = 1 << (2 * batch).bit_length()
        scratch = counters.new_empty(2 * batch + 2 * size)
        _set(call, handles_given=handles.data_ptr(), priorities=priorities.data_ptr())
        _set(call, scratch=scratch.data_ptr(), scratch_size=size)
        self._launch(memory, "update", call, (1, 1), THREADS_OF_ONE, [] if saved is None else saved.done)
        return after

    def draw(
        self, memory: Memory, spec: BufferSpec, counters: torch.Tensor, key: torch.Tensor, batch: int, beta: float
    ) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw items: leaves, and their handles, weights and probabilities."""
        call = self._named(memory, spec, counters)
        device = memory.rows.device
        drawn = [
            torch.empty((batch, *leaf.shape), dtype=ops.DTYPES[leaf.dtype], device=device)
            for leaf in spec.plan.layout.leaves
        ]
        handles = torch.empty(batch, dtype=torch.int32, device=device)
        weights, probabilities = (torch.empty(batch, dtype=torch.float32, device=device) for _ in range(2))
        _set_all(call, "leaves", drawn)
        if key.device == device and self._device_type != "cpu":
            _set(call, key_at=key.data_ptr())
        else:
            _set(call, key=int(key))
        tile = min(-(-batch // BLOCKS), MOST_DRAWS)
        lines = min(-(-max([leaf.nbytes for leaf in spec.plan.layout.leaves], default=0) // SHARE), 64) or 1
        _set(call, batch=batch, words=spec.draw_shape(batch)[1], tile=tile, beta=int(np.float32(beta).view(np.int32)))
        _set(call, handles=handles.data_ptr(), weights=weights.data_ptr(), probabilities=probabilities.data_ptr())
        self._launch(memory, "sample", call, (-(-batch // tile), lines), THREADS, [])
        return drawn, handles, weights, probabilities

    def _named(self, memory: Memory, spec: BufferSpec, counters: torch.Tensor) -> Any:
        """A record with what a buffer is, and where."""
        call = _Record()
        plan = _plan(spec, memory.rows.device)
        _set(call, plan=plan.data_ptr(), tree=_at(memory.tree), counters=counters.data_ptr())
        _set_all(call, "storage", (memory.rows, *memory.wide))
        return call

    def _begun(
        self, memory: Memory, spec: BufferSpec, counters: torch.Tensor, batch: int, saved: SavedRows | None
    ) -> tuple[torch.Tensor, Any]:
        """New counters, and a record of what is written and saved."""
        call, after = self._named(memory, spec, counters), torch.empty_like(counters)
        _set(call, new_counters=after.data_ptr(), batch=batch)
        if saved is not None:
            _set(call, saved_slots=saved.slots.data_ptr(), saved_values=_at(saved.values))
            _set(call, saved_arrays=len(saved.rows))
            _set_all(call, "saved", saved.rows)
        memory.written = True
        return after, call

    def _launch(
        self, memory: Memory, name: str, call: Any, grid: tuple[int, int], threads: int, done: list[int]
    ) -> None:
        self._launcher.launch(memory.rows.device.index or 0, name, call, grid, threads, done)


@functools.lru_cache(maxsize=1024)
def _plan(spec: BufferSpec, device: torch.device) -> torch.Tensor:
    """The descriptor of a buffer on a device."""
    with modes.outside_inference():
        return torch.from_numpy(descriptor.encode(spec).copy()).to(device)


def _at(array: torch.Tensor | None) -> int:
    return 0 if array is None else array.data_ptr()


def _set(call: Any, **values: int) -> None:
    for name, value in values.items():
        call[PLACES[name]] = value


def _set_all(call: Any, name: str, arrays: Sequence[torch.Tensor]) -> None:
    first = PLACES[name]
    for k, array in enumerate(arrays):
        call[first + k] = array.data_ptr()
