"""Measure buffers in other processes: `python -m benchmarks.service`, with `--quick` in a minute or two.

Writes `service.md`, `service.json` and `service.png`, or files of another `--name`. Contenders that are not installed
are left out, and it is said why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.service import report
from benchmarks.service.contenders import CONTENDERS, KINDS, STEPS, Ours, Reverb
from benchmarks.service.measuring import Crowd, compare
from benchmarks.service.model import Costs, turns_a_second
from benchmarks.service.surroundings import is_there, machine, start_ray, versions

# So many at most a buffer holds, of which several are there at once.
BYTES = 150_000_000
NEEDS = {"torchrl": "torchrl", "TransferQueue": "transfer_queue"}


def main() -> None:
    given = arguments()
    ray = start_ray()
    Reverb.python = given.reverb
    names, missing = there(given.contenders, given.reverb)
    load = os.getloadavg()[0]
    found: dict[str, Any] = {
        "command": command(sys.argv[1:]),
        "machine": machine(), "versions": versions(given.reverb), "rounds": given.rounds, "seconds": given.seconds,
        "missing": missing, "crowd": STEPS.name,
    }  # fmt: skip
    begin = time.time()
    found["kinds"] = [one_kind(name, names, given, missing) for name in given.kinds]
    found["clients"], found["shards"] = crowds(names, given)
    found["model"], found["costs"] = modelled(found["shards"], given)
    found["state"] = (
        f"The machine was shared: its load was {load:.1f} before, for {os.cpu_count()} cores, and the run took "
        f"{(time.time() - begin) / 60:.0f} minutes."
    )
    ray.shutdown()
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{given.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    report.draw(found, given.out / f"{given.name}.png")
    (given.out / f"{given.name}.md").write_text(report.markdown(found, f"{given.name}.png"))
    print((given.out / f"{given.name}.md").read_text())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few points, short: to see that it runs")
    parser.add_argument("--contenders", nargs="*", choices=list(CONTENDERS), default=["functional_rb", *report.PEERS])
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS))
    parser.add_argument("--clients", nargs="*", type=int)
    parser.add_argument("--shards", nargs="*", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--reverb", default="", help="an interpreter that has dm-reverb and its TensorFlow")
    parser.add_argument("--name", default="service", help="of the files that are written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    given = parser.parse_args()
    usual = {
        "kinds": list(KINDS),
        "clients": [1, 2, 4, 8, 16, 32, 64],
        "shards": [1, 2, 4, 8],
        "rounds": 3,
        "seconds": 1.0,
    }
    quick = {"kinds": ["steps", "1KB"], "clients": [1, 4], "shards": [1, 2], "rounds": 1, "seconds": 0.2}
    for name, value in (quick if given.quick else usual).items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def command(given: list[str]) -> str:
    """By which this was run, without where this machine has Reverb."""
    shown = ["PYTHON" if before == "--reverb" else one for before, one in zip(["", *given], given, strict=False)]
    return " ".join(["python -m benchmarks.service", *shown])


def there(wanted: list[str], reverb: str) -> tuple[list[str], list[str]]:
    """Which contenders can be measured, and why others cannot."""
    missing = [f"{name}: {NEEDS[name]} is not installed." for name in wanted if not is_there(NEEDS.get(name, "ray"))]
    if "Reverb" in wanted and not reverb:
        missing.append(
            "Reverb: dm-reverb 0.14.0 needs TensorFlow 2.15, and so NumPy 1, beside which the others do not run; give "
            "an interpreter that has it, `--reverb`."
        )
    out = {line.partition(":")[0] for line in missing}
    return [name for name in wanted if name not in out], missing


def one_kind(name: str, names: list[str], given: argparse.Namespace, missing: list[str]) -> dict[str, Any]:
    """All contenders with items of one kind."""
    kind, made = KINDS[name], dict[str, Any]()
    for contender in names:
        try:
            made[contender] = CONTENDERS[contender](kind, kind.capacity(BYTES))
        except (RuntimeError, OSError) as error:
            missing.append(f"{contender}, {kind.name}: {error}")
    try:
        found = compare(made, kind, given.rounds, given.seconds)
    finally:
        for contender in made.values():
            contender.close()
    for contender, x in found.items():
        print(f"{kind.name}: {contender}: {x['in']:,.0f} in, {x['out']:,.0f} out", file=sys.stderr, flush=True)
    told = {"name": kind.name, "bytes": kind.item_bytes, "add": kind.add, "draw": kind.draw}
    return {**told, "blob": "data" in kind.leaves, "contenders": found}


def crowds(names: list[str], given: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Many clients of each contender, and of ours several shards."""
    capacity, crowd = STEPS.capacity(BYTES), Crowd(2, STEPS)
    made = {name: CONTENDERS[name](STEPS, capacity) for name in names if name != "Reverb"}
    clients: list[Any] = []
    for count in given.clients:
        of = {name: crowd.measure(one, count, given.seconds) for name, one in made.items()}
        clients.append({"clients": count, "contenders": of})
        print(
            f"{count} clients: " + ", ".join(f"{n} {x['out']:,.0f}" for n, x in of.items()), file=sys.stderr, flush=True
        )
    for one in made.values():
        one.close()
    shards: list[Any] = []
    for count in given.shards if "functional_rb" in names else []:
        ours = Ours(STEPS, capacity, count)
        rounds = [crowd.measure(ours, 2, given.seconds) for _ in range(given.rounds)]
        alone = crowd.measure(ours, 1, given.seconds)
        best = sorted(rounds, key=lambda x: x["out"])[len(rounds) // 2]
        shards.append({"shards": count, **best, "alone_ms": STEPS.add / alone["in"] * 1e3})
        print(f"{count} shards: {best['out']:,.0f}", file=sys.stderr, flush=True)
        ours.close()
    crowd.close()
    return clients, shards


def modelled(shards: list[Any], given: argparse.Namespace) -> tuple[list[Any], str]:
    """What the model says, by the costs of one shard, and of another one more."""
    if not shards:
        return [], ""
    first, last = shards[0], shards[-1]
    more = max(last["shards"] - first["shards"], 1)
    call = max(last["shard_ms"] - first["shard_ms"], 0.0) / more / 1e3
    costs = Costs(
        first["client_ms"] / 1e3, first["shard_ms"] / 1e3, first["alone_ms"] / 1e3, call, STEPS.draw * STEPS.item_bytes
    )
    points = [
        {"clients": n, "shards": k, "out": STEPS.draw * turns_a_second(costs, n, k)}
        for k in given.shards for n in given.clients
    ]  # fmt: skip
    told = (
        f"Costs of a turn: {costs.client * 1e3:.2f} ms of a client, {costs.shard * 1e3:.2f} ms of the shard, "
        f"{costs.call * 1e3:.2f} ms of each shard more, {costs.latency * 1e3:.2f} ms from beginning to end."
    )
    return points, told


if __name__ == "__main__":
    main()
