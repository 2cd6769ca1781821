"""What the sources of the native code declare, read as text: constants, enumerations and records."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import functional_rb.native

SOURCES = Path(functional_rb.native.__file__).parent / "src"


def text_of(name: str) -> str:
    """A header without its comments."""
    return re.sub(r"//[^\n]*", "", (SOURCES / name).read_text())


def constants(name: str) -> dict[str, Any]:
    """The constants of a header by their names: numbers, and lists of numbers."""
    found: dict[str, Any] = {}
    for declared in re.findall(r"\b(?:constexpr|FRB_TABLE)\s+\w+\s+(\w+\s*(?:\[\d+\])?\s*=[^;]*);", text_of(name)):
        for one in re.split(r",\s*(?=[A-Z]\w*\s*=)", declared):
            symbol, _, value = one.partition("=")
            found[symbol.partition("[")[0].strip()] = number(value, found)
    return found


def number(value: str, known: dict[str, Any]) -> Any:
    """What an expression of C++ is in Python, where it is a number, numbers in braces, or a name that is known."""
    value = re.sub(r"int64_t\((\w+)\)", r"\1", value.strip())
    value = re.sub(r"\b(0x[0-9A-Fa-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:ull|u|f|LL)?\b", r"\1", value)
    if value in known:
        return known[value]
    if "<<" in value:
        one, by = value.split("<<")
        return int(one) << int(by)
    if re.fullmatch(r"[A-Z]\w*", value):
        return value
    return ast.literal_eval(value.replace("{", "[").replace("}", "]"))


def enumerations(name: str) -> dict[str, dict[str, int]]:
    """The enumerations of a header by their names: the number of each of their own."""
    found: dict[str, dict[str, int]] = {}
    for symbol, body in re.findall(r"\benum\s+(\w+)\s*\{([^}]*)\}", text_of(name)):
        numbers: dict[str, int] = {}
        following = 0
        for one in filter(None, map(str.strip, body.split(","))):
            key, _, value = (part.strip() for part in one.partition("="))
            numbers[key] = int(value) if value else following
            following = numbers[key] + 1
        found[symbol] = numbers
    return found


def records(name: str) -> dict[str, str]:
    """The fields of the records of a header, one blank apart."""
    found = re.findall(r"\bFRB_RECORD\((\w+),([^)]*)\);", text_of(name))
    return {symbol: " ".join(fields.split()) for symbol, fields in found}
