"""The two public functions on state dicts, which backends bind. Each takes a `DictsLib` first."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import numpy as np

from functional_rb.base.arrays import BackendArray, DeviceLike, Nest, NumpyArray
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.interop.state_dict import SPEC, as_arrays, check_whole, mixture_of, named, of_mixture, text_of
from functional_rb.lib import A, Lib
from functional_rb.mixture.value import Mixture
from functional_rb.public import records
from functional_rb.versions.state import VersionedState


@dataclasses.dataclass(frozen=True, eq=False)
class DictsLib(Lib[A]):
    """The `Lib` that the functions on state dicts are bound to."""

    text: Callable[[str], object]  # a text as the dicts of the backend hold it
    check_at_hand: Callable[[str, A], None]  # refuses an array, by its name, whose values cannot be read
    # The values of a given array, by its name, in NumPy; they may be those of the array itself.
    read: Callable[[str, object], NumpyArray]
    copied: Callable[[str, object], A]  # a copy of a given array, by its name, as an array of the backend
    # The state of `(spec, arrays, device)`; the arrays of NumPy are taken over.
    restore: Callable[[BufferSpec, Arrays, DeviceLike], State]
    # The state of `(spec, target, given, device)` for storage on a device, of a dict from `state_dict`. The target, if
    # it is a state and not None, says where arrays lie for which no device was given.
    on_device: Callable[[BufferSpec, State | None, object, DeviceLike], State]


def state_dict(lib: DictsLib[A], state: object) -> dict[str, Nest]:
    """A state, or a record, as a flat dict of arrays: for `torch.save`, Orbax and other writers of dicts.

    Args:
        state: the buffer; of a `Mixture` a dict of its buffers' dicts; of a record, or any nest of arrays, its arrays
            by their paths, not copied, without fields that are None.

    Returns:
        The state's arrays by name, see `interop.state_dict`, and "spec", its JSON: on torch a text, which
        `torch.load(weights_only=True)` reads; on JAX the UTF-8 bytes, uint8 [n]. The arrays are copies, but of a buffer
        on a device of JAX, where they are the state's own: donating the state deletes them, so save first. Of a buffer
        in files this reads all of it into memory: use `frb.save`. Of a record its arrays alone.

    Raises:
        TypeError: for what is no state of this backend, or one that holds Python objects; for a record with a leaf that
            is no array; for a state while JAX traces it.
        ValueError: if other processes hold parts of its arrays, or the spec names a function or class that JSON cannot
            tell (a lambda); for a record in which two leaves have one path, such as {"a/b": x, "a": {"b": y}}.
        RuntimeError: if the state, or a hash map or forest, was consumed.

    Example:
        >>> import functional_rb as frb
        >>> state = rb.init(frb.BufferSpec({"x": frb.Unbounded((3,))}, capacity=8, sampler=frb.Prioritized()))
        >>> sorted(rb.state_dict(state))
        ['counters', 'rows', 'spec', 'tree']
    """
    if records.is_record(state):
        return records.state_dict(lib, state)
    if isinstance(state, Mixture):
        return of_mixture(state, lambda one: state_dict(lib, one), lib.text)
    state = _checked(lib, state, "state_dict")
    text = text_of(state.spec)  # before anything is copied, as it may be refused
    arrays: dict[str, BackendArray]
    if isinstance(state, VersionedState):  # later states write to the same memory
        copied = copy.deepcopy(state)
        arrays = named(copied.own().state_arrays(copied.counters), state.spec.plan)
    else:
        arrays = named(state, state.spec.plan)
        for name, array in arrays.items():
            lib.check_at_hand(name, array)
    return arrays | {SPEC: lib.text(text)}


def load_state_dict(lib: DictsLib[A], target: object, given: object, device: DeviceLike = None) -> Nest:
    """The state, or the record, that a dict from `state_dict` tells.

    Args:
        target: a record of the same leaves, or what has their shapes and dtypes (`jax.ShapeDtypeStruct`, meta tensors);
            or a state of the same spec, or the spec, or a `Mixture` of such states. It stays as it is. The storage may
            be another than it was.
        given: from `state_dict`, of JAX or torch, or the same in NumPy, as Orbax restores it. It is copied, so that
            what is done to the state later leaves it.
        device: where the arrays live (of a buffer on the host: where samples go), as for `init`; by default where those
            of the target are, with the same shardings, or where the spec says. Not for a record.

    Returns:
        A state that goes on bit for bit as the one that was saved; of a record one with the arrays of the dict, not
        copied where they are of this backend.

    Raises:
        ValueError: if the dict was made of another spec or record, lacks an array, or has one of another name or shape;
            or if its values are those of no buffer: cursors out of range, infinite weights.
        TypeError: if something in it is no array, or of another dtype, or has no values (it is traced, meta or fake);
            for a device beside a record.
        RuntimeError: if the target is a state that was consumed.

    Example:
        >>> import functional_rb as frb
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> state = rb.add(rb.init(spec), {"x": np.arange(5, dtype=np.float32)})
        >>> int(rb.size(rb.load_state_dict(spec, rb.state_dict(state))))
        5
    """
    if records.is_record(target):
        return records.load_state_dict(lib, target, given, device)
    if isinstance(target, Mixture):
        return mixture_of(target, given, lambda one, arrays: load_state_dict(lib, one, arrays, device), lib.copied)
    state = None if isinstance(target, BufferSpec) else _checked(lib, target, "load_state_dict")
    spec = target if state is None else state.spec
    assert isinstance(spec, BufferSpec)
    checks.leaves_for_backend(spec, lib.unsupported)
    if not spec.storage.on_host:
        return lib.on_device(spec, state, given, device)
    if device is None and isinstance(state, VersionedState):
        device = state._target
    # Copied, as the memory is the buffer's from then on.
    arrays = as_arrays(spec, given, lambda name, array: np.array(lib.read(name, array), order="C"), lib.read)
    return lib.restore(spec, arrays, device)


# A state of the backend that is a value of its own, neither shared nor sharded.
def _checked(lib: DictsLib[A], state: object, function: str) -> State:
    checks.check_together(state, function)
    check_whole(state, function)
    lib.engine(state).check_state(state, function)
    assert isinstance(state, State)
    return state
