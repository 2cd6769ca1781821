"""The version chain of states in NumPy's arrays; see `functional_rb.native.chain`."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.native.addresses import of_vectors
from functional_rb.native.chain import Chains
from functional_rb.storage.host_state import HostState
from functional_rb.versions.library import Library


def made(library: Library) -> Any:
    """The chain of host states, which the engine alone calls: leaves are lists, and nobody puts anything off."""
    return Chains(library, of_vectors, _not_asked).make(HostState, (np.ndarray, np.ndarray, *[_not_asked] * 4))


def _not_asked(*_: Any) -> Any:
    raise AssertionError
