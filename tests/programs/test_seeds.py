"""Training from many seeds at once: `vmap` over a whole program gives each seed what it gets by itself."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import functional_rb as frb
from tests.support import training
from tests.support.effort import effort
from tests.support.members import MEMBERS, USUAL, Member

SEEDS = 3
# The structures of a deck, of a tree and of episodes: another setting is batched by the same rules.
SOME = ("without replacement, of a reservoir", "slices, prioritized")
TRAINED = {name: MEMBERS[name] for name in effort(SOME, USUAL)}


@pytest.mark.parametrize("member", TRAINED.values(), ids=TRAINED)
def test_each_seed_gets_what_it_gets_by_itself(member: Member) -> None:
    spec = member.spec
    seeds = [training.given(spec, seed) for seed in range(SEEDS)]
    begun = training.begin(spec)
    program = training.jit(jax.vmap(training.train, (None, 0)))
    # On the host, where a seed's part of an array is no program.
    together = jax.device_get(program(begun, jax.tree.map(lambda *xs: np.stack(xs), *seeds)))
    alone = training.jit(training.train)
    for k, given in enumerate(seeds):
        training.assert_same_bits(jax.tree.map(lambda x, k=k: x[k], together), alone(begun, given))
    # In the first step not all of them learn, or this would say little.
    learned = np.asarray(together[1].indices).reshape(SEEDS, training.STEPS, -1).any(-1)
    assert learned.any(1).all()
    if not isinstance(spec.writer, frb.Immutable):
        assert learned[0].tolist() != learned[1].tolist()
