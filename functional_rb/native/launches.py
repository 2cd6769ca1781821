"""Launches for GPUs where CPUs have no one kernel that does the same, each declared once, as `kernels` has the others.

What they do the version chain does on hosts, and the core by part kernels in programs for CPUs. A declaration gives
None for what no launch does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from functional_rb.base.arrays import BackendArray
from functional_rb.buffer.known import Draws
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays, HasArrays
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.strategy import Selection
from functional_rb.mixture.value import MixtureSpec
from functional_rb.native import descriptor, gpu, kernels
from functional_rb.native.kernels import ABSENT, Kernel, Launch, Made, bools, floats, ints
from functional_rb.ops.protocol import Array
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.structures import frame_ring
from functional_rb.structures.key_rows import KeyRows
from functional_rb.transforms.returns import DISCOUNT, NONTERMINAL, STEPS, NStep

# How elements of keys are stored, `Stored` in `src/gpu_maps.h`; those of other dtypes as they are.
STORED: Final = {"float16": 1, "bfloat16": 2, "float32": 3, "complex64": 3, "float64": 4}

# The handlers of what is drawn.
_DRAWING: Final = {
    Draws.ITEMS: "draw_items",
    Draws.SLICES: "draw_slices",
    Draws.EPOCH: "draw_epoch",
    Draws.EPOCH_OF_SLICES: "draw_epoch",
}


def add(
    state: HasArrays,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None = None,
) -> Kernel | None:
    """What `functions.add` does where items lie in rings, with all that a sampler keeps of them."""
    if not spec.known.appends or spec.known.on_hosts_alone or not batch:
        return None
    beside = descriptor.beside(spec)
    if len(beside.frames):
        return _add_with_frames(state, spec, beside, leaves, batch, mask, priorities)
    if len(beside.queue):
        return None if priorities is not None else _add_waiting(state, spec, beside, leaves, batch, mask)
    after = Arrays(
        state.rows,
        tuple(state.wide),
        state.tree,
        Made(state.counters.shape, "int32", over=state.counters),
        dict(state.auxiliary),
    )
    keeps = state.tree is not None or bool(state.auxiliary)
    return Kernel(
        "",
        (*_parts(state), mask, priorities, *leaves),
        after,
        [descriptor.encode(spec), descriptor.encode_rings(spec), batch, *_epochs(spec)],
        outputs=[ABSENT if x is None else x for x in _parts(after)],
        on_gpu=Launch("add_to_rings", batch, mask is not None, few=mask is None and not keeps),
    )


def whole_add(
    state: HasArrays,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None = None,
) -> Kernel | None:
    """What `functions.add` does on a GPU, wherever items lie."""
    kernel = kernels.add(state, spec, leaves, batch, mask, priorities)
    return add(state, spec, leaves, batch, mask, priorities) if kernel is None else kernel


def _add_with_frames(
    state: HasArrays,
    spec: BufferSpec,
    beside: descriptor.Beside,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
) -> Kernel:
    """Where items share frames; those of a batch are compared with each other and with the newest that are stored."""
    counters = Made(state.counters.shape, "int32", over=state.counters)
    after = Arrays(state.rows, tuple(state.wide), state.tree, counters, dict(state.auxiliary))
    frames = [state.auxiliary[name] for name in (frame_ring.AT, *beside.names)]
    return Kernel(
        "",
        (*_parts(state), mask, priorities, *frames, *leaves),
        after,
        [descriptor.encode(spec), descriptor.encode_rings(spec), batch, beside.frames, beside.layout, *_epochs(spec)],
        outputs=[ABSENT if x is None else x for x in (*_parts(after), *frames)],
        on_gpu=Launch("add_with_frames", batch, mask is not None),
    )


def _add_waiting(
    state: HasArrays,
    spec: BufferSpec,
    beside: descriptor.Beside,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
) -> Kernel:
    """Where steps wait for those that follow them."""
    counters = Made(state.counters.shape, "int32", over=state.counters)
    after = Arrays(state.rows, tuple(state.wide), state.tree, counters, dict(state.auxiliary))
    order, place = (state.auxiliary.get(name) for name in descriptor.KEPT[:2])
    queue = [state.auxiliary[name] for name in beside.names]
    kept = [state.rows, *state.wide, state.tree, order, place]
    return Kernel(
        "",
        (*kept, state.counters, *queue, mask, *leaves),
        after,
        [*_of_queue(spec, beside, batch), *_epochs(spec)],
        outputs=[ABSENT if x is None else x for x in (*kept, counters, *queue)],
        on_gpu=Launch("add_waiting", batch, mask is not None),
    )


def _of_queue(spec: BufferSpec, beside: descriptor.Beside, batch: int) -> list[descriptor.Vector | int]:
    return [descriptor.encode(spec), descriptor.encode_rings(spec), batch, beside.queue, beside.layout]


def sample(
    state: HasArrays, spec: BufferSpec, key: Array, beta: Array, batch: int, wanted: Array | None = None
) -> Kernel | None:
    """What `functions.draw` gives by the random bits of a key of JAX's, uint32 [2].

    The counters are told again where they stay as they are: they are there once all has been read.
    """
    if not batch:
        return None
    if _draws_with_frames(spec):
        return _sample_frames(state, spec, key, beta, batch)
    if not spec.known.plain:
        return None
    lead = spec.sampler.leading_shape(batch)
    leaves = [Made((*lead, *leaf.shape), leaf.dtype) for leaf in spec.plan.layout.leaves]
    if spec.known.draws is Draws.ITEMS:
        return _sample_items(state, spec, leaves, key, beta, batch, wanted)
    return _draw_from_rings(state, spec, leaves, key, None, beta, batch, wanted)


def sample_mixture(
    states: Sequence[HasArrays],
    specs: Sequence[BufferSpec],
    spec: MixtureSpec,
    key: Array,
    listed: tuple[float, ...] | None,
    shares: Array | None,
    beta: Array | None,
    batch: int,
) -> Kernel | None:
    """What `drawing.draw` gives of a mixture of buffers alike, by a key of JAX's, with a launch for each buffer.

    Args:
        states: the buffers, all of which draw single items, or slices alike, of the same leaves.
        specs: theirs.
        spec: the mixture's.
        key: uint32 [2].
        listed: the shares, or an empty tuple, see `descriptor.encode_mixture`; None where an array has them.
        shares: that array, float32 [K].
        beta: float32 scalar; None for no weights.
        batch: B.
    """
    from functional_rb import _native

    told = [(descriptor.encode(each), descriptor.encode_rings(each)) for each in specs]
    alone = [Kernel("", (), (), records, on_gpu=Launch("sample", batch)) for records in told]
    if not batch or len(specs) > _native.GPU_MIXED or not all(map(gpu.fits, alone)):
        return None
    sizes = [
        (len(plan), len(rings), each.draw_shape(batch)[1]) for (plan, rings), each in zip(told, specs, strict=True)
    ]
    mixture = descriptor.encode_mixture(spec, len(specs), batch, listed, beta is not None)
    record = np.concatenate([mixture, np.array(sizes, np.int32).reshape(-1), *(x for pair in told for x in pair)])
    # Flat slices come with two axes, as mixtures have them.
    sampler = specs[0].sampler
    lead = (batch, sampler.length) if isinstance(sampler, Trajectories) else (batch,)
    leaves = [Made((*lead, *leaf.shape), leaf.dtype) for leaf in specs[0].plan.layout.leaves]
    drawn, counters = (ints(*lead, 2), floats(batch), floats(batch)), [ints(*each.counters.shape) for each in states]
    flags = [bools(*lead) for _ in range(4)] if isinstance(sampler, Trajectories) else []
    kept = [[each.auxiliary.get(name) for name in descriptor.KEPT[2:]] for each in states]
    arrays = [
        x
        for each, beside in zip(states, kept, strict=True)
        for x in (each.rows, *each.wide, each.tree, *beside, each.counters)
    ]
    return Kernel(
        "",
        (key, shares, beta, *arrays),
        (leaves, (*drawn, flags), counters),
        [record],
        outputs=[*leaves, *drawn, *(flags or [ABSENT] * 4), *counters],
        on_gpu=Launch("sample_mixture", batch, of_buffer=False),
    )


def pack_keys(keys: KeyRows, leaves: Sequence[Array]) -> Kernel | None:
    """What `hash_maps.functions.rows_of_keys` gives, int32 [B, words]."""
    batch, layout = leaves[0].shape[0], keys.layout
    # Those without elements have no place in a row.
    packed = [(leaves[k], keys.leaves[k][2]) for k in layout.packed]
    record = descriptor.encode_layout(layout.part(layout.packed))
    stored = np.array([STORED.get(dtype, 0) for _, dtype in packed], np.int32)
    if not batch or not gpu.fits(Kernel("", (), (), [record], on_gpu=Launch("sample", batch))):
        return None
    launch = Launch("pack_keys", batch, few=True, of_buffer=False)
    return Kernel("", [leaf for leaf, _ in packed], ints(batch, keys.words), [record, stored], on_gpu=launch)


def apart(paths: tuple[tuple[int, ...], ...], indices: Array) -> Kernel | None:
    """What `mixture.functions.apart` gives: for each buffer its own handles."""
    from functional_rb import _native

    batch, columns = indices.shape
    record, (most, of_plan, *_) = descriptor.encode_paths(paths, columns), _native.GPU_ROOM
    if not batch or len(paths) >= most or len(record) > of_plan:
        return None
    made = [ints(batch) for _ in paths]
    return Kernel("", (indices,), made, [record], on_gpu=Launch("apart", batch, few=True, of_buffer=False))


def choose(
    state: HasArrays,
    spec: BufferSpec,
    draws: Array | None,
    beta: Array,
    batch: int,
    wanted: Array | None = None,
    key: Array | None = None,
) -> Kernel | None:
    """The arrays afterwards, the slots, and what a sampler draws by random words int32 [rows, words], or by a key."""
    return _draw_from_rings(state, spec, None, key, draws, beta, batch, wanted) if batch else None


def read(state: HasArrays, spec: BufferSpec, slots: Array) -> Kernel | None:
    """The leaves of items in slots int32 [m], and what is told beside them: what `functions.read_drawn` gives."""
    returns = returns_read(spec)
    if returns is None or not slots.shape[0]:
        return None
    plan, m = spec.plan, slots.shape[0]
    leaves = [Made((m, *leaf.shape), leaf.dtype) for leaf in plan.leaves]
    outputs, told = [*leaves], dict[str, Any]()
    for transform in spec.inner:
        assert isinstance(transform, NStep)
        shape = m, *transform.positions.agents
        rewards = (plan.leaves[k] for k in transform.positions.rewards)
        originals = [Made((m, *leaf.shape), leaf.dtype) for leaf in rewards]
        steps, nonterminal, discount = Made(shape, "int32"), Made(shape, "bool"), Made(shape, "float32")
        names = transform.original_names(plan)
        told = {STEPS: steps, DISCOUNT: discount, **dict(zip(names, originals, strict=True)), NONTERMINAL: nonterminal}
        outputs += [steps, *originals, nonterminal, discount]
    beside = descriptor.beside(spec)
    frames = [state.auxiliary[name] for name in (frame_ring.AT, *beside.names)] if plan.frames is not None else [None]
    none = descriptor.NO_RETURNS
    layout = (beside.frames, beside.layout) if plan.frames is not None else (none, none)
    return Kernel(
        "",
        (state.rows, *state.wide, state.counters, state.auxiliary.get(STEP_IN_EPISODE), slots, *frames),
        (leaves, told),
        [descriptor.encode(spec), descriptor.encode_rings(spec), returns, *layout],
        outputs=outputs,
        on_gpu=Launch("read_drawn", m),
    )


def reads_later(spec: BufferSpec) -> bool:
    """Whether what is drawn of a buffer is read by a launch of its own."""
    return returns_read(spec) is not None and not spec.known.plain and not _draws_with_frames(spec)


def _draws_with_frames(spec: BufferSpec) -> bool:
    """Whether one launch draws and reads items that share frames."""
    known = spec.known
    return spec.plan.frames is not None and known.draws is Draws.ITEMS and known.appends and not spec.inner


@functools.cache
def returns_read(spec: BufferSpec) -> descriptor.Vector | None:
    """The record of returns of a buffer whose items a launch can read; None if none can."""
    return None if spec.plan.objects else descriptor.encode_returns(spec)


def _sample_items(
    state: HasArrays, spec: BufferSpec, leaves: list[Made], key: Array, beta: Array, batch: int, wanted: Array | None
) -> Kernel:
    selection, after = Selection(ints(batch), floats(batch), floats(batch)), _after_draw(state)
    return Kernel(
        "",
        (state.rows, *state.wide, state.tree, state.counters, key, beta, wanted),
        (after, leaves, selection),
        [descriptor.encode(spec), descriptor.encode_rings(spec), spec.draw_shape(batch)[1]],
        outputs=[*leaves, *selection[:3], after.counters],
        on_gpu=Launch("sample", batch, few=state.tree is None and spec.plan.ring.lanes == 1),
    )


def _sample_frames(state: HasArrays, spec: BufferSpec, key: Array, beta: Array, batch: int) -> Kernel:
    """Of items that share frames all leaves, whichever way they are stored."""
    leaves = [Made((batch, *leaf.shape), leaf.dtype) for leaf in spec.plan.leaves]
    selection, after = Selection(ints(batch), floats(batch), floats(batch)), _after_draw(state)
    beside = descriptor.beside(spec)
    frames = [state.auxiliary[name] for name in (frame_ring.AT, *beside.names)]
    words = spec.draw_shape(batch)[1]
    return Kernel(
        "",
        (state.rows, *state.wide, state.tree, state.counters, key, beta, *frames),
        (after, leaves, selection),
        [descriptor.encode(spec), descriptor.encode_rings(spec), words, beside.frames, beside.layout],
        outputs=[*selection[:3], after.counters, *leaves],
        on_gpu=Launch("sample_frames", batch),
    )


def _draw_from_rings(
    state: HasArrays,
    spec: BufferSpec,
    leaves: list[Made] | None,
    key: Array | None,
    draws: Array | None,
    beta: Array,
    batch: int,
    wanted: Array | None,
) -> Kernel | None:
    """With the slots in place of the leaves, if there are none."""
    if spec.known.draws not in _DRAWING:
        return None
    sampler, lead = spec.sampler, spec.sampler.leading_shape(batch)
    count = sampler.slices_of(batch) if isinstance(sampler, Trajectories) else batch
    mask = None if spec.known.draws is Draws.ITEMS else bools(*lead)
    selection = Selection(ints(*lead), floats(count), floats(count), mask=mask)
    if isinstance(sampler, Trajectories):
        selection = selection._replace(is_first=bools(*lead), is_last=bools(*lead), truncated=bools(*lead))
    after, slots = _after_draw(state), ints(math.prod(lead)) if leaves is None else None
    outputs = [
        *([ABSENT] * len(spec.plan.layout.leaves) if leaves is None else leaves),
        *(slots, *selection[:7], *(after.auxiliary.get(name) for name in descriptor.KEPT[:2]), after.counters),
    ]
    return Kernel(
        "",
        (*_parts(state), key, draws, beta, wanted if sampler.heeds_wanted else None),
        (after, slots if leaves is None else leaves, selection),
        [descriptor.encode(spec), descriptor.encode_rings(spec), spec.draw_shape(batch)[1], *_epochs(spec)],
        outputs=[ABSENT if x is None else x for x in outputs],
        on_gpu=Launch(_DRAWING[spec.known.draws], count),
    )


def _parts(of: HasArrays) -> list[BackendArray]:
    """All arrays that a buffer may have, None for those that it has not."""
    return [of.rows, *of.wide, of.tree, *(of.auxiliary.get(name) for name in descriptor.KEPT), of.counters]


def _after_draw(state: HasArrays) -> Arrays:
    counters = ints(*state.counters.shape)
    return Arrays(state.rows, tuple(state.wide), state.tree, counters, dict(state.auxiliary))


def _epochs(spec: BufferSpec) -> list[descriptor.Vector]:
    return [descriptor.encode_epoch(spec)] if spec.sampler.remembers else []
