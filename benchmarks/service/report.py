"""Tables and a picture of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOW = (
    "Rates are medians over rounds, p50 and p99 of all single calls that were waited for. `functional_rb` adds without "
    "waiting for each add, four adds in a call (`Options(per_call=4)`), and draws "
    "with `iterate(prefetch=8, per_call=4)`; torchrl's and TransferQueue's calls wait; "
    "Reverb draws by its dataset. TransferQueue gives each row once, and clears; the time of clearing is not counted."
)
CROWD = (
    "one shard. Clients are in two processes, in which they take turns, as more processes would only wait for two "
    "cores; each turn adds a batch and draws one, which is waited for. Items a second in, out; of TransferQueue "
    "clients of one process share its one connection:"
)
MODEL = (
    "By `benchmarks/service/model.py`: from what a turn costs client and shard above, with a core for each and 10 Gb/s "
    "for each shard."
)
OURS, PEERS = "functional_rb", ("torchrl", "TransferQueue", "Reverb")


def rounded(x: float) -> str:
    """Three digits, which is more than a shared machine can repeat."""
    if x >= 1000:
        digits = len(str(int(x))) - 3
        return f"{round(x / 10**digits) * 10**digits:,}"
    return f"{x:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(ours: dict[str, Any], other: dict[str, Any], what: str) -> float:
    """Of medians over rounds that were taken in turns."""
    return statistics.median(ours[f"rounds_{what}"]) / statistics.median(other[f"rounds_{what}"])


def markdown(found: dict[str, Any], picture: str) -> str:
    """All of it as a page."""
    parts = [
        "# A buffer in other processes",
        f"By `{found['command']}`, seeded, on {found['machine']}. Versions: {found['versions']}. {found['state']}",
        f"Contenders took turns, {found['rounds']} rounds of {found['seconds']} s of each kind. {HOW}",
        *(f"Not measured: {why}" for why in found["missing"]),
        "Over an hour, and over the capacity: [service_steady.md](service_steady.md).",
        "## One client, one shard",
        "An item has so many bytes; `add` and `draw` are the items of a call.",
    ]
    rows, ratios = [], []
    for kind in found["kinds"]:
        for name, x in kind["contenders"].items():
            (a50, a99), (d50, d99) = x["add_ms"], x["draw_ms"]
            rows.append([
                kind["name"], f"{kind['add']}, {kind['draw']}", name, rounded(x["in"]), f"{x['in_GB/s']:.3f}",
                rounded(x["out"]), f"{x['out_GB/s']:.3f}", f"{a50:.2f}, {a99:.2f}", f"{d50:.2f}, {d99:.2f}",
            ])  # fmt: skip
            if name in PEERS:
                ours = kind["contenders"][OURS]
                ratios.append([
                    kind["name"], name, f"{ratio(ours, x, 'in'):.1f}", f"{ratio(ours, x, 'out'):.1f}",
                    f"{a50 / ours['add_ms'][0]:.1f}", f"{d50 / ours['draw_ms'][0]:.1f}",
                ])  # fmt: skip
    parts += [
        table(["items", "add, draw", "buffer", "items/s in", "GB/s", "items/s out", "GB/s", "add p50, p99 (ms)",
               "draw p50, p99 (ms)"], rows),
        f"`{OURS}` against each, more than 1 where it is better:",
        table(["items", "buffer", "items/s in", "items/s out", "add p50", "draw p50"], ratios),
    ]  # fmt: skip
    if found["clients"]:
        names = list(dict.fromkeys(name for x in found["clients"] for name in x["contenders"]))
        parts += [
            "## Clients",
            f"Items of {found['crowd']}, {CROWD}",
            table(["clients", *names], [
                [str(x["clients"]), *(_pair(x["contenders"].get(name)) for name in names)] for x in found["clients"]
            ]),
        ]  # fmt: skip
    if found["shards"]:
        parts += [
            "## Shards",
            "Two clients, on the same two cores, which the shards share too. CPU of a turn, which the model goes by:",
            table(["shards", "items/s in", "items/s out", "client, ms", "all shards, ms"], [
                [str(x["shards"]), rounded(x["in"]), rounded(x["out"]), f"{x['client_ms']:.2f}", f"{x['shard_ms']:.2f}"]
                for x in found["shards"]
            ]),
        ]  # fmt: skip
    if found["model"]:
        shards = sorted({x["shards"] for x in found["model"]})
        parts += [
            "## Many machines: a model, not a measurement",
            f"{MODEL} {found['costs']} Items a second out, by clients and shards:",
            table(["clients", *(f"{k} shards" if k > 1 else "1 shard" for k in shards)], [
                [str(n), *(rounded(x["out"]) for x in found["model"] if x["clients"] == n)]
                for n in sorted({x["clients"] for x in found["model"]})
            ]),
        ]  # fmt: skip
    return "\n\n".join([*parts, f"![Items and bytes a second]({picture})"]) + "\n"


def _pair(x: dict[str, float] | None) -> str:
    return "" if x is None else f"{rounded(x['in'])}, {rounded(x['out'])}"


def draw(found: dict[str, Any], path: Path) -> None:
    """Rates over sizes, rates over clients, and what the model says."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    sizes = sorted((kind for kind in found["kinds"] if kind["blob"]), key=lambda kind: kind["bytes"])
    for axes, what in ((a, "in"), (b, "out")):
        for name in (OURS, *PEERS):
            curve = [(k["bytes"], k["contenders"][name][what]) for k in sizes if name in k["contenders"]]
            if curve:
                axes.plot(*zip(*curve, strict=True), "-o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="bytes of an item", ylabel="items a second")
        axes.set_title(f"{what}: one client, one shard (measured)")
    for name in (OURS, *PEERS):
        curve = [(x["clients"], x["contenders"][name]["out"]) for x in found["clients"] if name in x["contenders"]]
        if curve:
            c.plot(*zip(*curve, strict=True), "-o", label=name)
    c.set(xscale="log", yscale="log", xlabel="clients", ylabel="items a second out")
    c.set_title(f"adds and draws in turn, {found['crowd']}, two cores (measured)")
    for shards in sorted({x["shards"] for x in found["model"]}):
        curve = [(x["clients"], x["out"]) for x in found["model"] if x["shards"] == shards]
        d.plot(*zip(*curve, strict=True), "--", label=f"{shards} shards")
    d.set(xscale="log", yscale="log", xlabel="clients", ylabel="items a second out")
    d.set_title("a core for each: a MODEL, not measured")
    for axes in (a, b, c, d):
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)
