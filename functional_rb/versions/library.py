"""What the engine has to know of an array library: torch, or NumPy."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, PRNGKey
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.strategy import Selection
from functional_rb.ops.part_kernels import NONE, Table
from functional_rb.ops.protocol import Ops
from functional_rb.versions.memory import Memory


class Library(abc.ABC):
    """An array library; what is not abstract is so for arrays in the host's memory that nobody traces.

    Attributes:
        ops: the primitives, which write in place.
        memory_type: the class of its memories.
        placement: says where the memories of a buffer belong.
        chain: the native version chain of its states, which does what is usual; None if there is none.
        gpus: what it has of GPUs, which the chain asks how arrays are made there; None where it has none.
    """

    ops: Ops
    memory_type: type[Memory]
    placement: Callable[[BufferSpec], object]
    chain: Any = None
    gpus: Any = None

    # ---------------------------------------------------------------- how functions are carried out

    def is_tracing(self) -> bool:
        """Whether a program is being traced that will be compiled: it knows neither locks nor kernels."""
        return False

    def is_batched(self, value: object) -> bool:
        """Whether a value stands for many, over which a function is mapped: kernels cannot read it."""
        return False

    def check_single(self, array: BackendArray, spec: BufferSpec) -> None:
        """Refuse tokens of Python objects that stand for many, as nobody can look at them."""
        if self.is_batched(array):
            raise TypeError(
                f"leaf {spec.plan.first_object!r}: Python objects cannot be batched by torch.func.vmap; "
                f"call the function for one state and one key after the other"
            )

    @abc.abstractmethod
    def core(self) -> AbstractContextManager[object]:
        """The context in which the core is carried out where it writes."""

    @abc.abstractmethod
    def making(self) -> AbstractContextManager[object]:
        """The context in which the core makes arrays that will be written to later."""

    @abc.abstractmethod
    def standing_in(self, memory: Memory) -> Table:
        """What stands in for functions of the core on a memory; while a program is traced also for whole ones."""

    def natively(self, function: str, *args: object) -> Any:
        """What native code makes of checked arguments; `NotImplemented` where they, or the state, are not usual."""
        return NotImplemented if self.chain is None else getattr(self.chain, function)(*args)

    def drawn(self, state: Any, key: PRNGKey, batch: int, beta: ArrayLike, wanted: BackendArray | None) -> Any:
        """What native code draws, as in `natively`; where the first `wanted` rows alone count, on GPUs alone."""
        return self.natively("draw", state, key, batch, beta, None, wanted, self.reads_frames(state))

    # ---------------------------------------------------------------- what comes and goes

    @abc.abstractmethod
    def check_key(self, key: PRNGKey) -> object:
        """Refuse a value that is no random key of the library."""

    @abc.abstractmethod
    def split(self, key: PRNGKey) -> Iterable[PRNGKey]:
        """Two keys from one: the first for the sampler, the other for transforms."""

    @abc.abstractmethod
    def random_bits(self, key: PRNGKey, shape: tuple[int, int], memory: Memory) -> BackendArray:
        """Uniform int32 in [0, 2^31) by a key, where the memory is."""

    @abc.abstractmethod
    def number(self, x: ArrayLike, memory: Memory, dtype: str = "float32") -> BackendArray:
        """A number as a scalar where the memory is, such as the exponent of the importance weights."""

    def placed(self, name: str, array: BackendArray, memory: Memory, target: DeviceLike) -> BackendArray:
        """A checked input as kernels take it, where the memory is; refused elsewhere."""
        return array

    def sending(self, target: DeviceLike) -> Table:
        """What stands in for functions that read a sample which nobody looks at before it is on the target."""
        return NONE

    def reads_frames(self, state: Any) -> bool:
        """Whether frames that items share are read where they lie, rather than sent before."""
        return state.spec.plan.frames is None or not self.sending(state._target)

    def sent(self, arrays: list[BackendArray], target: DeviceLike) -> list[BackendArray]:
        """Results, on their way to where samples go; Python objects, and what is None, stay as they are."""
        return arrays

    def sent_sample(
        self, leaves: list[BackendArray], selection: Selection, target: DeviceLike
    ) -> tuple[list[BackendArray], Selection]:
        """A sample, on its way to where samples go."""
        *numbers, extras = selection
        sent = self.sent([*leaves, *numbers, *extras.values()], target)
        numbers, more = sent[len(leaves) :][: len(numbers)], sent[len(leaves) + len(numbers) :]
        return sent[: len(leaves)], Selection(*numbers)._replace(extras=dict(zip(extras, more, strict=True)))

    @abc.abstractmethod
    def items(self, state: Any) -> list[BackendArray]:
        """The leaves of all of the storage, tokens of objects among them; nobody writes to them."""

    def make_room(
        self, memory: Memory, spec: BufferSpec, counters: BackendArray, batch: int, handles: BackendArray | None = None
    ) -> None:
        """Have room in the memory's files for adding a batch, or for rewriting what handles int32 [B] name.

        Raises:
            StorageFullError: if the disk has none.
        """
        if handles is None:
            memory.files.make_room(spec, memory.as_numpy(counters), batch)
        else:
            memory.files.prepare_handles(memory.as_numpy(handles))
