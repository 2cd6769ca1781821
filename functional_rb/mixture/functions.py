"""The functions of a mixture, up to the arrays; each backend binds them to itself.

What may be refused is refused before anything is written.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, NumpyArray
from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer import checks, reading
from functional_rb.buffer import functions as single
from functional_rb.buffer import in_place as inplace
from functional_rb.buffer.backend import Backend as Engine
from functional_rb.buffer.state import Counts, State
from functional_rb.core.counters import SIZE
from functional_rb.mixture.drawing import NOTHING, Drawn
from functional_rb.mixture.layout import Layout, form_of, stored_layout
from functional_rb.mixture.value import Mixture, specs_of_buffers
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs import ArraySpec
from functional_rb.structures import row_layout
from functional_rb.structures.ring import INT32_MAX, saturating_add

M = TypeVar("M", bound=Mixture)
Place = tuple[int, ...]
"""The numbers that name a buffer, one for each level of mixtures."""


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
        self, mixture: Mixture, layout: Layout, key: Any, batch: int, p: Any, beta: Any, consume: bool
    ) -> tuple[Any, Drawn, Array]:
        """Draw a batch: the mixture afterwards, the rows, and their weights.

        Raises:
            ValueError: if nothing can be drawn, and that is known.
        """

    def carry_out(self, function: Callable[..., object], static: object, arrays: object, /, *more: object) -> Any:
        """`function(ops, static, arrays, *more)`, in one program where it is compiled; what is static can be hashed."""

    def rows_of(self, indices: Array, paths: Sequence[Place]) -> Sequence[Array] | None:
        """The rows of handles [B, columns] that each buffer has, int32 [m] each; None where m cannot be known."""

    def stacked(self, numbers: Sequence[object]) -> Array:
        """Numbers, some of which may be scalar arrays, or traced, as an array float32."""

    def numbers_of(self, p: Array) -> Sequence[float] | None:
        """The numbers in an array; None where they cannot be known yet."""

    def to_numpy(self, array: Array) -> NumpyArray:
        """An array in NumPy, wherever it is."""


def check_buffers(backend: Backend, mixture: Mixture, function: str) -> tuple[State, ...]:
    """The buffers of a mixture; those of another backend, consumed ones, and stacks of them are refused."""
    buffers = mixture.buffers
    for state in buffers:
        backend.engine(state).check_state(state, function)
        if len(state.axes) != 1:
            raise checks.not_one(state.axes, function)
    return buffers


def add(write: Callable[..., object], mixture: M, to: object, *args: object, **named: object) -> M:
    """Write items by `write` to the buffer `to`; of a mixture in a mixture it is a tuple of numbers."""
    if to is None:
        raise ValueError("add: a mixture has several buffers; give the number of one, rb.add(mixture, items, to=k)")
    k, *rest = to if isinstance(to, tuple) else (to,)
    k = mixture.place(k, "add: to")
    if rest:
        named["to"] = tuple(rest)
    return mixture.with_states([write(one, *args, **named) if j == k else one for j, one in enumerate(mixture.states)])


def with_spec(change: Callable[[Any, Any], object], mixture: M, specs: object) -> M:
    """Give the buffers other specs by `change`, one for each, or None; see `api.with_spec`."""
    given = specs_of_buffers(len(mixture), specs, "with_spec")
    changed = [one if spec is None else change(one, spec) for one, spec in zip(mixture.states, given, strict=True)]
    return mixture.with_states(changed)


def update(backend: Backend, mixture: M, indices: Any, priorities: ArrayLike, items: object, function: str) -> M:
    """Set priorities and rewrite leaves of what handles [B, columns] name; see `api.update`."""
    buffers = check_buffers(backend, mixture, function)
    engines = [backend.engine(state) for state in buffers]
    indices = _indices(engines[0], mixture, indices)
    count = int(indices.shape[0])
    if priorities is not None:
        if not any(state.spec.sampler.has_priorities for state in buffers):
            checks.check_prioritized(buffers[0].spec, function)
        priorities = checks.one_for_each(engines[0].as_vector(priorities, "priorities"), count)
    checked = []
    converts = {engine: _once(engine.convert) for engine in engines}
    for state, engine, (handles, rows) in zip(buffers, engines, _parted(backend, mixture, indices), strict=True):
        own = priorities if state.spec.sampler.has_priorities else None
        replacements = checks.replacements(state.spec, items, converts[engine], count)
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


def _once(convert: Callable[..., Array]) -> Callable[..., Array]:
    """The same for the leaves of one nest: what is for several buffers is converted, and maybe copied, once."""
    made = {}

    def converted(leaf: object, expected: ArraySpec, name: str) -> Array:
        key = name, expected.dtype, expected.shape
        if key not in made:
            made[key] = convert(leaf, expected, name)
        return made[key]

    return converted


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


def either(core: Callable[..., object], of_mixture: Callable[..., object]) -> Callable[..., Any]:
    """A function of the core for states, and for mixtures another; it has the signature of the first."""

    @functools.wraps(core)
    def chosen(backend: Any, state: Any, *args: Any, **named: Any) -> Any:
        return (of_mixture if isinstance(state, Mixture) else core)(backend, state, *args, **named)

    return chosen


def get(backend: Backend, mixture: Mixture, indices: Any) -> Any:
    """What handles [B, columns] name, of the leaves [B, *shape] that all buffers store; see `reading.get`."""
    layout = stored_layout(form_of(mixture))

    def found(engine: Engine, state: State, handles: Array) -> list[Array]:
        leaves = engine.get(state, handles)
        return [leaves[state.spec.plan.names.index(name)] for name in layout.names]

    indices, leaves = _read(backend, mixture, indices, "get", found)
    return nest.unflatten(
        layout.structure, leaves, backend.engine(mixture.buffers[0]).build_mapping, (int(indices.shape[0]),)
    )


def is_live(backend: Backend, mixture: Mixture, indices: ArrayLike) -> Array:
    """Which of handles [B, columns] name stored items, bool [B]."""

    def found(engine: Engine, state: State, handles: Array) -> list[Array]:
        return [engine.is_live(state, handles)]

    return _read(backend, mixture, indices, "is_live", found)[1][0]


def priorities(backend: Backend, mixture: Mixture, indices: ArrayLike) -> Array:
    """Priorities of what handles [B, columns] name, float32 [B], 0 in buffers without any."""
    if not any(state.spec.sampler.has_priorities for state in mixture.buffers):
        checks.need_priorities(mixture.buffers[0].spec, "priorities")

    def found(engine: Engine, state: State, handles: Array) -> list[Array]:
        if not state.spec.sampler.has_priorities:
            return [backend.ops.cast(backend.ops.full_like(handles, 0), "float32")]
        return [engine.look(state, single.priorities, handles)]

    return _read(backend, mixture, indices, "priorities", found)[1][0]


def _read(
    backend: Backend, mixture: Mixture, indices: ArrayLike, function: str, found: Callable[..., list[Array]]
) -> tuple[Array, list[Array]]:
    """What is found in each buffer of those that handles name, put together; and the handles."""
    check_buffers(backend, mixture, function)
    paths, pieces = places(mixture), []
    indices = _indices(backend.engine(mixture.buffers[0]), mixture, indices)
    for state, handles in zip(mixture.buffers, backend.carry_out(apart, paths, indices), strict=True):
        engine = backend.engine(state)
        pieces.append(found(engine, state, engine.as_vector(handles, "indices")))
    leaves = list(zip(*pieces, strict=True))
    arrays = iter(backend.carry_out(chosen, paths, indices, [leaf for leaf in leaves if not is_object_array(leaf[0])]))
    return indices, [
        chosen(numpy_ops, paths, backend.to_numpy(indices), [leaf])[0] if is_object_array(leaf[0]) else next(arrays)
        for leaf in leaves
    ]


def apart(ops: Ops, paths: Sequence[Place], indices: Array) -> list[Array]:
    """For each buffer handles int32 [B]: its own of [B, columns], and in place of others' what names nothing."""
    handles = indices[:, -1]
    return [ops.where(is_own(indices, path), handles, ops.full_like(handles, NOTHING)) for path in paths]


def chosen(ops: Ops, paths: Sequence[Place], indices: Array, leaves: Sequence[Sequence[Array]]) -> list[Array]:
    """Leaves of which each buffer has a piece [B, ...], of rows of the buffers that handles [B, columns] name."""
    made = [pieces[0] for pieces in leaves]
    for k in range(1, len(paths)):
        own = is_own(indices, paths[k])
        for j, pieces in enumerate(leaves):
            made[j] = ops.where(row_layout.along(own, pieces[k]), pieces[k], made[j])
    return made


def size(backend: Backend, mixture: Mixture, *, each: bool = False) -> Array:
    """How many items all buffers store together, or, with `each`, every buffer; see `reading.size`.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4)
        >>> mixture = frb.Mixture([rb.init(spec), rb.add(rb.init(spec), (np.zeros(3, np.float32),))])
        >>> rb.size(mixture, each=True).tolist(), int(rb.size(mixture))
        ([0, 3], 3)
    """
    if each:
        return backend.carry_out(sizes_of_all, places(mixture), _counters(backend, mixture, "size"))
    return backend.carry_out(total, None, _counters(backend, mixture, "size"))


def _counters(backend: Backend, mixture: Mixture, function: str) -> list[Array]:
    check_buffers(backend, mixture, function)
    return [state.counters for state in mixture.buffers]


def total(ops: Ops, _: None, counters: Sequence[Array]) -> Array:
    """How many items are stored together, by the counters of each buffer."""
    return sum_of(ops, None, [each[SIZE] for each in counters])


def sizes_of_all(ops: Ops, paths: Sequence[Place], counters: Sequence[Array]) -> Array:
    """The same for each of a mixture's states, int32 [K], by the places of the buffers."""
    buffers = list(zip(paths, counters, strict=True))
    return ops.stack([total(ops, None, [x for path, x in buffers if path[0] == k]) for k in range(paths[-1][0] + 1)])


def counts(backend: Backend, mixture: Mixture) -> Counts:
    """What all buffers have counted together."""
    check_buffers(backend, mixture, "counts")
    told = [reading.counts(backend.engine(state), state) for state in mixture.buffers]
    return Counts(*(backend.carry_out(sum_of, None, one) for one in zip(*told, strict=True)))


def sum_of(ops: Ops, _: None, counts: Sequence[Array]) -> Array:
    """The sum of int32 scalars, 2^31 - 1 if it is more."""
    return functools.reduce(functools.partial(saturating_add, ops), counts)


def can_sample(backend: Backend, mixture: Mixture, n: int | None = None) -> Array:
    """Whether something can be drawn, and n items are stored in all buffers together; see `reading.can_sample`."""
    wanted = 1 if n is None else checks.needed(n)
    possible = [reading.can_sample(backend.engine(state), state, 1) for state in mixture.buffers]
    return backend.carry_out(enough, wanted, possible, _counters(backend, mixture, "can_sample"))


def enough(ops: Ops, wanted: int, possible: Sequence[Array], counters: Sequence[Array]) -> Array:
    """Whether any of the buffers can be drawn from, bool scalars, and so many items are stored together."""
    some = functools.reduce(operator.or_, possible)
    return some & (total(ops, None, counters) >= min(wanted, INT32_MAX)) & (wanted <= INT32_MAX)


def places(mixture: Mixture, above: Place = ()) -> tuple[Place, ...]:
    """The numbers that name each buffer, in their order."""
    found: list[Place] = []
    for k, one in enumerate(mixture.states):
        found += places(one, (*above, k)) if isinstance(one, Mixture) else [(*above, k)]
    return tuple(found)


def is_own(indices: Array, path: Place) -> Array:
    """Which of handles int32 [B, columns] are of the buffer that these numbers name, bool [B]."""
    own = indices[:, 0] == path[0]
    for column in range(1, indices.shape[1] - 1):
        own = own & (indices[:, column] == (path[column] if column < len(path) else 0))
    return own


def _parted(backend: Backend, mixture: Mixture, indices: Array) -> list[tuple[Array, Array | None]]:
    """The handles of each buffer among indices, and their rows; as `apart` has them where rows cannot be known."""
    paths = places(mixture)
    rows = backend.rows_of(indices, paths)
    if rows is None:
        return [(handles, None) for handles in backend.carry_out(apart, paths, indices)]
    return [(backend.ops.take(indices[:, -1], own), own) for own in rows]


def with_buffers(mixture: M, buffers: Sequence[State]) -> M:
    """The same mixture of other buffers that are no mixtures, as many."""
    rest = iter(buffers)

    def again(node: object) -> Any:
        return node.with_states([again(one) for one in node.states]) if isinstance(node, Mixture) else next(rest)

    made: M = again(mixture)
    return made
