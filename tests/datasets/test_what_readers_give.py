"""What readers of a user's own give: values that JSON has not, tensors, and what is no episode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from functional_rb.datasets import Dataset, Episode, convert
from tests.datasets.made_up import MadeUp


class Changed(MadeUp):
    """Its episodes with other fields."""

    def __init__(self, changes: Mapping[str, Any]) -> None:
        super().__init__([4])
        self.changes = changes

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        for episode in MadeUp.episodes(self, first):
            yield dataclasses.replace(episode, **self.changes)


def no_constant(name: str) -> object:
    raise AssertionError(name)


def test_null_is_written_for_what_json_has_not(tmp_path: Path) -> None:
    """Else other programs could not read the episodes, nor this library a dataset with such a fact."""
    told = {"level": float("nan"), "limits": [float("-inf"), 1.5]}
    convert(Changed({"about": told}), tmp_path / "made", facts=told)
    about = (tmp_path / "made" / "about.jsonl").read_text()
    assert json.loads(about, parse_constant=no_constant) == {"level": None, "limits": [None, 1.5]}
    assert Dataset(tmp_path / "made").facts["limits"] == [None, 1.5]


def test_facts_that_cannot_be_written_are_refused_before_the_conversion(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"facts: expected values of JSON: .*int64"):
        convert(MadeUp([4]), tmp_path / "made", facts={"seed": np.int64(1)})
    odd: list[Any] = [{"levels": [{1: 2}]}, {1: 2}]
    for facts in odd:
        with pytest.raises(
            ValueError, match=r"facts: expected values of JSON: expected texts as keys, got 1; write '1'"
        ):
            convert(MadeUp([4]), tmp_path / "made", facts=facts)
    assert not list(tmp_path.iterdir())


def test_what_is_no_episode_is_named(tmp_path: Path) -> None:
    class Numbers(MadeUp):
        def episodes(self, first: int = 0) -> Iterator[Any]:
            yield from MadeUp.episodes(self, first)
            yield 3

    with pytest.raises(TypeError, match=r"made_up:episodes, episode 1: expected a reader that gives .*got 3"):
        convert(Numbers([4]), tmp_path / "made")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": torch.zeros(4, requires_grad=True)}, "leaf 'actions': .*got Tensor: .*requires grad"),
        ({"rewards": torch.zeros(4, dtype=torch.bfloat16)}, "leaf 'rewards': .*got Tensor: .*BFloat16"),
        ({"actions": [[1.0], [1.0, 2.0]]}, "leaf 'actions': .*got list: .*inhomogeneous"),
        ({"actions": np.full(4, "a")}, "leaf 'actions': .*got dtype <U1; convert it"),
        ({"actions": np.zeros(4, [("x", "f4")])}, "leaf 'actions': expected a plain array of numbers"),
        ({"terminated": np.ma.array([False] * 4, mask=[0, 0, 0, 1])}, "leaf 'terminated': .*whose mask would be lost"),
    ],
)
def test_arrays_that_cannot_be_stored_are_named(changes: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"made_up:episodes .*episode 0: {message}"):
        convert(Changed(changes), tmp_path / "made")


def test_a_share_needs_a_path(tmp_path: Path) -> None:
    made = convert(MadeUp([4, 4]), tmp_path / "made")
    places: Any = [tmp_path / "train", 5]
    with pytest.raises(TypeError, match=r"Dataset\.split: expected a path \(str or os\.PathLike\), got 5"):
        made.split([0.5, 0.5], places)
