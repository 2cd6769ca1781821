"""Breaks the library in small ways, one at a time, and says which of them the tests notice.

Two steps, each from the root of a checkout with the development extra and `coverage`:

    python tools/mutations.py map                    once: which test runs which line (build/mutations.json)
    python tools/mutations.py run --count 100        100 mutations, drawn by `--seed`, in a copy of the checkout

A mutation changes one place of the sources: a comparison, a number by one, two arguments swapped, a statement or a
`raise` left out, a condition negated, `and` for `or`. It is drawn from the lines that some test runs. The tests that
run its line are tried, the quick ones first, and the first that fails ends it: the mutation is caught. One that every
test passes, within `--budget` seconds of them, survives: read it, for it is the same program in other words or a gap
of the tests. `run --only functional_rb/samplers` keeps to a folder, `run --show` lists the mutations and runs nothing.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "build" / "mutations.json"
SOURCES = ("functional_rb", "jax_backend", "torch_backend")
# What a copy for mutations does without.
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "out")
# Tests tried in one process before the others are: most mutations fail in it.
QUICK = 12
# Functions whose last two arguments may as well be swapped, or never work when they are.
UNSWAPPED = {"isinstance", "issubclass", "hasattr", "getattr", "cast", "maximum", "minimum", "max", "min", "zip"}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


class Mutation(NamedTuple):
    """One change: the text from `start` to `end` in a file's bytes becomes `text`.

    Only importing the module runs what is not in the body of a function, such as a default.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str
    at_import: bool = False


class Map(NamedTuple):
    """Which tests run which lines.

    Attributes:
        seconds: how long each test takes, by its name.
        lines: path -> line -> the names of the tests that run it.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]


# --- which test runs which line --------------------------------------------------------------------------------------


class Recorder:
    """A plugin of pytest: the lines of the library that each test runs, and how long it takes."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def lines_by_test(data: Any, root: Path) -> dict[str, dict[int, list[str]]]:
    """The lines that tests ran, of what `coverage` wrote; what only importing runs is left out."""
    return {
        str(Path(file).relative_to(root)): {
            line: sorted(names)
            for line, contexts in sorted(data.contexts_by_lineno(file).items())
            if (names := {name for name in contexts if "::" in name})
        }
        for file in sorted(data.measured_files())
    }


def make_map(arguments: list[str]) -> None:
    """Run the tests, all or those named by pytest's arguments, and write the map."""
    try:
        import coverage
    except ImportError:
        sys.exit("the map of tests needs coverage: .venv/bin/python -m pip install coverage")
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        covered = coverage.Coverage(
            data_file=f"{folder}/coverage",
            include=[f"{ROOT / name}/*" for name in SOURCES],
            config_file=False,
            messages=False,
        )
        recorder = Recorder(covered)
        os.chdir(ROOT)
        covered.start()
        pytest.main(["-n0", "-q", "-p", "no:cacheprovider", *arguments], plugins=[recorder])
        covered.stop()
        lines = lines_by_test(covered.get_data(), ROOT)
    write_map(Map(recorder.seconds, lines))


def write_map(known: Map) -> None:
    """With the number of a test in place of its name: a line is run by up to thousands."""
    number = {name: k for k, name in enumerate(known.seconds)}
    lines = {
        path: {line: [number[name] for name in names] for line, names in of_file.items()}
        for path, of_file in known.lines.items()
    }
    MAP.parent.mkdir(exist_ok=True)
    MAP.write_text(json.dumps({"seconds": known.seconds, "lines": lines}))


def read_map() -> Map:
    if not MAP.exists():
        sys.exit(f"there is no {MAP.relative_to(ROOT)} yet: python tools/mutations.py map")
    read = json.loads(MAP.read_text())
    names = list(read["seconds"])
    lines = {
        path: {int(line): [names[k] for k in numbers] for line, numbers in of_file.items()}
        for path, of_file in read["lines"].items()
    }
    return Map(read["seconds"], lines)


# --- mutations -------------------------------------------------------------------------------------------------------


def mutations_of(path: str, source: str) -> Iterator[Mutation]:
    """Every mutation of a module, in the order of its syntax tree; annotations and docstrings have none."""
    offsets = [0]
    for text in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(text))

    def span(node: Any) -> tuple[int, int]:
        return (
            offsets[node.lineno - 1] + node.col_offset,
            offsets[node.end_lineno - 1] + node.end_col_offset,
        )

    def text_of(node: ast.AST) -> str:
        start, end = span(node)
        return source.encode()[start:end].decode()

    tree = ast.parse(source)
    bodies = [span(part) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for part in node.body]
    for node in _with_behaviour(tree):
        for kind, place, text in _changes(node, text_of):
            start, end = span(place)
            at_import = not any(first <= start < last for first, last in bodies)
            yield Mutation(path, place.lineno, kind, start, end, text, at_import)


def _with_behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """A tree's nodes without annotations, which nothing runs, and what only type checkers read."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            checked_only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not checked_only:
                yield from _with_behaviour(child)


def _changes(node: ast.AST, text_of: Any) -> Iterator[tuple[str, Any, str]]:
    """What a node can be changed to: the kind, the node whose text is replaced, and by what."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            old, new = COMPARISONS[type(operator)]
            yield f"{old} to {new}", node, f"({text_of(left)}) {new} ({text_of(right)})"
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield "number + 1", node, f"({number + 1})"
            yield "number - 1", node, f"({number - 1})"
        case ast.Call(func=function, args=[*begin, first, second], keywords=named):
            texts = [text_of(argument) for argument in (*begin, second, first, *named)]
            starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            if not starred and text_of(first) != text_of(second) and _name(function) not in UNSWAPPED:
                yield "arguments swapped", node, f"({text_of(function)})({', '.join(texts)})"
        case ast.BoolOp(op=operator, values=values):
            new = "or" if isinstance(operator, ast.And) else "and"
            yield f"to {new}", node, "(" + f" {new} ".join(f"({text_of(value)})" for value in values) + ")"
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "condition negated", test, f"(not ({text_of(test)}))"
        case ast.Raise():
            yield "raise left out", node, "pass"
        case ast.Expr(value=ast.Call()):
            yield "call left out", node, "pass"
        case ast.AugAssign():
            yield "assignment left out", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "assignment left out", node, "pass"


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def drawn(known: Map, only: str, count: int, seed: int) -> list[Mutation]:
    """Mutations of lines that tests run, each place as likely as another; every one can be compiled."""
    found = []
    for path, of_file in sorted(known.lines.items()):
        if path.startswith(only):
            source = (ROOT / path).read_text()
            found += [mutation for mutation in mutations_of(path, source) if mutation.line in of_file]
    chosen = []
    for mutation in random.Random(seed).sample(found, len(found)):
        if len(chosen) == count:
            break
        try:
            compile(mutated(mutation, ROOT), mutation.path, "exec")
        except SyntaxError:
            continue
        chosen.append(mutation)
    return chosen


def mutated(mutation: Mutation, root: Path) -> bytes:
    """The module's source with the change."""
    source = (root / mutation.path).read_bytes()
    return source[: mutation.start] + mutation.text.encode() + source[mutation.end :]


# --- trials ----------------------------------------------------------------------------------------------------------


def tests_for(mutation: Mutation, known: Map, budget: float) -> list[str]:
    """Tests that run the line, for so many seconds: the quickest of each test module, those of the package, the others.

    Of the others each module has its turn, so that no module's many cases keep the rest from being tried. Where only
    importing runs the line, these are the tests that run any line of the file.
    """
    lines = known.lines[mutation.path]
    running = {name for line in (lines if mutation.at_import else [mutation.line]) for name in lines[line]}
    turns: dict[str, int] = collections.defaultdict(int)
    ranks = []
    own = f"tests/{Path(mutation.path).parts[1]}/"
    for name in sorted(running, key=lambda name: (known.seconds.get(name, 1.0), name)):
        module = name.partition("::")[0]
        turn = min(turns[module], 1) if name.startswith(own) else turns[module]
        turns[module] += 1
        ranks.append((turn, not name.startswith(own), known.seconds.get(name, 1.0), name))
    chosen, left = [], budget
    for *_, seconds, name in sorted(ranks):
        if not chosen or seconds <= left:
            chosen.append(name)
            left -= seconds
    return chosen


def failing_test(root: Path, tests: list[str], limit: float) -> str:
    """The first test that fails, or why none could be run; empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-rfE"]
    environment = os.environ | {"PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [*command, *tests],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # with the processes that the test has started
        process.communicate()
        return "none ended in time"
    if process.returncode == 0:
        return ""
    reports = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    named = [line.partition(" ")[2].partition(" - ")[0] for line in reports]
    return named[0] if named else f"pytest ended with {process.returncode}: {output.strip()[-100:]}"


def tried(mutation: Mutation, root: Path, known: Map, budget: float) -> str:
    """The test that caught the mutation in a copy of the checkout, or the empty string."""
    tests = tests_for(mutation, known, budget)
    file, before = root / mutation.path, (root / mutation.path).read_bytes()
    file.write_bytes(mutated(mutation, root))
    try:
        for part in (tests[:QUICK], tests[QUICK:]):
            expected = sum(known.seconds.get(name, 1.0) for name in part)
            if part and (failing := failing_test(root, part, 60 + 5 * expected)):
                return failing
        return ""
    finally:
        file.write_bytes(before)
        # Python takes a compiled module for the source's if their times, in whole seconds, and sizes agree.
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()


def copies(folder: Path, jobs: int) -> Generator[Path]:
    for k in range(jobs):
        yield shutil.copytree(ROOT, folder / str(k), ignore=LEFT_OUT, symlinks=True)


def run(arguments: argparse.Namespace) -> None:
    known = read_map()
    chosen = drawn(known, arguments.only, arguments.count, arguments.seed)
    if arguments.show:
        for mutation in chosen:
            print(described(mutation))
        return
    outcomes: dict[str, collections.Counter[bool]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as threads:
        roots: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for root in copies(Path(folder), arguments.jobs):
            roots.put(root)

        def trial(mutation: Mutation) -> tuple[str, float]:
            root, begin = roots.get(), time.monotonic()
            try:
                return tried(mutation, root, known, arguments.budget), time.monotonic() - begin
            finally:
                roots.put(root)

        for mutation, (failing, seconds) in zip(chosen, threads.map(trial, chosen), strict=True):
            outcomes[mutation.kind][bool(failing)] += 1
            outcome = f"caught by {failing}" if failing else "SURVIVED"
            print(f"{described(mutation)}\n    {outcome} ({seconds:.0f} s)", flush=True)
    print("\n| mutation | caught | survived |\n|---|---|---|")
    for kind, caught in sorted(outcomes.items()):
        print(f"| {kind} | {caught[True]} | {caught[False]} |")
    print(f"| all | {sum(c[True] for c in outcomes.values())} | {sum(c[False] for c in outcomes.values())} |")


def described(mutation: Mutation) -> str:
    before = (ROOT / mutation.path).read_bytes()[mutation.start : mutation.end].decode()
    return f"{mutation.path}:{mutation.line}: {mutation.kind}: {_short(before)} -> {_short(mutation.text)}"


def _short(text: str) -> str:
    return " ".join(text.split())[:70]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("map", help="run the tests and note which lines each runs; more arguments go to pytest")
    runs = commands.add_parser("run", help="try mutations")
    runs.add_argument("--count", type=int, default=100)
    runs.add_argument("--seed", type=int, default=0)
    runs.add_argument("--jobs", type=int, default=2, help="mutations at a time, each in a copy of its own")
    runs.add_argument("--budget", type=float, default=60.0, help="seconds of tests a mutation has to survive")
    runs.add_argument("--only", default="", help="mutations of files whose path begins so")
    runs.add_argument("--show", action="store_true", help="list the mutations, and run nothing")
    arguments, others = parser.parse_known_args()
    if arguments.command == "map":
        make_map(others)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
