"""Compact storage beside the plain layout, bit for bit, and beside models that are told what it still holds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import functional_rb as frb
from tests.contract.goals import STRATEGIES, TASKS, how_near
from tests.contract.goals import tell as tell_of_goals
from tests.contract.random_slices import random_spec
from tests.support import backends, stories, walks, worlds
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.histories import STEP, History, Rng, Shapes, histories, pick
from tests.support.models import Model, Shrinking
from tests.support.n_step_walks import EXACT, KINDS, first_step, random_sampler
from tests.support.random_members import SAMPLERS, VARIANTS
from tests.support.worlds import Kind, Record, World, nested

SCALAR, FLAG, ID = frb.Unbounded(()), frb.Binary(), frb.Unbounded((), "int32")
ROW: dict[str, Any] = {"action": ID, "reward": SCALAR, "done": FLAG}


def stacked(shape: tuple[int, ...], count: int, axis: int, dtype: str = "uint8") -> frb.Unbounded:
    """So many frames."""
    axis %= len(shape) + 1
    return frb.Unbounded((*shape[:axis], count, *shape[axis:]), dtype)


def frames(shape: tuple[int, ...], count: int, axis: int, nexts: bool) -> tuple[Kind, frb.Compact]:
    """Items of stacks of frames."""
    spec = stacked(shape, count, axis)
    names = ("obs", "next_obs") if nexts else ("obs",)
    kind = Kind(ROW | dict.fromkeys(names, spec), stacks=dict.fromkeys(names, (count, axis)))
    return kind, frb.Compact(stack=count if nexts else {"obs": count}, axis=axis)


TED: dict[str, Any] = {
    "observation/joints": frb.Unbounded((3,)),
    "observation/touch": frb.Unbounded((2,), "bool"),
    "observation/camera": frb.Unbounded((5,), "uint8"),
    "observation/steps": frb.Unbounded((), "int16"),
    "observation/exact": frb.Unbounded((2,), "float64"),
}
TED |= {f"next/{path}": spec for path, spec in TED.items()}
FLAGS = ("done", "terminated", "truncated")
TED |= {"action": ID, "next/reward": SCALAR} | dict.fromkeys([*FLAGS, *(f"next/{flag}" for flag in FLAGS)], FLAG)
MIXED: dict[str, Any] = {"camera": stacked((6, 4), 3, 0), "speed": frb.Unbounded((2,)), "frozen": frb.Unbounded((2,))}
LAYOUTS: dict[str, tuple[Kind, frb.Compact]] = {
    "next": (Kind(ROW | {"obs": frb.Unbounded((3,)), "next_obs": frb.Unbounded((3,))}), frb.Compact()),
    "next by name": (
        Kind(ROW | {"s": frb.Unbounded((300,)), "after/s": frb.Unbounded((300,))}, {"after/s": "next_s"}),
        frb.Compact(next={("after", "s"): "s"}),
    ),
    "ted": (Kind(TED, dict.fromkeys(FLAGS, "false"), ends=("next/done",), reward="next/reward"), frb.Compact()),
    # Leaves that do not fit together are stored all the same.
    "ted of noise": (
        Kind(TED, dict.fromkeys(FLAGS, "noise"), ends=("next/done",), reward="next/reward"),
        frb.Compact(),
    ),
    "wide": (
        Kind(ROW | {"obs": frb.Unbounded((1025,), "uint8"), "next_obs": frb.Unbounded((1025,), "uint8")}),
        frb.Compact(),
    ),
    "stack": frames((3, 2), 4, 0, nexts=False),
    "stack of wide ones": frames((25, 41), 3, 0, nexts=False),
    "stack that is wide": frames((8, 33), 4, -1, nexts=False),
    "stack and next": frames((3, 3), 2, -1, nexts=True),
    "stack of wide ones and next": frames((25, 41), 3, 0, nexts=True),
    "stack that is wide, and next": frames((8, 33), 4, 0, nexts=True),
    "stacks and others": (
        Kind(
            ROW | MIXED | {f"next/{path}": spec for path, spec in MIXED.items()},
            stacks={"camera": (3, 0), "next/camera": (3, 0)},
        ),
        frb.Compact(stack={"camera": 3}),
    ),
}
ON_TORCH = Shapes((0, 1, 1, 2, 3, 5, 9, 20), (1, 2, 3, 7), False)
ON_JAX = Shapes((3,), (4,), True)


def stored_leaves(record: Record, handle: int) -> tuple[worlds.Leaves, worlds.Leaves]:
    """As they were added."""
    return record.stored(handle).leaves, {}


@pytest.mark.few(6, by="roomy")
@pytest.mark.parametrize("roomy", [True, False], ids=["roomy", "scarce"])
@pytest.mark.parametrize("name", LAYOUTS)
@histories(4)
def test_as_the_plain_layout(name: str, roomy: bool, rng: Rng) -> None:
    (kind, compact), lanes, length = LAYOUTS[name], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8, 13])
    capacity = length * (lanes or 1)
    if roomy:  # each step may be an episode of its own
        compact = dataclasses.replace(compact, spare=2 * kind.depth * capacity)
    elif rng.random() < 0.5:
        compact = dataclasses.replace(compact, spare=pick(rng, [0, 3, capacity]))
    sampler = random_sampler(rng, kind, lanes, length)
    plain = frb.BufferSpec(nested(kind.item), capacity, sampler, lanes=lanes)
    spec = dataclasses.replace(plain, compact=compact)
    record = Record(kind, length, ((),) * (lanes or 1), first_step(rng, plain), room_of(name, spec))
    story = Roomy if roomy else stories.Story
    bits = bool(rng.random() < 0.5)
    stories.tell(rng, [pick(rng, VARIANTS)], spec, plain, record, stored_leaves, ON_TORCH, 25, bits=bits, story=story)


def room_of(name: str, spec: frb.BufferSpec) -> worlds.Room:
    """For the frames of a layout."""
    return walks.room_for(LAYOUTS[name][0], spec, {"s": "after/s"} if name == "next by name" else None)


class Roomy(stories.Story):
    """Nothing goes before its time."""

    def keep(self, backend: Backend, state: Any, plain: Any, record: Any) -> None:
        """The plain buffer stays beside it."""
        assert plain is not None
        super().keep(backend, state, plain, record)


ON_BOTH = {
    "next": (frb.Slices(2), 2, "jax"),
    "stack that is wide, and next": (frb.Prioritized(), None, "jax"),
    "stack": (frb.Uniform(), 2, "jax-core"),
}


@pytest.mark.parametrize("name", effort(["stack that is wide, and next"], list(ON_BOTH)))
@histories(1)
def test_from_one_backend_to_the_other(name: str, rng: Rng) -> None:
    (kind, compact), (sampler, lanes, jax_variant) = LAYOUTS[name], ON_BOTH[name]
    plain = frb.BufferSpec(nested(kind.item), 14, sampler, lanes=lanes)
    spec = dataclasses.replace(plain, compact=compact)
    record = Record(kind, plain.plan.ring.length, ((),) * (lanes or 1), room=room_of(name, spec))
    stories.tell(rng, [jax_variant, "torch"], spec, plain, record, stored_leaves, ON_JAX, 30)


# Every sampler, with a model that is told how many steps each lane still holds.


class CompactHistory(History):
    """A history whose observations hang together."""

    def __init__(self, rng: Rng, made: Sequence[Backend], spec: frb.BufferSpec, shapes: Shapes) -> None:
        """Begin with an empty buffer."""
        shape = spec.item["obs"].shape
        stack = {"obs": (shape[0], 0), "next_obs": (shape[0], 0)} if spec.compact.stack != 1 else {}
        self.world = World(rng.numbers(), Kind(dict(spec.item), stacks=stack), spec.lanes or 1)
        super().__init__(rng, made, spec, shapes)

    def keep(self, state: Any, backend: Backend, model: Model) -> None:
        """The first one gets its store."""
        if not self.kept:
            numbers = model.store.numbers
            model.store = Shrinking(self.spec, numbers[0])
            model.store.sizes = [0] * self.lanes
        super().keep(state, backend, model)

    def batch(self, steps: int) -> worlds.Leaves:
        leaves, _ = self.world.batch(steps, masked=False)
        batch = {path: leaf.reshape(-1, *leaf.shape[2:]) for path, leaf in leaves.items()}
        ids = self.made + np.arange(steps * self.lanes, dtype=np.int32)
        self.made += ids.size
        return batch | {"id": ids}

    def told(self, state: Any, backend: Backend, model: Model) -> None:
        """How many are left in each lane."""
        newest = backend.numpy(backend.rb.newest(state, model.store.length))
        model.store.sizes = (newest.reshape(len(newest), -1) >= 0).sum(0).tolist()
        assert all(size <= model.store.length for size in model.store.sizes)


OBSERVED = {
    "next": ({"obs": frb.Unbounded((2,)), "next_obs": frb.Unbounded((2,))}, frb.Compact()),
    "stack": ({"obs": stacked((3,), 3, 0)}, frb.Compact(stack={"obs": 3})),
    "wide stack": (dict.fromkeys(["obs", "next_obs"], stacked((1030,), 2, 0)), frb.Compact(stack=2)),
}
IN_ORDER = [kind for kind in SAMPLERS if "queue" not in kind]
SLICES = {"slices": "with", "prioritized slices": "prioritized", "slices without replacement": "without"}


def told(
    rng: Rng,
    variants: Sequence[str],
    plain: frb.BufferSpec,
    observed: str,
    spare: int | None,
    shapes: Shapes,
    steps: int,
) -> None:
    """One history of a compact buffer with observations."""
    more, compact = OBSERVED[observed]
    compact = dataclasses.replace(compact, spare=spare)
    spec = dataclasses.replace(plain, item=dict(plain.item) | more, compact=compact)
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(backends.make(name)) for name in variants]
        CompactHistory(rng, made, spec, shapes).run(steps)


@pytest.mark.parametrize("kind", [*IN_ORDER, *SLICES])
@histories(6)
def test_what_is_gone_is_never_drawn(kind: str, rng: Rng) -> None:
    if kind in SLICES:
        plain = random_spec(rng, SLICES[kind])
    else:
        lanes = None if kind in ("fifo", "lifo") else pick(rng, [None, 1, 2, 3])
        plain = frb.BufferSpec(STEP, pick(rng, [4, 5, 7, 16]) * (lanes or 1), SAMPLERS[kind](rng), lanes=lanes)
    told(rng, [pick(rng, VARIANTS)], plain, pick(rng, list(OBSERVED)), pick(rng, [None, 0, 2]), ON_TORCH_MORE, 30)


ON_TORCH_MORE = Shapes((0, 1, 1, 2, 3, 5, 20), (1, 2, 3, 7), False)
GONE_ON_BOTH = {
    "prioritized": frb.BufferSpec(STEP, 10, frb.Prioritized(max_times_sampled=3), lanes=2),
    "slices": frb.BufferSpec(STEP, 14, frb.SlicesWithoutReplacement(2), lanes=2),
}


@pytest.mark.parametrize("name", effort(["slices"], list(GONE_ON_BOTH)))
@histories(1)
def test_what_is_gone_is_never_drawn_on_either_backend(name: str, rng: Rng) -> None:
    told(rng, ["jax", "torch"], GONE_ON_BOTH[name], "next", 0, Shapes((8,), (4,), True), 30)


# With transforms.


@histories(15)
def test_n_steps_of_compact_items(rng: Rng) -> None:
    kind, lanes, length = KINDS[pick(rng, list(KINDS))], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8])
    kind = dataclasses.replace(kind, roles=kind.roles | {path: "false" for path in FLAGS if path in kind.roles})
    capacity, n, gamma = length * (lanes or 1), pick(rng, [1, 2, 3, 4, 20]), pick(rng, EXACT)
    nexts = {"after/s": "s"} if "after/s" in kind.item else None
    compact = frb.Compact(next=nexts, spare=pick(rng, [None, 0, capacity]))
    sampler = random_sampler(rng, kind, lanes, length)
    plain = frb.BufferSpec(nested(kind.item), capacity, sampler, lanes=lanes)
    spec = dataclasses.replace(plain, compact=compact, transforms=frb.n_step(n, gamma, **kind.settings))

    def expected(record: Record, handle: int) -> tuple[worlds.Leaves, worlds.Leaves]:
        lane, place = record.places[handle]
        return walks.n_step(kind, walks.window(record.live(lane), place, n), gamma)

    room = walks.room_for(kind, spec, nexts and {"s": "after/s"})
    record = Record(kind, length, ((),) * (lanes or 1), first_step(rng, plain), room)
    stories.tell(rng, [pick(rng, VARIANTS)], spec, plain, record, expected, ON_TORCH, 25)


def test_some_next_leaves_are_those_of_the_last_step(library: Backend) -> None:
    """The others are the step's own: so frames of one leaf, and those of both, come from different steps."""
    rb, steps = library.rb, np.arange(6, dtype=np.float32)
    item = dict.fromkeys(["x", "y", "next_x", "next_y", "reward"], SCALAR)
    returns = frb.n_step(2, 0.5, terminated_key=None, next_keys="next_x", end_keys=())
    spec = frb.BufferSpec(item, 8, frb.InOrder(), compact=frb.Compact(), transforms=returns)
    state = rb.add(rb.init(spec), {"x": steps, "y": -steps, "next_x": steps + 1, "next_y": -steps - 1, "reward": steps})
    items = {name: np.asarray(x).tolist() for name, x in rb.sample(state, rb.key(0), 3)[1].items.items()}
    assert (items["x"], items["next_x"]) == ([0, 1, 2], [2, 3, 4])
    assert (items["y"], items["next_y"]) == ([0, -1, -2], [-1, -2, -3])


@histories(12)
def test_goals_of_compact_items(rng: Rng) -> None:
    task, lanes, length = TASKS[pick(rng, list(TASKS))], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8])
    capacity = length * (lanes or 1)
    compact = frb.Compact(spare=pick(rng, [None, 0, capacity]))
    sampler = pick(rng, [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement()])
    plain = frb.BufferSpec(nested(task.kind.item), capacity, sampler, lanes=lanes, compact=compact)
    settings = {"strategy": pick(rng, STRATEGIES), "k": 4, "reward": pick(rng, [how_near, None])}
    settings |= {"n": pick(rng, [None, 3]), "gamma": pick(rng, EXACT)}
    tell_of_goals(rng, [pick(rng, VARIANTS)], task, plain, ON_TORCH, 20, **settings)


# What it takes.


def bytes_of(state: Any) -> int:
    arrays = jax.tree.leaves((state.rows, state.wide, state.tree, state.counters, state.auxiliary))
    return sum(array.nbytes for array in arrays)


def test_bytes_of_states(library: Backend) -> None:
    humanoid = frb.Unbounded((376,))
    item = {"obs": humanoid, "action": frb.Unbounded((17,)), "reward": SCALAR, "next_obs": humanoid, "done": FLAG}
    plain = frb.BufferSpec(item, 4096)
    compact = dataclasses.replace(plain, compact=frb.Compact())
    share = bytes_of(library.rb.init(compact)) / bytes_of(library.rb.init(plain))
    assert 0.5 < share < 0.54


def test_bytes_of_pictures(library: Backend) -> None:
    for nexts, least in ((True, 7), (False, 3.5)):
        kind, compact = frames((84, 84), 4, -1, nexts=nexts)
        plain = frb.BufferSpec(nested(kind.item), 512)
        packed = dataclasses.replace(plain, compact=compact)
        assert bytes_of(library.rb.init(plain)) > least * bytes_of(library.rb.init(packed))


@pytest.mark.parametrize("depth", [1, 3])
def test_the_room_that_a_dataset_is_told_to_need(library: Backend, depth: int) -> None:
    """Also where it begins with zeros, which are shared with the empty room before it."""
    stack = frb.Unbounded((depth,))
    item = {"obs": stack, "next_obs": stack, "done": FLAG}
    obs = np.repeat(np.arange(24, dtype=np.float32) * 2, depth).reshape(24, depth)
    rows = {"obs": obs, "next_obs": obs + 1, "done": np.ones(24, bool)}
    spec = frb.BufferSpec(item, 24, writer=frb.Immutable(), compact=frb.Compact(stack=depth, spare=0))
    with pytest.raises(ValueError, match=r"give frb.Compact\(spare=\d+\)") as error:
        library.rb.init(spec, items=rows)
    spare = int(str(error.value).split("spare=")[1].rstrip(")"))
    spec = dataclasses.replace(spec, compact=frb.Compact(stack=depth, spare=spare))
    assert int(library.rb.size(library.rb.init(spec, items=rows))) == 24


def test_a_smaller_buffer_keeps_the_items_whose_frames_find_room(library: Backend) -> None:
    """Each item has two frames that nothing shares, so that not all of those find room that fit by their number."""
    spec = frb.BufferSpec({"obs": SCALAR, "next_obs": SCALAR}, 24, compact=frb.Compact(spare=24))
    obs = np.arange(20, dtype=np.float32) * 2
    state = library.rb.add(library.rb.init(spec), {"obs": obs, "next_obs": obs + 1})
    smaller = library.rb.with_spec(state, dataclasses.replace(spec, capacity=12, compact=frb.Compact(spare=2)))
    live = np.flatnonzero(library.numpy(library.rb.is_live(smaller, np.arange(20))))
    assert live.tolist() == [*range(13, 20)], "14 frames"
    items = library.rb.get(smaller, live.astype(np.int32))
    assert library.numpy(items["obs"]).tolist() == obs[live].tolist()
    assert library.numpy(items["next_obs"]).tolist() == (obs[live] + 1).tolist()


@pytest.mark.parametrize("depth", [1, 3])
def test_observations_without_elements(library: Backend, depth: int) -> None:
    empty = frb.Unbounded((depth, 0))
    spec = frb.BufferSpec({"obs": empty, "next_obs": empty, "x": SCALAR}, 8, compact=frb.Compact(stack=depth))
    rows = {name: np.zeros((3, *leaf.shape), np.float32) for name, leaf in spec.item.items()}
    _, sample = library.sample(library.rb.add(library.rb.init(spec), rows), library.rb.key(0), 2)
    assert sample.items["next_obs"].shape == (2, depth, 0)


def test_stacks_of_no_leaf_are_none() -> None:
    image = frb.Unbounded((4, 3, 3), "uint8")
    item = {"obs": image, "next_obs": image}
    assert frb.Compact(stack={}) == frb.Compact(stack=()) == frb.Compact()
    assert frb.Compact(stack=4, axis={}) == frb.Compact(stack=4)
    spec = frb.BufferSpec(item, 8, compact=frb.Compact(stack={}))
    assert spec == frb.BufferSpec(item, 8, compact=frb.Compact()) == frb.convert.from_json(frb.convert.to_json(spec))
    with pytest.raises(ValueError, match="there is nothing to compact: none of the leaves"):
        frb.BufferSpec({"obs": image}, 8, compact=frb.Compact(stack={}))
