"""The distributions of a report as a picture."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from functional_rb.base.extras import imported
from functional_rb.inspection.report import Report

# Of matplotlib, which may not be installed.
Figure: TypeAlias = Any


def draw(report: Report, path: str | os.PathLike[str]) -> None:
    shown = _distributions(report)
    if not shown:
        raise ValueError(f"inspect: there is nothing to draw of {report['path']}: no priorities and no whole episode")
    figure = new_figure(4 * len(shown), 3, "inspect --plot")
    histograms(figure, shown)
    figure.suptitle(f"generation {report['checkpoint']}, {report['size']:,} items")
    figure.savefig(path, dpi=150)


def new_figure(width: float, height: float, who: str) -> Figure:
    """A figure of matplotlib of this size in inches."""
    return imported("matplotlib.figure", who).Figure(figsize=(width, height), layout="constrained")


def histograms(figure: Figure, shown: list[tuple[str, str, Report]]) -> None:
    for axes, (name, what, numbers) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        edges, counts = numbers["histogram"]["edges"], numbers["histogram"]["counts"]
        if numbers["histogram"]["each"]:
            axes.bar([f"{edge:.4g}" for edge in edges[:-1]], counts)
        else:
            axes.stairs(counts, edges, fill=True)
            if edges[0] > 0 and edges[-1] > 100 * edges[0]:
                axes.set_xscale("log")
        axes.set_xlabel(name)
        axes.set_ylabel(what)


def _distributions(report: Report) -> list[tuple[str, str, Report]]:
    episodes = report.get("episodes") or {}
    rows: list[tuple[str, str, Report | None]] = [
        ("priority, after alpha", "items", report.get("priorities")),
        ("steps of an episode", "episodes", episodes.get("lengths")),
        ("return of an episode", "episodes", episodes.get("returns")),
    ]
    return [(name, what, numbers) for name, what, numbers in rows if numbers and numbers["histogram"] is not None]
