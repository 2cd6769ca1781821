"""Converted datasets in the formats of others: read by Minari, by the library that LeRobot reads with, and by ours."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pandas
import pyarrow.parquet
import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb.base import nest
from functional_rb.datasets import Dataset, Episode, Recording, StepSpec, convert
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.exporting import lerobot_files
from functional_rb.datasets.stored import Stored
from functional_rb.specs.values import Outline
from functional_rb.storage import disk
from tests.datasets.episodes import equal, joined, open_reader, read, read_in_pieces_of
from tests.datasets.made_up import LENGTHS, READERS, MadeUp, expected
from tests.support.effort import effort

FPS = {"fps": 10}
LEROBOT = ("lerobot", "lerobot-2.1")


@pytest.fixture(name="piece", params=[2**23, 1], ids=["whole", "in pieces"])
def piece_fixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Whole episodes, and pieces of two or three steps."""
    read_in_pieces_of(request.param, monkeypatch)
    return int(request.param)


def of_minari(folder: Path) -> list[Any]:
    return list(minari.MinariDataset(folder / "data"))


def same_again(made: Path, name: str, again: Path) -> None:
    """What was exported, read and converted once more, is what it was made of."""
    kept = Dataset(made)
    options = {key: kept.options[key] for key in ("narrow", "observation_key", "compact")}
    assert convert(open_reader(name), again, frb.datasets.Conversion(infos=True, **options)).item == kept.item
    ours, theirs = (joined(read(open_reader(path))) for path in (made, again))
    for one, other in zip(ours, theirs, strict=True):
        for field in ("observations", "actions", "rewards", "terminated", "truncated", "infos"):
            equal(getattr(one, field), getattr(other, field))
        assert one.about == other.about


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_minari_reads_every_step(reader: MadeUp, piece: int, tmp_path: Path) -> None:
    convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True, compact=piece == 1))
    name = Dataset(tmp_path / "made").export(tmp_path / "walks" / "left-v0")
    assert name == f"minari:{tmp_path}/walks/left-v0"
    theirs, wanted = of_minari(tmp_path / "walks" / "left-v0"), expected(reader)
    column = {"observation": lambda x: x.observations[:-1], "after": lambda x: x.observations[1:]}
    column |= {"action": lambda x: x.actions, "reward": lambda x: x.rewards}
    column |= {"terminated": lambda x: x.terminations, "truncated": lambda x: x.truncations}
    for field, rows in column.items():
        found = np.concatenate([rows(episode) for episode in theirs])
        np.testing.assert_array_equal(found.reshape(len(found), -1)[:, 0], wanted[field])
    np.testing.assert_array_equal(np.concatenate([x.infos["at"] for x in theirs]), wanted["observation"])
    dataset = minari.MinariDataset(tmp_path / "walks" / "left-v0" / "data")
    told = list(dataset.storage.get_episode_metadata(range(len(theirs))))
    assert [x["total_steps"] for x in told] == [len(x) for x in theirs]
    assert [x["seed"] for x in told] == [x.about["seed"] for x in Dataset(tmp_path / "made").summaries()]
    assert dataset.total_steps == Dataset(tmp_path / "made").steps
    same_again(tmp_path / "made", name, tmp_path / "again")


class Sampled(gymnasium.Env[Any, Any]):
    """Whatever the spaces have; ends after five steps."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (36, 40, 3), np.uint8),
        pose=spaces.Dict(
            at=spaces.Box(-1, 2, (2, 2)), grip=spaces.MultiBinary([3, 2]), seen=spaces.Box(0, 1, (2,), bool)
        ),
        task=spaces.Text(6, min_length=0, charset="aé日"),
        both=spaces.Tuple([spaces.MultiDiscrete([3, 4]), spaces.Discrete(7, start=-2)]),
        wide=spaces.Box(-np.inf, np.inf, (), np.float64),
    )
    action_space = spaces.Dict(move=spaces.Box(-1, 1, (2,), np.float16), say=spaces.Text(4))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        told = {"speed": np.full((2, 3), self.t), "inner": {"sign": np.float64(self.t)}, "name": "x" * self.t}
        return self.observation_space.sample(), self.t + 0.25, self.t == 5, False, told


def sampled() -> Recording:
    infos = {"speed": frb.Unbounded((2, 3), "int64"), "inner": {"sign": frb.Unbounded((), "float64")}}
    return Recording(Sampled(), None, episodes=2, seed=3, infos={**infos, "name": frb.specs.Text(6)})


def test_minari_has_all_kinds_of_spaces(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    convert(sampled(), tmp_path / "made", frb.datasets.Conversion(infos=True, narrow=False))
    name = Dataset(tmp_path / "made").export(tmp_path / "root" / "mine" / "sampled-v1", facts={"author": "A. Uthor"})
    dataset = minari.load_dataset("mine/sampled-v1")
    assert dataset.observation_space == Sampled.observation_space
    assert dataset.action_space == Sampled.action_space
    assert dataset.storage.metadata["author"] == {"A. Uthor"}
    assert [*minari.list_local_datasets()] == ["mine/sampled-v1"]
    for own, other in zip(joined(read(sampled())), dataset, strict=True):
        equal(own.observations, other.observations)
        equal(own.actions, other.actions)
        texts = [text.decode() for text in other.infos["name"]]
        equal(dict(own.infos), {**other.infos, "name": texts})
        assert dataset.observation_space["image"].contains(other.observations["image"][0])
    again = convert(
        open_reader(name), tmp_path / "again", frb.datasets.Conversion(infos=["speed", "inner"], narrow=False)
    )
    both = {key: spec for key, spec in Dataset(tmp_path / "made").item.items() if key != "info"}
    assert {key: spec for key, spec in again.item.items() if key != "info"} == both


def test_seeds_that_are_no_numbers_are_refused_for_minari(tmp_path: Path) -> None:
    class Named(MadeUp):
        def episodes(self, first: int = 0) -> Iterator[Episode]:
            for episode in super().episodes(first):
                yield dataclasses.replace(episode, about={"seed": "first"})

    convert(Named([3]), tmp_path / "made")
    with pytest.raises(DatasetError, match="made, seed: expected a whole number, got 'first'"):
        Dataset(tmp_path / "made").export(tmp_path / "walk-v0")


def test_minari_is_told_what_is_known(tmp_path: Path) -> None:
    """What is made of a dataset has its authors, and a name of its own."""
    convert(MadeUp([3]), tmp_path / "made")
    told = {"author": ["A. Uthor"], "description": "walks", "dataset_id": "mine/old-v3"}
    name = Dataset(tmp_path / "made").export(tmp_path / "walk-v0", facts=told)
    convert(open_reader(name), tmp_path / "again")
    Dataset(tmp_path / "again").export(tmp_path / "walk-v1", facts={"description": "more walks"})
    found = [minari.MinariDataset(tmp_path / f"walk-v{k}" / "data") for k in range(2)]
    assert [dataset.id for dataset in found] == ["mine/old-v3", "walk-v1"]
    assert [dataset.storage.metadata["description"] for dataset in found] == ["walks", "more walks"]
    assert found[1].storage.metadata["author"] == {"A. Uthor"}
    for place in ("walk", "walk 1-v0"):
        with pytest.raises(ValueError, match=f"with a version, as 'doors-v0', got '{place}'; give another path"):
            Dataset(tmp_path / "made").export(tmp_path / place)


@pytest.mark.parametrize("format", LEROBOT)
@pytest.mark.parametrize(("shape", "piece"), [((), 2**23), ((3,), 1), ((2, 3), 1)], ids=str)
def test_lerobot_has_every_step(
    format: str, shape: tuple[int, ...], piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an episode's last action has led to is not in it: of those that go on, the last step cannot be converted."""
    read_in_pieces_of(piece, monkeypatch)
    for name in ("FILE", "CHUNK", "ROWS"):
        monkeypatch.setattr(lerobot_files, name, {"FILE": 1e-5, "CHUNK": 2, "ROWS": 2}[name])
    convert(MadeUp(LENGTHS, shape), tmp_path / "made", frb.datasets.Conversion(infos=True))
    name = Dataset(tmp_path / "made").export(tmp_path / "walk", format, facts={**FPS, "task": "walk left"})
    assert name == f"lerobot:{tmp_path}/walk"
    given = joined(read(open_reader(tmp_path / "made")))
    for own, other in zip(given, joined(read(open_reader(name))), strict=True):
        there = own.observations["observation"][:-1]
        np.testing.assert_array_equal(other.observations["state"][:-1], there.reshape(len(own), *(shape or (1,))))
        np.testing.assert_array_equal(other.actions[:, 0], own.actions)
        for field in ("rewards", "terminated"):
            np.testing.assert_array_equal(getattr(other, field), getattr(own, field))
        np.testing.assert_array_equal(other.infos["at"], own.infos["at"])
        np.testing.assert_array_equal(other.infos["next.truncated"], own.truncated)
        assert other.about == {"tasks": ["walk left"]}
    made = convert(open_reader(name), tmp_path / "again", frb.datasets.Conversion(infos=True))
    wanted = expected(MadeUp(LENGTHS, blind=range(5)))
    rewards = np.concatenate([episode.rewards for episode in read(open_reader(tmp_path / "again"))])
    np.testing.assert_array_equal(rewards, wanted["reward"])
    assert made.facts["fps"] == 10
    twice = Dataset(tmp_path / "again").export(
        tmp_path / "twice", format
    )  # fps is known, what is counted is counted anew
    assert [*open_reader(twice).spec(True).infos] == [*open_reader(name).spec(True).infos]
    files = {str(path.relative_to(tmp_path / "walk")) for path in (tmp_path / "walk").rglob("*.parquet")}
    if format == "lerobot":
        assert "data/chunk-001/file-000.parquet" in files
        (episodes,) = (tmp_path / "walk" / "meta" / "episodes").rglob("*.parquet")
        assert pyarrow.parquet.ParquetFile(episodes).num_row_groups == 3, "of two episodes, two and one"
    else:
        assert "data/chunk-002/episode_000004.parquet" in files


def hugging_face(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool) -> Any:
    """The rows as the library `datasets` gives them, which LeRobot reads tables with."""
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    told = json.loads((folder / "meta" / "info.json").read_text())["features"]

    def feature(dtype: str, shape: list[int]) -> Any:
        if dtype == "image":
            return datasets.Image()
        if shape == [1]:
            return datasets.Value(dtype)
        if len(shape) == 1:
            return datasets.Sequence(datasets.Value(dtype), length=shape[0])
        return getattr(datasets, f"Array{len(shape)}D")(tuple(shape), dtype)

    features = datasets.Features({name: feature(x["dtype"], x["shape"]) for name, x in told.items()})
    files = sorted(map(str, (folder / "data").glob("*/*.parquet")))
    datasets.disable_progress_bars()
    found = datasets.Dataset.from_parquet(files, features=features if is_told else None, cache_dir=str(tmp_path / "hf"))
    known = {
        name: x for name, x in features.items() if is_told or not isinstance(x, datasets.features.features._ArrayXD)
    }
    assert {name: found.features[name] for name in known} == known
    return found.with_format("numpy")


@pytest.mark.parametrize("format", LEROBOT)
def test_lerobot_can_read_tables_stats_and_tasks(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 3.0 is read by the features that info.json tells, version 2.1 by those that the tables tell."""
    shapes = {"image": (5, 4, 3), "clear": (3, 2, 4), "grey": (5, 4), "grid": (2, 3), "bytes": (2, 2, 2)}
    kinds = dict.fromkeys(shapes, "uint8") | {"grid": "float32"}
    specs = {name: frb.Unbounded(shape, kinds[name]) for name, shape in shapes.items()}
    reader = Random([3, 4, 1], StepSpec(specs, frb.Unbounded((2,)), infos={"inner": {"flag": frb.Binary()}}))
    reader.tasks = [["open it"], ["shut it", "hold it"], ["open it"]]
    convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True))
    Dataset(tmp_path / "made").export(tmp_path / "walk", format, facts=FPS)
    found = hugging_face(tmp_path / "walk", tmp_path, monkeypatch, format == "lerobot")
    rows = joined(read(open_reader(tmp_path / "made")))
    whole = {name: np.concatenate([x.observations[name][:-1] for x in rows]) for name in shapes}
    for name, values in whole.items():
        np.testing.assert_array_equal(np.stack(found[f"observation.{name}"][:]), values)
    actions = np.concatenate([x.actions for x in rows])
    np.testing.assert_array_equal(np.stack(found["action"][:]), actions)
    np.testing.assert_array_equal(found["inner.flag"][:], np.concatenate([x.infos["inner"]["flag"] for x in rows]))
    np.testing.assert_array_equal(found["index"][:], np.arange(8))
    told = json.loads((tmp_path / "walk" / "meta" / "info.json").read_text())["features"]
    images = {name for name in shapes if told[f"observation.{name}"]["dtype"] == "image"}
    assert images == {"image", "clear", "grey"}
    np.testing.assert_array_equal(found["frame_index"][:], [0, 1, 2, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(found["timestamp"][:], np.float32([0, 0.1, 0.2, 0, 0.1, 0.2, 0.3, 0]))
    np.testing.assert_array_equal(found["episode_index"][:], [0, 0, 0, 1, 1, 1, 1, 2])
    np.testing.assert_array_equal(found["task_index"][:], [0, 0, 0, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(found["next.done"][:], [0, 0, 1, 0, 0, 0, 1, 1])
    stats, episode = _told_of(tmp_path / "walk", format)
    for what, number in (("mean", np.mean), ("std", np.std), ("min", np.min), ("max", np.max)):
        pixels = whole["image"] / 255
        np.testing.assert_allclose(np.array(stats["observation.image"][what])[:, 0, 0], number(pixels, (0, 1, 2)))
        np.testing.assert_allclose(stats["action"][what], number(actions, 0), rtol=1e-6)
        np.testing.assert_allclose(episode["action"][what], number(actions[3:7], 0), rtol=1e-6)
    assert (stats["observation.image"]["count"], episode["action"]["count"]) == ([8], [4])


def _told_of(folder: Path, format: str) -> tuple[Any, Any]:
    """Numbers of all, and of the second episode; and the tasks are looked at."""
    told = json.loads((folder / "meta" / "info.json").read_text())
    assert (told["total_episodes"], told["total_frames"], told["total_tasks"], told["fps"]) == (3, 8, 3, 10)
    if format == "lerobot-2.1":
        lines = {path.stem: [json.loads(x) for x in path.read_text().splitlines()] for path in folder.rglob("*.jsonl")}
        assert [x["task"] for x in lines["tasks"]] == ["open it", "shut it", "hold it"]
        assert [x["tasks"] for x in lines["episodes"]] == [["open it"], ["shut it", "hold it"], ["open it"]]
        own = [x["stats"] for x in lines["episodes_stats"]]
        return _joined_stats(own), own[1]
    tasks = pandas.read_parquet(folder / "meta" / "tasks.parquet")
    assert tasks.loc["shut it"].task_index == 1
    assert tasks.iloc[2].name == "hold it"
    row = pandas.read_parquet(folder / "meta" / "episodes").iloc[1]
    assert (row["dataset_from_index"], row["dataset_to_index"], row["length"], row["data/file_index"]) == (3, 7, 4, 0)
    own = {what: row[f"stats/action/{what}"].tolist() for what in ("mean", "std", "min", "max", "count")}
    assert np.stack([x.tolist() for x in np.ravel(row["stats/observation.image/mean"])]).size == 3
    return json.loads((folder / "meta" / "stats.json").read_text()), {"action": own}


def _joined_stats(own: list[Any]) -> Any:
    """As LeRobot joins those of episodes."""
    made = {}
    for name in own[0]:
        count = np.array([x[name]["count"][0] for x in own])
        rows = {what: np.array([x[name][what] for x in own]) for what in ("mean", "std", "min", "max")}
        weights = (count / count.sum()).reshape(-1, *[1] * (rows["mean"].ndim - 1))
        mean = (rows["mean"] * weights).sum(0)
        variance = ((rows["std"] ** 2 + (rows["mean"] - mean) ** 2) * weights).sum(0)
        made[name] = {"mean": mean, "std": np.sqrt(variance), "min": rows["min"].min(0), "max": rows["max"].max(0)}
        made[name]["count"] = [int(count.sum())]
    return made


@dataclasses.dataclass
class Random:
    """Random numbers of any specs."""

    lengths: list[int]
    steps: StepSpec
    name: str = "random:numbers"
    files: tuple[str, ...] = ()
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    tasks: list[list[str]] | None = None

    def __post_init__(self) -> None:
        self.steps = dataclasses.replace(self.steps, encoded=True)
        self.counts = {"episodes": len(self.lengths), "steps": sum(self.lengths)}

    def spec(self, narrow: bool) -> StepSpec:
        return self.steps

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        steps = self.steps
        for k, n in enumerate(self.lengths):
            rng = np.random.default_rng(k)
            parts = [numbers(steps.observation, n + 1, rng), numbers(steps.action, n, rng)]
            infos = {name: numbers(spec, n, rng) for name, spec in steps.infos.items()}
            about = {} if self.tasks is None else {"tasks": self.tasks[k]}
            rewards = numbers(steps.reward, n, rng)
            yield Episode(*parts, rewards, np.arange(n) == n - 1, np.zeros(n, bool), infos, about=about)


def numbers(spec: Any, n: int, rng: np.random.Generator) -> Any:
    outline = Outline.of(spec, "test")
    made = [
        rng.integers(0, 2 if leaf.dtype == "bool" else 120, (n, *leaf.shape)).astype(leaf.dtype)
        for leaf in outline.leaves
    ]
    return nest.unflatten(outline.structure, made)


@settings(max_examples=effort(4, 200), deadline=None, derandomize=True)
@example(
    lengths=[2], kinds={"a": ((2, 2), "uint8"), "b c": ((), "bool"), "état": ((1, 2, 1, 3, 1), "int8")}, compact=True
)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    kinds=st.dictionaries(
        st.sampled_from(["a", "b c", "état"]),
        st.tuples(
            st.lists(st.integers(1, 4), max_size=3).map(tuple),
            st.sampled_from(["bool", "int8", "uint8", "int32", "float16", "float32"]),
        ),
        min_size=1,
    ),
    compact=st.booleans(),
)
def test_numbers_of_all_kinds_come_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], kinds: dict[str, Any], compact: bool
) -> None:
    root = tmp_path_factory.mktemp("export")
    specs = {name: frb.Binary(*kind) if kind[1] == "bool" else frb.Unbounded(*kind) for name, kind in kinds.items()}
    reader = Random(lengths, StepSpec(specs, next(iter(specs.values())), infos=specs))
    convert(reader, root / "made", frb.datasets.Conversion(infos=True, compact=compact))
    same_again(root / "made", Dataset(root / "made").export(root / "all-v0"), root / "again")
    name = Dataset(root / "made").export(root / "rows", "lerobot", facts=FPS)
    for own, other in zip(reader.episodes(), joined(read(open_reader(name))), strict=True):
        for key, spec in specs.items():
            rows = own.observations[key][:-1]
            theirs = other.observations[key][:-1]
            assert theirs.dtype == spec.dtype
            np.testing.assert_array_equal(theirs.reshape(rows.shape), rows)
            np.testing.assert_array_equal(other.infos[key].reshape(rows.shape), own.infos[key])


NUMBER = frb.Unbounded(())
REFUSED: dict[str, tuple[StepSpec, str, str]] = {
    "rewards of two numbers": (StepSpec(NUMBER, NUMBER, frb.Unbounded((2,))), "minari", "leaf 'rewards': expected one"),
    "names with a slash": (StepSpec({"a/b": NUMBER}, NUMBER), "minari", "leaf 'observations/a/b': expected names with"),
    "empty names": (StepSpec({"a": {"": NUMBER}}, NUMBER), "minari", "leaf 'observations/a/': expected names without"),
    "sequences": (
        StepSpec({"a": (NUMBER, frb.specs.Sequence(NUMBER, 2))}, NUMBER),
        "minari",
        "leaf 'observations/a/1': expected numbers, arrays and texts, which is what Minari has, got Sequence",
    ),
    "empty arrays": (StepSpec(NUMBER, {"a": frb.Unbounded((0,))}), "minari", "leaf 'actions/a': expected some number"),
    "one-hot vectors": (StepSpec(NUMBER, frb.specs.OneHot(3)), "minari", r"leaf 'actions': no space .*to_categorical"),
    "other floats": (
        StepSpec(NUMBER, NUMBER, infos={"a": frb.Unbounded((), "complex64")}),
        "minari",
        "leaf 'infos/a': no space has the dtype complex64",
    ),
    "texts": (
        StepSpec({"say": frb.specs.Text(3)}, NUMBER),
        "lerobot",
        r"leaf 'observations/say': expected numbers of NumPy",
    ),
    "graphs": (
        StepSpec(NUMBER, frb.specs.Graph(NUMBER, None, 2)),
        "lerobot",
        "leaf 'actions': expected numbers of NumPy",
    ),
    "dots": (StepSpec({"a.b": NUMBER}, NUMBER), "lerobot", "expected names without '/' and '.', which LeRobot takes"),
    "six axes": (StepSpec(NUMBER, frb.Unbounded((1,) * 6)), "lerobot", "leaf 'actions': expected at most 5 axes"),
    "empty rows": (StepSpec(frb.Unbounded((0,)), NUMBER), "lerobot", "leaf 'observations': expected some number"),
    "infos that are none": (
        StepSpec(NUMBER, NUMBER, infos={"action": {"a": NUMBER}}),
        "lerobot",
        "leaf 'infos/action/a': expected infos that are not called observation or action",
    ),
    "the same name twice": (
        StepSpec(NUMBER, NUMBER, infos={"a": {"b": NUMBER}, "a.b": NUMBER}),
        "lerobot-2.1",
        "expected leaves that have names of their own in LeRobot, got 'a.b' twice",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_others_cannot_hold_is_refused(case: tuple[StepSpec, str, str], tmp_path: Path) -> None:
    steps, format, message = case
    convert(Random([2], steps), tmp_path / "made", frb.datasets.Conversion(infos=True))
    with pytest.raises((DatasetError, TypeError), match=message) as caught:
        Dataset(tmp_path / "made").export(tmp_path / "out-v0", format, facts=FPS)
    assert any(what in str(caught.value) for what in ("Dataset.map", "change the spec's", "to_categorical"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out-v0.lock", "made", "made.lock"]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    convert(MadeUp([3]), tmp_path / "made")
    with pytest.raises(ValueError, match=r"format: expected one of minari, lerobot, lerobot-2\.1, got 'rlds'"):
        Dataset(tmp_path / "made").export(tmp_path / "out", "rlds")
    for fps in (None, 0, True, "10", float("inf")):
        with pytest.raises(ValueError, match=r"fps: expected how many steps a second .* give facts=\{'fps': 10\}"):
            Dataset(tmp_path / "made").export(tmp_path / "out", "lerobot", facts={} if fps is None else {"fps": fps})
    with pytest.raises(ValueError, match=r"facts: expected some of fps, robot_type, task, .* got \['tsk'\]"):
        Dataset(tmp_path / "made").export(tmp_path / "out", "lerobot", facts={**FPS, "tsk": "walk"})
    for facts, message in (
        ({"total_steps": 1}, "do not tell, got 'total_steps'"),
        ({"description": 3}, "text as 'des"),
    ):
        with pytest.raises(ValueError, match=message):
            Dataset(tmp_path / "made").export(tmp_path / "out-v0", facts=facts)
    with pytest.raises(FileExistsError, match="made is there already; give another path"):
        Dataset(tmp_path / "made").export(tmp_path / "made")
    with pytest.raises(DatasetError, match="no converted dataset is there"):
        Dataset(tmp_path / "nowhere").export(tmp_path / "out-v0")


def test_lerobot_has_several_episodes_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has become large is the last one's: the next begins with nothing."""
    convert(MadeUp([10] * 6), tmp_path / "made")
    Dataset(tmp_path / "made").export(tmp_path / "one", "lerobot", facts=FPS)
    (rows,) = (tmp_path / "one" / "data").rglob("*.parquet")
    monkeypatch.setattr(lerobot_files, "FILE", 1.5 * pyarrow.parquet.read_table(rows).nbytes / 6 / 2**20)
    Dataset(tmp_path / "made").export(tmp_path / "some", "lerobot", facts=FPS)
    told = pandas.read_parquet(tmp_path / "some" / "meta" / "episodes")
    assert told["data/file_index"].tolist() == [0, 0, 1, 1, 2, 2]
    files = sorted((tmp_path / "some" / "data").rglob("*.parquet"))
    assert [pyarrow.parquet.read_metadata(path).num_rows for path in files] == [20, 20, 20]


def test_steps_a_second_are_told_as_whole_numbers_where_they_are(tmp_path: Path) -> None:
    convert(MadeUp([3]), tmp_path / "made")
    for fps, wanted in ((10.0, "10"), (12.5, "12.5")):
        Dataset(tmp_path / "made").export(tmp_path / wanted, "lerobot", facts={"fps": fps})
        assert f'"fps": {wanted},' in (tmp_path / wanted / "meta" / "info.json").read_text()


@pytest.mark.parametrize("format", LEROBOT)
def test_what_was_to_be_done_is_called_as_the_dataset_if_nobody_says(format: str, tmp_path: Path) -> None:
    convert(MadeUp([2]), tmp_path / "made")
    (episode,) = read(open_reader(Dataset(tmp_path / "made").export(tmp_path / "walk", format, facts=FPS)))
    assert episode.about == {"tasks": [open_reader(tmp_path / "made").name]}


def test_files_are_synced_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync, rename = disk.fsync, disk.rename

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def renamed(source: str, to: str) -> None:
        files = [str(path) for path in Path(source).rglob("*") if path.is_file()]
        assert files
        assert set(files) <= set(synced)
        rename(source, to)

    convert(MadeUp([3]), tmp_path / "made")
    monkeypatch.setattr(disk, "fsync", noted)
    monkeypatch.setattr(disk, "rename", renamed)
    Dataset(tmp_path / "made").export(tmp_path / "walk", "lerobot", facts=FPS)


@pytest.mark.parametrize("format", ["minari", *LEROBOT])
def test_the_folder_is_whole_or_not_there(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(MadeUp([10] * 5, (300,)), tmp_path / "made")
    target = tmp_path / "out-v0"
    litter = tmp_path / ".out-v0.exporting" / "data" / "main_data.hdf5"  # of one who was killed
    litter.parent.mkdir(parents=True)
    litter.write_text("cut")
    episodes, seen = Stored.episodes, []

    def stopping(self: Stored, first: int = 0) -> Iterator[Episode]:
        for number, episode in enumerate(episodes(self, first)):
            if number == 3:
                raise KeyboardInterrupt
            seen.append(target.exists())
            yield episode

    with monkeypatch.context() as patch:
        patch.setattr(Stored, "episodes", stopping)
        with pytest.raises(KeyboardInterrupt):
            Dataset(tmp_path / "made").export(target, format, facts=FPS)
    assert seen == [False] * 3
    hidden = {".out-v0.lock", "made", "made.lock"}
    assert {path.name for path in tmp_path.iterdir()} == hidden
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, limits[1]))
    try:
        with pytest.raises(frb.errors.StorageFullError, match="make room"):
            Dataset(tmp_path / "made").export(target, format, facts=FPS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name for path in tmp_path.iterdir()} == hidden
    name = Dataset(tmp_path / "made").export(target, format, facts=FPS)
    assert sum(len(episode) for episode in open_reader(name).episodes()) == 50


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(MadeUp([3]), tmp_path / "made")
    for module, format in (("minari", "minari"), ("pyarrow", "lerobot")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match=r"Dataset.export needs .*\[datasets\]"):
                Dataset(tmp_path / "made").export(tmp_path / "out-v0", format, facts=FPS)
