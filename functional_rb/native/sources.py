"""What native code is compiled from: the extension, and kernels for GPUs by nvcc or, when first needed, by NVRTC.

It needs nothing but Python, as builds of the package run it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "src"
MAIN: Final = "gpu.cu"
# Only a checkout has it.
BUILD: Final = SOURCES.parents[2] / "tools" / "native_build.py"


def digest() -> str:
    """16 hexadecimal digits, by which programs that XLA has compiled know that the extension means what they do."""
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".h", ".cpp", ".cu"))
    texts = [(path.name, path.read_bytes()) for path in (*files, BUILD)]
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]


def made(extension: Path) -> bool:
    """Whether an extension is of these sources, which it names; times say nothing of a copy."""
    return f"0x{digest()}u".encode() in extension.read_bytes()


def check_made() -> None:
    """Refuse an extension that a checkout's older sources made, as their records had other fields; it is not loaded.

    Raises:
        ImportError: if the extension is of other sources.
    """
    found = importlib.util.find_spec("functional_rb._native") if BUILD.exists() else None
    if found is not None and found.origin is not None and not made(Path(found.origin)):
        raise ImportError(f"{found.origin} was compiled from other sources than {SOURCES} has; run python {BUILD}")


def with_headers(name: str = MAIN) -> dict[str, bytes]:
    sources: dict[str, bytes] = {}

    def take(name: str) -> None:
        if name not in sources:
            sources[name] = (SOURCES / name).read_bytes()
            for header in re.findall(rb'^#include "(.+)"', sources[name], re.MULTILINE):
                take(header.decode())

    take(name)
    return sources


def shipped() -> Path:
    """Where a wheel has the kernels that nvcc made; the name tells of which sources."""
    kernels = hashlib.sha256(repr(sorted(with_headers().items())).encode()).hexdigest()
    return SOURCES.parent / f"gpu-{kernels[:16]}.fatbin"
