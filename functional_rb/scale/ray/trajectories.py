"""Where a shard ends trajectories, so that none goes on over steps that are not there, or are another client's."""

from __future__ import annotations

from typing import Any

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core import episodes
from functional_rb.core.draft import Draft
from functional_rb.ops.protocol import Array, Ops
from functional_rb.versions.state import readable


def cut(engine: Any, state: Any) -> State:
    """The same items, where the next step of each lane begins a trajectory; those stored last are truncated.

    Args:
        engine: of the backend, for such states.
        state: of one buffer.
    """
    if state.spec.plan.boundaries is None:
        return state
    counters = engine.look(state, _cut)
    made: State = type(state)(readable(state), counters, state.spec, state._save_history, state._target)
    return made


def _cut(ops: Ops, state: Any, spec: BufferSpec) -> Array:
    draft = Draft.of(state, spec.plan)
    episodes.clear(ops, draft)
    return draft.finish(ops).counters
