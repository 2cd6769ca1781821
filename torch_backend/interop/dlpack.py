"""Arrays of JAX and NumPy on torch, in the same memory."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Final

import numpy as np
import torch
import torch.utils.dlpack

from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.base.containers import Registered
from functional_rb.buffer.state import State as CoreState
from functional_rb.core.draft import Arrays
from functional_rb.interop import dlpack
from functional_rb.interop.dlpack import TakeLeaf
from torch_backend.arrays.convert import build_mapping, from_numpy
from torch_backend.memory.state import State

# What DLPack calls the memory of a GPU of Nvidia's.
ON_CUDA: Final = 2


def from_dlpack(tree: Nest, copy: bool = False, into: type | None = None) -> Nest:
    """Take arrays and states of JAX (or NumPy) over, in the same memory.

    Args:
        tree: a nest of arrays, a `State`, or a nest with states in it.
        copy: copy what cannot be shared (strided memory, another device) and all the rest too.
        into: `TensorDict`, to get mappings as TensorDicts whose batch shape is the first axis; dicts by default.

    Returns:
        The same nest of tensors. They must not be written to, as JAX's arrays never change. A state goes on
        exactly as if it had never left; neither side's writes are ever seen by the other.

    Raises:
        ValueError: for an array that cannot be shared, naming its path and the remedy.
        TypeError: for a leaf that is no array.

    Example:
        >>> rb.from_dlpack({"x": np.arange(3, dtype=np.float32)})["x"].tolist()
        [0.0, 1.0, 2.0]
    """

    def take(name: str, array: object) -> torch.Tensor:
        return _copied(name, array) if copy else _shared(name, array)

    def build(container: type | Registered | None, parts: dict[str, Nest], batch_shape: tuple[int, ...]) -> object:
        if isinstance(container, Registered) or (into is None and container is None):
            return build_mapping(container, parts, batch_shape)
        for name, x in parts.items():
            if not hasattr(x, "shape"):
                raise TypeError(
                    f"from_dlpack: leaf {name!r}: a TensorDict holds tensors and TensorDicts, "
                    f"not a {type(x).__name__}; leave out into=TensorDict, or bring this part over by itself"
                )
        first = next(iter(parts.values()), None)
        shape = () if first is None else tuple(first.shape[:1])
        return build_mapping(container or into, parts, shape)

    def take_state(state: CoreState, take: TakeLeaf) -> State:
        return State.of_arrays(Arrays(**dlpack.state_arrays(state, take)), state.spec)

    return dlpack.take_over(tree, take, take_state, build)


def _shared(name: str, array: object) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array
    dlpack.check_shareable(name, array)
    try:
        return _lent(array, torch.utils.dlpack.from_dlpack(array))
    except Exception as error:
        raise dlpack.refusal(name, array, error) from error


def _lent(array: object, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the memory of another library's array, which that keeps for as long as torch's stream reads it.

    On a GPU a tensor may die before the work that reads it has been done, and its owner, whose streams are others,
    would give the memory to whatever comes next.
    """
    if tensor.is_cuda and tensor.numel():
        # Not at the end of the process, when nobody reads any more.
        weakref.finalize(tensor.untyped_storage(), _let_go, array, tensor.device).atexit = False
    return tensor


# Arrays whose tensors are gone, each with the event that ends what was given to the stream before.
_READ: deque[tuple[torch.cuda.Event, object]] = deque()


def _let_go(array: object, device: torch.device) -> None:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    _READ.append((event, array))
    # Nobody waits: what is not done yet is looked at when the next one goes.
    while _READ and _READ[0][0].query():
        _READ.popleft()


def _copied(name: str, array: object) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array.clone()
    try:
        if torch.cuda.is_available() and _is_on_cuda(array):
            return _lent(array, torch.utils.dlpack.from_dlpack(array)).clone()
        return from_numpy(np.array(array))
    except Exception as error:
        raise dlpack.refusal(name, array, error) from error


def _is_on_cuda(array: BackendArray) -> bool:
    try:
        return bool(array.__dlpack_device__()[0] == ON_CUDA)
    except Exception:  # of what cannot tell, as a traced array, NumPy's error says more
        return False
