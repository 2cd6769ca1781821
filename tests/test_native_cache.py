"""Kernels that are kept on disk are out of date when what they are made of is, and not before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import functional_rb
from functional_rb import power
from functional_rb.native import fixed, plan
from functional_rb.native.content import content_of

PACKAGE = Path(functional_rb.__file__).parent
PROGRAM = """
import numpy as np
from functional_rb.native import fixed, plan
import functional_rb as frb
spec = frb.BufferSpec(item=(), capacity=4, sampler=frb.Prioritized(alpha=1.0))
print(fixed.stored_value(plan.encode(spec), np.float32(1e38).view(np.int32)))
"""
COMPILES = "compiles kernels"


def test_only_what_a_kernel_is_made_of_is_compiled_anew(tmp_path: Path) -> None:
    copy = tmp_path / "functional_rb"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FUNCTIONAL_RB_CACHE": str(tmp_path / "cache")}

    def edit(name: str, old: str, new: str) -> None:
        text = (copy / name).read_text()
        assert old in text
        (copy / name).write_text(text.replace(old, new, 1))

    def run() -> tuple[float, bool]:
        """The largest value that is stored, and whether anything was compiled."""
        command = [sys.executable, "-c", PROGRAM]
        ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        return float(ran.stdout), COMPILES in ran.stderr

    assert run() == (2.0**95, True)
    kept = sorted((tmp_path / "cache").iterdir())
    edit("native/fixed.py", '"""`2 ** y` for', '"""Another docstring, of\n\n    more lines, of `2 ** y` for')
    edit("native/fixed.py", "    whole = np.int64(beta)", "    # A comment.\n    whole = np.int64(beta)")
    edit("native/kernels.py", "SPARSE = 2", "SPARSE = 3")  # a kernel, and none that this one calls
    edit("power.py", '"""Powers of', '"""The powers of')
    edit("checks.py", "def ", "NEW = 1\n\n\ndef ")
    assert run() == (2.0**95, False)
    assert sorted((tmp_path / "cache").iterdir()) == kept
    edit("power.py", "MAX_EXPONENT: Final = 95", "MAX_EXPONENT: Final = 94")
    assert run() == (2.0**94, True)


def test_what_a_kernel_is_made_of() -> None:
    def made(source: str, **names: Any) -> str:
        """The hash of what a source defines as `f`."""
        space = {"__name__": "functional_rb.native.made_up", "np": np, "numba": numba, **names}
        exec(source, space)
        return content_of(space["f"])

    plain = made("def f(x): return x + K", K=1)
    assert plain == made("# Comment.\n\ndef f(x):\n  'Docstring.'\n  return x + K", K=1)
    assert plain == made("def f(x): return x + K\nOTHER = 3", K=1)
    others = [
        made("def f(x): return x - K", K=1),
        *(made("def f(x): return x + K", K=other) for other in (2, 1.0, True, np.int64(1), np.int32(1), (1, 2))),
        *(made("def f(x): return x + K", K=np.array(table, np.int32)) for table in ([1, 2], [1, 3])),
        *(made(f"def g(x): return x * {k}\ndef f(x): return g(x) + 1") for k in (2, 3)),
        *(made(f"g = numba.njit(lambda x: x * {k})\ndef f(x): return g(x) + 1") for k in (2, 3)),
        *(made("def h(k):\n  def f(x): return x + k\n  return f\nf = h(K)", K=k) for k in (2, 3)),
        *(made("def f(x): return [y * K for y in x]", K=k) for k in (2, 3)),
        *(made(f"def f(x): return fixed.{name} + x", fixed=fixed) for name in ("BIAS", "C1", "times", "exp2")),
        made("def f(x): return np.sin(x)"),
        made("def f(x): return np.cos(x)"),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert made("def f(x): return at.BIAS + x", at=fixed) == made("def f(x): return at.BIAS + x", at=power)
    with pytest.raises(TypeError, match="a kernel takes"):
        made("def f(x): return x + K", K=plan.NO_LEAVES)
