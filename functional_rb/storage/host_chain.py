"""The version chain of states in NumPy's arrays; see `functional_rb.native.chain`."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.native.chain import Chains
from functional_rb.storage.host_state import HostState
from functional_rb.versions.library import Library


def chain_of(library: Library) -> Any:
    """The chain of host states, which the engine alone calls: leaves are lists, and nobody puts anything off."""
    return Chains(library, _not_asked).make(HostState, (np.ndarray, np.ndarray, *[_not_asked] * 4, ready))


def ready(array: object, writes: bool) -> NumpyArray:
    """What kernels read in place of an array of NumPy's, or of a number, that they cannot."""
    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(f"a kernel: expected an array of NumPy's, got {type(array)}")
    if writes:
        raise ValueError(f"a kernel: expected an array in a row that may be written, got {np.asarray(array).flags}")
    return np.ascontiguousarray(array).reshape(np.shape(array))


def _not_asked(*_: object) -> object:
    raise AssertionError
