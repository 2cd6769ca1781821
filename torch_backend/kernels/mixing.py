"""Draws from mixtures on a GPU by launches alone, of buffers of any kind and of mixtures: nobody waits for numbers.

For each mixture a launch shares its rows out, and for each buffer one puts those that it has drawn where they belong.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from functional_rb import _native
from functional_rb.buffer.known import Draws
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing
from functional_rb.mixture.drawing import Carrier, Request, Rows
from functional_rb.mixture.layout import Leaves
from functional_rb.mixture.value import Mixture
from functional_rb.native import descriptor
from functional_rb.structures import sum_tree
from functional_rb.versions.state import readable
from torch_backend.arrays import random
from torch_backend.arrays.convert import number
from torch_backend.engines import execute
from torch_backend.kernels.launches import _in_a_row, launch
from torch_backend.memory.library import TORCH
from torch_backend.memory.state import State

# Of what these draw it is known by the counters, and the root of the tree, whether there is any, and the least chance.
BY_THE_ROOT = frozenset({Draws.ITEMS, Draws.SLICES, Draws.EPOCH, Draws.IN_TURN, Draws.LIMITED})
# Arrays of a sample that a launch can name.
MOST_ARRAYS = _native.GPU_ROOM[0]


class _Shared(NamedTuple):
    # What `share_rows` writes, see `Sharing` in `src/gpu_mixtures.h`.
    status: torch.Tensor
    shares: torch.Tensor
    ids: torch.Tensor | None
    ranks: torch.Tensor | None
    counts: torch.Tensor | None


def draw(carrier: Carrier[State], mixture: Mixture, request: Request) -> Rows[State] | None:
    """What `drawing.draw` gives; None where no launches can do it."""
    states = [state for state in mixture.buffers if isinstance(state, State) and state._target is None]
    if len(states) < len(mixture.buffers):
        return None
    if TORCH.gpus is None or TORCH.chain_now() is None:
        return None
    memories = [memory for state in states if (memory := readable(state).memory) is not None]
    if len(memories) < len(states) or not all(map(TORCH.gpus.has, memories)):
        return None
    # Of buffers none of which was ever written to it is known that nothing can be drawn.
    devices = {memory.rows.device for memory in memories}
    if len(devices) > 1 or not any(state.fullest_after() != 0 for state in states):
        return None
    specs = [state.spec for state in states]
    # Without replacement the chance of an item is that to be among the rows that come, however many a launch draws.
    if any(spec.known.draws is Draws.ARRIVALS for spec in specs):
        return None
    if any(spec.plan.objects or not spec.sampler.heeds_wanted for spec in specs):
        return None
    most = _native.GPU_MIXED
    if any(len(one) > most for one in _mixtures(mixture)):
        return None
    rows: Rows[State] = _Mixing(carrier, request, devices.pop()).rows(
        mixture, request.layout.leaves, request.key, request.layout.size, None, request.p, True
    )
    return rows


def _mixtures(mixture: Mixture) -> Iterator[Mixture]:
    yield mixture
    for node in mixture.states:
        if isinstance(node, Mixture):
            yield from _mixtures(node)


class _Mixing(NamedTuple):
    carrier: Carrier[State]
    request: Request
    device: torch.device

    def rows(
        self,
        mixture: Mixture,
        leaves: Leaves,
        key: torch.Tensor,
        batch: int,
        wanted: torch.Tensor | None,
        p: torch.Tensor | None,
        is_whole: bool,
    ) -> Rows[State]:
        """So many rows of a mixture, of which the first `wanted` count; of the whole one with weights."""
        carrier, layout = self.carrier, self.request.layout
        shared = self.shared_out(mixture, key, p, batch, wanted)
        assert shared.counts is not None
        after: list[State | None] = []
        pieces: list[list[torch.Tensor]] = []
        selections: list[Selection] = []
        keys = random.split(key, len(mixture) + 1)[1:]
        for k, (node, inner) in enumerate(zip(mixture.states, leaves.members, strict=True)):
            if isinstance(node, Mixture):
                drawn = self.rows(node, inner, keys[k], batch, shared.counts[k], None, False)
            else:
                drawn = drawing.of_buffer(carrier, layout, inner, node, keys[k], batch, shared.counts[k])
            new, columns, selection = drawn
            after += new
            pieces.append(columns if layout.function else [columns[place] for place in leaves.places[k]])
            selections.append(selection)
        return after, *self.placed(mixture, shared, pieces, selections, is_whole)

    def shared_out(
        self,
        mixture: Mixture,
        key: torch.Tensor,
        p: torch.Tensor | None,
        batch: int,
        wanted: torch.Tensor | None,
        looks: bool = False,
    ) -> _Shared:
        """How a mixture's rows are shared out; only what a mixture around it has to know, if that looks."""
        count, spec = len(mixture), mixture.spec
        shares = mixture.p if p is None else p
        listed = (spec.p or ()) if shares is None else None
        if isinstance(shares, torch.Tensor) and shares.device.type == "cpu":
            listed, shares = tuple(shares.tolist()), None
        if shares is not None:
            shares = shares.to(self.device, torch.float32).contiguous()
        record = descriptor.encode_mixture(spec, count, batch, listed, False)
        numbers = np.array([batch, *(_words(key) if key.device.type == "cpu" else (0, 0))], np.int32)
        operands = [wanted, shares, None if key.device.type == "cpu" else key]
        status, of_each = (torch.empty(n, dtype=torch.float32, device=self.device) for n in (3, 2 * count))
        ids, ranks, counts = (
            None if looks else torch.empty(n, dtype=torch.int32, device=self.device) for n in (batch, batch, count)
        )
        locks = {id(lock): lock for one in mixture.states if isinstance(one, State) for lock in [readable(one).lock]}
        inner = [
            self.shared_out(node, key, None, batch, None, True).status if isinstance(node, Mixture) else None
            for node in mixture.states
        ]
        with contextlib.ExitStack() as held:
            for _, lock in sorted(locks.items()):  # as another mixture may have the same buffers in another order
                held.enter_context(lock)
            for node, status_of_it in zip(mixture.states, inner, strict=True):
                operands += self.known(node) if isinstance(node, State) else [None, status_of_it, None]
            launch("share_rows", [record, numbers], operands, [status, of_each, ids, ranks, counts])
        return _Shared(status, of_each, ids, ranks, counts)

    def known(self, state: State) -> list[torch.Tensor | None]:
        """A buffer's counters, and the rows of its tree that tell what there is to draw; else a `drawing.Status`."""
        spec, tree = state.spec, readable(state).own().tree
        if spec.known.draws not in BY_THE_ROOT or spec.sampler.compares_versions:
            return [None, execute.look(state, drawing.status), None]
        if tree is None:
            return [state.counters, None, None]
        top = sum_tree.geometry(spec.capacity).levels[-1]
        return [state.counters, tree[top.sums], tree[top.smallest] if spec.sampler.has_priorities else None]

    def placed(
        self,
        mixture: Mixture,
        shared: _Shared,
        pieces: Sequence[Sequence[torch.Tensor]],
        selections: Sequence[Selection],
        is_whole: bool,
    ) -> tuple[list[torch.Tensor], Selection]:
        """The rows of all buffers in the order of the batch; of the whole mixture with weights in place of chances."""
        beta, columns = self.request.beta, mixture.depth + 1
        flags, extras = drawing.columns_of(selections)
        arrays = [*flags.values(), *zip(*pieces, strict=True), *extras.values()]  # of each one for each buffer
        batch, *steps, _ = selections[0].handles.shape
        merged = [torch.empty_like(of_each[0], memory_format=torch.contiguous_format) for of_each in arrays]
        handles = torch.empty((batch, *steps, columns), dtype=torch.int32, device=self.device)
        weights, probabilities = (torch.empty(batch, dtype=torch.float32, device=self.device) for _ in range(2))
        known = beta if isinstance(beta, (int, float)) else 0.0
        numbers = np.array([batch, np.float32(known).view(np.int32)], np.int32)
        exponent = number(beta, self.device) if isinstance(beta, torch.Tensor) else None
        for k, (node, selection) in enumerate(zip(mixture.states, selections, strict=True)):
            inner, sources = isinstance(node, Mixture), [of_each[k] for of_each in arrays]
            settings = {
                "number": k,
                "columns": selection.handles.shape[-1],
                "columns_of_all": columns,
                "steps": math.prod(steps),
                "has_chances": isinstance(node, Mixture) or node.spec.sampler.single_law,
                "tells_weights": is_whole,
                "weighs": beta is not None,
            }
            tables = shared.ids, shared.ranks, shared.counts, shared.shares, shared.status
            drawn = selection.handles, selection.probabilities, selection.weights if inner else None
            for first in range(0, len(arrays), MOST_ARRAYS):  # flags are among the first of them
                some, to = sources[first : first + MOST_ARRAYS], merged[first : first + MOST_ARRAYS]
                record = descriptor.encode_places(
                    settings | {"flags": 0 if first else len(flags)},
                    [math.prod(x.shape[1:]) * x.element_size() for x in some],
                )
                operands = [_in_a_row(x) for x in (*tables, *drawn, exponent, *some)]
                launch("place_rows", [record, numbers], operands, [handles, probabilities, weights, *to])
        named = dict(zip(flags, merged, strict=False))
        leaves = merged[len(flags) : len(merged) - len(extras)]
        others = dict(zip(extras, merged[len(merged) - len(extras) :], strict=True))
        return leaves, Selection(handles, weights, probabilities, **named, extras=others)


def _words(key: torch.Tensor) -> list[int]:
    # The upper and the lower half of its 64 bits.
    return key.reshape(1).view(torch.int32).tolist()[::-1]
