"""Drawing from a mixture: each of its buffers draws for itself, and the rows that they give are joined.

1. `plan` shares a batch out, through all levels of mixtures: which buffer gives each row, and how many rows each gives.
   Buffers that have nothing to give are left out.
2. Each buffer draws. Where the numbers of rows are known, it draws just these. While a program is traced they are not:
   then it draws as many as it may have to give, of which the first `count` count. Draws are such that both ways give
   the same rows.
3. The chance of a row is that of its buffer times that in the buffer.
4. The rows are joined in one array, and taken from it in the order of the batch. Weights correct by their chances.
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
from functional_rb.mixture.layout import Layout
from functional_rb.mixture.value import Mixture
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Ops
from functional_rb.samplers.base import SamplerBase
from functional_rb.samplers.importance import importance_weights
from functional_rb.structures import row_layout

# In place of the numbers of a buffer and an item where nothing could be drawn.
NOTHING: Final = -1
# The fields of a selection that are bool in the shape of the handles, or None.
FLAGS: Final = ("mask", "is_first", "is_last", "truncated")
M = TypeVar("M", bound=Mixture)
# What a backend gives for a buffer after a draw: its state, or what of it is new.
After = TypeVar("After")


class Status(NamedTuple):
    """What a draw from a mixture has to know of a buffer: float32 scalars.

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
        known: whether numbers are at hand; then those of the plan are NumPy's.
        ops: the operations on the numbers of a plan.
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

    def join(self, columns: Sequence[Sequence[BackendArray]], order: BackendArray | None) -> list[BackendArray]:
        """Of each column the pieces one after the other, or their rows in an order int32 [B] if that is given."""
        return [joined(self.row_ops, pieces, order) for pieces in columns]

    def weights(self, chances: BackendArray, least: BackendArray, beta: BackendArray) -> BackendArray:
        """See `importance_weights`."""
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
        batch: B.
        p: float32 [K], in place of the mixture's shares; None for those.
        beta: the exponent of the weights; None where all of them are 1.
    """

    layout: Layout
    key: PRNGKey
    batch: int
    p: BackendArray = None
    beta: float | BackendArray | None = None


class Source(NamedTuple):
    """A buffer that is no mixture, in a plan.

    Attributes:
        key: for its draw.
        count: int32 scalar, how many rows it gives.
        share: float32 scalar, its share of the whole batch.
        status: of it.
    """

    key: PRNGKey
    count: BackendArray
    share: BackendArray
    status: Status


class Plan(NamedTuple):
    """How a batch is put together.

    Attributes:
        ids: int32 [B], the number of the source of each row.
        ranks: int32 [B], which of the rows that this source gives it is, from 0; 0 for rows that do not count.
        sources: of all levels of mixtures, in their order.
    """

    ids: BackendArray
    ranks: BackendArray
    sources: Sequence[Source]

    def least(self, ops: Ops) -> BackendArray:
        """The least chance of any item in any of the buffers with a share; 1 if nothing can be drawn."""
        share, chance = (ops.stack(x) for x in zip(*((s.share, s.status.least) for s in self.sources), strict=True))
        chances = ops.where(share > 0, share * chance, ops.full_like(chance, 1))
        return functools.reduce(ops.minimum, [chances[k] for k in range(len(self.sources))])


class _Looked(NamedTuple):
    """A state, of which the status is known, or a mixture, of which the normalized shares float32 [K] are, too."""

    status: Status
    shares: BackendArray = None
    members: Sequence[_Looked] = ()


def _look(carrier: Carrier[After], node: State | Mixture, p: BackendArray | None = None) -> _Looked:
    """Ask the buffers what a draw has to know of them; p stands in place of the mixture's shares."""
    if not isinstance(node, Mixture):
        return _Looked(carrier.status(node))
    ops, members = carrier.ops, [_look(carrier, one) for one in node.states]
    drawable, sizes, least = (ops.stack(parts) for parts in zip(*(one.status for one in members), strict=True))
    if p is None:
        p = node.spec.p if node.p is None else node.p
    p = sizes if p is None else carrier.floats(p, like=sizes)
    normalized = shares.normalized(ops, p, drawable > 0)
    stored = shares.added_up(ops.where(normalized > 0, sizes, ops.full_like(sizes, 0)))
    any_drawable = ops.cast(ops.count(normalized > 0) > 0, "float32")
    # What stands for the least chance is read by nobody: `Plan.least` goes by the buffers.
    return _Looked(Status(any_drawable, stored, least[0]), normalized, members)


def plan(carrier: Carrier[After], mixture: Mixture, request: Request) -> Plan:
    """Share a batch out.

    Raises:
        ValueError: if nothing can be drawn, and that is known.
    """
    looked = _look(carrier, mixture, request.p)
    if carrier.known:
        check_drawable(mixture, bool(looked.status.drawable > 0))
    # Where nothing can be drawn no buffer gives a row: neither one without a share, nor one that would lose it.
    wanted = carrier.ops.cast(looked.status.drawable * request.batch, "int32")
    return _shared_out(carrier, mixture, looked, request.key, request.batch, wanted)


def _shared_out(
    carrier: Carrier[After],
    mixture: Mixture,
    looked: _Looked,
    key: PRNGKey,
    batch: int,
    wanted: BackendArray,
    share: BackendArray | None = None,
) -> Plan:
    """The plan of some rows, of which the first `wanted` count; those of mixtures in the mixture are put in theirs."""
    ops = carrier.ops
    first, *keys = carrier.keys(key, len(mixture) + 1)
    draws = carrier.draws(first, shares.rows_of_draws(mixture.spec, batch))
    ids, ranks, counts = shares.assign(ops, mixture.spec, looked.shares, wanted, batch, draws)
    plans: list[Plan] = []
    for k, (node, one) in enumerate(zip(mixture.states, looked.members, strict=True)):
        own = looked.shares[k] if share is None else share * looked.shares[k]
        rows = int(counts[k]) if carrier.known else batch
        if isinstance(node, Mixture):
            plans.append(_shared_out(carrier, node, one, keys[k], rows, counts[k], own))
        else:
            place = ops.arange(rows, like=ids)
            plans.append(Plan(ops.full_like(place, 0), place, [Source(keys[k], counts[k], own, one.status)]))
    sources = [source for one in plans for source in one.sources]
    if len(sources) == len(plans):
        return Plan(ids, ranks, sources)
    order = ops.take(_starts(ops, [one.ids.shape[0] for one in plans], ids), ids) + ranks
    before = itertools.accumulate([0, *(len(one.sources) for one in plans[:-1])])
    below = ops.concat([one.ids + first for one, first in zip(plans, before, strict=True)], 0)
    return Plan(ops.take(below, order), ops.take(ops.concat([one.ranks for one in plans], 0), order), sources)


def _starts(ops: Ops, sizes: Sequence[int], like: BackendArray) -> BackendArray:
    return ops.integers([0, *itertools.accumulate(sizes[:-1])], like=like)


def rows(
    carrier: Carrier[After], mixture: Mixture, layout: Layout, plan: Plan, sizes: Sequence[int]
) -> tuple[list[After | None], list[BackendArray], Selection]:
    """Have each buffer draw as many rows as `sizes` says, and join them in the order of the batch.

    Returns:
        What the carrier gives for each buffer afterwards, None for those that gave nothing; the leaves; and the
        selection. Handles are int32 [B, *steps, columns], the number of the buffer on each level and the handle. In
        place of weights it has the chances by which these correct.
    """
    ops, columns = carrier.ops, mixture.depth + 1
    after: list[After | None] = []
    pieces: list[list[BackendArray]] = []
    selections: list[Selection] = []
    own = layout.leaves.places, layout.leaves.own
    places = zip(mixture.buffers, mixture.paths, plan.sources, sizes, *own, strict=True)
    for state, path, source, size, positions, structure in places:
        # In a batch of no rows one buffer at least has to give its leaves, of no rows.
        if not size and any(sizes):
            after.append(None)
            continue
        spec = state.spec
        # A sampler that takes items out refuses an odd number of windows, unless it is asked for some of a batch.
        wanted = None if carrier.known and not spec.sampler.takes_out else source.count
        one, leaves, selection = carrier.draw(state, source.key, size, wanted)
        if spec.on_sample is not None:
            lead = spec.sampler.leading_shape(size)
            items = given_out(carrier.mapper, spec, leaves, lead, source.key, selection.mask)
            leaves = nest.flatten_as(structure, items)
        split = functools.partial(_split, layout, size)
        numbers = (*path, *(0,) * (columns - 1 - len(path)))
        after.append(one)
        pieces.append([split(leaves[k]) for k in positions])
        selections.append(_in_mixture(carrier.row_ops, each(split, selection), numbers, source, spec.sampler))
    order = ops.take(_starts(ops, sizes, plan.ids), plan.ids) + plan.ranks
    if carrier.known and bool((order[1:] > order[:-1]).all()):  # as with "exact": nothing is moved
        order = None
    leaves, selection = _joined(carrier, pieces, selections, order)
    return after, leaves, selection if carrier.known else _only_real(ops, plan, selection)


def by_one_call(
    layout: Layout, batch: int, leaves: Sequence[BackendArray], selection: Selection
) -> tuple[list[BackendArray], Selection]:
    """What one call has drawn from buffers alike, as `rows` gives it."""
    split = functools.partial(_split, layout, batch)
    return [split(leaf) for leaf in leaves], each(split, selection)


def _split(layout: Layout, batch: int, x: BackendArray) -> BackendArray:
    # Flat slices [B * steps, ...] get their two axes.
    return x.reshape(batch, layout.steps, *x.shape[1:]) if layout.flat else x


def _in_mixture(
    ops: Ops, selection: Selection, numbers: Sequence[int], source: Source, sampler: SamplerBase
) -> Selection:
    """What was drawn from a buffer as the mixture has it, which names the buffer by these numbers."""
    handles = selection.handles[..., None]
    nothing = handles >> 31  # all bits of a negative handle: -1 beside -1
    probabilities = selection.probabilities * source.share
    chances = probabilities
    if not sampler.single_law:  # no draw has a chance of its own: all items count as the least likely one
        chances = (ops.full_like(probabilities, 0) + source.status.least) * source.share
    return selection._replace(
        handles=ops.concat([*(nothing | number for number in numbers), handles], -1),
        weights=chances,
        probabilities=probabilities,
    )


def each(function: Callable[[BackendArray], BackendArray], selection: Selection) -> Selection:
    """A selection with a function of what is in the shape of the handles."""
    told = selection._asdict()
    changed = {name: function(told[name]) for name in ("handles", *FLAGS) if told[name] is not None}
    return selection._replace(**changed, extras={name: function(x) for name, x in selection.extras.items()})


def _joined(
    carrier: Carrier[After],
    leaves: Sequence[Sequence[BackendArray]],
    selections: Sequence[Selection],
    order: BackendArray | None,
) -> tuple[list[BackendArray], Selection]:
    told = {name: [getattr(one, name) for one in selections] for name in Selection._fields if name != "extras"}
    if any(mask is not None for mask in told["mask"]):
        # Only a mask may be missing of some buffers: they give slices all, which have the other flags, or none.
        told["mask"] = [one.handles[..., -1] >= 0 if one.mask is None else one.mask for one in selections]
    told = {name: pieces for name, pieces in told.items() if pieces[0] is not None}
    shared = [name for name in selections[0].extras if all(name in one.extras for one in selections)]
    extras = [[one.extras[name] for one in selections] for name in shared]
    whole = iter(carrier.join([*zip(*leaves, strict=True), *told.values(), *extras], order))
    made = [next(whole) for _ in leaves[0]]
    fields = {name: next(whole) for name in told}
    return made, Selection(**fields, extras={name: next(whole) for name in shared})


def _only_real(ops: Ops, plan: Plan, selection: Selection) -> Selection:
    """Rows that a buffer gives as they are, and nothing in place of the others: of all, if nothing can be drawn."""
    real = ops.take(ops.stack([source.count for source in plan.sources]), plan.ids) > plan.ranks

    def only(x: BackendArray, other: int) -> BackendArray:
        return ops.where(row_layout.along(real, x), x, ops.full_like(x, other))

    flags = {name: x & row_layout.along(real, x) for name in FLAGS if (x := getattr(selection, name)) is not None}
    handles, probabilities = only(selection.handles, NOTHING), only(selection.probabilities, 0)
    return selection._replace(handles=handles, probabilities=probabilities, **flags)


def weighed(
    carrier: Carrier[After], selection: Selection, least: BackendArray, beta: float | BackendArray | None
) -> Selection:
    """With weights `(q_i / q_min) ** -beta`, float32 [B], in place of the chances q_i; 1 without a beta, 0 for nothing.

    q_min is the least chance of any item in any of the buffers that can be drawn (Schaul et al., 2016, 3.4).
    """
    ops, there = carrier.row_ops, selection.handles[..., -1] >= 0
    there = there if there.ndim == 1 else there[:, 0]
    if beta is None:
        return selection._replace(weights=ops.cast(there, "float32"))
    weights = carrier.weights(selection.weights, least, beta)
    return selection._replace(weights=ops.where(there, weights, ops.full_like(weights, 0)))


def draw(carrier: Carrier[State], mixture: M, request: Request) -> tuple[M, list[BackendArray], Selection]:
    """Draw a batch: the mixture afterwards, the leaves, and the selection; see `rows`.

    Raises:
        ValueError: if nothing can be drawn, and that is known.
    """
    shared = plan(carrier, mixture, request)
    sizes = [int(source.count) if carrier.known else request.batch for source in shared.sources]
    after, leaves, selection = rows(carrier, mixture, request.layout, shared, sizes)
    return mixture.with_buffers(after), leaves, weighed(carrier, selection, shared.least(carrier.ops), request.beta)


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
