"""Datasets in the formats of others, written by the formats' own writers or as their definitions say, with markers.

Each function writes `LENGTHS` episodes and gives the dataset's name. What a reader has to make of them is a `MadeUp`:
observation t, action t + 0.5, reward t + 0.25, where t counts observations over all episodes. Where a format has rows
that mean nothing, there is a number that is found nowhere else.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.made_up import MadeUp

LENGTHS = (3, 1, 6, 2, 5)
NOTHING = 99


@dataclasses.dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        write: writes a dataset into a folder, and gives its name.
        made_up: what it holds.
        observation: the name of the observation in the items.
    """

    write: Callable[[Path], str]
    made_up: MadeUp
    observation: tuple[str, ...] = ("observation",)


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
    with gzip.open(path, "wb") as file:
        np.save(file, array)


FORMATS = {
    "vd4rl, npz": Format(vd4rl_npz, MadeUp(LENGTHS), ("pixels",)),
    "vd4rl, hdf5": Format(vd4rl_hdf5, MadeUp(LENGTHS), ("pixels",)),
    "roboset": Format(roboset, MadeUp(LENGTHS)),
    "gen_dgrl": Format(gen_dgrl, MadeUp(LENGTHS)),
}
