"""The library of containers that are registered with torch.utils._pytree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from functional_rb.base.containers import Apart, add_library, names_of, of_fields


class _Trees:
    """Containers that are registered with torch.utils._pytree."""

    def apart(self, x: object) -> Apart | None:
        node = pytree.SUPPORTED_NODES.get(type(x))
        if node is None:
            return None
        parts, static = self.parts(x)
        keys: Sequence[object] = range(len(parts))
        if node.flatten_with_keys_fn is not None:
            keys = [key for key, _ in node.flatten_with_keys_fn(x)[0]]
        return Apart(names_of(keys), parts, static)

    def parts(self, x: object) -> tuple[Sequence[Any], Any]:
        parts, static = pytree.SUPPORTED_NODES[type(x)].flatten_fn(x)
        return tuple(parts), static

    def together(self, kind: type, static: object, names: tuple[str, ...], parts: Mapping[str, object]) -> Any:
        return pytree.SUPPORTED_NODES[kind].unflatten_fn([parts[name] for name in names], static)

    def register(self, kind: type, names: tuple[str, ...], static: tuple[str, ...]) -> None:
        def flatten_with_keys(x: object) -> tuple[list[tuple[pytree.KeyEntry, object]], object]:
            fields = {name: getattr(x, name) for name in (*names, *static)}
            kept: list[tuple[pytree.KeyEntry, object]] = [
                (pytree.GetAttrKey(name), fields.pop(name)) for name in names if fields[name] is not None
            ]
            return kept, tuple(fields.items())

        def flatten(x: object) -> tuple[list[object], object]:
            kept, rest = flatten_with_keys(x)
            return [value for _, value in kept], rest

        def unflatten(parts: Iterable[object], rest: Any) -> object:
            others = dict(rest)
            return of_fields(kind, {**dict(zip((n for n in names if n not in others), parts, strict=True)), **others})

        pytree.register_pytree_node(
            kind,
            flatten,
            unflatten,
            serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
            flatten_with_keys_fn=flatten_with_keys,
        )

    def register_static(self, kind: type) -> None:
        """To torch's pytrees all that is not registered is a leaf."""


add_library("torch", _Trees())
