"""The native code under the sanitizers of g++ and clang++: nothing is reported, and planted faults are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import effort, emulated_gpu

ROOT = Path(__file__).parents[2]
FLAGS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-fsanitize=thread", "-Wno-tsan"),  # it knows no fences, of which readers of shared buffers have two
}
LIBRARIES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
AGREEMENT = ["tests/agreement/test_part_kernels.py", "tests/agreement/test_draws_in_rings.py"]
AGREEMENT += ["-k", "Numpy or (draws_are and torch)"]
MORE = ["tests/agreement", *(f"tests/shared/test_{name}.py" for name in ("one_process", "whole_calls", "interrupts"))]
MORE += ["-k", "not jax and not Jax and not allocate and not dies and not forks and not interpreters_end and not fails"]


def library(name: str) -> str:
    """Where the compiler's runtime of a sanitizer lies, or "" if it has none."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = found.stdout.strip()
    return path if found.returncode == 0 and os.path.isabs(path) else ""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, str]]]:
    """Builds once for each sanitizer: the extension, and the environment to load it in."""
    made: dict[str, tuple[Path, dict[str, str]]] = {}

    def build(kind: str) -> tuple[Path, dict[str, str]]:
        try:
            libraries = [library(name) for name in LIBRARIES[kind]]
        except FileNotFoundError:
            libraries = [""]
        if not all(libraries):
            pytest.skip(f"no g++ with the sanitizer {kind} here")
        if kind not in made:
            target = tmp_path_factory.mktemp(kind) / "_native.abi3.so"
            program = (
                "import sys; from pathlib import Path; sys.path.insert(0, 'tools'); import native_build; "
                "native_build.build(tuple(sys.argv[2:]), Path(sys.argv[1]), ('baseline',))"
            )
            flags = ("-O0", "-g1", "-DFRB_FAULTS", *FLAGS[kind])
            environment = os.environ | {"CXX": "g++"}
            subprocess.run([sys.executable, "-c", program, str(target), *flags], cwd=ROOT, env=environment, check=True)
            options = "detect_leaks=0:allocator_may_return_null=1"  # some tests ask for more memory than there is
            preloaded = os.environ | {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": options}
            made[kind] = target, preloaded
        return made[kind]

    return build


def run(built: Callable[[str], tuple[Path, dict[str, str]]], kind: str, *what: str) -> subprocess.CompletedProcess[str]:
    """A program of `support.sanitized` under a sanitizer."""
    file, environment = built(kind)
    command = [sys.executable, "-m", "tests.support.sanitized", str(file), *what]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_agreement_with_the_core_reports_nothing(built: Callable[[str], tuple[Path, dict[str, str]]]) -> None:
    chosen = MORE if effort.EVERYTHING else AGREEMENT
    done = run(built, "address", "agreement", "-n", "0", "-q", "-p", "no:cacheprovider", *chosen)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("kind", "what", "times"),
    [
        ("address", "programs", effort.effort(4, 100)),
        ("thread", "chain", effort.effort(2, 200)),
        pytest.param("address", "chain", 200, marks=pytest.mark.long),
    ],
)
def test_the_version_chain_reports_nothing(
    kind: str, what: str, times: int, built: Callable[[str], tuple[Path, dict[str, str]]]
) -> None:
    done = run(built, kind, what, str(times))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout[-3000:] + done.stderr[-3000:]
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_threads_report_nothing(kind: str, built: Callable[[str], tuple[Path, dict[str, str]]]) -> None:
    done = run(built, kind, "threads", "0")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "fault", "report"),
    [
        ("address", 1, "heap-buffer-overflow"),
        ("address", 2, "heap-use-after-free"),
        ("address", 3, "signed integer overflow"),
        ("thread", 4, "data race"),
        ("address", 5, "heap-buffer-overflow"),
        ("thread", 6, "data race"),
    ],
)
def test_a_planted_fault_is_reported(
    kind: str, fault: int, report: str, built: Callable[[str], tuple[Path, dict[str, str]]]
) -> None:
    done = run(built, kind, "threads", str(fault))
    assert done.returncode != 0
    assert report in done.stderr, done.stderr[-3000:]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The emulated kernels for GPUs as the sanitizer for threads has them, and the environment to load them in."""
    runtime = library("libtsan.so")
    if not runtime:
        pytest.skip("no g++ with the sanitizer thread here")
    made = emulated_gpu.built(tmp_path_factory.mktemp("team") / "emulated.so", "-g1", "-fsanitize=thread")
    return made, os.environ | {"LD_PRELOAD": runtime}


@pytest.mark.parametrize("planted", [False, True])
def test_kernels_for_gpus_as_threads_report_nothing(emulator: tuple[Path, dict[str, str]], planted: bool) -> None:
    """But for a race that is planted: what threads of a block, or two blocks, read and write at the same time."""
    file, environment = emulator
    own, lives = ({"FRB_EMULATED_RACE": "1"}, 1) if planted else ({}, effort.effort(2, 100))
    command = [sys.executable, "-m", "tests.support.emulated_team", str(file), str(lives)]
    done = subprocess.run(command, cwd=ROOT, env=environment | own, capture_output=True, text=True, check=False)
    assert ("data race" in done.stderr) == planted, done.stderr[-4000:]
    assert planted or done.stdout.endswith("done\n"), done.stdout + done.stderr[-3000:]
