"""What the sections made of groups print and plot: `slices`, `n_step` and `atari`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import floor, goals, ours
from benchmarks.compare import Section
from benchmarks.contender import Operation
from benchmarks.groups import Curve, Group, GroupResult, GroupSection
from benchmarks.report import microseconds, pyplot, ratio_rows
from benchmarks.workload import ITEM_BYTES, ROW_WORDS, NStepWorkload, ObservationWorkload, SliceWorkload


def slices_text(section: GroupSection) -> str:
    """The section `slices` in Markdown: ratios and medians by the number of stored steps, and who did not run."""
    work = section.work
    assert isinstance(work, SliceWorkload)
    about = (
        f"{work.sample_size} slices of {work.length} steps, or {work.sample_size} items where items are drawn; "
        f"{work.add_size} steps are added before each sample. A step has {ITEM_BYTES} bytes, {ROW_WORDS * 4} as a row "
        f"of 32-bit words; episodes have 1 to {work.longest} steps."
    )
    lines = [about, "", *_times(section), ""]
    for curve in section.curves:
        whose = f"{curve.contender} ({_titled(curve.group)})"
        asked = work.sample_size * (1 if curve.group.sampler == "without replacement" else work.length)
        lines += [
            f"- {whose} drew {steps:,} steps where {asked:,} were asked for, with {capacity:,} stored"
            for capacity, steps in curve.steps.items()
            if steps != asked and curve.group.sampler != "queue"
        ]
    lines += who_did_not_run(section)
    return "\n".join(lines)


def n_step_text(section: GroupSection) -> str:
    """The section `n_step` in Markdown: ratios and medians by the number of stored steps, and who did not run."""
    work = section.work
    assert isinstance(work, NStepWorkload)
    about = (
        f"{work.sample_size} transitions over {work.n} steps; one step of every environment is added before each "
        f"sample; `step` is both together. A stored step has {ITEM_BYTES} bytes; "
        f"episodes have 1 to {work.longest} steps."
    )
    who = [
        f'- {ours.NAME}: `n_step(..., at="sample")`, which reads the {work.n} steps when sampling',
        f'- {ours.AT_ADD}: `n_step(..., at="add")`; {ours.ONE_STEP}: the same items without the transform',
        "- torchrl: a ReplayBuffer with `MultiStepTransform`, which makes the returns in `extend`",
        "- cpprb: a ReplayBuffer with `Nstep`, which makes the returns in `add`; it takes one environment",
        f"- {floor.NAME}: {work.sample_size} runs of {work.n} rows of 32-bit words, {ROW_WORDS * 4} bytes each",
    ]
    return "\n".join([about, "", *who, "", *_times(section), "", *who_did_not_run(section)])


def observations_text(sections: Sequence[GroupSection]) -> str:
    """The section `atari` in Markdown: bytes held, ratios and medians for each workload, and who did not run."""
    lines: list[str] = []
    for section in sections:
        work = section.work
        assert isinstance(work, ObservationWorkload)
        lines += _about_observations(work)
        lines += ["", "Bytes held:", "", *markdown(_holdings(section)), "", *_times(section), ""]
        lines += who_did_not_run(section)
    return "\n".join(lines)


def _about_observations(work: ObservationWorkload) -> list[str]:
    stacked = work.stack > 1
    what = f"stacks of {work.stack} frames" if stacked else "observations"
    sizes = (
        f"A step has {work.item_bytes:,} bytes with its two {what} of {' x '.join(map(str, work.shape))} {work.dtype}, "
        f"and {work.capacity:,} steps are stored; one is added before each sample of {work.sample_size}. "
        f"Episodes have 1 to {work.longest} steps."
    )
    who = [
        f"{ours.NAME}: `compact=frb.Compact(stack={work.stack})`; {ours.PLAIN}: the same spec without it",
        f"{goals.TORCHRL_PLAIN}: a ReplayBuffer on a LazyTensorStorage, both observations stored, RandomSampler",
    ]
    if stacked:
        cat_frames = (
            f"{goals.CAT_FRAMES}: single frames and the frame after each step, stacked over slices by what "
            "`CatFrames.make_rb_transform_and_sampler` returns, as its documentation recommends"
        )
        gathers = (
            f"{floor.NAME}: the {2 * work.stack} frames of every item; "
            f"{floor.DISTINCT}: the {work.stack + 1} of them that differ"
        )
        who += [cat_frames, "cpprb: a ReplayBuffer with `next_of` and `stack_compress`", gathers]
    else:
        who += ["cpprb: a ReplayBuffer with `next_of`", f"{floor.NAME}: the two observations of every item"]
    return [f"## {what.capitalize()}", "", sizes, "", *(f"- {line}" for line in who)]


def _holdings(section: GroupSection) -> list[Sequence[str]]:
    work = section.work
    assert isinstance(work, ObservationWorkload)
    rows: list[Sequence[str]] = [("group", "contender", "bytes a step", "of the items", "goal", "")]
    for holding in section.holdings:
        goal = "" if holding.at_most is None else f"<= {holding.at_most:.4f}"
        each = f"{holding.held / holding.capacity:,.1f}"
        rows.append((_titled(holding.group), holding.contender, each, f"{holding.share:.4f}", goal, holding.verdict))
    least = (work.frame_bytes + work.other_bytes) / work.item_bytes
    rows.append(("", "each frame once", f"{work.frame_bytes + work.other_bytes:,.1f}", f"{least:.4f}", "", ""))
    return rows


def _times(section: GroupSection) -> list[str]:
    lines = ["Time of `compared` over time of `against`, median and quartiles of the rounds' ratios:", ""]
    lines += markdown(_group_ratios(section))
    lines += ["", "Medians in microseconds:", ""]
    return lines + markdown(_group_medians(section))


def ratios_text(about: str, who: str, section: Section) -> str:
    """A section in Markdown: what was measured, who took part, ratios and medians, and who did not run."""
    times = "Time of `compared` over time of `against`, median and quartiles of the rounds' ratios:"
    return "\n".join([about, "", who, "", times, "", *ratio_table(section), "", *who_did_not_run(section)])


def ratio_table(section: Section) -> list[str]:
    """The ratios and medians of a section in Markdown."""
    return markdown(ratio_rows(section))


def who_did_not_run(section: GroupSection | Section) -> list[str]:
    """A line for each, with the reason."""
    return [
        f"- {missing.name} ({missing.backend}, {missing.sampler}) did not run: {missing.reason}"
        for missing in section.unavailable
    ]


def _group_ratios(section: GroupSection) -> list[Sequence[str]]:
    sizes = [f"{capacity:,}" for capacity in section.capacities]
    rows: list[Sequence[str]] = [("group", "operation", "compared", "against", *sizes, "goal", "")]
    together: dict[tuple[str, str, str, str], list[GroupResult]] = {}
    for result in section.results:
        wanted = result.comparison
        key = (_titled(result.group), wanted.operation, wanted.top, wanted.bottom)
        together.setdefault(key, []).append(result)
    for compared, results in together.items():
        ratios = [result.ratio for result in results]
        cells = [f"{r.median:.2f} ({r.q1:.2f} - {r.q3:.2f})" if r else "-" for r in ratios]
        judged = next((result for result in results if result.comparison.goal), None)
        goal = f"{judged.comparison.goal} at {judged.capacity:,}" if judged else ""
        verdict = judged.verdict if judged else "" if any(ratios) else "not run"
        rows.append((*compared, *cells, goal, verdict))
    return rows


def _group_medians(section: GroupSection) -> list[Sequence[str]]:
    sizes = [f"{capacity:,}" for capacity in section.capacities]
    rows: list[Sequence[str]] = [("group", "contender", "operation", *sizes, "growth")]
    for curve in section.curves:
        medians = (microseconds(curve.points.get(capacity)) for capacity in section.capacities)
        growth = f"{curve.growth:.2f}" if len(curve.points) == len(sizes) else "-"
        rows.append((_titled(curve.group), curve.contender, curve.operation, *medians, growth))
    return rows


def _titled(group: Group) -> str:
    return f"{group.backend} {group.sampler}" + ("" if group.lanes == 1 else f", {group.lanes} lanes")


def draw_groups(section: GroupSection, path: Path, operations: Sequence[Operation] = ("sample",)) -> None:
    """Time over the number of stored steps: a panel for each group and operation, a line for each contender."""
    plt = pyplot()
    panels: dict[tuple[Group, Operation], list[Curve]] = {}
    for curve in section.curves:
        if curve.operation in operations:
            panels.setdefault((curve.group, curve.operation), []).append(curve)
    columns = 3 if len(operations) == 1 else len(operations)
    rows = max(1, -(-len(panels) // columns))
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(4 * columns, 3.2 * rows),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    places = sorted(panels, key=lambda key: (list(dict.fromkeys(group for group, _ in panels)).index(key[0]), key[1]))
    for axes, (group, operation) in zip(grid.flat, places, strict=False):
        for curve in panels[group, operation]:
            medians = [(capacity, seconds.median * 1e6) for capacity, seconds in sorted(curve.points.items())]
            axes.plot(
                *zip(*medians, strict=True), "--k" if curve.contender == floor.NAME else "-o", label=curve.contender
            )
        axes.set(xscale="log", yscale="log", title=_titled(group))
        axes.set(xlabel="stored steps", ylabel=f"{operation}, median (us)")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    for axes in list(grid.flat)[len(places) :]:
        axes.set_axis_off()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_observations(sections: Sequence[GroupSection], path: Path) -> None:
    """A row for each group: bars for the time of a sample, with its quartiles, and for the bytes held a step."""
    plt = pyplot()
    groups = [
        (section, group) for section in sections for group in dict.fromkeys(curve.group for curve in section.curves)
    ]
    figure, grid = plt.subplots(
        max(1, len(groups)), 2, figsize=(12, 3 * max(1, len(groups))), squeeze=False, layout="constrained"
    )
    for (left, right), (section, group) in zip(grid, groups, strict=False):
        times = {
            curve.contender: curve.points[max(curve.points)]
            for curve in section.curves
            if curve.group == group and curve.operation == "sample"
        }
        for name, seconds in reversed(times.items()):
            reach = [[(seconds.median - seconds.q1) * 1e6], [(seconds.q3 - seconds.median) * 1e6]]
            colour = "tab:gray" if name.startswith(floor.NAME) else "tab:blue"
            left.barh(name, seconds.median * 1e6, xerr=reach, color=colour)
        left.set(xlabel="sample, median (us)", title=_titled(group), xscale="log")
        left.tick_params(axis="x", which="minor", labelbottom=False)  # within one decade they would overlap
        for holding in reversed(section.holdings):
            if holding.group == group:
                right.barh(holding.contender, holding.held / holding.capacity, color="tab:green")
        right.set(xlabel="bytes held a step", title=_titled(group))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table, the first row its head."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return [lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]
