"""Whether files of prepared texts are those that were written, and tell of nothing outside: they may be anything."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from functional_rb.base import files
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.files import UnusableFileError
from functional_rb.structures.ragged import HALF

ROWS_AT_ONCE: Final = 2**14


def checksum(path: str) -> str:
    file, size = files.open_regular(path)
    with file:
        # A forged file may claim a size that no disk has; reading its holes would take for ever.
        if not files.holds(file.fd, size, size):
            raise UnusableFileError(path, f"{size} bytes of little but holes")
        return hashlib.file_digest(files.stream(file), lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def problem_of_rows(table: NumpyArray, tokens: int, longest: int) -> str | None:
    """Why rows, as `row_dtype` has them, cannot tell of texts among so many tokens, none longer than that; or None."""
    for first in range(0, len(table), ROWS_AT_ONCE):
        piece = table[first : first + ROWS_AT_ONCE]
        columns = {name: piece[name].astype(np.int64) for name in table.dtype.names or () if name != "scores"}
        start, lengths, prompts = columns["start"], columns["lengths"], columns["prompts"]
        end = start[:, 0] * HALF + start[:, 1] + lengths.sum(1)
        outside = (lengths < 0) | (lengths > longest) | (prompts < 0) | (prompts > lengths)
        is_wrong = (start < 0).any(1) | outside.any(1)
        if "shared" in columns:  # the tokens that both texts begin with are there once
            is_wrong |= (columns["shared"] < 0) | (columns["shared"] > lengths.min(1))
            end = end - columns["shared"]
        wrong = np.flatnonzero(is_wrong | (end > tokens))
        if wrong.size:
            shown = ", ".join(f"{name} {column[wrong[0]].tolist()}" for name, column in columns.items())
            return f"row {first + wrong[0]} of {len(table)} tells of texts that are not among {tokens} tokens: {shown}"
    return None
