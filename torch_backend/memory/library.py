"""What the engine has to know of torch; see `functional_rb.versions.library`."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import torch

from functional_rb.base.arrays import ArrayLike, BackendArray
from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.strategy import Selection
from functional_rb.native.switch import HAVE_KERNELS as HAVE_KERNELS
from functional_rb.native.switch import switch
from functional_rb.ops.part_kernels import NONE, Table
from functional_rb.storage.placement import Placement
from functional_rb.structures import frame_ring
from functional_rb.versions import memory as versioned
from functional_rb.versions.library import Library
from torch_backend.arrays import modes, ops, random
from torch_backend.arrays.convert import check_known, is_batched, number
from torch_backend.memory.gpus import Gpus
from torch_backend.memory.memory import Memory
from torch_backend.memory.shipping import PINS, Room, shipped, stacked_there

_compiling, _transforms = torch.compiler.is_compiling, torch._C._functorch.peek_interpreter_stack


class Torch(Library):
    """Torch, on any device and while torch.compile traces."""

    ops = ops.OPS
    memory_type = Memory
    placement = Placement
    gpus: Gpus | None = None
    # A module with `TABLE` and `draws`, the kernels as eager functions call them, where there are any.
    kernels: ModuleType
    # A module with `TABLE` and `draws`, the kernels as torch.compile sees them, where there are any.
    operations: ModuleType
    # A module with `TABLE`, the launches for arrays on GPUs.
    on_gpu: ModuleType
    # A module with `draw`, which draws from mixtures by launches; None where there are none.
    mixing: ModuleType | None = None
    # These are entered often, so they are the functions themselves.
    is_tracing = staticmethod(_compiling)
    is_batched = staticmethod(is_batched)
    check_key = staticmethod(random.check_key)
    split = staticmethod(random.split)

    def core(self) -> AbstractContextManager[object]:
        return modes.without_gradients()

    def making(self) -> AbstractContextManager[object]:
        # Torch forbids to write to what was made in inference mode.
        return modes.outside_inference()

    def standing_in(self, memory: versioned.Memory) -> Table:
        # Part kernels on the CPU; launches on a GPU with kernels, over which nobody maps; operations while tracing.
        if _compiling():
            return self._traced(memory)
        table: Table = NONE
        if switch.on and self.gpus is not None and self.chain_now() is not None and self.gpus.has(memory):
            table = self.on_gpu.TABLE
        elif switch.on and HAVE_KERNELS and memory.is_ordinary:
            table = self.kernels.TABLE
        return table

    def _traced(self, memory: versioned.Memory) -> Table:
        """The kernels as operations, for a memory on the CPU, or on a GPU, over which nobody maps."""
        if not _may_trace_kernels() or not memory.fits:
            return NONE
        on_gpu = self.gpus is not None and self.gpus.traces(memory.arrays)
        table: Table = self.operations.ON_GPU if on_gpu else self.operations.TABLE
        return table if on_gpu or all(map(_is_on_cpu, memory.arrays)) else NONE

    def natively(self, function: str, *arguments: object) -> Any:
        chain = self.chain_now()
        return NotImplemented if chain is None else getattr(chain, function)(*arguments)

    def chain_now(self, state: object = None) -> Any:
        return None if _compiling() or _transforms() is not None else self.chain

    def random_bits(self, key: torch.Tensor, shape: tuple[int, int], memory: versioned.Memory) -> torch.Tensor:
        return numbers(key, shape, memory.rows.device)

    def number(self, x: object, memory: versioned.Memory, dtype: str = "float32") -> torch.Tensor:
        return number(x, memory.rows.device, ops.DTYPES[dtype])

    def received(self, array: object, memory: versioned.Memory, target: torch.device | None) -> object | torch.Tensor:
        # What a caller gives, on the memory's device if it is on the target or, as NumPy's arrays are, on the CPU.
        if not isinstance(array, torch.Tensor) or not (array.device == target or array.device.type == "cpu"):
            return array
        return array.to(memory.rows.device)

    def drawn(self, state: Any, key: torch.Tensor, batch: int, beta: ArrayLike, wanted: torch.Tensor | None) -> Any:
        # By the version chain, where rows that go to CUDA whole are drawn to pinned memory.
        if self.chain_now() is None:
            return NotImplemented
        memory = state.own()
        check_known(beta, memory.rows.device)
        room = None if wanted is not None else self.room(state.spec, batch, state._target)
        # Keys are made on torch's default device.
        by = key.to("cpu") if memory.is_ordinary else key
        if room is not None and room.by_bits:
            by = self.random_bits(key, state.spec.draw_shape(batch), memory)
        return self.natively("draw", state, by, batch, beta, room, wanted, self.reads_frames(state))

    def room(self, spec: BufferSpec, batch: int, target: torch.device | None) -> Room | None:
        # Pinned memory beside CUDA, for rows that are read whole.
        if target is None or _compiling() or target.type not in PINS:
            return None
        known = spec.known
        # Only what is sent as it was drawn: transforms read rows, and frames are put together, before they go.
        if not (known.plain and known.draws and batch):
            return None
        if self.chain_now() is None or spec.plan.objects:
            return None
        lead = spec.sampler.leading_shape(batch)
        return Room([((*lead, *leaf.shape), ops.DTYPES[leaf.dtype]) for leaf in spec.plan.layout.leaves])

    def sending(self, target: torch.device | None) -> Table:
        # Beside CUDA it is frames that are sent, each once, and not stacks of them.
        if target is None or _compiling() or target.type not in PINS:
            return NONE
        return {frame_ring.gathered: functools.partial(stacked_there, target, ops.OPS)}

    def sent(self, arrays: list[BackendArray], target: torch.device | None) -> list[BackendArray]:
        # One copy takes them to CUDA.
        if target is None:
            return arrays
        # What a function on the host is to read comes as arrays of NumPy.
        arrays = [torch.from_numpy(x) if isinstance(x, np.ndarray) and x.dtype != object else x for x in arrays]
        if _compiling():
            return [x.to(target, non_blocking=True) if isinstance(x, torch.Tensor) else x for x in arrays]
        return shipped(arrays, target)

    def sent_sample(
        self, leaves: list[BackendArray], selection: Selection, target: torch.device | None
    ) -> tuple[list[BackendArray], Selection]:
        # Rows may lie in pinned memory already.
        if target is None or not isinstance(leaves, Room):
            return super().sent_sample(leaves, selection, target)
        return leaves.shipped(target), super().sent_sample([], selection, target)[1]

    def placed(
        self, name: str, array: BackendArray, memory: versioned.Memory, target: torch.device | None
    ) -> torch.Tensor:
        # A checked input, contiguous; on another device than the state, and than its samples, it is refused.
        device = memory.rows.device
        if array.device != device:
            array = self.received(array, memory, target)
        if array.device != device:
            raise ValueError(
                f"{name}: expected a tensor on {device}, where the state is, got one on {array.device}; "
                f"move it by .to({str(device)!r})"
            )
        tensor: torch.Tensor = array if array.is_contiguous() else array.contiguous()
        return tensor

    def items(self, state: Any) -> list[torch.Tensor]:
        # Views of what is exported; of compact storage copies.
        spec = state.spec
        if spec.plan.frames is not None:
            return functions.items(ops.OPS, state.own().state_arrays(state._counters), spec)
        rows, wide = state.rows, state.wide
        views = []
        for leaf in spec.plan.layout.leaves:
            if leaf.wide is not None:
                views.append(wide[leaf.wide].view(ops.DTYPES[leaf.dtype]))
                continue
            dtype = ops.DTYPES[leaf.dtype]
            if not leaf.nbytes:
                # A leaf without elements has no place in the rows.
                views.append(rows.new_zeros((rows.shape[0], *leaf.shape), dtype=dtype))
                continue
            first = leaf.offset or 0
            piece = rows.view(torch.uint8)[:, first : first + leaf.nbytes] if rows.shape[1] else rows.view(torch.uint8)
            views.append(piece.view(dtype).unflatten(1, leaf.shape) if leaf.shape else piece.view(dtype)[:, 0])
        return views

    def make_room(
        self,
        memory: versioned.Memory,
        spec: BufferSpec,
        counters: torch.Tensor,
        batch: int,
        handles: torch.Tensor | None = None,
    ) -> None:
        # While tracing all of the room has to be there, and no checkpoint may need what is overwritten.
        if not _compiling():
            super().make_room(memory, spec, counters, batch, handles)
            return
        function = "add_" if handles is None else "update_"
        if handles is None and not memory.files.complete:
            raise ValueError(
                "add_: room for a Memmap buffer is reserved on the disk before rows are written, which torch.compile "
                "cannot trace; call add_ outside of the compiled function until the buffer is full, or use frb.Host()"
            )
        if memory.files.undo is not None:
            raise ValueError(
                f"{function}: this Memmap buffer is saved in its own directory, so what checkpoints need is kept "
                f"before it is overwritten, which torch.compile cannot trace; call {function} outside of the compiled "
                f"function, or save to another directory"
            )


def _is_on_cpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


# Whether what is traced may call kernels, as operations.
def _may_trace_kernels() -> bool:
    return HAVE_KERNELS and switch.on and not torch._C._are_functorch_transforms_active()


def numbers(key: torch.Tensor, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Uniform int32 in [0, 2^31) by a key, on a device."""
    if device.type == "cpu" and _compiling() and key.device.type == "cpu" and _may_trace_kernels():
        drawn: torch.Tensor = TORCH.operations.draws(key, *shape)
        return drawn
    if HAVE_KERNELS and device.type == "cpu" and not _compiling() and switch.on and not is_batched(key):
        drawn = TORCH.kernels.draws(key.to(device), *shape)  # keys are made on torch's default device
        return drawn
    return random.draws(key.to(device), *shape)


TORCH = Torch()
if HAVE_KERNELS and torch.version.cuda is not None:
    TORCH.gpus = Gpus()
