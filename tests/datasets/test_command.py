"""`python -m functional_rb datasets`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from functional_rb.__main__ import main
from functional_rb.datasets import Conversion, Dataset, convert
from tests.datasets import datasets_of_others as others
from tests.datasets.d4rl_files import write
from tests.datasets.made_up import MadeUp

# By its name: no other test needs what takes long to import.
SAVING = "matplotlib.figure.Figure.savefig"


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the program prints if all goes well, else what it says of why not."""

    def run(*arguments: Any, fails: bool = False) -> str:
        assert main(["datasets", *map(str, arguments)]) == int(fails)
        out, error = capsys.readouterr()
        assert (out == "") == fails
        return (error if fails else out).strip()

    return run


def test_datasets_are_described_converted_and_listed(tmp_path: Path, told: Callable[..., str]) -> None:
    root = ("--root", tmp_path)
    path = write(tmp_path / "some.hdf5")
    before = json.loads(told("info", f"d4rl:{path}", "--json", *root))
    assert (before["steps"], before["episodes"], before["observation"]) == (12, 4, "Unbounded((2,))")
    assert "steps: 12" in told("info", f"d4rl:{path}", *root)
    made = told("get", f"d4rl:{path}", "--infos", "*", *root)
    assert Dataset(made).options["infos"] == ["qpos"]
    listed = json.loads(told("list", "--json", *root))
    assert listed["converted"] == {made: {"name": f"d4rl:{path}", "steps": 10, "episodes": 4}}
    assert {"minari", "d4rl", "gymnasium"} <= set(listed["prefixes"])
    assert "episodes: 4" in told("list", *root)
    out = told("convert", f"d4rl:{path}", tmp_path / "out", "--wide", *root)
    assert Dataset(out).item["action"].dtype == "float64"
    found = json.loads(told("info", out, "--json", *root))
    assert found["lengths"] == {"least": 1, "quarter": 1.75, "median": 2.5, "three quarters": 3.25, "most": 4}
    assert (found["terminated"], found["dropped"]) == (2, 2)
    assert "  most: 19.5" in told("info", out, *root)
    rows = told("export", out, tmp_path / "rows", "--format", "lerobot", "--fact", "fps=10", *root)
    assert (rows, json.loads((tmp_path / "rows" / "meta" / "info.json").read_text())["fps"]) == (
        f"lerobot:{tmp_path}/rows",
        10,
    )
    named = told("export", f"d4rl:{path}", tmp_path / "a-v0", "--fact", "author=A. Uthor", *root)
    assert json.loads(told("info", named, "--json", *root))["author"] == ["A. Uthor"]


def test_options_of_readers_are_taken(tmp_path: Path, told: Callable[..., str]) -> None:
    root = ("--root", tmp_path)
    path = write(tmp_path / "some.hdf5")
    assert json.loads(told("info", f"d4rl:{path}", "--jump", "0.5", "--json"))["episodes"] == 12
    assert json.loads(told("info", f"d4rl:{path}", "--jump", "0", "--json"))["quirks"]["jump"] == 0
    made = told("get", f"d4rl:{path}", "--reward-of", "observation", *root)
    assert Dataset(made).facts["quirks"] == {"reward_of": "observation", "jump": None}
    assert made != told("get", f"d4rl:{path}", *root)
    name = others.rlds(tmp_path)
    assert Dataset(told("get", name, "--last", "step", *root)).facts["last"] == "step"
    assert "'train'" in told("info", name, "--split", "test", *root, fails=True)
    assert "'pyav' or 'module:function', got 'other'" in told(
        "convert", others.lerobot_v2(tmp_path), tmp_path / "out", "--video", "other", *root, fails=True
    )
    named = told("get", name, "--option", "last=step", *root)
    assert named == told("get", name, "--last", "step", *root)
    assert told("info", f"d4rl:{path}", "--one-hot", fails=True).endswith(
        "there is no option 'one_hot': of its own this reader has reward_of, jump; the others are in "
        "help(frb.datasets.load)"
    )
    assert "--option: expected NAME=VALUE, got 'last'" in told("get", name, "--option", "last", *root, fails=True)
    assert json.loads(told("info", others.atari_dqn(tmp_path), "--checkpoints", "1", "--json", *root))["name"]


def test_datasets_are_made_of_datasets(tmp_path: Path, told: Callable[..., str]) -> None:
    """Of 3, 1, 6, 2 and 5 steps, of which every other episode is terminated; the sums of rewards grow."""
    made = tmp_path / "made"
    convert(MadeUp([3, 1, 6, 2, 5], (20,)), made)

    def kept(*arguments: str) -> list[int]:
        out = tmp_path / f"kept {' '.join(arguments)}".replace("/", "")
        assert told("filter", made, out, *arguments) == str(out)
        return [summary.about["seed"] for summary in Dataset(out).summaries()]

    totals = [summary.total for summary in Dataset(made).summaries()]
    assert kept("--lengths", "2:5") == [0, 3, 4]
    assert kept("--returns", f"{totals[2]}:") == [k for k, total in enumerate(totals) if total >= totals[2]]
    assert kept("--returns", ":5", "--ends", "terminated") == [0]
    assert kept("--ends", "truncated", "--about", "seed=3") == [3]
    parts = [str(tmp_path / name) for name in ("train", "test")]
    assert told("split", made, *parts, "--shares", "0.6,0.4", "--seed", "1").split("\n") == parts
    assert [Dataset(part).episodes for part in parts] == [3, 2]
    alone = str(tmp_path / "alone")
    told("split", made, alone, "--shares", "1", "--by", "seed")
    assert Dataset(alone).episodes == 5
    both = told("concat", *parts, tmp_path / "both")
    assert Dataset(both).episodes == 5
    numbers = json.loads(told("statistics", made, "--json"))
    assert (numbers["steps"], numbers["leaves"]["observations/observation"]["min"]) == (17, [0.0] * 20)
    page = told("statistics", made)
    assert "  observations/observation\n    shape: 20\n    mean: " in page
    assert "  actions\n    mean: " in page
    half_known = np.where([True, False], np.nan, np.ones((12, 2), np.float32))
    source = f"d4rl:{write(tmp_path / 'some.hdf5', observations=half_known, actions=np.full((12, 1), np.inf))}"
    out = told("statistics", source, "--json", "--root", tmp_path)
    numbers = json.loads(out, parse_constant=pytest.fail)
    assert numbers["episodes"] == 4
    assert numbers["leaves"]["observations/observation"]["mean"] == [None, 1.0]
    assert numbers["leaves"]["actions"]["max"] == [None]
    assert "--returns: expected LOW:HIGH" in told("filter", made, tmp_path / "no", "--returns", "5", fails=True)
    assert "--shares: expected numbers" in told("split", made, tmp_path / "no", "--shares", "half", fails=True)
    assert "expected 1 shares that sum to 1" in told("split", made, tmp_path / "no", "--shares", "2", fails=True)


def test_sizes_are_told_where_licences_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d4rl").mkdir()
    write(tmp_path / "d4rl" / "hopper-medium-v2.hdf5")
    for verb in ("info", "get"):
        assert main(["datasets", verb, "d4rl:hopper-medium-v2", "--root", str(tmp_path)]) == 0
    page, made = capsys.readouterr().out.rstrip().rsplit("\n", 1)
    assert "licence: CC BY 4.0\n" in page
    assert "size: 145.68 MiB\n" in page
    assert (Dataset(made).facts["licence"], Dataset(made).facts["size"]) == ("CC BY 4.0", "145.68 MiB")


def test_licences_are_not_told_of_files_that_anybody_may_have_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "hopper-medium-v2.hdf5")
    monkeypatch.chdir(tmp_path)
    for name in ("d4rl:hopper-medium-v2.hdf5", f"d4rl:{tmp_path}/hopper-medium-v2.hdf5"):
        assert main(["datasets", "info", name, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert not any(told[what] for what in ("licence", "homepage", "urls", "size", "cite"))
    assert main(["datasets", "convert", "d4rl:hopper-medium-v2.hdf5", "made"]) == 0
    assert main(["datasets", "get", "d4rl:hopper-medium-v2.hdf5", "--root", "."]) == 0
    for made in capsys.readouterr().out.split():
        assert (Dataset(made).facts["licence"], Dataset(made).facts["homepage"]) == ("", "")


def test_what_is_not_there_is_told_of_by_the_table_of_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    for more in ([], ["--json"]):
        assert main(["datasets", "info", "d4rl:hopper-medium-v2", "--root", str(tmp_path), *more]) == 1
        out, error = capsys.readouterr()
        assert "d4rl:hopper-medium-v2: expected a file of HDF5" in error
        told = json.loads(out) if more else dict(line.split(": ", 1) for line in out.splitlines())
        assert (told["name"], told["licence"], told["size"]) == ("d4rl:hopper-medium-v2", "CC BY 4.0", "145.68 MiB")
        assert told["homepage"].endswith("github.com/Farama-Foundation/D4RL")
        assert told["urls"][-1].endswith("hopper_medium-v2.hdf5") if more else "hopper_medium-v2.hdf5" in told["urls"]
    assert main(["datasets", "info", "rlds:unheard/of", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().out == ""


def test_what_is_wrong_is_told(tmp_path: Path, told: Callable[..., str]) -> None:
    made, out, root = tmp_path / "made", tmp_path / "out", ("--root", tmp_path)
    told("convert", f"d4rl:{write(tmp_path / 'some.hdf5')}", made)
    for arguments, message in (
        # Nobody knows where it lies.
        (("get", "rlds:unheard/of", *root), "rlds:unheard/of: expected a folder with features.json in"),
        (("get", "nothing", *root), "expected a name such as"),
        (("export", made, out, "--fact", "fps"), "--fact: expected NAME=VALUE, got 'fps'"),
        (("export", made, out, "--fact", "fps=ten"), "--fact: fps: expected a number, steps a second, got 'ten'"),
        (("convert", made, out), "made is a converted dataset already"),
        (("get", "gymnasium:CartPole-v9", *root), "datasets: gymnasium:CartPole-v9: Environment version `v9`"),
    ):
        assert message in told(*arguments, fails=True)


def test_converted_datasets_are_inspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, drawn = tmp_path / "made", []
    monkeypatch.setattr(SAVING, lambda figure, path, dpi: drawn.append(path))
    convert(MadeUp([3, 1, 6]), made)
    assert main(["inspect", str(made), "--json", "--plot", "out.png"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["lengths"]["most"], told["problem"], drawn) == (10, 6, None, ["out.png"])
    rows = made / "rows.bin"
    rows.write_bytes(b"?" + rows.read_bytes()[1:])
    assert main(["inspect", str(made)]) == 1
    out = capsys.readouterr().out
    assert "  most: 6\n" in out
    assert "problem: " in out
    assert "rows.bin: bytes 0 to" in out


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(
    ("shape", "seen"),
    [
        ((9, 10), (9, 10)),
        ((9, 10, 3), (9, 10, 3)),
        ((3, 9, 10), (9, 10, 3)),
        ((4, 9, 10), (9, 10, 3)),
        ((2, 9, 10), (9, 10)),
        ((9, 10, 1), (9, 10)),
        ((9, 2), None),
        ((9,), None),
    ],
    ids=str,
)
def test_pictures_show_episodes_and_frames(
    shape: tuple[int, ...], seen: tuple[int, ...] | None, compact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn is looked at as it is saved."""
    figures: list[Any] = []
    monkeypatch.setattr(SAVING, lambda figure, path, dpi: figures.append(figure))
    convert(MadeUp([3, 1, 6, 2, 5], shape, "uint8"), tmp_path / "made", Conversion(compact=compact))
    assert main(["datasets", "info", str(tmp_path / "made"), "--picture", "out.png"]) == 0
    (figure,) = figures
    above, *below = figure.subfigs or [figure]
    lengths, returns = above.axes
    assert (lengths.get_xlabel(), returns.get_xlabel()) == ("steps of an episode", "return of an episode")
    assert [bar.get_height() for bar in lengths.patches] == [1, 1, 1, 0, 1, 1]
    assert bool(below) == (seen is not None)
    if seen is not None:
        frames = [axes.images[0].get_array() for axes in below[0].axes]
        assert {np.asarray(frame).shape for frame in frames} == {seen}
        # Slots 0, 3, 6, 10, 13 and 16 of episodes of 3, 1, 6, 2 and 5 steps: before each there is an observation more.
        assert [int(np.asarray(frame).flat[0]) for frame in frames] == [0, 4, 8, 13, 17, 20]
        assert {axes.images[0].get_clim() for axes in below[0].axes} == {(0, 255)}  # a dark image is shown as dark
        assert [axes.get_title() for axes in below[0].axes] == [f"step {k}" for k in (0, 3, 6, 10, 13, 16)]


def test_pictures_are_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out = str(tmp_path / "made"), tmp_path / "out.png"
    convert(MadeUp([3], (9, 10), "uint8"), made)
    assert main(["datasets", "info", made, "--picture", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    source = f"d4rl:{write(tmp_path / 'some.hdf5')}"
    assert main(["datasets", "info", source, "--picture", str(out)]) == 1
    assert f"directory of a converted dataset, got '{source}'; convert it by" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["datasets", "info", made, "--picture", str(out)]) == 1
    assert "datasets info --picture needs matplotlib: pip install '.[plot]' in a checkout" in capsys.readouterr().err
