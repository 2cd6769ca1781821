"""Pictures of trees: which nodes are shown, and where."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import torch_backend as rb
from tests.support.effort import effort
from tests.trees.shapes import SHAPES, forest_of, steps, tree_of


def picture(tree: Any, room: int) -> tuple[dict[int, float], int]:
    """Where the nodes of a picture stand from left to right, and how many it says are folded."""
    nodes = tree.plot(labels=lambda tree, node: str(node), max_nodes=room).data[2]
    texts = [text.partition("<br>") for text in nodes.text]
    numbers = [int(number) for number, _, _ in texts]
    assert nodes.y.tolist() == (-tree.depth[numbers]).tolist()
    return dict(zip(numbers, nodes.x.tolist(), strict=True)), sum(int(more.split()[0]) for _, _, more in texts if more)


@hypothesis.settings(max_examples=effort(30, 500))
@hypothesis.given(steps, st.integers(1, 40))
def test_the_layout_is_tidy(given: list[tuple[int, int, int]], room: int) -> None:
    tree = rb.trees.view(forest_of(given), np.int32(given[0][0]), max_depth=6, max_nodes=200)
    x, folded = picture(tree, room)
    assert 0 in x
    assert len(x) <= room
    assert len(x) + folded == len(tree)
    for node in x:
        assert node == 0 or tree.parent[node] in x
        below = [x[k] for k in tree.children(node) if k in x]
        if below:
            assert x[node] == (below[0] + below[-1]) / 2
    for level in range(tree.max_length + 1):
        assert (np.diff([x[node] for node in sorted(x) if tree.depth[node] == level]) >= 1).all()


def test_a_large_picture_is_folded() -> None:
    steps = [(0, k % 3, k + 1) for k in (*range(250), *range(200, 250))]
    tree = rb.trees.view(forest_of(steps), np.int32(0))
    _, actions, nodes = tree.plot(max_nodes=100).data
    assert len(nodes.x) == 100
    assert max(nodes.x) == 98  # there is no room between leaves for what is not shown
    assert nodes.text[0].endswith("151 nodes folded below")
    assert sum("visits 2," in text for text in nodes.text) == 50  # the most visited are shown
    assert [*nodes.marker.symbol[:2]] == ["square", "circle"]
    assert actions.mode == "markers"


def test_actions_and_levels_are_named() -> None:
    fork = tree_of("fork").plot()
    _, actions, nodes = fork.data
    assert actions.text == ("0", "0", "0", "1", "0", "2")
    levels = range(1 - int(min(nodes.y)))
    ticks = fork.layout.yaxis
    assert ticks.tickvals == tuple(-k for k in levels), "one for each level"
    assert ticks.ticktext == tuple(str(k) for k in levels)


def test_of_a_wide_level_the_most_visited_are_shown() -> None:
    """Below a few nodes too: a picture with room for a hundred shows a hundred."""
    steps = [(0, k, k + 1) for k in range(3)]
    steps += [(1 + k % 3, k % 2, 4 + k) for k in (*range(250), *range(50, 100))]
    tree = rb.trees.view(forest_of(steps), np.int32(0))
    x, folded = picture(tree, 100)
    assert len(x) == 100
    assert {0, 1, 2, 3, *np.flatnonzero(tree.visits == 2).tolist()} <= x.keys()
    assert folded == len(tree) - 100
    assert sum("folded" in text for text in tree.plot(max_nodes=100).data[2].text) == 3


def test_a_node_alone_is_shown() -> None:
    tree = rb.trees.view(forest_of(SHAPES["cycle"]), np.int32(0), max_depth=0)
    assert len(tree.plot().data[2].x) == 1
    with pytest.raises(TypeError, match=r"TreeView\.plot: max_nodes: expected an int, got 'x'"):
        tree.plot(max_nodes="x")
