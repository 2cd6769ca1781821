"""Samples of mixtures whose buffers differ: in their leaves, samplers, slices, functions of items and returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import functional_rb as frb
import torch_backend
from tests.mixture.mixtures import ITEM, SKEWED, UNIFORM, filled, numbers, pair
from tests.support.backends import Backend


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
