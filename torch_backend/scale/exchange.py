"""What processes of a group tell each other of a sharded buffer, in as few collectives as there can be.

Whatever is told comes with a mark, a number made of the counters of the teller's index: where processes have not called
the same functions they differ, and that is an error in all of them rather than wrong items in one.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
import torch.distributed as dist

from functional_rb.native.switch import switch
from functional_rb.ops.part_kernels import NONE, Table, carried_out
from functional_rb.sharding import rows
from functional_rb.sharding.shares import Exchange
from functional_rb.structures import row_layout
from torch_backend import compat
from torch_backend.arrays import ops
from torch_backend.memory.library import HAVE_KERNELS, TORCH
from torch_backend.scale.state import ShardedState

Tensors = list[torch.Tensor]


def gathered(state: ShardedState, tensors: Tensors, alike: bytes = b"") -> Tensors:
    """Tensors [n, *shape] of each process as those of all, [D, n, *shape]: one collective.

    All have to give the same bytes, `alike`, and are told where they have not.
    """
    layout = rows.layout_of(tensors)
    words, mark = _packed(layout, tensors), _mark(state, alike)
    sent = _behind_mark(mark, words)
    shards = state.dealing.shards
    received = sent.new_empty((shards * len(sent), sent.shape[1]))
    compat.all_gather_single(received, sent, state.talking())
    received = received.reshape(shards, *sent.shape)
    _check_marks(state, received[:, 0], mark)
    n = len(tensors[0])
    flat = rows.unpacked(ops.OPS, layout, received[:, 1:].reshape(-1, words.shape[1]))
    return [x.reshape(shards, n, *x.shape[1:]) for x in flat]


def exchanged(state: ShardedState, tensors: Tensors, exchange: Exchange) -> Tensors:
    """A process's share [n, *shape] of a batch of which each has some rows: one collective.

    A mark goes with the rows of each pair of processes. Zeros stand where nobody has a row.
    """
    layout = rows.layout_of(tensors)
    words, mark = _packed(layout, tensors), _mark(state)
    sent = ops.take(_behind_mark(mark, words), on_device_of(words, exchange.outgoing))
    received = sent.new_empty((sum(exchange.received) + 1, sent.shape[1]))
    # A row that nobody has is read from the last row.
    received[-1] = 0
    dist.all_to_all_single(received[:-1], sent, exchange.received, exchange.sent, group=state.talking())
    _check_marks(state, ops.take(received, on_device_of(words, exchange.marks)), mark)
    places = on_device_of(words, exchange.places)
    read: Tensors = carried_out(_kernels(words), row_layout.read, ops, layout, received, (), places)
    return read


def on_device_of(tensor: torch.Tensor, array: np.ndarray) -> torch.Tensor:
    """What was counted on the host, where a tensor is."""
    return torch.from_numpy(array).to(tensor.device)


def _packed(layout: row_layout.Layout, tensors: Tensors) -> torch.Tensor:
    packed: torch.Tensor = carried_out(_kernels(tensors[0]), rows.packed, ops, layout, tensors)
    return packed


def _kernels(tensor: torch.Tensor) -> Table:
    return TORCH.kernels.TABLE if HAVE_KERNELS and switch.on and tensor.device.type == "cpu" else NONE


# Rows with a mark before the first one.
def _behind_mark(mark: int, words: torch.Tensor) -> torch.Tensor:
    return torch.cat([words.new_full((1, words.shape[1]), mark), words])


# The mark that all processes must agree on: a number made of the index's counters.
def _mark(state: ShardedState, alike: bytes = b"") -> int:
    # 31 bits: an int32 that is not negative.
    return zlib.crc32(state.index.counters.cpu().numpy().tobytes() + alike) >> 1


# Refuse to go on where other processes have sent other marks, int32 [D, words].
def _check_marks(state: ShardedState, marks: torch.Tensor, own_mark: int) -> None:
    others = [k for k, mark in enumerate(marks[:, :1].flatten().tolist()) if mark != own_mark]
    if others:
        raise RuntimeError(
            f"a sharded buffer: this process (rank {state.rank}) and ranks {others} have written different numbers of "
            f"steps or priorities, or were given different keys or versions; all processes must call the same "
            f"functions in the same order, with as many steps, the same keys and versions, and begin again from a "
            f"checkpoint or rb.init"
        )
