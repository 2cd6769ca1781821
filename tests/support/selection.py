"""Which tests `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def long(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that `make test` leaves out.

    Those of the mark `long`; of those of the mark `few_on_jax(n)` all cases but n of each variant of JAX, from one
    variant to the next other ones; and of those of the mark `few(n)` all cases but n of every variant, spread over the
    table, and other ones likewise. The marks' argument `by` names the test's argument that tells the variant; cases in
    which nothing tells it are of one variant.
    """
    cases = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        mark = _mark(item)
        if item.get_closest_marker("long"):
            yield item
        elif mark and (mark.name == "few" or _variant(item, mark).startswith("jax")):
            cases[item.nodeid.partition("[")[0], _variant(item, mark)].append(item)
    begin = defaultdict[str, int](int)
    for (test, _), of_a_variant in cases.items():
        mark = _mark(of_a_variant[0])
        assert mark
        (count,), total = mark.args, len(of_a_variant)
        spread = count if mark.name == "few" else 1
        for k, item in enumerate(of_a_variant):
            if (k - begin[test]) * spread % total >= count:
                yield item
        begin[test] += 1 if mark.name == "few" else count


def of_torch(item: Any) -> bool:
    """Whether a test is carried out by torch: the fixture of the backend says so, or else its name."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    named = params.get("backend", params.get("library"))
    return "torch" in item.name if named is None else str(named).startswith("torch")


def _mark(item: pytest.Item) -> pytest.Mark | None:
    return item.get_closest_marker("few_on_jax") or item.get_closest_marker("few")


def _variant(item: Any, mark: pytest.Mark) -> str:
    """What carries a test out: "jax", "jax-core", "torch"."""
    params = item.callspec.params
    told = params[mark.kwargs["by"]] if "by" in mark.kwargs else params.get("backend", params.get("library"))
    return str(getattr(told, "__name__", told)).lower()
