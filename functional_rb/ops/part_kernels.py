"""Functions of the core that kernels may stand in for, and the kernels that do.

A kernel takes what its function takes behind `ops` and returns the same bits. Which kernels are in force is said once,
by the backend that carries a function of the core out (`using`); nothing in the core asks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

from functional_rb.ops.protocol import Ops

P = ParamSpec("P")
R = TypeVar("R")

# Kernels by the function that each replaces.
Table = Mapping[Callable[..., Any], Callable[..., Any]]
NONE: Final[Table] = {}


class _InForce(threading.local):
    """The kernels in force in each thread; torch.compile traces reading it, as it does not a context variable."""

    def __init__(self) -> None:
        # Called in each thread: what is read is always the object's own, on which torch.compile then relies.
        self.table: Table = NONE


_in_force = _InForce()


class using:
    """Lets the kernels of a table do the work inside a `with` statement, in this thread.

    For tracing: an interrupt may come before the first line of `__exit__`, and then the table stays in force. What
    changes states is carried out by `carried_out`.
    """

    __slots__ = ("_before", "_table")

    def __init__(self, table: Table) -> None:
        self._table = table

    def __enter__(self) -> None:
        self._before = _in_force.table
        _in_force.table = self._table

    def __exit__(self, *exception: object) -> None:
        _in_force.table = self._before


def carried_out(table: Table, function: Callable[..., R], *args: object, **kwargs: object) -> R:
    """Call a function with the kernels of a table in force, in this thread, whatever interrupts it."""
    before = _in_force.table
    _in_force.table = table
    try:
        return function(*args, **kwargs)
    finally:  # before its first line no interrupt comes
        _in_force.table = before


def in_force() -> Table:
    """The kernels that do the work in this thread now."""
    return _in_force.table


class Replaceable(Protocol[P, R]):
    """A function of the core that a kernel may replace.

    Attributes:
        core: the function itself, which no kernel replaces (those that it calls may be).
    """

    core: Callable[Concatenate[Ops, P], R]

    def __call__(self, ops: Ops, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry it out by the kernel in force, if there is one."""


def replaceable(function: Callable[Concatenate[Ops, P], R]) -> Replaceable[P, R]:
    """Let a kernel replace a function of the core where one is in force."""

    @functools.wraps(function)
    def chosen(ops: Ops, *args: P.args, **kwargs: P.kwargs) -> R:
        table = _in_force.table
        kernel = table.get(chosen) if table else None
        return function(ops, *args, **kwargs) if kernel is None else kernel(*args, **kwargs)

    replaced = cast("Replaceable[P, R]", chosen)
    replaced.core = function
    return replaced


def call_users(ops: Ops, function: Callable[..., object], *arrays: object) -> Any:
    """Call a function of the user's, with no kernels in force: it may call public functions on other states."""
    if not _in_force.table:
        return ops.call(function, *arrays)
    return carried_out(NONE, ops.call, function, *arrays)
