"""Values of graphs where Gymnasium is not installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.specs import graph


def test_graphs_need_no_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium.spaces", None)
    graph.graph_instance.cache_clear()
    try:
        spec = frb.specs.Graph(frb.Binary(), None, 2)
        found = spec.to_host({"nodes": np.array([True, False]), "n_nodes": np.array(1, np.int32)})
        assert type(found) is graph.GraphInstance
        assert found.nodes.tolist() == [True]
        assert found[1:] == (None, None)
        again = spec.from_host(found, ())
        assert (again["nodes"].tolist(), int(again["n_nodes"])) == ([True, False], 1)
    finally:
        graph.graph_instance.cache_clear()
