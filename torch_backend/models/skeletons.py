"""A module with other tensors in place of its own, beside which the module stays as it is.

`torch.func.functional_call` puts the tensors into the module itself for as long as the call takes, where other threads
that call the module find them; and what is computed again for gradients finds the module's own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch

# Which give what the module inside gives.
_NEUTRAL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
_TENSORS = ("_parameters", "_buffers")


def with_tensors(module: torch.nn.Module, tensors: Mapping[str, object]) -> torch.nn.Module:
    """A module like another one, of the same tensors but for those that are given by their names.

    Memory is taken for the objects alone. Programs compiled by torch.compile, which know the module's own tensors, are
    left out, and so is what spreads rows over devices.

    Args:
        module: which stays as it is.
        tensors: by the names of `module.named_parameters()` and `named_buffers()`. Of tied ones one is enough.

    Raises:
        ValueError: for a name that the module does not have, and a tensor of another shape.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    placed, instead = _places(module, modules, tensors)
    # Without `__init__`, which would make parameters, and take their memory.
    new = {id(x): x.__class__.__new__(x.__class__) for x in modules.values() if _seen_through(x) is None}
    for x in modules.values():
        if _seen_through(x) is not None:
            new[id(x)] = new[id(_last(x))]
    for x in {id(x): x for x in modules.values() if _seen_through(x) is None}.values():
        state = {name: _rebound(value, new) for name, value in x.__dict__.items() if name != "_compiled_call_impl"}
        for kind in _TENSORS:
            tensors_now = x.__dict__[kind].items()
            state[kind] = {name: placed.get((id(x), name), instead.get(id(t), t)) for name, t in tensors_now}
        new[id(x)].__dict__.update(state)
    return new[id(module)]


def _places(
    module: torch.nn.Module, modules: Mapping[str, torch.nn.Module], tensors: Mapping[str, Any]
) -> tuple[dict[tuple[int, str], Any], dict[int, Any]]:
    """The tensors by module and name in it, and by the tensor in whose place they are."""
    placed = {}
    instead = {}
    for name, tensor in tensors.items():
        prefix, _, leaf = name.rpartition(".")
        owner = modules.get(prefix)
        replaced = (
            None
            if owner is None
            else next((owner.__dict__[kind].get(leaf) for kind in _TENSORS if leaf in owner.__dict__[kind]), None)
        )
        if owner is None or replaced is None:
            some = ", ".join(repr(x) for x, _ in zip(dict(module.named_parameters()), range(2), strict=False))
            raise ValueError(
                f"params: {type(module).__name__} has no tensor {name!r}; expected names of its named_parameters(), "
                f"such as {some}"
            )
        if tuple(tensor.shape) != tuple(replaced.shape):
            raise ValueError(f"params: {name!r}: expected shape {list(replaced.shape)}, got {list(tensor.shape)}")
        placed[id(owner), leaf] = instead[id(replaced)] = tensor
    return placed, instead


def _seen_through(module: torch.nn.Module) -> torch.nn.Module | None:
    """The module inside of one that does nothing but call it."""
    inner = module._modules.get("_orig_mod")
    if isinstance(module, _NEUTRAL):
        inner = module.module
    return inner


def _last(module: torch.nn.Module) -> torch.nn.Module:
    inner = _seen_through(module)
    return module if inner is None else _last(inner)


def _rebound(value: Any, new: Mapping[int, torch.nn.Module], depth: int = 4) -> Any:
    """A value with the new modules in place of the old ones; the same if it has none.

    Functions that were put onto a module, such as another `forward`, know it by what they are bound to or closed over.
    """
    if isinstance(value, torch.nn.Module):
        return new.get(id(value), value)
    # An end to containers that hold each other.
    if not depth:
        return value
    again = functools.partial(_rebound, new=new, depth=depth - 1)
    if isinstance(value, types.MethodType):
        owner = again(value.__self__)
        return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
    if isinstance(value, types.FunctionType):
        return _closed(value, again)
    if isinstance(value, functools.partial):
        before = value.func, list(value.args), dict(value.keywords)
        function, arguments, named = map(again, before)
        if _same(before, (function, arguments, named)):
            return value
        partial = functools.partial(function, *arguments, **named)
        partial.__dict__.update(again(value.__dict__))  # such as `__wrapped__`, which hooks call
        return partial
    if isinstance(value, dict) and value:
        held = {name: again(x) for name, x in value.items()}
        return value if _same(value.values(), held.values()) else type(value)(held)
    if type(value) in (list, tuple):
        elements = [again(x) for x in value]
        return value if _same(value, elements) else type(value)(elements)
    return value


def _closed(function: types.FunctionType, again: Callable[[object], object]) -> types.FunctionType:
    """A function over other cells, where these have modules in them."""
    cells = function.__closure__ or ()
    new = [_cell(cell, again) for cell in cells]
    if _same(cells, new):
        return function
    closure = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(new)
    )
    closure.__kwdefaults__ = function.__kwdefaults__
    closure.__dict__.update(cast("dict[str, object]", again(function.__dict__)))
    return closure


def _cell(cell: types.CellType, again: Callable[[object], object]) -> types.CellType:
    try:
        content = cell.cell_contents
    except ValueError:  # not filled yet
        return cell
    new = again(content)
    return cell if new is content else types.CellType(new)


def _same(parts: Iterable[object], new: Iterable[object]) -> bool:
    return all(x is y for x, y in zip(parts, new, strict=True))
