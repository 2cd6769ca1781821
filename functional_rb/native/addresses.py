"""Where arrays lie, for compiled code, which knows of nothing else.

An address is good as long as its array lives, and nothing tells Python that it is in use: of `f(x.copy().ctypes.data)`
the copy is freed before `f` begins, and `f` lets other threads allocate. So this is the only module that asks arrays
for their addresses, and it hands none of them on without what keeps the array alive.

Nor does an address tell which memory it is of: by that of an array on an accelerator a kernel would write to whatever
the host has there, or end the process. So a library's way of asking (`Addresses`) refuses arrays that lie elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from functional_rb.ops.protocol import Array
from functional_rb.structures.row_layout import Layout

Addresses = Callable[[Sequence[Any]], Iterable[int]]
"""Where arrays of some library lie in the memory of the host; it raises an error if one of them lies elsewhere."""
Vector = np.ndarray[Any, Any]


class Placed:
    """An array of NumPy's whose address was looked up, as asking NumPy takes a microsecond; of an empty one it is 0."""

    __slots__ = ("address", "array")

    def __init__(self, array: Vector) -> None:
        """Take a contiguous array."""
        self.array, self.address = array, of_numpy(array) if array.size else 0


def of_numpy(array: Vector | Placed) -> int:
    """The address of an array of NumPy's: as its buffer begins there, which is sooner told than `array.ctypes`."""
    if isinstance(array, Placed):
        return array.address
    try:
        buffer: Any = array  # which Python 3.11 has no type for
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    except (TypeError, ValueError):  # it is read-only, or empty
        place: int = array.ctypes.data
        return place


def of_vectors(arrays: Sequence[Vector | Placed]) -> Iterable[int]:
    """The addresses of arrays of NumPy's, which lie in the memory of the host."""
    return map(of_numpy, arrays)


class Held:
    """Arrays that live as long as this does, and their addresses.

    Attributes:
        arrays: contiguous ones.
        vector: int64 [n].
    """

    __slots__ = ("arrays", "vector")

    def __init__(self, arrays: Sequence[Array], addresses: Addresses = of_vectors) -> None:
        """Take arrays whose addresses never change."""
        self.arrays = tuple(arrays)
        self.vector = np.fromiter(addresses(self.arrays), np.int64, len(self.arrays))


class Library(Protocol):
    """How arrays of a library are found and made.

    Attributes:
        addresses: where arrays lie in the CPU's memory.
        none: stands for an array that is not given; its address is 0.
    """

    addresses: Any
    none: Any

    @property
    def ops(self) -> Any:
        """A module of array primitives."""
        ...

    @property
    def dtypes(self) -> Mapping[str, Any]:
        """The library's dtypes by name."""
        ...

    def empty(self, shape: Any, /, *, dtype: Any) -> Array:
        """An array that nothing is in yet, of one of the library's own dtypes; a number is the shape of a vector."""
        ...

    def ready(self, array: Array, dtype: Any, /) -> Array:
        """An array of that dtype as a kernel reads it: contiguous. The core makes no other dtype."""
        ...

    def leaves(self, layout: Layout, batch: int, /) -> list[Array]:
        """For each leaf of a layout an array [batch, *shape] that nothing is in yet."""
        ...


class Call(Protocol):
    """Calls compiled code with addresses."""

    def __call__(self, kernel: Callable[..., Any], arrays: Sequence[Array], *rest: Any) -> Any:
        """Call with the address of each array, which live until the kernel returns, and the rest."""
        ...


class StorageCall(Protocol):
    """Calls compiled code with the addresses of a storage and of items too."""

    def __call__(
        self,
        kernel: Callable[..., Any],
        arrays: Sequence[Array],
        storage: Held,
        items: Sequence[Array],
        *rest: Any,
    ) -> Any:
        """Call with the address of each array, the vector of a storage, one of those of items, and the rest."""
        ...


def caller(addresses: Addresses) -> Call:
    """The way to call kernels with arrays of one library."""

    def call(kernel: Any, arrays: Any, *rest: Any) -> Any:
        return kernel(*addresses(arrays), *rest)

    return call


def storage_caller(addresses: Addresses) -> StorageCall:
    """The way to call kernels that read and write items.

    The vectors are made for each call: in one that is used again, another thread would write what it calls with.
    """
    int64 = np.dtype(np.int64)
    nothing = np.empty(0, int64)

    def call(kernel: Any, arrays: Any, storage: Any, items: Any, *rest: Any) -> Any:
        places = np.fromiter(addresses(items), int64, len(items)) if items else nothing
        return kernel(*addresses(arrays), storage.vector, places, *rest)

    return call
