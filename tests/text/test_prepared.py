"""What was prepared is found again, and goes on where it was interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from tests.support.effort import effort
from tests.support.tokenizers_trained import WORDS, bpe, of_merges, of_transformers, of_words
from tests.text.texts import GOOD, LIGHT, ROWS, TOOLS


def test_the_cache_knows_data_tokenizer_and_options(tokenizer: Any, tmp_path: Path) -> None:
    first = frb.text.preference(ROWS, tokenizer, root=tmp_path)
    seen = {first.path}
    changed = os.stat(first.path).st_mtime_ns, os.stat(Path(first.path, "tokens.bin")).st_ino
    tokenizer(["a", "b b"], padding=True, truncation=True, max_length=1)  # which changes how it pads and cuts
    same = frb.text.preference((row for row in ROWS), tokenizer, frb.text.Tokenization(rows_at_once=1), root=tmp_path)
    assert same == first == frb.text.Prepared.open(first.path)
    assert (os.stat(first.path).st_mtime_ns, os.stat(Path(first.path, "tokens.bin")).st_ino) == changed
    begin = of_transformers()
    begin.add_tokens(["sky"])
    for other in (of_transformers("{{ messages }}"), of_transformers(eos_token="<|user|>"), begin):
        seen.add(frb.text.preference(ROWS, other, root=tmp_path).path)
    assert len(seen) == 4
    options: list[dict[str, Any]] = [{"max_length": 99}, {"jointly": False}, {"eos": False}, {"separator": " "}]
    seen |= {frb.text.preference(ROWS, tokenizer, frb.text.Tokenization(**one), root=tmp_path).path for one in options}
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
    named = {field.name for field in dataclasses.fields(frb.text.Tokenization)}
    assert OPTIONS.keys() == named - {"rows_at_once"} | {"columns"}  # a new one comes with a row above
    rows = [
        GOOD | {"more": "why yes", "good": 1.0, "poor": 0.0},
        {"prompt": "so", "chosen": "so x", "rejected": "so y"},
    ]
    rows[1] |= {"more": "so so", "good": 1.0, "poor": 0.0}
    every = [{}, *(one for values in OPTIONS.values() for one in values)]
    for _ in range(2):
        made = []
        for one in every:
            named = {name: one[name] for name in one.keys() & {"columns", "scores"}}
            how = frb.text.Tokenization(**{"eos": 12, **{name: one[name] for name in one.keys() - named.keys()}})
            made.append(frb.text.preference(rows, of_words(), how, root=tmp_path, **named))
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
    paths = [
        frb.text.preference(rows, one, frb.text.Tokenization(eos=False, bad="drop"), root=tmp_path).path
        for one in every
    ]
    assert len(set(paths)) == len(every)
    for change in (lambda x: x.enable_truncation(3), lambda x: x.enable_padding(pad_id=0, length=9)):
        assert (
            frb.text.preference(rows, changed(change), frb.text.Tokenization(eos=False, bad="drop"), root=tmp_path).path
            == paths[0]
        )


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
    read, seen = [0], list[int]()

    class Rows(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            read[0] = 0
            for row in super().__iter__():
                read[0] += 1
                yield row

    at_writes_of_tokens(monkeypatch, lambda: seen.append(read[0]))
    frb.text.preference(Rows([GOOD] * 20), of_words(), frb.text.Tokenization(eos=12, rows_at_once=6), root=tmp_path)
    assert seen == [6, 12, 18, 20]


def at_writes_of_tokens(patch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Note each piece of tokens, before it is known to last."""
    last = os.fsync

    def fsync(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith("tokens.bin"):
            note()
        last(file)

    patch.setattr(os, "fsync", fsync)


@pytest.mark.long
def test_memory_is_bounded_by_the_rows_at_once(tmp_path: Path) -> None:
    """Of rows that can be read once only, a few are held at a time, beside the first hundred."""
    import tracemalloc

    text, count = " ".join(WORDS[:9]) * 90, 800
    given = (GOOD | {"prompt": f"{k} {text}"} for k in range(count))
    tracemalloc.start()
    try:
        made = frb.text.preference(given, of_words(), frb.text.Tokenization(eos=12, rows_at_once=16), root=tmp_path)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.examples == count
    assert held < count * len(text) / 3


def test_files_that_are_not_whole_are_told(tmp_path: Path) -> None:
    made = frb.text.preference([GOOD], of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    os.truncate(Path(made.path, "tokens.bin"), 2)
    with pytest.raises(ValueError, match=r"tokens\.bin: expected 10 bytes; remove"):
        frb.text.preference([GOOD], of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    Path(made.path, "prepared.json").write_text("{}")
    with pytest.raises(ValueError, match=r"prepared\.json: expected what was prepared"):
        frb.text.Prepared.open(made.path)
    with pytest.raises(FileNotFoundError):
        frb.text.Prepared.open(tmp_path / "none")


@pytest.mark.parametrize("name", ["tokens.bin", "rows.bin"])
def test_a_flipped_bit_is_told(tmp_path: Path, name: str) -> None:
    made = frb.text.preference([GOOD], of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    file = Path(made.path, name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}: expected the checksum \w+, found \w+; remove"):
        frb.text.Prepared.open(made.path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match=rf"{name}: expected \d+ bytes"):
        frb.text.Prepared.open(made.path)


TOLD: dict[str, Any] = {
    "kind": "others",
    "examples": -1,
    "tokens": 2**70,
    "longest": 1.5,
    "dropped": {"bad": -1},
    "pad": 2**31,
    "eos": "end",
    "dtype": "O",
    "scored": 1,
    "checksums": {},
    "more": 1,
}


@pytest.mark.parametrize("name", TOLD)
def test_a_forged_description_is_told(tmp_path: Path, name: str) -> None:
    made = frb.text.preference([GOOD], of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    file = Path(made.path, "prepared.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: TOLD[name]}))
    with pytest.raises(ValueError, match=r"prepared\.json: expected what was prepared, got another content"):
        frb.text.Prepared.open(made.path)


FORGED = {
    "start": [0, 3],
    "a start below nothing": [-1, 0],
    "shared": 99,
    "prompts": [9, 1],
    "lengths": [2**31 - 1, 1],
    "lengths below nothing": [-3, 1],
}


@pytest.mark.parametrize("kind", FORGED)
def test_rows_of_texts_that_are_not_there_are_told(tmp_path: Path, kind: str) -> None:
    """By one who makes checksums; and by the buffer, where the rows were others once it was made."""
    made = frb.text.preference([GOOD], of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    name = next(part for part in ("start", "shared", "prompts", "lengths") if part in kind)
    rows = {key: np.array(leaf) for key, leaf in made.rows.items()}
    rows[name][0] = FORGED[kind]
    file, told = Path(made.path, "rows.bin"), Path(made.path, "prepared.json")
    state = torch_backend.init(made.spec(1), items=rows)
    with pytest.raises(ValueError, match=r"the rows are not those that were prepared"):
        torch_backend.sample(state, torch_backend.key(0))
    table = np.fromfile(file, [("start", "<i4", 2), ("shared", "<i4"), ("prompts", "<i4", 2), ("lengths", "<i4", 2)])
    table[name][0] = FORGED[kind]
    file.write_bytes(table.tobytes())
    described = json.loads(told.read_text())
    described["checksums"]["rows.bin"] = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    told.write_text(json.dumps(described))
    with pytest.raises(ValueError, match=rf"rows\.bin: row 0 of 1 tells of texts that are not among .*{name}"):
        frb.text.Prepared.open(made.path)


def test_two_that_prepare_the_same_at_once_share_it(tmp_path: Path) -> None:
    rows = [GOOD | {"prompt": " ".join(WORDS[: k % 9])} for k in range(40)]
    found: list[frb.text.Prepared] = []

    def prepare() -> None:
        found.append(
            frb.text.preference(
                rows, of_words(), frb.text.Tokenization(eos=12, separator=" ", rows_at_once=2), root=tmp_path
            )
        )

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
    how = frb.text.Tokenization(eos=12, separator=" ", rows_at_once=3)
    whole = frb.text.preference(rows, of_words(), how, root=tmp_path / "whole")
    pieces: list[int] = []

    def failing() -> None:
        pieces.append(len(pieces))
        if len(pieces) == 4:  # which lies behind what is known to last
            raise error

    at_writes_of_tokens(monkeypatch, failing)
    with pytest.raises(error):
        frb.text.preference(rows, of_words(), how, root=tmp_path / "cache")
    made = frb.text.preference(rows, of_words(), how, root=tmp_path / "cache")
    assert len(pieces) == 4 + 4  # three of the seven are not tokenized again
    for name in ("tokens.bin", "rows.bin", "prepared.json"):
        assert Path(made.path, name).read_bytes() == Path(whole.path, name).read_bytes()


def test_a_pipeline_that_is_killed_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    kills = effort(3, 50)
    command = [sys.executable, "-m", "tests.children.kill_preparation", str(tmp_path), "7", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    killed, at_work, begun = map(int, done.stdout.split())
    assert killed >= kills
    assert at_work >= begun >= killed // 3


def test_a_bar_counts_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functional_rb.base.progress.DELAY", 0)
    frb.text.preference(
        [GOOD] * 9, of_words(), frb.text.Tokenization(eos=12, rows_at_once=2), root=tmp_path, progress=True
    )
    assert "text.preference" in capsys.readouterr().err
