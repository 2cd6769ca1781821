"""What is sent from the CPU's memory to a GPU: side by side in pinned memory, out of which one copy takes all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from functional_rb.base.arrays import BackendArray
from functional_rb.ops.part_kernels import NONE, carried_out
from functional_rb.structures import frame_ring
from functional_rb.structures.frame_ring import Chain

# Bytes between whose multiples tensors begin, as torch's allocator has it.
LINE: Final = 256
# Kinds of devices to which copies go from pinned memory.
PINS: Final = {"cuda"}
# Bytes from which on several threads share the work. One core fills 7 MB in 0.23 ms: to wake another costs more.
LARGE: Final = 2**24


class Room(list[torch.Tensor]):
    """Tensors to be filled that lie side by side in pinned memory, out of which one copy takes all to a GPU.

    Args:
        kinds: a shape and a dtype for each.

    Attributes:
        by_bits: whether rows are to be drawn to them by random bits rather than a key, as several threads can.
    """

    def __init__(self, kinds: Sequence[tuple[Sequence[int], torch.dtype]]) -> None:
        self._kinds, self._begins, size = kinds, list[int](), 0
        for shape, dtype in kinds:
            self._begins.append(size)
            size += -(-math.prod(shape) * dtype.itemsize // LINE) * LINE
        self._piece = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.by_bits = size >= LARGE and torch.get_num_threads() > 1
        super().__init__(self._in(self._piece))

    def shipped(self, device: torch.device) -> list[torch.Tensor]:
        """The tensors on a device: nobody waits, and the memory may be let go at once, see `shipped`."""
        return self._in(self._piece.to(device, non_blocking=True))

    def _in(self, piece: torch.Tensor) -> list[torch.Tensor]:
        return [
            part(piece, begin, dtype, shape) for begin, (shape, dtype) in zip(self._begins, self._kinds, strict=True)
        ]


def shipped(values: Sequence[BackendArray], device: torch.device) -> list[object]:
    """Tensors on a device, the others on their way to it: whoever uses torch's current stream there finds them whole.

    What is no tensor stays as it is. Nobody waits: the copy is asynchronous, and torch keeps the pinned memory, which
    may be let go at once, until it is done.
    """
    places = [k for k, x in enumerate(values) if isinstance(x, torch.Tensor) and x.device.type == "cpu"]
    under_way = dict[int, torch.Tensor]()
    if places and device.type in PINS:
        under_way = dict(zip(places, _copied([values[k] for k in places], device), strict=True))
    return [
        x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x
        for x in (under_way.get(k, x) for k, x in enumerate(values))
    ]


def _copied(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    room = Room([(x.shape, x.dtype) for x in tensors])
    for there, x in zip(room, tensors, strict=True):
        there.copy_(x)
    return room.shipped(device)


def stacked_there(
    device: torch.device,
    ops: Any,
    chain: Chain,
    auxiliary: Mapping[str, torch.Tensor],
    chosen: tuple[int, ...],
    batches: Sequence[torch.Tensor],
) -> list[dict[int, Any]]:
    """What `frame_ring.gathered` gives, on a device: each frame is sent once, however many stacks have it.

    Of two stacks of four frames, an observation and the next one, that are five in place of eight.
    """
    frames, place = torch.unique(torch.cat(list(batches)), return_inverse=True)
    wide = [chain.layout.leaves[k].wide for k in chosen]
    names = sorted({frame_ring.ROWS if k is None else frame_ring.WIDE.format(k) for k in wide})
    arrays = [auxiliary[name] for name in names]
    room = Room([((len(frames), *x.shape[1:]), x.dtype) for x in arrays] + [(place.shape, torch.int32)])
    for pinned, x in zip(room, arrays, strict=False):
        torch.index_select(x, 0, frames, out=pinned)
    room[-1].copy_(place)
    *sent, place = room.shipped(device)
    nothing = auxiliary[frame_ring.ROWS].new_empty((len(frames), chain.layout.row_words), device=device)
    there = {**auxiliary, frame_ring.ROWS: nothing, **dict(zip(names, sent, strict=True))}
    places = place.split([len(x) for x in batches])
    return carried_out(NONE, frame_ring.gathered, ops, chain, there, chosen, places)


def part(piece: torch.Tensor, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of a dtype and a shape in a piece of bytes, from one of them on."""
    return piece[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
