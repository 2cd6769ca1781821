"""`python -m functional_rb inspect`: pages of checkpoints, whole and damaged ones."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import functional_rb as frb
from functional_rb import inspection
from functional_rb.__main__ import main
from tests.support import backends
from tests.support.backends import Backend
from tests.support.checkpoints import rewritten
from tests.support.children import ROOT, program
from tests.support.ted_model import BOTH, GOES_ON, TERMINATED, TRUNCATED, Case, Step, cases, fixed

GOLDEN = Path(__file__).parent / "golden_inspect"
ENDS = [GOES_ON, TERMINATED, GOES_ON, GOES_ON, TRUNCATED, BOTH, GOES_ON, GOES_ON, GOES_ON]
CASE = fixed(ENDS, 8, lanes=2, skipped=((0, 1), (3, 1)))


def saved(backend: Backend, place: Path, case: Case = CASE, times: int = 1, **members: Any) -> None:
    """A checkpoint of a case, and more of them, each with other priorities."""
    state = backend.init(dataclasses.replace(case.spec, **members))
    items, mask = case.batch()
    key = backend.rb.key(0) if state.spec.writer.words else None
    state = backend.add(state, backend.tree(items), backend.array(mask), key=key)
    for k in range(times):
        if state.spec.sampler.has_priorities:
            handles = np.arange(8, dtype=np.int32)
            priorities = (10 ** (handles / (2 + k)) / 10).astype(np.float32)
            state = backend.update(state, backend.array(handles), backend.array(priorities))
        frb.save(state, place, incremental=k > 0)


@pytest.fixture
def torch() -> Iterator[Backend]:
    with backends.make("torch") as backend:
        yield backend


PRIORITIZED = frb.Prioritized(alpha=1.0, max_times_sampled=None)
PAGES = {
    "plain": {"case": fixed(ENDS, 12)},
    "prioritized": {"sampler": PRIORITIZED, "batch_size": 4, "times": 2},
    "slices": {"sampler": frb.Slices(3), "transforms": frb.n_step(2, 0.9)},
    "reservoir": {"writer": frb.Reservoir()},
}


@pytest.mark.parametrize(("library", "name"), [*(("torch", name) for name in PAGES), ("jax", "plain")])
def test_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str], library: str, name: str) -> None:
    """The same page of a checkpoint of either backend."""
    with backends.make(library) as backend:
        saved(backend, tmp_path / "checkpoints", **PAGES[name])
    assert main(["inspect", str(tmp_path / "checkpoints")]) == 0
    text = capsys.readouterr().out.replace(str(tmp_path), "")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "2026-01-31 12:00:00 UTC", text)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_json_has_what_the_page_has(torch: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(torch, tmp_path, **PAGES["prioritized"])
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == inspection.inspect(tmp_path)
    assert told["size"] == 15
    assert told["sizes"] == [8, 7]
    assert told["cursors"] == [1, 7]
    assert [part["generation"] for part in told["generations"]] == [2, 1]
    assert told["spec"]["capacity"] == 16


def naive_episodes(case: Case) -> dict[str, Any]:
    """Of the whole ones: lengths, returns, how they ended; how many go on, and how many may be cut."""
    told: dict[str, Any] = {"lengths": [], "returns": [], "ended": [], "going_on": 0, "cut": 0}
    of_lanes = list(zip(*case.added, strict=True)) if case.added else [()] * (case.lanes or 1)
    for every, lane in zip(of_lanes, case.held, strict=True):
        lost = len([step for step in every if step is not None]) > len(lane)
        pieces: list[list[Step]] = []
        for k, step in enumerate(lane):
            if not k or lane[k - 1].end != GOES_ON:
                pieces.append([])
            pieces[-1].append(step)
        for k, piece in enumerate(pieces):
            cut, over = k == 0 and lost, piece[-1].end != GOES_ON
            told["cut"] += cut
            told["going_on"] += not over
            if over and not cut:
                told["lengths"].append(len(piece))
                told["returns"].append(sum(np.float32(step.action) / np.float32(3) for step in piece))
                told["ended"].append(piece[-1].end)
    return told


@hypothesis.settings(max_examples=40)
@hypothesis.given(case=cases())
def test_episodes_are_what_lists_of_steps_have(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    expected = naive_episodes(case)
    place = tmp_path_factory.mktemp("checkpoint")
    with backends.make("torch") as backend:
        frb.save(case.filled(backend), place)
    got = inspection.inspect(place)["episodes"]
    assert got["whole"] == len(expected["lengths"])
    assert (got["going_on"], got["cut"]) == (expected["going_on"], expected["cut"])
    ends = expected["ended"]
    ways = {"terminated": ends.count(TERMINATED), "truncated": ends.count(TRUNCATED), "both": ends.count(BOTH)}
    assert got["ended"] == ways
    for name in ("lengths", "returns"):
        told = got[name]
        assert told["count"] == len(expected[name])
        if expected[name]:
            numbers = np.array(expected[name], np.float64)
            told_of = [told["smallest"], told["mean"], told["median"], told["largest"]]
            np.testing.assert_allclose(
                told_of, [numbers.min(), numbers.mean(), np.median(numbers), numbers.max()], 1e-6
            )
            assert sum(told["histogram"]["counts"]) == len(numbers)


def test_episodes_by_an_identity(torch: Backend, tmp_path: Path) -> None:
    item = {"x": frb.Unbounded(()), "episode": frb.Unbounded((), "int64"), "reward": frb.Unbounded((1,))}
    spec = frb.BufferSpec(item, capacity=6, sampler=frb.Slices(2, trajectory_key="episode"))
    ids = np.array([7, 7, 8, 8, 8, 9])
    steps = {"x": np.zeros(6, np.float32), "episode": ids, "reward": np.ones((6, 1), np.float32)}
    frb.save(torch.add(torch.init(spec), torch.tree(steps)), tmp_path)
    told = inspection.inspect(tmp_path)["episodes"]
    assert (told["whole"], told["going_on"], told["cut"], told["ended"]) == (2, 1, 0, {})
    assert told["lengths"]["mean"] == told["returns"]["mean"] == 2.5


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"x": frb.Unbounded(())}, "no leaf tells where they end"),
        ({"x": frb.Unbounded(()), "done": frb.Binary((2000,))}, "stored apart"),
    ],
)
def test_buffers_without_episodes(torch: Backend, tmp_path: Path, item: Any, message: str) -> None:
    frb.save(torch.init(frb.BufferSpec(item, capacity=3)), tmp_path)
    report = inspection.inspect(tmp_path)
    assert report["episodes"] is None
    assert f"Episodes: {report['no_episodes']}" in inspection.page(report)
    assert message in report["no_episodes"]


def test_rewards_that_are_none(torch: Backend, tmp_path: Path) -> None:
    """Integers in several columns are no rewards; NaN is one, and stays in its episode."""
    item = {"done": frb.Binary(()), "reward": frb.Unbounded((2,))}
    state = torch.add(torch.init(frb.BufferSpec(item, 3)), {"done": np.ones(2, bool), "reward": np.ones((2, 2), "f4")})
    frb.save(state, tmp_path / "a")
    assert inspection.inspect(tmp_path / "a")["episodes"]["returns"] is None
    item["reward"] = frb.Unbounded(())
    steps = {"done": np.ones(3, bool), "reward": np.array([np.nan, 1, 3], np.float32)}
    frb.save(torch.add(torch.init(frb.BufferSpec(item, 3)), torch.tree(steps)), tmp_path / "b")
    told = inspection.inspect(tmp_path / "b")["episodes"]["returns"]
    assert (told["count"], told["mean"]) == (3, 2.0)
    json.dumps(inspection.inspect(tmp_path / "b"), allow_nan=False)


STEP = {"done": frb.Binary(()), "reward": frb.Unbounded(())}


def told_of(torch: Backend, place: Path, lengths: list[int], rewards: list[float]) -> tuple[Any, Any]:
    """What is told of the lengths and the returns of episodes, of which each step has its episode's reward."""
    ends = np.zeros(sum(lengths), bool)
    ends[np.cumsum(lengths) - 1] = True
    steps = {"done": ends, "reward": np.repeat(np.array(rewards, np.float32), lengths)}
    frb.save(torch.add(torch.init(frb.BufferSpec(STEP, len(ends))), torch.tree(steps)), place)
    told = inspection.inspect(place)["episodes"]
    return told["lengths"], told["returns"]


def test_distributions(torch: Backend, tmp_path: Path) -> None:
    few, one = told_of(torch, tmp_path / "a", [5, 5, 14], [0, 0, 0])
    assert few["histogram"] == {"edges": [float(k) for k in range(5, 16)], "counts": [2] + [0] * 8 + [1], "each": True}
    assert one["histogram"] == {"edges": [0.0, 1.0], "counts": [3], "each": True}
    many, none = told_of(torch, tmp_path / "b", [5, 5, 15], [np.inf] * 3)
    assert not many["histogram"]["each"]
    assert (none["count"], none["histogram"]) == (3, None)
    _, even = told_of(torch, tmp_path / "c", [1] * 11, [*range(11)])
    assert even["histogram"]["edges"] == [float(k) for k in range(11)]
    assert even["histogram"]["counts"] == [1] * 9 + [2]
    _, wide = told_of(torch, tmp_path / "d", [1] * 3, [2**-10, 1, 2**10])
    assert wide["histogram"]["counts"] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert (wide["histogram"]["edges"][0], wide["histogram"]["edges"][-1]) == (2**-10, 2**10)


def flip(file: Path, at: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(at * (len(content) - 1))] ^= 16
    file.write_bytes(content)


DAMAGES = {
    "a segment flipped": lambda place: flip(place / "0000000001.safetensors", 0.5),
    "a segment cut": lambda place: os.truncate(place / "0000000001.safetensors", 100),
    "a segment gone": lambda place: (place / "0000000001.safetensors").unlink(),
    "a manifest flipped": lambda place: flip(place / "0000000001.json", 0.5),
    "a manifest cut": lambda place: os.truncate(place / "0000000001.json", 20),
    "a manifest that is a directory": lambda place: [
        (place / "0000000001.json").unlink(),
        (place / "0000000001.json").mkdir(),
    ],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damages_are_told(torch: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any) -> None:
    """The only checkpoint is damaged: a page all the same, and no traceback."""
    saved(torch, tmp_path, sampler=PRIORITIZED)
    damage(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 1
    text, errors = capsys.readouterr()
    assert errors == ""
    assert re.search(r"0000000001\.(json|safetensors) .*DAMAGED: \w", text)
    assert "No checkpoint is whole" in text
    assert "DAMAGED; there is nothing to load." in text
    assert main(["inspect", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["checkpoint"] is None


def test_every_byte_is_looked_at(torch: Backend, tmp_path: Path) -> None:
    saved(torch, tmp_path, sampler=PRIORITIZED)
    for name in ("0000000001.json", "0000000001.safetensors"):
        whole = (tmp_path / name).read_bytes()
        for at in np.linspace(0, 1, 60):
            flip(tmp_path / name, at)
            report = inspection.inspect(tmp_path)
            assert not report["generations"][0]["whole"]
            assert [file["name"] for file in report["files"] if file["problem"]] == [name]
            (tmp_path / name).write_bytes(whole)
    assert inspection.inspect(tmp_path)["generations"][0]["whole"]


def test_an_older_checkpoint_is_shown_if_the_newest_is_damaged(torch: Backend, tmp_path: Path) -> None:
    saved(torch, tmp_path, sampler=PRIORITIZED)
    saved(torch, tmp_path, sampler=PRIORITIZED)
    flip(tmp_path / "0000000002.safetensors", 0.5)
    report = inspection.inspect(tmp_path)
    assert [part["whole"] for part in report["generations"]] == [False, True]
    assert (report["checkpoint"], report["size"]) == (1, 15)
    assert (
        "DAMAGED: see above; frb.load(..., frb.checkpoint.LoadOptions(fall_back=True)) loads generation 1."
        in inspection.page(report)
    )


def test_a_file_of_several_checkpoints_is_read_for_the_one_that_is_shown(torch: Backend, tmp_path: Path) -> None:
    """The newest has a segment of its own, which is damaged, and one in common with the older."""
    spec = frb.BufferSpec({"x": frb.Unbounded((1000,)), "done": frb.Binary()}, capacity=400)
    steps = {"x": np.zeros((300, 1000), np.float32), "done": np.arange(300) % 3 == 2}
    state = torch.add(torch.init(spec), torch.tree(steps))
    frb.save(state, tmp_path)
    alone = inspection.inspect(tmp_path)
    frb.save(torch.add(state, torch.tree({name: x[:1] for name, x in steps.items()})), tmp_path, incremental=True)
    assert inspection.inspect(tmp_path)["size"] == 301
    assert len(inspection.inspect(tmp_path)["files"]) == 4
    assert (tmp_path / "0000000002.safetensors").stat().st_size < 200_000
    flip(tmp_path / "0000000002.safetensors", 0.5)
    report = inspection.inspect(tmp_path)
    assert report["checkpoint"] == 1
    assert report["episodes"] == alone["episodes"]
    assert report["episodes"]["whole"] == 100


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        assert main(["inspect", str(place)]) == 1
        assert (
            capsys.readouterr().err == f"inspect: {place}: no checkpoint is there; frb.save(state, path) writes one\n"
        )


@dataclasses.dataclass
class Mine:
    """A class of the user's."""

    x: Any


def test_classes_that_are_not_known(torch: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frb.save(torch.init(frb.BufferSpec(Mine(frb.Unbounded(())), capacity=3)), tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "The spec is not known: from_json: " in text
    assert "Every byte is as it was written." in text
    assert main(["inspect", str(tmp_path), "--known", f"{__name__}:Mine"]) == 0
    assert "Unbounded()" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--known", "nothing.there:Mine"]) == 1
    assert "--known nothing.there:Mine: expected MODULE:NAME" in capsys.readouterr().err


def test_pictures(torch: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(torch, tmp_path / "a", sampler=PRIORITIZED)
    assert main(["inspect", str(tmp_path / "a"), "--plot", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    frb.save(torch.init(frb.BufferSpec({"x": frb.Unbounded(())}, capacity=3)), tmp_path / "b")
    assert main(["inspect", str(tmp_path / "b"), "--plot", str(tmp_path / "none.png")]) == 1
    assert "there is nothing to draw" in capsys.readouterr().err
    assert not (tmp_path / "none.png").exists()


def test_pictures_without_matplotlib(
    torch: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(torch, tmp_path, sampler=PRIORITIZED)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["inspect", str(tmp_path), "--plot", "out.png"]) == 1
    assert "pip install '.[plot]' in a checkout" in capsys.readouterr().err


def test_the_program_needs_numpy_alone(torch: Backend, tmp_path: Path) -> None:
    saved(torch, tmp_path, sampler=PRIORITIZED)
    subprocess.run(program("numpy_alone", "inspect", tmp_path), check=True, cwd=ROOT, capture_output=True)
    command = [sys.executable, "-m", "functional_rb", "inspect", str(tmp_path / "no")]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("place", "number"), [(0, -1), (1, 2**31 - 1)])
def test_counters_that_load_refuses_are_damage(place: int, number: int, torch: Backend, tmp_path: Path) -> None:
    saved(torch, tmp_path, fixed(ENDS, 12))
    rewritten(tmp_path, lambda told: told["counters"].__setitem__(place, number))
    report = inspection.inspect(tmp_path)
    assert not report["generations"][0]["whole"]
    assert "cursors are out of range" in inspection.page(report)


def test_names_cannot_command_a_terminal(torch: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frb.save(torch.init(frb.BufferSpec({"x\x1b[2J\n\ud800": frb.Unbounded(())}, 3)), tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "x\\x1b[2J\\n\\ud800" in capsys.readouterr().out


def test_leaves_are_found_by_the_usual_names(torch: Backend, tmp_path: Path) -> None:
    """Also without one that says that an episode is done: each of these ends one."""
    ends = {"terminated": np.array([0, 0, 1, 0, 0], bool), "truncated": np.array([0, 1, 0, 0, 0], bool)}
    item = {"x": frb.Unbounded(()), "terminated": frb.Binary(), "truncated": frb.Binary()}
    frb.save(torch.add(torch.init(frb.BufferSpec(item, 5)), {"x": np.zeros(5, np.float32)} | ends), tmp_path)
    told = inspection.inspect(tmp_path)["episodes"]
    assert told["ended"] == {"terminated": 1, "truncated": 1, "both": 0}
    assert (told["whole"], told["going_on"], told["lengths"]["mean"], told["returns"]) == (2, 1, 1.5, None)
