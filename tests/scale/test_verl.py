"""The interface of verl's replay buffer, on a queue in this process; also against verl's source, where it is there."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from functional_rb.scale.verl import ReplayBuffer

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")

# What verl's trainers give a sampler of one's own, by name, as read in verl 0.9.1 (verl/trainer/ppo/v1).
INTERFACE = {
    "__init__": [
        "trainer_mode", "trainer_config", "max_off_policy_threshold", "max_off_policy_strategy", "sampler_kwargs",
        "poll_interval", "refill_fn",
    ],
    "sample": ["global_steps", "partition_id", "batch_size"],
    "get_sampleable_count": ["global_steps", "partition_id"],
    "wait_for_sampleable": ["global_steps", "partition_id", "target_count"],
}  # fmt: skip


class Meta(NamedTuple):
    """Has what TransferQueue's `KVBatchMeta` has."""

    partition_id: str
    keys: list[str]
    tags: list[dict[str, Any]]


class Queue:
    """Has what TransferQueue's interface by keys has."""

    KVBatchMeta = Meta

    def __init__(self) -> None:
        self.held: dict[str, dict[str, dict[str, Any]]] = {}

    def kv_list(self, partition_id: str | None = None) -> Any:
        return {name: dict(keys) for name, keys in self.held.items()}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.held[partition_id][key]

    def prompt(
        self, uid: str, steps: int, status: str = "finished", n: int = 2, part: str = "train", **tag: Any
    ) -> None:
        held = self.held.setdefault(part, {})
        held[uid] = {"is_prompt": True, "status": status, "global_steps": steps, **tag}
        for k in range(n):
            held[f"{uid}_{k}_0"] = {"session": k}


def made(queue: Queue, mode: str = "separate_async", threshold: int | None = None, **more: Any) -> ReplayBuffer:
    strategy, refill = more.pop("strategy", "drop"), more.pop("refill_fn", None)
    return ReplayBuffer(mode, {}, threshold, strategy, more, poll_interval=0.0, refill_fn=refill, queue=queue)


def uids(meta: Meta) -> list[str]:
    return [key.split("_")[0] for key in meta.keys]


@pytest.mark.parametrize("method", INTERFACE)
def test_it_takes_what_trainers_give(method):
    own = inspect.signature(getattr(ReplayBuffer, method))
    own.bind(None, **dict.fromkeys(INTERFACE[method]))
    positional = [name for name, one in own.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == ["self", *INTERFACE[method]]


def test_the_interface_is_still_that_of_verl():
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        pytest.skip("verl is not installed: pip install verl")
    source = Path(found.origin).parent / "trainer" / "ppo" / "v1" / "replay_buffer.py"
    classes = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)]
    methods = {
        node.name: [arg.arg for arg in node.args.args][1:]
        for one in classes
        if one.name in ("ReplayBuffer", "ReplayBufferAsync")
        for node in one.body
        if isinstance(node, ast.FunctionDef)
    }
    for name, arguments in INTERFACE.items():
        assert methods[name][: len(arguments)] == arguments, name


def test_prompts_come_whole_once_and_leave_the_queue():
    queue = Queue()
    for k in range(6):
        queue.prompt(f"p{k}", 1, n=2 + k % 2)
    queue.prompt("late", 1, "running", n=1)
    buffer, seen = made(queue), []
    assert buffer.get_sampleable_count(1, "train") == 6
    for _ in range(3):
        meta, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
        assert metrics == {}
        assert meta.partition_id == "train"
        assert meta.tags[0]["session"] == 0
        names = uids(meta)
        assert names == sorted(names, key=names.index), "a prompt's trajectories lie apart"
        seen += list(dict.fromkeys(names))
        for uid in set(names):
            assert names.count(uid) == 2 + int(uid[1]) % 2
            assert uid not in queue.held["train"]
    assert sorted(seen) == [f"p{k}" for k in range(6)]
    assert "late" in queue.held["train"]


def test_prompts_are_drawn_by_their_priorities():
    firsts = []
    for seed in range(300):
        queue = Queue()
        for uid, priority in (("a", 1.0), ("b", 2.0), ("c", 5.0)):
            queue.prompt(uid, 1, n=1, priority=priority)
        meta, _ = made(queue, alpha=1.0, seed=seed).sample(1, "train", 2)
        firsts.append("abc".index(uids(meta)[0]))
        assert {0 < tag["frb_probability"] <= 1 for tag in meta.tags} == {True}
    wanted = 300 * np.array([1, 2, 5]) / 8
    counts = np.bincount(firsts, minlength=3)
    assert ((counts - wanted) ** 2 / wanted).sum() < 13.8  # chi squared with 2, at 0.001


def test_priorities_that_leave_too_few_are_an_error():
    queue = Queue()
    queue.prompt("a", 1, priority=0.0)
    with pytest.raises(ValueError, match="1 prompts are done, and fewer than 1 of them have a priority above 0"):
        made(queue, alpha=1.0).sample(1, "train", 1)


def test_what_is_too_old_or_failed_is_given_up_and_others_are_asked_for():
    queue = Queue()
    queue.prompt("old", 3)
    queue.prompt("edge", 4)
    queue.prompt("failed", 6, "failure", n=1)
    queue.prompt("short", 6, n=1)
    asked: list[int] = []

    def refill(n: int) -> None:
        asked.append(n)
        queue.prompt("new", 6)

    buffer = made(queue, threshold=3, per_group=2, refill_fn=refill)
    assert buffer.get_sampleable_count(6, "train") == 1
    meta, metrics = buffer.sample(6, "train", 2)
    assert asked == [3]
    assert set(uids(meta)) == {"edge", "new"}
    assert queue.held["train"].keys() == set(meta.keys)
    assert metrics == {
        "training/off_policy/evicted_samples": 1,
        "training/off_policy/evicted_samples_staleness/mean": 4.0,
        "training/off_policy/evicted_samples_staleness/max": 4.0,
        "training/off_policy/evicted_samples_staleness/min": 4.0,
        "training/rollout_failure/evicted_samples": 2,
    }


def test_with_wait_nothing_is_given_up_and_no_batch_goes_before_what_must_not_get_older(monkeypatch):
    queue = Queue()
    queue.prompt("ancient", 1)
    queue.prompt("under way", 3, "running", n=0)
    looks: list[int] = []

    def finish(seconds: float) -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            queue.prompt("under way", 3)

    monkeypatch.setattr("functional_rb.scale.verl.time.sleep", finish)
    meta, metrics = made(queue, threshold=3, strategy="wait").sample(5, "train", 1)
    assert len(looks) == 3
    assert metrics == {}
    assert set(uids(meta)) <= {"ancient", "under way"}
    queue.prompt("young", 4, "running", n=0)
    assert made(queue, threshold=3, strategy="wait").wait_for_sampleable(5, "train", 1)[0]


def test_a_synchronous_trainer_gets_what_failed_and_what_is_old():
    queue = Queue()
    queue.prompt("old", 1)
    queue.prompt("failed", 9, "failure", n=1)
    meta, metrics = made(queue, "sync", threshold=1).sample(9, "train", 2)
    assert set(uids(meta)) == {"old", "failed"}
    assert metrics == {}


def test_validation_gets_all_and_the_oldest_come_first():
    queue = Queue()
    for uid, steps in (("b", 2), ("a", 1), ("c", 3)):
        queue.prompt(uid, steps, part="val", n=1)
    queue.prompt("d", 0, "failure", part="val", n=1)
    meta, _ = made(queue, threshold=1).sample(9, "val", 4)
    assert uids(meta) == ["d", "a", "b", "c"]
    for uid, steps in (("b", 2), ("a", 1), ("c", 3)):
        queue.prompt(uid, steps, n=1)
    meta, _ = made(queue, oldest_first=True).sample(9, "train", 2)
    assert uids(meta) == ["a", "b"]


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="max_off_policy_strategy: expected 'drop' or 'wait', got 'keep'"):
        made(Queue(), strategy="keep")
    with pytest.raises(ValueError, match="max_off_policy_threshold"):
        made(Queue(), threshold=0)
    with pytest.raises(ValueError, match=r"sampler_kwargs: expected some of .*, got \['gamma'\]"):
        made(Queue(), gamma=1)
    queue = Queue()
    queue.prompt("a", 1, "lost")
    with pytest.raises(ValueError, match=r"prompt 'a': status: expected one of .*, got 'lost'"):
        made(queue).get_sampleable_count(1, "train")
