"""Mixtures in compiled programs: the same rows as at once, traced once, and no storage copied."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from tests.mixture.mixtures import ITEM, SKEWED, UNIFORM, filled, graphs
from tests.support.backends import needs_native
from tests.support.effort import effort


def pair(rb: Any, other: frb.BufferSpec = SKEWED, **how: Any) -> frb.Mixture:
    return frb.Mixture([filled(rb, UNIFORM, 0, 5), filled(rb, other, 10, 4)], **how)


def test_what_is_empty_is_left_out_by_the_program_that_draws_from_it_later() -> None:
    rb = jax_backend
    mixture = frb.Mixture([rb.init(UNIFORM), rb.init(SKEWED)], p=[0.5, 0.5])
    draw = jax.jit(lambda *args: rb.sample(*args), static_argnums=2)  # with a cache of its own
    for added, ids in (((), [-1] * 4), ((1,), [1] * 4), ((0,), [0] * 4), ((0, 1), [0, 0, 1, 1])):
        filled_now = mixture
        for k in added:
            filled_now = rb.add(filled_now, {"x": np.zeros(3, np.float32)}, to=k)
        assert draw(filled_now, rb.key(0), 4)[1].extras["buffer_ids"].tolist() == ids
    assert draw._cache_size() == 1  # all by one program
    mixture, sample = draw(mixture, rb.key(0), 4)
    assert sample.indices.tolist() == [[-1, -1]] * 4
    assert sample.weights.tolist() == sample.probabilities.tolist() == [0] * 4
    mixture = rb.update(mixture, sample.indices, sample.weights)
    assert [int(rb.counts(one).stale) for one in mixture] == [0, 0]


@pytest.mark.parametrize("how", ["items", *effort([], ["exact", "buffers"])])
def test_a_buffer_without_a_share_gives_nothing_where_the_others_are_empty(how: Any) -> None:
    """And loses nothing, where it is not known before that nothing can be drawn."""

    def mixed(rb: Any, sampler: Any) -> frb.Mixture:
        states = [filled(rb, frb.BufferSpec(ITEM, 8, sampler), 0, 4), rb.init(UNIFORM)]
        mixture = frb.Mixture(states, p=[0.0, 1.0], how=how)
        with pytest.raises(ValueError, match="nothing can be drawn from any of the 2 buffers"):
            rb.sample(mixture, rb.key(0), 4)
        return mixture

    rb, on_torch = torch_backend, mixed(torch_backend, frb.Uniform())
    mapped = torch.func.vmap(lambda key: rb.sample(on_torch, key, 4)[1].indices)(rb.split(rb.key(0), 2))
    assert mapped.tolist() == [[[-1, -1]] * 4] * 2
    draw = jax.jit(lambda *args: jax_backend.sample(*args, 4))
    after, sample = draw(mixed(jax_backend, frb.Queue()), jax_backend.key(0))
    assert sample.indices.tolist() == [[-1, -1]] * 4
    assert sample.weights.tolist() == sample.probabilities.tolist() == [0] * 4
    assert jax_backend.size(after, each=True).tolist() == [4, 0]


def test_arrays_that_are_no_states_are_refused_before_a_kernel_reads_them() -> None:
    """Kernels would read beyond them; so they would beyond shares that are fewer than the buffers."""
    rb, mixture = jax_backend, pair(jax_backend, UNIFORM)
    for name in ("rows", "counters"):
        cut = dataclasses.replace(mixture[0], **{name: getattr(mixture[0], name)[:1]})
        with pytest.raises(ValueError, match=r"^sample: .*give a state whose arrays were not cut"):
            rb.sample(mixture.replace(0, cut), rb.key(0), 4)
    one = frb.Mixture(mixture.states, jnp.ones(1), spec=mixture.spec)
    assert jax.jit(lambda m: rb.sample(m, rb.key(0), 4)[1]).lower(one).as_text().count("sample_mixture") == 0


def test_shares_may_be_traced_and_one_trace_serves_them_all() -> None:
    rb, traces = jax_backend, []

    def step(mixture: frb.Mixture, key: Any, t: Any) -> Any:
        traces.append(t)
        share = jnp.clip(t / 4, 0.0, 1.0)
        mixture, sample = rb.sample(mixture, key, 8, p=[1 - share, share])
        mixture = rb.update(mixture, sample.indices, sample.weights)
        return mixture, sample.extras["buffer_ids"].sum()

    mixture = pair(rb)
    compiled = rb.jit(step)
    counts = []
    for t in range(5):
        mixture, count = compiled(mixture, rb.key(t), jnp.float32(t))
        counts.append(int(count))
    assert counts == [0, 2, 4, 6, 8]
    assert len(traces) == 1
    # In a scan too; and for several seeds at once, with a key for each or a mixture for each.
    keys = rb.split(rb.key(1), 5)
    _, scanned = jax.lax.scan(lambda m, x: step(m, *x), pair(rb), (keys, jnp.arange(5.0)))
    assert scanned.tolist() == [0, 2, 4, 6, 8]
    draw = jax.vmap(lambda m, k: rb.sample(m, k, 8)[1].items["x"], in_axes=(None, 0))
    one = pair(rb, p=[0.25, 0.75], how="items")
    alone = [rb.sample(one, key, 8)[1].items["x"].tolist() for key in keys[:2]]
    assert draw(one, keys[:2]).tolist() == alone
    stack = jax.tree.map(lambda *x: jnp.stack(x), one, one)
    assert jax.vmap(lambda m, k: rb.sample(m, k, 8)[1].items["x"])(stack, keys[:2]).tolist() == alone


def test_kernels_that_draw_only_what_counts_give_the_rows_of_the_core() -> None:
    """Whatever the shares, traced and mapped over: of one buffer alone, of empty ones, of none at all.

    A function of items is given whole batches still.
    """
    rb = jax_backend
    centered = frb.BufferSpec(ITEM, 8, transforms=frb.map_items(lambda items: {"x": items["x"] - items["x"].mean()}))
    inner = frb.Mixture([filled(rb, SKEWED, 10, 4), filled(rb, centered, 20, 3)], how="items")
    cleared = rb.clear(filled(rb, UNIFORM, 30, 8))  # what is read of it is not what lies in fresh memory
    mixture = frb.Mixture([filled(rb, UNIFORM, 0, 5), inner, cleared])
    shares = jnp.asarray([[1, 0, 0], [0, 1, 0], [0.3, 0.6, 0.1], [0, 0, 1]], jnp.float32)
    keys = rb.split(rb.key(0), 4)
    draw = jax.jit(lambda key, p: rb.sample(mixture, key, 8, p=p)[1])
    alone = [draw(key, p) for key, p in zip(keys, shares, strict=True)]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *alone)  # the core's rows, as test_agreement shows
    for on in effort((True,), (True, False)):
        with frb.kernels(on):
            found = jax.jit(jax.vmap(lambda key, p: rb.sample(mixture, key, 8, p=p)[1]))(keys, shares)
        for mapped, one in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(mapped, one)
    small, found = frb.Mixture([filled(rb, UNIFORM, 0, 5), filled(rb, centered, 20, 3)]), []
    for on in (True, False):
        with frb.kernels(on):
            found.append(rb.sample(small, keys[0], 8)[1].items["x"])
    np.testing.assert_array_equal(*found)


@needs_native  # else XLA copies in the branches
def test_shares_that_are_plain_numbers_are_drawn_without_the_rest() -> None:
    """Outside of kernels: the same rows as by shares that are known while running alone, also where one is empty."""
    rb = jax_backend
    recent = frb.BufferSpec(ITEM, 8, frb.Recency(2))
    mixture = frb.Mixture([filled(rb, recent, 0, 8), filled(rb, SKEWED, 10, 4)], p=[2, 1])
    others = [mixture.replace(0, rb.clear(mixture[0])), mixture.replace(1, rb.init(SKEWED))]
    numbers = jnp.asarray([2.0, 1.0])
    draw, told = jax.jit(lambda m, k: rb.sample(m, k, 10)[1]), jax.jit(lambda m, k: rb.sample(m, k, 10, p=numbers)[1])
    for state in (mixture, *others):
        for by_plan, by_rows in zip(*(jax.tree.leaves(f(state, rb.key(3))) for f in (draw, told)), strict=True):
            np.testing.assert_array_equal(by_plan, by_rows)
    assert "stablehlo.case" in draw.lower(mixture, rb.key(0)).as_text()
    tiny = frb.Mixture(mixture.states, p=[1.0, 1e-31])  # a share that counts as none
    assert jax.eval_shape(draw, tiny, rb.key(0)).indices.shape == (10, 2)

    def step(mixture: frb.Mixture, key: Any) -> Any:
        mixture, sample = rb.sample(mixture, key, 10)
        return rb.add(mixture, {"x": np.zeros(2, np.float32)}, to=0), sample.items

    large = mixture.replace(0, rb.init(frb.BufferSpec(ITEM, 4096, frb.Recency(2))))
    text = rb.jit(step).lower(large, rb.key(0)).compile().as_text()
    assert re.findall(r"s32\[4096,1\]\S* copy\(", text) == []


def test_no_storage_is_copied() -> None:
    """A donated step of sample, update and add moves none of the storages, and vmap over keys gathers rows alone."""
    rb = jax_backend
    specs = [
        frb.BufferSpec({"x": frb.Unbounded((64,))}, 4096, sampler) for sampler in (frb.Uniform(), frb.Prioritized())
    ]
    mixture = frb.Mixture([rb.init(spec) for spec in specs], p=[0.5, 0.5])

    def step(mixture: frb.Mixture, key: Any, items: Any) -> Any:
        mixture, sample = rb.sample(mixture, key, 16)
        mixture = rb.update(mixture, sample.indices, sample.weights)
        return rb.add(mixture, items, to=1), sample.weights

    text = rb.jit(step).lower(mixture, rb.key(0), {"x": np.zeros((16, 64), np.float32)}).compile().as_text()
    assert re.findall(r"s32\[4096,64\]\S* copy\(", text) == []
    many = jax.jit(jax.vmap(lambda m, k: rb.sample(m, k, 16)[1], in_axes=(None, 0)))
    text = many.lower(mixture, rb.split(rb.key(0), 3)).compile().as_text()
    assert re.findall(r"s32\[3,4096,64\]", text) == []


def test_torch_compiles_the_whole_of_it() -> None:
    rb = torch_backend
    queue = frb.BufferSpec(ITEM, capacity=8, sampler=frb.Queue())
    mixture = pair(rb, queue, p=[0.5, 0.5])

    def step(mixture: frb.Mixture, key: torch.Tensor, share: torch.Tensor) -> Any:
        mixture, sample = rb.sample_(mixture, key, 4, p=[1 - share, share])
        mixture = rb.update_(mixture, sample.indices, items={"x": sample.items["x"] + 100})
        return mixture, sample.items["x"], sample.mask

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    mixture = mixture.with_states([rb.own_(state) for state in mixture])
    mixture, x, mask = compiled(mixture, rb.key(0), torch.tensor(0.75))
    assert x[1:].tolist() == [10, 11, 12]
    assert mask.tolist() == [True] * 4
    assert int(rb.size(mixture[1])) == 1
    mixture, x, mask = compiled(mixture, rb.key(1), torch.tensor(0.5))
    assert x[2].tolist() == 13
    assert mask.tolist() == [True, True, True, False]


@pytest.mark.parametrize("how", ["exact", *effort([], ["items", "buffers"])])
def test_torch_compiles_a_step_once_for_all_states_and_betas(how: Any) -> None:
    """Twice with numbers of Python, which are traced from where they change.

    The shares that the mixture itself tells are rounded by each key anew, by the same program.
    """
    rb = torch_backend
    eager, mixture = (pair(rb, p=[0.3, 0.7], how=how) for _ in range(2))
    mixture = mixture.with_states([rb.own_(state) for state in mixture])

    def step(mixture: frb.Mixture, key: torch.Tensor, x: float, beta: float) -> tuple[frb.Mixture, Any]:
        mixture = rb.add_(mixture, {"x": x}, to=0)
        mixture, sample = rb.sample_(mixture, key, 4, beta)
        return rb.update_(mixture, sample.indices, sample.weights), sample

    compiled, before, counts = torch.compile(step, fullgraph=True, backend="eager"), graphs(), set()
    for k in range(10):
        given = rb.key(k), 20.0 + k, (k + 1) / 20
        eager, expected = step(eager, *given)
        mixture, sample = compiled(mixture, *given)
        assert sample.items["x"].tolist() == expected.items["x"].tolist()
        torch.testing.assert_close(sample.weights, expected.weights)
        counts.add(int((sample.extras["buffer_ids"] == 0).sum()))
    assert how != "exact" or counts == {1, 2}
    assert graphs() == before + 2
    assert sorted(rb.items(mixture[0])["x"].tolist()) == [*range(22, 30)]


def test_torch_compiles_a_mixture_anew_that_has_a_buffer_twice() -> None:
    """What was compiled for different buffers, which are written in place, would write the same memory twice."""
    rb = torch_backend
    one, other = filled(rb, UNIFORM, 0, 1), filled(rb, UNIFORM, 0, 2)
    compiled = torch.compile(lambda m: (m.repeats, rb.size(m[0]) - rb.size(m[1])), fullgraph=True, backend="eager")
    found = [compiled(frb.Mixture(states)) for states in ([one, other], [other, one], [one, one], [one, other])]
    assert [(repeats, int(size)) for repeats, size in found] == [(False, -1), (False, 1), (True, 0), (False, -1)]


def test_torch_maps_over_keys() -> None:
    rb = torch_backend
    mixture = pair(rb, p=[0.25, 0.75], how="items")
    keys = rb.split(rb.key(0), 3)
    found = torch.func.vmap(lambda key: rb.sample(mixture, key, 6)[1].items["x"])(keys)
    assert found.tolist() == [rb.sample(mixture, key, 6)[1].items["x"].tolist() for key in keys]


def test_torch_maps_over_keys_where_a_buffer_is_empty() -> None:
    rb = torch_backend
    mixture = frb.Mixture([rb.init(UNIFORM), filled(rb, UNIFORM, 0, 4)], p=[0.5, 0.5])
    keys = rb.split(rb.key(0), 2)
    found = torch.func.vmap(lambda key: rb.sample(mixture, key, 4)[1].indices)(keys)
    assert found.tolist() == [rb.sample(mixture, key, 4)[1].indices.tolist() for key in keys]


def test_torch_maps_over_beta() -> None:
    rb, betas = torch_backend, torch.tensor([0.0, 0.4, 1.0])
    mixture = pair(rb, p=[0.25, 0.75])
    found = torch.func.vmap(lambda beta: rb.sample(mixture, rb.key(0), 6, beta)[1].weights)(betas)
    for weights, beta in zip(found, betas, strict=True):
        torch.testing.assert_close(weights, rb.sample(mixture, rb.key(0), 6, beta)[1].weights)


def test_shares_of_bfloat16_are_shares() -> None:
    """Of buffers that one call draws from, and of others."""
    rb, shares = torch_backend, torch.tensor([0.25, 0.75])
    for other in (SKEWED, frb.BufferSpec(ITEM, 8, frb.Recency(2))):
        mixture = pair(rb, other)
        few, expected = (rb.sample(mixture, rb.key(0), 8, p=p)[1] for p in (shares.bfloat16(), shares))
        assert few.indices.tolist() == expected.indices.tolist()


class Careless(frb.Uniform):
    """Remembers, and does not heed how many rows count."""

    remembers = True
    heeds_wanted = False


def test_a_sampler_that_would_lose_items_is_refused() -> None:
    rb = jax_backend
    state = filled(rb, UNIFORM, 0, 5)
    mixture = frb.Mixture([state, rb.with_spec(state, frb.BufferSpec(ITEM, 8, sampler=Careless()))])
    with pytest.raises(TypeError, match=r"\(SamplerBase.heeds_wanted\).*sample its buffer by itself"):
        rb.sample(mixture, rb.key(0), 4)
