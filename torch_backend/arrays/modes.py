"""Torch's modes for the time of a `with` statement.

`torch.no_grad` and `torch.inference_mode` are written in Python, so an interrupt may come amid their own lines, after
which the thread would go on without gradients. These are compiled where anything is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from functional_rb.native.switch import HAVE_KERNELS

if HAVE_KERNELS:
    from functional_rb._native import Setting

_compiling = torch.compiler.is_compiling


def without_gradients() -> AbstractContextManager[object]:
    """`torch.no_grad()`."""
    if not HAVE_KERNELS or _compiling():
        return torch.no_grad()
    return Setting(torch.is_grad_enabled, torch._C._set_grad_enabled, False)


def outside_inference() -> AbstractContextManager[object]:
    """`torch.inference_mode(False)`: what was made in inference mode may not be written to outside of it."""
    return torch.inference_mode(False) if _compiling() else torch._C._InferenceMode(False)
