"""Functions of the core over tensors, as one piece of work: `Lib.carry_out` on torch.

They loop until nothing is left to do, which torch.compile cannot trace. So it sees each call as one operation, whose
results have the shapes that NumPy's operations give for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.base.tracing import constant
from functional_rb.native.switch import switch
from functional_rb.ops import numpy_ops, part_kernels
from torch_backend.arrays import modes, ops
from torch_backend.arrays.convert import is_batched
from torch_backend.memory.library import HAVE_KERNELS, TORCH

# The containers of a nest: None, the position of a tensor, or a class of tuples or lists and its parts.
Template = Any
# What makes a container of its parts, by the name of its class: a result that torch.compile knows has no classes.
_CLASSES: dict[str, Any] = {"tuple": lambda *parts: parts, "list": lambda *parts: list(parts)}


class _Call(NamedTuple):
    """A call that torch.compile sees as one operation.

    Attributes:
        key: what it is found by: function, what is static, the containers of the arguments, shapes and dtypes.
        template: the containers of the results.
        results: their shapes and dtypes.
    """

    key: tuple[Any, ...]
    template: Template
    results: list[tuple[tuple[int, ...], torch.dtype]]


# By number: what is traced may carry a number as a constant, but no object.
_CALLS: list[_Call] = []


def carry_out(
    function: Callable[..., object],
    static: object,
    owned: object,
    *operands: object,
    consume: tuple[object, str] | None = None,
) -> Any:
    """`function(ops, static, owned, *operands)`, by kernels on the CPU."""
    tensors: list[torch.Tensor] = []
    template = _apart((owned, operands), tensors)
    if not torch.compiler.is_compiling():
        if any(x.device != tensors[0].device for x in tensors):
            # What comes as NumPy's arrays is on the CPU; the map or forest, whose tensors are first, says where to.
            first = tensors[0].device
            tensors = [x.to(first) if x.device.type == "cpu" else x for x in tensors]
            owned, operands = _together(_named(template), tensors)
        _check_devices(tensors)
        if consume is None:
            return _now(function, static, _each(owned, _copied), operands)
        owned = _each(owned, torch.Tensor.contiguous)  # of what is a view kernels write to a copy
        # Before the first write, so that an interrupt amid it leaves no value that is half written.
        object.__setattr__(*consume, None)
        return _now(function, static, owned, operands)
    # Sizes that are symbols become numbers, to which torch.compile then binds the program: the results are of those
    # shapes.
    shapes = tuple([tuple([int(n) for n in x.shape]) for x in tensors])
    number = _number(function, static, template, shapes, tuple([x.dtype for x in tensors]))
    return _together(_template(number), _carried(number, tensors))


def _now(function: Callable[..., Any], static: Any, owned: Nest, operands: Nest) -> Any:
    tensors: list[torch.Tensor] = []
    _apart((owned, operands), tensors)
    with modes.without_gradients(), part_kernels.using(_kernels(tensors)):
        return function(ops, static, owned, *operands)


def _kernels(tensors: list[torch.Tensor]) -> part_kernels.Table:
    """Those for where all tensors lie, if there are any."""
    kernels: Any = None
    if HAVE_KERNELS and switch.on:
        if TORCH.gpus is not None and TORCH.gpus.works_on(tensors):
            kernels = TORCH.on_gpu
        elif all(x.device.type == "cpu" for x in tensors):
            kernels = TORCH.kernels
    return part_kernels.NONE if kernels is None else kernels.TABLE


def _check_devices(tensors: list[torch.Tensor]) -> None:
    if any(is_batched(x) for x in tensors):
        raise TypeError(
            "torch.vmap cannot map over functions of maps and forests; give all rows as one batch, [N * B, *shape]"
        )
    devices = sorted({str(x.device) for x in tensors})
    if len(devices) > 1:
        raise ValueError(f"expected all tensors on one device, got some on {' and some on '.join(devices)}; move them")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


# The nest with what a function makes of each tensor.
def _each(owned: object, function: Callable[[torch.Tensor], torch.Tensor]) -> Nest:
    tensors: list[torch.Tensor] = []
    template = _apart(owned, tensors)
    with modes.outside_inference(), modes.without_gradients():
        return _together(_named(template), [function(x) for x in tensors])


# The containers of a nest, whose tensors are put behind those that are there.
def _apart(nested: Nest, tensors: list[BackendArray]) -> Template:
    if nested is None:
        return None
    if isinstance(nested, (torch.Tensor, np.ndarray, np.generic)):
        tensors.append(nested)
        return len(tensors) - 1
    return (type(nested), tuple([_apart(child, tensors) for child in nested]))


def _together(template: Template, tensors: Sequence[BackendArray]) -> Nest:
    if template is None:
        return None
    if isinstance(template, int):
        return tensors[template]
    kind, children = template
    return _CLASSES[kind](*[_together(child, tensors) for child in children])


# The containers of a nest, with names in place of classes.
def _named(template: Template) -> Template:
    if template is None or isinstance(template, int):
        return template
    kind, children = template
    _CLASSES.setdefault(kind.__name__, kind)
    return kind.__name__, tuple([_named(child) for child in children])


@constant
def _number(*key: Any) -> int:
    for number, call in enumerate(_CALLS):
        if call.key == key:
            return number
    function, static, template, shapes, dtypes = key
    # Which containers and shapes a function gives does not depend on values, so it is tried on zeros of NumPy.
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    zeros = [numpy_ops.zeros(shape, name) for shape, name in zip(shapes, names, strict=True)]
    owned, operands = _together(_named(template), zeros)
    arrays: list[BackendArray] = []
    results = _apart(function(numpy_ops, static, owned, *operands), arrays)
    _CALLS.append(_Call(key, _named(results), [(x.shape, ops.DTYPES[x.dtype.name]) for x in arrays]))
    return len(_CALLS) - 1


@constant
def _template(number: int) -> Template:
    return _CALLS[number].template


# A call, none of whose results shares memory with its arguments.
@torch.library.custom_op("functional_rb::carry_out", mutates_args=())
def _carried(number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    function, static, template, *_ = _CALLS[number].key
    _check_devices(tensors)
    owned, operands = _together(_named(template), tensors)
    results: list[torch.Tensor] = []
    _apart(_now(function, static, _each(owned, _copied), operands), results)
    taken = {x.untyped_storage().data_ptr() for x in tensors}
    return [x.clone() if x.untyped_storage().data_ptr() in taken else x.contiguous() for x in results]


@_carried.register_fake
def _described(number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    device = tensors[0].device
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in _CALLS[number].results]
