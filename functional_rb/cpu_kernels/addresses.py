"""Where arrays lie, for compiled code, which knows of nothing else.

An address is good as long as its array lives, and nothing tells Python that it is in use: of `f(x.copy().ctypes.data)`
the copy is freed before `f` begins, and `f` lets other threads allocate. So this is the only module that asks arrays
for their addresses, and it hands none of them on without what keeps the array alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from functional_rb.ops.protocol import Array

Address = Callable[[Any], int]
"""Where an array of some library lies in the memory of the host."""
Vector = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Bytes: arrays that begin at a multiple of it are taken over by XLA without a copy."""


class Placed:
    """An array of NumPy's whose address was looked up, as asking NumPy takes a microsecond; of an empty one it is 0."""

    __slots__ = ("address", "array")

    def __init__(self, array: Vector) -> None:
        """Of a contiguous array."""
        self.array, self.address = array, of_numpy(array) if array.size else 0


def of_numpy(array: Vector | Placed) -> int:
    """The address of an array of NumPy's."""
    place: int = array.address if isinstance(array, Placed) else array.ctypes.data
    return place


class Held:
    """Arrays that live as long as this does, and their addresses.

    Attributes:
        arrays: contiguous ones.
        vector: int64 [n].
    """

    __slots__ = ("arrays", "vector")

    def __init__(self, arrays: Sequence[Array], address: Address = of_numpy) -> None:
        """Of arrays whose addresses never change."""
        self.arrays = tuple(arrays)
        self.vector = np.fromiter(map(address, self.arrays), np.int64, len(self.arrays))


class Call(Protocol):
    """Calls compiled code with addresses."""

    def __call__(self, kernel: Callable[..., Any], arrays: Sequence[Array], *rest: Any) -> Any:
        """Call with the address of each array, which live until the kernel returns, and the rest."""
        ...


class StorageCall(Protocol):
    """Likewise, of a storage."""

    def __call__(
        self, kernel: Callable[..., Any], arrays: Sequence[Array], storage: Held, items: Sequence[Array], *rest: Any
    ) -> Any:
        """Call with the address of each array, the vector of a storage, one of those of items, and the rest."""
        ...


def caller(address: Address) -> Call:
    """The way to call kernels with arrays of one library."""

    def call(kernel: Any, arrays: Any, *rest: Any) -> Any:
        return kernel(*map(address, arrays), *rest)

    return call


def storage_caller(address: Address) -> StorageCall:
    """Likewise those that read and write items.

    The vectors are made for each call: in one that is used again, another thread would write what it calls with.
    """
    int64 = np.dtype(np.int64)
    nothing = np.empty(0, int64)

    def call(kernel: Any, arrays: Any, storage: Any, items: Any, *rest: Any) -> Any:
        places = np.fromiter(map(address, items), int64, len(items)) if items else nothing
        return kernel(*map(address, arrays), storage.vector, places, *rest)

    return call


def aligned(make: Callable[..., Vector], nbytes: int) -> Vector:
    """Bytes whose address is a multiple of `ALIGNMENT`.

    Args:
        make: an array of NumPy's, of a size and dtype.
        nbytes: how many.
    """
    block = make(nbytes + ALIGNMENT, np.uint8)
    first = -block.ctypes.data % ALIGNMENT
    return block[first : first + nbytes]
