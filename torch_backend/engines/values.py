"""Values of specs on torch, as `functional_rb.lib.Lib` names these functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from functional_rb.base.arrays import BackendArray, DeviceLike, NumpyArray
from functional_rb.specs import ArraySpec, values
from functional_rb.specs.values import Outline
from torch_backend.arrays import ops, random
from torch_backend.compiling.opaque import traceable, traceable_unit
from torch_backend.engines.execute import inside as inside
from torch_backend.engines.execute import numbers


def outline(spec: object, who: str) -> Outline:
    """The outline of a spec, cached; made anew while tracing, where the id of an object is not known."""
    return Outline.of(spec, who) if torch.compiler.is_compiling() else values.cached_outline(spec, who)


def draw(
    outline: Outline, key: torch.Tensor, n: int, device: DeviceLike, mask: torch.Tensor | None
) -> dict[int, torch.Tensor]:
    """Random values [n, *shape], by position of the leaf."""
    random.check_key(key)
    outline = traceable(outline)
    place = key.device if device is None else torch.device(device)
    bits = numbers(key, (n, values.words(outline, mask is not None)), place)
    return values.draw(ops.OPS, outline, bits, mask if mask is None else mask.to(place))


def nearest(outline: Outline, leaves: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The nearest values of the domain, by position of the leaf."""
    return values.nearest(ops.OPS, traceable(outline), leaves)


def encoded(unit: ArraySpec, value: torch.Tensor) -> torch.Tensor:
    """What is stored for an environment's numbers: `ArraySpec.encoded`."""
    return traceable_unit(unit).encoded(ops, value)


def decoded(unit: ArraySpec, x: torch.Tensor) -> torch.Tensor:
    """The numbers of an environment for stored values: `ArraySpec.decoded`."""
    return traceable_unit(unit).decoded(ops, x)


def is_traced(leaf: BackendArray) -> bool:
    """Whether torch.compile or `torch.func.vmap` is tracing a leaf."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(leaf)


def to_numpy(array: torch.Tensor) -> NumpyArray:
    """A tensor in NumPy, without a copy where it lies on the host; bfloat16, which NumPy lacks, as float32."""
    array = array.detach().cpu()
    return array.float().numpy() if array.dtype == torch.bfloat16 else array.numpy()
