"""Kernels that are kept on disk are out of date as soon as any module of the package is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import functional_rb

PACKAGE = Path(functional_rb.__file__).parent
PROGRAM = """
import numpy as np
from functional_rb.native import fixed, plan
import functional_rb as frb
spec = frb.BufferSpec(item=(), capacity=4, sampler=frb.Prioritized(alpha=1.0))
print(fixed.stored_value(plan.encode(spec), np.float32(1e38).view(np.int32)))
"""


def test_a_change_of_a_constant_elsewhere_is_compiled_in(tmp_path: Path) -> None:
    copy = tmp_path / "functional_rb"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def largest_value() -> float:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return float(run.stdout)

    assert largest_value() == 2.0**95
    assert largest_value() == 2.0**95  # from the disk
    assert list((tmp_path / "cache").rglob("*.nbc"))
    power = copy / "power.py"
    power.write_text(power.read_text().replace("MAX_EXPONENT: Final = 95", "MAX_EXPONENT: Final = 94"))
    assert largest_value() == 2.0**94
