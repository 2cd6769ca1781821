"""Texts become tokens in files: which tokens, from which sources, what is refused, and what is found again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.text import pipeline, sources, writing
from tests.support.effort import effort
from tests.support.tokenizers_trained import END, WORDS, bpe, of_merges, of_transformers, of_words

ROWS = [
    {"prompt": "why is the sky so blue?", "chosen": " it is the light.", "rejected": " yes."},
    {"prompt": "the café, größer", "chosen": " naïve 🙂 so", "rejected": " naïve 🙂 no"},
    {"prompt": "", "chosen": "the cat", "rejected": "the dog"},
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tokenizers fork no threads, of which the processes that tests start would warn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One of transformers, which takes a second to import."""
    return of_transformers()


def ids_of(prepared: frb.text.Prepared) -> list[list[list[int]]]:
    return [[tokens.tolist() for tokens in prepared.example(k)] for k in range(prepared.examples)]


def borders(prepared: frb.text.Prepared) -> list[list[int]]:
    return prepared.rows["prompts"].tolist()


# ---------------------------------------------------------------- which tokens


def test_tokens_are_those_of_the_whole_text_and_the_border_is_where_the_reply_begins(
    tokenizer: Any, tmp_path: Path
) -> None:
    made = frb.text.preference(ROWS, tokenizer, root=tmp_path)
    assert (made.examples, made.dropped, made.merged, made.dtype) == (3, {}, 0, "uint16")
    for row, texts, begin in zip(ROWS, ids_of(made), borders(made), strict=True):
        for name, ids, at in zip(("chosen", "rejected"), texts, begin, strict=True):
            assert ids == [*tokenizer(row["prompt"] + row[name])["input_ids"], tokenizer.eos_token_id]
            # The end of the prompt is exclusive: no token of it is missing, and none of the reply is in it.
            assert tokenizer.decode(ids[:at]) == row["prompt"]
            assert tokenizer.decode(ids[at:]) == row[name] + END
    assert made.tokens < made.text_tokens == sum(len(ids) for texts in ids_of(made) for ids in texts)


def test_apart_the_tokens_are_those_of_each_text(tokenizer: Any, tmp_path: Path) -> None:
    made = frb.text.preference(ROWS, tokenizer, jointly=False, eos=False, root=tmp_path)
    for row, texts, begin in zip(ROWS, ids_of(made), borders(made), strict=True):
        prompt = tokenizer(row["prompt"])["input_ids"]
        assert begin == [len(prompt)] * 2
        assert texts == [prompt + tokenizer(row[name])["input_ids"] for name in ("chosen", "rejected")]


def test_a_token_over_the_border_is_the_replys(tmp_path: Path) -> None:
    """Jointly, "a" + "bc" is "ab", "c": no token ends where the prompt does."""
    rows = [{"prompt": "ca", "chosen": "bc", "rejected": "cc"}]
    made = frb.text.preference(rows, of_merges(), eos=False, root=tmp_path)
    assert ids_of(made) == [[[2, 3, 2], [2, 0, 2, 2]]]
    assert (borders(made), made.merged) == ([[1, 2]], 1)
    apart = frb.text.preference(rows, of_merges(), eos=False, jointly=False, root=tmp_path)
    assert ids_of(apart) == [[[2, 0, 1, 2], [2, 0, 2, 2]]]
    assert (borders(apart), apart.merged) == ([[2, 2]], 0)


class Slow:
    """A tokenizer that is not fast: it cannot tell which token has which characters."""

    def __init__(self) -> None:
        self._inner = of_merges()
        self.eos_token_id, self.pad_token_id = None, None

    def __call__(self, texts: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        one = isinstance(texts, str)
        ids = [encoding.ids for encoding in self._inner.encode_batch([texts] if one else texts)]
        return {"input_ids": ids[0] if one else ids}

    def __len__(self) -> int:
        return 5

    def get_vocab(self) -> dict[str, int]:
        return dict(self._inner.get_vocab())

    def save_pretrained(self, directory: str) -> tuple[str]:
        path = os.path.join(directory, "tokenizer.json")
        self._inner.save(path)
        return (path,)


def test_tokenizers_that_are_not_fast_give_the_same(tmp_path: Path) -> None:
    rows = [{"prompt": "ca", "chosen": "bc", "rejected": "cc"}, {"prompt": "", "chosen": "ab", "rejected": "b"}]
    for jointly in (True, False):
        found = [
            frb.text.preference(rows, one, eos=False, jointly=jointly, root=tmp_path) for one in (of_merges(), Slow())
        ]
        assert found[0].path != found[1].path
        assert ids_of(found[0]) == ids_of(found[1])
        assert borders(found[0]) == borders(found[1])
        assert found[0].merged == found[1].merged == int(jointly)


def test_special_tokens_of_the_tokenizer_stand_around_texts(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    framed = of_words()
    framed.post_processor = TemplateProcessing(
        single="cat $A mat end", special_tokens=[("cat", 8), ("mat", 11), ("end", 12)]
    )
    rows = [{"prompt": "why so", "chosen": " no", "rejected": " yes end"}]
    # "end" is what the tokenizer puts there itself, so it is not put there again; a reply may end itself.
    made = frb.text.preference(rows, framed, eos=12, root=tmp_path)
    assert ids_of(made) == [[[8, 0, 1, 2, 11, 12], [8, 0, 1, 3, 12, 11, 12]]]
    assert borders(made) == [[3, 3]]
    cut = frb.text.preference(rows, framed, eos=12, max_length=6, too_long="truncate_prompt", root=tmp_path)
    assert ids_of(cut) == [[[8, 1, 2, 11, 12], [8, 1, 3, 12, 11, 12]]]
    alone = frb.text.prompts(rows, framed, columns={"reply": None}, root=tmp_path)
    assert ids_of(alone) == [[[8, 0, 1]]]
    plain = frb.text.preference(rows, of_words(), eos=12, root=tmp_path)
    assert ids_of(plain) == [[[0, 1, 2, 12], [0, 1, 3, 12]]]
    beyond = frb.text.preference(rows, of_words(), eos=70_000, root=tmp_path)  # which 16 bits do not hold
    assert ids_of(beyond) == [[[0, 1, 2, 70_000], [0, 1, 3, 12, 70_000]]]


def test_conversations_are_what_the_chat_template_writes(tokenizer: Any, tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "why?"}]
    replies = [[{"role": "assistant", "content": text}] for text in ("so", "the light")]
    rows = [
        {"prompt": prompt, "chosen": replies[0], "rejected": replies[1]},
        {"prompt": [*prompt, *replies[0], *prompt], "chosen": replies[1], "rejected": replies[0]},
    ]
    made = frb.text.preference(rows, tokenizer, root=tmp_path)
    for row, texts, begin in zip(rows, ids_of(made), borders(made), strict=True):
        for name, ids, at in zip(("chosen", "rejected"), texts, begin, strict=True):
            assert tokenizer.decode(ids) == tokenizer.apply_chat_template(row["prompt"] + row[name], tokenize=False)
            begun = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
            assert tokenizer.decode(ids[:at]) == begun
    assert ids_of(made)[0][0].count(tokenizer.eos_token_id) == 2  # the template's, and no other
    whole = [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")} for row in rows]
    implicit = frb.text.preference(whole, tokenizer, root=tmp_path)
    assert (ids_of(implicit), borders(implicit)) == (ids_of(made), borders(made))
    with pytest.raises(ValueError, match="the tokenizer has no chat template"):
        frb.text.preference(rows, of_transformers(None), root=tmp_path)


TOOLS = (
    "{% if tools %}<|tools|>{{ tools | tojson }}<|end|>{% endif %}{% if style %}<|style|>{{ style }}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{% if 'tool_calls' in m %}{{ m['tool_calls'] | tojson }}"
    "{% else %}{{ m['content'] }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LIGHT = {"type": "function", "function": {"name": "light", "arguments": {"room": "cat"}}}
TALK = [
    {"role": "user", "content": "why?"},
    {"role": "assistant", "tool_calls": [LIGHT]},
    {"role": "tool", "name": "light", "content": "on"},
    {"role": "assistant", "content": "so"},
]


def decoded(tokenizer: Any, made: frb.text.Prepared) -> list[list[tuple[str, str]]]:
    """Prompt and reply of each text of each example."""
    return [
        [(tokenizer.decode(ids[:at]), tokenizer.decode(ids[at:])) for ids, at in zip(texts, begin, strict=True)]
        for texts, begin in zip(ids_of(made), borders(made), strict=True)
    ]


def test_the_last_message_of_a_conversation_is_the_reply(tokenizer: Any, tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}]
    rows = [{"messages": hello}, {"messages": hello + hello[:1] + [{"role": "assistant", "content": "no"}]}]
    made = frb.text.prompts(rows, tokenizer, root=tmp_path)
    asked = "<|user|>why?<|end|><|assistant|>"
    whole = [[(asked, "so<|end|>")], [(f"{asked}so<|end|>{asked}", "no<|end|>")]]
    assert (decoded(tokenizer, made), made.labelled) == (whole, True)
    named = [{"conversations": [{"from": m["role"], "value": m["content"]} for m in row["messages"]]} for row in rows]
    assert decoded(tokenizer, frb.text.prompts(named, tokenizer, root=tmp_path)) == whole
    alone = frb.text.prompts(rows, tokenizer, columns={"reply": None}, root=tmp_path)
    assert decoded(tokenizer, alone) == [[(prompt, "")] for ((prompt, _),) in whole]
    assert not alone.labelled
    # A text is a reply from its first token on.
    text = frb.text.prompts([{"text": "why so"}], tokenizer, separator="?", root=tmp_path)
    assert decoded(tokenizer, text) == [[("", "why so<|end|>")]]
    for messages, got in ((hello[:1], "one of 'user'"), ([], "none")):
        with pytest.raises(ValueError, match=rf"row 2, column 'messages': expected a message of 'assistant' .*{got}"):
            frb.text.prompts([*rows, {"messages": messages}], tokenizer, root=tmp_path)
    # Where there is a prompt, that is it; and whether a reply is liked is none.
    liked = [{"prompt": "why", "completion": " so", "label": True, "messages": hello}]
    assert decoded(tokenizer, frb.text.prompts(liked, tokenizer, root=tmp_path)) == [[("why", " so<|end|>")]]
    asked_for = frb.text.prompts(liked, tokenizer, columns={"messages": "messages"}, root=tmp_path)
    assert decoded(tokenizer, asked_for) == whole[:1]


def test_a_text_beside_whole_conversations_is_none_of_them(tokenizer: Any, tmp_path: Path) -> None:
    asked, replies = {"role": "user", "content": "why?"}, [{"role": "assistant", "content": x} for x in ("so", "no")]
    row = {"prompt": "why?", "chosen": [asked, replies[0]], "rejected": [asked, replies[1]]}
    begun = "<|user|>why?<|end|><|assistant|>"
    expected = [[(begun, "so<|end|>"), (begun, "no<|end|>")]]
    assert decoded(tokenizer, frb.text.preference([row], tokenizer, root=tmp_path)) == expected
    row["prompt"] = [asked]
    row |= {"chosen": replies[:1], "rejected": replies[1:]}
    assert decoded(tokenizer, frb.text.preference([row], tokenizer, root=tmp_path)) == expected


def test_an_answer_that_was_begun_is_gone_on_with(tokenizer: Any, tmp_path: Path) -> None:
    begun = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so it"}]
    made = frb.text.prompts([{"prompt": begun}], tokenizer, root=tmp_path)
    assert decoded(tokenizer, made) == [[("<|user|>why?<|end|><|assistant|>so it", "")]]


def test_both_replies_go_on_from_one_prompt(tmp_path: Path) -> None:
    """Though the template begins replies with what one of them does not begin with."""
    thinks = of_transformers(
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>the{% endif %}"
    )
    asked, replies = (
        [{"role": "user", "content": "why?"}],
        [[{"role": "assistant", "content": x}] for x in ("the", "no")],
    )
    rows = [{"prompt": asked, "chosen": replies[0], "rejected": replies[1]}]
    begun = "<|user|>why?<|end|><|assistant|>"
    expected = [[(begun, "the<|end|>"), (begun, "no<|end|>")]]
    assert decoded(thinks, frb.text.preference(rows, thinks, root=tmp_path)) == expected


@pytest.mark.parametrize("kind", ["dicts", "none", "json", "stream"])
def test_tools_and_options_are_told_to_the_template(kind: str, tmp_path: Path) -> None:
    from datasets import Dataset

    given = [{"messages": TALK, "tools": [LIGHT], "chat_template_kwargs": {"style": "mat"}}]
    given.append({"messages": [TALK[0], TALK[3]], "tools": [], "chat_template_kwargs": {"style": None}})
    with_tools = of_transformers(TOOLS)
    rows: Any = given
    if kind == "none":  # what a message has not is None, as another has it
        rows = Dataset.from_list(given)
    elif kind == "json":
        rows = Dataset.from_list(given, on_mixed_types="use_json")
        assert "Json" in repr(rows.features["messages"])
    elif kind == "stream":  # tools as text, as they are kept in tables
        rows = (row | {"tools": json.dumps(row["tools"])} for row in given)
    made = frb.text.prompts(rows, with_tools, root=tmp_path)
    for row, ((prompt, reply),) in zip(given, decoded(with_tools, made), strict=True):
        told = {"tools": row["tools"] or None, **row["chat_template_kwargs"]}
        whole = with_tools.apply_chat_template(row["messages"], tokenize=False, **told)
        assert prompt + reply == whole
        assert reply == "so<|end|>"
    plain = frb.text.prompts(given, with_tools, columns={"tools": None, "chat_template_kwargs": None}, root=tmp_path)
    assert decoded(with_tools, plain)[0][0][0].startswith("<|user|>why?")
    for name, value, message in (("tools", "{", "expected tools as JSON"), ("chat_template_kwargs", 3, "got int")):
        with pytest.raises(ValueError, match=f"row 0, column '{name}': .*{message}"):
            frb.text.prompts([given[0] | {name: value}], with_tools, root=tmp_path)


def test_a_template_that_fails_is_named_with_row_and_column(tmp_path: Path) -> None:
    strict = of_transformers(
        "{% for m in messages %}{% if m['content'] == 'no' %}{{ raise_exception('no is no answer') }}{% endif %}"
        "<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    asked, replies = (
        [{"role": "user", "content": "why?"}],
        [[{"role": "assistant", "content": x}] for x in ("so", "no")],
    )
    good = {"prompt": asked, "chosen": replies[0], "rejected": [{"role": "assistant", "content": "yes"}]}
    for row, column in (
        (good | {"rejected": replies[1]}, "rejected"),
        (good | {"prompt": [{"role": "user", "content": "no"}]}, "prompt"),
    ):
        message = (
            f"text.preference: row 1, column '{column}': the chat template failed by TemplateError: no is no answer"
        )
        with pytest.raises(ValueError, match=message) as caught:
            frb.text.preference([good, row, good], strict, root=tmp_path)
        assert type(caught.value.__cause__).__name__ == "TemplateError"
        made = frb.text.preference([good, row, good], strict, bad="drop", root=tmp_path)
        assert (made.examples, made.dropped) == (2, {"template": 1})


@pytest.mark.parametrize("jointly", [True, False])
def test_a_tokenizer_that_fails_is_named_with_row_and_column(jointly: bool, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="unknown"))  # there is none
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    options: dict[str, Any] = {"eos": 12, "jointly": jointly, "rows_at_once": 4, "root": tmp_path}
    for column, value in (("rejected", " dog"), ("chosen", " dog"), ("prompt", "dog")):
        rows = [*[GOOD] * 5, GOOD | {column: value}, GOOD | {"prompt": "so"}]
        with pytest.raises(ValueError, match=f"row 5, column '{column}': the tokenizer failed by .*UNK") as caught:
            frb.text.preference(rows, words, **options)
        assert "UNK" in str(caught.value.__cause__)
        made = frb.text.preference(rows, words, bad="drop", **options)
        assert ids_of(made) == [*[[[0, 3, 12], [0, 2, 12]]] * 5, [[1, 3, 12], [1, 2, 12]]]
        assert made.dropped == {"tokenizer": 1}


def test_errors_of_the_system_are_none_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError, OSError, KeyboardInterrupt):

        def failing(*_: Any, error: Any = error) -> Any:
            raise error("not the row's")

        monkeypatch.setattr("functional_rb.text.tokenizing.Tokenizing.together", failing)
        with pytest.raises(error, match="not the row's"):
            frb.text.preference([GOOD], of_words(), eos=12, bad="drop", root=tmp_path)


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("why so? yes maybe", "why so? no", "why so?"),
        ("why so? now", "why so? not", "why so?"),  # not within a word
        ("so now", "so now not", "so"),  # a word is left to both
        ("yes", "no", ""),
        ("mat", "map", ""),
        ("a\nyes", "a\nno", "a\n"),
    ],
)
def test_the_prompt_that_two_texts_begin_with(chosen: str, rejected: str, prompt: str, tmp_path: Path) -> None:
    for first, second in ((chosen, rejected), (rejected, chosen)):
        rows = [{"chosen": first, "rejected": second}]
        made = frb.text.preference(rows, bpe(), eos=False, jointly=False, root=tmp_path)
        ((one, other),) = ids_of(made)
        ((at, _),) = borders(made)
        assert bpe().decode(one[:at]) == bpe().decode(other[:at]) == prompt
        assert (bpe().decode(one), bpe().decode(other)) == (first, second)


def test_prompts_with_replies_and_without(tokenizer: Any, tmp_path: Path) -> None:
    for reply in ("label", "completion"):
        rows = [{"prompt": "why is", reply: " the light"}]
        made = frb.text.prompts(rows, tokenizer, separator="\n", root=tmp_path)
        ((ids,),) = ids_of(made)
        ((at,),) = borders(made)
        assert tokenizer.decode(ids[:at]) == "why is\n"
        assert tokenizer.decode(ids) == f"why is\n the light{END}"
        assert made.labelled
    alone = frb.text.prompts([{"prompt": "why is"}], tokenizer, root=tmp_path)
    assert ids_of(alone) == [[tokenizer("why is")["input_ids"]]]
    assert borders(alone) == [[len(ids_of(alone)[0][0])]]
    assert not alone.labelled
    talk = [{"role": "user", "content": "why?"}]
    chat = frb.text.prompts([{"prompt": talk}], tokenizer, root=tmp_path)
    assert tokenizer.decode(ids_of(chat)[0][0]) == "<|user|>why?<|end|><|assistant|>"


# ---------------------------------------------------------------- how long


def test_what_is_too_long_is_dropped_cut_or_refused(tmp_path: Path) -> None:
    rows = [
        {"prompt": "why so no", "chosen": " yes yes", "rejected": " no"},
        {"prompt": "so", "chosen": " yes yes yes yes", "rejected": " no"},
        {"prompt": "now", "chosen": " yes", "rejected": " no"},
    ]
    options: dict[str, Any] = {"eos": False, "max_length": 4, "root": tmp_path}
    dropped = frb.text.preference(rows, of_words(), **options)
    assert (ids_of(dropped), dropped.dropped) == ([[[6, 3], [6, 2]]], {"too_long": 2})
    cut = frb.text.preference(rows, of_words(), too_long="truncate_prompt", **options)
    # As much for both texts, so that they still go on from one prompt; of the second nothing would be left.
    assert (ids_of(cut), cut.dropped) == ([[[1, 2, 3, 3], [1, 2, 2]], [[6, 3], [6, 2]]], {"too_long": 1})
    assert borders(cut) == [[2, 2], [1, 1]]
    with pytest.raises(ValueError, match=r"row 0, column 'chosen': 5 tokens with the prompt, more than 4; .*'drop'"):
        frb.text.preference(rows, of_words(), too_long="error", **options)
    assert frb.text.preference(rows, of_words(), eos=False, max_length=5, root=tmp_path).longest == 5
    # A prompt that is too long by itself is no other case.
    alone = [{"prompt": "why so no yes maybe not", "chosen": " yes", "rejected": " no"}]
    options["max_length"] = 3
    assert frb.text.preference(alone, of_words(), **options).dropped == {"too_long": 1}
    cut = frb.text.preference(alone, of_words(), too_long="truncate_prompt", **options)
    assert ids_of(cut) == [[[4, 5, 3], [4, 5, 2]]]
    only = [{"prompt": "why so no yes maybe not"}]
    assert ids_of(frb.text.prompts(only, of_words(), too_long="truncate_prompt", **options)) == [[[3, 4, 5]]]
    with pytest.raises(ValueError, match="row 0, column 'prompt': 6 tokens with the prompt, more than 3"):
        frb.text.prompts(only, of_words(), too_long="error", **options)


# ---------------------------------------------------------------- what cannot be used

GOOD = {"prompt": "why", "chosen": " yes", "rejected": " no"}
BAD = {
    "no_text": [
        (
            {"prompt": "why", "rejected": " no"},
            "column 'chosen': expected a text or a conversation, got no such column",
        ),
        (GOOD | {"chosen": None}, "column 'chosen': expected a text or a conversation, got None"),
        (GOOD | {"rejected": 3}, "column 'rejected': .* got int"),
        (GOOD | {"prompt": [{"content": "why"}]}, "column 'prompt': message 0: expected role and content"),
        (
            GOOD | {"prompt": [{"role": "user", "content": None}]},
            "column 'prompt': message 0: expected role and content",
        ),
        (GOOD | {"prompt": []}, "column 'chosen': expected conversations in all columns, or texts in all"),
    ],
    "no_utf8": [(GOOD | {"chosen": "ye\udcff"}, "column 'chosen': expected UTF-8, got another byte at character 2")],
    "empty_reply": [
        (GOOD | {"chosen": ""}, "column 'chosen': expected a reply, got an empty one"),
        (GOOD | {"rejected": "  "}, "column 'rejected': expected a reply, got one without a token"),
    ],
    "equal": [(GOOD | {"chosen": " no"}, "column 'rejected': expected another text than in 'chosen'")],
    "no_row": [(7, "expected columns .*: got int")],
}


@pytest.mark.parametrize("reason", BAD)
def test_rows_that_cannot_be_used_are_named_or_counted(reason: str, tmp_path: Path) -> None:
    for row, message in BAD[reason]:
        rows = [GOOD, row, GOOD | {"prompt": "so"}]
        with pytest.raises(ValueError, match=f"text.preference: row 1.*{message}"):
            frb.text.preference(rows, of_words(), eos=12, root=tmp_path)
        assert not os.listdir(tmp_path)
        made = frb.text.preference(rows, of_words(), eos=12, bad="drop", root=tmp_path)
        # What is left out is a whole row: no text is paired with that of another row.
        assert ids_of(made) == [[[0, 3, 12], [0, 2, 12]], [[1, 3, 12], [1, 2, 12]]]
        assert made.dropped == {reason: 1}
        for name in os.listdir(made.path):
            os.unlink(os.path.join(made.path, name))
        os.rmdir(made.path)


def test_scores_are_finite_numbers(tmp_path: Path) -> None:
    rows = [GOOD | {"good": 2, "poor": np.float64(-0.5)}, GOOD | {"good": float("nan"), "poor": 1.0}]
    with pytest.raises(ValueError, match="row 1, column 'good': expected a finite number, got nan"):
        frb.text.preference(rows, of_words(), eos=12, scores=("good", "poor"), root=tmp_path)
    made = frb.text.preference(rows, of_words(), eos=12, scores=("good", "poor"), bad="drop", root=tmp_path)
    assert made.rows["scores"].tolist() == [[2.0, -0.5]]
    assert made.dropped == {"no_number": 1}


def test_a_prompt_alone_has_a_token(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="row 0, column 'prompt': expected a prompt, got one without a token"):
        frb.text.prompts([{"prompt": " "}], of_words(), root=tmp_path)


def test_missing_columns_and_sources_that_are_empty(tmp_path: Path) -> None:
    words = of_words()
    with pytest.raises(ValueError, match=r"no column 'rejected' among \['prompt', 'chosen'\]; name it"):
        frb.text.preference([{"prompt": "why", "chosen": " so"}], words, eos=12, root=tmp_path)
    with pytest.raises(ValueError, match=r"no column 'question' among .*look at columns="):
        frb.text.prompts([{"prompt": "why"}], words, columns={"prompt": "question"}, root=tmp_path)
    with pytest.raises(ValueError, match="expected columns to name some of"):
        frb.text.prompts([{"prompt": "why"}], words, columns={"label": "prompt"}, root=tmp_path)
    exhausted = iter([GOOD])
    frb.text.preference(exhausted, words, eos=12, root=tmp_path)
    with pytest.raises(ValueError, match="an iterator that was read before has none any more"):
        frb.text.preference(exhausted, words, eos=12, root=tmp_path)
    none = frb.text.preference([GOOD], words, eos=12, max_length=1, root=tmp_path)
    assert (none.examples, none.longest) == (0, 0)
    with pytest.raises(ValueError, match=r"no examples to sample, \{'too_long': 1\} were dropped"):
        none.spec(1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"too_long": "cut"}, ValueError, "expected too_long as one of"),
        ({"bad": "ignore"}, ValueError, "expected bad as one of"),
        ({"max_length": 0}, ValueError, "expected max_length from 1 on"),
        ({"rows_at_once": 0}, ValueError, "expected rows_at_once from 1 on"),
        ({"separator": 1}, TypeError, "expected separator as a text"),
        ({"scores": ("prompt",)}, ValueError, "expected scores as two names"),
        ({"eos": True}, ValueError, "the tokenizer has no eos_token_id"),
    ],
)
def test_arguments(options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        frb.text.preference([GOOD], of_words(), **({"eos": 12, "root": tmp_path} | options))


def test_what_is_no_source_and_no_tokenizer(tmp_path: Path) -> None:
    for source, error, message in (
        (3, TypeError, "expected a datasets.Dataset, paths"),
        ({"train": [GOOD]}, TypeError, "got a mapping of 'train'; give one of its tables"),
        (tmp_path / "none.jsonl", FileNotFoundError, "no such file"),
        (tmp_path / "rows.csv", ValueError, r"expected a file \*\.jsonl"),
    ):
        with pytest.raises(error, match=message):
            frb.text.preference(source, of_words(), eos=12, root=tmp_path)
    with pytest.raises(TypeError, match="expected tokenizer as one of transformers"):
        frb.text.preference([GOOD], str.split, root=tmp_path)


# ---------------------------------------------------------------- where rows come from


def written(kind: str, rows: list[dict[str, Any]], tmp_path: Path) -> Any:
    """The same rows as a source of some kind."""
    if kind == "generator":
        return (dict(row) for row in rows)
    if kind == "lines":
        path = tmp_path / "rows.jsonl"
        path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
        return path
    if kind == "lines in parts":
        paths = [tmp_path / f"{k}.json" for k in (0, 1)]
        for path, part in zip(paths, (rows[:2], rows[2:]), strict=True):
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
        return paths
    if kind in ("parquet", "arrow", "stream"):
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.Table.from_pylist(rows)
        if kind == "parquet":
            parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=2)
            return tmp_path / "rows.parquet"
        new = pyarrow.ipc.new_file if kind == "arrow" else pyarrow.ipc.new_stream
        with new(str(tmp_path / f"{kind}.arrow"), table.schema) as file:
            file.write_table(table, max_chunksize=2)
        return tmp_path / f"{kind}.arrow"
    import datasets

    made = datasets.Dataset.from_list(rows)
    if kind == "selected":
        more = datasets.Dataset.from_list([rows[-1], *rows])
        return more.select(range(1, 1 + len(rows))).with_format("numpy")
    return made.to_iterable_dataset() if kind == "iterable" else made


SOURCES = ("generator", "lines", "lines in parts", "parquet", "arrow", "stream", "dataset", "selected", "iterable")


@pytest.mark.parametrize("kind", SOURCES)
def test_any_source_gives_the_same(kind: str, tmp_path: Path) -> None:
    rows = [row | {"more": k} for k, row in enumerate([*ROWS, *({"prompt": str(k)} | GOOD for k in range(3))])]
    options: dict[str, Any] = {"eos": False, "root": tmp_path / "cache", "rows_at_once": 4}
    expected = frb.text.preference(rows, bpe(), **options)
    made = frb.text.preference(written(kind, rows, tmp_path), bpe(), **options)
    assert ids_of(made) == ids_of(expected)
    for name in ("tokens.bin", "rows.bin"):
        assert Path(made.path, name).read_bytes() == Path(expected.path, name).read_bytes()
    if kind in ("generator", "dataset", "selected", "iterable"):  # told by the rows, not by a file's bytes
        assert made.path == expected.path
    assert sorted(os.listdir(made.path)) == ["prepared.json", "rows.bin", "tokens.bin"]
    assert all(name.startswith("preference-") for name in os.listdir(tmp_path / "cache"))


@pytest.mark.parametrize("kind", [*SOURCES[1:-1], "dicts"])
def test_sources_are_read_from_any_row_on(kind: str, tmp_path: Path) -> None:
    rows = [row | {"more": k} for k, row in enumerate(ROWS * 3)]
    source = sources.opened(rows if kind == "dicts" else written(kind, rows, tmp_path), "test")
    assert source is not None
    assert source.count in (len(rows), None)
    for start in range(len(rows) + 2):
        assert [row["more"] for row in source.rows(["prompt", "more"], start)] == list(range(start, len(rows)))


@pytest.mark.parametrize("kind", ["lines", "lines in parts", "parquet", "stream"])
def test_errors_name_the_file_and_the_place(kind: str, tmp_path: Path) -> None:
    source = written(kind, [*ROWS, GOOD | {"chosen": ""}], tmp_path)
    place = {
        "lines": r"rows\.jsonl, line 7",
        "lines in parts": r"1\.json, line 2",
        "parquet": r"rows\.parquet, row 3",
        "stream": r"stream\.arrow, row 3",
    }
    with pytest.raises(ValueError, match=rf"{place[kind]}, column 'chosen': expected a reply"):
        frb.text.preference(source, bpe(), eos=False, root=tmp_path, rows_at_once=3)


def test_wrong_utf8_and_wrong_json_in_files(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    lines = tmp_path / "rows.jsonl"
    good = json.dumps(GOOD).encode()
    lines.write_bytes(b"\n".join([good, good.replace(b"yes", b"y\xffs"), b'{"prompt": ', b"[]"]))
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2, column 'chosen': expected UTF-8"):
        frb.text.preference(lines, of_words(), eos=12, root=tmp_path)
    made = frb.text.preference(lines, of_words(), eos=12, bad="drop", root=tmp_path)
    assert (made.examples, made.dropped) == (1, {"no_utf8": 1, "no_row": 2})

    raw = {"prompt": [b"why", b"why"], "chosen": [b" yes", b" \xff"], "rejected": [b" no", b" no"]}
    columns = [pyarrow.array(column, pyarrow.binary()).view(pyarrow.string()) for column in raw.values()]
    table = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_arrays(columns, list(raw)), table)
    with pytest.raises(ValueError, match=r"rows\.parquet, row 1, column 'chosen': expected UTF-8"):
        frb.text.preference(table, of_words(), eos=12, root=tmp_path)


# ---------------------------------------------------------------- what is found again


def test_the_cache_knows_data_tokenizer_and_options(tokenizer: Any, tmp_path: Path) -> None:
    first = frb.text.preference(ROWS, tokenizer, root=tmp_path)
    seen = {first.path}
    changed = os.stat(first.path).st_mtime_ns, os.stat(Path(first.path, "tokens.bin")).st_ino
    tokenizer(["a", "b b"], padding=True, truncation=True, max_length=1)  # which changes how it pads and cuts
    same = frb.text.preference((row for row in ROWS), tokenizer, root=tmp_path, rows_at_once=1)
    assert same == first == frb.text.Prepared.open(first.path)
    assert (os.stat(first.path).st_mtime_ns, os.stat(Path(first.path, "tokens.bin")).st_ino) == changed
    begin = of_transformers()
    begin.add_tokens(["sky"])
    for other in (of_transformers("{{ messages }}"), of_transformers(eos_token="<|user|>"), begin):
        seen.add(frb.text.preference(ROWS, other, root=tmp_path).path)
    assert len(seen) == 4
    options: list[dict[str, Any]] = [{"max_length": 99}, {"jointly": False}, {"eos": False}, {"separator": " "}]
    seen |= {frb.text.preference(ROWS, tokenizer, root=tmp_path, **one).path for one in options}
    seen.add(frb.text.preference(ROWS[::-1], tokenizer, root=tmp_path).path)
    seen.add(frb.text.prompts(ROWS[:2], tokenizer, root=tmp_path).path)
    assert len(seen) == 10
    # A column that is not read is no difference.
    assert frb.text.preference([row | {"more": 1} for row in ROWS], tokenizer, root=tmp_path) == first


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "max_length": [{"max_length": 99}, {"max_length": 98}],
    "too_long": [{"too_long": "truncate_prompt"}, {"too_long": "error"}],
    "bad": [{"bad": "drop"}],
    "jointly": [{"jointly": False}],
    "eos": [{"eos": False}, {"eos": 3}],
    "separator": [{"separator": " "}],
    "columns": [
        {"columns": {"prompt": None}},
        {"columns": {"chosen": "more"}},
        {"columns": {"tools": None}},
        {"columns": {"chat_template_kwargs": "more"}},
        {"scores": ("good", "poor")},
    ],
}


def test_each_option_is_part_of_the_cache_key(tmp_path: Path) -> None:
    assert OPTIONS.keys() | {"kind"} == set(pipeline.Options._fields)  # a new one comes with a row above
    rows = [
        GOOD | {"more": "why yes", "good": 1.0, "poor": 0.0},
        {"prompt": "so", "chosen": "so x", "rejected": "so y"},
    ]
    rows[1] |= {"more": "so so", "good": 1.0, "poor": 0.0}
    every = [{}, *(one for values in OPTIONS.values() for one in values)]
    for _ in range(2):
        made = [frb.text.preference(rows, of_words(), **{"eos": 12, "root": tmp_path, **one}) for one in every]
        assert len({one.path for one in made}) == len(every) == len(os.listdir(tmp_path))


def test_whatever_of_a_tokenizer_tells_tokens_is_part_of_the_cache_key(tmp_path: Path) -> None:
    from tokenizers import AddedToken, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    def changed(change: Any) -> Any:
        made = of_words()
        change(made)
        return made

    framed = TemplateProcessing(single="cat $A", special_tokens=[("cat", 8)])
    every = [
        of_words(),
        of_merges(),
        bpe(),
        bpe(300),
        changed(lambda x: x.add_tokens(["sky"])),
        changed(lambda x: x.add_special_tokens([AddedToken("sky", lstrip=True)])),
        changed(lambda x: setattr(x, "normalizer", normalizers.Lowercase())),
        changed(lambda x: setattr(x, "pre_tokenizer", pre_tokenizers.WhitespaceSplit())),
        changed(lambda x: setattr(x, "post_processor", framed)),
        changed(lambda x: x.enable_padding(pad_id=7)),  # which token is the padding, though not how much of it
    ]
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    paths = [frb.text.preference(rows, one, eos=False, root=tmp_path, bad="drop").path for one in every]
    assert len(set(paths)) == len(every)
    for change in (lambda x: x.enable_truncation(3), lambda x: x.enable_padding(pad_id=0, length=9)):
        assert frb.text.preference(rows, changed(change), eos=False, root=tmp_path, bad="drop").path == paths[0]


def test_each_letter_that_is_read_is_part_of_the_cache_key(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}]
    changes: list[list[dict[str, Any]]] = [
        [GOOD],
        [GOOD, GOOD],
        *([GOOD | {name: f"{GOOD[name]} no"}] for name in GOOD),
        [GOOD | {"prompt": talk, "chosen": talk[1:], "rejected": talk[:1]}],
        [GOOD | {"prompt": talk, "chosen": talk[1:], "rejected": talk[:1], "tools": [LIGHT]}],
        [GOOD | {"prompt": talk, "chosen": talk[1:], "rejected": talk[:1], "chat_template_kwargs": {"style": "so"}}],
    ]
    with_tools = of_transformers(TOOLS)
    for as_stream in (False, True):
        made = [frb.text.preference(iter(x) if as_stream else x, with_tools, root=tmp_path) for x in changes]
        assert len({one.path for one in made}) == len(changes)
        assert len(os.listdir(tmp_path)) == len(changes)


def test_no_more_rows_are_read_than_are_written_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, seen, given = [0], [], writing.Growing.append

    class Rows(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            read[0] = 0
            for row in super().__iter__():
                read[0] += 1
                yield row

    def append(self: Any, contents: Any) -> None:
        seen.append((self.progress.read, read[0]))
        given(self, contents)

    monkeypatch.setattr(writing.Growing, "append", append)
    frb.text.preference(Rows([GOOD] * 20), of_words(), eos=12, root=tmp_path, rows_at_once=6)
    assert seen == [(6, 6), (12, 12), (18, 18), (20, 20)]


@pytest.mark.long
def test_memory_is_bounded_by_the_rows_at_once(tmp_path: Path) -> None:
    """Of rows that can be read once only, a few are held at a time, beside the first hundred."""
    import tracemalloc

    text, count = " ".join(WORDS[:9]) * 90, 800
    given = (GOOD | {"prompt": f"{k} {text}"} for k in range(count))
    tracemalloc.start()
    try:
        made = frb.text.preference(given, of_words(), eos=12, root=tmp_path, rows_at_once=16)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.examples == count
    assert held < count * len(text) / 3


def test_files_that_are_not_whole_are_told(tmp_path: Path) -> None:
    made = frb.text.preference([GOOD], of_words(), eos=12, root=tmp_path)
    os.truncate(Path(made.path, "tokens.bin"), 2)
    with pytest.raises(ValueError, match=r"tokens\.bin: expected 10 bytes; remove"):
        frb.text.preference([GOOD], of_words(), eos=12, root=tmp_path)
    Path(made.path, "prepared.json").write_text("{}")
    with pytest.raises(ValueError, match=r"prepared\.json: expected what was prepared"):
        frb.text.Prepared.open(made.path)
    with pytest.raises(FileNotFoundError):
        frb.text.Prepared.open(tmp_path / "none")


def test_two_that_prepare_the_same_at_once_share_it(tmp_path: Path) -> None:
    rows = [GOOD | {"prompt": " ".join(WORDS[: k % 9])} for k in range(40)]
    found: list[frb.text.Prepared] = []

    def prepare() -> None:
        found.append(frb.text.preference(rows, of_words(), eos=12, separator=" ", root=tmp_path, rows_at_once=2))

    threads = [threading.Thread(target=prepare) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 3
    assert os.listdir(tmp_path) == [os.path.basename(found[0].path)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_is_interrupted_goes_on(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [GOOD | {"prompt": " ".join(WORDS[: k % 9])} for k in range(20)]
    options: dict[str, Any] = {"eos": 12, "separator": " ", "rows_at_once": 3}
    whole = frb.text.preference(rows, of_words(), root=tmp_path / "whole", **options)
    given, calls = writing.Growing.append, []

    def failing(self: Any, contents: Any) -> None:
        calls.append(self.progress.read)
        if len(calls) == 4:
            with open(tmp_path / "cache" / f"{os.path.basename(whole.path)}.part" / "tokens.bin", "ab") as file:
                file.write(b"torn")
            raise error
        given(self, contents)

    monkeypatch.setattr(writing.Growing, "append", failing)
    with pytest.raises(error):
        frb.text.preference(rows, of_words(), root=tmp_path / "cache", **options)
    made = frb.text.preference(rows, of_words(), root=tmp_path / "cache", **options)
    assert calls == [3, 6, 9, 12, 12, 15, 18, 20]  # what was written is not tokenized again
    for name in ("tokens.bin", "rows.bin", "prepared.json"):
        assert Path(made.path, name).read_bytes() == Path(whole.path, name).read_bytes()


def test_a_pipeline_that_is_killed_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    kills = effort(3, 50)
    command = [sys.executable, "-m", "tests.support.kill_preparation", str(tmp_path), "7", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    killed, at_work, begun = map(int, done.stdout.split())
    assert killed >= kills
    assert at_work >= begun >= killed // 3


def test_a_bar_counts_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functional_rb.checkpoint.progress.DELAY", 0)
    frb.text.preference([GOOD] * 9, of_words(), eos=12, root=tmp_path, rows_at_once=2, progress=True)
    assert "text.preference" in capsys.readouterr().err


def test_tokens_take_a_fifth_of_padded_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def text(n: int) -> str:
        return " ".join(rng.choice(WORDS, n))

    rows = [{"prompt": text(50), "chosen": f" yes {text(10)}", "rejected": f" no {text(10)}"} for _ in range(50)]
    made = frb.text.preference(rows, of_words(), eos=12, separator=" ", root=tmp_path)
    taken = sum(path.stat().st_size for path in Path(made.path).glob("*.bin"))
    ids_and_mask = 2 * made.examples * made.longest * (8 + 8)
    assert taken <= ids_and_mask / 5


@pytest.mark.long
def test_tokens_are_those_of_trl(tokenizer: Any, tmp_path: Path) -> None:
    dpo = pytest.importorskip("trl.trainer.dpo_trainer")
    talk = [{"role": "user", "content": "why?"}]
    said = [[{"role": "assistant", "content": text}] for text in ("so", "the light")]
    for rows in (ROWS, [{"prompt": talk, "chosen": said[0], "rejected": said[1]}]):
        made = frb.text.preference(rows, tokenizer, root=tmp_path)
        examples = []
        for row, (chosen, rejected), (at, other) in zip(rows, ids_of(made), borders(made), strict=True):
            if isinstance(row["prompt"], str):
                prompt = tokenizer(row["prompt"])["input_ids"]
                whole = [tokenizer(row["prompt"] + row[name] + END)["input_ids"] for name in ("chosen", "rejected")]
            else:
                prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"]
                whole = [
                    tokenizer.apply_chat_template(row["prompt"] + row[x])["input_ids"] for x in ("chosen", "rejected")
                ]
            assert [chosen, rejected] == whole
            assert at == other == len(prompt)
            examples.append({"prompt_ids": prompt, "chosen_ids": chosen[at:], "rejected_ids": rejected[at:]})
        batch = dpo.DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)(examples)
        items = made.spec(1, bucket=1).on_sample.function.read(made.rows, np.asarray)
        ids = np.concatenate([items.chosen_data.input_ids, items.rejected_data.input_ids])
        mask = np.concatenate([items.chosen_data.attention_mask, items.rejected_data.attention_mask])
        assert ids.tolist() == batch["input_ids"].tolist()
        assert mask.astype(int).tolist() == batch["attention_mask"].tolist()
        begin = items.prompt_rindex.T.reshape(-1, 1)
        assert (mask & (np.arange(mask.shape[1]) >= begin)).astype(int).tolist() == batch["completion_mask"].tolist()


@pytest.mark.long
def test_conversations_are_read_as_trl_reads_them(tokenizer: Any, tmp_path: Path) -> None:
    """All types of data sets of its page that have a prompt, or chosen and rejected texts."""
    trl = pytest.importorskip("trl.data_utils")
    asked, more = [{"role": "user", "content": "why?"}], [{"role": "user", "content": "so?"}]
    said = [[{"role": "assistant", "content": text}] for text in ("so", "the light", "no")]
    with_tools = of_transformers(TOOLS)
    extras: dict[str, Any] = {"chat_template_kwargs": {"style": "mat"}}
    pairs: list[dict[str, Any]] = [
        {"prompt": asked, "chosen": said[0], "rejected": said[1]},
        {"prompt": asked + said[0] + more, "chosen": said[1], "rejected": said[2]},
        {"prompt": asked, "chosen": said[0] + more + said[1], "rejected": said[2]},
        {"chosen": asked + said[0], "rejected": asked + said[1]},
        {"chosen": asked + said[0] + more + said[1], "rejected": asked + said[0] + more + said[2]},
        {"chosen": asked + said[0] + more + said[1], "rejected": asked + said[2]},
        {"prompt": "why?", "chosen": asked + said[0], "rejected": asked + said[1]},
        {"prompt": asked + said[0], "chosen": said[1], "rejected": said[2]},  # an answer that was begun
    ]
    for row in pairs:
        for more_told in ({}, extras):
            theirs = trl.apply_chat_template(trl.maybe_extract_prompt(row) | more_told, with_tools)
            made = frb.text.preference([row | more_told], with_tools, root=tmp_path)
            expected = [(theirs["prompt"], theirs[name]) for name in ("chosen", "rejected")]
            assert decoded(with_tools, made) == [expected]
    for row in (
        {"prompt": asked}, {"prompt": asked + said[0]}, {"prompt": asked, "completion": said[0]},
        {"prompt": asked, "completion": said[0], "label": True}, {"prompt": asked + said[0], "completion": said[1]},
    ):  # fmt: skip
        theirs = trl.apply_chat_template(row, tokenizer)
        made = frb.text.prompts([row], tokenizer, root=tmp_path)
        assert decoded(tokenizer, made) == [[(theirs["prompt"], theirs.get("completion", ""))]]
    talk = {"conversations": [{"from": m["role"], "value": m["content"]} for m in asked + said[0] + more + said[1]]}
    made = frb.text.prompts([talk], tokenizer, root=tmp_path)
    ((text,),) = ids_of(made)
    theirs = trl.apply_chat_template(trl.maybe_convert_to_chatml(json.loads(json.dumps(talk))), tokenizer)
    assert tokenizer.decode(text) == theirs["text"]
    assert decoded(tokenizer, made)[0][0][1] == "the light<|end|>"
