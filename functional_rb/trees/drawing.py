"""Trees as text, and as interactive pages."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.dtypes import checked_count
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.trees.nodes_in_order import Bools, Ints, Nodes
from functional_rb.trees.spec import INT32_MAX

# Makes the text of a node, of its tree and its number; users see the tree as a `TreeView`.
Describe: TypeAlias = Callable[[Any, int], str]
# A `plotly.graph_objects.Figure`: plotly is imported when it is needed, and has no types.
Figure: TypeAlias = Any
# Nodes that a page shows: deeper levels are folded.
MOST = 5000
# Edges whose actions are shown as text.
FEW = 60
# The colour of edges.
LINE = "#b8bec8"


def to_string(seen: Nodes, node_format: Describe | None, max_nodes: int) -> str:
    max_nodes = checked_count("TreeView.to_string: max_nodes", max_nodes, 1, INT32_MAX)
    describe = node_format or _line_of
    order = seen.in_preorder[:max_nodes]
    lines, last = [], np.zeros(int(seen.depth[-1]) + 1, bool)
    for node in order.tolist():
        depth = int(seen.depth[node])
        if depth:
            last[depth] = seen.slot[node] + 1 == seen.num_children[seen.parent[node]]
        bars = ["    " if last[k] else "|   " for k in range(1, depth)]
        corner = ("`-- " if last[depth] else "|-- ") if depth else ""
        lines.append("".join(bars) + corner + describe(seen, node))
    if len(order) < len(seen):
        lines.append(f"... and {len(seen) - len(order)} nodes more")
    return "\n".join(lines)


def _line_of(seen: Nodes, node: int) -> str:
    by = "" if node == 0 else f" by {_short(seen.branching_action(node))}"
    more = "".join(f", {word}" for word, holds in _remarks(seen, node) if holds)
    return f"{seen.vertex[node]}{by}: visits {seen.visits[node]}, value {seen.value[node]:.3g}{more}"


def _remarks(seen: Nodes, node: int) -> list[tuple[str, bool]]:
    return [("terminal", seen.terminal[node]), ("repeats", seen.repeats[node]), ("cut off", seen.cut[node])]


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_short(child)}" for name, child in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(_short, value)) + ")"
    text = np.array2string(np.asarray(value), precision=3, threshold=8, separator=", ", max_line_width=1000)
    return text.replace("\n", " ")


def layout(seen: Nodes, shown: Bools | None = None) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Where the nodes of a picture stand from left to right, float64 [n]; NaN for those that are not shown, bool [n].

    In O(n): leaves are numbered from left to right, and a parent stands in the middle between its first and its last
    child. So no two edges cross, and no two nodes of a level are closer than a step.
    """
    shown = np.ones(len(seen), bool) if shown is None else shown
    has_below = np.zeros(len(seen), bool)
    has_below[seen.parent[1:][shown[1:]]] = True
    leaves = np.flatnonzero(shown & ~has_below)
    x = np.full(len(seen), np.nan)
    x[leaves[np.argsort(seen.preorder[leaves])]] = np.arange(len(leaves))
    for level in range(len(seen.levels) - 2, 0, -1):
        nodes = np.arange(seen.levels[level], seen.levels[level + 1])
        nodes = nodes[shown[nodes]]
        up = seen.parent[nodes]
        first, last = np.unique(up, return_index=True)[1], len(up) - 1 - np.unique(up[::-1], return_index=True)[1]
        x[up[first]] = (x[nodes[first]] + x[nodes[last]]) / 2
    return x


def folded(seen: Nodes, most: int) -> Bools:
    """Which nodes a picture shows: whole levels, as many as there is room for, and of the next the most visited."""
    shown = np.zeros(len(seen), bool)
    deepest = int(np.searchsorted(seen.levels[1:], most, "right"))
    end = int(seen.levels[max(deepest, 0)])
    shown[:end] = True  # nodes are numbered level by level
    if end < min(most, len(seen)):
        rest = np.arange(end, int(seen.levels[deepest + 1]))
        shown[rest[np.argsort(-seen.visits[rest], kind="stable")[: most - end]]] = True
    return shown


def plot(
    seen: Nodes,
    path: str | PathLike[str] | None,
    labels: Describe | None,
    max_nodes: int,
) -> Figure:
    page = imported("plotly.graph_objects", "TreeView.plot").Figure(figure(seen, labels, max_nodes))
    if path is not None:
        page.write_html(str(path), include_plotlyjs=True, config={"scrollZoom": True, "displaylogo": False})
    return page


def figure(seen: Nodes, labels: Describe | None = None, max_nodes: int = MOST) -> Json:
    """The figure of `plot` as plotly's JSON describes it, with arrays: `data` and `layout`."""
    shown = folded(seen, checked_count("TreeView.plot: max_nodes", max_nodes, 1, INT32_MAX))
    x, y = layout(seen, shown), -seen.depth.astype(np.float64)
    nodes = np.flatnonzero(shown)
    below = nodes[1:]
    # One trace for all edges, in which NaN lifts the pen between two of them.
    up, gap = seen.parent[below], np.full(len(below), np.nan)
    ends = [np.stack([at[up], at[below], gap], 1).reshape(-1) for at in (x, y)]
    lines = {"x": ends[0], "y": ends[1], "mode": "lines", "line": {"color": LINE, "width": 1}, "hoverinfo": "skip"}
    depth = int(seen.depth[nodes[-1]]) + 1
    levels = {"tickvals": [-k for k in range(depth)], "ticktext": [str(k) for k in range(depth)]}
    plain = {"showlegend": False, "plot_bgcolor": "white", "hovermode": "closest", "dragmode": "pan"}
    axes = {"xaxis": {"visible": False}, "yaxis": {"title": {"text": "depth"}, "gridcolor": "#eef0f3", **levels}}
    traces = [lines, _actions(seen, below, x, y), _nodes(seen, shown, x, y, labels or _label_of)]
    margin = {"l": 50, "r": 20, "t": 20, "b": 20}
    return {"data": [{"type": "scatter", **x} for x in traces], "layout": {**plain, "margin": margin, **axes}}


def _actions(seen: Nodes, below: Ints, x: NumpyArray, y: NumpyArray) -> Json:
    # The actions in the middle of the edges: as text where there are few, else where the pointer rests.
    up = seen.parent[below]
    return {
        "x": (x[up] + x[below]) / 2,
        "y": (y[up] + y[below]) / 2,
        "mode": "text" if len(below) <= FEW else "markers",
        "text": [_short(seen.branching_action(node)) for node in below.tolist()],
        "textposition": "middle right",
        "textfont": {"size": 11, "color": "#5b6472"},
        "marker": {"size": 4, "color": LINE},
        "hovertemplate": "action %{text}<extra></extra>",
    }


def _nodes(seen: Nodes, shown: Bools, x: NumpyArray, y: NumpyArray, describe: Describe) -> Json:
    nodes = np.flatnonzero(shown)
    # What is folded below nodes that are not shown counts for the last shown node above.
    counts = np.zeros(len(seen), np.int64)
    top = np.flatnonzero(~shown)
    top = top[shown[seen.parent[top]]]
    np.add.at(counts, seen.parent[top], seen.below[top])
    hidden, visits = counts[nodes], seen.visits[nodes]
    largest, least = 30.0 if len(nodes) <= 200 else 16.0, 5.0 if len(nodes) <= 1000 else 3.0
    texts = [describe(seen, node) for node in nodes.tolist()]
    texts = [f"{text}<br>{h} nodes folded below" if h else text for text, h in zip(texts, hidden.tolist(), strict=True)]
    return {
        "x": x[nodes],
        "y": y[nodes],
        "mode": "markers",
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": np.maximum(largest * np.sqrt(visits / max(int(visits.max()), 1)), least),
            "color": seen.value[nodes],
            "symbol": np.where(hidden > 0, "square", "circle"),
            "colorscale": "Viridis",
            "colorbar": {"title": {"text": "value"}, "thickness": 12},
            "line": {"width": 0.5, "color": "#30363d"},
            "showscale": True,
        },
    }


def _label_of(seen: Nodes, node: int) -> str:
    lines = [f"node {node}, id {seen.vertex[node]}", f"visits {seen.visits[node]}, value {seen.value[node]:.4g}"]
    if node:
        steps = slice(seen.first_step[node], seen.first_step[node + 1])
        reward = seen.steps.reward[steps]
        lines.append(f"action {_short(seen.branching_action(node))}, reward {reward.sum():.4g}")
        if len(reward) > 1:
            lines.append(f"{len(reward)} steps")
    lines += [f"{name} {_short(x)}" for name, x in seen.node_observations(node).items()]
    return "<br>".join([*lines, *(word for word, holds in _remarks(seen, node) if holds)])
