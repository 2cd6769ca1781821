"""What the kernels for GPUs are compiled from: by nvcc when a wheel is built, or by NVRTC when they are first needed.

It needs nothing but Python, as builds of the package run it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "src"
MAIN: Final = "gpu.cu"


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
    digest = hashlib.sha256(repr(sorted(with_headers().items())).encode()).hexdigest()
    return SOURCES.parent / f"gpu-{digest[:16]}.fatbin"
