"""Datasets in the formats of others, written by the formats' own writers or as their definitions say, with markers.

Each function writes `LENGTHS` episodes and gives the dataset's name. They are those of a `MadeUp`: observation t,
action t + 0.5, reward t + 0.25, where t counts observations over all episodes. Where a format has rows that mean
nothing, there is a number that is found nowhere else.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import importlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.datasets import protobuf
from tests.datasets.made_up import LENGTHS, MadeUp, expected

NOTHING = 99


@dataclasses.dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        write: writes a dataset into a folder, and gives its name.
        wanted: what it holds, as a table of steps.
        observation: the name of the observation in the items.
        action_of: what an action is times, where actions are whole numbers.
    """

    write: Callable[[Path], str]
    wanted: dict[str, np.ndarray]
    observation: tuple[str, ...] = ("observation",)
    action_of: int = 1


def times() -> list[np.ndarray]:
    """Of each episode the t of its observations."""
    starts = np.cumsum([0, *(n + 1 for n in LENGTHS)])
    return [np.arange(start, start + n + 1) for start, n in zip(starts, LENGTHS, strict=False)]


def images(t: np.ndarray, shape: tuple[int, ...] = (4, 4, 3)) -> np.ndarray:
    return np.zeros((len(t), *shape), np.uint8) + t.reshape(-1, *[1] * len(shape)).astype(np.uint8)


def led_to(t: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """The rows of V-D4RL: each with the action and the reward before it."""
    action = np.concatenate([[NOTHING], t[:-1] + 0.5]).astype(np.float32)
    reward = np.concatenate([[NOTHING], t[:-1] + 0.25]).astype(np.float32)
    discount = np.ones(len(t), np.float32)
    discount[-1] = k % 2  # every other episode ends
    return {"action": np.repeat(action[:, None], 2, 1), "reward": reward, "discount": discount}


def vd4rl_npz(root: Path) -> str:
    folder = root / "vd4rl" / "main" / "walk" / "64px"
    folder.mkdir(parents=True)
    for k, t in enumerate(times()):
        marks = {"is_first": t == t[0], "is_terminal": (t == t[-1]) & (k % 2 == 0), "position": t + 0.0}
        np.savez_compressed(folder / f"{k:04}.npz", image=images(t), **led_to(t, 0), **marks)
    return "vd4rl:main/walk/64px"


def vd4rl_hdf5(root: Path) -> str:
    import h5py

    rows = [
        {"observation": images(t, (3, 4, 4)), "step_type": np.clip(t - t[0], 0, 1), **led_to(t, k)}
        for k, t in enumerate(times())
    ]
    with h5py.File(root / "a.hdf5", "w") as file:
        for name in rows[0]:
            file[name] = np.concatenate([row[name] for row in rows])
    return f"vd4rl:{root}"


def roboset(root: Path) -> str:
    import h5py

    folder = root / "roboset" / "FK1-v4(expert)" / "open"
    folder.mkdir(parents=True)
    for name, episodes in (("a.h5", range(3)), ("b.h5", range(3, 5))):
        with h5py.File(folder / name, "w") as file:
            for k in reversed(episodes):  # its members come in the order of their names: Trial10 before Trial9
                t = times()[k]
                group = file.create_group(f"Trial{k + 8}")
                group["observations"] = np.repeat(t[:, None] + 0.0, 3, 1)
                group["actions"] = np.concatenate([t[:-1] + 0.5, [np.nan]])[:, None]
                group["rewards"] = np.concatenate([[NOTHING], t[:-1] + 0.25])
                group["done"] = (t == t[-1]) & (k % 2 == 0)
                group["env_infos/state/qpos"] = t[:, None] + 0.0
                group["env_infos/name"] = [b"open"] * len(t)
    return "roboset:FK1-v4(expert)/open"


def gen_dgrl(root: Path) -> str:
    folder = root / "gen_dgrl" / "bigfish-1M_E"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "bigfish.tar.xz", "w:xz") as archive:
        for k, t in enumerate(times()):
            done = (t[1:] == t[-1]) & (k % 2 == 0)
            fields = {"observations": images(t, (3, 4, 4)), "actions": t[:-1] + 0.5, "rewards": t[:-1] + 0.25}
            content = io.BytesIO()
            np.save(content, np.array({**fields, "dones": done.astype(np.float32)}, object), allow_pickle=True)
            member = tarfile.TarInfo(f"bigfish/{k}.npy")
            member.size = len(content.getvalue())
            archive.addfile(member, io.BytesIO(content.getvalue()))
    return "gen_dgrl:bigfish-1M_E"


def atari_rows() -> dict[str, np.ndarray]:
    """The rows that Dopamine's buffer gets, zeros and all."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("observation", "action", "reward", "terminal")}
    for t in times():
        steps = {"observation": images(t[:-1], (4, 4)), "action": t[:-1] * 2 + 1, "reward": t[:-1] + 0.25}
        steps["terminal"] = t[1:] == t[-1]
        for name, kind in (("observation", "u1"), ("action", "i4"), ("reward", "f4"), ("terminal", "u1")):
            rows = steps[name].astype(kind)
            parts[name] += [np.zeros((3, *rows.shape[1:]), kind), rows]
    return {name: np.concatenate(rows) for name, rows in parts.items()}


def atari_dqn(root: Path, capacity: int = 17) -> str:
    """Two checkpoints, each with all slots but one written, as the buffer was logged."""
    folder = root / "atari_dqn" / "Pong" / "1" / "replay_logs"
    folder.mkdir(parents=True)
    rows = atari_rows()
    held = capacity - 1
    assert len(rows["action"]) == 2 * held
    for k in range(2):
        for name, values in rows.items():
            there = np.full((capacity, *values.shape[1:]), NOTHING, values.dtype)
            there[:held] = values[k * held :][:held]
            save(folder / f"$store$_{name}_ckpt.{k}.gz", there)
        save(folder / f"add_count_ckpt.{k}.gz", np.array(k * capacity + held))
    return "atari_dqn:Pong/1"


def save(path: Path, array: Any) -> None:
    """Save an array; of one that is nothing but one value, again and again, the header."""
    with gzip.open(path, "wb") as file:
        if 0 in array.strides:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        else:
            np.save(file, array)


def tensor(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    told = {"shape": {"dimensions": [str(n) for n in shape]} if shape else {}, "dtype": dtype, "encoding": "none"}
    return {"pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor", "tensor": told}


def features_dict(**parts: Any) -> dict[str, Any]:
    name = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": parts}}


def rlds_features(image: tuple[int, ...] = (4, 4, 3)) -> dict[str, Any]:
    told = {"shape": {"dimensions": [str(n) for n in image]}, "dtype": "uint8", "encodingFormat": "png"}
    name = "tensorflow_datasets.core.features.image_feature.Image"
    step = features_dict(
        observation=features_dict(
            image={"pythonClassName": name, "image": told},
            state=tensor((2,), "float32"),
            count=tensor((), "uint8"),
            instruction={"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}},
        ),
        action=tensor((3,), "float32"),
        reward=tensor((), "float32"),
        discount=tensor((), "float32"),
        is_first=tensor((), "bool"),
        is_last=tensor((), "bool"),
        is_terminal=tensor((), "bool"),
    )
    dataset = "tensorflow_datasets.core.features.dataset_feature.Dataset"
    steps = {"pythonClassName": dataset, "sequence": {"feature": step, "length": "-1"}}
    told = {"file_path": {"text": {}}, "seed": tensor((), "int64"), "pose": tensor((2, 2), "float32")}
    told |= {"map": tensor((64, 64), "float32"), "note": {"text": {}}, "done": tensor((), "bool")}
    return features_dict(steps=steps, episode_metadata=features_dict(**told), episode_id=tensor((), "int32"))


def png(value: int, shape: tuple[int, ...] = (4, 4, 3)) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.full(shape, value, np.uint8)).save(content, "PNG")
    return content.getvalue()


def rlds_record(t: np.ndarray, ends: bool) -> bytes:
    """A record of TensorFlow Datasets: the values of all steps in a row, by the names of features."""
    last = t == t[-1]
    features = {
        "steps/observation/image": [png(int(x)) for x in t],
        "steps/observation/state": np.repeat(t[:, None], 2, 1).astype(np.float32),
        "steps/observation/count": t,
        "steps/observation/instruction": [b"open the door"] * len(t),
        "steps/action": np.repeat(np.where(last, NOTHING, t + 0.5)[:, None], 3, 1),
        "steps/reward": np.where(last, NOTHING, t + 0.25),
        "steps/discount": np.ones(len(t)),
        "steps/is_first": (t == t[0]).astype(int),
        "steps/is_last": last.astype(int),
        "steps/is_terminal": (last & ends).astype(int),
        "episode_metadata/file_path": [b"somewhere"],
        "episode_metadata/seed": np.array([7]),
        "episode_metadata/pose": np.array([0.5, 1.5, 2.5, 3.5], np.float32),
        "episode_metadata/map": np.zeros(64 * 64, np.float32),
        "episode_metadata/done": np.array([1]),
        "episode_id": t[:1],
    }
    return protobuf.example(features)


def rlds(root: Path) -> str:
    """In two shards, of which one has two episodes."""
    folder = root / "openx" / "doors" / "0.10.0"
    (folder.parent / "0.9.0").mkdir(parents=True)
    folder.mkdir()
    (folder.parent / "0.9.0" / "features.json").write_text("{}")
    (folder / "features.json").write_text(json.dumps(rlds_features()))
    rows = [rlds_record(t, k % 2 == 0) for k, t in enumerate(times())]
    for k, part in enumerate((rows[:3], rows[3:])):
        protobuf.write_records(folder / f"doors-train.tfrecord-{k:05}-of-00002", part)
    return "openx:doors"


def lerobot_features() -> dict[str, Any]:
    numbers = {"observation.state": [2], "action": [3], "next.reward": [1], "timestamp": [1]}
    features: dict[str, Any] = {name: {"dtype": "float32", "shape": shape} for name, shape in numbers.items()}
    names = ["channels", "height", "width"]
    features["observation.images.top"] = {"dtype": "image", "shape": [3, 4, 4], "names": names}
    features["observation.images.side"] = {"dtype": "video", "shape": [4, 4, 3], "names": names[1:] + names[:1]}
    features |= {name: {"dtype": "int64", "shape": [1]} for name in ("episode_index", "frame_index", "task_index")}
    features["next.done"] = {"dtype": "bool", "shape": [1]}
    features["next.word"] = {"dtype": "string", "shape": [1]}
    return features


def lerobot_table(k: int) -> Any:
    """The rows of an episode, of the types that the library `datasets` makes of these features."""
    import pyarrow

    t = times()[k][:-1]
    n = len(t)
    numbers = pyarrow.float32()
    rows = {
        "observation.state": pyarrow.array([[float(x)] * 2 for x in t], pyarrow.list_(numbers, 2)),
        "action": pyarrow.array([[x + 0.5] * 3 for x in t], pyarrow.list_(numbers)),
        "next.reward": (t + 0.25).astype(np.float32),
        "timestamp": (np.arange(n) / 10).astype(np.float32),
        "observation.images.top": [{"bytes": png(int(x)), "path": "frame.png"} for x in t],
        "episode_index": np.full(n, k),
        "frame_index": np.arange(n),
        "task_index": np.zeros(n, int),
        "next.done": t == t[-1],
        "next.word": ["word"] * n,
    }
    return pyarrow.table(rows)


def lerobot_v2(root: Path) -> str:
    import pyarrow.parquet

    folder = root / "lerobot" / "doors"
    (folder / "data" / "chunk-000").mkdir(parents=True)
    (folder / "data" / "chunk-001").mkdir()
    (folder / "meta").mkdir()
    info = {
        "codebase_version": "v2.1",
        "chunks_size": 3,
        "fps": 10,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": lerobot_features(),
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    lines = [{"episode_index": k, "tasks": ["open it"], "length": n} for k, n in enumerate(LENGTHS)]
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for k in range(5):
        path = folder / "data" / f"chunk-{k // 3:03}" / f"episode_{k:06}.parquet"
        pyarrow.parquet.write_table(lerobot_table(k), path)
    return "lerobot:doors"


def lerobot_v3(root: Path) -> str:
    """Two files with several episodes each, in groups of four rows."""
    import pyarrow

    folder = root / "lerobot" / "doors"
    for part in ("data", "meta/episodes"):
        (folder / part / "chunk-000").mkdir(parents=True)
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": lerobot_features(),
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    video = "videos/observation.images.side"
    rows = [
        {"episode_index": k, "length": n, "tasks": ["open it"], "data/chunk_index": 0, "data/file_index": k // 3}
        | {f"{video}/chunk_index": 0, f"{video}/file_index": 0, f"{video}/from_timestamp": float(times()[k][0])}
        for k, n in enumerate(LENGTHS)
    ]
    write = importlib.import_module("pyarrow.parquet").write_table
    write(pyarrow.Table.from_pylist(rows[::-1]), folder / "meta/episodes/chunk-000/file-000.parquet")
    for k, part in enumerate((range(3), range(3, 5))):
        whole = pyarrow.concat_tables([lerobot_table(episode) for episode in part])
        write(whole, folder / f"data/chunk-000/file-{k:03}.parquet", row_group_size=4)
    return "lerobot:doors"


def d4rl(root: Path, with_next: bool = False) -> str:
    """Rows of steps, one episode after the other: every other one ends in a terminal state, the others in time."""
    import h5py

    (root / "d4rl").mkdir(parents=True)
    t = np.concatenate([seen[:-1] for seen in times()])
    last = np.isin(t, [seen[-2] for seen in times()])
    even = np.concatenate([np.full(len(seen) - 1, k % 2 == 0) for k, seen in enumerate(times())])
    with h5py.File(root / "d4rl" / "walk-medium-v2.hdf5", "w") as file:
        file["observations"] = np.repeat(t[:, None], 3, 1).astype(np.float32)
        file["actions"], file["rewards"] = (t + 0.5)[:, None].astype(np.float32), (t + 0.25).astype(np.float32)
        file["terminals"], file["timeouts"] = last & even, last & ~even
        if with_next:
            file["next_observations"] = np.repeat(t[:, None] + 1, 3, 1).astype(np.float32)
    return "d4rl:walk-medium-v2"


def cut_at(t: int, wanted: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A table without the step t, so that the one before is the last of an episode."""
    cut = wanted["truncated"] | (wanted["observation"] == t - 1)
    return {name: values[wanted["observation"] != t] for name, values in {**wanted, "truncated": cut}.items()}


WHOLE = expected(MadeUp(LENGTHS))
BLIND = expected(MadeUp(LENGTHS, blind=range(5), ends=range(5)))
FORMATS = {
    "d4rl": Format(d4rl, expected(MadeUp(LENGTHS, blind=range(5)))),
    "d4rl, with next observations": Format(functools.partial(d4rl, with_next=True), WHOLE),
    "vd4rl, npz": Format(vd4rl_npz, WHOLE, ("pixels",)),
    "vd4rl, hdf5": Format(vd4rl_hdf5, WHOLE, ("pixels",)),
    "roboset": Format(roboset, WHOLE),
    "gen_dgrl": Format(gen_dgrl, WHOLE),
    "rlds": Format(rlds, WHOLE, ("image",)),
    "lerobot 2.1": Format(lerobot_v2, BLIND, ("state",)),
    "lerobot 3.0": Format(lerobot_v3, BLIND, ("state",)),
    "atari_dqn": Format(atari_dqn, cut_at(8, BLIND), action_of=2),
}
