"""The functions of a mixture but `sample`: what they ask of each of its buffers, and how that is put together.

What may be refused is refused before anything is written.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, BackendArray, Nest
from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer import api, checked_items, checks, reading
from functional_rb.buffer import functions as single
from functional_rb.buffer.backend import Backend as Engine
from functional_rb.buffer.state import Counts, State
from functional_rb.core.counters import SIZE
from functional_rb.lib import A, Lib
from functional_rb.mixture.drawing import NOTHING, M
from functional_rb.mixture.layout import form_of, stored_leaves
from functional_rb.mixture.shares import LEAST
from functional_rb.mixture.value import Mixture, specs_of_buffers
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Ops
from functional_rb.specs import ArraySpec
from functional_rb.structures import row_layout
from functional_rb.structures.ring import INT32_MAX, saturating_add

Place = tuple[int, ...]
"""The numbers that name a buffer, one for each level of mixtures."""


def check_buffers(lib: Lib[A], mixture: Mixture, function: str) -> tuple[State, ...]:
    """The buffers of a mixture; those of another backend, consumed ones, and stacks of them are refused."""
    buffers = mixture.buffers
    for state in buffers:
        lib.engine(state).check_state(state, function)
        if len(state.axes) != 1:
            raise checks.not_one(state.axes, function)
    return buffers


def add(write: Callable[..., State | Mixture], mixture: M, to: object, *args: object, **named: object) -> M:
    """Write items by `write` to the buffer `to`; of a mixture in a mixture it is a tuple of numbers."""
    if to is None:
        raise ValueError("add: a mixture has several buffers; give the number of one, rb.add(mixture, items, to=k)")
    k, *rest = to if isinstance(to, tuple) else (to,)
    k = mixture.place(k, "add: to")
    if rest:
        named["to"] = tuple(rest)
    return mixture.with_states([write(one, *args, **named) if j == k else one for j, one in enumerate(mixture.states)])


def with_spec(change: Callable[[State | Mixture, Any], State | Mixture], mixture: M, specs: object) -> M:
    """Give the buffers other specs by `change`, one for each, or None; see `api.with_spec`."""
    new_specs = specs_of_buffers(len(mixture), specs, "with_spec")
    changed = [one if spec is None else change(one, spec) for one, spec in zip(mixture.states, new_specs, strict=True)]
    return mixture.with_states(changed)


def update(
    lib: Lib[A],
    function: str,
    mixture: M,
    indices: ArrayLike,
    priorities: ArrayLike,
    items: object,
    version: ArrayLike,
) -> M:
    """Set priorities and rewrite leaves of what handles [B, columns] name, or tell a version; see `api.update`."""
    buffers = check_buffers(lib, mixture, function)
    engines = [lib.engine(state) for state in buffers]
    listening = [state.spec.sampler.compares_versions for state in buffers]
    first = listening.index(True) if True in listening else 0  # whose error it is if there is none
    version = api.check_version(engines[first], buffers[first], version, function)
    in_place = function == "update_" and not mixture.repeats
    # What is interrupted between two buffers leaves all of them, where values are written as fast as in place.
    together = in_place and lib.mixtures.are_values(buffers)
    after = mixture
    if version is None or api.of_items(indices, priorities, items):
        after = _updated(lib, mixture, indices, priorities, items, function, in_place and not together)
    if version is not None:
        advanced = []
        for state, engine, listens in zip(after.buffers, engines, listening, strict=True):
            carry_out = lib.in_place(engine).advance_ if in_place and not together else engine.advance
            advanced.append(carry_out(state, version) if listens else state)
        after = after.with_buffers(advanced)
    return mixture.with_buffers(lib.mixtures.consumed_together(buffers, after.buffers)) if together else after


def _updated(
    lib: Lib[A],
    mixture: M,
    indices: ArrayLike,
    priorities: ArrayLike,
    items: object,
    function: str,
    in_place: bool,
) -> M:
    buffers = mixture.buffers
    engines = [lib.engine(state) for state in buffers]
    named = _indices(engines[0], mixture, indices)
    count = int(named.shape[0])
    if priorities is not None:
        if not any(state.spec.sampler.has_priorities for state in buffers):
            checks.check_prioritized(buffers[0].spec, function)
        priorities = checks.one_for_each(engines[0].as_vector(priorities, "priorities"), count)
    checked = []
    converts = {engine: _once(engine.convert) for engine in engines}
    # Each buffer gets all rows, with handles of nothing in place of those of others.
    handles_of_all = lib.mixtures.carry_out(apart, mixture.paths, named)
    for state, engine, handles in zip(buffers, engines, handles_of_all, strict=True):
        placed = None
        if priorities is not None and state.spec.sampler.has_priorities:
            placed = engine.as_vector(priorities, "priorities")  # as this buffer's storage wants it
        replacements = checked_items.replacements(state.spec, items, converts[engine], count)
        checked.append((engine.as_vector(handles, "indices"), placed, replacements))
    # Nothing is written before all buffers' arguments have passed.
    after = []
    for state, engine, (handles, placed, replacements) in zip(buffers, engines, checked, strict=True):
        carry_out = lib.in_place(engine).update_ if in_place else engine.update
        after.append(carry_out(state, handles, placed, replacements))
    return mixture.with_buffers(after)


def _once(convert: Callable[..., BackendArray]) -> Callable[..., BackendArray]:
    # A leaf that several buffers are given is converted, and perhaps copied to a device, once.
    arrays = {}

    def converted(leaf: object, expected: ArraySpec, name: str) -> BackendArray:
        key = name, expected.dtype, expected.shape
        if key not in arrays:
            arrays[key] = convert(leaf, expected, name)
        return arrays[key]

    return converted


def _indices(engine: Engine, mixture: Mixture, indices: ArrayLike) -> BackendArray:
    array = engine.as_vector(indices, "indices")
    checks.check_dtype("indices", array, "int32")
    columns = mixture.depth + 1
    if len(array.shape) != 2 or array.shape[1] != columns:
        raise ValueError(
            f"indices: expected shape (B, {columns}), as a mixture names items by buffer and handle, got "
            f"{tuple(array.shape)}; give sample.indices, of slices .reshape(-1, {columns})"
        )
    return array


def get(lib: Lib[A], mixture: Mixture, indices: ArrayLike) -> Nest:
    """What handles [B, columns] name, of the leaves [B, *shape] that all buffers store; see `reading.get`."""
    structure, names = stored_leaves(form_of(mixture))

    def read(engine: Engine, state: State, handles: BackendArray) -> list[BackendArray]:
        leaves = engine.get(state, handles)
        return [leaves[state.spec.plan.names.index(name)] for name in names]

    count, leaves = _read(lib, mixture, indices, "get", read)
    return nest.unflatten(structure, leaves, lib.build_mapping, (count,))


def is_live(lib: Lib[A], mixture: Mixture, indices: ArrayLike) -> BackendArray:
    """Which of handles [B, columns] name stored items, bool [B]."""

    def read(engine: Engine, state: State, handles: BackendArray) -> list[BackendArray]:
        return [engine.look(state, single.is_live, handles)]

    return _read(lib, mixture, indices, "is_live", read)[1][0]


def priorities(lib: Lib[A], mixture: Mixture, indices: ArrayLike) -> BackendArray:
    """Priorities of what handles [B, columns] name, float32 [B], 0 in buffers without any."""
    if not any(state.spec.sampler.has_priorities for state in mixture.buffers):
        checks.need_priorities(mixture.buffers[0].spec, "priorities")

    def read(engine: Engine, state: State, handles: BackendArray) -> list[BackendArray]:
        if not state.spec.sampler.has_priorities:
            return [lib.ops.cast(lib.ops.full_like(handles, 0), "float32")]
        return [engine.look(state, single.priorities, handles)]

    return _read(lib, mixture, indices, "priorities", read)[1][0]


def _read(
    lib: Lib[A], mixture: Mixture, indices: ArrayLike, function: str, read: Callable[..., list[BackendArray]]
) -> tuple[int, list[BackendArray]]:
    """How many handles there are, and what each buffer reads of its own among them, put together in their order."""
    buffers, paths, pieces = check_buffers(lib, mixture, function), mixture.paths, []
    named = _indices(lib.engine(buffers[0]), mixture, indices)
    for state, handles in zip(buffers, lib.mixtures.carry_out(apart, paths, named), strict=True):
        engine = lib.engine(state)
        pieces.append(read(engine, state, engine.as_vector(handles, "indices")))
    leaves = list(zip(*pieces, strict=True))
    arrays = iter(
        lib.mixtures.carry_out(chosen, paths, named, [leaf for leaf in leaves if not is_object_array(leaf[0])])
    )
    # Python objects lie in arrays of NumPy, which no other library takes.
    return int(named.shape[0]), [
        chosen(numpy_ops.OPS, paths, lib.to_numpy(named), [leaf])[0] if is_object_array(leaf[0]) else next(arrays)
        for leaf in leaves
    ]


@replaceable
def apart(ops: Ops, paths: Sequence[Place], indices: BackendArray) -> list[BackendArray]:
    """Handles int32 [B] for each buffer: its own among [B, columns], and `NOTHING` in place of those of others."""
    handles = indices[:, -1]
    return [ops.where(is_own(indices, path), handles, ops.full_like(handles, NOTHING)) for path in paths]


def chosen(
    ops: Ops, paths: Sequence[Place], indices: BackendArray, leaves: Sequence[Sequence[BackendArray]]
) -> list[BackendArray]:
    """Leaves [B, ...], each row from the piece [B, ...] of the buffer that its handle [B, columns] names."""
    rows = [pieces[0] for pieces in leaves]
    for k in range(1, len(paths)):
        mask = is_own(indices, paths[k])
        for j, pieces in enumerate(leaves):
            rows[j] = ops.where(row_layout.along(mask, pieces[k]), pieces[k], rows[j])
    return rows


def size(lib: Lib[A], mixture: Mixture, *, each: bool = False) -> BackendArray:
    """How many items all buffers store together, or, with `each`, every buffer; see `reading.size`.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4)
        >>> mixture = frb.Mixture([rb.init(spec), rb.add(rb.init(spec), (np.zeros(3, np.float32),))])
        >>> rb.size(mixture, each=True).tolist(), int(rb.size(mixture))
        ([0, 3], 3)
    """
    counters = [state.counters for state in check_buffers(lib, mixture, "size")]
    return lib.mixtures.carry_out(sizes if each else total, mixture.paths, counters)


def total(ops: Ops, _: object, counters: Sequence[BackendArray]) -> BackendArray:
    """How many items are stored together, by the counters of each buffer."""
    return sum_of(ops, None, [of_buffer[SIZE] for of_buffer in counters])


def sizes(ops: Ops, paths: Sequence[Place], counters: Sequence[BackendArray]) -> BackendArray:
    """How many items each of a mixture's states stores, int32 [K], by the paths and counters of its buffers."""
    by_state = itertools.groupby(zip(paths, counters, strict=True), lambda one: one[0][0])
    return ops.stack([total(ops, None, [x for _, x in group]) for _, group in by_state])


def counts(lib: Lib[A], mixture: Mixture) -> Counts:
    """What all buffers have counted together; each has a cursor of its own."""
    buffers = check_buffers(lib, mixture, "counts")
    each = [reading.counts(lib.engine(state), state) for state in buffers]
    sums = [lib.mixtures.carry_out(sum_of, None, one) for one in zip(*(one[:-1] for one in each), strict=True)]
    return Counts(*sums, *[sums[0] - sums[0] - 1])


def sum_of(ops: Ops, _: None, counts: Sequence[BackendArray]) -> BackendArray:
    """The sum of int32 scalars, 2^31 - 1 if it is more."""
    return functools.reduce(functools.partial(saturating_add, ops), counts)


def can_sample(lib: Lib[A], mixture: Mixture, n: int | None = None) -> BackendArray:
    """Whether something can be drawn by the mixture's own shares, and n items are stored in all buffers together.

    See `reading.can_sample`.
    """
    wanted = 1 if n is None else checks.needed(n)
    buffers = check_buffers(lib, mixture, "can_sample")
    sharing = [(reading.can_sample(lib.engine(state), state, 1), factors) for state, factors in _sharing(mixture)]
    return lib.mixtures.carry_out(enough, wanted, sharing, [state.counters for state in buffers])


def _sharing(mixture: Mixture) -> Iterator[tuple[State, tuple[BackendArray, ...]]]:
    # The buffers that are not known to have no share, and of each the shares on the way to it that are arrays.
    for k, state in enumerate(mixture.states):
        if mixture.spec.p is not None and mixture.spec.p[k] < LEAST:
            continue
        factors = () if mixture.p is None else (mixture.p[k],)
        for one, below in _sharing(state) if isinstance(state, Mixture) else [(state, ())]:
            yield one, factors + below


def enough(
    ops: Ops,
    wanted: int,
    sharing: Sequence[tuple[BackendArray, Sequence[BackendArray]]],
    counters: Sequence[BackendArray],
) -> BackendArray:
    """Whether any of the buffers that have a share can be drawn from, and so many items are stored in all together.

    Each comes with whether it can be drawn from, a bool scalar, and with all shares that have to be more than 0.
    """
    drawable = (functools.reduce(operator.and_, (share >= LEAST for share in factors), one) for one, factors in sharing)
    some = functools.reduce(operator.or_, drawable)
    return some & (total(ops, None, counters) >= min(wanted, INT32_MAX)) & (wanted <= INT32_MAX)


def is_own(indices: BackendArray, path: Place) -> BackendArray:
    """Which of handles int32 [B, columns] are of the buffer that these numbers name, bool [B]."""
    mask = indices[:, 0] == path[0]
    for column in range(1, indices.shape[1] - 1):
        mask = mask & (indices[:, column] == (path[column] if column < len(path) else 0))
    return mask
