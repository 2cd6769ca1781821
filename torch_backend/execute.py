"""The functions of `buffer.api.Backend` on torch: a new state takes over the memory of the old one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from functional_rb.base import dtypes
from functional_rb.base.containers import Registered
from functional_rb.base.object_arrays import gather, is_non_tensor, is_object_array
from functional_rb.buffer import checks, functions, respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State as CoreState
from functional_rb.core.counters import with_invalid
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.handles import NO_HANDLE
from functional_rb.core.save_history import SaveHistory
from functional_rb.cpu_kernels.switch import switch
from functional_rb.ops.part_kernels import NONE, using
from functional_rb.samplers import Selection
from functional_rb.shared.state import SharedState
from functional_rb.specs import ArraySpec, values
from functional_rb.specs.composite import Container
from functional_rb.specs.values import Outline
from functional_rb.structures import frame_ring
from functional_rb.transforms import crop
from functional_rb.versions.recorder import Log, Recorder
from functional_rb.versions.version import Memory, Saved, SavedSlots, Version, separate
from torch_backend import ops, placement, random
from torch_backend.objects import Table
from torch_backend.opaque import traceable
from torch_backend.state import State, locked, readable

try:
    from torch_backend import cpu_kernels
except ImportError:
    HAVE_KERNELS = False
else:
    HAVE_KERNELS = True


NUMPY = (np.ndarray, np.generic)
NUMBERS = (bool, int, float, complex)
"""Tuples, because torch.compile does not trace unions of types."""
_INTEGERS = (torch.int64, torch.int16, torch.int8, torch.uint8)
_FLOATS = (torch.float64, torch.float16, torch.bfloat16)
_DTYPES, _STRIDED, _compiling = ops.DTYPES, torch.strided, torch.compiler.is_compiling
_transforms = torch._C._functorch.peek_interpreter_stack
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_WRITES = frozenset(("add", "add_", "update", "update_"))


def convert(leaf: Any, expected: ArraySpec, name: str) -> torch.Tensor:
    """Tensors without their autograd history, NumPy arrays as they are, Python numbers for scalar leaves."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not _STRIDED or type(leaf) is not torch.Tensor:
            _check_memory(leaf, f"leaf {name!r}")
        if leaf.dtype != _DTYPES[expected.dtype]:
            checks.check_dtype(name, leaf, expected.dtype)
        if leaf.requires_grad or (not _compiling() and (leaf.is_neg() or leaf.is_conj())):
            return plain(leaf)
        return leaf
    if isinstance(leaf, NUMPY):
        checks.check_numpy(name, leaf)
        checks.check_dtype(name, leaf, expected.dtype)
        return from_numpy(leaf)
    if isinstance(leaf, NUMBERS) and expected.shape == ():
        dtypes.check_scalar(leaf, expected.dtype, name)
        return torch.tensor(leaf, dtype=ops.DTYPES[expected.dtype], device=ops.CPU)
    _refuse_jax(leaf, f"leaf {name!r}")
    raise TypeError(
        f"leaf {name!r}: expected an array of dtype {expected.dtype}, got {type(leaf).__name__}; "
        f"give torch or NumPy arrays"
    )


def _check_memory(tensor: torch.Tensor, what: str) -> None:
    """Refuse tensors that are more, or less, than an array in memory: sparse, nested, masked, fake ones."""
    if tensor.layout is not _STRIDED:
        raise TypeError(f"{what}: expected a dense tensor, got {tensor.layout}; give {what.split()[0]}.to_dense()")
    if not _compiling() and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(
            f"{what}: expected a tensor that is an array in memory, got {type(tensor).__name__}, which means something "
            f"else by its elements; give the torch.Tensor that it stands for"
        )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without autograd history, and what it says in its memory: torch puts conjugation and negation off."""
    if tensor.requires_grad:
        tensor = tensor.detach()
        if not _compiling() and _wrapped(tensor):
            raise TypeError(
                "expected a tensor, got one that torch.func differentiates through, which has no memory of its own; "
                "add and update outside of the function that is differentiated"
            )
    if not _compiling() and (tensor.is_neg() or tensor.is_conj()):  # which torch.compile does not trace
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor


def from_numpy(array: Any) -> torch.Tensor:
    """A NumPy array as a tensor, in the same memory where torch can have that: contiguous, and not read-only."""
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":  # NumPy's is an extension type that torch does not know
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())


def check_state(state: Any, function: str) -> None:
    """Refuse what is no state of torch, and to trace one that holds Python objects."""
    checks.check_state(state, function)
    own_state(state, function)
    if function in _WRITES and not _compiling() and _transforms() is not None:
        _refuse_vmap(state, function)
    if state.spec.plan.objects and _compiling():
        raise TypeError(
            f"{function}: leaf {state.spec.plan.first_object!r} holds Python objects, which torch.compile "
            f"cannot trace; call {function} outside of the compiled function, or leave the leaf out of BufferSpec.item"
        )


def _refuse_vmap(state: State, function: str) -> None:
    """Refuse to write to a single buffer under torch.vmap, whose tensors stand for several; a stack of states may."""
    is_vmap = _transforms().key() == torch._C._functorch.TransformType.Vmap
    if is_vmap and not _wrapped(state._counters):
        raise TypeError(
            f"{function}: torch.vmap cannot write to one buffer for each of its rows; give all rows as one batch "
            f"[N * B, *shape], or map over a stack of states"
        )


def as_vector(array: Any, name: str) -> Any:
    """Masks, priorities and indices from NumPy; tensors without their autograd history."""
    if array is None:
        return None
    if isinstance(array, torch.Tensor):
        if array.layout is not _STRIDED or type(array) is not torch.Tensor:
            _check_memory(array, name)
        return exactly(plain(array), name)
    if isinstance(array, NUMPY) and (array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"):
        checks.check_numpy(name, array)
        return exactly(from_numpy(array), name)
    if is_non_tensor(array):
        return gather(array, tuple(array.batch_size), (), name)
    _refuse_jax(array, name)
    return array


def exactly(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Handles as int32, and priorities as float32, where nothing is lost; the rest as it is, for the caller to refuse.

    Whether float32 has all of float64 numbers is looked at, which waits for a device, and is not done while tracing.
    """
    dtype = tensor.dtype
    if name == "indices" and dtype in _INTEGERS:
        known = (tensor >= -1) & (tensor < NO_HANDLE)
        return torch.where(known, tensor, NO_HANDLE).to(torch.int32) if dtype == torch.int64 else tensor.to(torch.int32)
    if name == "priorities" and dtype in _FLOATS:
        narrow = tensor.to(torch.float32)
        if dtype != torch.float64:
            return narrow
        if not (_compiling() or _is_batched(tensor)) and bool(((narrow == tensor) | (tensor != tensor)).all()):
            return narrow
    return tensor


def value_of(scalar: Any) -> float | None:
    """The number in a scalar array; None while tracing, under vmap, and on an accelerator."""
    if _compiling() or scalar.device.type != "cpu" or _wrapped(scalar):
        return None
    return float(scalar)


def _refuse_jax(array: Any, what: str) -> None:
    if type(array).__module__.split(".")[0] in ("jax", "jaxlib"):
        raise TypeError(
            f"{what}: expected a torch or NumPy array, got a JAX array; bring it over by rb.from_dlpack(...)"
        )


def unsupported(dtype: str) -> str | None:
    """Torch has every dtype that a spec can name."""
    return None


def build_mapping(
    container: type | Container | Registered | None, parts: dict[str, Any], batch_shape: tuple[int, ...]
) -> Any:
    """A dict, or the container that the spec was derived from: what is registered, a TensorDict or a tensorclass."""
    if container is None:
        return parts
    if isinstance(container, Registered):
        return container.together(parts)
    from tensordict import TensorDict

    parts = {name: _non_tensor(part) if is_object_array(part) else part for name, part in parts.items()}
    told: dict[str, Any] = {}
    names_below: dict[str, Any] = {}
    if isinstance(container, Container):
        if container.names:
            told["names"] = (*(None,) * (len(batch_shape) - len(container.names)), *container.names)
        if container.device:
            told["device"] = next((part.device for part in parts.values() if part.device is not None), None)
        names_below = _names_below(parts) if container.named_below else {}
        container = container.type
    made = TensorDict(parts, batch_size=list(batch_shape), **told)
    if hasattr(container, "from_tensordict"):
        # A tensorclass: its constructor would convert what its fields hold by their annotations.
        made = container.from_tensordict(made)
    _name_below(made, names_below)
    return made


def _names_below(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The names of the axes of TensorDicts in another, which forgets them if it has none itself; and of those below."""
    inner = {name: part for name, part in parts.items() if hasattr(part, "batch_size") and not is_non_tensor(part)}
    return {name: (tuple(part.names), _names_below(dict(part.items()))) for name, part in inner.items()}


def _name_below(made: Any, names: Mapping[str, Any]) -> None:
    for key, (own, below) in names.items():
        part = made.get(key)
        part.names = own
        _name_below(part, below)


def _non_tensor(objects: Any) -> Any:
    """An object array as TensorDicts hold it."""
    from tensordict import NonTensorData, NonTensorStack

    if not objects.size:
        return NonTensorData(None, batch_size=objects.shape)
    if not objects.ndim:
        return NonTensorData(objects.item())
    if objects.ndim == 1:
        return NonTensorStack(*(NonTensorData(part) for part in objects.tolist()))
    return NonTensorStack(*map(_non_tensor, objects))


def own_state(state: CoreState, function: str) -> State:
    """A state of this backend, not shared."""
    if isinstance(state, SharedState):
        raise TypeError(f"{function}: a shared buffer is written in place anyway; call rb.{function.rstrip('_')}")
    if not isinstance(state, State):
        raise TypeError(
            f"{function}: expected a state of torch_backend, got one of JAX; bring it over by rb.from_dlpack(state)"
        )
    return state


def init(spec: BufferSpec, device: Any = None) -> State:
    """An empty state."""
    with torch.inference_mode(False):  # else torch would forbid writing to the memory outside of that mode
        device, files, place = placement.begin(spec, device)
        stored = None if files is None else placement.tensors(files)
        state = State.of_arrays(functions.init(ops, spec, device, stored), spec, pinned=False, place=place, files=files)
    state._version.own().written = False
    return state


def native(memory: Memory) -> bool:
    """Whether to use kernels: they can work on plain tensors on the CPU, outside of tracing."""
    return HAVE_KERNELS and not torch.compiler.is_compiling() and memory.is_ordinary and switch.on


def place(name: str, tensor: torch.Tensor, memory: Memory) -> torch.Tensor:
    """A checked input, contiguous; on another device than the state, and than its samples, it is refused."""
    device = memory.rows.device
    if tensor.device != device:
        tensor = memory.placement.received(tensor, device)
    if tensor.device != device:
        raise ValueError(
            f"{name}: expected a tensor on {device}, where the state is, got one on {tensor.device}; "
            f"move it by .to({str(device)!r})"
        )
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _place_some(name: str, tensor: torch.Tensor | None, memory: Memory, batch: int) -> torch.Tensor | None:
    return None if tensor is None else place(name, tensor.reshape(batch), memory)


def _place_leaves(spec: BufferSpec, leaves: Sequence[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    if spec.plan.objects:
        return [_place_leaf(spec, k, leaf, memory) for k, leaf in enumerate(leaves)]
    device = memory.rows.device
    for leaf in leaves:
        if leaf.device != device or not leaf.is_contiguous():
            return [place(f"leaf {name!r}", leaf, memory) for name, leaf in zip(spec.plan.names, leaves, strict=True)]
    return list(leaves)


def _place_leaf(spec: BufferSpec, k: int, leaf: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Objects as they are: they get their tokens once nothing can fail any more."""
    return leaf if k in spec.plan.objects else place(f"leaf {spec.plan.names[k]!r}", leaf, memory)


def add(
    state: CoreState,
    leaves: Sequence[torch.Tensor],
    batch: int,
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
    key: torch.Tensor | None,
) -> State:
    """Write a batch."""
    state = own_state(state, "add")
    version, spec = readable(state), state.spec
    if spec.plan.objects:
        tidy(version)
    with locked(version):
        memory = version.own()
        leaves, mask, priorities = place_add(spec, memory, leaves, batch, mask, priorities, key)
        if batch == 0:
            return state
        counters = state._counters
        target, saved = version.writable(), None
        target.placement.make_room(target, counters, batch)
        if target is memory:
            saved = _room_for_add(spec, memory, batch)
        following = version.succeed(target, saved)
        writing = write_objects if spec.plan.objects else write
        after = writing(spec, target, counters, leaves, batch, mask, priorities, key, saved)
        _count(version, saved)
        return State(following, after, spec, after_adding(state, batch))


def after_adding(state: State, batch: int) -> SaveHistory | None:
    """What the next state knows of the saves that it comes after."""
    return None if state._save_history is None else state._save_history.after(state.spec.rows(batch))


def place_add(
    spec: BufferSpec,
    memory: Memory,
    leaves: Sequence[torch.Tensor],
    batch: int,
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
    key: torch.Tensor | None,
) -> tuple[list[torch.Tensor], torch.Tensor | None, torch.Tensor | None]:
    """The checked inputs of `add`, contiguous and on the state's device."""
    if key is not None:
        random.check_key(key)
    return (
        _place_leaves(spec, leaves, memory),
        _place_some("mask", mask, memory, batch),
        _place_some("priorities", priorities, memory, batch),
    )


def _room_for_add(spec: BufferSpec, memory: Memory, batch: int) -> Saved:
    """Where what `add` overwrites is saved: a kernel and the recorder do that on their way."""
    if spec.plan.fused and native(memory):
        return cpu_kernels.room(spec, min(batch, spec.capacity), rows=True, values=memory.tree is not None)
    return Log()


def write(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    batch: int,
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
    key: torch.Tensor | None,
    saved: Saved | None = None,
) -> torch.Tensor:
    """Write a batch into memory; returns the new counters."""
    memory.written = True
    if spec.plan.fused and _by_kernel(memory, saved):
        return cpu_kernels.add(spec, memory, counters, leaves, batch, mask, priorities, _slots(saved))
    with torch.no_grad():
        draws = None
        if key is not None and spec.writer.words:
            draws = random.draws(key.to(memory.rows.device), spec.rows(batch), spec.writer.words)
        given = _arrays(memory, counters), spec, leaves, batch, mask, priorities, draws
        return _written(memory, _carry_out(memory, saved, functions.add, *given))


def inside(outline: Outline, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Whether values lie in the domain of each unit."""
    with torch.no_grad():
        return values.inside(ops, traceable(outline), leaves)


def count_invalid(state: CoreState, outside: torch.Tensor) -> State:
    """The same state, with what was left out counted."""
    state = own_state(state, "add")
    return State(state._version, with_invalid(ops, state._counters, outside), state.spec, state._save_history)


def tidy(version: Version) -> None:
    """Drop Python objects that nobody can read any more, if there may be many: before a write, as it takes the lock."""
    with version.lock:
        table = objects_of(version.own())
    table.tidy()


def objects_of(memory: Memory) -> Table:
    """The objects by token, of a buffer that has some."""
    table: Any = memory.table
    assert table is not None
    return table


def write_objects(spec: BufferSpec, memory: Memory, counters: torch.Tensor, leaves: Sequence[Any], *rest: Any) -> Any:
    """`write` for leaves of which some are Python objects."""
    table = objects_of(memory)
    with table.lock:
        return write(spec, memory, counters, [table.stored(leaf, counters.device) for leaf in leaves], *rest)


def rewrite_objects(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, Any],
    saved: Saved | None = None,
) -> torch.Tensor:
    """`rewrite` likewise."""
    table = objects_of(memory)
    with table.lock:
        stored = {k: table.stored(leaf, counters.device) for k, leaf in replacements.items()}
        return rewrite(spec, memory, counters, handles, priorities, stored, saved)


def _count(version: Version, saved: Saved | None) -> None:
    """Count what was saved for an older version, where that was not known before."""
    if isinstance(saved, Log):
        version.settle()


def _by_kernel(memory: Memory, saved: Saved | None) -> bool:
    """Whether a kernel writes; where there is room for what it overwrites, that has been decided."""
    return native(memory) if saved is None else isinstance(saved, SavedSlots)


def _slots(saved: Saved | None) -> SavedSlots | None:
    assert not isinstance(saved, Log)
    return saved  # type: ignore[return-value]  # there are these two kinds; a union in isinstance is not traced


def _carry_out(memory: Memory, saved: Saved | None, function: Callable[..., Any], *args: Any) -> Any:
    """Carry a function of the core out: with part kernels where they can work, and a recorder around the primitives."""
    if _compiling():
        return function(ops, *args)
    table = cpu_kernels.TABLE if native(memory) else NONE
    if saved is None:
        if memory.files is None or memory.files.undo is None:
            with using(table):
                return function(ops, *args)
        saved = Log()  # of no use, but the recorder tells the undo log too
    assert isinstance(saved, Log)
    recorder = Recorder(ops, memory, saved)
    with using(recorder.kernels(table)):
        return function(recorder, *args)


def _written(memory: Memory, arrays: Arrays) -> torch.Tensor:
    """The new counters. All other arrays were written in place."""
    assert arrays.tree is memory.tree
    assert all(arrays.auxiliary[name] is array for name, array in memory.auxiliary.items())
    counters: torch.Tensor = arrays.counters
    return counters


def known(state: CoreState, mask: torch.Tensor | None) -> tuple[Any, Any] | None:
    """The state's counters and a mask as NumPy arrays, None while tracing; of an accelerator this waits for them."""
    counters = own_state(state, "add").counters
    if torch.compiler.is_compiling() or _is_batched(counters) or _is_batched(mask):
        return None
    return counters.cpu().numpy(), None if mask is None else mask.cpu().numpy()


def sample(state: CoreState, key: torch.Tensor, batch: int, beta: Any) -> tuple[State, list[torch.Tensor], Selection]:
    """Draw items; where the result is at hand, an empty buffer is an error."""
    state = own_state(state, "sample")
    random.check_key(key)
    version, spec = readable(state), state.spec
    with locked(version):
        memory = version.own()
        if not (spec.sampler.remembers and batch):
            return state, *draw(spec, memory, state._counters, key, batch, beta)[1:]
        target = version.writable()
        saved = Log() if target is memory else None
        following = version.succeed(target, saved)
        try:
            counters, leaves, selection = draw(spec, target, state._counters, key, batch, beta, saved)
        except Exception:  # there is nothing to draw, or a transform calls a function that fails
            version.roll_back()
            raise
        _count(version, saved)
        return State(following, counters, spec, state._save_history), leaves, selection


def draw(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    key: torch.Tensor,
    batch: int,
    beta: Any,
    saved: Saved | None = None,
) -> tuple[torch.Tensor, list[Any], Selection]:
    """Draw items from memory; the counters afterwards come first."""
    counters, leaves, selection = _drawn(spec, memory, counters, key, batch, beta, saved)
    if spec.plan.objects:
        leaves = objects_of(memory).read(leaves)
    return counters, *memory.placement.sample_sent(leaves, selection)


def _drawn(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    key: torch.Tensor,
    batch: int,
    beta: Any,
    saved: Saved | None,
) -> tuple[torch.Tensor, list[torch.Tensor], Selection]:
    """Likewise, with tokens of objects, and where the memory is."""
    if isinstance(beta, torch.Tensor):
        beta = beta.detach()
    at_hand = batch > 0 and not torch.compiler.is_compiling()
    if at_hand and not memory.written:
        checks.check_nonempty(spec, False, 0)
    more = None
    if spec.plan.extra_words:
        key, other = random.split(key)
        more = numbers(other, spec.extra_shape(batch), memory.rows.device)
    if batch and spec.plan.fused_draws and native(memory) and not _is_batched(key) and not _is_batched(beta):
        leaves, selection, drawable = cpu_kernels.sample(spec, memory, counters, int(key), batch, float(beta))
        checks.check_nonempty(spec, drawable, int(counters[1]) if not drawable else 1)
        if not spec.plan.fused:
            leaves, selection = _completed(spec, memory, counters, leaves, selection, more)
        return counters, leaves, selection
    with torch.no_grad():
        words = numbers(key, spec.draw_shape(batch), memory.rows.device)
        level = torch.as_tensor(beta, dtype=torch.float32, device=memory.rows.device)
        given = _arrays(memory, counters), spec, words, level, batch, more
        if _is_batched(key) or _is_batched(beta):
            arrays, leaves, selection = functions.draw(ops, *given)
        else:
            arrays, leaves, selection = _carry_out(memory, saved, functions.draw, *given)
        after = _written(memory, arrays)
    if at_hand and memory.is_ordinary and not _is_batched(selection.weights):
        checks.check_nonempty(spec, float(selection.weights.max()) > 0, int(counters[1]))
    return after, leaves, selection


def _completed(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    stored: list[torch.Tensor],
    selection: Selection,
    more: torch.Tensor | None,
) -> tuple[list[torch.Tensor], Selection]:
    """What a kernel has drawn, with leaves that are frames, and as transforms have it."""
    known = dict(zip(spec.plan.stored, stored, strict=True))
    # Where nothing could be drawn, handles are -1, and any slot will do.
    slots = selection.handles % spec.capacity
    if spec.plan.frames is not None and not spec.transforms:
        with using(cpu_kernels.TABLE):
            known |= frame_ring.read(ops, spec.plan.frames, memory.auxiliary, slots, range(len(spec.plan.leaves)))
        return [known[k] for k in range(len(spec.plan.leaves))], selection
    draft = Draft.of(_arrays(memory, counters), spec.plan)
    with using(cpu_kernels.TABLE):
        leaves, extras = functions.read_drawn(ops, draft, spec.transforms, slots, selection.handles, more, known)
    return leaves, selection._replace(extras=extras)


def numbers(key: torch.Tensor, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Uniform int32 in [0, 2^31) by a key, on a device."""
    on_cpu = device.type == "cpu" and not torch.compiler.is_compiling()
    if HAVE_KERNELS and on_cpu and switch.on and not _is_batched(key):
        return cpu_kernels.draws(key, *shape)
    return random.draws(key.to(device), *shape)


def _is_batched(value: Any) -> bool:
    """Whether `torch.func.vmap` hands many values in as one."""
    if not isinstance(value, torch.Tensor) or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(value)


def update(
    state: CoreState,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, torch.Tensor],
) -> State:
    """Set priorities and rewrite leaves."""
    state = own_state(state, "update")
    version, spec = readable(state), state.spec
    if spec.plan.objects:
        tidy(version)
    with locked(version):
        memory = version.own()
        handles, priorities, replacements = place_update(spec, memory, handles, priorities, replacements)
        counters = state._counters
        target, saved = version.writable(), None
        if replacements:
            target.placement.make_room_at(target, handles)
        if target is memory:
            saved = _room_for_update(spec, memory, handles.shape[0], bool(replacements), priorities is not None)
        following = version.succeed(target, saved)
        rewriting = rewrite_objects if spec.plan.objects else rewrite
        after = rewriting(spec, target, counters, handles, priorities, replacements, saved)
        _count(version, saved)
        return State(following, after, spec, None if replacements else state._save_history)


def place_update(
    spec: BufferSpec,
    memory: Memory,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor | None, dict[int, torch.Tensor]]:
    """The checked inputs of `update`, contiguous and on the state's device."""
    return (
        place("indices", handles, memory),
        _place_some("priorities", priorities, memory, handles.shape[0]),
        {k: _place_leaf(spec, k, leaf, memory) for k, leaf in replacements.items()},
    )


def _room_for_update(spec: BufferSpec, memory: Memory, n: int, rows: bool, values: bool) -> Saved:
    """Likewise for `update`."""
    return cpu_kernels.room(spec, n, rows, values) if spec.plan.fused and native(memory) else Log()


def rewrite(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, torch.Tensor],
    saved: Saved | None = None,
) -> torch.Tensor:
    """Set priorities and rewrite leaves in memory; returns the new counters."""
    if spec.plan.fused and _by_kernel(memory, saved):
        return cpu_kernels.update(spec, memory, counters, handles, priorities, replacements, _slots(saved))
    with torch.no_grad():
        given = _arrays(memory, counters), spec, handles, priorities, replacements
        return _written(memory, _carry_out(memory, saved, functions.update, *given))


def _arrays(memory: Memory, counters: torch.Tensor) -> Arrays:
    return Arrays(memory.rows, memory.wide, memory.tree, counters, dict(memory.auxiliary))


def clear(state: CoreState) -> State:
    """Take all items out; the rows are handed on as they are."""
    state = own_state(state, "clear")
    version, spec = readable(state), state.spec
    with locked(version), torch.no_grad(), torch.inference_mode(False):
        memory = version.own()
        arrays = functions.clear(ops, _arrays(memory, state._counters), spec)
        following = version.exchange(arrays, memory.placement)
    if spec.plan.objects:
        objects_of(memory).tidy_soon()
    return State(following, arrays.counters, spec, None if spec.plan.objects else state._save_history)


def clear_in_place(spec: BufferSpec, memory: Memory, counters: torch.Tensor) -> torch.Tensor:
    """Likewise in memory; returns the new counters."""
    with torch.no_grad():
        arrays = functions.clear(ops, _arrays(memory, counters), spec)
        pairs = [(memory.rows, arrays.rows), (memory.tree, arrays.tree)]
        pairs += [(array, arrays.auxiliary[name]) for name, array in memory.auxiliary.items()]
        for array, new in pairs:
            if new is not array:
                array.copy_(new)
    if spec.plan.objects:
        objects_of(memory).tidy_soon()
    after: torch.Tensor = arrays.counters
    return after


def with_spec(state: CoreState, spec: BufferSpec) -> State:
    """Another spec, with the items in the same storage; rows that stay are handed on as they are."""
    state = own_state(state, "with_spec")
    version, old = readable(state), state.spec
    if respec.is_label(old, spec):
        return State(version, state._counters, spec, state._save_history)
    with locked(version), torch.no_grad(), torch.inference_mode(False):
        memory = version.own()
        arrays = _arrays(memory, state._counters)
        with using(cpu_kernels.TABLE if native(memory) else NONE):
            made = respec.with_spec(ops, arrays, old, spec, memory.rows.device, step=respec.step_of(spec))
        place = placement.Placement(spec, memory.placement.target)
        if memory.table is None and respec.stays(old, spec):
            return State(version.exchange(made, place), made.counters, spec)
        table = None if memory.table is None else Table(spec, memory.table.held(arrays))
        return State.of_arrays(separate(made, arrays, torch.clone), spec, pinned=False, table=table, place=place)


def get(state: CoreState, handles: torch.Tensor) -> list[torch.Tensor]:
    """Read items by handle."""
    state = own_state(state, "get")
    version = readable(state)
    with locked(version):
        memory, spec = version.own(), state.spec
        handles = memory.placement.received(handles, memory.rows.device)
        leaves = functions.get(ops, _arrays(memory, state._counters), spec, handles)
        leaves = objects_of(memory).read(leaves) if spec.plan.objects else leaves
        return [memory.placement.sent(leaf) for leaf in leaves]


def items(state: CoreState) -> list[torch.Tensor]:
    """All of the storage, as views: given out, so never written again. Of compact storage, and of objects, a copy."""
    state = own_state(state, "items")
    if not state.spec.plan.objects:
        return _stored(state)
    version = readable(state)
    with locked(version):
        return objects_of(version.own()).read(_stored(state))


def _stored(state: State) -> list[torch.Tensor]:
    """The leaves as they are stored, tokens of objects."""
    if state.spec.plan.frames is not None:
        version = readable(state)
        with locked(version):
            return functions.items(ops, _arrays(version.own(), state._counters), state.spec)
    rows, wide = state.rows, state.wide
    views = []
    for leaf in state.spec.plan.layout.leaves:
        if leaf.wide is not None:
            views.append(wide[leaf.wide].view(ops.DTYPES[leaf.dtype]))
            continue
        dtype = ops.DTYPES[leaf.dtype]
        if not leaf.nbytes:
            views.append(rows.new_zeros((rows.shape[0], *leaf.shape), dtype=dtype))
            continue
        first = leaf.offset or 0
        piece = rows.view(torch.uint8)[:, first : first + leaf.nbytes] if rows.shape[1] else rows.view(torch.uint8)
        views.append(piece.view(dtype).unflatten(1, leaf.shape) if leaf.shape else piece.view(dtype)[:, 0])
    return views


def is_live(state: CoreState, handles: torch.Tensor) -> torch.Tensor:
    """Whether handles name stored items."""
    state = own_state(state, "is_live")
    version = readable(state)
    with locked(version):
        memory = version.own()
        handles = memory.placement.received(handles, memory.rows.device)
        live = functions.is_live(ops, _arrays(memory, state._counters), state.spec, handles)
        return memory.placement.sent(live)


def drawable(state: CoreState, n: int) -> torch.Tensor:
    """Whether n can be drawn."""
    state = own_state(state, "can_sample")
    version = readable(state)
    with locked(version):
        possible: torch.Tensor = functions.drawable(ops, _arrays(version.own(), state._counters), state.spec, n)
        return possible


def look(
    state: CoreState, function: Callable[..., Any], handles: torch.Tensor | None = None, n: int | None = None
) -> torch.Tensor:
    """What a function of `buffer` reads off a state."""
    state = own_state(state, function.__name__)
    version = readable(state)
    with locked(version), torch.no_grad():
        memory = version.own()
        given = [x for x in (handles, n) if x is not None]
        given = [memory.placement.received(x, memory.rows.device) for x in given]
        found = function(ops, _arrays(memory, state._counters), state.spec, *given)
        read: torch.Tensor = memory.placement.sent(found)
        return read


def split(key: torch.Tensor) -> torch.Tensor:
    """Two keys from one."""
    return random.split(key)


def random_crop(
    leaves: Sequence[torch.Tensor], lengths: torch.Tensor | None, key: torch.Tensor, length: int
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """`crop.random_crop`; objects are found by where they were."""
    random.check_key(key)
    batch, steps = leaves[0].shape[:2]
    device = next((leaf.device for leaf in leaves if not is_object_array(leaf)), key.device)
    objects = {k: leaf for k, leaf in enumerate(leaves) if is_object_array(leaf)}
    if objects:
        places = torch.arange(batch * steps, device=device).reshape(batch, steps)
        leaves = [places if k in objects else leaf for k, leaf in enumerate(leaves)]
    if lengths is None:
        lengths = torch.full((batch,), steps, dtype=torch.int32, device=device)
    numbers = random.draws(key.to(device), batch, 2)
    cut, starts, mask = crop.random_crop(ops, leaves, lengths, numbers, length)
    for k, leaf in objects.items():
        chosen = leaf.reshape(batch * steps, *leaf.shape[2:])
        cut[k] = chosen[cut[k].cpu().numpy()]
    return cut, starts, mask
