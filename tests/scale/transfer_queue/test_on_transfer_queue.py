"""A TransferQueue of its own processes on this machine, whose controller asks our samplers."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.scale import transfer_queue, verl

pytest.importorskip("transfer_queue", reason="transfer_queue is not installed: pip install '.[transfer-queue]'")
ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

torch = pytest.importorskip("torch")
TensorDict = pytest.importorskip("tensordict").TensorDict

pytestmark = pytest.mark.filterwarnings("ignore")  # TransferQueue's own and Ray's


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "TQ_LOGGING_LEVEL": "ERROR"}
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        root = os.path.dirname(os.path.dirname(os.path.abspath(frb.__file__)))
        path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        ray.init(
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            logging_level="ERROR",
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": path, "TQ_LOGGING_LEVEL": "ERROR"}},
        )
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def queue_of(sampler: Any) -> Iterator[Any]:
    queue = transfer_queue.start(sampler, units=1)
    try:
        yield queue
    finally:
        queue.close()


def rows(first: int, n: int) -> dict[str, np.ndarray]:
    x = np.arange(first, first + n, dtype=np.float32)
    return {"x": x, "tokens": np.repeat(x[:, None], 5, 1)}


def test_priorities_serve_the_controller_and_can_be_set(cluster):
    with queue_of(transfer_queue.PrioritizedSampler(alpha=1.0, beta=1.0, max_staleness=3)) as queue:
        x = np.tile(np.arange(4, dtype=np.float32), 80)
        items = {"x": x, "tokens": np.repeat(x[:, None], 5, 1)}
        queue.put(items, {"priority": np.take([1.0, 2.0, 0.0, 5.0], x.astype(int)), "version": 0})
        queue.put({name: np.full_like(leaf[:80], 4) for name, leaf in items.items()}, {"version": 1})  # the largest
        batch = queue.sample(400, ["x", "tokens"])
        x = batch.items["x"].numpy()
        wanted = np.array([1, 2, 0, 5, 5]) / 13
        np.testing.assert_allclose(batch.probabilities, wanted[x.astype(int)] / 80, rtol=1e-5)
        np.testing.assert_allclose(batch.weights, (1 / 13 / 80) / batch.probabilities, rtol=1e-5)
        counts = np.bincount(x.astype(int), minlength=5)
        real = wanted > 0
        assert counts[2] == 0
        assert ((counts - 400 * wanted)[real] ** 2 / (400 * wanted[real])).sum() < 16.3  # chi squared with 3, at 0.001
        tokens = [tuple(row.tolist()) for row in batch.items["tokens"].unbind()]
        assert tokens == [(value,) * 5 for value in x.tolist()]
        queue.update(batch, np.where(x == 3, 1e9, 0.0))
        again = queue.sample(50, ["x"])
        # Of what was drawn before only these have a priority still; rows without one have the largest.
        before = set(batch.indices.tolist())
        assert set(again.items["x"].tolist()) == {3.0, 4.0}
        assert {float(v) for v, k in zip(again.items["x"], again.indices, strict=True) if int(k) in before} == {3.0}
        with pytest.raises(ValueError, match=r"update: priorities: expected shape \(50,\)"):
            queue.update(again, np.ones(3))
        other = transfer_queue.connect()
        assert other.sample(5, ["x"], beta=0.0).weights.tolist() == [1.0] * 5
        with pytest.raises(RuntimeError, match="expected no TransferQueue in this cluster"):
            transfer_queue.start(transfer_queue.GroupSampler(2))
        with pytest.raises(TimeoutError, match=r"waited 0.2 s for 2 rows .* young enough"):
            queue.sample(2, ["x"], version=9, timeout=0.2)
        queue.remove(queue.sample(1, ["x"]))


def test_groups_and_staleness_serve_the_controller(cluster):
    sampler = transfer_queue.GroupSampler(2, max_staleness=1)
    with queue_of(sampler) as queue:
        queue.put(rows(0, 6), {"uid": ["a", "b", "c", "a", "b", "d"], "version": [5, 5, 6, 5, 5, 6]})
        with pytest.raises(TimeoutError):
            queue.sample(6, ["x"], timeout=0.2)  # of c and d one is there
        with pytest.raises(ValueError, match="tag 'uid': expected 2 values, one for each row, got 1"):
            queue.put(rows(0, 2), {"uid": ["c"]})
        queue.put(rows(6, 2), {"uid": ["c", "d"], "version": 6})
        batch = queue.sample(4, ["x"], version=7)  # a and b are too old
        pairs = {tuple(sorted(pair)) for pair in batch.items["x"].numpy().reshape(2, 2).tolist()}
        assert pairs == {(2.0, 6.0), (5.0, 7.0)}
        np.testing.assert_allclose(batch.probabilities, 0.5)
        with pytest.raises(TimeoutError):
            queue.sample(2, ["x"], version=5, timeout=0.2)  # too old once is consumed
        same = queue.sample(4, ["x"], version=7, task="another")
        assert set(same.indices.tolist()) == set(batch.indices.tolist())


def test_verls_trainers_draw_prompts_from_it(cluster):
    """As verl's workers write: a mark for each prompt, and its trajectories, by keys."""
    with queue_of(transfer_queue.PrioritizedSampler()):
        package = importlib.import_module("transfer_queue")
        prompt = {"is_prompt": True, "status": "finished"}
        for uid, steps, priority in (("old", 1, 1.0), ("low", 5, 1e-9), ("high", 5, 1.0)):
            package.kv_batch_put(
                keys=[uid], partition_id="train", tags=[{**prompt, "global_steps": steps, "priority": priority}]
            )
            package.kv_batch_put(
                keys=[f"{uid}_0_0", f"{uid}_1_0"],
                partition_id="train",
                fields=TensorDict({"reward": torch.full((2,), float(steps))}, [2]),
                tags=[{"reward": 1.0}, {"reward": 2.0}],
            )
        asked: list[int] = []
        buffer = verl.ReplayBuffer("colocate_async", {}, 3, "drop", {"alpha": 1.0}, 0.1, asked.append)
        assert buffer.get_sampleable_count(5, "train") == 2
        batch, metrics = buffer.sample(global_steps=5, partition_id="train", batch_size=1)
        assert batch.keys == ["high_0_0", "high_1_0"]
        assert [tag["reward"] for tag in batch.tags] == [1.0, 2.0]
        assert asked == [1]
        assert metrics["training/off_policy/evicted_samples"] == 1
        data = package.kv_batch_get_by_meta(batch)
        assert data["reward"].reshape(-1).tolist() == [5.0, 5.0]
        assert set(package.kv_list()["train"]) == {"low", "low_0_0", "low_1_0", "high_0_0", "high_1_0"}


def test_what_is_not_there_is_told(cluster):
    with pytest.raises(RuntimeError, match="connect: expected a TransferQueue in this cluster, got none"):
        transfer_queue.connect()
    with pytest.raises(TypeError, match="start: expected a GroupSampler or PrioritizedSampler, got Uniform"):
        transfer_queue.start(frb.Uniform())
