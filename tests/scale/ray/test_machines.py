"""A cluster of two nodes whose networks are apart, joined by one link, as two machines are: as root, on Linux."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

ROOT = Path(__file__).parents[3]
HEAD, WORKER = "10.231.7.1", "10.231.7.2"
# Of this test's own cluster.
TOKEN = secrets.token_hex(16)

PROGRAM = """
    import json, os, sys, time
    import numpy as np, ray
    import functional_rb as frb

    told = lambda **what: print(json.dumps(what), flush=True)
    ray.init("HEAD:6379", namespace="test", logging_level="ERROR", log_to_driver=False, _node_ip_address="HEAD")
    spec = frb.BufferSpec({"x": frb.Unbounded(()), "frame": frb.Unbounded((300_000,), "uint8")}, 4 * 64,
                          frb.Prioritized(alpha=1.0, beta=1.0))
    def items(first, n):
        x = np.arange(first, first + n, dtype=np.float32)
        return {"x": x, "frame": np.broadcast_to(x.astype(np.uint8)[:, None], (n, 300_000)).copy()}
    options = frb.ray.Options(actors={"num_cpus": float(sys.argv[2])}, mass_age=0.2, timeout=120.0)
    client = frb.ray.start(spec, 4, checkpoint=sys.argv[1], options=options)
    nodes = {one["NodeID"]: one["NodeManagerAddress"] for one in ray.nodes()}
    def places():
        return [ray.get(actor.place.remote()) for actor in client._watch.transport._actors]
    where = places()
    for k in range(8):
        client.add(items(8 * k, 8), priorities=np.arange(8 * k + 1, 8 * k + 9, dtype=np.float32)).result()
    sample = client.sample(0, 64, exact=True)
    total = 64 * 65 / 2
    right = bool(np.allclose(sample.probabilities, (sample.items["x"] + 1) / total, rtol=1e-5))
    whole = bool((sample.items["frame"] == sample.items["x"].astype(np.uint8)[:, None]).all())
    client.update(sample.indices, np.full(64, 2.0, np.float32))
    client.flush()
    drawn = set(sample.items["x"].tolist())
    mass = sum(2.0 if x in drawn else x + 1 for x in range(64))
    set_right = abs(sum(client.counts().masses) / mass - 1) < 1e-6
    client.save()
    client.add(items(100, 8)).result()
    told(phase="begun", where=where, right=right, whole=whole, set_right=set_right, size=client.size())
    sys.stdin.readline()  # the worker's node is dead now
    counts, deadline = client.counts(), time.monotonic() + 60
    while not counts.dead and time.monotonic() < deadline:
        time.sleep(0.2)
        counts = client.counts()
    alive = [k for k, one in enumerate(where) if one == "HEAD"]
    shards = set((client.sample(1, 32).indices[:, 0] % 4).tolist())
    told(phase="dead", dead=counts.dead, masses=counts.masses, alive=alive, only_alive=shards <= set(alive))
    sys.stdin.readline()  # and is back, or is not
    while client.counts().dead and time.monotonic() < deadline + 120:
        time.sleep(0.2)
    counts = client.counts()
    x = [client.sample(seed, 64, exact=True).items["x"] for seed in range(30)]
    numbers = set(np.concatenate(x).tolist())
    told(phase="back", dead=counts.dead, deaths=counts.deaths, lost=counts.lost, size=counts.size, where=places(),
         numbers=len([n for n in numbers if n < 64]))
    client.add(items(200, 8)).result()
    told(phase="end", size=client.size())
"""


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=120)


@pytest.fixture
def networks() -> Iterator[tuple[str, str]]:
    """Two network namespaces and a link between them."""
    names = f"frb_head_{os.getpid()}", f"frb_worker_{os.getpid()}"
    ends = f"fh{os.getpid()}", f"fw{os.getpid()}"
    if shutil.which("ip") is None or run("ip", "netns", "add", names[0], check=False).returncode:
        pytest.skip("no network namespaces can be made here: that takes root, Linux and iproute2")
    try:
        run("ip", "netns", "add", names[1])
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, (HEAD, WORKER), strict=True):
            run("ip", "link", "set", end, "netns", name)
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            run("ip", "-n", name, "link", "set", end, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            run("ip", "netns", "del", name, check=False)


class Node:
    """A node of Ray in a network of its own, and what Ray starts there."""

    def __init__(self, network: str, path: Path, *arguments: str) -> None:
        told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONWARNINGS": "ignore"}
        told |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}  # as a cluster is run closed
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment, self.network = os.environ | told | {"PYTHONPATH": paths}, network
        program = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
        program += ["--num-cpus=4", "--object-store-memory=100000000", "--disable-usage-stats", *arguments]
        with (path / f"{network}.log").open("w+") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", network, *program], env=self.environment, stdout=log, stderr=log
            )
            deadline = time.monotonic() + 60
            while "Ray runtime started" not in (path / f"{network}.log").read_text():
                assert time.monotonic() < deadline, (path / f"{network}.log").read_text()
                time.sleep(0.2)

    def kill(self) -> None:
        """End all processes of the node at once, as a machine that loses its power."""
        found = run("ip", "netns", "pids", self.network).stdout.split()
        for process in found:
            run("kill", "-KILL", process, check=False)
        self.process.wait(30)


@pytest.mark.long
@pytest.mark.parametrize("cores", [1.5, 0.5], ids=["its shards wait for it", "its shards move to the other"])
def test_a_cluster_of_two_nodes_in_networks_of_their_own_loses_one(networks, tmp_path, cores):
    """Each node has four cores: two shards of 1.5 fit into one, and all four of 0.5."""
    head_network, worker_network = networks
    session = f"--temp-dir=/tmp/frb_{os.getpid()}"  # a longer path is too long for Ray's sockets
    head = Node(
        head_network,
        tmp_path,
        "--head",
        f"--node-ip-address={HEAD}",
        "--port=6379",
        "--include-dashboard=false",
        session,
    )
    joining = f"--address={HEAD}:6379", f"--node-ip-address={WORKER}"
    worker = Node(worker_network, tmp_path, *joining)
    program, driver = textwrap.dedent(PROGRAM).replace("HEAD", HEAD), None
    try:
        with (tmp_path / "driver.log").open("w") as log:
            driver = subprocess.Popen(
                ["ip", "netns", "exec", head_network, sys.executable, "-c", program, tmp_path / "shards", str(cores)],
                env=head.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=log,
            )  # fmt: skip
        begun = answer(driver, "begun")
        assert set(begun["where"]) == {HEAD, WORKER}
        assert begun["right"]
        assert begun["whole"]
        assert begun["set_right"]
        assert begun["size"] == 72
        worker.kill()
        go_on(driver)
        dead = answer(driver, "dead")
        lost = begun["where"].count(WORKER)
        assert dead["dead"] == lost
        assert dead["only_alive"]
        assert all((dead["masses"][k] > 0) == (k in dead["alive"]) for k in range(4))
        if cores > 1:
            worker = Node(worker_network, tmp_path, *joining)
        go_on(driver)
        back = answer(driver, "back")
        assert back["dead"] == 0
        assert set(back["where"]) == ({HEAD, WORKER} if cores > 1 else {HEAD})
        assert back["deaths"] == lost
        assert back["lost"] in (0, 8)  # the one add that no checkpoint had, if it lay there
        assert back["size"] == 72 - back["lost"]
        assert back["numbers"] > 55  # of the 64 that were saved, in some draws
        assert answer(driver, "end")["size"] == 80 - back["lost"]
    finally:
        for node in (worker, head):
            node.kill()
        if driver is not None:
            driver.kill()
            driver.communicate()
        shutil.rmtree(session.partition("=")[2], ignore_errors=True)


def answer(driver: Any, phase: str) -> dict[str, Any]:
    """What the driver tells next."""
    for line in driver.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            assert found["phase"] == phase
            return found
    raise AssertionError(f"the driver ended with {driver.wait()}, before {phase!r}")


def go_on(driver: Any) -> None:
    driver.stdin.write("\n")
    driver.stdin.flush()
