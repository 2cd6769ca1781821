"""The device that tests of torch run on by `TESTS_DEVICE=elsewhere`, and what buffers do there: `make test-device`."""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support import device, emulated_gpu, frame_stacks, gpu, gpu_life, lives
from tests.support.chain_programs import as_tensor, random_array
from tests.support.frame_stacks import STACKS
from tests.support.gpu_life import LIVES, Life
from tests.support.kernels_elsewhere import ITEM, batch_of
from tests.support.kernels_elsewhere import kernels as kernels
from tests.support.members import BATCH, MEMBERS
from torch_backend.interop import transfer
from torch_backend.memory.library import TORCH
from torch_backend.memory.shipping import Room

pytestmark = pytest.mark.skipif(not gpu.ELSEWHERE, reason="on a device of the tests' own alone: make test-device")
SAMPLERS = {"uniform": frb.Uniform(), "prioritized": frb.Prioritized(), "slices": frb.Slices(2, end_keys=("done",))}


def on_device(nest: Any) -> Any:
    if isinstance(nest, dict):
        return {name: on_device(leaf) for name, leaf in nest.items()}
    return torch.from_numpy(nest).to(device.NAME)


def test_the_host_may_not_touch_torch_memory() -> None:
    x = torch.ones(4)
    assert x.device == torch.device(device.NAME, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's, if another test has started it, of which the child does nothing
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.c_float.from_address(x.data_ptr()).value  # noqa: B018
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def test_torch_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3) + torch.ones(3, device="cpu")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3) + torch.ones(3, device=f"{device.NAME}:1")


@pytest.mark.parametrize("name", MEMBERS)
def test_torch_members_do_not_wait(name: str) -> None:
    spec = MEMBERS[name].spec
    dataset = isinstance(spec.writer, frb.Immutable)
    state = rb.init(spec, items=on_device(lives.items_from(1)) if dataset else None)
    given = [lives.Inputs(*map(on_device, one)) for one in lives.inputs(spec)]
    waits = device.counts().waits
    for k, (items, mask, priorities, notes) in enumerate(given):
        if not dataset:
            state = rb.add(state, items, mask, key=rb.key(k))
        state, sample = rb.sample(state, rb.key(k), BATCH)
        handles = sample.indices.reshape(-1)
        rewritten = None if dataset else {"note": notes}
        state = rb.update(state, handles, priorities if spec.sampler.has_priorities else None, rewritten)
        rb.get(state, handles), rb.is_live(state, handles), rb.can_sample(state, 2), rb.size(state)
    assert device.counts().waits == waits


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_torch_functions_do_not_wait(sampler: Any) -> None:
    state, batch = rb.init(frb.BufferSpec(ITEM, 40, sampler)), batch_of(25)
    mask, priorities = torch.arange(25) % 3 > 0, torch.ones(25)
    has_priorities = sampler.has_priorities
    waits = device.counts().waits
    for seed in range(4):
        state = rb.add(state, batch, mask if seed else None, priorities if has_priorities else None)
        state, sample = rb.sample(state, rb.key(seed), 8)
        if has_priorities:
            state = rb.update(state, sample.indices, priorities[:8])
    assert device.counts().waits == waits
    assert {x.device.type for x in (sample.indices, sample.weights, *sample.items.values())} == {device.NAME}


def test_torch_buffers_stay_on_their_device() -> None:
    there = f"{device.NAME}:1"
    state = rb.add(rb.init(frb.BufferSpec(ITEM, 40, frb.Prioritized()), there), batch_of(25, there))
    state, sample = rb.sample(state, rb.key(0), 8)
    state = rb.update(state, sample.indices, torch.ones(8, device=there))
    assert {x.device for x in (sample.indices, sample.weights, *sample.items.values())} == {torch.device(there)}
    with pytest.raises(ValueError, match=f"{device.NAME}:1"):
        rb.add(state, batch_of(25))
    assert int(rb.size(state)) == 25


HOSTED = {**SAMPLERS, "epochs": frb.WithoutReplacement(), "flat slices": frb.Slices(2, end_keys=("done",), flat=True)}


@pytest.mark.parametrize("sampler", HOSTED.values(), ids=HOSTED)
@pytest.mark.parametrize(("large", "keys"), [(2**30, "cpu"), (1, "cpu"), (2**30, device.NAME)])
def test_torch_rows_of_the_host_are_drawn_to_pinned_memory(
    sampler: Any, large: int, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which one copy takes to the device, and another one what is told of them."""
    straight, send = list[bool](), TORCH.sent_sample

    def sent(leaves: Any, selection: Any, target: Any) -> Any:
        straight.append(isinstance(leaves, Room))
        return send(leaves, selection, target)

    def sample_of(target: str) -> list[torch.Tensor]:
        spec = frb.BufferSpec(ITEM, 40, sampler, storage=frb.Host())
        state = rb.add(rb.init(spec, target), batch_of(60, "cpu"))
        sample = rb.sample(state, rb.key(0).to(keys), 30)[1]
        return [*sample.items.values(), *(x for x in sample[1:] if isinstance(x, torch.Tensor))]

    monkeypatch.setattr(TORCH, "sent_sample", sent)
    monkeypatch.setattr("torch_backend.memory.shipping.LARGE", large)
    expected = sample_of("cpu")
    assert all(map(torch.equal, (x.cpu() for x in sample_of(device.NAME)), expected))
    assert straight
    assert not any(straight)
    for module in ("library", "shipping"):
        monkeypatch.setattr(f"torch_backend.memory.{module}.PINS", {device.NAME})
    before = device.counts().pinned
    found = sample_of(device.NAME)
    assert device.counts().pinned == before + 2
    assert straight[-1]
    memory = [x.untyped_storage().data_ptr() for x in found]
    assert len({*memory[: len(ITEM)]}) == len({*memory[len(ITEM) :]}) == 1
    assert {x.device.type for x in found} == {device.NAME}
    assert all(map(torch.equal, (x.cpu() for x in found), expected))


def steps_of_stacks(name: str) -> dict[str, torch.Tensor]:
    item, compact = STACKS[name]
    steps = frame_stacks.steps_of_stacks(item, compact.axis, 40)
    return {leaf: torch.tensor(array, device="cpu") for leaf, array in steps.items()}


@pytest.mark.parametrize("name", STACKS)
def test_torch_frames_of_the_host_are_sent_once_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item, compact = STACKS[name]
    spec = frb.BufferSpec({**item, "reward": frb.Unbounded(())}, 60, storage=frb.Host(), compact=compact)

    def sample_of(target: str) -> list[torch.Tensor]:
        state = rb.add(rb.init(spec, target), steps_of_stacks(name))
        key, before = rb.key(0).cpu(), device.counts()
        sample = rb.sample(state, key, 64)[1]
        after = device.counts()
        sent.extend((after.sent - before.sent, after.bytes - before.bytes))
        return [*sample.items.values(), *sample[1:4]]

    sent = list[int]()
    expected = sample_of("cpu")
    for module in ("library", "shipping"):
        monkeypatch.setattr(f"torch_backend.memory.{module}.PINS", {device.NAME})
    sent.clear()
    found = sample_of(device.NAME)
    assert {x.device.type for x in found} == {device.NAME}
    assert all(map(torch.equal, (x.cpu() for x in found), expected))
    copies, nbytes = sent
    assert copies == {"two depths": 3}.get(name, 2)  # numbers, with what is told of them, and frames of each depth
    # At most all frames of the 40 steps, each once, beside rewards, places of frames and what is told of the sample.
    most = 44 * max(math.prod(leaf.shape) // leaf.shape[compact.axis] for leaf in item.values())
    assert nbytes <= most * (4 if name == "of numbers" else 1) + 64 * 4 * (1 + 8 + 3 + 6) + 12 * 256


@pytest.mark.parametrize("where", [None, device.NAME])
@pytest.mark.parametrize("name", [None, *STACKS])
def test_torch_batches_of_the_host_come_on_a_stream_of_their_own(
    name: str | None, where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory.library", "memory.shipping", "interop.transfer"):
        monkeypatch.setattr(f"torch_backend.{module}.PINS", {device.NAME})
    item, batch, more = ITEM, batch_of(40, "cpu"), dict[str, Any]()
    if name is not None:
        stacks, compact = STACKS[name]
        item, more = {**stacks, "reward": frb.Unbounded(())}, {"compact": compact}
        batch = steps_of_stacks(name)
    sampler = frb.Prioritized() if name else frb.WithoutReplacement()
    spec = frb.BufferSpec(item, 60, sampler, batch_size=8, storage=frb.Host(), **more)
    begun = state = rb.add(rb.init(spec, where or "cpu"), batch)
    key, expected = rb.key(0), list[Any]()
    for _ in range(3):
        key, now = rb.split(key)
        state, sample = rb.sample(state, now)
        expected.append(sample)
    before = device.counts()
    with frb.iterate(rb, begun, rb.key(0), n=3, device=device.NAME, prefetch=0) as batches:
        for sample, wanted in zip(batches, expected, strict=True):
            assert {x.device.type for x in (*sample.items.values(), *sample[1:4])} == {device.NAME}
            for own in item:
                assert torch.equal(sample.items[own].cpu(), wanted.items[own].cpu())
    after = device.counts()
    aside = after.aside - before.aside
    # Of each batch its numbers, and frames of each depth, or, of rows drawn to pinned memory, what is told of them; and
    # the number that the key is made of.
    assert aside == 3 * (3 if name == "two depths" else 2)
    assert after.sent - before.sent == aside + 1
    assert after.blocked > before.blocked
    assert rb.sample(batches.state, now)[1].indices.device.type == (where or "cpu")


@pytest.mark.parametrize("where", ["cpu", device.NAME])
def test_torch_batches_of_the_host_are_mapped_where_samples_are_drawn(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the usual stream, by tensors that the function has there."""
    for module in ("memory.library", "memory.shipping", "interop.transfer"):
        monkeypatch.setattr(f"torch_backend.{module}.PINS", {device.NAME})
    mean, aside = torch.arange(17.0, device=where), list[int]()

    def centred(items: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        before = device.counts().aside
        torch.zeros(17, device="cpu").to(device.NAME)
        aside.append(device.counts().aside - before)
        return {**items, "obs": items["obs"] - mean}

    spec = frb.BufferSpec(ITEM, 60, batch_size=8, storage=frb.Host(), transforms=frb.map_items(centred))
    state = rb.add(rb.init(spec, where), batch_of(40, "cpu"))
    expected = rb.sample(state, rb.split(rb.key(0))[1])[1]
    with frb.iterate(rb, state, rb.key(0), n=1, device=device.NAME, prefetch=0) as batches:
        sample = next(batches)
    assert sample.items["obs"].device.type == device.NAME
    assert torch.equal(sample.items["obs"].cpu(), expected.items["obs"].cpu())
    assert set(aside) == {0}


def test_torch_keys_are_read_before_another_stream_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which does not wait for the one that they are made on."""
    monkeypatch.setattr("torch_backend.interop.transfer.PINS", {device.NAME})
    state = rb.add(rb.init(frb.BufferSpec(ITEM, 60, storage=frb.Host()), "cpu"), batch_of(40, "cpu"))
    found = list[str]()

    def sample(state: Any, key: torch.Tensor, *given: Any) -> Any:
        found.append(key.device.type)
        return rb.sample(state, key, *given)

    key = rb.key(0)
    assert key.device.type == device.NAME
    drawn = transfer.Transfer(device.NAME).drawn(sample, state, key, 8, None)[1]
    assert torch.equal(drawn.indices.cpu(), rb.sample(state, key, 8)[1].indices)
    assert found == ["cpu"]


@pytest.mark.parametrize("life", LIVES, ids=range(len(LIVES)))
def test_torch_lives_are_those_of_the_cpu(life: Life) -> None:
    assert gpu_life.carried_out(life, device.NAME) == gpu_life.carried_out(life, "cpu")


@pytest.mark.parametrize("life", LIVES, ids=range(len(LIVES)))
def test_torch_lives_by_kernels_are_those_of_the_cpu(life: Life, kernels: emulated_gpu.Emulated) -> None:
    found = gpu_life.carried_out(life, device.NAME)
    kernels.note()
    assert any(name.startswith("add") for name, _ in kernels.launched)
    assert found == gpu_life.carried_out(life, "cpu")


BY_POSITION = frb.Recency(3), frb.Queue(), frb.Queue(2), frb.InOrder(newest_first=True)
LAUNCHED = [(sampler, ["add", "sample"]) for sampler in [*SAMPLERS.values()][:2]]
LAUNCHED += [(sampler, ["add_to_rings", "draw_in_turn" if k else "sample"]) for k, sampler in enumerate(BY_POSITION)]
LAUNCHED.append((frb.InOrder(3), ["add_to_rings", "spend", "read_drawn"]))


@pytest.mark.parametrize(("sampler", "names"), LAUNCHED, ids=[repr(sampler) for sampler, _ in LAUNCHED])
def test_torch_calls_are_launches_alone(sampler: Any, names: list[str], kernels: emulated_gpu.Emulated) -> None:
    state, batch, key = rb.init(frb.BufferSpec(ITEM, 100, sampler)), batch_of(25), rb.key(0)
    priorities = torch.ones(8)
    for _ in range(2):  # first calls make what later ones find
        state, sample = rb.sample(rb.add(state, batch), key, 8)
        state = rb.update(state, sample.indices, priorities) if sampler.has_priorities else state
    kernels.note()
    before, launched = device.counts(), len(kernels.launched)
    state = rb.add(state, batch)
    state, sample = rb.sample(state, key, 8)
    kernels.note()
    assert [name for name, _ in kernels.launched[launched:]] == names
    after = device.counts()
    assert (after.waits, after.sent) == (before.waits, before.sent)


# What is told of a full buffer the host has to wait for.
CAPTURED = [life.spec for life in LIVES if life.spec.capacity < 100 and life.spec.writer.overwrites]


@pytest.mark.parametrize("spec", CAPTURED, ids=range(len(CAPTURED)))
def test_torch_calls_may_be_captured(spec: frb.BufferSpec, kernels: emulated_gpu.Emulated) -> None:
    """Into a graph of CUDA's: nothing waits, the host copies nothing of its own, and each is three launches at most."""
    lead, rng, valued = (
        (6, *([spec.lanes] if spec.lanes else [])),
        np.random.default_rng(0),
        spec.sampler.has_priorities,
    )
    items = {name: as_tensor(random_array(rng, leaf, lead)).to(device.NAME) for name, leaf in spec.item.items()}
    mask, priorities, found = torch.ones(lead, dtype=torch.bool), torch.ones(8), list[tuple[Any, ...]]()
    key = rb.key(2) if spec.writer.words else None

    def captured(function: Any, *given: Any) -> Any:
        kernels.note()
        kernels.launched.clear()
        before, made, now = device.counts(), function(*given), device.counts()
        kernels.note()
        found.append((function, now.waits - before.waits, now.sent - before.sent, len(kernels.launched)))
        return made

    state = rb.init(spec)
    for _ in range(2):  # first calls make what later ones find
        found.clear()
        state = captured(rb.add, state, items, None, None, key)
        older, (state, sample) = state, captured(rb.sample, state, rb.key(0), 4)
        state = captured(rb.add_, captured(rb.add, older, items, mask, None, key), items, None, None, key)
        if valued:
            handles = sample.indices.reshape(-1)
            state = captured(rb.update, state, handles, priorities[: len(handles)])
            state = captured(rb.update_, state, handles, priorities[: len(handles)])
        state, _ = captured(rb.sample_, state, rb.key(1), 4)
    assert [(function, *counts[:2]) for function, *counts in found] == [(function, 0, 0) for function, *_ in found]
    assert all(0 < count <= 3 for *_, count in found), found


def test_torch_maps_are_launches_alone(kernels: emulated_gpu.Emulated) -> None:
    """But for a copy of each array, where the map that is given stays as it is."""
    spec = frb.HashMapSpec(frb.Unbounded((), "int32"), 30)
    keys, mask = ((torch.arange(80, dtype=torch.int32) % 7)[::2], (torch.arange(80) % 3 > 0)[::2])  # not in a row
    older, _ = rb.add(rb.init(spec), keys[:3])
    before = device.counts()
    map, inserted = rb.add_(older, keys, mask)
    found = rb.lookup(map, keys)
    kernels.note()
    assert [name for name, _ in kernels.launched[-3:]] == ["find_keys", "enter_keys", "find_keys"]
    assert device.counts().waits == before.waits
    assert {x.device.type for x in (*inserted, found)} == {device.NAME}
    on_host, _ = rb.add(rb.init(spec, "cpu"), keys[:3].cpu())
    on_host, expected = rb.add(on_host, keys.cpu(), mask.cpu())
    assert inserted.ids.tolist() == expected.ids.tolist()
    assert found.tolist() == rb.lookup(on_host, keys.cpu()).tolist()


@pytest.mark.parametrize("given", [None, "with the mixture", "with the call"])
def test_torch_mixtures_are_launches_alone(given: str | None, kernels: emulated_gpu.Emulated) -> None:
    """A draw is one for each buffer, and an update one more than that, also where a buffer has no priorities."""
    states = [rb.add(rb.init(frb.BufferSpec(ITEM, 40, SAMPLERS[name])), batch_of(25)) for name in [*SAMPLERS][:2]]
    shares = torch.tensor([0.2, 0.8])
    mixture = frb.Mixture(states, shares if given == "with the mixture" else [0.2, 0.8], how="items")
    beta = torch.tensor(0.3, dtype=torch.float64) if given else 0.3
    before, launched = device.counts(), len(kernels.launched)
    mixture, sample = rb.sample(mixture, rb.key(0), 16, beta, p=shares if given == "with the call" else None)
    mixture = rb.update(mixture, sample.indices, sample.weights)
    kernels.note()
    assert device.counts().waits == before.waits
    names = [name for name, _ in kernels.launched[launched:] if not name.startswith("add")]
    assert names == ["sample_mixture", "sample_mixture", "apart", "update", "update"]
    assert {x.device.type for x in (sample.indices, sample.weights, *sample.items.values())} == {device.NAME}
    on_host = [rb.add(rb.init(state.spec, "cpu"), batch_of(25, "cpu")) for state in states]
    expected = rb.sample(frb.Mixture(on_host, [0.2, 0.8], how="items"), rb.key(0), 16, 0.3)[1]
    assert sample.indices.tolist() == expected.indices.tolist()
    assert torch.equal(sample.weights.cpu(), expected.weights)
    assert torch.equal(sample.items["obs"].cpu(), expected.items["obs"])
    nested = frb.Mixture([mixture, mixture.states[0]], [0.5, 0.5])
    by_number, by_beta = (rb.sample(nested, rb.key(1), 16, each)[1] for each in (0.3, beta))
    assert torch.equal(by_beta.weights, by_number.weights)


def test_torch_mixtures_of_any_buffers_are_launches_alone(kernels: emulated_gpu.Emulated) -> None:
    """Of n-step returns, items that come once, and a mixture: nobody waits, and nothing is copied."""

    def mixed(where: str) -> frb.Mixture:
        item = ITEM | {"reward": frb.Unbounded(()), "done": frb.Binary(())}
        steps = batch_of(25, where) | {
            "reward": torch.ones(25, device=where),
            "done": torch.arange(25, device=where) % 5 == 4,
        }
        kinds = [(frb.Prioritized(), 3), (frb.Uniform(max_times_sampled=1), 2), (frb.Uniform(), 1)]
        specs = [frb.BufferSpec(item, 40, sampler, transforms=frb.n_step(n, 0.9)) for sampler, n in kinds]
        first, second, third = (rb.add(rb.init(spec, where), steps) for spec in specs)
        return frb.Mixture([first, frb.Mixture([second, third], how="items")], [0.6, 0.4])

    mixture, on_host, key = mixed(device.NAME), mixed("cpu"), rb.key(0).cpu()
    before, launched = device.counts(), len(kernels.launched)
    after, sample = rb.sample(mixture, key, 16, 0.3)
    kernels.note()
    assert device.counts().waits == before.waits
    names = [name for name, _ in kernels.launched[launched:] if not name.startswith("add")]
    assert sorted(names) == sorted(["share_rows"] * 3 + ["sample", "read_drawn"] * 3 + ["spend"] + ["place_rows"] * 4)
    expected = rb.sample(on_host, key, 16, 0.3)[1]
    for name in ("indices", "weights", "probabilities"):
        assert torch.equal(getattr(sample, name).cpu(), getattr(expected, name))
    assert torch.equal(sample.items["reward"].cpu(), expected.items["reward"])
    assert rb.sample(after, rb.key(1), 16)[1].indices.device.type == device.NAME  # by a key on the device, too


@pytest.mark.parametrize("flat", [False, True])
def test_torch_mixtures_of_slices_and_lanes_are_launches_alone(flat: bool, kernels: emulated_gpu.Emulated) -> None:
    samplers = frb.Slices(2, end_keys=("done",), flat=flat), frb.PrioritizedSlices(2, end_keys=("done",), flat=flat)

    def steps(where: str) -> frb.Mixture:
        states = [rb.init(frb.BufferSpec(ITEM, 60, sampler, lanes=3), where) for sampler in samplers]
        batch = {name: leaf.reshape(5, 3, *leaf.shape[1:]) for name, leaf in batch_of(15, where).items()}
        return frb.Mixture([rb.add(state, batch) for state in states], [0.3, 0.7])

    mixture, on_host = steps(device.NAME), steps("cpu")
    before, launched = device.counts(), len(kernels.launched)
    sample = rb.sample(mixture, rb.key(0), 8, 0.3)[1]
    rb.update(mixture, sample.indices.reshape(-1, 2), torch.ones(16))
    kernels.note()
    assert device.counts().waits == before.waits
    names = [name for name, _ in kernels.launched[launched:] if not name.startswith("add")]
    assert names == ["sample_mixed_slices", "sample_mixed_slices", "apart", "update", "update"]
    expected = rb.sample(on_host, rb.key(0), 8, 0.3)[1]
    for name in ("indices", "weights", "mask", "is_first", "is_last", "truncated"):
        assert getattr(sample, name).tolist() == getattr(expected, name).tolist()
    assert torch.equal(sample.items["obs"].cpu(), expected.items["obs"])


def test_torch_goals_in_hindsight_are_found_by_a_launch(kernels: emulated_gpu.Emulated) -> None:
    goal = frb.Unbounded((2,))
    item = {"desired_goal": goal, "next_achieved_goal": goal, "done": frb.Binary()}

    def sampled(where: str) -> frb.Sample[Any]:
        batch = {name: torch.arange(50.0, device=where).reshape(25, 2) for name in item if name != "done"}
        spec = frb.BufferSpec(item, 40, transforms=frb.her("future", 4))
        state = rb.add(rb.init(spec, where), batch | {"done": torch.arange(25, device=where) % 7 == 6})
        return rb.sample(state, rb.key(1), 16)[1]

    before, launched = device.counts(), len(kernels.launched)
    sample = sampled(device.NAME)
    kernels.note()
    assert device.counts().waits == before.waits
    assert [name for name, _ in kernels.launched[launched:]] == ["add_to_rings", "sample", "find_goals", "read_drawn"]
    expected = sampled("cpu")
    assert sample.extras["goal_indices"].tolist() == expected.extras["goal_indices"].tolist()
    assert torch.equal(sample.items["desired_goal"].cpu(), expected.items["desired_goal"])


def test_torch_streams_wait_for_each_other(kernels: emulated_gpu.Emulated) -> None:
    state = rb.add(rb.init(frb.BufferSpec(ITEM, 40)), batch_of(25))
    rb.sample(state, rb.key(0), 8)
    before = device.counts()
    rb.sample(state, rb.key(0), 8)
    assert device.counts().blocked == before.blocked
    with torch.Stream(device.NAME):
        rb.sample(state, rb.key(0), 8)
    rb.sample(state, rb.key(0), 8)
    after = device.counts()
    assert (after.recorded - before.recorded, after.blocked - before.blocked) == (2, 2)


@pytest.mark.parametrize("lanes", [None, 5])
def test_torch_buffers_that_stop_know_without_a_look_that_there_is_room(lanes: int | None) -> None:
    spec = frb.BufferSpec(ITEM, 60, writer=frb.StopWhenFull(), lanes=lanes)
    lead = (25,) if lanes is None else (5, 5)
    batch = {name: leaf.reshape(*lead, *leaf.shape[1:]) for name, leaf in batch_of(25).items()}
    state, waits = rb.init(spec), device.counts().waits
    older = state = rb.add(state, batch, torch.ones(lead, dtype=torch.bool))
    state = rb.add_(rb.add(state, batch), {name: leaf[:0] for name, leaf in batch.items()})
    assert device.counts().waits == waits
    for _ in range(2):
        with pytest.raises(ValueError, match="do not fit into the room for"):
            rb.add(state, batch)
    assert (int(rb.size(state)), int(rb.counts(state).refused)) == (50, 0)
    # A mask may leave enough out; then the device has to be asked, and the account is right again.
    state = rb.add(state, batch, torch.arange(25).reshape(lead) < 10)
    assert int(rb.size(state)) == 60
    older = rb.add(older, batch)  # which has memory of its own now
    with pytest.raises(ValueError, match="do not fit into the room for"):
        rb.add(older, {name: torch.cat([leaf, leaf]) for name, leaf in batch.items()})
    loaded = rb.load_state_dict(state, rb.state_dict(state))
    with pytest.raises(ValueError, match="do not fit into the room for"):
        rb.add(loaded, batch)
    waits = device.counts().waits
    cleared = rb.add(rb.add(rb.clear(state), batch), batch)
    assert device.counts().waits == waits
    assert int(rb.size(cleared)) == 50


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("by_launches", [False, True])
def test_torch_buffers_that_were_emptied_refuse_to_be_drawn_from_without_a_look(
    by_launches: bool, in_place: bool, request: pytest.FixtureRequest
) -> None:
    if by_launches:
        request.getfixturevalue("kernels")
    full = rb.add(rb.init(frb.BufferSpec(ITEM, 40)), batch_of(25))
    waits = device.counts().waits
    state = (rb.clear_ if in_place else rb.clear)(full)
    for sample in (rb.sample, rb.sample_):
        with pytest.raises(ValueError, match="buffer is empty"):
            sample(state, rb.key(0), 8)
    state, sampled = rb.sample(rb.add(state, batch_of(3)), rb.key(0), 8)
    assert device.counts().waits == waits
    assert (int(rb.size(state)), int(sampled.indices.max()) < 28) == (3, True)
    assert in_place or int(rb.size(rb.sample(full, rb.key(0), 8)[0])) == 25


@pytest.mark.parametrize(("length", "lanes"), [(None, None), (2, 5)])
@pytest.mark.parametrize("by_launches", [False, True])
def test_torch_queues_know_without_a_look_that_there_is_room(
    by_launches: bool, length: int | None, lanes: int | None, request: pytest.FixtureRequest
) -> None:
    if by_launches:
        request.getfixturevalue("kernels")
    state, waits = rb.init(frb.BufferSpec(ITEM, 60, frb.Queue(length), lanes=lanes)), device.counts().waits
    lead = (20,) if lanes is None else (4, 5)
    batch = {name: leaf.reshape(*lead, *leaf.shape[1:]) for name, leaf in batch_of(20).items()}
    for k in range(6):
        state = (rb.add_ if k % 2 else rb.add)(state, batch)
        state = rb.add(state, batch, torch.arange(20).reshape(lead) < 5) if k == 0 else state
        state, sample = rb.sample(state, rb.key(0), 10 if length else 20)
    assert device.counts().waits == waits
    assert bool(sample.mask.all())
    assert int(rb.size(state)) == 5
    older = state = rb.add(rb.add(state, batch), batch)
    state, _ = rb.sample(state, rb.key(0), 10 if length else 20)
    for _ in range(2):
        with pytest.raises(ValueError, match="do not fit into the room for"):
            rb.add(older, batch)
        assert int(rb.get(older, sample.indices.reshape(-1)[:1])["obs"].shape[0]) == 1  # by memory of its own
    assert int(rb.size(rb.add(state, batch))) == 45


def test_torch_trees_of_numpy_lie_where_tensors_are_made() -> None:
    spec = frb.trees.TreeSpec({"x": frb.Unbounded(())}, capacity=4, children=2)
    value, prior = np.zeros(3, np.float32), np.zeros((3, 2), np.float32)
    root = frb.trees.Expansion({"x": value}, prior, value)
    assert rb.init(spec, items=root).visits.device.type == device.NAME
    on_host = frb.trees.Expansion({"x": value}, torch.zeros(3, 2, device="cpu"), value)
    assert rb.init(spec, items=on_host).visits.device.type == "cpu"
