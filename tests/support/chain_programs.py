"""Parts of programs for the version chain: items of all kinds, in all forms that users give; what states hold."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch

import functional_rb as frb
from functional_rb.base import nest
from functional_rb.versions.memory import LEAST
from functional_rb.versions.version import take_back
from torch_backend.memory.library import TORCH

# The last two have arrays of their own.
LEAVES = {
    "x": frb.Unbounded((3,)),
    "n": frb.Unbounded((), "int32"),
    "done": frb.Binary(()),
    "tiny": frb.Unbounded((2,), "int8"),
    "half": frb.Unbounded((2,), "bfloat16"),
    "short": frb.Unbounded((3,), "uint16"),
    "turn": frb.Unbounded((), "complex64"),
    "long": frb.Unbounded((2,), "float64"),
    "big": frb.Unbounded((), "int64"),
    "none": frb.Unbounded((0, 2)),
    "image": frb.Unbounded((1100,), "uint8"),
    "wide": frb.Unbounded((300,), "float16"),
}


class Pair(NamedTuple):
    first: Any
    rest: Any


@dataclasses.dataclass(frozen=True)
class Step:
    first: Any
    rest: Any


class NotHere:
    """In place of a chain: nothing is done in it."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given: NotImplemented


class Noting:
    """A chain that notes which of its functions have done something themselves, beside another's if some are given."""

    def __init__(self, chain: Any, calls: collections.Counter[str] | None = None) -> None:
        self.chain, self.calls = chain, collections.Counter[str]() if calls is None else calls

    @property
    def done(self) -> int:
        """How many calls."""
        return self.calls.total()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.chain, name)

        def noting(*given: Any) -> Any:
            made = function(*given)
            self.calls[name] += made is not NotImplemented
            return made

        return noting


@contextlib.contextmanager
def using(chain: Any) -> Iterator[None]:
    """Another chain, or none, for what torch's functions do meanwhile."""
    before = TORCH.chain
    TORCH.chain = chain
    try:
        yield
    finally:
        TORCH.chain = before


# --- items -----------------------------------------------------------------------------------------------------------


def arranged(kind: str, leaves: dict[str, Any]) -> Any:
    """Leaves by name in a nest of some kind."""
    values = list(leaves.values())
    match kind:
        case "nested":
            return {"a": values[0], "b": {"c": (*values[1:],)}} if values[1:] else {"b": {"a": values[0]}}
        case "tuple":
            return (*values,)
        case "named tuple":
            return Pair(values[0], dict(list(leaves.items())[1:]))
        case "dataclass":
            return Step(values[0], (*values[1:],))
        case "bare":
            return values[0]
        case "map":
            return nest_of_others(leaves)
        case _:
            return leaves


def nest_of_others(leaves: dict[str, Any]) -> Any:
    """A mapping that is no dict, of the same names in another order."""
    return collections.OrderedDict(reversed(leaves.items()))


def random_array(rng: np.random.Generator, spec: Any, lead: tuple[int, ...]) -> np.ndarray:
    """Any bits that the dtype has, but for bools."""
    shape = (*lead, *spec.shape)
    if spec.dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    dtype = np.dtype(ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else spec.dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(bytearray(rng.bytes(count)), dtype).reshape(shape)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


FORMS = (
    *("tensor", "tensor", "numpy", "strided", "strided numpy", "read only", "negative", "grad", "parameter"),
    *("number", "wrong dtype", "wrong shape", "list", "swapped bytes", "zeros", "meta"),
)
# Each of the unusual forms comes so seldom as once in so many leaves.
USUAL = 10


def in_form(form: str, array: np.ndarray) -> Any:
    """The array as a user may give it: most of these are taken, some are refused."""
    floating = array.dtype.kind in "fc" and array.dtype.name != "bfloat16"
    match form:
        case "numpy":
            return array
        case "strided":
            tensor = as_tensor(array)
            return torch.stack([tensor, tensor], -1)[..., 0]
        case "strided numpy":
            return np.stack([array, array], -1)[..., 0]
        case "read only":
            copied = array.copy()
            copied.flags.writeable = False
            return copied
        case "negative" if floating:
            return torch._neg_view(-as_tensor(array))
        case "grad" if floating:
            return as_tensor(array).requires_grad_()
        case "parameter" if floating:
            return torch.nn.Parameter(as_tensor(array))
        case "number" if array.ndim == 0 and array.dtype.name != "bfloat16":
            return array.item()
        case "wrong dtype":
            return as_tensor(np.ones(array.shape, np.int16))
        case "wrong shape":
            return as_tensor(array)[None, None]
        case "list":
            return [1.0]
        case "swapped bytes" if array.dtype.itemsize > 1 and array.dtype.name != "bfloat16":
            return array.astype(array.dtype.newbyteorder())
        case "zeros" if floating:
            return torch._efficientzerotensor(array.shape, dtype=as_tensor(array).dtype)
        case "meta":
            return torch.empty(array.shape, dtype=as_tensor(array).dtype, device="meta")
        case _:
            return as_tensor(array)


PRIORITIES = np.array([0.0, 1e-45, 0.5, 1.0, 3e38, 2.0, np.nan, np.inf, -np.inf, -1.0], np.float32)


# --- what states hold ------------------------------------------------------------------------------------------------


def peek(state: Any) -> list[bytes]:
    """All bits of a state, found without anything done to it: an older one stays to be found from the newer ones."""
    version = state._version
    with version.lock:
        memory, later = version, []
        while memory.memory is None:
            later.append(memory.saved)
            memory = memory.next
        memory.memory.wait_for_draws()
        copied = memory.memory.copy()
        if later:
            take_back(copied, later)
        return [bits(array) for array in (*copied.arrays, state._counters)]


def bits(array: Any) -> bytes:
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu().contiguous().reshape(-1)
        array = array.view(torch.uint8).numpy() if array.numel() else np.empty(0)
    return np.asarray(array).tobytes()


def outline(array: Any) -> tuple[Any, ...]:
    """All that a tensor tells, but the device."""
    assert type(array) is torch.Tensor
    return array.dtype, tuple(array.shape), array.requires_grad, array.is_inference(), bits(array)


def told(spec: frb.BufferSpec, sample: Any) -> tuple[Any, ...]:
    """All that a sample tells: its classes, the order of its keys, and its arrays."""
    leaves = nest.flatten_as(spec.plan.structure, sample.items)
    arrays = [*leaves, *told_beside(sample), *nest.flatten(sample.extras, torch.is_tensor)[0]]
    return type(sample), shape_of(sample.items), shape_of(sample.extras), [outline(array) for array in arrays]


def strides(spec: frb.BufferSpec, sample: Any) -> list[tuple[int, ...]]:
    """Where the elements of a sample's arrays lie."""
    leaves = nest.flatten_as(spec.plan.structure, sample.items)
    return [x.stride() for x in (*leaves, *told_beside(sample))]


def told_beside(sample: Any) -> list[torch.Tensor]:
    """The arrays of a sample beside its items."""
    extras = [sample.extras[name] for name in sorted(sample.extras)]
    return [x for x in (*sample[1:], *extras) if isinstance(x, torch.Tensor)]


def shape_of(items: Any) -> Any:
    """The classes and keys of a nest."""
    if isinstance(items, dict):
        return type(items), [(key, shape_of(value)) for key, value in items.items()]
    if isinstance(items, tuple):
        return type(items), [shape_of(value) for value in items]
    if dataclasses.is_dataclass(items):
        return type(items), [shape_of(getattr(items, field.name)) for field in dataclasses.fields(items)]
    return type(items)


def check_books(state: Any) -> None:
    """What is kept for older versions is counted, known, and within bounds."""
    version = state._version
    while version.memory is None:
        version = version.next
    memory = version.memory
    history = memory.history or ()
    assert memory.retained == sum(size for _, size in history)
    largest = max((size for _, size in history), default=0)
    assert memory.retained <= max(memory.nbytes, LEAST) + largest


def outcome(function: Callable[..., Any], *given: Any) -> tuple[Any, Any]:
    """What a function returns, and what it raises."""
    try:
        return function(*given), None
    except Exception as error:
        return None, (type(error), str(error))
