"""Datasets that are made of converted ones, and numbers that describe them."""

from __future__ import annotations

import dataclasses
import os
import pickle
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb.datasets import Dataset, Episode, convert
from tests.datasets.episodes import open_reader, read_in_pieces_of
from tests.datasets.made_up import READERS, MadeUp, contents, expected


@pytest.fixture(params=[2**23, 1], autouse=True)
def _piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole episodes, and pieces of two or three steps."""
    read_in_pieces_of(request.param, monkeypatch)


def observations(path: Path) -> list[float]:
    items = rb.items(frb.datasets.load(path, rb))
    frb.ted.check(items, time_axis=0)
    return items["observation"].tolist()


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_read_and_converted_again_is_the_same(reader: MadeUp, compact: bool, tmp_path: Path) -> None:
    convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True, compact=compact))
    again = convert(
        open_reader(tmp_path / "made"), tmp_path / "again", frb.datasets.Conversion(infos=True, compact=compact)
    )
    first, second = contents(tmp_path / "made"), contents(tmp_path / "again")
    assert set(first) == set(second)
    assert [name for name in first if first[name] != second[name]] in (
        ["dataset.json", "journal.jsonl"],
        ["journal.jsonl"],
    )
    assert again.item == Dataset(tmp_path / "made").item


def test_files_that_are_cut_are_named(tmp_path: Path) -> None:
    convert(MadeUp([3, 1, 6]), tmp_path / "made")
    rows = tmp_path / "made" / "rows.bin"
    rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"rows\.bin: rows \d+ to 10 are not there: the file is damaged"):
        [*open_reader(tmp_path / "made").episodes()]


def test_errors_of_functions_come_with_the_episode(tmp_path: Path) -> None:
    made = tmp_path / "made"
    convert(MadeUp([3, 1, 6, 2, 5]), made)

    def fails(episode: Any) -> Any:
        if episode.about["seed"] == 2:
            raise KeyError("speed")
        return episode

    where = f"{made}, episode 2"
    for workers in (0, 2):
        with pytest.raises(KeyError, match="speed") as caught:
            Dataset(made).map(fails, tmp_path / f"mapped {workers}", workers=workers)
        assert caught.value.__notes__ == [f"Dataset.map: {where}"]
    with pytest.raises(KeyError) as caught:
        Dataset(made).filter(fails, tmp_path / "filtered")
    assert caught.value.__notes__ == [f"Dataset.filter: {where}"]
    with pytest.raises(KeyError) as caught:
        Dataset(made).split([1.0], [tmp_path / "part"], by=lambda x: fails(x) and 0)
    assert caught.value.__notes__ == [f"Dataset.split: {where}"]
    with pytest.raises(ValueError, match=rf"Dataset\.map: {made}, episode 0: expected an Episode .* got NoneType"):
        Dataset(made).map(lambda episode: None, tmp_path / "none")
    with pytest.raises(TypeError, match="cannot be stored") as caught:
        Dataset(made).map(in_words, tmp_path / "words")
    assert caught.value.__notes__ == [f"Dataset.map: {made}, episode 0"]
    with pytest.raises(ValueError, match="episode 2, rewards: "):
        Dataset(made).map(cut, tmp_path / "cut")


def in_words(episode: Episode) -> Episode:
    return dataclasses.replace(episode, actions=np.full(len(episode.actions), "left"))


def cut(episode: Episode) -> Episode:
    return dataclasses.replace(episode, rewards=episode.rewards[: 0 if episode.about["seed"] == 2 else None])


def test_filter_split_and_concat(tmp_path: Path) -> None:
    reader = MadeUp([3, 1, 6, 2, 5])
    made = convert(reader, tmp_path / "made")
    kept = made.filter(lambda x: x.terminated and x.steps > 3, tmp_path / "long")
    assert observations(tmp_path / "long") == [*range(6, 12), *range(16, 21)]
    assert kept.facts["filter"]["of"] == str(tmp_path / "made")
    told = [(x.number, x.first, x.steps, x.total, x.terminated, x.about) for x in made.summaries()]
    assert told[1] == (1, 3, 1, 4.25, False, {"seed": 1})
    assert told[2][3] == sum(t + 0.25 for t in range(6, 12))

    places = [tmp_path / "train", tmp_path / "test"]
    parts = made.split([0.6, 0.4], places, seed=1)
    assert [part.episodes for part in parts] == [3, 2]
    both = [seed for place in places for seed in (x.about["seed"] for x in Dataset(place).summaries())]
    assert sorted(both) == [0, 1, 2, 3, 4]
    assert both != sorted(both)

    joined = kept.concat(*places, to=tmp_path / "all")
    assert joined.episodes == 7
    assert observations(tmp_path / "all") == [
        t for place in ("long", "train", "test") for t in observations(tmp_path / place)
    ]
    convert(MadeUp([2], (3,)), tmp_path / "other")
    with pytest.raises(ValueError, match=r"expected items as in .*made"):
        made.concat(tmp_path / "other", to=tmp_path / "refused")
    with pytest.raises(ValueError, match=r"Dataset\.filter: .*made: none of its 5 episodes was kept"):
        made.filter(lambda x: False, tmp_path / "none")
    for wrong in ([1.0], [0.6, 0.5], [1.5, -0.5], [float("nan"), 0.5]):
        with pytest.raises(ValueError, match="expected 2 shares that sum to 1 or less"):
            made.split(wrong, places)


def test_shares_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1, 6, 2, 5]), tmp_path / "made")
    places = [tmp_path / "train", tmp_path / "test"]
    with pytest.raises(ValueError, match=r"Dataset\.split: .*made: a share of 0\.01 of its 5 episodes has none"):
        made.split([0.99, 0.01], places)
    with pytest.raises(ValueError, match=r"Dataset\.split: expected a directory for each share, got .* twice"):
        made.split([0.6, 0.4], [places[0], tmp_path / "." / "train"])
    with pytest.raises(
        ValueError, match=r"Dataset\.split: expected .*, got .*train.inner in .*train; give another path"
    ):
        made.split([0.6, 0.4], [places[0] / "inner", places[0]])
    convert(MadeUp([2]), tmp_path / "other")
    (tmp_path / "file").write_text("mine")
    for taken, message in (
        ("other", "other has another dataset in it"),
        ("file", "file is there already, and no dataset"),
    ):
        with pytest.raises(FileExistsError, match=message):
            made.split([0.6, 0.4], [places[0], tmp_path / taken])
    assert not any(place.exists() for place in places)


def test_episodes_of_one_key_stay_together(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1, 6, 2, 5, 4, 7, 2]), tmp_path / "made")
    places = [tmp_path / "train", tmp_path / "test"]
    found = set()
    for seed in range(3):
        at = [place.with_name(f"{place.name}{seed}") for place in places]
        made.split([0.75, 0.25], at, seed=seed, by=lambda x: x.about["seed"] % 4)
        keys = [{x.about["seed"] % 4 for x in Dataset(place).summaries()} for place in at]
        assert [len(part) for part in keys] == [3, 1]
        assert keys[0] | keys[1] == {0, 1, 2, 3}
        found |= keys[1]
    assert len(found) > 1  # they are drawn


def test_shares_are_met_as_well_as_keys_allow(tmp_path: Path) -> None:
    """Of eight episodes five have one key: so half of them is what is drawn before those five, or with them."""
    made = convert(MadeUp([1] * 8), tmp_path / "made")
    found = set()
    for seed in range(6):
        places = [tmp_path / f"{part} {seed}" for part in ("train", "test")]
        train, test = made.split([0.5, 0.5], places, seed=seed, by=lambda x: max(x.number, 4))
        assert train.episodes + test.episodes == 8
        found.add(train.episodes)
    assert {2, 3} & found  # before the five: there the share would be met by more of them only
    assert found <= {2, 3, 5, 6}


def test_states_stand_for_their_files(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1, 6]), tmp_path / "made")
    state = frb.datasets.load(tmp_path / "made", rb, sampler=frb.Slices(2))
    assert Dataset(state).steps == Dataset(state).statistics()["steps"] == made.steps
    Dataset(state, verify=True)
    mapped = Dataset(state).map(lambda episode: episode, tmp_path / "mapped")
    assert mapped.facts["map"]["of"] == str(tmp_path / "made")
    (part,) = Dataset(state).split([1], [tmp_path / "part"])
    assert part.concat(state, to=tmp_path / "both").steps == 2 * part.steps
    assert Dataset(state).filter(lambda x: x.steps > 1, tmp_path / "long").episodes == 2
    in_memory = rb.with_spec(state, dataclasses.replace(state.spec, storage=frb.Host()))
    with pytest.raises(
        ValueError, match=r"datasets\.Dataset: expected the directory .* or a state as datasets.load gives it"
    ):
        Dataset(in_memory)


def test_a_dataset_stands_for_its_directory(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1, 6]), tmp_path / "made")
    assert os.fspath(made) == made.path == str(tmp_path / "made")
    assert rb.items(frb.datasets.load(made, rb))["observation"].tolist() == observations(tmp_path / "made")
    sent = pickle.loads(pickle.dumps(Dataset(made, verify=True)))
    assert isinstance(sent, Dataset)
    assert vars(sent) == vars(made)


def test_what_is_there_is_not_taken_for_something_else(tmp_path: Path) -> None:
    made, to = tmp_path / "made", tmp_path / "to"
    convert(MadeUp([3, 1, 6]), made)
    for ask in (2, 2):  # who asks for the same again gets it
        assert Dataset(made).filter(lambda x, most=ask: x.number < most, to).episodes == 2
    others: dict[str, Any] = {
        "filter": lambda: Dataset(made).filter(lambda x: x.number < 1, to),
        "split": lambda: Dataset(made).split([1], [to]),
        "concat": lambda: Dataset(made).concat(made, to=to),
        "name": lambda: convert(MadeUp([2], name="made_up:others"), made),
        "narrow": lambda: convert(MadeUp([3, 1, 6]), made, frb.datasets.Conversion(narrow=False)),
    }
    for what, make in others.items():
        with pytest.raises(FileExistsError, match=r"has another dataset in it: expected as \w+ .*another path") as told:
            make()
        assert f"expected as {what} " in str(told.value) or what in ("split", "concat")
    Dataset(made).map(lambda episode: episode, tmp_path / "mapped")
    with pytest.raises(FileExistsError, match=r"Dataset\.map: .*mapped has a dataset in it already, which another"):
        Dataset(made).map(lambda episode: episode, tmp_path / "mapped")


def test_a_map_says_of_a_full_disk_that_it_begins_anew(tmp_path: Path) -> None:
    """No function can be told from another, so nothing of a map can be gone on from, and nothing lies about."""
    convert(MadeUp([10] * 20, (30,)), tmp_path / "made")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, limits[1]))
    try:
        with pytest.raises(frb.errors.StorageFullError, match=r"Dataset\.map begins anew.*make room") as caught:
            Dataset(tmp_path / "made").map(lambda episode: episode, tmp_path / "mapped")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "mapped.part" / "rows.bin")
    assert not (tmp_path / "mapped.part").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_map_changes_a_step_and_the_one_before_alike(workers: int, tmp_path: Path) -> None:
    reader = MadeUp([3, 1, 6])
    made = convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True))

    def doubled(episode: Episode) -> Episode:
        seen, at = episode.observations["observation"], episode.infos["at"]
        both = {"observation": seen * 2, "norm": np.abs(seen).astype(np.float16)}
        infos = {"at": at, "half": at.astype(np.float32) / 2}
        return dataclasses.replace(episode, observations=both, rewards=episode.rewards - 1, infos=infos)

    made = made.map(doubled, tmp_path / "mapped", workers=workers)
    assert made.item["norm"].dtype == "float16"
    items, wanted = rb.items(frb.datasets.load(tmp_path / "mapped", rb)), expected(reader)
    frb.ted.check(items, time_axis=0)
    np.testing.assert_array_equal(items["observation"], wanted["observation"] * 2)
    np.testing.assert_array_equal(items["next"]["norm"], wanted["after"])
    np.testing.assert_array_equal(items["next"]["reward"], wanted["reward"] - 1)
    np.testing.assert_array_equal(items["action"], wanted["action"])
    np.testing.assert_array_equal(items["info"]["at"], wanted["observation"])
    np.testing.assert_array_equal(items["info"]["half"], wanted["observation"] / 2)

    def shorter(episode: Episode) -> Episode:
        return dataclasses.replace(episode, actions=episode.actions[1:])

    with pytest.raises(ValueError, match="leaf 'actions': expected shape"):
        made.map(shorter, tmp_path / "wrong", workers=workers)


def test_statistics_are_those_of_all_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["functional_rb.datasets.statistics"], "ROOM", 100)  # of a few steps
    reader = MadeUp([3, 1, 6], (2,), piece=2)
    made = convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True))
    found, wanted = made.statistics(), expected(reader)
    assert (found["steps"], found["episodes"], found["terminated"]) == (10, 3, 2 / 3)
    assert found["lengths"] == {"mean": 10 / 3, "std": pytest.approx(np.std([3, 1, 6])), "min": 1, "max": 6}
    assert found["returns"]["max"] == sum(t + 0.25 for t in range(6, 12))
    seen = np.arange(13.0)  # all observations, the last of each episode too
    leaves: dict[str, Any] = {
        "observations/observation": seen,
        "actions": wanted["action"],
        "rewards": wanted["reward"],
    }
    leaves["infos/at"] = wanted["observation"]
    assert set(found["leaves"]) == set(leaves)
    for name, values in leaves.items():
        told = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
        for what, number in told.items():
            shape = (2,) if name.startswith("obs") else ()
            np.testing.assert_allclose(found["leaves"][name][what], np.full(shape, number), rtol=1e-12)


def test_errors_name_the_function_that_was_called(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1]), tmp_path / "made")
    other, file = convert(MadeUp([2]), tmp_path / "other").path, tmp_path / "file"
    file.write_text("mine")

    def kept(x: Any) -> Any:
        return x

    for name, make in {
        "map": lambda to: made.map(kept, to),
        "filter": lambda to: made.filter(kept, to),
        "concat": lambda to: made.concat(made, to=to),
        "split": lambda to: made.split([1.0], [to]),
    }.items():
        for taken in (other, file):
            with pytest.raises(FileExistsError, match=rf"^Dataset\.{name}: {taken} (has|is there)"):
                make(taken)
        (tmp_path / f"{name}.part").mkdir()
        (tmp_path / f"{name}.part" / "notes").write_text("mine")
        with pytest.raises(FileExistsError, match=rf"^Dataset\.{name}: .*\.part is there already, and no unfinished"):
            make(tmp_path / name)
        with pytest.raises(TypeError, match=rf"^Dataset\.{name}: expected a path"):
            make(3)


def test_what_is_no_function_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1]), tmp_path / "made")
    before = sorted(os.listdir(tmp_path))
    wrong: Any = "speed"
    for name, make in {
        "map": lambda: made.map(wrong, tmp_path / "x"),
        "filter": lambda: made.filter(wrong, tmp_path / "x"),
        "split": lambda: made.split([1.0], [tmp_path / "x"], by=wrong),
    }.items():
        with pytest.raises(TypeError, match=rf"Dataset\.{name}: expected .*function of an? .*, got 'speed'"):
            make()
    with pytest.raises(ValueError, match=r"Dataset\.map: expected workers >= 0, got -1"):
        made.map(lambda episode: episode, tmp_path / "x", workers=-1)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_function_is_not_called_for_a_dataset_that_is_there(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1]), tmp_path / "made")
    calls = []

    def noted(episode: Episode) -> Episode:
        calls.append(episode)
        return episode

    made.map(noted, tmp_path / "mapped")
    before = len(calls)
    with pytest.raises(FileExistsError):
        made.map(noted, tmp_path / "mapped")
    assert len(calls) == before


def test_a_dataset_is_shown_in_a_line(tmp_path: Path) -> None:
    made = convert(MadeUp([3, 1]), tmp_path / "made")
    assert repr(made) == f"Dataset('made_up:episodes', 4 steps in 2 episodes, at {made.path!r})"
