"""The array operations that the algorithms are written in: what a backend must provide, and nothing else.

A backend's `ops` is a plain module of functions with these signatures; the type checker compares it with `Ops`.
Arrays also understand Python's arithmetic, comparison, bit and slicing operators and `reshape`. Integers are int32
throughout, because JAX has no others unless asked, and none of the algorithms lets one overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from functional_rb.core.frame_store import FramePlan
    from functional_rb.structures.episode_windows import Entries, Lanes, Rule, Slices
    from functional_rb.structures.frame_ring import Chain
    from functional_rb.structures.ring import Ends, Removal, Ring, Write
    from functional_rb.structures.row_layout import Layout
    from functional_rb.structures.sparse_set import SparseSet
    from functional_rb.transforms.step_queue import Line

Array = Any
"""An array of the backend: `jax.Array` (or a tracer) on JAX, `torch.Tensor` on torch."""


class Native(Protocol):
    """Parts of the core as compiled kernels, each equal to what the core makes of the primitives, bit for bit."""

    def descend(self, tree: Array, capacity: int, draws: Array) -> Array:
        """`sum_tree.descend`."""
        ...

    def set_leaves(self, tree: Array, capacity: int, leaves: Array, values: Array) -> Array:
        """`sum_tree.set_leaves`."""
        ...

    def settle(self, arrays: Sequence[Array], after: Sequence[Array]) -> list[Array]:
        """The same arrays, for who uses them from now on: they and `after` are computed before.

        XLA orders what it does by data alone, and computes small things again where they are used. A read that is
        used late would so come after the next write to what it read, and XLA would copy that for it.
        """
        ...

    def read(self, layout: Layout, rows: Array, wide: Sequence[Array], slots: Array) -> list[Array]:
        """`layout.read`: the leaves [B, *shape] that lie in slots int32 [B]."""
        ...

    def read_batches(
        self, layout: Layout, rows: Array, wide: Sequence[Array], batches: Sequence[Array]
    ) -> list[list[Array]]:
        """`layout.read_batches`, of all leaves."""
        ...

    def store(
        self,
        layout: Layout,
        rows: Array,
        wide: Sequence[Array],
        slots: Array,
        source: Array | None,
        live: Array | None,
        leaves: Sequence[Array],
    ) -> tuple[Array, tuple[Array, ...]]:
        """`layout.store`: rows of leaves [B, *shape] to slots int32 [n]."""
        ...

    def stored_value(self, priorities: Array, alpha: float) -> tuple[Array, Array]:
        """`weights.stored_value`."""
        ...

    def importance_weights(self, values: Array, smallest: Array, beta: Array) -> Array:
        """`weights.importance_weights`."""
        ...

    def below(self, draws: Array, n: Array) -> Array:
        """`integers.below`."""
        ...

    def plan_write(self, ring: Ring, ends: Ends, batch: int, mask: Array | None) -> Write:
        """`ring.plan_write`."""
        ...

    def step_ages(
        self, next_age: Array, written: Array, begins: Array | None, ends: Array | None
    ) -> tuple[Array, Array]:
        """`windows.step_ages`."""
        ...

    def changed(self, rule: Rule, lanes: Lanes, age: Array, n: int, by_trajectory: bool) -> Entries:
        """`windows.changed`."""
        ...

    def weights_at(self, rule: Rule, lanes: Lanes, age: Array, slots: Array) -> Array:
        """`windows.weights_at`."""
        ...

    def plan_frames(self, chain: Chain, cursor: Array, written: Array, shares: Array, moves: Array | None) -> FramePlan:
        """`frame_writes.plan_frames`."""
        ...

    def overwritten(self, chain: Chain, at: Array, ends: Ends, after: Array, steps: int) -> Removal:
        """`frame_writes.overwritten`."""
        ...

    def places(self, chain: Chain, at: Array, slots: Array, depth: int, following: bool) -> Array:
        """`frames.places`."""
        ...

    def expand(
        self,
        rule: Rule,
        lanes: Lanes,
        age: Array,
        next_age: Array,
        slots: Array,
        draws: Array,
        live: Array | None,
        by_trajectory: bool,
    ) -> Slices:
        """`windows.expand`."""
        ...

    def following(self, lanes: Lanes, age: Array, slots: Array, n: int) -> tuple[Array, Array]:
        """`windows.following`."""
        ...

    def extent(self, lanes: Lanes, age: Array, slots: Array) -> tuple[Array, Array]:
        """`windows.extent`."""
        ...

    def fold(self, rewards: Array, real: Array, gamma: float) -> tuple[Array, Array]:
        """`returns.fold` of float32 or float64 rewards."""
        ...

    def members(self, sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> Array:
        """`sparse_set.members`."""
        ...

    def exchanges(
        self, sparse_set: SparseSet, boundary: Array, positions: Array, marked: Array
    ) -> tuple[Array, Array, Array]:
        """`sparse_set.exchanges`, of which only what changes something need be told."""
        ...

    def appended(self, sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> tuple[Array, Array, Array]:
        """`sparse_set.appended`, likewise."""
        ...

    def distinct(self, draws: Array, n: Array) -> Array:
        """`sparse_set.distinct`."""
        ...

    def plan_line(self, pending: Array, ended: Array, ids: Array | None, mask: Array | None, n: int) -> Line:
        """`line.plan_line`."""
        ...


class Ops(Protocol):
    """The primitives of one backend."""

    native: Native | None
    """Kernels for what is worth one, or None: then the primitives do everything."""

    def zeros(self, shape: Sequence[int], dtype: str, device: Any = None) -> Array:
        """Zeros; pages that nobody wrote cost nothing where the system allows it."""
        ...

    def full_like(self, x: Array, value: int | float) -> Array:
        """An array of one value with the shape, dtype and device of another."""
        ...

    def arange(self, n: int, like: Array) -> Array:
        """int32 0, 1, ... n - 1, on the device of `like`."""
        ...

    def constant(self, name: str, like: Array) -> Array:
        """The table `power.TABLES[name]` as an array on the device of `like`."""
        ...

    def floats(self, values: Sequence[float], like: Array) -> Array:
        """float32 numbers known beforehand, on the device of `like`."""
        ...

    def cast(self, x: Array, dtype: str) -> Array:
        """Convert values; floats go to integers by dropping the fraction."""
        ...

    def bitcast(self, x: Array, dtype: str) -> Array:
        """Read the same bytes as another dtype; the last axis grows or shrinks with the item size."""
        ...

    def take(self, x: Array, index: Array) -> Array:
        """`x[index]` along the first axis; every index is in bounds."""
        ...

    def set_at(self, x: Array, index: Array, values: Array) -> Array:
        """`x` with `x[index] = values` along the first axis; equal indices come with equal values."""
        ...

    def set_flat(self, x: Array, index: Array, values: Array) -> Array:
        """Likewise for `x` seen as one vector, keeping its shape."""
        ...

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        """`x` where the condition holds, `y` elsewhere."""
        ...

    def minimum(self, x: Array, y: Array) -> Array:
        """The smaller of two, element by element."""
        ...

    def maximum(self, x: Array, y: Array) -> Array:
        """The larger of two, element by element."""
        ...

    def cumsum(self, x: Array) -> Array:
        """int32 running sums along the last axis."""
        ...

    def cummax(self, x: Array) -> Array:
        """Running maxima along the last axis."""
        ...

    def count(self, mask: Array) -> Array:
        """How many elements of a boolean vector are true, as an int32 scalar."""
        ...

    def argsort(self, x: Array) -> Array:
        """The positions that sort each vector along the last axis, equal elements in their order (stable), int32."""
        ...

    def searchsorted(self, ascending: Array, values: Array, side: Literal["left", "right"]) -> Array:
        """Where each value belongs in an ascending vector, int32."""
        ...

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Arrays joined along an axis."""
        ...

    def stack(self, scalars: Sequence[Array]) -> Array:
        """Scalars joined to a vector."""
        ...

    def all_rows(self, x: Array) -> Array:
        """Whether all of each row bool [n, m] are true, bool [n]."""
        ...

    def moveaxis(self, x: Array, source: int, destination: int) -> Array:
        """`x` with one axis moved elsewhere, the others in their order."""
        ...

    def mul_wide(self, a: Array, b: Array) -> tuple[Array, Array]:
        """The 62-bit product of int32 that are not negative, as `high * 2^31 + low`."""
        ...

    def call(self, function: Callable[..., Any], *arrays: Array) -> Any:
        """A function of the user's on arrays of the backend; what it gives is for the caller to check."""
        ...


def settled(ops: Ops, *arrays: Array) -> Sequence[Array]:
    """The same arrays, computed before whatever depends on them; see `Native.settle`."""
    return arrays if ops.native is None else ops.native.settle(arrays, ())
