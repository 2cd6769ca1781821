"""What torch brings along: compile, vmap, pytrees, pickle, processes, TensorDict, keys, and every dtype."""

from __future__ import annotations

import copy
import io
import multiprocessing.process
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.multiprocessing
from tensordict import TensorDict, tensorclass
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
from tests.support import backends
from tests.support.effort import effort
from tests.support.torch_steps import (
    PRIORITIZED,
    UNIFORM,
    as_bytes,
    assert_equal,
    batch,
    draw_when_told,
    full,
    inputs,
    step,
)

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, cuda])]


@pytest.fixture(params=["torch", "torch-core"])
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    with backends.make(request.param):
        yield request.param


# ---------------------------------------------------------------- torch.compile


def check_compiled_step(sampler: Any, backend: str, device: str = "cpu") -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)

    @torch.compile(fullgraph=True, backend=counter)
    def compiled(state: Any, *given: Any) -> Any:
        return step(state, *given, rb.add_, rb.sample_, rb.update_)

    eager = full(sampler, device=device)
    state = rb.own_(full(sampler, device=device))
    place = state._version.memory.rows.data_ptr()
    # The first call may be traced once more where it is not yet known what a state looks like that it returned.
    with torch._dynamo.config.patch(error_on_recompile=True):
        for number in range(7):
            before = state
            eager, wanted = step(eager, *inputs(number, device), rb.add, rb.sample, rb.update)
            state, drawn = compiled(before, *inputs(number, device))
            assert_equal(drawn, wanted)
            with pytest.raises(RuntimeError, match=r"consumed .* go on with what that returned"):
                rb.size(before)
    assert counter.frame_count == 1
    assert state._version.memory.rows.data_ptr() == place
    assert_equal(state, eager)
    assert int(rb.counts(state).rejected) == int(rb.counts(eager).rejected)


def test_one_compiled_function_draws_from_buffers_of_several_items() -> None:
    """Whose settings torch would take for sizes that vary, once it has met two of each."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda state, key: rb.sample_(state, key, 4), fullgraph=True, backend=effort("eager", "aot_eager")
    )
    for shape, capacity in effort([((3,), 20), ((4, 2), 40)], [((3,), 20), ((5,), 24), ((4, 2), 40)]):
        spec = frb.BufferSpec({"x": frb.Unbounded(shape)}, capacity, frb.Uniform(max_times_sampled=3))
        state = rb.add(rb.init(spec), {"x": torch.rand(12, *shape)})
        _, expected = rb.sample(state, rb.key(1), 4)
        _, drawn = compiled(rb.own_(state), rb.key(1))
        assert_equal(drawn, expected)


STEPPING = (PRIORITIZED, UNIFORM, frb.Prioritized(1.0, 1.0, "ever"))


@pytest.mark.long
def test_a_training_step_compiled_by_inductor() -> None:
    check_compiled_step(PRIORITIZED, "inductor")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampler", effort(STEPPING[:1], STEPPING), ids=repr)
def test_a_training_step_traced_whole(sampler: Any, device: str) -> None:
    check_compiled_step(sampler, "aot_eager", device)


HANDLES = torch.tensor([12, 25, 25, 29, 3], dtype=torch.int32)
ALONE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda s: rb.add_(s, batch(40, 4)), lambda s: rb.add(s, batch(40, 4))),
    "add one": (
        lambda s: rb.add_(s, {k: v[0] for k, v in batch(40, 1).items()}),
        lambda s: rb.add(s, {k: v[0] for k, v in batch(40, 1).items()}),
    ),
    "add nothing": (lambda s: rb.add_(s, batch(40, 0)), lambda s: rb.add(s, batch(40, 0))),
    "add too many": (lambda s: rb.add_(s, batch(40, 50)), lambda s: rb.add(s, batch(40, 50))),
    "sample": (lambda s: rb.sample_(s, rb.key(3), 6), lambda s: rb.sample(s, rb.key(3), 6)),
    "update": (lambda s: rb.update_(s, HANDLES, HANDLES.float()), lambda s: rb.update(s, HANDLES, HANDLES.float())),
    "update items": (
        lambda s: rb.update_(s, HANDLES, None, {"x": batch(70, 5)["x"], "count": batch(70, 5)["count"]}),
        lambda s: rb.update(s, HANDLES, None, {"x": batch(70, 5)["x"], "count": batch(70, 5)["count"]}),
    ),
}


@pytest.mark.parametrize("name", effort(("add one", "add nothing", "add too many"), tuple(ALONE)))
def test_each_function_alone_traces_whole(name: str) -> None:
    torch._dynamo.reset()
    in_place, pure = ALONE[name]
    wanted = pure(full())
    assert_equal(in_place(full()), wanted)
    # That what is traced may be changed into functions, which takes as long again, is for the step above to see.
    got = torch.compile(in_place, fullgraph=True, backend=effort("eager", "aot_eager"))(rb.own_(full()))
    assert_equal(got, wanted)


@pytest.mark.parametrize("name", effort(("add", "update"), ("add", "sample", "update", "update items")))
def test_what_is_traced_leaves_the_state_that_it_is_given(name: str) -> None:
    """Of functions without an underscore: nothing is recorded there, by which it could be found again."""
    torch._dynamo.reset()
    pure, given = ALONE[name][1], full()
    before, wanted = rb.add(full(), batch(40, 0)), pure(full())
    assert_equal(torch.compile(pure, fullgraph=True, backend="eager")(given), wanted)
    assert_equal(given, before)
    assert_equal(rb.add(given, batch(40, 4)), rb.add(before, batch(40, 4)))


def test_what_is_traced_leaves_an_epoch_as_it_was() -> None:
    torch._dynamo.reset()
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 8, frb.WithoutReplacement())
    given = rb.add(rb.init(spec), {"x": torch.arange(8.0)})
    first = rb.sample(rb.add(rb.init(spec), {"x": torch.arange(8.0)}), rb.key(1), 3)[1]
    after, drawn = torch.compile(lambda s: rb.sample(s, rb.key(1), 3), fullgraph=True, backend="eager")(given)
    assert_equal(drawn, first)
    assert_equal(rb.sample(given, rb.key(1), 3)[1], first)
    assert not set(rb.sample(after, rb.key(2), 5)[1].items["x"].tolist()) & set(first.items["x"].tolist())


def test_a_traced_function_refuses_to_copy_files(tmp_path: Any) -> None:
    torch._dynamo.reset()
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 8, storage=frb.Memmap(str(tmp_path)))
    state = rb.add(rb.init(spec), {"x": torch.arange(8.0)})
    with pytest.raises(Exception, match=r"Memmap buffer is written in place alone.* call add_"):
        torch.compile(lambda s: rb.add(s, {"x": torch.zeros(2)}), fullgraph=True, backend="eager")(state)
    assert rb.items(state)["x"].tolist() == list(range(8))


@pytest.mark.parametrize("way", ["given out", "an older state is alive", "superseded"])
def test_compiled_functions_refuse_a_shared_state(way: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda s: rb.add_(s, batch(40, 4)), fullgraph=True, backend="eager")
    older = full()
    state = rb.add(older, batch(30, 1))
    # Nothing here may read the older state: it would get memory of its own.
    auxiliary, before = {
        "given out": lambda: (rb.items(state), rb.items(rb.add(full(), batch(30, 1)))),
        "an older state is alive": lambda: (older, full()),
        "superseded": lambda: (state, rb.add(full(), batch(30, 1))),
    }[way]()
    state = older if way == "superseded" else state
    with pytest.raises(Exception, match=r"must be the only owner .* state = rb\.own_\(state\)"):
        compiled(state)
    assert int(rb.size(state)) == 21  # it was not consumed
    wanted = rb.add(full() if way == "superseded" else rb.add(full(), batch(30, 1)), batch(40, 4))
    torch._dynamo.reset()
    assert_equal(compiled(rb.own_(state)), wanted)
    assert_equal(auxiliary, before)


def test_a_compiled_draw_that_is_remembered_refuses_a_shared_state() -> None:
    torch._dynamo.reset()
    older = rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, 8, frb.WithoutReplacement()))
    state = rb.add(older, {"x": torch.arange(8.0)})
    with pytest.raises(Exception, match=r"sample_: under torch\.compile .* must be the only owner"):
        torch.compile(lambda s: rb.sample_(s, rb.key(0), 2), fullgraph=True, backend="eager")(state)
    assert int(rb.size(older)) == 0


# ---------------------------------------------------------------- vmap, pytrees, copies


@pytest.mark.parametrize("sampler", [UNIFORM, PRIORITIZED], ids=repr)
def test_vmap_over_stacked_states(twin: str, sampler: Any) -> None:
    states = [rb.add(full(sampler), batch(50 * k, 5 * k)) for k in range(4)]
    stacked = pytree.tree_map(lambda *leaves: torch.stack(leaves), *states)
    keys = rb.split(rb.key(1), 4)

    def draw(state: Any, key: torch.Tensor) -> Any:
        return rb.sample(state, key, 6)[1]

    wanted = [draw(state, key) for state, key in zip(states, keys, strict=True)]
    assert_equal(torch.func.vmap(draw)(stacked, keys), pytree.tree_map(lambda *x: torch.stack(x), *wanted))
    same_key = torch.func.vmap(draw, in_dims=(0, None))(stacked, keys[0])
    assert_equal(pytree.tree_map(lambda x: x[0], same_key), wanted[0])
    same_state = torch.func.vmap(draw, in_dims=(None, 0))(states[0], keys)
    assert_equal(pytree.tree_map(lambda x: x[0], same_state), wanted[0])
    sizes = torch.func.vmap(rb.size)(stacked)
    assert sizes.tolist() == [21] * 4
    got = torch.func.vmap(rb.get, in_dims=(0, None))(stacked, HANDLES)
    assert_equal(pytree.tree_map(lambda x: x[2], got), rb.get(states[2], HANDLES))


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_vmap_over_beta(twin: str) -> None:
    state = rb.update(full(), HANDLES, torch.arange(1.0, 6.0))
    betas = torch.tensor([0.0, 0.4, 1.0])
    weights = torch.func.vmap(lambda beta: rb.sample(state, rb.key(0), 50, beta)[1].weights)(betas)
    for row, beta in zip(weights, betas, strict=True):
        assert_equal(row, rb.sample(state, rb.key(0), 50, beta)[1].weights)
    assert weights[0].unique().tolist() == [1.0]
    assert len(weights[2].unique()) > 1


def test_pytree() -> None:
    state = full()
    leaves, outline = pytree.tree_flatten({"state": state})
    back = pytree.tree_unflatten(leaves, outline)["state"]
    assert back.spec == state.spec
    assert_equal(back, state)
    assert_equal(rb.sample(back, rb.key(0), 9)[1], rb.sample(state, rb.key(0), 9)[1])
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(state)[0]]
    assert paths == [".rows", ".wide_0", ".tree", ".counters"]
    plain = rb.init(frb.BufferSpec((frb.Unbounded(()),), 3))
    assert [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(plain)[0]] == [".rows", ".counters"]
    doubled = pytree.tree_map(lambda x: x * 2 if x.dtype == torch.float32 else x, state)
    assert_equal(doubled.tree, state.tree * 2)
    # Mapped states go on like others, and do not touch what they were made of.
    after = rb.add(pytree.tree_map(lambda x: x, state), batch(60, 4))
    assert_equal(after, rb.add(full(), batch(60, 4)))
    assert_equal(state, full())


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "torch.save": lambda s: torch_saved(s),
}


def torch_saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save({"state": state}, file)
    file.seek(0)
    return torch.load(file, weights_only=False)["state"]


@pytest.mark.parametrize("superseded", [False, True])
@pytest.mark.parametrize("way", list(COPIES))
def test_copies(twin: str, way: str, superseded: bool) -> None:
    state = full()
    newer = rb.add(state, batch(30, 3)) if superseded else None
    copied = COPIES[way](state)
    assert copied.spec == state.spec
    copied_later = rb.update(rb.add(copied, batch(70, 4)), HANDLES, HANDLES.float())
    state_later = rb.add_(state, batch(90, 2))
    wanted = rb.update(rb.add(full(), batch(70, 4)), HANDLES, HANDLES.float())
    assert_equal(copied_later, wanted)
    assert_equal(copied, full())
    assert_equal(state_later, rb.add(full(), batch(90, 2)))
    if newer is not None:
        assert_equal(newer, rb.add(full(), batch(30, 3)))


def test_deepcopy_keeps_what_is_one_object_one() -> None:
    state = full()
    first, second = copy.deepcopy([state, state])
    assert first is second


# ---------------------------------------------------------------- processes


def test_a_state_sent_to_another_process() -> None:
    context = torch.multiprocessing.get_context("forkserver")  # pickles as for one that is spawned
    context.set_forkserver_preload(["tests.support.warm"])
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    process: multiprocessing.process.BaseProcess = context.Process(
        target=draw_when_told, args=(inbox, outbox), daemon=True
    )
    process.start()

    def drawn(state: Any, seed: int) -> tuple[bytes, ...]:
        sample = rb.sample(state, rb.key(seed), 64)[1]
        return as_bytes(sample.indices), as_bytes(sample.items["x"]), as_bytes(sent.counters)

    sent = state = full()
    frozen = copy.deepcopy(sent)
    inbox.put(sent)
    inbox.put(1)
    assert outbox.get() == drawn(frozen, 1)
    for number in range(5):
        state = rb.add(state, batch(200 + 9 * number, 9))
    state = rb.add_(state, batch(300, 30))
    inbox.put(2)
    assert outbox.get() == drawn(frozen, 2)
    inbox.put(None)
    added = rb.add(frozen, batch(700, 5))
    assert outbox.get() == (as_bytes(added.rows), as_bytes(added.tree), as_bytes(added.counters))
    process.join(60)
    assert process.exitcode == 0
    assert_equal(sent, frozen)


def test_sending_leaves_the_senders_memory_in_place() -> None:
    """Torch moves tensors that it sends to shared memory, and frees the old one under other threads."""
    state = full()
    places = [tensor.data_ptr() for tensor in state._version.memory.arrays]
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(state)
    assert [tensor.data_ptr() for tensor in state._version.memory.arrays] == places
    assert not any(tensor.is_shared() for tensor in state._version.memory.arrays)
    received = queue.get()
    assert_equal(received, state)
    assert_equal(rb.add(received, batch(60, 4)), rb.add(state, batch(60, 4)))


# ---------------------------------------------------------------- TensorDict and tensorclass


@tensorclass
class Inner:
    pos: torch.Tensor
    flag: torch.Tensor


@tensorclass
class Step:
    obs: Inner
    reward: torch.Tensor


def nested_tensordict(n: int) -> TensorDict:
    inner = TensorDict({"pos": torch.arange(2.0 * n).reshape(n, 2), "flag": torch.arange(n) % 2 == 0}, [n])
    return TensorDict({"obs": inner, "reward": torch.arange(n, dtype=torch.float64)}, [n])


def nested_tensorclass(n: int) -> Any:
    plain = nested_tensordict(n)
    obs = Inner(pos=plain["obs", "pos"], flag=plain["obs", "flag"], batch_size=[n])
    return Step(obs=obs, reward=plain["reward"], batch_size=[n])


def tensorclass_in_dict(n: int) -> Any:
    return {"step": nested_tensorclass(n), "id": torch.arange(n, dtype=torch.int32), "td": nested_tensordict(n)}


@pytest.mark.parametrize("make", [nested_tensordict, nested_tensorclass, tensorclass_in_dict])
def test_tensordicts_come_out_as_they_went_in(twin: str, make: Callable[[int], Any]) -> None:
    example = pytree.tree_map(lambda x: x[0], make(1), is_leaf=lambda x: hasattr(x, "batch_size"))
    spec = frb.BufferSpec(frb.specs.spec_of(example), 8, PRIORITIZED)
    assert hash(spec) == hash(frb.BufferSpec(frb.specs.spec_of(example), 8, PRIORITIZED))
    state = rb.add(rb.init(spec), make(5))
    state = rb.add(state, example)  # one item
    assert int(rb.size(state)) == 6

    def check(got: Any, wanted: Any, n: int) -> None:
        assert type(got) is type(wanted)
        if hasattr(wanted, "batch_size"):
            assert tuple(got.batch_size) == (n,)
            got, wanted = ({k: x.get(k) for k in x.keys()} for x in (got, wanted))  # noqa: SIM118 - a TensorDict iterates its batch
        if isinstance(wanted, dict):
            assert list(got) == list(wanted)
            for name in wanted:
                check(got[name], wanted[name], n)
        else:
            assert torch.equal(got, wanted)

    handles = torch.tensor([1, 4, 2], dtype=torch.int32)
    check(rb.get(state, handles), index(make(5), [1, 4, 2]), 3)
    check(index(rb.items(state), [0, 1, 2, 3, 4]), make(5), 5)
    state, sample = rb.sample(state, rb.key(0), 7)
    check(sample.items, index(make(5), (sample.indices.long() % 5).tolist()), 7)
    assert_equal(rb.add(pickle.loads(pickle.dumps(state)), make(2)), rb.add(state, make(2)))


def index(nest: Any, rows: list[int]) -> Any:
    if isinstance(nest, dict):
        return {k: index(v, rows) for k, v in nest.items()}
    return nest[torch.tensor(rows)]


def test_dicts_and_tensordicts_stand_in_for_each_other(twin: str) -> None:
    as_dict = nested_tensordict(5).to_dict()
    spec_of_dict = frb.specs.spec_of(nested_tensordict(1)[0].to_dict())
    spec_of_td = frb.specs.spec_of(nested_tensordict(1)[0])
    for item, given, kind in (
        (spec_of_dict, nested_tensordict(5), dict),
        (spec_of_dict, nested_tensorclass(5), dict),
        (spec_of_td, as_dict, TensorDict),
        (spec_of_td, nested_tensorclass(5), TensorDict),
        (spec_of_td, dict(reversed(as_dict.items())), TensorDict),
    ):
        state = rb.add(rb.init(frb.BufferSpec(item, 8)), given)
        got = rb.get(state, torch.arange(5, dtype=torch.int32))
        assert type(got) is kind
        assert type(got["obs"]) is kind
        assert torch.equal(got["obs"]["pos"], as_dict["obs"]["pos"])
        assert torch.equal(got["obs"]["flag"], as_dict["obs"]["flag"])
        assert torch.equal(got["reward"], as_dict["reward"])
    state = rb.update(
        state, torch.tensor([3], dtype=torch.int32), None, TensorDict({"reward": torch.ones(1).double()}, [1])
    )
    assert rb.items(state)["reward"].tolist() == [0, 1, 2, 1, 4, 0, 0, 0]


# ---------------------------------------------------------------- keys


def test_keys_are_pure_and_all_bits_of_a_seed_count() -> None:
    key = rb.key(5)
    before = int(key)
    first, second = rb.split(key, 3), rb.split(key, 3)
    assert torch.equal(first, second)
    assert int(key) == before
    assert torch.equal(rb.split(key, 2), rb.split(key, 3)[:2])
    state = full()
    assert_equal(rb.sample(state, key, 40), rb.sample(state, key, 40))
    # A seed's high bits count, in which torch's own CPU generator takes no interest.
    seeds = [0, 1, *(2**k for k in range(1, 64))]
    keys = [rb.key(seed) for seed in seeds]
    assert len({int(k) for k in keys}) == len(seeds)
    assert len({tuple(rb.sample(state, k, 40)[1].indices.tolist()) for k in keys}) == len(seeds)


def test_the_callers_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    rb.sample(full(), rb.split(rb.key(0))[0], 5)
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------- dtypes

NARROW = ("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16")
DTYPES = (*NARROW, "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64")


def random_bits(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of any bits, NaNs and all."""
    if dtype == "bool":
        return torch.from_numpy(rng.random(shape) < 0.5)
    if 0 in shape:
        return torch.zeros(shape, dtype=getattr(torch, dtype))
    raw = rng.integers(0, 256, (int(np.prod(shape)) * getattr(torch, dtype).itemsize,), np.uint8)
    return torch.from_numpy(raw).view(getattr(torch, dtype)).reshape(shape)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(twin: str, dtype: str, in_place: bool, device: str) -> None:
    add, update = (rb.add_, rb.update_) if in_place else (rb.add, rb.update)
    # A scalar, a vector, nothing, something large (an array of its own, if narrow), and a byte to disturb alignment.
    shapes: dict[str, tuple[int, ...]] = {"a": (), "b": (3,), "c": (0,), "d": (2, 600)}
    item = {k: frb.Unbounded(shape, dtype) for k, shape in shapes.items()} | {"e": frb.Unbounded((), "int8")}
    spec = frb.BufferSpec(item, 7)
    assert bool(spec.plan.layout.wide) == (dtype in NARROW)
    rng = np.random.default_rng(len(dtype))

    def values(n: int) -> dict[str, torch.Tensor]:
        made = {k: random_bits(rng, dtype, (n, *shape)) for k, shape in shapes.items()}
        return pytree.tree_map(lambda x: x.to(device), {**made, "e": random_bits(rng, "int8", (n,))})

    def rows(nest: Any, k: int) -> list[bytes]:
        return [as_bytes(leaf[k]) for leaf in nest.values()]

    state, model = rb.init(spec, device), {}
    number = 0
    for n in (2, 1, 4, 9, 5):
        given = values(n)
        mask = torch.from_numpy(rng.random(n) < 0.7).to(device) if n not in (2, 9) else None
        state = add(state, given, mask)
        for k in range(n):
            if mask is None or mask[k]:
                model[number] = rows(given, k)
                number += 1
        handles = torch.arange(max(number - 9, 0), number + 1, dtype=torch.int32, device=device)
        new = values(len(handles))
        state = update(state, handles, None, {"b": new["b"], "d": new["d"]})
        live = rb.is_live(state, handles)
        assert live.tolist() == [number - 7 <= h < number for h in handles.tolist()]
        for k, handle in enumerate(handles.tolist()):
            if live[k]:
                model[handle][1], model[handle][3] = as_bytes(new["b"][k]), as_bytes(new["d"][k])
        got, everything = rb.get(state, handles), rb.items(state)
        for k, handle in enumerate(handles.tolist()):
            if live[k]:
                assert rows(got, k) == model[handle]
                assert rows(everything, handle % 7) == model[handle]
            else:
                assert not any(any(row) for row in rows(got, k))
        drawn = rb.sample(state, rb.key(number), 12)[1]
        for name, leaf in drawn.items.items():
            assert leaf.dtype == getattr(torch, item[name].dtype)
        for k, handle in enumerate(drawn.indices.tolist()):
            assert rows(drawn.items, k) == model[handle]


@pytest.mark.gpu
@cuda
def test_cuda_gives_the_same_as_the_cpu() -> None:
    for sampler in (UNIFORM, PRIORITIZED):
        here, there = full(sampler), full(sampler, device="cuda")
        for number in range(6):
            here, wanted = step(here, *inputs(number), rb.add, rb.sample, rb.update)
            there, drawn = step(there, *inputs(number, "cuda"), rb.add, rb.sample, rb.update)
            assert_equal(drawn, wanted)
        assert there.rows.device.type == "cuda"
        assert_equal(there, here)
