"""The functions of a mixture, up to the arrays; each backend binds them to itself.

What may be refused is refused before anything is written.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from functional_rb.base import nest
from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer import checks, reading
from functional_rb.buffer import functions as single
from functional_rb.buffer import in_place as inplace
from functional_rb.buffer.backend import Backend as Engine
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, MaskedSample, Sample, SliceSample, State
from functional_rb.mixture.drawing import NOTHING, Drawn, steps_of
from functional_rb.mixture.layout import Form, Layout, form_of, layout_at_once, layout_of, specs_of
from functional_rb.mixture.shares import LARGEST_BATCH
from functional_rb.mixture.value import Mixture, check_numbers, check_shape, specs_of_buffers
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.structures import row_layout
from functional_rb.structures.ring import INT32_MAX, saturating_add

M = TypeVar("M", bound=Mixture)
IDS = "buffer_ids"
"""The entry of a sample's extras that tells which buffer gave each draw."""


class Backend(Protocol):
    """What carries the checked calls out."""

    @property
    def ops(self) -> Ops:
        """The operations on the arrays that states give."""

    @property
    def mapper(self) -> Any:
        """A `mapping.Mapper`, which carries functions of items out."""

    def is_compiling(self) -> bool:
        """Whether torch.compile traces Python itself, which goes through no caches of functions."""

    def engine(self, state: State) -> Engine:
        """What carries the functions of buffers out on a state."""

    def in_place(self, engine: Engine) -> inplace.InPlace:
        """What carries out writes that consume a state, where an engine carries out the others."""

    def draw(
        self, mixture: Mixture, key: Any, batch: int, p: Any, beta: Any, consume: bool
    ) -> tuple[Any, Drawn, Array]:
        """Draw a batch: the mixture afterwards, the rows, and their weights.

        Raises:
            ValueError: if nothing can be drawn, and that is known.
        """

    def rows_of(self, own: Array) -> Array | None:
        """The rows that bool [n] marks, int32 [m]; None where m cannot be known."""

    def numbers_of(self, p: Array) -> Sequence[float] | None:
        """The numbers in an array; None where they cannot be known yet."""


def sample(
    backend: Backend,
    mixture: M,
    key: Any,
    batch_size: int | None,
    beta: Any,
    p: Any,
    function: str = "sample",
) -> tuple[M, AnySample[Any]]:
    """Draw a batch from a mixture; see `api.sample`."""
    size = given_size(batch_size)
    _check(backend, mixture, function)
    facts = _checked(backend, mixture, size)
    engine = backend.engine(mixture.buffers[0])
    if p is not None:
        p = _shares(backend, engine, p, len(mixture))
    if not isinstance(beta, (int, float)):
        beta = engine.as_vector(beta, "beta")
    if beta is not None:
        checks.check_exponent(beta, engine.value_of)
    beta = _beta(facts, beta)
    mixture, drawn, weights = backend.draw(mixture, key, size, p, beta, function == "sample_")
    lead = (mixture.spec.parts, size // mixture.spec.parts) if mixture.spec.stacked else (size,)
    steps, flat = facts.steps, facts.flat
    shape = lead if steps is None else (*lead[:-1], lead[-1] * steps) if flat else (*lead, steps)
    before = 1 if steps is None else 2

    def each(x: Array, before: int, shape: tuple[int, ...]) -> Array:
        return x if x.shape[:before] == shape else x.reshape(*shape, *x.shape[before:])

    # Behind the batch's axis, what a function of items gives has axes of its own.
    leaves = [each(leaf, 2, shape) if flat else each(leaf, 1, lead) for leaf in drawn.leaves]
    items = nest.unflatten(facts.layout.structure, leaves, engine.build_mapping, lead if facts.mapped else shape)
    ids = drawn.indices[..., 0] if steps is None else drawn.indices[:, 0, 0]
    extras = {name: each(x, before, shape) for name, x in drawn.extras.items()} | {IDS: each(ids, 1, lead)}
    numbers = each(drawn.indices, before, shape), each(weights, 1, lead), each(drawn.probabilities, 1, lead)
    if not facts.may_be_short:
        return mixture, Sample(items, *numbers, extras)
    flags: dict[str, Any] = {name: None if x is None else each(x, before, shape) for name, x in drawn.flags.items()}
    if flags["mask"] is None:
        flags["mask"] = numbers[0][..., -1] >= 0
    if flags["is_first"] is None:
        return mixture, MaskedSample(items, *numbers, flags["mask"], extras)
    slices: SliceSample[Any] = SliceSample(items, *numbers, **flags, extras=extras)
    return mixture, slices


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What is known of all mixtures whose buffers have the same specs, and what was found out about them.

    Attributes:
        form: of these mixtures.
        specs: of their buffers.
        layout: of their samples.
        steps: how many steps a slice has; None for single items.
        flat: whether slices come in one row.
        mapped: whether a function of items is applied.
        may_be_short: whether a sample has a mask: where some buffer may have less to give than was asked for, or gives
            slices.
        betas: the different beta of the samplers that have priorities, ascending.
        without_chance: the first of these samplers for which the chance of a single draw is not known.
        sizes: the batch sizes that were checked.
        plans: how a backend shares batches out, by keys of its own.
    """

    form: Form
    specs: tuple[BufferSpec, ...]
    layout: Layout
    steps: int | None
    flat: bool
    mapped: bool
    may_be_short: bool
    betas: tuple[float, ...]
    without_chance: Any
    sizes: set[int]
    plans: dict[Any, Any]


_facts: dict[tuple[Any, ...], Facts] = {}
"""By the identity of specs, as comparing those takes longer than to draw; they live as long as their entry."""
MANY = 256
"""So many entries are kept."""


def _checked(backend: Backend, mixture: Mixture, size: int) -> Facts:
    """What is known of a mixture, once the size of a batch has been checked."""
    if backend.is_compiling():
        check_draw(form_of(mixture), size)
        return _facts_of(form_of(mixture), backend.mapper, layout_of)
    found = _facts.get((backend.mapper, _identity(mixture)))
    if found is None or size not in found.sizes:
        check_draw(form_of(mixture), size)
        found = facts(backend.mapper, mixture)
        found.sizes.add(size)
    return found


def facts(mapper: Any, mixture: Mixture) -> Facts:
    """What is known of a mixture; torch.compile does not trace this."""
    key = mapper, _identity(mixture)
    if key not in _facts:
        if len(_facts) >= MANY:
            _facts.clear()
        _facts[key] = _facts_of(form_of(mixture), mapper, layout_at_once)
    return _facts[key]


def _identity(mixture: Mixture) -> tuple[Any, ...]:
    return mixture.spec, *[_identity(one) if isinstance(one, Mixture) else id(one.spec) for one in mixture.states]


def _facts_of(form: Form, mapper: Any, layout: Callable[..., Layout]) -> Facts:
    specs = specs_of(form)
    steps, flat, _ = _kind(specs[0])
    mapped = any(spec.on_sample is not None for spec in specs)
    short = any(steps_of(spec) is not None or not spec.sampler.single_law or spec.sampler.remembers for spec in specs)
    weighing = [spec.sampler for spec in specs if spec.sampler.has_priorities]
    betas = tuple(sorted({getattr(sampler, "beta", 0.0) for sampler in weighing}))
    without_chance = next((sampler for sampler in weighing if not sampler.single_law), None)
    return Facts(form, specs, layout(form, mapper), steps, flat, mapped, short, betas, without_chance, set(), {})


def given_size(batch_size: int | None) -> int:
    """The batch size, which has to be given; as a number."""
    if batch_size is None:
        raise ValueError(
            "sample: batch_size is missing; give sample(..., batch_size=n), as a mixture has none of its own"
        )
    return checks.count("sample", "batch_size", batch_size)


def _shares(backend: Backend, engine: Engine, p: Any, count: int) -> Any:
    """Shares that are given with a call, as an array."""
    if not hasattr(p, "dtype"):
        p = np.asarray(p, np.float32)
    p = engine.as_vector(p, "p")
    check_shape(p, count, "sample")
    numbers = backend.numbers_of(p)
    if numbers is not None:
        check_numbers(numbers, "sample")
    return p


def _check(backend: Backend, mixture: Mixture, function: str) -> None:
    """Refuse buffers of another backend, consumed ones, and stacks of them."""
    for state in mixture.buffers:
        backend.engine(state).check_state(state, function)
        if len(state.axes) != 1:
            raise checks.not_one(state.axes, function)


def check_draw(form: Form, size: int) -> None:
    """Refuse a batch that the mixture cannot give."""
    assert not isinstance(form, BufferSpec)
    if size > LARGEST_BATCH:
        raise ValueError(f"sample: expected batch_size up to {LARGEST_BATCH} of a mixture, got {size}; draw several")
    if form[0].how == "buffers" and size % form[0].parts:
        raise ValueError(
            f"sample: expected batch_size as a multiple of the mixture's {form[0].parts} parts, got {size}; give "
            f"frb.Mixture(..., parts=...), or how='exact'"
        )
    specs = specs_of(form)
    for spec in specs:
        sampler = spec.sampler
        if getattr(sampler, "batch", "slices") == "steps":
            raise ValueError(
                f"sample: a mixture's batch_size counts slices, and {sampler} counts steps; give it batch='slices'"
            )
        if not sampler.takes_out:
            sampler.check_batch(spec.plan, size)
        checks.rows_of_sample(spec, size)
    kinds = {_kind(spec): spec.sampler for spec in specs}
    if len(kinds) > 1:
        raise ValueError(
            f"sample: expected buffers whose samplers all give single items, or slices of one length in the same form, "
            f"got {', '.join(map(str, kinds.values()))}; give them the same length and flat"
        )


def _kind(spec: BufferSpec) -> tuple[int | None, bool, bool]:
    steps = steps_of(spec)
    return steps, steps is not None and len(spec.sampler.leading_shape(1)) == 1, isinstance(spec.sampler, Trajectories)


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


def _beta(facts: Facts, beta: Any) -> Any:
    """The beta that holds; None where all weights are 1."""
    if beta is None:
        if len(facts.betas) > 1:
            raise ValueError(
                f"sample: the samplers of the mixture have different beta, {[*facts.betas]}; give sample(..., beta=...)"
            )
        beta = facts.betas[0] if facts.betas else 0.0
    if isinstance(beta, (int, float)) and beta == 0:
        return None
    if facts.without_chance is not None:
        raise ValueError(
            f"sample: the weights of a mixture follow from the chance of a single draw, which {facts.without_chance} "
            f"does not have; give replacement=True, or sample(..., beta=0.0)"
        )
    return beta


def add(write: Callable[..., Any], mixture: M, to: Any, *args: Any, **named: Any) -> M:
    """Write items by `write` to the buffer `to`; of a mixture in a mixture it is a tuple of numbers."""
    if to is None:
        raise ValueError("add: a mixture has several buffers; give the number of one, rb.add(mixture, items, to=k)")
    k, *rest = to if isinstance(to, tuple) else (to,)
    k = mixture.place(k, "add: to")
    if rest:
        named["to"] = tuple(rest)
    return mixture.with_states([write(one, *args, **named) if j == k else one for j, one in enumerate(mixture.states)])


def with_spec(change: Callable[[Any, Any], Any], mixture: M, specs: Any) -> M:
    """Give the buffers other specs by `change`, one for each, or None; see `api.with_spec`."""
    given = specs_of_buffers(len(mixture), specs, "with_spec")
    changed = [one if spec is None else change(one, spec) for one, spec in zip(mixture.states, given, strict=True)]
    return mixture.with_states(changed)


def update(backend: Backend, mixture: M, indices: Any, priorities: Any, items: Any, function: str) -> M:
    """Set priorities and rewrite leaves of what handles [B, columns] name; see `api.update`."""
    _check(backend, mixture, function)
    buffers = mixture.buffers
    engines = [backend.engine(state) for state in buffers]
    indices = _indices(engines[0], mixture, indices)
    count = int(indices.shape[0])
    if priorities is not None:
        if not any(state.spec.sampler.has_priorities for state in buffers):
            checks.check_prioritized(buffers[0].spec, function)
        priorities = engines[0].as_vector(priorities, "priorities")
        checks.check_dtype("priorities", priorities, "float32")
        if tuple(priorities.shape) == (count, 1):
            priorities = priorities.reshape(count)
        if tuple(priorities.shape) != (count,):
            raise ValueError(
                f"priorities: expected shape ({count},), one for each index, got {tuple(priorities.shape)}"
            )
    checked = []
    for path, state, engine in zip(places(mixture), buffers, engines, strict=True):
        handles, rows = _own(backend, indices, path)
        own = priorities if state.spec.sampler.has_priorities else None
        replacements = checks.replacements(state.spec, items, engine.convert, count)
        if rows is not None:
            own = None if own is None else backend.ops.take(own, rows)
            replacements = {k: backend.ops.take(leaf, rows) for k, leaf in replacements.items()}
        own = None if own is None else engine.as_vector(own, "priorities")  # as this buffer's storage wants it
        checked.append((engine.as_vector(handles, "indices"), own, replacements))
    after = []
    for state, engine, (handles, own, replacements) in zip(buffers, engines, checked, strict=True):
        carry_out = backend.in_place(engine).update_ if function == "update_" else engine.update
        after.append(carry_out(state, handles, own, replacements))
    return with_buffers(mixture, after)


def _indices(engine: Engine, mixture: Mixture, indices: Any) -> Array:
    indices = engine.as_vector(indices, "indices")
    checks.check_dtype("indices", indices, "int32")
    columns = mixture.depth + 1
    if len(indices.shape) != 2 or indices.shape[1] != columns:
        raise ValueError(
            f"indices: expected shape (B, {columns}), as a mixture names items by buffer and handle, got "
            f"{tuple(indices.shape)}; give sample.indices, of slices .reshape(-1, {columns})"
        )
    return indices


def either(core: Callable[..., Any], of_mixture: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the core for states, and for mixtures another; it has the signature of the first."""

    @functools.wraps(core)
    def chosen(backend: Any, state: Any, *args: Any, **named: Any) -> Any:
        return (of_mixture if isinstance(state, Mixture) else core)(backend, state, *args, **named)

    return chosen


def get(backend: Backend, mixture: Mixture, indices: Any) -> Any:
    """The leaves [B, *shape] that samples have of what handles [B, columns] name; see `reading.get`."""
    layout = layout_at_once(form_of(mixture))
    indices, leaves = _read(backend, mixture, indices, "get", _leaves_of)
    return nest.unflatten(
        layout.structure, leaves, backend.engine(mixture.buffers[0]).build_mapping, (int(indices.shape[0]),)
    )


def _leaves_of(engine: Engine, state: State, names: Sequence[str], handles: Array) -> list[Array]:
    found = engine.get(state, handles)
    return [found[state.spec.plan.names.index(name)] for name in names]


def is_live(backend: Backend, mixture: Mixture, indices: Any) -> Array:
    """Which of handles [B, columns] name stored items, bool [B]."""

    def found(engine: Engine, state: State, names: Sequence[str], handles: Array) -> list[Array]:
        return [engine.is_live(state, handles)]

    return _read(backend, mixture, indices, "is_live", found)[1][0]


def priorities(backend: Backend, mixture: Mixture, indices: Any) -> Array:
    """Priorities of what handles [B, columns] name, float32 [B], 0 in buffers without any."""
    if not any(state.spec.sampler.has_priorities for state in mixture.buffers):
        checks.need_priorities(mixture.buffers[0].spec, "priorities")

    def found(engine: Engine, state: State, names: Sequence[str], handles: Array) -> list[Array]:
        if not state.spec.sampler.has_priorities:
            return [backend.ops.cast(backend.ops.full_like(handles, 0), "float32")]
        return [engine.look(state, single.priorities, handles)]

    return _read(backend, mixture, indices, "priorities", found)[1][0]


def _read(
    backend: Backend, mixture: Mixture, indices: Any, function: str, found: Callable[..., list[Array]]
) -> tuple[Array, list[Array]]:
    """What is found in each buffer of those that handles name, put together; and the handles."""
    _check(backend, mixture, function)
    names, made = layout_at_once(form_of(mixture)).names if function == "get" else (), None
    indices = _indices(backend.engine(mixture.buffers[0]), mixture, indices)
    for path, state in zip(places(mixture), mixture.buffers, strict=True):
        own = _is_own(indices, path)
        handles = backend.ops.where(own, indices[:, -1], backend.ops.full_like(indices[:, -1], NOTHING))
        engine = backend.engine(state)
        pieces = found(engine, state, names, engine.as_vector(handles, "indices"))
        if made is None:
            made = pieces
            continue
        made = [_chosen(backend.ops, own, piece, other) for piece, other in zip(pieces, made, strict=True)]
    assert made is not None
    return indices, made


def _chosen(ops: Ops, own: Array, piece: Any, other: Any) -> Any:
    """Rows of a piece where bool [B] marks them, and of another elsewhere."""
    if is_object_array(piece):
        rows = np.asarray(own)
        return np.where(rows.reshape(rows.shape[0], *[1] * (piece.ndim - 1)), piece, other)
    return ops.where(row_layout.along(own, piece), piece, other)


def sizes(backend: Backend, mixture: Mixture) -> Array:
    """How many items each buffer stores, int32 [K]; of a mixture in a mixture all of its buffers together.

    Raises:
        TypeError: for what is no mixture.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4)
        >>> mixture = frb.Mixture([rb.init(spec), rb.add(rb.init(spec), (np.zeros(3, np.float32),))])
        >>> rb.sizes(mixture).tolist(), int(rb.size(mixture))
        ([0, 3], 3)
    """
    if not isinstance(mixture, Mixture):
        raise TypeError(f"sizes: expected a Mixture, got {type(mixture).__name__}; of a state take rb.size(state)")
    _check(backend, mixture, "sizes")
    return backend.ops.stack([_size(backend, one) for one in mixture.states])


def size(backend: Backend, mixture: Mixture) -> Array:
    """How many items all buffers store, an int32 scalar (2^31 - 1 if they are more)."""
    _check(backend, mixture, "size")
    return _size(backend, mixture)


def _size(backend: Backend, node: Any) -> Array:
    if not isinstance(node, Mixture):
        return reading.size(backend.engine(node), node)
    found = [_size(backend, one) for one in node.states]
    return functools.reduce(functools.partial(saturating_add, backend.ops), found)


def can_sample(backend: Backend, mixture: Mixture, n: int | None = None) -> Array:
    """Whether something can be drawn, and n items are stored in all buffers together; see `reading.can_sample`."""
    wanted = 1 if n is None else checks.needed(n)
    possible = [reading.can_sample(backend.engine(state), state, 1) for state in mixture.buffers]
    some = functools.reduce(operator.or_, possible)
    return some & (size(backend, mixture) >= min(wanted, INT32_MAX)) & (wanted <= INT32_MAX)


def places(mixture: Mixture, above: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """The numbers that name each buffer, in their order, one for each level."""
    found = []
    for k, one in enumerate(mixture.states):
        found += places(one, (*above, k)) if isinstance(one, Mixture) else [(*above, k)]
    return found


def _is_own(indices: Array, path: tuple[int, ...]) -> Array:
    """Which of handles int32 [B, columns] are of the buffer that these numbers name, bool [B]."""
    own = indices[:, 0] == path[0]
    for column in range(1, indices.shape[1] - 1):
        own = own & (indices[:, column] == (path[column] if column < len(path) else 0))
    return own


def _own(backend: Backend, indices: Array, path: tuple[int, ...]) -> tuple[Array, Array | None]:
    """The handles of one of the buffers among indices, and their rows; -1 for others where rows cannot be known."""
    own, handles = _is_own(indices, path), indices[:, -1]
    rows = backend.rows_of(own)
    if rows is not None:
        return backend.ops.take(handles, rows), rows
    return backend.ops.where(own, handles, backend.ops.full_like(handles, NOTHING)), None


def with_buffers(mixture: M, buffers: Sequence[State]) -> M:
    """The same mixture of other buffers that are no mixtures, as many."""
    rest = iter(buffers)

    def again(node: Any) -> Any:
        return node.with_states([again(one) for one in node.states]) if isinstance(node, Mixture) else next(rest)

    made: M = again(mixture)
    return made
