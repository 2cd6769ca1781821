"""The converter: the episodes of any reader become the files of an immutable buffer, piece by piece.

It writes to a directory beside the one that is wanted, `<path>.part`, which gets its name once all is there. No more is
in memory than a piece of an episode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from functional_rb.base.files import as_path, explained_read_only
from functional_rb.base.progress import Progress
from functional_rb.base.strict_json import Json, finite
from functional_rb.convert.json import to_json
from functional_rb.datasets.description import (
    ABOUT,
    EPISODE,
    EPISODES,
    PART,
    Description,
    Path,
    is_dataset,
    read_description,
    spec_of,
    write_description,
)
from functional_rb.datasets.episode import DatasetError, Episode
from functional_rb.datasets.journal import JOURNAL, Appended, Journal, Line
from functional_rb.datasets.pieces import bytes_of
from functional_rb.datasets.reader import Reader
from functional_rb.datasets.rows import Form, infos_named
from functional_rb.datasets.stage import Stage, bytes_of_rows
from functional_rb.storage import disk
from functional_rb.storage.directory import file_name, shapes
from functional_rb.structures.ring import INT32_MAX

WHO = "datasets.convert"
# Facts that tell how a dataset was made of others.
WAYS = ("concat", "filter", "map", "split")
# Bytes of observations that are stored once: of 68, of a million steps, a batch took three times as long to draw so.
LARGE = 1024
# Bytes after which the journal gets a line, at the end of an episode.
CHUNK = 2**26
MAKE_ROOM = "make room there (df; quota; ulimit -f) and call again, or give another root or path"


@dataclasses.dataclass(frozen=True)
class Conversion:
    """How the steps of a dataset become the items of a buffer: for `convert` and `load`.

    Attributes:
        narrow: whether 64-bit numbers are stored in 32 bits, as learners compute: floats are rounded, integers must
            fit.
        infos: the names of the infos that are stored too, at "info" in the items; True for all.
        observation_key: the name of the observation in the items, also if it is a dict.
        compact: whether observations are stored once, though a step has two; see `Compact`. None for: if they are
            large, of a kilobyte or more. Where they are small, drawing them takes longer than reading them twice.
        progress: whether to show a bar once it takes more than a second; None for: on a terminal.

    Example:
        >>> Conversion(infos=["success"]).narrow
        True
    """

    narrow: bool = True
    infos: bool | Sequence[str] = ()
    observation_key: str | None = None
    compact: bool | None = None
    progress: bool | None = None

    def choices(self) -> Json:
        """All that makes the files differ, in values of JSON."""
        return {
            "narrow": self.narrow,
            "infos": infos_named(self.infos, WHO),
            "observation_key": self.observation_key,
            "compact": self.compact,
        }


def conversion_of(conversion: Conversion | None, who: str) -> Conversion:
    if conversion is not None and not isinstance(conversion, Conversion):
        raise TypeError(f"{who}: expected conversion as frb.datasets.Conversion(...), got {conversion!r:.80}")
    return conversion or Conversion()


class Plan(NamedTuple):
    """What a conversion makes of a reader, and where."""

    who: str  # the public function that was called
    reader: Reader
    target: str
    form: Form
    options: Json
    reader_facts: Json
    facts: Json  # all of them
    how: Conversion
    resumes: bool  # whether an unfinished conversion goes on where it was, rather than anew

    def is_done(self) -> bool:
        """Whether the dataset is at the target already: who asks for the same again gets it; for all else an error."""
        if is_dataset(self.target):
            _expect_same(read_description(self.target), self)
            return True
        if os.path.lexists(self.target):
            raise FileExistsError(f"{self.who}: {self.target} is there already, and no dataset; give another path")
        return False


def planned(
    reader: Reader,
    path: Path,
    conversion: Conversion | None = None,
    facts: Mapping[str, object] | None = None,
    who: str = WHO,
    resumes: bool = True,
) -> Plan:
    """The plan of a conversion, whose arguments are those of `datasets.convert`; nothing is written."""
    target = os.path.abspath(as_path(path, who))
    if not hasattr(reader, "spec") or not hasattr(reader, "episodes"):
        raise TypeError(f"{who}: expected a reader, got {reader!r:.80}; load takes the name of a dataset")
    how = conversion_of(conversion, who)
    steps = reader.spec(how.narrow)
    compact = bytes_of(steps.observation) >= LARGE if how.compact is None else how.compact
    options = how.choices()
    # The options name what was chosen, not "all" or "the default", so that conversions can be compared.
    infos = sorted(steps.infos) if options["infos"] is True else options["infos"] or []
    form = Form(steps, tuple(infos), how.observation_key, compact)
    try:
        reader_facts = cast("Json", finite(dict(reader.facts)))
        all_facts = reader_facts | cast("Json", finite(dict(facts or {})))
        json.dumps(all_facts)
    except (TypeError, ValueError) as error:  # before hours of conversion, at the end of which they are written
        raise DatasetError(f"{who}: {reader.name}: facts: expected values of JSON: {error}") from None
    options |= {"infos": list(form.infos), "compact": compact}
    return Plan(who, reader, target, form, options, reader_facts, all_facts, how, resumes)


def carry_out(plan: Plan, remedy: str = "give a path in a folder that can be written to") -> None:
    """Write the dataset that is planned, unless it is there.

    Args:
        plan: what is made.
        remedy: what to do where nothing can be written.
    """
    # What is there already is also found in a folder that is read-only, where no lock can be made.
    if plan.is_done():
        return
    with explained_read_only(plan.who, remedy, plan.target):
        disk.make_directory(os.path.dirname(plan.target))
        disk.while_locked(f"{plan.target}.lock", functools.partial(_make, plan))


# Called while no other process makes the same.
def _make(plan: Plan) -> None:
    who, reader, target, form, options, reader_facts, all_facts, how, resumes = plan
    # Another process may have made it while this one waited for the lock.
    if plan.is_done():
        return
    unfinished = f"{target}{PART}"
    disk.make_directory(unfinished)
    # What lies there is removed if it is not of this dataset, and a link may lead anywhere.
    is_folder = os.path.isdir(unfinished) and not os.path.islink(unfinished)
    if not is_folder or ((names := os.listdir(unfinished)) and JOURNAL not in names):
        raise FileExistsError(
            f"{who}: {unfinished} is there already, and no unfinished conversion; move it, or give another path"
        )
    # Names, sizes and times tell the files of a dataset from others: hashing terabytes would take hours.
    stats = [(os.path.abspath(name), os.stat(name)) for name in reader.files]
    source = [[name, status.st_size, status.st_mtime_ns] for name, status in stats]
    known = {"source": source, "facts": reader_facts}
    begin = {"name": reader.name, "options": options, "files": {}, **known, "item": json.loads(to_json(form.item))}
    # What the metadata tell is good enough for a bar; nothing else relies on it.
    total = reader.counts.get("steps", 0) * form.spec.item_bytes
    kept = "what was converted so far stays" if resumes else f"{who} begins anew, and has removed what it had written"
    try:
        with contextlib.closing(_Writing(unfinished, form, begin, f"{kept}: {MAKE_ROOM}")) as writing:
            with Progress(total, "convert", how.progress) as shown:
                writing.write_all(reader, shown)
            writing.finish(reader.name, options, all_facts)
    except BaseException:
        if not resumes:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    # The name comes last, once all lasts, so that a folder of that name is a whole dataset.
    disk.rename(unfinished, target)
    disk.fsync_directory(os.path.dirname(target))


def _expect_same(there: Description, plan: Plan) -> None:
    reader, target, options = plan.reader, plan.target, plan.options
    wanted, got = (
        {"name": name, **choices, **{way: facts[way] for way in WAYS if way in facts}}
        for name, choices, facts in ((reader.name, options, reader.facts), (there.name, there.options, there.facts))
    )
    for what in sorted(wanted.keys() | got.keys()):
        if wanted.get(what) != got.get(what):
            raise FileExistsError(
                f"{plan.who}: {target} has another dataset in it: expected as {what} {wanted.get(what)!r:.80}, got "
                f"{got.get(what)!r:.80}; remove it, or give another path"
            )


@dataclasses.dataclass
class _Position:
    """How far a conversion has got: what a line of the journal keeps."""

    read: int = 0  # episodes that the reader has given, all of them
    # Episodes, steps and frames that are written.
    episodes: int = 0
    steps: int = 0
    frames: int = 0
    dropped: int = 0  # steps that were left out


class _Writing:
    def __init__(self, directory: str, form: Form, begin: Line, remedy: str) -> None:
        self.directory, self.form = directory, form
        self.journal = Journal(directory, begin, remedy)
        last = self.journal.lines[-1]  # the first line, with which it begins, has no numbers
        self.at = _Position(**{field.name: last.get(field.name, 0) for field in dataclasses.fields(_Position)})
        self.stage = Stage(form)
        names = [*map(file_name, bytes_of_rows(form)), EPISODES, ABOUT]
        sizes = {name: last["files"][name][1] if name in last["files"] else 0 for name in names}
        self.files = {name: Appended(os.path.join(directory, name), size, remedy) for name, size in sizes.items()}
        # The episode that is being written: the slot of its first step, the sum of its rewards, and so on.
        self.open: Json | None = None

    def write_all(self, reader: Reader, progress: Progress) -> None:
        begun = noted = self.nbytes
        for episode in reader.episodes(self.at.read):
            value: object = episode  # readers give anything
            if not isinstance(value, Episode):
                raise TypeError(
                    f"{WHO}: {reader.name}, episode {self.at.read}: expected a reader that gives "
                    f"frb.datasets.Episode(...), got {value!r:.80}"
                )
            self.write(episode, f"{reader.name}{episode.file and f' ({episode.file})'}, episode {self.at.read}")
            nbytes = self.nbytes
            progress.advance(nbytes - begun)
            begun = nbytes
            # A conversion is resumed at the end of an episode, as readers begin with whole ones.
            if nbytes - noted >= CHUNK and self.open is None:
                self.note()
                noted = nbytes
        if self.open is not None:
            raise DatasetError(f"{reader.name}, episode {self.at.read}: the last piece says that it goes on")
        if self.nbytes > noted:
            self.note()

    @property
    def nbytes(self) -> int:
        return self.stage.nbytes + sum(file.size for file in self.files.values())

    def write(self, episode: Episode, where: str) -> None:
        at, steps = self.at, self.form.taken(episode, self.open is not None, where)
        if steps is None:
            at.dropped += 1
        else:
            if self.open is None:
                self.open = {"first": at.steps, "total": 0.0, "terminated": False, "about": episode.about}
            if at.steps + steps.length > INT32_MAX:
                raise DatasetError(f"{WHO}: expected at most {INT32_MAX} steps; write several datasets, and mix them")
            if not self.stage.has_room(steps):
                self.flush()
            at.frames += self.stage.put(steps, at.steps - self.open["first"], at.frames)
            at.steps += steps.length
            at.dropped += steps.dropped
            self.open["total"] += steps.total
            self.open["terminated"] = steps.terminated  # that of the last piece remains
        if not episode.goes_on:
            at.read += 1
            if self.open is not None:
                # Only now are the length, the return and the end of the episode known.
                row = self.open["first"], at.steps - self.open["first"], self.open["total"], self.open["terminated"]
                try:
                    about = json.dumps(finite(dict(self.open["about"]))).encode()
                except (TypeError, ValueError) as error:  # numbers of NumPy, say
                    raise DatasetError(f"{where}, about: expected a dict of JSON's values: {error}") from None
                self.files[EPISODES].append(np.array([row], EPISODE).tobytes())
                self.files[ABOUT].append(about + b"\n")
                at.episodes += 1
                self.open = None

    def flush(self) -> None:
        for name, rows in self.stage.empty():
            self.files[file_name(name)].write(rows)

    def note(self) -> None:
        self.flush()
        parts = {name: file.since() for name, file in self.files.items()}
        self.journal.write({"files": parts, **dataclasses.asdict(self.at)})

    def finish(self, name: str, options: Json, facts: Json) -> None:
        """Make the files what a buffer with as many slots as steps has, and describe them."""
        at = self.at
        if not at.steps:
            raise DatasetError(f"{name}: there are no steps in it")
        # Each episode has one frame more than steps; of rings of frames `Compact` wants two at least.
        spare = max(at.frames - at.steps, 2) if self.form.compact else None
        description = Description(
            name, self.form.item, at.steps, at.episodes, spare, at.frames, at.dropped, options, facts, self.directory
        )
        # Mapped files have a fixed size each: that of a buffer with so many slots and frames.
        for array, (shape, dtype) in shapes(spec_of(description)).items():
            nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            self.files[file_name(array)].lengthen(nbytes)
        # The description comes last: where it is, all that it speaks of has to last.
        for file in (*self.files.values(), self.journal.file):
            file.sync()
        write_description(description, self.directory)
        disk.fsync_directory(self.directory)

    def close(self) -> None:
        for file in (*self.files.values(), self.journal.file):
            file.close()
