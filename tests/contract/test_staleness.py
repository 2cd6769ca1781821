"""`frb.Staleness`: which items are drawn, and how often, as the policy that learns goes on."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
from tests.support import backends, gpu
from tests.support.backends import Backend
from tests.support.effort import effort

ITEM = {"id": frb.Unbounded((), "int32"), "made_by": frb.Unbounded((1,), "int32")}
CAPACITY = 8


def spec_of(lanes: int | None = None, writer: Any = None, **settings: Any) -> frb.BufferSpec:
    sampler = frb.Staleness("made_by", **settings)
    return frb.BufferSpec(ITEM, CAPACITY, sampler, **({} if writer is None else {"writer": writer}), lanes=lanes)


def items_of(first: int, versions: Any) -> dict[str, Any]:
    versions = np.asarray(versions, np.int32)
    ids = np.arange(first, first + versions.size, dtype=np.int32).reshape(versions.shape)
    return {"id": ids, "made_by": versions[..., None]}


def law(sampler: Any, now: int, versions: list[int]) -> np.ndarray:
    """How likely each of some items is to be drawn, by the definition; zeros if none can be."""
    staleness = [max(now - version, 0) for version in versions]
    most = np.inf if sampler.max_staleness is None else sampler.max_staleness
    weights = np.array([(1 + s) ** -sampler.power if s <= most else 0.0 for s in staleness], np.float64)
    return weights / max(weights.sum(), 1e-300)


def check(backend: Backend, state: Any, now: int, stored: dict[int, int]) -> None:
    """All that a state tells, against its items, which are versions by their numbers."""
    sampler, rb = state.spec.sampler, backend.rb
    everything = np.arange(-1, 64, dtype=np.int32)
    live = everything[backend.numpy(rb.is_live(state, everything))]
    ids = backend.numpy(rb.get(state, live)["id"]).tolist()
    assert sorted(ids) == sorted(stored)
    expected = dict(zip(ids, law(sampler, now, [stored[x] for x in ids]), strict=True))
    told = backend.numpy(rb.probabilities(state, live))
    np.testing.assert_allclose(told, list(expected.values()), rtol=1e-5)
    drawable = any(expected.values())
    assert bool(rb.can_sample(state)) == drawable
    if drawable:
        _, sample = rb.sample(state, rb.key(now), 16)
        drawn = backend.numpy(sample.items["id"]).tolist()
        np.testing.assert_allclose(backend.numpy(sample.probabilities), [expected[x] for x in drawn], rtol=1e-5)
        assert all(expected[x] > 0 for x in drawn)
        assert (backend.numpy(sample.weights) == 1).all()
        assert sample.mask is None


@hypothesis.settings(max_examples=30)
@hypothesis.given(data=st.data())
@pytest.mark.parametrize("name", ["torch", "torch-core", "torch-inplace", "jax-host"])
def test_any_program_draws_by_what_it_defines(name: str, data: st.DataObject) -> None:
    most = data.draw(st.none() | st.integers(0, 3), "max_staleness")
    power = data.draw(st.sampled_from([0, 1, 2, 5]), "power")
    lanes = data.draw(st.sampled_from([None, 2]), "lanes")
    writer = data.draw(st.sampled_from([None, frb.StopWhenFull(), frb.MaxValue("id")]), "writer")
    with backends.make(name) as backend:
        now, count, lists = 0, 0, [dict[int, int]() for _ in range(lanes or 1)]
        state = backend.init(spec_of(lanes if writer is None else None, writer, max_staleness=most, power=power))
        lists = lists[: 1 if writer is not None else None]
        for _ in range(data.draw(st.integers(1, 6), "steps")):
            action = data.draw(st.sampled_from(["add", "add", "version", "clear", "respec"]), "action")
            if action == "add":
                each = data.draw(st.integers(1, 4), "steps of each lane")
                if isinstance(writer, frb.StopWhenFull):
                    each = min(each, CAPACITY - len(lists[0]))
                shape = (each, len(lists)) if len(lists) > 1 else (each,)
                size = int(np.prod(shape))
                versions = data.draw(st.lists(st.integers(-1, 6), min_size=size, max_size=size), "versions")
                mask = data.draw(st.lists(st.booleans(), min_size=size, max_size=size), "mask")
                batch = items_of(count, np.reshape(versions, shape))
                state = backend.add(state, batch, mask=np.reshape(mask, shape))
                for k, (version, real) in enumerate(zip(versions, mask, strict=True)):
                    if real:
                        lists[k % len(lists)][count + k] = version
                count += size
                lists = [dict([*one.items()][-CAPACITY // len(lists) :]) for one in lists]
            elif action == "version":
                now = data.draw(st.integers(0, 8), "version")
                state = backend.update(state, None, version=now)
            elif action == "clear":
                state = backend.clear(state)
                lists = [dict[int, int]() for _ in lists]
            else:
                most = data.draw(st.none() | st.integers(0, 3), "max_staleness")
                sampler = dataclasses.replace(state.spec.sampler, max_staleness=most)
                state = backend.rb.with_spec(state, dataclasses.replace(state.spec, sampler=sampler))
            check(backend, state, now, functools.reduce(dict.__or__, lists))


def test_a_new_version_is_told_to_items_that_are_stored(backend: Backend) -> None:
    state = backend.add(backend.init(spec_of(max_staleness=2)), items_of(0, [0, 3, 4, 5, 9]))
    state = backend.update(state, None, version=5)
    check(backend, state, 5, dict(enumerate([0, 3, 4, 5, 9])))
    state = backend.add(state, items_of(5, [2, 4]))
    check(backend, state, 5, dict(enumerate([0, 3, 4, 5, 9, 2, 4])))


def test_versions_may_be_traced_and_mapped_over() -> None:
    import jax
    import jax.numpy as jnp

    import jax_backend as rb

    state = rb.add(rb.init(spec_of()), items_of(0, [0, 1, 2, 3]))
    handles = np.arange(4, dtype=np.int32)

    traces = []

    @jax.jit
    def chances(version: Any) -> Any:
        traces.append(version)
        return rb.probabilities(rb.update(state, version=version), handles)

    versions = jnp.arange(5)
    for each in (jnp.stack([chances(version) for version in versions]), jax.vmap(chances)(versions)):
        for version, got in zip(range(5), np.asarray(each), strict=True):
            np.testing.assert_allclose(got, law(state.spec.sampler, version, [0, 1, 2, 3]), rtol=1e-5)
    assert len(traces) == 1

    def step(carry: Any, version: Any) -> tuple[Any, Any]:
        carry = rb.update(rb.add(carry, items_of(0, [7])), version=version)
        carry, sample = rb.sample(carry, rb.key(0), 2)
        return carry, sample.probabilities.min()

    after, _ = jax.jit(lambda begin: jax.lax.scan(step, begin, versions[1:]))(state)
    np.testing.assert_allclose(
        np.asarray(rb.probabilities(after, handles)), law(state.spec.sampler, 4, [0, 1, 2, 3, *[7] * 4])[:4], rtol=1e-5
    )


def test_a_compiled_program_of_torch_takes_new_versions_without_being_compiled_again() -> None:
    import torch._dynamo.testing

    import torch_backend as rb

    state = rb.add(rb.init(spec_of()), items_of(0, [0, 1, 2, 3]))
    counter = torch._dynamo.testing.CompileCounterWithBackend(effort("eager", "aot_eager"))
    advanced = torch.compile(lambda state, version: rb.update_(state, version=version), fullgraph=True, backend=counter)
    for version in (1, 3, 2):
        state = advanced(rb.own_(state), torch.tensor(version))
        chances = rb.probabilities(state, np.arange(4, dtype=np.int32)).numpy()
        np.testing.assert_allclose(chances, law(state.spec.sampler, version, [0, 1, 2, 3]), rtol=1e-5)
    assert counter.frame_count == 1


def test_both_at_once_and_older_states_stay(library: Backend) -> None:
    rb = library.rb
    older = rb.add(rb.init(spec_of()), items_of(0, [0, 1, 2]))
    handles = np.arange(3, dtype=np.int32)
    newer = rb.update(older, handles[:1], items={"id": np.array([7], np.int32)}, version=np.int16(2))
    assert library.numpy(rb.get(newer, handles)["id"]).tolist() == [7, 1, 2]
    np.testing.assert_allclose(
        library.numpy(rb.probabilities(newer, handles)), np.array([1 / 3, 1 / 2, 1]) / (11 / 6), rtol=1e-5
    )
    assert library.numpy(rb.get(older, handles)["id"]).tolist() == [0, 1, 2]
    np.testing.assert_allclose(library.numpy(rb.probabilities(older, handles)), [1 / 3] * 3, rtol=1e-5)


def test_nothing_is_drawn_where_all_is_too_stale(library: Backend) -> None:
    rb = library.rb
    for most in (2, 0):  # the error counts as the sampler does, and for 0 too says which items could be drawn
        state = rb.update(rb.add(rb.init(spec_of(max_staleness=most)), items_of(0, [0, 1])), version=9)
        with gpu.refused(library.library, f"none of the 2 stored items has a staleness of at most {most}; add items"):
            rb.sample(state, rb.key(0), 2)
        check(library, state, 9, {0: 0, 1: 1})


def test_versions_beyond_32_bits_go_on_counting(library: Backend) -> None:
    item = {"policy_version": frb.Unbounded((), "int32")}
    state = library.rb.init(frb.BufferSpec(item, 4, frb.Staleness(max_staleness=1)))
    last = 2**31 - 1
    state = library.add(state, {"policy_version": np.array([last - 1, last, -(2**31)], np.int32)})
    state = library.update(state, None, version=last + 1)
    chances = library.numpy(library.rb.probabilities(state, np.arange(3, dtype=np.int32)))
    np.testing.assert_allclose(chances, [0, 1 / 3, 2 / 3], rtol=1e-5)


def test_a_mixture_tells_those_that_listen(library: Backend) -> None:
    rb = library.rb
    stale = rb.add(rb.init(spec_of(max_staleness=1)), items_of(0, [0, 4]))
    plain = rb.add(rb.init(dataclasses.replace(spec_of(), sampler=frb.Uniform())), items_of(2, [0]))
    mixture = rb.update(frb.Mixture((plain, stale)), version=4)
    chances = library.numpy(rb.probabilities(mixture[1], np.arange(2, dtype=np.int32)))
    np.testing.assert_allclose(chances, [0, 1], rtol=1e-6)
    with pytest.raises(ValueError, match="version was given, but the sampler is Uniform"):
        rb.update(frb.Mixture((plain, plain)), version=4)


def test_what_is_stored_and_loaded_goes_on(library: Backend, tmp_path: Any) -> None:
    rb = library.rb
    state = rb.update(rb.add(rb.init(spec_of(max_staleness=3)), items_of(0, [0, 3, 4])), version=4)
    frb.save(state, tmp_path / "there")
    loaded = rb.add(frb.load(tmp_path / "there", rb), items_of(3, [1, 2]))
    check(library, loaded, 4, dict(enumerate([0, 3, 4, 1, 2])))
    uniform = rb.with_spec(loaded, dataclasses.replace(loaded.spec, sampler=frb.Uniform()))
    back = rb.with_spec(uniform, loaded.spec)
    check(library, rb.update(back, version=4), 4, dict(enumerate([0, 3, 4, 1, 2])))


WRONG: dict[str, tuple[Any, Any, str]] = {
    "a float": (lambda rb, state: rb.update(state, version=1.0), TypeError, "expected version as an int"),
    "a bool": (lambda rb, state: rb.update(state, version=True), TypeError, "expected version as an int"),
    "a vector": (
        lambda rb, state: rb.update(state, version=np.array([1, 2])),
        ValueError,
        r"expected version as a scalar, got shape \(2,\)",
    ),
    "nothing": (lambda rb, state: rb.update(state), TypeError, "indices: expected an array of dtype int32"),
    "a tensor without a value": (
        lambda rb, state: rb.update(state, version=torch.tensor(1, device="meta")),
        (TypeError, ValueError),  # JAX takes no tensor at all
        "version: expected a JAX or NumPy array|expected a number, got a tensor on meta, which has none; give one on",
    ),
    "items of no indices": (
        lambda rb, state: rb.update(state, items={"id": np.zeros(1, np.int32)}, version=1),
        TypeError,
        "indices: expected an array of dtype int32",
    ),
    "another version of an item": (
        lambda rb, state: rb.update(state, np.zeros(1, np.int32), items={"made_by": np.zeros((1, 1), np.int32)}),
        ValueError,
        "leaf 'made_by' tells Staleness how likely an item is, and cannot be rewritten",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_and_changes_nothing(case: tuple[Any, Any, str], library: Backend) -> None:
    called, kind, message = case
    state = library.add(library.init(spec_of(max_staleness=2)), items_of(0, [0, 1]))
    with pytest.raises(kind, match=message):
        called(library.rb, state)
    check(library, state, 0, {0: 0, 1: 1})
