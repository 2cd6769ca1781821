"""Language models inside of others: PEFT's, what torch.compile gives, DataParallel, and wrappers of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

# Under which names modules keep the one that they hand what they are given to, the surest first.
INNER = ("_orig_mod", "module", "pretrained_model", "base_model", "model")
POSITIONS = "position_ids"


def innermost(model: torch.nn.Module) -> torch.nn.Module:
    """The model of transformers inside of a module; the module itself if there is none."""
    last = model
    while not _is_own(last):
        inner = _inner(last)
        if inner is None:
            return model
        last = inner
    return last


def taken_by(model: torch.nn.Module) -> frozenset[str]:
    """The names of the arguments that reach the model inside.

    Raises:
        TypeError: where positions would be lost on the way, or it cannot be told whether they are.
    """
    names, takes_more = _signature(model.forward)
    known = _known(model, names, takes_more)
    if not takes_more and POSITIONS in known - names:
        raise TypeError(
            f"text.causal_lm: {_name(model)}.forward does not take {POSITIONS}, which {_name(innermost(model))} "
            f"needs where rows are padded; let it take and hand on **kwargs, or give the model inside"
        )
    return names | known if takes_more else names


def _known(model: torch.nn.Module, names: frozenset[str], takes_more: bool) -> frozenset[str]:
    if _is_own(model) and "input_ids" in (of_class := _signature(type(model).forward)[0]):
        return of_class  # also where another function was put onto it
    _check_adapters(model)
    inner = _inner(model)
    if inner is not None and (_is_own(innermost(inner)) or (takes_more and POSITIONS not in names)):
        return taken_by(inner)
    if takes_more and POSITIONS not in names:
        raise TypeError(
            f"text.causal_lm: {_name(model)}.forward does not tell whether it takes {POSITIONS}; name it there, or "
            f"give the model of transformers inside of it"
        )
    return frozenset()


def _name(model: torch.nn.Module) -> str:
    return type(model).__name__


def _is_own(model: torch.nn.Module) -> bool:
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel)


def _signature(function: Callable[..., object]) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(function).parameters
    more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return frozenset(parameters), more


def _inner(model: torch.nn.Module) -> torch.nn.Module | None:
    """The module that a wrapper hands on to: by one of the usual names, or the only one that it has."""
    children = dict(model.named_children())
    for name in INNER:
        if name in children:
            return children[name]
    return next(iter(children.values())) if len(children) == 1 else None


def _check_adapters(model: torch.nn.Module) -> None:
    adapters = getattr(model, "active_peft_config", None)
    if getattr(adapters, "is_prompt_learning", False):
        raise TypeError(
            f"text.causal_lm: {_name(model)} puts {type(adapters).__name__}'s tokens before each row and drops "
            f"positions; expected an adapter in the layers, such as LoRA"
        )
