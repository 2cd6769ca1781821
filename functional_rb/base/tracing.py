"""What `torch.compile` is told of functions that it meets."""

from __future__ import annotations

from typing import TypeVar

Function = TypeVar("Function")


def constant(function: Function) -> Function:
    """Let torch.compile call a function while it traces, and take the result for a constant.

    The mark is that of `torch.compiler.assume_constant_result`, which first imports the compiler: a third of the time
    that importing this package would take, also in the many processes that compile nothing.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # any function takes attributes
    return function
