"""What is stored is data: no derivative goes into a buffer or comes out of it, and none breaks what is around it."""

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

ITEM = {"x": frb.Unbounded((2,))}
SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.Slices(1, end_keys=())]


@pytest.mark.parametrize(("sampler", "kernels"), [*((x, True) for x in SAMPLERS), (SAMPLERS[0], False)], ids=repr)
def test_on_jax_gradients_through_stored_items_are_zero(
    sampler: Any, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rb = jax_backend
    monkeypatch.setattr("jax_backend.compiling.compile.HAVE_KERNELS", kernels)
    spec = frb.BufferSpec(ITEM, 8, sampler)

    def loss(w: jax.Array, scale: jax.Array) -> jax.Array:
        state = rb.add(rb.init(spec), {"x": w * jnp.ones((4, 2))})
        _, sample = rb.sample(state, rb.key(0), 4)
        return scale * (sample.items["x"] * w).sum() + (
            rb.items(state)["x"].sum() + rb.get(state, sample.indices.reshape(-1))["x"].sum()
        )

    w = jnp.float32(3.0)
    by_w, by_scale = jax.jit(jax.grad(loss, argnums=(0, 1)))(w, jnp.float32(1.0))
    # Of the sum over 4 x 2 elements of (stored 3) * w only the second factor counts: 24, not 48, and nothing else.
    assert (float(by_w), float(by_scale)) == (24.0, 72.0)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_on_torch_stored_items_have_no_history(sampler: Any) -> None:
    rb = torch_backend
    spec = frb.BufferSpec(ITEM, 8, sampler)
    w, scale = torch.tensor(3.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    state = rb.add(rb.init(spec), {"x": w * torch.ones(4, 2)})
    state, sample = rb.sample(state, rb.key(0), 4)
    read = [sample.items["x"], rb.items(state)["x"], rb.get(state, np.zeros(2, np.int32))["x"]]
    assert not any(x.requires_grad for x in read)
    (scale * (sample.items["x"] * w).sum()).backward()
    assert (float(w.grad), float(scale.grad)) == (24.0, 72.0)
