"""Datasets of others that are not as their formats say: refused with the file's name; and what their options change."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from tests.datasets import datasets_of_others as others
from tests.datasets import protobuf
from tests.datasets.episodes import open_reader
from tests.datasets.made_up import MadeUp


def folder(root: Path) -> Path:
    """The folder in which a dataset's files lie."""
    return next(path for path in sorted(root.rglob("*")) if path.is_file() and path.parent.name != "0.9.0").parent


def refuse(name: str, root: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        [*open_reader(name, str(root)).episodes()]


def rewrite_rlds(root: Path, **changes: Any) -> str:
    name = others.rlds(root)
    path = folder(root) / "features.json"
    path.write_text(json.dumps(changes.get("features", others.rlds_features())))
    return name


def test_images_whose_size_is_not_told_are_looked_at(tmp_path: Path) -> None:
    name = rewrite_rlds(tmp_path, features=others.rlds_features((-1, -1, 3)))
    assert open_reader(name, str(tmp_path)).spec(True).observation["image"].shape == (4, 4, 3)


def test_images_of_another_size_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    name = rewrite_rlds(tmp_path, features=others.rlds_features((5, 4, 3)))
    refuse(name, tmp_path, r"record 0, steps/observation/image, image 0: expected 4 by 5 pixels, got 4 by 4")
    name = rewrite_rlds(tmp_path / "b", features=others.rlds_features((4, 4, 1)))
    refuse(name, tmp_path / "b", "colours are of another kind")


def test_last_steps_may_be_steps(tmp_path: Path) -> None:
    """They are kept if they led to a terminal state: else nobody knows what they led to."""
    name = others.rlds(tmp_path)
    episodes = [*open_reader(name, str(tmp_path), last="step").episodes()]
    assert [len(episode) for episode in episodes] == [n + 1 for n in others.LENGTHS]
    assert [bool(episode.terminated[-1]) for episode in episodes] == [True, False] * 2 + [True]
    assert not any(episode.final_observed for episode in episodes)
    assert episodes[0].rewards[-1] == others.NOTHING


def test_what_is_told_of_episodes_is_kept(tmp_path: Path) -> None:
    """But for what nobody has written, and for arrays that are large."""
    reader = open_reader(others.rlds(tmp_path), str(tmp_path))
    firsts = [t[0] for t in others.times()]
    for first, episode in zip(firsts, reader.episodes(), strict=True):
        assert episode.about == {
            "observation/instruction": "open the door",
            "episode_metadata/file_path": "somewhere",
            "episode_metadata/seed": 7,
            "episode_metadata/pose": [[0.5, 1.5], [2.5, 3.5]],
            "episode_metadata/done": True,
            "episode_id": first,
        }


def test_last_steps_are_one_of_two_kinds(tmp_path: Path) -> None:
    name = others.rlds(tmp_path)
    with pytest.raises(ValueError, match="last: expected 'padding' or 'step'"):
        open_reader(name, str(tmp_path), last="none")


def test_an_episode_of_one_step_is_none(tmp_path: Path) -> None:
    name = others.rlds(tmp_path)
    shard = sorted(folder(tmp_path).glob("*.tfrecord*"))[0]
    protobuf.write_records(shard, [others.rlds_record(np.array([3]), True)])
    first = next(iter(open_reader(name, str(tmp_path)).episodes()))
    assert len(first) == 1
    assert not first.final_observed
    assert not first.terminated.any()


def test_shards_that_are_missing_are_named(tmp_path: Path) -> None:
    name = others.rlds(tmp_path)
    with pytest.raises(ValueError, match=r"splits \['train'\]"):
        open_reader(name, str(tmp_path), split="test")
    os.unlink(sorted(folder(tmp_path).glob("*.tfrecord*"))[0])
    with pytest.raises(ValueError, match=r"expected 2 files of the split 'train', number \[0\] is missing"):
        open_reader(name, str(tmp_path))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("00005-of-00002", r"expected 2 files of the split 'train', number \[5\] is one too many"),
        ("00002-of-00003", r"written together, there are those of \[2, 3\], such as doors-train.*remove those"),
        ("00000-of-00001", r"written together, there are those of \[1, 2\]"),
    ],
)
def test_shards_of_other_writings_are_named(other: str, message: str, tmp_path: Path) -> None:
    """Those that lie beside would be read in place of some, or after them."""
    name = others.rlds(tmp_path)
    shard = sorted(folder(tmp_path).glob("*.tfrecord*"))[0]
    shutil.copy(shard, shard.with_name(f"doors-train.tfrecord-{other}"))
    with pytest.raises(ValueError, match=message):
        open_reader(name, str(tmp_path))


RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "too few values": ({"steps/action": np.ones(5)}, "steps/action: expected values for 4 steps, 3 for each, got 5"),
    "too many values": ({"steps/action": np.ones(15)}, "steps/action: expected values for 4 steps, 3 for each, got 15"),
    "bytes for numbers": ({"steps/action": [b"a"] * 12}, "steps/action: expected float32, got bytes"),
    "whole numbers": ({"steps/action": np.ones(12, int)}, "steps/action: expected float32, got int64"),
    "large numbers": ({"steps/observation/count": np.full(4, 256)}, "expected uint8, got numbers up to 256"),
    "no image": ({"steps/observation/image": [b"GIF89a"] * 4}, "expected an image, PNG or JPEG"),
    "numbers for images": ({"steps/observation/image": np.ones(4)}, "expected bytes, got numbers"),
    "no steps": ({"steps/is_first": np.zeros(0), "steps/reward": []}, "expected steps with is_first"),
}


@pytest.mark.parametrize("case", RECORDS.values(), ids=RECORDS)
def test_records_of_other_values_are_refused(case: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    changes, message = case
    name, t = others.rlds(tmp_path), np.arange(4)
    whole = {"steps/action": np.ones((4, 3)), "steps/observation/state": np.ones((4, 2)), "steps/reward": np.ones(4)}
    whole |= {f"steps/{mark}": t for mark in ("is_first", "is_last", "is_terminal")}
    whole |= {"steps/observation/count": t, "steps/observation/image": [others.png(1)] * 4}
    whole |= {"steps/observation/instruction": [b""] * 4, "steps/discount": np.ones(4)}
    if "no steps" in message or "expected steps" in message:
        whole = {}
    shard = sorted(folder(tmp_path).glob("*.tfrecord*"))[0]
    protobuf.write_records(shard, [protobuf.example({**whole, **changes})])
    refuse(name, tmp_path, rf"{shard.name}, record 0.*{message}")


STEPS = '{"featuresDict": {"features": {"steps": %s}}}'


@pytest.mark.parametrize(
    "content", ["{}", "[]", "text", STEPS % 3, STEPS % '{"tensor": {"dtype": "float32", "shape": {}}}', "{" * 9999]
)
def test_features_of_something_else_are_refused(content: str, tmp_path: Path) -> None:
    name = others.rlds(tmp_path)
    (folder(tmp_path) / "features.json").write_text(content)
    refuse(name, tmp_path, r"features.json: expected")


def test_features_and_groups_lie_in_each_other_up_to_a_bound(tmp_path: Path) -> None:
    deep: dict[str, Any] = others.tensor((), "float32")
    for _ in range(20):
        deep = others.features_dict(x=deep)
    name = rewrite_rlds(tmp_path, features=deep)
    refuse(name, tmp_path, r"features.json: expected at most 16 features in each other")
    name = others.roboset(tmp_path / "b")
    with h5py.File(next(iter(sorted(tmp_path.rglob("*.h5")))), "a") as file:
        file["Trial8/env_infos/again"] = file["Trial8/env_infos"]
    refuse(name, tmp_path / "b", r"a.h5: 'again': expected at most 16 groups in each other")


def atari(change: Callable[[Path], object]) -> Callable[[Path], str]:
    def write(root: Path) -> str:
        name = others.atari_dqn(root)
        change(folder(root))
        return name

    return write


def hdf5(name: str, value: Any, write: Callable[[Path], str]) -> Callable[[Path], str]:
    def written(root: Path) -> str:
        given = write(root)
        path = sorted([*root.rglob("*.h5"), *root.rglob("*.hdf5")])[0]
        with h5py.File(path, "a") as file:
            del file[name]
            if value is not None:
                file[name] = value
        return given

    return written


def gen_dgrl_of(fields: Any) -> Callable[[Path], str]:
    def write(root: Path) -> str:
        content = io.BytesIO()
        np.save(content, np.array(fields, object), allow_pickle=True)
        with tarfile.open(root / "a.tar.xz", "w:xz") as archive:
            member = tarfile.TarInfo("a.npy")
            member.size = len(content.getvalue())
            archive.addfile(member, io.BytesIO(content.getvalue()))
        return f"gen_dgrl:{root / 'a.tar.xz'}"

    return write


def of(n: int, **more: Any) -> dict[str, Any]:
    arrays = {
        "observations": np.zeros((n + 1, 2)),
        "actions": np.zeros(n),
        "rewards": np.zeros(n),
        "dones": np.zeros(n),
    }
    return arrays | more


def vd4rl(**more: Any) -> Callable[[Path], str]:
    def write(root: Path) -> str:
        arrays = {"image": np.zeros((4, 2, 2, 3), np.uint8), "action": np.zeros((4, 1)), "reward": np.zeros(4)}
        np.savez(root / "0.npz", **arrays | more)
        return f"vd4rl:{root}"

    return write


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


FILES: dict[str, tuple[Callable[[Path], str], str]] = {
    "atari, a file missing": (
        atari(lambda path: os.unlink(path / "$store$_reward_ckpt.1.gz")),
        r"reward_ckpt.1.gz: expected this file too",
    ),
    "atari, fewer rewards": (
        atari(lambda path: others.save(path / "$store$_reward_ckpt.0.gz", np.zeros(5))),
        "checkpoint 0, reward: expected 17 rows",
    ),
    "atari, fewer frames": (
        atari(lambda path: others.save(path / "$store$_observation_ckpt.0.gz", np.zeros((5, 4, 4), np.uint8))),
        r"observation_ckpt.0.gz: expected 17 frames, got shape \(5, 4, 4\)",
    ),
    "atari, a pickle": (
        atari(lambda path: (path / "add_count_ckpt.0.gz").write_bytes(gzip.compress(pickle.dumps(Runs())))),
        "add_count_ckpt.0.gz: expected an array as numpy.save writes it",
    ),
    "atari, no count": (
        atari(lambda path: others.save(path / "add_count_ckpt.1.gz", np.array(-3))),
        "add_count_ckpt.1.gz: expected how many rows were added",
    ),
    "atari, a bomb": (
        atari(lambda path: others.save(path / "$store$_reward_ckpt.0.gz", np.broadcast_to(np.zeros(1), 10**10))),
        "expected at most",
    ),
    "vd4rl, other arrays": (hdf5("observation", None, others.vd4rl_hdf5), "expected one of image, observation"),
    "vd4rl, fewer rewards": (hdf5("reward", np.zeros(3), others.vd4rl_hdf5), "reward: expected 22 rows"),
    "vd4rl, data elsewhere": (
        hdf5("observation", h5py.ExternalLink("/etc/passwd", "/a"), others.vd4rl_hdf5),
        "'observation' is a link",
    ),
    "vd4rl, an image": (vd4rl(image=np.array(1)), r"0.npz, image: expected rows of numbers"),
    "vd4rl, words": (vd4rl(action=np.array(["a"] * 4)), r"0.npz, action: expected rows of numbers"),
    "vd4rl, a mark": (vd4rl(is_first=np.array(True)), r"0.npz, is_first: expected rows, got a single value"),
    "vd4rl, fewer marks": (vd4rl(discount=np.ones(2)), r"0.npz, row 3, discount: expected 1 rows, got shape \(0,\)"),
    "roboset, a reward": (
        hdf5("Trial8/rewards", 1.0, others.roboset),
        "expected rows in 'rewards', got a single value",
    ),
    "roboset, words": (
        hdf5("Trial8/actions", [b"a"] * 4, others.roboset),
        "a.h5, Trial8: expected numbers in 'actions', got none",
    ),
    "roboset, fewer actions": (
        hdf5("Trial9/actions", np.zeros((1, 1)), others.roboset),
        "Trial9, actions: expected 2 rows, one for each reward, got 1",
    ),
    "roboset, data elsewhere": (
        hdf5("Trial8/observations", h5py.SoftLink("/Trial9/observations"), others.roboset),
        "'observations' is a link",
    ),
    "atari, pairs": (
        atari(lambda path: others.save(path / "$store$_terminal_ckpt.0.gz", np.zeros((17, 2)))),
        r"terminal_ckpt.0.gz: expected a number for each row, got shape \(17, 2\)",
    ),
    "atari, a frame": (
        atari(lambda path: others.save(path / "$store$_observation_ckpt.0.gz", np.array(1, np.uint8))),
        r"observation_ckpt.0.gz: expected rows of numbers, got uint8 \(\)",
    ),
    "gen_dgrl, an end": (gen_dgrl_of(of(3, dones=np.array(1))), r"dones: expected 3 rows, got shape \(\)"),
    "gen_dgrl, an observation": (
        gen_dgrl_of(of(3, observations=np.array(1))),
        r"one more than rewards, got shape \(\)",
    ),
    "gen_dgrl, words": (gen_dgrl_of(of(3, actions=np.array(["a"] * 3))), "'a.npy', actions: expected rows of numbers"),
    "gen_dgrl, code": (gen_dgrl_of({"observations": Runs()}), "'a.npy': the pickle holds .*system.*no code is run"),
    "gen_dgrl, a list": (gen_dgrl_of([1, 2]), r"expected a dict, pickled by numpy.save, got an array \(2,\)"),
    "gen_dgrl, a number": (gen_dgrl_of(3), "expected arrays observations, actions.*, got <class 'int'>"),
    "gen_dgrl, other fields": (gen_dgrl_of({"rewards": np.zeros(3)}), "expected arrays observations, actions"),
    "gen_dgrl, done in the midst": (gen_dgrl_of(of(3, dones=np.array([0, 1, 0]))), "done after the last one only"),
    "gen_dgrl, fewer actions": (gen_dgrl_of(of(3, actions=np.zeros(2))), r"'a.npy', actions: expected 3 rows"),
    "gen_dgrl, more observations": (gen_dgrl_of(of(3, observations=np.zeros(9))), "observations: expected 4"),
    "gen_dgrl, no steps": (gen_dgrl_of(of(0)), "expected the steps of one episode"),
}


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_files_of_other_content_are_refused(case: tuple[Callable[[Path], str], str], tmp_path: Path) -> None:
    write, message = case
    refuse(write(tmp_path), tmp_path, message)
    assert not Path("ran").exists()


def test_gen_dgrl_without_last_observations_makes_none_up(tmp_path: Path) -> None:
    name = gen_dgrl_of(of(3, observations=np.arange(3)))(tmp_path)
    (episode,) = open_reader(name).episodes()
    assert not episode.final_observed


def test_rewards_of_roboset_may_be_those_of_actions(tmp_path: Path) -> None:
    name = others.roboset(tmp_path)
    first = next(iter(open_reader(name, str(tmp_path), reward_of="action").episodes()))
    assert first.rewards.tolist() == [others.NOTHING, 0.25, 1.25]
    with pytest.raises(ValueError, match="reward_of"):
        open_reader(name, str(tmp_path), reward_of="none")
    with h5py.File(next(iter(sorted(tmp_path.rglob("*.h5")))), "a") as file:
        for name_of in [*file]:
            del file[name_of]
        for n in (1, 2):
            rows = {"observations": np.zeros((n, 2)), "actions": np.zeros((n, 1)), "rewards": np.full(n, 0.5)}
            for field, values in (rows | {"done": np.arange(n) == n - 1}).items():
                file[f"Trial{n}/{field}"] = values
    # The mark of a single row is of no step: it would be kept for it, though nothing is known of what it led to.
    alone, single, *_ = open_reader(name, str(tmp_path)).episodes()
    assert (len(alone), alone.final_observed, alone.terminated.tolist()) == (1, False, [False])
    assert (len(single), single.final_observed, single.terminated.tolist()) == (1, True, [True])


def test_links_within_a_file_do_not_make_many_of_few(tmp_path: Path) -> None:
    name = others.roboset(tmp_path)
    with h5py.File(min(tmp_path.rglob("*.h5")), "a") as file:
        inner = file["Trial8"].create_group("env_infos/inner")
        for _ in range(2):  # empty groups, to the innermost of which 16,900 paths lead
            outer = file["Trial8/env_infos"].create_group("outer")
            for k in range(130):
                outer[f"{k}"] = inner
            del file["Trial8/env_infos/outer"]
            inner = outer
        file["Trial8/env_infos/outer"] = inner
    with pytest.raises(ValueError, match="at most 16384 groups and data sets"):
        open_reader(name, str(tmp_path))


def test_checkpoints_of_atari_may_be_chosen(tmp_path: Path) -> None:
    name = others.atari_dqn(tmp_path)
    every, second = (
        [*open_reader(name, str(tmp_path), checkpoints=chosen).episodes()] for chosen in (None, range(1, 9))
    )
    assert len(second) == 3
    for one, other in zip(every[3:], second, strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)
    with pytest.raises(ValueError, match=r"expected checkpoints range\(5, 9\), there are \[0, 1\]"):
        open_reader(name, str(tmp_path), checkpoints=range(5, 9))


def test_names_and_roots_of_another_kind(tmp_path: Path) -> None:
    wrong: Any
    for wrong in (3, None, ("minari:x",)):
        with pytest.raises(TypeError, match="datasets: expected a name such as"):
            open_reader(wrong)
    for wrong in (3, b"x", ["x"]):
        with pytest.raises(TypeError, match="datasets: expected root as the path of a folder"):
            open_reader("minari:door/human-v2", root=wrong)
    for wrong in (3, None, ["minari:x"]):
        with pytest.raises(TypeError, match="datasets: expected a name such as"):
            frb.datasets.load(wrong, torch_backend)
    made = frb.datasets.convert(MadeUp([2]), tmp_path / "made")
    for wrong in (3, None, ["made"], b"made"):
        with pytest.raises(TypeError, match=r"datasets\.Dataset: expected a path"):
            made.concat(wrong, to="joined")
    for shares, to in ((None, ["a"]), ("ab", ["a", "b"]), (["a"], ["b"]), ([1.0], "a"), ([1.0], Path("a"))):
        with pytest.raises(TypeError, match=r"Dataset\.split: expected (shares|to) as a list of (numbers|directories)"):
            made.split(shares, to)
    for wrong in ("minari:x", None, 3, made):
        with pytest.raises(
            TypeError, match=r"(?s)datasets\.convert: expected a reader, got .*; load takes the name of a dataset"
        ):
            frb.datasets.convert(wrong, "made")
    for wrong in ("x", None, 3):
        with pytest.raises((TypeError, ValueError), match=r"datasets\.fetch: expected "):
            frb.datasets.fetch(wrong, "fetched")
    for wrong in ({}, {"infos": True}, True, frb.datasets.Conversion):
        with pytest.raises(TypeError, match=r"datasets\.load: expected conversion as frb\.datasets\.Conversion"):
            frb.datasets.load("made", torch_backend, conversion=wrong)
        with pytest.raises(TypeError, match=r"datasets\.convert: expected conversion as frb\.datasets\.Conversion"):
            frb.datasets.convert(MadeUp([1]), "made", wrong)
        with pytest.raises(TypeError, match=r"datasets\.fetch: expected retry as frb\.datasets\.Retry\(\.\.\.\), got"):
            frb.datasets.fetch("https://example.org/a.bin", "fetched", retry=wrong)
