"""What shared buffers need to know of a backend: how its arrays come in and go out, its random bits, its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from functional_rb.base.arrays import BackendArray, DeviceLike, NumpyArray, PRNGKey
from functional_rb.buffer.backend import Backend
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.ops.protocol import Ops
from functional_rb.specs import ArraySpec

Vector = NumpyArray


class Library(Protocol):
    """The arrays of one backend.

    Attributes:
        backend: what checks and converts arguments for states in the backend's own memory.
        ops: the array primitives.
    """

    backend: Backend
    ops: Ops

    def convert(self, leaf: object, expected: ArraySpec, name: str) -> BackendArray:
        """`Backend.convert`, of an array of NumPy without a copy."""

    def check_state(self, state: object, function: str) -> None:
        """Refuse what is no state, and to trace where that can be seen by now."""

    def check_key(self, key: object) -> Any:
        """Refuse what is no key."""

    def place(self, device: DeviceLike) -> Any:
        """Where the arrays of a state that is made now go; None for the library's default."""

    def to_numpy(self, array: object) -> Vector:
        """An array or a number as a contiguous array of NumPy, of the dtype as stored."""

    def from_numpy(self, arrays: Sequence[Vector], dtypes: Sequence[str], place: DeviceLike) -> list[BackendArray]:
        """Arrays of the dtypes named, of those of NumPy that nobody else has, of their dtypes as stored."""

    def random_bits(self, key: PRNGKey, shape: tuple[int, int]) -> Vector:
        """Uniform int32 in [0, 2^31), as the backend draws them for a state in its own memory."""

    def as_value(self, arrays: Arrays, spec: BufferSpec) -> State:
        """A state in the backend's own memory, of arrays that nobody else has."""
