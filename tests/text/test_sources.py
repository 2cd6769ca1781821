"""Rows of texts come from many sources, which give the same tokens and name the place of an error."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import functional_rb as frb
from tests.support.effort import effort
from tests.support.tokenizers_trained import WORDS, SlowWords, bpe, of_words
from tests.text.texts import GOOD, ROWS, ids_of


def written(kind: str, rows: list[dict[str, Any]], tmp_path: Path) -> Any:
    """The same rows as a source of some kind."""
    if kind == "generator":
        return (dict(row) for row in rows)
    if kind == "lines":
        path = tmp_path / "rows.jsonl"
        path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
        return path
    if kind == "lines with a mark":
        path = tmp_path / "marked.jsonl"
        path.write_text("\n".join(["", *map(json.dumps, rows)]), encoding="utf-8-sig")
        return path
    if kind in ("array", "array with a mark"):
        path = tmp_path / "rows.json"
        mark = "utf-8-sig" if kind == "array with a mark" else "utf-8"
        path.write_text("\n" + json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding=mark)
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


LINES = ("lines", "lines with a mark", "lines in parts", "array", "array with a mark")
SOURCES = ("generator", *LINES, "parquet", "arrow", "stream", "dataset", "selected", "iterable")


@pytest.mark.parametrize("kind", SOURCES)
def test_any_source_gives_the_same(kind: str, tmp_path: Path) -> None:
    rows = [row | {"more": k} for k, row in enumerate([*ROWS, *({"prompt": str(k)} | GOOD for k in range(3))])]
    how, cache = frb.text.Tokenization(eos=False, rows_at_once=4), tmp_path / "cache"
    expected = frb.text.preference(rows, bpe(), how, root=cache)
    made = frb.text.preference(written(kind, rows, tmp_path), bpe(), how, root=cache)
    assert ids_of(made) == ids_of(expected)
    for name in ("tokens.bin", "rows.bin"):
        assert Path(made.path, name).read_bytes() == Path(expected.path, name).read_bytes()
    if kind in ("generator", "dataset", "selected", "iterable"):  # told by the rows, not by a file's bytes
        assert made.path == expected.path
    assert sorted(os.listdir(made.path)) == ["prepared.json", "rows.bin", "tokens.bin"]
    assert all(name.startswith("preference-") for name in os.listdir(tmp_path / "cache"))


@pytest.mark.parametrize("kind", [*SOURCES[1:-1], "dicts"])
def test_sources_are_read_from_any_row_on(kind: str, tmp_path: Path) -> None:
    """As where an interrupted preparation goes on: it asks for no row again, and for all others."""
    texts = [f"the cat {word}" for word in WORDS]
    source: Any = [{"prompt": text, "more": k} for k, text in enumerate(texts)]
    source = source if kind == "dicts" else written(kind, source, tmp_path)
    how = frb.text.Tokenization(eos=False, rows_at_once=1)
    for start in effort((1, 2, 3, 7), range(1, len(texts))):
        runs: list[list[str]] = [[]]

        def look(text: str, runs: list[list[str]] = runs, last: str = texts[start]) -> None:
            runs[-1].append(text)
            if text == last and len(runs) == 1:
                runs.append([])
                raise KeyboardInterrupt

        slow, root = SlowWords(look), tmp_path / str(start)
        with pytest.raises(KeyboardInterrupt):
            frb.text.prompts(source, slow, how, root=root)
        assert frb.text.prompts(source, slow, how, root=root).examples == len(texts)
        read = [[text for text in dict.fromkeys(run) if text in texts] for run in runs]
        assert read == [texts[: start + 1], texts[start:]]


@pytest.mark.parametrize("kind", ["lines", "lines with a mark", "lines in parts", "array", "parquet", "stream"])
def test_errors_name_the_file_and_the_place(kind: str, tmp_path: Path) -> None:
    source = written(kind, [*ROWS, GOOD | {"chosen": ""}], tmp_path)
    place = {
        "lines": r"rows\.jsonl, line 7",
        "lines in parts": r"1\.json, line 2",
        "lines with a mark": r"marked\.jsonl, line 5",
        "array": r"rows\.json, row 3",
        "parquet": r"rows\.parquet, row 3",
        "stream": r"stream\.arrow, row 3",
    }
    with pytest.raises(ValueError, match=rf"{place[kind]}, column 'chosen': expected a reply"):
        frb.text.preference(source, bpe(), frb.text.Tokenization(eos=False, rows_at_once=3), root=tmp_path)


CHUNK = 2**20  # characters of an array that are read at a time


def test_arrays_are_read_piece_by_piece(tmp_path: Path) -> None:
    """Wherever a piece ends: within a text, a number, between two bytes of one character."""
    rows: list[Any] = [{"prompt": f"é{k}\\n, ]", "more": {"of": [k, 1.25e10, None]}} for k in range(2)]
    how, path = frb.text.Tokenization(eos=False, bad="drop"), tmp_path / "rows.json"
    text, expected = json.dumps(rows, ensure_ascii=False), ids_of(frb.text.prompts(rows, bpe(), how, root=tmp_path))
    for begun in range(0, len(text) + 1, effort(4, 1)):
        path.write_text(" " * (CHUNK - begun) + text, encoding="utf-8")
        assert ids_of(frb.text.prompts(path, bpe(), how, root=tmp_path)) == expected, begun


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        (' [\n{} , {}, {"prompt": "why"}]\n\n', {"no_text": 2}),
        ('[{"prompt": "why"}, 12, [3]]', {"no_row": 2}),
        ('[{"prompt": 1}, {"prompt": "why"}]', {"no_text": 1}),
    ],
)
def test_rows_of_arrays_that_cannot_be_used_are_counted(text: str, dropped: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(text)
    made = frb.text.prompts(tmp_path / "rows.json", bpe(), frb.text.Tokenization(bad="drop"), root=tmp_path)
    assert (made.examples, made.dropped) == (text.count("why"), dropped)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "row 0: expected an array"),
        ('[{"a": 1}, {"a": ', "row 1: expected an array"),
        ('[{"a": 1},]', "row 1: expected an array"),
        ('[{"a": 1} {"a": 1}]', r"row 0: .* expected ',' or '\]' behind it, got '{'"),
        ('[{"a": 1}', r"row 0: .* expected ',' or '\]' behind it, got ''"),
        ("[] 3", "row 0: .* expected nothing behind the array, got '3'"),
        ("[" * 10**5, "row 0: expected an array"),
    ],
)
def test_arrays_that_are_none_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"rows\.json, {message}"):
        frb.text.prompts(path, bpe(), frb.text.Tokenization(bad="drop"), root=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("array.jsonl", json.dumps(ROWS).encode(), r"array\.jsonl, line 1: .*, no JSON object but list; .* in \.json"),
        ("wide.json", json.dumps(ROWS).encode("utf-16"), r"wide\.json, line 1: .*, no JSON"),
        ("inner.json", b"[[1], [2]]", r"inner\.json, row 0: .*, no JSON object but list"),
    ],
)
def test_files_without_any_row_are_named(name: str, content: bytes, place: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"text\.preference: .*{place}"):
        frb.text.preference(tmp_path / name, bpe(), root=tmp_path)
    with pytest.raises(ValueError, match=r"text\.prompts: row 0: expected rows with columns.*, got 'a text'"):
        frb.text.prompts(iter(["a text"]), bpe(), root=tmp_path)


def test_a_root_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever it was that could be read once only, or again: the remedy is another root."""

    def refused(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))

    root, remedy = tmp_path / "root", r"text: Permission denied; give root=\.\.\. a directory that can be written to"
    for rows in (ROWS, iter(ROWS)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", refused)
            with pytest.raises(PermissionError, match=remedy):
                frb.text.preference(rows, bpe(), frb.text.Tokenization(eos=False), root=root)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"text: .*; give root=\.\.\. a directory, or one that can be made"):
        frb.text.preference(ROWS, bpe(), frb.text.Tokenization(eos=False), root=tmp_path / "file")

    def failing() -> Any:
        yield from ROWS
        raise FileNotFoundError(errno.ENOENT, "of who gives rows", "mine")

    with pytest.raises(FileNotFoundError, match="of who gives rows: 'mine'"):
        frb.text.preference(failing(), bpe(), frb.text.Tokenization(eos=False), root=root)


def test_wrong_utf8_and_wrong_json_in_files(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    lines = tmp_path / "rows.jsonl"
    good = json.dumps(GOOD).encode()
    lines.write_bytes(b"\n".join([good, good.replace(b"yes", b"y\xffs"), b'{"prompt": ', b"[]"]))
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2, column 'chosen': expected UTF-8"):
        frb.text.preference(lines, of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    made = frb.text.preference(lines, of_words(), frb.text.Tokenization(eos=12, bad="drop"), root=tmp_path)
    assert (made.examples, made.dropped) == (1, {"no_utf8": 1, "no_row": 2})

    raw = {"prompt": [b"why", b"why"], "chosen": [b" yes", b" \xff"], "rejected": [b" no", b" no"]}
    columns = [pyarrow.array(column, pyarrow.binary()).view(pyarrow.string()) for column in raw.values()]
    table = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_arrays(columns, list(raw)), table)
    with pytest.raises(ValueError, match=r"rows\.parquet, row 1, column 'chosen': expected UTF-8"):
        frb.text.preference(table, of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
