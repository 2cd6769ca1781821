"""Both backends give the same mixtures the same samples, bit for bit, where they are fed the same draws."""

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
from jax_backend import mixtures
from jax_backend.arrays import keys
from jax_backend.compiling import compile
from tests.mixture.mixtures import ITEM, UNIFORM
from tests.support.effort import effort
from torch_backend.arrays import random

# A key splits into up to FAN, on two levels; so each of ROOTS has NODES at most, of which each gives WORDS.
FAN, NODES, ROOTS, WORDS = 5, 32, effort(3, 30), 64
BATCH = 13
POWERS = frb.BufferSpec(ITEM, 6, frb.Prioritized(alpha=0.6, beta=0.4))
QUEUE = frb.BufferSpec(ITEM, 8, frb.Queue())
SUMMED = frb.BufferSpec(
    {"x": frb.Unbounded((2,))}, 4, frb.Prioritized(), transforms=frb.map_items(lambda items: {"x": items["x"].sum(-1)})
)


def torch_keys() -> list[torch.Tensor]:
    """All keys that splits lead to: that of root r and node k at r * NODES + k, whose own are at FAN * k + 1 and on."""
    found: list[torch.Tensor] = []
    for root in range(ROOTS):
        tree = [torch_backend.key(root)]
        for node in range((NODES - 1) // FAN):
            tree += torch_backend.split(tree[node], FAN)
        found += [*tree, *[tree[0]] * (NODES - len(tree))]
    return found


@pytest.fixture
def torch_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's keys are the places of torch's, and give what those do; no other test has programs for such keys."""
    table = jnp.asarray(np.stack([random.draws(key, WORDS, 1).numpy()[:, 0] for key in torch_keys()]))

    def split(key: jax.Array, n: int) -> list[jax.Array]:
        root, node = key // NODES * NODES, key % NODES
        return [root + FAN * node + 1 + k for k in range(n)]

    def draws(key: jax.Array, rows: int, words: int, wanted: Any = None) -> jax.Array:
        assert rows * words <= WORDS
        return table[key, : rows * words].reshape(rows, words)

    monkeypatch.setattr(mixtures, "_keys", split)
    monkeypatch.setattr(compile, "draws", draws)
    # Of others kernels make the words themselves.
    monkeypatch.setattr(compile, "_parts_of", lambda key: ("a key of torch's", key))
    monkeypatch.setattr(keys, "check_key", lambda key: None)


def mixed(rb: Any, how: Any) -> frb.Mixture:
    """On two levels, with a buffer that is empty, one whose samples are made by a function, and a queue."""

    def filled(spec: frb.BufferSpec, first: float, n: int) -> Any:
        shape = (n, *spec.item["x"].shape)
        state = rb.init(spec)
        return rb.add(state, {"x": np.arange(first, first + np.prod(shape), dtype=np.float32).reshape(shape)})

    skewed = filled(POWERS, 10, 4)
    handles, priorities = np.arange(4, dtype=np.int32), np.array([0.3, 7, 0.0, 1.9], np.float32)
    inner = frb.Mixture([rb.update(skewed, handles, priorities), filled(QUEUE, 20, 3)], p=[0.6, 0.4], how=how)
    parts = {"parts": 13} if how == "buffers" else {}
    states = [filled(UNIFORM, 0, 5), inner, rb.init(UNIFORM), filled(SUMMED, 30, 2)]
    return frb.Mixture(states, how=how, **parts)


def arrays(sample: Any) -> dict[str, np.ndarray]:
    """What a sample tells; the items of rows where nothing was drawn are left out."""
    mask = np.asarray(sample.mask)
    found = {name: np.asarray(getattr(sample, name)) for name in ("indices", "weights", "probabilities", "mask")}
    return found | {"ids": np.asarray(sample.extras["buffer_ids"]), "items": np.asarray(sample.items["x"])[mask]}


@pytest.mark.parametrize("how", ["exact", "items", "buffers"])
@pytest.mark.usefixtures("torch_draws")
def test_the_same_draws_give_the_same_samples(how: Any) -> None:
    """Also of shares that are given, and by XLA's operations in place of kernels."""
    on_torch = mixed(torch_backend, how)
    on_jax = mixed(jax_backend, how)
    came: set[int] = set()
    for root in range(ROOTS):
        p = np.array([0.3, 0.4, 0.2, 0.1], np.float32) * np.float32([1, 1 + root, 1, 1])
        after, sample = torch_backend.sample(on_torch, torch_backend.key(root), BATCH, 0.4, p=torch.from_numpy(p))
        expected = arrays(sample)
        came |= set(expected["ids"].tolist())
        for kernels in (True, False) if how == "items" else effort((True,), (True, False)):
            with frb.kernels(kernels):
                changed, other = jax_backend.sample(on_jax, jnp.int32(root * NODES), BATCH, jnp.float32(0.4), p=p)
            for name, found in arrays(other).items():
                assert found.dtype == expected[name].dtype
                np.testing.assert_array_equal(found, expected[name], err_msg=name)
            assert jax_backend.size(changed, each=True).tolist() == torch_backend.size(after, each=True).tolist()
        assert all(len(set(expected[name].tolist())) > 1 for name in ("weights", "probabilities", "items"))
    assert {0, 1, 3} <= came <= {-1, 0, 1, 3}  # the empty one never
