"""A converted dataset, and the conversion that makes one: what users see of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence

from functional_rb.base.strict_json import Json
from functional_rb.datasets import derived
from functional_rb.datasets.convert import Conversion, Plan, carry_out, planned
from functional_rb.datasets.description import Description, Path, Source, Summary, directory_of, read_description
from functional_rb.datasets.episode import DatasetError, Episode
from functional_rb.datasets.exporting.export import export
from functional_rb.datasets.journal import JOURNAL, problem_of_line, read_lines
from functional_rb.datasets.reader import Reader
from functional_rb.datasets.statistics import statistics_of
from functional_rb.datasets.stored import Stored


def convert(
    reader: Reader, path: Path, conversion: Conversion | None = None, *, facts: Mapping[str, object] | None = None
) -> Dataset:
    """Write the episodes of a reader as a buffer in mapped files, which `datasets.load` opens at once.

    Memory is bounded by a piece of an episode. After a process was killed, the next call resumes at the end of an
    episode, and the files become the same bytes. What is at `path` is complete, or not there.

    Args:
        reader: the reader of the dataset.
        path: the directory that is made. If this dataset is there already, by its name and by how it is made, nothing
            is done.
        conversion: which parts of the steps are stored, and in which form; by default as `Conversion()` says.
        facts: what is known of where it comes from, in values of JSON, beside what the files say. For NaN and
            infinities, which JSON has not, null is written.

    Returns:
        What was made.

    Raises:
        ValueError: for what is not as the format says, naming file, episode and field.
        StorageFullError: if there is no room, naming the place; the next call resumes the conversion.
        ImportError: if xxhash is missing.
        FileExistsError: if something else is at `path`, another dataset, say.
        TypeError: for what is no reader, or gives what is no `Episode`.
    """
    return _made(planned(reader, path, conversion, facts))


class Dataset(Description):
    """A converted dataset: what it holds, and what is made of it. It stands for its directory wherever a path does.

    Attributes:
        name: the name of the dataset, with its prefix.
        item: the item of its buffer.
        steps, episodes: how many.
        spare: frames beyond the steps; None if observations are not stored as frames.
        frames: how many observations are stored.
        dropped: steps that were left out, as the observation after them is not known.
        options: the options of the conversion.
        facts: what is known of where it comes from: its licence, addresses, size.
        path: the directory, absolute.
    """

    def __init__(self, source: Source, verify: bool = False) -> None:
        """Open a dataset; of its steps nothing is read.

        Args:
            source: its directory, or a state that `load` gave.
            verify: whether to read all of its files, and compare them with the checksums that were taken as they were
                written.

        Raises:
            ValueError: if none is there; if a file that is verified is not what was written, naming it.
            ImportError: for files to be verified, if xxhash is missing.
        """
        super().__init__(**vars(read_description(directory_of(source, "datasets.Dataset"))))
        if verify:
            _verify(self)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        # Not the item and the facts, which are attributes, and may be pages long.
        return f"Dataset({self.name!r:.80}, {self.steps} steps in {self.episodes} episodes, at {self.path!r})"

    def map(self, function: Callable[[Episode], Episode], to: Path, workers: int = 0) -> Dataset:
        """A dataset with a function applied to each episode: done once, and not at every draw.

        What is observed is changed at one place, for a step and for the step before it. The function gets a piece of an
        episode that is too large for memory at a time (`Episode.goes_on`), with arrays as they are stored. A leaf keeps
        its spec, bounds too, where it keeps shape and dtype.

        Args:
            function: gives an `Episode` with as many steps: `dataclasses.replace(episode, observations=...)`.
            to: the directory that is made. A process that was killed begins anew; one that fails leaves nothing.
            workers: so many threads call the function; 0 for the one that calls this.

        Raises:
            ValueError: if what the function gives does not fit together; for fewer than 0 workers. What the function
                raises comes with a note of the episode.
            TypeError: for what is no function.
            FileExistsError: if something is at `to`, as it may have been made by another function.
        """
        return _made(derived.mapped(Stored(self), function, to, workers))

    def filter(self, keep: Callable[[Summary], bool], to: Path) -> Dataset:
        """Some of the episodes, as a dataset of its own.

        Args:
            keep: whether an episode stays, by its `Summary`: number, steps, total (its return), terminated, about.
            to: the directory that is made.

        Raises:
            ValueError: if no episode stays.
            TypeError: for what is no function.
            FileExistsError: if something else is at `to`.
        """
        return _made(derived.filtered(Stored(self), keep, to))

    def split(
        self,
        shares: Sequence[float],
        to: Sequence[Path],
        seed: int = 0,
        by: Callable[[Summary], Hashable] | None = None,
    ) -> list[Dataset]:
        """Several datasets, each with a share of the episodes, drawn without replacement; their order stays.

        Args:
            shares: the shares of the episodes, which sum to 1 or less.
            to: a directory for each.
            seed: the seed of the drawing.
            by: a key of each episode, by its `Summary`: those with the same one stay together, so that no task, say, is
                in two parts: `by=lambda episode: episode.about["task"]`. Shares are met as well as that allows.

        Raises:
            FileExistsError: if something else is in one of the directories.
            TypeError: for shares that are no numbers, and what is no list.
            ValueError: for shares that are too large, not as many as directories, or without any episode.
        """
        return [_made(plan) for plan in derived.parts(Stored(self), shares, to, seed, by)]

    def concat(self, *others: Source, to: Path) -> Dataset:
        """The episodes of this dataset, and behind them those of others with the same items.

        Args:
            others: their directories, or states that `load` gave.
            to: the directory that is made.

        Raises:
            FileExistsError: if something else is at `to`.
            ValueError: if one has other items, or no dataset is there.
        """
        each = (self, *(Dataset(other) for other in others))
        return _made(derived.joined([Stored(dataset) for dataset in each], to))

    def statistics(self) -> Json:
        """Mean, deviation, minimum and maximum of all numbers, and how long and how good the episodes are.

        The steps are read once, piece by piece.

        Returns:
            - steps, episodes: how many.
            - returns, lengths: of the episodes: mean, std, min, max, floats. Returns are sums of rewards.
            - terminated: the share of episodes that led to a terminal state.
            - leaves: for each leaf of numbers, by its name in an episode ("observations/...", "actions", "rewards"):
              mean, std, min, max, arrays float64 [*shape]: over steps, and of observations over all T + 1 of an
              episode. So `frb.items.normalize(mean, std, keys)`.
        """
        return statistics_of(Stored(self))

    def export(self, to: Path, format: str = "minari", *, facts: Mapping[str, object] | None = None) -> str:
        """Write the dataset in a format of others, so that they can read it.

        It is read and written piece by piece. The folder is complete, or not there. A process that was killed
        begins anew.

        Args:
            to: the folder that is made. For Minari its name is the identity of the dataset, with a version: "doors-v0";
                below the folder where Minari looks, `minari.load_dataset` finds it.
            format: "minari" (HDF5); "lerobot", of version 3.0; "lerobot-2.1".
            facts: metadata of the dataset, beside those that are known of where it comes from. Minari: dataset_id,
                author, description, ..., whatever its metadata may have. LeRobot: fps, steps a second, which has to be
                known; robot_type; task, in words, of episodes of which the reader has told none.

        Returns:
            The name that reads it again, "minari:/data/doors-v0".

        Raises:
            FileExistsError: if something is at `to`.
            ImportError: for a library that is missing, naming the extra to install.
            StorageFullError: if there is no room.
            TypeError: for a spec that no space describes exactly (Minari), naming the leaf.
            ValueError: for what the format has no place for, naming the leaf; for an unknown format, or facts that are
                missing or wrong.
        """
        return export(Stored(self), to, format, dict(facts or {}))


def _made(plan: Plan) -> Dataset:
    carry_out(plan)
    return Dataset(plan.target)


def _verify(described: Description) -> None:
    path = os.path.join(described.path, JOURNAL)
    # The first line says what was converted, the others what was written.
    begin, *lines = read_lines(path) or [{}]
    # The journal tells the checksums: of another dataset, or cut, it would pass what is wrong.
    if (begin.get("name"), lines[-1].get("steps") if lines else None) != (described.name, described.steps):
        raise DatasetError(f"{path}: the file is damaged, or of another dataset")
    for line in lines:
        problem = problem_of_line(described.path, line)
        if problem is not None:
            raise DatasetError(f"{problem}; convert the dataset again")
