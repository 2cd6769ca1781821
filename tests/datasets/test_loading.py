"""Loading: where what was converted lies, and what is made of files as they are."""

from __future__ import annotations

import dataclasses
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import functional_rb as frb
import torch_backend as rb
from functional_rb.datasets import Episode, convert, load
from tests.datasets.d4rl_files import write
from tests.datasets.made_up import MadeUp


def open_any(rest: str, root: str | None = None, **options: Any) -> MadeUp:
    return MadeUp([3])


def test_names_have_places_of_their_own_below_the_folder(tmp_path: Path) -> None:
    for prefix in ("any", "other"):
        frb.datasets.register(prefix, open_any)
    names = ["any:D4RL/door/human-v2", "any:D4RL/door/human-v1", "other:door", "other:a b/c", "other:a_b/c"]
    conversions = [frb.datasets.Conversion(narrow=narrow) for narrow in (True, False)]
    states = [load(name, rb, root=tmp_path, conversion=how) for name in names for how in conversions]
    states += [load(names[0], rb, root=tmp_path, speed=speed) for speed in (1, 2)]
    places = [str(state.spec.storage.path) for state in states]
    assert len(set(places)) == 12
    assert places[0].startswith(f"{tmp_path}/converted/any/D4RL-door-human-v2-")
    for found in places:
        assert Path(found).resolve().is_relative_to(tmp_path / "converted")
    assert load(names[0], rb, root=tmp_path, speed=2).spec.storage == states[-1].spec.storage


@pytest.mark.parametrize("name", ["rlds:no/such/..", "rlds:no-such/../../b", "minari:no-such/.", "minari:no-such/..."])
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="which leads out of the folder of datasets"):
        load(name, rb, root=tmp_path)


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
    """Not below the folder, or not beside what others have converted."""
    opened, root = os.open, tmp_path / "root"
    root.mkdir()

    def refused(path: Any, *more: Any) -> int:
        raise PermissionError(13, "Permission denied", path)

    def refused_locks(path: Any, *more: Any, **how: Any) -> int:
        return refused(path) if str(path).endswith(".lock") else opened(path, *more, **how)

    if above:
        monkeypatch.setattr(os, "mkdir", refused)
    else:
        monkeypatch.setattr(os, "open", refused_locks)
    path = write(tmp_path / "some.hdf5")
    with pytest.raises(
        PermissionError, match=r"Permission denied; .* give another root=, or set FUNCTIONAL_RB_DATASETS"
    ):
        load(f"d4rl:{path}", rb, root=root)


def test_files_that_may_not_be_read_are_not_taken_for_those_that_are_written(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Refused(MadeUp):
        at: Path | None = None

        def episodes(self, first: int = 0) -> Iterator[Episode]:
            raise PermissionError(13, "Permission denied", self.at and str(self.at))

    for refused in (tmp_path / "some.hdf5", tmp_path / "roo", None):
        frb.datasets.register("refused", lambda rest, root=None, at=refused: Refused([3], at=at))
        with pytest.raises(PermissionError) as told:
            load("refused:walk", rb, root=tmp_path / "root")
        assert "root=" not in str(told.value)


def test_options_are_given_to_readers_that_take_any(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def asking(rest: str, root: str | None = None, **options: Any) -> MadeUp:
        asked.append(options)
        return MadeUp([3])

    frb.datasets.register("asking", asking)
    load("asking:walk", rb, root=tmp_path, speed=3)
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


STEPS = 40_000


@pytest.fixture(scope="module", params=[True, False], ids=["compact", "plain"])
def long(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A dataset of many steps, and whether observations are stored once."""
    path = tmp_path_factory.mktemp("long") / "made"
    convert(MadeUp([STEPS // 2] * 2), path, frb.datasets.Conversion(compact=request.param))
    return path, request.param


@pytest.mark.parametrize("case", [*IN_FILES, *MADE])
def test_nothing_is_made_that_is_in_files(case: str, long: tuple[Path, bool]) -> None:
    """Opening takes little memory, however large a dataset is, where its sampler and transforms keep nothing more."""
    path, compact = long
    load(path, rb, **{**IN_FILES, **MADE}[case])  # which imports what it needs
    tracemalloc.start()
    try:
        state = load(path, rb, **{**IN_FILES, **MADE}[case])
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (kept > 3 * STEPS) == (case in MADE), kept
    if compact:  # 9 bytes of a step are looked at, and 31 where arrays are made
        assert (most > 20 * STEPS) == (case in MADE), most
    _, sample = rb.sample(state, rb.key(0), 8)
    first = sample.items["observation"].reshape(-1)
    assert set(first.tolist()) <= {*range(20_000), *range(20_001, 40_001)}
