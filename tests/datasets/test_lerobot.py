"""LeRobot's datasets beyond their steps: images, videos, texts, and metadata that are not as they should be."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas
import pyarrow
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from functional_rb.datasets import lerobot_videos as videos
from functional_rb.datasets import parquet
from tests.datasets import datasets_of_others as others
from tests.datasets.episodes import open_reader, read_in_pieces_of

WRITERS = {"2.1": others.lerobot_v2, "3.0": others.lerobot_v3}
SIDE = "observation.images.side"


def marked(path: str, times: np.ndarray) -> np.ndarray:
    """Frames that tell their times, in tenths of a second."""
    assert path.endswith(".mp4")
    return others.images(np.round(times * 10))


@pytest.mark.parametrize("version", WRITERS)
def test_images_videos_and_texts_are_read(version: str, tmp_path: Path) -> None:
    name = WRITERS[version](tmp_path)
    without = open_reader(name, str(tmp_path))
    assert without.facts["left out"] == ["next.word", SIDE]
    assert [name for name, _ in without.spec(True).observation["images"].items()] == ["top"]
    reader = open_reader(name, str(tmp_path), video=f"{__name__}:marked")
    assert reader.spec(True).observation["images"]["side"] == frb.Unbounded((4, 4, 3), "uint8")
    for t, episode in zip(others.times(), reader.episodes(), strict=True):
        pictures = episode.observations["images"]
        np.testing.assert_array_equal(pictures["top"][:-1], others.images(t[:-1]))
        begin = 10 * t[0] if version == "3.0" else 0  # of the episode in its video
        np.testing.assert_array_equal(pictures["side"][:-1], others.images(begin + np.arange(len(t) - 1)))
        assert episode.about == {"tasks": ["open it"]}
        np.testing.assert_array_equal(episode.infos["frame_index"], np.arange(len(t) - 1))


class Frame:
    """What PyAV has of a frame."""

    height = width = 4

    def __init__(self, pts: int) -> None:
        self.pts = pts

    def to_ndarray(self, format: str) -> np.ndarray:
        assert format == "rgb24"
        return others.images(np.array([self.pts]))[0]


class Container:
    """What PyAV has of a video: a frame every 0.1 s, and every fourth of the 40 is a key frame."""

    def __init__(self, decoded: list[int]) -> None:
        stream = types.SimpleNamespace(time_base=0.1, average_rate=10)
        self.streams, self.first, self.decoded = types.SimpleNamespace(video=[stream]), 0, decoded

    def seek(self, offset: int, stream: Any, backward: bool) -> None:
        assert backward
        self.first = offset // 4 * 4

    def decode(self, stream: Any) -> Any:
        for pts in range(self.first, 40):
            self.decoded.append(pts)
            yield Frame(pts)

    def close(self) -> None:
        self.decoded.append(-1)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The frames that a library in place of PyAV has decoded; -1 where a video was closed."""
    found: list[int] = []
    stands_in = types.SimpleNamespace(open=lambda path: Container(found), FFmpegError=OSError)
    monkeypatch.setitem(sys.modules, "av", stands_in)
    return found


def test_frames_are_the_nearest_ones(decoded: list[int], tmp_path: Path) -> None:
    path, shape = str(tmp_path / "a.mp4"), (4, 4, 3)
    Path(path).touch()
    with videos.decoding("pyav", 1) as decode:
        found = decode(path, np.array([0.25, 0.9, 1.0, 1.11, 1.39]), shape)
        assert found[:, 0, 0, 0].tolist() == [3, 9, 10, 11, 14], "of two that are as near the later one"
        with pytest.raises(ValueError, match=r"a.mp4: expected a frame at second 4.5"):
            decode(path, np.array([1.0, 4.5]), shape)
        with pytest.raises(ValueError, match=r"second 1.0: expected a frame of shape \(5, 4, 3\), got \(4, 4, 3\)"):
            decode(path, np.array([1.0]), (5, 4, 3))
        with pytest.raises(FileNotFoundError):
            decode(f"{path}.none", np.array([1.0]), shape)
    with pytest.raises(ValueError, match="expected 'pyav' or 'module:function'"):
        videos.decoding("other", 1)


def test_frames_are_decoded_on_from_those_before(
    decoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, while pieces follow each other, of several videos by turns; and the last may be asked for again."""
    paths = [str(tmp_path / name) for name in ("a.mp4", "b.mp4", "c.mp4")]
    for path in paths:
        Path(path).touch()
    with videos.decoding("pyav", 2) as decode:
        for first, stop in ((6, 9), (8, 11), (11, 13), (12, 13), (20, 22)):
            for path in paths[:2]:
                found = decode(path, np.arange(first, stop) / 10, (4, 4, 3))
                assert found[:, 0, 0, 0].tolist() == [*range(first, stop)]
        assert sorted(decoded) == sorted(2 * [*range(4, 22)])
        decoded.clear()
        decode(paths[0], np.array([1.9]), (4, 4, 3))  # that has gone by
        assert decoded == [16, 17, 18, 19]
        monkeypatch.setattr(videos, "AHEAD", 0.5)
        decoded.clear()
        assert decode(paths[0], np.array([3.5]), (4, 4, 3))[0, 0, 0, 0] == 35
        assert decoded == [32, 33, 34, 35]
        decoded.clear()
        decode(paths[2], np.array([0.0, 0.1, 0.2]), (4, 4, 3))
        assert decoded == [0, 1, 2, -1]  # the one that was read before the others is closed
    assert decoded == [0, 1, 2, -1, -1, -1]


def grey(frame: np.ndarray) -> np.ndarray:
    """How bright a frame is: far enough from that of the frames beside it for a codec that loses some."""
    return 20 + frame * 7 % 200


@pytest.mark.parametrize("codec", ["h264", "libsvtav1"])
def test_real_videos_are_decoded_by_pyav(tmp_path: Path, codec: str) -> None:
    """Of 40 frames, 10 a second, with a key frame every 8, as LeRobot's are: all, some from within, and the last."""
    path = str(tmp_path / "a.mp4")
    with av.open(path, "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt, stream.gop_size = "yuv420p", 8
        for number in grey(np.arange(40)):
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), number, np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    shape = (64, 64, 3)
    with videos.decoding("pyav", 1) as decode:
        for first, stop in ((0, 40), (13, 29), (28, 31), (31, 39), (39, 40), (2, 5)):
            chosen = np.arange(first, stop)
            found = decode(path, chosen / 10, shape)
            np.testing.assert_allclose(found.mean((1, 2, 3)), grey(chosen), atol=2)
        with pytest.raises(ValueError, match=r"expected a frame at second 4\.2"):
            decode(path, np.array([3.9, 4.2]), shape)


def wrong_size(path: str, times: np.ndarray) -> np.ndarray:
    return others.images(times, (5, 5, 3))


def test_frames_of_another_size_are_refused(tmp_path: Path) -> None:
    reader = open_reader(others.lerobot_v2(tmp_path), str(tmp_path), video=f"{__name__}:wrong_size")
    with pytest.raises(ValueError, match=rf"{SIDE}, .*mp4: expected uint8 \(3, 4, 4, 3\)"):
        next(iter(reader.episodes()))


Change = Callable[[Path], object]


def in_info(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "meta" / "info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def in_lines(*episodes: tuple[int, Any]) -> Change:
    """What tells the lengths of episodes, by their numbers."""
    lines = [json.dumps({"episode_index": k, "length": n}) for k, n in episodes]
    return lambda folder: (folder / "meta" / "episodes.jsonl").write_text("\n".join(lines))


def in_table(**columns: Any) -> Change:
    """Columns of the table that tells of episodes, given in the order of their numbers."""
    return lambda folder: told_of_episodes(folder, **columns)


def with_features(**features: Any) -> Change:
    return in_info(features={name.replace("_", "."): feature for name, feature in features.items()})


NUMBER: dict[str, Any] = {"dtype": "int64", "shape": [1]}
SEVEN: dict[str, Any] = {"dtype": "float32", "shape": [7]}
# The version that is written, what is changed of it, and what an error says of that.
CHANGES: dict[str, tuple[str, Change, str]] = {
    "another version": ("2.1", in_info(codebase_version="v4.0"), r"expected v2.0, v2.1 or v3.0, got 'v4.0'"),
    "a path that leads out": ("2.1", in_info(data_path="../{episode_index}.parquet"), "absolute, and not have '..'"),
    "a path with code": ("2.1", in_info(data_path="{episode_index.__class__}"), "No such file|open"),
    "no features": ("2.1", in_info(features=[]), "there are no features"),
    "no actions": ("2.1", with_features(observation=NUMBER), "expected numbers or images in 'act"),
    "values that are a nest too": (
        "2.1",
        with_features(observation=NUMBER, action=NUMBER, action_x_y=NUMBER),
        r"info\.json: expected values or a nest by the name 'action', got 'action\.x\.y' beside it",
    ),
    "no feature": ("2.1", with_features(action=3), "info.json, action: expected dtype and shape of a feature, got 3"),
    "a feature without a shape": ("2.1", with_features(action={"dtype": "int64"}), "expected dtype and shape"),
    "another column": ("2.1", with_features(action=NUMBER, observation=NUMBER), r"expected columns \['observation'\]"),
    "another shape": (
        "2.1",
        with_features(action=SEVEN, observation_state=SEVEN),
        r"episode 0, (action|observation.state): expected numbers, 3 times shape \(7,\)",
    ),
    "no files in a folder": ("2.1", in_info(chunks_size=0), "metadata of LeRobot, ZeroDivisionError"),
    "a longer episode": ("2.1", in_lines((0, 9)), "expected 9 rows, the file has 3"),
    # The converter would not count it: one that goes on would begin at another episode.
    "no steps": ("2.1", in_lines((0, 3), (1, 0)), r"000001\.parquet, episode 1: expected some steps, got none"),
    **{
        f"a length {length!r}": ("2.1", in_lines((4, length)), "doors, episode 4: length: expected how many rows")
        for length in ("3", -1, True, 3.5)
    },
    "a length in a table": ("3.0", in_table(length=-1), r"doors, episode 0: length: expected how many rows, got -1"),
    "an episode twice": ("3.0", in_table(episode_index=[0, 1, 1, 3, 4]), "episode 1: the metadata have it twice"),
    "no number": ("3.0", in_table(episode_index=[*"01234"]), "episode 0: episode_index: expected a number from 0"),
    "another length": (
        "3.0",
        in_table(dataset_from_index=0, dataset_to_index=9),
        r"episode 0: length: expected dataset_to_index - dataset_from_index, which is 9 - 0, got 3",
    ),
}


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_other_metadata_are_refused(case: tuple[str, Change, str], tmp_path: Path) -> None:
    version, change, message = case
    name = WRITERS[version](tmp_path)
    change(tmp_path / "lerobot" / "doors")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        [*open_reader(name, str(tmp_path)).episodes()]


def test_numbers_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    """They would be made whole by cutting them off."""
    name, folder = others.lerobot_v2(tmp_path), tmp_path / "lerobot" / "doors"
    info = json.loads((folder / "meta" / "info.json").read_text())
    info["features"]["count"] = {"dtype": "int64", "shape": [1]}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    paths = sorted((folder / "data").rglob("*.parquet"))
    for path in paths:
        rewritten(path, lambda rows: rows.assign(count=rows.index * 2))
    with_counts = frb.datasets.Conversion(infos=["count"])
    made = frb.datasets.load(name, rb, root=tmp_path, conversion=with_counts)
    assert rb.items(made)["info"]["count"].dtype == torch.int32
    for number in (0.5, 1e300):
        rewritten(paths[1], lambda rows: rows.assign(count=number))  # noqa: B023  # called at once
        with pytest.raises(ValueError, match=r"000001\.parquet.*leaf 'infos/count': expected dtype int32"):
            frb.datasets.convert(open_reader(name, str(tmp_path)), tmp_path / str(number), with_counts)


def test_videos_without_times_are_refused(tmp_path: Path) -> None:
    name, meta = others.lerobot_v2(tmp_path), tmp_path / "lerobot" / "doors" / "meta"
    info = json.loads((meta / "info.json").read_text())
    del info["features"]["timestamp"]
    (meta / "info.json").write_text(json.dumps(info))
    assert [*open_reader(name, str(tmp_path)).episodes()]
    with pytest.raises(ValueError, match=r"info\.json: expected numbers in 'timestamp', which say where frames of vid"):
        open_reader(name, str(tmp_path), video=f"{__name__}:wrong_size")


TASKS = ["open it", "shut it", "hold it"]


def rewritten(path: Path, change: Callable[[pandas.DataFrame], pandas.DataFrame]) -> None:
    """A table of Parquet with its rows changed."""
    change(pandas.read_parquet(path)).to_parquet(path)


def told_of_episodes(folder: Path, **columns: Any) -> None:
    # Changes columns of the table that tells of episodes, given in the order of their numbers.
    (path,) = (folder / "meta" / "episodes").rglob("*.parquet")
    rewritten(path, lambda rows: rows.sort_values("episode_index").assign(**columns))


def permuted(folder: Path) -> None:
    """The episodes of the first file, of 3, 1 and 6 rows, in another order: 2, 0, 1."""
    rewritten(
        folder / "data/chunk-000/file-000.parquet",
        lambda rows: pandas.concat([rows[rows.episode_index == k] for k in (2, 0, 1)]),
    )


def of_others(reader: Any) -> list[list[float]]:
    """Where each step begins from, episode by episode."""
    return [episode.observations["state"][:-1, 0].tolist() for episode in reader.episodes()]


def test_episodes_lie_where_the_metadata_say(tmp_path: Path) -> None:
    """Rows are numbered through all files; those of the first file are in another order than the episodes' numbers."""
    reader = open_reader(others.lerobot_v3(tmp_path), str(tmp_path))
    wanted, folder = of_others(reader), tmp_path / "lerobot" / "doors"
    lengths = list(map(len, wanted))
    assert tuple(lengths) == others.LENGTHS
    permuted(folder)
    begins = [lengths[2], lengths[2] + lengths[0], 0, *np.cumsum(lengths)[2:4].tolist()]
    told_of_episodes(folder, dataset_from_index=begins, dataset_to_index=np.add(begins, lengths))
    assert of_others(open_reader(reader.name, str(tmp_path))) == wanted
    assert of_others(_from(open_reader(reader.name, str(tmp_path)), 1)) == wanted[1:]


def _from(reader: Any, first: int) -> Any:
    return types.SimpleNamespace(episodes=lambda: reader.episodes(first))


def test_rows_of_other_episodes_are_refused(tmp_path: Path) -> None:
    """Nobody says where episodes begin, so that they are taken to lie in their order; and one says it wrong."""
    name, folder = others.lerobot_v3(tmp_path), tmp_path / "lerobot" / "doors"
    permuted(folder)
    with pytest.raises(ValueError, match=r"file-000\.parquet, row 0: expected episode_index 0, .* 0 to 3 .*, got 2"):
        of_others(open_reader(name, str(tmp_path)))


@pytest.mark.parametrize("version", WRITERS)
@pytest.mark.parametrize("told", [False, True])
def test_lengths_that_are_wrong_are_refused(version: str, told: bool, tmp_path: Path) -> None:
    """Two of them, with the sum that they should have."""
    name, folder = WRITERS[version](tmp_path), tmp_path / "lerobot" / "doors"
    for change in (-1, 1):
        lengths = list(others.LENGTHS)
        lengths[3], lengths[4] = lengths[3] + change, lengths[4] - change
        if version == "3.0":
            ends = np.cumsum(lengths)
            begins = {"dataset_from_index": ends - lengths, "dataset_to_index": ends} if told else {}
            told_of_episodes(folder, length=lengths, **begins)
        else:
            lines = [{"episode_index": k, "length": n} for k, n in enumerate(lengths)]
            (folder / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
        with pytest.raises(ValueError, match=r"is of episode 3 too|expected episode_index 3|the file has"):
            of_others(open_reader(name, str(tmp_path)))


def test_rows_before_an_episode_are_of_others(tmp_path: Path) -> None:
    """Also where nobody reads the episode before."""
    name, folder = others.lerobot_v3(tmp_path), tmp_path / "lerobot" / "doors"
    ends = np.cumsum(others.LENGTHS)
    begins = ends - others.LENGTHS + np.array([0, 0, 1, 0, 0])  # of the third one the first row is not told
    told_of_episodes(folder, length=ends - begins, dataset_from_index=begins, dataset_to_index=ends)
    with pytest.raises(ValueError, match=r"row 4: it is of episode 2 too"):
        of_others(_from(open_reader(name, str(tmp_path)), 2))


def with_tasks(version: str, root: Path, pandas_name: str | None = "task") -> str:
    """A dataset whose table tells three tasks; those of rows change within the first and the last episode."""
    name, folder = WRITERS[version](root), root / "lerobot" / "doors"
    if version == "3.0":
        table = pandas.DataFrame({"task_index": range(3)}, index=pandas.Index(TASKS, name=pandas_name))
        table.to_parquet(folder / "meta" / "tasks.parquet")
    else:
        lines = [{"task_index": k, "task": task} for k, task in enumerate(TASKS)]
        (folder / "meta" / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for path in (folder / "data").rglob("*.parquet"):
        rewritten(path, lambda rows: rows.assign(task_index=list(map(task, rows.episode_index, rows.frame_index))))
    return name


def task(episode: int, frame: int) -> int:
    return {0: 1 if frame < 2 else 2, 4: int(frame != 1)}.get(episode, episode % 3)


@pytest.mark.parametrize("version", WRITERS)
@pytest.mark.parametrize("pandas_name", ["task", None])
def test_each_step_keeps_its_own_task(
    version: str, pandas_name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_reader(with_tasks(version, tmp_path, pandas_name), str(tmp_path))
    assert reader.facts["tasks"] == {"0": "open it", "1": "shut it", "2": "hold it"}
    told = [episode.about for episode in reader.episodes() if episode.about]
    assert told[0] == {"tasks": ["shut it", "hold it", "open it"], "task_from_step": [[0, "shut it"], [2, "hold it"]]}
    assert told[2] == {"tasks": ["hold it", "open it"]}
    assert told[4]["task_from_step"] == [[0, "shut it"], [1, "open it"], [2, "shut it"]]
    for number in (1, 2**23):  # a piece of an episode has two steps, or all
        read_in_pieces_of(number, monkeypatch)
        made = tmp_path / f"made {number}"
        frb.datasets.convert(reader, made)
        for format in ("lerobot", "lerobot-2.1"):
            to = tmp_path / f"{format} {number}"
            again = open_reader(frb.datasets.Dataset(made).export(to, format))
            rows = pandas.concat(map(pandas.read_parquet, sorted((to / "data").rglob("*.parquet"))))
            names = again.facts["tasks"]
            frames = zip(rows.episode_index, rows.frame_index, rows.task_index, strict=True)
            assert {(k, t): names[str(number)] for k, t, number in frames} == {
                (k, t): TASKS[task(k, t)] for k, n in enumerate(others.LENGTHS) for t in range(n)
            }


def test_two_numbers_of_the_same_words_are_one_task(tmp_path: Path) -> None:
    name, meta = with_tasks("2.1", tmp_path), tmp_path / "lerobot" / "doors" / "meta"
    lines = [{"task_index": k, "task": "shut it" if k else "open it"} for k in range(3)]
    (meta / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert "task_from_step" not in next(iter(open_reader(name, str(tmp_path)).episodes())).about


def test_tasks_that_are_not_in_the_table_are_refused(tmp_path: Path) -> None:
    name, meta = with_tasks("2.1", tmp_path), tmp_path / "lerobot" / "doors" / "meta"
    (meta / "tasks.jsonl").write_text('{"task_index": 0, "task": "open it"}')
    with pytest.raises(ValueError, match=r"000000\.parquet, row 0, task_index: expected one of .* \[0\], got 1"):
        of_others(open_reader(name, str(tmp_path)))
    for line in ('{"task_index": 0}', '{"task_index": "0", "task": "open it"}', "[]", "{", "3"):
        (meta / "tasks.jsonl").write_text(line)
        with pytest.raises(ValueError, match=r"tasks\.jsonl: expected (each task with its number|a number and a text)"):
            open_reader(name, str(tmp_path))


def test_rows_far_on_are_read_without_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of four rows, of which the second and the third cannot be read."""
    monkeypatch.setattr(parquet, "BATCH", 2)
    path = str(tmp_path / "a.parquet")
    writing = importlib.import_module("pyarrow.parquet")
    writing.write_table(pyarrow.table({"t": np.arange(20)}), path, row_group_size=4, use_dictionary=False)
    groups = [writing.read_metadata(path).row_group(k).column(0) for k in (1, 2)]
    content = bytearray(Path(path).read_bytes())
    for group in groups:
        first, size = group.data_page_offset, group.total_compressed_size
        content[first : first + size] = b"\xff" * size
    Path(path).write_bytes(content)
    rows = parquet.Rows(path, ["t"])
    for first, stop in ((0, 3), (13, 15), (15, 20)):
        assert rows.column("t", first, stop).to_pylist() == [*range(first, stop)]
    assert parquet.Rows(path, ["t"]).column("t", 12, 14).to_pylist() == [12, 13]
    with pytest.raises(ValueError, match=r"a\.parquet: expected a table of Parquet"):
        parquet.Rows(path, ["t"]).column("t", 5, 6)
    with pytest.raises(ValueError, match="row 3 has gone by, the first that is held is 14"):
        rows.column("t", 3, 4)


def test_numbers_in_tables_may_be_of_other_dtypes_than_told(tmp_path: Path) -> None:
    """As the library `datasets` takes them: counts as floats, and marks as 0 and 1, but no other numbers."""
    name, folder = others.lerobot_v2(tmp_path), tmp_path / "lerobot" / "doors"
    info = json.loads((folder / "meta" / "info.json").read_text())
    info["features"] |= {key: {"dtype": kind, "shape": [1]} for key, kind in (("count", "int64"), ("mark", "bool"))}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    paths = sorted((folder / "data").rglob("*.parquet"))
    for path in paths:
        rewritten(path, lambda rows: rows.assign(count=rows.index * 2.0, mark=rows.index % 2))
    of_both = frb.datasets.Conversion(infos=["count", "mark"])
    infos = rb.items(frb.datasets.load(name, rb, root=tmp_path, conversion=of_both))["info"]
    assert (infos["count"].dtype, infos["mark"].dtype) == (torch.int32, torch.bool)
    assert torch.equal(infos["count"] % 4 == 2, infos["mark"])
    assert infos["mark"].any()
    for number in (2, 0.5):
        rewritten(paths[1], lambda rows: rows.assign(mark=number))  # noqa: B023  # called at once
        with pytest.raises(ValueError, match=r"000001\.parquet.*leaf 'infos/mark': expected dtype bool"):
            frb.datasets.convert(open_reader(name, str(tmp_path)), tmp_path / str(number), of_both)


@pytest.mark.parametrize("kind", ["Parquet", "Arrow"])
def test_tables_that_nobody_reads_any_more_are_let_go_at_once(kind: str, tmp_path: Path) -> None:
    """Without a garbage collection, before which a thousand episodes could have been opened, each a file of its own."""
    table, path = pyarrow.table({"t": np.arange(20)}), str(tmp_path / "a.table")
    if kind == "Parquet":
        importlib.import_module("pyarrow.parquet").write_table(table, path)
    else:
        with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_file(file, table.schema) as written:
            written.write_table(table)
    collected = gc.isenabled()
    gc.disable()
    try:
        rows = parquet.Rows(path, ["t"], kind, most=4)
        assert rows.column("t", 2, 6).to_pylist() == [2, 3, 4, 5]
        alive = weakref.ref(rows)
        del rows
        assert alive() is None
    finally:
        if collected:
            gc.enable()


def test_tables_that_are_not_there_are_told_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        parquet.Rows(str(tmp_path / "a.parquet"), ["t"])


def fifo(table: Path) -> None:
    """A pipe, which would keep who opens it waiting."""
    table.unlink()
    os.mkfifo(table)


TABLES: dict[str, tuple[Change, str]] = {
    "cut": (lambda table: table.write_bytes(table.read_bytes()[:-20]), "expected a table of Parquet"),
    "with damaged pages": (
        lambda table: table.write_bytes(table.read_bytes()[:4] + b"\xff" * 16 + table.read_bytes()[20:]),
        r"expected a table of Parquet.*[^\n]; fetch it again",
    ),
    "a pipe": (fifo, "no regular file"),
}


@pytest.mark.parametrize("case", TABLES.values(), ids=TABLES)
def test_tables_that_are_none_are_refused(case: tuple[Change, str], tmp_path: Path) -> None:
    change, message = case
    name = others.lerobot_v2(tmp_path)
    change(min(tmp_path.rglob("*.parquet")))
    with pytest.raises(ValueError, match=rf"(?s)episode_000000\.parquet: {message}"):
        [*open_reader(name, str(tmp_path)).episodes()]
