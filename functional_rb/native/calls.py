"""The kernels of `functional_rb.native.kernels` on arrays of torch and NumPy, by the function that each replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functional_rb import _native
from functional_rb.native.kernels import ABSENT, DECLARED, Kernel, Made
from functional_rb.ops.part_kernels import Table


class Calls:
    """Calls kernels on arrays of one library.

    Args:
        ops: its array primitives.
        chain: its version chain, which knows its arrays.
        empty: an array of a shape and a dtype's name that nothing is in yet.
    """

    def __init__(self, ops: Any, chain: Any, empty: Callable[[tuple[int, ...], str], Any]) -> None:
        self._ops, self._chain, self._empty = ops, chain, empty

    @property
    def table(self) -> Table:
        """What replaces which function of the core."""
        return {function: self._by_kernel(function, declaration) for function, declaration in DECLARED.items()}

    def _by_kernel(self, function: Any, declaration: Callable[..., Kernel | None]) -> Callable[..., Any]:
        def work(*args: Any, **named: Any) -> Any:
            kernel = declaration(*args, **named)
            return function.core(self._ops, *args, **named) if kernel is None else self.call(kernel)

        return work

    def call(self, kernel: Kernel) -> Any:
        """Carry a kernel out; what it changes in place is changed."""
        arrays: list[Any] = []
        results = self._prepared(kernel.results, arrays)
        if not kernel.cut:
            self._chain.call(_native.HANDLERS[kernel.name], kernel.records, kernel.operands, arrays)
            return results
        count = self._empty((1,), "int32")
        self._chain.call(_native.HANDLERS[kernel.name], kernel.records, kernel.operands, [*arrays, count])
        return *(x[: int(count[0])] for x in results[: kernel.cut]), *results[kernel.cut :]

    def _prepared(self, results: Any, arrays: list[Any]) -> Any:
        """The results with arrays for what is made, which the list gets one after the other."""
        if isinstance(results, tuple | list):
            found = [self._prepared(x, arrays) for x in results]
            if isinstance(results, list):
                return found
            return type(results)(*found) if hasattr(results, "_fields") else tuple(found)
        if isinstance(results, Made):
            results = self._empty(results.shape, results.dtype)
        elif results is ABSENT:
            results = None
        arrays.append(results)
        return results
