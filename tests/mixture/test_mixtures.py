"""Mixtures of buffers: what they give, how they weigh it, and that nothing of it is lost."""

from __future__ import annotations

import contextlib
import copy
import importlib
import pickle
from typing import Any

import numpy as np
import pytest

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
