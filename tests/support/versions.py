"""What versions of other libraries the tests have."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from packaging.version import Version


def is_version(library: ModuleType, asked: str) -> bool:
    """Whether it is of this version or of a newer one."""
    return Version(library.__version__) >= Version(asked)


def torch_traces() -> bool:
    """Whether `torch.compile` traces the library whole: from torch 2.12 on."""
    import torch

    return is_version(torch, "2.12")


def enable_x64(on: bool) -> AbstractContextManager[None]:
    """JAX's dtypes of 64 bits, on or off for a block: `jax.enable_x64` is there from JAX 0.8 on."""
    import jax
    from jax import experimental

    library: Any = jax if hasattr(jax, "enable_x64") else experimental
    found: AbstractContextManager[None] = library.enable_x64(on)
    return found
