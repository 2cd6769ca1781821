"""Carry `tests.support.gpu_life` out under compute-sanitizer's tools, at once: `python -m tools.gpu.sanitizers`.

What each has found is in a file of its own in the folder given by `--out`; a table of all is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.gpu.plan import ROOT
from tools.gpu.stages import started

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
USUAL_PLACE = "/usr/local/cuda/bin/compute-sanitizer"
# The exit status of a tool that has found something.
FOUND = 9


def main(arguments: list[str] | None = None) -> int:
    """Run the tools; 0 if none of them found anything, and the program itself was content under each."""
    options = _parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # So that each tensor has its own memory, and not a piece of what was taken before.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}
    program = [sys.executable, "-m", "tests.support.gpu_life"]
    running, began = {}, time.monotonic()
    for tool in options.tools:
        command = [options.sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), *program]
        with (options.out / f"{tool}.txt").open("wb") as output:
            running[tool] = started(command, environment, output)
    print("| tool | seconds | end | what it says |\n|---|---|---|---|")
    ends = {tool: _end(process, began + options.limit) for tool, process in running.items()}
    for tool, (end, ended) in ends.items():
        print(f"| {tool} | {ended - began:.1f} | {end} | {_told(options.out / f'{tool}.txt')} |")
    return 0 if all(end == "clean" for end, _ in ends.values()) else 1


def sanitizer() -> str | None:
    """Where compute-sanitizer is; none where it is not."""
    return shutil.which("compute-sanitizer") or shutil.which(USUAL_PLACE)


def _end(process: subprocess.Popen[Any], until: float) -> tuple[str, float]:
    """How it ended, and when it was known to have."""
    try:
        status = process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the program, which is a child of the tool
        process.wait()
        return "cut", time.monotonic()
    return {0: "clean", FOUND: "errors"}.get(status, f"status {status}"), time.monotonic()


def _told(path: Path) -> str:
    """The tool's sums and the program's own last line."""
    lines = path.read_text(errors="replace").splitlines()
    return "; ".join(line.strip("= ") for line in lines if "SUMMARY" in line or "tensors, " in line)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.sanitizers", description=__doc__.partition("\n")[0])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS, help="default: all")
    parser.add_argument("--limit", type=float, default=60, help="seconds, for all together (default: %(default)s)")
    parser.add_argument("--sanitizer", default=sanitizer() or "compute-sanitizer", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sanitizers", help="default: %(default)s")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
