"""Tables of OpenML as bandits: one step for each row, whose action is the class."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.datasets.episodes import open_reader

ARFF = """% a comment
@RELATION made_up
@attribute t NUMERIC
@attribute 'the colour' {red,'dark blue',"it's"}
@ATTRIBUTE remark string
@attribute half real
@attribute class {no, yes, 'may be'}

@DATA
0,red,'a, b',0.5,yes
1,'dark blue','',1.5,no
% another
2,"it's",x,?,'may be'
3,?,x,3.5,yes
4,red,x,4.5,?
5,red,"x\\"y",5.5,no
"""
WORDS = ["red", "dark blue", "it's", None, "red", "red"]
CLASSES = ["yes", "no", "may be", "yes", None, "no"]


def arff(root: Path, text: str = ARFF) -> str:
    (root / "openml" / "made_up").mkdir(parents=True)
    (root / "openml" / "made_up" / "a.arff").write_text(text)
    return "openml:made_up"


def zipped(root: Path) -> str:
    (root / "a.arff.gz").write_bytes(gzip.compress(ARFF.encode()))
    return f"openml:{root / 'a.arff.gz'}"


def parquet(root: Path) -> str:
    import pyarrow
    import pyarrow.parquet

    half = [0.5, 1.5, None, 3.5, 4.5, 5.5]
    classes = pyarrow.array(CLASSES).dictionary_encode()
    values = {"t": [*range(6)], "the colour": WORDS, "remark": [[1]] * 6, "half": half, "class": classes}
    pyarrow.parquet.write_table(pyarrow.table(values), root / "a.pq", row_group_size=4)
    return f"openml:{root / 'a.pq'}"


FORMATS = {"arff": arff, "arff.gz": zipped, "parquet": parquet}


@pytest.mark.parametrize("batch", [4096, 2])
@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_each_row_is_a_step(write: Any, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functional_rb.datasets.openml.BATCH", batch)
    name = write(tmp_path)
    reader = open_reader(name, str(tmp_path))
    state = frb.datasets.load(name, rb, root=tmp_path)
    items = rb.items(state)
    frb.ted.check(items, time_axis=0)
    t, word, half = items["observation"].numpy().T
    assert t.tolist() == [0, 1, 2, 3, 5]
    np.testing.assert_array_equal(half, [0.5, 1.5, np.nan, 3.5, 5.5])
    np.testing.assert_array_equal(word, [0, 1, 2, np.nan, 0])
    words = reader.facts["actions"]
    assert [words[k] for k in items["action"].tolist()] == ["yes", "no", "may be", "yes", "no"]
    assert items["next"]["terminated"].all()
    assert items["next"]["reward"].tolist() == [1] * 5
    for first in range(6):
        assert len([*reader.episodes(first)]) == 5 - first
    more: Any = {"sampler": frb.Slices(2, strict_length=False), "transforms": frb.n_step(3, 1.0)}
    for kind in more:
        _, drawn = rb.sample(frb.datasets.load(name, rb, root=tmp_path, **{kind: more[kind]}), rb.key(0), 8)
        first = drawn.items["next"]["reward"] if kind == "transforms" else drawn.mask.sum(1)
        assert first.tolist() == [1] * 8


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_words_may_be_one_hot_and_targets_others(write: Any, tmp_path: Path) -> None:
    name = write(tmp_path)
    reader = open_reader(name, str(tmp_path), one_hot=True)
    names = ["t", *(f"the colour={word}" for word in ("red", "dark blue", "it's")), "half"]
    assert reader.facts["features"] == names
    rows = np.concatenate([episode.observations[:1] for episode in reader.episodes()])
    np.testing.assert_array_equal(rows[:, 1:4], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]])
    other = open_reader(name, str(tmp_path), target="the colour")
    assert [int(episode.actions[0]) for episode in other.episodes()] == [0, 1, 2, 0, 0]
    with pytest.raises(ValueError, match=r"target: expected one of the columns of words .*, got 't'"):
        open_reader(name, str(tmp_path), target="t")


def test_words_that_are_told_twice_are_one(tmp_path: Path) -> None:
    reader = open_reader(arff(tmp_path, "@attribute x real\n@attribute y {a,a,b}\n@data\n1,b\n2,a\n"), str(tmp_path))
    assert reader.facts["actions"] == ["a", "b"]
    assert [int(episode.actions[0]) for episode in reader.episodes()] == [1, 0]


def test_blanks_between_words_cost_no_more_than_letters(tmp_path: Path) -> None:
    """By a pattern that is tried anew at each of them this would take an hour, and the test fail by its limit."""
    word = f"b{' ' * 2**19}c"
    text = f"@attribute x real\n@attribute y {{'a', {word}}}\n@data\n1,'a'\n2,{word}\n"
    reader = open_reader(arff(tmp_path, text), str(tmp_path))
    assert reader.facts["actions"] == ["a", word]
    assert [int(episode.actions[0]) for episode in reader.episodes()] == [0, 1]


REFUSED = {
    "a remark of which the end would be data": (ARFF + "%" + "x" * (2**20 - 1) + "6,red,x,1,no\n", "lines of fewer"),
    "sparse rows": (ARFF + "{0 1, 2 x}\n", "row 6: expected 5 values, got 2; tables of sparse rows"),
    "an unknown word": (ARFF + "6,green,x,1,no\n", "'the colour': KeyError"),
    "no number": (ARFF + "six,red,x,1,no\n", "'t': ValueError"),
    "no data": ("@relation a\n", "there is no @data"),
    "an attribute without a kind": ("@attribute a\n@data\n", "expected the name and the kind"),
    "an open quote": (ARFF + "6,'red,x,1,no\n", "rows from 0 on, 'the colour'"),
}


def test_gzip_that_is_damaged_or_cut_is_refused(tmp_path: Path) -> None:
    name = zipped(tmp_path)
    path = tmp_path / "a.arff.gz"
    whole = path.read_bytes()
    for content in (whole[:50] + bytes(9) + whole[59:], whole[:-20]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.arff\.gz: it cannot be decompressed.*fetch it again"):
            [*open_reader(name).episodes()]


def test_gzip_of_which_more_comes_out_than_a_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = zipped(tmp_path)
    monkeypatch.setattr("functional_rb.datasets.openml.LIMIT", 60)
    with pytest.raises(ValueError, match=r"a\.arff\.gz: expected at most 60 bytes, and more come out of it"):
        open_reader(name)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_other_tables_are_refused(case: tuple[str, str], tmp_path: Path) -> None:
    name = arff(tmp_path, case[0])
    with pytest.raises(ValueError, match=f"a.arff.*{case[1]}"):
        [*open_reader(name, str(tmp_path)).episodes()]
