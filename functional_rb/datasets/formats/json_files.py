"""What others tell of their datasets in files of JSON."""

from __future__ import annotations

from collections.abc import Callable

from functional_rb.base import files, strict_json
from functional_rb.base.strict_json import Json
from functional_rb.datasets.episode import DatasetError, expecting


def json_lines(path: str, what: str) -> list[Json]:
    """The names and values in each line of a file, which are to tell `what`."""
    return [_named(path, what, line, strict_json.parse) for line in _text(path, what).splitlines() if line.strip()]


def json_object(path: str, what: str, parse: Callable[[str], object] = strict_json.parse) -> Json:
    """The names and values in a file, which is to tell `what`."""
    return _named(path, what, _text(path, what), parse)


def _text(path: str, what: str) -> str:
    try:
        return files.read_text(path)
    except (files.UnusableFileError, FileNotFoundError) as error:
        raise DatasetError(f"{path}: expected {what} in JSON: {error}") from None


def _named(path: str, what: str, text: str, parse: Callable[[str], object]) -> Json:
    with expecting(f"{path}: expected {what} in JSON", ValueError, RecursionError, remedy=""):
        content = parse(text)
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected {what} by name, got {type(content).__name__}")
    return content
