"""JSON as its standard has it: each name once, no NaN and no infinity. Python's parser takes more."""

from __future__ import annotations

import json
import math
from typing import Any, TypeAlias

# An object of JSON, by its names.
Json: TypeAlias = dict[str, Any]


def parse(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if the text is no JSON.
        RecursionError: if it is nested too deeply.

    Example:
        >>> parse('{"a": [1, null]}')
        {'a': [1, None]}
    """
    return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)


def finite(value: object) -> object:
    """A value with null (None) in place of NaN and infinities, which JSON has not.

    Raises:
        TypeError: for a dict whose keys are no texts, as JSON's are: others would come back as texts.

    Example:
        >>> finite({"a": [1.0, float("nan")]})
        {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"expected texts as keys, got {name!r:.80}; write {str(name)!r:.80}")
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _distinct(pairs: list[tuple[str, object]]) -> Json:
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        raise ValueError("a name comes twice")
    return by_name


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
