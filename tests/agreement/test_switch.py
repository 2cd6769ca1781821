"""Compiled kernels can be turned off, and then nothing but the speed is another."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb import _native
from functional_rb.buffer.checked_items import Batch
from functional_rb.native import switch
from functional_rb.versions import version
from tests.support.backends import needs_native
from tests.support.versions import is_version
from torch_backend.engines import execute
from torch_backend.memory.library import TORCH

SPEC = frb.BufferSpec({"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32")}, 8, sampler=frb.Prioritized())
HALVES = frb.MaxValue("x")  # whose ranks the chain leaves to the core
FULL = frb.BufferSpec({"x": frb.Unbounded((), "float16"), "done": frb.Binary(())}, 8, writer=HALVES)
SLICES = frb.BufferSpec(
    {"x": frb.Unbounded(()), "done": frb.Binary(())}, 8, sampler=frb.Slices(length=2, end_keys=("done",))
)


@pytest.fixture(autouse=True)
def switched_back() -> Iterator[None]:
    before = switch.switch.on
    yield
    frb.kernels(before)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that Python calls."""
    found: list[str] = []
    monkeypatch.setattr(_native, "HANDLERS", NotingHandlers(found, _native.HANDLERS))
    monkeypatch.setattr(TORCH, "chain", Noting(found, TORCH.chain))
    for engine in (jax_backend.engines.hosted._engine, jax_backend.engines.hosted._sending):
        monkeypatch.setattr(engine.library, "chain", Noting(found, engine.library.chain))
    return found


class NotingHandlers(dict[str, Any]):
    """Handlers, which notes those that are looked up."""

    def __init__(self, found: list[str], handlers: dict[str, Any]) -> None:
        super().__init__(handlers)
        self.found = found

    def __getitem__(self, name: str) -> Any:
        self.found.append(name)
        return super().__getitem__(name)


class Noting:
    """A version chain, which notes what it does itself."""

    def __init__(self, found: list[str], chain: Any) -> None:
        self.found, self.chain = found, chain

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.chain, name)

        def noting(*given: Any) -> Any:
            made = function(*given)
            if made is not NotImplemented:
                self.found.append(name)
            return made

        return noting


def use(rb: Any, spec: frb.BufferSpec) -> list[np.ndarray]:
    """A short history of a buffer, and what it shows."""
    batch = {"x": np.arange(6, dtype=spec.item["x"].dtype), "done": np.arange(6) % 3 == 2}
    if spec.sampler == SPEC.sampler:
        batch = {"x": np.arange(18, dtype=np.float32).reshape(6, 3), "n": np.arange(6, dtype=np.int32)}
    state = rb.add(rb.add(rb.init(spec), batch), batch)
    state, drawn = rb.sample(state, rb.key(3), 4)
    if spec.sampler == SPEC.sampler:
        state = rb.update(state, drawn.indices, np.arange(4, dtype=np.float32))
        state, drawn = rb.sample(state, rb.key(4), 4)
    return [np.asarray(x) for x in (*drawn.items.values(), drawn.indices, drawn.weights)]


def used_with_and_without(rb: Any, spec: frb.BufferSpec, called: list[str]) -> set[str]:
    """The kernels that a history calls; without kernels it calls none, and shows the same."""
    expected, with_kernels = use(rb, spec), set(called)
    called.clear()
    with frb.kernels(False):
        found = use(rb, spec)
    assert not called
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return with_kernels


@needs_native
@pytest.mark.parametrize(
    ("spec", "kernels"),
    [(SPEC, {"add", "sample", "update"}), (SLICES, {"add", "sample"}), (FULL, {"store", "read"})],
)
def test_torch_uses_kernels_or_not(spec: frb.BufferSpec, kernels: set[str], called: list[str]) -> None:
    assert kernels <= used_with_and_without(torch_backend, spec, called)


@needs_native
def test_items_without_leaves_are_added_by_the_chain_too(called: list[str]) -> None:
    """Those of the index of a sharded buffer are so, where a sampler reads no leaf."""
    spec = frb.BufferSpec({}, 40, frb.Prioritized(), lanes=4)

    def added() -> list[torch.Tensor]:
        older = torch_backend.init(spec)
        state = execute.add(older, Batch([], 8, None, torch.arange(8.0)), None)
        state = execute.add_(state, Batch([], 8, torch.arange(8) % 3 > 0, None), None)
        state = execute.add(state, Batch([], 8, None, None), None)
        return [state.tree, state.counters, older.tree, older.counters]

    expected = added()
    assert called == ["write", "write_", "write"]
    with frb.kernels(False):
        assert all(map(torch.equal, added(), expected))


@needs_native
def test_the_hosts_memory_is_used_without_kernels(called: list[str]) -> None:
    spec = frb.BufferSpec(SPEC.item, 8, sampler=SPEC.sampler, storage=frb.Host())
    assert used_with_and_without(jax_backend, spec, called) == {"write", "draw", "update"}


@needs_native
def test_programs_of_jax_have_kernels_or_not() -> None:
    state = jax_backend.add(
        jax_backend.init(SPEC), {"x": np.ones((4, 3), np.float32), "n": np.arange(4, dtype=np.int32)}
    )

    traced = []

    @jax.jit
    def sampled(state: Any) -> Any:
        traced.append(switch.switch.on)
        return jax_backend.sample(state, jax_backend.key(0), 4)[1]

    expected = sampled(state)
    assert "functional_rb_draw" in sampled.lower(state).as_text()
    frb.kernels(False)
    assert "functional_rb" not in sampled.lower(state).as_text(), "the same function is traced anew"
    for found in (sampled(state), jax_backend.sample(state, jax_backend.key(0), 4)[1]):
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.weights, expected.weights)
    frb.kernels(True)
    assert "functional_rb_draw" in sampled.lower(state).as_text()
    forgets = [] if is_version(jax, "0.10") else [True]  # JAX before 0.10, see `compat.on_each_change`
    assert traced == [True, False, *forgets], "each setting once"


@needs_native
def test_programs_without_kernels_can_be_exported() -> None:
    batch = {"x": np.ones((4, 3), np.float32), "n": np.arange(4, dtype=np.int32)}
    state, key = jax_backend.init(SPEC), jax_backend.key(0)

    def step(state: Any, key: Any) -> Any:
        return jax_backend.sample(jax_backend.add(state, batch), key, 4)

    expected = jax.tree.leaves(jax.jit(step)(state, key))
    with pytest.raises(ValueError, match="custom calls"):
        jax.export.export(jax.jit(step))(state, key)
    with frb.kernels(False):
        exported = jax.export.export(jax.jit(step))(state, key)
    for one, other in zip(jax.tree.leaves(exported.call(state, key)), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_setting_lasts_or_is_set_back() -> None:
    frb.kernels(False)
    assert not switch.switch.on
    with frb.kernels(True):
        assert switch.switch.on
        with pytest.raises(KeyError), frb.kernels(False):
            raise KeyError
        assert switch.switch.on
    assert not switch.switch.on
    with pytest.raises(TypeError, match="kernels: expected True or False, got 'off'"):
        frb.kernels("off")  # type: ignore[arg-type]  # refused
    assert not switch.switch.on


def test_the_environment_has_the_first_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in ((None, True), ("", True), ("1", True), ("0", False)):
        monkeypatch.delenv("FUNCTIONAL_RB_NATIVE", raising=False)
        if given is not None:
            monkeypatch.setenv("FUNCTIONAL_RB_NATIVE", given)
        assert switch.Switch().on == expected
    monkeypatch.setenv("FUNCTIONAL_RB_NATIVE", "off")
    with pytest.raises(ValueError, match="FUNCTIONAL_RB_NATIVE: expected 0 or 1, got 'off'"):
        switch.Switch()


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_thread_that_turns_them_off_amid_a_write(backend: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rb = importlib.import_module(f"{backend}_backend")
    spec = frb.BufferSpec(
        SPEC.item, 8, sampler=SPEC.sampler, storage=frb.Device() if backend == "torch" else frb.Host()
    )
    succeed = version.Version.succeed

    def turned(*args: Any) -> Any:
        frb.kernels(on)
        return succeed(*args)

    frb.kernels(not on)
    older = rb.init(spec)
    batch = {"x": np.ones((4, 3), np.float32), "n": np.arange(4, dtype=np.int32)}
    monkeypatch.setattr(version.Version, "succeed", turned)
    state = rb.add(older, batch)
    frb.kernels(not on)
    updated = rb.update(state, np.arange(4, dtype=np.int32), np.full(4, 2.0, np.float32), {"n": batch["n"] + 5})
    monkeypatch.undo()
    assert [int(rb.size(x)) for x in (older, state, updated)] == [0, 4, 4]
    numbers = [np.asarray(rb.items(x)["n"])[:4].tolist() for x in (state, updated)]
    assert numbers == [[0, 1, 2, 3], [5, 6, 7, 8]]
