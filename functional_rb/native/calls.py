"""The kernels of `functional_rb.native.kernels` on arrays of torch and NumPy, by the function that each replaces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from functional_rb import _native
from functional_rb.native.chain import dlpack_dtype
from functional_rb.native.kernels import ABSENT, DECLARED, Declaration, Kernel, Made, rebuilt
from functional_rb.ops.part_kernels import Table


class Calls:
    """Calls kernels on arrays of one library.

    Args:
        ops: its array primitives.
        chain: its version chain, which knows its arrays.
        numpy_dtype: gives NumPy's dtype of a name, if its arrays are NumPy's.
    """

    def __init__(self, ops: Any, chain: Any, numpy_dtype: Callable[[str], object] = lambda _: None) -> None:
        self._ops, self._chain = ops, chain
        self._dtype = functools.cache(lambda name: (*dlpack_dtype(name), numpy_dtype(name)))

    @property
    def table(self) -> Table:
        """What replaces which function of the core."""
        return {function: self._by_kernel(function, declaration) for function, declaration in DECLARED.items()}

    def _by_kernel(self, function: Any, declaration: Declaration) -> Callable[..., object]:
        def work(*args: object, **named: object) -> Any:
            kernel = declaration(*args, **named)
            return function.core(self._ops, *args, **named) if kernel is None else self.call(kernel)

        return work

    def call(self, kernel: Kernel) -> Any:
        """Carry a kernel out; what it changes in place is changed."""
        outputs = kernel.in_order
        output_specs = [
            (x.shape, *self._dtype(x.dtype)) if isinstance(x, Made) else None if x is ABSENT else x for x in outputs
        ]
        if kernel.cut:
            output_specs.append(((1,), *self._dtype("int32")))
        arrays = self._chain.call(_native.HANDLERS[kernel.name], kernel.vectors, kernel.operands, output_specs)
        by_output = {id(x): array for x, array in zip(outputs, arrays, strict=False)}
        results = rebuilt(kernel.results, lambda x: by_output.get(id(x), x))
        if not kernel.cut:
            return results
        return *(x[: int(arrays[-1][0])] for x in results[: kernel.cut]), *results[kernel.cut :]
