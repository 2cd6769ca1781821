"""Moving sampled tensors to a device while the caller computes on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from functional_rb.base.arrays import BackendArray
from torch_backend.arrays import devices
from torch_backend.arrays.convert import build_mapping
from torch_backend.memory.shipping import shipped

Sent = tuple[list[BackendArray], "torch.cuda.Event | None"]


class Transfer:
    """To one device. To CUDA copies go from pinned memory, on a stream beside the one that computes."""

    build_mapping = staticmethod(build_mapping)

    def __init__(self, device: object) -> None:
        found = devices.resolve(device)
        assert found is not None
        self._device = found
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def send(self, leaves: Sequence[object]) -> Sent:
        """Begin to copy; what is no tensor (Python objects) stays as it is."""
        if self._stream is None:
            return [leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], None
        # What was drawn on the device may still be under way on this thread's stream.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return shipped(leaves, self._device), self._stream.record_event()

    def receive(self, sent: Sent) -> list[object]:
        """What was sent, for the stream on which the caller computes: it waits for the copies, the caller does not."""
        moved, copied = sent
        if copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied)
            for tensor in moved:
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(stream)  # else the memory could be given to others as soon as it is let go
        return moved
