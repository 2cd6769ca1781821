"""What a user gives, as tensors; and mappings of tensors as users have them.

Whatever is no array in memory is refused: sparse, nested, masked and fake tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from functional_rb.base import dtypes
from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.base.containers import Registered
from functional_rb.base.extras import missing
from functional_rb.base.object_arrays import Objects, gather, is_non_tensor, is_object_array
from functional_rb.buffer import checks
from functional_rb.core.handles import NO_HANDLE
from functional_rb.specs import ArraySpec
from functional_rb.specs.composite import Container
from torch_backend.arrays import ops

NUMPY = (np.ndarray, np.generic)
# Tuples, because torch.compile does not trace unions of types.
NUMBERS = (bool, int, float, complex)
_INTEGERS = (torch.int64, torch.int16, torch.int8, torch.uint8)
_FLOATS = (torch.float64, torch.float16, torch.bfloat16)
_DTYPES, _STRIDED, _compiling = ops.DTYPES, torch.strided, torch.compiler.is_compiling
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def convert(leaf: object, expected: ArraySpec, name: str) -> torch.Tensor:
    """Tensors without their autograd history, NumPy arrays as they are, Python numbers for scalar leaves."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not _STRIDED or leaf.is_nested or type(leaf) is not torch.Tensor:
            _check_memory(leaf, f"leaf {name!r}")
        if leaf.dtype != _DTYPES[expected.dtype]:
            checks.check_dtype(name, leaf, expected.dtype)
        if leaf.requires_grad or (not _compiling() and _is_put_off(leaf)):
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


def number(x: object, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A scalar on a device, where a number of Python is filled in.

    To copy a number to an accelerator would wait for it, and torch.compile would trace each number anew that it meets
    in `torch.as_tensor`.
    """
    if isinstance(x, NUMBERS):
        return torch.full((), x, dtype=dtype, device=device)
    check_known(x, device)
    return torch.as_tensor(x, dtype=dtype, device=device)


def check_known(x: object, device: torch.device) -> None:
    """Refuse a tensor on meta where numbers are wanted on another device."""
    if isinstance(x, torch.Tensor) and x.is_meta and device.type != "meta":
        raise ValueError(f"expected a number, got a tensor on meta, which has none; give one on {device}")


# Refuse tensors that are more, or less, than an array in memory: sparse, nested, masked, fake ones.
def _check_memory(tensor: torch.Tensor, what: str) -> None:
    if tensor.is_nested:  # its parts may differ in length, so it has no shape
        raise TypeError(
            f"{what}: expected a dense tensor, got a nested one; give torch.nested.to_padded_tensor(...) of it, "
            f"and keep the lengths beside it"
        )
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
    if not _compiling() and _is_put_off(tensor):  # which torch.compile does not trace
        tensor = tensor.clone() if tensor._is_zerotensor() else tensor.resolve_conj().resolve_neg()
    return tensor


# Whether a tensor's memory does not say what its elements are: to be negated or conjugated, or not there.
def _is_put_off(tensor: torch.Tensor) -> bool:
    return tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()


def from_numpy(array: object) -> torch.Tensor:
    """A NumPy array as a tensor, in the same memory where torch can have that: contiguous, and not read-only."""
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":  # NumPy's is an extension type that torch does not know
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())


def is_batched(value: object) -> bool:
    """Whether `torch.func.vmap` hands many values in as one."""
    return isinstance(value, torch.Tensor) and not _compiling() and _wrapped(value)


def as_vector(array: BackendArray, name: str) -> BackendArray:
    """Masks, priorities and indices from NumPy; tensors without their autograd history."""
    if array is None:
        return None
    if checks.are_listed(array, name):
        array = torch.tensor(array, dtype=torch.int64, device="cpu")
    if isinstance(array, torch.Tensor):
        if array.layout is not _STRIDED or array.is_nested or type(array) is not torch.Tensor:
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
        # What is no int32 would wrap, and might name an item.
        known = (tensor >= -1) & (tensor < NO_HANDLE)
        return torch.where(known, tensor, NO_HANDLE).to(torch.int32) if dtype == torch.int64 else tensor.to(torch.int32)
    if name == "priorities" and dtype in _FLOATS:
        narrow = tensor.to(torch.float32)
        if dtype != torch.float64:
            return narrow
        # A NaN is let through here: bad priorities are counted, and refused, where they would be stored.
        if not (_compiling() or is_batched(tensor)) and bool(((narrow == tensor) | (tensor != tensor)).all()):
            return narrow
    if name == "priorities" and not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        return _whole_priorities(tensor)
    return tensor


# Whole numbers as float32, where it has all of them; the rest as it is.
def _whole_priorities(tensor: torch.Tensor) -> torch.Tensor:
    narrow = tensor.to(torch.float32)
    # Of 16 bits or less: float32 has all whole numbers up to 2^24.
    if tensor.dtype.itemsize <= 2:
        return narrow
    if _compiling() or is_batched(tensor):
        return tensor
    small = tensor.to(torch.float64)  # which has all whole numbers up to 2^53
    return narrow if bool(((small.abs() < 2.0**53) & (narrow.to(torch.float64) == small)).all()) else tensor


def value_of(scalar: BackendArray) -> float | None:
    """The number in a scalar array; None while tracing, under vmap, and on an accelerator."""
    if _compiling() or scalar.device.type != "cpu" or _wrapped(scalar):
        return None
    return float(scalar)


def _refuse_jax(array: object, what: str) -> None:
    if type(array).__module__.split(".")[0] in ("jax", "jaxlib"):
        raise TypeError(
            f"{what}: expected a torch or NumPy array, got a JAX array; bring it over by rb.from_dlpack(...)"
        )


def unsupported(dtype: str) -> str | None:
    """Torch has every dtype that a spec can name."""
    return None


# The library of TensorDicts, by a statement: `torch.compile` cannot follow a function that imports.
def _tensordict() -> Any:
    try:
        import tensordict
    except ImportError as error:
        raise missing("tensordict", "a TensorDict in a spec", error) from error
    return tensordict


def build_mapping(
    container: type | Container | Registered | None, parts: dict[str, Nest], batch_shape: tuple[int, ...]
) -> Any:
    """A dict, or the container that the spec was derived from: what is registered, a TensorDict or a tensorclass.

    Raises:
        TypeError: if a TensorDict or tensorclass would hold a tuple, of which it makes something else.
    """
    if container is None:
        return parts
    if isinstance(container, Registered):
        return container.together(parts)
    tensordict = _tensordict()
    parts = {name: _non_tensor(x) if is_object_array(x) else x for name, x in parts.items()}
    for name, x in parts.items():
        if isinstance(x, tuple | list):
            raise TypeError(
                f"item spec: part {name!r} is a tuple, which no TensorDict or tensorclass can hold; name its parts in "
                f"a dict, or let a dict hold what is beside it: frb.Composite(...) in place of Composite.like"
            )
    options: dict[str, object] = {}
    names_below: dict[str, object] = {}
    if isinstance(container, Container):
        if container.names:
            options["names"] = (*(None,) * (len(batch_shape) - len(container.names)), *container.names)
        if container.device:
            options["device"] = next((x.device for x in parts.values() if x.device is not None), None)
        names_below = _names_below(parts) if container.named_below else {}
        container = container.type
    built = tensordict.TensorDict(parts, batch_size=list(batch_shape), **options)
    if hasattr(container, "from_tensordict"):
        # A tensorclass: its constructor would convert what its fields hold by their annotations.
        built = container.from_tensordict(built)
    _name_below(built, names_below)
    return built


# The names of the axes of TensorDicts in another, which forgets them if it has none itself; and of those below.
def _names_below(parts: Mapping[str, Nest]) -> dict[str, Nest]:
    inner = {name: x for name, x in parts.items() if hasattr(x, "batch_size") and not is_non_tensor(x)}
    return {name: (tuple(x.names), _names_below(dict(x.items()))) for name, x in inner.items()}


def _name_below(outer: Nest, names: Mapping[str, Nest]) -> None:
    for key, (axes, below) in names.items():
        inner = outer.get(key)
        inner.names = axes
        _name_below(inner, below)


# An object array as TensorDicts hold it.
def _non_tensor(objects: Objects) -> Any:
    tensordict = _tensordict()
    if not objects.size:
        return tensordict.NonTensorData(None, batch_size=objects.shape)
    if not objects.ndim:
        return tensordict.NonTensorData(objects.item())
    if objects.ndim == 1:
        return tensordict.NonTensorStack(*(tensordict.NonTensorData(x) for x in objects.tolist()))
    return tensordict.NonTensorStack(*map(_non_tensor, objects))
