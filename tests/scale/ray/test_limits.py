"""The rate limit: what it lets through, by a plain count, and that who is refused waits and is told why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import functional_rb as frb
from tests.scale.ray.faulty_shards import SPEC, client_of, items, limiter_of, transport_at

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")


def client_with(limit: frb.ray.RateLimit, timeout: float = 2.0, spec: frb.BufferSpec = SPEC) -> frb.ray.Client:
    transport = transport_at(None, spec=spec, limiter=limiter_of(limit))
    return client_of(transport, spec, backend=None, limited=True, timeout=timeout)


@given(
    ratio=st.sampled_from([0.25, 1.0, 3.0]),
    least=st.integers(1, 40),
    room=st.integers(10, 60),  # less than the largest add counts, but not than half of it
    asked=st.lists(st.tuples(st.sampled_from(["insert", "sample"]), st.integers(1, 6)), max_size=80),
)
@example(3.0, 10, 10, [("insert", 5), ("insert", 4), ("insert", 6)])  # the last goes over min_size, and out of range
def test_the_difference_stays_in_its_range_and_who_can_go_on_may(ratio, least, room, asked):
    limiter = limiter_of(frb.ray.RateLimit(ratio, least, room))
    inserted = sampled = 0
    for ticket, (kind, n) in enumerate(asked, 1):
        answer = limiter.ask("a", ticket, kind, n)
        if kind == "insert":
            after = sampled - ratio * (inserted + n - least)
            may = inserted < least or after >= -room
        else:
            after = sampled + n - ratio * (inserted - least)
            may = inserted >= least and after <= room
        assert answer.granted == may
        if may:
            inserted, sampled = (inserted + n, sampled) if kind == "insert" else (inserted, sampled + n)
        assert (limiter.inserted, limiter.sampled) == (inserted, sampled)
        # Somebody can always go on.
        free = [limiter._judge(other, 1).granted for other in ("insert", "sample")]
        assert any(free)


def test_a_question_that_is_asked_twice_counts_once():
    limiter = limiter_of(frb.ray.RateLimit(min_size=1))
    assert limiter.ask("a", 1, "insert", 5).granted
    assert limiter.ask("a", 1, "insert", 5).granted
    assert limiter.ask("b", 1, "insert", 2).granted
    assert (limiter.inserted, limiter.sampled) == (7, 0)


def test_nothing_is_drawn_before_there_are_enough():
    client = client_with(frb.ray.RateLimit(min_size=10))
    client.add(items(range(9))).result()
    with pytest.raises(TimeoutError, match="sample: waited for the rate limit: 9 items were added and 0 drawn; "
                                           "nothing is drawn before 10 items are added"):  # fmt: skip
        client.sample(0, 4)
    client.add(items([9])).result()
    assert len(client.sample(0, 4).indices) == 4


def test_adding_waits_for_drawing_and_the_other_way_round():
    client = client_with(frb.ray.RateLimit(samples_per_insert=2.0, min_size=1, error_buffer=20))
    steps = []

    def add_for_ever() -> None:
        for _ in range(100):
            client.add(items([0.0] * 4))
            steps.append(4)

    def draw_for_ever() -> None:
        for seed in range(100):
            client.sample(seed, 8)
            steps.append(8)

    told = r"items were added and 0 drawn; with samples_per_insert=2.0 the next are added after another \d+ are drawn"
    with pytest.raises(TimeoutError, match=rf"add: waited for the rate limit: \d+ {told}: is a learner running\?"):
        add_for_ever()
    added = sum(steps)
    assert 2.0 * added - 2.0 <= 20 < 2.0 * (added + 4) - 2.0
    steps.clear()
    with pytest.raises(TimeoutError, match=r"the next are drawn after another .* are added: are actors running"):
        draw_for_ever()
    drawn = sum(steps)
    assert drawn - 2.0 * (added - 1) <= 20 < drawn + 8 - 2.0 * (added - 1)
    client.flush()
    client.add(items([1.0] * 4)).result()


def test_batches_that_never_fit_are_refused_at_once():
    client = client_with(frb.ray.RateLimit(samples_per_insert=2.0, error_buffer=4.0))
    with pytest.raises(ValueError, match=r"RateLimit.error_buffer: expected at least 10 for 10 items in one add"):
        client.add(items([0.0] * 10))
    client.add(items([0.0])).result()
    with pytest.raises(ValueError, match=r"RateLimit.error_buffer: expected at least 50 for 100 items in one sample"):
        client.sample(0, 100)


def test_prefetching_stops_at_the_limit_and_takes_nothing_that_it_does_not_use():
    client = client_with(frb.ray.RateLimit(samples_per_insert=1.0, error_buffer=12.0))
    client.add(items(range(12))).result()
    found = []
    with pytest.raises(TimeoutError, match="the next are drawn after"):
        _take_all(client.iterate(0, 4, prefetch=100), found)
    given_out = 4 * len(found)
    limiter = client._watch.transport.limiter
    assert limiter.sampled == given_out == math.floor((12 - 1 + 12) / 4) * 4
    assert client.counts().sampled == given_out


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Queue()])
def test_permits_of_an_iterator_that_was_left_early_are_given_back(sampler):
    client = client_with(frb.ray.RateLimit(samples_per_insert=1.0, error_buffer=12.0), spec=_with(sampler))
    client.add(items(range(12))).result()
    client.size()
    limiter = client._watch.transport.limiter
    for batches in range(1, 4):
        for _ in client.iterate(0, 2, prefetch=100):
            break
        assert limiter.sampled > 2 * batches, "some were asked for ahead"
        client.sample(0, 1)
        assert limiter.sampled == 3 * batches


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Queue()])
def test_a_permit_of_a_draw_that_failed_is_given_back(sampler):
    client = client_with(frb.ray.RateLimit(samples_per_insert=1.0, error_buffer=12.0), spec=_with(sampler))
    client.add(items(range(12))).result()
    client.size()

    def fails(*args: Any) -> Any:
        raise RuntimeError("the shard has failed")

    for shard in client._watch.transport.alive.values():
        shard.sample = fails
    with pytest.raises(RuntimeError, match="the shard has failed"):
        client.sample(0, 2)
    assert client._watch.transport.limiter.sampled == 0


def test_a_permit_to_draw_from_shards_that_are_empty_is_given_back():
    client = client_with(frb.ray.RateLimit(samples_per_insert=1.0, error_buffer=12.0))
    client.add(items(range(8))).result()
    client.clear()
    client.flush()
    assert not client.iterate(0, 4, prefetch=1)._ask(wait=False)
    assert client._watch.transport.limiter.sampled == 0


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Queue()])
def test_a_permit_of_a_draw_that_could_not_begin_is_given_back_at_once(sampler, monkeypatch):
    client = client_with(frb.ray.RateLimit(samples_per_insert=1.0, error_buffer=12.0), 0.2, _with(sampler))
    client.add(items(range(8))).result()

    def fails(*args: Any) -> Any:
        raise RuntimeError("a shard has failed")

    monkeypatch.setattr(client._watch, "ask_all", fails)
    with pytest.raises(RuntimeError, match="a shard has failed"):
        client.sample(0, 2, exact=True)
    assert client._watch.transport.limiter.sampled == 0, "others wait for it"
    monkeypatch.undo()
    client.clear()
    client.flush()
    with pytest.raises(TimeoutError, match=r"waited 0\.2 s for"):
        client.sample(0, 2)
    assert client._watch.transport.limiter.sampled == 0


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"samples_per_insert": 0.0}, ValueError, "samples_per_insert: expected a positive number or None, got 0.0"),
        ({"samples_per_insert": float("nan")}, ValueError, "samples_per_insert: expected a positive number"),
        ({"min_size": 0}, ValueError, "min_size"),
        ({"error_buffer": 3.0}, ValueError, "error_buffer: expected None without samples_per_insert"),
        ({"samples_per_insert": 8.0, "error_buffer": 3.0}, ValueError, "error_buffer: expected at least 8.0"),
    ],
)
def test_limits_that_are_none_are_refused(settings, error, told):
    with pytest.raises(error, match=told):
        frb.ray.RateLimit(**settings)


def test_what_is_no_limit_is_refused():
    with pytest.raises(TypeError, match=r"start: limit: expected a frb.ray.RateLimit or None, got 8"):
        frb.ray.start(SPEC, limit=8, local=True)


def test_masked_items_do_not_count_as_added():
    client = client_with(frb.ray.RateLimit(min_size=3))
    client.add(items(range(5)), mask=np.array([True, False, True, False, False])).result()
    with pytest.raises(TimeoutError, match="2 items were added"):
        client.sample(0, 1)


def _with(sampler: Any) -> frb.BufferSpec:
    return frb.BufferSpec(SPEC.item, SPEC.capacity, sampler)


def _take_all(batches: Any, found: list[Any]) -> None:
    for sample in batches:
        found.append(sample)  # noqa: PERF402 - what came before the error counts
