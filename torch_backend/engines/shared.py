"""Buffers that processes share, on torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from functional_rb.base.arrays import DeviceLike, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.shared.engine import Engine
from functional_rb.shared.library import Library, Vector
from functional_rb.shared.state import SharedState as CoreSharedState
from torch_backend.arrays import devices, ops, random
from torch_backend.engines import execute
from torch_backend.memory.state import State

CPU = torch.device("cpu")


class _Library(Library):
    backend, ops = execute, ops.OPS

    convert = staticmethod(execute.convert)
    check_key = staticmethod(random.check_key)

    # Refuse to trace, too: what a compiled function did once, it would not do again.
    def check_state(self, state: object, function: str) -> None:
        checks.check_state(state, function)
        if torch.compiler.is_compiling():
            raise TypeError(
                f"{function}: torch.compile cannot trace a buffer that other processes write; call {function} outside "
                f"of the compiled function"
            )

    def place(self, device: DeviceLike) -> torch.device | None:
        return devices.resolve(device) or devices.target(None)

    def to_numpy(self, array: object) -> Vector:
        if not isinstance(array, torch.Tensor):
            return np.asarray(array)
        array = array.detach().to(CPU).contiguous()
        numbers: Vector = (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy()
        return numbers

    def from_numpy(
        self, arrays: Sequence[Vector], dtypes: Sequence[str], place: torch.device | None
    ) -> list[torch.Tensor]:
        known = ops.DTYPES
        tensors = [torch.from_numpy(x).view(known[dtype]) for x, dtype in zip(arrays, dtypes, strict=True)]
        return tensors if place is None else [x.to(place) for x in tensors]

    def random_bits(self, key: PRNGKey, shape: tuple[int, int]) -> Vector:
        bits: Vector = execute.numbers(random.check_key(key), shape, CPU).numpy()
        return bits

    def as_value(self, arrays: Arrays, spec: BufferSpec) -> State:
        return State.of_arrays(arrays, spec, pinned=False)


class SharedState(CoreSharedState):
    """A handle of a shared buffer, on torch."""

    library = _Library()


engine = Engine(SharedState)
