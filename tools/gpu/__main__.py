"""Run the suite and the benchmarks on the GPU of this machine: `python -m tools.gpu`, or `make gpu`.

First the tests that tell most, in five minutes at most, then the kernels under compute-sanitizer, if it is there, then
the other tests, then the benchmarks, all within a budget. It needs Python 3.11 alone, installs nothing outside of its
folder and fetches nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tools.gpu import packages, plan, report, sanitizers
from tools.gpu.plan import ROOT
from tools.gpu.stages import Stage, Tests

# Of the GPU's memory: both backends have a context there, and what they have freed.
BYTES_OF_A_WORKER = 5 * 2**30


def main(arguments: list[str] | None = None) -> int:
    """Carry all of it out; 0 if all that was run has passed, 1 if not, 2 if nothing can be run here."""
    began, options = time.monotonic(), _parse(arguments)
    out, gpu = options.out.resolve(), options.device == "gpu"
    before = {name: plan.ordered(modules, out / "report.json") for name, modules in _modules(options).items()}
    brought = out / "packages"
    for path in (brought, *(out / name for name in (*before, "benchmarks"))):
        shutil.rmtree(path, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    environment = _environment(out, brought, gpu)
    versions = packages.installed(environment)
    notes = packages.unpack(options.wheels, versions, brought)
    if notes:
        versions = packages.installed(environment)
    about: dict[str, Any] = {**packages.look(environment, gpu, 120), "device": options.device, "notes": notes}
    refusal = packages.lacking(about, gpu)
    if refusal:
        about["refused"] = refusal
    stages = [] if refusal else _stages(before, _workers(options, about), out, gpu)

    def tell() -> None:
        report.write(out, about, versions, stages)

    tell()
    if refusal:
        print(f"gpu: {refusal}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for stage in stages:
        left = options.budget - (time.monotonic() - began)
        kept = options.benchmarks if gpu and stage.name != "benchmarks" else 0.0
        limit = min(left - kept, options.selection_limit if stage.name == "selection" else left)
        print(f"gpu: {stage.name}, {max(limit, 0):.0f} s at most; {out / 'report.md'} tells what is known", flush=True)
        own = stage.settings(options.test_limit) if isinstance(stage, Tests) else {}
        try:
            stage.carry_out({**environment, **own}, limit, tell)
        finally:
            tell()
    print((out / "report.md").read_text())
    return 0 if report.succeeded(stages) else 1


def _modules(options: argparse.Namespace) -> dict[str, list[str]]:
    rest = plan.rest() if options.rest is None else options.rest
    return {"selection": options.selection or list(plan.SELECTION), "rest": rest}


def _stages(modules: dict[str, list[str]], workers: int, out: Path, gpu: bool) -> list[Stage]:
    stages: list[Stage] = [Tests(name, given, workers, out) for name, given in modules.items() if given]
    if not gpu:
        return stages

    def more(name: str, *command: str) -> Stage:
        return Stage(name, [sys.executable, "-m", *command, "--out", str(out / name)], out)

    if sanitizers.sanitizer():
        stages.insert(1, more("sanitizers", "tools.gpu.sanitizers"))
    return [*stages, more("benchmarks", "benchmarks", "gpu", "--quick")]


def _workers(options: argparse.Namespace, seen: dict[str, Any]) -> int:
    cores = os.cpu_count() or 1
    return options.workers or max(1, min(cores, seen.get("gpu bytes", cores * BYTES_OF_A_WORKER) // BYTES_OF_A_WORKER))


def _environment(out: Path, brought: Path, gpu: bool) -> dict[str, str]:
    path = [str(ROOT), str(brought), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(path), "JAX_COMPILATION_CACHE_DIR": str(out / "compiled"), "MPLBACKEND": "Agg"}
    if gpu:
        own |= {"TESTS_DEVICE": "gpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {**os.environ, **own}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", type=float, default=570, help="seconds for all of it (default: %(default)s)")
    parser.add_argument("--selection-limit", type=float, default=300, help="for the first tests (default: %(default)s)")
    parser.add_argument("--test-limit", type=float, default=60, help="for each test (default: %(default)s)")
    parser.add_argument("--benchmarks", type=float, default=120, help="kept for the benchmarks (default: %(default)s)")
    parser.add_argument("--workers", type=int, help="default: as many as cores and the GPU's memory bear")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="wheels of what is missing here")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="the report's folder: build/gpu")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: a rehearsal without benchmarks")
    parser.add_argument("--selection", nargs="+", help="modules in place of the usual first ones")
    parser.add_argument("--rest", nargs="*", help="modules in place of all others; none to leave them out")
    options = parser.parse_args(arguments)
    for path in (*(options.selection or ()), *(options.rest or ())):  # of which xdist would say that there are no tests
        if not (ROOT / path).exists():
            parser.error(f"expected a module or a folder of tests, as in tests/contract/test_jax.py, got {path!r}")
    return options


if __name__ == "__main__":
    sys.exit(main())
