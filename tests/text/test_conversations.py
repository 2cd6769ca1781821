"""Conversations become texts by the tokenizer's chat template, in all forms that rows have them in."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import functional_rb as frb
from tests.support.tokenizers_trained import of_transformers
from tests.text.texts import LIGHT, TALK, TOOLS, borders, decoded, ids_of


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
    asked_only = frb.text.prompts([{"messages": hello[:1]}], tokenizer, columns={"reply": None}, root=tmp_path)
    assert decoded(tokenizer, asked_only) == [[(asked, "")]]
    # A text is a reply from its first token on.
    text = frb.text.prompts([{"text": "why so"}], tokenizer, frb.text.Tokenization(separator="?"), root=tmp_path)
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
    with pytest.raises(ValueError, match="column 'completion': expected conversations in all columns, or texts in all"):
        frb.text.prompts([{"prompt": "why?", "completion": replies[:1]}], tokenizer, root=tmp_path)
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
        if list(rows[0]["tools"][0]) != list(LIGHT):  # pyarrow 16 sorts the names of what a row has inside
            given = json.loads(json.dumps(given, sort_keys=True))
    elif kind == "json":
        if "on_mixed_types" not in inspect.signature(Dataset.from_list).parameters:
            pytest.skip("an older datasets has no columns of JSON")
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


def test_options_that_only_other_rows_have_are_not_told(tmp_path: Path) -> None:
    """Tables have None for them."""
    styled = of_transformers(
        "{% if style is defined %}the{% endif %}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    talk = [{"role": "user", "content": "why"}]
    rows = [{"prompt": talk, "chat_template_kwargs": {"style": style}} for style in ("mat", None)]
    made = frb.text.prompts(rows, styled, root=tmp_path)
    assert decoded(styled, made) == [[("thewhy", "")], [("why", "")]]


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
        made = frb.text.preference([good, row, good], strict, frb.text.Tokenization(bad="drop"), root=tmp_path)
        assert (made.examples, made.dropped) == (2, {"template": 1})


def test_what_the_system_lacks_is_no_failure_of_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates need jinja2: without it each row would be left out."""
    tokenizer, talk = of_transformers(), [{"role": "user", "content": "why?"}]

    def failing(*_: Any, **__: Any) -> str:
        raise ImportError("there is no jinja2")

    monkeypatch.setattr(tokenizer, "apply_chat_template", failing)
    with pytest.raises(ImportError, match="there is no jinja2"):
        frb.text.prompts([{"prompt": talk}], tokenizer, frb.text.Tokenization(bad="drop"), root=tmp_path)


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
