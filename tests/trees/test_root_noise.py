"""The noise in the prior of a search's root, by the slots that are taken first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

# So many roots have the same prior.
ROWS = 4000
SLOTS = [0, 1, 3]


# A program for one of them is compiled on JAX: they differ in a number.
@pytest.mark.parametrize(("library", "alpha"), [("jax", 0.3), ("torch", 0.3), ("torch", 2.0)], indirect=["library"])
def test_noise_is_of_its_distribution(library: Backend, alpha: float) -> None:
    """With noise D in a prior P the first slot is the largest of P + D: how often, against NumPy's numbers."""
    rb, random = library.rb, np.random.default_rng(0)
    priors = np.array([[1, 1, 1], [4, 3, 3], [6, 3, 1], [7, 2, 1], [8, 1, 1], [9, 0.5, 0.5]])
    priors = priors / priors.sum(1, keepdims=True)
    logits = np.zeros((len(priors) * ROWS, 4), np.float32)
    logits[:, SLOTS] = np.log(priors).repeat(ROWS, 0)
    value = library.array(np.zeros(len(logits), np.float32))
    valid = library.array(np.isin(np.arange(4), SLOTS)[None].repeat(len(logits), 0))
    root = frb.trees.Expansion((value,), library.array(logits), value, valid=valid)

    def step(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
        return root

    tree = rb.init(frb.trees.TreeSpec((frb.Unbounded(()),), 2, 4), items=root)
    policy = frb.trees.MuZero(dirichlet_fraction=0.5, dirichlet_alpha=alpha)
    _, proposal = rb.trees.search(tree, rb.key(0), step, 1, policy)
    taken = library.numpy(proposal.weights).reshape(len(priors), ROWS, 4).mean(1)
    noise = random.dirichlet([alpha] * len(SLOTS), 200_000)
    expected = [np.bincount((prior + noise).argmax(1), minlength=len(SLOTS)) / len(noise) for prior in priors]
    assert not taken[:, 2].any()
    np.testing.assert_allclose(taken[:, SLOTS], expected, atol=0.02)
