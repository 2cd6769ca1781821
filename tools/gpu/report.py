"""The report, in Markdown and in JSON: written again and again, so that a run that is cut short leaves what it knew."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from tools.gpu.stages import Stage, Tests

LIBRARIES = ("torch", "jax", "jaxlib", "numpy", "tensordict", "torchrl", "flashbax", "pytest", "hypothesis")


def write(out: Path, about: dict[str, Any], versions: dict[str, str], stages: list[Stage]) -> None:
    """Write `report.json` and `report.md`, each as a whole."""
    tests = [test for stage in stages if isinstance(stage, Tests) for test in stage.record()[0]]
    told = {**about, "versions": versions, "stages": [_stage(stage) for stage in stages], "tests": tests}
    _replace(out / "report.json", json.dumps(told, indent=1) + "\n")
    _replace(out / "report.md", "\n".join(_lines(about, versions, stages, tests)) + "\n")


def succeeded(stages: list[Stage]) -> bool:
    """Whether tests have passed, and no stage but by the end of its time has gone wrong."""
    tests = [test for stage in stages if isinstance(stage, Tests) for test in stage.record()[0]]
    outcomes = {test["outcome"] for test in tests}
    # 5: there was nothing to run. What the tests' own end is besides, their record tells.
    return (
        "passed" in outcomes
        and "failed" not in outcomes
        and not any(stage.end.startswith("ended") and stage.end not in ("ended (0)", "ended (5)") for stage in stages)
    )


def _stage(stage: Stage) -> dict[str, Any]:
    told: dict[str, Any] = {"name": stage.name, "seconds": round(stage.seconds, 1), "end": stage.end}
    if isinstance(stage, Tests):
        ended, left = stage.record()
        counts = Counter(test["outcome"] for test in ended)
        told |= {outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")}
        told |= {"not run": len(left), "at work when it was cut": stage.at_work()}
    return told


def _lines(about: dict[str, Any], versions: dict[str, str], stages: list[Stage], tests: list[Any]) -> list[str]:
    where = [f"{backend}: {name}" for backend, name in about.get("gpus", {}).items()] or ["no GPU"]
    lines = ["# A run on a machine with a GPU", "", f"{'; '.join(where)}; {about.get('system', '')}", ""]
    shown = [f"{name} {versions[name]}" for name in LIBRARIES if name in versions]
    lines += [", ".join([f"Python {about.get('python', '?')}", *shown]), ""]
    lines += [f"**{about['refused']}**", ""] if "refused" in about else []
    lines += ["| stage | seconds | passed | failed | skipped | not run | end |", "|---|---|---|---|---|---|---|"]
    for told in map(_stage, stages):
        counts = [str(told.get(name, "")) for name in ("passed", "failed", "skipped", "not run")]
        lines.append(f"| {told['name']} | {told['seconds']} | {' | '.join(counts)} | {told['end'] or 'not begun'} |")
    failed = [test for test in tests if test["outcome"] == "failed"]
    lines += ["", f"## Failed: {len(failed)}", "", *(f"- `{test['test']}`: {test['line']}" for test in failed)]
    for stage in stages:
        if isinstance(stage, Tests):
            lines += _unfinished(stage)
        elif stage.end:
            figures = next(iter(sorted(stage.folder.glob("*.md"))), None)
            text = figures.read_text().strip().removeprefix("# ") if figures else f"```\n{stage.output}```"
            lines += ["", f"## {stage.name.capitalize()}", "", text]
    skipped = Counter(test["line"] for test in tests if test["outcome"] == "skipped")
    lines += ["", "## Skipped", "", *(f"- {count}: {reason}" for reason, count in skipped.most_common())]
    return [*lines, "", *about.get("notes", [])]


def _unfinished(stage: Tests) -> list[str]:
    ended, left = stage.record()
    if not ended and not left:
        return ["", f"## Nothing was run: {stage.name}", "", stage.last_line] if stage.end else []
    lines = [f"- `{test}`: when it was cut" for test in stage.at_work()]
    modules = Counter(test.partition("::")[0] for test in left)
    lines += [f"- {count} of `{module}`" for module, count in modules.items()]
    return ["", f"## Not run: {stage.name}", "", *lines] if lines else []


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)
