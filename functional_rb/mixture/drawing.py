"""Drawing from a mixture: each of its buffers draws for itself, and the rows that they give are joined.

1. `look` finds what the shares of the buffers are, of which those that have nothing to give are left out.
2. `shares` shares a batch out: which buffer gives each row, and how many rows each gives.
3. Each buffer draws. Where the numbers of rows are known, it draws just these. While a program is traced they are not:
   then it draws as many as it may have to give, of which the first `wanted` count. Draws are such that both ways give
   the same rows.
4. The rows are joined in one array, and taken from it in the order of the batch.
5. The chance of a row is that of its buffer times that in the buffer, and weights correct by it.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

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
from functional_rb.mixture.shares import Assignment
from functional_rb.mixture.value import Mixture
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Ops
from functional_rb.samplers.importance import importance_weights
from functional_rb.structures import row_layout

# The fields of a selection that are bool in the shape of the handles, or None.
FLAGS = ("mask", "is_first", "is_last", "truncated")
# In place of the numbers of a buffer and an item where nothing could be drawn.
NOTHING: Final = -1


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


class Drawn(NamedTuple):
    """Rows of a sample.

    Attributes:
        leaves: [B, *steps, *shape] each, the steps being [length] of slices and none of single items; or of other
            shapes [B, ...], as a function of items gives them.
        indices: int32 [B, *steps, columns], the number of the buffer on each level and the handle.
        chances: float32 [B], by which weights correct, meaningless where nothing could be drawn.
        probabilities: float32 [B].
        flags: bool [B, *steps] or None, by name.
        extras: what all buffers' transforms tell, by name.
    """

    leaves: Sequence[BackendArray]
    indices: BackendArray
    chances: BackendArray
    probabilities: BackendArray
    flags: Mapping[str, BackendArray | None]
    extras: Mapping[str, BackendArray]


def by_one_call(
    spec: BufferSpec,
    leaves: Sequence[BackendArray],
    indices: BackendArray,
    probabilities: BackendArray,
    flags: Sequence[BackendArray],
) -> Drawn:
    """Items or slices of buffers alike, with the flags of slices in the order of `FLAGS`, weighted by probabilities.

    Flat slices get their two axes.
    """
    lead = probabilities.shape if (steps := steps_of(spec)) is None else (*probabilities.shape, steps)
    flat = spec.sampler.steps_in_a_row is not None

    def shaped(x: BackendArray) -> BackendArray:
        return x.reshape(*lead, *x.shape[1:]) if flat else x

    told = dict(itertools.zip_longest(FLAGS, map(shaped, flags)))
    return Drawn([*map(shaped, leaves)], shaped(indices), probabilities, probabilities, told, {})


class Carrier(abc.ABC):
    """What a backend does for a draw from a mixture, whose numbers are known, or traced.

    Numbers are all that is small: shares, handles, chances. Those that are known are NumPy's, which is the fastest.

    Attributes:
        known: whether the numbers are at hand.
        ops: the operations on numbers.
        mapper: carries functions of items out.
    """

    known: ClassVar[bool]
    ops: Ops
    mapper: Mapper

    @abc.abstractmethod
    def status(self, state: State) -> Status:
        """What a draw has to know of a buffer; see `Status`."""

    @abc.abstractmethod
    def keys(self, key: PRNGKey, n: int) -> Sequence[PRNGKey]:
        """Independent keys made of one."""

    @abc.abstractmethod
    def draws(self, key: PRNGKey, n: int) -> BackendArray:
        """Uniform numbers int32 [n] in [0, 2^31)."""

    def key_of(self, key: PRNGKey) -> PRNGKey:
        """One of the keys, as `draw` and functions of items take it."""
        return key

    @abc.abstractmethod
    def draw(
        self, state: State, key: PRNGKey, batch: int, wanted: BackendArray | None
    ) -> tuple[State, Sequence[BackendArray], Selection]:
        """Draw a batch, of which the first `wanted` rows count, or all; the mixture computes its own weights."""

    def draw_at_once(
        self, states: Sequence[State | Mixture], keys: Sequence[PRNGKey], sizes: Sequence[int]
    ) -> tuple[Sequence[BackendArray], Selection] | None:
        """Draw from buffers alike that remember nothing, one after the other, by one call; None if that cannot be."""
        return None

    def numbers(self, array: BackendArray) -> BackendArray:
        """Handles, chances or flags that a buffer drew, where the numbers of the mixture are."""
        return array

    def rows(self, leaves: Sequence[Sequence[BackendArray]], order: BackendArray | None) -> list[BackendArray]:
        """Of each leaf the rows of several buffers, one after the other, or in an order int32 [B] if that is given."""
        return [take(self.ops, pieces, order) for pieces in leaves]

    def floats(self, p: BackendArray | Sequence[float], like: BackendArray) -> BackendArray:
        """Shares as float32 where another array is; those that are known stay as they are."""
        return p

    def settled(self, plan: Assignment) -> Assignment:
        """The plan, computed once: a compiler may else compute it again for each row that is chosen by it."""
        return plan

    def weights(self, chances: BackendArray, least: BackendArray, beta: BackendArray) -> BackendArray:
        """See `importance_weights`."""
        return importance_weights(self.ops, chances, least, beta)


class Looked(NamedTuple):
    """A state or mixture, and what a draw has to know of it.

    Attributes:
        node: the state or the mixture.
        status: of it; the least chance in a mixture is that by its shares.
        members: of a mixture, its buffers.
        shares: of a mixture, float32 [K], normalized.
    """

    node: State | Mixture
    status: Status
    members: Sequence[Looked] = ()
    shares: BackendArray = None


def look(carrier: Carrier, node: State | Mixture, p: BackendArray | None = None) -> Looked:
    """Ask the buffers what a draw has to know of them; p, float32 [K], stands in place of the mixture's shares."""
    if not isinstance(node, Mixture):
        return Looked(node, carrier.status(node))
    members = [look(carrier, one) for one in node.states]
    statuses = tuple(one.status for one in members)
    if p is None:
        p = node.spec.p if node.p is None else node.p
    if carrier.known:
        normalized, of_all = _known_shares(p if p is None or isinstance(p, tuple) else tuple(p.tolist()), statuses)
    else:
        p = None if p is None else carrier.floats(p, statuses[0].size)
        normalized, of_all = _shares(carrier.ops, p, statuses)
    return Looked(node, of_all, members, normalized)


def _shares(
    ops: Ops, p: BackendArray | tuple[float, ...] | None, statuses: Sequence[Status]
) -> tuple[BackendArray, Status]:
    """The shares of buffers float32 [K], by an array, numbers, or what is stored; and the status of all together."""
    drawable, sizes, least = (ops.stack(parts) for parts in zip(*statuses, strict=True))
    if p is None:
        p = sizes
    elif isinstance(p, tuple):
        p = ops.floats(p, like=sizes)
    normalized = shares.normalized(ops, p, drawable > 0)
    chances = ops.where(normalized > 0, normalized * least, ops.full_like(least, 1))
    stored = shares.added_up(ops.where(normalized > 0, sizes, ops.full_like(sizes, 0)))
    any_drawable = ops.cast(ops.count(normalized > 0) > 0, "float32")
    return normalized, Status(any_drawable, stored, functools.reduce(ops.minimum, chances))


# NumPy takes longer for these few numbers than for the draw itself, and buffers that are full keep theirs.
_known_shares = functools.lru_cache(maxsize=256)(functools.partial(_shares, numpy_ops.OPS))


def draw(
    carrier: Carrier,
    looked: Looked,
    layout: Layout,
    key: PRNGKey,
    batch: int,
    wanted: BackendArray | None = None,
    most: Sequence[int] | None = None,
) -> tuple[Any, Drawn]:
    """Draw a batch; the state or mixture afterwards, and the rows.

    Where the numbers of buffers are known, something can be drawn from one at least.

    Args:
        carrier: of the backend.
        looked: the state or mixture.
        layout: of its samples.
        key: of the backend.
        batch: B.
        wanted: an int32 scalar that is traced: only the first rows, so many, count; None if all do.
        most: how many rows each buffer gives at most; B each if it is not given.
    """
    if not isinstance(looked.node, Mixture):
        return _from_buffer(carrier, looked, layout, key, batch, wanted)
    ops, node = carrier.ops, looked.node
    first, *keys = carrier.keys(key, len(node) + 1)
    draws = carrier.draws(first, shares.rows_of_draws(node.spec, batch))
    counts: Sequence[BackendArray | None] = [None] * len(node)
    if carrier.known:
        plan = shares.assign_known(node.spec, looked.shares.tobytes(), batch, draws)
        sizes = plan.counts.tolist()
    else:
        if wanted is None:
            wanted = ops.cast(ops.full_like(looked.status.size, batch), "int32")
        plan = carrier.settled(shares.assign(ops, node.spec, looked.shares, wanted, batch, draws))
        sizes, counts = most or [batch] * len(node), plan.counts
    after, parts = _from_buffers(carrier, node, looked, layout, keys, sizes, counts)
    order = None
    # With "exact" the rows of known numbers come in the order of the buffers, as the batch has them.
    if not carrier.known or node.spec.how != "exact":
        starts = ops.integers([0, *itertools.accumulate(sizes[:-1])], like=plan.ids)
        order = ops.take(starts, plan.ids) + plan.ranks
    drawn = _joined(carrier, parts, order)
    drawn = _in_mixture(ops, node.depth, drawn, plan.ids, ops.take(looked.shares, plan.ids))
    if after is not node.states and any(one is not before for one, before in zip(after, node.states, strict=True)):
        node = node.with_states(after)
    if carrier.known:
        return node, drawn
    return node, _only(ops, drawn, (ops.arange(batch, like=plan.ids) < wanted) & (looked.status.drawable > 0))


def _from_buffer(
    carrier: Carrier, looked: Looked, layout: Layout, key: PRNGKey, batch: int, wanted: BackendArray | None
) -> tuple[State, Drawn]:
    assert not isinstance(looked.node, Mixture)
    spec = looked.node.spec
    # A sampler that takes items out refuses an odd number of windows, unless it is asked for some of a batch.
    if carrier.known and spec.sampler.takes_out:
        wanted = np.int32(batch)
    key = carrier.key_of(key)
    state, leaves, selection = carrier.draw(looked.node, key, batch, wanted)
    if spec.on_sample is not None:
        lead = spec.sampler.leading_shape(batch)
        items = given_out(carrier.mapper, spec, leaves, lead, key, selection.mask)
        leaves = nest.flatten_as(layout.structure, items)
    return state, _as_rows(carrier, spec, batch, leaves, selection, looked.status.least)


def _as_rows(
    carrier: Carrier,
    spec: BufferSpec,
    batch: int,
    leaves: Sequence[BackendArray],
    selection: Selection,
    least: BackendArray,
) -> Drawn:
    """What was drawn from a buffer; flat slices get their two axes."""
    steps = steps_of(spec)
    shape = (batch,) if steps is None else (batch, steps)
    is_flat = len(spec.sampler.leading_shape(batch)) < len(shape)

    def shaped(x: BackendArray) -> BackendArray:
        return x.reshape(*shape, *x.shape[1:]) if is_flat else x

    def number(x: BackendArray | None) -> BackendArray:
        return None if x is None else carrier.numbers(shaped(x))

    probabilities = carrier.numbers(selection.probabilities)
    chances = probabilities
    if not spec.sampler.single_law:  # no draw has a chance of its own: all items count as the least likely one
        chances = carrier.ops.full_like(probabilities, 0) + least
    return Drawn(
        [shaped(leaf) for leaf in leaves],
        number(selection.handles)[..., None],
        chances,
        probabilities,
        {name: number(getattr(selection, name)) for name in FLAGS},
        {name: shaped(x) for name, x in selection.extras.items()},
    )


def steps_of(spec: BufferSpec) -> int | None:
    """How many steps a slice has; None for single items."""
    two = spec.sampler.leading_shape(2)
    return None if two == (2,) else math.prod(two) // 2


def _from_buffers(
    carrier: Carrier,
    mixture: Mixture,
    looked: Looked,
    layout: Layout,
    keys: Sequence[PRNGKey],
    sizes: Sequence[int],
    counts: Sequence[BackendArray | None],
) -> tuple[Sequence[State | Mixture], list[Drawn]]:
    """The buffers of a mixture after they have drawn so many rows each, and the rows of those that gave any."""
    if layout.alike:
        selected = carrier.draw_at_once(mixture.states, keys, sizes)
        if selected is not None:
            first = mixture.states[0]
            assert isinstance(first, State)
            return mixture.states, [_as_rows(carrier, first.spec, sum(sizes), *selected, looked.status.least)]
    after, parts = list(mixture.states), []
    for k, member in enumerate(looked.members):
        # In a batch of no rows one buffer at least has to give its leaves, of no rows.
        if sizes[k] or not any(sizes):
            after[k], drawn = draw(carrier, member, layout.members[k], keys[k], sizes[k], counts[k])
            parts.append(drawn._replace(leaves=[drawn.leaves[place] for place in layout.places[k]]))
    return after, parts


def _joined(carrier: Carrier, parts: Sequence[Drawn], order: BackendArray | None) -> Drawn:
    ops, columns = carrier.ops, max(part.indices.shape[-1] for part in parts)
    extras = [name for name in parts[0].extras if all(name in part.extras for part in parts)]

    def numbers(pieces: Sequence[BackendArray]) -> BackendArray:
        return take(ops, pieces, order)

    flags: dict[str, BackendArray | None] = dict.fromkeys(FLAGS)
    for name in FLAGS:
        pieces = [part.flags[name] for part in parts]
        if any(piece is not None for piece in pieces):
            # Only a mask may be missing of some buffers: they give slices all, which have the other flags, or none.
            pieces = [part.indices[..., -1] >= 0 if x is None else x for part, x in zip(parts, pieces, strict=True)]
            flags[name] = numbers(pieces)
    return Drawn(
        carrier.rows([*zip(*(part.leaves for part in parts), strict=True)], order),
        numbers([_padded(ops, part.indices, columns) for part in parts]),
        numbers([part.chances for part in parts]),
        numbers([part.probabilities for part in parts]),
        flags,
        dict(zip(extras, carrier.rows([[part.extras[name] for part in parts] for name in extras], order), strict=True)),
    )


def take(ops: Ops, pieces: Sequence[BackendArray], order: BackendArray | None) -> BackendArray:
    """Pieces one after the other, or their rows in an order int32 [B] if that is given; of objects by NumPy."""
    # Only NumPy has arrays of Python objects.
    ops = numpy_ops.OPS if is_object_array(pieces[0]) else ops
    whole = pieces[0] if len(pieces) == 1 else ops.concat(pieces, 0)
    return whole if order is None else ops.take(whole, order)


def _padded(ops: Ops, indices: BackendArray, columns: int) -> BackendArray:
    """Handles int32 [..., columns], with zeros in front of the last column, where a mixture has buffers deeper down."""
    missing = columns - indices.shape[-1]
    if not missing:
        return indices
    zeros = [ops.full_like(indices[..., -1:], 0)] * missing
    return ops.concat([indices[..., :-1], *zeros, indices[..., -1:]], -1)


def _in_mixture(ops: Ops, depth: int, drawn: Drawn, ids: BackendArray, share: BackendArray) -> Drawn:
    """Rows of the buffers of a mixture as its own: by the number int32 [B], and the share, of the buffer of each."""
    indices = _padded(ops, drawn.indices, depth)
    handles = indices[..., -1:]
    number = row_layout.along(ids, handles) | (handles >> 31)  # all bits of a negative handle: -1 beside -1
    probabilities = drawn.probabilities * share
    return drawn._replace(
        indices=ops.concat([number, indices], -1),
        chances=probabilities if drawn.chances is drawn.probabilities else drawn.chances * share,
        probabilities=probabilities,
    )


def _only(ops: Ops, drawn: Drawn, real: BackendArray) -> Drawn:
    """The rows that are real, bool [B], as what was drawn, and the others as nothing."""
    nothing = ops.full_like(drawn.probabilities, 0)
    return drawn._replace(
        indices=ops.where(row_layout.along(real, drawn.indices), drawn.indices, ops.full_like(drawn.indices, NOTHING)),
        probabilities=ops.where(real, drawn.probabilities, nothing),
        flags={name: None if x is None else x & row_layout.along(real, x) for name, x in drawn.flags.items()},
    )


def weights(carrier: Carrier, drawn: Drawn, least: BackendArray, beta: BackendArray | None) -> BackendArray:
    """`(q_i / q_min) ** -beta`, float32 [B], for the chance q_i of each row; 1 without a beta, 0 for nothing.

    q_min is the least chance of any item in any of the buffers that can be drawn (Schaul et al., 2016, 3.4), as
    the status of the mixture has it.
    """
    ops = carrier.ops
    there = drawn.indices[..., -1] >= 0
    there = there if len(there.shape) == 1 else there[:, 0]
    if beta is None:
        return ops.cast(there, "float32")
    found = carrier.weights(drawn.chances, least, beta)
    return ops.where(there, found, ops.full_like(found, 0))


def lifted(drawn: Drawn, weights: BackendArray, lift: Callable[[object], BackendArray]) -> tuple[Drawn, BackendArray]:
    """Rows whose numbers are known, and their weights, with arrays of a backend for these numbers."""
    flags = {name: None if x is None else lift(x) for name, x in drawn.flags.items()}
    indices, probabilities = lift(drawn.indices), lift(drawn.probabilities)
    return drawn._replace(indices=indices, probabilities=probabilities, flags=flags), lift(weights)


def known_batch(
    carrier: Carrier,
    mixture: Mixture,
    layout: Layout,
    key: PRNGKey,
    batch: int,
    p: BackendArray | None,
    beta: float | BackendArray | None,
) -> tuple[Mixture, Drawn, BackendArray]:
    """Draw a batch where the numbers are known; the mixture afterwards, the rows, and their weights.

    Raises:
        ValueError: if nothing can be drawn.
    """
    looked = look(carrier, mixture, p)
    check_drawable(mixture, bool(looked.status.drawable > 0))
    after, drawn = draw(carrier, looked, layout, key, batch)
    return after, drawn, weights(carrier, drawn, looked.status.least, None if beta is None else np.float32(beta))


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
