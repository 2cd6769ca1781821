"""The kernels of `functional_rb.native.kernels` on arrays of torch and NumPy, by the function that each replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functional_rb import _native
from functional_rb.native import descriptor
from functional_rb.native.kernels import ABSENT, DECLARED, Declaration, Kernel, Made, rebuilt
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

    def _by_kernel(self, function: Any, declaration: Declaration) -> Callable[..., Any]:
        def work(*args: Any, **named: Any) -> Any:
            kernel = declaration(*args, **named)
            return function.core(self._ops, *args, **named) if kernel is None else self.call(kernel)

        return work

    def call(self, kernel: Kernel) -> Any:
        """Carry a kernel out; what it changes in place is changed."""
        arrays: list[Any] = []
        if kernel.outputs is None:
            results = rebuilt(kernel.results, self._preparing(arrays))
        else:
            made = {id(x): self._preparing(arrays)(x) for x in kernel.outputs}
            results = rebuilt(kernel.results, lambda x: made.get(id(x), x))
        records = [descriptor.encode_number(x) if isinstance(x, int) else x for x in kernel.records]
        if not kernel.cut:
            self._chain.call(_native.HANDLERS[kernel.name], records, kernel.operands, arrays)
            return results
        count = self._empty((1,), "int32")
        self._chain.call(_native.HANDLERS[kernel.name], records, kernel.operands, [*arrays, count])
        return *(x[: int(count[0])] for x in results[: kernel.cut]), *results[kernel.cut :]

    def _preparing(self, arrays: list[Any]) -> Callable[[Any], Any]:
        """What makes an array of each result that is made, and gives it to a list."""

        def prepared(x: Any) -> Any:
            found = self._empty(x.shape, x.dtype) if isinstance(x, Made) else None if x is ABSENT else x
            arrays.append(found)
            return found

        return prepared
