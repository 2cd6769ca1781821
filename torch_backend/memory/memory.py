"""The memory of torch's states; see `functional_rb.versions.memory`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from functional_rb.base.arrays import NumpyArray
from functional_rb.core.draft import Arrays
from functional_rb.versions import memory
from torch_backend.arrays import modes, ops, pages
from torch_backend.memory import streams
from torch_backend.memory.shipping import part


class Memory(memory.Memory):
    """Tensors.

    Attributes:
        sharing: by which of torch's strategies they lie in memory that processes share; None if they do not.
        stream: the number of the stream for which the version chain has found the arrays, and the counters of the state
            that it works on, in order; None where it has to see to that.
    """

    __slots__ = ("_last", "sharing", "stream")

    ops = ops.OPS

    def __init__(self, arrays: Arrays, pinned: bool = False) -> None:
        super().__init__(arrays, pinned)
        self.sharing: str | None = None
        self.stream: int | None = None
        self._last = streams.current(self.rows)  # the stream that worked on the arrays last

    def join_stream(self) -> None:
        now = streams.current(self.rows)
        if now is not None and now != self._last:
            if self._last is not None:
                streams.cross(self._last, now, self.arrays)
            self._last, self.stream = now, None

    def state_arrays(self, counters: torch.Tensor) -> Arrays:
        """The arrays, and the counters for as long as torch's current stream reads them."""
        streams.keep(counters)
        return super().state_arrays(counters)

    def copy(self) -> Self:
        if self.files is not None and torch.compiler.is_compiling():
            raise ValueError(
                "under torch.compile a Memmap buffer is written in place alone, as its files cannot be copied there; "
                "call add_, update_ or sample_"
            )
        # The copy may be written to in and outside of inference mode.
        with modes.outside_inference():
            return super().copy()

    def wait_for_draws(self) -> None:
        # `torch.compile` traces no locks.
        if not torch.compiler.is_compiling():
            super().wait_for_draws()

    @staticmethod
    def taken(array: Any) -> torch.Tensor:
        # A tensor in the same memory, which is read on the stream that torch uses now.
        if isinstance(array, np.ndarray):
            return torch.from_numpy(array)
        streams.keep(array)
        return array

    @staticmethod
    def as_numpy(array: torch.Tensor | NumpyArray) -> NumpyArray:
        numbers: NumpyArray = array if isinstance(array, np.ndarray) else array.cpu().numpy()
        return numbers

    @staticmethod
    def part_of(holder: torch.Tensor, dtype: str, begin: int, shape: tuple[int, ...]) -> torch.Tensor:
        """A part of an array of bytes on a GPU, as an array of a dtype by its name, in the same memory."""
        return part(holder, begin, ops.DTYPES[dtype], shape)

    @staticmethod
    def clone(array: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or not Memory.is_plain_array(array):
            return array.clone()
        room = pages.large(array.shape, array.dtype, array.device)
        return array.clone() if room is None else room.copy_(array)

    @staticmethod
    def is_plain_array(array: torch.Tensor) -> bool:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(array)
        return type(array) is torch.Tensor and not wrapped and array.is_contiguous()

    @property
    def is_ordinary(self) -> bool:
        return all(array.device.type == "cpu" for array in self.arrays) and super().is_ordinary
