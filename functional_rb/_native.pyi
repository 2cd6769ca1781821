"""The native code, see `functional_rb/native/src`: kernels that `kernels.cpp` lists, and handlers of others."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

INSTRUCTIONS: str
"""The set of instructions that was chosen for this processor."""
SOURCES: int
"""A number of the sources that the extension was compiled from."""
RECORDS: dict[str, str]
"""The names of the fields of each record, in their order, with commas between."""
TABLES: dict[str, bytes]
"""The tables of `ops.fixed_point`, as the native code has them."""
CALL_FIELDS: tuple[str, ...]
"""The fields of calls that forms name by their numbers."""
HANDLERS: dict[str, object]
"""Capsules of the functions that XLA calls, and Python by `Chain.call`."""
GPU_HANDLERS: dict[str, object]
"""Capsules of the functions that XLA calls on GPUs."""
GPU_ROOM: tuple[int, int, int, int, int, int]
GPU_MIXED: int
GPU_LANES_OF_GOALS: int
"""What a launch can name: leaves or arrays, numbers of a plan, of rings, of what is beside, of its plan, its arrays."""
GPU_KERNELS: tuple[str, ...]
"""The names of the kernels for GPUs, in which `frb_` stands before them."""

def seal(batch: object, arrays: object, records: tuple[object, ...], /) -> int:
    """A number of all that a program tells a handler beside what lies in its arrays, and of `SOURCES`.

    Args:
        batch: the first attribute of a call of XLA's behind the seal, int64.
        arrays: of operands, and then of results, how many there are, and of each the bytes of an element, the number of
            axes, and the shape, int64.
        records: the other attributes, int32.
    """

def gpu_driver(functions: tuple[int, ...], blocks: int, share: int, /) -> None:
    """Have kernels for GPUs launched, by addresses of CUDA's functions.

    These are `cuLaunchKernel`, `cuCtxGetCurrent`, `cuCtxPushCurrent`, `cuCtxPopCurrent`, `cuGetErrorString`; all but
    the first may be 0. A launch has so many blocks at most; one block has such a share of an update's rows.
    """

def gpu_device(number: int, context: int, kernels: tuple[int, ...], /) -> None:
    """Tell of the kernels that were loaded for a device, in the order of `GPU_KERNELS`."""

def gpu_scratch(handler: str, records: tuple[object, ...], /) -> int:
    """How many numbers of int32 a launch wants for the time of a call."""

class Setting:
    """Writes a value for the time of a `with` statement; what was read before is there after any interrupt."""

    def __new__(cls, read: Callable[[], Any], write: Callable[[Any], object], value: Any, /) -> Setting: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

class KnownBuffer:
    """A spec as kernels know it, by `functional_rb.native.chain.known_buffer`."""

    def __new__(
        cls,
        spec: object,
        beta: float,
        records: tuple[object, ...],
        leaves: tuple[tuple[str, object, int, int, tuple[int, ...]], ...],
        added: tuple[tuple[str, object, int, int, tuple[int, ...]], ...],
        told: tuple[tuple[str, object, int, int, tuple[int, ...]], ...],
        given: tuple[int, ...],
        names: tuple[str, ...],
        extras: tuple[tuple[str, int], ...],
        /,
    ) -> KnownBuffer: ...
    names: tuple[str, ...]
    """Of the arrays that additions write beside the rows of items."""

class Place:
    """Where the arrays of a memory lie."""

    def wait(self) -> None:
        """Wait until no draw reads them any more; hold the lineage's lock, so that none begins."""

class Saved:
    """What was in some slots before a write; its buffer is the memory that all of it lies in."""

    nbytes: int
    names: tuple[str, ...]
    counts: tuple[int, int, int, int]
    offsets: tuple[int, int, int, int, int, int, int, int, tuple[int, ...], int, int, tuple[int, ...]]
    holder: Any
    """On a GPU the array that all of it lies in, where there is no buffer; else None."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Chain:
    """`add`, `sample` and `update` of the usual case; `NotImplemented` for any other."""

    def __new__(cls, *args: object) -> Chain: ...
    def add(self, *args: object) -> Any: ...
    def add_(self, *args: object) -> Any: ...
    def write(self, *args: object) -> Any: ...
    def write_(self, *args: object) -> Any: ...
    def update(self, *args: object) -> Any: ...
    def update_(self, *args: object) -> Any: ...
    def sample(self, *args: object) -> Any: ...
    def sample_(self, *args: object) -> Any: ...
    def draw(self, *args: object) -> Any: ...
    def mixed(self, *args: object) -> Any: ...
    def place(
        self,
        known: KnownBuffer,
        storage: tuple[Any, ...],
        tree: Any,
        beside: tuple[Any, ...],
        makers: Any,
        rows_beside: tuple[Any, ...],
        /,
    ) -> Any: ...
    def call(
        self,
        handler: object,
        records: Any,
        operands: Any,
        results: Any,
        where: tuple[int, int] = ...,
        stream: int = ...,
        /,
    ) -> list[Any]:
        """Let a kernel read arrays and write to results, which are returned; None stands for one that is not given.

        For an array that is made, a result is (shape, DLPack's number of its kind, bits, NumPy's dtype or None). Where
        all arrays lie on a GPU, its type and number, as DLPack has them, and a stream are given.
        """
    def turn(self, on: bool, /) -> None: ...

class Lock:
    """What `shared.lock.FileLock` holds: `flock` on a file, and a lock for the threads of this process."""

    fd: int

    def hold(self, work: Callable[[], T], finish: Callable[[], object], /) -> T:
        """Work under the lock, and finish under it, even if the work raised."""
    def reset(self, fd: int, /) -> None:
        """Lock another descriptor, which its owner closes; no thread of this process has it."""

class Shared:
    """A buffer that processes share, as far as it is written to."""

    def share(self) -> None:
        """Take over its attributes."""
    def write(self, size: int, mask: Any, handles: Any, priorities: Any, leaves: Any, /) -> int:
        """Add so many rows, or update the items of handles, as many as the journal has room for.

        One whole write, under the lock. Returns SOUND, or what is damaged: then nothing is written.
        """

def __getattr__(name: str, /) -> Callable[..., Any]: ...
