"""Drawing from a mixture: each of its buffers draws for itself, and the rows that they give are joined.

1. `_look` asks each buffer what a draw has to know of it, and finds how much of the batch each gives. Buffers that have
   nothing to give are left out.
2. `assign` chooses which buffer gives each row. Where the numbers of rows are known, a buffer draws just these. While
   a program is traced they are not: then it draws as many as it may have to give, of which the first `wanted` count.
   Draws are such that both ways give the same rows.
3. The rows are joined in one array, and taken from it in the order of the batch. The chance of a row is that of its
   buffer times that in the buffer. A mixture in a mixture gives its rows as a buffer does.
4. Weights correct by the chances.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, PRNGKey
from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer.mapping import Mapper, given_out
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Selection
from functional_rb.mixture import shares
from functional_rb.mixture.layout import Layout, Leaves, needs_whole_batch
from functional_rb.mixture.shares import Assignment
from functional_rb.mixture.value import Mixture
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Ops
from functional_rb.samplers.importance import importance_weights
from functional_rb.structures import row_layout

# In place of the numbers of a buffer and an item where nothing could be drawn.
NOTHING: Final = -1
# The fields of a selection that are bool in the shape of the handles, or None.
FLAGS: Final = ("mask", "is_first", "is_last", "truncated")
M = TypeVar("M", bound=Mixture)
# What a backend gives for a buffer after a draw: its state, or what of it is new.
After = TypeVar("After")
# What a buffer, or a mixture, gives: what its buffers are afterwards, None for those that gave nothing; the leaves; and
# the selection. Handles are int32 [B, *steps, columns], the numbers of the buffer and the handle. In place of weights
# it has the chances by which these correct.
Rows = tuple[list[After | None], list[BackendArray], Selection]


class Status(NamedTuple):
    """What a draw from a mixture has to know of a buffer, or of a mixture in it: float32 scalars.

    Attributes:
        drawable: 1 if anything can be drawn, 0 if not.
        size: how many items are stored.
        least: the least chance of an item in a draw, see `SamplerBase.least_chance`.
    """

    drawable: BackendArray
    size: BackendArray
    least: BackendArray


def status(ops: Ops, state: State | Arrays, spec: BufferSpec) -> BackendArray:
    """A `Status` as a vector float32 [3]."""
    draft = Draft.of(state, spec.plan)
    drawable = ops.cast(spec.sampler.drawable(ops, draft, 1), "float32")
    return ops.stack([drawable, ops.cast(draft.size(ops), "float32"), spec.sampler.least_chance(ops, draft)])


class Carrier(abc.ABC, Generic[After]):
    """What a backend does for a draw from a mixture.

    Attributes:
        known: whether numbers are at hand; then those that say how a batch is shared out are NumPy's.
        ops: the operations on these numbers.
        row_ops: those on the numbers of the rows that were drawn.
        mapper: carries functions of items out.
    """

    known: bool
    ops: Ops
    row_ops: Ops
    mapper: Mapper

    @abc.abstractmethod
    def status(self, state: State) -> Status:
        """What a draw has to know of a buffer."""

    @abc.abstractmethod
    def floats(self, p: object, like: BackendArray) -> BackendArray:
        """Shares as float32 where another array is."""

    @abc.abstractmethod
    def keys(self, key: PRNGKey, n: int) -> Sequence[PRNGKey]:
        """Independent keys made of one."""

    @abc.abstractmethod
    def draws(self, key: PRNGKey, n: int) -> BackendArray:
        """Uniform numbers int32 [n] in [0, 2^31)."""

    @abc.abstractmethod
    def draw(
        self, state: State, key: PRNGKey, batch: int, wanted: BackendArray | None
    ) -> tuple[After, Sequence[BackendArray], Selection]:
        """Draw a batch, of which the first `wanted` rows count, or all; the mixture computes its own weights."""

    def assigned(self, assignment: Assignment) -> Assignment:
        """Which buffer gives which row, as a backend goes on with it."""
        return assignment

    def drawn(
        self, draw: Callable[[Sequence[int]], Rows[After]], sizes: Sequence[int], share: BackendArray
    ) -> Rows[After]:
        """What buffers with these shares give by `draw(sizes)`, or by other sizes that are as good."""
        return draw(sizes)

    def join(self, columns: Sequence[Sequence[BackendArray]], order: BackendArray | None) -> list[BackendArray]:
        """The pieces of each column one after the other, or their rows in an order int32 [B] if that is given."""
        return [joined(self.row_ops, pieces, order) for pieces in columns]

    def weights(self, chances: BackendArray, least: BackendArray, beta: BackendArray) -> BackendArray:
        """Importance weights of draws with these chances, see `importance_weights`."""
        return importance_weights(self.row_ops, chances, least, beta)


def joined(ops: Ops, pieces: Sequence[BackendArray], order: BackendArray | None) -> BackendArray:
    """Pieces one after the other, or their rows in an order int32 [B] if that is given."""
    ops = numpy_ops.OPS if is_object_array(pieces[0]) else ops  # only NumPy has arrays of Python objects
    whole = pieces[0] if len(pieces) == 1 else ops.concat(pieces, 0)
    return whole if order is None else ops.take(whole, order)


class Request(NamedTuple):
    """What is asked of a draw.

    Attributes:
        layout: of the sample.
        key: of the backend.
        p: float32 [K], in place of the mixture's shares; None for those.
        beta: the exponent of the weights; None where all of them are 1.
    """

    layout: Layout
    key: PRNGKey
    p: BackendArray = None
    beta: float | BackendArray | None = None


class _Looked(NamedTuple):
    # The status of a state, or of a mixture, of which the normalized shares float32 [K] are known, too.
    status: Status
    shares: BackendArray = None
    members: Sequence[_Looked] = ()


def _look(carrier: Carrier[After], node: State | Mixture, p: BackendArray | None = None) -> _Looked:
    # p stands in place of the mixture's shares.
    if not isinstance(node, Mixture):
        return _Looked(carrier.status(node))
    ops, members = carrier.ops, [_look(carrier, one) for one in node.states]
    drawable, sizes, least = (ops.stack(parts) for parts in zip(*(one.status for one in members), strict=True))
    if p is None:
        p = node.spec.p if node.p is None else node.p
    share = shares.normalized(ops, sizes if p is None else carrier.floats(p, like=sizes), drawable > 0)
    stored = shares.added_up(ops.where(share > 0, sizes, ops.full_like(sizes, 0)))
    # Items in buffers without a share have no chance to correct for.
    chances = ops.where(share > 0, share * least, ops.full_like(least, 1))
    least = functools.reduce(ops.minimum, [chances[k] for k in range(len(members))])
    return _Looked(Status(ops.cast(ops.count(share > 0) > 0, "float32"), stored, least), share, members)


def draw(carrier: Carrier[After], mixture: Mixture, request: Request) -> Rows[After]:
    """Draw a batch, see `Rows`, with weights.

    Raises:
        ValueError: if nothing can be drawn, and that is known.
    """
    layout, key, p, beta = request
    looked = _look(carrier, mixture, p)
    if carrier.known:
        check_drawable(mixture, bool(looked.status.drawable > 0))
    # Where nothing can be drawn no buffer gives a row: neither one without a share, nor one that would lose it.
    wanted = carrier.ops.cast(looked.status.drawable * layout.size, "int32")
    after, leaves, selection = _of_mixture(carrier, layout, layout.leaves, mixture, looked, key, layout.size, wanted)
    return after, leaves, _weighed(carrier, selection, looked.status.least, beta)


def _of_mixture(
    carrier: Carrier[After],
    layout: Layout,
    leaves: Leaves,
    mixture: Mixture,
    looked: _Looked,
    key: PRNGKey,
    batch: int,
    wanted: BackendArray,
) -> Rows[After]:
    ops, columns = carrier.row_ops, mixture.depth + 1
    first, *keys = carrier.keys(key, len(mixture) + 1)
    draws = carrier.draws(first, shares.rows_of_draws(mixture.spec, batch))
    assignment = carrier.assigned(shares.assign(carrier.ops, mixture.spec, looked.shares, wanted, batch, draws))
    ids, ranks, counts = assignment

    def joined_of(sizes: Sequence[int]) -> Rows[After]:
        after: list[After | None] = []
        pieces, selections = [], []
        each = zip(mixture.states, looked.members, leaves.members, keys, sizes, strict=True)
        for k, (node, one, inner, own_key, size) in enumerate(each):
            # In a batch of no rows one buffer at least has to give its leaves, of no rows.
            if not size and any(sizes):
                after += [None] * (len(node.buffers) if isinstance(node, Mixture) else 1)
                continue
            if isinstance(node, Mixture):
                new, rows, selection = _of_mixture(carrier, layout, inner, node, one, own_key, size, counts[k])
            else:
                new, rows, selection = of_buffer(carrier, layout, inner, node, own_key, size, counts[k])
                if not node.spec.sampler.single_law:  # no draw has a chance of its own: all count as the least likely
                    least = ops.full_like(selection.probabilities, 0) + one.status.least
                    selection = selection._replace(weights=least)
            handles = selection.handles
            nothing = handles[..., -1:] >> 31  # all bits of a negative handle: -1 beside -1
            padding = [nothing] * (columns - 1 - handles.shape[-1])
            named = ops.concat([nothing | k, handles[..., :-1], *padding, handles[..., -1:]], -1)
            after += new
            pieces.append(rows if layout.function else [rows[place] for place in leaves.places[k]])
            selections.append(
                selection._replace(
                    handles=named,
                    weights=selection.weights * looked.shares[k],
                    probabilities=selection.probabilities * looked.shares[k],
                )
            )
        starts = carrier.ops.integers([0, *itertools.accumulate(sizes[:-1])], like=ids)
        order = carrier.ops.take(starts, ids) + ranks
        in_order = carrier.known and bool((order[1:] > order[:-1]).all())  # as with "exact": nothing is moved
        return after, *_joined(carrier, pieces, selections, None if in_order else order)

    sizes = [int(count) for count in counts] if carrier.known else [batch] * len(mixture)
    after, rows, selection = carrier.drawn(joined_of, sizes, looked.shares)
    return after, rows, selection if carrier.known else _only_real(ops, assignment, selection)


def of_buffer(
    carrier: Carrier[After], layout: Layout, leaves: Leaves, state: State, key: PRNGKey, size: int, count: BackendArray
) -> Rows[After]:
    """What a buffer gives, so many rows of which the first `count` count; handles have an axis for columns."""
    spec, sampler, batch = state.spec, state.spec.sampler, size
    is_mapped = spec.on_sample is not None and layout.function is None
    if size and is_mapped and needs_whole_batch(spec):
        batch = layout.size  # else the function would see as many rows as happen to be known to be needed
        if not (carrier.known or sampler.remembers):
            count = carrier.ops.full_like(count, batch)  # else kernels would leave out the rows that do not count
    # A sampler that takes items out refuses an odd number of windows, unless it is asked for some of a batch.
    some = not carrier.known or sampler.takes_out or (batch > size and sampler.remembers)
    after, rows, selection = carrier.draw(state, key, batch, count if some else None)
    if is_mapped:
        items = given_out(carrier.mapper, spec, rows, sampler.leading_shape(batch), key, selection.mask)
        rows = nest.flatten_as(leaves.structure, items)

    def first(x: BackendArray) -> BackendArray:
        x = split(layout, batch, x)
        return x if batch == size else x[:size]

    probabilities = selection.probabilities if batch == size else selection.probabilities[:size]
    selection = each(first, selection)
    handles = selection.handles[..., None]
    selection = selection._replace(handles=handles, weights=probabilities, probabilities=probabilities)
    return [after], [first(leaf) for leaf in rows], selection


def split(layout: Layout, batch: int, x: BackendArray) -> BackendArray:
    """Flat slices [B * steps, ...] with two axes; anything else as it is."""
    return x.reshape(batch, layout.steps, *x.shape[1:]) if layout.flat else x


def each(function: Callable[[BackendArray], BackendArray], selection: Selection) -> Selection:
    """A selection with a function of what is in the shape of the handles."""
    fields = selection._asdict()
    changed = {name: function(fields[name]) for name in ("handles", *FLAGS) if fields[name] is not None}
    return selection._replace(**changed, extras={name: function(x) for name, x in selection.extras.items()})


def _joined(
    carrier: Carrier[After],
    leaves: Sequence[Sequence[BackendArray]],
    selections: Sequence[Selection],
    order: BackendArray | None,
) -> tuple[list[BackendArray], Selection]:
    numbers = {name: [getattr(one, name) for one in selections] for name in ("handles", "weights", "probabilities")}
    flags, extras = columns_of(selections)
    whole = iter(
        carrier.join([*zip(*leaves, strict=True), *numbers.values(), *flags.values(), *extras.values()], order)
    )
    rows = [next(whole) for _ in leaves[0]]
    fields = {name: next(whole) for name in (*numbers, *flags)}
    return rows, Selection(**fields, extras={name: next(whole) for name in extras})


def columns_of(selections: Sequence[Selection]) -> tuple[dict[str, list[BackendArray]], dict[str, list[BackendArray]]]:
    """The flags that any of some selections has, and the extras that all have, by name, with one for each selection."""
    flags = {name: [getattr(one, name) for one in selections] for name in FLAGS}
    if any(mask is not None for mask in flags["mask"]):
        # Only a mask may be missing of some buffers: they give slices all, which have the other flags, or none.
        flags["mask"] = [one.handles[..., -1] >= 0 if one.mask is None else one.mask for one in selections]
    shared = [name for name in selections[0].extras if all(name in one.extras for one in selections)]
    extras = {name: [one.extras[name] for one in selections] for name in shared}
    return {name: pieces for name, pieces in flags.items() if pieces[0] is not None}, extras


def _only_real(ops: Ops, assignment: Assignment, selection: Selection) -> Selection:
    """A selection in which rows that no buffer gives are nothing: all of them, if nothing can be drawn."""
    real = ops.take(assignment.counts, assignment.ids) > assignment.ranks

    def only(x: BackendArray, other: int) -> BackendArray:
        return ops.where(row_layout.along(real, x), x, ops.full_like(x, other))

    flags = {name: x & row_layout.along(real, x) for name in FLAGS if (x := getattr(selection, name)) is not None}
    handles, probabilities = only(selection.handles, NOTHING), only(selection.probabilities, 0)
    return selection._replace(handles=handles, probabilities=probabilities, **flags)


def _weighed(
    carrier: Carrier[After], selection: Selection, least: BackendArray, beta: float | BackendArray | None
) -> Selection:
    """Set weights `(q_i / q_min) ** -beta`, float32 [B], in place of the chances q_i; 1 without a beta, 0 for nothing.

    q_min is the least chance of any item in any of the buffers that can be drawn (Schaul et al., 2016, 3.4).
    """
    ops, there = carrier.row_ops, selection.handles[..., -1] >= 0
    there = there if there.ndim == 1 else there[:, 0]
    if beta is None:
        return selection._replace(weights=ops.cast(there, "float32"))
    weights = carrier.weights(selection.weights, least, beta)
    return selection._replace(weights=ops.where(there, weights, ops.full_like(weights, 0)))


def check_heeding(mixture: Mixture) -> None:
    """Refuse samplers that would lose items where it is not known how many each buffer gives.

    Raises:
        TypeError: naming the sampler.
    """
    for state in mixture.buffers:
        if not state.spec.sampler.heeds_wanted:
            raise TypeError(
                f"sample: {state.spec.sampler} remembers what it draws, and draws whole batches alone "
                f"(SamplerBase.heeds_wanted), while how much of a batch each buffer of a mixture gives is known only "
                f"once it is drawn; sample its buffer by itself"
            )


def check_drawable(mixture: Mixture, drawable: bool) -> None:
    """Refuse to draw from nothing, where that is known."""
    if not drawable:
        raise ValueError(
            f"sample: nothing can be drawn from any of the {len(mixture.buffers)} buffers of the mixture with a share; "
            f"add items first (rb.can_sample(mixture) tells)"
        )
