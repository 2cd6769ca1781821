"""Values that are no buffers, such as hash maps and forests, under the names that the functions on buffers have.

Whoever has such a value tells the functions on it here, each of which takes a `Lib` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from functional_rb.base import lazy
from functional_rb.base.description import refuse
from functional_rb.hash_maps import functions as hash_maps
from functional_rb.hash_maps.functions import HashMap
from functional_rb.hash_maps.spec import HashMapSpec
from functional_rb.lib import A, Lib

_FUNCTIONS: Final[dict[type, Mapping[str, Callable[..., Any]]]] = {}
# What of buffers has a function of the same name, for errors.
_OF_BUFFERS: Final = {"init": "BufferSpec"} | dict.fromkeys(
    ("add", "add_", "counts", "items", "size", "with_spec"), "State"
)
_REMEDIES: Final = {
    ("items", "Forest"): "rb.trees.view(forest, observation)",
}


def register(functions: Mapping[str, Callable[..., Any]], kind: type) -> None:
    """Tell the functions on values of a class, or on specs of a class, by public name."""
    _FUNCTIONS[kind] = functions


register(
    {
        "add": hash_maps.add,
        "add_": hash_maps.add_,
        "check": hash_maps.check_map,
        "counts": hash_maps.refused,
        "items": hash_maps.items,
        "lookup": hash_maps.lookup,
        "size": hash_maps.size,
        "visits": hash_maps.visits,
        "with_spec": hash_maps.with_spec,
    },
    HashMap,
)
register({"init": hash_maps.init}, HashMapSpec)


def called_on(value: object, name: str) -> Callable[..., Any]:
    """The function of a public name on a value that is no buffer, or on its spec.

    Raises:
        TypeError: if such a value has none, or is another.
    """
    functions = _FUNCTIONS.get(type(value), {})
    if name not in functions:
        raise TypeError(_refusal(value, name))
    return functions[name]


# Which values have a function of this name, and what does for the given one what it might be meant to.
def _refusal(value: object, name: str) -> str:
    lazy.imported("functional_rb.trees")  # which tells the functions on forests
    kinds = [kind.__name__ for kind, has in _FUNCTIONS.items() if name in has]
    if name in _OF_BUFFERS:
        kinds.insert(0, _OF_BUFFERS[name])
    got = type(value).__name__
    remedy = _REMEDIES.get((name, got))
    listed = " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    return f"{name}: expected {listed}, got {got}" + ("" if remedy is None else f"; use {remedy}")


def lookup(lib: Lib[A], state: object, keys: object) -> A:
    """The numbers of the keys of a hash map, or of the observations of a forest.

    Args:
        state: a hash map, or a forest.
        keys: a nest like `HashMapSpec.key` or `ForestSpec.observation`, leaves [*batch, *shape].

    Returns:
        int32 [*batch], in the order in which they first came, from 0 on; -1 for what is not there.

    Raises:
        TypeError: for what is neither, or a dtype that does not fit, naming the leaf.
        ValueError: for a structure or shape that does not fit.

    Example:
        >>> seen = rb.init(frb.HashMapSpec(key=frb.Unbounded(()), capacity=10))
        >>> seen, _ = rb.add(seen, np.array([0.5, -0.0], np.float32))
        >>> rb.lookup(seen, np.array([0.0, 1.0], np.float32)).tolist()
        [1, -1]
    """
    ids: A = called_on(state, "lookup")(lib, state, keys)
    return ids


def visits(lib: Lib[A], state: object, keys: object, action: object = None) -> A:
    """How often keys were put into a hash map, or how many steps of a forest began in observations.

    Args:
        state: a hash map, or a forest.
        keys: a nest like `HashMapSpec.key` or `ForestSpec.observation`, leaves [*batch, *shape].
        action: of a forest, a nest like `ForestSpec.action`, leaves [*batch, *shape]: only the steps that took it.

    Returns:
        int32 [*batch], 0 for what is not there.

    Raises:
        TypeError: for what is neither, or a dtype that does not fit, naming the leaf; for an action of a hash map.
        ValueError: for a structure or shape that does not fit.

    Example:
        >>> seen = rb.init(frb.HashMapSpec(key=frb.Binary((2,)), capacity=4))
        >>> seen, _ = rb.add(seen, np.array([[True, False], [True, False]]))
        >>> bonus = 1 / np.sqrt(1 + np.asarray(rb.visits(seen, np.array([[True, False], [True, True]]))))
        >>> bonus.round(2).tolist()
        [0.58, 1.0]
    """
    function = called_on(state, "visits")
    if isinstance(state, HashMap):
        refuse("visits", state, action=action)
    counts: A = function(lib, state, keys) if action is None else function(lib, state, keys, action=action)
    return counts
