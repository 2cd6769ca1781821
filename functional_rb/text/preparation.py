"""Preparing texts: `frb.text.preference` and `frb.text.prompts`."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from functional_rb.text import pipeline, sources
from functional_rb.text.arguments import whole
from functional_rb.text.pipeline import Bad, Tokenization, TooLong
from functional_rb.text.prepared import Kind, Prepared
from functional_rb.text.rows import Columns
from functional_rb.text.sources import Source

# Rows in which columns are looked for, where the source does not tell them.
LOOKED_AT = 100
# Columns that rows of conversations may have, by the names that TRL gives them: what the chat template is told.
TEMPLATE = ("tools", "chat_template_kwargs")


def preference(
    source: object,
    tokenizer: object,
    tokenization: Tokenization | None = None,
    *,
    columns: Mapping[str, str | None] | None = None,
    scores: tuple[str, str] | None = None,
    root: object = None,
    progress: bool | None = None,
) -> Prepared:
    """Tokenize pairs of texts, of which one is preferred, into files.

    A row has the columns "prompt", "chosen" and "rejected"; without "prompt", or if that is a text and they are
    conversations, both begin with it. Each is a text, or a conversation, a list of messages {"role": ..., "content":
    ...}, to which the tokenizer's chat template is applied; the columns "tools", a list or JSON, and
    "chat_template_kwargs", a dict, are then told to it. A row is an example or is left out: chosen and rejected texts
    cannot come apart.

    What was prepared before of the same data, with the same tokenizer and options, is found again, whatever the kind of
    source that the rows of dicts or of a `datasets.Dataset` come in; files are told by their bytes. Memory is bounded
    by `Tokenization.rows_at_once`. A process that is killed leaves `*.part` in `root`, with which the next call goes
    on.

    Args:
        source: a `datasets.Dataset` or `IterableDataset`; a path of JSON lines (.jsonl, .json), of an array of
            JSON (.json), of parquet or arrow, or a list of such; or dicts in any iterable. What can be read once only
            is first written to `root`.
        tokenizer: one of `transformers`, or of `tokenizers`, which has no chat template and no end. It stays as it is.
        tokenization: how texts become tokens, and what is done with rows that cannot be used; by default as
            `Tokenization()` says.
        columns: other names of columns, such as {"prompt": "question"}; {"prompt": None} to leave that out, as with
            "tools" and "chat_template_kwargs".
        scores: the columns of the scores of the chosen and of the rejected text, which samples have as `end_scores`.
        root: the directory for all that is prepared; ~/.cache/functional_rb/text if None.
        progress: whether a progress bar is shown; None for: on a terminal, if tqdm is installed.

    Returns:
        What was prepared. `rb.init(data.spec(batch_size), items=data.rows)` makes a buffer of it.

    Raises:
        ValueError: for a row that cannot be used, naming row and column; for missing columns, and for arguments out of
            range.
        TypeError: for a source, a tokenizer or a tokenization of another kind.
        ImportError: if a library is missing, with the remedy.
        StorageFullError: if the disk is full; what was written stays, and the next call goes on with it.

    Example:
        >>> import tempfile
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"why": 0, "so": 1, "no": 2, "yes": 3, "end": 4}))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> rows = [{"prompt": "why", "chosen": " yes so", "rejected": " no"}]
        >>> with tempfile.TemporaryDirectory() as root:
        ...     data = preference(rows, words, Tokenization(eos=4), root=root)
        ...     tokens = [ids.tolist() for ids in data.example(0)]
        >>> tokens, data.examples, data.tokens
        ([[0, 3, 1, 4], [0, 2, 4]], 1, 6)
    """
    usual = {"prompt": ("prompt",), "chosen": ("chosen",), "rejected": ("rejected",)}
    scored: tuple[str, ...] = () if scores is None else tuple(scores)
    if len(scored) not in (0, 2):
        raise ValueError(f"text.preference: expected scores as two names of columns, got {scores!r}")
    read = sources.opened(source, "text.preference")
    names, rows = _named("preference", read, source, usual, columns, scored)
    replies = _needed("preference", names, "chosen"), _needed("preference", names, "rejected")
    named = Columns(names["prompt"], replies, scored, tools=names["tools"], template=names["chat_template_kwargs"])
    how = _checked("preference", tokenization)
    return pipeline.prepare("preference", how, named, rows, read, tokenizer, root, progress)


def prompts(
    source: object,
    tokenizer: object,
    tokenization: Tokenization | None = None,
    *,
    columns: Mapping[str, str | None] | None = None,
    root: object = None,
    progress: bool | None = None,
) -> Prepared:
    """Tokenize prompts, with the replies to them where there are some, into files.

    A row has the column "prompt", and "completion" or "label" for the reply; or "messages" (or "conversations"), of
    which the last one, the assistant's, is the reply; or "text", which is all reply. Samples are `PromptData`: with a
    reply, `labels` are its tokens, -100 elsewhere; without, there are none, and no end token either. A conversation as
    prompt ends with the beginning of a reply, or, if its last message is the assistant's, is to be gone on with.

    Args:
        source: as for `preference`, and so are all others.
        tokenizer: one of `transformers` or `tokenizers`.
        tokenization: how texts become tokens; a prompt without any token of its own cannot be used: "empty_prompt".
        columns: other names: {"prompt": ..., "reply": ...}, or {"messages": ...}; {"reply": None} for prompts alone.
        root: the directory for all that is prepared.
        progress: whether a progress bar is shown.

    Returns:
        What was prepared.

    Raises:
        ValueError: as `preference` does.
        TypeError: as `preference` does.
        ImportError: as `preference` does.

    Example:
        >>> import tempfile
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"why": 0, "so": 1, "no": 2, "yes": 3, "end": 4}))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> rows = [{"prompt": "why so", "label": " no"}, {"prompt": "why no", "label": " yes yes yes"}]
        >>> with tempfile.TemporaryDirectory() as root:
        ...     data = prompts(rows, words, Tokenization(max_length=5, eos=4), root=root)
        ...     tokens = [ids.tolist() for ids in data.example(0)]
        >>> tokens, data.examples, data.dropped
        ([[0, 1, 2, 4]], 1, {'too_long': 1})
    """
    usual = {
        "prompt": ("prompt",),
        "reply": ("completion", "label"),
        "messages": ("messages", "conversations", "text"),
    }
    read = sources.opened(source, "text.prompts")
    names, rows = _named("prompts", read, source, usual, columns, ())
    prompt, reply, whole = names["prompt"], names["reply"], names["messages"]
    in_one = whole is not None and (prompt is None or "messages" in (columns or {}))
    if in_one:
        prompt, reply = whole, None if "reply" in (columns or {}) and reply is None else whole
    named = Columns(
        prompt or _needed("prompts", names, "prompt"), () if reply is None else (reply,), whole=in_one,
        tools=names["tools"], template=names["chat_template_kwargs"],
    )  # fmt: skip
    how = _checked("prompts", tokenization)
    return pipeline.prepare("prompts", how, named, rows, read, tokenizer, root, progress)


def _named(
    kind: Kind,
    source: Source | None,
    raw: Any,
    usual: Mapping[str, Sequence[str]],
    columns: Mapping[str, str | None] | None,
    more: Sequence[str],
) -> tuple[dict[str, str | None], Iterable[object]]:
    who, named = f"text.{kind}", dict(columns or {})
    if named.keys() - {*usual, *TEMPLATE}:
        raise ValueError(f"{who}: expected columns to name some of {[*usual, *TEMPLATE]}, got {sorted(named)}")
    if source is not None and source.columns is not None:
        there = source.columns
    else:
        rows = iter(raw if source is None else source.rows(()))
        first = list(itertools.islice(rows, LOOKED_AT))
        raw = itertools.chain(first, rows)  # an iterator's first rows are gone from it
        there = list(dict.fromkeys(name for row in first if isinstance(row, Mapping) for name in row))
        if not first:
            raise ValueError(f"{who}: the source has no row; an iterator that was read before has none any more")
        if not there:
            got = getattr(first[0], "reason", f"got {first[0]!r:.80}")
            where = "row 0" if source is None else source.where(0)
            raise ValueError(
                f"{who}: {where}: expected rows with columns, dicts or JSON objects of one line each, {got}; a file "
                f"that is one array of them has to end in .json"
            )
    for name in (*filter(None, named.values()), *more):
        if name not in there:
            raise ValueError(f"{who}: there is no column {name!r} among {there}; look at columns=")
    named_columns = {column: next((name for name in names if name in there), None) for column, names in usual.items()}
    named_columns |= {column: column for column in TEMPLATE} | named | {"among": str(there)}
    return named_columns, raw if source is None else ()


def _needed(kind: Kind, names: Mapping[str, str | None], role: str) -> str:
    name = names[role]
    if name is None:
        raise ValueError(
            f"text.{kind}: there is no column {role!r} among {names['among']}; name it, as in columns={{{role!r}: ...}}"
        )
    return name


# Numbers as Python's own, so that those of NumPy give the same key and the same JSON.
def _checked(kind: Kind, tokenization: Tokenization | None) -> Tokenization:
    who = f"text.{kind}"
    if tokenization is not None and not isinstance(tokenization, Tokenization):
        raise TypeError(f"{who}: expected tokenization as frb.text.Tokenization(...), got {tokenization!r:.80}")
    how = tokenization or Tokenization()
    for name, allowed in (("too_long", get_args(TooLong)), ("bad", get_args(Bad)), ("jointly", (True, False))):
        if getattr(how, name) not in allowed:
            raise ValueError(f"{who}: expected {name} as one of {allowed}, got {getattr(how, name)!r}")
    if not isinstance(how.separator, str):
        raise TypeError(f"{who}: expected separator as a text, got {how.separator!r}")
    return dataclasses.replace(
        how,
        max_length=None if how.max_length is None else whole(how.max_length, "max_length", 1, who),
        jointly=bool(how.jointly),
        eos=how.eos if isinstance(how.eos, bool) else operator.index(how.eos),
        rows_at_once=whole(how.rows_at_once, "rows_at_once", 1, who),
    )
