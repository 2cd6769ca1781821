"""What every sampler and every writer must do, on every variant of both backends: the table is in `members`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from typing import Any

import chex
import jax
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support import backends, lives
from tests.support.effort import effort
from tests.support.lives import live_on_torch
from tests.support.members import BATCH, COVERING, LANES, MEMBERS, Member
from tests.support.versions import enable_x64, is_version

COMPILED = {name: member for name, member in MEMBERS.items() if member.compiled}
# Each way to draw and to write; what the others of the table set differently, torch's kernels are given alike. The
# arrays of all of them go from torch to JAX and back.
ON_JAX = {
    name: COMPILED[name]
    for name in effort(
        (
            *(name for name in COVERING if name not in ("prioritized, with a limit", "slices, prioritized")),
            *("uniform, stopping when full", "fifo, with a limit"),
        ),
        COMPILED,
    )
}
every_member = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
members_on_jax = pytest.mark.parametrize("member", ON_JAX.values(), ids=ON_JAX)


@pytest.fixture
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    lives.same_draws(monkeypatch)


@functools.cache
def step_on_jax(spec: frb.BufferSpec) -> Any:
    """The step as one program, compiled once for all tests with `same_draws`, which call it with kernels switched on.

    JAX before 0.10 compiles it anew where a test has switched torch's kernels off and on.
    """
    chex.clear_trace_counter()
    with backends.make("jax") as home:

        def step(*args: Any) -> Any:
            return lives.step(home, *args)

        return jax.jit(chex.assert_max_traces(step, n=1) if is_version(jax, "0.10") else step)


def check_life(spec: frb.BufferSpec, states: list[Any], seen: list[lives.Seen]) -> None:
    """Against the obvious lists of what was added."""
    rb = torch_backend
    auxiliary: list[list[int]] = [[] for _ in range(spec.plan.ring.lanes)]
    if isinstance(spec.writer, frb.Immutable):
        auxiliary = [lives.items_from(1)["id"].tolist()]
    everything: list[int] = []
    candidates = np.arange(-1, 5 * spec.capacity, dtype=np.int32)
    for state, given, now in zip(states, lives.inputs(spec), seen, strict=True):
        if not isinstance(spec.writer, frb.Immutable):
            add(auxiliary, given, spec)
            everything += given.items["id"][given.mask].tolist()
        drawn = check_sample(spec, now)
        stored = [number for lane in auxiliary for number in lane]
        if isinstance(spec.writer, frb.Reservoir):
            stored = everything
        assert set(drawn) <= set(stored)
        if isinstance(spec.sampler, frb.Queue):
            take_from(auxiliary, drawn, spec.sampler.length or 1)
        if isinstance(spec.sampler, frb.InOrder):
            assert drawn == sorted(drawn, reverse=spec.sampler.newest_first)
        live = rb.is_live(state, candidates).numpy()
        there = rb.get(state, candidates)["id"].numpy()[live].tolist()
        if isinstance(spec.writer, frb.Reservoir):
            assert set(there) <= set(everything)
            assert len(set(there)) == min(len(everything), spec.capacity)
        else:
            assert sorted(there) == sorted(number for lane in auxiliary for number in lane)
        assert int(rb.size(state)) == len(there)


def add(auxiliary: list[list[int]], given: lives.Inputs, spec: frb.BufferSpec) -> None:
    for row, number in enumerate(given.items["id"].reshape(-1).tolist()):
        if given.mask.reshape(-1)[row]:
            auxiliary[row % len(auxiliary)].append(number)
    for lane in auxiliary:
        best = sorted(lane) if isinstance(spec.writer, frb.MaxValue) else lane
        lane[:] = best[-(spec.capacity // len(auxiliary)) :]


def take_from(auxiliary: list[list[int]], drawn: list[int], length: int) -> None:
    """What a queue gave is gone, and it was the oldest of each lane."""
    for lane in auxiliary:
        given = [number for number in drawn if number in lane]
        assert given == lane[: len(given)]
        assert len(given) == min(len(lane) // length * length, BATCH // len(auxiliary) * length)
        del lane[: len(given)]


def check_sample(spec: frb.BufferSpec, now: lives.Seen) -> list[int]:
    """Every leaf tells the same number, by the sample and by the handle; returns the numbers drawn."""
    sample = now.sample
    lead = spec.sampler.leading_shape(BATCH)
    items = {name: leaf.numpy().reshape(-1, *leaf.shape[len(lead) :]) for name, leaf in sample.items.items()}
    handles = sample.indices.numpy().reshape(-1)
    mask = handles >= 0 if sample.mask is None else sample.mask.numpy().reshape(-1)
    assert sample.indices.shape == lead
    np.testing.assert_array_equal(handles >= 0, mask)
    assert mask.any()
    number = items["id"]
    np.testing.assert_array_equal(items["x"][mask], np.stack([number, -number], 1)[mask])
    np.testing.assert_array_equal(items["done"][mask], number[mask] % 7 == 3)
    np.testing.assert_array_equal(items["episode"][mask], number[mask] // 5)
    gone = isinstance(spec.sampler, frb.Queue)
    np.testing.assert_array_equal(now.live.numpy(), mask & (not gone))
    got = now.got["id"].numpy()
    np.testing.assert_array_equal(got, np.where(mask & (not gone), number, 0))
    one = sample.weights.shape[0]
    real = mask if one == mask.size else mask.reshape(one, -1)[:, 0]
    for told in (sample.weights.numpy(), sample.probabilities.numpy()):
        assert told.dtype == np.float32
        assert ((told > 0) & (told <= 1))[real].all()
        assert (told[~real] == 0).all()
    for flag in (sample.is_first, sample.is_last, sample.truncated):
        assert flag is None or not flag.numpy().reshape(-1)[~mask].any()
    return number[mask].tolist()


@every_member
def test_all_variants_give_the_same_bits_also_on_a_journey(member: Member, same_draws: None) -> None:
    spec = member.spec
    expected, states, seen = live_on_torch("torch-core", spec)
    check_life(spec, [state for state, _ in states], seen)
    for name in ("torch", "torch-inplace"):
        assert live_on_torch(name, spec)[0] == expected
    with backends.make("jax") as home, backends.make("torch") as abroad:
        there = home.rb.from_dlpack(states[-1][0])
        assert lives.state_bits(home, there) == expected[-1][1]
        assert lives.state_bits(abroad, abroad.rb.from_dlpack(there)) == expected[-1][1]
        if member not in ON_JAX.values():
            return
        step = step_on_jax(spec)
        state = traveller = lives.begin(home, spec)
        for k, given in enumerate(lives.inputs(spec)):
            state, now = step(state, given, lives.keys(home, k))
            assert (lives.bits(home, now), lives.state_bits(home, state)) == expected[k]
            for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: jax.tree.map(np.array, x)):
                assert jax.tree.structure(copied(state)) == jax.tree.structure(state)
            # There and back again: a step on JAX, a step on torch, in the memory that the state had.
            side = abroad if k % 2 else home
            traveller = side.rb.from_dlpack(traveller)
            one_step = step if side is home else lambda *args: lives.step(abroad, *args)
            traveller, there = one_step(traveller, given, lives.keys(side, k))
            assert (lives.bits(side, there), lives.state_bits(side, traveller)) == expected[k]


@every_member
def test_steps_of_lanes_one_by_one_or_together(member: Member, same_draws: None) -> None:
    """Leaves [T, E] are T times leaves [E], with a mask and without; without lanes [B] is B times one item."""
    spec = member.spec
    if isinstance(spec.writer, (frb.Immutable, frb.MaxValue, frb.Reservoir)):
        pytest.skip("these treat a batch as one")
    with backends.make("torch-core") as backend:
        together = apart = masked = backend.init(spec)
        for given in list(lives.inputs(spec))[:2]:
            together = backend.add(together, given.items, given.mask)
            masked = backend.add(masked, given.items, given.mask if not given.mask.all() else None)
            for t in range(len(given.mask)):
                row = {name: leaf[t] for name, leaf in given.items.items()}
                apart = backend.add(apart, row, given.mask[t : t + 1] if spec.lanes is None else given.mask[t])
        handles = np.arange(spec.capacity, dtype=np.int32)
        for other in (apart, masked):
            assert lives.bits(backend, backend.rb.get(other, handles)) == lives.bits(
                backend, backend.rb.get(together, handles)
            )
            assert other.counters.tolist() == together.counters.tolist()
            if "order" in spec.plan.auxiliary:
                continue  # the same set, shuffled by other means
            drawn = [lives.bits(backend, backend.sample(s, torch.tensor(3), BATCH)[1]) for s in (other, together)]
            assert drawn[0] == drawn[1]


# Ways to draw that no other test traces, as slices are: another setting of each traces through the same code.
TRACED = effort(
    [
        "prioritized, distinct",
        "fifo, with a limit",
        "queue of windows",
        "without replacement, of a reservoir",
    ],
    [name for name in COMPILED if name not in ("uniform", "prioritized", "uniform, stopping when full")],
)


@pytest.mark.parametrize("name", TRACED)
def test_a_step_traces_whole_under_torch_compile(name: str) -> None:
    spec = MEMBERS[name].spec
    told = {leaf: spec.item[leaf] for leaf in ("id", "done", "note")}  # less to trace
    spec = dataclasses.replace(spec, item=told)
    rb = torch_backend
    with backends.make("torch-inplace") as backend:
        # What is read by handle is traced with lanes and without; no other setting makes a difference to it.
        step = functools.partial(lives.step, backend, look=name in ("queue of windows", "fifo, with a limit"))
        compiled = torch.compile(lambda *args: step(*args), fullgraph=True, backend="eager")
        eager, traced = lives.begin(backend, spec), rb.own_(lives.begin(backend, spec))
        for k, given in list(enumerate(lives.inputs(spec)))[:2]:
            given = backend.tree(given._replace(items={leaf: given.items[leaf] for leaf in told})._asdict())
            given = lives.Inputs(**given)
            keys = rb.key(2 * k), rb.key(2 * k + 1)
            eager, wanted = step(eager, given, keys)
            traced, seen = compiled(traced, given, keys)
            assert lives.bits(backend, seen) == lives.bits(backend, wanted)
            assert lives.state_bits(backend, copy.deepcopy(traced)) == lives.state_bits(backend, copy.deepcopy(eager))
        torch._dynamo.reset()


@every_member
def test_copies_of_torch_states_go_on_alike(member: Member) -> None:
    spec = member.spec
    given = list(lives.inputs(spec))

    def unflattened(state: Any) -> Any:
        leaves, outline = pytree.tree_flatten(state)
        return pytree.tree_unflatten([leaf.clone() for leaf in leaves], outline)

    with backends.make("torch") as backend:
        keys = torch_backend.key(0), torch_backend.key(1)
        state = lives.step(backend, lives.begin(backend, spec), given[0], keys)[0]
        copies = [copy.deepcopy(state), pickle.loads(pickle.dumps(state)), unflattened(state)]
        after, seen = lives.step(backend, state, given[1], keys)
        expected = lives.bits(backend, seen), lives.state_bits(backend, copy.deepcopy(after))
        for other in copies:
            assert other.spec == spec
            after, seen = lives.step(backend, other, given[1], keys)
            assert (lives.bits(backend, seen), lives.state_bits(backend, copy.deepcopy(after))) == expected


@members_on_jax
def test_dtypes_are_the_same_in_the_64_bit_mode(member: Member) -> None:
    """By shapes alone, on specs that no other test has: what is traced in one mode is not traced again in the other."""
    with backends.make("jax") as backend:
        spec = Member(member.sampler, member.writer, member.lanes, member.capacity + LANES).spec
        given = next(lives.inputs(spec))

        def life(keys: Any) -> Any:
            return lives.step(backend, lives.begin(backend, spec), given, keys)

        keys = lives.keys(backend, 0)
        with enable_x64(True):
            state, seen = jax.eval_shape(life, keys)
        wide = [leaf.dtype for leaf in jax.tree.leaves((state, seen)) if leaf.dtype.itemsize > 4]
        assert wide == []


@pytest.mark.parametrize(
    "name", effort(["queue of windows"], ["queue of windows", "slices without replacement, by windows"])
)
def test_scanned_and_vmapped_lives_equal_single_ones(name: str, same_draws: None) -> None:
    spec = MEMBERS[name].spec
    given = jax.tree.map(lambda *leaves: np.stack(leaves), *lives.inputs(spec))
    seeds = np.random.default_rng(0).permutation(2 * lives.STEPS).reshape(lives.STEPS, 2)
    keys = jax.vmap(jax_backend.key)(np.stack([seeds, seeds[::-1]]).reshape(-1)).reshape(2, lives.STEPS, 2)
    with backends.make("jax") as backend, frb.kernels(True):
        step = step_on_jax(spec)

        def life(keys: Any) -> Any:
            return jax.lax.scan(
                lambda state, x: lives.step(backend, state, *x), lives.begin(backend, spec), (given, keys)
            )

        state, many = jax.device_get(jax.jit(jax.vmap(life))(keys))
        for i in range(2):
            alone = lives.begin(backend, spec)
            for k, now in enumerate(lives.inputs(spec)):
                alone, seen = step(alone, now, tuple(keys[i, k]))
                expected = jax.tree.map(lambda x, i=i, k=k: x[i, k], many)
                assert lives.bits(backend, seen) == lives.bits(backend, expected)
            together = jax.tree.map(lambda x, i=i: x[i], state)
            assert lives.state_bits(backend, alone) == lives.state_bits(backend, together)
