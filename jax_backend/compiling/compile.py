"""What JAX traces and compiles: functions of the core by the library's rules, with kernels or without.

Usual buffers have kernels for whole functions, custom calls that write into the state's own memory as XLA's scatter
does; JAX copies first where the old state is still needed. GPUs have those too. A draw makes its random bits itself.
For what is left there are part kernels on CPUs. Without kernels everything is XLA's operations.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp

from functional_rb.buffer import functions
from functional_rb.buffer.known import Draws
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Selection
from functional_rb.mixture.value import MixtureSpec
from functional_rb.native import kernels, launches
from functional_rb.native.kernels import Kernel
from functional_rb.native.switch import HAVE_KERNELS, switch
from functional_rb.ops import part_kernels
from jax_backend import compat
from jax_backend.arrays import ops, rules
from jax_backend.kernels import tpus
from jax_backend.kernels.custom_call import barrier, choose, in_use

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
# The kind of keys whose random bits kernels know.
THREEFRY: Final = "threefry2x32"

compat.on_each_change(switch.tell, switch.on)


def use_kernels() -> bool:
    """Whether to use kernels; asked whenever a function is called, or traced in another."""
    return HAVE_KERNELS and switch.on


# What is declared of a kernel; where none are in force there may be nobody to tell it to.
def _declared(declaration: Callable[..., Kernel | None], *arguments: object) -> Kernel | None:
    return declaration(*arguments) if part_kernels.in_force() else None


# The same, where programs that are traced now take it; else None, for part kernels to do what they can.
def _used(declaration: Callable[..., Kernel | None], *arguments: object) -> Kernel | None:
    kernel = _declared(declaration, *arguments)
    return kernel if kernel is not None and in_use(kernel) else None


def table(kernels: bool) -> part_kernels.Table:
    """The kernels to trace with, if any are to be used."""
    if not kernels or jax.default_backend() == "tpu":
        return tpus.core_table()
    # Imported when first used, as there may be none.
    own: part_kernels.Table = importlib.import_module("jax_backend.kernels.part_kernels").TABLE
    return own


def program(function: F, by_row: bool = False) -> F:
    """Let a function be traced by the library's rules, with kernels in force if a new keyword, `kernels`, says so.

    If it takes a state, that comes first. With `by_row` it gives a row for each of the storage, or of its first array,
    divided as that is.
    """

    @functools.wraps(function)
    def traced(*args: object, kernels: bool = False, **others: object) -> object:
        with rules.promoting_ranks(), part_kernels.using(table(kernels)):
            return rules.in_automatic_mode(function, args, others, by_row)

    unchanged = inspect.signature(function)
    kernels = inspect.Parameter("kernels", inspect.Parameter.KEYWORD_ONLY, default=False)
    signature = unchanged.replace(parameters=[*unchanged.parameters.values(), kernels])
    traced.__signature__ = signature  # type: ignore[attr-defined]  # `inspect` reads it, typeshed does not know it
    return traced  # type: ignore[return-value]  # of the same signature, but for `kernels`


def add(
    state: State,
    leaves: list[jax.Array],
    batch: int,
    mask: jax.Array | None,
    priorities: jax.Array | None,
    draws: jax.Array | None,
) -> Arrays:
    """Write a batch in a compiled program; returns the new arrays."""
    spec = state.spec
    arguments = arrays_of(state), spec, leaves, batch, mask, priorities, draws
    core = functools.partial(functions.add, ops.OPS)
    if spec.known.buffer:
        return choose(_declared(kernels.add, *arguments), core, *arguments)
    kernel = _used(launches.add, *arguments)
    return finished(core(*arguments)) if kernel is None else choose(kernel, core, *arguments)


def draws(key: jax.Array, batch: int, words: int, wanted: jax.Array | None = None) -> jax.Array:
    """Uniform int32 [batch, words] in [0, 2^31) from a key: the upper bits of `jax.random.bits`.

    Of rows from the `wanted`th on, an int32 scalar, nothing is said, but that there is always a first one.

    On CPUs a kernel computes the same Threefry, JAX's default: XLA makes a dozen small steps of it, handed from thread
    to thread, which took longer than all the rest of sampling.
    """
    kind, data = _parts_of(key)

    def core(data: jax.Array, wanted: jax.Array | None) -> jax.Array:
        if jax.default_backend() == "tpu" and _is_default(kind):
            return tpus.bits(data, batch, words)
        return _bits(data, kind, batch, words)

    kernel = _declared(kernels.threefry, data, batch, words, wanted) if _is_default(kind) else None
    return choose(kernel, core, data, wanted)


# The kind of a key, and its data.
def _parts_of(key: jax.Array) -> tuple[object, jax.Array]:
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    return jax.random.key_impl(typed), jax.random.key_data(typed)


def _bits(data: jax.Array, kind: object, batch: int, words: int) -> jax.Array:
    bits = jax.random.bits(jax.random.wrap_key_data(data, impl=kind), (batch, words), jnp.uint32)
    return (bits >> 1).astype(jnp.int32)


# Whether kernels know the random bits of a kind of keys.
def _is_default(kind: object) -> bool:
    partitionable: bool = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]  # defined at run time
    return str(kind) == THREEFRY and partitionable


def leaves_out(spec: BufferSpec) -> bool:
    """Whether kernels may draw and read just what is wanted: nothing but the choice of rows comes after them."""
    return spec.known.draws is Draws.ITEMS and not spec.inner and spec.plan.frames is None and spec.on_sample is None


def sample(
    state: State,
    key: jax.Array,
    more: jax.Array | None,
    beta: jax.Array,
    batch: int,
    wanted: jax.Array | None = None,
) -> tuple[Arrays, list[jax.Array], Selection]:
    """Choose items by a key, and read them: `draw` with the random bits of the key."""
    kind, data = _parts_of(key)
    drawn = _by_kernels(state, None, data, more, beta, batch, wanted) if _is_default(kind) else None
    if drawn is None:
        left_out = wanted if leaves_out(state.spec) else None
        return draw(state, draws(key, *state.spec.draw_shape(batch), left_out), more, beta, batch, wanted)
    return drawn


def draw(
    state: State,
    draws: jax.Array,
    more: jax.Array | None,
    beta: jax.Array,
    batch: int,
    wanted: jax.Array | None = None,
) -> tuple[Arrays, list[jax.Array], Selection]:
    """Choose items by draws int32 [rows, words], and read them; more draws are for transforms.

    Wanted, an int32 scalar, is how many rows count, from the first on; None for all. Those behind hold anything, if
    `leaves_out` says so, but for the first.
    """
    spec, arrays = state.spec, arrays_of(state)
    drawn = _by_kernels(state, draws, None, more, beta, batch, wanted)
    if drawn is not None:
        return drawn
    if spec.known.draws is not Draws.ITEMS or not spec.known.plain:
        return _read_chosen(*_by_sampler(arrays, draws, beta, wanted, spec, batch), spec, batch, more)

    def core(arrays: Arrays, draws: jax.Array, beta: jax.Array) -> tuple[Arrays, list[jax.Array], Selection]:
        return functions.draw(ops.OPS, arrays, spec, draws, beta, batch)

    after, leaves, selection = choose(None, core, arrays, draws, beta)
    # What is written to the state that is returned comes after this read, and XLA does not read the tree for it again.
    counters, handles, weights, chances = barrier([after.counters, *selection[:3]], leaves)
    selection = selection._replace(handles=handles, weights=weights, probabilities=chances)
    return after._replace(counters=counters), leaves, selection


# By one call, or launch, that does all of it, or by one that chooses; None where there is neither. Of a key the data.
def _by_kernels(
    state: State,
    draws: jax.Array | None,
    key: jax.Array | None,
    more: jax.Array | None,
    beta: jax.Array,
    batch: int,
    wanted: jax.Array | None,
) -> tuple[Arrays, list[jax.Array], Selection] | None:
    spec, arrays = state.spec, arrays_of(state)
    wanted = wanted if leaves_out(spec) or spec.sampler.remembers else None

    def whole(
        arrays: Arrays, draws: jax.Array | None, key: jax.Array | None, beta: jax.Array, wanted: jax.Array | None
    ) -> tuple[Arrays, list[jax.Array], Selection]:
        return functions.draw(ops.OPS, arrays, spec, _words(spec, batch, draws, key), beta, batch, None, wanted)

    kernel = _used(launches.draw, arrays, spec, draws, key, beta, batch, wanted)
    if kernel is not None:
        drawn: tuple[Arrays, list[jax.Array], Selection] = choose(kernel, whole, arrays, draws, key, beta, wanted)
        return drawn
    picked = None if spec.known.plain else _chosen_by_kernel(state, draws, key, beta, batch, wanted)
    if picked is None:
        return None
    after, slots, selection = picked
    return _read_chosen(Draft.of(after, spec.plan), slots, selection, spec, batch, more)


# What the sampler chooses, by one call, or launch; None where there is neither.
def _chosen_by_kernel(
    state: State,
    draws: jax.Array | None,
    key: jax.Array | None,
    beta: jax.Array,
    batch: int,
    wanted: jax.Array | None = None,
) -> tuple[Arrays, jax.Array, Selection] | None:
    spec, arrays = state.spec, arrays_of(state)

    def core(
        arrays: Arrays, draws: jax.Array | None, key: jax.Array | None, beta: jax.Array, wanted: jax.Array | None
    ) -> tuple[Arrays, jax.Array, Selection]:
        draft, slots, selection = _by_sampler(arrays, _words(spec, batch, draws, key), beta, wanted, spec, batch)
        return draft.finish(ops.OPS), slots, selection

    kernel = _used(launches.choose, arrays, spec, draws, key, beta, batch, wanted)
    return None if kernel is None else choose(kernel, core, arrays, draws, key, beta, wanted)


# The draws for a batch, or those that the data of a key gives.
def _words(spec: BufferSpec, batch: int, draws: jax.Array | None, key: jax.Array | None) -> jax.Array:
    if key is not None:
        return _bits(key, THREEFRY, *spec.draw_shape(batch))
    assert draws is not None
    return draws


def chosen(state: State, key: jax.Array, beta: jax.Array, batch: int) -> tuple[Arrays, jax.Array, Selection]:
    """The slots int32 [m] of what the sampler draws by a key, beside the arrays afterwards: nothing is read."""
    kind, data = _parts_of(key)
    picked = _chosen_by_kernel(state, None, data, beta, batch) if _is_default(kind) else None
    if picked is not None:
        return picked
    numbers = draws(key, *state.spec.draw_shape(batch))
    draft, slots, selection = _by_sampler(arrays_of(state), numbers, beta, None, state.spec, batch)
    return draft.finish(ops.OPS), slots, selection


# What is read of what the sampler has chosen.
def _read_chosen(
    draft: Draft, slots: jax.Array, selection: Selection, spec: BufferSpec, batch: int, more: jax.Array | None
) -> tuple[Arrays, list[jax.Array], Selection]:
    (slots, *info), outline = jax.tree.flatten((slots, selection))
    slots, selection = jax.tree.unflatten(outline, barrier([slots, *info]))
    leaves, selection = functions.read_selection(ops.OPS, draft, spec, slots, selection, batch, more)
    return finished(draft.finish(ops.OPS), [*leaves, *selection.extras.values()]), leaves, selection


# What the sampler chooses, and the draft after that.
def _by_sampler(
    arrays: Arrays, draws: jax.Array, beta: jax.Array, wanted: jax.Array | None, spec: BufferSpec, batch: int
) -> tuple[Draft, jax.Array, Selection]:
    draft = Draft.of(arrays, spec.plan)
    draft.wanted = wanted
    chosen: tuple[Any, Selection] = spec.sampler.draw(ops.OPS, draft, draws, beta, batch)
    return draft, *chosen


def sample_mixture(
    states: Sequence[State],
    spec: MixtureSpec,
    key: jax.Array,
    listed: tuple[float, ...] | None,
    shares: jax.Array | None,
    beta: jax.Array | None,
    batch: int,
    core: Callable[..., T],
) -> T | None:
    """Leaves, what is told of them, and counters of each buffer, where a kernel draws all that; None where none does.

    The buffers are alike; shares are `listed` (see `launches.sample_mixture`) or an array, beta None where there are no
    weights. The core does the same by the states, the key, shares and beta.
    """
    kind, data = _parts_of(key)
    arrays, specs = [arrays_of(state) for state in states], [state.spec for state in states]
    arguments = arrays, specs, spec, data, listed, shares, beta, batch
    kernel = _used(launches.sample_mixture, *arguments) if _is_default(kind) else None
    if kernel is None:
        return None

    def by_core(arrays: Sequence[Arrays], data: jax.Array, *others: object) -> T:
        states = [State(*of_buffer, spec) for of_buffer, spec in zip(arrays, specs, strict=True)]
        return core(states, jax.random.wrap_key_data(data, impl=kind), *others)

    return choose(kernel, by_core, arrays, data, shares, beta)


def update(
    state: State, handles: jax.Array, priorities: jax.Array | None, replacements: Mapping[int, jax.Array]
) -> Arrays:
    """Set priorities and rewrite leaves."""
    spec = state.spec
    arguments = arrays_of(state), spec, handles, priorities, replacements
    alone = spec.known.updates and priorities is not None and not replacements
    if not (spec.known.buffer or alone):  # by part kernels, which `choose` would leave out where none does the whole
        return finished(functions.update(ops.OPS, *arguments))
    return choose(_declared(kernels.update, *arguments), functools.partial(functions.update, ops.OPS), *arguments)


def finished(arrays: Arrays, after: Sequence[jax.Array] = ()) -> Arrays:
    """The arrays of a new state, of which the counters are there once all else is, and all that `after` names.

    So a function that takes the state, and begins with its counters, writes nothing before it has been read.
    """
    trees = [] if arrays.tree is None else [arrays.tree]
    before = [arrays.rows, *arrays.wide, *trees, *arrays.auxiliary.values(), *after]
    return arrays._replace(counters=barrier([arrays.counters], before)[0])


def arrays_of(state: State) -> Arrays:
    """The arrays of a state; for a sharded one those of its index."""
    return Arrays(state.rows, state.wide, state.tree, state.counters, dict(state.auxiliary))
