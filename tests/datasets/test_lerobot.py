"""LeRobot's datasets beyond their steps: images, videos, texts, and metadata that are not as they should be."""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow
import pytest

import functional_rb as frb
from functional_rb.datasets import DatasetError, open_reader, parquet
from functional_rb.datasets import lerobot_videos as videos
from tests.support import datasets_of_others as others

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


def test_frames_are_the_nearest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV is stood in for by what it has of it: a frame every 0.1 s, decoded from a key frame on."""

    class Frame:
        def __init__(self, pts: int) -> None:
            self.pts = pts

        def to_ndarray(self, format: str) -> np.ndarray:
            assert format == "rgb24"
            return others.images(np.array([self.pts]))[0]

    class Container:
        streams = types.SimpleNamespace(video=[types.SimpleNamespace(time_base=0.1, average_rate=10)])
        first = 0

        def __enter__(self) -> Container:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def seek(self, offset: int, stream: Any, backward: bool) -> None:
            assert backward
            self.first = offset // 4 * 4  # a key frame

        def decode(self, stream: Any) -> Any:
            return map(Frame, range(self.first, 20))

    monkeypatch.setitem(sys.modules, "av", types.SimpleNamespace(open=lambda path: Container()))
    found = videos.decoder("pyav")("a.mp4", np.array([0.9, 1.0, 1.11, 1.39]))
    assert found[:, 0, 0, 0].tolist() == [9, 10, 11, 14]
    with pytest.raises(DatasetError, match=r"a.mp4: expected a frame at second 2.5"):
        videos.pyav("a.mp4", np.array([1.0, 2.5]))
    with pytest.raises(ValueError, match="expected 'pyav' or 'module:function'"):
        videos.decoder("other")


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
    for chosen in (np.arange(40), np.arange(13, 29), np.array([39])):
        found = videos.decoder("pyav")(path, chosen / 10)
        assert found.shape == (len(chosen), 64, 64, 3)
        np.testing.assert_allclose(found.mean((1, 2, 3)), grey(chosen), atol=2)
    with pytest.raises(DatasetError, match=r"expected a frame at second 4\.2"):
        videos.pyav(path, np.array([3.9, 4.2]))


def wrong_size(path: str, times: np.ndarray) -> np.ndarray:
    return others.images(times, (5, 5, 3))


def test_frames_of_another_size_are_refused(tmp_path: Path) -> None:
    reader = open_reader(others.lerobot_v2(tmp_path), str(tmp_path), video=f"{__name__}:wrong_size")
    with pytest.raises(DatasetError, match=rf"{SIDE}, .*mp4: expected uint8 \(3, 4, 4, 3\)"):
        next(iter(reader.episodes()))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another version": ({"codebase_version": "v4.0"}, r"expected v2.0, v2.1 or v3.0, got 'v4.0'"),
    "a path that leads out": ({"data_path": "../{episode_index}.parquet"}, "absolute, and not have '..'"),
    "a path with code": ({"data_path": "{episode_index.__class__}"}, "No such file|open"),
    "no features": ({"features": []}, "there are no features"),
    "no actions": (
        {"features": {"observation": {"dtype": "int64", "shape": [1]}}},
        "expected numbers or images in 'act",
    ),
    "no feature": ({"features": {"action": 3}}, "info.json, action: expected dtype and shape of a feature, got 3"),
    "a feature without a shape": ({"features": {"action": {"dtype": "int64"}}}, "expected dtype and shape"),
    "another column": (
        {"features": {"action": {"dtype": "int64", "shape": [1]}, "observation": {"dtype": "int64", "shape": [1]}}},
        r"expected columns \['observation'\]",
    ),
    "another shape": (
        {"features": {name: {"dtype": "float32", "shape": [7]} for name in ("action", "observation.state")}},
        r"episode 0, (action|observation.state): expected 3 times shape \(7,\)",
    ),
    "a longer episode": ({}, "expected 9 rows, the file has 3"),
}


@pytest.mark.parametrize("length", ["3", -1, True, 3.5])
def test_lengths_that_are_none_are_refused(length: Any, tmp_path: Path) -> None:
    name = others.lerobot_v2(tmp_path)
    lines = tmp_path / "lerobot" / "doors" / "meta" / "episodes.jsonl"
    lines.write_text(json.dumps({"episode_index": 4, "length": length}))
    with pytest.raises(DatasetError, match="doors, episode 4: length: expected how many rows"):
        open_reader(name, str(tmp_path))


def test_lengths_that_are_none_are_refused_in_tables_too(tmp_path: Path) -> None:
    name = others.lerobot_v3(tmp_path)
    (path,) = (tmp_path / "lerobot" / "doors" / "meta" / "episodes").rglob("*.parquet")
    reading = importlib.import_module("pyarrow.parquet")
    rows = reading.read_table(path)
    lengths = pyarrow.array([-1] * len(rows))
    reading.write_table(rows.set_column(rows.column_names.index("length"), "length", lengths), path)
    with pytest.raises(DatasetError, match=r"doors, episode \d+: length: expected how many rows, got -1"):
        open_reader(name, str(tmp_path))


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_other_metadata_are_refused(case: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    changes, message = case
    name = others.lerobot_v2(tmp_path)
    meta = tmp_path / "lerobot" / "doors" / "meta"
    info = json.loads((meta / "info.json").read_text())
    (meta / "info.json").write_text(json.dumps({**info, **changes}))
    if not changes:
        (meta / "episodes.jsonl").write_text(json.dumps({"episode_index": 0, "length": 9}))
    with pytest.raises((DatasetError, FileNotFoundError), match=message):
        [*open_reader(name, str(tmp_path)).episodes()]


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
    with pytest.raises(DatasetError, match=r"a\.parquet: expected a table of Parquet"):
        parquet.Rows(path, ["t"]).column("t", 5, 6)
    with pytest.raises(ValueError, match="row 3 has gone by, the first that is held is 15"):
        rows.column("t", 3, 4)


def test_tables_that_are_not_there_are_told_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        parquet.Rows(str(tmp_path / "a.parquet"), ["t"])


def test_tables_that_are_cut_are_refused(tmp_path: Path) -> None:
    name = others.lerobot_v2(tmp_path)
    table = next(iter(sorted(tmp_path.rglob("*.parquet"))))
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(DatasetError, match=r"episode_000000.parquet: expected a table of Parquet"):
        [*open_reader(name, str(tmp_path)).episodes()]


def test_tables_with_damaged_pages_are_refused(tmp_path: Path) -> None:
    name = others.lerobot_v2(tmp_path)
    table = next(iter(sorted(tmp_path.rglob("*.parquet"))))
    content = bytearray(table.read_bytes())
    content[4:20] = b"\xff" * 16
    table.write_bytes(content)
    with pytest.raises(
        DatasetError, match=r"(?s)episode_000000.parquet: expected a table of Parquet.*[^\n]; fetch it again"
    ):
        [*open_reader(name, str(tmp_path)).episodes()]
    table.unlink()
    os.mkfifo(table)  # which would keep who opens it waiting
    with pytest.raises(DatasetError, match=r"episode_000000.parquet: no regular file"):
        [*open_reader(name, str(tmp_path)).episodes()]
