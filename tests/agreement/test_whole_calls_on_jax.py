"""Whole functions of buffers of any kind as single calls in JAX's programs for CPUs, beside the core, to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest

import functional_rb as frb
from jax_backend.kernels import custom_call
from tests.agreement import gpu_on_xla
from tests.agreement.jax_programs import bits
from tests.agreement.test_gpu_kernels_in_rings_on_jax import PROGRAMS, RINGS, of
from tests.support.backends import needs_native
from tests.support.effort import effort

pytestmark = needs_native

WHOLE: Final = {"add", "add_to_rings", "draw", "draw_slices", "draw_epoch", "update", "update_priorities"}
CALLS: Final = {
    **{name: {"add_to_rings", "draw_slices"} for name in RINGS if name.startswith("slices")},
    **{name: {"add_to_rings", "draw_epoch"} for name in RINGS if name.endswith("without replacement")},
    "without replacement": {"add_to_rings", "draw_epoch"},
    "uniform": {"add_to_rings", "draw"},
    "prioritized": {"add_to_rings", "draw", "update_priorities"},
}
CALLS["slices, prioritized"] |= {"update_priorities"}
USUAL: Final = [
    ("donated", "slices, prioritized"),
    ("scanned", "slices, of whatever is there"),
    ("several", "trajectories, without replacement"),
    ("eager", "without replacement"),
    ("scanned", "prioritized"),
]
CASES: Final = effort(USUAL, [(program, sampler) for program in PROGRAMS for sampler in RINGS])


@contextlib.contextmanager
def calls() -> Iterator[set[str]]:
    """The handlers that programs call which are compiled meanwhile, on the CPU."""
    found: set[str] = set()
    target = custom_call._target

    def noted(name: str) -> str:
        found.add(name)
        return target(name)

    with gpu_on_xla.by_the_cpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(custom_call, "_target", noted)
        yield found


def agreeing(program: str, spec: frb.BufferSpec) -> set[str]:
    """What is called by a program that gives the same with kernels and without."""
    with frb.kernels(False):
        expected = bits(PROGRAMS[program](spec))
    with calls() as found:
        told = bits(PROGRAMS[program](spec))
    assert told == expected
    return found


@pytest.mark.parametrize(("program", "sampler"), CASES)
def test_programs(program: str, sampler: str) -> None:
    expected = CALLS[sampler] - ({"update_priorities"} if program == "eager" else set())
    assert agreeing(program, of(sampler)) - {"threefry", "barrier"} == expected
