"""D4RL's files, with marker values: observation t, action t + 0.5, reward t + 0.25 in row t."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.datasets import convert
from tests.datasets.d4rl_files import N, write
from tests.datasets.episodes import open_reader, read_in_pieces_of
from tests.support.backends import Backend


def column(library: Backend, leaf: Any) -> list[float]:
    found = library.numpy(leaf)
    return found.reshape(len(found), -1)[:, 0].tolist()


@pytest.mark.parametrize("piece", [2**23, 1])
def test_what_ends_led_to_is_not_made_up(
    library: Backend, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps before a timeout are left out, as nobody knows what they led to; else a learner would go on from zeros."""
    read_in_pieces_of(piece, monkeypatch)
    path = write(tmp_path / "some.hdf5")
    state = frb.datasets.load(
        f"d4rl:{path}", library.rb, conversion=frb.datasets.Conversion(infos=["qpos"]), root=tmp_path
    )
    items = library.rb.items(state)
    frb.ted.check(items, time_axis=0)
    after = items["next"]
    assert column(library, items["observation"]) == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert column(library, items["action"]) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 9.5, 10.5]
    assert column(library, after["reward"]) == [0.25, 1.25, 2.25, 3.25, 4.25, 5.25, 6.25, 7.25, 9.25, 10.25]
    # After a terminal state nobody looks at the next observation.
    assert column(library, after["observation"]) == [1, 2, 3, 3, 4, 6, 7, 8, 10, 11]
    assert np.flatnonzero(library.numpy(after["terminated"])).tolist() == [3, 4]
    assert np.flatnonzero(library.numpy(after["truncated"])).tolist() == [7, 9]
    assert column(library, items["info"]["qpos"]) == column(library, items["observation"])
    made = frb.datasets.Dataset(state.spec.storage.path)
    assert (made.dropped, made.episodes, made.facts["quirks"]["reward_of"]) == (2, 4, "action")

    _, drawn = library.rb.sample(
        frb.datasets.load(state.spec.storage.path, library.rb, transforms=frb.n_step(3, 1.0)), library.rb.key(0), 32
    )
    t, summed = column(library, drawn.items["observation"]), column(library, drawn.items["next"]["reward"])
    last = {0: 3, 1: 3, 2: 3, 3: 3, 4: 4, 5: 7, 6: 7, 7: 7, 9: 10, 10: 10}
    assert summed == [sum(range(int(x), min(int(x) + 3, last[x] + 1))) + 0.25 * min(3, last[x] + 1 - x) for x in t]


def items_of(path: Path, to: Path, **options: Any) -> dict[str, list[float]]:
    import torch_backend as rb

    made = convert(open_reader(f"d4rl:{path}", **options), to)
    items = rb.items(frb.datasets.load(to, rb))
    frb.ted.check(items, time_axis=0)
    after = items["next"]
    rows = {"observation": items["observation"], "after": after["observation"], "action": items["action"]}
    rows |= {"reward": after["reward"], "terminated": after["terminated"], "truncated": after["truncated"]}
    found = {name: leaf.reshape(len(leaf), -1)[:, 0].tolist() for name, leaf in rows.items()}
    return found | {"dropped": [made.dropped]}


@pytest.mark.parametrize("piece", [2**23, 1])
def test_next_observations_are_taken_where_the_file_has_them(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_pieces_of(piece, monkeypatch)
    after = np.repeat(np.arange(N)[:, None], 2, 1) + np.float32(1)
    path = write(tmp_path / "some.hdf5", next_observations=after)
    found = items_of(path, tmp_path / "made")
    assert found["observation"] == [*range(N)]
    assert found["after"] == [*range(1, N + 1)]
    assert found["dropped"] == [0]


@pytest.mark.parametrize("piece", [2**23, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_in_any_order_keep_their_own_next_observations(
    dtype: type, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shuffled transitions: the next row is that of another one, but where chance has put the successor there."""
    read_in_pieces_of(piece, monkeypatch)
    t = np.random.default_rng(0).permutation(40)
    beside = np.flatnonzero(t[1:] == t[:-1] + 1)
    assert 0 < len(beside) < 20
    marks = dict.fromkeys(("terminals", "timeouts"), np.zeros(40, bool))
    rows = {"observations": t[:, None] + np.zeros(2, np.float32), "actions": t[:, None] + 0.5, "rewards": t + 0.25}
    after = t[:, None] + np.ones(2, dtype)
    path = write(tmp_path / "some.hdf5", **rows, **marks, next_observations=after, **{"infos/qpos": None})
    reader = open_reader(f"d4rl:{path}")
    assert reader.facts["ended by next_observations"] == 39 - len(beside)
    found = items_of(path, tmp_path / "made")
    assert (found["observation"], found["after"]) == (t.tolist(), (t + 1).tolist())
    assert np.flatnonzero(np.logical_not(found["truncated"])).tolist() == beside.tolist()
    assert found["dropped"] == [0]


def test_what_is_missing_in_both_is_the_same(tmp_path: Path) -> None:
    """NaN stands in some observations for what was not measured; numbers are compared as observations are stored."""
    t = np.repeat(np.arange(N)[:, None], 2, 1) + 0.1
    t[5, 1] = np.nan
    after = np.roll(t, -1, 0)
    after[8] = after[11] = -1
    marks = dict.fromkeys(("terminals", "timeouts"), np.zeros(N, bool))
    path = write(tmp_path / "some.hdf5", observations=t.astype(np.float32), next_observations=after, **marks)
    reader = open_reader(f"d4rl:{path}")
    assert reader.facts["ended by next_observations"] == 1
    assert [len(episode) for episode in reader.episodes()] == [9, 3]
    assert [float(episode.observations[-1, 0]) for episode in reader.episodes()] == [-1, -1]


@pytest.mark.parametrize("piece", [2**23, 1])
def test_maze2d_rewards_are_of_the_row_before(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the reward in a row is that of its observation, which the action before it has earned."""
    read_in_pieces_of(piece, monkeypatch)
    path = write(tmp_path / "maze2d-umaze-v1.hdf5", terminals=np.zeros(N, bool))
    found = items_of(path, tmp_path / "made")
    assert found["observation"] == [*range(8), 9, 10]
    assert found["reward"] == [t + 1.25 for t in found["observation"]]
    as_it_is = items_of(path, tmp_path / "other", reward_of="action")
    assert as_it_is["reward"] == [t + 0.25 for t in as_it_is["observation"]]


def test_maze2d_may_end_with_its_first_step(tmp_path: Path) -> None:
    """Whose reward is in its own row, as there is no next one: of the rewards the second row was read before."""
    path = write(tmp_path / "maze2d-umaze-v1.hdf5", terminals=np.arange(N) == 0)
    found = items_of(path, tmp_path / "made")
    assert found["observation"] == [*range(8), 9, 10]
    assert found["reward"] == [0.25, *(t + 1.25 for t in found["observation"][1:])]


def test_maze2d_makes_no_rewards_up_where_there_are_next_observations(tmp_path: Path) -> None:
    after = np.repeat(np.arange(N)[:, None], 2, 1) + np.float32(1)
    path = write(tmp_path / "maze2d-umaze-v1.hdf5", terminals=np.zeros(N, bool), next_observations=after)
    found = items_of(path, tmp_path / "made")
    assert found["observation"] == [*range(8), 9, 10]
    assert found["reward"] == [t + 1.25 for t in found["observation"]]
    assert found["dropped"] == [2]


def test_antmaze_ends_where_the_ant_jumps(tmp_path: Path) -> None:
    """Before version 2 the timeouts are off."""
    t = np.arange(N)
    places = np.repeat(t[:, None], 2, 1) * 0.1 + np.where(t > 8, 50, 0)[:, None]
    path = write(tmp_path / "antmaze-umaze-v0.hdf5", observations=places, timeouts=np.isin(t, [9]))
    found = items_of(path, tmp_path / "made")
    assert found["action"] == [t + 0.5 for t in (*range(8), 9, 10)]
    assert np.flatnonzero(found["truncated"]).tolist() == [7, 9]
    shifted = items_of(path, tmp_path / "other", jump=1e9)  # none is so far
    assert shifted["action"] == [t + 0.5 for t in range(11)]
    places = np.repeat(t[:, None], 2, 1) * 0.1 + np.where(t == N - 1, 50, 0)[:, None]
    at_the_end = write(tmp_path / "antmaze-umaze-v1.hdf5", observations=places, timeouts=None)
    assert items_of(at_the_end, tmp_path / "last")["action"] == [t + 0.5 for t in range(N - 2)]


def test_observations_without_coordinates_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "antmaze-umaze-v0.hdf5", observations=np.zeros(N))
    with pytest.raises(ValueError, match=r"antmaze.*observations: expected coordinates in each row, got shape \(12,\)"):
        open_reader(f"d4rl:{path}")


def test_files_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "own"))
    for folder, name in (("d4rl", "hopper_medium-v2.hdf5"), ("own/datasets", "pen-human-v1.hdf5")):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder / name)
    assert open_reader("d4rl:hopper-medium-v2", str(tmp_path)).counts["steps"] == N
    assert open_reader("d4rl:pen-human-v1", str(tmp_path)).name == "d4rl:pen-human-v1"
    with pytest.raises(FileNotFoundError, match=r"hopper-medium-v1: expected a file of HDF5.* in .*fetch"):
        open_reader("d4rl:hopper-medium-v1", str(tmp_path))


WRONG = {
    "rewards.*there is no 'rewards'|there is no 'rewards'": {"rewards": None},
    "actions: expected 12 rows, one for each reward, got 5": {"actions": np.zeros((5, 1))},
    "timeouts: expected 12 marks, one for each reward, got shape": {"timeouts": np.zeros(7, bool)},
    "terminals: expected marks, 0 or 1, got 2": {"terminals": np.full(N, 2, np.uint8).view(bool)},
    "terminals: expected marks, 0 or 1, got nan": {"terminals": np.full(N, np.nan)},
    "expected rows in 'rewards', got a single value": {"rewards": 1.0},
    "expected rows in 'timeouts', got a single value": {"timeouts": True},
    "observations: expected rows of numbers, got": {"observations": np.array([b"a"] * N)},
    r"next_observations: expected float64 \(12, 2\), as the observations are, got float32 \(12, 3\)": {
        "next_observations": np.zeros((N, 3), np.float32)
    },
    r"next_observations: expected float64 .* got complex64": {"next_observations": np.zeros((N, 2), np.complex64)},
    r"rewards: expected a number in each row, got shape \(2,\)": {"rewards": np.zeros((N, 2))},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_in_a_file_is_named(what: str, tmp_path: Path) -> None:
    path = write(tmp_path / "wrong.hdf5", **WRONG[what])
    with pytest.raises(ValueError, match=rf"wrong\.hdf5.*{what}"):
        convert(open_reader(f"d4rl:{path}"), tmp_path / "made")
    path.write_bytes(b"no file of HDF5")
    with pytest.raises(ValueError, match=r"wrong\.hdf5: expected a file of HDF5"):
        open_reader(f"d4rl:{path}")
