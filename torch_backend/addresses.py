"""Where tensors lie, for compiled code; see `functional_rb.native.addresses`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch

_on_host = operator.attrgetter("is_cpu")


def addresses(tensors: Sequence[torch.Tensor]) -> Iterable[int]:
    """The addresses of tensors in the host's memory.

    Raises:
        ValueError: if a tensor is elsewhere. Functions of the library see to that beforehand, this is for the case
            that one forgets it: the process would end, or go on with wrong bits.
    """
    if not all(map(_on_host, tensors)):
        devices = " and ".join(sorted({str(x.device) for x in tensors if not x.is_cpu}))
        raise ValueError(
            f"a kernel of the CPU: expected tensors on the CPU, got one on {devices}; please report that as "
            f"an error of functional_rb, and go on with frb.kernels(False)"
        )
    return map(torch.Tensor.data_ptr, tensors)
