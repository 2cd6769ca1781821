"""Where and with what the figures were measured."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import time
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "jax", "jaxlib", "torch", "tensordict", "flashbax", "torchrl", "cpprb", "mctx")


def machine() -> dict[str, Any]:
    """Processor, cores, memory and operating system."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": platform.platform(),
    }


class OtherWork:
    """How much of the cores other processes take while we measure, from the construction of this object on.

    It matters: an operation that hands work between threads waits for whoever holds the other core. With one
    core taken, flashbax's scanned step was seen at 950 us instead of 385, and torchrl's sample at 16 ms
    instead of 190 us.
    """

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.perf_counter(), _busy_seconds(), time.process_time()

    def share(self) -> float | None:
        """Share of one core, 1.0 being all of it; none where the system does not tell."""
        if self._busy is None:
            return None
        others = (_busy_seconds() or self._busy) - self._busy - (time.process_time() - self._own)
        return max(0.0, others / (time.perf_counter() - self._wall))


def available_bytes() -> int | None:
    """Memory that can still be taken without swapping; none where the system does not tell."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return None


def require_memory(needed: int, spare: int = 2**30) -> None:
    """Raise MemoryError unless `needed` bytes can be taken and `spare` are left: better a missing row than a kill."""
    available = available_bytes()
    if available is not None and available < needed + spare:
        raise MemoryError(f"it needs {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB are available")


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


def _busy_seconds() -> float | None:
    """Seconds that all cores together were not idle since the machine started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
