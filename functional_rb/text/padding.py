"""Ragged texts in a file of tokens, padded as they are sampled."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from functional_rb.base import files
from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.base.descriptors import Descriptor
from functional_rb.core.item_function import HostFunction
from functional_rb.specs import Binary, Unbounded
from functional_rb.storage.host_state import NUMPY
from functional_rb.structures import ragged
from functional_rb.structures.ragged import Bools, Ints
from functional_rb.text.records import PairwiseDataset, PromptData, RewardData

Side = Literal["right", "left"]
# The dtypes of tokens that `preference` and `prompts` write.
KERNELS_KNOW = ("uint16", "int32")
# How many files of tokens are kept mapped.
MOST_FILES = 64
# The label of what is not to be learned, as losses of torch and of Hugging Face have it.
IGNORED = -100


@dataclasses.dataclass(frozen=True)
class Padded(HostFunction):
    """The texts that rows name, padded to one length: what samples of prepared texts have as items.

    A row tells of one text, or of two that begin with the same tokens, kept once: "start" int32 [2] says where they
    are in the file, "shared" int32 [] how many tokens they have in common, "lengths" int32 [k] how many there are in
    each, and "prompts" int32 [k] how many of these are the prompt's. "scores" float32 [k] may stand beside.
    """

    path: str  # the file of tokens
    dtype: str  # the dtype of the tokens
    texts: int  # k, 1 for a `PromptData`, 2 for a `PairwiseDataset`
    labelled: bool = False  # whether a `PromptData` has replies, and so labels
    scored: bool = False  # whether there are scores
    pad: int = 0  # what stands where there is no token
    side: Side = "right"  # on which side the padding stands
    # Padded to a multiple of so many tokens, as few as the longest text of a batch needs; None for `length`.
    bucket: int | None = None
    length: int | None = None  # padded to so many tokens always
    # Whether the file never changes, as those of `preference` and `prompts`, which are named by what they were made of:
    # then it is mapped once, and not looked at again.
    lasting: bool = False

    def __post_init__(self) -> None:
        # NumPy before 2 makes another token of a pad that is no int32, with no more than a warning.
        pad: object = self.pad
        is_int = isinstance(pad, int | np.integer) and not isinstance(pad, bool)
        if not is_int or not -(2**31) <= int(self.pad) < 2**31:
            raise ValueError(f"Padded: pad: expected an int32, got {self.pad!r}")

    @property
    def gives(self) -> Nest:
        """The record of one example, where all have one length."""
        if self.length is None:
            return None
        ids, mask = Unbounded((self.length,), "int32"), Binary((self.length,))
        if self.texts == 1:
            return PromptData(ids, mask, Unbounded((), "int32"), ids if self.labelled else None)
        text = RewardData(ids, mask, end_scores=Unbounded(()) if self.scored else None)
        return PairwiseDataset(text, text, Unbounded((2,), "int32"))

    def read(self, leaves: Mapping[str, NumpyArray], as_array: Callable[[NumpyArray], Array]) -> Nest:
        ids, mask, begin = self.padded(leaves)
        if self.texts == 1:
            reply = mask[0] & (np.arange(ids.shape[2]) >= begin)
            labels = as_array(np.where(reply, ids[0], np.int32(IGNORED))) if self.labelled else None
            return PromptData(as_array(ids[0]), as_array(mask[0]), as_array(begin[:, 0]), labels)
        scores = [*map(as_array, np.array(leaves["scores"].T, order="C"))] if self.scored else (None, None)
        chosen = RewardData(as_array(ids[0]), as_array(mask[0]), None, scores[0])
        rejected = RewardData(as_array(ids[1]), as_array(mask[1]), None, scores[1])
        return PairwiseDataset(chosen, rejected, as_array(begin))

    def padded(self, items: Mapping[str, NumpyArray]) -> tuple[Ints, Bools, Ints]:
        """Tokens int32 [k, B, L], which of them are real bool [k, B, L], and where the replies begin int32 [B, k]."""
        kernels = NUMPY.kernels if NUMPY.may_use_kernels and self.dtype in KERNELS_KNOW else None
        lengths, left = items["lengths"], self.side == "left"
        longest = (ragged if kernels is None else kernels).longest(lengths)
        length = self.length or -(-longest // (self.bucket or 1)) * (self.bucket or 1)
        if longest > length:
            raise self._others(f"a text has {longest} tokens, and samples have a length of {length}")
        tokens, shared = _mapped(self.path, self.dtype, self.lasting), items["shared"] if self.texts > 1 else None
        if longest > max(tokens.size, 1):  # before there is room for it
            raise self._beyond(int(lengths.max(1).argmax()), tokens)
        arguments = items["start"], shared, lengths, length, self.pad, left
        if kernels is None:
            ids, mask, wrong = ragged.padded(tokens, *arguments)
        else:
            ids, mask, wrong = kernels.padded(tokens, *arguments)
        if wrong >= 0:
            raise self._beyond(wrong, tokens)
        prompts = items["prompts"]
        if ((prompts < 0) | (prompts > lengths)).any():
            raise self._others("a prompt has less tokens than none, or more than its text")
        begin = prompts + (length - lengths) if left else prompts.copy()  # a copy: samples share no memory with rows
        return ids, mask, begin

    def _beyond(self, row: int, tokens: NumpyArray) -> ValueError:
        return self._others(f"{self.path}: row {row} of a batch tells of tokens beyond its {tokens.size}")

    def _others(self, what: str) -> ValueError:
        return ValueError(f"{what}; the rows are not those that were prepared")


class _File:
    """A file of tokens that is mapped, and kept open to be asked whether it is there still: sooner than by its name."""

    def __init__(self, path: str, dtype: str) -> None:
        try:
            # A spec that somebody else wrote may name a pipe, which would keep who opens it waiting.
            self._file = Descriptor(os.open, path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            status = os.fstat(self._file.fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "no regular file", path)
        except OSError as error:
            raise type(error)(
                error.errno, f"the file of tokens: {error.strerror}; prepare the texts anew, or put it back", path
            ) from None
        self._size = status.st_size
        mapped = np.memmap(files.stream(self._file), dtype, "r") if self._size else np.zeros(0, dtype)
        self.tokens = np.asarray(mapped)

    def is_there(self) -> bool:
        """Whether it is neither deleted, nor replaced by another file, nor of another size."""
        status = os.fstat(self._file.fd)
        return status.st_nlink > 0 and status.st_size == self._size


# The files that were mapped last, by path and dtype.
_FILES: dict[tuple[str, str], _File] = {}


def _mapped(path: str, dtype: str, lasting: bool) -> NumpyArray:
    file = _FILES.get((path, dtype))
    if file is None or not (lasting or file.is_there()):
        file = _File(path, dtype)
        _FILES.pop((path, dtype), None)
        # Room for one more: those that were mapped first go first.
        for older in list(_FILES)[: -(MOST_FILES - 1)]:
            _FILES.pop(older, None)
        _FILES[path, dtype] = file
    return file.tokens


def map_anew(path: str) -> None:
    """Let a file be mapped anew that may be another one: one that was renamed is there still."""
    for key in list(_FILES):
        if key[0] == path:
            _FILES.pop(key, None)
