"""Ctrl-C at any line of the library's: a state is whole afterwards, or consumed, and every lock is free."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb.ops import part_kernels
from tests.support import backends, interrupts, lives
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.members import BATCH, MEMBERS

VARIANTS = ("torch", "torch-core", "jax-host", "jax-host-core", "jax")
# So many lines of each function of each member.
LINES = effort(5, None)
# Those that all is done for by a kernel, those that the core does it for, and two of which kernels do a part.
NAMES = effort(
    ("prioritized", "prioritized, of the best", "without replacement", "slices, prioritized"), tuple(MEMBERS)
)
CASES = [
    (variant, name) for variant in VARIANTS for name in NAMES if variant != "jax" or name in effort(NAMES[1:2], NAMES)
]
Call = Callable[[Backend, Any], Any]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Another thread, which finds a lock taken that this one has not given back."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with backends.make(request.param) as made:
        yield made


def life(backend: Backend, spec: frb.BufferSpec) -> tuple[Any, Any]:
    """A state that something can be drawn from, and an older one."""
    if backend.name in backends.HOST_VARIANTS:
        spec = dataclasses.replace(spec, storage=frb.Host())
    state = older = lives.begin(backend, spec)
    given = [*lives.inputs(spec)]
    for k in range(3):
        older, (state, _) = state, lives.step(backend, state, given[k], lives.keys(backend, k), look=False)
    if not isinstance(spec.writer, frb.Immutable):
        state = backend.add(state, given[3].items, key=lives.keys(backend, 3)[0])
    return state, older


def calls(backend: Backend, state: Any) -> dict[str, Call]:
    """Every function that gives a state another content, by name; each gives that state, and what else it gives."""
    given, keys = [*lives.inputs(state.spec)][4], lives.keys(backend, 4)
    handles = backend.array(np.arange(1, 2 * BATCH, dtype=np.int32))
    numbers, notes = (backend.array(np.resize(x, handles.shape)) for x in (given.priorities, given.notes))
    priorities, items = numbers if state.spec.sampler.has_priorities else None, {"note": notes}
    wanted: dict[str, Call] = {
        "add": lambda b, s: (_function(b, "add")(s, given.items, given.mask, key=keys[0]), None),
        "sample": lambda b, s: _function(b, "sample")(s, keys[1], BATCH),
        "update": lambda b, s: (_function(b, "update")(s, handles, priorities, items), None),
        "clear": lambda b, s: (_function(b, "clear")(s), None),
        "with_spec": lambda b, s: (b.rb.with_spec(s, dataclasses.replace(s.spec, capacity=s.spec.capacity * 2)), None),
        "get": lambda b, s: (s, b.rb.get(s, handles)),
        "size": lambda b, s: (s, (b.rb.size(s), b.rb.can_sample(s), b.rb.is_live(s, handles))),
    }
    if priorities is not None:
        wanted["priorities alone"] = lambda b, s: (_function(b, "update")(s, handles, priorities), None)
    if isinstance(state.spec.writer, frb.Immutable):
        wanted = {name: call for name, call in wanted.items() if name in ("sample", "get", "size")}
    if isinstance(state.spec.writer, frb.Reservoir):  # which has one capacity for ever
        del wanted["with_spec"]
    if backend.consumes:
        wanted = {name: call for name, call in wanted.items() if name not in ("get", "size", "with_spec")}
    return wanted


def _function(backend: Backend, name: str) -> Callable[..., Any]:
    return getattr(backend.rb, name + "_" if backend.consumes else name)


def bits(backend: Backend, state: Any) -> Any:
    """What is in a state, of which nothing is given out."""
    return lives.state_bits(backend, copy.deepcopy(state))


def told(backend: Backend, made: tuple[Any, Any]) -> Any:
    state, more = made
    return bits(backend, state), lives.bits(backend, more)


def lock_of(state: Any) -> Any:
    """The lock of what is not JAX's own. A copy of the state would not do: what is in place went to other memory."""
    version = getattr(state, "_version", None)
    return None if version is None else version.lock


def check_at_rest(lock: Any, elsewhere: ThreadPoolExecutor) -> None:
    """It is not held, no kernels are in force, and torch's modes are as they were."""
    assert not part_kernels.in_force()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    if lock is not None:
        assert elsewhere.submit(lock.acquire, timeout=5).result()
        elsewhere.submit(lock.release).result()


@pytest.mark.parametrize(("variant", "name"), CASES, indirect=["variant"])
def test_functions_of_values_leave_every_state_as_it_was(
    variant: Backend, name: str, elsewhere: ThreadPoolExecutor
) -> None:
    state, older = life(variant, MEMBERS[name].spec)
    for seed, (function, call) in enumerate(calls(variant, state).items()):
        before, long_before = bits(variant, state), bits(variant, older)
        expected = told(variant, call(variant, state))
        places = interrupts.lines(call, variant, state)
        assert variant.name == "jax" or len(places) > 3  # so few where the version chain does all of it
        for line in interrupts.chosen(places, LINES, seed + len(name)):
            interrupts.interrupted(line, call, variant, state)
            check_at_rest(lock_of(state), elsewhere)
            assert bits(variant, state) == before, f"{function}, line {line}"
            assert told(variant, call(variant, state)) == expected, f"{function}, line {line}"
        assert bits(variant, older) == long_before, function


@pytest.mark.parametrize(("variant", "name"), CASES, indirect=["variant"])
def test_functions_in_place_consume_a_state_or_leave_it(
    variant: Backend, name: str, elsewhere: ThreadPoolExecutor
) -> None:
    backend = dataclasses.replace(variant, name=f"{variant.name}-inplace")
    base, _ = life(variant, MEMBERS[name].spec)
    before, consumed = bits(variant, base), 0
    for seed, (function, call) in enumerate(calls(backend, base).items()):
        expected = told(variant, call(backend, copy.deepcopy(base)))
        whole = copy.deepcopy(base)
        places = interrupts.lines(call, backend, whole)
        # All is written by then, and the old name must not be readable any more.
        last = [k for k, (file, _) in enumerate(places) if file.endswith("versions/engine.py")][-5:]
        for line in sorted({*last, *interrupts.chosen(places, LINES, seed + len(name))}):
            state = copy.deepcopy(base)
            lock = lock_of(state)
            interrupts.interrupted(line, call, backend, state)
            check_at_rest(lock, elsewhere)
            try:
                state.check_alive()
            except RuntimeError:
                consumed += 1
                continue
            assert bits(variant, state) == before, f"{function}, line {line}"
            assert told(variant, call(backend, state)) == expected, f"{function}, line {line}"
    assert consumed or variant.name == "jax"
