"""Buffers whose lanes are dealt to processes: what each gets is its share of what one process would have drawn."""

from __future__ import annotations

import dataclasses
import os
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import functional_rb as frb
import torch_backend as rb
from functional_rb.core import counters
from functional_rb.core.draft import Draft
from functional_rb.ops import numpy_ops
from functional_rb.sharding import local
from functional_rb.sharding.deal import by_shard, deal, sizes_of_shards
from tests.scale.process_group import ProcessGroup
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops
from torch_backend.arrays.random import draws
from torch_backend.scale.state import ShardedState

# Five lanes are uneven on 2 and on 3 processes; four are on 3, of which then one has none.
LANES, LENGTH, STEPS, BATCH = 5, 8, 4, 24
ITEM = {
    "x": frb.Unbounded((2,)),
    "image": frb.Bounded(0, 255, (40, 40), "uint8"),
    "half": frb.Unbounded((), "bfloat16"),
    "reward": frb.Unbounded(()),
    "next": {"x": frb.Unbounded((2,)), "done": frb.Binary(())},
    "episode": frb.Unbounded((), "int32"),
}
SAMPLERS = {
    "uniform": frb.Uniform(),
    "prioritized": frb.Prioritized(),
    "prioritized, with a limit": frb.Prioritized(alpha=1.0, new_priority="ever", max_times_sampled=2),
    "recency": frb.Recency(3),
    "staleness": frb.Staleness("episode", max_staleness=1),
    "without replacement": frb.WithoutReplacement(),
    "slices": frb.Slices(3),
    "slices, by windows": frb.Slices(3, weighting="window", strict_length=False, span=True),
    "slices, fresh ones first": frb.Slices(2, fresh_first=True),
    "slices, prioritized": frb.PrioritizedSlices(2),
    "groups": frb.Groups(2, "episode", "reward", whole=False),
    "groups, furthest apart": frb.Groups(2, "episode", "reward", whole=False, take="spread"),
}
OTHERS: dict[str, dict[str, Any]] = {
    "n-step": {"sampler": frb.Prioritized(), "transforms": frb.n_step(3, 0.5)},
    "n-step slices": {"sampler": frb.Slices(2), "transforms": frb.n_step(2, 0.5)},
    "stopping when full": {"writer": frb.StopWhenFull()},
    "n-step of added": {"sampler": frb.Prioritized(), "transforms": frb.n_step(3, 0.5, at="add")},
    "n-step of added, groups": {
        "sampler": frb.Groups(2, "episode", "reward", whole=False, interleaved=True),
        "transforms": frb.n_step(4, 0.5, at="add"),
    },
    "compact": {"sampler": frb.Prioritized(), "compact": frb.Compact(spare=0), "transforms": frb.n_step(3, 0.5)},
    "compact slices": {"sampler": frb.Slices(2), "compact": frb.Compact(spare=0)},
    "queue": {"sampler": frb.Queue(2), "lanes": 4, "capacity": 4 * 40},
    "queue of one lane": {"sampler": frb.Queue(), "lanes": 1, "capacity": 6 * LENGTH},
    "in order": {"sampler": frb.InOrder(2, newest_first=True), "lanes": 1},
    "reservoir": {"sampler": frb.Prioritized(), "writer": frb.Reservoir(), "capacity": 19},
    "best": {"writer": frb.MaxValue(("next", "x")), "capacity": 20},
    "best, with ties": {"sampler": frb.Prioritized(), "writer": frb.MaxValue("episode"), "capacity": 19},
}
SPECS = {name: frb.BufferSpec(ITEM, LANES * LENGTH, sampler, lanes=LANES) for name, sampler in SAMPLERS.items()} | {
    name: frb.BufferSpec(**{"item": ITEM, "capacity": LANES * LENGTH, "lanes": LANES, **more})
    for name, more in OTHERS.items()
}

# What two processes share too, in `make test`.
PAIRS = ("prioritized", "without replacement", "n-step", "n-step of added, groups", "compact slices", "queue", "best")


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessGroup]:
    group = ProcessGroup(3)
    yield group
    group.close()


def steps(spec: frb.BufferSpec, seed: int) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """Steps of all lanes, [STEPS, lanes, *shape], a mask and priorities."""
    rng = np.random.default_rng(seed)
    lead = STEPS, spec.lanes or 1

    def floats(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal((*lead, *shape)).astype(np.float32))

    x, done = floats(2), torch.from_numpy(rng.random(lead) < 0.2)
    following = torch.where(done[..., None], x + 1, x.roll(-1, 0))  # as compact storage shares it
    items = {
        "x": x,
        "image": torch.from_numpy(rng.integers(0, 255, (*lead, 40, 40)).astype(np.uint8)),
        "half": floats().to(torch.bfloat16),
        "reward": floats(),
        "next": {"x": following, "done": done},
        "episode": torch.from_numpy(rng.integers(0, 3, lead).astype(np.int32)),
    }
    return items, torch.from_numpy(rng.random(lead) < 0.7), torch.from_numpy(rng.random(lead).astype(np.float32))


def own_lanes(group: Any, spec: frb.BufferSpec, nested: Any) -> Any:
    """What a process gives of its own lanes; in place of those that there are not, zeros."""
    each, rank = deal(spec, dist.get_world_size(group)).lanes_each, dist.get_rank(group)
    missing = each * dist.get_world_size(group) - (spec.lanes or 1)

    def own(x: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([x, x.new_zeros((len(x), missing, *x.shape[2:]))], 1)
        return padded[:, rank * each : (rank + 1) * each]

    return {name: own_lanes(group, spec, x) for name, x in nested.items()} if isinstance(nested, dict) else own(nested)


def assert_share(group: Any, whole: Any, own: Any, real: torch.Tensor) -> None:
    """The rows of a process among those of all, to the bit, where there are any."""
    if isinstance(whole, dict):
        assert whole.keys() == own.keys()
        for name, part in whole.items():
            assert_share(group, part, own[name], real)
    elif whole is not None:
        expected = whole.chunk(dist.get_world_size(group))[dist.get_rank(group)]
        assert own.dtype == expected.dtype
        assert own.shape == expected.shape
        if own.shape[: real.dim()] == real.shape:
            own, expected = own[real], expected[real]
        assert torch.equal(own.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def assert_same_draws(group: Any, sharded: Any, whole: Any, seed: int, in_place: bool) -> tuple[Any, Any, Any, Any]:
    """Both states afterwards, and the samples."""
    drawn = rb.sample_ if in_place else rb.sample
    whole, expected = drawn(whole, rb.key(seed), BATCH)
    sharded, found = drawn(sharded, rb.key(seed), BATCH)
    assert type(found) is type(expected)
    real = found.indices >= 0
    for name in ("items", "indices", "weights", "probabilities", "mask", "is_first", "is_last", "truncated", "extras"):
        assert_share(group, getattr(expected, name), getattr(found, name), real)
    return sharded, whole, found, expected


def drawn_by(spec: frb.BufferSpec, seed: int) -> dict[str, Any]:
    """The key that `add` takes, if the writer draws."""
    return {"key": rb.key(seed)} if spec.writer.words else {}


def takes_priorities(spec: frb.BufferSpec) -> bool:
    """Whether `add` may be given any."""
    return spec.sampler.has_priorities and not any(transform.delays for transform in spec.transforms)


def assert_part_has_what_the_index_says(state: Any) -> None:
    """Each lane, or part, as many items, which `rb.size(state.part)` tells and checkpoints ask for."""
    index, part = (counters.read(x.spec.plan, x.counters.numpy()).ends for x in (state.index, state.part))
    if state.dealing.by_slots:
        assert int(part.sizes[0]) == sizes_of_shards(numpy_ops, state.dealing, index)[state.rank]
    else:
        assert part.sizes.tolist() == by_shard(numpy_ops, state.dealing, index.sizes)[state.rank].tolist()


def same_program(group: Any, spec: frb.BufferSpec, in_place: bool) -> None:
    add, update = (rb.add_, rb.update_) if in_place else (rb.add, rb.update)
    sharded, whole = rb.init(spec, sharding=group), rb.init(spec)
    assert type(sharded) is ShardedState
    for turn in range(5):
        items, mask, priorities = steps(spec, turn)
        more: dict[str, Any] = {"mask": mask} if turn % 2 else {}
        more |= {"priorities": priorities} if takes_priorities(spec) and turn % 3 == 1 else {}
        if not spec.writer.overwrites and not spec.sampler.takes_out and turn > 1:
            with pytest.raises(ValueError, match=r"full|room"):
                add(sharded, own_lanes(group, spec, items))
            break
        own = {name: own_lanes(group, spec, x) for name, x in more.items()} | drawn_by(spec, turn)
        more |= drawn_by(spec, turn)
        older = None if in_place else (sharded, sharded.part.rows.clone())
        sharded, whole = add(sharded, own_lanes(group, spec, items), **own), add(whole, items, **more)
        assert older is None or torch.equal(older[0].part.rows, older[1]), "the older state stays"
        sharded, whole, found, expected = assert_same_draws(group, sharded, whole, turn, in_place)
        if spec.sampler.has_priorities:
            new = torch.rand(expected.indices.numel(), generator=torch.Generator().manual_seed(turn))
            given = new.chunk(dist.get_world_size(group))[dist.get_rank(group)].contiguous()
            sharded = update(sharded, found.indices.reshape(-1), given)
            whole = update(whole, expected.indices.reshape(-1), new)
            assert torch.equal(sharded.tree, whole.tree)
        if isinstance(spec.sampler, frb.Staleness):
            sharded, whole = (update(state, version=turn % 3) for state in (sharded, whole))
            assert torch.equal(sharded.tree, whole.tree)
        assert int(rb.size(sharded)) == int(rb.size(whole))
        assert [x.tolist() for x in rb.counts(sharded)] == [x.tolist() for x in rb.counts(whole)]
        assert bool(rb.can_sample(sharded, 9)) == bool(rb.can_sample(whole, 9))
        assert_part_has_what_the_index_says(sharded)
    handles = found.indices.reshape(-1)
    read, wanted = rb.get(sharded, handles), rb.get(whole, handles)
    assert torch.equal(read["x"], wanted["x"])
    assert torch.equal(read["image"], wanted["image"])
    assert torch.equal(rb.is_live(sharded, handles), rb.is_live(whole, handles))
    cleared = rb.clear_(sharded) if in_place else rb.clear(sharded)
    assert int(rb.size(cleared)) == 0


@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name in SPECS for size in (2, 3) if size == 3 or name in effort(PAIRS, SPECS)]
)
def test_each_gets_its_share_of_one_draw(processes: ProcessGroup, name: str, size: int) -> None:
    processes.run(size, same_program, SPECS[name], (size + len(name)) % 2 == 0)


@pytest.mark.long
def test_four_processes() -> None:
    """Of which the last has one lane of five, or none; draws of each among its own, and checkpoints, too."""
    group = ProcessGroup(4)
    try:
        for k, name in enumerate(("prioritized", "slices", "n-step of added", "compact", "queue")):
            group.run(4, same_program, SPECS[name], k % 2 == 0)
        group.run(4, local_draws, SPECS["prioritized"], 1e6)
        with tempfile.TemporaryDirectory() as folder:
            group.run(4, saved, "prioritized", folder)
            for size in (2, 4):
                group.run(size, went_on, "prioritized", folder)
    finally:
        group.close()


def test_a_process_without_lanes(processes: ProcessGroup) -> None:
    for sampler in (frb.Prioritized(), frb.Slices(2)):
        processes.run(3, same_program, frb.BufferSpec(ITEM, 4 * LENGTH, sampler, lanes=4), False)


def local_slots_of(state: Any, key: torch.Tensor, share: int) -> torch.Tensor:
    """The slots of a local draw by the core, whose law tests of `scale.local` enumerate."""
    words = draws(rb.split(key, state.dealing.shards)[state.rank], *local.draw_shape(state.dealing, share))
    draft = Draft.of(state.index, state.dealing.index.plan)
    given = draft, words, torch.tensor(1.0), share, torch.tensor(state.rank, dtype=torch.int32)
    slots: torch.Tensor = local.draw(torch_ops, state.dealing, *given)[0]  # type: ignore[arg-type]  # ops as a module
    return slots


def local_draws(group: Any, spec: frb.BufferSpec, skew: float) -> None:
    """A process draws among its own, p / (shards * mass), and weights are relative to the least likely of all."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    state, whole = rb.init(spec, sharding=group), rb.init(spec)
    for turn in range(3):
        items, mask, priorities = steps(spec, turn)
        priorities = priorities * torch.where(torch.arange(spec.lanes or 1) == 0, skew, 1.0)
        more: dict[str, Any] = {"mask": mask}
        more |= {"priorities": priorities} if spec.sampler.has_priorities else {}
        own = {name: own_lanes(group, spec, x) for name, x in more.items()} | drawn_by(spec, turn)
        more |= drawn_by(spec, turn)
        state, whole = rb.add(state, own_lanes(group, spec, items), **own), rb.add(whole, items, **more)
    before = [x.tolist() for x in rb.counts(state)]
    state, sample = rb.sample(state, rb.key(3), size * 64, beta=1.0, draw="local")
    assert [x.tolist() for x in rb.counts(state)] == before
    each = deal(spec, size).slots_each
    handles = torch.arange(0, 4 * spec.capacity, dtype=torch.int32)
    live = handles[rb.is_live(whole, handles)]
    values = torch.ones(len(live), dtype=torch.float64)
    if spec.sampler.has_priorities:
        values = (rb.priorities(whole, live).double()) ** spec.sampler.alpha  # type: ignore[attr-defined]  # of Prioritized
    owners = live % spec.capacity // each
    law = {int(h): float(v / (size * values[owners == o].sum())) for h, v, o in zip(live, values, owners, strict=True)}
    if not bool((owners == rank).any()):
        assert sample.indices.tolist() == [-1] * 64
        assert sample.weights.tolist() == sample.probabilities.tolist() == [0.0] * 64
        return
    assert bool((sample.indices % spec.capacity // each == rank).all())
    wanted = torch.tensor([law[int(h)] for h in sample.indices], dtype=torch.float64)
    torch.testing.assert_close(sample.probabilities.double(), wanted, rtol=2e-5, atol=0)
    least = min(law.values())
    torch.testing.assert_close(sample.weights.double(), least / wanted, rtol=1e-4, atol=0)
    read = rb.get(whole, sample.indices)
    assert torch.equal(read["image"], sample.items["image"])
    expected = local_slots_of(state, rb.key(3), 64)
    assert (sample.indices % spec.capacity).tolist() == expected.tolist()


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized(alpha=0.7)], ids=["uniform", "prioritized"])
def test_local_draws(processes: ProcessGroup, sampler: Any) -> None:
    for lanes, length, skew in ((LANES, LENGTH, 1.0), (4, LENGTH, 1e6), (LANES, 80, 1e6)):
        processes.run(3, local_draws, frb.BufferSpec(ITEM, lanes * length, sampler, lanes=lanes), skew)
    for capacity in (19, 100):  # of which a shard has fewer slots, and one no items
        processes.run(3, local_draws, frb.BufferSpec(ITEM, capacity, sampler, frb.Reservoir(), lanes=LANES), 1e6)


def queue_taken(group: Any) -> None:
    """Each process takes the windows of its own lanes; what is left is what a draw of all would have left."""
    spec = SPECS["queue"]
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    state, whole = rb.init(spec, sharding=group), rb.init(spec)
    for turn, take in enumerate((rb.sample, rb.sample_)):
        items, mask, _ = steps(spec, turn)
        state = rb.add(state, own_lanes(group, spec, items), own_lanes(group, spec, mask))
        whole = rb.add(whole, items, mask)
        older = state
        state, found = take(state, rb.key(0), 16, draw="local")
        if take is rb.sample:
            assert_part_has_what_the_index_says(older)  # which stays
        whole, expected = take(whole, rb.key(0), 16)
        own = torch.arange(16) % 4 * size // 4 == rank
        real = expected.mask[own]
        assert bool(real.any())
        assert torch.equal(found.mask, real)
        assert torch.equal(found.indices, expected.indices[own])
        assert torch.equal(found.weights, expected.weights[own])
        assert torch.equal(found.items["image"][real], expected.items["image"][own][real])
        assert [x.tolist() for x in rb.counts(state)] == [x.tolist() for x in rb.counts(whole)]
        assert_part_has_what_the_index_says(state)
    items = steps(spec, 2)[0]
    assert_same_draws(group, rb.add(state, own_lanes(group, spec, items)), rb.add(whole, items), 0, False)


def test_local_draws_from_a_queue(processes: ProcessGroup) -> None:
    processes.run(2, queue_taken)


def rewritten(group: Any) -> None:
    """The last of equal handles wins, whichever process gave it; one that is stale names nothing."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    spec = SPECS["groups"]
    state, whole = rb.init(spec, sharding=group), rb.init(spec)
    for turn in range(3):
        items = steps(spec, turn)[0]
        state, whole = rb.add(state, own_lanes(group, spec, items)), rb.add(whole, items)
    handles = torch.tensor([[50, 51, 57, 1], [57, 12, 75, -1], [50, 57, 13, 2]][:size], dtype=torch.int32)
    assert rb.is_live(whole, handles[0]).tolist() == [True, True, True, False]
    new = torch.arange(4 * size, dtype=torch.float32).reshape(size, 4)
    state = rb.update(state, handles[rank], items={"reward": new[rank], "half": new[rank].bfloat16()})
    whole = rb.update(whole, handles.flatten(), items={"reward": new.flatten(), "half": new.flatten().bfloat16()})
    mine, expected = rb.get(state, handles[rank]), rb.get(whole, handles[rank])
    assert torch.equal(mine["reward"], expected["reward"])
    assert torch.equal(mine["half"], expected["half"])
    assert int(rb.counts(state).stale) == int(rb.counts(whole).stale) > 0
    for turn in range(3):  # of groups, by the rewards that were written
        state, whole, *_ = assert_same_draws(group, state, whole, turn, False)


def test_leaves_are_rewritten_where_they_lie(processes: ProcessGroup) -> None:
    for size in (2, 3):
        processes.run(size, rewritten)
        processes.run(size, ranked_anew)


def ranked_anew(group: Any) -> None:
    """By what is written to stored items, which decides what goes next."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    spec = frb.BufferSpec(ITEM, 19, writer=frb.MaxValue("reward"), lanes=LANES)
    state, whole = rb.init(spec, sharding=group), rb.init(spec)
    for turn in range(3):
        items = steps(spec, turn)[0]
        items["reward"][0, 1] = torch.nan
        state, whole = rb.add(state, own_lanes(group, spec, items)), rb.add(whole, items)
        handles = torch.arange(8 * spec.capacity, dtype=torch.int32)
        given = handles[rb.is_live(whole, handles)][: 4 * size]
        new = torch.arange(4 * size).float() - 2 * size
        update = rb.update_ if turn == 1 else rb.update
        state = update(state, given.chunk(size)[rank], items={"reward": new.chunk(size)[rank]})
        whole = update(whole, given, items={"reward": new})
        for found in (given, given + spec.capacity):
            mine, expected = (rb.get(one, found)["reward"] for one in (state, whole))
            assert torch.equal(mine, expected)
        state, whole, *_ = assert_same_draws(group, state, whole, turn, False)
    assert [x.tolist() for x in rb.counts(state)] == [x.tolist() for x in rb.counts(whole)]
    assert rb.counts(whole).refused == 3


def told_apart(group: Any) -> str:
    spec = SPECS["prioritized"]
    state = rb.init(spec, sharding=group)
    items, _, priorities = steps(spec, 0)
    own = own_lanes(group, spec, items)
    state = rb.add(state, own)
    if dist.get_rank(group) == 1:
        state = rb.add(state, own)  # which tells nobody anything
    with pytest.raises(RuntimeError, match=r"\(rank .\) and ranks .* have written different numbers") as raised:
        rb.add(state, own, priorities=own_lanes(group, spec, priorities))
    for name in ("n-step of added", "compact"):
        nothing_lost(group, SPECS[name])
    keys_told_apart(group)
    versions_told_apart(group)
    return str(raised.value)


def keys_told_apart(group: Any) -> None:
    """A writer that draws chooses the same slots everywhere, so that all have to give it the same key."""
    spec = SPECS["reservoir"]
    state, own = rb.init(spec, sharding=group), own_lanes(group, spec, steps(spec, 0)[0])
    state = rb.add(state, own, key=rb.key(0))
    with pytest.raises(RuntimeError, match="given different keys"):
        rb.add(state, own, key=rb.key(dist.get_rank(group)))


def versions_told_apart(group: Any) -> None:
    """At once, before anything is written."""
    spec = SPECS["staleness"]
    state = rb.add(rb.init(spec, sharding=group), own_lanes(group, spec, steps(spec, 0)[0]))
    state, sample = rb.sample(rb.update(state, version=1), rb.key(0), 4)
    tree, counters = state.tree.clone(), state.counters.clone()
    handles, rank = sample.indices.reshape(-1), dist.get_rank(group)
    for update in (rb.update, rb.update_):
        for given in ({}, {"indices": handles, "items": {"x": sample.items["x"]}}):
            with pytest.raises(RuntimeError, match="given different keys or versions"):
                update(state, **given, version=torch.tensor(2 + rank) if given else 2 + rank)
            assert torch.equal(state.tree, tree)
            assert torch.equal(state.counters, counters)
    rb.update(state, version=2)


def nothing_lost(group: Any, spec: frb.BufferSpec) -> None:
    """Where parts tell what they have written, `add_` leaves the state as it was if others have not done the same."""
    own = own_lanes(group, spec, steps(spec, 0)[0])
    older = rb.init(spec, sharding=group)
    state = rb.add_(rb.add_(older, own), own)
    with pytest.raises(RuntimeError, match="consumed"):
        rb.size(older)
    kept = {name: x.clone() for name, x in rb.items(state.part)["next"].items()}
    if dist.get_rank(group) == 1:
        state = rb.clear(state)  # which tells nobody anything
    counts = [x.tolist() for x in rb.counts(state)]
    with pytest.raises(RuntimeError, match="have written different numbers"):
        rb.add_(state, own)
    assert [x.tolist() for x in rb.counts(state)] == counts
    if dist.get_rank(group) != 1:
        found = rb.items(state.part)["next"]
        assert all(torch.equal(x, found[name]) for name, x in kept.items())


def test_processes_that_have_not_done_the_same(processes: ProcessGroup) -> None:
    found = processes.run(2, told_apart)
    assert "ranks [1]" in found[0]
    assert "ranks [0]" in found[1]


def filled(group: Any, name: str, turns: int = 3) -> tuple[Any, Any]:
    """A buffer of a few steps, sharded and whole; it is the same whatever the number of processes."""
    spec = SPECS[name]
    state, whole = rb.init(spec, sharding=group), rb.init(spec)
    for turn in range(turns):
        items, key = steps(spec, turn)[0], drawn_by(spec, turn)
        state, whole = rb.add(state, own_lanes(group, spec, items), **key), rb.add(whole, items, **key)
    return state, whole


def saved(group: Any, name: str, folder: str) -> Any:
    state, whole = filled(group, name)
    if dist.get_rank(group) == 0:
        frb.save(whole, f"{folder}/whole")
    info = frb.save(state, f"{folder}/dealt", incremental=True)
    items = steps(SPECS[name], 3)[0]
    state = rb.add(state, own_lanes(group, SPECS[name], items), **drawn_by(SPECS[name], 3))
    more = frb.save(state, f"{folder}/dealt", incremental=True)
    if name == "prioritized":  # whose tree is as it was; of others all blocks have changed
        assert not more.full
        assert more.written < info.written, "of each part what is new"
    return dataclasses.astuple(more)


def went_on(group: Any, name: str, folder: str) -> None:
    """What was saved by two goes on with this number of processes, as a buffer does that was never saved."""
    spec = SPECS[name]
    for place, turns in (("whole", 3), ("dealt", 4)):
        whole = filled(group, name, turns)[1]
        state = frb.load(f"{folder}/{place}", rb, sharding=group)
        for turn in range(turns, turns + 2):
            state, whole, *_ = assert_same_draws(group, state, whole, turn, turn % 2 == 0)
            items, key = steps(spec, turn)[0], drawn_by(spec, turn)
            state, whole = rb.add_(state, own_lanes(group, spec, items), **key), rb.add_(whole, items, **key)
        assert [x.tolist() for x in rb.counts(state)] == [x.tolist() for x in rb.counts(whole)]
        frb.save(state, f"{folder}/{place}_{dist.get_world_size(group)}", incremental=True)
        dist.barrier(group)
        again = frb.load(f"{folder}/{place}_{dist.get_world_size(group)}", rb)
        assert_same_draws(group, state, again, 9, False)


@pytest.mark.parametrize(
    "name", effort(("prioritized", "n-step", "queue", "reservoir"), [name for name in SPECS if "stopping" not in name])
)
def test_a_checkpoint_is_dealt_to_any_number_of_processes(processes: ProcessGroup, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = processes.run(2, saved, name, folder)
        assert told[0] == told[1]
        for size in (1, 2, 3):
            processes.run(size, went_on, name, folder)


def failed_to_load(group: Any, folder: str) -> str:
    state, whole = filled(group, "prioritized")
    frb.save(state, folder)
    frb.save(rb.add(state, own_lanes(group, state.spec, steps(state.spec, 3)[0])), folder)
    dist.barrier(group)
    if dist.get_rank(group) == 1:
        os.truncate(f"{folder}/shards/1/0000000002.safetensors", 50)
    dist.barrier(group)
    with pytest.raises(frb.errors.CheckpointError) as raised:
        frb.load(folder, rb, sharding=group)
    again = frb.load(
        folder, rb, frb.checkpoint.LoadOptions(fall_back=True), sharding=group
    )  # of which the first process finds nothing wrong
    assert_same_draws(group, again, whole, 5, False)
    return str(raised.value)


def test_what_one_process_cannot_load_none_does(processes: ProcessGroup) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = processes.run(2, failed_to_load, folder)
    assert "shards/1/0000000002.safetensors" in second
    assert "process 1 of 2 has failed" in first
    assert "shards/1/0000000002.safetensors" in first


def with_another_sampler(group: Any, folder: str) -> None:
    state, whole = filled(group, "n-step")
    annealed = dataclasses.replace(state.spec, sampler=frb.Prioritized(alpha=0.3))
    assert_same_draws(group, rb.with_spec(state, annealed), rb.with_spec(whole, annealed), 8, False)
    larger = dataclasses.replace(state.spec, sampler=frb.Slices(2), capacity=2 * LANES * LENGTH)
    with pytest.raises(ValueError, match="keeps its capacity"):
        rb.with_spec(state, larger)
    by_slots = filled(group, "reservoir")
    annealed = dataclasses.replace(by_slots[0].spec, sampler=frb.Prioritized(alpha=0.3))
    assert_same_draws(group, *(rb.with_spec(one, annealed) for one in by_slots), 8, False)
    best = filled(group, "best")[0]
    with pytest.raises(ValueError, match="a writer that chooses slots stays"):
        rb.with_spec(best, dataclasses.replace(best.spec, writer=frb.MaxValue(("next", "x"), "max")))
    frb.save(state, folder)
    assert_same_draws(group, frb.load(folder, rb, sharding=group, spec=larger), rb.with_spec(whole, larger), 8, False)
    with pytest.raises(TypeError, match="expected a BufferSpec"):
        frb.load(folder, rb, sharding=group, spec=[larger])
    with pytest.raises(ValueError, match="leave background out"):
        frb.save(state, folder, background=True)
    if dist.get_rank(group) == 0:
        frb.save({"x": torch.zeros(2)}, f"{folder}/nest")
        frb.save(rb.with_spec(whole, dataclasses.replace(whole.spec, storage=frb.Host())), f"{folder}/host")
    dist.barrier(group)
    with pytest.raises(ValueError, match="expected a checkpoint of a buffer"):
        frb.load(f"{folder}/nest", rb, sharding=group)
    with pytest.raises(ValueError, match=r"give storage=frb\.Device\(\) too"):
        frb.load(f"{folder}/host", rb, sharding=group)
    state = frb.load(f"{folder}/host", rb, sharding=group, storage=frb.Device())
    assert_same_draws(group, state, whole, 8, False)


def test_another_sampler_and_capacity(processes: ProcessGroup) -> None:
    with tempfile.TemporaryDirectory() as folder:
        processes.run(2, with_another_sampler, folder)


def refused(group: Any) -> None:
    spec = SPECS["prioritized"]
    state = rb.init(spec, sharding=group)
    with pytest.raises(ValueError, match=r"none of|nothing|empty|stored"):
        rb.sample(state, rb.key(0), BATCH)
    state = rb.add(state, own_lanes(group, spec, steps(spec, 0)[0]))
    with pytest.raises(ValueError, match=r"a multiple of the 2 shards.*24 or 26 would do"):
        rb.sample(state, rb.key(0), 25)
    with pytest.raises(ValueError, match="expected draw as one of"):
        rb.sample(state, rb.key(0), BATCH, draw="here")  # type: ignore[arg-type]  # refused
    with pytest.raises(ValueError, match="no process has all items"):
        rb.items(state)
    for refusing in (rb.state_dict, lambda state: frb.Mixture([state, state]), rb.from_dlpack):
        with pytest.raises(ValueError, match=r"over several; give state\.part"):
            refusing(state)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(state)
    with pytest.raises(TypeError, match="a process group"):
        rb.init(spec, sharding="d")
    with pytest.raises(ValueError, match="expected a buffer with lanes"):
        rb.init(dataclasses.replace(spec, lanes=None), sharding=group)
    with pytest.raises(ValueError, match="leave group out"):
        rb.sample(state, rb.key(0), BATCH, group=dist.group.WORLD)
    plain = rb.add(rb.init(spec), steps(spec, 0)[0])
    with pytest.raises(ValueError, match="this buffer is not sharded"):
        rb.sample(plain, rb.key(0), BATCH, group=group)
    compiled = torch.compile(lambda key: rb.sample(state, key, BATCH)[1].weights, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"torch\.compile cannot trace what the processes"):
        compiled(rb.key(0))
    older = state
    state = rb.add_(state, own_lanes(group, spec, steps(spec, 1)[0]))
    with pytest.raises(RuntimeError, match="consumed"):
        rb.sample(older, rb.key(0), BATCH)


def test_what_is_refused(processes: ProcessGroup) -> None:
    processes.run(2, refused)


def forked(group: Any, folder: str) -> list[str]:
    """What a child says that was forked as the worker of a `DataLoader` is."""
    state, _ = filled(group, "prioritized")
    calls = [
        lambda: rb.sample(state, rb.key(0), BATCH),
        lambda: rb.update(state, np.zeros(1, np.int32), np.ones(1, np.float32)),
        lambda: frb.save(state, folder),
        lambda: rb.sample(state, rb.key(0), BATCH, draw="local"),
    ]
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, of threads
        child = os.fork()
    if not child:
        for call in calls:
            try:
                call()
                said = "drawn"
            except BaseException as error:
                said = repr(error)
            os.write(writing, said.encode() + b"\n")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read().splitlines()
    os.waitpid(child, 0)
    assert rb.sample(state, rb.key(0), BATCH)[1].indices.shape == (BATCH // 2,)
    return said


def test_a_forked_worker_is_told_that_it_is_in_no_group(processes: ProcessGroup, tmp_path: Path) -> None:
    """Without the group's threads it waited for ever."""
    for said in processes.run(2, forked, str(tmp_path)):
        assert all("is not in the process group; draw in the process that is" in one for one in said[:3])
        assert said[3] == "drawn"


def alone(group: Any) -> None:
    """A single process has an ordinary buffer, and may say `group=` and `draw=` of it."""
    spec = SPECS["prioritized"]
    state = rb.init(spec, sharding=group)
    assert type(state) is type(rb.init(spec))
    state = rb.add(state, steps(spec, 0)[0])
    plain = rb.sample(state, rb.key(0), 3)[1]
    for draw in ("global", "local"):
        assert torch.equal(rb.sample(state, rb.key(0), 3, group=group, draw=draw)[1].indices, plain.indices)  # type: ignore[arg-type]  # one of them


def test_a_group_of_one(processes: ProcessGroup) -> None:
    processes.run(1, alone)


def trained(group: Any, fully_sharded: bool) -> list[float]:
    """Data parallel training on a prioritized buffer, as users write it; every process ends with the same weights."""
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    if fully_sharded:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        model: torch.nn.Module = fully_shard(net, mesh=mesh)  # type: ignore[assignment]  # it is typed by its result
        state = rb.init(SPECS["prioritized"], sharding=mesh)
    else:
        model = torch.nn.parallel.DistributedDataParallel(net, process_group=group)
        state = rb.init(SPECS["prioritized"], sharding=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for turn in range(6):
        items = steps(SPECS["prioritized"], turn)[0]
        items["reward"] = items["x"].sum(-1)
        state = rb.add_(state, own_lanes(group, SPECS["prioritized"], items))
        state, sample = rb.sample_(state, rb.key(turn), 2 * BATCH)
        errors = model(sample.items["x"])[:, 0] - sample.items["reward"]
        (sample.weights * errors**2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = rb.update_(state, sample.indices, errors.detach().abs() + 1e-3)
        losses.append(float((errors**2).mean().detach()))
    weight = net.weight.full_tensor() if fully_sharded else net.weight  # type: ignore[operator]  # a DTensor then
    return [*weight.flatten().tolist(), losses[0], losses[-1]]


@pytest.mark.parametrize("fully_sharded", [False, True], ids=["ddp", "fsdp"])
def test_data_parallel_training(processes: ProcessGroup, fully_sharded: bool) -> None:
    first, second = processes.run(2, trained, fully_sharded)
    assert first[:2] == second[:2]
    assert first[-1] < first[-2]
