"""Which items of a group are taken, against plain lists: the newest, the best, those furthest apart."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb.testing import check_sampler
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.taken import taken

ITEM = {"id": frb.Unbounded((), "int32"), "prompt": frb.Unbounded((), "int32"), "score": frb.Unbounded(())}
CAPACITY = 12
TAKES = ("newest", "best", "spread")
# A row is a prompt and a score.
ROWS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0, math.nan])), max_size=20)


def stored_of(rows: list[tuple[int, float]]) -> dict[str, Any]:
    prompts, scores = zip(*rows, strict=True) if rows else ((), ())
    kinds = {"id": range(len(rows)), "prompt": prompts, "score": scores}
    return {name: np.array(values, ITEM[name].dtype) for name, values in kinds.items()}


def groups_of(given: dict[str, Any], interleaved: bool) -> list[list[int]]:
    """Of the items that a ring still holds, those that follow on each other with one prompt, or all with one."""
    kept: list[int] = [*range(max(0, len(given["id"]) - CAPACITY), len(given["id"]))]
    prompt = given["prompt"].__getitem__
    runs = sorted(kept, key=prompt) if interleaved else kept
    return [list(members) for _, members in itertools.groupby(runs, key=prompt)]


def check(library: Backend, sampler: frb.Groups, rows: list[tuple[int, float]], n: int) -> None:
    rb, given = library.rb, stored_of(rows)
    state = library.init(frb.BufferSpec(ITEM, CAPACITY, sampler))
    for row in range(0, len(rows), 5):  # groups come in pieces
        state = library.add(state, {name: library.array(leaf[row : row + 5]) for name, leaf in given.items()})
    there = groups_of(given, sampler.interleaved)
    there = [group for group in there if len(group) >= (sampler.per_group if sampler.whole else 1)]
    assert bool(rb.can_sample(state, n)) == bool(there)
    if not there:
        return
    stored = np.arange(len(rows), dtype=np.int32)[-CAPACITY:]
    chances = dict(zip(stored.tolist(), library.numpy(rb.probabilities(state, library.array(stored))), strict=True))
    state, sample = library.sample(state, rb.key(0), n)
    ids, mask, scores = (library.numpy(x) for x in (sample.items["id"], sample.mask, sample.items["score"]))
    times = [0] * len(there)
    for row in range(n):
        members = ids[row][mask[row]].tolist()
        (k,) = (k for k, group in enumerate(there) if members[0] in group)
        times[k] += 1
        assert len({*members}) == len(members) == min(sampler.per_group, len(there[k]))
        assert {*members} <= {*there[k]}
        wanted = taken(sampler.take, sampler.per_group, given["score"][there[k]].tolist())
        np.testing.assert_array_equal(scores[row][mask[row]], wanted)
        assert mask[row].tolist() == [j < len(members) for j in range(sampler.per_group)]
        np.testing.assert_allclose(chances.pop(members[0], 1 / len(there)), 1 / len(there), rtol=1e-6)
    assert max(times) - min(times) <= 1
    if n >= len(there):  # all groups came, so nothing else can come first
        assert not any(chances.values())


@hypothesis.given(ROWS, st.integers(1, 4), st.sampled_from(TAKES), st.booleans(), st.booleans())
@hypothesis.settings(max_examples=effort(60, 400), deadline=None)
def test_the_items_of_groups_as_plain_lists_have_them(
    rows: list[tuple[int, float]], per_group: int, take: Any, whole: bool, interleaved: bool
) -> None:
    import torch_backend

    library = Backend("torch", torch_backend, torch_backend.from_dlpack, np.asarray)
    sampler = frb.Groups(per_group, "prompt", "score", whole=whole, interleaved=interleaved, take=take)
    check(library, sampler, rows, 5)


ROWS_OF_THREE = [(0, 1.0), (0, 5.0), (0, 2.0), (1, 0.0), (1, math.nan), (1, -7.0), (1, 0.0), (0, 9.0), (2, 4.0)]


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize(("take", "interleaved"), [("spread", False), ("best", True), ("newest", True)])
def test_the_items_of_groups_on_every_backend(backend: Backend, take: Any, interleaved: bool) -> None:
    sampler = frb.Groups(2, "prompt", "score", whole=False, interleaved=interleaved, take=take)
    check(backend, sampler, ROWS_OF_THREE * 2, 5)


def law(take: str, interleaved: bool) -> Any:
    """Each group of two or more is equally likely, and begins with one of its items; scores all differ."""

    def of(steps: Any) -> list[float]:
        groups: dict[Any, list[int]] = {}
        newest: dict[Any, tuple[Any, Any]] = {}
        for k, step in enumerate(steps):
            prompt, before = int(step.leaves["prompt"]), newest.get(step.lane)
            key = prompt if interleaved else before[1] if before and before[0] == prompt else (step.lane, k)
            newest[step.lane] = prompt, key
            groups.setdefault(key, []).append(k)
        chances = [0.0] * len(steps)
        for group in groups.values():
            if len(group) < 2:
                continue
            if take == "newest":
                first = group[-1]
            else:
                ranked = sorted(group, key=lambda k: float(steps[k].leaves["score"]))
                first = ranked[-1 if take == "best" else 0]
            chances[first] = 1.0
        return chances

    return of


@pytest.mark.parametrize(
    ("take", "interleaved", "lanes", "carriers"),
    [
        ("newest", False, 2, effort(["numpy"], ["numpy", "jax-core"])),
        ("newest", True, None, ["torch"]),
        ("best", True, 2, ["numpy"]),
        ("spread", False, 2, ["numpy", "torch"]),
    ],
)
def test_they_keep_the_contract_of_samplers(take: Any, interleaved: bool, lanes: Any, carriers: list[str]) -> None:
    item = ITEM | {"prompt": frb.Bounded(0, 1, (), "int32"), "score": frb.Bounded(-1.0, 1.0)}
    sampler = frb.Groups(2, "prompt", "score", interleaved=interleaved, take=take)
    check_sampler(sampler, item=item, lanes=lanes, law=law(take, interleaved), examples=4, run_on=carriers)


def test_a_group_as_large_as_its_lane_and_rewards_that_are_rewritten() -> None:
    import torch_backend as rb

    n = 4096
    spec = frb.BufferSpec(ITEM, n, frb.Groups(8, "prompt", "score", take="best"), batch_size=32)
    scores = np.random.default_rng(0).permutation(n).astype(np.float32)
    items = {"id": np.arange(n, dtype=np.int32), "prompt": np.zeros(n, np.int32), "score": scores}
    state = rb.add(rb.init(spec), items)
    _, sample = rb.sample(state, rb.key(0))
    assert sample.items["score"].tolist() == [[*range(n - 1, n - 9, -1)]] * 32
    state = rb.update(state, sample.indices[0], items={"score": np.full(8, -1, np.float32)})
    assert rb.sample(state, rb.key(0))[1].items["score"][0].tolist() == [*range(n - 9, n - 17, -1)]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"take": "worst"}, "expected take as one of .*'spread'.*, got 'worst'"),
        ({"take": "best"}, r"take='best' chooses items by their rewards; give reward_key="),
        (
            {"take": "newest", "interleaved": True, "writer": frb.Reservoir()},
            "needs items in the order of their adding",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    writer = {"writer": settings.pop("writer")} if "writer" in settings else {}
    with pytest.raises(ValueError, match=text):
        frb.BufferSpec(ITEM, CAPACITY, frb.Groups(2, "prompt", **settings), **writer)


def test_the_spec_is_a_value() -> None:
    spec = frb.BufferSpec(ITEM, CAPACITY, frb.Groups(2, "prompt", "score", take="spread"))
    assert frb.convert.from_json(frb.convert.to_json(spec)) == spec


def test_torch_compiles_a_draw_of_interleaved_groups_without_a_warning() -> None:
    import torch

    import torch_backend as rb

    state = rb.init(frb.BufferSpec(ITEM, CAPACITY, frb.Groups(2, "prompt", "score", interleaved=True, take="best")))
    state = rb.add(state, stored_of([(k % 3, float(k)) for k in range(9)]))
    drawn = torch.compile(rb.sample_, fullgraph=True, backend=effort("eager", "aot_eager"))
    _, sample = drawn(rb.own_(state), rb.key(0), 3)
    assert sorted(sample.items["score"].tolist()) == [[6.0, 3.0], [7.0, 4.0], [8.0, 5.0]]
