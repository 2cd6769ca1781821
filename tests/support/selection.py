"""Which tests `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def long(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that `make test` leaves out.

    Those of the mark `long`; and of those of the mark `few_on_jax(n)` all cases but n of each variant of JAX, from one
    variant to the next other ones. The mark's argument `by` names the test's argument that tells the variant.
    """
    cases = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        mark = item.get_closest_marker("few_on_jax")
        if item.get_closest_marker("long"):
            yield item
        elif mark and _variant(item, mark).startswith("jax"):
            cases[item.nodeid.partition("[")[0], _variant(item, mark)].append(item)
    begin = defaultdict[str, int](int)
    for (test, _), of_a_variant in cases.items():
        (count,) = of_a_variant[0].get_closest_marker("few_on_jax").args
        for k, item in enumerate(of_a_variant):
            if (k - begin[test]) % len(of_a_variant) >= count:
                yield item
        begin[test] += count


def _variant(item: Any, mark: pytest.Mark) -> str:
    """What carries a test out: "jax", "jax-core", "torch"."""
    params = item.callspec.params
    told = params[mark.kwargs["by"]] if "by" in mark.kwargs else params.get("backend", params.get("library"))
    return str(getattr(told, "__name__", told)).lower()
