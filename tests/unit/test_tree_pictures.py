"""Pictures of trees: which nodes are shown, and where; and the sets by which trees are read."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import torch_backend as rb
from functional_rb.trees import drawing
from functional_rb.trees.ways import Ways
from tests.support.effort import effort
from tests.trees.shapes import SHAPES, forest_of, steps, tree_of


@hypothesis.settings(max_examples=effort(30, 500))
@hypothesis.given(steps, st.integers(1, 40))
def test_the_layout_is_tidy(given: list[tuple[int, int, int]], room: int) -> None:
    tree = rb.trees.view(forest_of(given), np.int32(given[0][0]), max_depth=6, max_nodes=200)
    shown = drawing.folded(tree, room)
    assert shown[0]
    assert shown.sum() <= room
    assert shown[tree.parent[np.flatnonzero(shown)[1:]]].all()
    x = drawing.layout(tree, shown)
    assert np.isnan(x).tolist() == (~shown).tolist()
    for node in np.flatnonzero(shown):
        below = [k for k in tree.children(node) if shown[k]]
        if below:
            assert x[node] == (x[below[0]] + x[below[-1]]) / 2
    for level in range(tree.max_length + 1):
        own = x[(tree.depth == level) & shown]
        assert (np.diff(own) >= 1).all()
    texts = drawing.figure(tree, lambda tree, node: "", room)["data"][2]["text"]
    folded = [int(text.removeprefix("<br>").split()[0]) for text in texts if text]
    assert sum(folded) + shown.sum() == len(tree)


def test_a_large_picture_is_folded() -> None:
    steps = [(0, k % 3, k + 1) for k in (*range(250), *range(200, 250))]
    tree = rb.trees.view(forest_of(steps), np.int32(0))
    made = drawing.figure(tree, max_nodes=100)
    assert len(made["data"][2]["x"]) == 100
    assert made["data"][2]["text"][0].endswith("151 nodes folded below")
    assert sum("visits 2," in text for text in made["data"][2]["text"]) == 50  # the most visited are shown
    assert made["data"][2]["marker"]["symbol"][:2].tolist() == ["square", "circle"]
    assert made["data"][1]["mode"] == "markers"
    fork = drawing.figure(tree_of("fork"))
    assert fork["data"][1]["text"] == ["0", "0", "0", "1", "0", "2"]
    ticks = fork["layout"]["yaxis"]
    deepest = -int(min(fork["data"][2]["y"]))
    assert ticks["tickvals"] == [-k for k in range(deepest + 1)], "one for each level"
    assert ticks["ticktext"] == [str(k) for k in range(deepest + 1)]


def test_of_a_wide_level_the_most_visited_are_shown() -> None:
    """Below a few nodes too: a picture with room for a hundred shows a hundred."""
    steps = [(0, k, k + 1) for k in range(3)]
    steps += [(1 + k % 3, k % 2, 4 + k) for k in (*range(250), *range(50, 100))]
    tree = rb.trees.view(forest_of(steps), np.int32(0))
    shown = drawing.folded(tree, 100)
    assert shown.sum() == 100
    assert shown[:4].all()
    assert shown[tree.visits == 2].all()
    hidden = [text for text in drawing.figure(tree, max_nodes=100)["data"][2]["text"] if "folded" in text]
    assert len(hidden) == 3


def test_a_node_alone_is_shown() -> None:
    tree = rb.trees.view(forest_of(SHAPES["cycle"]), np.int32(0), max_depth=0)
    assert len(drawing.figure(tree)["data"][2]["x"]) == 1
    with pytest.raises(TypeError, match=r"TreeView\.plot: max_nodes: expected an int, got 'x'"):
        drawing.figure(tree, max_nodes="x")


@hypothesis.settings(max_examples=effort(50, 500))
@hypothesis.given(st.integers(1, 20_000), st.data())
def test_sets_that_share_what_they_have_alike_are_sets(n: int, data: st.DataObject) -> None:
    ways, known = Ways(n), [set[int]()]
    number = st.integers(0, n - 1)
    for _ in range(data.draw(st.integers(1, 5))):
        more = data.draw(st.lists(st.tuples(st.integers(0, len(known) - 1), number), max_size=4))
        made = ways.extended(*np.array(more, np.int64).reshape(-1, 2).T)
        assert made.tolist() == list(range(len(known), len(known) + len(more)))
        known += [known[one] | {added} for one, added in more]
    asked = sorted({x for one in known for x in one} | {0, n - 1, data.draw(number)})
    for one, law in enumerate(known):
        assert ways.have(np.full(len(asked), one), np.array(asked)).tolist() == [x in law for x in asked]
