"""The code blocks of the README and of the pages under docs/ run as they stand, on each backend that they are for."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import inspect
import operator
import pkgutil
import re
import subprocess
import sys
import types
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest

import functional_rb
import jax_backend
import torch_backend
from tests.support.backends import Backend
from tests.support.effort import effort

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]


def blocks_of(text: str) -> list[tuple[int, str, str]]:
    """(line of its first statement, "jax", "torch" or "" for both, source) of every Python block."""
    fences = re.finditer(r"^```python[ ]*(\w*)[ ]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: fence.start(2)].count("\n") + 1, fence[1], fence[2]) for fence in fences]


def outside_of_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def names_of(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names that a block takes from those before it, and those that it gives to those after it."""
    taken, given = set[str](), set[str]()
    for each in dis.get_instructions(code):
        if each.opname == "STORE_NAME":
            given.add(each.argval)
        elif each.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            taken |= {each.argval} - given
        elif isinstance(each.argval, types.CodeType):
            taken |= names_of(each.argval)[0] - given
    return taken, given


def about(text: str, library: str) -> list[int]:
    """The lines of the blocks for one backend alone, of those that go on from them, and of all that these rest on."""
    blocks = [(line, tag, *names_of(compile(source, "", "exec"))) for line, tag, source in blocks_of(text)]
    blocks = [block for block in blocks if block[1] in ("", library)]
    found, last = set[int](), dict[str, str]()
    for line, tag, taken, given in blocks:
        if tag or any(last.get(name) for name in taken):
            found.add(line)
        last |= dict.fromkeys(given, tag)
    needed = set[str]()
    for line, _, taken, given in reversed(blocks):
        if line in found or given & needed:
            found.add(line)
            needed = needed - given | taken
    return sorted(found)


def run(page: Path, text: str, backend: Backend, chosen: Container[int] | None = None) -> list[int]:
    """Run a page's blocks in one namespace, or those at some lines; the lines at which those begin that were run."""
    module = types.ModuleType("__page__")
    namespace = vars(module)
    namespace["rb"] = backend.rb
    sys.modules["__page__"] = module  # so that pickle finds what the page defines
    ran, named = [], set[str]()
    for line, library, source in blocks_of(text):
        assert library in ("", "jax", "torch"), f"{page.name}:{line}: unknown tag {library!r}"
        if library in ("", backend.library) and (chosen is None or line in chosen):
            # Blank lines before it, so that a traceback names the page's own line.
            code = compile("\n" * (line - 1) + source, str(page), "exec", dont_inherit=True)
            exec(code, namespace)
            ran.append(line)
            named |= set(code.co_names)
    # Functions of a page may be part of specs, which compiled programs keep: and with them all that the page has made.
    # Only what the page names itself goes: torch.compile puts globals there too, and takes them away by itself.
    for name in named & namespace.keys():
        del namespace[name]
    return ran


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_sentences_and_tables_exist(page: Path) -> None:
    """What is in blocks of code runs; elsewhere a name of `frb` has to exist, and one of `rb` on either backend."""
    text = outside_of_blocks(page.read_text())
    modules = {"frb": [functional_rb], "rb": [jax_backend, torch_backend]}
    for root, path in set(re.findall(r"\b(frb|rb)((?:\.[A-Za-z_]\w*)+)", text)):
        assert any(has(module, path) for module in modules[root]), f"{page.name}: {root}{path}"
    spec = functional_rb.BufferSpec(functional_rb.Unbounded(()), 1)
    for path in re.findall(r"frb\.BufferSpec\(spec, capacity\)((?:\.\w+)+)", text):
        assert has(spec, path), f"{page.name}: BufferSpec{path}"


def calls_of(text: str) -> list[tuple[str, set[str]]]:
    """What sentences and tables call, in `code`, and by which names they give its arguments."""
    found = []
    for code in re.findall(r"`([^`]+)`", outside_of_blocks(text)):
        with contextlib.suppress(SyntaxError):  # no Python, such as a shape
            tree = ast.parse(re.sub(r"(\w+)=(?=[,)])", r"\1=None", " ".join(code.split())))
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            found += [(ast.unparse(call.func), {word.arg or "" for word in call.keywords}) for call in calls]
    return found


NAMESPACES = (
    *("frb", "frb.text", "frb.datasets", "frb.datasets.Dataset", "frb.ted", "frb.trees", "frb.items"),
    *("frb.checkpoint", "frb.ray", "frb.ray.Client", "rb", "rb.text", "rb.trees"),
)


def takes(name: str, named: set[str]) -> bool:
    """Whether one of what has this name, on either backend, takes arguments of these names; True if nothing has it."""
    places = [name] if name.startswith(("frb.", "rb.")) else [f"{place}.{name}" for place in NAMESPACES]
    roots = [{"frb": functional_rb, "rb": backend} for backend in (jax_backend, torch_backend)]
    pairs = [(root[place.split(".")[0]], "." + place.partition(".")[2]) for place in places for root in roots]
    found = [operator.attrgetter(path[1:])(root) for root, path in pairs if has(root, path)]
    signatures = [inspect.signature(thing) for thing in found if callable(thing)]
    return not signatures or any(
        named <= each.parameters.keys() or any(p.kind is p.VAR_KEYWORD for p in each.parameters.values())
        for each in signatures
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_arguments_in_sentences_and_tables_exist(page: Path) -> None:
    """Bare names stand in tables for what other libraries have, too."""
    text = page.read_text()
    sentences = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    calls = [call for call in calls_of(text) if call[0].startswith(("frb.", "rb."))] + calls_of(sentences)
    assert [call for call in calls if not takes(*call)] == []


def test_an_argument_that_is_not_there_is_found() -> None:
    calls = calls_of("see `frb.load(path, rb, spec=)`, `rb.add(s, x, weight=1)` and `preference(rows, words, bad=0)`")
    assert [takes(*call) for call in calls] == [True, False, False]


def has(thing: Any, path: str) -> bool:
    """Whether it has such an attribute, and that another one, and so on: `.a.b`."""
    try:
        operator.attrgetter(path[1:])(thing)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_run(library: Backend, page: Path) -> None:
    """All on torch, which compiles nothing; on JAX the README, and of others what is about JAX alone."""
    text = page.read_text()
    expected = [line for line, tag, _ in blocks_of(text) if tag in ("", library.library)]
    if library.library == "jax" and not effort(page.name == "README.md", True):
        expected = about(text, "jax")
        if not expected:
            pytest.skip("a long search: make test-all")
    ran = run(page, text, library, expected)
    assert ran == expected
    # A fence that is not recognised would be left out silently.
    assert len(blocks_of(text)) == len(re.findall(r"^\s*```\s*python", text, re.MULTILINE))


def named_paths(text: str) -> set[str]:
    """Paths of the repository, and modules, that a page names."""
    text = re.sub(r"https?://\S+", "", text)
    packages = "functional_rb|jax_backend|torch_backend"
    found = set(re.findall(rf"\b(?:{packages}|tests|tools|benchmarks|examples|docs)(?:/[\w.-]*\w)+", text))
    modules = re.findall(rf"\b((?:{packages})(?:\.[a-z_]\w*)+)", text)
    return found | {name for name in modules if not name.endswith((".json", ".py"))}


def exists(name: str) -> bool:
    """Whether a path is there, or a module, or what a module has."""
    if "/" in name or name.endswith((".md", ".toml")):
        return (ROOT / name).exists() or (ROOT / f"{name}.py").exists()
    try:
        return pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_links_exist(page: Path) -> None:
    text = page.read_text()
    assert [name for name in sorted(named_paths(text)) if not exists(name)] == []
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_a_path_that_is_not_there_is_found() -> None:
    assert named_paths("see `functional_rb/nowhere.py`") == {"functional_rb/nowhere.py"}
    assert not exists("functional_rb/nowhere.py")
    assert not exists("functional_rb.nowhere.at_all")


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len([line for line in lines if not re.match(r"\[\S+\]: https://", line)]) <= 150


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in PAGES[1:] if page.name != "index.md" and f"({page.name})" not in index] == []


@pytest.mark.long
def test_functions_entered_are_those_of_the_table() -> None:
    text = (ROOT / "docs" / "internals.md").read_text()
    row = re.compile(r"^\| ([^|]+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
    # In a process of its own: what other tests have compiled and patched adds to it.
    program = [sys.executable, "-m", "tools.count_functions"]
    run = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=True)
    found, told = ({carrier: (int(a), int(b)) for carrier, a, b in row.findall(x)} for x in (run.stdout, text))
    assert found.keys() == told.keys()
    for carrier, numbers in found.items():
        assert numbers == pytest.approx(told[carrier], rel=0.15), carrier


@pytest.mark.long
def test_attributes_that_are_documented_are_there() -> None:
    """A class's section "Attributes:" names what the class, or one that it inherits from, speaks of."""
    classes: dict[str, list[tuple[ast.ClassDef, str]]] = {}
    for package in ("functional_rb", "jax_backend", "torch_backend"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append((node, ast.get_docstring(node) or ""))

    def words(name: str) -> set[str]:
        found = set(dir(getattr(builtins, name, None)))
        for node, doc in classes.get(name, []):
            body = ast.unparse(node.body[1:] if doc else node.body)
            found |= set(re.findall(r"\w+", body)).union(
                *(words(ast.unparse(base).split("[")[0]) for base in node.bases)
            )
        return found

    documented = 0
    for name, nodes in classes.items():
        for _, doc in nodes:
            for section in re.findall(r"^Attributes:\n((?: .*\n|\n)*)", f"{doc}\n", re.MULTILINE):
                told = re.findall(r"^    (\w+(?:, \w+)*):", section, re.MULTILINE)
                documented += len(told)
                assert {one for line in told for one in line.split(", ")} <= words(name), name
    assert documented > 500


TEXT = torch_backend.text


@pytest.mark.parametrize("function", [TEXT.gae, TEXT.generate, TEXT.rollout, functional_rb.text.pack])
def test_help_tells_of_each_field_that_functions_of_text_give(function: Any) -> None:
    name = inspect.signature(function).return_annotation
    ours = (x for x in tuple.__subclasses__() if x.__module__.startswith("functional_rb."))
    given: Any = next(x for x in ours if x.__name__ == name)
    told = re.findall(r"^    (\w+): .*\w", inspect.getdoc(given) or "", re.MULTILINE)
    assert told == list(given._fields)


def test_there_are_pages_with_code() -> None:
    assert any(blocks_of(page.read_text()) for page in PAGES)


def test_blocks_about_one_backend_come_with_what_they_rest_on() -> None:
    page = "```python\nx = 1\n```\n```python\ny = x\n```\n```python\nz = 5\n```\n"
    page += "```python jax\ndef f():\n    return y\n```\n```python\nz = f()\n```\n```python\nf, w = 0, z\n```\n"
    assert about(page, "jax") == [2, 5, 11, 15]
    assert about(page, "torch") == []


def test_blocks_are_chosen_by_their_tag(library: Backend) -> None:
    page = "```python\nseen = [rb.__name__]\n```\n\n"
    page += "```python jax\nseen += ['jax']\n```\n```python torch\nseen += ['torch']\n```\n"
    page += "```python\nassert seen == [rb.__name__, rb.__name__.split('_')[0]], seen\n```\n```sh\nnot python\n```\n"
    ran = run(Path("page.md"), page, library)
    assert ran == ([2, 6, 12] if library.library == "jax" else [2, 9, 12])
    with pytest.raises(ZeroDivisionError):
        run(Path("page.md"), "```python\n1 / 0\n```\n", library)
