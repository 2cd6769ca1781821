"""Functions of items, written once for all backends: what `frb.map_items` applies to batches, and `frb.items` offers.

An item function sees no containers. It is given the leaves of a batch by their paths, `("obs", "camera")`, and gives
leaves by their paths: to rename a leaf is to give it under another path, to leave one out is to forget it. The library
puts what it gives into containers again: the user's own, as far as these can hold it (`specs.regrouped`). So a function
that keeps the paths keeps the nest, be it of dicts, tuples, NamedTuples, dataclasses, TensorDicts or tensorclasses.

A function of one's own is a frozen dataclass with two methods, such as this one, which halves float leaves and flips
the sign of one item in two:

    @dataclasses.dataclass(frozen=True)
    class HalveAndFlip(ItemFunction):
        keys: Key | None = None

        @property
        def words(self):
            return 1

        def spec(self, leaves, lead):
            return leaves | {path: Unbounded(leaves[path].shape, "float32") for path in self._chosen(leaves)}

        def apply(self, ops, leaves, lead, draws, mask):
            sign = (draws[:, 0] & 1) - 0.5
            return leaves | {path: by_item(sign, leaves[path], lead) * leaves[path] for path in self._chosen(leaves)}

        def _chosen(self, leaves):
            return chosen(leaves, self.keys, "HalveAndFlip", of=("float",))
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, Nest, NumpyArray
from functional_rb.base.dtypes import kind_of, shown
from functional_rb.base.nest import Key, Path
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec, NonTensor
from functional_rb.specs.regrouped import leaves_of, regrouped
from functional_rb.specs.regrouped import plain as plain

# The specs of an item's leaves by their paths.
Specs = dict[Path, ArraySpec | NonTensor]
# How long the axes are that a batch has in front of its items: [B], or [B, T] of slices.
Lead = tuple[int, ...]
# The leaves of a batch by their paths, [*lead, *shape]; NumPy arrays of objects for `NonTensor`.
Leaves = dict[Path, BackendArray]


class ItemFunction(abc.ABC):
    """A pure function from batches of items to batches of items: a frozen dataclass, compared by its fields.

    Its fields can be hashed and pickled, so that it can be part of a spec. Neither method changes what it is given.
    """

    @property
    def words(self) -> int:
        """Random 31-bit words that it takes for each item."""
        return 0

    @abc.abstractmethod
    def spec(self, leaves: Specs, lead: int) -> Specs:
        """The specs of what it gives of items of these specs; on the host, without any array.

        Args:
            leaves: by their paths.
            lead: how many axes a batch has in front: 1 for single items, 2 for slices [B, T].

        Raises:
            ValueError: for a leaf that is missing or does not fit, naming the function and the leaf.
        """

    @abc.abstractmethod
    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        """What it gives of a batch: a leaf [*lead, *shape] for each of `spec`, with its shape and dtype.

        Args:
            leaves: by their paths, [*lead, *shape].
            lead: the axes in front, [B] or [B, T]; the function keeps them.
            draws: int32 [N, words] in [0, 2^31), N being the product of lead; None if it takes no words.
            mask: bool [*lead], which items are real; None if all are.
        """

    def inverse(self, item: object) -> ItemFunction:
        """What makes items again of what the function gives of them: with `at="add"` it stores what this one reads.

        Args:
            item: the spec of the items that this function is given, which are to be stored.

        Raises:
            TypeError: if the function has no inverse.
            ValueError: for a leaf that is missing or does not fit, naming the function and the leaf.
        """
        raise TypeError(f"{self}: has no inverse, as it gives the same for different items; add items as they are")


class HostFunction(abc.ABC):
    """A function of sampled items that reads what lies outside of the buffer, on the host: a frozen dataclass.

    Its fields can be hashed and pickled, so that it can be part of a spec. The same items give the same.
    """

    @property
    @abc.abstractmethod
    def gives(self) -> Nest:
        """The spec of one of the items that it gives.

        None if shapes depend on values: then it is called outside of compiled programs alone.
        """

    @abc.abstractmethod
    def read(self, leaves: Mapping[str, NumpyArray], as_array: Callable[[NumpyArray], BackendArray]) -> Nest:
        """What it gives of a batch of items: a nest of arrays with the same first axis, [B, ...].

        Args:
            leaves: the items' by name, such as "obs/camera", arrays of NumPy [B, *shape].
            as_array: makes an array of the backend of one of NumPy that nobody else will write to.
        """


def item_after(function: ItemFunction, item: object, lead: int = 1) -> object:
    """The spec of the items that a function gives of items of a spec, in their containers.

    Example:
        >>> from functional_rb import Unbounded, items
        >>> item_after(items.cast("int8"), (Unbounded((3,)),))
        (Unbounded((3,), 'int8'),)
    """
    return regrouped(item, function.spec(leaves_of(item), lead))


def check_leaves(who: str, expected: Specs, leaves: Leaves, lead: Lead) -> None:
    """Refuse leaves that a function gives and that are not those of its spec, each [*lead, *shape]."""
    if leaves.keys() != expected.keys():
        path = next(iter(leaves.keys() ^ expected.keys()))
        what = "got none" if path not in leaves else f"got one that is not among {list(map(nest.show, expected))}"
        raise ValueError(f"{who}: leaf {nest.show(path)!r}: {what}; give exactly the leaves of its spec")
    for path, spec in expected.items():
        leaf = leaves[path]
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise TypeError(f"{who}: leaf {nest.show(path)!r}: expected an array, got {type(leaf).__name__}")
        shape = (*lead, *spec.shape)
        if tuple(leaf.shape) != shape:
            raise ValueError(
                f"{who}: leaf {nest.show(path)!r}: expected shape {shape} as its spec says, got {tuple(leaf.shape)}"
            )
        if shown(leaf.dtype) != spec.dtype:
            raise TypeError(
                f"{who}: leaf {nest.show(path)!r}: expected {spec.dtype} as its spec says, got {shown(leaf.dtype)}"
            )


def chosen(
    leaves: Iterable[Path], keys: Key | Sequence[Key] | None, who: str, of: Sequence[str] | None = None
) -> tuple[Path, ...]:
    """The paths that keys name: each that of a leaf, or of a container with all leaves below it.

    Args:
        leaves: the paths there are; with `of` specs or arrays by their paths.
        keys: a name, a tuple of the names on the way, or a list of such; None for all leaves (of these kinds).
        who: the function that asks, for errors.
        of: the kinds of dtype that fit, of "float", "int", "bool", "complex"; None for all.

    Raises:
        TypeError: for what is no key.
        ValueError: for a key that names nothing, or a leaf of another kind.

    Example:
        >>> chosen([("obs", "x"), ("obs", "y"), ("done",)], ["obs"], "me")
        (('obs', 'x'), ('obs', 'y'))
    """
    paths = tuple(leaves)
    if keys is None:
        return tuple(path for path in paths if of is None or _kind(leaves, path) in of)
    selected: dict[Path, None] = {}
    for key in nest.checked_keys(keys, "keys", who) or ():
        name, first = nest.show_key(key), (key,) if isinstance(key, str) else key
        named = [path for path in paths if path[: len(first)] == first]
        if not named:  # by a text for several names, or for a position
            named = [path for path in paths if f"{nest.show(path)}/".startswith(f"{name}/")]
        if not named:
            names = tuple(map(nest.show, paths))
            raise ValueError(f"{who}: the item has no leaf {name!r}; name some of {names}{nest.as_several(key, names)}")
        for path in named:
            kind = None if of is None else _kind(leaves, path)
            if of is not None and kind not in of:
                raise ValueError(
                    f"{who}: leaf {nest.show(path)!r}: expected a dtype of {' or '.join(of)}, got "
                    f"{_dtype(leaves, path)}; leave it out of keys, or cast it first"
                )
        selected |= dict.fromkeys(named)
    return tuple(selected)


def _kind(leaves: object, path: Path) -> str:
    dtype = _dtype(leaves, path)
    return "object" if dtype == "object" else kind_of(dtype)


def _dtype(leaves: Any, path: Path) -> str:
    return shown(leaves[path].dtype)


def by_item(numbers: Array, leaf: Array, lead: Lead) -> Array:
    """Numbers [N], one for each item of a batch, in a shape that broadcasts to a leaf [*lead, *shape]."""
    return numbers.reshape(*lead, *(1,) * (len(leaf.shape) - len(lead)))
