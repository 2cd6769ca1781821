"""The native code under the sanitizers of g++: nothing is reported, and planted faults are."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children import sanitized
from tests.support import emulated_gpu, native_builds
from tests.support.effort import effort
from tools import native_build

ROOT = Path(__file__).parents[2]
# Checks that take a third of the compiler's time; what they find is mostly reported at the access that follows.
LEFT_OUT = ["-fno-sanitize=null,pointer-overflow"]
FLAGS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", *effort(LEFT_OUT, [])),
    "thread": ("-fsanitize=thread", "-Wno-tsan"),  # it knows no fences, of which readers of shared buffers have two
}
LIBRARIES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
AGREEMENT = [f"tests/agreement/test_{name}.py" for name in ("part_kernels", "part_kernels_of_steps", "forged_memory")]
AGREEMENT += ["-k", "Numpy or beyond"]
MORE = ["tests/agreement", *(f"tests/shared/test_{name}.py" for name in ("one_process", "whole_calls", "interrupts"))]
MORE += ["-k", "not jax and not Jax and not allocate and not dies and not forks and not interpreters_end and not fails"]


@pytest.fixture(scope="module", autouse=True)
def by_gcc() -> Iterator[None]:
    """Let all be compiled by g++, whose sanitizers these are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "g++")
        yield


def library(name: str) -> str:
    """Where the compiler's runtime of a sanitizer lies; where there is none the test is skipped."""
    try:
        found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no g++ here")
    if not os.path.isabs(found.stdout.strip()):
        pytest.skip(f"no g++ with {name} here")
    return found.stdout.strip()


def run(kind: str, *what: str) -> subprocess.CompletedProcess[str]:
    """Programs of `support.sanitized` in one process, under a sanitizer."""
    options = "detect_leaks=0:allocator_may_return_null=1"  # some tests ask for more memory than there is
    preloaded = {"LD_PRELOAD": " ".join(map(library, LIBRARIES[kind])), "ASAN_OPTIONS": options}
    flags = ("-O0", "-g1", "-DFRB_FAULTS", *FLAGS[kind])
    file = native_builds.kept(kind, flags, lambda target: native_build.build(flags, target, ("baseline",)))
    command = [sys.executable, "-m", sanitized.__name__, str(file), *what]
    return subprocess.run(command, cwd=ROOT, env=os.environ | preloaded, capture_output=True, text=True, check=False)


def test_no_wrong_address_is_reported_but_those_that_are_planted() -> None:
    """Of threads, of kernels beside the core, and of random programs on the version chain, on buffers of all kinds.

    A process that ends by a planted fault is a copy of one that has imported all.
    """
    reports = ["heap-buffer-overflow", "heap-use-after-free", "signed integer overflow", *["heap-buffer-overflow"] * 2]
    arguments = shlex.join(["-n", "0", "-q", "-p", "no:cacheprovider", *effort(AGREEMENT, MORE)])
    what = ["few_threads=8", f"programs={effort(4, 100)}", f"kinds={effort(40, 2000)}", *effort([], ["chain=200"])]
    done = run("address", "threads=0", "faults=1,2,3,5,7", f"agreement={arguments}", *what)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
    for found, report in zip(done.stderr.split("begin fault ")[1:], reports, strict=True):
        assert report in found, found[-3000:]


def test_no_race_is_reported_but_those_that_are_planted() -> None:
    """Of threads, of torch's version chain, and of kernels for GPUs whose blocks and threads work at the same time."""
    emulator = emulated_gpu.built("emulated-thread", "-O0", "-g1", "-fsanitize=thread")
    # A write that overtakes a read, of the largest priority, before which the first wait is; and early reads.
    careless = [f"careless={emulator},{wait}" for wait in ("add,1", "sample,1", "update,9")]
    sound = "threads=0", f"chain={effort(2, 200)}", f"grids={emulator}"
    done = run("thread", *sound, *careless, "threads=4", "threads=6")
    threads, chain, grids, *planted = re.split("^begin ", done.stderr, flags=re.MULTILINE)[1:]
    assert done.stdout.split("\n")[:3] == ["done threads", "done chain", "done grids"], done.stderr[-3000:]
    assert "WARNING" not in threads + chain + grids, done.stderr[:4000]
    assert ["data race" in reports for reports in planted] == [True] * 5, done.stderr[-3000:]
