"""Where arrays lie, for compiled code, which knows of nothing else.

An address is good as long as its array lives, and nothing tells Python that it is in use: of `f(x.copy().ctypes.data)`
the copy is freed before `f` begins, and `f` lets other threads allocate. So this is the only module that asks arrays
for their addresses, and it hands none of them on without what keeps the array alive.

Nor does an address tell which memory it is of: by that of an array on an accelerator a kernel would write to whatever
the host has there, or end the process. So a library's way of asking (`Addresses`) refuses arrays that lie elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array
from functional_rb.structures.row_layout import Layout

Addresses = Callable[[Sequence[Any]], Iterable[int]]
"""Where arrays of some library lie in the memory of the host; it raises an error if one of them lies elsewhere."""
Vector = np.ndarray[Any, Any]
LINE = 64
"""Bytes of a line of the cache."""


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


class Piece(NamedTuple):
    """What lies in one piece of memory.

    Attributes:
        dtype: a struct with a field for each array.
        places: where these begin in it, each on a line of the cache.
    """

    dtype: np.dtype[Any]
    places: list[int]


def piece(kinds: Sequence[tuple[str, tuple[int, ...]]]) -> Piece:
    """A piece of arrays by their dtypes and shapes."""
    formats = [(numpy_ops.dtype_of(name), shape) for name, shape in kinds]
    sizes = [-(-dtype.itemsize * math.prod(shape) // LINE) * LINE for dtype, shape in formats]
    *places, nbytes = itertools.accumulate(sizes, initial=0)
    names = [str(k) for k in range(len(formats))]
    return Piece(np.dtype({"names": names, "formats": formats, "offsets": places, "itemsize": nbytes}), places)


def made_together(kinds: Piece) -> tuple[list[Vector], int]:
    """Arrays in one piece of NumPy's memory, made faster than one by one, and its address.

    To be taken over by XLA without a copy, they have to lie on lines of the cache.
    """
    memory = np.empty(kinds.dtype.itemsize + LINE, np.uint8)
    place = of_numpy(memory)
    skipped = -place % LINE
    whole: Any = np.ndarray((), kinds.dtype, memory, skipped)
    return [whole[name] for name in kinds.dtype.names or ()], place + skipped


@functools.lru_cache(maxsize=1024)
def _piece_of_items(layout: Layout, batch: int) -> Piece:
    return piece([(leaf.dtype, (batch, *leaf.shape)) for leaf in layout.leaves])


class Block:
    """Room for items in one piece of NumPy's memory: made, and found, faster than an array for each leaf.

    Attributes:
        arrays: [batch, *shape] of each leaf.
        vector: where they lie, int64 [leaves].
    """

    __slots__ = ("arrays", "vector")

    def __init__(self, layout: Layout, batch: int) -> None:
        """Take the memory."""
        kinds = _piece_of_items(layout, batch)
        self.arrays, first = made_together(kinds)
        self.vector = np.fromiter([first + place for place in kinds.places], np.int64, len(kinds.places))


class Rows:
    """Arrays of as many rows each, which calls of compiled code write one after the other, each some of the rows."""

    __slots__ = ("_addresses", "_arrays", "_outputs", "_places", "_widths")

    def __init__(self, outputs: Sequence[Array], items: Sequence[Array], widths: Vector, addresses: Addresses) -> None:
        """Take arrays that compiled code takes one by one, those of items, and the bytes of a row of each, int64."""
        self._arrays, self._outputs, self._widths, self._addresses = [*outputs, *items], len(outputs), widths, addresses
        self._places = np.fromiter(addresses(self._arrays), np.int64, len(self._arrays))

    def call(self, first: int, kernel: Any, arrays: Sequence[Array], storage: Held, *rest: Any) -> Any:
        """Call with the address of each array, those of a row of the outputs, of a storage, of the items, the rest."""
        places = self._places + first * self._widths
        outputs = places[: self._outputs].tolist()
        return kernel(*self._addresses(arrays), *outputs, storage.vector, places[self._outputs :], *rest)


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

    def placed(self, array: Array, /) -> Any:
        """An array for which `addresses` will be asked again and again, as it takes it; that of an empty one is 0."""
        ...

    def empty(self, shape: Any, /, *, dtype: Any) -> Array:
        """An array that nothing is in yet, of one of the library's own dtypes; a number is the shape of a vector."""
        ...

    def of_numpy(self, arrays: Sequence[Vector], /) -> list[Array]:
        """Arrays of the library's own dtypes in the memory of NumPy's."""
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
        items: Sequence[Array] | Block,
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
        if isinstance(items, Block):
            places = items.vector
        else:
            places = np.fromiter(addresses(items), int64, len(items)) if items else nothing
        return kernel(*addresses(arrays), storage.vector, places, *rest)

    return call
