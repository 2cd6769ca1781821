"""What `preference` and `prompts` have prepared: files of tokens, and the buffers that sample them."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from functional_rb.base import files
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.files import as_path
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap, Storage
from functional_rb.samplers import WithoutReplacement
from functional_rb.samplers.base import SamplerBase
from functional_rb.specs import Unbounded
from functional_rb.structures.ragged import HALF, Ints
from functional_rb.text import whole
from functional_rb.text.padding import KERNELS_KNOW, Padded, Side, map_anew
from functional_rb.transforms import map_items
from functional_rb.writers import Immutable

FORMAT = 2
TOKENS, ROWS, DESCRIPTION = "tokens.bin", "rows.bin", "prepared.json"
Kind = Literal["preference", "prompts"]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Texts that were tokenized, in files.

    Attributes:
        path: the directory.
        kind: "preference", pairs of texts, or "prompts".
        examples: how many there are.
        tokens: how many were written; what the two texts of a pair begin with counts once.
        text_tokens: how many all texts have.
        longest: how many the longest text has.
        dropped: how many examples were left out, by reason; see `preference`.
        merged: how many texts, tokenized jointly, have the prompt's end within a token. That token is the reply's.
        pad: what stands where there is no token, unless `spec` is told otherwise: the tokenizer's own padding, else
            its end, else 0.
        eos: the tokenizer's end; None if it has none.
        dtype: the dtype of the tokens in the file.
        labelled: whether there are replies.
        scored: whether there are scores.
    """

    path: str
    kind: Kind
    examples: int
    tokens: int
    text_tokens: int
    longest: int
    dropped: Mapping[str, int]
    merged: int
    pad: int
    eos: int | None
    dtype: str
    labelled: bool
    scored: bool

    @classmethod
    def open(cls, path: object) -> Prepared:
        """What was prepared before, in a directory.

        Raises:
            FileNotFoundError: if nothing was prepared there.
            ValueError: if its files are not those that were written, by their checksums, or tell of texts that are not
                among their tokens, naming the file.
        """
        where = os.path.abspath(as_path(path, "Prepared.open"))
        description = os.path.join(where, DESCRIPTION)
        try:
            content = json.loads(files.read_text(description))
            if content.pop("format") != FORMAT:
                raise ValueError("of another version")
            checksums = content.pop("checksums")
            data = cls(path=where, **content)
            data._check()
            sizes = {TOKENS: data.tokens * np.dtype(data.dtype).itemsize, ROWS: data.examples * data._row.itemsize}
            expected = {name: (size, checksums[name]) for name, size in sizes.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, files.UnusableFileError) as error:
            raise ValueError(f"{description}: expected what was prepared, got another content ({error})") from None
        for name, (size, written) in expected.items():
            file = os.path.join(where, name)
            if not os.path.exists(file) or os.path.getsize(file) != size:
                raise ValueError(f"{file}: expected {size} bytes; {data._remedy}")
            try:
                digest = whole.checksum(file)
            except files.UnusableFileError as error:
                raise ValueError(f"{error}; {data._remedy}") from None
            if digest != written:
                raise ValueError(f"{file}: expected the checksum {written}, found {digest}; {data._remedy}")
        if problem := whole.problem_of_rows(data._table(), data.tokens, data.longest):
            raise ValueError(f"{os.path.join(where, ROWS)}: {problem}; {data._remedy}")
        return data

    def _check(self) -> None:
        counts = [self.examples, self.tokens, self.text_tokens, self.longest, self.merged, *self.dropped.values()]
        ids = [self.pad] if self.eos is None else [self.pad, self.eos]
        if not all(type(count) is int and 0 <= count < 2**62 for count in counts):
            raise ValueError(f"expected counts, got {counts}")
        if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise ValueError(f"expected tokens as pad and eos, got {ids}")
        kind = self.kind  # files have anything
        if kind not in get_args(Kind) or self.dtype not in KERNELS_KNOW:
            raise ValueError(f"expected one of {get_args(Kind)} in {KERNELS_KNOW}, got {kind!r} in {self.dtype!r}")
        flags = [self.labelled, self.scored]
        if not all(type(flag) is bool for flag in flags):
            raise ValueError(f"expected labelled and scored as bools, got {flags}")

    @property
    def _remedy(self) -> str:
        return f"remove {self.path} and prepare the texts anew"

    @property
    def _row(self) -> np.dtype[np.generic]:
        return row_dtype(2 if self.kind == "preference" else 1, self.scored)

    def _table(self) -> NumpyArray:
        path = os.path.join(self.path, ROWS)
        return np.memmap(path, self._row, mode="r") if self.examples else np.zeros(0, self._row)

    @property
    def rows(self) -> dict[str, NumpyArray]:
        """What a buffer holds of each example, mapped: where its tokens are, see `spec`. Leaves [examples, ...]."""
        table = self._table()
        return {name: np.asarray(table[name]) for name in table.dtype.names or ()}

    def example(self, number: int) -> list[Ints]:
        """The tokens of an example, without padding: int32 [T], two of a pair, the chosen text first.

        Raises:
            IndexError: if there are not so many examples.
        """
        at = operator.index(number)
        if not -self.examples <= at < self.examples:
            raise IndexError(f"Prepared.example: expected a number below {self.examples}, got {number}")
        row = {name: leaf[at % self.examples][None] for name, leaf in self.rows.items()}
        ids, mask, _ = self._padded(bucket=1).padded(row)
        return [ids[k, 0][mask[k, 0]] for k in range(len(ids))]

    def spec(
        self,
        batch_size: int | None = None,
        *,
        bucket: int = 64,
        length: int | None = None,
        pad: int | None = None,
        side: Side = "right",
        sampler: SamplerBase | None = None,
        storage: Storage | None = None,
    ) -> BufferSpec:
        """The spec of a buffer of the examples: `rb.init(data.spec(32), items=data.rows)` makes it.

        It holds where the tokens are, 16 to 36 bytes an example, and its samples have records as items, of tokens int32
        [B, L] and masks bool [B, L]: `PairwiseDataset`s, both texts as long as each other, with `prompt_rindex` and,
        where they are known, `end_scores`; or `PromptData`, with `labels` where there are replies. Tokens are read from
        the file as samples are made; so the file must stay where it is for as long as the buffer is used.

        Args:
            batch_size: the default for `rb.sample`.
            bucket: L is the least multiple of this that the longest text of a batch fits in. So JAX compiles what is
                done with batches for few lengths only. Such buffers are sampled outside of compiled programs; on JAX
                they lie in the memory of the host.
            length: L of all batches, at least `longest`. Such buffers are sampled in compiled programs too, on JAX with
                `storage=frb.Device()`.
            pad: what stands where there is no token; masks alone say where that is.
            side: where the padding is: "right" to train on texts, "left" for prompts that a model is to go on with.
            sampler: `frb.WithoutReplacement()` if None: an epoch is a pass over the examples.
            storage: where the rows lie; `frb.Memmap()` if None, in files without a name.

        Raises:
            ValueError: if there are no examples, for a length that is too small, and for arguments that are none of the
                above.
        """
        if not self.examples:
            raise ValueError(f"{self.path}: there are no examples to sample, {dict(self.dropped)} were dropped")
        function = self._padded(bucket, length, pad, side)
        return BufferSpec(
            {name: Unbounded(leaf.shape, leaf.base.name) for name, (leaf, *_) in (self._row.fields or {}).items()},
            self.examples,
            WithoutReplacement() if sampler is None else sampler,
            writer=Immutable(),
            batch_size=batch_size,
            transforms=map_items(function),
            storage=Memmap() if storage is None else storage,
        )

    def _padded(self, bucket: int, length: int | None = None, pad: int | None = None, side: Side = "right") -> Padded:
        who = "Prepared.spec"
        if side not in ("right", "left"):
            raise ValueError(f"{who}: expected side as 'right' or 'left', got {side!r}")
        for name, number, least in (("bucket", bucket, 1), ("length", length, self.longest), ("pad", pad, 0)):
            if number is not None and (isinstance(number, bool) or operator.index(number) < least):
                more = f", the tokens of the longest text; or prepare with max_length={number}" * (name == "length")
                raise ValueError(f"{who}: expected {name} from {least} on{more}, got {number}")
        path = os.path.join(self.path, TOKENS)
        map_anew(path)
        return Padded(
            path,
            self.dtype,
            2 if self.kind == "preference" else 1,
            self.labelled,
            self.scored,
            self.pad if pad is None else operator.index(pad),
            side,
            operator.index(bucket) if length is None else None,
            None if length is None else operator.index(length),
            lasting=True,
        )


def row_dtype(texts: int, scored: bool) -> np.dtype[np.generic]:
    """How a row lies in its file; its parts are those that `Padded` reads."""
    parts: list[tuple[object, ...]] = [("start", "<i4", (2,))]
    if texts > 1:
        parts.append(("shared", "<i4"))
    parts += [("prompts", "<i4", (texts,)), ("lengths", "<i4", (texts,))]
    if scored:
        parts.append(("scores", "<f4", (texts,)))
    return np.dtype(parts)


def halves(place: int) -> tuple[int, int]:
    """A place in the file of tokens as a row has it."""
    return divmod(place, HALF)
