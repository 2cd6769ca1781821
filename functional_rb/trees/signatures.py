"""How type checkers read public functions on buffers, maps, forests and trees: `Lib.bind` keeps no overloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar, overload

from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, Nest
from functional_rb.base.description import Described, Description
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.sample import AnySample, Drawn, Items
from functional_rb.hash_maps.functions import HashMap, Inserted
from functional_rb.hash_maps.spec import HashMapSpec
from functional_rb.mixture.value import Mixture
from functional_rb.trees.forest import Forest
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import Expansion, Tree

S = TypeVar("S", bound=State | Mixture)
M = TypeVar("M", bound=Mixture | Described)


class Init(Protocol):
    """`rb.init`: each kind of spec makes its own kind of value."""

    @overload
    def __call__(
        self,
        spec: BufferSpec[Drawn],
        device: DeviceLike = None,
        items: Nest = None,
        validate: bool = False,
        sharding: object = None,
    ) -> State[Drawn]: ...

    @overload
    def __call__(self, spec: HashMapSpec, device: DeviceLike = None) -> HashMap: ...

    @overload
    def __call__(self, spec: ForestSpec, device: DeviceLike = None) -> Forest: ...

    @overload
    def __call__(self, spec: TreeSpec, device: DeviceLike = None, *, items: Expansion) -> Tree: ...


class Add(Protocol):
    """`rb.add` and `rb.add_`: of a hash map they tell what became of each key."""

    @overload
    def __call__(self, state: HashMap, items: Nest, mask: ArrayLike = None) -> tuple[HashMap, Inserted]: ...

    @overload
    def __call__(self, state: Forest, items: Nest, mask: ArrayLike = None) -> Forest: ...

    @overload
    def __call__(
        self,
        state: S,
        items: Nest,
        mask: ArrayLike = None,
        priorities: ArrayLike = None,
        key: BackendArray | None = None,
        validate: bool = False,
        time_major: bool = True,
        to: object = None,
    ) -> S: ...


class Draw(Protocol):
    """`rb.sample` and `rb.sample_`: a buffer gives samples of the type that its spec says, and so does a mixture."""

    @overload
    def __call__(
        self,
        state: State[Drawn],
        key: BackendArray,
        batch_size: int | None = None,
        beta: ArrayLike = None,
        p: object = None,
        *,
        axis_name: object = None,
        group: object = None,
        draw: Literal["global", "local"] = "global",
    ) -> tuple[State[Drawn], Drawn]: ...

    @overload
    def __call__(
        self,
        state: Mixture[Drawn],
        key: BackendArray,
        batch_size: int | None = None,
        beta: ArrayLike = None,
        p: object = None,
    ) -> tuple[Mixture[Drawn], Drawn]: ...


class WithSpec(Protocol):
    """`rb.with_spec`: another sampler gives other samples."""

    @overload
    def __call__(self, state: State, spec: BufferSpec[Drawn]) -> State[Drawn]: ...

    @overload
    def __call__(self, state: M, spec: Description | Sequence[object]) -> M: ...


class ReadAll(Protocol):
    """`rb.items`: those of a buffer are of the type that its spec says; those of a hash map are its keys."""

    @overload
    def __call__(self, state: State[AnySample[Items]]) -> Items: ...

    @overload
    def __call__(self, state: Described) -> Nest: ...
