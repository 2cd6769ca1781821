"""Where and with what the figures were measured."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "jax", "jaxlib", "torch", "tensordict", "flashbax", "torchrl", "cpprb", "numba")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, operating system and present load."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": platform.platform(),
        "load_average": os.getloadavg()[0],
    }


def warning() -> str | None:
    """What is wrong with measuring now: other work on the cores, for which torch's and XLA's threads wait."""
    load = os.getloadavg()[0]
    if load < 0.5:
        return None
    return f"the machine is busy (load {load:.1f}): operations that use several threads come out far too slow"


def versions() -> dict[str, str | None]:
    """Versions of Python and of every library involved; none where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
        else:
            found[package] = distribution.version + _elsewhere(package, distribution)
    return found


def _elsewhere(package: str, distribution: importlib.metadata.Distribution) -> str:
    """Where a package is imported from, if another copy goes before the installed one: it was rebuilt."""
    module = importlib.util.find_spec(package)
    if module is None or module.origin is None:
        return ""
    folder = Path(module.origin).parent
    return "" if folder.is_relative_to(str(distribution.locate_file(""))) else f" from {folder}"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
