"""Which modules of tests are run in which order, so that the first minutes on a machine tell the most."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.gpu import OF_THE_CPU

ROOT = Path(__file__).resolve().parents[2]
# What differs most between devices: kernels, strategies, storages, structures and the ways between the backends.
SELECTION = (
    *("tests/agreement/test_gpu_kernels.py", "tests/agreement/test_gpu_rings.py"),
    "tests/agreement/test_random_programs.py",
    "tests/agreement/test_gpu_steps_on_jax.py",
    *("tests/contract/test_torch_interop.py", "tests/contract/test_storages_torch.py"),
    *("tests/contract/test_torch_values.py", "tests/agreement/test_agreement.py"),
    *("tests/agreement/test_bridge.py", "tests/agreement/test_bridge_of_arrays.py"),
    *("tests/contract/test_every_variant.py", "tests/contract/test_members.py", "tests/contract/test_jax.py"),
    *("tests/contract/test_lifecycle.py", "tests/contract/test_storages.py", "tests/contract/test_keys.py"),
    *("tests/contract/test_epochs.py", "tests/contract/test_n_step.py", "tests/contract/test_frame_dedup.py"),
    *("tests/items/test_every_function.py", "tests/items/test_images.py", "tests/mixture/test_members.py"),
    *("tests/checkpoint/test_whole_states.py", "tests/trees/test_maps.py", "tests/trees/test_forests.py"),
)
# What hardly knows of devices.
LAST = (
    "tests/formats/",
    "tests/datasets/",
    "tests/specs/",
    "tests/text/test_prepar",
    "tests/programs/test_packaging.py",
)


def rest() -> list[str]:
    """All other modules, but those that are skipped on a GPU; what hardly knows of devices comes last."""
    every = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    others = [path for path in every if path not in SELECTION and Path(path).stem not in OF_THE_CPU]
    return sorted(others, key=lambda path: path.startswith(LAST))


def ordered(modules: list[str], before: Path) -> list[str]:
    """Modules, first those of which a test failed in an earlier run, as its report has it, and then the quick ones.

    Without such a report they stay as they are, and so do those that it does not know, before the quick ones.
    """
    failed, seconds = set[str](), defaultdict[str, float](float)
    for test in _tests(before):
        module = test["test"].partition("::")[0]
        seconds[module] += test["seconds"]
        failed |= {module} if test["outcome"] == "failed" else set()
    return sorted(modules, key=lambda module: (module not in failed, seconds.get(module, 0.0)))


def _tests(report: Path) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(report.read_text())["tests"]
    except (OSError, ValueError, KeyError):
        return []
    return found
