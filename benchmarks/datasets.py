"""Offline datasets: converting beside reading the raw bytes and torchrl, drawing episodes beside minari and torchrl."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

import functional_rb as frb
from benchmarks import ours
from benchmarks.compare import Effort, Section, joined, measure
from benchmarks.contender import AnySampler, Backend, Calls, Entry, Offline, Operation
from benchmarks.dataset_memory import TORCHRL, Peaks, peaks_of
from benchmarks.goals import BYTES, COLD_BYTES, MINARI, OURS_COLD, WRITTEN, dataset_comparisons
from benchmarks.group_report import markdown, who_did_not_run
from benchmarks.report import ratio_rows
from functional_rb.datasets.reader import open_reader

MEASURED: tuple[Offline, ...] = ("minari", "d4rl")
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
# Bytes that are written at once.
PIECE = 2**21
# Batches drawn in turn, as a learner draws them; a conversion is one call.
DRAWS = 25


def roster(work: DatasetWorkload, backend: Backend, group: Offline) -> list[Entry]:
    """Everyone who takes part in one group."""
    builders: dict[str, Callable[..., Calls]] = {ours.NAME: of_ours}
    if backend == "torch":
        builders |= {BYTES: of_bytes, TORCHRL: of_torchrl}
        if group == "d4rl":
            builders |= {COLD_BYTES: of_bytes, OURS_COLD: of_ours_cold, WRITTEN: of_written}
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
    """Measure one operation and one group after the other; who cannot run is named with the reason."""
    parts: list[Section] = []
    turns: dict[Operation, Effort] = {"convert": effort, "sample": Effort(effort.rounds, DRAWS * effort.burst)}
    for operation, turn in turns.items():
        built: dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]] = {
            (backend, group): partial(_with, operation, partial(entries, work, backend, group))
            for backend, group in groups
        }
        wanted = [comparison for comparison in dataset_comparisons() if comparison.operation == operation]
        parts.append(measure(built, wanted, turn, say=say))
    return joined(parts)


def _with(operation: Operation, entries: Callable[[], list[Entry]]) -> list[Entry]:
    """Those who take part, each with one of its operations alone, or with none."""

    def build(entry: Entry) -> Calls:
        whole = entry.build()
        calls = {operation: getattr(whole, operation)} if operation in whole.operations else {}
        return Calls(entry.name, entry.backend, entry.sampler, calls)

    return [replace(entry, build=partial(build, entry)) for entry in entries()]


def text(section: Section, work: DatasetWorkload) -> str:
    """The section in Markdown: what was measured, ratios and medians, memory, and who did not run."""
    about = (
        f"{work.episodes:,} episodes of {work.length} steps, observations of {work.observation} and actions of "
        f"{work.action} float32 numbers, in HDF5 as minari writes it, and as D4RL has it, plain and compressed (gzip). "
        f"`convert` makes a buffer of them; `sample` draws {work.drawn} whole episodes."
    )
    who = [
        f"- {ours.NAME}: `frb.datasets.convert`, synced to the disk; `rb.sample` with `frb.Slices({work.length})`",
        f"- {BYTES}: all arrays of the files read by h5py, decompressed, and nothing done with them",
        f"- {COLD_BYTES}, {OURS_COLD}: the same two, of a file that is not in memory (`posix_fadvise`)",
        f"- {WRITTEN}: read by h5py, then as many bytes as {ours.NAME} has in files, written and synced: the least",
        f"- {MINARI}: `MinariDataset.sample_episodes`, which gives arrays of NumPy",
        f"- {TORCHRL}: `D4RLExperienceReplay` of a local file; `MinariExperienceReplay`, whose files hold zeros",
    ]
    times = "Time of `compared` over time of `against`, median and quartiles of the rounds' ratios:"
    held = "Memory that a process takes beyond what it has once all is imported, at its peak, in MB:"
    table = [("format", "bytes of the file", "converted by", "MB"), *memory_rows(peaks(work))]
    rows = [*markdown(ratio_rows(section)), "", held, "", *markdown(table), "", *who_did_not_run(section)]
    return "\n".join([about, "", *who, "", times, "", *rows])


@functools.lru_cache(maxsize=2)
def peaks(work: DatasetWorkload) -> Peaks:
    """Memory of conversions of the dataset, and of one with five times as many episodes."""
    found: Peaks = {}
    for size in (work, replace(work, episodes=5 * work.episodes)):
        for group in MEASURED:
            folder, source = _source(size, group)
            (path,) = folder.path.rglob("*.hdf5")
            for who in (ours.NAME, TORCHRL):
                found[group, path.stat().st_size, who] = peaks_of(who, source)
    return found


def memory_rows(found: Peaks) -> list[tuple[str, str, str, str]]:
    """The table of memory; what did not run is told in it."""
    return [
        (group, f"{size:,}", who, peak if isinstance(peak, str) else f"{peak / 1e6:.0f}")
        for (group, size, who), peak in found.items()
    ]


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
    rb, folder = importlib.import_module(f"{backend}_backend"), Folder()
    _, source = _source(work, group)
    frb.datasets.convert(open_reader(source), folder.path / "kept")
    sampler = frb.Slices(work.length, strict_length=False)
    state = frb.datasets.load(folder.path / "kept", rb, sampler=sampler)
    keys = itertools.cycle(list(rb.split(rb.key(work.seed), work.keys)))

    def sample() -> None:
        assert folder.path.exists()
        drawn = rb.sample(state, next(keys), work.drawn)[1]
        if backend == "jax":
            importlib.import_module("jax").block_until_ready(drawn)

    # Converting needs no backend.
    more = {"convert": _converting(work, group)} if backend == "torch" else {}
    return Calls(name, backend, group, {"sample": sample, **more})


def _converting(work: DatasetWorkload, group: Offline) -> Callable[[], None]:
    """Converts into another directory each time: what it has made is removed at the end."""
    folder, count = Folder(), itertools.count()
    origin, source = _source(work, group)

    def convert() -> None:
        assert origin.path.exists()
        frb.datasets.convert(open_reader(source), folder.path / f"made {next(count)}")

    return convert


def of_ours_cold(name: str, work: DatasetWorkload, backend: Backend, group: Offline) -> Calls:
    """The converter, of a file that is not in memory."""
    convert, drop = _converting(work, group), _dropping(work, group)

    def cold() -> None:
        drop()
        convert()

    return Calls(name, backend, group, {"convert": cold})


def _dropping(work: DatasetWorkload, group: Offline) -> Callable[[], None]:
    """Has the system forget the file, which takes it half a millisecond."""
    folder, _ = _source(work, group)
    (path,) = folder.path.rglob("*.hdf5")

    def drop() -> None:
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # what is not on the disk is not dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return drop


def of_bytes(name: str, work: DatasetWorkload, backend: Backend, group: Offline) -> Calls:
    """All arrays of the files, one after the other."""
    read = _reading(work, group)
    drop = _dropping(work, group) if name == COLD_BYTES else None

    def convert() -> None:
        if drop is not None:
            drop()
        read()

    return Calls(name, backend, group, {"convert": convert})


def _reading(work: DatasetWorkload, group: Offline) -> Callable[[], None]:
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

    return read


def of_written(name: str, work: DatasetWorkload, backend: Backend, group: Offline) -> Calls:
    """All arrays of the files read, and as many bytes written as ours has, into another file each time."""
    read, folder, count = _reading(work, group), Folder(), itertools.count()
    _, source = _source(work, group)
    frb.datasets.convert(open_reader(source), folder.path / "kept")
    content = np.concatenate([np.fromfile(path, np.uint8) for path in sorted((folder.path / "kept").iterdir())])

    def copy() -> None:
        read()
        with open(folder.path / f"{next(count)}", "wb", buffering=0) as file:
            for first in range(0, len(content), PIECE):
                file.write(content[first : first + PIECE].data)
            os.fsync(file.fileno())

    return Calls(name, backend, group, {"convert": copy})


def of_torchrl(name: str, work: DatasetWorkload, backend: Backend, group: Offline) -> Calls:
    """torchrl's dataset of the same file, made anew each time, and drawn from."""
    from benchmarks.peers_torchrl_datasets import made

    folder, count = Folder(), itertools.count()
    origin, source = _source(work, group)

    def convert() -> Any:
        assert origin.path.exists()
        return made(source, folder.path / f"made {next(count)}", work.drawn, work.length)

    return Calls(name, backend, group, {"convert": convert, "sample": convert().sample})


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
