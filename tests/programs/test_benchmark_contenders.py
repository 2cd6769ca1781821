"""What the benchmarks measure: workloads, floors, and that ours and each peer do what is asked of them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from benchmarks import (
    atari,
    floor,
    goals,
    items,
    n_step,
    ours,
    specs,
    trees,
)
from benchmarks import compare as comparing
from benchmarks.contender import (
    Backend,
    Checking,
    Reading,
    Sampler,
    Sequencing,
    SliceContender,
    TurnContender,
    assemble,
)
from benchmarks.groups import Group
from benchmarks.measure import alternate, interleave
from benchmarks.slices import GROUPS, capacities_around
from benchmarks.workload import (
    ATARI,
    HUMANOID,
    ITEM,
    ITEM_BYTES,
    ROW_WORDS,
    NStepWorkload,
    ObservationWorkload,
    SliceWorkload,
    Workload,
)
from tests.support.benchmarking import PIXELS, RETURNS, TINY, VECTORS, entries_of

# Peers warn about their own dependencies.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


def test_the_workload_is_the_one_of_the_goals() -> None:
    work = Workload()
    assert (work.capacity, work.add_size, work.sample_size) == (1_000_000, 64, 256)
    assert (ITEM_BYTES, ROW_WORDS) == (165, 42)
    leaves = ours.buffer_spec(TINY, "uniform").item
    batch = TINY.batches()[0]
    for name, (shape, dtype) in ITEM.items():
        assert (batch[name].shape, batch[name].dtype) == ((8, *shape), dtype)
        assert (leaves[name].shape, leaves[name].dtype) == (shape, batch[name].dtype.name)


@pytest.mark.parametrize("capacity", [1, 100, 65_536, 65_537])
def test_the_chunks_fill_the_buffer(capacity: int) -> None:
    work = Workload(capacity=capacity)
    filled = {int(slot) for slots in work.slots() for slot in slots}
    assert filled == set(range(capacity))


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_ours_and_the_floor_run(backend: Backend, sampler: Sampler) -> None:
    entries = [e for e in comparing.roster(TINY, backend, sampler) if e.name.startswith(("ours", "bare"))]
    assert len(entries) == (2 if backend == "jax" else 3)
    ready, failed = assemble(entries)
    assert failed == []
    timings = interleave(ready, rounds=1, burst=2, warmup=0)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in timings.values())


@pytest.mark.parametrize(
    ("module", "backend", "sampler"),
    [
        ("flashbax", "jax", "uniform"),
        ("flashbax", "jax", "prioritized"),
        ("torchrl", "torch", "uniform"),
        ("torchrl", "torch", "prioritized"),
        ("cpprb", "torch", "uniform"),
        ("cpprb", "torch", "prioritized"),
    ],
)
def test_peers_run(module: str, backend: Backend, sampler: Sampler) -> None:
    pytest.importorskip(module, reason=f"the peer {module} is not installed")
    if (module, sampler) == ("torchrl", "prioritized"):
        pytest.importorskip(
            "torchrl._torchrl", reason="torchrl's compiled trees do not load here", exc_type=ImportError
        )
    entries = [entry for entry in comparing.roster(TINY, backend, sampler) if entry.name == module]
    ready, failed = assemble(entries)
    assert failed == []
    interleave(ready, rounds=1, burst=2, warmup=0)


def test_the_slices_are_those_of_the_goals() -> None:
    work = SliceWorkload()
    assert (work.capacity, work.sample_size, work.length, work.longest) == (1_000_000, 256, 16, 1000)
    assert capacities_around(work) == (100_000, 1_000_000, 10_000_000)
    assert capacities_around(work, quick=True) == (100_000, 1_000_000)


@pytest.mark.parametrize("lanes", [1, 4])
def test_episodes_go_on_from_batch_to_batch_in_every_lane(lanes: int) -> None:
    work = SliceWorkload(capacity=70_000, add_size=8, lanes=lanes, longest=30, rotation=2, additions=5_000)
    fills, adds = list(work.fills()), work.adds()
    assert sum(batch["done"].size for batch in fills) == work.chunks * work.chunk_size >= work.capacity
    assert len(adds) == work.additions
    for name, (shape, dtype) in ITEM.items():
        assert (adds[0][name].shape, adds[0][name].dtype) == ((lanes, 8 // lanes, *shape), dtype)
        assert fills[-1][name].shape == (lanes, work.chunk_size // lanes, *shape)
    stream = np.concatenate([batch["done"] for batch in (*fills, *adds)], axis=1)
    for lane in stream:
        lengths = np.diff(np.flatnonzero(lane), prepend=-1)
        assert set(lengths.tolist()) == set(range(1, 31))
        assert lengths.mean() == pytest.approx(15.5, rel=0.05)
        assert len(lane) - np.flatnonzero(lane)[-1] <= 30
    assert lanes == 1 or (stream[0] != stream[1]).any()


def test_lanes_divide_what_is_stored_and_added() -> None:
    with pytest.raises(ValueError, match="lanes"):
        SliceWorkload(capacity=100, lanes=16)
    with pytest.raises(ValueError, match="lanes"):
        SliceWorkload(capacity=160, add_size=8, lanes=16)


@pytest.mark.parametrize("length", [1, 4])
def test_the_floor_gathers_runs_of_rows_within_the_table(length: int) -> None:
    work = Workload(capacity=9, sample_size=8, draws=200)
    drawn = np.stack(floor._rows(work, length))
    assert drawn.size == 200 * 8
    runs = drawn.reshape(-1, length)
    np.testing.assert_array_equal(runs, runs[:, :1] + np.arange(length))
    assert set(runs.ravel().tolist()) == set(range(9))


@pytest.mark.parametrize("group", [group for group in GROUPS if group.sampler != "queue"], ids=str)
def test_the_floor_of_slices_runs_and_ours_is_entered(group: Group) -> None:
    (gather,) = entries_of(group, floor.NAME)
    _, failed = assemble([gather])
    assert failed == []
    assert len(entries_of(group, ours.NAME)) == 1


@pytest.mark.parametrize(
    ("module", "backend", "sampler", "lanes", "steps"),
    [
        ("torchrl", "torch", "slices", 1, 32),
        ("torchrl", "torch", "prioritized slices", 1, 32),
        ("torchrl", "torch", "slices without replacement", 1, None),  # at most one slice of each stored episode
        ("torchrl", "torch", "without replacement", 1, 8),
        ("flashbax", "jax", "window slices", 1, 32),
        ("flashbax", "jax", "window slices", 16, 32),
        ("flashbax", "jax", "prioritized slices", 1, 32),
        ("flashbax", "jax", "prioritized slices", 16, 32),
        ("flashbax", "jax", "queue", 1, 16),
    ],
)
def test_peers_draw_slices(module: str, backend: Backend, sampler: Sequencing, lanes: int, steps: int | None) -> None:
    pytest.importorskip(module, reason=f"the peer {module} is not installed")
    if (module, sampler) == ("torchrl", "prioritized slices"):
        pytest.importorskip(
            "torchrl._torchrl", reason="torchrl's compiled trees do not load here", exc_type=ImportError
        )
    ready, failed = assemble(entries_of(Group(backend, sampler, lanes), module))
    assert failed == []
    _, errors = alternate(ready, rounds=2, turns=2)
    assert errors == {}
    (peer,) = ready
    assert isinstance(peer, SliceContender)
    assert peer.steps == steps or (steps is None and 0 < peer.steps < 32)


@pytest.mark.parametrize("work", [PIXELS, VECTORS], ids=["stacks", "vectors"])
def test_observations_follow_one_another_within_an_episode(work: ObservationWorkload) -> None:
    fills, adds = list(work.fills()), work.adds()
    stored = {name: np.concatenate([batch[name] for batch in fills]) for name in fills[0]}
    added = {name: np.concatenate([batch[name] for batch in adds]) for name in adds[0]}
    assert len(stored["done"]) == work.capacity
    assert len(added["done"]) == len(adds) == work.additions
    assert sum(leaf.nbytes for leaf in added.values()) == work.additions * work.item_bytes
    for steps in (stored, added):
        obs, after, done = steps["obs"], steps["next_obs"], steps["done"]
        assert obs.shape[1:] == work.observation_shape
        assert obs.dtype == after.dtype == work.dtype
        assert done[-1]
        begins = np.append(True, done[:-1])
        np.testing.assert_array_equal(obs[1:][~begins[1:]], after[:-1][~begins[1:]])
        assert (obs[1:][begins[1:]] != after[:-1][begins[1:]]).any(axis=tuple(range(1, obs.ndim))).all()
        if work.stack > 1:
            np.testing.assert_array_equal(after[:, :-1], obs[:, 1:])
            np.testing.assert_array_equal(obs[begins], np.repeat(obs[begins][:, :1], work.stack, axis=1))
        lengths = np.diff(np.flatnonzero(done), prepend=-1)
        assert 1 <= lengths.min() < lengths.max() <= 9


def test_the_workloads_of_atari_and_n_step_are_those_of_the_goals() -> None:
    assert (ATARI.capacity, ATARI.sample_size, ATARI.observation_shape) == (100_000, 32, (4, 84, 84))
    assert (ATARI.frame_bytes, ATARI.item_bytes) == (7056, 8 * 7056 + 9)
    assert (HUMANOID.capacity, HUMANOID.observation_shape, HUMANOID.item_bytes) == (100_000, (376,), 4 * 770 + 1)
    assert (NStepWorkload().n, NStepWorkload().sample_size) == (3, 256)
    assert goals.held_at_most("frames", ours.NAME) == pytest.approx(1 / 7)
    assert goals.held_at_most("observations", ours.NAME) == 0.5
    assert goals.held_at_most("frames", "cpprb") is None
    for backend in get_args(Backend):
        bound = {row.at_most for row in goals.observation_comparisons(backend, "frames") if row.bottom == floor.NAME}
        assert bound == {2.0}


@pytest.mark.parametrize(("distinct", "frames"), [(False, 6), (True, 4)])
def test_the_floor_gathers_the_frames_of_transitions(distinct: bool, frames: int) -> None:
    work = replace(PIXELS, draws=200)
    rows = np.stack(work.rows(distinct=distinct)).reshape(-1, frames)
    assert len(rows) == 200 * work.sample_size
    expected = [0, 1, 2, 3] if distinct else [0, 1, 2, 1, 2, 3]
    np.testing.assert_array_equal(rows - rows[:, :1], np.tile(expected, (len(rows), 1)))
    assert (rows.min(), rows.max()) == (0, len(work.table()) - 1)
    ready, failed = assemble([e for e in atari.roster(work, Group("torch", "frames")) if e.name.startswith(floor.NAME)])
    assert [gather.name for gather in ready] == [floor.NAME, floor.DISTINCT, floor.NUMPY]
    assert failed == []


@pytest.mark.parametrize("lanes", [1, 4])
def test_torchrl_makes_n_step_returns(lanes: int) -> None:
    pytest.importorskip("torchrl", reason="the peer torchrl is not installed")
    from benchmarks.peers_torchrl import TorchrlNStep

    peer = TorchrlNStep(replace(RETURNS, lanes=lanes, add_size=lanes))
    peer.add()
    drawn = peer._buffer.sample()
    assert drawn["obs"].shape == (8, 17)
    assert set(drawn["steps_to_next_obs"].tolist()) <= {1, 2, 3}
    one = drawn["steps_to_next_obs"] == 1
    np.testing.assert_array_equal(drawn["next", "reward"][one].numpy(), drawn["next", "original_reward"][one].numpy())


def test_cpprb_makes_n_step_returns() -> None:
    pytest.importorskip("cpprb", reason="the peer cpprb is not installed")
    from benchmarks.peers_cpprb import CpprbNStep

    work = replace(RETURNS, add_size=1)
    steps = work.in_time(next(iter(work.fills())))
    stored = CpprbNStep(work)._buffer.get_all_transitions()
    last = np.flatnonzero(steps["done"])
    whole = np.arange(last[-1] + 1)  # of the last episode some steps are held back
    reach = np.minimum(whole + work.n - 1, last[np.searchsorted(last, whole)])
    returns = [sum(work.gamma**k * steps["reward"][t + k] for k in range(end - t + 1)) for t, end in enumerate(reach)]
    np.testing.assert_allclose(stored["reward"][: len(whole), 0], returns, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        ("frames", "cpprb"),
        ("frames", goals.CAT_FRAMES),
        ("frames", goals.TORCHRL_PLAIN),
        ("observations", "cpprb"),
        ("observations", goals.TORCHRL_PLAIN),
    ],
)
def test_peers_return_the_observations_that_were_added(sampler: Reading, name: str) -> None:
    work = PIXELS if sampler == "frames" else VECTORS
    pytest.importorskip(name.split()[0], reason=f"the peer {name} is not installed")
    entries = atari.roster(work, Group("torch", sampler))
    ready, failed = assemble([entry for entry in entries if entry.name == name])
    assert failed == []
    (peer,) = ready
    known = {
        (obs.tobytes(), after.tobytes())
        for batch in (*work.fills(), work.adds()[0])
        for obs, after in zip(batch["obs"], batch["next_obs"], strict=True)
    }
    after_key = "next_obs" if name == "cpprb" else ("next", "obs")
    for _ in range(8):
        drawn = peer._buffer.sample(work.sample_size)  # type: ignore[attr-defined]  # of every peer here
        pair = [np.asarray(drawn[key]) for key in ("obs", after_key)]
        if name == "cpprb" and work.stack > 1:
            pair = [np.moveaxis(leaf, -1, 1) for leaf in pair]
        assert {(obs.tobytes(), after.tobytes()) for obs, after in zip(*pair, strict=True)} <= known
    assert isinstance(peer, TurnContender)
    held = peer.held_bytes()
    assert held is not None
    assert held >= work.capacity * (work.frame_bytes + work.other_bytes)
    assert name != goals.TORCHRL_PLAIN or held == work.capacity * work.item_bytes


@pytest.mark.parametrize(
    ("work", "group"),
    [
        *((RETURNS, group) for group in n_step.GROUPS),
        *((PIXELS if group.sampler == "frames" else VECTORS, group) for _, groups in atari.GROUPS for group in groups),
    ],
    ids=str,
)
def test_the_floors_of_n_step_and_atari_run_and_ours_are_entered(
    work: NStepWorkload | ObservationWorkload, group: Group
) -> None:
    if isinstance(work, NStepWorkload):
        entries = n_step.roster(replace(work, lanes=group.lanes), group)
        names = [ours.NAME, ours.AT_ADD, ours.ONE_STEP]
    else:
        entries = atari.roster(work, group)
        names = [ours.NAME, ours.PLAIN]
    assert [entry.name for entry in entries if entry.name.startswith("ours")] == names
    ready, failed = assemble([entry for entry in entries if entry.name.startswith(floor.NAME)])
    assert failed == []
    assert ready[0].name == floor.NAME


def test_the_values_to_project_lie_half_outside() -> None:
    import torch_backend as rb

    spec = specs.item_spec(specs.WORK)
    inside, outside = specs.given(specs.WORK, 256)
    assert rb.contains(spec, inside).all()
    assert rb.contains(spec, outside).float().mean() < 0.1
    assert (np.abs(outside["action"]) > 1).mean() == pytest.approx(0.5, abs=0.05)
    held = sum(leaf.nbytes for leaf in inside.values())
    assert 0 <= 4 * specs.WORDS * 256 - held < 4 * 256


@pytest.mark.parametrize("group", get_args(Checking))
def test_ours_and_the_floor_of_specs_are_entered_on_jax(group: Checking) -> None:
    names = [entry.name for entry in specs.roster(TINY, "jax", group)]
    assert names == (
        [ours.NAME, floor.RANDOM, ours.EAGER]
        if group == "specs"
        else [ours.NAME, ours.VALIDATED, ours.EAGER, ours.EAGER_VALIDATED]
    )


def test_the_usual_shifts_are_shifts() -> None:
    import jax
    import torch

    torch.manual_seed(0)
    x = items.images(items.ImageWorkload(40, (6, 6, 3)), "shift").astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
    by_torch = items.grid_sampled(torch.from_numpy(x).permute(0, 3, 1, 2), 1).permute(0, 2, 3, 1).numpy()
    for made in (by_torch, np.asarray(items.sliced(x, jax.random.key(0), 1, (1, 2)))):
        pieces = np.stack([padded[:, a : a + 6, b : b + 6] for a in range(3) for b in range(3)])
        apart = np.abs(pieces - made).max((2, 3, 4))
        assert (apart.min(0) < 0.01).all()
        assert len(set(apart.argmin(0))) > 5


def test_the_tree_that_is_read_is_that_of_its_workload() -> None:
    import torch_backend as rb

    work = trees.TreeWorkload(nodes=200)
    forest = rb.add(rb.init(trees._spec(200)), trees._tensors(trees.branches(work)))
    tree = rb.trees.view(forest, np.zeros(2, np.int64))
    assert len(tree) == int(rb.size(forest)) == 200
