"""Items of a class of the user's, whose code the version chain comes to amid a call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.agreement.chain_machine import CHAINS
from tests.support import chain_programs as programs
from tests.support.backends import needs_native

pytestmark = needs_native


class Pair(NamedTuple):
    x: Any
    y: Any


class Asking(Pair):
    """Does something when the next one is made."""

    work: ClassVar[Callable[[], Any] | None] = None

    def __new__(cls, x: Any, y: Any) -> Asking:
        work, cls.work = cls.work, None
        if work is not None:
            work()
        return super().__new__(cls, x, y)


@pytest.mark.parametrize("way", CHAINS)
def test_a_sample_that_is_made_may_wait_for_a_thread_that_writes_to_the_state(way: str) -> None:
    chain = programs.Noting(CHAINS[way])
    numbers, newer = torch.arange(4.0), Asking(torch.ones(2), torch.ones(2))
    spec = frb.BufferSpec(Asking(frb.Unbounded(()), frb.Unbounded(())), 4)
    state = rb.add(rb.init(spec), Asking(numbers, -numbers))
    found: list[Any] = []
    with ThreadPoolExecutor(1) as pool, programs.using(chain):
        Asking.work = lambda: found.append(pool.submit(rb.add, state, newer).result(timeout=30))
        _, sample = rb.sample(state, rb.key(0), 3)
    assert chain.calls == {"sample": 1, "add": 1}
    assert torch.equal(sample.items.x, sample.indices.float())
    assert rb.items(found[0]).x.tolist() == [1, 1, 2, 3]
