"""Files of others with some bytes changed, or cut: they are read, or one error names the file, in words of its own.

What the bytes have become is drawn, the same in every run. A changed number is a number too: what formats have no
checksums of may be read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import av
import h5py
import numpy as np
import pytest

from functional_rb.datasets import lerobot_videos
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.rows import Form
from tests.datasets import d4rl_files, minari_datasets
from tests.datasets import datasets_of_others as others
from tests.datasets.damage_of_files import damaged
from tests.datasets.episodes import open_reader

SEEDS = 20
SHAPE = (64, 64, 3)


def d4rl_deflated(root: Path) -> str:
    path = d4rl_files.write(root / "walk.hdf5")
    with h5py.File(path, "a") as file:
        for name in ("observations", "actions"):
            values = file[name][:]
            del file[name]
            file.create_dataset(name, data=values, chunks=(4, values.shape[1]), compression="gzip")
    return f"d4rl:{path}"


def of_minari(space: str, layout: str, root: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        minari_datasets.write("doors/open-v0", *minari_datasets.SPACES[space], layout, jpeg_encoding=space == "images")
    return f"minari:{root / 'doors' / 'open-v0'}"


def video(codec: str, root: Path) -> str:
    """Of 40 frames, with a key frame every 8."""
    path = root / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width = stream.height = SHAPE[0]
        stream.pix_fmt, stream.gop_size = "yuv420p", 8
        for number in range(40):
            picture = av.VideoFrame.from_ndarray(np.full(SHAPE, 5 * number, np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return f"video:{path}"


WRITERS: dict[str, Callable[[Path], str]] = {name: format.write for name, format in others.FORMATS.items()}
WRITERS["d4rl, deflated"] = d4rl_deflated
for space, layout in (("parts", "hdf5"), ("images", "hdf5"), ("parts", "arrow"), ("tuple", "parquet")):
    WRITERS[f"minari, {space} in {layout}"] = functools.partial(of_minari, space, layout)
WRITERS |= {f"video, {codec}": functools.partial(video, codec) for codec in ("h264", "mpeg4")}


def read(name: str, root: Path) -> None:
    """All that there is, as a conversion reads it."""
    prefix, _, path = name.partition(":")
    if prefix == "video":
        with lerobot_videos.decoding("pyav", 1) as decode:
            for first, stop in ((0, 14), (13, 20), (20, 40)):
                decode(path, np.arange(first, stop) / 10, SHAPE)
        return
    reader = open_reader(name, str(root))
    spec = reader.spec(narrow=True)
    form, goes_on = Form(spec, tuple(spec.infos)), False
    for k, episode in enumerate(reader.episodes()):
        form.taken(episode, goes_on, f"{name} ({episode.file}), episode {k}")
        goes_on = episode.goes_on


@pytest.mark.parametrize("format", WRITERS)
def test_damaged_files_are_read_or_refused_by_name(format: str, tmp_path: Path) -> None:
    name = WRITERS[format](tmp_path)
    read(name, tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    refused: dict[str, str] = {}
    for seed in range(SEEDS):
        file = files[seed % len(files)]
        content = file.read_bytes()
        file.write_bytes(damaged(content, seed))
        try:
            read(name, tmp_path)
        except (DatasetError, FileNotFoundError) as error:  # of what a file now says, the name of another may be told
            refused[f"seed {seed}, {file}"] = str(error)
        finally:
            file.write_bytes(content)
    assert [where for where, message in refused.items() if str(tmp_path) not in message] == []
    assert len(refused) > SEEDS // 8
