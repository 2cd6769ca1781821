"""Minari's datasets, written by minari itself, against its own iteration; and those that it does not write."""

from __future__ import annotations

import io
import json
import re
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pyarrow
import pytest
from PIL import Image

import functional_rb as frb
from functional_rb.datasets import convert
from tests.datasets.episodes import equal, joined, open_reader, read, read_in_pieces_of
from tests.datasets.minari_datasets import SPACES, write
from tests.support.backends import Backend

FORMATS = ("hdf5", "arrow", "parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of minari, in all formats."""
    root = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        for name, (observation, action) in SPACES.items():
            for layout in (layout for layout in FORMATS if f"{name}/{layout}" in (*IN_HDF5, *OTHERS)):
                write(f"{name}/{layout}-v0", observation, action, layout, jpeg_encoding=name == "images")
        write("raw/hdf5-v0", *SPACES["images"], "hdf5", jpeg_encoding=False)
    return root


@pytest.fixture(autouse=True)
def _found(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made))


IN_HDF5 = ("box/hdf5", "parts/hdf5", "tuple/hdf5", "words/hdf5", "images/hdf5", "raw/hdf5")
OTHERS = ("box/arrow", "box/parquet", "parts/arrow", "parts/parquet", "tuple/arrow", "words/parquet", "images/arrow")
FIELDS = {"observations": "observations", "actions": "actions", "rewards": "rewards"}
FIELDS |= {"terminated": "terminations", "truncated": "truncations"}


@pytest.mark.parametrize("name", [*IN_HDF5, *OTHERS])
@pytest.mark.parametrize("piece", [2**23, 1])
def test_episodes_are_those_of_minari(name: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_pieces_of(piece, monkeypatch)
    reader = open_reader(f"minari:{name}-v0")
    pieces = read(reader)
    assert len(pieces) == (3 if piece > 1 else 6)
    ours = joined(pieces)
    assert [episode.about["seed"] for episode in ours] == [7, 8, 9]
    assert (reader.counts["episodes"], reader.counts["steps"]) == (3, 11)
    assert ("lossy" in reader.facts) == name.startswith("images")
    # Of the other formats minari cannot read the infos that it has written.
    in_hdf5 = f"{name.partition('/')[0]}/hdf5-v0"
    for own, other in zip(ours, minari.load_dataset(in_hdf5).iterate_episodes(), strict=True):
        for field, theirs in FIELDS.items():
            equal(getattr(own, field), getattr(other, theirs))
        equal(own.infos["speed"], other.infos["speed"][1:])
        equal(own.infos["inner"]["grid"], other.infos["inner"]["grid"][1:])
        assert own.final_observed
    assert [len(episode) for episode in joined(read(reader, 1))] == [1, 6]


def test_shifts_by_one_would_show(library: Backend, tmp_path: Path) -> None:
    def load(**more: Any) -> Any:
        return frb.datasets.load(
            "minari:box/hdf5-v0", library.rb, conversion=frb.datasets.Conversion(infos=["speed"]), root=tmp_path, **more
        )

    t = np.array([0, 1, 2, 3, 100, 200, 201, 202, 203, 204, 205])
    state = load()
    items = library.rb.items(state)
    frb.ted.check(items, time_axis=0)
    after = items["next"]
    np.testing.assert_array_equal(library.numpy(items["observation"]), np.repeat(t[:, None], 3, 1))
    np.testing.assert_array_equal(library.numpy(after["observation"]), np.repeat(t[:, None], 3, 1) + 1)
    np.testing.assert_array_equal(library.numpy(after["reward"]), t + 0.25)
    np.testing.assert_array_equal(library.numpy(items["info"]["speed"]), t + 1.125)
    assert library.numpy(after["terminated"]).nonzero()[0].tolist() == [3, 4]
    assert library.numpy(after["truncated"]).nonzero()[0].tolist() == [10]  # where the dataset ends
    assert state.spec.item["action"].start == -2

    _, drawn = library.rb.sample(load(sampler=frb.Slices(3)), library.rb.key(0), 16)
    assert (np.diff(library.numpy(drawn.items["observation"]), axis=1) == 1).all()
    _, drawn = library.rb.sample(load(transforms=frb.n_step(4, 1.0)), library.rb.key(0), 16)
    t = library.numpy(drawn.items["observation"])[:, 0]
    steps = np.minimum(4, np.select([t < 4, t == 100], [4 - t, 1], 206 - t))
    np.testing.assert_array_equal(library.numpy(drawn.items["next"]["observation"])[:, 0], t + steps)
    np.testing.assert_array_equal(
        library.numpy(drawn.items["next"]["reward"]), steps * (t + 0.25) + steps * (steps - 1) / 2
    )


def test_all_kinds_of_spaces_are_stored(library: Backend, tmp_path: Path) -> None:
    """A Dict's parts are leaves; texts are code points; what one has of tuples comes back as such."""
    state = frb.datasets.load("minari:parts/arrow-v0", library.rb, root=tmp_path)
    item, items = state.spec.item, library.rb.items(state)
    theirs = list(minari.load_dataset("parts/hdf5-v0").iterate_episodes())
    tasks = [task for episode in theirs for task in episode.observations["task"][:-1]]
    assert item["task"].to_host(library.numpy(items["task"])) == tasks
    said = [say for episode in theirs for say in episode.actions["say"]]
    assert item["action"]["say"].to_host(library.numpy(items["action"]["say"])) == said
    chosen = np.concatenate([episode.observations["both"][0][1:] for episode in theirs])
    np.testing.assert_array_equal(library.numpy(items["next"]["both"][0]), chosen)
    grip = np.concatenate([episode.observations["pose"]["grip"][:-1] for episode in theirs])
    np.testing.assert_array_equal(library.numpy(items["pose"]["grip"]), grip)


def rewritten(made: Path, to: Path, change: Any, of: str = "box") -> str:
    """A copy of a dataset in HDF5 with a change."""
    shutil.copytree(made / of / "hdf5-v0" / "data", to)
    with h5py.File(to / "main_data.hdf5", "a") as file:
        change(file, to)
    return f"minari:{to}"


def shortened(file: Any, to: Path) -> None:
    for k in range(3):
        observations = file[f"episode_{k}"]["observations"]
        observations.resize(len(observations) - 1, 0)


@pytest.mark.parametrize("piece", [2**23, 1])
def test_episodes_without_their_last_observation(
    made: Path, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some of Minari's have it: the last step stays only where it led to an end."""
    read_in_pieces_of(piece, monkeypatch)
    reader = open_reader(rewritten(made, tmp_path / "short", shortened))
    assert [episode.final_observed for episode in joined(read(reader))] == [False] * 3
    made_of_it = convert(reader, tmp_path / "made")
    assert (made_of_it.steps, made_of_it.dropped, made_of_it.episodes) == (10, 1, 3)

    folder = tmp_path / "arrow"
    shutil.copytree(made / "box" / "arrow-v0" / "data", folder)
    for k, n in enumerate((4, 1, 6)):
        path = folder / str(k) / "part-0.arrow"
        rows = pyarrow.ipc.open_file(pyarrow.py_buffer(path.read_bytes())).read_all().slice(0, n)
        with pyarrow.ipc.new_file(str(path), rows.schema) as sink:
            sink.write_table(rows)
    ours = joined(read(open_reader(f"minari:{folder}")))
    for own, other in zip(ours, joined(read(reader)), strict=True):
        assert not own.final_observed
        for field in FIELDS:
            equal(getattr(own, field), getattr(other, field))


def outside(file: Any, to: Path) -> None:
    with h5py.File(to / "other.hdf5", "w") as other:
        other["secret"] = np.zeros(4)
    del file["episode_0/rewards"]
    file["episode_0/rewards"] = h5py.ExternalLink("other.hdf5", "secret")


def in_other_files(file: Any, to: Path) -> None:
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", (4,), "f8", external=[("/etc/passwd", 0, 32)])


def put_together(file: Any, to: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("/etc/other.hdf5", "x", (4,))
    del file["episode_0/rewards"]
    file["episode_0"].create_virtual_dataset("rewards", layout)


def bomb(file: Any, to: Path) -> None:
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", (10**12,), "f8", chunks=(10**6,), compression="gzip")


def a_group(file: Any, to: Path) -> None:
    del file["episode_1/terminations"]
    file.create_group("episode_1/terminations")


def in_itself(file: Any, to: Path) -> None:
    file["episode_0/infos/again"] = file["episode_0/infos"]


def set_(name: str, values: Any) -> Any:
    def change(file: Any, to: Path) -> None:
        del file[f"episode_1/{name}"]
        if values is not None:
            file[f"episode_1/{name}"] = values

    return change


def in_a_large_chunk(file: h5py.File, folder: Path) -> None:
    del file["episode_1/rewards"]
    file["episode_1"].create_dataset("rewards", (1,), "float64", chunks=(2**26,), maxshape=(None,), compression="gzip")


WRONG = {
    "'rewards' lies in chunks of 536870912 bytes each": in_a_large_chunk,
    "'rewards' is a link to somewhere else": outside,
    "values of 'rewards' lie in other files": in_other_files,
    "the values of 'rewards' lie in other": put_together,
    "'rewards' claims 1000000000000 values": bomb,
    "'again': expected at most 16 groups in each other, got /episode_0/infos/again/again": in_itself,
    "episode 1: there is no 'actions'": set_("actions", None),
    "episode 1, observations: expected 2 for 1 rewards, got 5": set_("observations", np.zeros((5, 3))),
    "episode 1: leaf 'actions': expected shape (1,), got (1, 2)": set_("actions", np.zeros((1, 2))),
    "episode 1, infos/speed: expected 2 for 1 rewards": set_("infos/speed", np.zeros(7)),
    "episode 1: expected values in 'terminations', got a group": a_group,
    "episode 1: expected a text or an array in each row of '/episode_1/rewards', got object": set_(
        "rewards", np.array([[b"a", b"b"]], object)
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_in_a_file_is_named(made: Path, what: str, tmp_path: Path) -> None:
    name = rewritten(made, tmp_path / "wrong", WRONG[what])
    with pytest.raises(ValueError, match=r"main_data\.hdf5") as caught:
        convert(open_reader(name), tmp_path / "made", frb.datasets.Conversion(infos=["speed"]))
    assert what in str(caught.value)


def test_what_is_no_dataset_is_named(made: Path, tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"minari:no/such-v0: expected metadata\.json in .*fetch the dataset first"
    ):
        open_reader("minari:no/such-v0", str(tmp_path))
    copied = tmp_path / "minari" / "copied" / "x-v0"
    shutil.copytree(made / "box" / "arrow-v0", copied)
    assert open_reader("minari:copied/x-v0", str(tmp_path)).counts["steps"] == 11
    table = copied / "data" / "1" / "part-0.arrow"
    table.write_bytes(table.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"part-0\.arrow: expected a table of Arrow"):
        convert(open_reader(f"minari:{copied}"), tmp_path / "made")
    parts = tmp_path / "parts"
    shutil.copytree(made / "parts" / "arrow-v0" / "data", parts)
    said = next(iter(joined(read(open_reader(f"minari:{parts}"))))).actions["say"]
    content = (parts / "0" / "part-0.arrow").read_bytes()
    assert content.count("".join(said).encode()) == 1
    bad = b"\xff" * len("".join(said))  # no UTF-8: the lengths of what is there are right
    (parts / "0" / "part-0.arrow").write_bytes(content.replace("".join(said).encode(), bad))
    with pytest.raises(ValueError, match=r"0/part-0\.arrow: expected a table of Arrow: .*UTF8"):
        read(open_reader(f"minari:{parts}"))
    table.unlink()
    with pytest.raises(ValueError, match="expected the episode's table"):
        open_reader(f"minari:{copied}")
    metadata = copied / "data" / "metadata.json"
    told = json.loads(metadata.read_text())
    for name, value in {
        "data_format": "csv",
        "total_episodes": "3",
        "action_space": None,
        "observation_space": "{}",
    }.items():
        metadata.write_text(json.dumps(told | {name: value}))
        with pytest.raises(ValueError, match=rf"metadata\.json: {name}"):
            open_reader(f"minari:{copied}")
    metadata.write_text("[]")
    with pytest.raises(ValueError, match="expected metadata by name"):
        open_reader(f"minari:{copied}")


def test_rows_that_name_one_text_take_no_more_memory_than_allowed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of two megabytes, whose thousand rows would be a gigabyte."""
    n, nbytes = 1000, 2**20

    def same(file: h5py.File, folder: Path) -> None:
        del file["episode_0"]
        group, texts = file.create_group("episode_0"), ["x" * nbytes, *["y"] * (n - 1)]
        group["observations"], group["rewards"] = ["a"] * (n + 1), np.zeros(n)
        group["terminations"] = group["truncations"] = np.zeros(n, bool)
        at = group.create_dataset("actions", data=texts, dtype=h5py.string_dtype()).id.get_offset()
        file.close()
        path = folder / "main_data.hdf5"
        content = bytearray(path.read_bytes())
        content[at : at + 16 * n] = content[at : at + 16] * n  # what stands for a text is its length and its place
        path.write_bytes(content)

    name = rewritten(made, tmp_path / "same", same, "words")
    monkeypatch.setattr("functional_rb.datasets.hdf5.CHUNK", 4 * nbytes)
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match="episode 0: the rows of '/episode_0/actions' have more bytes than the file"
        ):
            read(open_reader(name))
        assert tracemalloc.get_traced_memory()[1] < 32 * nbytes
    finally:
        tracemalloc.stop()


def damaged_image(file: Any, to: Path) -> None:
    file["episode_0/observations"][1] = np.frombuffer(b"no image", np.uint8)


def smaller_image(file: Any, to: Path) -> None:
    content = io.BytesIO()
    Image.fromarray(np.zeros((9, 40, 3), np.uint8)).save(content, "JPEG")
    file["episode_0/observations"][1] = np.frombuffer(content.getvalue(), np.uint8)


def another_kind_of_image(file: Any, to: Path) -> None:
    content = io.BytesIO()
    Image.fromarray(np.zeros((36, 40, 3), np.uint8)).save(content, "PNG")
    file["episode_0/observations"][1] = np.frombuffer(content.getvalue(), np.uint8)


IMAGES = {
    "image 1: expected an image, JPEG": damaged_image,
    "image 1: expected 40 by 36 pixels, got 40 by 9": smaller_image,
    "image 1: expected an image, JPEG: cannot identify": another_kind_of_image,
}


@pytest.mark.parametrize("what", IMAGES)
def test_images_of_another_kind_or_size_are_named(made: Path, what: str, tmp_path: Path) -> None:
    name = rewritten(made, tmp_path / "wrong", IMAGES[what], "images")
    with pytest.raises(ValueError, match=re.escape(f"main_data.hdf5, episode 0, observations, {what}")):
        read(open_reader(name))


def columns_changed(table: Any, **columns: Any) -> Any:
    return pyarrow.table({name: columns.get(name, table[name]) for name in table.column_names})


TABLES: dict[str, dict[str, Any]] = {
    "observations: expected numbers, 2 times shape (3,), got 2 of struct": {"observations": [{"x": 1}] * 2},
    "rewards: expected numbers, 1 times shape (), got 1 of dictionary": {
        "rewards": pyarrow.array(["a", "b"]).dictionary_encode()
    },
    "infos: there is no 'inner' in struct<x: int64>": {"infos": [{"x": 1}] * 2},
    "infos: there is no 'inner' in int64": {"infos": [1, 2]},
    "infos/inner: there is no 'grid' in struct": {"infos": [{"speed": 1.0, "inner": {"x": 1}}] * 2},
    "infos/inner/grid: expected numbers, 1 times shape (2, 1), got 1 of double": {
        "infos": [{"speed": 1.0, "inner": {"grid": 1.0}}] * 2
    },
}


@pytest.mark.parametrize("steps", [1, 4])
def test_tables_of_another_number_of_rows_are_refused(made: Path, steps: int, tmp_path: Path) -> None:
    shutil.copytree(made / "box" / "parquet-v0" / "data", tmp_path / "parquet")
    path = tmp_path / "parquet" / "2" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_steps": steps}))
    with pytest.raises(ValueError, match=rf"episode 2: expected {steps} or {steps + 1} rows, got 7"):
        read(open_reader(f"minari:{tmp_path / 'parquet'}"))


def test_infos_are_those_of_the_first_episode(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "box" / "arrow-v0" / "data", tmp_path / "arrow")
    for episode, others in (("1", [{"more": 1}] * 2), ("2", [{"more": 1}] * 7)):
        path = tmp_path / "arrow" / episode / "part-0.arrow"
        rows = columns_changed(pyarrow.ipc.open_file(pyarrow.py_buffer(path.read_bytes())).read_all(), infos=others)
        with pyarrow.ipc.new_file(str(path), rows.schema) as sink:
            sink.write_table(rows)
    leaves = open_reader(f"minari:{tmp_path / 'arrow'}").leaves
    assert ("infos", "speed") in leaves
    assert ("infos", "more") not in leaves


@pytest.mark.parametrize("what", TABLES)
def test_what_is_wrong_in_a_table_is_named(made: Path, what: str, tmp_path: Path) -> None:
    shutil.copytree(made / "box" / "arrow-v0" / "data", tmp_path / "arrow")
    path = tmp_path / "arrow" / "1" / "part-0.arrow"
    rows = columns_changed(pyarrow.ipc.open_file(pyarrow.py_buffer(path.read_bytes())).read_all(), **TABLES[what])
    with pyarrow.ipc.new_file(str(path), rows.schema) as sink:
        sink.write_table(rows)
    with pytest.raises(ValueError, match="episode 1") as caught:
        convert(open_reader(f"minari:{tmp_path / 'arrow'}"), tmp_path / "made", frb.datasets.Conversion(infos=True))
    assert what in str(caught.value)
