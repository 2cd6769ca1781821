"""Copies of states of more than 16 MiB: JAX's users are told once of each function, at their own line."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import jax

import functional_rb as frb
import jax_backend as rb
from tests.programs.consumed import HANDLES, LIMITED, PRIORITIES, SPEC, batch, is_gone

# Of 18 MB of rows, and a tree that is less than 16 MiB.
LARGE = dataclasses.replace(SPEC, capacity=1_500_000)
NUMBER = {"n": frb.Unbounded((), "int32")}


@contextmanager
def told(message: str = "") -> Iterator[None]:
    """That one warning with this in it comes of what is done, or none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert len(caught) == bool(message), [str(each.message) for each in caught]
    for each in caught:
        assert issubclass(each.category, frb.errors.LargeCopyWarning)
        assert re.search(message, str(each.message)), each.message
        assert each.filename == __file__


new = {"n": HANDLES + 7}
with told():  # of what copies little, or must
    state = rb.init(LARGE, items=batch(0))  # nobody else has the state that is filled
    state = rb.update(state, HANDLES, PRIORITIES)  # the tree alone
    rb.sample(state, rb.key(0), 2)
    jax.jit(rb.add)(state, batch(3))
    jax.vmap(rb.clear)(jax.tree.map(lambda x: x[None], state))
    state = rb.update_(rb.sample_(rb.add_(state, batch(3)), rb.key(0), 2)[0], HANDLES, PRIORITIES, new)
    rb.add(rb.init(dataclasses.replace(LARGE, storage=frb.Host())), batch(0))
    rb.add(rb.init(frb.BufferSpec(NUMBER, 2**22)), new)  # 16 MiB

with told(r"rb\.add: copied 25 MB.*state = rb\.add_\(state, \.\.\.\)"):
    state = rb.add(rb.init(LARGE), batch(0))
with told():
    state = rb.add(state, batch(3))
with told(r"rb\.update: copied.*rb\.update_"):
    state = rb.update(state, HANDLES, PRIORITIES, new)
with told():
    state = rb.update(state, HANDLES, PRIORITIES, new)
assert int(rb.size(state)) == 6
limited = rb.init(dataclasses.replace(LIMITED, item=NUMBER, capacity=2**22), items=new)
with told(r"rb\.sample: copied.*rb\.sample_"):
    rb.sample(limited, rb.key(0), 2)

# Of two alike one comes back, which cannot be told: both stay, with a warning if they are large.
for spec, message in ((SPEC, ""), (LARGE, r"is given 2 states of one spec and returns 1.*return them all")):
    expert, agent = (rb.init(spec, items=batch(0)) for _ in range(2))
    with told(message):
        joined = rb.jit(lambda expert, agent: rb.add(agent, rb.get(expert, HANDLES)))(expert, agent)
    assert rb.get(expert, HANDLES)["n"].tolist() == rb.get(agent, HANDLES)["n"].tolist() == [0, 1, 2]
    assert int(rb.size(joined)) == 6
    rb.jit(lambda expert, agent: (expert, rb.add(agent, rb.get(expert, HANDLES))))(expert, agent)
    assert is_gone((expert, agent))
