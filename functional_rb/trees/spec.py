"""The static description of a tree, which every tree carries."""

from __future__ import annotations

import dataclasses
from typing import Final

from functional_rb.base.arrays import Nest
from functional_rb.base.description import Description
from functional_rb.base.dtypes import checked_count
from functional_rb.hash_maps.spec import arrays_alone
from functional_rb.specs import freeze
from functional_rb.specs.values import Outline
from functional_rb.structures import row_layout
from functional_rb.structures.row_layout import Layout

INT32_MAX: Final = 2**31 - 1
SQUARES: Final = "squares"
LOG_WEIGHTS: Final = "log_weights"
# The names of what some scores keep of each edge beside visits and value.
STATISTICS: Final = (SQUARES, LOG_WEIGHTS)


@dataclasses.dataclass(frozen=True)
class Content:
    """What is stored of each node, or of each edge: a nest of specs, and where its leaves lie."""

    outline: Outline  # the nest, taken apart
    layout: Layout  # how the leaves are packed into rows

    @classmethod
    def of(cls, spec: Nest, who: str) -> Content:
        outline = arrays_alone(spec, who)
        leaves = zip(outline.structure.paths, outline.leaves, strict=True)
        return cls(outline, row_layout.plan(tuple((path, leaf.shape, leaf.dtype) for path, leaf in leaves)))


@dataclasses.dataclass(frozen=True, eq=False)
class TreeSpec(Description):
    """What a tree holds: frozen and hashable, without any array.

    A child is a *slot* of its node, from 0 to `children - 1`, and the action stands on the edge. So the number of
    actions may differ between nodes (by the mask `valid`), and actions may be vectors.

    Attributes:
        node: a nest of `ArraySpec`s: the content of a node, such as an observation or the state of a model.
        capacity: N, how many nodes fit, the root among them, from 1 on.
        children: A, how many slots a node has, from 1 on.
        action: a nest of `ArraySpec`s: the content of an edge. None if the number of the slot is the action itself,
            an int32; then nothing is stored for it.
        statistics: what is kept of each edge beside visits and value: "squares" for `UCB1(tuned=True)`, "log_weights"
            for `EXP3`.
        chance: whether nodes may be chance nodes, at which no one decides: their slots are outcomes, with the prior as
            probabilities. Antonoglou et al.: Planning in stochastic environments with a learned model (2022).
        node_content: derived: where the leaves of a node lie.
        action_content: derived: where the leaves of an action lie; None without an action.

    Raises:
        TypeError: if a leaf is no spec of an array, or a number is no int.
        ValueError: if a number is out of range, or a statistic is unknown.

    Example:
        >>> from functional_rb import Unbounded
        >>> spec = TreeSpec(node={"board": Unbounded((9,), "int8")}, capacity=65, children=9)
        >>> spec.node_bytes
        263
    """

    node: Nest
    capacity: int
    children: int
    action: Nest = None
    statistics: tuple[str, ...] = ()
    chance: bool = False

    node_content: Content = dataclasses.field(init=False, repr=False)
    action_content: Content | None = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._put(
            capacity=checked_count("TreeSpec.capacity", self.capacity, 1, INT32_MAX),
            children=checked_count("TreeSpec.children", self.children, 1, INT32_MAX),
        )
        if self.capacity * self.children > INT32_MAX:
            raise ValueError(
                f"TreeSpec: expected at most 2^31 - 1 edges, got capacity * children = "
                f"{self.capacity * self.children}; give a smaller capacity"
            )
        names: object = self.statistics  # users give one name too
        self._put(statistics=(names,) if isinstance(names, str) else tuple(self.statistics))
        for name in self.statistics:
            if name not in STATISTICS:
                raise ValueError(f"TreeSpec.statistics: expected some of {STATISTICS}, got {name!r}")
        if not isinstance(self.chance, bool):
            raise TypeError(f"TreeSpec.chance: expected True or False, got {self.chance!r}")
        self._put(node=freeze(self.node), action=freeze(self.action))
        self._put(
            node_content=Content.of(self.node, "TreeSpec.node"),
            action_content=None if self.action is None else Content.of(self.action, "TreeSpec.action"),
        )
        self._seal()

    @property
    def _key(self) -> tuple[object, ...]:
        return self.node, self.action, self.capacity, self.children, self.statistics, self.chance

    @property
    def node_bytes(self) -> int:
        """Bytes that one node takes, with its edges."""
        edge = 25 + 4 * len(self.statistics)  # six numbers of 4 bytes, and a mask
        edge += 0 if self.action_content is None else self.action_content.layout.item_bytes
        # Six numbers of 4 bytes, and two marks: terminal and chance.
        return 26 + self.node_content.layout.item_bytes + self.children * edge
