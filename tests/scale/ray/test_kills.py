"""A hundred kills on a real cluster: of shards, of clients in the middle of adds and draws, of what keeps the limit.

Also the death of the head with everything on it, after which another cluster goes on from the checkpoints.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb

ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

SHARDS, CAPACITY, EACH = 4, 1 << 16, 3
SPEC = frb.BufferSpec({"x": frb.Unbounded((), "int64")}, capacity=SHARDS * CAPACITY, sampler=frb.Prioritized(alpha=1.0))
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(frb.__file__)))
KILLS = 100
OPTIONS = frb.ray.Options(actors={"num_cpus": 0.1})


def items(add: int) -> dict[str, np.ndarray]:
    """The items of an add, which has a number that no other one has."""
    return {"x": EACH * add + np.arange(EACH, dtype=np.int64)}


@pytest.fixture
def cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin()
        try:
            yield
        finally:
            ray.shutdown()


def begin() -> None:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=SHARDS + 4,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )


def stored(client: Any, epochs: tuple[int, ...]) -> list[int]:
    """What the shards store, by handles of the lives that they are in."""
    handles = [np.stack([np.full(CAPACITY, k + SHARDS * e), np.arange(CAPACITY)], 1) for k, e in enumerate(epochs)]
    found, live = client.get(np.concatenate(handles).astype(np.int32))
    return found["x"][live].tolist()


class Collector:
    """Adds, each waited for, and writes down in a file which were acknowledged."""

    def __init__(self, first: int, path: str) -> None:
        self.client, self.next, self.path = frb.ray.connect(client=os.path.basename(path)), first, path

    def work(self) -> None:
        with open(self.path, "a", buffering=1) as told:
            while True:
                under_way = [(self.next + k, self.client.add(items(self.next + k))) for k in range(4)]
                self.next += 4
                for add, receipt in under_way:
                    receipt.result()
                    told.write(f"{add}\n")

    def process(self) -> int:
        return os.getpid()


class Learner:
    """Draws, and sets priorities."""

    def __init__(self) -> None:
        self.client = frb.ray.connect()

    def work(self) -> None:
        for seed in range(10**9):
            sample = self.client.sample(seed, 64)
            self.client.update(sample.indices, np.ones(64, np.float32))

    def process(self) -> int:
        return os.getpid()


class Storm:
    """Processes that work on a buffer, and die.

    Attributes:
        promised: what was stored when a save began that went through while no shard died.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.promised, self.own, self.adds, self.begun = path, set[int](), [], 0, 0
        limit = frb.ray.RateLimit(min_size=8)
        self.client = frb.ray.start(
            SPEC,
            SHARDS,
            checkpoint=path / "shards",
            limit=limit,
            options=frb.ray.Options(actors=OPTIONS.actors, save_every=300),
        )
        for _ in range(8):
            self.add()
        self.workers: dict[str, Any] = {}
        for name in ("collector 0", "collector 1", "learner"):
            self.begin(name)

    def add(self) -> None:
        """This process adds too, and lives on: what it lost it must have counted."""
        self.own.append((self.adds, self.client.add(items(self.adds))))
        self.adds += 1

    def begin(self, name: str) -> None:
        kind = ray.remote(num_cpus=0.1)(Learner if name == "learner" else Collector)
        self.begun += 1
        first = self.begun * 10**9
        worker = kind.remote() if name == "learner" else kind.remote(first, str(self.path / f"acknowledged {first}"))
        self.workers[name] = worker, ray.get(worker.process.remote())
        worker.work.remote()

    def kill(self, victim: str) -> None:
        if victim == "limiter":
            ray.kill(self.client._watch.transport._coordinator, no_restart=False)
        elif victim in self.workers:
            os.kill(self.workers[victim][1], signal.SIGKILL)
            self.begin(victim)
        else:
            self.whole()  # each kill is one of a shard that is alive
            actor = self.client._watch.transport._actors[int(victim[-1])]
            os.kill(ray.get(actor.process.remote()), signal.SIGKILL)

    def whole(self) -> tuple[int, ...]:
        """The lives that the shards are in, as soon as all are alive."""
        until = time.monotonic() + 60
        while (counts := self.client.counts()).dead and time.monotonic() < until:
            time.sleep(0.05)
        assert not counts.dead
        return counts.epochs

    def save(self) -> None:
        before = self.whole()
        there = stored(self.client, before)
        try:
            self.client.save()
        except frb.ray.ShardDiedError:
            return
        if self.whole() == before:
            self.promised |= set(there)

    def acknowledged(self) -> set[int]:
        """The adds of the collectors."""
        return {int(line) for path in self.path.glob("acknowledged *") for line in path.read_text().split("\n")[:-1]}


@pytest.mark.long
def test_a_hundred_kills_double_nothing_and_lose_nothing_that_a_checkpoint_had(cluster, tmp_path, record_property):
    storm, chance = Storm(tmp_path), random.Random(0)
    victims = [f"shard {k}" for k in range(SHARDS)] * 2 + ["collector 0", "collector 1", "learner", "limiter"]
    shards = 0
    for k in range(KILLS):
        victim = victims[k % len(victims)]
        time.sleep(chance.uniform(0.0, 0.4))
        for _ in range(chance.randrange(12)):
            storm.add()
        if k % 3 == 0:
            storm.client.sample(k, 16, timeout=60)
        storm.kill(victim)
        shards += victim.startswith("shard")
        if k % 5 == 4:
            storm.save()
    storm.client.flush(60)
    for name in ("collector 0", "collector 1", "learner"):
        ray.kill(storm.workers[name][0])
    epochs = storm.whole()
    assert sum(epochs) == shards
    found = stored(storm.client, epochs)
    assert len(found) == len(set(found)), "an item is there twice"
    there = set(found)
    assert storm.promised <= there, "an item is gone that a checkpoint had"
    of_adds = np.bincount(np.unique(np.array(found) // EACH, return_inverse=True)[1])
    assert (of_adds == EACH).all(), "a part of an add is there"
    own = {EACH * add for add, receipt in storm.own if receipt.done()}
    assert len(own) == storm.adds
    assert storm.client.counts().lost == EACH * len(own - there)
    others = {EACH * add for add in storm.acknowledged()}
    record_property("kills", KILLS)
    record_property("shards", shards)
    record_property("stored", len(found))
    record_property("promised", len(storm.promised))
    record_property("acknowledged", EACH * (len(own) + len(others)))
    record_property("lost", EACH * (len(own - there) + len(others - there)))
    assert len(storm.promised) > 1000, "nothing was proved"


HEAD = """
import os, sys, time
sys.path.insert(0, {root!r})
from tests.scale.ray import test_kills as kills

kills.begin()
client = kills.frb.ray.start(kills.SPEC, 2, checkpoint={path!r}, options=kills.OPTIONS)
own = kills.frb.ray.connect(client="actor")
for k in range(40):
    own.add(kills.items(k))
own.flush()
client.save()
for k in range(40, 60):
    own.add(kills.items(k))
own.flush()
print("ready", flush=True)
time.sleep(600)
"""


def descendants(process: int) -> list[int]:
    """A process that we have started, and all that it has."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*"):
        for child in (task / "children").read_text().split():
            found += descendants(int(child))
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the processes of a cluster by /proc")
def test_after_the_death_of_the_head_another_cluster_goes_on_from_the_checkpoints(tmp_path):
    program = textwrap.dedent(HEAD).format(root=ROOT, path=str(tmp_path / "shards"))
    head = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, text=True)
    assert head.stdout is not None
    try:
        assert any("ready" in line for line in head.stdout)
        processes = descendants(head.pid)
        assert len(processes) > 3
    finally:
        for one in descendants(head.pid):  # as when the machine is switched off
            os.kill(one, signal.SIGKILL)
        head.communicate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin()
        try:
            client = frb.ray.start(SPEC, 2, checkpoint=tmp_path / "shards", options=OPTIONS)
            assert client.size() == EACH * 40
            own = frb.ray.connect(client="actor")
            assert own.resumed == (40, EACH * 40)
            for k in range(own.resumed.adds, 60):
                own.add(items(k))
            own.flush()
            sample = client.sample(0, 2000, exact=True)
            assert client.size() == EACH * 60
            assert set(sample.items["x"].tolist()) <= set(range(EACH * 60))
            np.testing.assert_allclose(sample.probabilities, 1 / (EACH * 60), rtol=1e-5)
        finally:
            ray.shutdown()
