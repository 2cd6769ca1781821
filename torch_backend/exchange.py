"""What processes of a group tell each other of a sharded buffer, in as few collectives as there can be.

Whatever is told comes with a mark, a number made of the counters of the teller's index: where processes have not called
the same functions they differ, and that is an error in all of them rather than wrong items in one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from functional_rb.scale import rows
from torch_backend import compat, ops
from torch_backend.sharded_state import ShardedState

Tensors = list[torch.Tensor]


def gathered(state: ShardedState, tensors: Tensors) -> Tensors:
    """Tensors [n, *shape] of each process as those of all, [D, n, *shape]: one collective."""
    layout = rows.layout_of(tensors)
    words = rows.packed(ops, layout, tensors)
    mark = _mark(state, words.shape[1])
    told = torch.cat([mark, words])
    shards = state.dealing.shards
    found = told.new_empty((shards * len(told), told.shape[1]))
    compat.all_gather_single(found, told, state.group)
    found = found.reshape(shards, *told.shape)
    _check_marks(state, found[:, 0], mark)
    n = len(tensors[0])
    flat = rows.unpacked(ops, layout, found[:, 1:].reshape(-1, words.shape[1]))
    return [x.reshape(shards, n, *x.shape[1:]) for x in flat]


def exchanged(state: ShardedState, tensors: Tensors, wanted: torch.Tensor, owners: torch.Tensor) -> Tensors:
    """What each process asked for, of rows that others have read.

    Args:
        state: of the buffer.
        tensors: [m, *shape], the rows that this process has, in the order in which they are asked for.
        wanted: int64 [m], which process each goes to, ascending.
        owners: int64 [n], who has each row that this process asks for, -1 for nobody.

    Returns:
        [n, *shape], zeros where nobody has it: one collective of as many rows as there are, and a mark for each pair.
    """
    layout = rows.layout_of(tensors)
    words = rows.packed(ops, layout, tensors)
    shards, width = state.dealing.shards, words.shape[1]
    sent = torch.bincount(wanted, minlength=shards)
    received = torch.bincount(owners[owners >= 0], minlength=shards)
    mark = _mark(state, width)
    told = _with_marks(mark, words, sent)
    found = told.new_empty((len(owners[owners >= 0]) + shards, width))
    dist.all_to_all_single(found, told, (received + 1).tolist(), (sent + 1).tolist(), group=state.group)
    marks = _places_of_marks(received)
    _check_marks(state, found[marks], mark)
    is_row = torch.ones(len(found), dtype=torch.bool, device=found.device)
    is_row[marks] = False
    asked = torch.nonzero(owners >= 0)[:, 0]
    by_owner = asked[torch.sort(owners[asked], stable=True).indices]
    made = found.new_zeros((len(owners), width))
    made[by_owner] = found[is_row]
    return rows.unpacked(ops, layout, made)


def _places_of_marks(counts: torch.Tensor) -> torch.Tensor:
    """Where the marks are, one before the rows of each process, of which there are so many."""
    return torch.cumsum(counts + 1, 0) - (counts + 1)


def _with_marks(mark: torch.Tensor, words: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Rows with a mark before those for each process."""
    made = mark.expand(len(words) + len(counts), -1).clone()
    is_row = torch.ones(len(made), dtype=torch.bool, device=made.device)
    is_row[_places_of_marks(counts)] = False
    made[is_row] = words
    return made


def _mark(state: ShardedState, width: int) -> torch.Tensor:
    """What all processes must agree on, as a row int32 [1, width]: a number of the index's counters."""
    counters = state.index.counters.to(torch.int64)
    place = torch.arange(1, len(counters) + 1, device=counters.device)
    number = (counters * (place * 2654435761 % 2**31)).sum() % (2**31 - 1)
    return number.to(torch.int32).expand(1, width)


def _check_marks(state: ShardedState, marks: torch.Tensor, own: torch.Tensor) -> None:
    if not bool((marks == own).all()):
        others = [k for k, mark in enumerate(marks) if not torch.equal(mark, own[0])]
        raise RuntimeError(
            f"a sharded buffer: this process (rank {state.rank}) and ranks {others} have written different numbers of "
            f"steps or priorities; all processes must call the same functions in the same order, with as many steps, "
            f"and begin again from a checkpoint or rb.init"
        )
