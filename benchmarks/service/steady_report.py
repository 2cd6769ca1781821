"""A page and a picture of what `steady` has measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.service.report import rounded, table


def write(out: Path) -> None:
    """`service_steady.md` and its picture, of the measurements that are there."""
    parts = ["# A buffer on Ray over an hour, and over its capacity"]
    for name, section in (("service_hour", of_hour), ("service_capacity", of_capacities)):
        path = out / f"{name}.json"
        if path.exists():
            parts += section(json.loads(path.read_text()))
    if (out / "service_hour.json").exists():
        draw(json.loads((out / "service_hour.json").read_text()), out / "service_steady.png")
        parts.append("![Latency and memory over an hour](service_steady.png)")
    (out / "service_steady.md").write_text("\n\n".join(parts) + "\n")


def of_hour(found: dict[str, Any]) -> list[str]:
    """Tens of windows, of each the median."""
    windows, seconds = found["windows"], found["seconds"]
    rows = []
    for first in range(0, len(windows), 10):
        some = windows[first : first + 10]

        def middle(name: str, at: int | None = None, some: list[Any] = some) -> float:
            return statistics.median(w[name] if at is None else w[name][at] for w in some)

        memory = [f"{statistics.median(w['MB'][name] for w in some):.1f}" for name in windows[0]["MB"]]
        rows.append([
            f"{first + 1} to {first + len(some)}", rounded(middle("in")), rounded(middle("out")),
            f"{middle('add_ms', 0):.1f}, {middle('add_ms', 1):.1f}",
            f"{middle('draw_ms', 0):.1f}, {middle('draw_ms', 1):.1f}",
            f"{middle('writer_ms'):.2f}", f"{middle('learner_ms'):.2f}", f"{middle('shard_ms'):.2f}", *memory,
            f"{middle('load'):.1f}",
        ])  # fmt: skip
    names = [f"{name}, MB" for name in windows[0]["MB"]]
    wraps = windows[-1]["inserted"] / found["capacity"]
    how = (
        f"By `python -m benchmarks.service.steady hour`, on {found['machine']}, which others used too (`load`, for all "
        f"of it). {found['versions']}. Prioritized, steps of 165 B, {found['shards']} shards, capacity "
        f"{found['capacity']:,}, which was filled {wraps:.0f} times. A writer adds 64 items and waits, a learner draws "
        f"256, waits, and sets their priorities, each {found['rate']:.0f} times a second. Medians of ten windows: "
        f"items a second; p50 and p99 of a call in ms; the processor's time of a call in ms, of the shards together "
        f"for an add, a draw and an update; and the memory that each process has of its own. Shards died "
        f"{windows[-1]['deaths']} times."
    )
    header = ["windows", "in", "out", "add", "draw and update", "writer", "learner", "shards", *names, "load"]
    return [f"## {len(windows)} windows of {seconds:.0f} s", how, table(header, rows)]


def of_capacities(found: dict[str, Any]) -> list[str]:
    """Rates beside each other."""
    rows = [
        [str(of["shards"]), f"{x['capacity']:,}", rounded(x["in"]), rounded(x["out"]),
         f"{x['add_ms'][0]:.2f}", f"{x['draw_ms'][0]:.2f}"]
        for of in found["shards"] for x in of["capacities"]
    ]  # fmt: skip
    how = (
        f"By `python -m benchmarks.service.steady capacity`, on {found['machine']}, load {found['load']:.1f} before. "
        f"Full prioritized buffers, in turns, {found['rounds']} rounds of {found['seconds']} s; items a second, "
        f"medians of rounds, and medians of single calls in ms."
    )
    return ["## Over the capacity", how, table(["shards", "capacity", "in", "out", "add", "draw"], rows)]


def draw(found: dict[str, Any], path: Path) -> None:
    """Latencies, the processor's time and memory, by window."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    windows = found["windows"]
    figure, (a, b, c) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    for name, label in (("add_ms", "add"), ("draw_ms", "draw and update")):
        a.plot([w[name][0] for w in windows], label=f"{label}, p50")
        a.plot([w[name][1] for w in windows], "--", label=f"{label}, p99")
    a.set(title="ms a call, on a shared machine", xlabel="window", yscale="log")
    for name in ("writer_ms", "learner_ms", "shard_ms"):
        b.plot([w[name] for w in windows], label=name.removesuffix("_ms"))
    b.set(title="ms of the processor a call", xlabel="window", ylim=(0, None))
    for name in windows[0]["MB"]:
        c.plot([w["MB"][name] for w in windows], label=name)
    c.set(title="MB of its own", xlabel="window", ylim=(0, None))
    for axes in (a, b, c):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)
