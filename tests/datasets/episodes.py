"""Episodes as readers give them: put together of their pieces, and compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from functional_rb.datasets import Episode
from functional_rb.datasets.reader import open_reader as open_reader  # the one place of the tests that names it

STEPS = ("actions", "rewards", "terminated", "truncated", "infos")


def joined(pieces: list[Episode]) -> list[Episode]:
    """Episodes put together of their pieces."""

    def both(first: Any, second: Any, skip: int) -> Any:
        if isinstance(first, dict):
            return {name: both(first[name], second[name], skip) for name in first}
        if isinstance(first, tuple):
            return tuple(both(x, y, skip) for x, y in zip(first, second, strict=True))
        return [*first, *second[skip:]] if isinstance(first, list) else np.concatenate([first, second[skip:]])

    whole: list[Episode] = []
    for piece in pieces:
        if whole and whole[-1].goes_on:
            before = whole.pop()
            rows = {name: both(getattr(before, name), getattr(piece, name), 0) for name in STEPS}
            observations = both(before.observations, piece.observations, 1)
            piece = dataclasses.replace(piece, observations=observations, about=before.about, **rows)
        whole.append(piece)
    return whole


def equal(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for name in theirs:
            equal(ours[name], theirs[name])
    elif isinstance(theirs, tuple):
        for x, y in zip(ours, theirs, strict=True):
            equal(x, y)
    else:
        np.testing.assert_array_equal(ours, theirs)


def read(reader: Any, first: int = 0) -> list[Episode]:
    """Its pieces, with their infos, which are read as long as the reader is there."""
    return [dataclasses.replace(piece, infos=dict(piece.infos)) for piece in reader.episodes(first)]


def read_in_pieces_of(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers give episodes in pieces of about so many bytes; a piece has two steps at least."""
    for module in ("pieces", "d4rl"):
        monkeypatch.setattr(f"functional_rb.datasets.{module}.PIECE", nbytes)
