"""Memory that both libraries have, where one of them would write to it or give it to others: as on a GPU.

There donation writes to what came through DLPack as to JAX's own memory. Here the CPU stands in for it, of which XLA
donates copies: whether anything has been donated shows by whether it is deleted.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend as jrb
import torch_backend as trb
from functional_rb.ops import numpy_ops
from jax_backend import compat
from jax_backend.arrays import lent
from jax_backend.engines import inplace
from torch_backend.interop import dlpack

SPEC = frb.BufferSpec({"x": frb.Unbounded((40,))}, 8, frb.Prioritized())


class Owner(np.ndarray):
    """An array that one can ask whether it is still there."""


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "donates_all", lambda array: True)


def owner(n: int) -> np.ndarray:
    made = numpy_ops.aligned(np.zeros, (n,), np.dtype(np.float32)).view(Owner)
    made[:] = range(n)
    return made


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nothing_is_donated_to_what_came_from_elsewhere() -> None:
    program = jax.jit(lambda x: x + 1, donate_argnums=0)
    own = jnp.arange(64.0) + 0
    np.testing.assert_array_equal(program(own), np.arange(1, 65))
    assert own.is_deleted()
    came = jrb.from_dlpack(torch.arange(64.0, device="cpu"))
    for _ in range(2):
        np.testing.assert_array_equal(program(came), np.arange(1, 65))
    assert not came.is_deleted()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_the_hold_ends_with_the_array() -> None:
    given = owner(4096)
    gone = weakref.ref(given)
    came = lent.held(compat.shared(given))
    del given
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(came, np.arange(4096))
    del came
    gc.collect()
    assert gone() is None


def refusing(program: Any, calls: list[Any]) -> Any:
    """A program that refuses memory that is not JAX's own, as on a GPU: the first state that it is given."""

    def call(*args: Any, **static: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise jax.errors.JaxRuntimeError(
                "INVALID_ARGUMENT: Invalid buffer passed to Execute() as argument 0 to replica 0: INVALID_ARGUMENT: "
                "Donation requested for buffer with external reference"
            )
        return program(*args, **static)

    return call


@pytest.mark.parametrize("function", ["add_", "update_", "sample_", "clear_"])
def test_the_librarys_own_programs_go_on_with_a_copy(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    name = function.removesuffix("_")
    state = jrb.add(jrb.init(SPEC), {"x": np.ones((3, 40), np.float32)})
    before = [np.array(x) for x in jax.tree.leaves(state)]
    monkeypatch.setattr(inplace, f"_{name}", refusing(getattr(inplace, f"_{name}"), calls))
    after: Any = {
        "add_": lambda: jrb.add_(state, {"x": np.zeros((2, 40), np.float32)}),
        "update_": lambda: jrb.update_(state, np.arange(2, dtype=np.int32), np.ones(2, np.float32)),
        "sample_": lambda: jrb.sample_(state, jrb.key(0), 4)[0],
        "clear_": lambda: jrb.clear_(state),
    }[function]()
    assert int(jrb.size(after)) == {"add_": 5, "clear_": 0}.get(function, 3)
    assert len(calls) == 2
    for x, wanted in zip(jax.tree.leaves(calls[0][0]), before, strict=True):
        np.testing.assert_array_equal(x, wanted)


def test_other_errors_are_raised() -> None:
    def failing(*args: Any) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        lent.called(failing, (0,), jnp.zeros(3))


def test_of_states_beside_others_all_that_is_donated_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    @jrb.jit
    def step(state: Any, weight: Any) -> Any:
        return jrb.add(state, {"x": weight}), weight + 1

    state = jrb.init(SPEC)
    weight = jnp.ones((2, 40))
    program = lent.called
    monkeypatch.setattr(lent, "called", lambda p, *args: program(refusing(p, calls), *args))
    state, weight = step(state, weight)
    assert len(calls) == 2
    assert int(jrb.size(state)) == 2
    assert float(weight[0, 0]) == 2


def test_where_memory_must_begin() -> None:
    assert compat.is_aligned(8, "cpu")
    assert [compat.is_aligned(address, "gpu") for address in (4, 8, 16, 4096)] == [False, False, True, True]


def test_an_array_is_kept_until_what_reads_it_has_been_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor on a GPU dies as soon as its work has been given to a stream."""
    done = [False]

    class Event:
        def record(self, stream: Any) -> None:
            assert stream == "the stream"

        def query(self) -> bool:
            return done[0]

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream")
    kept: list[Any] = []
    monkeypatch.setattr(dlpack, "_READ", dlpack.deque())
    arrays = [owner(3), owner(3)]
    for array in arrays:
        kept.append(weakref.ref(array))
    first, second = arrays
    del arrays, array
    dlpack._let_go(first, torch.device("cpu"))
    del first
    assert kept[0]() is not None
    done[0] = True
    dlpack._let_go(second, torch.device("cpu"))
    del second
    assert [ref() for ref in kept] == [None, None]


def test_the_owner_learns_of_the_last_view(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(dlpack, "_let_go", lambda *given: told.append(given))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    array = jnp.arange(64.0)
    tensor = trb.from_dlpack({"x": array})["x"]
    view = tensor[3:]
    del tensor
    gc.collect()
    assert not told
    del view
    gc.collect()
    assert [given[0] is array for given in told] == [True]


def test_copies_are_where_the_originals_are() -> None:
    array = jnp.arange(64.0) + 0
    tensor = trb.from_dlpack(array)
    copied = trb.from_dlpack(array, copy=True)
    assert copied.device == tensor.device
    assert copied.data_ptr() != tensor.data_ptr()
    again = jrb.from_dlpack(tensor, copy=True)
    assert again.devices() == array.devices()
    assert again.tolist() == copied.tolist() == list(range(64))
