"""Mixtures of buffers: what they give, how they weigh it, and that nothing of it is lost."""

from __future__ import annotations

import contextlib
import copy
import importlib
import pickle
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import functional_rb as frb
import torch_backend
from tests.mixture.mixtures import ITEM, REMEMBERING, SKEWED, UNIFORM, filled, numbers, pair
from tests.support import gpu
from tests.support.backends import Backend
from tests.support.effort import effort

# Of the samplers that remember, those for which programs of JAX are compiled.
COMPILED = [frb.WithoutReplacement()]


def test_exact_shares_come_in_the_order_of_the_buffers(library: Backend) -> None:
    _, sample = library.rb.sample(pair(library, p=[0.25, 0.75]), library.rb.key(0), 8)
    found = numbers(library, sample)
    assert found["ids"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert ((found["x"] >= 10) == (found["ids"] == 1)).all()
    assert (found["indices"][:, 0] == found["ids"]).all()
    assert found["indices"].dtype == np.int32


def test_without_shares_it_is_by_the_number_of_items(library: Backend) -> None:
    _, sample = library.rb.sample(pair(library), library.rb.key(0), 9)
    assert numbers(library, sample)["ids"].tolist() == [0] * 5 + [1] * 4  # five of nine, and four


def test_shares_of_the_call_go_first(library: Backend) -> None:
    mixture = pair(library, p=[0.5, 0.5])
    _, sample = library.rb.sample(mixture, library.rb.key(0), 4, p=[0.0, 1.0])
    assert numbers(library, sample)["ids"].tolist() == [1] * 4
    _, sample = library.rb.sample(mixture, library.rb.key(0), 4, p=library.array(np.array([3, 1], np.float32)))
    assert numbers(library, sample)["ids"].tolist() == [0, 0, 0, 1]


def test_equal_parts_come_from_one_buffer_each(library: Backend) -> None:
    mixture = pair(library, p=[0.5, 0.5], how="buffers", parts=4, stacked=True)
    _, sample = library.rb.sample(mixture, library.rb.key(3), 12)
    found = numbers(library, sample)
    assert found["x"].shape == found["weights"].shape == (4, 3)
    assert found["indices"].shape == (4, 3, 2)
    assert (found["ids"] == found["ids"][:, :1]).all()
    assert len(set(found["ids"][:, 0])) == 2
    if library.library == "torch" or effort(False, True):  # on JAX it is a program of its own
        _, flat = library.rb.sample(pair(library, p=[0.5, 0.5], how="buffers", parts=4), library.rb.key(3), 12)
        assert (numbers(library, flat)["x"] == found["x"].reshape(-1)).all()


@pytest.mark.parametrize("how", ["exact", *effort([], ["items", "buffers"])])
def test_empty_buffers_are_left_out(library: Backend, how: str) -> None:
    """Other ways than "exact" are tried with one by `test_agreement`."""
    first, second = pair(library)
    empty, silent = library.rb.init(UNIFORM), filled(library.rb, SKEWED, 50, 2, [0, 0])
    mixture = frb.Mixture([empty, first, silent, second], p=[0.6, 0.1, 0.1, 0.2], how=how)
    _, sample = library.rb.sample(mixture, library.rb.key(1), 12)
    found = numbers(library, sample)
    assert set(found["ids"]) <= {1, 3}
    np.testing.assert_allclose(found["weights"].max(), 1, rtol=1e-5)  # those of no share count as no least chance
    if how == "exact":  # 1 to 2, as the shares of the others are
        assert (found["ids"] == 1).sum() == 4


def test_nothing_at_all_is_an_error(library: Backend) -> None:
    mixture = frb.Mixture([library.rb.init(UNIFORM)] * 2)
    assert not bool(library.rb.can_sample(mixture))
    with pytest.raises(ValueError, match="nothing can be drawn from any of the 2 buffers"):
        library.rb.sample(mixture, library.rb.key(0), 4)
    if library.library == "torch" or effort(False, True):
        only = frb.Mixture([library.rb.init(UNIFORM), filled(library.rb, UNIFORM, 0, 2)], p=[1.0, 0.0])
        waits = gpu.ELSEWHERE or not gpu.ASKED or library.library == "jax"  # where no launches draw
        with pytest.raises(ValueError, match="nothing can be drawn") if waits else contextlib.nullcontext():
            library.rb.sample(only, library.rb.key(0), 4)
        assert not bool(library.rb.can_sample(only))
        by_array = frb.Mixture(only.states, p=library.array(np.float32([1, 0])))
        assert not bool(library.rb.can_sample(by_array))
        for share, counts in ((2.0**-100, True), (2.0**-101, False)):  # the least that is a share
            by_least = frb.Mixture(only.states, p=library.array(np.float32([1, share])))
            assert bool(library.rb.can_sample(by_least)) == counts
        assert not bool(library.rb.can_sample(frb.Mixture([only.states[0], by_array])))
        assert bool(library.rb.can_sample(frb.Mixture([only.states[1], by_array], p=[0.5, 0.5])))


@pytest.mark.parametrize("how", ["exact", "items"])
def test_weights_correct_to_the_uniform_law_over_all_items(library: Backend, how: str) -> None:
    """q_i * w_i is the same for all items, and the weight is 1 where q is least among those of all buffers."""
    mixture = pair(library, p=[0.25, 0.75], how=how)
    batches = [numbers(library, library.rb.sample(mixture, library.rb.key(seed), 8)[1]) for seed in range(32)]
    found = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert len(set(found["x"])) == 9
    product = found["weights"].astype(np.float64) * found["probabilities"]
    # The least likely are the five: 0.25 / 5 against 0.75 / 10.
    np.testing.assert_allclose(product, 0.05, rtol=1e-6)
    chances = np.where(found["x"] < 10, 0.05, 0.75 * (found["x"] - 9) / 10)
    np.testing.assert_allclose(found["probabilities"], chances, rtol=1e-6)
    assert found["weights"].max() == 1
    # The weighted mean is that of all items, within its standard error.
    mean, weights = np.mean([*range(5), 10, 11, 12, 13]), found["weights"] / found["weights"].mean()
    error = np.std(weights * (found["x"] - mean)) / np.sqrt(256)
    assert abs(np.mean(weights * (found["x"] - mean))) < 3 * error


def test_the_least_likely_item_need_not_be_of_a_buffer_that_was_drawn(library: Backend) -> None:
    mixture = pair(library, p=[0.999, 0.001], how="items")
    _, sample = library.rb.sample(mixture, library.rb.key(0), 2)
    found = numbers(library, sample)
    assert found["ids"].tolist() == [0, 0]
    np.testing.assert_allclose(found["weights"], (0.001 * 0.1) / (0.999 / 5), rtol=1e-5)


def test_the_least_likely_item_of_several_lanes_is_one_of_the_fullest() -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 16, frb.Recency(2), lanes=2)
    steps, mask = {"x": np.zeros((6, 2), np.float32)}, np.arange(6)[:, None] >= [5, 0]
    states = [torch_backend.add(torch_backend.init(spec), steps, mask) for _ in range(2)]
    _, sample = torch_backend.sample(frb.Mixture(states), torch_backend.key(0), 500, beta=1.0)
    assert float(sample.weights.max()) == pytest.approx(1)


def test_weights_of_uniform_buffers_are_those_of_beta(library: Backend) -> None:
    mixture = frb.Mixture([filled(library.rb, UNIFORM, 0, 2), filled(library.rb, UNIFORM, 10, 8)], p=[0.5, 0.5])
    key = library.rb.key(0)
    assert set(numbers(library, library.rb.sample(mixture, key, 8)[1])["weights"]) == {1.0}
    found = numbers(library, library.rb.sample(mixture, key, 8, beta=0.5)[1])
    np.testing.assert_allclose(found["weights"], np.where(found["ids"] == 0, 0.5, 1.0), rtol=1e-6)


def test_one_beta_holds_for_all(library: Backend) -> None:
    other = frb.BufferSpec(ITEM, capacity=6, sampler=frb.Prioritized(alpha=1.0, beta=0.4))
    mixture = frb.Mixture([filled(library.rb, SKEWED, 0, 2), filled(library.rb, other, 2, 2)])
    with pytest.raises(ValueError, match=r"different beta, \[0.4, 1.0\]; give sample"):
        library.rb.sample(mixture, library.rb.key(0), 4)
    if library.library == "torch" or effort(False, True):  # on JAX it is a program of its own
        library.rb.sample(mixture, library.rb.key(0), 4, beta=0.5)
    alone = frb.BufferSpec(ITEM, capacity=6, sampler=frb.Prioritized(replacement=False))
    mixture = frb.Mixture([filled(library.rb, alone, 0, 4)])
    with pytest.raises(ValueError, match="give replacement=True"):
        library.rb.sample(mixture, library.rb.key(0), 2)
    if library.library == "torch" or effort(False, True):
        assert len(set(numbers(library, library.rb.sample(mixture, library.rb.key(0), 3, beta=0.0)[1])["x"])) == 3


@pytest.mark.parametrize("in_place", [False, True])
def test_handles_find_their_buffer(library: Backend, in_place: bool) -> None:
    rb = library.rb
    update, add = (rb.update_, rb.add_) if in_place else (rb.update, rb.add)
    mixture = pair(library)
    handles = np.array([[1, 0], [0, 2], [1, 3], [0, 9], [1, 77], [-1, -1], [2, 0], [1, 3]], np.int32)
    wanted = library.array(handles)
    assert library.numpy(rb.is_live(mixture, wanted)).tolist() == [True, True, True, False, False, False, False, True]
    assert library.numpy(rb.get(mixture, wanted)["x"]).tolist() == [10, 2, 13, 0, 0, 0, 0, 13]
    assert library.numpy(rb.priorities(mixture, wanted)).tolist() == [1, 0, 4, 0, 0, 0, 0, 4]
    new = library.array(np.arange(8, dtype=np.float32))
    mixture = update(mixture, wanted, new, items={"x": library.array(np.arange(100, 108, dtype=np.float32))})
    assert library.numpy(rb.get(mixture, wanted)["x"]).tolist() == [100, 101, 107, 0, 0, 0, 0, 107]
    assert library.numpy(rb.priorities(mixture, wanted)).tolist() == [0, 0, 7, 0, 0, 0, 0, 7]
    # Each stale handle counts in the buffer that it names, and what names nothing in none.
    assert [int(rb.counts(one).stale) for one in mixture] == [1, 1]
    assert (int(rb.size(mixture)), library.numpy(rb.size(mixture, each=True)).tolist()) == (9, [5, 4])
    mixture = add(mixture, {"x": library.array(np.zeros(2, np.float32))}, to=1)
    assert library.numpy(rb.size(mixture, each=True)).tolist() == [5, 6]
    assert bool(rb.can_sample(mixture, 11))
    assert not bool(rb.can_sample(mixture, 12))


def test_a_buffer_may_be_in_a_mixture_twice(library: Backend) -> None:
    """In-place forms then give what the others give, and consume nothing that they leave as it is."""
    rb, one = library.rb, filled(library.rb, SKEWED, 0, 4, [1, 1, 1, 1])
    mixture = frb.Mixture([one, one], p=[0.5, 0.5])
    indices = library.array(np.array([[0, 1], [1, 2]], np.int32))
    mixture = rb.update_(mixture, indices, library.array(np.array([5, 7], np.float32)))
    told = [library.numpy(rb.priorities(state, np.arange(4, dtype=np.int32))).tolist() for state in mixture]
    assert told == [[1, 5, 1, 1], [1, 1, 7, 1]]
    inner = frb.Mixture([mixture[0], mixture], p=[0.5, 0.5])
    inner = rb.add_(inner, {"x": np.zeros(1, np.float32)}, to=(1, 0))
    assert [int(rb.size(state)) for state in inner.buffers] == [4, 5, 4]
    inner, sample = rb.sample_(inner, rb.key(0), 4)
    assert (library.numpy(sample.indices)[:, -1] >= 0).all()


def test_buffers_that_share_arrays_are_written_in_place_none_the_less(library: Backend) -> None:
    """Of JAX, two states have their rows in common once priorities of one buffer were set in each of them."""
    rb, one = library.rb, filled(library.rb, SKEWED, 0, 4, [1, 1, 1, 1])
    new = library.array(np.array([5, 7], np.float32))
    mixture = rb.update(frb.Mixture([one, one], p=[0.5, 0.5]), np.array([[0, 1], [1, 2]], np.int32), new)
    mixture = rb.update_(mixture, np.array([[0, 0], [1, 0]], np.int32), new)
    mixture = rb.add_(rb.update(mixture, np.array([[0, 3]], np.int32), new[:1]), {"x": np.zeros(1, np.float32)}, to=0)
    mixture, _ = rb.sample_(mixture, rb.key(0), 4)
    told = [library.numpy(rb.priorities(state, np.arange(4, dtype=np.int32))).tolist() for state in mixture]
    assert told == [[5, 5, 1, 5], [7, 1, 7, 1]]
    assert [int(rb.size(state)) for state in mixture.buffers] == [5, 4]


def test_items_for_several_buffers_are_converted_once(library: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture, execute = pair(library), importlib.import_module(f"{library.library}_backend.engines.execute")
    convert, converted = execute.convert, []
    monkeypatch.setattr(execute, "convert", lambda *given: converted.append(given[-1]) or convert(*given))
    mixture = library.rb.update(mixture, np.array([[0, 1], [1, 1]], np.int32), items={"x": np.ones(2, np.float32)})
    assert converted == ["x"]
    assert [library.numpy(library.rb.items(one)["x"])[1] for one in mixture] == [1, 1]


def test_items_are_converted_for_each_dtype_that_buffers_store(library: Backend) -> None:
    """What one buffer takes is checked for the other one too."""
    rb, states = library.rb, []
    for dtype in ("float32", "int32"):
        spec = frb.BufferSpec({"x": frb.Unbounded((), dtype)}, 4)
        states.append(rb.add(rb.init(spec), {"x": np.zeros(3, dtype)}))
    with pytest.raises(TypeError, match="leaf 'x': expected dtype int32, got float32"):
        rb.update(frb.Mixture(states), np.array([[0, 1], [1, 1]], np.int32), items={"x": np.ones(2, np.float32)})


def test_a_mixture_in_a_mixture(library: Backend) -> None:
    rb = library.rb
    inner = pair(library, p=[0.5, 0.5])
    mixture = frb.Mixture([filled(library.rb, UNIFORM, 20, 3), inner], p=[0.25, 0.75])
    _, sample = rb.sample(mixture, rb.key(0), 8)
    found = numbers(library, sample)
    assert found["indices"][:, :2].tolist() == [[0, 0]] * 2 + [[1, 0]] * 3 + [[1, 1]] * 3
    assert found["ids"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert (library.numpy(rb.get(mixture, sample.indices)["x"]) == found["x"]).all()
    product = found["weights"].astype(np.float64) * found["probabilities"]
    np.testing.assert_allclose(product, 0.75 * 0.5 * 0.1, rtol=1e-6)
    mixture = rb.update(mixture, sample.indices, library.array(np.full(8, 9, np.float32)))
    assert set(library.numpy(rb.priorities(mixture, sample.indices)[5:])) == {9.0}
    mixture = rb.add(mixture, {"x": library.array(np.zeros(1, np.float32))}, to=(1, 1))
    assert [int(rb.size(one)) for one in mixture.buffers] == [3, 5, 5]
    assert library.numpy(rb.size(mixture, each=True)).tolist() == [3, 10]


@pytest.mark.parametrize("sampler", REMEMBERING, ids=repr)
def test_what_remembers_loses_nothing(library: Backend, sampler: Any) -> None:
    """Each item of such a buffer comes once, before any comes again, however many are wanted of it each time."""
    if library.library == "jax" and sampler not in effort(COMPILED, REMEMBERING):
        pytest.skip("test_compiled and test_agreement compare what is traced with what is not")
    states = [filled(library.rb, UNIFORM, 0, 5), filled(library.rb, frb.BufferSpec(ITEM, 8, sampler), 10, 8)]
    mixture = frb.Mixture(states, p=[0.5, 0.5], how="items")
    key, came = library.rb.key(5), []
    for _ in range(3):
        key, now = library.rb.split(key)
        before = int(library.rb.size(mixture[1]))
        mixture, sample = library.rb.sample(mixture, now, 4, beta=0.0)
        found = numbers(library, sample)
        drawn = [x for x in found["x"][library.numpy(sample.mask)] if x >= 10]
        if isinstance(sampler, frb.Queue):
            assert before - int(library.rb.size(mixture[1])) == len(drawn)
        came += drawn
    assert 3 <= len(came) <= 8
    assert len(set(came)) == len(came)


def test_what_is_missing_is_masked(library: Backend) -> None:
    spec = frb.BufferSpec(ITEM, capacity=8, sampler=frb.Queue())
    before = frb.Mixture([filled(library.rb, UNIFORM, 0, 5), filled(library.rb, spec, 10, 2)], p=[0.5, 0.5])
    mixture, sample = library.rb.sample(before, library.rb.key(0), 8)
    assert library.numpy(sample.mask).tolist() == [True] * 6 + [False] * 2
    found = numbers(library, sample)
    assert found["indices"][6:].tolist() == [[-1, -1]] * 2
    assert found["weights"].tolist() == [1] * 6 + [0] * 2
    weighted = numbers(library, library.rb.sample(before, library.rb.key(0), 8, 0.5)[1])["weights"]
    assert (weighted[:6] > 0).all()
    assert not weighted[6:].any()
    assert library.numpy(library.rb.size(mixture, each=True)).tolist() == [5, 0]


def test_slices_come_as_slices(library: Backend) -> None:
    item = {"x": frb.Unbounded(()), "done": frb.Binary(())}
    states = []
    for first, sampler in ((0, frb.Slices(2)), (10, frb.PrioritizedSlices(2, beta=1.0))):
        steps = {"x": np.arange(first, first + 6, dtype=np.float32), "done": np.arange(6) == 3}
        states.append(library.rb.add(library.rb.init(frb.BufferSpec(item, 8, sampler)), steps))
    _, sample = library.rb.sample(frb.Mixture(states, p=[0.5, 0.5]), library.rb.key(0), 4)
    x = library.numpy(sample.items["x"])
    assert x.shape == (4, 2)
    assert (x[:, 1] == x[:, 0] + 1).all()
    assert library.numpy(sample.extras["buffer_ids"]).tolist() == [0, 0, 1, 1]
    assert library.numpy(sample.indices).shape == (4, 2, 2)
    assert library.numpy(sample.mask).all()
    flat = [frb.BufferSpec(item, 8, frb.Slices(2, flat=flat)) for flat in (False, True)]
    with pytest.raises(ValueError, match="slices of one length in the same form"):
        library.rb.sample(frb.Mixture([library.rb.with_spec(states[0], one) for one in flat]), library.rb.key(0), 4)


SAMPLERS = [frb.Uniform(), frb.Slices(2), frb.Slices(2, flat=True)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("mapped", ["none", "both", "first", "second"])
def test_tensordicts_have_the_axes_that_those_of_one_buffer_have(mapped: str, sampler: Any) -> None:
    items = tensordict.TensorDict({"x": torch.arange(6.0), "in": {"y": torch.ones(6, 3)}, "done": torch.arange(6) == 3})
    items.auto_batch_size_(1)
    states = []
    for which in ("first", "second"):
        transforms = frb.map_items(lambda item: item) if mapped in (which, "both") else ()
        spec = frb.BufferSpec(frb.specs.spec_of(items[0]), 8, sampler, transforms=transforms)
        states.append(torch_backend.add(torch_backend.init(spec), items))
    mixture = frb.Mixture(states)
    alone, *several = (
        torch_backend.sample(one, torch_backend.key(0), 4)[1].items
        for one in (states[0], mixture, frb.Mixture([states[0], mixture]))
    )
    for mixed in several:
        assert mixed.batch_size == alone.batch_size
        assert mixed["in"].batch_size == alone["in"].batch_size
        assert mixed["in", "y"].shape == alone["in", "y"].shape


def test_only_common_leaves_are_given(library: Backend) -> None:
    rb = library.rb
    other = frb.BufferSpec({"y": frb.Unbounded((2,)), "in": {"x": frb.Unbounded(()), "z": frb.Binary(())}}, 4)
    items = {"y": np.zeros((2, 2), np.float32), "in": {"x": np.ones(2, np.float32), "z": np.ones(2, bool)}}
    first, second = rb.add(rb.init(other), items), filled(library.rb, UNIFORM, 0, 2)
    with pytest.raises(ValueError, match=r"leaf 'in/x' is in states\[0\] and not in states\[1\]; name the leaves"):
        rb.sample(frb.Mixture([first, second]), rb.key(0), 4)
    mixture = frb.Mixture([first, first], leaves=[("in", "x"), "y"])
    _, sample = rb.sample(mixture, rb.key(0), 4)
    assert {name: tuple(x.shape) for name, x in sample.items.items() if name != "in"} == {"y": (4, 2)}
    assert library.numpy(sample.items["in"]["x"]).tolist() == [1, 1, 1, 1]
    assert sorted(rb.get(mixture, sample.indices)) == ["in", "y"]
    with pytest.raises(ValueError, match=r"states\[1\] has no leaf 'y', expected some of 'x'"):
        rb.sample(frb.Mixture([first, second], leaves=["y"]), rb.key(0), 4)


def test_functions_of_items_belong_to_their_buffers(library: Backend) -> None:
    rb = library.rb
    doubled = frb.BufferSpec(
        {"x": frb.Unbounded((2,))}, 8, transforms=frb.map_items(lambda item: {"x": item["x"].sum(-1)})
    )
    items = {"x": np.full((4, 2), 50, np.float32)}
    mixture = frb.Mixture([filled(library.rb, UNIFORM, 0, 5), rb.add(rb.init(doubled), items)], p=[0.5, 0.5])
    _, sample = rb.sample(mixture, rb.key(0), 6)
    assert library.numpy(sample.items["x"])[3:].tolist() == [100] * 3
    with pytest.raises(ValueError, match="a leaf of samples that all buffers store alike"):
        rb.get(mixture, sample.indices)


def test_functions_of_items_may_give_leaves_that_others_have_not(library: Backend) -> None:
    rb = library.rb
    more = frb.map_items(lambda item: {"more": item["x"] * 2, "x": item["x"] + 100})
    mapped = rb.add(rb.init(frb.BufferSpec(ITEM, 8, transforms=more)), {"x": np.arange(4, dtype=np.float32)})
    mixture = frb.Mixture([mapped, filled(library.rb, UNIFORM, 0, 5)], p=[0.5, 0.5], leaves=["x"])
    _, sample = rb.sample(mixture, rb.key(0), 6)
    assert [*sample.items] == ["x"]
    found = library.numpy(sample.items["x"])
    assert (found[:3] >= 100).all()
    assert (found[3:] < 100).all()


@pytest.mark.parametrize("how", ["exact", "items", "buffers"])
def test_shares_may_be_an_array_of_numpy(library: Backend, how: str) -> None:
    """Of the mixture or of the call; what is written to it later changes nothing."""
    given = np.array([1.0, 3.0])
    mixture = pair(library, p=given, how=how)
    given[:] = np.nan
    expected = numbers(library, library.rb.sample(pair(library, p=[1, 3], how=how), library.rb.key(0), 8)[1])
    whole = pair(library, p=np.array([1, 3]), how=how)
    samples = [library.rb.sample(one, library.rb.key(0), 8)[1] for one in (mixture, whole)]
    arrays = (np.array([1.0, 3.0]), np.array([1, 3], np.float32), np.array([1, 3]))
    samples += [library.rb.sample(mixture, library.rb.key(0), 8, p=array)[1] for array in arrays]
    for found in (numbers(library, sample) for sample in samples):
        for name, x in expected.items():
            np.testing.assert_array_equal(found[name], x)


def test_what_is_counted_is_counted_together(library: Backend) -> None:
    rb, skewed = library.rb, frb.BufferSpec(ITEM, 4, frb.Prioritized(), frb.MaxValue("x"))
    mixture = frb.Mixture([filled(library.rb, SKEWED, 0, 6), frb.Mixture([filled(library.rb, skewed, 0, 3)])])
    handles = library.array(np.array([[0, 0, 0], [0, 0, 1], [1, 0, 0]], np.int32))
    mixture = rb.add(mixture, {"x": library.array(np.ones(2, np.float32))}, to=0)  # over the first two
    mixture = rb.update(mixture, handles, library.array(np.array([1, 1, np.nan], np.float32)))
    mixture = rb.add(mixture, {"x": library.array(np.array([np.nan, 9, np.nan], np.float32))}, to=(1, 0))
    counts = rb.counts(mixture)
    assert {name: int(x) for name, x in counts._asdict().items() if x} == {
        "stale": 2,
        "rejected": 1,
        "refused": 2,
        "cursor": -1,
    }
    for count, *parts in zip(counts[:-1], *(rb.counts(one)[:-1] for one in mixture.buffers), strict=True):
        assert int(sum(parts)) == int(count)
    for name in ("newest", "probabilities"):
        with pytest.raises(TypeError, match=rf"{name}: expected a State, got Mixture.*rb\.{name}\(mixture\[k\]"):
            getattr(rb, name)(mixture, 1)
    with pytest.raises(TypeError, match="iterate: expected a State with epochs, got Mixture"):
        frb.iterate(rb, mixture, rb.key(0), 2, epochs=1)


def test_what_is_stored_is_read_where_functions_name_the_common_leaves(library: Backend) -> None:
    rb = library.rb
    item = {"pixels": frb.Unbounded((2,)), "x": frb.Unbounded(())}
    renamed = frb.BufferSpec(item, 8, transforms=frb.map_items(lambda i: {"obs": i["pixels"] * 2, "x": i["x"] + 100}))
    items = {"pixels": library.array(np.ones((3, 2), np.float32)), "x": library.array(np.arange(3, dtype=np.float32))}
    other = {"obs": items["pixels"], "x": items["x"]}
    plain = frb.BufferSpec({"obs": frb.Unbounded((2,)), "x": frb.Unbounded(())}, 8)
    states = [rb.add(rb.init(renamed), items), rb.add(rb.init(plain), other)]
    for leaves in (None, ["obs", "x"]):
        mixture = frb.Mixture(states, p=[0.5, 0.5], leaves=leaves)
        _, sample = rb.sample(mixture, rb.key(0), 6)
        assert sorted(sample.items) == ["obs", "x"]
        found = rb.get(mixture, sample.indices)
        assert list(found) == ["x"]
        x = library.numpy(sample.items["x"])
        assert library.numpy(found["x"]).tolist() == np.where(x >= 100, x - 100, x).tolist()
    with pytest.raises(ValueError, match=r"all buffers store alike.*rb\.get\(mixture\[k\], handles"):
        rb.get(frb.Mixture(states, leaves=["obs"]), sample.indices)


def test_single_steps_beside_n_steps_have_to_say_how_they_are_bootstrapped(library: Backend) -> None:
    rb = library.rb
    item = {"x": frb.Unbounded(()), "reward": frb.Unbounded(()), "done": frb.Binary(())}
    steps = {"x": np.arange(4, dtype=np.float32), "reward": np.ones(4, np.float32), "done": np.arange(4) == 3}

    def mixed(*transforms: Any) -> frb.Mixture:
        specs = [frb.BufferSpec(item, 8, transforms=one) for one in transforms]
        return frb.Mixture([rb.add(rb.init(spec), library.tree(steps)) for spec in specs], p=[0.5, 0.5])

    for at in ("sample", "add"):
        with pytest.raises(ValueError, match=r"buffer 1 of the mixture gives single.*frb\.n_step\(1, gamma=0\.5\)"):
            rb.sample(mixed(frb.n_step(3, 0.5, at=at), ()), rb.key(0), 8)
    _, sample = rb.sample(mixed(frb.n_step(3, 0.5), frb.n_step(1, 0.5)), rb.key(0), 8)
    found, x = {name: library.numpy(x) for name, x in sample.extras.items()}, library.numpy(sample.items["x"])
    length = np.where(found["buffer_ids"] == 0, np.minimum(3, 4 - x), 1)
    assert found["discount"].tolist() == (0.5**length).tolist()
    assert found["nonterminal"].tolist() == (x + length < 4).tolist()


def test_a_mixture_is_a_value(library: Backend) -> None:
    rb = library.rb
    mixture = pair(library, p=[0.25, 0.75])
    other = mixture.replace(0, library.rb.init(UNIFORM))
    assert (int(rb.size(mixture[0])), int(rb.size(other[0])), len(mixture)) == (5, 0, 2)
    with pytest.raises(AttributeError, match="cannot assign"):
        mixture.p = None  # type: ignore[misc]  # refused
    array = frb.Mixture(mixture.states, p=library.array(np.array([1, 3], np.float32)))
    for one in (mixture, array):
        expected = numbers(library, rb.sample(one, rb.key(0), 8)[1])
        for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
            found = numbers(library, rb.sample(again, rb.key(0), 8)[1])
            for name, x in expected.items():
                np.testing.assert_array_equal(found[name], x)


def errors(library: Backend) -> list[tuple[Any, type[Exception], str]]:
    """Calls that are refused, and how."""
    rb, key = library.rb, library.rb.key(0)
    mixture = pair(library)
    a, b = mixture
    x = {"x": np.zeros(1, np.float32)}
    array = library.array
    return [
        (lambda: frb.Mixture([]), ValueError, "at least one state, got none"),
        (lambda: frb.Mixture(a), TypeError, r"expected a list of states, got State; write frb.Mixture\("),
        (lambda: frb.Mixture([a, 3]), TypeError, r"states\[1\]: expected a State or a Mixture, got int"),
        (lambda: frb.Mixture([a, b], p=[1.0]), ValueError, "expected 2 numbers, one share for each buffer, got 1"),
        (lambda: frb.Mixture([a, b], p=[1, -1]), ValueError, "not negative"),
        (lambda: frb.Mixture([a, b], p=[float("nan"), 1]), ValueError, "finite numbers"),
        (lambda: frb.Mixture([a, b], p=[0, 0]), ValueError, "one of them positive"),
        (lambda: frb.Mixture([a, b], p="ab"), TypeError, "expected 2 numbers, or an array"),
        (lambda: frb.Mixture([a, b], p=array(np.ones(3, np.float32))), ValueError, r"shape \(2,\), one share"),
        (lambda: frb.Mixture([a, b], p=array(np.ones(2, np.int32))), TypeError, "expected dtype float32, got"),
        (lambda: frb.Mixture([a, b], p=array(np.array([np.nan, 1], np.float32))), ValueError, "Mixture: p: .*finite"),
        (lambda: frb.Mixture([a, b], p=array(np.array([-1, 2], np.float32))), ValueError, "Mixture: p: .*not negative"),
        (lambda: frb.Mixture([a, b], p=np.array([np.inf, 2])), ValueError, "Mixture: p: .*finite numbers"),
        (lambda: frb.Mixture([a, b], how="both"), ValueError, "'exact', 'items', 'buffers', got 'both'"),
        (lambda: frb.Mixture([a, b], parts=2), ValueError, "with how='buffers' alone"),
        (lambda: frb.Mixture([a, b], how="items", stacked=True), ValueError, "reshape what is sampled"),
        (lambda: frb.Mixture([a, b], how="buffers", parts=0), ValueError, "parts: expected a positive int"),
        (lambda: frb.Mixture([a, b], leaves=3), ValueError, "expected leaves as a leaf's name, .* or a list of such"),
        (lambda: frb.Mixture([a, b], leaves=[3]), TypeError, "Mixture: leaves: expected the key of a leaf as a name"),
        (lambda: frb.Mixture([a, b], leaves=["x", "x"]), ValueError, "all different"),
        (lambda: rb.sample(mixture, key), ValueError, "batch_size is missing"),
        (lambda: rb.sample(mixture, key, 2**23), ValueError, "up to 4194304 of a mixture"),
        (lambda: rb.sample(mixture, key, 2, beta=-1.0), ValueError, "in \\[0, 100\\]"),
        (lambda: rb.sample(mixture, key, 2, p=[0.0, 0.0]), ValueError, "one of them positive"),
        (lambda: rb.sample(mixture, key, 2, p=[1.0]), ValueError, r"sample: p: expected shape \(2,\)"),
        (
            lambda: rb.sample(mixture, key, 2, p=3),
            TypeError,
            "sample: p: expected 2 numbers, or an array .* got 3",
        ),
        (lambda: rb.sample(mixture, key, 2, p=["a", "b"]), TypeError, "sample: p: expected 2 numbers, or an array"),
        (lambda: rb.sample(mixture, key, 2, p=[np.str_("a"), 1]), TypeError, "sample: p: expected 2 numbers, or an"),
        (lambda: rb.sample(mixture, key, 2, p=[None, 1]), TypeError, "sample: p: expected 2 numbers, or an array"),
        (lambda: rb.sample(a, key, 2, p=[1.0]), ValueError, "a single buffer gives all of the batch"),
        (
            lambda: rb.sample(frb.Mixture([a, b], how="buffers"), key, 5),
            ValueError,
            "multiple of the mixture's 2 parts",
        ),
        (lambda: rb.add(mixture, x), ValueError, r"rb.add\(mixture, items, to=k\)"),
        (lambda: rb.add(mixture, x, to=2), IndexError, "from 0 to 1, got 2"),
        (lambda: rb.add(mixture, x, to="a"), TypeError, "number of a buffer as an int, got str"),
        (lambda: rb.add(mixture, x, to=(0, 1)), ValueError, "there is a single buffer"),
        (lambda: mixture.replace(5, a), IndexError, "replace: expected the number of a buffer from 0 to 1"),
        (lambda: mixture.replace(0, 5), TypeError, "expected a State or a Mixture, got int"),
        (lambda: rb.update(mixture, array(np.zeros(3, np.int32))), ValueError, r"expected shape \(B, 2\)"),
        (
            lambda: rb.update(mixture, array(np.zeros((1, 2), np.int32)), array(np.ones(2, np.float32))),
            ValueError,
            r"priorities: expected shape \(1,\)",
        ),
        (
            lambda: rb.update(frb.Mixture([a]), array(np.zeros((1, 2), np.int32)), array(np.ones(1, np.float32))),
            ValueError,
            "the sampler is Uniform",
        ),
        (lambda: rb.priorities(frb.Mixture([a]), array(np.zeros((1, 2), np.int32))), ValueError, "has no priorities"),
        (lambda: rb.items(mixture), TypeError, r"rb.items\(mixture\[k\]"),
        (lambda: rb.size(a, each=True), TypeError, "expected a Mixture beside each=True, got a State"),
    ]


def test_errors_say_what_to_do(library: Backend) -> None:
    for call, kind, message in errors(library):
        with pytest.raises(kind, match=message):
            call()


def test_a_state_of_the_other_backend_is_refused() -> None:
    import jax_backend
    import torch_backend

    mixture = frb.Mixture([jax_backend.init(UNIFORM), torch_backend.init(UNIFORM)])
    for rb in (jax_backend, torch_backend):
        with pytest.raises(TypeError, match=r"bring it over by rb.from_dlpack\(state\)"):
            rb.sample(mixture, rb.key(0), 2)
