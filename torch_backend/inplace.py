"""The in-place forms on torch, see `functional_rb.buffer.in_place`; and `own_`.

Nothing is saved for older states, and the functions trace under `torch.compile(fullgraph=True)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from functional_rb.buffer.state import State as CoreState
from functional_rb.samplers import Selection
from functional_rb.versions.recorder import Log
from functional_rb.versions.version import Memory, Version, forget_dead, part_with_older, take_back
from torch_backend import execute, random
from torch_backend.state import State, readable


def own_(state: State) -> State:
    """Make a state the only owner of its memory, at the price of a copy where it is not yet.

    The in-place functions do this themselves, except while `torch.compile` traces them: there a state whose memory
    older states still need is an error.

    Args:
        state: consumed.

    Returns:
        The same value.

    Example:
        >>> older = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> state = rb.add(older, (1.0,))
        >>> state = rb.own_(state)
        >>> int(rb.size(older)), int(rb.size(state))
        (0, 1)
    """
    execute.check_state(state, "own_")
    return _followed_by(state, _owner(state), state._counters)


def add_(
    state: CoreState,
    leaves: Sequence[torch.Tensor],
    batch: int,
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
    key: torch.Tensor | None,
) -> State:
    """Write a batch."""
    state = execute.own_state(state, "add_")
    counters = state._counters
    version, memory = _take_over(state, "add_")
    leaves, mask, priorities = execute.place_add(state.spec, memory, leaves, batch, mask, priorities, key)
    if batch:
        memory.placement.make_room(memory, counters, batch)
        write = execute.write_objects if state.spec.plan.objects else execute.write
        counters = write(state.spec, memory, counters, leaves, batch, mask, priorities, key)
    return _followed_by(state, version, counters, batch)


def sample_(state: CoreState, key: torch.Tensor, batch: int, beta: Any) -> tuple[State, list[torch.Tensor], Selection]:
    """Draw items."""
    state = execute.own_state(state, "sample_")
    random.check_key(key)
    spec, version, counters = state.spec, readable(state), state._counters
    if spec.sampler.remembers and batch:
        version, memory = _take_over(state, "sample_")
        # Transforms call functions of the user's, which may fail.
        saved = Log() if spec.transforms and not torch.compiler.is_compiling() else None
        try:
            counters, leaves, selection = execute.draw(spec, memory, counters, key, batch, beta, saved)
        except Exception:
            if saved is not None:
                take_back(memory, [saved], spec.capacity)
            raise
    else:
        _, leaves, selection = execute.sample(state, key, batch, beta)
    # Consumed only now: where nothing can be drawn, that is an error, and nothing has changed.
    return _followed_by(state, version, counters), leaves, selection


def update_(
    state: CoreState,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, torch.Tensor],
) -> State:
    """Set priorities and rewrite leaves."""
    state = execute.own_state(state, "update_")
    version, memory = _take_over(state, "update_")
    handles, priorities, replacements = execute.place_update(state.spec, memory, handles, priorities, replacements)
    if replacements:
        memory.placement.make_room_at(memory, handles)
    rewrite = execute.rewrite_objects if state.spec.plan.objects else execute.rewrite
    counters = rewrite(state.spec, memory, state._counters, handles, priorities, replacements)
    return _followed_by(state, version, counters, rewritten=bool(replacements))


def clear_(state: CoreState) -> State:
    """Take all items out."""
    state = execute.own_state(state, "clear_")
    version, memory = _take_over(state, "clear_")
    counters = execute.clear_in_place(state.spec, memory, state._counters)
    return _followed_by(state, version, counters, rewritten=bool(state.spec.plan.objects))


def _take_over(state: State, function: str) -> tuple[Version, Memory]:
    """A version of the state's value that alone owns its memory, and that memory."""
    if not torch.compiler.is_compiling():
        version = _owner(state)
        return version, version.own()
    version = readable(state)
    memory = version.memory
    if memory is None or memory.pinned or memory.shared:
        raise ValueError(
            f"{function}: under torch.compile the state must be the only owner of its memory, but older states "
            f"or arrays given out still need it; call state = rb.own_(state) before the compiled function"
        )
    return version, memory


def _owner(state: State) -> Version:
    """The state's version, or one with a copy of its memory if that is not its own."""
    version = readable(state)
    if state.spec.plan.objects:
        execute.tidy(version)
    with version.lock:
        memory = version.own()
        forget_dead(memory)
        if memory.files is not None:  # which stay the live ones: the older states get copies
            part_with_older(memory)
        return version.succeed(memory.copy(), None) if memory.pinned or memory.shared else version


def _followed_by(
    state: State, version: Version, counters: torch.Tensor, added: int = 0, rewritten: bool = False
) -> State:
    """The next state, with the given one consumed."""
    past = None
    # What is traced knows nothing of saves: it would be compiled again after each.
    if not torch.compiler.is_compiling() and not rewritten:
        past = execute.after_adding(state, added)
    following = State(version, counters, state.spec, past)
    state._consume()
    return following
