"""What the machine has, and what was carried along: wheels of what is missing there, which are not fetched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

NEEDED = {"torch": "torch", "jax": "jax", "numpy": "numpy", "pytest": "pytest"}
NEEDED |= {"xdist": "pytest-xdist", "hypothesis": "hypothesis"}
"""Modules without which nothing can be run, and the projects that bring them."""
# Of these the wheel is taken where another version is installed; of all else what is installed stays.
TOOLS = frozenset(("pytest", "pytest-xdist", "execnet", "pluggy", "iniconfig", "hypothesis", "sortedcontainers"))
INSTALLED = """
import json
from importlib import metadata
print(json.dumps({found.name: found.version for found in metadata.distributions()}))
"""
SEEN = """
import importlib.util, json, os, platform
found = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count(), "gpus": {}}
found["missing"] = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if GPU and "torch" not in found["missing"]:
    import torch
    found["cuda of torch"] = torch.version.cuda
    if torch.cuda.is_available():
        found["gpus"]["torch"], found["gpu bytes"] = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1]
if GPU and "jax" not in found["missing"]:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    try:
        found["gpus"]["jax"] = jax.devices("gpu")[0].device_kind
    except RuntimeError as error:
        found["jax says"] = str(error)
print(json.dumps(found))
"""


def canonical(name: str) -> str:
    """A project's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(environment: dict[str, str]) -> dict[str, str]:
    """The versions of what the interpreter finds, by canonical name."""
    ran = subprocess.run([sys.executable, "-c", INSTALLED], env=environment, capture_output=True, text=True, check=True)
    return {canonical(name): version for name, version in json.loads(ran.stdout).items()}


def unpack(wheels: Path, there: dict[str, str], into: Path) -> list[str]:
    """Install those wheels of a folder whose projects the machine lacks; what came of each, in lines."""
    told = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        name = canonical(name)
        if name in there and (name not in TOOLS or there[name] == version):
            continue
        flags = [
            "--quiet",
            "--no-index",
            "--no-deps",
            "--upgrade",
            "--disable-pip-version-check",
            "--target",
            str(into),
        ]
        command = [sys.executable, "-m", "pip", "install", *flags, str(wheel)]
        ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_NO_INPUT": "1"})
        last = (ran.stderr.strip().splitlines() or [""])[-1]
        told.append(f"{name} {version}: {'from a wheel' if ran.returncode == 0 else f'not installed: {last}'}")
    return told


def look(environment: dict[str, str], gpu: bool, seconds: float) -> dict[str, Any]:
    """What is there: the modules that are missing, and, if they are asked, GPUs as each backend sees them."""
    program = f"NEEDED, GPU = {sorted(NEEDED)}, {gpu}\n{SEEN}"
    try:
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=seconds
        )
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        last = "" if isinstance(error, subprocess.TimeoutExpired) else (ran.stderr.strip().splitlines() or [""])[-1]
        return {"gpus": {}, "missing": [], "error": f"torch and JAX could not be looked at: {error!r} {last}".strip()}
    return found


def lacking(seen: dict[str, Any], gpu: bool) -> str:
    """Why nothing can be run here, and what to do about it; empty if it can."""
    if "error" in seen:
        return str(seen["error"])
    if seen["missing"]:
        names = " ".join(sorted(NEEDED[name] for name in seen["missing"]))
        return (
            f"{sys.executable} has no {names}; where there is a network, `pip download -d wheels {names}`, "
            f"and carry the folder wheels/ along; or name another interpreter: make gpu PYTHON=..."
        )
    blind = [name for name in ("jax", "torch") if name not in seen["gpus"]] if gpu else []
    if blind:
        return (
            f"no GPU for {' and '.join(blind)} here ({sys.executable}): the suite wants both backends on one; install "
            f"their builds for CUDA, or rehearse on the CPU: make gpu ARGS='--device cpu'"
        )
    return ""
