"""The version chain in C++ beside the plain engine: programs give the same states, samples and errors, to the bit."""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import stateful

import functional_rb as frb
import torch_backend as rb
from functional_rb.mixture.value import MixtureSpec
from functional_rb.native.descriptor import encode_mixture
from tests.agreement.chain_machine import CHAINS, Programs
from tests.support import chain_programs as programs
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort
from torch_backend.memory import state as torch_state
from torch_backend.memory.library import TORCH

pytestmark = needs_native


@pytest.mark.parametrize("way", list(CHAINS))
def test_random_programs(way: str) -> None:
    class OfThisWay(Programs):
        chain = programs.Noting(CHAINS[way])

    settings = hypothesis.settings(max_examples=effort(8, 400), stateful_step_count=effort(20, 60), deadline=None)
    stateful.run_state_machine_as_test(OfThisWay, settings=settings)
    assert OfThisWay.chain.done > effort(60, 2000)


# --- what is out of the ordinary -------------------------------------------------------------------------------------

SPEC = frb.BufferSpec({"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32")}, 8, frb.Prioritized())


def batch(n: int, start: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(3.0 * start, 3 * (start + n)).reshape(n, 3), "n": torch.arange(start, start + n).int()}


def full(spec: frb.BufferSpec = SPEC) -> Any:
    return rb.add(rb.init(spec), batch(8, 1))


def shown(state: Any) -> list[bytes]:
    return programs.peek(state)


@pytest.fixture(params=list(CHAINS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> programs.Noting:
    """Each chain in turn, which counts what it does."""
    noting = programs.Noting(CHAINS[request.param])
    monkeypatch.setattr(TORCH, "chain", noting)
    return noting


def same_on_the_plain_engine(case: Callable[[], Any]) -> Any:
    """What a function finds or raises, which is the same without the chain."""
    found = programs.outcome(case)
    with programs.using(programs.NotHere()):
        assert programs.outcome(case) == found
    return found


def test_what_is_usual_is_done_by_the_chain(way: programs.Noting) -> None:
    state = full()
    state = rb.add(state, {"x": np.ones((2, 3), np.float32), "n": np.ones(2, np.int32)}, np.array([True, False]))
    state = rb.add(state, {"x": torch.ones(3), "n": 1})
    state, sample = rb.sample(state, rb.key(0), 4, 0.5)
    older, state = state, rb.update(state, sample.indices, sample.weights, {"x": sample.items["x"]})
    del older
    state = rb.add_(state, batch(2), priorities=torch.ones(2, 1))
    rb.update_(state, sample.indices, sample.weights)
    assert way.done == 7


def without_memory(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros, as automatic differentiation has them."""
    return torch._efficientzerotensor(shape, dtype=dtype)


def kept_of(function: Callable[[Callable[..., Any]], Any]) -> torch.Tensor:
    """A tensor that a function of torch.func has left behind."""
    left: list[torch.Tensor] = []
    function(lambda x: (left.append(x), x.sum())[1])(torch.ones(2, 3))
    return left[0]


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(3)] * 2)


NUMBERS = torch.ones(2, dtype=torch.int32)
MISALIGNED = np.frombuffer(b"?" + np.arange(2, dtype=np.int32).tobytes(), np.uint8)[1:].view(np.int32)
CASES: dict[str, Callable[[], Any]] = {
    "zeros as a leaf": lambda: rb.add(full(), {"x": without_memory(2, 3), "n": NUMBERS}),
    "zeros as a mask": lambda: rb.add(full(), batch(2), without_memory(2, dtype=torch.bool)),
    "zeros as priorities": lambda: rb.update(full(), NUMBERS, without_memory(2)),
    "zeros as indices": lambda: rb.update(full(), without_memory(2, dtype=torch.int32), torch.ones(2)),
    "negated": lambda: rb.add(full(), {"x": torch._neg_view(torch.ones(2, 3)), "n": torch._neg_view(NUMBERS)}),
    "conjugated": lambda: rb.add(full(), {"x": torch.full((2, 3), 1j).conj().imag, "n": NUMBERS}),
    "nested": lambda: rb.add(full(), {"x": nested(), "n": NUMBERS}),
    "sparse": lambda: rb.add(full(), {"x": torch.ones(2, 3).to_sparse(), "n": NUMBERS}),
    "on meta": lambda: rb.add(full(), {"x": torch.ones(2, 3, device="meta"), "n": NUMBERS}),
    "left by vmap": lambda: rb.add(full(), {"x": kept_of(torch.func.vmap), "n": NUMBERS[0]}),
    "left by grad": lambda: rb.add(full(), {"x": kept_of(torch.func.grad), "n": NUMBERS}),
    "not aligned": lambda: rb.update(full(), MISALIGNED, MISALIGNED.view(np.float32)),
    "of a consumed state": lambda: (lambda state: (rb.add_(state, batch(1)), rb.add(state, batch(1))))(full()),
    "a number out of range": lambda: rb.add(full(), {"x": torch.ones(3), "n": 2**31}),
    "the last number in range": lambda: rb.add(full(), {"x": torch.ones(3), "n": -(2**31)}),
    "a truth as a number": lambda: rb.add(full(), {"x": torch.ones(3), "n": True}),
    "a fraction as a number": lambda: rb.add(full(), {"x": torch.ones(3), "n": 1.0}),
    "a whole sample": lambda: rb.add(full(), rb.sample(full(), rb.key(0), 2)[1]),
    "the pair": lambda: rb.update(full(), rb.sample(full(), rb.key(0), 2)),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of a process is limited as Linux does it")
def test_a_sample_that_there_is_no_memory_for() -> None:
    state, before = full(), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, before[1]))
    try:
        with pytest.raises(MemoryError, match="268435456 items of 16 bytes"):
            rb.sample(state, rb.key(0), 2**28)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", list(CASES))
def test_odd_arguments(name: str, way: programs.Noting) -> None:
    def case() -> Any:
        made = CASES[name]()
        return shown(made) if isinstance(made, torch_state.State) else made

    found, error = same_on_the_plain_engine(case)
    assert (found is None) == (error is not None)


def test_zeros_without_memory_are_stored(way: programs.Noting) -> None:
    state = CASES["zeros as a leaf"]()
    assert rb.items(state)["x"][:3].tolist() == [[0, 0, 0], [0, 0, 0], [9, 10, 11]]
    assert rb.items(CASES["zeros as a mask"]())["n"].tolist() == [*range(1, 9)]


def test_equal_specs_may_name_their_leaves_in_another_order(way: programs.Noting) -> None:
    other = dataclasses.replace(SPEC, item={name: SPEC.item[name] for name in ("n", "x")})
    assert other == SPEC
    for spec, names in ((SPEC, ["x", "n"]), (other, ["n", "x"])):
        before = way.done
        _, sample = rb.sample(full(spec), rb.key(0), 2)
        assert way.done == before + 2
        assert list(sample.items) == names


class Modes:
    """In which torch does something else."""

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    class Dispatch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


AMID = {
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "meta": lambda: torch.device("meta"),
    "functions": Modes.Functions,
    "dispatch": Modes.Dispatch,
    "deterministic": deterministic,
}


@pytest.mark.parametrize("name", list(AMID))
def test_amid_what_torch_does_otherwise(name: str, way: programs.Noting) -> None:
    key, given, one = rb.key(3), batch(3, 20), torch.ones(2)

    def case() -> Any:
        outside = full()
        with AMID[name]():
            inside = rb.add(outside, given)
            again = rb.add_(rb.add(inside, given), given)
            again, sample = rb.sample(again, key, 5)
            updated = rb.update_(rb.update(again, sample.indices[:2], one), sample.indices[:2], one * 2)
        after = rb.add_(rb.update(rb.add(updated, given), sample.indices, sample.weights), given)
        return [*map(shown, (outside, inside, again, updated)), programs.told(SPEC, sample), shown(after)]

    assert same_on_the_plain_engine(case)[1] is None
    assert way.done >= 7


def test_torch_func_inside(way: programs.Noting) -> None:
    state, keys = full(), torch.stack([rb.key(0), rb.key(1)])

    def case() -> Any:
        drawn = torch.func.vmap(lambda key: rb.sample(state, key, 3)[1].items["x"])(keys)
        slope = torch.func.grad(lambda x: (x * rb.sample(state, keys[0], 3)[1].items["x"]).sum())(torch.ones(3, 3))
        return programs.outline(drawn), programs.outline(slope)

    same_on_the_plain_engine(case)


# --- mixtures ---------------------------------------------------------------------------------------------------------

MIXED = encode_mixture(MixtureSpec((0.5, 0.5), "items", None, 2, False), 2, 3, (0.5, 0.5), False).tobytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of a process is limited as Linux does it")
def test_a_batch_of_a_mixture_that_there_is_no_memory_to_share_out() -> None:
    """There is for what is drawn, 16 bytes a row and the items' 16, but not for the number of each row's buffer."""
    states, rows, before = [full(), full()], 2**25, resource.getrlimit(resource.RLIMIT_AS)
    told = encode_mixture(MixtureSpec((0.5, 0.5), "exact", None, 2, False), 2, rows, (0.5, 0.5), False).tobytes()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 34 * rows, before[1]))
    try:
        with pytest.raises(MemoryError, match="33554432 items of 16 bytes"):
            TORCH.chain.mixed(tuple(states), told, None, rb.key(0), 0.0, rows)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("how", ["exact", "items"])
def test_slices_of_a_mixture_come_without_slots(how: Any) -> None:
    """In which they lie in the order of the buffers, if at all."""
    spec = frb.BufferSpec({"done": frb.Binary()}, 8, frb.Slices(2, end_keys=("done",)))
    states = tuple(rb.add(rb.init(spec), {"done": torch.zeros(8, dtype=torch.bool)}) for _ in range(2))
    told = encode_mixture(MixtureSpec((0.5, 0.5), how, None, 2, False), 2, 4, (0.5, 0.5), False).tobytes()
    _, _, slots, _, handles, *_ = TORCH.chain.mixed(states, told, None, rb.key(0), 0.0, 4)
    assert slots is None
    assert handles.shape == (4, 2, 2)


@pytest.mark.parametrize("size", [5, 7000])
@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized()])
@pytest.mark.parametrize("how", ["exact", "items", "buffers"])
def test_a_mixture_draws_a_batch_at_once(how: Any, sampler: Any, size: int, way: programs.Noting) -> None:
    spec, parts = dataclasses.replace(SPEC, sampler=sampler), size if how == "buffers" else None
    states = [full(spec), rb.add(rb.init(spec), batch(3, 50)), full(spec)]
    mixture = frb.Mixture(states, p=[0.5, 0.5, 0.0], how=how, parts=parts)
    for beta in (None, 0.7):
        before = way.calls["mixed"]

        def case(beta: float | None = beta) -> Any:
            _, drawn = rb.sample(mixture, rb.key(2), size, beta)
            return [*map(programs.outline, (*drawn.items.values(), *programs.told_beside(drawn)))]

        assert same_on_the_plain_engine(case)[1] is None
        assert way.calls["mixed"] == before + 1


def test_a_mixture_of_which_a_buffer_is_empty_is_drawn_at_once_from_the_others(way: programs.Noting) -> None:
    mixture = frb.Mixture([full(), rb.init(SPEC)], p=[0.5, 0.5])

    def case() -> Any:
        _, drawn = rb.sample(mixture, rb.key(2), 6)
        return drawn.indices.tolist()

    found = same_on_the_plain_engine(case)[0]
    assert [row[0] for row in found] == [0] * 6
    assert way.calls["mixed"] == 1


@pytest.mark.parametrize(
    ("told", "size"), [(b"", 3), (MIXED[:-1], 3), (MIXED, -1), (MIXED, 0), (MIXED, 2**40), (bytes(len(MIXED)), 3)]
)
def test_what_tells_of_no_mixture_draws_nothing(told: bytes, size: int, way: programs.Noting) -> None:
    states = full(), full()
    assert way.chain.mixed(states, MIXED, None, rb.key(0), 0.0, 3) is not NotImplemented
    assert way.chain.mixed(states, told, None, rb.key(0), 0.0, size) is NotImplemented
    assert shown(states[0]) == shown(full())


# --- what users' own code does amid a call ---------------------------------------------------------------------------


class Asked(Mapping[str, Any]):
    """Items whose leaves a function makes when it is asked for them."""

    def __init__(self, leaf: Callable[[str], Any]) -> None:
        self.leaf = leaf

    def __getitem__(self, name: str) -> Any:
        return self.leaf(name)

    def __iter__(self) -> Iterator[str]:
        return iter(SPEC.item)

    def __len__(self) -> int:
        return len(SPEC.item)


class Meddling(torch.overrides.TorchFunctionMode):
    """Does something once when torch is asked whether a tensor is negated, as the chain does amid a call."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work: Callable[[], Any] | None = work

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.is_neg and self.work is not None:
            work, self.work = self.work, None
            work()
        return function(*args, **(kwargs or {}))


ENDED: Any = {"end_keys": ("done",), "strict_length": False}
COUNTED = {
    "items": {},
    "priorities": {"sampler": frb.Prioritized()},
    "lanes": {"sampler": frb.Prioritized(), "lanes": 2},
    "slices": {"sampler": frb.Slices(2, **ENDED), "lanes": 2},
    "epochs": {"sampler": frb.WithoutReplacement()},
    "a limit": {"sampler": frb.Uniform(max_times_sampled=3)},
    "stops": {"writer": frb.StopWhenFull()},
}


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("on_gpu", [False, True], ids=["cpu", "as on a gpu"])
def test_handles_alone_are_counted_where_they_name_nothing(kind: str, on_gpu: bool) -> None:
    """By native code, for the buffers of a mixture that have no priorities; older states stay as they are."""
    if on_gpu and kind == "a limit":
        pytest.skip("no launches know limits")
    item = {"x": frb.Unbounded((3,)), "done": frb.Binary()}
    handles = torch.tensor([0, 4, 5, 14, -1, 99, 7, 2**31 - 1, -5], dtype=torch.int32)

    def counted() -> list[Any]:
        first = rb.init(frb.BufferSpec(item, 12, **COUNTED[kind]))
        for k in range(2 if kind == "stops" else 5):
            lead = (2, 2) if first.spec.lanes else (4,)
            first = rb.add(first, {"x": torch.full((*lead, 3), float(k)), "done": torch.full(lead, k % 2 == 0)})
        second = rb.update(first, handles)
        last = rb.update_(rb.update_(rb.update(second, handles), handles[:1]), handles)
        return [shown(state) for state in (last, second, first)]

    with emulated_gpu.using("scattered") if on_gpu else contextlib.nullcontext() as emulated:
        found = counted()
    assert not on_gpu or [name for name, _ in emulated.launched if not name.startswith("add")] == ["update"] * 4
    with programs.using(programs.NotHere()):
        assert found == counted()
    assert found[0] != found[1] != found[2]


@pytest.mark.parametrize("by", ["mapping", "mode"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("does", ["reads", "adds", "consumes"])
def test_who_comes_back_to_the_state_amid_a_call(does: str, in_place: bool, by: str, way: programs.Noting) -> None:
    def case() -> Any:
        state = full()
        found: list[Any] = []

        def work() -> None:
            if does == "reads":
                found.extend((x, programs.bits(x)) for x in (state.rows, state.tree))
            else:
                made = (rb.add_ if does == "consumes" else rb.add)(state, batch(1, 50))
                found.append((made, shown(made)))

        def leaf(name: str) -> Any:
            if not found:
                work()
            return batch(3, 90)[name]

        add = rb.add_ if in_place else rb.add
        if by == "mapping":
            made = add(state, Asked(leaf))
        else:
            with Meddling(work):
                made = add(state, batch(3, 90))
        assert found
        for thing, before in found:
            assert (shown(thing) if does != "reads" else programs.bits(thing)) == before
        return shown(made), None if in_place else shown(state)

    same_on_the_plain_engine(case)


def test_a_mapping_may_wait_for_a_thread_that_draws_from_the_state(way: programs.Noting) -> None:
    state = full()
    with ThreadPoolExecutor(1) as pool:

        def leaf(name: str) -> Any:
            return pool.submit(rb.sample, state, rb.key(0), 2).result(timeout=30)[1].items[name]

        assert int(rb.size(rb.add(state, Asked(leaf)))) == 8


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_arrays_are_looked_at_is_not_lost(error: type, way: programs.Noting) -> None:
    def raising() -> None:
        raise error

    for call in (
        lambda state: rb.add(state, batch(2)),
        lambda state: rb.add_(state, batch(2)),
        lambda state: rb.update(state, NUMBERS, torch.ones(2)),
        lambda state: rb.update_(state, NUMBERS, torch.ones(2)),
    ):
        state = full()
        before = shown(state)
        with pytest.raises(error), Meddling(raising):
            call(state)
        assert shown(state) == before


def test_states_in_shared_memory(way: programs.Noting) -> None:
    def case() -> Any:
        state = full()
        for array in (state.rows, state.tree, state.counters):
            array.share_memory_()
        later = rb.update(rb.add_(rb.add(state, batch(2)), batch(3)), NUMBERS, torch.ones(2))
        return shown(state), shown(later), programs.told(SPEC, rb.sample(state, rb.key(0), 5)[1])

    assert same_on_the_plain_engine(case)[1] is None


@pytest.mark.parametrize("count", [63, 64, 65])
def test_as_many_leaves_as_the_chain_takes(count: int, way: programs.Noting) -> None:
    wide = frb.Unbounded((1100,), "uint8")  # each in an array of its own
    spec = frb.BufferSpec({f"leaf {k}": wide for k in range(count)}, 3)

    def case() -> Any:
        number = torch.arange(5, dtype=torch.uint8)[:, None]
        items = {f"leaf {k}": (number + k).repeat(1, 1100) for k in range(count)}
        older = rb.add(rb.init(spec), items)
        newer = rb.update(
            rb.add(older, items),
            torch.arange(9, dtype=torch.int32),
            items={"leaf 7": torch.zeros_like(items["leaf 7"][:1]).repeat(9, 1)},
        )
        return shown(older), shown(newer), programs.told(spec, rb.sample(newer, rb.key(0), 4)[1])

    assert same_on_the_plain_engine(case)[1] is None
    assert way.done == (0 if count > 64 else 4)
