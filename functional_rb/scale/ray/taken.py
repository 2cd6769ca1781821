"""How far the items of a queue's shard have been given out, in a file that is older than no answer.

A shard that dies goes on from its checkpoint, which still has what was given out since. So before anything is given
out, it is noted where the lanes begin afterwards, and what lies before that is left out when the shard goes on.
"""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np

from functional_rb.base.arrays import NumpyArray

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

HEAD = struct.Struct("<8sIq")
"""What it is, the checksum of what follows, and the shard's epoch; then the lanes' beginnings, int64 each."""
MAGIC = b"FRBTAKEN"


class Taken:
    """The file of one shard; without a path nothing is noted, and nothing is known."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def note(self, epoch: int, begins: object) -> None:
        """Note where the lanes begin, int [lanes] as sequence numbers, in this life of the shard."""
        if self._path is None:
            return
        body = struct.pack("<q", epoch) + np.asarray(begins, "<i8").tobytes()
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(f"{self._path}.new", "wb") as file:
            file.write(MAGIC + struct.pack("<I", zlib.crc32(body)) + body)
        os.replace(file.name, self._path)  # so that a process which dies here leaves the one or the other

    def since(self, epoch: int, begins: NumpyArray, sizes: NumpyArray, limit: int) -> Ints:
        """How many of the items that a checkpoint of an epoch has were given out after it was written, int64 [lanes].

        Its lanes begin at sequence numbers int [lanes], which stay below a limit, and have so many items, int [lanes].
        """
        noted = self._read(len(begins))
        if noted is None or noted[0] < epoch:  # what an earlier life gave out, the checkpoint has not
            return np.zeros(len(begins), np.int64)
        ahead = (noted[1] - np.asarray(begins, np.int64)) % limit
        return np.where(ahead > limit // 2, 0, np.minimum(ahead, sizes))  # a lane that begins later was cleared since

    # The epoch, and where the lanes begin; None if nothing was noted, or it cannot be read.
    def _read(self, lanes: int) -> tuple[int, Ints] | None:
        if self._path is None or not os.path.exists(self._path):
            return None
        with open(self._path, "rb") as file:
            content = file.read(HEAD.size + 8 * lanes + 1)
        if len(content) != HEAD.size + 8 * lanes:
            return None
        magic, checksum, epoch = HEAD.unpack_from(content)
        if magic != MAGIC or checksum != zlib.crc32(content[12:]):
            return None
        return epoch, np.frombuffer(content, "<i8", offset=HEAD.size).astype(np.int64)
