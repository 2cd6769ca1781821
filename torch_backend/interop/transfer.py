"""Moving sampled tensors to a device while the caller computes on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from functional_rb.base.arrays import BackendArray
from torch_backend.arrays import devices
from torch_backend.arrays.convert import build_mapping
from torch_backend.memory.shipping import PINS, shipped
from torch_backend.memory.state import State

Sent = tuple[list[BackendArray], "torch.Event | None"]


class Transfer:
    """To one device. To CUDA copies go from pinned memory, on a stream beside the one that computes."""

    build_mapping = staticmethod(build_mapping)

    def __init__(self, device: object) -> None:
        resolved = devices.resolve(device)
        assert resolved is not None
        self._device = resolved
        self._stream = torch.Stream(self._device) if self._device.type in PINS else None

    def drawn(self, sample: Callable[..., tuple[Any, Any]], state: Any, *arguments: object) -> tuple[Any, Any]:
        """What sampling gives; of rows in the host's memory straight on its way to CUDA, on that stream.

        But a function of items may use tensors of its own: these lie where samples are drawn, and are made on the usual
        stream.
        """
        if self._stream is None or not isinstance(state, State) or not state.spec.storage.on_host:
            return sample(state, *arguments)
        if state.spec.on_sample is not None:
            return sample(state, *arguments)
        # Keys may still be under way on this thread's stream, for which the other one would not wait.
        arguments = tuple(x.cpu() if isinstance(x, torch.Tensor) else x for x in arguments)
        with _on(self._stream):
            if state._target is not None:
                return sample(state, *arguments)
            after, drawn = sample(state.likewise(state._counters, self._device), *arguments)
        return after.likewise(after._counters, None) if state.spec.sampler.remembers else state, drawn

    def send(self, leaves: Sequence[object]) -> Sent:
        if self._stream is None:
            return [leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], None
        # What was drawn on the device may still be under way on this thread's stream.
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with _on(self._stream):
            return shipped(leaves, self._device), self._stream.record_event()

    def receive(self, sent: Sent) -> list[object]:
        """What was sent, for the stream on which the caller computes: it waits for the copies, the caller does not."""
        moved, copied = sent
        if copied is not None:
            stream = torch.accelerator.current_stream(self._device)
            stream.wait_event(copied)
            for tensor in moved:
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(stream)  # else the memory could be arguments to others as soon as it is let go
        return moved


@contextlib.contextmanager
def _on(stream: torch.Stream) -> Iterator[None]:
    """Have this thread give its work to a stream, which others may be in as well."""
    device, before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)
