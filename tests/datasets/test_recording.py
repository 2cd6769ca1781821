"""Recordings of environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import functional_rb as frb
import torch_backend as rb
from functional_rb.datasets import Recording, convert
from tests.datasets.episodes import read_in_pieces_of
from tests.datasets.made_up import contents


class Marked(gymnasium.Env[Any, Any]):
    """Observation t in all parts, reward t + 0.25; ends after 3 + seed steps, with an even seed in a terminal state."""

    observation_space = spaces.Dict(
        at=spaces.Box(-np.inf, np.inf, (2,)), word=spaces.Text(5), both=spaces.Tuple([spaces.Discrete(99)] * 2)
    )
    action_space = spaces.Box(-9, 9, (), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.t = seed or 0, 0
        self.at = np.zeros(2, np.float32)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == self.t + 0.5
        self.t += 1
        last = self.t == 3 + self.seed
        even = self.seed % 2 == 0
        return self._seen(), self.t - 0.75, last and even, last and not even, {"speed": np.full(1, self.t - 1)}

    def _seen(self) -> Any:
        self.at[:] = self.t  # the same array again
        return {"at": self.at, "word": "t" + "x" * (self.t % 4), "both": (self.t, self.t)}


def recording(**more: Any) -> Recording:
    infos = {"speed": frb.Unbounded((1,), "int32")}
    return Recording(Marked(), lambda seen: np.float64(seen["at"][0] + 0.5), episodes=3, infos=infos, **more)


@pytest.mark.parametrize("piece", [2**23, 1])
def test_steps_are_those_of_the_environment(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_pieces_of(piece, monkeypatch)
    made = convert(recording(), tmp_path / "made", frb.datasets.Conversion(infos=["speed"]))
    assert (made.steps, made.episodes, made.dropped, made.name) == (12, 3, 0, "gymnasium:Marked")
    items = rb.items(frb.datasets.load(tmp_path / "made", rb))
    frb.ted.check(items, time_axis=0)
    t = [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert items["at"][:, 1].tolist() == items["both"][0].tolist() == items["info"]["speed"][:, 0].tolist() == t
    assert items["action"].tolist() == [x + 0.5 for x in t]
    assert items["next"]["reward"].tolist() == [x + 0.25 for x in t]
    assert items["next"]["at"][:, 0].tolist() == [x + 1 for x in t]
    assert made.item["word"].to_host(items["next"]["word"].numpy())[:4] == ["tx", "txx", "txxx", "tx"]
    assert items["next"]["terminated"].nonzero()[:, 0].tolist() == [2, 11]
    assert items["next"]["truncated"].nonzero()[:, 0].tolist() == [6]

    def drawn(**more: Any) -> Any:
        return rb.sample(frb.datasets.load(tmp_path / "made", rb, **more), rb.key(0), 32)[1].items

    assert (np.diff(drawn(sampler=frb.Slices(3))["at"][..., 0]) == 1).all()
    summed = drawn(transforms=frb.n_step(5, 1.0))
    first, n = summed["at"][:, 0], (summed["next"]["at"] - summed["at"])[:, 0]
    assert set((first + n).tolist()) == {3, 4, 5}  # where episodes end
    np.testing.assert_array_equal(summed["next"]["reward"], n * (first + 0.25) + n * (n - 1) / 2)


@pytest.mark.parametrize(("most", "wanted"), [(2, [[2, 2], [2, 3], [2, 2, 2]]), (3, [[4], [3, 2], [3, 3]])])
def test_the_last_piece_has_two_steps_at_least(
    most: int, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only after a step it is known whether an episode goes on: so one is kept back."""
    monkeypatch.setattr("functional_rb.datasets.gymnasium.steps_of_piece", lambda spec: most)
    found: list[list[int]] = [[]]
    for episode in recording(seed=1).episodes():
        found[-1].append(len(episode))
        found += [] if episode.goes_on else [[]]
    assert found == [*wanted, []]


def test_episodes_begin_with_seeds_of_their_own(tmp_path: Path) -> None:
    whole = list(recording().episodes())
    assert [episode.about["seed"] for episode in recording().episodes(1)] == [1, 2]
    assert [len(episode) for episode in whole] == [3, 4, 5]
    for k in range(2):
        state = frb.datasets.load("gymnasium:CartPole-v1", rb, root=tmp_path / str(k), episodes=4, seed=3)
        assert frb.datasets.Dataset(state.spec.storage.path).episodes == 4
    first, second = (next((tmp_path / str(k) / "converted" / "gymnasium").glob("CartPole*[!k]")) for k in range(2))
    assert contents(first) == contents(second)
