"""The public conformance suite passes the library's strategies, and rejects broken ones, saying why."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import functional_rb as frb
from functional_rb.core.strategy import Transform
from functional_rb.samplers.base import SamplerBase
from functional_rb.structures import ring
from functional_rb.testing import ConformanceError, check_sampler, check_transform, check_writer
from functional_rb.writers.base import ChoosingWriter, WriterBase
from tests.support.children import program
from tests.support.members import MEMBERS

ROOT = Path(__file__).parents[2]
ON = ["numpy"]


@pytest.mark.parametrize("name", ["recency", "prioritized, with a limit", "queue of windows", "slices, prioritized"])
def test_samplers_of_the_library_pass(name: str) -> None:
    member = MEMBERS[name]
    check_sampler(member.sampler, lanes=member.lanes, run_on=["numpy", "torch-core", "torch"], examples=5)


def test_each_carrier_is_tried() -> None:
    check_sampler(frb.Uniform(), law=lambda steps: [1.0] * len(steps), examples=2)


@pytest.mark.parametrize("writer", [frb.StopWhenFull(), frb.Reservoir(), frb.MaxValue("reward")], ids=str)
def test_writers_of_the_library_pass(writer: Any) -> None:
    check_writer(writer, run_on=["numpy", "torch-core", "torch"], examples=5)


def test_a_law_of_a_writer_is_of_what_came_since_an_update() -> None:
    check_writer(frb.RoundRobin(), law=lambda added: added[-6:], run_on=ON, examples=20)


@pytest.mark.parametrize("at", ["sample", "add"])
def test_transforms_of_the_library_pass(at: Any) -> None:
    check_transform(frb.n_step(2, 0.5, next_keys=[], at=at), run_on=["numpy", "torch-core", "torch"], examples=5)


# --- broken samplers -------------------------------------------------------------------------------------------------


class Melting(frb.Uniform):
    """No frozen dataclass: its field is not one."""

    def __init__(self) -> None:
        object.__setattr__(self, "max_times_sampled", [])


@dataclasses.dataclass(frozen=True)
class Stale(frb.Uniform):
    """Draws from all slots, whether anything lies there or not."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        _, selection = super().draw(ops, draft, draws, beta, batch)
        slots = draws[:, 0] % draft.plan.capacity
        handles = ops.where(selection.handles >= 0, draft.handles_of(ops, slots), selection.handles)
        return slots, selection._replace(handles=handles)


@dataclasses.dataclass(frozen=True)
class Elsewhere(frb.Uniform):
    """Names the item beside that which it reads."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        slots, selection = super().draw(ops, draft, draws, beta, batch)
        return (slots + 1) % draft.plan.capacity, selection


@dataclasses.dataclass(frozen=True)
class Biased(frb.Uniform):
    """Prefers older items, and says that it does not."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        lower = ops.minimum(draws[:, :1], draws[:, 1:])
        return super().draw(ops, draft, ops.concat([lower, draws[:, 1:]], 1), beta, batch)


@dataclasses.dataclass(frozen=True)
class Heavy(frb.Uniform):
    """Gives weights above 1."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        slots, selection = super().draw(ops, draft, draws, beta, batch)
        return slots, selection._replace(weights=selection.weights * 2)


@dataclasses.dataclass(frozen=True)
class Wide(frb.Uniform):
    """Tells handles as int64."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        slots, selection = super().draw(ops, draft, draws, beta, batch)
        return slots, selection._replace(handles=ops.cast(selection.handles, "int64"))


@dataclasses.dataclass(frozen=True)
class Secret(frb.Prioritized):
    """Changes its tree as it draws, and says that it remembers nothing."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        slots, selection = super().draw(ops, draft, draws, beta, batch)
        draft.tree = ops.full_like(draft.tree, 0)
        return slots, selection


@dataclasses.dataclass(frozen=True)
class Scribbling(frb.Prioritized):
    """Writes to an array."""

    def added(self, ops: Any, draft: Any, write: Any, leaves: Any, priorities: Any) -> None:
        super().added(ops, draft, write, leaves, priorities)
        draft.tree[...] = 1


@dataclasses.dataclass(frozen=True)
class Late(frb.Prioritized):
    """Reads its tree after having written to it, by the array that it had before."""

    def updated(self, ops: Any, draft: Any, batch: Any, priorities: Any) -> None:
        before = draft.tree
        super().updated(ops, draft, batch, priorities)
        draft.tree = draft.tree + (draft.tree - before)


@dataclasses.dataclass(frozen=True)
class Growing(frb.Uniform):
    """Keeps what it has not declared."""

    def added(self, ops: Any, draft: Any, write: Any, leaves: Any, priorities: Any) -> None:
        draft.auxiliary["seen"] = ops.full_like(write.slots, 0)


@dataclasses.dataclass(frozen=True)
class Overconfident(frb.Uniform):
    """Says of each item that it will come."""

    def probabilities(self, ops: Any, draft: Any, slots: Any) -> Any:
        return ops.cast(ops.full_like(slots, 1), "float32")


@dataclasses.dataclass(frozen=True)
class Unforgetting(frb.Prioritized):
    """Does not take note that all items are taken out."""

    def cleared(self, ops: Any, draft: Any) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Grasping(frb.WithoutReplacement):
    """Remembers all that it draws, and says that it heeds how much of that counts."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        draft.wanted = None
        return super().draw(ops, draft, draws, beta, batch)


BROKEN_SAMPLERS = {
    Stale(): r"a draw: expected handles of what is stored, some of \[.*\], got \[.*; draw from `draft.size",
    Elsewhere(): r"the item of handle \d+ as it is sampled: expected .*; the slots that `draw` returns are",
    Biased(): r"how often handle \d+ comes first in \d+ draws: expected about \d+ times, .* got \d+ times; let `prob",
    Heavy(): r"`Selection.weights`: expected numbers in \(0, 1\] .* got \[2.0, .*; scale weights by the largest",
    Wide(): r"`Selection.handles`: expected int32 \[6\], got int64 \[6\]",
    Secret(): r"a draw: expected the state unchanged, as `remembers` is False, got a change of state.tree; let `remem",
    Scribbling(): r"`add` by .*values: expected a result, got ValueError: .*read-only; write to no array",
    Late(): r"`update.tree` by .*values: expected the bits .*; read what is needed of an array before it is written",
    Growing(): r"`state.auxiliary\['seen'\]` after `add`: expected no such array, got int32 .*; let `auxiliary`, `coun",
    Overconfident(): r"`probabilities` of all that is stored: expected a sum of 1, .* got \d+ of",
    Grasping(): r"a draw of 6, of which \d count: expected what a draw of \d gives, .*; remember the first `dr",
    Unforgetting(): r"`drawable` after a clear: expected False|handles of -1|a sum of 1",
}


@pytest.fixture(autouse=True)
def no_history_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functional_rb.testing.conformance.PHASES", (hypothesis.Phase.generate,))


@pytest.mark.parametrize("sampler", BROKEN_SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_broken_samplers_are_rejected(sampler: Any) -> None:
    with pytest.raises(ConformanceError, match=f"(?s){type(sampler).__name__}: .*(?:{BROKEN_SAMPLERS[sampler]})"):
        check_sampler(sampler, run_on=ON, examples=50)


def test_a_class_that_is_no_frozen_dataclass_is_rejected() -> None:
    with pytest.raises(ConformanceError, match=r"Melting: .*expected values that have a hash.*; write tuples"):
        check_sampler(Melting(), run_on=ON)
    with pytest.raises(ConformanceError, match=r"expected an instance of a SamplerBase.*; inherit from SamplerBase"):
        check_sampler(frb.RoundRobin(), run_on=ON)


def test_a_strategy_without_a_hook_that_each_must_have_cannot_be_made() -> None:
    class Undrawn(SamplerBase):
        def draw_shape(self, plan: Any, batch: int) -> tuple[int, int]:
            return batch, 1

        def probabilities(self, ops: Any, draft: Any, slots: Any) -> Any:
            return slots

    class Unplanned(ChoosingWriter):
        pass

    with pytest.raises(TypeError, match=r"Undrawn .*method '?draw'?$"):
        Undrawn()
    with pytest.raises(TypeError, match=r"Unplanned .*method '?plan_write'?$"):
        Unplanned()


def test_a_law_that_the_sampler_does_not_keep_is_rejected() -> None:
    with pytest.raises(
        ConformanceError, match=r"Uniform: `probabilities`: expected what the law says, .*; see `added`"
    ):
        check_sampler(frb.Uniform(), law=lambda steps: range(1, len(steps) + 1), run_on=ON)


@dataclasses.dataclass(frozen=True)
class Losing(frb.Uniform):
    """Takes an item out at each draw, of a buffer whose writer would not know of it."""

    remembers = True

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        slots, selection = super().draw(ops, draft, draws, beta, batch)
        ends, handles = draft.counters.ends, draft.auxiliary["handle"]
        left = ops.maximum(ends.sizes - 1, ops.full_like(ends.sizes, 0))
        draft.counters = draft.counters.replace(ends=ends._replace(sizes=left))
        stays = ops.arange(draft.plan.capacity, like=handles) < left
        draft.auxiliary["handle"] = ops.where(stays, handles, ops.full_like(handles, -1))
        return slots, selection


def test_items_that_get_lost_are_missed() -> None:
    with pytest.raises(ConformanceError, match=r"Losing: what is stored after `draw`, by handle and id: expected \{"):
        check_sampler(Losing(), writer=frb.Reservoir(), run_on=ON, examples=5)


@dataclasses.dataclass(frozen=True)
class Branching(frb.Uniform):
    """Branches on an array, which no tracing survives."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        if draft.size(ops) > 3:
            draws = ops.full_like(draws, 0)
        return super().draw(ops, draft, draws, beta, batch)


def test_what_cannot_be_traced_is_rejected() -> None:
    with pytest.raises(ConformanceError, match=r"Branching: (.|\n)*Tracer(.|\n)*; branch on no array.*use `ops.where`"):
        check_sampler(Branching(), run_on=["jax-core"], lanes=2, examples=2)


# --- broken writers --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Unmasked(WriterBase):
    """Writes rows that are not marked."""

    def plan_write(self, ops: Any, draft: Any, leaves: Any, batch: int, mask: Any, draws: Any) -> Any:
        return ring.plan_write(ops, draft.plan.ring, draft.counters.ends, batch, None)


@dataclasses.dataclass(frozen=True)
class Reused(ChoosingWriter):
    """Puts items into slots without giving them new handles."""

    def plan_write(self, ops: Any, draft: Any, leaves: Any, batch: int, mask: Any, draws: Any) -> Any:
        write = frb.RoundRobin().plan_write(ops, draft, leaves, batch, mask, draws)
        current = draft.auxiliary["handle"]
        live = write.slots == write.slots if write.live is None else write.live
        new = ops.where(live, write.slots, ops.take(current, write.slots))
        draft.auxiliary["handle"] = ops.set_at(current, write.slots, new)
        return write


@dataclasses.dataclass(frozen=True)
class Miscounting(WriterBase):
    """Says that nothing was written."""

    def plan_write(self, ops: Any, draft: Any, leaves: Any, batch: int, mask: Any, draws: Any) -> Any:
        write = frb.RoundRobin().plan_write(ops, draft, leaves, batch, mask, draws)
        return write._replace(after=write.after._replace(sizes=write.after.sizes // 2))


@dataclasses.dataclass(frozen=True)
class Promising(frb.RoundRobin):
    """Overwrites, and says that it does not."""

    @property
    def overwrites(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True)
class Forgetful(frb.Reservoir):
    """Counts half of what it keeps."""

    def plan_write(self, ops: Any, draft: Any, leaves: Any, batch: int, mask: Any, draws: Any) -> Any:
        write = super().plan_write(ops, draft, leaves, batch, mask, draws)
        return write._replace(after=write.after._replace(sizes=write.after.sizes // 2))


BROKEN_WRITERS = {
    Forgetful(): r"the size after `add`: expected \d+, the number of items that handles name, got \d+",
    Unmasked(): r"an item that is stored after an add: expected one of the marked rows .*; let `Write.live` be|law",
    Reused(): r"the item of handle \d+ after an add: expected item \d+, as|a draw: expected handles of what is",
    Miscounting(): r"expected \[.*\], as the law has it, got \[.*\]; see `plan`",
    Promising(): r"an add: expected all that was stored to stay, as `overwrites` is False, got handle \d+ overwritten",
}


@pytest.mark.parametrize("writer", BROKEN_WRITERS, ids=lambda writer: type(writer).__name__)
def test_broken_writers_are_rejected(writer: Any) -> None:
    with pytest.raises(ConformanceError, match=f"(?s){type(writer).__name__}: .*(?:{BROKEN_WRITERS[writer]})"):
        check_writer(writer, law=lambda added: added[-6:], run_on=ON)


# --- broken transforms -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Clip(Transform):
    """Clips rewards from below, where it should from above."""

    order = 10

    def reading(self, ops: Any, draft: Any, own: Any, real: Any, draws: Any, read: Any) -> Any:
        reward = draft.plan.names.index("reward")

        def clipped(slots: Any, wanted: Any) -> dict[int, Any]:
            found = read(slots, wanted)
            return found | {reward: self.of(ops, found[reward])}

        return clipped, {"row": self.told(own)}

    def of(self, ops: Any, reward: Any) -> Any:
        return ops.maximum(reward, ops.full_like(reward, 0))

    def told(self, own: Any) -> Any:
        return own[:, 0]


class Widening(Clip):
    """Reads rewards as float64."""

    def of(self, ops: Any, reward: Any) -> Any:
        return ops.cast(reward, "float64")


class Short(Clip):
    """Tells a row too few."""

    def told(self, own: Any) -> Any:
        return own[1:, 0]


BROKEN_TRANSFORMS = {
    Clip(): r"the item of handle \d+ as it is sampled: expected \{'reward': "
    r"(?:0\.0\}, got \{'reward': .*|-.*\}, got \{'reward': 0\.0)\}; see",
    Widening(): r"leaf 'reward' of a sample: expected float32 \[6\], got float64 \[6\]; let readers keep",
    Short(): r"`draw` .*: expected a result, got .*reshape|the extra 'row': expected a row for each item",
}


@pytest.mark.parametrize("transform", BROKEN_TRANSFORMS, ids=lambda transform: type(transform).__name__)
def test_broken_transforms_are_rejected(transform: Any) -> None:
    def law(lane: Any, place: int, bits: np.ndarray) -> dict[str, Any]:
        return {"reward": np.minimum(lane[place].leaves["reward"], np.float32(0))}

    with pytest.raises(ConformanceError, match=f"(?s){type(transform).__name__}: .*(?:{BROKEN_TRANSFORMS[transform]})"):
        check_transform(transform, law=law, run_on=ON)


# --- what it needs ---------------------------------------------------------------------------------------------------


def test_hypothesis_is_an_extra() -> None:
    run = subprocess.run(program("without_hypothesis"), capture_output=True, text=True, cwd=ROOT, check=True)
    needed = "functional_rb.testing needs hypothesis: pip install '.[testing]' in a checkout of functional_rb\n"
    assert run.stdout == needed
