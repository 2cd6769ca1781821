"""What differs between the versions of torch that this library runs on, and nothing else.

Each piece says from which version of torch on it can be replaced by what torch itself has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Final, ParamSpec, TypeVar

from functional_rb.base import extras

# The oldest torch that the tests run on, see docs/install.md.
OLDEST: Final = "2.8"

extras.check_version(extras.imported("torch", "torch_backend"), OLDEST, "torch_backend")

import torch  # noqa: E402  # one that is missing or too old has been refused

P = ParamSpec("P")
R = TypeVar("R")

# From this version on, `torch.compile` traces the functions of the package whole; before, `untraced` refuses that.
TRACED: Final = "2.12"

# From this version on, `torch.func` maps over buffers; before, `check_mapped` refuses that.
MAPPED: Final = "2.13"

# From this version on, models of transformers generate with its caches what they do by themselves, even
# `StaticCache`; before, `check_transformers` refuses them. Tokenizers and chat templates are read from older ones
# too.
TRANSFORMERS: Final = "5.18"

IS_TRACED: Final = extras.is_version(torch, TRACED)
IS_MAPPED: Final = extras.is_version(torch, MAPPED)
# What is said where this torch, or transformers, is too old for something.
REFUSED: Final = (
    *(f"from torch {version} on" for version, can in ((TRACED, IS_TRACED), (MAPPED, IS_MAPPED)) if not can),
    f"text.causal_lm needs transformers {TRANSFORMERS} or newer",
)


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """A function that `torch.compile` calls as it is, and refuses, with the version that can, to trace whole.

    To mark it, torch imports its compiler, which takes about a second.
    """
    refusing = torch.compiler.disable(
        function,
        reason=f"{function.__name__} of torch_backend is traced whole from torch {TRACED} on: leave "
        f"fullgraph=True out, call it outside of the compiled function, or {extras.newer('torch', TRACED)}",
    )

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:  # what torch disables it compiles when it is given that itself
        return refusing(*args, **kwargs)

    return called


def untrace_all(package: ModuleType) -> None:
    """Let `torch.compile` call the public functions of a package, and of the modules that it offers."""
    for name in package.__all__:
        member = getattr(package, name)
        if isinstance(member, ModuleType):
            for inner, function in list(vars(member).items()):
                if isinstance(function, FunctionType) and inner[0] != "_":
                    setattr(member, inner, untraced(function))
        elif isinstance(member, FunctionType):
            setattr(package, name, untraced(member))


def check_transformers(transformers: ModuleType) -> None:
    """Refuse models of a transformers whose caches work otherwise.

    Raises:
        ImportError: with the version that can.
    """
    extras.check_version(transformers, TRANSFORMERS, "text.causal_lm")


def check_mapped(function: str) -> None:
    """Refuse to be mapped over: `view` with a dtype has no batching rule before torch 2.13.

    Raises:
        NotImplementedError: with the version that can.
    """
    top: Any = torch._C._functorch.peek_interpreter_stack()  # None outside of any transform, which torch's stubs forget
    if top is not None and top.key() == torch._C._functorch.TransformType.Vmap:
        raise NotImplementedError(
            f"{function}: torch.func maps over it from torch {MAPPED} on, and {torch.__version__} is installed; "
            f"call {function} for one state after the other, or {extras.newer('torch', MAPPED)}"
        )


def all_gather_single(into: torch.Tensor, tensor: torch.Tensor, group: object) -> None:
    """Put the tensors of all processes of a group one behind the other. By this name from torch 2.13 on."""
    gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor
    gather(into, tensor, group=group)
