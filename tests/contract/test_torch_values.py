"""Torch states are values although they share memory: whatever happens later, an older one reads as it did."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
from tests.support import backends, gpu, torch_steps
from tests.support.effort import effort
from tests.support.torch_steps import ITEM, READERS, assert_equal, assert_reads_as, batch, memory_of

SAMPLERS = [frb.Uniform(), frb.Prioritized(alpha=1.0), frb.Prioritized(alpha=0.6, new_priority="ever")]


def full(sampler: Any = SAMPLERS[1], capacity: int = 13, added: int = 17) -> Any:
    return torch_steps.full(sampler, capacity, added=added)


@pytest.fixture(params=["torch", "torch-core"], autouse=True)
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs with the compiled kernels and with torch's operations alone."""
    with backends.make(request.param):
        yield request.param


def assert_whole(items: dict[str, torch.Tensor]) -> None:
    """No item is torn: its leaves agree on the number."""
    number = items["id"]
    assert torch.equal(items["image"], (number % 251).to(torch.uint8)[:, None].expand(-1, 1100))
    assert torch.equal(items["x"][:, 0], number.float())
    assert torch.equal(items["x"][:, 1], -number.float())
    assert torch.equal(items["done"], number % 3 == 0)


def stored(state: Any) -> dict[str, torch.Tensor]:
    """The rows of storage that hold an item."""
    return {k: v[: int(rb.size(state))] for k, v in rb.items(state).items()}


def random_step(state: Any, rng: np.random.Generator, number: int) -> Any:
    """An add or an update of some kind: masked, with bad priorities, duplicate and stale handles, of any length."""
    prioritized = isinstance(state.spec.sampler, frb.Prioritized)
    n = int(rng.choice([1, 2, 5, state.spec.capacity, 2 * state.spec.capacity + 1]))
    priorities = torch.from_numpy(rng.choice([0.5, 2, 0, np.nan, -1, 8], n).astype(np.float32))
    if rng.random() < 0.5:
        mask = torch.from_numpy(rng.random(n) < 0.6) if rng.random() < 0.5 else None
        return rb.add(state, batch(number, n), mask, priorities if prioritized and rng.random() < 0.5 else None)
    cursor = int(state.counters[0])
    handles = torch.from_numpy(rng.integers(cursor - 20, cursor + 2, n).astype(np.int32))
    items = {"id": batch(number, n)["id"], "image": batch(number, n)["image"]} if rng.random() < 0.6 else None
    return rb.update(state, handles, priorities if prioritized else None, items)


ORDERS = ["oldest first", "newest first", "any"]


@pytest.mark.parametrize(
    ("order", "sampler"),
    effort([*zip(ORDERS, SAMPLERS, strict=True)], [*itertools.product(ORDERS, SAMPLERS)]),
    ids=str,
)
def test_all_states_of_a_branching_history_read_as_they_were(sampler: Any, order: str) -> None:
    rng = np.random.default_rng(len(order))
    states = [full(sampler, *((37, 50) if order == "any" else (13, 17)))]
    frozen = [copy.deepcopy(states[0])]
    for step in range(24):
        # Most steps go on from the newest state, some from any older one; some states are read in between.
        start = states[-1] if rng.random() < 0.7 else states[int(rng.integers(len(states)))]
        states.append(random_step(start, rng, 100 * step))
        frozen.append(copy.deepcopy(states[-1]))
        if rng.random() < 0.3:
            k = int(rng.integers(len(states)))
            assert_reads_as(states[k], frozen[k], [str(rng.choice(list(READERS)))])
        if step % 9 == 8:
            # Consume a state in the middle, which others may still be found from.
            k = int(rng.integers(len(states)))
            states[k] = rb.add_(states[k], batch(5000 + step, int(rng.integers(1, 20))))
            frozen[k] = copy.deepcopy(states[k])
    indices = list(range(len(states)))
    if order == "newest first":
        indices.reverse()
    elif order == "any":
        indices = rng.permutation(indices).tolist()
    for _ in range(2):
        for k in indices:
            assert_reads_as(states[k], frozen[k], rng.permutation(list(READERS)).tolist())


@pytest.mark.parametrize("reader", list(READERS))
def test_each_way_of_reading_alone_survives_later_writes(reader: str) -> None:
    state = full(capacity=21, added=25)  # so large that the sum tree has two levels
    older, frozen = state, copy.deepcopy(state)
    for step in range(5):
        state = rb.add(state, batch(1000 + step, 1))
        handles = torch.tensor([20, 20, 19, 21, 5], dtype=torch.int32)  # a duplicate, and one soon stale
        state = rb.update(state, handles, torch.tensor([3.0, 4.0, 5.0, 6.0, 7.0]), {"id": handles * 7})
    assert_reads_as(older, frozen, [reader, reader])
    assert_reads_as(older, frozen)


@pytest.mark.parametrize("in_place", [False, True])
def test_writing_to_a_rebuilt_state_spares_those_older_than_it(in_place: bool) -> None:
    oldest = full()
    frozen = copy.deepcopy(oldest)
    older = rb.add(oldest, batch(20, 2))
    newest = rb.add(older, batch(30, 2))
    rb.sample(older, rb.key(0), 1)  # gets memory of its own, from which the oldest is found now
    after = (rb.add_ if in_place else rb.add)(older, batch(50, 11))
    assert_reads_as(oldest, frozen)
    assert_reads_as(newest, rb.add(rb.add(full(), batch(20, 2)), batch(30, 2)))
    assert_reads_as(after, rb.add(rb.add(full(), batch(20, 2)), batch(50, 11)))


def test_the_same_step_from_an_older_state_gives_the_same_again() -> None:
    older = full()
    first = rb.add(older, batch(50, 4))
    for step in range(3):
        first_again = rb.add(older, batch(50, 4))
        other = rb.add(older, batch(90 + step, 6))
        assert_reads_as(first_again, copy.deepcopy(first))
        assert rb.items(other)["id"][5] == 91 + step
    assert_reads_as(older, full())


@gpu.not_on_one("torch's functions do not wait there to see that nothing can be drawn")
@pytest.mark.parametrize("sample", [rb.sample, rb.sample_], ids=["sample", "sample_"])
def test_a_sample_that_fails_copies_nothing(sample: Any) -> None:
    state = full(frb.WithoutReplacement(drop_last=True), added=3)
    place = memory_of(state).rows.data_ptr()
    for _ in range(3):
        with pytest.raises(ValueError, match="drop_last"):
            sample(state, rb.key(0), 4)
        assert memory_of(state).rows.data_ptr() == place
    assert memory_of(state).retained == 0


GIVEN_OUT: dict[str, Callable[[Any], list[Any]]] = {
    "items": lambda s: list(rb.items(s).values()),
    "fields": lambda s: [s.rows, *s.wide, s.tree, s.counters],
    "pytree": lambda s: pytree.tree_leaves(s),
    "from_dlpack": lambda s: pytree.tree_leaves(rb.from_dlpack(s)),
    "__dlpack__": lambda s: [torch.from_dlpack(x) for x in (s.rows, *s.wide, s.tree, s.counters)],
    "numpy": lambda s: [np.from_dlpack(x.cpu()) for x in (s.rows, *s.wide, s.tree, s.counters)],
    "copy": lambda s: pytree.tree_leaves(copy.copy(s)),
    "tree_map": lambda s: pytree.tree_leaves(pytree.tree_map(lambda x: x, s)),
}


def write_much(state: Any, in_place: bool) -> Any:
    add, update = (rb.add_, rb.update_) if in_place else (rb.add, rb.update)
    for step in range(4):
        state = add(state, batch(500 + step, 9))
        handles = torch.arange(40, dtype=torch.int32)
        state = update(state, handles, torch.full((40,), 9.0), {"id": handles + 5000})
    return state


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("way", list(GIVEN_OUT))
def test_arrays_given_out_never_change(way: str, in_place: bool) -> None:
    state = full()
    place = memory_of(state).rows.data_ptr()
    arrays = GIVEN_OUT[way](state)
    before = [np.array(np.asarray(x)) for x in arrays]
    later = write_much(state, in_place)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(np.asarray(array), old)
    moved = memory_of(later).rows.data_ptr()
    assert moved != place
    # One copy pays for it: from then on the new memory is written in place.
    assert memory_of(write_much(later, in_place)).rows.data_ptr() == moved


def test_arrays_of_a_superseded_state_never_change() -> None:
    older = full()
    frozen = copy.deepcopy(older)
    newer = rb.add(older, batch(70, 3))
    given = rb.items(older)
    before = {k: v.clone() for k, v in given.items()}
    branch = write_much(older, in_place=False)
    write_much(newer, in_place=True)
    assert_equal(given, before)
    assert_equal(given, rb.items(frozen))
    del branch


def test_sampled_items_are_copies() -> None:
    state = full()
    state, sample = rb.sample(state, rb.key(0), 30)
    got = rb.get(state, sample.indices)
    before = pytree.tree_map(torch.clone, (sample, got))
    state = write_much(state, in_place=True)
    assert_equal((sample, got), before)
    place = memory_of(rb.add(state, batch(0, 1))).rows.data_ptr()
    assert place == state._version.next.memory.rows.data_ptr()  # reading items does not pin the memory


MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("in_place", [False, True])
def test_no_gradient_is_recorded(mode: str, in_place: bool) -> None:
    add, sample, update = (rb.add_, rb.sample_, rb.update_) if in_place else (rb.add, rb.sample, rb.update)
    x = torch.ones(4, 3, requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    state = rb.init(frb.BufferSpec(ITEM, 13, frb.Prioritized(alpha=1.0)))
    with MODES[mode]():
        state = add(state, {**batch(0, 4), "x": x * scale}, priorities=x[:, 0] * scale)
        state, drawn = sample(state, rb.key(0), 6, beta=scale * 0.5)
        state = update(state, drawn.indices, scale * torch.ones(6), {"x": scale * torch.ones(6, 3)})
    for tensor in [*memory_of(state).arrays, *pytree.tree_leaves(drawn), *pytree.tree_leaves(state)]:
        assert not tensor.requires_grad
        assert tensor.grad_fn is None
    assert drawn.items["x"].unique().tolist() == [2.0]
    assert drawn.weights.tolist() == [1.0] * 6
    # What was drawn may enter a graph outside of inference mode.
    if mode != "inference":
        (drawn.items["x"] * scale).sum().backward()
        assert scale.grad is not None


@pytest.mark.parametrize("inside", list(MODES))
@pytest.mark.parametrize("outside", list(MODES))
def test_states_cross_inference_mode(inside: str, outside: str) -> None:
    with MODES[inside]():
        first = full()
        state = rb.add(first, batch(30, 3))
        branch = rb.add(first, batch(50, 3))
        copied = copy.deepcopy(state)
    with MODES[outside]():
        later = rb.update(rb.add(state, batch(60, 4)), torch.tensor([20, 21], dtype=torch.int32), torch.ones(2) * 5)
        copied = rb.update_(rb.add_(copied, batch(60, 4)), torch.tensor([20], dtype=torch.int32), torch.ones(1) * 5)
        later_in_place = rb.add_(branch, batch(60, 4))
        older = rb.add(first, batch(30, 3))
    assert_reads_as(older, rb.add(full(), batch(30, 3)))
    assert_reads_as(state, rb.add(full(), batch(30, 3)))
    assert_reads_as(later_in_place, rb.add(rb.add(full(), batch(50, 3)), batch(60, 4)))
    wanted = rb.add(rb.add(full(), batch(30, 3)), batch(60, 4))
    assert_reads_as(copied, rb.update(wanted, torch.tensor([20], dtype=torch.int32), torch.ones(1) * 5))
    assert_reads_as(later, rb.update(wanted, torch.tensor([20, 21], dtype=torch.int32), torch.ones(2) * 5))


def every_other(x: Any) -> Any:
    """The same values, every other element of twice as many."""
    return torch.stack([x, x], -1).flatten(-2)[..., ::2] if x.dim() else x


ODD_LAYOUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "strided": lambda x: torch.stack([x, x], 1)[:, 0],
    "last axis strided": every_other,
    "transposed": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "offset": lambda x: torch.cat([x[:1], x])[1:],
    "NumPy backwards": lambda x: x.numpy()[::-1].copy()[::-1],
    "NumPy strided": lambda x: np.repeat(x.numpy(), 2, 0)[::2],
    "NumPy read-only": lambda x: np.broadcast_to(x.numpy(), x.shape),
}


@pytest.mark.parametrize("layout", list(ODD_LAYOUTS))
def test_inputs_of_any_layout(layout: str) -> None:
    lay = ODD_LAYOUTS[layout]
    mask, priorities = torch.tensor([True, False, True, True, True]), torch.arange(1.0, 6.0)
    handles = torch.tensor([5, 6, 18, 19, 20], dtype=torch.int32)

    def run(change: Callable[[Any], Any]) -> Any:
        state = rb.add(full(), pytree.tree_map(change, batch(40, 5)), change(mask), change(priorities))
        return rb.update(state, change(handles), change(priorities), {"x": change(batch(70, 5)["x"])})

    assert_reads_as(run(lay), run(lambda x: x))


def test_expanded_inputs() -> None:
    one = {k: v[0] for k, v in batch(77, 1).items()}
    wide = {k: v.expand(6, *v.shape) for k, v in one.items()}
    state = rb.add(full(), wide, torch.tensor(True).expand(6), torch.tensor(2.0).expand(6))
    assert rb.items(state)["id"].tolist().count(77) == 6
    assert_whole(rb.items(state))
    state = rb.update(state, torch.tensor(20, dtype=torch.int32).expand(3), torch.tensor(4.0).expand(3))
    assert state.tree.reshape(-1)[20 % 13] == 4.0


def test_conjugated_and_negated_inputs() -> None:
    """Torch puts conjugation and negation off: the memory of such a tensor holds other values than it has."""
    spec = frb.BufferSpec({"z": frb.Unbounded((2,), "complex64"), "y": frb.Unbounded((2,))}, 4)
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    y = torch._neg_view(torch.tensor([[1.0, 2.0]]))
    assert z.conj().is_conj()
    state = rb.add(rb.init(spec), {"z": z.conj(), "y": y})
    assert rb.items(state)["z"][0].tolist() == [1 - 2j, 3 + 4j]
    assert rb.items(state)["y"][0].tolist() == [-1.0, -2.0]
    state = rb.update(state, torch.tensor([0], dtype=torch.int32), None, {"z": (2 * z).conj()})
    assert rb.items(state)["z"][0].tolist() == [2 - 4j, 6 + 8j]


@pytest.mark.parametrize("in_place", [False, True])
def test_inputs_that_are_the_state_itself(in_place: bool) -> None:
    """Views of the storage, given as input to the write that would overwrite them."""
    add, update = (rb.add_, rb.update_) if in_place else (rb.add, rb.update)

    def run(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        state = full()
        state = add(state, pytree.tree_map(change, rb.items(state)))
        state = add(state, pytree.tree_map(lambda x: change(x[3:9]), rb.items(state)))
        state = add(state, pytree.tree_map(lambda x: change(x[::2]), rb.items(state)))
        state = add(state, rb.get(state, torch.arange(30, 40, dtype=torch.int32)))
        state = add(state, rb.sample(state, rb.key(1), 5)[1].items)
        first = {k: change(v[:6]) for k, v in rb.items(state).items()}
        priorities = change(state.tree.reshape(-1)[:6])
        state = update(state, torch.arange(46, 52, dtype=torch.int32), priorities, first)
        state = add(state, {**batch(0, 6), "id": change(state.counters)})
        return update(state, change(state.counters), None, {"id": change(state.counters)})

    assert_reads_as(run(lambda x: x), run(torch.clone))


def test_many_threads_branch_from_one_state() -> None:
    """Every thread goes its own way from the same states; none sees the others, and the sizes add up."""
    first = full(capacity=500, added=3)
    second = rb.add(first, batch(3, 2))
    failures: list[BaseException] = []
    sizes: list[int] = []

    def work(worker: int) -> None:
        try:
            state, number = (first, 3) if worker % 2 else (second, 5)
            for step in range(40):
                state = rb.add(state, batch(number, 1 + worker))
                number += 1 + worker
                if step % 7 == worker % 7:
                    assert_whole(stored(state))
                sample = rb.sample(state, rb.key(step), 16)[1]
                assert torch.equal(sample.items["id"], sample.indices)
                state = rb.update(state, sample.indices, torch.full((16,), float(1 + worker)))
                assert rb.size(first) == 3
            leaves = state.tree.reshape(-1)[:500]
            assert set(leaves.tolist()) <= {0.0, 1.0, float(1 + worker)}
            assert_whole(stored(state))
            sizes.append(int(rb.size(state)))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]
    wanted = [min(500, (3 if k % 2 else 5) + 40 * (1 + k)) for k in range(8)]
    assert sum(sizes) == sum(wanted)
    assert sorted(sizes) == sorted(wanted)
    assert_reads_as(first, full(capacity=500, added=3))
    assert_reads_as(second, rb.add(full(capacity=500, added=3), batch(3, 2)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_values_on_cuda() -> None:
    state = rb.init(frb.BufferSpec(ITEM, 13, frb.Prioritized(alpha=1.0)), device="cuda")
    states, auxiliary = [], []
    for step in range(20):
        state = rb.add(state, batch(5 * step, 5, "cuda"))
        handles = torch.arange(5 * step - 3, 5 * step + 3, dtype=torch.int32, device="cuda")
        state = rb.update(state, handles, torch.arange(1.0, 7.0, device="cuda"))
        states.append(state)
        auxiliary.append(copy.deepcopy(state))
    for old, frozen in zip(states, auxiliary, strict=True):
        assert_equal(rb.sample(old, rb.key(1), 9)[1], rb.sample(frozen, rb.key(1), 9)[1])
        assert_equal((rb.items(old), old.tree), (rb.items(frozen), frozen.tree))
    assert_whole(stored(states[0]))
    assert rb.counts(states[-1]).rejected == 0


@dataclasses.dataclass(frozen=True)
class OfOthers(frb.Uniform):
    """A sampler that native code does not know: what it draws is read by parts of the core."""


@pytest.mark.parametrize(
    "item",
    [
        {"image": frb.Unbounded((32, 33), "uint8"), "reward": frb.Unbounded(())},
        {"half": frb.Unbounded((600,), "bfloat16"), "image": frb.Unbounded((1024,), "int8")},
        {"alone": frb.Unbounded((5, 3), "float64")},
        {"alone": frb.Unbounded((), "complex64")},
        {"alone": frb.Unbounded((2, 2), "uint8")},
        {"alone": frb.Binary(), "nothing": frb.Unbounded((0,))},
    ],
    ids=lambda item: ",".join(f"{spec.dtype}{spec.shape}" for spec in item.values()),
)
@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_large_leaves_are_copied_alike(item: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = frb.BufferSpec(item, 16, OfOthers())
    generator = torch.Generator().manual_seed(0)
    batch = {}
    for name, leaf in item.items():
        shape, dtype = (16, *leaf.shape), getattr(torch, leaf.dtype)
        wide = torch.randint(0, 2 if leaf.dtype == "bool" else 100, shape, generator=generator)
        batch[name] = wide.to(dtype)
    state = rb.add(rb.init(spec), batch)
    samples = []
    for large in (1, 2**60):
        monkeypatch.setattr("torch_backend.kernels.cpu_kernels.LARGE", large)
        samples.append(rb.sample(state, rb.key(1), 9)[1])
    for name, leaf in samples[0].items.items():
        assert leaf.dtype == samples[1].items[name].dtype
        assert leaf.is_contiguous()
        assert torch.equal(leaf, samples[1].items[name])
        assert torch.equal(leaf, batch[name][samples[0].indices.long()])


@pytest.mark.parametrize("first", [False, True])
def test_a_state_of_another_label_is_written_to_by_itself(first: bool) -> None:
    """Two states of one value, of which an in-place function writes to one."""
    state = full()
    other = rb.with_spec(state, dataclasses.replace(state.spec, batch_size=3))
    written, left = (state, other) if first else (other, state)
    frozen = copy.deepcopy(left)
    rb.add_(written, batch(90, 5))
    assert_reads_as(left, frozen)
