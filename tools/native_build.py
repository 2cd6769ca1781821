"""Compiles functional_rb/_native, the extension of kernels, with whatever C++ compiler there is.

Run by the build of the package (tools/build_hook.py), and by hand: python tools/native_build.py [--requires] [flags].
"""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "functional_rb" / "native" / "src"
TARGET: Final = ROOT / "functional_rb" / "_native.abi3.so"
# Where this is 0, nothing is compiled, and the package goes on with the reference alone.
VARIABLE: Final = "FUNCTIONAL_RB_NATIVE"

FLAGS: Final = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno"),
    "-ffp-contract=off",  # the reference rounds after each operation
    *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"),
)
GPU_FLAGS: Final = "-std=c++17", "-fmad=false", "--compress-mode=size"
# Compute capabilities, of which the newest comes as PTX too.
GPUS: Final = 80, 90, 100
INSTRUCTIONS: Final = {"baseline": (), "v3": ("x86-64-v3",), "v4": ("x86-64-v4",)}
"""The sets of instructions for which kernels are compiled, of which the module takes one when it is loaded."""

sources: Final = runpy.run_path(str(SOURCES.parent / "sources.py"))


def compiler() -> list[str]:
    """The command of a C++ compiler: $CXX, the system's, or that of the package ziglang; none if there is none."""
    named = os.environ.get("CXX", "").split()
    for command in (named, ["c++"], ["g++"], ["clang++"]):
        if command and shutil.which(command[0]):
            return command
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return []
    return [sys.executable, "-m", "ziglang", "c++"]


def required() -> list[str]:
    """The packages that have to be installed before anything can be compiled."""
    return [] if os.environ.get(VARIABLE) == "0" or compiler() else ["ziglang"]


def is_x86() -> bool:
    """Whether the processor is one for which kernels are compiled several times."""
    return platform.machine().lower() in ("x86_64", "amd64")


def build(extra: tuple[str, ...] = (), target: Path = TARGET, sets: tuple[str, ...] = ()) -> Path:
    """Compile the extension; it has its name once it is whole.

    Args:
        extra: more flags for the compiler and the linker, as for sanitizers.
        target: the file to write.
        sets: of instructions; by default all that the processor's kind may have.

    Raises:
        SystemExit: if there is no compiler, or it fails; its own words stand before.
    """
    if not extra and target.exists() and sources["made"](target):
        return target
    command = compiler()
    if not command:
        sys.exit(
            f"functional_rb needs a C++ compiler: install g++ or clang++, or the package ziglang ({VARIABLE}=0: none)"
        )
    sets = sets or (tuple(INSTRUCTIONS) if is_x86() else ("baseline",))
    include = [f"-I{sysconfig.get_paths()['include']}", f"-I{SOURCES}", *(["-DFRB_X86"] if len(sets) > 1 else [])]
    include.append(f"-DFRB_SOURCES=0x{sources['digest']()}u")
    with tempfile.TemporaryDirectory() as folder:
        units = [
            (f"{name}.cpp", Path(folder, f"{name}.o"), ()) for name in ("module", "chain", "launches", "xla_launches")
        ]
        units += [("kernels.cpp", Path(folder, f"{x}.o"), (f"-DFRB_ISA={x}", *_processor(command, x))) for x in sets]
        calls = [
            [*command, *FLAGS, *extra, *include, *own, "-c", str(SOURCES / s), "-o", str(o)] for s, o, own in units
        ]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            if any(threads.map(lambda call: subprocess.run(call, check=False).returncode, calls)):
                sys.exit(f"functional_rb: {' '.join(command)} could not compile {SOURCES}")
        made = Path(folder, target.name)
        link = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else _static(command)
        objects = [str(o) for _, o, _ in units]
        link += ["-s"] if not extra else []  # sanitizers name functions
        subprocess.run([*command, "-shared", *objects, "-o", str(made), *link, *extra], check=True)
        part = target.with_suffix(".part")
        shutil.copyfile(made, part)
        os.replace(part, target)
    return target


def build_gpu() -> Path | None:
    """Compile the kernels for GPUs, if there is nvcc; where there is none, that happens when they are first needed."""
    path: Path = sources["shipped"]()
    if shutil.which("nvcc") is None or path.exists():
        return path if path.exists() else None
    for older in path.parent.glob("gpu-*.fatbin"):
        older.unlink()
    code = [f"-gencode=arch=compute_{x},code=sm_{x}" for x in GPUS[:-1]]
    code.append(f"-gencode=arch=compute_{GPUS[-1]},code=[sm_{GPUS[-1]},compute_{GPUS[-1]}]")  # newer ones compile that
    made = path.with_suffix(".part")
    command = ["nvcc", *GPU_FLAGS, *code, "--fatbin", "--threads=0", f"--output-file={made}", str(SOURCES / "gpu.cu")]
    subprocess.run(command, check=True)
    os.replace(made, path)
    return path


def _processor(command: list[str], instructions: str) -> list[str]:
    """The flags for a set of instructions, which zig names otherwise."""
    if "ziglang" in command:
        return ["-Wno-macro-redefined", *(f"-mcpu={name.replace('-', '_')}" for name in INSTRUCTIONS[instructions])]
    return [f"-march={name}" for name in INSTRUCTIONS[instructions]]


def _static(command: list[str]) -> list[str]:
    """The library of C++ goes into the file, as other machines have other versions; zig and clang do so otherwise."""
    return ["-static-libstdc++", "-static-libgcc"] if "ziglang" not in command else []


if __name__ == "__main__":
    if sys.argv[1:] == ["--requires"]:
        print(*required())
    elif os.environ.get(VARIABLE) != "0":
        print(build(tuple(sys.argv[1:])))
