"""The state of a buffer in the host's memory or in mapped files, in NumPy's arrays; and what the engine asks of NumPy.

Randomness comes as random bits. NumPy warns of what the core reckons with (NaN among priorities, say), and torch and
XLA do not: so the core is carried out without its warnings.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base.arrays import DeviceLike, PRNGKey
from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.native.switch import HAVE_KERNELS, switch
from functional_rb.ops import numpy_ops
from functional_rb.ops.numpy_ops import Vector
from functional_rb.ops.part_kernels import NONE
from functional_rb.ops.part_kernels import Table as Replacing
from functional_rb.ops.protocol import Ops
from functional_rb.storage.host_memory import Memory
from functional_rb.storage.mapped import MappedFiles
from functional_rb.storage.placement import Placement
from functional_rb.structures import row_layout
from functional_rb.versions import memory as versioned
from functional_rb.versions.engine import Engine
from functional_rb.versions.library import Library
from functional_rb.versions.object_table import held_objects
from functional_rb.versions.state import VersionedState

__all__ = ["ENGINE", "NUMPY", "Bits", "HostState", "NumPy", "init"]


class Bits(NamedTuple):
    """Random bits for one draw."""

    sampler: Vector  # int32 [rows, words]
    transforms: Vector | None = None  # int32 [rows, words]; None if no transform takes any


class NumPy(Library):
    """NumPy, for functions of the user's on arrays of another library if its primitives have a `call` for those."""

    memory_type = Memory
    placement = Placement

    def __init__(self, ops: Ops = numpy_ops.OPS) -> None:
        self.ops = ops

    @functools.cached_property
    def kernels(self) -> ModuleType:
        # Imported when first used, as there may be none.
        return importlib.import_module("functional_rb.storage.host_kernels")

    @property
    def may_use_kernels(self) -> bool:
        return HAVE_KERNELS and switch.on

    @functools.cached_property
    def chain(self) -> Any:
        # Imported when first used.
        return importlib.import_module("functional_rb.storage.host_chain").chain_of(self)

    def natively(self, function: str, *args: object) -> Any:
        # Random bits stand in for keys.
        if not self.may_use_kernels:
            return NotImplemented
        return super().natively(function, *[x.sampler if isinstance(x, Bits) else x for x in args])

    def standing_in(self, memory: versioned.Memory) -> Replacing:
        table: Replacing = self.kernels.TABLE if self.may_use_kernels and memory.is_ordinary else NONE
        return table

    def core(self) -> np.errstate:
        # The core relies on infinities and NaN, of which NumPy would warn.
        return np.errstate(all="ignore")

    making = core

    def check_key(self, key: PRNGKey) -> None:
        """Random bits were made of a key that has been checked."""

    def split(self, key: PRNGKey) -> tuple[PRNGKey, PRNGKey]:
        return key, key.transforms

    def random_bits(self, key: PRNGKey, shape: tuple[int, int], memory: versioned.Memory) -> Vector:
        bits: Vector = key.sampler if isinstance(key, Bits) else key
        return bits

    def number(self, x: Any, memory: versioned.Memory, dtype: str = "float32") -> Any:
        return np.dtype(dtype).type(x)

    def items(self, state: VersionedState) -> list[Vector]:
        memory, spec = state.own(), state.spec
        if spec.plan.frames is not None:
            return functions.items(self.ops, memory.state_arrays(state._counters), spec)
        leaves = row_layout.unpack(self.ops, spec.plan.layout, memory.rows, memory.wide)
        return [numpy_ops.copy(leaf) for leaf in leaves[: len(spec.plan.leaves)]]


NUMPY = NumPy()
# The functions on host states, for functions of the user's on NumPy's arrays.
ENGINE = Engine(NUMPY)


class HostState(VersionedState):
    """A replay buffer as a value, in NumPy's arrays; see `VersionedState`."""

    __slots__ = ()

    library = ENGINE.library

    @property
    def device(self) -> DeviceLike:
        """Where a backend brings what is sampled; None for where it has its arrays by default."""
        return self._target

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the arrays, which count as exported, and the Python objects that they stand for.

        What is unpickled has no device: that of another process, or machine, need not be there.
        """
        memory = self.exported_memory()
        return _unpickled, (memory.state_arrays(self.counters), self.spec, held_objects(memory))


def init(spec: BufferSpec, files: MappedFiles | None, device: DeviceLike = None) -> HostState:
    """An empty state, in mapped files if there are some; what is sampled goes to the device."""
    stored = None if files is None else (files.rows, files.wide, files.auxiliary)
    with np.errstate(all="ignore"):
        arrays = functions.init(numpy_ops.OPS, spec, stored=stored)
    return HostState.of_arrays(arrays, spec, pinned=False, target=device, files=files).note_fullest(0)


# A state of arrays, and the objects by the tokens in these.
def _unpickled(arrays: Arrays, spec: BufferSpec, held: Mapping[int, object] | None) -> HostState:
    return HostState.of_arrays(arrays, spec, objects=held)
