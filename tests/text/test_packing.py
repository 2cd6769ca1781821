"""Packing loses nothing, and fills rows nearly as well as can be."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from tests.support.effort import effort

TOKENS = st.lists(st.integers(0, 9), max_size=12)


@hypothesis.given(st.lists(TOKENS, max_size=12), st.integers(1, 12), st.randoms())
@hypothesis.settings(max_examples=effort(100, 3000))
def test_nothing_is_lost(sequences: list[list[int]], length: int, random: Any) -> None:
    packed = frb.text.pack(sequences, length, too_long="split", pad=7)
    rows = list(range(len(packed.ids)))
    random.shuffle(rows)
    shuffled = packed._replace(ids=packed.ids[rows], segments=packed.segments[rows], positions=packed.positions[rows])
    for given in (packed, shuffled):
        assert [x.tolist() for x in given.unpack()] == sequences
    assert all(x.dtype == np.int32 for x in packed)
    empty = packed.segments < 0
    assert ((packed.positions < 0) == empty).all()
    assert (packed.ids[empty] == 7).all()
    assert not empty.all(1).any()  # no row without a token
    for segments, positions in zip(packed.segments, packed.positions, strict=True):
        for segment in set(segments[segments >= 0].tolist()):
            at = (segments == segment).nonzero()[0]
            assert at.tolist() == list(range(at[0], at[0] + len(at)))  # side by side
            assert positions[at].tolist() == list(range(len(at)))


def fewest(lengths: list[int], size: int) -> int:
    """The fewest rows, by trying all ways."""
    best = len(lengths)

    def place(i: int, rooms: tuple[int, ...]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if i == len(lengths):
            best = len(rooms)
            return
        for k in range(len(rooms)):
            if rooms[k] >= lengths[i] and rooms[k] not in rooms[:k]:
                place(i + 1, (*rooms[:k], rooms[k] - lengths[i], *rooms[k + 1 :]))
        place(i + 1, (*rooms, size - lengths[i]))

    place(0, ())
    return best


@hypothesis.given(st.lists(st.integers(1, 12), max_size=9))
@hypothesis.settings(max_examples=effort(60, 2000))
def test_rows_are_few(lengths: list[int]) -> None:
    rows = len(frb.text.pack([[1] * n for n in lengths], 12).ids)
    best = fewest(sorted(lengths, reverse=True), 12)
    assert math.ceil(sum(lengths) / 12) <= best <= rows <= 11 / 9 * best + 6 / 9


def test_many_sequences_fill_their_rows() -> None:
    lengths = np.random.default_rng(0).geometric(0.02, effort(2000, 200_000)).clip(1, 256)
    packed = frb.text.pack([np.zeros(n, np.int64) for n in lengths], 256)
    assert (packed.segments >= 0).mean() > 0.995


def test_each_goes_where_it_leaves_the_least_room() -> None:
    packed = frb.text.pack([[1] * 7, [2] * 6, [3] * 3, [4] * 4, []], 10)
    assert packed.ids.tolist() == [[1] * 7 + [3] * 3, [2] * 6 + [4] * 4]
    assert frb.text.pack([], 10).ids.shape == frb.text.pack([[]], 10).ids.shape == (0, 10)
    assert packed.sequence.tolist() == [0, 1, 2, 3, 4]
    packed = frb.text.pack([[4], [1] * 7, [2] * 5, [3] * 4], 10)  # the first row has room for the last one too
    assert packed.ids.tolist() == [[1] * 7 + [0] * 3, [2] * 5 + [3] * 4 + [4]]
    packed = frb.text.pack([[1] * 5, [2] * 5, [3] * 5, [4] * 5], 10)  # equally long ones in their order
    assert packed.ids.tolist() == [[1] * 5 + [2] * 5, [3] * 5 + [4] * 5]


@pytest.mark.long
def test_rows_are_as_full_as_those_of_trl() -> None:
    trl = pytest.importorskip("trl.data_utils")
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 99, n).tolist() for n in rng.integers(1, 90, 800)]
    table = datasets.Dataset.from_dict({"input_ids": sequences})
    for length, strategy in ((90, "bfd"), (40, "bfd_split")):
        packed = frb.text.pack(sequences, length, too_long="split")
        theirs = trl.pack_dataset(table, length, strategy, {"keep_in_memory": True})
        full = sorted(map(sum, theirs["seq_lengths"]))
        assert sorted((packed.segments >= 0).sum(1).tolist()) == full
        assert sum(full) == sum(map(len, sequences))


@pytest.mark.parametrize(
    ("sequences", "options", "error", "message"),
    [
        ([[1], [1, 2, 3]], {}, ValueError, "sequence 1 has 3 tokens, more than a row of 2; give too_long='split'"),
        ([[1.5]], {}, TypeError, "sequence 0: expected integers, got float64; give token ids"),
        ([[1], [[2]]], {}, ValueError, r"sequence 1: expected shape \[tokens\], got \[1, 1\]"),
        ([[1]], {"length": 0}, ValueError, "expected length as an int from 1 on, got 0"),
        ([[1]], {"length": 1.5}, TypeError, "expected length as an int, got 1.5"),
        ([[1]], {"pad": True}, ValueError, "expected pad as an int from -2147483648 on, got True"),
        ([[1]], {"pad": 2**31}, ValueError, r"expected pad below 2\^31, as int32 has it, got 2147483648"),
        ([[1]], {"too_long": "cut"}, ValueError, "expected too_long as 'error' or 'split', got 'cut'"),
    ],
)
def test_what_cannot_be_packed_is_named(sequences: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        frb.text.pack(sequences, **{"length": 2, **options})
