"""The in-place forms, with torch's trailing underscore: they consume the state that they are given.

Nothing is saved for older states, and the functions trace under `torch.compile(fullgraph=True)`.
"""

from __future__ import annotations

from typing import Any

import torch

from functional_rb import api
from functional_rb.counters import with_invalid
from functional_rb.recorder import Log
from functional_rb.state import AnySample
from functional_rb.versions import Memory, Version, forget_dead, part_with_older, take_back
from torch_backend import execute, ops, random
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
    state: State,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: torch.Tensor | None = None,
    validate: bool = False,
    time_major: bool = True,
) -> State:
    """`add`, in place.

    Args:
        state: consumed: using it again raises `RuntimeError`.
        items: as for `add`.
        mask: likewise.
        priorities: likewise.
        key: likewise.
        validate: likewise.
        time_major: likewise.

    Returns:
        The new state.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> state = rb.add_(state, (1.0,))
        >>> int(rb.size(state))
        1
    """
    given = api.check_add(execute, state, items, mask, priorities, key, validate, "add_", time_major)
    leaves, size, mask, priorities, key, outside = given
    counters = state._counters
    version, memory = _take_over(state, "add_")
    leaves, mask, priorities = execute.place_add(state.spec, memory, leaves, size, mask, priorities, key)
    if size:
        memory.place.make_room(memory, counters, size)
        write = execute.write_objects if state.spec.objects else execute.write
        counters = write(state.spec, memory, counters, leaves, size, mask, priorities, key)
    if outside is not None:
        counters = with_invalid(ops, counters, outside)
    return _followed_by(state, version, counters, size)


def sample_(
    state: State, key: torch.Tensor, batch_size: int | None = None, beta: Any = None
) -> tuple[State, AnySample[Any]]:
    """`sample`, in place.

    Args:
        state: consumed, as samplers that remember what they drew will write to it.
        key: as for `sample`.
        batch_size: likewise.
        beta: likewise.

    Returns:
        The new state and the sample.

    Example:
        >>> state = rb.add_(rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2)), (1.0,))
        >>> state, sample = rb.sample_(state, rb.key(0), 3)
        >>> sample.items[0].tolist()
        [1.0, 1.0, 1.0]
    """
    size, beta = api.check_sample(execute, state, batch_size, beta)
    random.check_key(key)
    spec, version, counters = state.spec, readable(state), state._counters
    if spec.sampler.remembers and size:
        version, memory = _take_over(state, "sample_")
        # Transforms call functions of the user's, which may fail.
        saved = Log() if spec.transforms and not torch.compiler.is_compiling() else None
        try:
            counters, leaves, drawn = execute.draw(spec, memory, counters, key, size, beta, saved)
        except Exception:
            if saved is not None:
                take_back(memory, [saved], spec.capacity)
            raise
    else:
        _, leaves, drawn = execute.sample(state, key, size, beta)
    # Consumed only now: where nothing can be drawn, that is an error, and nothing has changed.
    return _followed_by(state, version, counters), api.as_sample(execute, spec, size, leaves, drawn)


def update_(state: State, indices: Any, priorities: Any = None, items: Any = None) -> State:
    """`update`, in place.

    Args:
        state: consumed: using it again raises `RuntimeError`.
        indices: as for `update`.
        priorities: likewise.
        items: likewise.

    Returns:
        The new state.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2, sampler=frb.Prioritized())
        >>> state = rb.add_(rb.init(spec), (1.0,))
        >>> state = rb.update_(state, np.array([0], np.int32), np.array([0.5], np.float32))
        >>> int(rb.stale(state))
        0
    """
    indices, priorities, replacements = api.check_update(execute, state, indices, priorities, items)
    version, memory = _take_over(state, "update_")
    indices, priorities, replacements = execute.place_update(state.spec, memory, indices, priorities, replacements)
    if replacements:
        memory.place.make_room_at(memory, indices)
    rewrite = execute.rewrite_objects if state.spec.objects else execute.rewrite
    counters = rewrite(state.spec, memory, state._counters, indices, priorities, replacements)
    return _followed_by(state, version, counters, rewritten=bool(replacements))


def clear_(state: State) -> State:
    """`clear`, in place.

    Args:
        state: consumed: using it again raises `RuntimeError`.

    Returns:
        The new state.

    Example:
        >>> state = rb.add_(rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2)), (1.0,))
        >>> state = rb.clear_(state)
        >>> int(rb.size(state))
        0
    """
    api.check_clear(execute, state, "clear_")
    version, memory = _take_over(state, "clear_")
    counters = execute.clear_in_place(state.spec, memory, state._counters)
    return _followed_by(state, version, counters, rewritten=bool(state.spec.objects))


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
    if state.spec.objects:
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
