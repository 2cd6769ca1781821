"""Conversions between states and the flat and nested form, which TorchRL has as hooks of its checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, Literal, overload

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import DeviceLike, Nest
from functional_rb.base.files import as_path
from functional_rb.base.nest import Key
from functional_rb.base.nest import Path as KeyPath
from functional_rb.base.steps import FLAGS, NEXT
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core import counters
from functional_rb.specs import Unbounded
from functional_rb.structures.row_layout import STORED_AS, kept_dtype
from functional_rb.ted import hdf5, memmaps, reading
from functional_rb.ted.check import below, leaves_of, observation_paths, path_of
from functional_rb.ted.flattening import flat_to_steps, steps_to_flat
from functional_rb.ted.forms import Array, Flat, Form, Leaves, Nested, flat_of, flat_to_nested
from functional_rb.ted.lanes import Lanes
from functional_rb.ted.padded import SUFFIXES

Path = str | os.PathLike[str]
# The number of items that are read at once, which bounds the memory beside the result.
CHUNK = 2**16


@overload
def to_form(
    source: State | Form | Path,
    form: Literal["flat"] = "flat",
    *,
    reward_key: Key = "reward",
    known: Iterable[object] = (),
) -> Flat: ...


@overload
def to_form(
    source: State | Form | Path, form: Literal["nested"], *, reward_key: Key = "reward", known: Iterable[object] = ()
) -> Nested: ...


def to_form(
    source: State | Form | Path,
    form: Literal["flat", "nested"] = "flat",
    *,
    reward_key: Key = "reward",
    known: Iterable[object] = (),
) -> Form:
    """Steps of a buffer, or of a file, in the flat or the nested form: T + 1 observations for T steps of a trajectory.

    A ring that is full is rolled to the order of time. Empty slots are left out. Trajectories come lane by lane, the
    oldest first: the first of a lane may have lost its beginning to the ring, the last may go on.

    Args:
        source: a state of either backend, whose items are steps in TED, written in their order (`RoundRobin`, say): it
            is read in pieces, and none of its arrays is exported. Or what is in one of the forms already: a form, or
            the path that one was saved to, by TorchRL too: of a dumped ReplayBuffer its directory "storage", or its
            file if that ends with ".h5" or ".hdf5".
        form: "flat" for one array of each leaf, "nested" for one of each leaf and trajectory.
        reward_key: path of the reward, below "next"; a form knows its own, and what was saved here too.
        known: classes that the spec in a file names, as for `frb.convert.from_json`.

    Returns:
        The steps, in NumPy arrays of their own, or in views of those of a given form. If TorchRL wrote them, the spec
        is None.

    Raises:
        FileNotFoundError: if a file is missing, naming it.
        ImportError: for a file of HDF5, if h5py is not installed.
        TypeError: for what is neither a state nor a form nor a path, or a leaf that holds Python objects.
        ValueError: for another form; for a writer that chooses slots; for a shared buffer that is written meanwhile;
            for items without the nest "next", or without flags in it; for an observation in "next" that is not at the
            root, with the same shape and dtype; for steps that do not follow one another, bit for bit, or begin in a
            state that is done. It names the leaf. For a file that is damaged, unreadable, or in neither form, naming
            it.

    Example:
        >>> import torch_backend as rb
        >>> rows = [np.arange(3.0), np.zeros(3), np.ones(3), np.arange(1.0, 4), np.array([False, True, False])]
        >>> steps = frb.ted.from_transitions(*rows)
        >>> item = frb.specs.spec_of({name: x[0] for name, x in steps.items() if name != "next"} |
        ...                          {"next": {name: x[0] for name, x in steps["next"].items()}})
        >>> state = rb.add(rb.init(frb.BufferSpec(item, capacity=5)), steps)
        >>> flat = to_form(state, "flat")
        >>> flat.data["observation"], flat.data["action"].shape
        (array([0., 1., 2., 2., 3.]), (3,))
        >>> [trajectory["observation"].tolist() for trajectory in to_form(flat, "nested").trajectories]
        [[0.0, 1.0, 2.0], [2.0, 3.0]]
        >>> from_form(flat, rb).spec == state.spec
        True
    """
    if form not in ("flat", "nested"):
        raise ValueError(f"ted.to_form: expected form='flat' or 'nested', got {form!r}")
    if form == "nested" and isinstance(source, Nested):
        return source
    flat = _flat(source, reward_key, known, "ted.to_form")
    return flat if form == "flat" else flat_to_nested(flat)


def from_form(
    form: Form | Path,
    backend: object = None,
    spec: BufferSpec | None = None,
    device: DeviceLike = None,
    order: Literal["slots", "time"] = "slots",
    *,
    reward_key: Key = "reward",
    known: Iterable[object] = (),
) -> Nest:
    """The steps of the flat or the nested form in TED: as arrays, or in a buffer of either backend.

    Args:
        form: the steps, `Flat` or `Nested`, or the path of either, as for `to_form`.
        backend: the module of a backend, to get a state; None for NumPy arrays.
        spec: the spec of the state; by default that of the buffer which the steps are from. Another spec must have the
            same leaves, and as many slots and lanes.
        device: the device of the state, as for `init`.
        order: the order of arrays: "slots" for [capacity, *shape] as `items` gives them, zeros where nothing lies, a
            full ring rolled back; "time" for [N, *shape], lane by lane, the oldest first.
        reward_key: path of the reward, for what TorchRL has written to a path.
        known: classes that the spec in a file names, as for `frb.convert.from_json`.

    Returns:
        A state, whose items lie in the slots that they had, and whose cursor is where it was; a lane that is not full
        begins at its first slot. Priorities and the sampler's auxiliary arrays are those of new items: `frb.save`
        keeps all. Or nested dicts of NumPy arrays; leaves of bfloat16, which NumPy lacks, are uint16.

    Raises:
        FileNotFoundError: if a file is missing, naming it.
        ImportError: for a file of HDF5, if h5py is not installed.
        TypeError: for leaves whose dtype is not the spec's.
        ValueError: for leaves, slots or lanes that are not the spec's, or if there is none; for a file that is damaged.
    """
    if order not in ("slots", "time"):
        raise ValueError(f"ted.from_form: expected order='slots' or 'time', got {order!r}")
    flat = _flat(form, reward_key, known, "ted.from_form")
    steps = flat_to_steps(flat)
    if backend is not None:
        return _state(flat, steps, backend, _spec_for(flat, spec), device)
    if order == "time":
        return nest.nested(steps)
    lanes, slots = flat.lanes, flat.lanes.slots()
    whole = {path: np.zeros((lanes.length * len(lanes.sizes), *x.shape[1:]), x.dtype) for path, x in steps.items()}
    for path, x in steps.items():
        whole[path][slots] = x
    return nest.nested(whole)


def _flat(source: object, reward_key: Key, known: Iterable[object], who: str) -> Flat:
    if isinstance(source, Form):
        return flat_of(source)
    reward = path_of(reward_key)
    if isinstance(source, str | bytes | os.PathLike):
        path = as_path(source, who)
        with hdf5.opened(path, who) if path.endswith(SUFFIXES) else memmaps.opened(path, who) as opened:
            return reading.read(opened, reward, known)
    if not isinstance(source, State):
        raise TypeError(f"{who}: expected a State, what is in a form, or its path, got {type(source).__name__}")
    return _flat_of_state(source, reward, who)


def _flat_of_state(state: State, reward: KeyPath, who: str) -> Flat:
    spec = state.spec
    _check_spec(spec, reward, who)
    of_torch = type(state).__module__.partition(".")[0] == "torch_backend"
    backend = sys.modules["torch_backend" if of_torch else "jax_backend"]
    ends = counters.read(spec.plan, np.asarray(_host(backend, state.counters))).ends
    ring = spec.plan.ring
    sizes = tuple(int(size) for size in ends.sizes)
    cursors = tuple(int(cursor) % ring.length for cursor in ends.cursors)
    lanes = Lanes(ring.length, sizes, cursors, spec.lanes is not None)
    first = [(int(cursor) - size) % ring.limit for cursor, size in zip(ends.cursors, sizes, strict=True)]
    handles = []
    for lane, (start, n) in enumerate(zip(first, sizes, strict=True)):
        # See `structures.ring` for how handles follow from sequence numbers.
        numbers = (start + np.arange(n)) % ring.limit
        turns = numbers // ring.length
        handles.append((turns * ring.capacity + lane * ring.length + numbers % ring.length).astype(np.int32))
    steps = _read(backend, state, np.concatenate(handles))
    if getattr(spec.storage, "shared", False):  # others may write while this process reads: the oldest go first
        oldest = np.array([lane_handles[0] for lane_handles in handles if len(lane_handles)], np.int32)
        if not _host(backend, backend.is_live(state, oldest)).all():
            raise ValueError(f"{who}: another process has overwritten steps while they were read; let it pause")
    dtypes = {path: leaf.dtype for path, leaf in zip(spec.plan.structure.paths, spec.plan.leaves, strict=True)}
    following = {path[1:]: dtype for path, dtype in dtypes.items() if path[0] == NEXT}
    named = {nest.show(path): dtype for path, dtype in (following | dtypes).items()}
    return steps_to_flat(steps, lanes, named, reward, spec, who)


def _check_spec(spec: BufferSpec, reward: KeyPath, who: str) -> None:
    for k in spec.plan.objects:
        raise TypeError(f"{who}: leaf {spec.plan.names[k]!r} holds Python objects, which are no arrays; leave it out")
    if not spec.writer.in_order:
        raise ValueError(
            f"{who}: {spec.writer} chooses slots, so that steps do not lie in the order of time; "
            f"use writer=frb.RoundRobin(), or frb.save, which keeps any state"
        )
    leaves = leaves_of(spec, who)
    done = leaves.get((NEXT, "done"))
    if done is None or done.dtype != "bool" or done.shape not in ((), (1,)):
        got = "none" if done is None else f"{done.dtype} {done.shape}"
        raise ValueError(f"{who}: expected a leaf 'next/done', bool of shape () or (1,), got {got}; see ted.check")
    for flag in FLAGS:
        if ((flag,) in leaves) != ((NEXT, flag) in leaves):
            raise ValueError(f"{who}: expected a leaf {flag!r} both at the root and in 'next', or in neither")
    for path in leaves:
        if below(path, reward):
            raise ValueError(f"{who}: leaf {nest.show(path)!r} is out of place: expected the reward in 'next' only")
    for path in observation_paths(leaves, reward):
        before, after = leaves.get(path), leaves[NEXT, *path]
        if before is None or (before.shape, before.dtype) != (after.shape, after.dtype):
            got = "none" if before is None else f"{before.dtype} {before.shape}"
            raise ValueError(
                f"{who}: leaf {nest.show((NEXT, *path))!r}: expected a leaf {nest.show(path)!r} at the root, "
                f"{after.dtype} {after.shape} as it is, got {got}; name the reward by reward_key=, if this is it"
            )


def _host(backend: Any, array: Nest) -> Array:
    # NumPy lacks bfloat16: it becomes uint16 with the same bits.
    if str(array.dtype).removeprefix("torch.") in STORED_AS:
        array = array.view("uint16") if isinstance(array, np.ndarray) else backend.lib.LIB.ops.bitcast(array, "uint16")
    return array if isinstance(array, np.ndarray) else np.asarray(backend.lib.LIB.to_numpy(array))


def _read(backend: Any, state: State, handles: Array) -> Leaves:
    spec = state.spec
    n, size = len(handles), min(CHUNK, spec.capacity)
    structure = spec.plan.structure.as_given()
    specs = zip(structure.paths, nest.flatten_as(structure, spec.stored), strict=True)
    arrays = {path: np.empty((n, *leaf.shape), kept_dtype(leaf.dtype)) for path, leaf in specs}
    for start in range(0, n, size):
        asked = handles[start : start + size]
        # Always as many handles, so that JAX compiles one program.
        items = backend.get(state, np.pad(asked, (0, size - len(asked))))
        for path, leaf in zip(structure.paths, nest.flatten_as(structure, items), strict=True):
            arrays[path][start : start + size] = _host(backend, leaf)[: len(asked)]
    return arrays


def _spec_for(flat: Flat, spec: BufferSpec | None) -> BufferSpec:
    spec = flat.spec if spec is None else spec
    if spec is None:
        raise ValueError("ted.from_form: the file does not tell the buffer's spec; give spec=frb.BufferSpec(...)")
    lanes = flat.lanes
    if (spec.plan.ring.length, spec.plan.ring.lanes) != (lanes.length, len(lanes.sizes)):
        raise ValueError(
            f"ted.from_form: expected a spec with capacity={lanes.length * len(lanes.sizes)} and {len(lanes.sizes)} "
            f"lanes, as the steps have, got {spec.capacity} and {spec.plan.ring.lanes}; change it, or take the arrays "
            f"(backend=None) and add them"
        )
    return spec


def _state(flat: Flat, steps: Leaves, backend: Any, spec: BufferSpec, device: DeviceLike) -> State:
    # A full lane is first filled up to the slot of its oldest step, with steps that the newest ones then overwrite.
    state: State = backend.init(spec, device)
    lanes = flat.lanes
    # Items have to lie in the slots that they had; in a ring that is not full they begin at the first one.
    ahead = [start if n == lanes.length else 0 for start, n in zip(lanes.starts, lanes.sizes, strict=True)]
    ends = [before + n for before, n in zip(ahead, lanes.sizes, strict=True)]
    mask = np.arange(max(ends))[:, None] < np.array(ends)
    if not len(mask):
        return state
    rows = np.concatenate([before + np.arange(n) for before, n in zip(ahead, lanes.sizes, strict=True)])
    column = np.repeat(np.arange(len(ends)), lanes.sizes)
    leaves = []
    named = {nest.show(path): leaf for path, leaf in steps.items()}
    if set(named) != set(spec.plan.names):
        raise ValueError(
            f"ted.from_form: expected the leaves {sorted(spec.plan.names)} of the spec, got {sorted(named)}"
        )
    for name, leaf_spec in zip(spec.plan.names, spec.plan.leaves, strict=True):
        array = named[name]
        dtype = flat.dtypes[name.removeprefix(NEXT + "/")]
        if array.shape[1:] != leaf_spec.shape or dtype != leaf_spec.dtype:
            raise TypeError(
                f"ted.from_form: leaf {name!r}: expected {leaf_spec.dtype} {leaf_spec.shape} as in the spec, "
                f"got {dtype} {array.shape[1:]}; convert it, or change the spec"
            )
        # All lanes are added together, [T, E, ...]; the mask leaves out the rows that a shorter lane does not have.
        grid = np.zeros((*mask.shape, *leaf_spec.shape), array.dtype)
        if name == "next/done":
            grid[...] = True  # steps that are overwritten end at once
        grid[rows, column] = array
        leaf = grid if spec.lanes is not None else grid[:, 0]
        if leaf_spec.dtype in STORED_AS:  # NumPy lacks bfloat16: `add` takes the backend's arrays
            bits = Unbounded(leaf.shape, STORED_AS[leaf_spec.dtype])
            leaf = backend.lib.LIB.ops.bitcast(backend.lib.LIB.convert(leaf, bits, name), leaf_spec.dtype)
        leaves.append(leaf)
    whole = bool(mask.all())
    nested = nest.unflatten(spec.plan.structure, leaves, lambda kind, parts, batch: parts)
    added: State = backend.add(state, nested, mask=None if whole else mask if spec.lanes is not None else mask[:, 0])
    return added
