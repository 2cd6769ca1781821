"""Loading: where what was converted lies, what is made of files as they are, and rows that are read many at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import functional_rb as frb
import torch_backend as rb
from functional_rb.datasets import convert, hdf5, load, opening
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.loading import place
from tests.datasets.d4rl_files import write
from tests.datasets.made_up import MadeUp

converting = sys.modules["functional_rb.datasets.convert"]


def test_names_have_places_of_their_own_below_the_folder() -> None:
    names = ["minari:D4RL/door/human-v2", "minari:D4RL/door/human-v1", "d4rl:door", "rlds:a b/c", "rlds:a_b/c"]
    places = [place("/data", name, {"narrow": narrow}) for name in names for narrow in (True, False)]
    assert len(set(places)) == 10
    assert places[0].startswith("/data/converted/minari/D4RL-door-human-v2-")
    for found in places:
        assert Path(found).resolve().is_relative_to("/data/converted")


@pytest.mark.parametrize("name", ["rlds:no/such/..", "rlds:no-such/../../b", "minari:no-such/.", "minari:no-such/..."])
def test_names_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="which leads out of the folder of datasets"):
        place("/data", name, {})


def test_options_that_no_reader_has_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"d4rl:hopper: there is no option 'jmup': .* has reward_of, jump; .*load"):
        load("d4rl:hopper", rb, root=tmp_path, jmup=1)
    with pytest.raises(TypeError, match=r"no option 'sampelr': of its own this reader has none"):
        load("vd4rl:walk", rb, root=tmp_path, sampelr=frb.Uniform())


def test_paths_are_kept_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "some.hdf5")
    monkeypatch.chdir(tmp_path)
    state = load("d4rl:some.hdf5", rb, root="here")
    assert frb.datasets.Dataset(state).name == f"d4rl:{path}"
    assert load(f"d4rl:{path}", rb, root=tmp_path / "here").spec.storage == state.spec.storage


@pytest.mark.parametrize("above", [True, False])
def test_who_may_not_write_is_told_what_to_give(above: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(plan: Any) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path) if above else f"{plan.target}.lock")

    monkeypatch.setattr(converting, "_make", refused)
    path = write(tmp_path / "some.hdf5")
    with pytest.raises(
        PermissionError, match=r"Permission denied; .* give another root=, or set FUNCTIONAL_RB_DATASETS"
    ):
        load(f"d4rl:{path}", rb, root=tmp_path)


def test_files_that_may_not_be_read_are_not_taken_for_those_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for refused in (tmp_path / "some.hdf5", tmp_path / "roo", None):

        def make(plan: Any, at: Path | None = refused) -> None:
            raise PermissionError(13, "Permission denied", at and str(at))

        monkeypatch.setattr(converting, "_make", make)
        with pytest.raises(PermissionError) as told:
            load(f"d4rl:{write(tmp_path / 'some.hdf5')}", rb, root=tmp_path / "root")
        assert "root=" not in str(told.value)


def test_options_are_given_to_readers_that_take_any(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def open_any(rest: str, root: str | None = None, **options: Any) -> MadeUp:
        asked.append(options)
        return MadeUp([3])

    frb.datasets.register("any", open_any)
    load("any:walk", rb, root=tmp_path, speed=3)
    assert asked == [{"speed": 3}]


def test_observations_stored_once_are_drawn_under_torch_compile(tmp_path: Path) -> None:
    """As images are, by default."""
    convert(MadeUp([3, 1, 6, 2, 5], (64, 33), "uint8"), tmp_path / "made")
    states = [load(tmp_path / "made", rb, sampler=frb.Slices(2), batch_size=8) for _ in range(2)]
    compiled: Any = torch.compile(lambda *given: rb.sample(*given), fullgraph=True, backend="eager")
    key = rb.key(0)
    drawn, wanted = compiled(states[0], key)[1], rb.sample(states[1], key)[1]
    t = np.asarray(wanted.items["observation"]).reshape(8, 2, -1)[..., 0]
    assert (t[:, 1] == t[:, 0] + 1).all()
    for found, leaf in zip(tree_leaves(drawn), tree_leaves(wanted), strict=True):
        assert torch.equal(found, leaf)


IN_FILES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "the oldest": {"sampler": frb.InOrder()},
    "sums of three": {"transforms": frb.n_step(3, 0.9)},
}
MADE: dict[str, dict[str, Any]] = {
    "priorities": {"sampler": frb.Prioritized()},
    "slices": {"sampler": frb.Slices(2)},
    "epochs": {"sampler": frb.WithoutReplacement()},
    "sums up to other ends": {"transforms": frb.n_step(3, 0.9, end_keys=[("next", "terminated")])},
}


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("case", [*IN_FILES, *MADE])
def test_nothing_is_made_that_is_in_files(
    case: str, compact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening takes milliseconds, however large a dataset is, where its sampler and transforms keep nothing more."""
    convert(MadeUp([3, 1, 6]), tmp_path / "made", frb.datasets.Conversion(compact=compact))
    made: list[Any] = []
    with_spec = opening.respec.with_spec

    def noted(*given: Any) -> Any:
        made.append(given)
        return with_spec(*given)

    monkeypatch.setattr(opening.respec, "with_spec", noted)
    state = load(tmp_path / "made", rb, **{**IN_FILES, **MADE}[case])
    assert bool(made) == (case in MADE)
    _, sample = rb.sample(state, rb.key(0), 8)
    first = sample.items["observation"].reshape(-1)
    assert set(first.tolist()) <= {0, 1, 2, 4, 6, 7, 8, 9, 10, 11}


def test_blocks_of_rows_are_read_once_and_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    rows = hdf5.rows

    def noted(dataset: Any, first: int, stop: int, where: str) -> Any:
        read.append((first, stop))
        return rows(dataset, first, stop, where)

    monkeypatch.setattr(hdf5, "rows", noted)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["t"] = np.arange(20)
        blocks = hdf5.Blocks(file, 8)
        for first, stop in ((0, 3), (2, 8), (8, 10), (9, 19)):
            found = blocks.rows("t", first, stop, "a")
            np.testing.assert_array_equal(found, np.arange(first, stop))
            with pytest.raises(ValueError, match="read-only"):
                found[0] = 99  # another piece has the same rows
        assert read == [(0, 8), (8, 16), (9, 19)]
        with pytest.raises(DatasetError, match="a: there is no 'x'"):
            blocks.rows("x", 0, 1, "a")
