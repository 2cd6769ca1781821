"""Square roots by which advantages of groups are scaled."""

from __future__ import annotations

import numpy as np

from functional_rb.ops import numpy_ops
from functional_rb.samplers import groups


def test_roots_are_as_exact_as_their_numbers() -> None:
    rng = np.random.default_rng(0)
    squares = (rng.uniform(1, 4, 2000) * 2.0 ** rng.integers(-126, 126, 2000)).astype(np.float32)
    found = groups._square_root(numpy_ops, squares)
    np.testing.assert_allclose(found, np.sqrt(squares.astype(np.float64)), rtol=2.0**-22)
    rest = np.float32([0, 1e-45, np.inf, np.nan])
    np.testing.assert_array_equal(groups._square_root(numpy_ops, rest), np.float32([0, 0, np.inf, np.nan]))
