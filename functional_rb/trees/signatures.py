"""How type checkers read public functions that make buffers, maps and forests: `Lib.bind` keeps no overloads."""

from __future__ import annotations

from typing import Protocol, overload

from functional_rb.base.arrays import DeviceLike, Nest
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.hash_maps.functions import HashMap
from functional_rb.hash_maps.spec import HashMapSpec
from functional_rb.trees.forest import Forest
from functional_rb.trees.forest_spec import ForestSpec


class Init(Protocol):
    """`rb.init`: each kind of spec makes its own kind of value."""

    @overload
    def __call__(
        self,
        spec: BufferSpec,
        device: DeviceLike = None,
        items: Nest = None,
        validate: bool = False,
        sharding: object = None,
    ) -> State: ...

    @overload
    def __call__(self, spec: HashMapSpec, device: DeviceLike = None) -> HashMap: ...

    @overload
    def __call__(self, spec: ForestSpec, device: DeviceLike = None) -> Forest: ...
