"""The Ray that all is measured on, and what it runs on."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import subprocess
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

DISTRIBUTIONS = {"ray": "ray", "torch": "torch", "torchrl": "torchrl", "transfer_queue": "transferqueue"}


def start_ray(cores: int = 64) -> Any:
    """A cluster on this machine, whose processes find what this one does; the module `ray`."""
    warnings.simplefilter("ignore")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "TQ_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    # Ray lets its workers yield to all other processes, which on a shared machine would be measured in place of them.
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}
    import ray
    import torch

    torch.set_num_threads(1)
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    passed = {"PYTHONPATH": path, "TQ_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    ray.init(
        num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=2 * 2**30, runtime_env={"env_vars": passed},
    )  # fmt: skip
    logging.disable(logging.WARNING)
    return ray


def is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def machine() -> str:
    """What it ran on."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}, {memory / 2**20:.0f} GB of memory"


def versions(reverb: str = "") -> str:
    """Of all that was measured; Reverb's in an interpreter of its own."""
    found = [f"Python {platform.python_version()}"]
    found += [f"{name} {metadata.version(dist)}" for name, dist in DISTRIBUTIONS.items() if is_there(name)]
    if reverb:
        program = "from importlib.metadata import version as v; print(v('dm-reverb'), 'on TensorFlow', v('tensorflow'))"
        said = subprocess.run([reverb, "-c", program], capture_output=True, text=True, check=True).stdout
        found.append(f"dm-reverb {said.strip()}")
    return ", ".join(found)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if os.path.exists(path) else []
