"""The sampler of groups against plain lists, and pairs of the best and the worst of each group."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from typing import Any

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb.testing import check_sampler
from tests.support import backends
from tests.support.backends import Backend
from tests.support.effort import effort

ITEM = {"id": frb.Unbounded((), "int32"), "prompt": frb.Unbounded((), "int32"), "score": frb.Unbounded(())}
CAPACITY = 12
SCORES = st.sampled_from([-1.0, 0.0, 2.0, np.nan])
# With one variant of JAX beside them, each of which takes seconds to compile what some tests need.
ON_TORCH = ("torch", "torch-core", "torch-inplace")


def stored_of(sizes: list[int]) -> dict[str, Any]:
    """Items of groups of these sizes, one group after another."""
    prompts = np.repeat(np.arange(len(sizes), dtype=np.int32) * 7 % 5, sizes)
    scores = np.random.default_rng(len(prompts)).normal(size=len(prompts)).astype(np.float32)
    return {"id": np.arange(len(prompts), dtype=np.int32), "prompt": prompts, "score": scores}


def groups_of(given: dict[str, Any]) -> list[list[int]]:
    """Of the items that a ring still holds, those that follow on each other with one prompt."""
    kept = range(max(0, len(given["id"]) - CAPACITY), len(given["id"]))
    return [list(members) for _, members in itertools.groupby(kept, key=lambda k: given["prompt"][k])]


def drawn(library: Backend, sampler: frb.Groups, given: dict[str, Any], n: int) -> Any:
    rb = library.rb
    state = rb.init(frb.BufferSpec(ITEM, CAPACITY, sampler))
    for row in range(0, len(given["id"]), 5):  # groups come in pieces
        state = rb.add(state, {name: library.array(leaf[row : row + 5]) for name, leaf in given.items()})
    return rb.sample(state, rb.key(3), n)[1]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("sizes", [[3, 1, 3, 5], [4, 4, 4], [1, 1, 3, 1, 6, 2, 3]])
def test_groups_are_drawn_as_plain_lists_have_them(whole: bool, sizes: list[int]) -> None:
    import torch_backend

    library = Backend("torch", torch_backend, torch_backend.from_dlpack, np.asarray)
    given, n = stored_of(sizes), 600
    sample = drawn(library, frb.Groups(3, "prompt", "score", whole), given, n)
    there = [group for group in groups_of(given) if len(group) >= (3 if whole else 1)]
    ids, mask = sample.items["id"].numpy(), sample.mask.numpy()
    mean, deviation = (sample.extras[f"group_{name}"].numpy() for name in ("mean", "deviation"))
    first, times = ({k: 0 for group in there for k in group} for _ in range(2))
    counts = dict.fromkeys(range(len(there)), 0)
    for row in range(n):
        (k,) = (k for k, group in enumerate(there) if ids[row, 0] in group)
        members = ids[row][mask[row]].tolist()
        place = there[k].index(members[0])
        assert members == (there[k][place:] + there[k][:place])[:3]  # around the group, none twice
        scores = given["score"][members].astype(np.float64)
        np.testing.assert_allclose(mean[row][mask[row]], scores.mean(), atol=1e-6)
        spread = scores.std(ddof=1) if len(scores) > 1 else 0
        np.testing.assert_allclose(deviation[row][mask[row]], spread, rtol=1e-5, atol=1e-6)
        assert not mean[row][~mask[row]].any()
        counts[k] += 1
        first[members[0]] += 1
        for member in members:
            times[member] += 1
    np.testing.assert_allclose(sample.probabilities.numpy(), 1 / len(there), rtol=1e-6)
    assert (sample.indices.numpy() >= 0).tolist() == mask.tolist()
    for k, group in enumerate(there):  # five standard deviations
        expected = n / len(there)
        assert abs(counts[k] - expected) < 5 * expected**0.5
        for member in group:
            assert abs(first[member] - counts[k] / len(group)) < 5 * (counts[k] / len(group)) ** 0.5
            assert abs(times[member] - counts[k] * min(3 / len(group), 1)) < 5 * counts[k] ** 0.5


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("sizes", [[3, 3, 2, 3], [2, 1, 4, 1, 3], [1, 2, 1, 2, 1, 2, 1], [5]])
def test_no_group_comes_twice_where_there_are_enough(backend: Backend, sizes: list[int], whole: bool) -> None:
    given, sampler = stored_of(sizes), frb.Groups(2, "prompt", whole=whole)
    there = [group for group in groups_of(given) if len(group) >= (2 if whole else 1)]
    of = {member: k for k, group in enumerate(there) for member in group}
    state = backend.add(backend.init(frb.BufferSpec(ITEM, CAPACITY, sampler)), given)
    counts = [len(there), 2 * len(there) + 1] + [1, len(there) + 1] * (backend.library == "torch")  # JAX compiles each
    for n in counts:
        for key in backend.rb.split(backend.rb.key(n), 4):
            state, sample = backend.sample(state, key, n)
            found = [of[k] for k in backend.numpy(sample.items["id"])[:, 0].tolist()]
            times = [found.count(k) for k in range(len(there))]
            assert max(times) - min(times) <= 1
            np.testing.assert_allclose(backend.numpy(sample.probabilities), 1 / len(there), rtol=1e-6)


@pytest.mark.parametrize("backend", effort(("jax-jit", *ON_TORCH), backends.VARIANTS), indirect=True)
def test_interleaved_items_are_brought_together_or_are_groups_of_one(backend: Backend) -> None:
    """By the sampler itself, as it is told to; before they are added; or by lanes."""
    given = stored_of([1] * 8) | {"prompt": np.array([7, 9] * 4, np.int32)}
    spec = frb.BufferSpec(ITEM, CAPACITY, frb.Groups(2, "prompt"))
    assert not bool(backend.rb.can_sample(backend.add(backend.init(spec), given), 1))
    single = dataclasses.replace(spec, sampler=frb.Groups(1, "prompt"))
    state, sample = backend.sample(backend.add(backend.init(single), given), backend.rb.key(0), 8)
    assert sorted(backend.numpy(sample.items["id"])[:, 0].tolist()) == list(range(8))
    order = np.argsort(given["prompt"], kind="stable")
    together = backend.add(backend.init(spec), {name: leaf[order] for name, leaf in given.items()})
    in_lanes = backend.init(dataclasses.replace(spec, lanes=2))
    in_lanes = backend.add(in_lanes, {name: leaf.reshape(4, 2) for name, leaf in given.items()})
    anywhere = backend.init(dataclasses.replace(spec, sampler=frb.Groups(2, "prompt", interleaved=True)))
    assert not bool(backend.rb.can_sample(anywhere, 1))
    for state in (together, in_lanes, backend.add(anywhere, given)):
        _, sample = backend.sample(state, backend.rb.key(0), 2)
        assert sorted(backend.numpy(sample.items["prompt"]).tolist()) == [[7, 7], [9, 9]]
        assert all(len(set(ids)) == 2 for ids in backend.numpy(sample.items["id"]).tolist())


@pytest.mark.parametrize("backend", effort(("jax-core", *ON_TORCH), backends.VARIANTS), indirect=True)
def test_smaller_groups_are_left_out_or_masked_and_never_filled_up(backend: Backend) -> None:
    given = {"id": np.arange(5), "prompt": np.array([7, 7, 9, 9, 9]), "score": np.array([2, 4, 1, 2, 6])}
    given = {name: leaf.astype(ITEM[name].dtype) for name, leaf in given.items()}
    members = {7: [0, 1], 9: [2, 3, 4]}
    for whole in (True, False):
        spec = frb.BufferSpec(ITEM, CAPACITY, frb.Groups(3, "prompt", "score", whole=whole))
        _, sample = backend.sample(backend.add(backend.init(spec), given), backend.rb.key(0), 2)
        ids, mask, handles = (backend.numpy(x) for x in (sample.items["id"], sample.mask, sample.indices))
        mean = backend.numpy(sample.extras["group_mean"])
        prompts = backend.numpy(sample.items["prompt"])[:, 0].tolist()
        assert sorted(prompts) == ([9, 9] if whole else [7, 9])
        for row, prompt in enumerate(prompts):
            count = len(members[prompt])
            assert mask[row].tolist() == [k < count for k in range(3)]
            assert sorted(ids[row, :count].tolist()) == members[prompt]
            assert handles[row, count:].tolist() == [-1] * (3 - count)
            assert mean[row].tolist() == [3] * count + [0] * (3 - count)


# Torch warns that it copies numbers which are the same for all that is mapped over.
@pytest.mark.filterwarnings("ignore:torch.searchsorted.*non-contiguous")
def test_each_order_of_groups_is_equally_likely() -> None:
    import torch

    import torch_backend as rb

    state = rb.add(rb.init(frb.BufferSpec(ITEM, CAPACITY, frb.Groups(2, "prompt"))), stored_of([2, 2, 2, 3]))
    times: dict[tuple[int, ...], int] = {}
    draws = effort(1200, 2400)
    drawn = torch.func.vmap(lambda key: rb.sample(state, key, 2)[1].items["id"][:, 0])(rb.split(rb.key(0), draws))
    for ids in drawn.tolist():
        pair = tuple(k // 2 if k < 6 else 3 for k in ids)
        times[pair] = times.get(pair, 0) + 1
    assert len(times) == 12
    assert all(abs(count - draws / 12) < 5 * (draws / 12) ** 0.5 for count in times.values())


def law(steps: Any) -> list[float]:
    """Each group of two or more is equally likely, and then each of its items."""
    found: dict[Any, list[int]] = {}
    newest: dict[Any, int] = {}
    for k, step in enumerate(steps):
        before = newest.get(step.lane)
        alike = before is not None and steps[before].leaves["prompt"] == step.leaves["prompt"]
        run = found[step.lane, before] if alike else []
        run.append(k)
        found[step.lane, k] = run
        newest[step.lane] = k
    sizes = {k: len(run) for (_, k), run in found.items()}
    return [1 / sizes[k] if sizes[k] >= 2 else 0.0 for k in range(len(steps))]


@pytest.mark.parametrize(("lanes", "carriers"), [(None, ["torch"]), (2, ["numpy", "jax-core"])])
def test_groups_keep_the_contract_of_samplers(lanes: int | None, carriers: list[str]) -> None:
    item = ITEM | {"prompt": frb.Bounded(0, 1, (), "int32")}
    check_sampler(frb.Groups(2, "prompt", "score"), item=item, lanes=lanes, law=law, examples=6, run_on=carriers)


def law_of_keys(steps: Any) -> list[float]:
    """Each prompt of which two items are stored is equally likely, and then each of its items."""
    prompts = [int(step.leaves["prompt"]) for step in steps]
    return [1 / prompts.count(prompt) if prompts.count(prompt) >= 2 else 0.0 for prompt in prompts]


@pytest.mark.parametrize(
    ("lanes", "writer", "carriers"),
    [(None, None, ["torch"]), (2, None, ["numpy"]), (None, frb.Reservoir(), ["numpy"])],
)
def test_interleaved_groups_keep_the_contract_of_samplers(lanes: Any, writer: Any, carriers: list[str]) -> None:
    item, sampler = (
        ITEM | {"prompt": frb.Bounded(0, 3, (), "int32")},
        frb.Groups(2, "prompt", "score", interleaved=True),
    )
    check_sampler(sampler, item=item, lanes=lanes, writer=writer, law=law_of_keys, examples=4, run_on=carriers)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "uint32"])
def test_interleaved_groups_differ_within_a_batch(dtype: str) -> None:
    """Of keys of every width, of which some differ in their upper word alone; some items are overwritten already."""
    import torch_backend as rb

    item = {"prompt": frb.Unbounded((), dtype), "id": frb.Unbounded((), "int32")}
    number = np.arange(20, dtype=np.int32)
    prompts = (number % 4).astype(dtype) * (2**32 if dtype == "int64" else 1) + (number % 5 == 0).astype(dtype)
    spec = frb.BufferSpec(item, 16, frb.Groups(3, "prompt", whole=False, interleaved=True))
    assert frb.convert.from_json(frb.convert.to_json(spec)) == spec
    state = rb.add(rb.init(spec), {"prompt": prompts, "id": number})
    there = {int(prompt): set(number[4:][prompts[4:] == prompt].tolist()) for prompt in prompts[4:]}
    for key in rb.split(rb.key(0), 8).unbind():
        _, sample = rb.sample(state, key, len(there) + 1)
        drawn = sample.items["prompt"][:, 0].tolist()
        assert set(drawn) == there.keys()
        for prompt, ids, mask in zip(drawn, sample.items["id"].tolist(), np.asarray(sample.mask), strict=True):
            found = [number for number, real in zip(ids, mask, strict=True) if real]
            assert len(found) == len({*found}) == min(3, len(there[prompt]))
            assert {*found} <= there[prompt]


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("writer", [frb.RoundRobin(), frb.Reservoir()], ids=str)
def test_interleaved_groups_are_drawn_from_a_mixture(writer: Any, library: Backend) -> None:
    rb, buffers = library.rb, []
    spec = frb.BufferSpec(ITEM, CAPACITY, frb.Groups(2, "prompt", interleaved=True), writer)
    for first in (0, 100):
        ids = np.arange(first, first + 8, dtype=np.int32)
        items = {"id": ids, "prompt": ids % 3, "score": np.zeros(8, np.float32)}
        named = {"key": rb.key(0)} if writer.words else {}
        buffers.append(rb.add(rb.init(spec), library.tree(items), **named))
    sample = rb.sample(frb.Mixture(buffers), rb.key(1), 40)[1]
    ids, prompts = (library.numpy(sample.items[name]) for name in ("id", "prompt"))
    assert library.numpy(sample.mask).all()
    assert (ids[:, 0] != ids[:, 1]).all()
    assert (prompts == ids[:, :1] % 3).all()
    assert (ids // 100 == library.numpy(sample.extras["buffer_ids"]).reshape(40, -1)[:, :1]).all()
    assert {*(ids[:, 0] // 100 * 3 + prompts[:, 0]).tolist()} == {*range(6)}


def test_the_spec_is_a_value_and_the_key_cannot_be_rewritten() -> None:
    import torch_backend as rb

    spec = frb.BufferSpec(ITEM, CAPACITY, frb.Groups(2, "prompt"), batch_size=3)
    assert frb.convert.from_json(frb.convert.to_json(spec)) == spec
    state = rb.init(spec)
    one = rb.add(state, {name: leaf[0] for name, leaf in stored_of([1]).items()})
    with pytest.raises(ValueError, match="none of the 1 stored items completes a group of 2 items; add more, or give"):
        rb.sample(one, rb.key(0))
    with pytest.raises(ValueError, match="'prompt' tells Groups where trajectories end, and cannot be rewritten"):
        rb.update(state, np.zeros(1, np.int32), items={"prompt": np.zeros(1, np.int32)})


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (lambda: frb.Groups(0, "prompt"), "expected per_group as a positive int, got 0"),
        (lambda: frb.Groups(np.array([2, 3]), "prompt"), "expected per_group as a positive int, got array"),
        (lambda: frb.Groups(2.5, "prompt"), "expected per_group as a positive int, got 2.5"),  # type: ignore[arg-type]  # refused
        (lambda: frb.Groups(2, "prompt", whole=1), "expected whole as a bool, got 1"),  # type: ignore[arg-type]  # refused
        (lambda: frb.Groups(13, "prompt"), "13 items of a group never fit into the 12 of a lane"),
        (lambda: frb.Groups(13, "prompt", interleaved=True), "13 items of a group never fit into the 12 of a buffer"),
        (lambda: frb.Groups(2, "score", interleaved=True), "expected one integer an item, got float32"),
        (lambda: frb.Groups(2, "group"), "the item has no leaf 'group'"),
        (lambda: frb.Groups(2, "score"), "expected one integer an item, got float32"),
        (lambda: frb.Groups(2, "prompt", "reward"), "the item has no leaf 'reward'"),
    ],
)
def test_settings_that_cannot_be_are_refused(sampler: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        frb.BufferSpec(ITEM, CAPACITY, sampler())


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.lists(st.lists(SCORES, min_size=3, max_size=3), min_size=1, max_size=4))
def test_best_and_worst_of_each_group_are_a_pair(rows: list[list[float]]) -> None:
    import torch_backend as rb

    scores, ids = np.float32(rows), np.arange(len(rows) * 3, dtype=np.int32).reshape(-1, 3)
    mask = ids % 4 != 3
    pairs, differ = rb.text.pairs_of_groups({"id": ids}, scores, mask)
    for k in range(len(rows)):
        known = [(scores[k, i], i) for i in range(3) if mask[k, i] and not np.isnan(scores[k, i])]
        if not known:
            assert not differ[k]
            continue
        best = max(known, key=lambda pair: (pair[0], -pair[1]))
        worst = min(known)
        assert differ[k] == (best[0] > worst[0])
        assert pairs.chosen_data["id"][k] == ids[k, best[1]]
        assert pairs.rejected_data["id"][k] == ids[k, worst[1]]


def test_pairs_of_records_on_either_backend(library: Backend) -> None:
    rb, array = library.rb, library.array
    ids = array(np.arange(12, dtype=np.int32).reshape(2, 3, 2))
    scores = array(np.float32([[0, 1, -1], [5, 4, 6]]))
    texts = frb.text.RewardData(ids, ids >= 0, end_scores=scores)
    pairs, differ = rb.text.pairs_of_groups(texts, scores)
    assert type(pairs.chosen_data) is frb.text.RewardData
    assert pairs.chosen_data.input_ids.tolist() == [[2, 3], [10, 11]]
    assert pairs.rejected_data.end_scores.tolist() == [-1, 4]
    assert differ.tolist() == [True, True]
    with pytest.raises(ValueError, match=r"leaf 'x': expected the leading axes \(2, 3\) of the scores, got \(2, 2\)"):
        rb.text.pairs_of_groups({"x": array(np.zeros((2, 2), np.float32))}, scores)


def test_pairs_of_arrays_of_numpy_whatever_their_memory(library: Backend) -> None:
    """That is read-only, runs backwards, has a dtype that is not NumPy's own; others are refused."""
    fixed = np.arange(6, dtype=np.int32).reshape(2, 3)
    fixed.flags.writeable = False
    given = {"fixed": fixed, "back": fixed[:, ::-1], "few": fixed.astype(ml_dtypes.bfloat16)}
    pairs, _ = library.rb.text.pairs_of_groups(given, np.float32([[1, 3, 2], [6, 5, 4]]))
    assert {name: x.tolist() for name, x in pairs.chosen_data.items()} == {
        "fixed": [1, 3], "back": [1, 5], "few": [1, 3]
    }  # fmt: skip
    with pytest.raises(TypeError, match="leaf 'x': expected numbers, got Python objects; leave the leaf out"):
        library.rb.text.pairs_of_groups({"x": np.full((2, 3), "a", object)}, np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"leaf 'x'.*int32"):
        library.rb.text.pairs_of_groups({"x": fixed.astype(">i4")}, np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_pairs_never_change_a_dtype(library: Backend, dtype: type) -> None:
    """What JAX has in its 64-bit mode alone comes back as it is, or is refused."""
    given = {"reply": {"id": np.array([[1, 2**40, 3]], dtype)}}
    if library.name.startswith("torch"):
        pairs, _ = library.rb.text.pairs_of_groups(given, np.float32([[0, 1, 0.5]]))
        assert pairs.chosen_data["reply"]["id"].tolist() == [2**40]
        return
    expected = rf"pairs_of_groups: leaf 'reply/id': dtype {dtype.__name__} needs JAX's 64-bit mode.*or use "
    with pytest.raises(TypeError, match=expected):
        library.rb.text.pairs_of_groups(given, np.float32([[0, 1, 0.5]]))


def test_advantages_of_groups_are_those_of_plain_python(library: Backend) -> None:
    rng = np.random.default_rng(0)
    scores = (rng.normal(size=(9, 4)) * 10.0 ** rng.integers(-2, 4, (9, 1)) + 3).astype(np.float32)
    mask = np.ones((9, 4), bool)
    mask[5:, 3], mask[6:8, 1:], mask[7] = False, False, False  # of the last of these nothing is left
    scores[8] = np.float32(12345.67)  # all three alike, of which the mean would be rounded
    expected = {scale: np.zeros((9, 4)) for scale in (True, False)}
    for group in range(9):
        there = [float(x) for x in scores[group][mask[group]]]
        for k in np.flatnonzero(mask[group]):
            apart = float(scores[group, k]) - statistics.fmean(there)
            spread = statistics.stdev(there) if len(there) > 1 else 0.0
            expected[False][group, k] = apart
            expected[True][group, k] = apart / (spread + 1e-3)
    scores[~mask] = np.nan  # what is not there counts for nothing
    function = library.rb.text.group_advantages
    for scale, known in expected.items():
        found = library.numpy(function(library.array(scores), library.array(mask), scale=scale, epsilon=1e-3))
        np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-5)
        assert (found[8] == 0).all()
    whole = library.numpy(function(library.array(scores[:5])))
    np.testing.assert_allclose(whole.std(1, ddof=1), 1, rtol=0.02)  # of the smallest, 0.01 apart, by the epsilon
    with pytest.raises(ValueError, match="the score of item 3 of group 5 is nan; give a finite one, or mask it"):
        function(library.array(scores))
    with pytest.raises(ValueError, match="expected epsilon as a positive number, got 0"):
        function(library.array(scores), epsilon=0)
    for wrong in ("1", 1j, None, [1e-4], object(), 10**400, np.ones(1), torch.tensor(1.0, device="meta")):
        with pytest.raises(ValueError, match="group_advantages: expected epsilon as a positive number, got"):
            function(library.array(scores[:5]), epsilon=wrong)


def test_advantages_by_what_the_sampler_tells() -> None:
    """The mean and the deviation of `frb.Groups` are those of the function."""
    import torch_backend as rb

    spec = frb.BufferSpec(ITEM, CAPACITY, frb.Groups(3, "prompt", "score", whole=False), batch_size=8)
    state = rb.add(rb.init(spec), stored_of([4, 3, 2, 1]))
    _, sample = rb.sample(state, rb.key(0))
    told = (sample.items["score"] - sample.extras["group_mean"]) / (sample.extras["group_deviation"] + 1e-4)
    found = rb.text.group_advantages(sample.items["score"], sample.mask)
    np.testing.assert_allclose(found[sample.mask], told[sample.mask], atol=1e-5)
    assert (~sample.mask).any()
