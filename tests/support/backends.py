"""Every way in which the public functions can be carried out, behind one face, so that one test serves them all."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.native.switch import HAVE_KERNELS, switch

# JAX's functions on buffers in the host's memory, with kernels and without. They draw as torch does, and compile
# nothing, so that long histories take little time; that JAX's own numbers come in is for `test_host` to see.
HOST_VARIANTS = ("jax-host", "jax-host-core")
# Kernels called eagerly; under the user's jit; XLA operations; kernels; torch operations; the in-place forms.
VARIANTS = ("jax", "jax-jit", "jax-core", "torch", "torch-core", "torch-inplace")

# For what is decided in code that both backends share, and takes JAX seconds to compile: JAX in `make test-all` alone.
mostly_on_torch = pytest.mark.parametrize(
    "library", [pytest.param("jax", marks=pytest.mark.long), "torch"], indirect=True
)

# For what is so only by kernels: the results are the same without them, but XLA copies then.
needs_native = pytest.mark.skipif(not switch.on, reason="of compiled kernels, which FUNCTIONAL_RB_NATIVE=0 turns off")


@dataclasses.dataclass(frozen=True)
class Backend:
    """One variant. The functions are those of `rb`, compiled or replaced by in-place forms where the variant says so.

    Attributes:
        name: one of `VARIANTS` or `HOST_VARIANTS`, or "jax-inplace", which takes long for few tests to have it.
        rb: the backend's module.
        array: NumPy -> an array of the backend, dtype kept.
        numpy: an array of the backend -> NumPy (bfloat16 as ml_dtypes' type).
    """

    name: str
    rb: Any
    array: Callable[[Any], Any]
    numpy: Callable[[Any], np.ndarray]

    @property
    def library(self) -> str:
        """`jax` or `torch`."""
        return self.name.split("-")[0]

    @property
    def ops(self) -> Any:
        """The library's array primitives, over which what both backends have in common is written."""
        return importlib.import_module(f"{self.library}_backend.arrays.ops")

    @property
    def consumes(self) -> bool:
        """Whether a state must not be used again."""
        return self.name.endswith("-inplace")

    def init(self, spec: Any, items: Any = None) -> Any:
        """On the host for the variants that are about it, unless the spec says where."""
        if self.name in HOST_VARIANTS and isinstance(spec.storage, frb.Device):
            spec = dataclasses.replace(spec, storage=frb.Host())
        return self.rb.init(spec, items=items)

    def add(self, state: Any, items: Any, mask: Any = None, priorities: Any = None, key: Any = None) -> Any:
        return self._function("add")(state, items, mask, priorities, key)

    def sample(self, state: Any, key: Any, batch_size: int, beta: Any = None) -> tuple[Any, Any]:
        if self.name == "jax-jit":
            import jax

            return jax.jit(self.rb.sample, static_argnums=2)(state, key, batch_size, beta)
        return self._function("sample")(state, key, batch_size, beta)

    def update(self, state: Any, indices: Any, priorities: Any = None, items: Any = None, version: Any = None) -> Any:
        return self._function("update")(state, indices, priorities, items, version)

    def clear(self, state: Any) -> Any:
        return self._function("clear")(state)

    def flatten(self, nest: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
        """The leaves that the library finds in a nest, a state too, and what puts others into their places."""
        if self.library == "jax":
            import jax

            leaves, outline = jax.tree.flatten(nest)
            return leaves, lambda others: jax.tree.unflatten(outline, others)
        from torch.utils import _pytree as pytree

        leaves, context = pytree.tree_flatten(nest)
        return leaves, lambda others: pytree.tree_unflatten(others, context)

    def _function(self, name: str) -> Callable[..., Any]:
        if self.name == "jax-jit":
            import jax

            return jax.jit(getattr(self.rb, name))
        return getattr(self.rb, name + "_" if self.consumes else name)

    def tree(self, nest: Any) -> Any:
        """A nest of dicts, tuples and lists of NumPy arrays as one of the backend's."""
        if isinstance(nest, dict):
            return {k: self.tree(v) for k, v in nest.items()}
        if isinstance(nest, (tuple, list)):
            parts = map(self.tree, nest)
            return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
        return self.array(nest)


def _torch_array(x: Any) -> Any:
    import torch

    x = np.asarray(x)
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def _torch_numpy(x: Any) -> np.ndarray:
    import torch

    if x.dtype == torch.bfloat16:
        import ml_dtypes

        return x.detach().contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.detach().numpy()


def _on_host(name: str, patch: pytest.MonkeyPatch) -> Backend:
    import jax.numpy as jnp

    import jax_backend
    from functional_rb.storage import host_state
    from jax_backend.engines import hosted, shipping

    patch.setattr(host_state, "HAVE_KERNELS", not name.endswith("-core"))
    patch.setattr(shipping, "SMALL", -1)
    patch.setattr(hosted, "draws", torch_draws)
    return Backend(name, jax_backend, jnp.asarray, np.asarray)


def torch_draws(key: Any, shape: tuple[int, int], extra: tuple[int, int] | None = None) -> tuple[Any, Any]:
    """What torch draws by the number that a key of JAX was made of."""
    import jax
    import torch

    from torch_backend.arrays import random

    made = torch.tensor(int(np.asarray(jax.random.key_data(key))[-1]))
    more = None
    if extra is not None:
        made, other = random.split(made)
        more = random.draws(other, *extra).numpy()
    return random.draws(made, *shape).numpy(), more


@contextlib.contextmanager
def make(name: str) -> Iterator[Backend]:
    """A variant, for as long as the context lasts: the core variants switch the kernels off."""
    library = name.split("-")[0]
    if name in HOST_VARIANTS:
        with pytest.MonkeyPatch.context() as patch:
            yield _on_host(name, patch)
        return
    rb = importlib.import_module(f"{library}_backend")
    assert HAVE_KERNELS, (
        "the tests need functional_rb._native, so that both twins are tested: python tools/native_build.py"
    )
    if library == "torch":
        with frb.kernels(not name.endswith("-core")):
            yield Backend(name, rb, _torch_array, _torch_numpy)
        return
    import jax.numpy as jnp

    switch = importlib.import_module("jax_backend.compiling.compile")
    switch.HAVE_KERNELS = not name.endswith("-core")
    try:
        yield Backend(name, rb, jnp.asarray, np.asarray)
    finally:
        switch.HAVE_KERNELS = True
