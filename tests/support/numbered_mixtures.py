"""Mixtures all of which tells a number, so that what is mixed of two is seen."""

from __future__ import annotations

from typing import Any

import numpy as np

import functional_rb as frb
import torch_backend as rb

ITEM = {"x": frb.Unbounded(())}
SPECS = [frb.BufferSpec(ITEM, 4), frb.BufferSpec(ITEM, 6, frb.Prioritized())]


def mixture_at(number: float, backend: Any = rb) -> frb.Mixture:
    """A mixture in a mixture, all of whose items, and shares, tell a number."""
    specs = [SPECS[1], *SPECS]
    first, *states = (backend.add(backend.init(spec), {"x": np.full(3, number, np.float32)}) for spec in specs)
    p = backend.items(first)["x"][:2] + 1
    return frb.Mixture([first, frb.Mixture(states, how="items", p=p)], p=[0.5, 0.5])
