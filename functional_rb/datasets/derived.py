"""Plans of datasets made of converted ones: some of the episodes, all of several, or a function applied to each."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest
from functional_rb.base.dtypes import whole_number
from functional_rb.base.files import as_path
from functional_rb.datasets.convert import Conversion, Plan, planned
from functional_rb.datasets.description import Path, Summary, is_dataset
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec
from functional_rb.datasets.pieces import spec_of_values
from functional_rb.datasets.reader import Reader
from functional_rb.datasets.stored import Stored
from functional_rb.specs import ArraySpec
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline
from functional_rb.ted.check import is_leaf


def filtered(of: Stored, keep: Callable[[Summary], bool], to: Path) -> Plan:
    who = "Dataset.filter"
    _expect_callable(keep, f"{who}: expected keep as a function of a Summary")
    chosen = []
    for summary in of.description.summaries():
        with _noted(f"{who}: {of.path}, episode {summary.number}"):
            if keep(summary):
                chosen.append(summary.number)
    if not chosen:
        raise DatasetError(f"{who}: {of.path}: none of its {of.counts['episodes']} episodes was kept")
    return _planned(_Chosen(of, chosen, "filter"), of, to, who)


def parts(
    of: Stored,
    shares: Sequence[float],
    to: Sequence[Path],
    seed: int,
    by: Callable[[Summary], Hashable] | None,
) -> list[Plan]:
    who = "Dataset.split"
    for name, kind, values in (("shares", "numbers", shares), ("to", "directories", to)):
        if isinstance(values, str | os.PathLike) or not hasattr(values, "__len__"):
            raise TypeError(f"{who}: expected {name} as a list of {kind}, got {values!r:.80}")
    if not all(isinstance(share, int | float | np.number) for share in shares):
        raise TypeError(f"{who}: expected shares as a list of numbers, got {shares!r:.80}")
    if len(shares) != len(to) or any(share < 0 for share in shares) or not sum(shares) <= 1 + 1e-9:
        raise ValueError(f"{who}: expected {len(to)} shares that sum to 1 or less, got {list(shares)}")
    if by is not None:
        _expect_callable(by, f"{who}: expected by as a function of a Summary")
    groups: dict[Hashable, list[int]] = {}
    for summary in of.description.summaries():
        with _noted(f"{who}: {of.path}, episode {summary.number}"):
            groups.setdefault(summary.number if by is None else by(summary), []).append(summary.number)
    # The bit generator is named, as NumPy may give `default_rng` another one.
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(groups))
    numbers = list(groups.values())
    drawn = [numbers[k] for k in order]
    sizes = np.cumsum([0, *map(len, drawn)])
    wanted = np.round(np.cumsum([0.0, *shares]) * sizes[-1])
    # Groups are not cut: a share ends where the sum of their sizes comes nearest to it.
    ends = np.abs(sizes - wanted[:, None]).argmin(1)
    subsets = [sorted(itertools.chain(*drawn[first:stop])) for first, stop in itertools.pairwise(ends)]
    # Before anything is written, as the directories of other shares would stay.
    for share, subset in zip(shares, subsets, strict=True):
        if not subset:
            raise ValueError(
                f"{who}: {of.path}: a share of {share} of its {sizes[-1]} episodes has none; give a larger one"
            )
    places = [os.path.realpath(as_path(place, who)) for place in to]
    for outer, inner in itertools.permutations(places, 2):
        if os.path.commonpath([outer, inner]) == outer:
            where = "twice" if inner == outer else f"in {outer}"
            raise ValueError(f"{who}: expected a directory for each share, got {inner} {where}; give another path")
    plans = [_planned(_Chosen(of, subset, "split"), of, place, who) for subset, place in zip(subsets, to, strict=True)]
    for plan in plans:
        plan.is_done()  # which refuses what else is there
    return plans


def joined(each: Sequence[Stored], to: Path) -> Plan:
    return _planned(_Joined(each), each[0], to, "Dataset.concat")


def mapped(of: Stored, function: Callable[[Episode], Episode], to: Path, workers: int) -> Plan:
    who = "Dataset.map"
    _expect_callable(function, f"{who}: expected a function of an Episode")
    if whole_number(workers, who, "workers as a number of threads") < 0:
        raise ValueError(f"{who}: expected workers >= 0, got {workers}")
    if is_dataset(as_path(to, who)):
        raise FileExistsError(
            f"{who}: {os.path.abspath(to)} has a dataset in it already, which another function may have made; open it "
            f"with frb.datasets.Dataset, remove it, or give another path"
        )
    return _planned(_Mapped(of, function, workers), of, to, who, resumes=False)


def _expect_callable(function: object, expected: str) -> None:
    if not callable(function):
        raise TypeError(f"{expected}, got {function!r:.80}")


@contextlib.contextmanager
def _noted(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


# Observations are stored as they were, whatever their size: filtering must not change how they are drawn.
def _planned(reader: Reader, of: Stored, to: Path, who: str, resumes: bool = True) -> Plan:
    narrow, compact = of.description.options["narrow"], of.description.spare is not None
    return planned(reader, to, Conversion(narrow, infos=True, compact=compact), who=who, resumes=resumes)


class _Chosen(Stored):
    def __init__(self, of: Stored, chosen: list[int], what: str) -> None:
        super().__init__(of.description, chosen)
        # A digest stands for the numbers, which for a million episodes would take more room than the description.
        digest = hashlib.sha256(repr(chosen).encode()).hexdigest()[:16]
        self.facts = {**self.facts, what: {"of": self.path, "episodes": digest}}


class _Joined:
    """The episodes of several datasets; see `Reader` for the attributes."""

    def __init__(self, of: Sequence[Stored]) -> None:
        self.of = of
        first, *others = of
        for other in others:
            if other.description.item != first.description.item:
                raise DatasetError(
                    f"Dataset.concat: {other.path}: expected items as in {first.path}, {first.description.item}, got "
                    f"{other.description.item}; Dataset.map makes them the same"
                )
        self.name = " + ".join(dict.fromkeys(reader.name for reader in of))
        self.files = [file for reader in of for file in reader.files]
        self.facts = {"concat": [{"of": reader.path, **reader.facts} for reader in of]}
        self.counts = {name: sum(reader.counts[name] for reader in of) for name in ("episodes", "steps")}

    def spec(self, narrow: bool) -> StepSpec:
        return self.of[0].spec(narrow)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        for reader in self.of:
            n = reader.counts["episodes"]
            if first < n:
                yield from reader.episodes(first)
            first = max(first - n, 0)


class _Mapped:
    """Episodes with a function applied to each; see `Reader` for the attributes."""

    def __init__(self, of: Stored, function: Callable[[Episode], Episode], workers: int) -> None:
        self.of, self._function, self._workers = of, function, workers
        self.name, self.files, self.counts = of.name, of.files, of.counts
        name = getattr(function, "__qualname__", type(function).__name__)
        # Functions cannot be compared, so an unfinished conversion is never resumed.
        self.facts = {**of.facts, "map": {"of": of.path, "function": name, "call": uuid.uuid4().hex}}

    def spec(self, narrow: bool) -> StepSpec:
        old, mapped = self.of.spec(narrow), self._apply(0, next(self.of.episodes()))
        where = f"Dataset.map: {self.of.path}, episode 0"
        with _noted(where):
            reward = _specs(old.reward, mapped.rewards)
            if not isinstance(reward, ArraySpec):
                raise DatasetError(f"{where}: expected rewards as one array, got {reward!r:.80}")
            return StepSpec(
                _specs(old.observation, mapped.observations),
                _specs(old.action, mapped.actions),
                reward,
                {name: _specs(old.infos.get(name), values) for name, values in mapped.infos.items()},
                encoded=True,
            )

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        if not self._workers:
            for number, episode in self._numbered(first):
                yield self._apply(number, episode)
            return
        waiting: deque[Future[Episode]] = deque()
        with ThreadPoolExecutor(self._workers) as pool:
            for number, episode in self._numbered(first):
                waiting.append(pool.submit(self._apply, number, episode))
                # No more wait than work, so that memory is bounded, and their order stays.
                if len(waiting) > self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _numbered(self, number: int) -> Iterator[tuple[int, Episode]]:
        for episode in self.of.episodes(number):
            yield number, episode
            number += not episode.goes_on

    def _apply(self, number: int, episode: Episode) -> Episode:
        where = f"Dataset.map: {self.of.path}, episode {number}"
        with _noted(where):
            mapped = self._function(episode)
        if not isinstance(mapped, Episode):
            raise DatasetError(f"{where}: expected an Episode from the function, got {type(mapped).__name__}")
        return mapped


def _specs(old: SpecNest | None, values: Nest) -> SpecNest:
    # The specs of what a function gives: those before, where shape and dtype are the same.
    outline = None if old is None else Outline.of(old, "Dataset.map")
    known = {} if outline is None else dict(zip(outline.structure.paths, outline.leaves, strict=True))
    leaves, structure = nest.flatten(values, is_leaf)
    specs = []
    for path, leaf in zip(structure.paths, map(np.asarray, leaves), strict=True):
        spec, actual = known.get(path), spec_of_values(leaf.shape[1:], leaf.dtype, narrow=False)
        same = spec is not None and (spec.shape, spec.dtype) == (actual.shape, actual.dtype)
        specs.append(spec if same else actual)
    return nest.unflatten(structure, specs)
