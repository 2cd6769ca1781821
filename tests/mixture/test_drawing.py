"""How mixtures draw: what each buffer is asked for, by which call, and how many random bits of a batch count."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.mixture import drawing, sampling
from functional_rb.mixture.layout import form_of, layout_of
from jax_backend.compiling import compile
from tests.mixture.mixtures import ITEM, REMEMBERING, SKEWED, UNIFORM, filled, graphs
from tests.support.backends import needs_native
from torch_backend import mixtures
from torch_backend.engines import execute
from torch_backend.lib import LIB


@pytest.mark.parametrize("sampler", [frb.Prioritized(), *REMEMBERING], ids=repr)
def test_what_is_known_and_what_is_traced_give_the_same_rows(sampler: Any) -> None:
    """Where each buffer draws what it gives, and where it draws a whole batch of which the first rows count."""
    rb, spec = torch_backend, frb.BufferSpec(ITEM, capacity=8, sampler=sampler)
    for how, nested in (("exact", False), ("items", True), ("buffers", False)):
        mixture = frb.Mixture([filled(rb, UNIFORM, 0, 5), filled(rb, spec, 10, 4)], p=[0.3, 0.7], how=how)
        if nested:
            mixture = frb.Mixture([mixture, filled(rb, UNIFORM, 20, 3)], p=[0.6, 0.4], how=how)
        request = drawing.Request(layout_of(form_of(mixture), execute, 6), rb.key(7), beta=1.0)
        here, leaves, found = drawing.draw(mixtures._Torch(True), mixture, request)
        there, others, other = drawing.draw(mixtures._Torch(False), mixture, request)
        assert found.handles.tolist() == other.handles.tolist()
        assert found.weights.tolist() == other.weights.tolist()
        live = found.handles[:, -1] >= 0
        assert leaves[0][live].tolist() == others[0][live].tolist()
        assert found.probabilities[live].tolist() == other.probabilities[live].tolist()
        for mine, theirs in zip(*(mixture.with_buffers(x).buffers for x in (here, there)), strict=True):
            assert mine.counters.tolist() == theirs.counters.tolist()
            assert all(torch.equal(mine.auxiliary[name], theirs.auxiliary[name]) for name in mine.auxiliary)


def test_where_nothing_can_be_drawn_traced_rows_tell_nothing() -> None:
    """Not even those of a buffer without a share, which could give some."""
    rb, spec = torch_backend, frb.BufferSpec(ITEM, capacity=8, sampler=frb.Slices(2, end_keys=()))
    mixture = frb.Mixture([rb.init(spec), filled(rb, spec, 0, 6)], p=[1.0, 0.0])
    request = drawing.Request(layout_of(form_of(mixture), execute, 6), rb.key(7), beta=1.0)
    found = drawing.draw(mixtures._Torch(False), mixture, request)[2]
    assert (found.handles == drawing.NOTHING).all()
    for name in ("weights", "probabilities", *drawing.FLAGS):
        assert not getattr(found, name).any(), name


def test_a_batch_of_no_rows_may_be_drawn_from_a_buffer_twice_in_place() -> None:
    state = filled(torch_backend, frb.BufferSpec(ITEM, 8, frb.WithoutReplacement()), 0, 5)
    after, sample = torch_backend.sample_(frb.Mixture([state, state]), torch_backend.key(0), 0)
    assert sample.indices.shape == (0, 2)
    assert int(torch_backend.size(after)) == 10


@needs_native
@pytest.mark.usefixtures("tensors_of_the_cpu")
@pytest.mark.parametrize("p", [None, [0.3, 0.0, 0.7], [0.3, 0.65, 0.05]])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_what_one_batch_is_drawn_into_is_what_is_put_together(
    p: list[float] | None, given: bool, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused kernels draw each buffer's rows to where they belong, also once one of the buffers has changed."""
    rb = torch_backend
    skewed = rb.update(filled(rb, SKEWED, 10, 4), torch.arange(4, dtype=torch.int32), torch.tensor([1.0, 2, 3, 4]))
    mixture = frb.Mixture([filled(rb, UNIFORM, 0, 5), filled(rb, UNIFORM, 20, 3), skewed], p=None if given else p)
    shares = torch.tensor(p) if given and p else None
    for key in rb.split(rb.key(5), 3):
        _, sample = rb.sample(mixture, key, 12, beta, p=shares)
        with monkeypatch.context() as patch:
            patch.setattr(mixtures, "_at_once", lambda *args: None)
            _, other = rb.sample(mixture, key, 12, beta, p=shares)
        for name in ("indices", "weights", "probabilities"):
            assert torch.equal(getattr(sample, name), getattr(other, name))
        assert torch.equal(sample.items["x"], other.items["x"])
        assert torch.equal(sample.extras["buffer_ids"], other.extras["buffer_ids"])
        sample.indices[:] = 99  # what is kept for the next draw is not what was given
        mixture = rb.add(mixture, {"x": np.full(1, 50.0, np.float32)}, to=2)
    silent = rb.update(skewed, torch.arange(4, dtype=torch.int32), torch.zeros(4))
    mixture = mixture.replace(2, silent)
    assert set(rb.sample(mixture, rb.key(0), 12, p=shares)[1].extras["buffer_ids"].tolist()) == (
        {0} if p and not p[1] else {0, 1}
    )


def test_torch_traces_shares_that_are_numbers_of_python() -> None:
    """A number that changes from call to call is traced from the second one on, and never again."""
    state = filled(torch_backend, UNIFORM, 0, 1)
    compiled = torch.compile(
        lambda share: sampling._shares(LIB, mixtures.engine(state), [1 - share, share], 2),
        fullgraph=True,
        backend="eager",
    )
    before = graphs()
    for k in range(1, 12):
        assert compiled(k / 16).tolist() == [1 - k / 16, k / 16]
    assert graphs() == before + 2


def test_no_single_call_draws_from_mixtures_in_a_mixture() -> None:
    """Whose handles have more columns; also where each has one buffer alone."""
    one = filled(torch_backend, UNIFORM, 0, 5)
    for states, alike in (([one, one], True), ([frb.Mixture([one]), frb.Mixture([one])], False)):
        mixture = frb.Mixture(states)
        assert layout_of(form_of(mixture), execute, 4).alike is alike
        assert torch_backend.sample(mixture, torch_backend.key(0), 4)[1].indices.shape == (4, mixture.depth + 1)


def test_the_bits_that_count_are_those_of_the_whole_batch() -> None:
    rows = jax.jit(compile.draws, static_argnums=(1, 2))
    every = rows(jax_backend.key(0), 5, 3)
    for wanted in range(6):
        some = rows(jax_backend.key(0), 5, 3, jnp.int32(wanted))
        assert some[: max(wanted, 1)].tolist() == every[: max(wanted, 1)].tolist()
