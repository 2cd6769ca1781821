"""Every format of others, with marker values that show every shift by one: through TED, slices and n-step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.datasets.datasets_of_others import FORMATS, LENGTHS, Format
from tests.datasets.episodes import open_reader, read_in_pieces_of

pytestmark = pytest.mark.parametrize("given", FORMATS.values(), ids=FORMATS)


def column(leaf: Any) -> np.ndarray:
    """A number for each step, of leaves that have it everywhere."""
    flat = leaf.numpy().reshape(len(leaf), -1)
    assert (flat == flat[:, :1]).all()
    return flat[:, 0].astype(np.float64)


def observed(items: Any, given: Format) -> np.ndarray:
    for name in given.observation:
        items = items[name]
    return column(items)


def table(items: Any, given: Format) -> dict[str, np.ndarray]:
    """Items as `expected` has them."""
    after = items["next"]
    found = {"observation": observed(items, given), "after": observed(after, given)}
    found["action"] = column(items["action"]) / given.action_of
    return found | {name: column(after[name]) for name in ("reward", "terminated", "truncated")}


@pytest.mark.parametrize("piece", [2**23, 1])
def test_steps_are_what_was_done(given: Format, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_pieces_of(piece, monkeypatch)
    state = frb.datasets.load(given.write(tmp_path), rb, conversion=frb.datasets.Conversion(infos=True), root=tmp_path)
    items = rb.items(state)
    frb.ted.check(items, time_axis=0)
    found = table(items, given)
    for name, wanted in given.wanted.items():
        np.testing.assert_array_equal(found[name], wanted, name)
    described = frb.datasets.Dataset(state.spec.storage.path)
    assert described.steps + described.dropped == sum(LENGTHS)


def test_slices_and_n_steps_know_the_episodes(given: Format, tmp_path: Path) -> None:
    name, wanted = given.write(tmp_path), given.wanted
    ends = np.cumsum(wanted["terminated"] + wanted["truncated"])
    episode = dict(zip(wanted["observation"], ends - wanted["terminated"] - wanted["truncated"], strict=True))
    sampler = frb.Slices(2, strict_length=False)
    _, drawn = rb.sample(frb.datasets.load(name, rb, root=tmp_path, sampler=sampler), rb.key(0), 64)
    for start, stop in observed_slices(drawn, given):
        assert stop == start + 1
        assert episode[start] == episode[stop]

    transforms = frb.n_step(2, 0.5)
    _, drawn = rb.sample(frb.datasets.load(name, rb, root=tmp_path, transforms=transforms), rb.key(0), 64)
    t, reward = observed(drawn.items, given), column(drawn.items["next"]["reward"])
    follows = np.array([episode.get(x + 1) == episode[x] for x in t])
    np.testing.assert_array_equal(reward, t + 0.25 + np.where(follows, 0.5 * (t + 1.25), 0))


def observed_slices(drawn: Any, given: Format) -> list[tuple[float, float]]:
    """The observations of slices of two steps that are whole."""
    leaf: Any = drawn.items
    for name in given.observation:
        leaf = leaf[name]
    flat = leaf.numpy().reshape(*leaf.shape[:2], -1)[..., 0].astype(float)
    whole = drawn.mask.numpy().all(1) if getattr(drawn, "mask", None) is not None else np.ones(len(flat), bool)
    assert whole.any()
    return [(start, stop) for start, stop in flat[whole]]


def test_reading_goes_on_from_any_episode(given: Format, tmp_path: Path) -> None:
    reader = open_reader(given.write(tmp_path), str(tmp_path))
    every = [*reader.episodes()]
    for first in {1, 3, len(every)}:
        rest = [*reader.episodes(first)]
        assert len(rest) == len(every) - first
        for one, other in zip(rest, every[first:], strict=True):
            np.testing.assert_array_equal(one.rewards, other.rewards)
            np.testing.assert_array_equal(one.actions, other.actions)
    assert reader.spec(True).reward == frb.Unbounded(())
    assert reader.counts.get("episodes") in (None, len(LENGTHS))
    assert all(Path(file).is_file() for file in reader.files)


def test_what_is_nowhere_is_told_where_it_was_looked_for(given: Format, tmp_path: Path) -> None:
    prefix, _, rest = given.write(tmp_path).partition(":")
    with pytest.raises(FileNotFoundError, match=rf"{prefix}:none/such: .* in /.*{tmp_path.name}.*fetch the dataset"):
        open_reader(f"{prefix}:none/such", str(tmp_path))
    # It is there, by a name that leads out of the folder of such datasets.
    (tmp_path / prefix).mkdir(exist_ok=True)
    outside = os.path.relpath(rest, tmp_path / prefix) if os.path.isabs(rest) else f"../{prefix}/{rest}"
    with pytest.raises(FileNotFoundError):
        open_reader(f"{prefix}:{outside}", str(tmp_path))
