"""Whether compiled kernels do the work where they can: they give the same bits, so this is a matter of speed alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from functional_rb.base.extras import is_there

VARIABLE: Final = "FUNCTIONAL_RB_NATIVE"

# Whether the extension was compiled when the package was installed.
HAVE_KERNELS: Final = is_there("functional_rb._native")

# How to get it where it is missing.
REMEDY: Final = "install functional_rb where there is a C++ compiler, or run tools/native_build.py in a checkout"


class Switch:
    """The switch for compiled kernels in this process.

    Attributes:
        on: whether to use kernels.
    """

    def __init__(self) -> None:
        setting = os.environ.get(VARIABLE) or "1"
        if setting not in ("0", "1"):
            raise ValueError(f"{VARIABLE}: expected 0 or 1, got {setting!r}; set it to 0 to turn compiled kernels off")
        self.on = setting == "1"
        self._listeners: list[Callable[[bool], object]] = []

    def turn(self, on: bool) -> None:
        self.on = on
        for tell in self._listeners:
            tell(on)

    def tell(self, function: Callable[[bool], object]) -> None:
        """Have a function called with what is set from now on."""
        self._listeners.append(function)


class _Restored(AbstractContextManager[None]):
    """Sets the switch back at the end of a `with` statement."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __exit__(self, *exception: object) -> None:
        switch.turn(self._before)


switch = Switch()


def kernels(on: bool) -> AbstractContextManager[None]:
    """Use compiled kernels where there are any, or the array operations of JAX, torch or NumPy alone.

    The results are the same, bit for bit, except that XLA's own operations may make a quiet NaN of a signaling one in
    bfloat16. Without kernels most functions take several times as long on a CPU; but
    `jax.export` takes every program, and profilers and debuggers see array operations only.

    The setting is that of the whole process; for JAX it belongs to what a program is compiled for. It begins as the
    environment variable FUNCTIONAL_RB_NATIVE says, 0 or 1, by default 1. Buffers that processes share
    (`Memmap(shared=True)`) always use kernels.

    Args:
        on: whether to use them.

    Returns:
        What may be used in a `with` statement, to set it back at its end.

    Raises:
        TypeError: if `on` is no bool.

    Example:
        >>> with frb.kernels(False):
        ...     state = rb.add(rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, 4)), {"x": np.zeros(2, np.float32)})
        >>> int(rb.size(state))
        2
    """
    if not isinstance(on, bool):
        raise TypeError(f"kernels: expected True or False, got {on!r}")
    before = _Restored(switch.on)
    switch.turn(on)
    return before
