"""States in torch's own checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.interop import state_dict as core
from functional_rb.mixture.value import Mixture
from functional_rb.public import records
from functional_rb.versions.memory import Memory
from functional_rb.versions.state import readable
from torch_backend.arrays.convert import from_numpy
from torch_backend.engines import execute
from torch_backend.engines.restore import restore
from torch_backend.lib import LIB
from torch_backend.memory.state import State


def state_dict(state: object) -> dict[str, Any]:
    """A state, with its spec as JSON text, or a record as a dict of tensors, for `torch.save`.

    Args:
        state: the buffer; of a `Mixture` a dict of its buffers' dicts; of a record, or any nest of arrays, its arrays
            by their paths, not copied, without fields that are None.

    Returns:
        New tensors by name, on the state's device, see `interop.state_dict`; and "spec", a text. That is what
        `torch.load(weights_only=True)` reads. Of a buffer in files this reads all of it into memory: use `frb.save`. Of
        a record its arrays alone.

    Raises:
        TypeError: for what is no state of torch, or one that holds Python objects; for a record with a leaf that is no
            array.
        RuntimeError: if the state, or a hash map or forest, was consumed.
        ValueError: if the spec names a function or class that JSON cannot tell (a lambda).

    Example:
        >>> import functional_rb as frb
        >>> state = rb.init(frb.BufferSpec({"x": frb.Unbounded((3,))}, capacity=8, sampler=frb.Prioritized()))
        >>> list(rb.state_dict(state))
        ['rows', 'tree', 'counters', 'spec']
    """
    if records.is_record(state):
        return records.state_dict(LIB, state)
    if isinstance(state, Mixture):
        return core.of_mixture(state, state_dict, str)
    checks.check_together(state, "state_dict")
    core.check_whole(state, "state_dict")
    execute.check_state(state, "state_dict")
    assert isinstance(state, State)
    text = core.text_of(state.spec)
    arrays = state.copied_memory().state_arrays(state.counters.clone())
    return core.named(arrays, state.spec.plan) | {core.SPEC: text}


def load_state_dict(target: object, given: object, device: object = None) -> Any:
    """The state, or the record, that a dict from `state_dict` tells.

    Args:
        target: a record of the same leaves, or what has their shapes and dtypes (`jax.ShapeDtypeStruct`, meta tensors);
            or a state, of the same spec and to be on the same device, or the spec, or a `Mixture` of such states. It
            stays as it is. The storage may be another than it was.
        given: from `state_dict`, of torch or JAX, or the same in NumPy. It is copied.
        device: where the arrays live (of a buffer on the host: where samples go); by default that of the target. Not
            for a record.

    Returns:
        A state that goes on bit for bit as the one that was saved; of a record one with the arrays of the dict, not
        copied where they are of this backend.

    Raises:
        ValueError: if the dict was made of another spec or record, lacks an array, or has one of another name or shape;
            or if its values are those of no buffer: cursors out of range, infinite weights.
        TypeError: if something in it is no array, or of another dtype, or has no values (meta and fake tensors); for a
            device beside a record.
        RuntimeError: if the target was consumed.

    Example:
        >>> import functional_rb as frb
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> state = rb.add(rb.init(spec), {"x": np.arange(5, dtype=np.float32)})
        >>> int(rb.size(rb.load_state_dict(spec, rb.state_dict(state))))
        5
    """
    if records.is_record(target):
        return records.load_state_dict(LIB, target, given, device)
    if isinstance(target, Mixture):
        return core.mixture_of(
            target,
            given,
            lambda one, arrays: load_state_dict(one, arrays, device),
            lambda name, x: _taken(name, x).clone(),
        )
    if isinstance(target, BufferSpec):
        spec = target
    else:
        core.check_whole(target, "load_state_dict")
        checks.check_together(target, "load_state_dict")
        execute.check_state(target, "load_state_dict")
        assert isinstance(target, State)
        spec = target.spec
        if device is None:
            device = target._target if spec.storage.on_host else target.counters.device
    checks.leaves_for_backend(spec, execute.unsupported)
    if spec.storage.on_host:
        return restore(spec, core.as_arrays(spec, given, _copied, _values), device)
    arrays = core.as_arrays(spec, given, _taken, _values)
    state = execute.init(spec, device)
    version = readable(state)
    memory = version.own()
    for mine, saved in zip(_in_order(memory), _in_order(arrays), strict=True):
        mine.copy_(saved)
    memory.written = True
    return State(version, arrays.counters.to(state.counters.device, copy=True), spec, None, state._target)


def _in_order(of: Memory | Arrays) -> list[torch.Tensor]:
    return [
        of.rows,
        *of.wide,
        *([] if of.tree is None else [of.tree]),
        *(of.auxiliary[name] for name in sorted(of.auxiliary)),
    ]


def _copied(name: str, array: object) -> NumpyArray:
    return np.array(_taken(name, array).cpu().numpy(), order="C")


def _taken(name: str, array: object) -> torch.Tensor:
    if not isinstance(array, torch.Tensor):
        return from_numpy(np.asarray(array))
    if not torch.compiler.is_compiling() and not _has_values(array):
        raise TypeError(
            f"load_state_dict: {name!r}: expected a tensor with its values in memory, got {type(array).__name__} on "
            f"{array.device}, {array.layout}; load it outside of torch.func and fake tensors, as torch.load gives it"
        )
    return array.detach()


# Whether a tensor is an array in memory: not meta, fake, sparse, or many in one.
def _has_values(tensor: torch.Tensor) -> bool:
    strange = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    batched = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return not (strange or batched or tensor.is_meta) and tensor.layout is torch.strided


def _values(name: str, array: object) -> NumpyArray:
    found = _taken(name, array).cpu().numpy()
    return found
