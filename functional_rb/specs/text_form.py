"""How specs are written: as the call that makes them, in one line where that is short."""

from __future__ import annotations

import dataclasses

import numpy as np

from functional_rb.base.arrays import Nest

# The most characters of a text in one line; longer ones go over several lines.
WIDTH = 100
# The most numbers of a table that its short form shows; of longer ones it shows the range.
LONG = 24


def shown(value: Nest, full: bool) -> str:
    """The text of a spec, a nest or an argument: in full, which Python reads back, or with long tables abbreviated."""

    def show(inner: object) -> str:
        return shown(inner, full)

    if hasattr(type(value), "call_parts"):
        return laid_out(*value.call_parts(show))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [f"{field.name}={show(getattr(value, field.name))}" for field in dataclasses.fields(value)]
        return laid_out(f"{type(value).__name__}(", parts, ")")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = [f"{name}={show(inner)}" for name, inner in zip(value._fields, value, strict=True)]
        return laid_out(f"{type(value).__name__}(", parts, ")")
    if not (isinstance(value, tuple | list) and value):
        return repr(value)
    first: object = value
    while isinstance(first, tuple) and first:
        first = first[0]
    if isinstance(first, bool | int | float):  # a table of numbers
        if full or np.size(value) <= LONG:
            return repr(value)
        table = np.asarray(value)
        shape = "x".join(map(str, table.shape))
        if table.dtype == bool:
            return f"<{shape} truth values, {int(table.sum())} of them true>"
        return f"<{shape} numbers from {table.min().item()} to {table.max().item()}>"
    opening, closing = "()" if isinstance(value, tuple) else "[]"
    return laid_out(opening, [show(inner) for inner in value], ",)" if len(value) == 1 and closing == ")" else closing)


def laid_out(opening: str, parts: list[str], closing: str) -> str:
    """Parts between an opening and a closing: in one line, or in a line each if that would be too long."""
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= WIDTH:
        return line
    lines = "".join("\n    " + text.replace("\n", "\n    ") + "," for text in parts)
    return f"{opening}{lines}\n{closing.removeprefix(',')}"
