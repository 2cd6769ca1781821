"""What the version chain does for samplers and writers, where random programs seldom come."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.agreement import added_steps
from tests.agreement.carriers import agreeing, content, counter, items, noting
from tests.support.backends import needs_native
from tests.support.chain_programs import outcome, peek, told

pytestmark = needs_native
ITEM = {"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8"), "x": frb.Unbounded((3,))}
STEP = ITEM | {"done": frb.Binary(())}
BY_NUMBER = frb.MaxValue("id")
ENDS: Any = {"end_keys": ("done",)}
AHEAD = frb.n_step(2, 0.9, reward_key="x", terminated_key="done", **ENDS)
WAITING = frb.n_step(3, 0.9, at="add", reward_key="x", terminated_key="done")
SAMPLERS = (
    *(frb.Uniform(), frb.Prioritized(), frb.Prioritized(replacement=False), frb.Prioritized(max_times_sampled=3)),
    frb.Prioritized(replacement=False, alpha=1.0, new_priority="ever", max_times_sampled=2),
    *(frb.Uniform(max_times_sampled=1), frb.WithoutReplacement(), frb.WithoutReplacement(drop_last=True)),
    *(frb.WithoutReplacement(shuffle=False), frb.WithoutReplacement(shuffle=False, drop_last=True)),
    *(frb.Queue(), frb.Queue(2), frb.Recency(), frb.Recency(5)),
    *(frb.InOrder(newest_first=True), frb.InOrder(1), frb.InOrder(3, newest_first=True)),
    *(kind(2, **ENDS) for kind in (frb.Slices, frb.PrioritizedSlices, frb.SlicesWithoutReplacement)),
)


def steps(seed: int, n: int, lanes: int | None = None) -> dict[str, Any]:
    batch = items(11 * seed, n, lanes)
    return batch | {"done": np.random.default_rng(seed).random(batch["id"].shape) < 0.2}


# --- which calls of users are the chain's ---------------------------------------------------------------------------

# Of each kind of buffer what the chain leaves to others; it does all other calls itself, from what users give.
LEFT: dict[str, tuple[dict[str, Any], set[str]]] = {repr(x): ({"sampler": x}, set()) for x in SAMPLERS}
LEFT["versions"] = {"sampler": frb.Staleness("id", 30)}, set()
for one in (frb.Reservoir(), BY_NUMBER, *(frb.MaxValue("x", reduction=how) for how in ("max", "median"))):
    ranked_anew = set() if one == frb.Reservoir() else {"rewrite"}
    LEFT |= {f"{one}, {x}": ({"writer": one, "sampler": x}, ranked_anew) for x in (frb.Uniform(), frb.Prioritized())}
LEFT |= {
    "ranks by images": ({"writer": frb.MaxValue("image")}, {"add", "sample", "sample_", "rewrite"}),
    "epochs of a reservoir": (
        {"writer": frb.Reservoir(), "sampler": frb.WithoutReplacement()},
        {"add", "sample", "sample_"},
    ),
    "fresh slices": ({"sampler": frb.Slices(2, fresh_first=True, **ENDS)}, set()),
    "returns": ({"transforms": AHEAD}, set()),
    "epochs of returns": ({"transforms": AHEAD, "sampler": frb.WithoutReplacement()}, set()),
}


@pytest.mark.parametrize("name", LEFT)
def test_which_calls_are_the_chains(name: str) -> None:
    fields, left = LEFT[name]
    more = {"writer": frb.StopWhenFull()} if "Queue" in name else {}
    spec = frb.BufferSpec(STEP, 40, **more | fields)
    three, key = torch.arange(3, dtype=torch.int32), rb.key(0)
    rewritten = {"x": torch.ones(3, 3)}
    calls: dict[str, Any] = {
        "add": lambda: rb.add(rb.init(spec), steps(0, 12), key=key if spec.writer.words else None),
        "sample": lambda: rb.sample(state, key, 4),
        "sample_": lambda: rb.sample_(calls["add"](), key, 4),
        "rewrite": lambda: rb.update(state, three, None, rewritten),
    }
    if spec.sampler.has_priorities:
        calls["update"] = lambda: rb.update(state, three, torch.ones(3))
        calls["update_"] = lambda: rb.update_(calls["add"](), three, torch.ones(3))
    state = calls["add"]()
    for function, call in calls.items():
        with noting() as chain:
            call()
        assert chain.calls["update" if function == "rewrite" else function] == (function not in left), function


@pytest.mark.parametrize("capacity", [16, 17, 48, 256])
def test_ranks_are_a_tree_over_any_number_of_slots(capacity: int) -> None:
    """Whole groups of children and not."""
    spec = frb.BufferSpec(ITEM, capacity, writer=BY_NUMBER)

    def life() -> list[Any]:
        states = [rb.init(spec)]
        for first in (100, 0, 300, 200):
            states.append(rb.add(states[-1], items(first, capacity * 2 // 3)))
        return [content(state) for state in reversed(states)]

    assert agreeing(life)[1]["add"] == 4


@pytest.mark.parametrize("writer", [frb.Reservoir(), frb.MaxValue("x", reduction="max")], ids=repr)
@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized(max_times_sampled=3)], ids=repr)
def test_steps_that_wait_are_the_cores_to_add_and_the_chains_to_draw(writer: Any, sampler: Any) -> None:
    spec = frb.BufferSpec(STEP, 20, sampler, writer, lanes=2, transforms=WAITING)

    def life() -> list[Any]:
        state, samples = rb.init(spec), []
        for seed in range(3):
            state = rb.add(state, steps(seed, 14, 2), key=rb.key(seed) if writer.words else None)
            state, sample = rb.sample(state, rb.key(seed), 6)
            samples.append(told(spec, sample))
            if sampler.has_priorities:
                state = rb.update(state, sample.indices, sample.weights * 2)
        return [content(state), samples]

    calls = agreeing(life)[1]
    assert calls["add"] == calls["write"] == 0
    assert calls.total() == (6 if sampler.has_priorities else 3)


@pytest.mark.parametrize("function", ["add", "sample", "update", "add_"])
@pytest.mark.parametrize("fields", [{"lanes": 3}, {"writer": BY_NUMBER}], ids=["lanes", "a writer"])
def test_counters_that_a_user_has_shortened_are_not_read_behind(fields: Any, function: str) -> None:
    """Of lanes and of writers there are more than the first ones that all buffers have."""
    state = rb.add(rb.init(frb.BufferSpec(ITEM, 60, frb.Prioritized(), **fields)), items(0, 21, fields.get("lanes")))
    state.counters.resize_(len(state.counters) - 1)
    given: dict[str, Any] = {"sample": (rb.key(0), 4), "update": (torch.arange(4, dtype=torch.int32), torch.ones(4))}
    with noting() as chain:
        outcome(getattr(rb, function), state, *given.get(function, (items(0, 3, fields.get("lanes")),)))
    assert chain.done == 0


# --- draws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 300, 1100])
def test_a_race_in_a_deep_tree_has_the_cores_order(size: int) -> None:
    """Of values over all of the range, so that some arrive much later than most, and some never."""
    rng = np.random.default_rng(size)
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 5000, frb.Prioritized(replacement=False, alpha=1.0))
    state = rb.add(rb.init(spec), {"id": np.arange(5000, dtype=np.int32)})
    priorities = np.where(rng.random(5000) < 0.8, 0, np.exp(rng.normal(0, 20, 5000))).astype(np.float32)
    state = rb.update(state, np.arange(5000, dtype=np.int32), priorities)
    agreeing(lambda: told(spec, rb.sample(state, rb.key(3), size, beta=0.5)[1]))


ADDED_UP = [(transform, added_steps.ITEM) for transform in added_steps.WAITING]
ADDED_UP += [(transform, added_steps.ITEM | added_steps.OF_AGENTS) for transform in added_steps.WAITING_OF_AGENTS]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("k", range(len(ADDED_UP)))
@pytest.mark.parametrize(
    "sampler",
    [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement(), frb.Prioritized(replacement=False)],
    ids=repr,
)
def test_what_was_added_up_is_told_beside_the_items(sampler: Any, k: int) -> None:
    transform, item = ADDED_UP[k]
    spec = frb.BufferSpec(item, 40, sampler, lanes=2, transforms=transform)
    state, rng = rb.init(spec), np.random.default_rng(k)
    for _ in range(3):
        state = rb.add(state, added_steps.items(rng, 0, 14, spec))

    found, calls = agreeing(lambda: [told(spec, rb.sample(state, rb.key(5), 16)[1])])
    assert calls["sample"] == 1
    with noting() as chain:
        assert [told(spec, rb.sample_(rb.own_(state), rb.key(5), 16)[1])] == found
    assert chain.calls["sample_"] == 1


def test_steps_without_a_priority_are_not_drawn() -> None:
    """Not even where no step has one: a window begins at each."""
    state = rb.add(rb.init(frb.BufferSpec(STEP, 8, frb.PrioritizedSlices(1, **ENDS))), steps(0, 8))
    one = rb.update(state, np.arange(8), np.array([0, 0, 0, 2, 0, 0, 0, 0], np.float32))
    assert set(rb.sample(one, rb.key(0), 20)[1].indices[:, 0].tolist()) == {3}
    none = rb.update(state, np.arange(8), np.zeros(8, np.float32))
    with pytest.raises(ValueError, match="with a positive priority"):
        rb.sample(none, rb.key(0), 3)


def test_slices_of_objects_are_read() -> None:
    item = {"done": frb.Binary(), "text": frb.specs.NonTensor()}
    batch = {"done": np.arange(12) % 5 == 4, "text": [str(k) for k in range(12)]}
    spec = frb.BufferSpec(item, 16, frb.Slices(3, strict_length=False, **ENDS), storage=frb.Host())
    state = rb.add(rb.init(spec), batch)

    def life() -> list[Any]:
        sample = rb.sample(state, rb.key(4), 6)[1]
        return [sample.items["text"].tolist(), sample.indices.tolist(), sample.mask.tolist()]

    agreeing(life)


# --- epochs ---------------------------------------------------------------------------------------------------------


def test_an_older_version_of_an_epoch_is_saved_while_newer_ones_are_drawn(tmp_path: Path) -> None:
    spec = frb.BufferSpec(ITEM, 30, frb.WithoutReplacement(drop_last=True), batch_size=4)
    older, _ = rb.sample(rb.add(rb.init(spec), items(0, 30)), rb.key(0))
    expected, reader, newer = content(older), older.reader(), older
    for seed in range(3):
        newer, _ = rb.sample(newer, rb.key(seed))
    for name in [name for name in expected if "order" in name or "place" in name]:
        assert b"".join(reader.read(name, k, k + 10).tobytes() for k in (0, 10, 20)) == expected[name]
    reader.close()
    frb.save(older, tmp_path / "older")
    assert content(frb.load(tmp_path / "older", rb)) == expected


def test_the_count_of_epochs_stays_at_its_largest() -> None:
    spec = frb.BufferSpec(ITEM, 4, frb.WithoutReplacement())

    def life() -> list[int]:
        state = rb.add(rb.init(spec), items(0, 4))
        state._counters[counter(spec, "epochs_done")] = 2**31 - 2
        first, _ = rb.sample(state, rb.key(0), 9)
        return [int(rb.counts(each).epochs_done) for each in (first, rb.sample(first, rb.key(0), 9)[0])]

    assert agreeing(life)[0] == [2**31 - 1] * 2


def test_nothing_to_draw_leaves_everything_as_it_was() -> None:
    spec = frb.BufferSpec(ITEM, 9, frb.WithoutReplacement(drop_last=True))
    state, _ = rb.sample(rb.add(rb.init(spec), items(0, 5)), rb.key(0), 3)
    before, rows = peek(state), state._version.own().rows
    with pytest.raises(ValueError, match="drop_last drops smaller ones"):
        rb.sample(state, rb.key(0), 6)
    assert peek(state) == before
    assert rb.sample(state, rb.key(1), 3)[0]._version.own().rows is rows, "the next draw writes to the same memory"


def test_a_function_that_fails_leaves_a_state_as_it_was() -> None:
    """What `sample_` has drawn is taken back."""
    calls = [0]

    def sometimes(batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("the second batch")
        return batch

    spec = frb.BufferSpec(ITEM, 9, frb.WithoutReplacement(), transforms=frb.map_items(sometimes))
    state, _ = rb.sample_(rb.own_(rb.add(rb.init(spec), items(0, 9))), rb.key(0), 4)
    before = content(state)
    with pytest.raises(ValueError, match="the second batch"):
        rb.sample_(state, rb.key(1), 4)
    assert content(state) == before
    rest = rb.sample_(state, rb.key(1), 5)[1].items["id"]
    assert len(set(rest.tolist())) == 5


def test_threads_draw_each_item_once() -> None:
    """From one state after the other, which each thread takes from the one before."""
    lock, seen = threading.Lock(), []
    states = [rb.add(rb.init(frb.BufferSpec(ITEM, 300, frb.WithoutReplacement(drop_last=True))), items(0, 300))]

    def draw() -> None:
        for _ in range(10):
            with lock:
                states.append(rb.sample(states[-1], rb.key(len(states)), 10)[0])
            rb.sample(states[len(states) // 2], rb.key(0), 10)

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(30):
        seen += rb.sample(states[k], rb.key(k + 1), 10)[1].items["id"].tolist()
    assert sorted(seen) == list(range(300))


# --- writers that choose --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("writer", "key"), [(frb.Reservoir(), None), (BY_NUMBER, "no key")], ids=repr)
def test_keys_are_the_references_to_refuse(writer: Any, key: Any) -> None:
    state = rb.init(frb.BufferSpec(ITEM, 20, writer=writer))
    (_, (kind, words)), _ = agreeing(lambda: outcome(lambda: rb.add(state, items(0, 7), key=key)))
    assert kind in (TypeError, ValueError)
    assert "key" in words


def test_a_reservoir_counts_no_more_items_than_an_int32_holds() -> None:
    """From then on every item goes to a slot drawn from that many."""
    spec = frb.BufferSpec(ITEM, 3, writer=frb.Reservoir())
    full = rb.add(rb.init(spec), items(0, 5), key=rb.key(0))
    full._counters[counter(spec, "seen")] = 2**31 - 4

    def life() -> list[Any]:
        state = rb.add(full, items(5, 400), key=rb.key(1))
        return [int(state._counters[counter(spec, "seen")]), peek(state)]

    (seen, _), calls = agreeing(life)
    assert calls["add"] == 1
    assert seen == 2**31 - 2


def test_what_checkpoints_need_of_files_the_recorder_keeps(tmp_path: Path) -> None:
    """It alone learns which slots are chosen before they are written."""
    spec = frb.BufferSpec(ITEM, 20, writer=frb.Reservoir(), storage=frb.Memmap(str(tmp_path / "rows")))
    state, done = rb.init(spec), []
    for seed in range(4):
        with noting() as chain:
            state = rb.add(state, items(15 * seed, 15), key=rb.key(seed))
        done.append(chain.done)
        if seed == 1:
            frb.save(state, tmp_path / "rows")
            saved = content(state)
    assert done == [1, 1, 0, 0]
    del state
    shutil.copytree(tmp_path / "rows", tmp_path / "copied")
    assert content(frb.load(tmp_path / "copied", "torch")) == saved
