"""The law by which rows of another system are drawn, by exact enumeration; TransferQueue is not needed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from functional_rb.scale.transfer_queue import Law

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")

BY_UID = frb.Groups(2, group_key="group", interleaved=True)


def chances(law: Law, tags: list[dict[str, Any]], groups: list[Any] | None = None) -> np.ndarray:
    """The chance of each row, read off the buffer that a draw is made from."""
    state, places = law.buffer(tags, groups)
    found = torch_backend.probabilities(state, np.arange(len(tags), dtype=np.int32)).double().numpy()
    by_row = np.zeros(len(tags))
    by_row[places] = found
    return by_row


def variation(found: Any, wanted: Any) -> float:
    return 0.5 * float(np.abs(np.asarray(found) - np.asarray(wanted)).sum())


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("priorities", [[1e6, 1.0, 1.0], [1e-3, 1e3, 0.0, 5.0], [2.0] * 70, [1.0]])
def test_rows_are_drawn_in_proportion_to_a_power_of_their_priorities(alpha, priorities):
    law = Law(frb.Prioritized(alpha=alpha, beta=1.0))
    powers = np.array([p**alpha if p > 0 else 0.0 for p in priorities])
    wanted = powers / math.fsum(powers)
    tags = [{"priority": p} for p in priorities]
    assert variation(chances(law, tags), wanted) < 1e-6
    drawn = law.draw(tags, 256, seed=3)
    np.testing.assert_allclose(drawn.probabilities, wanted[drawn.rows], rtol=1e-5)
    least = min(p for p in wanted if p > 0)
    np.testing.assert_allclose(drawn.weights, least / wanted[drawn.rows], rtol=1e-5)


def test_what_is_drawn_is_drawn_as_often_as_the_law_says():
    law, priorities = Law(frb.Prioritized(alpha=1.0)), [1.0, 2.0, 3.0, None, 4.0]
    tags = [{} if p is None else {"priority": p} for p in priorities]
    wanted = np.array([1.0, 2.0, 3.0, 4.0, 4.0]) / 14  # what is new has the largest priority
    assert variation(chances(law, tags), wanted) < 1e-6
    counts = np.bincount(law.draw(tags, 40_000, seed=1).rows, minlength=5)
    assert ((counts - 40_000 * wanted) ** 2 / (40_000 * wanted)).sum() < 18.5  # chi squared with 4, at 0.001


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, "high", True, None])
def test_a_priority_that_is_none_counts_as_new(bad):
    found = chances(Law(frb.Prioritized(alpha=1.0)), [{"priority": 3.0}, {"priority": bad}, {"priority": 1.0}])
    assert variation(found, np.array([3.0, 3.0, 1.0]) / 7) < 1e-6


def test_beta_of_a_call_overrides_the_samplers():
    law, tags = Law(frb.Prioritized(alpha=1.0, beta=1.0)), [{"priority": 1.0}, {"priority": 4.0}]
    drawn = law.draw(tags, 64, seed=0, beta=0.5)
    np.testing.assert_allclose(drawn.weights, [1.0 if k == 0 else 0.5 for k in drawn.rows], rtol=1e-6)


def test_without_replacement_no_row_comes_twice_and_too_few_are_none():
    law = Law(frb.Prioritized(alpha=1.0, replacement=False))
    tags = [{"priority": p} for p in (1.0, 1.0, 0.0, 5.0)]
    assert sorted(law.draw(tags, 3, seed=0).rows) == [0, 1, 3]
    assert law.draw(tags, 4, seed=0).rows == []
    assert law.draw([], 1, seed=0).rows == []
    assert law.draw([{"priority": 0.0}], 1, seed=0).rows == []


def test_the_first_of_a_draw_without_replacement_is_by_the_law():
    law = Law(frb.Prioritized(alpha=1.0, replacement=False))
    tags = [{"priority": p} for p in (1.0, 2.0, 5.0)]
    firsts = np.bincount([law.draw(tags, 2, seed=k).rows[0] for k in range(300)], minlength=3)
    wanted = 300 * np.array([1, 2, 5]) / 8
    assert ((firsts - wanted) ** 2 / wanted).sum() < 13.8  # chi squared with 2, at 0.001


# Of a four rows, of b three, of c and d one, and one that is not known yet.
UIDS = ["b", "a", "b", "c", "a", "a", None, "b", "d", "a"]


def test_groups_are_equally_likely_whatever_their_sizes_and_wherever_their_rows():
    law = Law(BY_UID, "uid")
    rows = [k for k, uid in enumerate(UIDS) if uid is not None]
    found = chances(law, [{} for _ in rows], [UIDS[k] for k in rows])
    wanted = [{"a": 1 / 2 / 4, "b": 1 / 2 / 3}.get(UIDS[k], 0.0) for k in rows]
    assert variation(found, wanted) < 1e-6


def test_every_way_to_draw_a_group_is_as_likely_as_any_other():
    """By enumeration of all that is drawn: which group comes first, and from which of its rows on."""
    law, tags = Law(BY_UID, "uid"), [{} if uid is None else {"uid": uid} for uid in UIDS]
    n = 700
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(n):
        drawn = law.draw(tags, 4, seed)
        assert np.allclose(drawn.probabilities, 0.5)
        first, second = tuple(drawn.rows[:2]), tuple(drawn.rows[2:])
        assert [UIDS[k] for k in drawn.rows] in (["a", "a", "b", "b"], ["b", "b", "a", "a"])
        seen[first] = seen.get(first, 0) + 1
        assert len(set(first + second)) == 4
    of_a, of_b = [1, 4, 5, 9], [0, 2, 7]
    ways = {
        pair: 1 / 2 / len(group) for group in (of_a, of_b) for pair in itertools.pairwise([*group, group[0]])
    }  # in a circle, from any of its rows on
    assert seen.keys() == ways.keys()
    assert sum((seen[way] - n * p) ** 2 / (n * p) for way, p in ways.items()) < 22.5  # chi squared with 6, at 0.001


def test_too_few_whole_groups_are_none_and_a_part_of_a_group_is_an_error():
    law, tags = Law(BY_UID, "uid"), [{} if uid is None else {"uid": uid} for uid in UIDS]
    assert law.draw(tags, 6, seed=0).rows == []
    with pytest.raises(ValueError, match="expected a multiple of per_group=2, got 3; 4 would do"):
        law.draw(tags, 3, seed=0)


def test_rows_that_are_too_old_are_never_drawn_and_told():
    law = Law(frb.Prioritized(alpha=1.0), max_staleness=2)
    tags = [{"priority": 1e6, "version": 4}, {"version": 5}, {"version": 7}, {}]
    drawn = law.draw(tags, 300, seed=0)
    assert (set(drawn.rows), drawn.stale) == ({1, 2}, [0])
    later = law.draw(tags, 300, seed=0, version=9)
    assert (set(later.rows), later.stale) == ({2}, [0, 1])
    nothing = law.draw(tags, 300, seed=0, version=10)
    assert (nothing.rows, nothing.stale) == ([], [0, 1, 2])
    everything = Law(frb.Prioritized(alpha=0.0)).draw(tags, 300, seed=0)
    assert (set(everything.rows), everything.stale) == ({0, 1, 2, 3}, [])


def test_a_group_is_given_up_with_the_first_of_its_rows():
    law = Law(BY_UID, "uid", max_staleness=1)
    tags = [{"uid": uid, "version": v} for uid, v in [("a", 1), ("a", 3), ("a", 3), ("b", 2), ("b", 3)]]
    drawn = law.draw(tags, 2, seed=0)
    assert (sorted(drawn.rows), drawn.stale) == ([3, 4], [0, 1, 2])


def test_a_version_that_is_no_number_is_an_error_that_names_the_tag():
    with pytest.raises(TypeError, match=r"tag 'version': expected an int, .* got 'new'"):
        Law(frb.Prioritized(), max_staleness=0).draw([{"version": "new"}], 1, seed=0)


def test_a_draw_follows_from_its_seed():
    law, tags = Law(frb.Prioritized()), [{"priority": float(k + 1)} for k in range(100)]
    assert law.draw(tags, 20, seed=5).rows == law.draw(tags, 20, seed=5).rows
    assert law.draw(tags, 20, seed=5).rows != law.draw(tags, 20, seed=6).rows


@pytest.mark.parametrize(
    ("sampler", "tag", "error"),
    [
        (frb.Uniform(), None, TypeError),
        (frb.Prioritized(), "uid", ValueError),
        (BY_UID, None, ValueError),
        (frb.Groups(2, "group"), "uid", ValueError),
    ],
)
def test_laws_that_cannot_be_are_refused(sampler: Any, tag: str | None, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^Law: expected frb.Groups.* or frb.Prioritized.* got "):
        Law(sampler, tag)
