"""A real cluster of Ray on this machine, with four shards, started once; its processes are killed."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import functional_rb as frb

ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

SHARDS = 4
SPEC = frb.BufferSpec(
    {"x": frb.Unbounded((), "int32"), "obs": frb.Unbounded((64,))},
    capacity=4 * 4096,
    sampler=frb.Prioritized(alpha=1.0, beta=1.0),
)


def items(first: int, n: int) -> dict[str, np.ndarray]:
    x = np.arange(first, first + n, dtype=np.int32)
    return {"x": x, "obs": np.broadcast_to(x[:, None].astype(np.float32), (n, 64)).copy()}


@pytest.fixture(scope="module")
def where(tmp_path_factory: Any) -> Any:
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def client(where: Any) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, of what its next version changes
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        root = os.path.dirname(os.path.dirname(os.path.abspath(frb.__file__)))
        ray.init(
            num_cpus=SHARDS + 2,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            logging_level="ERROR",
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}},
        )
        try:
            options = {"num_cpus": 0.1}
            yield frb.ray.start(
                SPEC,
                SHARDS,
                checkpoint=where,
                limit=frb.ray.RateLimit(min_size=8),
                options=frb.ray.Options(actors=options, mass_age=0.2),
            )
        finally:
            ray.shutdown()


def all_stored(client: Any) -> list[int]:
    """What all shards store, by handles of the lives that they are in."""
    counts = client.counts()
    handles = np.concatenate([
        np.stack([np.full(4096, k + SHARDS * epoch), np.arange(4096)], 1) for k, epoch in enumerate(counts.epochs)
    ])  # fmt: skip
    found, live = client.get(handles.astype(np.int32))
    assert (found["obs"][live] == found["x"][live][:, None]).all()
    return sorted(found["x"][live].tolist())


def test_items_go_in_and_come_out(client):
    for k in range(20):
        client.add(items(10 * k, 10))
    client.flush()
    assert client.size() == 200
    assert all_stored(client) == list(range(200))
    sample = client.sample(0, 64, exact=True)
    np.testing.assert_allclose(sample.probabilities, 1 / 200, rtol=1e-6)
    assert (sample.items["obs"] == sample.items["x"][:, None]).all()
    client.update(sample.indices, np.full(64, 3.0, np.float32))
    client.flush()
    total = 200 + 2 * len(set(sample.items["x"].tolist()))
    assert sum(client.counts().masses) == pytest.approx(total)
    assert len(list(client.iterate(0, 16, n=6, prefetch=3))) == 6


def test_blocks_of_every_size_travel_whole_in_pieces_and_in_the_store(client):
    spec = frb.BufferSpec({"x": frb.Unbounded((20_000,), "uint8"), "n": frb.Unbounded((), "int64")}, 64)
    options = frb.ray.Options("pieces", actors={"num_cpus": 0.1}, per_call=2)
    other = frb.ray.start(spec, 1, options=options)
    random, first = np.random.default_rng(0), 0
    for rows in (1, 5, 20, 30, 2, 3):  # gathered in pairs of up to 120 KB, 1 MB and 100 KB
        x = random.integers(0, 256, (rows, 20_000)).astype(np.uint8)
        x[:, 0] = np.arange(first, first + rows)
        other.add({"x": x, "n": x.sum(1, dtype=np.int64)})
        first += rows
    for k, rows in enumerate((4, 4, 6, 15, 40)):
        sample = other.sample(k, rows)
        assert sample.items["x"].shape == (rows, 20_000)
        assert (sample.items["x"].sum(1, dtype=np.int64) == sample.items["n"]).all()
    assert other.size() == 61
    for actor in (*other._watch.transport._actors, other._watch.transport._coordinator):
        ray.kill(actor)


def test_other_processes_add_and_draw_by_the_name_and_by_a_pickled_client(client):
    @ray.remote(num_cpus=0.1)
    class Actor:
        def __init__(self, given: Any) -> None:
            self.client = given

        def add(self, first: int) -> int:
            self.client.add(items(first, 10)).result()
            return len(self.client.sample(first, 8).indices)

    @ray.remote(num_cpus=0.1)
    def learner() -> tuple[str, int]:
        own = frb.ray.connect(backend="torch_backend")
        sample = own.sample(1, 32)
        own.update(sample.indices, sample.weights)
        own.flush()
        return type(sample.weights).__name__, own.size()

    before = client.size()
    actor = Actor.remote(client)
    assert ray.get(actor.add.remote(1000)) == 8
    assert ray.get(learner.remote()) == ("Tensor", before + 10)
    ray.kill(actor)  # with what it had acknowledged: all of that stays
    assert client.size() == before + 10


def test_an_actor_that_is_killed_amid_its_adds_and_comes_back_by_its_name_doubles_and_loses_nothing(client):
    @ray.remote(num_cpus=0.1)
    class Collector:
        def __init__(self) -> None:
            self.client = frb.ray.connect(client="collector")

        def collect(self, upto: int) -> None:
            for k in range(self.client.resumed.adds, upto):
                self.client.add(items(10_000 + 3 * k, 3))
            self.client.flush()

        def process(self) -> int:
            return os.getpid()

    first = Collector.remote()
    process = ray.get(first.process.remote())
    first.collect.remote(400)
    time.sleep(0.15)
    os.kill(process, signal.SIGKILL)
    second = Collector.remote()
    ray.get(second.collect.remote(400))
    found = [x for x in all_stored(client) if x >= 10_000]
    assert found == [10_000 + x for x in range(1200)]


def test_a_shard_that_is_killed_amid_everything_loses_what_no_checkpoint_has_and_is_restarted(client):
    client.save()
    promised = set(all_stored(client))
    before = client.counts()
    process = ray.get(client._watch.transport._actors[2].process.remote())
    acknowledged: list[int] = []
    for k in range(60):
        if k == 20:
            os.kill(process, signal.SIGKILL)
        first = 20_000 + 4 * k
        receipt = client.add(items(first, 4))
        if k % 3 == 0:
            client.sample(k, 16)
        acknowledged.extend(range(first, first + 4))
        del receipt
    client.flush(30.0)
    deadline = time.monotonic() + 30
    while client.counts().dead and time.monotonic() < deadline:
        time.sleep(0.1)
    after = client.counts()
    found = all_stored(client)
    assert len(set(found)) == len(found), "an item is there twice"
    assert promised <= set(found), "an item is gone that a checkpoint had"
    gone = set(acknowledged) - set(found)
    assert after.deaths == before.deaths + 1
    assert after.dead == 0
    assert after.epochs[2] == before.epochs[2] + 1
    assert after.lost - before.lost == len(gone) <= 240


def test_what_keeps_the_rate_limit_is_restarted_too(client):
    ray.kill(client._watch.transport._coordinator, no_restart=False)
    assert len(client.sample(5, 16).indices) == 16
    other = frb.ray.connect()
    other.add(items(30_000, 2)).result()


def test_metrics_are_there_for_prometheus(client):
    client.counts()
    node = ray.nodes()[0]
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    lines: list[str] = []
    deadline = time.monotonic() + 20
    while not lines and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                lines = [line for line in answer.read().decode().splitlines() if "ray_functional_rb_" in line]
        except OSError:
            pytest.skip("Ray's agent of metrics is not there: pip install 'ray[default]'")
        time.sleep(0.5)
    for name in (
        *("size", "capacity", "mass", "inserted", "sampled", "unsaved", "epoch", "stale", "rejected", "duplicates"),
        *("masked", "saves", "save_failures"),
    ):
        assert any(line.startswith(f"ray_functional_rb_{name}{{") and 'buffer="replay"' in line for line in lines), name


def test_what_is_not_there_is_told(client, where):
    with pytest.raises(ValueError, match="no_such_buffer"):
        frb.ray.connect("no_such_buffer")
    other = frb.ray.Options("other", actors={"num_cpus": 0.1})
    with pytest.raises(ValueError, match="expected a shard of"):
        frb.ray.start(frb.BufferSpec(SPEC.item, 64), 1, checkpoint=where, options=other)


def test_a_queue_gives_each_item_once_though_a_shard_is_killed(client, tmp_path):
    """In blocks that travel in pieces; adds wait for room meanwhile."""
    spec = frb.BufferSpec({"x": frb.Unbounded((20_000,), "uint8"), "n": frb.Unbounded((), "int64")}, 64, frb.Queue())
    options = frb.ray.Options("queue", actors={"num_cpus": 0.1}, mass_age=0.2, in_flight=8)
    actor = frb.ray.start(spec, 2, checkpoint=tmp_path, options=options)
    learner = frb.ray.connect("queue")

    def add(first: int) -> None:
        n = np.arange(first, first + 8)
        actor.add({"x": np.broadcast_to(n.astype(np.uint8)[:, None], (8, 20_000)).copy(), "n": n})

    for k in range(12):  # of which eight fit
        add(8 * k)
    batches = learner.iterate(0, 8, prefetch=2)
    found = [next(batches) for _ in range(4)]
    actor.flush()
    actor.save()
    found += [next(batches) for _ in range(2)]
    learner._watch.transport.kill(0)
    found += list(
        learner.iterate(0, 1, n=96 - 8 * 6 - 16)
    )  # the last two batches that were asked for are `batches`' own
    for batch in found:
        assert (batch.items["x"] == batch.items["n"].astype(np.uint8)[:, None]).all()
    numbers = np.concatenate([batch.items["n"] for batch in found])
    assert len(set(numbers.tolist())) == len(numbers)
    for one in (*learner._watch.transport._actors, learner._watch.transport._coordinator):
        ray.kill(one)
