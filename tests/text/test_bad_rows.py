"""Rows that cannot be used are named or counted, and arguments that do not fit are refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.tokenizers_trained import WORDS, SlowWords, of_words
from tests.text.texts import GOOD, ids_of

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
            frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
        assert not os.listdir(tmp_path)
        made = frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=12, bad="drop"), root=tmp_path)
        # What is left out is a whole row: no text is paired with that of another row.
        assert ids_of(made) == [[[0, 3, 12], [0, 2, 12]], [[1, 3, 12], [1, 2, 12]]]
        assert made.dropped == {reason: 1}
        for name in os.listdir(made.path):
            os.unlink(os.path.join(made.path, name))
        os.rmdir(made.path)


@pytest.mark.parametrize("jointly", [True, False])
def test_a_tokenizer_that_fails_is_named_with_row_and_column(jointly: bool, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="unknown"))  # there is none
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    how = frb.text.Tokenization(eos=12, jointly=jointly, rows_at_once=4)
    for column, value in (("rejected", " dog"), ("chosen", " dog"), ("prompt", "dog")):
        rows = [*[GOOD] * 5, GOOD | {column: value}, GOOD | {"prompt": "so"}]
        with pytest.raises(ValueError, match=f"row 5, column '{column}': the tokenizer failed by .*UNK") as caught:
            frb.text.preference(rows, words, how, root=tmp_path)
        assert "UNK" in str(caught.value.__cause__)
        made = frb.text.preference(rows, words, replace(how, bad="drop"), root=tmp_path)
        assert ids_of(made) == [*[[[0, 3, 12], [0, 2, 12]]] * 5, [[1, 3, 12], [1, 2, 12]]]
        assert made.dropped == {"tokenizer": 1}


def test_errors_of_the_system_are_none_of_a_row(tmp_path: Path) -> None:
    for error in (MemoryError, OSError, ImportError, KeyboardInterrupt):

        def failing(text: str, error: Any = error) -> None:
            if text == "why yes":
                raise error("not the row's")

        with pytest.raises(error, match="not the row's"):
            frb.text.preference([GOOD], SlowWords(failing), frb.text.Tokenization(eos=12, bad="drop"), root=tmp_path)


def test_a_tokenizer_that_panics_is_named_with_row_and_column(tmp_path: Path) -> None:
    """As those written in Rust may, by what is no `Exception`."""

    class PanicException(BaseException):
        pass

    def failing(text: str) -> None:
        if text == "so yes":
            raise PanicException("index out of bounds")

    rows, slow = [GOOD, GOOD | {"prompt": "so"}, GOOD], SlowWords(failing)
    with pytest.raises(
        ValueError, match="row 1, column 'chosen': the tokenizer failed by PanicException: index out of"
    ):
        frb.text.preference(rows, slow, frb.text.Tokenization(eos=12), root=tmp_path)
    made = frb.text.preference(rows, slow, frb.text.Tokenization(eos=12, bad="drop"), root=tmp_path)
    assert (made.examples, made.dropped) == (2, {"tokenizer": 1})


def test_the_first_row_that_cannot_be_used_is_named_whichever_step_refuses_it(tmp_path: Path) -> None:
    """The first is too long once it is tokenized, the second has no text to begin with."""
    rows = [GOOD | {"chosen": " yes yes yes"}, GOOD | {"chosen": None}]
    how = frb.text.Tokenization(eos=12, max_length=4, too_long="error")
    with pytest.raises(ValueError, match="row 0, column 'chosen': 5 tokens with the prompt, more than 4"):
        frb.text.preference(rows, of_words(), how, root=tmp_path)


def test_scores_are_finite_numbers(tmp_path: Path) -> None:
    rows = [GOOD | {"good": 2, "poor": np.float64(-0.5)}, GOOD | {"good": float("nan"), "poor": 1.0}]
    with pytest.raises(ValueError, match="row 1, column 'good': expected a finite number, got nan"):
        frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=12), scores=("good", "poor"), root=tmp_path)
    made = frb.text.preference(
        rows, of_words(), frb.text.Tokenization(eos=12, bad="drop"), scores=("good", "poor"), root=tmp_path
    )
    assert made.rows["scores"].tolist() == [[2.0, -0.5]]
    assert made.dropped == {"no_number": 1}


def test_a_prompt_alone_has_a_token(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="row 0, column 'prompt': expected a prompt, got one without a token"):
        frb.text.prompts([{"prompt": " "}], of_words(), root=tmp_path)


def test_missing_columns_and_sources_that_are_empty(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    words = of_words()
    with pytest.raises(ValueError, match=r"no column 'rejected' among \['prompt', 'chosen'\]; name it"):
        frb.text.preference([{"prompt": "why", "chosen": " so"}], words, frb.text.Tokenization(eos=12), root=tmp_path)
    with pytest.raises(ValueError, match=r"no column 'question' among .*look at columns="):
        frb.text.prompts([{"prompt": "why"}], words, columns={"prompt": "question"}, root=tmp_path)
    with pytest.raises(ValueError, match="expected columns to name some of"):
        frb.text.prompts([{"prompt": "why"}], words, columns={"label": "prompt"}, root=tmp_path)
    exhausted = iter([GOOD])
    frb.text.preference(exhausted, words, frb.text.Tokenization(eos=12), root=tmp_path)
    with pytest.raises(ValueError, match="an iterator that was read before has none any more"):
        frb.text.preference(exhausted, words, frb.text.Tokenization(eos=12), root=tmp_path)
    none = frb.text.preference([GOOD], words, frb.text.Tokenization(eos=12, max_length=1), root=tmp_path)
    assert (none.examples, none.longest) == (0, 0)
    with pytest.raises(ValueError, match=r"no examples to sample, \{'too_long': 1\} were dropped"):
        none.spec(1)
    table = pyarrow.table({name: pyarrow.array([], pyarrow.string()) for name in GOOD})
    parquet.write_table(table, tmp_path / "rows.parquet")  # which tells its columns without any row
    none = frb.text.preference(tmp_path / "rows.parquet", words, frb.text.Tokenization(eos=12), root=tmp_path)
    with pytest.raises(ValueError, match=r"no examples to sample, \{\} were dropped"):
        none.spec(1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"too_long": "cut"}, ValueError, "expected too_long as one of"),
        ({"bad": "ignore"}, ValueError, "expected bad as one of"),
        ({"max_length": 0}, ValueError, "expected max_length as an int from 1 on"),
        ({"rows_at_once": 0}, ValueError, "expected rows_at_once as an int from 1 on"),
        ({"separator": 1}, TypeError, "expected separator as a text"),
        ({"scores": ("prompt",)}, ValueError, "expected scores as two names"),
        ({"eos": True}, ValueError, "the tokenizer has no eos_token_id"),
    ],
)
def test_arguments(options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    how = {"eos": 12, **options}
    scores = how.pop("scores", None)
    with pytest.raises(error, match=message):
        frb.text.preference([GOOD], of_words(), frb.text.Tokenization(**how), scores=scores, root=tmp_path)


def test_what_is_no_source_and_no_tokenizer(tmp_path: Path) -> None:
    for source, error, message in (
        (3, TypeError, "expected a datasets.Dataset, paths"),
        ({"train": [GOOD]}, TypeError, "got a mapping of 'train'; give one of its tables"),
        (tmp_path / "none.jsonl", FileNotFoundError, "no such file"),
        (tmp_path / "rows.csv", ValueError, r"expected a file \*\.jsonl"),
    ):
        with pytest.raises(error, match=message):
            frb.text.preference(source, of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    with pytest.raises(TypeError, match="expected tokenizer as one of transformers"):
        frb.text.preference([GOOD], str.split, root=tmp_path)
    wrong: Any
    for wrong in ({}, {"eos": 12}, 512, frb.text.Tokenization):
        for prepare in (frb.text.preference, frb.text.prompts):
            with pytest.raises(TypeError, match=r"expected tokenization as frb\.text\.Tokenization\(\.\.\.\), got"):
                prepare([GOOD | {"label": "no"}], of_words(), wrong, root=tmp_path)
    assert not os.listdir(tmp_path)
