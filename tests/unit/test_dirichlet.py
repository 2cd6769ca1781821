"""Noise for the priors of a search."""

from __future__ import annotations

import numpy as np

import functional_rb as frb
from functional_rb.trees import noise
from tests.support.backends import Backend


def test_dirichlet_noise_is_of_its_distribution(library: Backend) -> None:
    """Over the valid slots."""
    rb, batch = library.rb, 4000
    bits = rb.rand(frb.Bounded(0, 2**31 - 1, (4, noise.WORDS), "int32"), rb.key(0), batch=batch)
    valid = library.array(np.tile(np.array([True, True, False, True]), (batch, 1)))
    for alpha in (0.3, 2.0):
        drawn = library.numpy(noise.dirichlet(library.ops, bits, alpha, valid))
        np.testing.assert_allclose(drawn.sum(-1), 1, atol=1e-5)
        assert not drawn[:, 2].any()
        # Of a symmetric Dirichlet distribution over 3: means 1 / 3, variances 2 / (9 (3 alpha + 1)).
        np.testing.assert_allclose(drawn[:, [0, 1, 3]].mean(0), 1 / 3, atol=0.03)
        np.testing.assert_allclose(drawn[:, [0, 1, 3]].var(0), 2 / 9 / (3 * alpha + 1), rtol=0.1)
