"""What the kernels for GPUs take of each architecture, as nvcc tells it: `python -m tools.gpu.registers`.

It writes benchmarks/results/gpu_kernels.md. No GPU is needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tools.gpu.plan import ROOT

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SOURCE = ROOT / "functional_rb" / "native" / "src" / "gpu.cu"
RESULT = ROOT / "benchmarks" / "results" / "gpu_kernels.md"
PATTERNS = {
    "registers": r"Used (\d+) registers",
    "spilled bytes": r"(\d+) bytes spill stores",
    "shared bytes": r"(\d+) bytes smem",
    "stack bytes": r"(\d+) bytes stack frame",
}


def told(architecture: str) -> str:
    """What the assembler says of the kernels."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-std=c++17", "-fmad=false", f"-arch={architecture}", "-cubin", "-Xptxas", "-v"]
        command = ["nvcc", *flags, "-o", f"{folder}/gpu.cubin", str(SOURCE)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def rows(text: str, architecture: str) -> Iterator[str]:
    """A line of the table for each kernel."""
    for piece in text.split("Compiling entry function ")[1:]:
        name = re.match(r"'(?:frb_)?(\w+)'", piece)
        assert name is not None, piece
        found = [re.search(pattern, piece) for pattern in PATTERNS.values()]
        yield f"| {name[1]} | {architecture} | " + " | ".join(each[1] if each else "0" for each in found) + " |"


def main() -> int:
    """Write the table; 0 if it was."""
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[3]
    lines = ["# What kernels take of a GPU", "", f"By nvcc ({version}), of one block's threads:", ""]
    lines += [f"| kernel | architecture | {' | '.join(PATTERNS)} |", "|---" * (2 + len(PATTERNS)) + "|"]
    for architecture in ARCHITECTURES:
        lines += sorted(rows(told(architecture), architecture))
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
