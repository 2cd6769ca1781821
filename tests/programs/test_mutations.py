"""The program that breaks the library on purpose: what it changes, and which tests it tries."""

from __future__ import annotations

from pathlib import Path

from tests.support.tools import tool

mutations = tool("mutations")
SOURCE = '''
from typing import Literal

def f(x: Literal[1], y=z(5, ...)) -> Literal[2]:
    """Of two numbers."""
    if x < 0 and y:
        raise ValueError(x)
    x[0] = g(x, 3)
    print(isinstance(x, y))
'''
EXPECTED = [
    (4, "arguments swapped", "(z)(..., 5)"),
    (4, "number + 1", "(6)"),
    (4, "number - 1", "(4)"),
    (6, "condition negated", "(not (x < 0 and y))"),
    (6, "to or", "((x < 0) or (y))"),
    (6, "< to <=", "(x) <= (0)"),
    (6, "number + 1", "(1)"),
    (6, "number - 1", "(-1)"),
    (7, "raise left out", "pass"),
    (8, "assignment left out", "pass"),
    (8, "number + 1", "(1)"),
    (8, "number - 1", "(-1)"),
    (8, "arguments swapped", "(g)(3, x)"),
    (8, "number + 1", "(4)"),
    (8, "number - 1", "(2)"),
    (9, "call left out", "pass"),
]


def test_what_runs_is_changed_and_nothing_else(tmp_path: Path) -> None:
    found = list(mutations.mutations_of("module.py", SOURCE))
    assert [(mutation.line, mutation.kind, mutation.text) for mutation in found] == EXPECTED
    assert [mutation.at_import for mutation in found] == [mutation.line == 4 for mutation in found]
    (tmp_path / "module.py").write_text(SOURCE)
    for mutation in found:
        changed = mutations.mutated(mutation, tmp_path).decode()
        compile(changed, "module.py", "exec")
        before, after = SOURCE.splitlines(), changed.splitlines()
        assert [k for k in range(len(before)) if before[k] != after[k]] == [mutation.line - 1]


def test_tests_that_run_the_line_are_tried_the_quick_ones_first() -> None:
    seconds = {"a::slow": 9.0, "a::quick": 1.0, "b::one": 2.0, "b::two": 3.0, "c::never": 0.0}
    seconds |= {"tests/trees/t.py::one": 2.5, "tests/trees/t.py::two": 2.6, "tests/trees/t.py::three": 2.7}
    known = mutations.Map(seconds, {"functional_rb/trees/x.py": {6: [name for name in seconds if name != "c::never"]}})
    mutation = mutations.Mutation("functional_rb/trees/x.py", 6, "to or", 0, 0, "")
    own = [f"tests/trees/t.py::{name}" for name in ("one", "two", "three")]
    found = [own[0], "a::quick", "b::one", *own[1:], "b::two", "a::slow"]
    assert mutations.tests_for(mutation, known, budget=100.0) == found
    assert mutations.tests_for(mutation, known, budget=14.0) == found[:-1]
    assert mutations.tests_for(mutation, known, budget=0.0) == own[:1]
    known.lines[mutation.path][4] = ["c::never"]
    at_import = mutation._replace(line=4, at_import=True)
    assert mutations.tests_for(at_import, known, budget=14.0) == [own[0], "c::never", *found[1:-1]]
