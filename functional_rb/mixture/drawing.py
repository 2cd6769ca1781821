"""Drawing from a mixture: each buffer draws for itself, and what they give is put together.

Where it is known how much each gives, each draws just that. While tracing it is not: then each draws a whole batch, of
which the first rows count. Draws are such that both give the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from functional_rb.base import nest
from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer.mapping import given_out
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Selection
from functional_rb.mixture import shares
from functional_rb.mixture.layout import Form, Layout, form_of
from functional_rb.mixture.shares import Assignment
from functional_rb.mixture.value import Mixture
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.importance import importance_weights
from functional_rb.structures import row_layout

FLAGS = ("mask", "is_first", "is_last", "truncated")
"""The fields of a selection that are bool in the shape of the handles, or None."""
NO_FLAGS: Final[Mapping[str, None]] = dict.fromkeys(FLAGS)
"""Those of single items, all of which are there."""
NOTHING = -1
"""In place of the numbers of a buffer and an item where nothing could be drawn."""


class Status(NamedTuple):
    """What a draw from a mixture has to know of a buffer: scalars of a backend's, or Python numbers.

    Attributes:
        drawable: bool, whether anything can be drawn.
        size: float32, how many items are stored.
        least: float32, the least chance of an item in a draw, see `SamplerBase.least_chance`.
    """

    drawable: Any
    size: Any
    least: Any


def status(ops: Ops, state: State | Arrays, spec: BufferSpec) -> Array:
    """A `Status` as a vector float32 [3]."""
    draft = Draft.of(state, spec.plan)
    drawable = ops.cast(spec.sampler.drawable(ops, draft, 1), "float32")
    size = ops.cast(draft.size(ops), "float32")
    return ops.stack([drawable, size, spec.sampler.least_chance(ops, draft)])


class Drawn(NamedTuple):
    """Rows of a sample.

    Attributes:
        leaves: [B, *steps, *shape] each, the steps being [length] of slices and none of single items; or of other
            shapes [B, ...], as a function of items gives them.
        indices: int32 [B, *steps, columns], the number of the buffer on each level and the handle.
        chances: float32 [B], by which weights correct, meaningless where nothing could be drawn; None for the least.
        probabilities: float32 [B].
        flags: bool [B, *steps] or None, by name.
        extras: what all buffers' transforms tell, by name.
    """

    leaves: Sequence[Array]
    indices: Array
    chances: Array
    probabilities: Array
    flags: Mapping[str, Array | None]
    extras: Mapping[str, Array]


class Carrier(Protocol):
    """What a backend does for a mixture."""

    @property
    def ops(self) -> Ops:
        """The operations on the arrays that states give."""

    @property
    def mapper(self) -> Any:
        """A `mapping.Mapper`, which carries functions of items out."""

    def layout(self, form: Form) -> Layout:
        """What the samples of a state or mixture are made of."""

    def status(self, state: State) -> Status:
        """What a draw has to know of a buffer."""

    def shares(self, mixture: Mixture) -> Array:
        """The shares of a mixture that are an array, as the statuses are: float32 [K]."""

    def draw(self, state: State, key: Any, batch: int, wanted: Array | None) -> tuple[State, list[Array], Selection]:
        """Draw a batch, of which the first rows count, an int32 scalar, or all; its weights are of no account."""

    def keys(self, key: Any, n: int) -> Sequence[Any]:
        """The n independent keys that `split` makes of one."""

    def draws(self, key: Any, n: int, words: int) -> Array:
        """Uniform int32 [n, words] in [0, 2^31)."""


class TracedCarrier(Carrier, Protocol):
    """What a backend does for a mixture whose numbers are not known."""

    def computed(self, plan: Assignment) -> Assignment:
        """The same, for a compiler that would else compute it again for each element of what it chooses."""

    def chooses(self, spec: BufferSpec) -> bool:
        """Whether a program may find out as it runs to draw fewer rows of a buffer, which costs less."""

    def either(self, condition: Array, first: Branch, other: Branch) -> Drawn:
        """What one of two gives, by a bool scalar; of buffers that remember nothing."""


Branch = Callable[[TracedCarrier], Drawn]
"""Draws what a program may draw or not, by a carrier of its own."""


class KnownCarrier(Carrier, Protocol):
    """What a backend does for a mixture whose numbers are known."""

    def in_numpy(self, array: Array) -> Any:
        """An array of the backend as one of NumPy."""

    def joined(self, pieces: Sequence[Array], order: Any) -> Array:
        """Leaves of several buffers one after the other, or, if int32 [B] is given, their rows in this order."""


class Looked(NamedTuple):
    """A state or mixture, and what a draw has to know of it.

    Attributes:
        node: the state or the mixture.
        status: of it; the least chance in a mixture is that by its shares.
        members: of a mixture, its buffers.
        shares: of a mixture, float32 [K], normalized.
        p: of a mixture, the shares that are plain numbers, if it is drawn from by these.
        drawable: of a mixture, which of its buffers can be drawn from, bool [K].
    """

    node: Any
    status: Status
    members: Sequence[Looked] = ()
    shares: Any = None
    p: Sequence[float] | None = None
    drawable: Any = None


def look(carrier: Carrier, ops: Ops, node: Any, p: Any = None) -> Looked:
    """Find out what a draw has to know.

    Args:
        carrier: of the backend.
        ops: of the numbers in the statuses.
        node: a state or a mixture.
        p: in place of the mixture's shares, float32 [K], or None.
    """
    if not isinstance(node, Mixture):
        return Looked(node, carrier.status(node))
    members = [look(carrier, ops, one) for one in node.states]
    drawable, sizes, least = (ops.stack([getattr(one.status, name) for one in members]) for name in Status._fields)
    known = node.spec.p if p is None else None
    if p is None:
        p = carrier.shares(node) if node.p is not None else sizes
        p = p if node.spec.p is None else ops.floats(node.spec.p, like=sizes)
    found = shares.normalized(ops, p, drawable > 0)
    there = ops.where(found > 0, sizes, ops.full_like(sizes, 0))
    any_drawable = ops.cast(ops.count(found > 0) > 0, "float32")
    status = Status(any_drawable, shares.added_up(there), _least(ops, found, least))
    return Looked(node, status, members, found, known, drawable > 0)


def _least(ops: Ops, expected: Array, least: Array) -> Array:
    """The least chance of an item in any of the buffers that may be drawn, by the chance of each, float32 [K]."""
    chances = ops.where(expected > 0, expected * least, ops.full_like(least, 1))
    smallest = chances[0]
    for k in range(1, chances.shape[0]):
        smallest = ops.minimum(smallest, chances[k])
    return smallest


def traced(
    carrier: TracedCarrier, looked: Looked, key: Any, batch: int, wanted: Array | None = None
) -> tuple[Any, Drawn]:
    """Draw a batch of which the first rows count, an int32 scalar, or all; all of this may be traced.

    Returns:
        The node after the draw, and the rows.
    """
    ops, node = carrier.ops, looked.node
    if not isinstance(node, Mixture):
        state, leaves, selection = carrier.draw(node, key, batch, wanted)
        return state, _of_selection(carrier, node.spec, batch, key, leaves, selection)
    numbers = None if wanted is not None or not batch else _without_asking(carrier, looked)
    if numbers is not None:
        usual = ops.count(looked.drawable) == len(node)
        return node, carrier.either(
            usual,
            lambda own: _in_shares(own, looked, key, batch, numbers),
            lambda own: _rows(own, looked, key, batch, None)[1],
        )
    return _rows(carrier, looked, key, batch, wanted)


def _without_asking(carrier: TracedCarrier, looked: Looked) -> bytes | None:
    """The shares by which a batch is shared out where all buffers can be drawn from, if it pays to draw just that."""
    node, specs = looked.node, [state.spec for state in looked.node.buffers]
    if node.spec.how != "exact" or looked.p is None or any(spec.sampler.remembers for spec in specs):
        return None
    if not any(carrier.chooses(spec) for spec in specs):  # torch, which traces no numbers of NumPy
        return None
    numbers = np.array(looked.p, np.float32)
    return in_shares(numbers) if numbers.all() else None


def _in_shares(carrier: TracedCarrier, looked: Looked, key: Any, batch: int, numbers: bytes) -> Drawn:
    """A batch of which each buffer draws what it gives, by shares that are numbers; at most one row more."""
    ops, node = carrier.ops, looked.node
    ways = [shares.exact(node.spec, numbers, batch, start) for start in shares.turns(node.spec, numbers, batch)]
    if len(ways) > 1:
        most = np.max([plan.counts for plan in ways], 0)
        return _rows(carrier, looked, key, batch, None, most.tolist())[1]
    _, *keys = carrier.keys(key, len(node) + 1)
    parts = []
    for k, (member, count) in enumerate(zip(looked.members, ways[0].counts.tolist(), strict=True)):
        drawn = traced(carrier, member, keys[k], count)[1]
        parts.append(_as_part(ops, carrier, drawn, looked, k))

    def together(pieces: Sequence[Array]) -> Array:
        return ops.concat(pieces, 0)

    return _together(parts, together, together)


def _rows(
    carrier: TracedCarrier, looked: Looked, key: Any, batch: int, wanted: Array | None, most: Sequence[int] = ()
) -> tuple[Any, Drawn]:
    """What `traced` gives of a mixture, each of whose buffers draws a whole batch, or the most that it can give."""
    ops, node = carrier.ops, looked.node
    first, *keys = carrier.keys(key, len(node) + 1)
    if wanted is None:
        wanted = ops.cast(ops.full_like(looked.status.size, batch), "int32")
    draws = carrier.draws(first, *shares.words(node.spec, batch))
    plan = carrier.computed(shares.assign(ops, node.spec, looked.shares, wanted, batch, draws))
    after: list[Any] = []
    parts: list[Drawn] = []
    for k, member in enumerate(looked.members):
        one, drawn = traced(carrier, member, keys[k], most[k] if most else batch, plan.counts[k])
        after.append(one)
        parts.append(_as_part(ops, carrier, drawn, looked, k))

    def together(pieces: Sequence[Array]) -> Array:
        found = None
        for k, piece in enumerate(pieces):
            own = plan.ids == k
            taken = ops.take(piece, ops.where(own, plan.ranks, ops.full_like(plan.ranks, 0)))
            found = taken if found is None else ops.where(row_layout.along(own, taken), taken, found)
        return found

    drawn = _together(parts, together, together)
    real = (ops.arange(batch, like=plan.ids) < wanted) & (looked.status.drawable > 0)
    return node.with_states(after), _only(ops, drawn, real)


def known(carrier: KnownCarrier, looked: Looked, key: Any, batch: int) -> tuple[Any, Drawn]:
    """Draw a batch where the statuses are numbers of NumPy, so that each buffer draws just what it gives.

    Something can be drawn, and the batch is not empty. Of the rows all but leaves and extras are NumPy's: that is the
    fastest for arrays so small.
    """
    node = looked.node
    if not isinstance(node, Mixture):
        # Of lanes that give windows in turn any number may be asked for in this way alone.
        wanted = np.int32(batch) if node.spec.sampler.takes_out else None
        state, leaves, selection = carrier.draw(node, key, batch, wanted)
        drawn = _of_selection(carrier, node.spec, batch, key, leaves, selection)
        flags = {name: None if x is None else carrier.in_numpy(x) for name, x in drawn.flags.items()}
        indices, probabilities = carrier.in_numpy(drawn.indices), carrier.in_numpy(drawn.probabilities)
        chances = None if drawn.chances is None else probabilities
        return state, drawn._replace(indices=indices, probabilities=probabilities, chances=chances, flags=flags)
    first, *keys = carrier.keys(key, len(node) + 1)
    if node.spec.how == "exact":
        numbers = looked.shares.tobytes()
        starts = shares.turns(node.spec, numbers, batch)
        word = 0 if len(starts) == 1 else int(carrier.in_numpy(carrier.draws(first, 1, 1))[0, 0])
        plan = shares.exact(node.spec, numbers, batch, shares.turn_of(starts, word))
    else:
        draws = carrier.in_numpy(carrier.draws(first, *shares.words(node.spec, batch)))
        plan = shares.assign(numpy_ops, node.spec, looked.shares, np.int32(batch), batch, draws)
    after: list[Any] = list(node.states)
    parts: list[Drawn] = []
    for k, (member, count) in enumerate(zip(looked.members, plan.counts.tolist(), strict=True)):
        if count:
            after[k], drawn = known(carrier, member, keys[k], count)
            parts.append(_as_part(numpy_ops, carrier, drawn, looked, k))
    order = None
    if node.spec.how != "exact":  # else they are in their order
        starts = np.cumsum(plan.counts) - plan.counts
        order = starts[plan.ids] + plan.ranks

    def in_numpy(pieces: Sequence[Any]) -> Any:
        return joined(pieces, order)

    def on_backend(pieces: Sequence[Array]) -> Array:
        return in_numpy(pieces) if is_object_array(pieces[0]) else carrier.joined(pieces, order)

    same = all(one is before for one, before in zip(after, node.states, strict=True))
    return node if same else node.with_states(after), _together(parts, in_numpy, on_backend)


def joined(pieces: Sequence[Any], order: Any) -> Any:
    """What `KnownCarrier.joined` does, of arrays of NumPy."""
    found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return found if order is None else found[order]


def in_shares(numbers: Any) -> bytes:
    """Shares that are plain numbers, as `shares.exact` takes them where all that have one can be drawn from."""
    numbers = np.array(numbers, np.float32)
    return shares.normalized(numpy_ops, numbers, numbers > 0).tobytes()


def least_of(statuses: Sequence[Status], expected: Any) -> Any:
    """The least chance of an item in a mixture, by statuses of NumPy's numbers, and the buffers' chances."""
    return _least(numpy_ops, expected, np.array([status.least for status in statuses]))


def _of_selection(
    carrier: Carrier,
    spec: BufferSpec,
    batch: int,
    key: Any,
    leaves: Sequence[Array],
    selection: Selection,
) -> Drawn:
    """The rows that a buffer has drawn, as its function of items gives them; flat slices get their two axes."""
    lead, steps = spec.sampler.leading_shape(batch), steps_of(spec)
    shape = (batch,) if steps is None else (batch, steps)
    if spec.on_sample is not None:
        items = given_out(carrier.mapper, spec, leaves, lead, key, selection.mask)
        leaves = nest.flatten_as(carrier.layout(spec).structure, items)

    def shaped(x: Array) -> Array:
        return x if len(lead) == len(shape) else x.reshape(*shape, *x.shape[1:])

    flags = {name: None if getattr(selection, name) is None else shaped(getattr(selection, name)) for name in FLAGS}
    chances = selection.probabilities if spec.sampler.single_law else None
    return Drawn(
        [shaped(leaf) for leaf in leaves],
        shaped(selection.handles)[..., None],
        chances,
        selection.probabilities,
        flags,
        {name: shaped(x) for name, x in selection.extras.items()},
    )


def steps_of(spec: BufferSpec) -> int | None:
    """How many steps a slice has; None for single items."""
    two = spec.sampler.leading_shape(2)
    return None if two == (2,) else math.prod(two) // 2


def _as_part(ops: Ops, carrier: Carrier, drawn: Drawn, looked: Looked, k: int) -> Drawn:
    """The rows of the k-th buffer of a mixture as they are in it, where its share is the chance that it is chosen."""
    mixture, share = looked.node, looked.shares[k]
    own = drawn.indices
    handles = own[..., -1:]
    number = ops.where(handles >= 0, ops.full_like(handles, k), ops.full_like(handles, NOTHING))
    numbers = [number] if own.shape[-1] == 1 else [number, own[..., :-1]]
    numbers += [ops.full_like(number, 0)] * (mixture.depth - own.shape[-1])
    chances = drawn.chances
    if chances is None:
        chances = ops.full_like(drawn.probabilities, 0) + looked.members[k].status.least
    return drawn._replace(
        leaves=[drawn.leaves[place] for place in carrier.layout(form_of(mixture)).places[k]],
        indices=ops.concat([*numbers, handles], -1),
        chances=chances * share,
        probabilities=drawn.probabilities * share,
    )


Together = Callable[[Sequence[Array]], Array]
"""Puts the pieces of several buffers together, [B, ...]."""


def _together(parts: Sequence[Drawn], together: Together, contents: Together) -> Drawn:
    """Rows of several buffers as those of one; leaves and extras are put together by a function of their own."""
    flags: dict[str, Array | None] = {}
    for name in FLAGS:
        pieces = [part.flags[name] for part in parts]
        if any(piece is not None for piece in pieces):  # a mask, as other flags all buffers have or none
            pieces = [part.indices[..., -1] >= 0 if x is None else x for part, x in zip(parts, pieces, strict=True)]
            flags[name] = together(pieces)
        else:
            flags[name] = None
    return Drawn(
        [contents(pieces) for pieces in zip(*(part.leaves for part in parts), strict=True)],
        together([part.indices for part in parts]),
        together([part.chances for part in parts]),
        together([part.probabilities for part in parts]),
        flags,
        {name: contents([part.extras[name] for part in parts]) for name in _common(parts)},
    )


def _common(parts: Sequence[Drawn]) -> list[str]:
    """The extras that all have."""
    return [name for name in parts[0].extras if all(name in part.extras for part in parts)]


def _only(ops: Ops, drawn: Drawn, real: Array) -> Drawn:
    """The rows that are real, bool [B], as what was drawn, and the others as nothing."""
    nothing = ops.full_like(drawn.probabilities, 0)
    return drawn._replace(
        indices=ops.where(row_layout.along(real, drawn.indices), drawn.indices, ops.full_like(drawn.indices, NOTHING)),
        probabilities=ops.where(real, drawn.probabilities, nothing),
        flags={name: None if x is None else x & row_layout.along(real, x) for name, x in drawn.flags.items()},
    )


def lifted(drawn: Drawn, weights: Any, lift: Callable[[Any], Array]) -> tuple[Drawn, Array]:
    """What `known` has drawn, and its weights, with arrays of the backend for those of NumPy."""
    flags = {name: None if x is None else lift(x) for name, x in drawn.flags.items()}
    indices, probabilities = lift(drawn.indices), lift(drawn.probabilities)
    return drawn._replace(indices=indices, probabilities=probabilities, flags=flags), lift(weights)


def weights(ops: Ops, drawn: Drawn, least: Array, beta: Array | None) -> Array:
    """`(q_i / q_min) ** -beta`, float32 [B], for the chance q_i of each row; 1 without a beta, 0 for nothing.

    q_min is the least chance of any item in any of the buffers that can be drawn (Schaul et al., 2016, 3.4), as
    the status of the mixture has it.
    """
    there = drawn.indices[..., -1] >= 0
    there = there if len(there.shape) == 1 else there[:, 0]
    one = ops.full_like(drawn.chances, 1)
    found = one if beta is None else importance_weights(ops, drawn.chances, least, beta)
    return ops.where(there, found, ops.full_like(found, 0))
