"""Values of nests of specs: their leaves in a flat list, their batch axes as one.

The class of each kind of spec draws, tests and projects its own values; here the units of a nest are taken together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from functional_rb.base import nest
from functional_rb.base.arrays import Array, BackendArray, Nest
from functional_rb.base.containers import check_depth
from functional_rb.base.nest import Structure
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import Spec, SpecNest
from functional_rb.specs.composite import checked
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.rows import is_unit
from functional_rb.specs.varying import Varying

# What is dealt with as a whole: an array, an object, or parts that vary together.
Unit = ArraySpec | NonTensor | Varying


def is_leaf(spec: object) -> bool:
    """Whether a spec describes one array or object."""
    return isinstance(spec, (ArraySpec, NonTensor))


@dataclasses.dataclass(frozen=True)
class Member:
    """A unit in a nest of specs."""

    spec: SpecNest  # the unit
    name: str  # its path, as errors show it
    structure: Structure  # the structure of its leaves
    first: int  # the position of its first leaf among those of the nest
    count: int  # the number of its leaves

    def gather(self, leaves: Sequence[Array]) -> object:
        """The value of the unit, from the leaves of the nest."""
        if self.structure == nest.LEAF:
            return leaves[self.first]
        return nest.unflatten(self.structure, leaves[self.first : self.first + self.count])

    def scatter(self, value: Nest) -> list[BackendArray]:
        """The leaves of a value of the unit."""
        return nest.flatten_as(self.structure, value)


@dataclasses.dataclass(frozen=True)
class Outline:
    """A nest of specs taken apart: hashable, so that a program compiled for it is compiled once."""

    structure: Structure  # the structure down to the leaves, which are what is stored
    leaves: tuple[SpecNest, ...]  # `ArraySpec`s and `NonTensor`s, in the order of `structure`
    names: tuple[str, ...]  # the paths of the leaves, as errors show them
    members: tuple[Member, ...]  # the units
    shape_of_units: Structure  # the structure down to the units, which are what environments have
    # The positions of the leaves that are arrays.
    arrays: tuple[int, ...] = dataclasses.field(init=False, compare=False, repr=False)
    # The positions of the leaves that are Python objects.
    objects: tuple[int, ...] = dataclasses.field(init=False, compare=False, repr=False)
    # The units without objects.
    in_arrays: tuple[Member, ...] = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        arrays = tuple(k for k, leaf in enumerate(self.leaves) if isinstance(leaf, ArraySpec))
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "objects", tuple(k for k in range(len(self.leaves)) if k not in arrays))
        in_arrays = tuple(member for member in self.members if not isinstance(member.spec, NonTensor))
        object.__setattr__(self, "in_arrays", in_arrays)

    @classmethod
    def of(cls, spec: SpecNest, who: str) -> Outline:
        """Take a spec, or a nest of specs, apart; errors name the function that asks, and a leaf that is no spec."""
        frozen = checked(spec, who)

        def taken_apart(subtree: SpecNest, whole: Callable[[object], bool]) -> tuple[list[SpecNest], Structure]:
            structure = nest.flatten(subtree, whole)[1].sorted()
            return nest.flatten_as(structure, subtree), structure

        # Sorted by name, as JAX sorts dicts: random values are then the same on both backends, leaf by leaf.
        leaves, structure = taken_apart(frozen, is_leaf)
        units, outer = taken_apart(frozen, is_unit)
        members = []
        first = 0
        for unit, path in zip(units, outer.paths, strict=True):
            of_unit, inner = taken_apart(unit, is_leaf)
            members.append(Member(unit, nest.show(path), inner, first, len(of_unit)))
            first += len(of_unit)
        names = tuple(nest.show(path) for path in structure.paths)
        return cls(structure, tuple(leaves), names, tuple(members), outer)

    @property
    def words(self) -> int:
        """How many words of random bits one value takes."""
        return sum(member.spec.words for member in self.in_arrays)


_CACHE: dict[object, tuple[list[object], Outline]] = {}
_MOST_CACHED = 256


def cached_outline(spec: SpecNest, who: str) -> Outline:
    """`Outline.of`, cached for the next call with the same spec objects: specs never change, so their ids suffice."""
    specs: list[object] = []
    key = _ids(spec, specs)
    entry = _CACHE.get(key)
    if entry is None:
        if len(_CACHE) >= _MOST_CACHED:  # specs that are made anew at each call are never found again
            _CACHE.clear()
        # The specs are kept alive, so that no other objects get their ids.
        entry = _CACHE[key] = (specs, Outline.of(spec, who))
    return entry[1]


def _ids(specs: SpecNest, collected: list[object], depth: int = 0) -> int | tuple[object, ...]:
    # The containers of a nest with the ids of its specs, which are appended to `collected`.
    check_depth(depth)
    parts = None if isinstance(specs, Spec) else nest.parts_of(specs)
    if parts is None:
        collected.append(specs)
        return id(specs)
    return parts[0], *(_ids(subtree, collected, depth + 1) for subtree in parts[1])


def words(outline: Outline, masked: bool) -> int:
    """How many words of random bits `draw` takes for a value, without or with a mask."""
    return outline.members[0].spec.words_among if masked else outline.words


def draw(ops: SpecOps, outline: Outline, bits: Array, mask: Array | None = None) -> dict[int, BackendArray]:
    """A value for each row of random bits int32 [N, words]: arrays [N, *shape] by position among the leaves.

    A mask bool [N, *axes, n] says which choices a single `Categorical` or `OneHot` may take.
    """
    if mask is not None:
        return {0: outline.members[0].spec.draw_among(ops, bits, mask)}
    drawn: dict[int, BackendArray] = {}
    start = 0
    for member in outline.in_arrays:
        end = start + member.spec.words
        drawn |= enumerate(member.scatter(member.spec.draw(ops, bits[:, start:end])), member.first)
        start = end
    return drawn


def inside(ops: SpecOps, outline: Outline, leaves: Sequence[Array]) -> list[BackendArray]:
    """Whether values lie in the domain of each unit of arrays, bool [N] for each unit."""
    return [member.spec.inside(ops, member.gather(leaves)) for member in outline.in_arrays]


def nearest(ops: SpecOps, outline: Outline, leaves: Sequence[Array]) -> dict[int, BackendArray]:
    """The nearest values of the domain, by position among the leaves."""
    projected: dict[int, BackendArray] = {}
    for member in outline.in_arrays:
        projected |= enumerate(member.scatter(member.spec.nearest(ops, member.gather(leaves))), member.first)
    return projected
