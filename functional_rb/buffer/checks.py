"""What is checked before any array work: everything that shapes, dtypes and static settings can tell.

Messages name the leaf, what was expected, what came, and the remedy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import ArrayLike, BackendArray, Nest, NumpyArray, PRNGKey
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State, StateHolder
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core.counters import BASE, read
from functional_rb.core.sample import MaskedSample, Sample, SliceSample
from functional_rb.samplers.epochs import EPOCHS_DONE
from functional_rb.specs.values import Outline
from functional_rb.structures.frame_ring import CURSOR
from functional_rb.structures.ring import INT32_MAX
from functional_rb.writers import Immutable


def known_size(what: str, size: Any) -> int:
    """A size of a batch as a Python int.

    Raises:
        TypeError: for a symbol, as programs have it that JAX exports for batches of any size.
    """
    try:
        return int(size)
    except Exception as error:
        raise TypeError(
            f"{what}: expected a batch whose size is known while tracing, got the symbol {size}; "
            f"export a program for each size"
        ) from error


def check_dtype(name: str, array: object, expected: str) -> None:
    """Refuse a dtype that is not the expected one: none is ever changed silently."""
    if not hasattr(array, "dtype"):
        raise TypeError(
            f"{_label(name)}: expected an array of dtype {expected}, got {type(array).__name__}{_remedy(array)}"
        )
    got = dtypes.shown(array.dtype)
    if got != expected:
        raise TypeError(
            f"{_label(name)}: expected dtype {expected}, got {got}; convert it yourself, or change "
            f"{'its spec' if name not in _ARGUMENTS else 'the argument'}"
        )


# What errors add about a whole sample in place of its indices, and about plain numbers.
def _remedy(argument: object) -> str:
    if is_pair(argument):
        return f"; {UNPACK}, and give sample.indices"
    if isinstance(argument, Sample | MaskedSample | SliceSample):
        return "; give sample.indices"
    return "; make an array of it" if isinstance(argument, int | float | list | tuple) else ""


UNPACK = "unpack it: state, sample = rb.sample(...)"


def is_pair(argument: object) -> bool:
    """Whether something is what `sample` returns, a state and a sample, in place of one of them."""
    return isinstance(argument, tuple) and len(argument) == 2 and isinstance(argument[0], State | StateHolder)


def check_unpacked(items: Nest, function: str) -> None:
    """Refuse the pair that `sample` returns, and a whole sample, in place of its items."""
    if is_pair(items):
        raise TypeError(f"{function}: expected items, got a state and a sample; {UNPACK}, and give sample.items")
    if isinstance(items, Sample | MaskedSample | SliceSample):
        raise TypeError(f"{function}: expected items, got a {type(items).__name__}; give sample.items")


def are_listed(indices: object, name: str) -> bool:
    """Whether handles come as a list of whole numbers, or of such lists, one for each of a mixture.

    Raises:
        TypeError: for handles in a list of other things.
    """
    if name != "indices" or not isinstance(indices, list):
        return False
    widths = {len(row) if isinstance(row, list) else -1 for row in indices}
    numbers = [x for row in indices for x in (row if isinstance(row, list) else [row])]
    if len(widths) > 1 or not all(
        (type(x) is int or isinstance(x, np.integer)) and -(2**63) <= x < 2**63 for x in numbers
    ):
        raise TypeError(f"indices: expected handles, whole numbers as sample.indices has them, got {indices!r:.80}")
    return True


_ARGUMENTS = ("mask", "priorities", "indices", "beta", "lengths")


def check_numpy(name: str, array: NumpyArray | np.generic) -> None:
    """Refuse what NumPy has and other libraries do not: arrays with a mask of their own, and foreign byte orders."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{_label(name)}: expected an array without a mask of its own, got numpy.ma.MaskedArray, whose masked "
            f"elements would be stored as if they were not; give array.filled(...), or the rows to leave out by "
            f"add(..., mask=...)"
        )
    if not array.dtype.isnative:
        check_dtype(name, array, array.dtype.newbyteorder("=").name)


def _label(name: str) -> str:
    return name if name in _ARGUMENTS else f"leaf {name!r}"


def check_prioritized(spec: BufferSpec, function: str) -> None:
    if not spec.sampler.has_priorities:
        raise ValueError(
            f"{function}: priorities were given, but the sampler is {spec.sampler}; "
            f"use BufferSpec(sampler=frb.Prioritized()), or frb.PrioritizedSlices"
        )


def need_priorities(spec: BufferSpec, function: str) -> None:
    if not spec.sampler.has_priorities:
        raise ValueError(f"{function}: the sampler {spec.sampler} has no priorities; use frb.Prioritized()")


def need_order(spec: BufferSpec, function: str) -> None:
    if not spec.writer.in_order:
        raise ValueError(
            f"{function}: {spec.writer} chooses slots, and nothing tells in which order its items came; "
            f"all that they hold is in rb.items(state)"
        )


def check_state(state: object, function: str) -> None:
    if not isinstance(state, State):
        hint = "; unpack it: state, sample = rb.sample(...)" if isinstance(state, tuple) else ""
        if isinstance(state, StateHolder):
            hint = state.hint(function)
        raise TypeError(f"{function}: expected a State, got {type(state).__name__}{hint}")


def of_other_backend(state: State, function: str, expected: str, got: str) -> TypeError:
    """The error for a state of another backend than a function's."""
    remedy, storage = "bring it over by rb.from_dlpack(state)", state.spec.storage
    if isinstance(storage, Memmap) and storage.shared:  # what is brought over is a copy, to which nobody else adds
        remedy = (
            "join the buffer by rb.init(spec), of a spec with its path, frb.Memmap(path, shared=True), or take a copy "
            "by rb.from_dlpack(state, copy=True)"
        )
    return TypeError(f"{function}: expected a state of {expected}, got one of {got}; {remedy}")


def check_together(state: object, function: str) -> None:
    if isinstance(state, State) and state.instead:
        raise ValueError(
            f"{function}: expected a buffer on one device, got {state!r:.80}, which is over several; give "
            f"{state.instead}"
        )


def not_one(axes: tuple[int, ...], function: str) -> ValueError:
    """The error for counters of this shape: a stack of states without vmap, or vmap over a state that is no stack."""
    if not axes:
        return ValueError(
            f"{function}: vmap took the arrays of a single buffer apart; stack states to map over them, "
            f"or give in_axes=None for this one"
        )
    lead = tuple(axes[:-1])
    return ValueError(
        f"{function}: expected one buffer, got a stack of them with the batch axes {lead}; use "
        f"jax.vmap(rb.{function})(states, ...), {'once for each axis, ' if len(lead) > 1 else ''}"
        f"or torch.func.vmap on torch"
    )


def check_spec(spec: object, function: str = "init") -> None:
    if not isinstance(spec, BufferSpec):
        call = "rb.init(frb.BufferSpec(...))" if function == "init" else "dataclasses.replace(state.spec, capacity=...)"
        raise TypeError(f"{function}: expected a BufferSpec, got {type(spec).__name__}; write {call}")


def handles(indices: BackendArray) -> None:
    check_dtype("indices", indices, "int32")
    if len(indices.shape) != 1:
        raise ValueError(
            f"indices: expected shape (B,), got {tuple(indices.shape)}; give sample.indices, of slices .reshape(-1)"
        )


def one_for_each(priorities: BackendArray, size: int) -> BackendArray:
    """Priorities float32 [B], where they are given as that or as [B, 1]."""
    check_dtype("priorities", priorities, "float32")
    shape = tuple(priorities.shape)
    if shape == (size, 1):
        return priorities.reshape(size)
    if shape == (size,):
        return priorities
    raise ValueError(f"priorities: expected shape ({size},), one for each index, got {shape}")


def check_not_a_size(key: object, batch_size: object, function: str) -> None:
    """Refuse a number where the key stands: then it is meant as the batch size, which may be where the key belongs."""
    if not isinstance(key, int | float | np.number) or isinstance(key, bool):
        return
    size = key if batch_size is None or hasattr(batch_size, "dtype") else batch_size
    raise TypeError(f"{function}: expected a key, got the number {key}; write {function}(state, rb.key(seed), {size})")


def check_single(function: str, to: object = None, p: object = None) -> None:
    if to is not None:
        raise ValueError(f"{function}: to was given, but there is a single buffer; leave it out, or add to a Mixture")
    if p is not None:
        raise ValueError(
            f"{function}: p was given, but a single buffer gives all of the batch; leave it out, or sample a Mixture"
        )


def batch_size(spec: BufferSpec, argument: object, function: str = "sample") -> int:
    """The batch size of a function that draws: the argument, or the spec's."""
    size = spec.batch_size if argument is None else argument
    if type(size) is int and 0 <= size <= INT32_MAX:  # most often
        return size
    if size is None:
        raise ValueError(
            f"{function}: batch_size is missing; give {function}(..., batch_size=n) or BufferSpec(batch_size=n)"
        )
    return count(function, "batch_size", size)


def count(function: str, name: str, value: object) -> int:
    """A number that is a shape: known while tracing, and not negative."""
    number = needed(value, function, name)
    if number > INT32_MAX:
        raise ValueError(f"{function}: expected {name} up to {INT32_MAX}, got {number}")
    return number


def needed(value: Any, function: str = "can_sample", name: str = "n") -> int:
    """A number of items as a Python int, at least 0 and of any size: more than there can be is an answer, no error."""
    number = value if type(value) is int else whole(value)
    if number is None or isinstance(value, bool):
        raise TypeError(
            f"{function}: expected {name} as a Python int, because it must be known while tracing; "
            f"got {type(value).__name__} (under jax.jit, make it a static argument)"
        )
    if number < 0:
        raise ValueError(f"{function}: expected {name} >= 0, got {number}")
    return number


def whole(value: SupportsIndex) -> int | None:
    """The number in what may stand for an int, a scalar array too; None if there is none."""
    # Torch makes a number of an array of one element, and of a truth value.
    if getattr(value, "shape", ()) != () or "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)
    except Exception:  # of the library's own for what is traced, or on meta
        return None


def rows_of_sample(spec: BufferSpec, size: int) -> None:
    rows = math.prod(spec.sampler.leading_shape(size))
    if rows > INT32_MAX:
        raise ValueError(
            f"sample: {size} of {spec.sampler} have {rows} rows, and at most {INT32_MAX} can be drawn at once; "
            f"give a smaller batch_size"
        )


def check_beta(spec: BufferSpec, beta: ArrayLike, value_of: Callable[[ArrayLike], float | None]) -> None:
    """Refuse a beta where there are no weights; else see `check_exponent`."""
    if not spec.sampler.has_priorities:
        raise ValueError(f"sample: beta was given, but the sampler is {spec.sampler}, whose weights are all 1")
    check_exponent(beta, value_of)


def check_exponent(beta: BackendArray, value_of: Callable[[ArrayLike], float | None]) -> None:
    """Refuse a beta that is no scalar, and one that is out of range if `value_of` says which number it is."""
    if isinstance(beta, (int, float)) and not isinstance(beta, bool):
        _beta_in_range(beta)
        return
    if not hasattr(beta, "dtype") or not any(kind in dtypes.shown(beta.dtype) for kind in ("float", "int")):
        got = dtypes.shown(beta.dtype) if hasattr(beta, "dtype") else type(beta).__name__
        raise TypeError(f"beta: expected a number or a float32 scalar, got {got}")
    if len(beta.shape) != 0:
        raise ValueError(f"beta: expected a scalar, got shape {tuple(beta.shape)}; give beta[()] or one number")
    known = value_of(beta)
    if known is not None:
        _beta_in_range(known)


def _beta_in_range(beta: float) -> None:
    if not 0 <= beta <= 100:
        raise ValueError(f"beta: expected a number in [0, 100], got {beta!r}; clip the schedule that it comes from")


def check_version(spec: BufferSpec, version: object, function: str) -> None:
    """Refuse the version of a policy where nothing compares it, and one that is no integer scalar."""
    if not spec.sampler.compares_versions:
        raise ValueError(
            f"{function}: version was given, but the sampler is {spec.sampler}, which compares none; use "
            f"BufferSpec(sampler=frb.Staleness())"
        )
    is_int = isinstance(version, int) and not isinstance(version, bool)
    if not is_int and "int" not in dtypes.shown(getattr(version, "dtype", None)):
        raise TypeError(f"{function}: expected version as an int, or an integer scalar, got {version!r}")
    shape = tuple(getattr(version, "shape", ()))
    if shape:
        raise ValueError(f"{function}: expected version as a scalar, got shape {shape}; give version[()] or one number")


def check_epochs(spec: BufferSpec, size: object) -> None:
    """Refuse to go through a buffer whose sampler has no epochs, or in batches of nothing, which never ends."""
    if EPOCHS_DONE not in dict(spec.plan.counter_names):
        raise ValueError(
            f"iterate: the sampler {spec.sampler} draws with replacement and has no epochs; "
            f"use BufferSpec(sampler=frb.WithoutReplacement())"
        )
    if batch_size(spec, size, "iterate") == 0:
        raise ValueError("iterate: expected batch_size >= 1 with epochs, got 0")


def check_nonempty(spec: BufferSpec, drawable: bool, size: int) -> None:
    if not drawable and size == 0:
        raise ValueError("sample: the buffer is empty; add items first (rb.can_sample(state, n) tells)")
    if not drawable:
        raise ValueError(f"sample: none of the {size} stored items {spec.sampler.why_nothing}")


def check_first_items(spec: BufferSpec, has_items: bool) -> None:
    """Refuse a dataset without items, and items for a writer that draws, as `init` has no key for it."""
    if not has_items and isinstance(spec.writer, Immutable):
        raise ValueError("init: an Immutable buffer is filled as it is made; give rb.init(spec, items=...)")
    if has_items and spec.writer.words:
        raise ValueError(
            f"init: {spec.writer} draws which items to keep; give them to rb.add(state, items, key=key) instead"
        )


def fits_at_first(spec: BufferSpec, rows: int) -> None:
    if not spec.writer.overwrites and rows > spec.capacity:
        raise ValueError(
            f"init: {rows} items do not fit into a capacity of {spec.capacity}; give BufferSpec(capacity={rows})"
        )


def holds_all(spec: BufferSpec, rows: int, known: tuple[NumpyArray, BackendArray] | None) -> None:
    """Refuse a dataset that has lost items for want of room for their observations, where that is known."""
    chain = spec.plan.frames
    if chain is None or spec.writer.overwrites or known is None:
        return
    numbers = read(spec.plan, known[0])
    held = int(numbers.ends.sizes.sum())
    if held < rows:
        taken = int(numbers.more[CURSOR].max())
        # The first observation may be shared with the frames before it, which then take room as well.
        spare = (taken + chain.depth - chain.items.length) * chain.items.lanes
        where = " in a lane" if spec.lanes else ""
        raise ValueError(
            f"init: the {rows} items have {taken} different observations{where}, and there is room for {chain.room}, "
            f"which {held} items fit into; give frb.Compact(spare={spare})"
        )


def check_writable(spec: BufferSpec) -> None:
    if isinstance(spec.writer, Immutable):
        raise ValueError(
            "this buffer is Immutable: its items are given to rb.init(spec, items=...) and never change; "
            "use writer=frb.RoundRobin() for one that is added to"
        )


def check_timely(spec: BufferSpec, priorities: ArrayLike) -> None:
    if priorities is not None and any(transform.delays for transform in spec.transforms):
        raise ValueError(
            "priorities: n_step(at='add') writes items later than their steps come; leave them out, and set them by "
            "rb.update, or give n_step(at='sample')"
        )


def check_writer_key(spec: BufferSpec, key: PRNGKey) -> None:
    if spec.writer.words and key is None:
        raise ValueError(
            f"add: {spec.writer} draws which items to keep; give add(..., key=key), a new key at every call"
        )


def check_room(spec: BufferSpec, rows: int, known: tuple[NumpyArray, BackendArray] | None) -> None:
    """Refuse what a buffer that never overwrites has no room for, where that is known: before anything is written."""
    if known is None or rows == 0:
        return
    vector, mask = known
    lanes = spec.plan.ring.lanes
    sizes = vector[1:2] if lanes == 1 else vector[BASE + lanes : BASE + 2 * lanes]
    wanted = rows // lanes if mask is None else mask.reshape(-1, lanes).sum(0)
    room = spec.plan.ring.length - sizes
    if (wanted > room).any():
        lane = int((wanted - room).argmax())
        where = f" in lane {lane}" if lanes > 1 else ""
        raise ValueError(
            f"add: the buffer is full: {int((wanted + 0 * room)[lane])} items do not fit into the room for "
            f"{int(room[lane])}{where}; sample from the queue first, or add fewer (nothing was written)"
        )


def check_valid(
    outline: Outline, leaves: Sequence[BackendArray], outside: Sequence[NumpyArray], rows: NumpyArray
) -> None:
    """Refuse items outside of their specs: of each unit that is of arrays `outside` bool [B]; rows bool [B] count."""
    if not rows.any():
        return
    row = int(rows.argmax())
    for member, bad in zip(outline.in_arrays, outside, strict=True):
        if bool(bad[row]):
            value = member.gather([leaf[row] for leaf in leaves])
            raise ValueError(
                f"leaf {member.name!r}: row {row} lies outside of {member.spec!r:.200}, got {value!s:.200}; "
                f"correct it (rb.project(spec, items) would), or leave it out by a mask (nothing was written)"
            )


def leaves_for_backend(spec: BufferSpec, unsupported: Callable[[str], str | None]) -> None:
    for outline in dict.fromkeys((spec.added, spec.plan.outline)):
        for name, leaf in zip(outline.names, outline.leaves, strict=True):
            remedy = unsupported(leaf.dtype)
            if remedy is not None:
                raise TypeError(f"leaf {name!r}: dtype {leaf.dtype} {remedy}")
