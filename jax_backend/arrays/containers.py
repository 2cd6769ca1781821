"""The library of containers that are registered with jax.tree_util."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from functional_rb.base.containers import Apart, add_library, names_of
from jax_backend import compat

_REGISTRY = jax.tree_util.default_registry
_LEAF = jax.tree.structure(0)


class _Trees:
    """Containers that are registered with jax.tree_util."""

    def apart(self, x: object) -> Apart | None:
        if _REGISTRY.flatten_one_level(x) is None:
            return None
        children, _ = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda node: node is not x)
        return Apart(names_of([path[0] for path, _ in children]), *self.parts(x))

    def parts(self, x: object) -> tuple[Sequence[Any], Any]:
        children_and_static = _REGISTRY.flatten_one_level(x)
        assert children_and_static is not None
        children, static = children_and_static
        return tuple(children), static

    def together(self, kind: type, static: object, names: tuple[str, ...], parts: Mapping[str, object]) -> Any:
        treedef = compat.tree_of(_REGISTRY, (kind, static), [_LEAF] * len(names))
        return treedef.unflatten([parts[name] for name in names])

    def register(self, kind: type, names: tuple[str, ...], static: tuple[str, ...]) -> None:
        jax.tree_util.register_dataclass(kind, data_fields=names, meta_fields=static)

    def register_static(self, kind: type) -> None:
        jax.tree_util.register_static(kind)


add_library("jax", _Trees())
