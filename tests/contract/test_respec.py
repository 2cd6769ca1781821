"""Histories in which the buffer gets another spec now and then, beside plain Python lists."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
from tests.contract.numbered_steps import CORES, STEPS, bits, filled, ids_of, steps
from tests.support import backends, models
from tests.support.backends import Backend
from tests.support.histories import STEP, History, Kept, Rng, histories, pick
from tests.support.models import Model
from tests.support.random_members import ON_TORCH, ONE_LANE, SAMPLERS

ITEM = STEP | {"episode": frb.Unbounded((), "int32"), "score": frb.Unbounded((2,))}
VARIANTS = ["torch", "torch", "torch-core", "torch-inplace", "jax-host", "jax-host-core"]


def a_slice(rng: Rng, length: int) -> dict[str, Any]:
    """Settings of slices that fit into a lane."""
    ends = pick(rng, [{}, {"trajectory_key": "episode"}, {"end_keys": ()}])
    return {"length": int(rng.integers(1, min(4, length) + 1)), "period": pick(rng, [1, 1, 2]), **ends}


def a_sampler(rng: Rng, lanes: int | None, length: int) -> Any:
    kind = pick(rng, [*SAMPLERS, "slices", "prioritized slices", "slices without replacement"])
    if kind in ONE_LANE and lanes is not None:
        kind = "prioritized"
    strict, span = pick(rng, [(True, False), (False, False), (False, (False, True))])
    settings = a_slice(rng, length) | {"strict_length": strict, "span": span}
    if kind == "slices":
        fresh_first = settings["length"] % settings["period"] == 0 and pick(rng, [False, True])
        return frb.Slices(**settings, weighting=pick(rng, ["trajectory", "window"]), fresh_first=fresh_first)
    if kind == "prioritized slices":
        return frb.PrioritizedSlices(
            **settings, alpha=pick(rng, [0.0, 0.6, 1.0]), new_priority=pick(rng, ["live", "ever"])
        )
    if kind == "slices without replacement":
        return frb.SlicesWithoutReplacement(**settings, weighting=pick(rng, ["trajectory", "window"]))
    return SAMPLERS[kind](rng)


def another(rng: Rng, lanes: int | None) -> frb.BufferSpec:
    """A spec of the item that there can be."""
    while True:
        length = pick(rng, [4, 5, 7, 12])
        writer = pick(rng, [None] * 6 + [frb.StopWhenFull(), frb.MaxValue("score"), frb.MaxValue("score", "max")])
        chosen = {} if writer is None else {"writer": writer}
        with contextlib.suppress(ValueError):
            return frb.BufferSpec(ITEM, length * (lanes or 1), a_sampler(rng, lanes, length), lanes=lanes, **chosen)


def why_not(model: Model, spec: frb.BufferSpec) -> str | None:
    """What is said where a buffer cannot go by a spec of the same item and lanes."""
    had, wanted = (getattr(one.sampler, "alpha", None) for one in (model.spec, spec))
    lanes = model.store.lanes if model.spec.writer.in_order else [model.steps()]
    if spec.writer.in_order and not model.spec.writer.in_order:
        return "nothing tells that"
    if had == 0 and wanted:
        return "alpha: the buffer has 0"
    if not spec.writer.overwrites and max(map(len, lanes)) > spec.plan.ring.length:
        return "do not fit into"
    return None


class Changing(History):
    """A history in which the spec changes too."""

    def actions(self) -> list[Any]:
        return [*super().actions(), self.give, self.give]

    def choose(self) -> Kept:
        """Each state has a spec of its own."""
        kept = super().choose()
        self.spec = kept.model.spec
        return kept

    def check(self, state: Any, backend: Backend, model: Model, arrays: bool = False) -> None:
        self.spec = model.spec
        super().check(state, backend, model, arrays)

    def give(self, state: Any, backend: Backend, model: Model) -> None:
        """Another spec, or a refusal."""
        spec = self.other()
        if state.spec.storage != frb.Device():
            spec = dataclasses.replace(spec, storage=state.spec.storage)
        hypothesis.note(f"to {spec}")
        refusal = why_not(model, spec)
        if refusal is not None:
            with pytest.raises(ValueError, match=f"^with_spec: .*{refusal}"):
                backend.rb.with_spec(state, spec)
            return
        after = backend.rb.with_spec(state, spec)
        assert after.spec == spec
        newest, cursors, current = np.zeros((0, 0)), np.zeros(0), None
        if spec.writer.in_order:
            newest = backend.numpy(backend.rb.newest(after, spec.plan.ring.length)).reshape(-1, spec.plan.ring.lanes).T
            cursors = backend.numpy(backend.rb.counts(after).cursor).reshape(-1)
        else:
            current = backend.numpy(after.auxiliary["handle"])
        self.keep(after, backend, models.with_spec(model, spec, newest, cursors, current))
        if self.rng.random() < 0.5:
            self.check(*self.kept[-1], arrays=self.rng.random() < 0.3)

    def other(self) -> frb.BufferSpec:
        """Any that goes with the lanes; often with something as it is."""
        what = self.rng.random()
        if what < 0.15:
            return dataclasses.replace(self.spec, batch_size=int(self.rng.integers(1, 9)))
        if what < 0.3 and self.spec.sampler.has_priorities:
            changes = {"alpha": pick(self.rng, [0.0, 0.3, 0.6, 1.0]), "beta": pick(self.rng, [0.4, 1.0])}
            return dataclasses.replace(self.spec, sampler=dataclasses.replace(self.spec.sampler, **changes))
        found = another(self.rng, self.spec.lanes)
        if what < 0.6:
            with contextlib.suppress(ValueError):
                return dataclasses.replace(found, capacity=self.spec.capacity)
        return found


@histories(18)
def test_any_other_spec(rng: Rng) -> None:
    lanes = pick(rng, [None, None, 1, 2, 3])
    with backends.make(pick(rng, VARIANTS)) as backend:
        Changing(rng, [backend], another(rng, lanes), ON_TORCH).run(30)


# --- one thing at a time --------------------------------------------------------------------------------------------

OTHERS: dict[str, dict[str, Any]] = {
    "larger": {"capacity": 20},
    "smaller": {"capacity": 5},
    "alpha": {"sampler": frb.Prioritized(alpha=0.25)},
    "slices": {"sampler": frb.PrioritizedSlices(2, alpha=0.25), "capacity": 20},
    "epochs": {"sampler": frb.SlicesWithoutReplacement(2), "capacity": 20},
    "best": {"writer": frb.MaxValue("id"), "capacity": 5},
    "a queue": {"sampler": frb.Queue(2), "writer": frb.StopWhenFull(), "capacity": 20},
}


# Those that XLA compiles too; mapped, it compiles the core.
COMPILED = ("slices", "best")


@pytest.mark.parametrize("what", OTHERS)
def test_alike_compiled_mapped_and_on_either_backend(what: str) -> None:
    made = {}
    for name in ("torch", "torch-core", "jax-host", *(["jax"] if what in COMPILED else [])):
        with backends.make(name) as backend:
            state = filled(backend, frb.Prioritized(alpha=0.5))
            spec = dataclasses.replace(state.spec, **OTHERS[what])
            after = backend.rb.with_spec(state, spec)
            assert ids_of(backend, state) == {k: k for k in range(3, 11)}
            kept = {k: k for k in range(11 - min(8, spec.capacity), 11)}
            if spec.writer.in_order:
                assert ids_of(backend, after) == kept
            else:
                assert sorted(ids_of(backend, after).values()) == list(kept)
                assert not kept.keys() & ids_of(backend, after).keys()
            made[name] = bits(backend, after), backend.numpy(backend.rb.items(after)["id"]).tolist()
            if name == "jax":
                both = jax.tree.map(lambda x: jnp.asarray(np.stack([x, x])), state)
                mapped = jax.vmap(lambda s: backend.rb.with_spec(s, spec))(both)  # noqa: B023
                one = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[1]), mapped)
                made["mapped"] = bits(backend, one), np.asarray(backend.rb.items(one)["id"]).tolist()
    for name, found in made.items():
        assert found == made["torch"], name


@pytest.mark.parametrize("backend", CORES, indirect=True)
def test_only_what_is_small_is_made_anew(backend: Backend) -> None:
    rb = backend.rb
    for sampler in (frb.Prioritized(alpha=1.0), frb.Uniform(), frb.Slices(2)):
        state = filled(backend, frb.Prioritized(alpha=0.5))
        memory = None if backend.name == "jax" else state._version.memory
        after = rb.with_spec(state, dataclasses.replace(state.spec, sampler=sampler))
        if backend.name == "jax":
            assert after.rows is state.rows
            assert after.wide is state.wide
        else:
            assert after._version.memory.rows is memory.rows
    for spec in (
        dataclasses.replace(state.spec, batch_size=4),
        dataclasses.replace(state.spec, sampler=frb.Prioritized(alpha=0.5, beta=1.0)),
    ):
        later = rb.with_spec(state, spec)
        assert later.counters is state.counters
        assert later.spec == spec
    assert (
        rb.with_spec(state, frb.BufferSpec(STEPS, 8, frb.Prioritized(alpha=0.5), storage=state.spec.storage)) is state
    )
    after = rb.add(after, steps(11, 3))
    assert ids_of(backend, after) == {k: k for k in range(6, 14)}
    assert ids_of(backend, state) == {k: k for k in range(3, 11)}


def test_epochs_that_were_done_stay_counted(library: Backend) -> None:
    rb, state = library.rb, filled(library, frb.WithoutReplacement())
    for k in range(4):
        state, _ = rb.sample(state, rb.key(k), 4)
    done = int(rb.counts(state).epochs_done)
    assert done > 0
    state = rb.with_spec(state, dataclasses.replace(state.spec, sampler=frb.WithoutReplacement(drop_last=True)))
    assert int(rb.counts(state).epochs_done) == done


@pytest.mark.parametrize("backend", ["torch", "jax-host"], indirect=True)
def test_a_save_under_way_reads_the_buffer_as_it_was(backend: Backend, tmp_path: Any) -> None:
    state = filled(backend, frb.Prioritized(alpha=1.0, max_times_sampled=2))
    state = backend.add(state, steps(11, 1))
    reader = state.reader()
    before = {key: reader.read(key, 0, 8).copy() for key in ("rows", "wide_0", "tree", "kept_times")}
    newer = backend.rb.with_spec(state, dataclasses.replace(state.spec, sampler=frb.Slices(2)))
    newer = backend.add(newer, steps(20, 3))
    newer = backend.rb.with_spec(newer, dataclasses.replace(state.spec, sampler=frb.WithoutReplacement()))
    newer = backend.add(newer, steps(30, 2))
    for key, piece in before.items():
        assert reader.read(key, 0, 8).tobytes() == piece.tobytes(), key
    reader.close()
    frb.save(newer, tmp_path)
    assert ids_of(backend, frb.load(tmp_path, backend.rb)) == ids_of(backend, newer)
    assert ids_of(backend, state) == {k: k for k in range(4, 12)}


@pytest.mark.parametrize("other", [frb.Uniform(), frb.WithoutReplacement()], ids=["uniform", "epochs"])
@pytest.mark.parametrize("backend", ["torch", "jax-host"], indirect=True)
def test_what_slices_keep_is_read_as_it_was_after_another_sampler_has_come(backend: Backend, other: Any) -> None:
    """What an addition has overwritten is of arrays that the newest version has not, or has in other places."""
    state = filled(backend, frb.Slices(2))
    reader = state.reader()
    before = {key: reader.read(key, 0, 8).copy() for key in ("rows", "tree", "kept_step_in_episode")}
    newer = backend.add(state, steps(11, 3))
    newer = backend.rb.with_spec(newer, dataclasses.replace(state.spec, sampler=other))
    newer = backend.add(newer, steps(20, 3))
    for key, piece in before.items():
        assert reader.read(key, 0, 8).tobytes() == piece.tobytes(), key
    reader.close()


@pytest.mark.parametrize(("alpha", "other"), [(0.6, 0.4), (0.4, 1.0), (0.5, 1.5), (1.5, 0.6), (0.5, 0.0)])
def test_another_alpha_is_as_if_it_had_always_been(alpha: float, other: float) -> None:
    for name in ("torch", "torch-core", *(["jax"] if other == 1.0 else [])):
        with backends.make(name) as library:
            another_alpha(library, alpha, other)


def another_alpha(library: Backend, alpha: float, other: float) -> None:
    """Up to some units in the last place; and what is read of it and given back changes nothing."""
    rb, count = library.rb, 2000
    rng = np.random.default_rng(1)
    given = np.exp2(rng.uniform(-60, 60, count)).astype(np.float32)
    given[:2] = 0, 1
    made = [frb.BufferSpec(frb.Unbounded(()), count, frb.Prioritized(alpha=a)) for a in (alpha, other)]
    states = [rb.add(rb.init(spec), given, priorities=library.array(given)) for spec in made]
    state = rb.with_spec(states[0], made[1])
    again = rb.update(state, np.arange(count, dtype=np.int32), rb.priorities(state, np.arange(count, dtype=np.int32)))
    assert library.numpy(again.tree).tobytes() == library.numpy(state.tree).tobytes()
    changed = library.numpy(state.tree).reshape(-1)[:count]
    expected = library.numpy(states[1].tree).reshape(-1)[:count]
    units = np.abs(changed.view(np.int32).astype(np.int64) - expected.view(np.int32))
    assert units.max() <= 1.5 + other / min(alpha, 1)


@pytest.mark.parametrize("backend", ["torch", "jax-host"], indirect=True)
def test_what_was_not_known_is_as_new(backend: Backend) -> None:
    rb = backend.rb
    state = filled(backend, frb.Prioritized(alpha=1.0, max_times_sampled=1), 4, 4)
    state = rb.update(state, np.arange(4), backend.array(np.array([0, 0, 5, 2], np.float32)))
    state, sample = rb.sample(state, rb.key(0), 8)
    assert set(backend.numpy(sample.indices).tolist()) == {-1, 2, 3}
    unlimited = rb.with_spec(state, dataclasses.replace(state.spec, sampler=frb.Prioritized(alpha=0.5)))
    assert backend.numpy(rb.priorities(unlimited, np.arange(4))).tolist() == [0, 0, 1, 1]  # none is left that is known
    state = rb.update(state, np.array([1]), backend.array(np.array([9], np.float32)))
    more = rb.with_spec(state, dataclasses.replace(state.spec, sampler=frb.Prioritized(alpha=1.0, max_times_sampled=3)))
    assert backend.numpy(rb.priorities(more, np.arange(4))).tolist() == [0, 9, 9, 9]
    assert backend.numpy(more.auxiliary["times"]).tolist() == [0, 0, 1, 1]
    uniform = rb.with_spec(more, dataclasses.replace(state.spec, sampler=frb.Uniform(max_times_sampled=1)))
    assert backend.numpy(rb.probabilities(uniform, np.arange(4))).tolist() == [0.5, 0.5, 0, 0]
    state = rb.with_spec(uniform, dataclasses.replace(uniform.spec, sampler=frb.Prioritized()))
    assert backend.numpy(rb.priorities(state, np.arange(4))).tolist() == [1, 1, 1, 1]


def test_what_does_not_go_over_is_not_the_largest_priority(library: Backend) -> None:
    rb = library.rb
    state = library.init(frb.BufferSpec({"score": frb.Unbounded(())}, 3, frb.Prioritized(1.0, max_times_sampled=1)))
    state = library.add(state, {"score": np.float32([1, 2, np.nan])})
    state = rb.update(state, library.array(np.arange(3)), library.array(np.float32([1, 0, 0])))
    state, _ = library.sample(state, rb.key(0), 1)
    state = rb.update(state, library.array(np.int32([1, 2])), library.array(np.float32([2, 50])))
    # What has no rank stays behind, and with it the priority 50; that of the item that was drawn is not known any more.
    best = frb.BufferSpec(state.spec.item, 3, frb.Prioritized(1.0), frb.MaxValue("score"))
    assert sorted(library.numpy(rb.with_spec(state, best).tree).reshape(-1)[:3].tolist()) == [0, 2, 2]


def test_where_jax_cannot_go_while_traced() -> None:
    with backends.make("jax") as backend:
        state = filled(backend, frb.Uniform())
        spec = dataclasses.replace(state.spec, storage=frb.Host())
        with pytest.raises(TypeError, match=r"with_spec: under jax\.jit"):
            jax.jit(backend.rb.with_spec, static_argnums=1)(state, spec)


@pytest.mark.parametrize("backend", CORES, indirect=True)
def test_python_objects_come_along(backend: Backend) -> None:
    rb, storage = backend.rb, frb.Host() if backend.name != "torch" else frb.Device()
    item = {"id": frb.Unbounded((), "int32"), "note": frb.specs.NonTensor(), "wide": frb.Unbounded((1100,), "uint8")}
    spec = frb.BufferSpec(item, 4, storage=storage)
    notes, wide = ["a", {"b": 1}, None, (2,), "e", "f"], np.tile(np.arange(6, dtype=np.uint8)[:, None], 1100)
    state = rb.add(rb.init(spec), {"id": np.arange(6, dtype=np.int32), "note": notes, "wide": wide})
    for other in (
        dataclasses.replace(spec, sampler=frb.Prioritized()),
        dataclasses.replace(spec, capacity=3),
        dataclasses.replace(spec, capacity=9, storage=frb.Host()),
    ):
        after = rb.with_spec(state, other)
        count = min(other.capacity, 4)
        handles = np.arange(6 - count, 6)
        assert rb.get(after, handles)["note"].tolist() == notes[6 - count :]
        after = rb.add(after, {"id": np.int32(6), "note": "g", "wide": wide[0]})
        assert rb.get(after, np.array([6, 5]))["note"].tolist() == ["g", "f"]
        kept = rb.get(state, np.arange(2, 6))
        assert kept["note"].tolist() == notes[2:]
        np.testing.assert_array_equal(backend.numpy(kept["wide"]), wide[2:])  # no array belongs to both


@pytest.mark.parametrize("backend", ["torch", "jax-host"], indirect=True)
def test_leaves_in_another_order(backend: Backend) -> None:
    """Names of a dict are sorted, and places in a tuple are not: so is "10" before "2", and 10 behind it."""
    rb, leaf = backend.rb, frb.Unbounded((), "int32")
    state = backend.init(frb.BufferSpec((leaf,) * 11, 4))
    state = backend.add(state, tuple(np.arange(3, dtype=np.int32) + 10 * k for k in range(11)))
    named = dataclasses.replace(
        state.spec, item={str(k): leaf for k in range(11)}, sampler=frb.InOrder(newest_first=True)
    )
    for capacity in (4, 6):
        after = rb.with_spec(state, dataclasses.replace(named, capacity=capacity))
        after = rb.add(after, {str(k): np.int32(3 + 10 * k) for k in range(11)})
        got = rb.get(after, np.arange(4))
        assert [backend.numpy(got[str(k)])[3] - 10 * k for k in range(11)] == [3] * 11
        assert [backend.numpy(got[str(k)]).tolist() for k in (2, 10)] == [[20, 21, 22, 23], [100, 101, 102, 103]]
    assert backend.numpy(rb.get(state, np.arange(3))[10]).tolist() == [100, 101, 102]


@pytest.mark.parametrize("backend", ["torch", "jax-host"], indirect=True)
def test_transforms_of_what_is_sampled_may_change(backend: Backend) -> None:
    rb = backend.rb
    item = {"id": frb.Unbounded((), "int32"), "reward": frb.Unbounded(()), "done": frb.Binary()}
    made = [frb.n_step(n, 0.5) for n in (1, 3)]
    ids = np.arange(11, dtype=np.int32)
    rows = {"id": ids, "reward": ids.astype(np.float32), "done": ids % 4 == 3}
    spec = frb.BufferSpec(item, 8, frb.InOrder(), transforms=made[0])
    for other in (
        dataclasses.replace(spec, transforms=made[1], capacity=5),
        dataclasses.replace(spec, transforms=()),
    ):
        state = backend.add(backend.init(spec), rows)
        if state.spec.storage != spec.storage:
            other = dataclasses.replace(other, storage=state.spec.storage)
        after = rb.with_spec(state, other)
        _, sample = rb.sample(after, rb.key(0), 2)
        expected = [6 + 7 / 2, 7.0] if other.transforms else [3.0, 4.0]
        assert backend.numpy(sample.items["reward"]).tolist() == expected
    waiting = dataclasses.replace(spec, transforms=frb.n_step(3, 0.5, at="add"))
    state = backend.add(backend.init(waiting), {key: leaf[:6] for key, leaf in rows.items()})
    after = rb.with_spec(state, dataclasses.replace(state.spec, capacity=3, sampler=frb.InOrder(newest_first=True)))
    after = rb.add(after, {key: leaf[6:8] for key, leaf in rows.items()})
    _, sample = rb.sample(after, rb.key(0), 3)
    assert backend.numpy(sample.items["reward"]).tolist() == [7.0, 6 + 7 / 2, 5 + 6 / 2 + 7 / 4]
    with pytest.raises(ValueError, match=r"with_spec: BufferSpec.transforms: what is stored was made by \[NStep"):
        rb.with_spec(state, dataclasses.replace(state.spec, transforms=()))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "dtype": (
        {},
        {"item": STEPS | {"id": frb.Unbounded((), "int16")}},
        r"item: leaf 'id': .*int32 of shape \(\).*int16",
    ),
    "shape": ({}, {"item": STEPS | {"id": frb.Unbounded((1,), "int32")}}, r"item: leaf 'id': .* int32 of shape \(1,\)"),
    "one more": ({}, {"item": STEPS | {"x": frb.Unbounded(())}}, r"item: leaf 'x': the buffer's items have none"),
    "one less": (
        {},
        {"item": {"id": STEPS["id"], "done": STEPS["done"]}},
        r"item: leaf 'image': .* and the new spec none",
    ),
    "lanes": ({"lanes": 2}, {"lanes": 4}, r"lanes: the buffer has 2, got 4"),
    "no lanes": ({"lanes": 2}, {"lanes": None}, r"lanes: the buffer has 2, got None"),
    "reservoir": (
        {},
        {"writer": frb.Reservoir()},
        r"writer: the buffer has RoundRobin\(\), got Reservoir\(\); .*uniform",
    ),
    "capacity": ({"writer": frb.Reservoir()}, {"capacity": 9}, r"capacity: the buffer has 8, got 9; .*uniform sample"),
    "order": ({"writer": frb.MaxValue("id")}, {"writer": frb.RoundRobin()}, r"writer: the buffer has MaxValue.*order"),
    "alpha": (
        {"sampler": frb.Prioritized(alpha=0.0)},
        {"sampler": frb.Prioritized(alpha=0.5)},
        r"alpha: the buffer has 0, .* got 0.5; go by a spec with sampler=frb.Uniform\(\)",
    ),
    "room": ({"writer": frb.StopWhenFull()}, {"capacity": 4}, r"capacity: the 8 items do not fit into 4"),
    "a dataset": ({}, {"writer": frb.Immutable(), "capacity": 4}, r"capacity: the 8 items do not fit into 4"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_change_items_is_refused(what: str) -> None:
    with backends.make("torch") as backend:
        had, wanted, message = REFUSED[what]
        state = backend.init(frb.BufferSpec(STEPS, 8, **had))
        rows = steps(0, 8)
        if "lanes" in had:
            rows = {name: leaf.reshape(4, 2, *leaf.shape[1:]) for name, leaf in rows.items()}
        key = backend.rb.key(0) if what == "capacity" else None
        state = backend.add(state, rows, key=key)
        with pytest.raises(ValueError, match="with_spec: .*" + message):
            backend.rb.with_spec(state, dataclasses.replace(state.spec, **wanted))
        with pytest.raises(TypeError, match="with_spec: expected a BufferSpec, got dict"):
            backend.rb.with_spec(state, wanted)


def test_a_queue_that_becomes_too_small_while_nobody_can_be_told() -> None:
    with backends.make("jax") as backend:
        state = filled(backend, frb.Queue(), 8, 6)
        smaller = jax.jit(backend.rb.with_spec, static_argnums=1)(state, dataclasses.replace(state.spec, capacity=4))
        assert sorted(ids_of(backend, smaller).values()) == [2, 3, 4, 5]
