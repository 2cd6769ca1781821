"""N-step returns beside walks over the episodes, as they are sampled and as they are added."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import stories, walks
from tests.support.backends import Backend
from tests.support.histories import Rng, Shapes, histories, pick
from tests.support.n_step_walks import EXACT, FLAG, ID, KINDS, PAIR, SCALAR, STORY, first_step, random_sampler, rows
from tests.support.random_members import VARIANTS
from tests.support.walks import Pending
from tests.support.worlds import Kind, Leaves, Record, nested

ON_TORCH = Shapes((0, 1, 1, 2, 3, 5, 9, 20), (1, 2, 3, 7), False)
ON_JAX = Shapes((3,), (4,), True)


def tell(
    rng: Rng, variants: list[str], kind: Kind, plain: frb.BufferSpec, n: int, gamma: float, shapes: Shapes, steps: int
) -> None:
    """A history of `at="sample"`."""
    spec = dataclasses.replace(plain, transforms=frb.n_step(n, gamma, **kind.settings))
    lanes = plain.lanes or 1
    record = Record(kind, plain.plan.ring.length, ((),) * lanes, first_step(rng, plain))

    def expected(record: Record, handle: int) -> tuple[Leaves, Leaves]:
        lane, place = record.places[handle]
        return walks.n_step(kind, walks.window(record.live(lane), place, n), gamma)

    stories.tell(rng, variants, spec, plain, record, expected, shapes, steps)


@pytest.mark.parametrize("name", KINDS)
@histories(6)
def test_as_they_are_sampled(name: str, rng: Rng) -> None:
    kind, lanes, length = KINDS[name], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8, 13])
    sampler = random_sampler(rng, kind, lanes, length)
    plain = frb.BufferSpec(nested(kind.item), length * (lanes or 1), sampler, lanes=lanes)
    n = pick(rng, [1, 1, 2, 3, 4, 7, 20])
    tell(rng, [pick(rng, VARIANTS)], kind, plain, n, pick(rng, EXACT), ON_TORCH, 25)


SAMPLED_ON_BOTH = {
    "uniform": ("ted", frb.Uniform(), 2, 3),
    "slices": ("rows of two ends", frb.Slices(2), 2, 4),
    "by number": ("episodes by number", frb.Prioritized(), 2, 2),
    "without an end": ("without an end", frb.Slices(2, end_keys=()), 2, 3),
}


@pytest.mark.parametrize("name", SAMPLED_ON_BOTH)
@histories(2)
def test_as_they_are_sampled_from_one_backend_to_the_other(name: str, rng: Rng) -> None:
    kind_name, sampler, lanes, n = SAMPLED_ON_BOTH[name]
    kind = KINDS[kind_name] if name != "by number" else with_small_episodes(KINDS[kind_name])
    plain = frb.BufferSpec(nested(kind.item), 5 * lanes, sampler, lanes=lanes)
    tell(rng, ["jax", "torch"], kind, plain, n, 0.5, ON_JAX, 20)


def with_small_episodes(kind: Kind) -> Kind:
    """JAX takes no int64."""
    return dataclasses.replace(kind, item=kind.item | {"episode": frb.Unbounded((), "int32")})


def tell_added(
    rng: Rng, variants: list[str], kind: Kind, plain: frb.BufferSpec, n: int, gamma: float, shapes: Shapes, steps: int
) -> None:
    """A history of `at="add"`."""
    spec = dataclasses.replace(plain, transforms=(frb.n_step(n, gamma, at="add", **kind.settings),))
    lanes = plain.lanes or 1
    items = Record(kind, plain.plan.ring.length, ((),) * lanes, first_step(rng, plain))
    record = Pending(n, gamma, dataclasses.replace(items), items, (0,) * lanes)

    def expected(record: Pending, handle: int) -> tuple[Leaves, Leaves]:
        step = record.items.stored(handle)
        return step.leaves, step.extras

    stories.tell(rng, variants, spec, None, record, expected, shapes, steps)


@pytest.mark.parametrize("name", KINDS)
@histories(6)
def test_as_they_are_added(name: str, rng: Rng) -> None:
    kind, lanes, length = KINDS[name], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8, 13])
    sampler = pick(rng, [frb.Uniform(), frb.Prioritized(), frb.Recency(2), frb.WithoutReplacement()])
    plain = frb.BufferSpec(nested(kind.item), length * (lanes or 1), sampler, lanes=lanes)
    n = pick(rng, [1, 1, 2, 3, 4, 7, 20])
    tell_added(rng, [pick(rng, VARIANTS)], kind, plain, n, pick(rng, EXACT), ON_TORCH, 25)


@pytest.mark.parametrize(("name", "n"), [("ted", 3), ("episodes by number", 2)])
@histories(2)
def test_as_they_are_added_from_one_backend_to_the_other(name: str, n: int, rng: Rng) -> None:
    kind = with_small_episodes(KINDS[name]) if name != "ted" else KINDS[name]
    plain = frb.BufferSpec(nested(kind.item), 10, frb.Prioritized(), lanes=2)
    tell_added(rng, ["jax", "torch"], kind, plain, n, 0.5, ON_JAX, 20)


RETURNS = [(1 + 2 / 2 + 3 / 4, 3), (2 + 3 / 2, 2), (3, 1), (4 + 5 / 2, 2), (5, 1), (6 + 7 / 2 + 8 / 4, 3)]
RETURNS += [(7 + 8 / 2, 2), (8, 1), (9 + 10 / 2, 2), (10, 1)]
"""Of three steps each, with rewards 1 to 10 and a gamma of 1/2: what they return, and how many steps it took."""


def told_story(backend: Backend, n: int, at: str) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Items and extras of all that can be drawn, in order."""
    item = {"obs": SCALAR, "reward": SCALAR, "next_obs": SCALAR, "terminated": FLAG, "truncated": FLAG}
    spec = frb.BufferSpec(item, 16, frb.InOrder(), transforms=frb.n_step(n, 0.5, at=at))
    state = backend.add(backend.init(spec), rows(len(STORY)))
    count = int(backend.rb.size(state))
    _, sample = backend.sample(state, backend.rb.key(0), count)
    return tuple(
        {name: backend.numpy(x).tolist() for name, x in found.items()} for found in (sample.items, sample.extras)
    )


@pytest.mark.parametrize("at", ["sample", "add"])
def test_a_story(backend: Backend, at: str) -> None:
    items, extras = told_story(backend, 3, at)
    count = len(STORY) - 2 * (at == "add")  # two of the steps wait
    last = [k + steps for k, (_, steps) in enumerate(RETURNS)][:count]
    assert items["reward"] == [total for total, _ in RETURNS][:count]
    assert items["obs"] == extras["original_reward"] == list(range(1, count + 1))
    assert items["next_obs"] == [number + 0.5 for number in last]
    assert items["terminated"] == [STORY[number - 1] in "TB" for number in last]
    assert items["truncated"] == [STORY[number - 1] in "UB" for number in last]
    assert extras["steps"] == [steps for _, steps in RETURNS][:count]
    assert extras["discount"] == [0.5**steps for _, steps in RETURNS][:count]
    assert extras["nonterminal"] == [STORY[number - 1] not in "TB" for number in last]


@pytest.mark.parametrize("at", ["sample", "add"])
def test_one_step(library: Backend, at: str) -> None:
    items, extras = told_story(library, 1, at)
    assert items == {name: leaf.tolist() for name, leaf in rows(len(STORY)).items()}
    assert extras["nonterminal"] == [mark not in "TB" for mark in STORY]
    assert set(extras["steps"]) == {1}
    assert set(extras["discount"]) == {0.5}


@pytest.mark.parametrize("at", ["sample", "add"])
def test_any_numbers(library: Backend, at: str) -> None:
    """Sums are rounded m times, and so are their terms and the powers of gamma."""
    n, gamma, count = 20, 0.99, 300
    rng = np.random.default_rng(0)
    rewards = rng.standard_normal(count).astype(np.float32)
    done = rng.random(count) < 0.04
    spec = frb.BufferSpec(
        {"reward": SCALAR, "done": FLAG}, count, frb.InOrder(), transforms=frb.n_step(n, gamma, at=at)
    )
    state = library.add(library.init(spec), {"reward": rewards, "done": done})
    stored = int(library.rb.size(state))
    _, sample = library.sample(state, library.rb.key(0), stored)
    for start, total in enumerate(library.numpy(sample.items["reward"]).tolist()):
        steps = int(sample.extras["steps"][start])
        ended = np.flatnonzero(done[start:])
        assert steps == min([n, count - start, *(ended[:1] + 1)])
        terms = [gamma**k * float(rewards[start + k]) for k in range(steps)]
        assert abs(total - sum(terms)) <= 2**-24 * (steps + 2) * sum(map(abs, terms))
        assert abs(float(sample.extras["discount"][start]) - gamma**steps) <= 2**-25


# What can be told before.


ITEM: dict[str, Any] = {"obs": PAIR, "reward": SCALAR, "next_obs": PAIR, "done": FLAG}
TYPE, VALUE = TypeError, ValueError
SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, r"n_step: expected n as an int from 1 to \d+, got 0"),
    ({"n": 2.5}, r"n_step: expected n .* got 2.5"),
    ({"n": True}, r"n_step: expected n .* got True"),
    ({"gamma": -0.1}, r"n_step: expected gamma as a number from 0 to 1, got -0.1"),
    ({"gamma": 1.01}, r"n_step: expected gamma .* got 1.01"),
    ({"gamma": float("nan")}, r"n_step: expected gamma .* got nan"),
    ({"gamma": "much"}, r"n_step: expected gamma .* got 'much'"),
    ({"at": "once"}, r"n_step: expected at='sample' or at='add', got 'once'"),
    ({"end_keys": 3}, r"n_step: expected end_keys as a leaf's name, .* or a list of such, got 3"),
]


@pytest.mark.parametrize(("settings", "words"), SETTINGS, ids=[str(settings) for settings, _ in SETTINGS])
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        frb.n_step(**{"n": 3, "gamma": 0.99, **settings})


def without(name: str, **others: Any) -> dict[str, Any]:
    return {key: spec for key, spec in ITEM.items() if key != name} | others


SPECS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ("no reward", without("reward"), {}, {}, r"none of the leaves .*'reward'.* give reward_key=\.\.\., one of"),
    ("no flags", without("done"), {}, {}, r"n_step: the item has no leaf 'done'.* give end_keys="),
    (
        "no termination",
        without("done", over=FLAG),
        {"end_keys": "over"},
        {},
        r"none of the leaves .*'terminated'.* give terminated_key=\.\.\., one of",
    ),
    ("whole rewards", ITEM | {"reward": ID}, {}, {}, r"leaf 'reward': expected rewards of a float dtype, got .*int32"),
    ("termination of two", ITEM | {"dead": frb.Binary((2,))}, {"terminated_key": "dead"}, {}, r"leaf 'dead'.*one bool"),
    ("termination in numbers", ITEM | {"dead": ID}, {"terminated_key": "dead"}, {}, r"leaf 'dead'.*one bool"),
    ("another reward", ITEM, {"reward_key": "prize"}, {}, r"n_step: .*'prize'"),
    ("another end", ITEM, {"end_keys": "over"}, {}, r"n_step: .*'over'"),
    ("an end in numbers", ITEM | {"over": ID}, {"end_keys": "over"}, {}, r"n_step: .*'over'.*one bool"),
    ("episodes of floats", ITEM, {"trajectory_key": "reward"}, {}, r"n_step: .*'reward'.*one integer"),
    ("another next leaf", ITEM, {"next_keys": ["next_obs", "after"]}, {}, r"n_step: .*'after'"),
    (
        "other ends",
        ITEM | {"over": FLAG},
        {"end_keys": "over"},
        {"sampler": frb.Slices(2)},
        r"the same end_keys and trajectory_key",
    ),
    ("no order", ITEM, {}, {"writer": frb.Reservoir()}, r"n_step.*needs items in the order of .*Reservoir"),
    ("slices of what is added", ITEM, {"at": "add"}, {"sampler": frb.Slices(2)}, r"make no slices; give .*at='sample'"),
    ("room for what is added", ITEM, {"at": "add"}, {"sampler": frb.Queue()}, r"up to 3 items at once.* no room"),
]


@pytest.mark.parametrize(
    ("item", "settings", "others", "words"), [case[1:] for case in SPECS], ids=[x[0] for x in SPECS]
)
def test_items_that_do_not_fit(item: Any, settings: dict[str, Any], others: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        frb.BufferSpec(item, 8, transforms=frb.n_step(3, 0.9, **settings), **others)


def test_no_two_of_a_kind() -> None:
    with pytest.raises(ValueError, match=r"at most one of a kind"):
        frb.BufferSpec(ITEM, 8, transforms=(frb.n_step(3, 0.9), frb.n_step(2, 0.9, at="add")))
    with pytest.raises(TypeError, match=r"transforms: expected some such as frb\.n_step.* got 3"):
        frb.BufferSpec(ITEM, 8, transforms=3)


def test_priorities_of_what_is_not_complete(backend: Backend) -> None:
    spec = frb.BufferSpec(ITEM, 8, frb.Prioritized(), transforms=frb.n_step(3, 0.9, at="add"))
    state, zeros = backend.init(spec), np.zeros((4, 2), np.float32)
    items = {"obs": zeros, "reward": zeros[:, 0], "next_obs": zeros, "done": zeros[:, 0] > 0}
    with pytest.raises(ValueError, match=r"priorities.*at='add'|at='add'.*priorities"):
        backend.add(state, items, None, backend.array(zeros[:, 0]))
    assert int(backend.rb.size(backend.add(state, items))) == 2


# With writers that are no rings of the newest.


def test_a_queue_of_what_was_there(library: Backend) -> None:
    item = {"obs": SCALAR, "reward": SCALAR, "next_obs": SCALAR, "terminated": FLAG, "truncated": FLAG}
    spec = frb.BufferSpec(item, 12, frb.Queue(), transforms=frb.n_step(3, 0.5))
    state, rewards = library.add(library.init(spec), rows(len(STORY))), []
    for key in library.rb.split(library.rb.key(0), 5):
        state, sample = library.sample(state, key, 2)
        rewards += library.numpy(sample.items["reward"]).tolist()
    assert rewards == [total for total, _ in RETURNS]
    assert int(library.rb.size(state)) == 0


def test_a_dataset(library: Backend) -> None:
    item = {"obs": SCALAR, "reward": SCALAR, "next_obs": SCALAR, "terminated": FLAG, "truncated": FLAG}
    sampler = frb.WithoutReplacement(shuffle=False)
    spec = frb.BufferSpec(item, 12, sampler, frb.Immutable(), transforms=frb.n_step(3, 0.5))
    state = library.rb.init(spec, items=rows(len(STORY)))
    _, sample = library.sample(state, library.rb.key(0), len(STORY))
    assert library.numpy(sample.items["reward"]).tolist() == [total for total, _ in RETURNS]


def test_the_best_of_what_is_added(library: Backend) -> None:
    item = {"obs": SCALAR, "reward": SCALAR, "next_obs": SCALAR, "terminated": FLAG, "truncated": FLAG}
    writer = frb.MaxValue("reward")
    spec = frb.BufferSpec(item, 3, writer=writer, transforms=frb.n_step(3, 0.5, at="add"))
    state = library.init(spec)
    for k in range(len(STORY)):
        state = library.add(state, {name: leaf[k] for name, leaf in rows(len(STORY)).items()})
    _, sample = library.sample(state, library.rb.key(0), 64)
    best = sorted(zip(RETURNS[:8], range(1, 9), strict=True), reverse=True)[:3]
    drawn = zip(*(library.numpy(x).tolist() for x in (sample.items["reward"], sample.extras["steps"])), strict=True)
    assert {(total, steps) for total, steps in drawn} == {pair for pair, _ in best}


def test_trajectories_end_alike_for_all() -> None:
    item = {"reward": frb.Unbounded(()), "done": frb.Binary(), "other": frb.Binary(), "next": {"done": frb.Binary()}}
    named = frb.Slices(2, end_keys=("next", "done"))
    spec = frb.BufferSpec(item, 8, named, transforms=frb.n_step(2, np.float32(0.5), end_keys="next/done"))
    assert spec.plan.boundaries == named.boundaries
    with pytest.raises(ValueError, match=r"expected the same end_keys .* leave them out of the transforms"):
        frb.BufferSpec(item, 8, named, transforms=frb.n_step(2, 0.5, end_keys="other"))
