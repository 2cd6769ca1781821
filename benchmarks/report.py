"""The printed tables and the charts of the parts `compare`, `memory`, `scaling` and `gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import Section
from benchmarks.measure import Spread
from benchmarks.memory import Footprint
from benchmarks.scaling import Point, growth
from benchmarks.workload import Workload


def table(section: Section) -> str:
    """The comparisons of one device, with the medians beside them, then who did not run and why."""
    lines = [f"On {section.device}; ratio: `compared` over `against`, median of the rounds' ratios", ""]
    lines += _aligned(ratio_rows(section))
    for missing in section.unavailable:
        lines.append(f"{missing.name} ({missing.backend}, {missing.sampler}) did not run: {missing.reason}")
    return "\n".join(lines)


def ratio_rows(section: Section) -> list[Sequence[str]]:
    """A head, and a row for each comparison."""
    rows: list[Sequence[str]] = [
        ("backend", "sampler", "operation", "compared", "us", "against", "us", "ratio", "q1 - q3", "goal", "")
    ]
    for result in section.results:
        wanted = result.comparison
        key = (wanted.backend, wanted.sampler, wanted.operation)
        rows.append(
            (
                *key,
                wanted.top,
                microseconds(_seconds(section, *key, wanted.top)),
                wanted.bottom,
                microseconds(_seconds(section, *key, wanted.bottom)),
                f"{result.ratio.median:.2f}" if result.ratio else "-",
                f"{result.ratio.q1:.2f} - {result.ratio.q3:.2f}" if result.ratio else "-",
                wanted.goal,
                result.verdict,
            )
        )
    return rows


def memory_table(footprints: Sequence[Footprint]) -> str:
    """Bytes an item, against the limit."""
    rows: list[tuple[str, ...]] = [("backend", "sampler", "bytes an item", "of the items", "limit", "")]
    for held in footprints:
        sizes = [f"{size / held.capacity:.1f}" for size in (held.state, held.items, held.limit)]
        rows.append((held.backend, held.sampler, *sizes, held.verdict))
    return "\n".join(_aligned(rows))


def scaling_table(points: Sequence[Point]) -> str:
    """Microseconds of each operation at each capacity, and the growth from the smallest to the largest."""
    capacities = sorted({point.capacity for point in points})
    rows = [("backend", "sampler", "operation", *(f"{capacity:.0e}" for capacity in capacities), "growth")]
    for row in growth(points):
        key = (row["backend"], row["sampler"], row["operation"])
        curve = {p.capacity: p.seconds for p in points if (p.backend, p.sampler, p.operation) == key}
        figures = (microseconds(curve.get(capacity)) for capacity in capacities)
        rows.append((key[0], key[1] or "bare gather", key[2], *figures, f"{row['growth']:.2f}"))
    return "\n".join(_aligned(rows))


def draw_ratios(section: Section, sizes: str, path: Path) -> None:
    """A bar for each comparison with a peer, its quartiles, and a mark where the goal lies."""
    plt = pyplot()
    shown = [result for result in section.results if result.ratio is not None]
    shown.reverse()  # matplotlib stacks bars from the bottom
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.28 * len(shown)), layout="constrained")
    colours = {"pass": "tab:green", "MISSED": "tab:red", "": "tab:gray"}
    for height, result in enumerate(shown):
        wanted, ratio = result.comparison, result.ratio
        assert ratio is not None
        reach = [[ratio.median - ratio.q1], [ratio.q3 - ratio.median]]
        # From 1, where both take the same time, since a logarithmic axis has no zero.
        axes.barh(height, ratio.median - 1, left=1, xerr=reach, color=colours[result.verdict], height=0.7)
        bound = wanted.at_least if wanted.at_least is not None else wanted.at_most
        if bound is not None:
            axes.plot([bound, bound], [height - 0.42, height + 0.42], color="black", linewidth=2)
    labels = [
        f"{r.comparison.backend} {r.comparison.sampler} {r.comparison.operation}: "
        f"{r.comparison.top} / {r.comparison.bottom}"
        for r in shown
    ]
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.5)
    axes.margins(y=0.01)
    axes.set_xlabel("ratio of times (black mark: goal)")
    axes.set_title(f"{sizes}, on {section.device}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def sizes_of(work: Workload) -> str:
    """The sizes of a workload, as the title of a chart."""
    return f"{work.capacity:,} items, add {work.add_size}, sample and update {work.sample_size}"


def draw_scaling(points: Sequence[Point], path: Path) -> None:
    """Time over capacity: a panel for each backend and sampler, the bare gather dashed in each."""
    plt = pyplot()
    backends = sorted({point.backend for point in points})
    samplers = sorted({point.sampler for point in points if point.sampler is not None}, reverse=True)
    figure, grid = plt.subplots(
        len(backends),
        len(samplers),
        figsize=(9, 3.5 * len(backends)),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for row, backend in zip(grid, backends, strict=True):
        for axes, sampler in zip(row, samplers, strict=True):
            for operation in ("add", "sample", "update"):
                _curve(axes, points, (backend, sampler, operation), operation, "-o")
            _curve(axes, points, (backend, None, "sample"), "bare gather", "--k")
            axes.set(xscale="log", yscale="log", title=f"{backend} {sampler}")
            axes.set(xlabel="capacity (items)", ylabel="median (us)")
            axes.grid(visible=True, alpha=0.3)
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _curve(axes: Any, points: Sequence[Point], key: tuple[str, str | None, str], label: str, style: str) -> None:
    curve = sorted(
        (point.capacity, point.seconds.median * 1e6)
        for point in points
        if (point.backend, point.sampler, point.operation) == key
    )
    if curve:
        axes.plot(*zip(*curve, strict=True), style, label=label)


def _seconds(section: Section, backend: str, sampler: str, operation: str, name: str) -> Spread | None:
    key = (backend, sampler, operation, name)
    for figure in section.figures:
        if (figure.backend, figure.sampler, figure.operation, figure.contender) == key:
            return figure.seconds
    return None


def microseconds(seconds: Spread | None) -> str:
    """A median as the tables print it."""
    return "-" if seconds is None else f"{seconds.median * 1e6:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]


def pyplot() -> Any:
    """Matplotlib without a display, imported when a chart is drawn."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
