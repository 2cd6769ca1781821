"""What is asked of a sharded buffer, checked: batches in equal shares, and where a counter of it is."""

from __future__ import annotations

from functional_rb.base.arrays import ArrayLike
from functional_rb.buffer import api, checks
from functional_rb.buffer.backend import Backend
from functional_rb.buffer.state import State
from functional_rb.core import counters
from functional_rb.sharding import deal, local
from functional_rb.sharding.deal import Dealing

DRAWS = ("global", "local")


def check_draw(draw: object, function: str) -> None:
    """Refuse another word for where items are drawn."""
    if draw not in DRAWS:
        raise ValueError(f"{function}: expected draw as one of {DRAWS}, got {draw!r}")


def check_sample(
    backend: Backend, state: State, batch_size: object, beta: ArrayLike, draw: object, function: str
) -> tuple[int, object]:
    """The checked batch size and beta; a local draw has weights for samplers that have none otherwise."""
    check_draw(draw, function)
    sampler = state.spec.sampler
    weighted = draw == "local" and beta is not None and not (sampler.has_priorities or sampler.takes_out)
    size, checked_beta = api.check_sample(backend, state, batch_size, None if weighted else beta, function)
    if not weighted:
        return size, checked_beta
    if not isinstance(beta, int | float):
        beta = backend.as_vector(beta, "beta")
    checks.check_exponent(beta, backend.value_of)
    return size, beta


def check_shares(dealing: Dealing, batch: int, draw: str) -> None:
    """Refuse a batch that does not go to the shards in equal shares."""
    spec, shards = dealing.spec, dealing.shards
    if draw == "local":
        local.check(spec)
        local.check_dealing(dealing)
    deal.check_batch(batch, shards)
    draws = spec.sampler.leading_shape(batch)[0] // (spec.sampler.steps_in_a_row or 1)
    deal.check_batch(draws, shards, "batch_size, as slices,")


def place_in_index(dealing: Dealing, place: int) -> int:
    """Where the index has a counter that the whole buffer has at a place."""
    for name, _ in dealing.spec.plan.counter_names:
        if counters.place(dealing.spec.plan, name) == place:
            in_index = counters.place(dealing.index.plan, name)
            assert in_index is not None
            return in_index
    return place
