"""States that go to other processes, and what is told of them there."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import functional_rb as frb
from tests.support import lives
from tests.support.members import MEMBERS


def told(library: Any, state: Any) -> Any:
    """The bits of a state, and of what a step from it sees."""
    if library.library == "jax" and isinstance(state.spec.storage, frb.Device):  # whose functions take long to compile
        return lives.state_bits(library, state), lives.bits(library, library.rb.items(state))
    given = next(lives.inputs(state.spec))
    after, seen = lives.step(library, state, given, lives.keys(library, 5))
    found = lives.state_bits(library, state), lives.bits(library, [seen, library.rb.items(after)])
    return *found, lives.state_bits(library, state)


def members(library: Any) -> Iterator[Any]:
    """A state with every sampler; of JAX in the host's memory, where nothing has to be compiled."""
    for member in MEMBERS.values():
        spec = member.spec
        if library.library == "jax":
            spec = dataclasses.replace(spec, storage=frb.Host())
        state = lives.begin(library, spec)
        for k, given in enumerate(itertools.islice(lives.inputs(spec), 2)):
            state, _ = lives.step(library, state, given, lives.keys(library, k), look=False)
        yield state
