"""What a row says: a prompt and its replies, as texts; or why it cannot be used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from functional_rb.text.sources import NoRow
from functional_rb.text.tokenizing import common

Render = Callable[[Sequence[Any], bool], str]
"""A conversation as text, and whether a reply is to follow: see `Tokenizing.render`."""
REASONS = ("too_long", "empty_reply", "empty_prompt", "equal", "no_text", "no_utf8", "no_number", "no_row")


class UnusableRow(Exception):
    """A row that says nothing to learn from.

    Attributes:
        reason: one of `REASONS`.
        column: the name of the column; None for the row.
        what: what was expected of it, and what came.
    """

    def __init__(self, reason: str, column: str | None, what: str) -> None:
        """Say why."""
        super().__init__(what)
        self.reason, self.column, self.what = reason, column, what


class Columns(NamedTuple):
    """The columns that are read.

    Attributes:
        prompt: None where chosen and rejected texts begin with it.
        replies: the chosen and the rejected one; the one of a prompt; or none.
        scores: as many as replies, or none.
    """

    prompt: str | None
    replies: tuple[str, ...]
    scores: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*(() if self.prompt is None else (self.prompt,)), *self.replies, *self.scores)


class Texts(NamedTuple):
    """What a row says.

    Attributes:
        pairs: for each reply the prompt before it, and the reply; for a prompt alone that, and nothing.
        templated: whether they are conversations, in which the chat template has put special tokens.
        scores: of each reply, if they are read.
    """

    pairs: tuple[tuple[str, str], ...]
    templated: bool
    scores: tuple[float, ...]


def texts_of(row: Any, columns: Columns, separator: str, render: Render) -> Texts:
    """What a row says.

    Args:
        row: by column.
        columns: those to read.
        separator: what stands between a prompt and its reply, where these are no conversations.
        render: makes texts of conversations.

    Raises:
        UnusableRow: if it says nothing to learn from.
    """
    if isinstance(row, NoRow) or not isinstance(row, Mapping):
        what = row.reason if isinstance(row, NoRow) else f"got {type(row).__name__}"
        raise UnusableRow("no_row", None, f"expected columns {list(columns.names)}: {what}")
    replies = [_read(row, name) for name in columns.replies]
    scores = tuple(_number(row, name) for name in columns.scores)
    if len(replies) == 2 and replies[0] == replies[1]:
        raise UnusableRow("equal", columns.replies[1], f"expected another text than in {columns.replies[0]!r}, got it")
    prompt = _implicit(replies, columns) if columns.prompt is None else _read(row, columns.prompt)
    if columns.prompt is None:
        replies = [reply[len(prompt) :] for reply in replies]
    for name, reply in zip(columns.replies, replies, strict=True):
        if isinstance(reply, str) != isinstance(prompt, str):
            raise UnusableRow("no_text", name, "expected conversations in all columns, or texts in all, got both")
        if not reply:
            raise UnusableRow("empty_reply", name, "expected a reply, got an empty one")
    if not isinstance(prompt, str):
        return Texts(_rendered(prompt, replies, render), True, scores)
    if not replies:
        return Texts(((prompt, ""),), False, scores)
    begun = prompt + separator
    return Texts(tuple((begun, str(reply)) for reply in replies), False, scores)


def _read(row: Mapping[str, Any], name: str) -> str | list[Any]:
    """A text or a conversation."""
    if name not in row:
        raise UnusableRow("no_text", name, f"expected a text or a conversation, got no such column among {list(row)}")
    value = row[name]
    if isinstance(value, str):
        _check_utf8(value, name)
        return value
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        got = "None" if value is None else type(value).__name__
        raise UnusableRow("no_text", name, f"expected a text or a conversation, got {got}")
    for k, message in enumerate(value):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise UnusableRow("no_text", name, f"message {k}: expected role and content, got {message!r:.80}")
        if isinstance(message["content"], str):
            _check_utf8(message["content"], name)
    return list(value)


def _check_utf8(text: str, name: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnusableRow("no_utf8", name, f"expected UTF-8, got another byte at character {error.start}") from None


def _number(row: Mapping[str, Any], name: str) -> float:
    value: Any = row.get(name)
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(float(value)):
        raise UnusableRow("no_number", name, f"expected a finite number, got {value!r:.40}")
    return float(value)


def _implicit(replies: list[Any], columns: Columns) -> str | list[Any]:
    """The prompt that two texts, or conversations, begin with; each goes on for a word, or a message, at least."""
    first, second = replies
    if isinstance(first, str) != isinstance(second, str):
        raise UnusableRow("no_text", columns.replies[1], "expected conversations in all columns, or texts in all")
    size = common(first, second)
    if not isinstance(first, str):
        return list(first[: min(size, len(first) - 1, len(second) - 1)]) if first and second else []
    rest = first[size : size + 1], second[size : size + 1]
    if all(rest) and (first[size - 1 : size].isspace() or any(x.isspace() for x in rest)):
        return first[: size - first[:size].endswith(" ")]
    while size and not first[size - 1].isspace():  # within a word, which then belongs to the replies
        size -= 1
    return first[: size - first[:size].endswith(" ")]


def _rendered(prompt: list[Any], replies: Sequence[Any], render: Render) -> tuple[tuple[str, str], ...]:
    """Conversations as text; the prompt is what the template writes before any reply."""
    going_on = bool(prompt) and prompt[-1]["role"] != "assistant"
    begun = render(prompt, going_on) if prompt else ""
    if not replies:
        return ((begun, ""),)
    made = []
    for reply in replies:
        whole = render([*prompt, *reply], False)
        size = common(begun, whole)
        made.append((whole[:size], whole[size:]))
    return tuple(made)
