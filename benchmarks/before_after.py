"""Two checkouts against each other: `python -m benchmarks.before_after BEFORE [AFTER] --parts compare n_step`.

Each part is measured in a process of its own, in turns of the two checkouts, and of each figure the least of the
medians counts: what else runs on the machine makes a process slower, never faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# What a figure is of: the part, then the backend, the sampler, the lanes and so on, and the operation.
Row = tuple[str, ...]

OURS = "ours"
STATISTICS = ("median_us", "q1_us", "q3_us", "rounds", "growth")
NESTED = ("compare", "slices", "sections", "figures", "curves", "points")


def figures(told: Any, about: Row = ()) -> Iterator[tuple[Row, float]]:
    """The medians of ours in the JSON of a part, in microseconds, each with what the nest around it tells of it."""
    if isinstance(told, list):
        for each in told:
            yield from figures(each, about)
    elif isinstance(told, dict) and str(told.get("contender", OURS)).startswith(OURS):
        texts = {name: value for name, value in told.items() if name not in STATISTICS and value != OURS}
        names = [value for value in texts.values() if isinstance(value, str)]
        names += [f"{name} {value}" for name, value in texts.items() if isinstance(value, int)]
        if "median_us" in told:
            yield (*about, *names), told["median_us"]
        for name in NESTED:
            yield from figures(told.get(name), (*about, *names))


def measure(checkout: Path, part: str, rounds: int, paths: Sequence[str]) -> dict[Row, float]:
    """The figures of a part, measured in a process with a checkout's own code."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks", part, "--rounds", str(rounds), "--out", out]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), *paths])}
        subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=sys.stderr)
        written = [json.loads(path.read_text()) for path in sorted(Path(out).glob("*.json"))]
    nests = ({name: told[name] for name in NESTED if name in told} for told in written)
    return {(part, *row): median for nest in nests for row, median in figures(nest)}


def table(before: Mapping[Row, float], after: Mapping[Row, float]) -> str:
    """The figures of both, and by how much the second is faster, as a Markdown table."""
    lines = ["| | before, us | after, us | before / after |", "|---|--:|--:|--:|"]
    both = ((", ".join(row), before[row], after[row]) for row in before if row in after)
    lines += [f"| {row} | {old:.1f} | {new:.1f} | {old / new:.2f} |" for row, old, new in both]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before_after", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, nargs="?", default=Path(), help="another, by default this one")
    parser.add_argument("--parts", nargs="+", default=["compare", "slices", "n_step", "mixture"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=2, help="how often each checkout measures each part")
    parser.add_argument("--paths", nargs="*", default=[], help="folders to import from, beside a checkout's own")
    options = parser.parse_args(arguments)
    found: dict[Path, dict[Row, float]] = {options.before: {}, options.after: {}}
    for part in options.parts:
        for turn in range(options.turns):
            for checkout in list(found)[:: -1 if turn % 2 else 1]:
                for row, median in measure(checkout.resolve(), part, options.rounds, options.paths).items():
                    found[checkout][row] = min(median, found[checkout].get(row, median))
    print(table(found[options.before], found[options.after]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
