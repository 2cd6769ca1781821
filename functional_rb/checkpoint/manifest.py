"""Manifests: JSON files, each of which names the files of one checkpoint. What comes from a file is believed in part.

A file is `{"checksum":"<xxh3-128 of what follows>","manifest":{...}}`. Its numbers are checked against each other, so
that a manifest from anywhere can name no file outside of its directory and no block that an array does not have.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from functional_rb.base import strict_json
from functional_rb.base.checksum import DIGEST, digest
from functional_rb.base.strict_json import Json
from functional_rb.checkpoint.blocks import Run, Stored, Table, as_array
from functional_rb.checkpoint.segment import NAMES
from functional_rb.structures import frame_ring
from functional_rb.structures.stored_arrays import ROWS, WIDE, auxiliary_name

FORMAT = 1
GENERATION = re.compile(r"([0-9]{10})\.json", re.ASCII)
SEGMENT = re.compile(r"([0-9]{10})\.safetensors", re.ASCII)
IN_PLACE = re.compile(rf"{ROWS}|{WIDE}[0-9]+|{auxiliary_name(frame_ring.ROWS)}(_[0-9]+)?", re.ASCII)
# Bytes of a manifest: what a stranger's file can make us parse is bounded.
LARGEST = 1 << 28
# Of a checkpoint, all of which are open at once; what is written has far fewer.
MOST_SEGMENTS = 256
# The largest number of ten digits, as names have them.
LAST_GENERATION = 9_999_999_999
_SEGMENTS = b'"segments":['
_HEAD, _MIDDLE, _TAIL = b'{"checksum":"', b'","manifest":', b"}\n"
_FRAME = len(_HEAD) + 2 * DIGEST + len(_MIDDLE)


class Unreadable(Exception):
    """The content of a file is no valid manifest; the message says why."""


class OtherFormat(Exception):
    """The file is whole, but of a format that this version of the library does not know."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: what a save has written, or what is there to load.

    Attributes:
        path: the manifest.
        generation: its number; each save has the next one.
        items: how many items it holds.
        time: when it was written, seconds since 1970.
        nbytes: bytes of its files, some of which it may share with other checkpoints; those that the rows of a `Memmap`
            buffer lie in are not counted.
        written: bytes that were written for it.
        full: whether it needs no file of an earlier save.
        problem: what is wrong with a damaged one, None if files and sizes are as they should be; the content is read,
            and verified, by `load` alone.
    """

    path: str
    generation: int
    items: int
    time: float
    nbytes: int
    written: int
    full: bool
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of an array that lie in a segment."""

    runs: list[Run]  # which, in order
    checksum: str  # of their checksums

    @property
    def count(self) -> int:
        return int(np.diff(as_array(self.runs)).sum())


@dataclasses.dataclass(frozen=True)
class Segment:
    """A file of blocks, as a manifest describes it."""

    file: str  # its name
    arrays: dict[str, Blocks]  # the blocks of each array
    objects: tuple[int, str]  # bytes of the Python objects there, and their checksum
    size: int  # of the file, in bytes


@dataclasses.dataclass(frozen=True)
class Shards:
    """Where the parts of a buffer are that is dealt to shards; the checkpoint itself holds its index."""

    spec: str  # of the whole buffer, as `to_json` writes it
    parts: tuple[tuple[int, str], ...]  # of each shard the number of its part's checkpoint, and the `content` of that


@dataclasses.dataclass(frozen=True)
class Manifest:
    """All that is said of one checkpoint."""

    generation: int  # its number, and its file's name
    stamp: str  # see `functional_rb.core.save_history`
    time: float  # when it was written, seconds since 1970
    items: int  # how many are stored
    spec: str  # the buffer's, as `to_json` writes it
    arrays: dict[str, Stored]  # the arrays of the state
    counters: list[int]  # of the state
    segments: list[Segment]  # the files, the oldest first; a block is that of the last one that has it
    content: str  # the checksum of what all this tells together, see `content_of`
    # The arrays whose rows lie in mapped files of the buffer's own, rolled back by undo logs.
    in_place: tuple[str, ...] = ()
    undo: int = 0  # the first of these, by number; 0 if there are none
    # Whether the path of the spec's storage was the checkpoint's own directory, wherever that is by now.
    here: bool = False
    shards: Shards | None = None  # of a buffer that is dealt to shards, where its parts are

    @property
    def nbytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def written(self) -> int:
        """Bytes of the files that were written for it, without the manifest."""
        return sum(segment.size for segment in self.segments if segment.file == segment_name(self.generation))

    @property
    def full(self) -> bool:
        return all(segment.file == segment_name(self.generation) for segment in self.segments)


def name_of(generation: int) -> str:
    return f"{generation:010d}.json"


def segment_name(generation: int) -> str:
    return f"{generation:010d}.safetensors"


def encode(manifest: Manifest) -> bytes:
    info = {
        "format": FORMAT,
        "generation": manifest.generation,
        "stamp": manifest.stamp,
        "time": manifest.time,
        "items": manifest.items,
        "spec": json.loads(manifest.spec),
        "arrays": {
            name: {"shape": stored.shape, "dtype": stored.dtype, "fill": stored.fill}
            for name, stored in manifest.arrays.items()
        },
        "counters": manifest.counters,
        "content": manifest.content,
        "segments": [
            {
                "kind": _kind(segment.arrays, manifest.in_place),
                "file": segment.file,
                "size": segment.size,
                "objects": segment.objects,
                "arrays": {name: dataclasses.asdict(blocks) for name, blocks in segment.arrays.items()},
            }
            for segment in manifest.segments
        ],
    }
    if manifest.undo:
        info["in_place"] = {"undo": manifest.undo, "arrays": manifest.in_place}
    elif manifest.here:
        info["here"] = True
    if manifest.shards is not None:
        info["shards"] = {"spec": json.loads(manifest.shards.spec), "parts": manifest.shards.parts}
    body = json.dumps(info, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD + digest(body).hex().encode() + _MIDDLE + body + _TAIL


def content_of(
    stamp: str, spec: str, counters: list[int], arrays: dict[str, Stored], tables: Mapping[str, Table]
) -> str:
    """The checksum of a whole state: by it parts that are each whole are known to belong together."""
    # The order of keys is that of the arrays, which is part of the format: the text has to be the same on every
    # machine.
    described = {name: [stored.shape, stored.dtype, stored.fill] for name, stored in arrays.items()}
    text = json.dumps([stamp, json.loads(spec), counters, described], separators=(",", ":")).encode()
    return digest(b"".join([digest(text), *(digest(tables[name].tobytes()) for name in arrays)])).hex()


def most_runs(content: bytes) -> int:
    """A bound on how many runs of blocks the content of a manifest has, before it is parsed."""
    # Counted in the bytes, as parsing would already make room for all of them.
    return content.count(b"],[", max(content.rfind(_SEGMENTS), 0)) + 1


def decode(content: bytes, generation: int) -> Manifest:
    """The manifest that a file of this generation holds; `Unreadable` or `OtherFormat` if there is none."""
    # Before anything is parsed, and as a whole: so a manifest has one form alone.
    body = content[_FRAME : -len(_TAIL)]
    if content != _HEAD + digest(body).hex().encode() + _MIDDLE + body + _TAIL:
        raise Unreadable("its checksum does not fit")
    try:
        info = strict_json.parse(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no JSON text: {error}") from None
    if not isinstance(info, dict) or type(info.get("format")) is not int:
        raise Unreadable("no manifest")
    if info["format"] != FORMAT:
        raise OtherFormat(f"written in format {info['format']}, and this version of functional_rb knows {FORMAT}")
    try:
        manifest = _manifest(info)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(f"not as a manifest is: {type(error).__name__} {error}") from None
    _expect(manifest.generation == generation, "its number is not that of its name")
    return manifest


def _manifest(info: Json) -> Manifest:
    arrays = {name: _stored(name, entry) for name, entry in info["arrays"].items()}
    _expect(len(info["segments"]) <= MOST_SEGMENTS, f"{len(info['segments'])} segments are too many")
    seconds = info["time"]
    _expect(type(seconds) in (int, float) and math.isfinite(seconds), f"expected a time, got {seconds!r:.40}")
    undo, in_place = 0, tuple[str, ...]()
    if "in_place" in info:
        undo, in_place = _count(info["in_place"]["undo"]), tuple(map(_text, info["in_place"]["arrays"]))
        _expect(undo > 0, "no undo log")
        for name in in_place:
            _expect(name in arrays and IN_PLACE.fullmatch(name) is not None, f"{name!r} in mapped files")
    shards = None
    if "shards" in info:
        parts = tuple((_count(number), _text(content)) for number, content in info["shards"]["parts"])
        _expect(len(parts) > 0, "no shards")
        shards = Shards(json.dumps(info["shards"]["spec"]), parts)
    return Manifest(
        generation=_count(info["generation"]),
        stamp=_text(info["stamp"]),
        time=float(seconds),
        items=_count(info["items"]),
        spec=json.dumps(info["spec"]),
        arrays=arrays,
        counters=[_number(value) for value in info["counters"]],
        segments=[_segment(entry, arrays, in_place) for entry in info["segments"]],
        content=_text(info["content"]),
        in_place=in_place,
        undo=undo,
        here=bool(undo) or info.get("here") is True,
        shards=shards,
    )


def _kind(arrays: Collection[str], in_place: tuple[str, ...]) -> str:
    return "in place" if any(name in in_place for name in arrays) else "safetensors"


def _stored(name: str, info: Json) -> Stored:
    shape, dtype = tuple(_count(n) for n in info["shape"]), _text(info["dtype"])
    _expect(len(shape) > 0 and 0 not in shape and dtype in NAMES, f"{name!r} of {dtype} {list(shape)}")
    return Stored(name, shape, dtype, _number(info["fill"]))


def _segment(info: Json, arrays: dict[str, Stored], in_place: tuple[str, ...]) -> Segment:
    _expect(info["kind"] == _kind(info["arrays"], in_place), f"a segment of kind {info['kind']!r}")
    _expect(SEGMENT.fullmatch(_text(info["file"])) is not None, f"a segment's file is called {info['file']!r}")
    nbytes, checksum = info["objects"]
    has = {name: _blocks(entry, arrays[name]) for name, entry in info["arrays"].items()}
    ordered = {name: has[name] for name in arrays if name in has}
    return Segment(info["file"], ordered, (_count(nbytes), _text(checksum)), _count(info["size"]))


def _blocks(info: Json, stored: Stored) -> Blocks:
    runs = info["runs"]
    _expect(isinstance(runs, list), "no blocks")
    # Runs do not touch, so that at most every other block begins one.
    _expect(len(runs) <= (stored.count + 1) // 2, f"{len(runs)} runs of {stored.count} blocks of {stored.name!r}")
    # By NumPy at once: a manifest may tell millions of runs.
    pairs = np.array(runs) if runs else np.empty((0, 2), np.int64)
    _expect(pairs.dtype == np.int64 and pairs.shape == (len(runs), 2), f"blocks of {stored.name!r}")
    ends = pairs.reshape(-1)
    rising = not runs or bool(ends[0] >= 0 and ends[-1] <= stored.count and (np.diff(ends) > 0).all())
    _expect(rising, f"blocks of {stored.name!r} that are not in order, or beyond its {stored.count}")
    return Blocks([(start, stop) for start, stop in pairs.tolist()], _text(info["checksum"]))


# Counters and fills are of 32 bits, and sizes in bytes below what no file has.
def _number(value: Any) -> int:
    _expect(type(value) is int and -(2**31) <= value < 2**31, f"expected a number, got {value!r:.40}")
    return int(value)


def _count(value: Any) -> int:
    _expect(type(value) is int and 0 <= value < 2**62, f"expected a count, got {value!r:.40}")
    return int(value)


def _text(value: Any) -> str:
    _expect(type(value) is str, f"expected a text, got {value!r:.40}")
    return str(value)


def _expect(fits: bool, reason: str) -> None:
    if not fits:
        raise Unreadable(reason)
