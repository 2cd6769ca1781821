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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from functional_rb.base.checksum import digest
from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.base.files import as_path
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint import saving
from functional_rb.checkpoint.agreement import Group, agreed
from functional_rb.checkpoint.listing import there
from functional_rb.checkpoint.manifest import Manifest, Shards
from functional_rb.checkpoint.opened import read_manifest
from functional_rb.checkpoint.places import SHARDS, manifests_of, place_of
from functional_rb.checkpoint.saving import Request, Saved
from functional_rb.convert import to_json
from functional_rb.storage import disk


@dataclasses.dataclass(frozen=True)
class Dealt:
    """What a process has of a buffer that is dealt to shards.

    Attributes:
        spec: of the whole buffer.
        index: the buffer that all processes have.
        parts: the buffers of the process's own shards, by number.
        group: the processes.
    """

    spec: BufferSpec
    index: State
    parts: Mapping[int, State]
    group: Group


# --- writing --------------------------------------------------------------------------------------------------------


class OfShards:
    """A moment of a buffer that is dealt to shards: of the index, and of this process's parts."""

    def __init__(
        self, dealt: Dealt, path: object, incremental: bool, keep: int, progress: bool | None, who: str
    ) -> None:
        self._dealt, self._who = dealt, who

        def check() -> list[Any]:
            directory = os.path.abspath(as_path(path, who))
            self.directory = directory
            self._asked = saving.request(dealt.index, directory, incremental, keep, progress, who)
            self._spec = to_json(dealt.spec)
            return [self._spec, dealt.group.shards, incremental, keep, self._moment()]

        told = agreed(dealt.group, who, check)
        differing = [number for number, one in enumerate(told) if one != told[0]]
        if differing:
            raise ValueError(
                f"{who}: expected the same buffer, at the same moment, and the same arguments in all processes, and "
                f"processes {differing} have others than process 0; let all call the same functions in the same order"
            )

    def _moment(self) -> str:
        with contextlib.closing(self._dealt.index.reader()) as reader:
            return digest(reader.read("counters", 0, reader.shapes["counters"][0][0]).tobytes()).hex()

    def write(self, keep: int | None = None) -> Saved:
        """Write it, in all processes; one of them holds the directory meanwhile."""
        asked = self._asked if keep is None else dataclasses.replace(self._asked, keep=keep)
        if self._dealt.group.number:
            return self._write(asked)
        begun = False

        def work() -> Saved:
            nonlocal begun
            begun = True
            return self._write(asked)

        try:
            return saving.while_held(self.directory, work)
        except BaseException as error:
            if not begun:  # the others wait for an answer
                agreed(self._dealt.group, self._who, partial(_fail, error))
            raise

    def _write(self, asked: Request) -> Saved:
        group = self._dealt.group
        agreed(group, self._who, lambda: None)  # the directory is held
        parts = agreed(group, self._who, lambda: [self._write_part(k, asked) for k in group.own])
        of_all = sorted(part for of_process in parts for part in of_process)
        done = agreed(group, self._who, lambda: None if group.number else self._write_index(asked, of_all))
        return Saved(**done[0])

    def _write_part(self, k: int, asked: Request) -> list[Any]:
        """One of the process's own: what the others have to know of it."""
        part, place = self._dealt.parts[k], place_of(self.directory, k)
        given = saving.request(part, place, asked.incremental, asked.keep, asked.progress, self._who)
        # What the whole's older checkpoints name of this part has to stay for as long as they do.
        named = [one.parts[k][0] for one in _kept(self.directory, asked.keep) if k < len(one.parts)]
        needed = [number for number in there(place) if number >= min(named)] if named else []
        saved = saving.write(part.reader(), dataclasses.replace(given, keep=len(needed) + 1))
        content = read_manifest(place, saved.generation).content
        return [k, saved.generation, content, saved.nbytes, saved.written, saved.full]

    def _write_index(self, asked: Request, parts: list[list[Any]]) -> dict[str, Any]:
        """The index, and by its manifest the whole."""
        for k, number, *_ in parts:
            path = os.path.join(place_of(self.directory, k), manifests.name_of(number))
            if not os.path.exists(path):
                raise CheckpointError(
                    f"{path}: expected the part that another process has just written, and it is not here; give a "
                    f"directory that all processes share"
                )
        named = Shards(self._spec, tuple((number, content) for _, number, content, *_ in parts))
        last = saving.write_where_held(self._dealt.index.reader(), dataclasses.replace(asked, shards=named))
        _tidy(self.directory, asked.keep)
        nbytes, written = (sum(part[field] for part in parts) for field in (3, 4))
        whole = dataclasses.replace(
            last,
            nbytes=last.nbytes + nbytes,
            written=last.written + written,
            full=last.full and all(part[5] for part in parts),
        )
        return dataclasses.asdict(whole)

    def close(self) -> None:
        """Let it go, written or not."""


def _fail(error: BaseException) -> None:
    raise error


def _kept(directory: str, keep: int) -> list[Shards]:
    """What the newest checkpoints there name."""
    found = []
    for number in there(directory)[:keep]:
        with contextlib.suppress(CorruptCheckpointError, FileNotFoundError):
            found.append(read_manifest(directory, number).shards)
    return [one for one in found if one is not None]


def _tidy(directory: str, keep: int) -> None:
    """Remove the parts of shards that none of the newest checkpoints has any more."""
    most = max((len(one.parts) for one in _kept(directory, keep)), default=0)
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.join(directory, SHARDS)):
            if name.isdecimal() and int(name) >= most:
                place = place_of(directory, int(name))
                saving.remove_all(place)
                disk.unlink(os.path.join(place, saving.LOCK))
                os.rmdir(place)


# --- reading --------------------------------------------------------------------------------------------------------


class Dealer(Protocol):
    """What knows how buffers are dealt, which checkpoints do not: `functional_rb.scale.regroup`."""

    def deal(self, spec: BufferSpec, shards: int) -> Any:
        """How a buffer is dealt, `index` and `part` by their specs among it."""

    def split(self, spec: BufferSpec, whole: Any) -> tuple[Any, Any]:
        """The index, and the part with all items, of arrays of NumPy."""

    def join(self, spec: BufferSpec, index: object, part: object) -> Any:
        """The inverse."""

    def sources(self, old: object, new: object, shard: int) -> Iterable[int]:
        """The shards in which a shard's lanes, or slots, lay."""

    def regrouped(self, old: object, index: object, parts: Mapping[int, object], new: object, shard: int) -> Any:
        """The part of a shard."""

    def misfit(self, dealing: object, index: object, part: object, shard: int) -> str | None:
        """Why a part does not belong to an index; or None."""


class Part(NamedTuple):
    """A part that was read, or made of those that were.

    Attributes:
        arrays: of NumPy.
        stamp: of the checkpoint whose whole content it is; None if it is of none.
    """

    arrays: Any
    stamp: str | None


def parts_of(
    directory: str,
    manifest: Manifest,
    dealing: Any,
    index: Any,
    numbers: Iterable[int],
    dealer: Dealer,
    read: Callable[[str, Manifest], Any],
) -> dict[int, Any]:
    """What `read` gives of the parts of some shards, each of which belongs to the index."""
    found = {}
    for k, (place, of_part) in manifests_of(directory, manifest, numbers).items():
        content = read(place, of_part)
        path = os.path.join(place, manifests.name_of(of_part.generation))
        if content.spec != dealing.part:
            raise CorruptCheckpointError(path, f"expected a part of {dealing.part!r:.200}, found {content.spec!r:.200}")
        if problem := dealer.misfit(dealing, index, content.arrays, k):
            raise CorruptCheckpointError(path, problem)
        found[k] = content
    return found


def regrouped(
    dealer: Dealer, old: Any, new: Any, own: Iterable[int], index: Any, contents: Mapping[int, Any]
) -> dict[int, Part]:
    """The parts of a process's own shards, of those that were read."""
    arrays = {k: content.arrays for k, content in contents.items()}
    alike = old.shards == new.shards
    return {
        k: Part(dealer.regrouped(old, index, arrays, new, k), contents[k].stamp if alike and k in contents else None)
        for k in own
    }


def of_whole(
    dealer: Dealer, spec: BufferSpec, whole: object, shards: int, own: Iterable[int]
) -> tuple[Any, dict[int, Part]]:
    """The index, and the parts of a process's own shards, of a buffer that is not dealt."""
    index, part = dealer.split(spec, whole)
    old, new = dealer.deal(spec, 1), dealer.deal(spec, shards)
    return index, {k: Part(dealer.regrouped(old, index, {0: part}, new, k), None) for k in own}
