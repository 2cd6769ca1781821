"""The code blocks of the README and of the pages under docs/ run as they stand, on each backend that they are for."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from tests.support.backends import Backend

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]


def blocks_of(text: str) -> list[tuple[int, str, str]]:
    """(line of its first statement, "jax", "torch" or "" for both, source) of every Python block."""
    fences = re.finditer(r"^```python[ ]*(\w*)[ ]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: fence.start(2)].count("\n") + 1, fence[1], fence[2]) for fence in fences]


def run(page: Path, text: str, backend: Backend) -> list[int]:
    """Run a page's blocks in one namespace; the lines at which those begin that were run."""
    module = types.ModuleType("__page__")
    namespace = vars(module)
    namespace["rb"] = backend.rb
    sys.modules["__page__"] = module  # so that pickle finds what the page defines
    ran = []
    for line, library, source in blocks_of(text):
        assert library in ("", "jax", "torch"), f"{page.name}:{line}: unknown tag {library!r}"
        if library in ("", backend.library):
            # Blank lines before it, so that a traceback names the page's own line.
            exec(compile("\n" * (line - 1) + source, str(page), "exec", dont_inherit=True), namespace)
            ran.append(line)
    return ran


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_run(library: Backend, page: Path) -> None:
    text = page.read_text()
    ran = run(page, text, library)
    expected = [line for line, tag, _ in blocks_of(text) if tag in ("", library.library)]
    assert ran == expected
    # A fence that is not recognised would be left out silently.
    assert len(blocks_of(text)) == len(re.findall(r"^\s*```\s*python", text, re.MULTILINE))


def test_there_are_pages_with_code() -> None:
    assert any(blocks_of(page.read_text()) for page in PAGES)


def test_blocks_are_chosen_by_their_tag(library: Backend) -> None:
    page = "```python\nseen = [rb.__name__]\n```\n\n"
    page += "```python jax\nseen += ['jax']\n```\n```python torch\nseen += ['torch']\n```\n"
    page += "```python\nassert seen == [rb.__name__, rb.__name__.split('_')[0]], seen\n```\n```sh\nnot python\n```\n"
    ran = run(Path("page.md"), page, library)
    assert ran == ([2, 6, 12] if library.library == "jax" else [2, 9, 12])
    with pytest.raises(ZeroDivisionError):
        run(Path("page.md"), "```python\n1 / 0\n```\n", library)
