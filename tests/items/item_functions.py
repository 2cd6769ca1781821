"""Functions of items carried out on NumPy, and on each backend, eagerly and compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.core.item_function import item_after
from functional_rb.ops import numpy_ops
from functional_rb.specs.regrouped import leaves_of
from functional_rb.testing.map_rules import applied

Item = dict[str, Any]


def after(function: Any, item: Any, lead: int = 1) -> Any:
    """The spec of the items that a function gives, of batches with so many leading axes."""
    return frb.Composite(item_after(function, item, lead))


def words(function: Any, count: int, seed: int = 0) -> np.ndarray | None:
    """Random words for a batch of so many items."""
    if not function.words:
        return None
    return np.random.default_rng(seed).integers(0, 2**31, (count, function.words)).astype(np.int32)


def on_numpy(
    function: Any, item: Any, batch: Item, lead: tuple[int, ...], draws: Any = None, mask: Any = None
) -> dict[str, np.ndarray]:
    """What a function gives of a dict of leaves, by their names; those of a nest are told as paths, "a/b"."""
    given = {tuple(name.split("/")): leaf for name, leaf in batch.items()}
    draws = words(function, math.prod(lead)) if draws is None else draws
    made = applied(function, numpy_ops, leaves_of(item), given, lead, draws, mask)
    return {"/".join(map(str, path)): leaf for path, leaf in made.items()}


def close(left: np.ndarray, right: np.ndarray, what: str = "") -> None:
    """Equal in dtype and shape; floats up to 1e-5, all else exactly."""
    assert (left.dtype, left.shape) == (right.dtype, right.shape), what
    tolerance = 1e-5 if left.dtype.kind == "f" else 0
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance, err_msg=what)


PIXELS = frb.Bounded(0, 255, (6, 5, 3), "uint8")
