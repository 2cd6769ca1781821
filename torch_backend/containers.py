"""The library of containers that are registered with torch.utils._pytree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from functional_rb.base.containers import LIBRARIES, Apart, names_of


class _Trees:
    """Containers that are registered with torch.utils._pytree."""

    def apart(self, x: Any) -> Apart | None:
        """A container, taken apart by one level."""
        node = pytree.SUPPORTED_NODES.get(type(x))
        if node is None:
            return None
        parts, static = self.parts(x)
        keys: Sequence[Any] = range(len(parts))
        if node.flatten_with_keys_fn is not None:
            keys = [key for key, _ in node.flatten_with_keys_fn(x)[0]]
        return Apart(names_of(keys), parts, static)

    def parts(self, x: Any) -> tuple[Sequence[Any], Any]:
        """The children of a container, and its context."""
        parts, static = pytree.SUPPORTED_NODES[type(x)].flatten_fn(x)
        return tuple(parts), static

    def together(self, kind: type, static: Any, names: tuple[str, ...], parts: Mapping[str, Any]) -> Any:
        """A container of this class, made of its parts."""
        return pytree.SUPPORTED_NODES[kind].unflatten_fn([parts[name] for name in names], static)


LIBRARIES["torch"] = _Trees()
