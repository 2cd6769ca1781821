"""What samplers keep that give windows once while they are new, before any others (the online queue of DreamerV3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base.arrays import BackendArray
from functional_rb.core import soundness
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.strategy import Selection
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import fresh_windows, row_layout
from functional_rb.structures.episode_windows import Lanes
from functional_rb.structures.fresh_windows import MOST, Windows

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Write

# int32 [capacity], how many windows of its lane were complete with the step in each slot.
WINDOWS = "windows"
# Counters int32 [lanes]: how many windows are complete, and how many of these were given, or lost.
COMPLETED, GIVEN = "completed", "given"


def auxiliary(plan: Plan) -> dict[str, AuxiliaryArray]:
    """The array that is kept, by its name."""
    return {WINDOWS: AuxiliaryArray((plan.capacity,))}


def counters(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The numbers that are kept, by their names."""
    return (COMPLETED, plan.ring.lanes), (GIVEN, plan.ring.lanes)


def check(plan: Plan, length: int, who: str) -> None:
    """Refuse lanes of more windows than are counted."""
    if plan.ring.length // length >= MOST:
        raise ValueError(
            f"{who}: fresh_first: a lane of {plan.ring.length} steps has {plan.ring.length // length} windows, and "
            f"fewer than 2^30 are counted; use more lanes, or a smaller BufferSpec.capacity"
        )


def note(ops: Ops, draft: Draft, write: Write, length: int) -> None:
    """Count what new steps complete, now that their places in their episodes are known."""
    ring, in_episode = draft.plan.ring, draft.auxiliary[STEP_IN_EPISODE]
    n = write.slots.shape[0] // ring.lanes
    _keep(draft, fresh_windows.note(ops, length, Lanes(ring, write.after), in_episode, _of(draft), write.written, n))


def take(ops: Ops, draft: Draft, length: int, batch: int) -> tuple[Array, Array]:
    """The first steps of the oldest windows that were not given, which are given now: slots, and which there are."""
    lanes, in_episode = Lanes(draft.plan.ring, draft.counters.ends), draft.auxiliary[STEP_IN_EPISODE]
    starts, live, windows = fresh_windows.take_oldest(ops, length, lanes, in_episode, _of(draft), batch, draft.wanted)
    _keep(draft, windows)
    return starts, live


def peek(ops: Ops, draft: Draft, length: int) -> tuple[Array, Array]:
    """The first step of the window that is given next, int32 [1], and whether there is one, bool [1]."""
    lanes, in_episode = Lanes(draft.plan.ring, draft.counters.ends), draft.auxiliary[STEP_IN_EPISODE]
    starts, live, _ = fresh_windows.take_oldest(ops, length, lanes, in_episode, _of(draft), 1)
    return starts, live


def forget(draft: Draft) -> None:
    """Let no window be left to be given."""
    draft.count(given=draft.counters.more[COMPLETED])


def given(ops: Ops, draft: Draft, slots: Array, length: int) -> Array:
    """Which steps in slots int32 [n] lie at or before the end of a window that was given, or lost; bool [n]."""
    windows, in_episode = _of(draft), draft.auxiliary[STEP_IN_EPISODE]
    lanes = Lanes(draft.plan.ring, draft.counters.ends)
    lane = slots // draft.plan.ring.length
    complete = ops.cast(fresh_windows.completes(ops, length, in_episode, slots), "int32")
    later = (ops.take(windows.completed, lane) - ops.take(windows.numbers, slots)) & (MOST - 1)  # than with the step
    return later + complete > ops.take(fresh_windows.waiting(ops, length, lanes, in_episode, windows), lane)


def carry(ops: Ops, draft: Draft, write: Write, known: Array | None, length: int) -> None:
    """Take over which steps lie before what is to be given, bool [rows of the batch]: what they complete was given."""
    if known is None:
        return
    marked = row_layout.pick(ops, known, write.source, write.slots.shape[0])
    if write.live is not None:
        marked = marked & write.live
    complete = fresh_windows.completes(ops, length, draft.auxiliary[STEP_IN_EPISODE], write.slots)
    before = draft.counters.more[GIVEN]
    numbers = ops.add_at(before, write.slots // draft.plan.ring.length, ops.cast(marked & complete, "int32"))
    draft.count(given=numbers % MOST)


Drawn = tuple[Array, Selection]


def merged(ops: Ops, live: Array, fresh: Drawn, usual: Drawn, length: int) -> Drawn:
    """What was drawn, with windows [S, length] from the one where they are live, bool [S], and else from the other."""
    steps = live[:, None] & (ops.arange(length, like=fresh[0]) >= 0)[None, :]
    slots = ops.where(steps.reshape(-1), fresh[0], usual[0])

    def chosen(one: Array, other: Array) -> Array:
        return ops.where(live if one.shape == live.shape else steps.reshape(one.shape), one, other)

    told = "handles", "weights", "probabilities", "mask", "is_first", "is_last", "truncated"
    fields: dict[str, BackendArray] = {name: chosen(getattr(fresh[1], name), getattr(usual[1], name)) for name in told}
    return slots, usual[1]._replace(**fields)


def problem(contents: Found, length: int) -> str | None:
    """Why these cannot be of such a buffer; or None: numbers count up from step to step."""
    plan, numbers = contents.plan, contents.auxiliary[WINDOWS].astype(np.int64)
    completed, given = (np.asarray(contents.numbers.more[name], np.int64) for name in (COMPLETED, GIVEN))
    for name, found in ((WINDOWS, numbers), (COMPLETED, completed), (GIVEN, given)):
        if out_of_range := soundness.problem_of_range(name, found, 0, MOST - 1):
            return out_of_range
    slots = np.arange(plan.capacity)
    slots = slots[soundness.is_stored(contents, slots)]
    lane, place = np.divmod(slots, plan.ring.length)
    following = lane * plan.ring.length + (place + 1) % plan.ring.length
    newest = following == lane * plan.ring.length + contents.numbers.ends.cursors[lane] % plan.ring.length
    ends = contents.auxiliary[STEP_IN_EPISODE][following] % length == length - 1
    expected = np.where(newest, completed[lane], (numbers[following] - ends) % MOST)
    wrong = np.flatnonzero(numbers[slots] != expected)
    if not wrong.size:
        return None
    return f"{WINDOWS} of slot {slots[wrong[0]]}: expected {expected[wrong[0]]}, found {numbers[slots[wrong[0]]]}"


def _of(draft: Draft) -> Windows:
    more = draft.counters.more
    return Windows(draft.auxiliary[WINDOWS], more[COMPLETED], more[GIVEN])


def _keep(draft: Draft, windows: Windows) -> None:
    draft.auxiliary[WINDOWS] = windows.numbers
    draft.count(completed=windows.completed, given=windows.given)
