"""Offline datasets: converting beside reading the raw bytes, and drawing episodes beside minari's own way."""

from __future__ import annotations

import functools
import importlib
import itertools
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

import functional_rb as frb
from benchmarks import ours
from benchmarks.compare import Effort, Section, measure
from benchmarks.contender import AnySampler, Backend, Calls, Entry, Offline
from benchmarks.goals import BYTES, MINARI, dataset_comparisons
from benchmarks.group_report import markdown, who_did_not_run
from benchmarks.report import ratio_rows

GROUPS: tuple[tuple[Backend, Offline], ...] = (("jax", "minari"), *(("torch", group) for group in get_args(Offline)))


@dataclass(frozen=True)
class DatasetWorkload:
    """What the datasets hold.

    Attributes:
        episodes, length: how many, of so many steps.
        observation, action: float32 numbers of each.
        drawn: episodes in a batch.
        keys: different ones in turn.
        seed: of all random numbers.
    """

    episodes: int = 400
    length: int = 200
    observation: int = 39
    action: int = 28
    drawn: int = 4
    keys: int = 256
    seed: int = 0


WORK = DatasetWorkload()


def roster(work: DatasetWorkload, backend: Backend, group: Offline) -> list[Entry]:
    """Everyone who takes part in one group."""
    builders: dict[str, Callable[..., Calls]] = {ours.NAME: of_ours}
    if backend == "torch":
        builders[BYTES] = of_bytes
    if group == "minari":
        builders[MINARI] = of_minari
    return [Entry(name, backend, group, partial(build, name, work, backend, group)) for name, build in builders.items()]


def datasets(
    work: DatasetWorkload,
    effort: Effort,
    *,
    groups: Iterable[tuple[Backend, Offline]] = GROUPS,
    entries: Callable[[DatasetWorkload, Backend, Offline], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other; who cannot run is named with the reason."""
    built: dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]] = {
        (backend, group): partial(entries, work, backend, group) for backend, group in groups
    }
    return measure(built, dataset_comparisons(), effort, say=say)


def text(section: Section, work: DatasetWorkload) -> str:
    """The section in Markdown: what was measured, ratios and medians, and who did not run."""
    about = (
        f"{work.episodes:,} episodes of {work.length} steps, observations of {work.observation} and actions of "
        f"{work.action} float32 numbers, in HDF5 as minari writes it, and as D4RL has it, plain and compressed (gzip). "
        f"`convert` makes a buffer of them; `sample` draws {work.drawn} whole episodes."
    )
    who = [
        f"- {ours.NAME}: `frb.datasets.convert`; `rb.sample` with `frb.Slices({work.length})`",
        f"- {BYTES}: all arrays of the files read by h5py, decompressed, and nothing done with them",
        f"- {MINARI}: `MinariDataset.sample_episodes`, which gives arrays of NumPy",
    ]
    times = "Time of `compared` over time of `against`, median and quartiles of the rounds' ratios:"
    return "\n".join([about, "", *who, "", times, "", *markdown(ratio_rows(section)), "", *who_did_not_run(section)])


class Folder:
    """A folder that goes with the last function that uses it.

    Attributes:
        path: of it.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="functional_rb_bench_"))
        weakref.finalize(self, shutil.rmtree, self.path, True)


@functools.lru_cache(maxsize=1)
def _source(work: DatasetWorkload, group: Offline) -> tuple[Folder, str]:
    """A folder with a dataset, for all contenders of a group, and the dataset's name."""
    made = Folder()
    folder, rng = made.path, np.random.default_rng(work.seed)
    if group == "minari":
        _write_minari(work, rng, folder / "minari")
        return made, f"minari:{folder / 'minari' / 'made' / 'up-v0'}"
    import h5py

    n, options = work.episodes * work.length, {"compression": "gzip"} if group == "d4rl gzip" else {}
    with h5py.File(folder / "some.hdf5", "w") as file:
        file.create_dataset("observations", data=_rounded(rng, (n, work.observation)), **options)
        file.create_dataset("actions", data=_rounded(rng, (n, work.action)), **options)
        file.create_dataset("rewards", data=_rounded(rng, (n,)), **options)
        file.create_dataset("terminals", data=np.zeros(n, bool), **options)
        file.create_dataset("timeouts", data=np.arange(n) % work.length == work.length - 1, **options)
    return made, f"d4rl:{folder / 'some.hdf5'}"


def _rounded(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Numbers that can be compressed somewhat, as those of simulators can."""
    return np.round(rng.standard_normal(shape), 3).astype(np.float32)


def _write_minari(work: DatasetWorkload, rng: np.random.Generator, root: Path) -> None:
    import os

    import minari
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer

    seen, acted = (Box(-np.inf, np.inf, (size,), np.float32) for size in (work.observation, work.action))
    n, no = work.length, [False] * work.length
    buffers = (
        EpisodeBuffer(
            id=k,
            observations=_rounded(rng, (n + 1, work.observation)),
            actions=_rounded(rng, (n, work.action)),
            rewards=list(_rounded(rng, (n,))),
            terminations=no,
            truncations=[*no[1:], True],
        )
        for k in range(work.episodes)
    )
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    try:
        with warnings.catch_warnings():  # of metadata that are recommended
            warnings.simplefilter("ignore")
            minari.create_dataset_from_buffers("made/up-v0", buffers, observation_space=seen, action_space=acted)
    finally:
        os.environ.pop("MINARI_DATASETS_PATH")
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before


def of_ours(name: str, work: DatasetWorkload, backend: Backend, group: Offline) -> Calls:
    """The converter, and a state of what it made."""
    rb, folder, count = importlib.import_module(f"{backend}_backend"), Folder(), itertools.count()
    origin, source = _source(work, group)

    def convert() -> None:
        assert origin.path.exists()
        to = folder.path / f"made {next(count)}"
        frb.datasets.convert(frb.datasets.open_reader(source), to)
        shutil.rmtree(to)

    frb.datasets.convert(frb.datasets.open_reader(source), folder.path / "kept")
    sampler = frb.Slices(work.length, strict_length=False)
    state = frb.datasets.load(folder.path / "kept", rb, sampler=sampler)
    keys = itertools.cycle(list(rb.split(rb.key(work.seed), work.keys)))

    def sample() -> None:
        drawn = rb.sample(state, next(keys), work.drawn)[1]
        if backend == "jax":
            importlib.import_module("jax").block_until_ready(drawn)

    # Converting needs no backend.
    return Calls(name, backend, group, {"sample": sample} | ({"convert": convert} if backend == "torch" else {}))


def of_bytes(name: str, work: DatasetWorkload, backend: Backend, group: Offline) -> Calls:
    """All arrays of the files, one after the other."""
    import h5py

    folder, _ = _source(work, group)
    (path,) = folder.path.rglob("*.hdf5")

    def visit(_: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            found[()]

    def read() -> None:
        assert folder.path.exists()
        with h5py.File(path, "r") as file:
            file.visititems(visit)

    return Calls(name, backend, group, {"convert": read})


def of_minari(name: str, work: DatasetWorkload, backend: Backend, group: Offline) -> Calls:
    """Minari's own way of drawing episodes."""
    from minari import MinariDataset

    folder, _ = _source(work, group)
    dataset = MinariDataset(folder.path / "minari" / "made" / "up-v0" / "data")
    dataset.set_seed(work.seed)

    def sample() -> None:
        assert folder.path.exists()
        list(dataset.sample_episodes(work.drawn))

    return Calls(name, backend, group, {"sample": sample})
