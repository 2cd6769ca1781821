"""What tests compile from the C++ sources, kept in build/ until any of these change."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.native_build import SOURCES, compiler

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = ROOT / "build" / "tests"


def kept(name: str, flags: Sequence[str], make: Callable[[Path], object]) -> Path:
    """The library of a name, which `make` compiles into a file with these flags unless it is there already.

    Whatever it is made of may change: the kernels' sources, those in this folder, the program that compiles, the
    compiler. Where one worker compiles it another waits.
    """
    told = hashlib.sha256(repr((compiler(), *flags)).encode())
    told.update(subprocess.run([*compiler(), "--version"], capture_output=True, check=True).stdout)
    for source in sorted([*SOURCES.iterdir(), *HERE.glob("*.cpp"), *HERE.glob("*.h"), ROOT / "tools/native_build.py"]):
        told.update(source.read_bytes())
    target = KEPT / f"{name}-{told.hexdigest()[:16]}.so"
    KEPT.mkdir(parents=True, exist_ok=True)
    with open(KEPT / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            for older in KEPT.glob(f"{name}-{16 * '?'}.so"):  # and not those of a longer name
                older.unlink(missing_ok=True)
            part = target.with_suffix(".part")
            make(part)
            part.replace(target)
    return target
