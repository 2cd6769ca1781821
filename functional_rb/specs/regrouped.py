"""A nest of specs with other leaves, in the containers that it has as far as these can hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from functional_rb.base import nest
from functional_rb.base.containers import Registered, of_fields
from functional_rb.base.nest import Path
from functional_rb.specs.array import ArraySpec, Binary, Unbounded
from functional_rb.specs.base import SpecNest
from functional_rb.specs.composite import Composite, Container, members
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.values import is_leaf


def leaves_of(spec: SpecNest) -> dict[Path, SpecNest]:
    """The `ArraySpec`s and `NonTensor`s of a nest of specs by their paths, in the order in which they were given."""
    leaves, structure = nest.flatten(spec, is_leaf)
    return dict(zip(structure.paths, leaves, strict=True))


def regrouped(spec: SpecNest, leaves: Mapping[Path, object]) -> SpecNest:
    """A nest of new leaves by their paths, in the containers of another nest.

    A container stays what it is as long as it can hold what is in it: dicts and TensorDicts take any names, tuples and
    lists take positions without a gap, NamedTuples, dataclasses and tensorclasses take all of their fields and no
    others. Any other becomes a dict. A part of which nothing has changed is the same spec as before.

    Raises:
        ValueError: if the path of one leaf leads on to another.

    Example:
        >>> from functional_rb import Unbounded
        >>> regrouped((Unbounded(()), Unbounded((2,))), {(0,): Unbounded((3,))})
        (Unbounded((3,)),)
        >>> regrouped((Unbounded(()), Unbounded((2,))), {(0,): Unbounded(()), ("obs", "x"): Unbounded((2,))})
        Composite({'0': Unbounded(), 'obs': Composite({'x': Unbounded((2,))})})
    """
    parts = None if spec is None or is_leaf(spec) else nest.parts_of(spec)
    if parts is not None and leaves_of(spec) == dict(leaves):
        return spec
    if () in leaves:
        if len(leaves) > 1:
            others = [nest.show(path) for path in leaves if path]
            raise ValueError(f"leaves {others}: expected one leaf or a container in their place, got both; rename them")
        return leaves[()]
    below: dict[str | int, dict[Path, object]] = {}
    for path, leaf in leaves.items():
        below.setdefault(path[0], {})[path[1:]] = leaf
    if parts is None:
        return Composite({str(key): regrouped(None, inner) for key, inner in below.items()})
    before = dict(zip(parts[0].keys, parts[1], strict=True))
    # What was there stays in its order, and what is new comes behind.
    order = [*(key for key in before if key in below), *(key for key in below if key not in before)]
    children = {key: regrouped(before.get(key), below[key]) for key in order}
    named = {str(key): child for key, child in children.items()}
    same = set(children) == set(before)
    if isinstance(spec, Composite):
        return _like(spec, named, same)
    if parts[0].kind == "sequence" and isinstance(spec, tuple | list) and set(children) == set(range(len(children))):
        return type(spec)(children[k] for k in range(len(children)))
    if same and parts[0].kind in ("namedtuple", "dataclass"):
        return type(spec)(**named) if parts[0].kind == "namedtuple" else of_fields(type(spec), named)
    return Composite(named)


def _like(spec: Composite, parts: Mapping[str, object], same: bool) -> Composite:
    # Batch axes are given up where a part lacks them.
    kind, batch, names, device = spec._like
    if not same and not (isinstance(kind, type) and not hasattr(kind, "_is_tensorclass")):
        kind, names, device = None, (), False
    if any(leaf.leading[: len(batch)] != batch for _, leaf in members(parts)):
        batch, names = (), ()
    return Composite.like(kind, parts, batch, names, device)


def with_lead(spec: SpecNest, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> SpecNest:
    """A nest of specs whose leaves are arrays of other shapes, with nothing said about their values.

    The change is that of the shape of a leaf, and of the batch axes of a TensorDict.

    Example:
        >>> from functional_rb import Bounded
        >>> with_lead({"x": Bounded(-1, 1, (3,))}, lambda shape: (8, *shape))
        Composite({'x': Unbounded((8, 3))})
    """

    def like(
        container: type | Container | Registered | None, parts: dict[str, SpecNest], batch: tuple[int, ...]
    ) -> Composite:
        kind = container.type if isinstance(container, Container) else container
        batch = change(batch) if batch or isinstance(kind, type) else batch
        return Composite.like(kind, parts, batch, (), getattr(container, "device", False))

    leaves, structure = nest.flatten(spec, is_leaf)
    shapes = [change(leaf.shape) for leaf in leaves]
    changed = [
        NonTensor(shape) if isinstance(leaf, NonTensor) else plain(shape, leaf.dtype)
        for leaf, shape in zip(leaves, shapes, strict=True)
    ]
    return nest.unflatten(structure, changed, like)


def plain(shape: Sequence[int], dtype: str) -> ArraySpec:
    return Binary(tuple(shape)) if dtype == "bool" else Unbounded(tuple(shape), dtype)
