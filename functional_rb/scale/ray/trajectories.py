"""Where a shard ends trajectories, so that none goes on over steps that are not there, or are another client's."""

from __future__ import annotations

from typing import Any

from functional_rb.buffer import functions


def cut(engine: Any, state: Any) -> Any:
    """The same items, where the next step of each lane begins a trajectory; those stored last are truncated.

    Steps that wait for others to follow, as with `n_step(at="add")`, are stored with the returns over what there is.

    Args:
        engine: of the backend, for such states.
        state: of one buffer.
    """
    plan, waits = state.spec.plan, any(transform.carried() for transform in state.spec.inner)
    if plan.boundaries is None and not waits:
        return state
    return engine.write_by(state, functions.cut, rows=plan.ring.lanes if waits else 0)
