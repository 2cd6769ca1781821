"""Copies of large states, of which JAX's users are told once."""

from __future__ import annotations

import subprocess

from tests.support.children import ROOT, program


def test_large_copies_are_told_of_once() -> None:
    """In a process of its own, whose first they are."""
    run = subprocess.run(program("large_copies"), capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
