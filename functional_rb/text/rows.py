"""What a row says: a prompt and its replies, as texts; or why it cannot be used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from functional_rb.text.sources import NoRow
from functional_rb.text.tokenizing import TemplateFailed, Then, common

# A message of a conversation: its role and content, or tool calls, and what else a chat template reads.
Message: TypeAlias = dict[str, Any]
# What a column says: a text, or the messages of a conversation.
Said: TypeAlias = str | list[Message]
# A conversation as text, by what follows and by options of the template: see `Tokenizing.render`.
Render = Callable[[Sequence[Message], Then, Mapping[str, object]], str]
REASONS = (
    *("too_long", "empty_reply", "empty_prompt", "equal", "no_text", "no_utf8", "no_number", "no_row"),
    *("template", "tokenizer"),
)


class UnusableRow(Exception):
    """A row that says nothing to learn from: for one of `REASONS`, in a column, or None for the row."""

    def __init__(self, reason: str, column: str | None, what: str) -> None:
        super().__init__(what)
        self.reason, self.column, self.what = reason, column, what


class Columns(NamedTuple):
    """The columns that are read."""

    prompt: str | None  # None where chosen and rejected texts begin with it
    replies: tuple[str, ...]  # the chosen and the rejected one; the one of a prompt; or none
    scores: tuple[str, ...] = ()  # the columns of scores, as many as replies, or none
    # Whether prompt and reply are in one column: a conversation whose last message is the reply, or a text that is all
    # reply.
    whole: bool = False
    # The column of the tools that a model may call, for conversations; None if it is not to be read.
    tools: str | None = None
    template: str | None = None  # the column of other options of the chat template; None likewise

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*filter(None, [self.prompt]), *self.replies, *self.scores)))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.needed, *filter(None, (self.tools, self.template)))


class Texts(NamedTuple):
    """What a row says."""

    # For each reply the prompt before it, and the reply; for a prompt alone that, and nothing.
    pairs: tuple[tuple[str, str], ...]
    templated: bool  # whether they are conversations, in which the chat template has put special tokens
    scores: tuple[float, ...]  # the scores of the replies, if they are read


def texts_of(row: object, columns: Columns, separator: str, render: Render) -> Texts:
    """What a row says, whose prompt and reply have the separator between them where they are no conversations."""
    if isinstance(row, NoRow) or not isinstance(row, Mapping):
        what = row.reason if isinstance(row, NoRow) else f"got {type(row).__name__}"
        raise UnusableRow("no_row", None, f"expected columns {list(columns.needed)}: {what}")
    prompt, replies = _parted(row, columns) if columns.whole else _prompt_and_replies(row, columns)
    scores: tuple[float, ...] = ()
    for name in columns.scores:
        value: Any = row.get(name)
        if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(float(value)):
            raise UnusableRow("no_number", name, f"expected a finite number, got {value!r:.40}")
        scores += (float(value),)
    for name, reply in zip(columns.replies, replies, strict=True):
        if isinstance(reply, str) != isinstance(prompt, str):
            raise UnusableRow("no_text", name, "expected conversations in all columns, or texts in all, got both")
        if not reply:
            raise UnusableRow("empty_reply", name, "expected a reply, got an empty one")
    if not isinstance(prompt, str):
        return Texts(_rendered(prompt, replies, columns, _template_options(row, columns), render), True, scores)
    if not replies:
        return Texts(((prompt, ""),), False, scores)
    begun = prompt if columns.whole else prompt + separator
    return Texts(tuple((begun, str(reply)) for reply in replies), False, scores)


def _prompt_and_replies(row: Mapping[str, object], columns: Columns) -> tuple[Said, list[Said]]:
    replies = [_read(row, name) for name in columns.replies]
    if len(replies) == 2 and replies[0] == replies[1]:
        raise UnusableRow("equal", columns.replies[1], f"expected another text than in {columns.replies[0]!r}, got it")
    prompt = None if columns.prompt is None else _read(row, columns.prompt)
    two_talks = len(replies) == 2 and not any(isinstance(reply, str) for reply in replies)
    if prompt is None or (isinstance(prompt, str) and two_talks):  # a text beside whole conversations tells nothing new
        prompt = _implicit(replies, columns)
        replies = [reply[len(prompt) :] for reply in replies]
    return prompt, replies


def _parted(row: Mapping[str, object], columns: Columns) -> tuple[Said, list[Said]]:
    name = columns.prompt
    assert name is not None
    said = _read(row, name)
    if isinstance(said, str):
        return ("", [said]) if columns.replies else (said, [])
    last = said[-1]["role"] if said else None
    if not columns.replies:
        return (said[:-1] if last == "assistant" else said), []
    if last != "assistant":
        got = "none" if last is None else f"one of {last!r}"
        raise UnusableRow("empty_reply", name, f"expected a message of 'assistant' at the end, got {got}")
    return said[:-1], [said[-1:]]


def _read(row: Mapping[str, object], name: str) -> Said:
    if name not in row:
        raise UnusableRow("no_text", name, f"expected a text or a conversation, got no such column among {list(row)}")
    value = row[name]
    if isinstance(value, str):
        _check_utf8(value, name)
        return value
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        got = "None" if value is None else type(value).__name__
        raise UnusableRow("no_text", name, f"expected a text or a conversation, got {got}")
    return [_message(message, k, name) for k, message in enumerate(value)]


def _message(value: object, number: int, name: str) -> Message:
    message = {} if not isinstance(value, Mapping) else {key: x for key, x in value.items() if x is not None}
    for key, usual in (("from", "role"), ("value", "content")):
        if key in message:  # ShareGPT's names
            message.setdefault(usual, message.pop(key))
    if "role" not in message or len(message) == 1:  # tool calls may stand for a content
        raise UnusableRow("no_text", name, f"message {number}: expected role and content, got {value!r:.80}")
    if isinstance(message.get("content"), str):
        _check_utf8(message["content"], name)
    return message


def _template_options(row: Mapping[str, object], columns: Columns) -> dict[str, object]:
    options_given: dict[str, object] = {}
    options = None if columns.template is None else row.get(columns.template)
    if options is not None:
        if not isinstance(options, Mapping):
            raise UnusableRow("template", columns.template, f"expected a dict of options, got {type(options).__name__}")
        options_given = {str(name): x for name, x in options.items() if x is not None}
    tools: Any = None if columns.tools is None else row.get(columns.tools)
    try:
        tools = json.loads(tools) if isinstance(tools, str) else tools
    except ValueError as error:
        raise UnusableRow("template", columns.tools, f"expected tools as JSON, got other text ({error})") from error
    return {"tools": list(tools), **options_given} if tools else options_given


def _check_utf8(text: str, name: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnusableRow("no_utf8", name, f"expected UTF-8, got another byte at character {error.start}") from None


def _implicit(replies: list[Said], columns: Columns) -> Said:
    # The prompt that two texts, or conversations, begin with; each goes on for a word, or a message, at least.
    first, second = replies
    size = common(first, second)
    if not isinstance(first, str) and not isinstance(second, str):
        return first[: min(size, len(first) - 1, len(second) - 1)] if first and second else []
    if not isinstance(first, str) or not isinstance(second, str):
        raise UnusableRow("no_text", columns.replies[1], "expected conversations in all columns, or texts in all")
    rest = first[size : size + 1], second[size : size + 1]
    if all(rest) and (first[size - 1 : size].isspace() or any(x.isspace() for x in rest)):
        # A blank goes with the word behind it, as tokenizers have it, and so not with the prompt.
        return first[: size - first[:size].endswith(" ")]
    while size and not first[size - 1].isspace():  # within a word, which then belongs to the replies
        size -= 1
    return first[: size - first[:size].endswith(" ")]


def _rendered(
    prompt: list[Message], replies: Sequence[Said], columns: Columns, options: Mapping[str, object], render: Render
) -> tuple[tuple[str, str], ...]:
    def write(name: str, messages: Sequence[Message], then: Then) -> str:
        try:
            return render(messages, then, options)
        except TemplateFailed as error:
            raise UnusableRow("template", name, str(error)) from error.__cause__

    begun, first = "", columns.prompt or columns.replies[0]
    if prompt:
        begun = write(first, prompt, "more" if prompt[-1]["role"] == "assistant" else "reply")
    if not replies:
        return ((begun, ""),)
    # Templates may end a prompt otherwise where a reply follows, so the border is where the texts begin to differ.
    wholes = [write(name, [*prompt, *reply], "end") for name, reply in zip(columns.replies, replies, strict=True)]
    size = min(common(begun, whole) for whole in wholes)
    return tuple((whole[:size], whole[size:]) for whole in wholes)
