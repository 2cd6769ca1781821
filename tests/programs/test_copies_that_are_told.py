"""Copies of large states, of which JAX's users are told once."""

from __future__ import annotations

import dataclasses

import jax
import pytest

import functional_rb as frb
import jax_backend
from jax_backend.compiling import copies
from tests.programs.consumed import (
    HANDLES,
    LIMITED,
    PRIORITIES,
    SPEC,
    batch,
    filled,
    is_gone,
    numbers,
)

rb = jax_backend


def test_of_two_alike_one_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one cannot be told: both stay, with a warning if they are large."""
    monkeypatch.setattr(copies, "_warned", set())
    expert, agent = filled(), filled()
    join = rb.jit(lambda expert, agent: rb.add(agent, rb.items(expert)))
    after = join(expert, agent)
    assert numbers(expert) == numbers(agent) == [0, 1, 2, 0, 0, 0, 0, 0]
    assert int(rb.size(after)) == 8
    monkeypatch.setattr(copies, "LARGE", 100)
    both = rb.jit(lambda expert, agent: rb.add(agent, rb.items(expert)))
    with pytest.warns(
        frb.errors.LargeCopyWarning, match=r"is given 2 states of one spec and returns 1.*return them all"
    ) as told:
        both(expert, agent)
    assert told[0].filename == __file__
    pair = rb.jit(lambda expert, agent: (expert, rb.add(agent, rb.items(expert))))
    pair(expert, agent)
    assert is_gone((expert, agent))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been told yet, and what is large is 80 bytes: of 96 of rows, and 64 of the tree."""
    monkeypatch.setattr(copies, "_warned", set())
    monkeypatch.setattr(copies, "LARGE", 80)


def test_a_large_copy_is_told_of_once(large: None) -> None:
    state = rb.init(SPEC)
    with pytest.warns(
        frb.errors.LargeCopyWarning, match=r"rb\.add: copied 0 MB.*state = rb\.add_\(state, \.\.\.\)"
    ) as told:
        state = rb.add(state, batch(0))
    assert (len(told), told[0].filename) == (1, __file__)
    state = rb.add(state, batch(3))  # a second time it would be an error
    new = {"n": HANDLES + 7}
    with pytest.warns(frb.errors.LargeCopyWarning, match=r"rb\.update: copied.*rb\.update_"):
        state = rb.update(state, HANDLES, PRIORITIES, new)
    state = rb.update(state, HANDLES, PRIORITIES, new)
    assert int(rb.size(state)) == 6
    limited = rb.init(LIMITED, items=batch(0))
    copies.LARGE = 30
    with pytest.warns(frb.errors.LargeCopyWarning, match=r"rb\.sample: copied.*rb\.sample_"):
        rb.sample(limited, rb.key(0), 2)


def test_what_copies_little_or_must_is_not_told_of(large: None) -> None:
    state = rb.init(SPEC, items=batch(0))  # nobody else has the state that is filled
    state = rb.update(state, HANDLES, PRIORITIES)  # the tree alone
    rb.sample(state, rb.key(0), 2)
    jax.jit(rb.add)(state, batch(3))
    jax.vmap(rb.clear)(jax.tree.map(lambda x: x[None], state))
    state = rb.update_(rb.sample_(rb.add_(state, batch(3)), rb.key(0), 2)[0], HANDLES, PRIORITIES, {"n": HANDLES + 7})
    rb.add(rb.init(dataclasses.replace(SPEC, storage=frb.Host())), batch(0))
    assert not copies._warned


def test_the_limit_of_the_warning() -> None:
    assert copies.LARGE == 16 * 2**20
    assert issubclass(frb.errors.LargeCopyWarning, UserWarning)
