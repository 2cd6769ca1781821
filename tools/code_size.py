"""Counts what a reader has to read: `python tools/code_size.py [FOLDER]` prints a table of Markdown.

Lines of code, docstring and comment are told apart by Python's own tokens and syntax tree. Run it on two checkouts for
the table of a change. Of any other folder with Python in it there is one column.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {
    "source": ("functional_rb", "jax_backend", "torch_backend"),
    "tests": ("tests",),
    "other": ("benchmarks", "examples", "tools"),
}
MOST_ARGUMENTS = 8
# From how many statements on two functions of the same body count as a duplicate.
LEAST_REPEATED = 3
NAMES = """
import importlib, types
import functional_rb as frb

def public(module):
    listed = getattr(module, "__all__", None)
    there = {n: x for n, x in vars(module).items() if n[0] != "_" and not isinstance(x, types.ModuleType)}
    return listed or [n for n, x in there.items() if getattr(x, "__module__", module.__name__) == module.__name__]

found = set()
for shown, module in (("frb", frb), *(("rb", importlib.import_module(f"{one}_backend")) for one in ("jax", "torch"))):
    for name in public(module):
        found.add(f"{shown}.{name}")
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            found |= {f"{shown}.{name}.{inner}" for inner in public(value)}
print(len(frb.__all__), len(found))
"""
# Modules that pages name beside the two namespaces `frb` and `rb`.
ON_PAGES = (
    *("functional_rb.testing", "functional_rb.scale.ray", "functional_rb.scale.transfer_queue"),
    *("functional_rb.scale.verl", "functional_rb.__main__"),
)
PUBLIC = """
import importlib, types

def public(module):
    listed = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
    return {f"{module.__name__}.{name}" for name in listed}

packages = [importlib.import_module(name) for name in ("functional_rb", "jax_backend", "torch_backend")]
spaces = [getattr(x, name) for x in packages for name in x.__all__ if isinstance(getattr(x, name), types.ModuleType)]
for module in [*packages, *spaces, *map(importlib.import_module, ON_PAGES)]:
    print(module.__name__, *public(module))
"""
IMPORT = """
import sys, time
import numpy
before, modules = time.process_time(), len(sys.modules)
import functional_rb
print(f"{time.process_time() - before:.3f} s, {len(sys.modules) - modules} modules")
"""


class Lines(NamedTuple):
    """Of each kind so many lines."""

    code: int
    docstring: int
    comment: int
    blank: int


def lines_of(source: str, tree: ast.Module) -> Lines:
    """What each line of a module is; code with a comment behind it is code."""
    total = source.count("\n")
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    comments, code = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.string.strip():
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docstrings
    comments -= code | docstrings
    return Lines(len(code), len(docstrings), len(comments), total - len(code | docstrings | comments))


def functions_of(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, list[ast.stmt]]]:
    """Each function and its statements, without the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, node.body[ast.get_docstring(node) is not None :]


def arguments_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments a call may give by name or place, `self` and `cls` aside."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def measured(root: Path, folders: tuple[str, ...]) -> dict[str, str]:
    """What there is in some folders below another, by its name."""
    found, lengths, arguments, bodies = Lines(0, 0, 0, 0), [], [], collections.Counter[str]()
    short = anything = protocols = modules = 0
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        modules += 1
        found = Lines(*map(sum, zip(found, lines_of(source, tree), strict=True)))
        anything += len(re.findall(r"\bAny\b", re.sub(r"^ *from .* import .*$", "", source, flags=re.MULTILINE)))
        protocols += len(re.findall(r"^ *class .*\bProtocol\b.*:", source, re.MULTILINE))
        for node, body in functions_of(tree):
            own = {line for part in body for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)}
            lengths.append(len(own) + 1)
            arguments.append(arguments_of(node))
            short += len(body) <= 1
            if len(body) >= LEAST_REPEATED:
                bodies["\n".join(map(ast.dump, body))] += 1
    return {
        "modules": f"{modules:,}",
        "lines": f"{sum(found):,}",
        "lines of code": f"{found.code:,}",
        "lines of docstrings": f"{found.docstring:,}",
        "lines of comments": f"{found.comment:,} (1 for {found.code / max(found.comment, 1):.0f} of code)",
        "functions": f"{len(lengths):,}",
        "lines of a function": f"{statistics.mean(lengths or [0]):.1f}",
        "functions of one statement": f"{short / max(len(lengths), 1):.0%}",
        "functions of more than 8 arguments": (
            f"{sum(n > MOST_ARGUMENTS for n in arguments)} (most: {max(arguments, default=0)})"
        ),
        "functions whose body is there again": f"{sum(n for n in bodies.values() if n > 1)}",
        "`Any`": f"{anything:,}",
        "Protocols": f"{protocols}",
    }


def imported(source: str) -> Iterator[str]:
    """The dotted names that a module imports from the library."""
    for node in ast.walk(ast.parse(source)):
        names = [name.name for name in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names] if not node.level else []
        yield from (name for name in names if name.split(".")[0] in GROUPS["source"])


def of_internals(root: Path) -> dict[Path, set[str]]:
    """The test modules that import what is neither public nor imported on a page for users, and what that is."""
    public = set(told(root, PUBLIC.replace("ON_PAGES", repr(ON_PAGES))).split())
    for page in [*(root / "docs").glob("*.md"), root / "README.md"]:
        if page.name != "internals.md":
            for line in re.findall(r"^(?:from \S+ )?import .*$", page.read_text(), re.MULTILINE):
                with contextlib.suppress(SyntaxError):  # a sentence
                    public.update(imported(line))
    found = {path: set(imported(path.read_text())) - public for path in sorted((root / "tests").rglob("test_*.py"))}
    return {path: names for path, names in found.items() if names}


def told(root: Path, program: str) -> str:
    """What a program prints in a process of its own, which imports the checkout."""
    return subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True).stdout


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    is_checkout = all((root / folder).is_dir() for folders in GROUPS.values() for folder in folders)
    if not is_checkout and not any(root.rglob("*.py")):
        raise SystemExit(f"{root}: expected a checkout, or a folder with Python in it; there are no *.py files")
    groups = GROUPS if is_checkout else {root.name: (".",)}
    columns = [measured(root, folders) for folders in groups.values()]
    print(f"| | {' | '.join(groups)} |\n|---|{'---|' * len(groups)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(column[name] for column in columns)} |")
    if not is_checkout:
        return
    in_frb, all_names = told(root, NAMES).split()
    modules = len([*(root / "tests").rglob("test_*.py")])
    print(f"\nTest modules that import internals: {len(of_internals(root))} of {modules}.")
    words = sum(len(path.read_text().split()) for path in [*(root / "docs").glob("*.md"), root / "README.md"])
    print(f"\nPublic names: {in_frb} in `frb`, {all_names} in all (each of `rb` once, whichever backends have it).")
    print(f"Pages: {words:,} words. `import functional_rb` beside NumPy: {told(root, IMPORT).strip()}.")


if __name__ == "__main__":
    main()
