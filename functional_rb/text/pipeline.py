"""Rows of text as tokens in files, piece by piece: what `frb.text.preference` and `frb.text.prompts` do."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from functional_rb.base import files
from functional_rb.base.files import as_path
from functional_rb.base.progress import Progress as Bar
from functional_rb.text import prepared, rows, sources, writing
from functional_rb.text.prepared import FORMAT, ROWS, TOKENS, Kind, Prepared
from functional_rb.text.rows import Columns, Texts, UnusableRow
from functional_rb.text.sources import Source
from functional_rb.text.tokenizing import Tokenizing, Tokens, common, is_of_text, shown

TooLong = Literal["drop", "truncate_prompt", "error"]
Bad = Literal["error", "drop"]
EMPTY = "expected a prompt, got one without a token"
MERGED = (
    "expected a prompt, got one whose only token has characters of the reply too, which makes it the reply's: let them "
    "be tokenized apart (jointly=False), or stand apart (separator=' ')"
)


@dataclasses.dataclass(frozen=True)
class Tokenization:
    """How texts become tokens, for `preference` and `prompts`.

    Attributes:
        max_length: how many tokens a text may have, special ones counted; None for no limit.
        too_long: what is done with longer ones: "drop" leaves the example out and counts it, "truncate_prompt" cuts the
            beginning of the prompt off, as much of it for both texts, and drops what does not fit; "error" refuses.
        bad: what is done with unusable rows: "error" names row and column, "drop" leaves out and counts them. Reasons
            are "no_row", "no_text" (no column of that name, or no text in it), "no_utf8", "empty_reply", "equal"
            (chosen and rejected are the same), "no_number" (a score that is NaN, infinite or none), and "template" and
            "tokenizer" (which raised an error of it: the cause of ours).
        jointly: whether prompt and reply are tokenized as one text, as a model reads it. Then characters on both sides
            of the border may become one token, which belongs to the reply; `Prepared.merged` counts those texts. If
            apart, the prompt's tokens are those that it has alone, as where a model generates replies to it.
        eos: whether replies end with the tokenizer's end token, or which other token they end with. In conversations
            the chat template writes it.
        separator: what stands between prompt and reply, as part of the prompt. No conversations.
        rows_at_once: how many rows are tokenized at a time.

    Example:
        >>> Tokenization(max_length=512, too_long="truncate_prompt").jointly
        True
    """

    max_length: int | None = None
    too_long: TooLong = "drop"
    bad: Bad = "error"
    jointly: bool = True
    eos: bool | int = True
    separator: str = ""
    rows_at_once: int = 512


class Example(NamedTuple):
    """An example that is to be written: the tokens of each text, how many are the prompt's, and the scores."""

    ids: list[list[int]]
    prompts: list[int]
    scores: tuple[float, ...]
    merged: int


def prepare(
    kind: Kind,
    how: Tokenization,
    columns: Columns,
    rows: Iterable[object],
    source: Source | None,
    tokenizer: object,
    root: object,
    progress: bool | None,
) -> Prepared:
    """Write what is not there yet below `root`, None for the usual place, and open it.

    The source is that of the rows where they can be read again; if it is None, they are first written to a file.
    """
    who = f"text.{kind}"
    tokenizing = Tokenizing(tokenizer, who)
    where = files.cache_folder("text") if root is None else os.path.abspath(as_path(root, f"{who}: root"))
    with writing.explained(where):
        os.makedirs(where, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if source is None:
            with writing.explained(where):
                scratch = stack.enter_context(files.aside(where))
            source = _spooled(rows, columns.names, os.path.join(scratch, "rows.jsonl"))
        return _Preparation(kind, how, columns, source, tokenizing).written(where, progress)


def _spooled(rows: Iterable[object], names: Sequence[str], path: str) -> Source:
    lines, count = (sources.as_line(row, names) for row in rows), 0
    with writing.explained(path), open(path, "wb"):
        pass  # also of no rows there is a file
    while piece := list(itertools.islice(lines, sources.PIECE)):
        with writing.explained(path), open(path, "ab") as file:
            file.write(b"".join(piece))
        count += len(piece)
    return sources.Spooled(path, count)


class _Preparation:
    """One preparation: what each of its steps knows."""

    def __init__(self, kind: Kind, how: Tokenization, columns: Columns, source: Source, tokenizing: Tokenizing) -> None:
        self._kind, self._how, self._columns, self._source, self._tokenizing = kind, how, columns, source, tokenizing
        # The token that replies end with, if there is one.
        self._eos = tokenizing.eos if isinstance(how.eos, bool) else how.eos
        # The smallest dtype that holds all tokens.
        self._dtype = "uint16" if max(tokenizing.vocabulary - 1, self._eos or 0) < 2**16 else "int32"

    def written(self, where: str, shown: bool | None) -> Prepared:
        kind, columns, source = self._kind, self._columns, self._source
        key = hashlib.blake2b(digest_size=16)
        # All that changes a byte of the files, and nothing else: how many rows are tokenized at once does not.
        options = {name: x for name, x in dataclasses.asdict(self._how).items() if name != "rows_at_once"}
        key.update(json.dumps([FORMAT, kind, options, columns]).encode())
        key.update(self._tokenizing.identity())
        key.update(source.digest(columns.names))
        path = os.path.join(where, f"{kind}-{key.hexdigest()}")
        with writing.growing(path) as growing:
            if growing is not None:
                with Bar(source.count, f"text.{kind}", shown, unit="rows") as bar:
                    self._grow(growing, bar)
                counted = ("examples", "tokens", "text_tokens", "longest", "dropped", "merged")
                growing.finish(
                    {
                        "format": FORMAT,
                        "kind": kind,
                        **{name: getattr(growing.progress, name) for name in counted},
                        "pad": self._tokenizing.pad,
                        "eos": self._eos,
                        "dtype": self._dtype,
                        "labelled": kind == "prompts" and bool(columns.replies),
                        "scored": bool(columns.scores),
                    }
                )
        return Prepared.open(path)

    def _grow(self, growing: writing.Growing, bar: Bar) -> None:
        progress, columns = growing.progress, self._columns
        rows = self._source.rows(columns.names, progress.read)
        bar.advance(progress.read)  # the rows of an earlier call that was cut short
        table_dtype = prepared.row_dtype(2 if self._kind == "preference" else 1, bool(columns.scores))
        while piece := list(itertools.islice(rows, self._how.rows_at_once)):
            tokens, table = array.array("H" if self._dtype == "uint16" else "i"), []
            for example in self._examples(progress, piece):
                row, size = _row(example, progress.tokens, tokens)
                table.append(row)
                progress.examples += 1
                progress.tokens += size
                progress.text_tokens += sum(map(len, example.ids))
                progress.longest = max(progress.longest, *map(len, example.ids))
                progress.merged += example.merged
            # Noted with the files in one line: a call that goes on after a kill begins with the next row.
            progress.read += len(piece)
            growing.append({TOKENS: tokens, ROWS: np.array(table, table_dtype).tobytes()})
            bar.advance(len(piece))
        if not progress.read:
            growing.append({TOKENS: b"", ROWS: b""})

    def _examples(self, progress: writing.Progress, piece: Sequence[object]) -> list[Example]:
        how = self._how
        usable: list[tuple[int, Texts]] = []
        failed: list[tuple[int, UnusableRow]] = []
        for number, row in enumerate(piece, progress.read):
            try:
                texts = rows.texts_of(row, self._columns, how.separator, self._tokenizing.render)
                usable.append((number, texts))
            except UnusableRow as unusable:
                failed.append((number, unusable))
        # Tokenizers are fastest with many texts at once. If this one fails at them, each is tried alone.
        tokens_of_all: list[list[Tokens]] | None = None
        try:
            tokens_in_order = iter(self._tokenized([pair for _, texts in usable for pair in texts.pairs]))
            tokens_of_all = [list(itertools.islice(tokens_in_order, len(texts.pairs))) for _, texts in usable]
        except BaseException as failure:
            if not is_of_text(failure):
                raise
        examples: list[Example] = []
        for k, (number, texts) in enumerate(usable):
            try:
                tokens = self._tokens_alone(texts) if tokens_of_all is None else tokens_of_all[k]
                examples.append(self._fitted(texts, tokens))
            except UnusableRow as unusable:
                failed.append((number, unusable))
        # An error names the first row that cannot be used, whichever step refused it.
        for number, error in sorted(failed, key=operator.itemgetter(0)):
            if (how.too_long if error.reason == "too_long" else how.bad) == "error":
                column = "" if error.column is None else f", column {error.column!r}"
                remedy = "too_long='drop' or 'truncate_prompt'" if error.reason == "too_long" else "bad='drop'"
                raise ValueError(
                    f"text.{self._kind}: {self._source.where(number)}{column}: {error.what}; correct it, or give "
                    f"{remedy}"
                ) from error.__cause__
            progress.drop(error.reason)
        return examples

    def _tokens_alone(self, texts: Texts) -> list[Tokens]:
        columns, tokens = self._columns, list[Tokens]()
        for reply, pair in zip(columns.replies or (columns.prompt,), texts.pairs, strict=True):
            name = columns.prompt or reply
            try:
                self._tokenizing.apart(pair[:1])  # to see whether it is the prompt at which the tokenizer fails
                name = reply
                tokens += self._tokenized([pair])
            except BaseException as error:
                if not is_of_text(error):
                    raise
                raise UnusableRow("tokenizer", name, f"the tokenizer failed by {shown(error)}") from error
        return tokens

    def _tokenized(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens]:
        if self._how.jointly:
            return self._tokenizing.together(pairs)
        prompts = list(dict.fromkeys(prompt for prompt, _ in pairs))  # both texts of a pair most often have the same
        begun = dict(zip(prompts, self._tokenizing.apart(prompts), strict=True))
        replies = self._tokenizing.apart([reply for _, reply in pairs])
        return [
            Tokens(begun[prompt] + ids, len(begun[prompt]), False)
            for (prompt, _), ids in zip(pairs, replies, strict=True)
        ]

    def _fitted(self, texts: Texts, tokens: Sequence[Tokens]) -> Example:
        # An example with its special tokens, no longer than it may be.
        how, columns = self._how, self._columns
        replies = columns.replies or (columns.prompt,)
        prefix = [] if texts.templated else self._tokenizing.prefix
        suffix = [] if texts.templated or not columns.replies else self._end()
        needs_prompt = self._kind == "prompts" and not (columns.whole and columns.replies)
        ids, prompts = [], []
        for name, one in zip(replies, tokens, strict=True):
            if columns.replies and one.prompt == len(one.ids):
                raise UnusableRow("empty_reply", name, "expected a reply, got one without a token")
            if needs_prompt and not prefix and not one.prompt:
                raise UnusableRow("empty_prompt", columns.prompt, MERGED if one.merged else EMPTY)
            end = suffix[1:] if suffix[:1] == one.ids[-1:] else suffix  # a reply that ends itself does so once
            ids.append(prefix + one.ids + end)
            prompts.append(len(prefix) + one.prompt)
        longest = max(map(len, ids))
        beyond = 0 if how.max_length is None else max(longest - how.max_length, 0)
        if beyond:
            room = min(prompts) - max(len(prefix), 1)  # something is to be left of it
            if how.too_long != "truncate_prompt" or beyond > room:
                what = f"{longest} tokens with the prompt, more than {how.max_length}"
                raise UnusableRow("too_long", replies[[*map(len, ids)].index(longest)], what)
            # Both texts of a pair lose the same tokens, so that their prompts stay the same.
            ids = [x[: len(prefix)] + x[len(prefix) + beyond :] for x in ids]
            prompts = [size - beyond for size in prompts]
        return Example(ids, prompts, texts.scores, sum(one.merged for one in tokens))

    def _end(self) -> list[int]:
        suffix, eos = self._tokenizing.suffix, self._how.eos
        if eos is True and self._eos is None:
            raise ValueError(
                f"text.{self._kind}: the tokenizer has no eos_token_id, with which replies are to end; give "
                f"eos= an id, or eos=False"
            )
        if eos is False or self._eos is None or suffix[-1:] == [self._eos]:
            return suffix
        return [*suffix, self._eos]


def _row(example: Example, start: int, tokens: array.array[int]) -> tuple[tuple[object, ...], int]:
    # The row of an example, and how many tokens are appended: what the two texts of a pair begin with is kept once.
    first, *others = example.ids
    tokens.extend(first)
    row: tuple[object, ...] = (prepared.halves(start),)
    size = len(first)
    for second in others:
        shared = common(first, second)
        tokens.extend(second[shared:])
        size += len(second) - shared
        row = (*row, shared)
    row = (*row, tuple(example.prompts), tuple(map(len, example.ids)))
    return ((*row, example.scores) if example.scores else row), size
