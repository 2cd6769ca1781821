"""Checkpoints of buffers that are dealt to shards: each process writes the parts that it has, and one the manifest.

    path/0000000007.json ...    the index, which all shards have the same of, and which checkpoints the parts are
    path/shards/0/ ...          the checkpoints of the first shard's part

The manifest is written last, once all parts last, so that what loads is all of a buffer as it was at one save. What a
checkpoint names is kept for as long as it is. Of a part it names the number and the checksum of its content, so that
the part of another buffer, or of another moment, is not taken for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from functional_rb.base.checksum import digest
from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.base.files import as_path
from functional_rb.base.strict_json import Json
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint import saving
from functional_rb.checkpoint.agreement import Group, agreed
from functional_rb.checkpoint.listing import there
from functional_rb.checkpoint.manifest import Checkpoint, Shards
from functional_rb.checkpoint.opened import read_manifest
from functional_rb.checkpoint.places import SHARDS, place_of
from functional_rb.checkpoint.saving import Request, SaveOptions
from functional_rb.convert import to_json
from functional_rb.core.draft import Arrays
from functional_rb.storage import disk


@dataclasses.dataclass(frozen=True)
class Dealt:
    """What a process has of a buffer that is dealt to shards."""

    spec: BufferSpec  # of the whole buffer
    index: State  # the buffer that all processes have
    parts: Mapping[int, State]  # the buffers of the process's own shards, by number
    group: Group  # the processes


# --- writing --------------------------------------------------------------------------------------------------------


class SavedPart(NamedTuple):
    """What other processes have to know of a part that was written; see `Checkpoint` and `Manifest`."""

    shard: int
    generation: int
    content: str
    nbytes: int
    written: int
    full: bool


class OfShards:
    """A moment of a buffer that is dealt to shards: of the index, and of this process's parts."""

    def __init__(self, dealt: Dealt, path: object, how: SaveOptions) -> None:
        self._dealt, self._how = dealt, how

        def check() -> list[object]:
            self.directory = os.path.abspath(as_path(path, how.who))
            self._asked = saving.request(dealt.index, self.directory, how)
            self._spec = to_json(dealt.spec)
            with contextlib.closing(dealt.index.reader()) as reader:
                counters = reader.read("counters", 0, reader.shapes["counters"][0][0])
            return [self._spec, dealt.group.shards, how.incremental, how.keep, digest(counters.tobytes()).hex()]

        answers = agreed(dealt.group, how.who, check)
        differing = [number for number, answer in enumerate(answers) if answer != answers[0]]
        if differing:
            raise ValueError(
                f"{how.who}: expected the same buffer, at the same moment, and the same arguments in all processes, "
                f"and processes {differing} have others than process 0; let all call the same functions in the same "
                f"order"
            )

    def write(self, keep: int | None = None) -> Checkpoint:
        """Write it, in all processes; one of them holds the directory meanwhile."""
        asked = self._asked.keeping(keep)
        if self._dealt.group.number:
            return self._write(asked)
        begun = False

        def work() -> Checkpoint:
            nonlocal begun
            begun = True
            return self._write(asked)

        try:
            return saving.while_held(self.directory, work)
        except BaseException as error:
            if not begun:  # the others wait for an answer
                agreed(self._dealt.group, self._how.who, partial(_fail, error))
            raise

    def _write(self, asked: Request) -> Checkpoint:
        group, who = self._dealt.group, self._how.who
        agreed(group, who, lambda: None)  # the directory is held
        parts = agreed(group, who, lambda: [self._write_part(k, asked) for k in group.own])
        of_all = sorted(SavedPart(*fields) for of_process in parts for fields in of_process)
        answers = agreed(group, who, lambda: {} if group.number else self._write_index(asked, of_all))
        return Checkpoint(**answers[0])

    def _write_part(self, k: int, asked: Request) -> SavedPart:
        state, place = self._dealt.parts[k], place_of(self.directory, k)
        # What the whole's older checkpoints name of this part has to stay for as long as they do.
        kept, needed = _kept(self.directory, asked.how.keep), there(place)
        if kept is not None:
            named = [one.parts[k][0] for one in kept if k < len(one.parts)]
            needed = [number for number in needed if named and number >= min(named)]
        of_part = saving.request(state, place, asked.how).keeping(len(needed) + 1)
        saved = saving.write(state.reader(), of_part)
        content = read_manifest(place, saved.generation).content
        return SavedPart(k, saved.generation, content, saved.nbytes, saved.written, saved.full)

    def _write_index(self, asked: Request, parts: list[SavedPart]) -> Json:
        for saved in parts:
            path = os.path.join(place_of(self.directory, saved.shard), manifests.name_of(saved.generation))
            if not os.path.exists(path):
                raise CheckpointError(
                    f"{path}: expected the part that another process has just written, and it is not here; give a "
                    f"directory that all processes share"
                )
        named = Shards(self._spec, tuple((saved.generation, saved.content) for saved in parts))
        last = saving.write(self._dealt.index.reader(), dataclasses.replace(asked, shards=named), held=True)
        _tidy(self.directory, asked.how.keep)
        whole = dataclasses.replace(
            last,
            nbytes=last.nbytes + sum(saved.nbytes for saved in parts),
            written=last.written + sum(saved.written for saved in parts),
            full=last.full and all(saved.full for saved in parts),
        )
        return dataclasses.asdict(whole)

    def close(self) -> None:
        """Nothing is held: a dealt buffer is not saved in the background."""


def _fail(error: BaseException) -> None:
    raise error


# What the newest checkpoints name; None if one cannot be read, which may name anything: then nothing is removed.
def _kept(directory: str, keep: int) -> list[Shards] | None:
    try:
        shards = [read_manifest(directory, number).shards for number in there(directory)[:keep]]
    except (CorruptCheckpointError, FileNotFoundError):
        return None
    return [one for one in shards if one is not None]


def _tidy(directory: str, keep: int) -> None:
    # A buffer that is dealt to fewer shards than before leaves directories that no checkpoint names.
    kept = _kept(directory, keep)
    if kept is None:
        return
    most = max((len(one.parts) for one in kept), default=0)
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.join(directory, SHARDS)):
            if name.isdecimal() and int(name) >= most:
                place = place_of(directory, int(name))
                saving.remove_all(place)
                disk.unlink(os.path.join(place, saving.LOCK))
                os.rmdir(place)


# --- reading --------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part that was read, or made of those that were."""

    arrays: Arrays  # of NumPy
    stamp: str | None  # of the checkpoint whose whole content it is; None if it is of none
