"""Samplers as TransferQueue's controller calls them; where it is not installed, on a stand-in for its base class."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import functional_rb as frb

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")

MODULE = "functional_rb.scale.transfer_queue.samplers"
QUEUE = "functional_rb.scale.transfer_queue.queue"


class StandIn:
    """What TransferQueue 0.1.11's base class of samplers keeps, and what a checkpoint has of it."""

    def __init__(self) -> None:
        self._states: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.sample(*args, **kwargs)  # type: ignore[attr-defined]  # a stand-in

    def save_checkpoint(self) -> dict[str, Any]:
        return {"_states": self._states}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        self._states = state["_states"]


class Partition:
    """What a controller's partition has for samplers."""

    partition_id = "train"

    def __init__(self, tags: dict[int, dict[str, Any]]) -> None:
        self.custom_meta = tags

    def set_custom_meta(self, tags: dict[int, dict[str, Any]]) -> None:
        self.custom_meta.update(tags)


@pytest.fixture(scope="module")
def samplers() -> Iterator[Any]:
    if importlib.util.find_spec("transfer_queue") is not None:
        yield importlib.import_module(MODULE)
        return
    package, inner = types.ModuleType("transfer_queue"), types.ModuleType("transfer_queue.sampler")
    inner.BaseSampler = StandIn  # type: ignore[attr-defined]  # a stand-in
    sys.modules |= {"transfer_queue": package, "transfer_queue.sampler": inner}
    try:
        yield importlib.import_module(MODULE)
    finally:
        for name in ("transfer_queue", "transfer_queue.sampler", MODULE, QUEUE):
            sys.modules.pop(name, None)


def replies(n: int, each: int, first: int = 10) -> Partition:
    """Rows of n prompts that came interleaved, prompt by prompt one version later."""
    return Partition({first + k: {"uid": f"prompt {k % n}", "version": k % n} for k in range(n * each)})


def test_groups_come_whole_and_are_consumed(samplers):
    sampler, partition = samplers.GroupSampler(3), replies(4, 3)
    ready, seen = sorted(partition.custom_meta), []
    for _ in range(2):
        rows, done = sampler(ready, 6, partition=partition)
        assert rows == done
        uids = [partition.custom_meta[k]["uid"] for k in rows]
        assert len({*uids[:3]}) == len({*uids[3:]}) == 1
        seen += uids
        ready = [k for k in ready if k not in done]
    assert sorted(seen) == sorted(f"prompt {k}" for k in range(4) for _ in range(3))
    assert sampler(ready, 3, partition=partition) == ([], [])


def test_a_draw_tells_chances_and_weights_in_tags_and_leaves_the_others(samplers):
    sampler = samplers.PrioritizedSampler(alpha=1.0, beta=1.0, seed=2)
    partition = Partition({3: {"priority": 1.0, "mine": "x"}, 5: {"priority": 3.0}})
    rows, done = sampler([3, 5], 64, partition=partition)
    assert set(rows) == {3, 5}
    assert done == []
    assert partition.custom_meta[3] == {"priority": 1.0, "mine": "x", "frb_probability": 0.25, "frb_weight": 1.0}
    assert partition.custom_meta[5]["frb_weight"] == pytest.approx(1 / 3)
    sampler([3, 5], 64, partition=partition, beta=0.5)
    assert partition.custom_meta[5]["frb_weight"] == pytest.approx(3**-0.5)


def test_rows_that_are_too_old_are_consumed_unseen(samplers):
    partition = Partition({k: {"version": k} for k in range(6)})
    sampler = samplers.PrioritizedSampler(max_staleness=2)
    rows, done = sampler(list(range(6)), 50, partition=partition)
    assert set(rows) == {3, 4, 5}
    assert done == [0, 1, 2]
    rows, done = sampler([3, 4, 5], 50, partition=partition, version=7)
    assert set(rows) == {5}
    assert done == [3, 4]


def test_ranks_that_ask_for_one_batch_get_one_batch(samplers):
    sampler, partition = samplers.GroupSampler(2), replies(20, 2)
    ready = sorted(partition.custom_meta)
    asked = {"partition": partition, "task_name": "t", "partition_id": "train"}
    first = sampler(ready, 4, dp_rank=0, batch_index=0, **asked)
    left = [k for k in ready if k not in first[1]]
    told = {k: partition.custom_meta[k]["frb_probability"] for k in first[0]}
    other = sampler(left, 4, dp_rank=0, batch_index=1, **asked)
    assert not set(other[0]) & set(first[0])
    for k in first[0]:
        del partition.custom_meta[k]["frb_probability"]
    assert sampler(left, 4, dp_rank=0, batch_index=0, **asked) == first
    assert told == {k: partition.custom_meta[k]["frb_probability"] for k in first[0]}
    if hasattr(sampler, "has_cached_result"):
        assert sampler.has_cached_result("train", "t", {"dp_rank": 0, "batch_index": 1})
        sampler.clear_cache("train")
        assert not sampler.has_cached_result("train", "t", {"dp_rank": 0, "batch_index": 1})


def test_a_sampler_goes_on_from_its_checkpoint(samplers):
    partition = Partition({k: {"priority": 1.0 + k} for k in range(50)})
    sampler, other = (samplers.PrioritizedSampler(seed=2**63 - 1) for _ in range(2))
    ready = list(range(50))
    sampler(ready, 20, partition=partition)
    other.load_checkpoint(pickle.loads(pickle.dumps(sampler.save_checkpoint())))
    assert sampler(ready, 20, partition=partition) == other(ready, 20, partition=partition)
    assert sampler(ready, 20, partition=partition) != samplers.PrioritizedSampler(seed=2**63 - 1)(
        ready, 20, partition=partition
    )


def test_settings_that_cannot_be_are_refused(samplers):
    with pytest.raises(ValueError, match="expected replacement=False where rows are consumed"):
        samplers.PrioritizedSampler(consume=True, replacement=True)
    assert samplers.PrioritizedSampler(consume=True).law.sampler == frb.Prioritized(0.6, 0.4, replacement=False)
    with pytest.raises(ValueError, match="per_group as a positive int"):
        samplers.GroupSampler(0)
    with pytest.raises(ValueError, match="max_staleness"):
        samplers.GroupSampler(2, max_staleness=-1)
    with pytest.raises(TypeError, match="GroupSampler: expected the partition, whose custom_meta has the tags"):
        samplers.GroupSampler(2)([0, 1], 2)


def test_what_is_consumed_with_priorities_comes_once(samplers):
    partition = Partition({k: {"priority": 1.0 + k} for k in range(9)})
    sampler, ready, seen = samplers.PrioritizedSampler(consume=True), list(range(9)), list[int]()
    for _ in range(3):
        rows, done = sampler(ready, 3, partition=partition)
        assert rows == done
        seen += rows
        ready = [k for k in ready if k not in done]
    assert sorted(seen) == list(range(9))
    assert np.isfinite([tag["frb_weight"] for tag in partition.custom_meta.values()]).all()


def test_rows_have_their_tags_before_they_are_ready(samplers):
    """As TransferQueue's own `put` does not have it: between its data and its tags a row could be drawn."""
    pytest.importorskip("tensordict")
    done: list[str] = []

    class Meta:
        def update_custom_meta(self, tags: list[dict[str, Any]]) -> None:
            done.append(f"tags {tags}")

    class Client:
        def get_meta(self, **asked: Any) -> Meta:
            assert asked["mode"] == "insert"
            assert asked["batch_size"] == 2
            return Meta()

        def set_custom_meta(self, meta: Meta) -> None:
            done.append("told")

        def put(self, data: Any, metadata: Meta) -> None:
            done.append("data")

    client = Client()
    queue = importlib.import_module(QUEUE).Queue(types.SimpleNamespace(get_client=lambda: client))
    queue.put({"x": np.zeros((2, 3))}, {"uid": ["a", "b"], "version": np.int64(3)})
    assert done == ["tags [{'uid': 'a', 'version': 3}, {'uid': 'b', 'version': 3}]", "told", "data"]
