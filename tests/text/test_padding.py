"""Ragged texts are padded as they are sampled: nothing is lost, nothing of the padding is taken for a token."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb import _native
from functional_rb.storage import host_kernels
from functional_rb.structures import ragged
from functional_rb.text import padding
from functional_rb.text.padding import Padded
from functional_rb.text.prepared import halves, row_dtype
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.tokenizers_trained import WORDS, of_words

END = len(WORDS) - 1
TOKENS = st.lists(st.integers(0, 3), max_size=9)
EXAMPLE = st.tuples(TOKENS, st.lists(TOKENS.filter(bool), min_size=2, max_size=2))


def stored(examples: list[list[tuple[list[int], int]]], path: Path) -> Any:
    """Texts and where their replies begin, as the files have them; rows by leaf."""
    tokens: list[int] = []
    table = []
    for texts in examples:
        first, *others = [ids for ids, _ in texts]
        row: tuple[Any, ...] = (halves(len(tokens)),)
        tokens += first
        if others:
            shared = next(k for k in range(len(first) + 1) if first[: k + 1] != others[0][: k + 1] or k == len(first))
            tokens += others[0][shared:]
            row += (shared,)
        table.append((*row, tuple(at for _, at in texts), tuple(len(ids) for ids, _ in texts)))
    np.array(tokens, np.uint16).tofile(path)
    rows = np.array(table, row_dtype(len(examples[0]), False))
    return {name: rows[name] for name in rows.dtype.names or ()}


@hypothesis.given(
    st.lists(EXAMPLE, min_size=1, max_size=6),
    st.sampled_from(["right", "left"]),
    st.integers(1, 7),
    st.integers(0, 4),
    st.booleans(),
)
@hypothesis.settings(max_examples=effort(100, 3000))
def test_padding_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    given: list[tuple[list[int], list[list[int]]]],
    side: Any,
    bucket: int,
    pad: int,
    fixed: bool,
) -> None:
    """Also where the padding is a token that there is in the texts."""
    path = tmp_path_factory.mktemp("texts", numbered=True) / "tokens.bin"
    for texts in (2, 1):
        examples = [[(prompt + reply, len(prompt)) for reply in replies[:texts]] for prompt, replies in given]
        longest = max(len(ids) for texts in examples for ids, _ in texts)
        length = longest + bucket if fixed else None
        padded = Padded(str(path), "uint16", texts, True, False, pad, side, None if fixed else bucket, length)
        made = padded.read(stored(examples, path), np.asarray)
        sides = [made.chosen_data, made.rejected_data] if texts == 2 else [made]
        begins = made.prompt_rindex.T if texts == 2 else [made.prompt_rindex]
        expected = length or -(-longest // bucket) * bucket
        for k, (text, begin) in enumerate(zip(sides, begins, strict=True)):
            assert text.input_ids.shape == text.attention_mask.shape == (len(given), expected)
            assert (text.input_ids.dtype, text.attention_mask.dtype) == (np.int32, np.bool_)
            for i, one in enumerate(examples):
                ids, at = one[k]
                mask = text.attention_mask[i]
                assert text.input_ids[i][mask].tolist() == ids
                assert (text.input_ids[i][~mask] == pad).all()
                assert mask.nonzero()[0].tolist() == list(
                    np.arange(len(ids)) + (expected - len(ids)) * (side == "left")
                )
                assert text.input_ids[i][: begin[i]][mask[: begin[i]]].tolist() == ids[:at]
                if texts == 1:
                    learned = made.labels[i] >= 0
                    assert made.labels[i][learned].tolist() == ids[at:]
                    assert (made.labels[i][~learned] == -100).all()
                    assert learned.nonzero()[0].tolist() == list(begin[i] + np.arange(len(ids) - at))


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("texts", [1, 2, 3])
def test_the_kernel_pads_as_the_core_does(texts: int, dtype: str, fits: bool) -> None:
    """Also rows that tell of no tokens of the file: the first of these is told, and nothing is written there."""
    rng = np.random.default_rng(texts)
    for size in (0, 9, 60) * effort(10, 200):
        tokens = rng.integers(0, np.iinfo(dtype).max, size, dtype, endpoint=True)
        length, left, pad = int(rng.integers(13)), bool(rng.integers(2)), int(rng.integers(2**31))
        table = []
        for _ in range(rng.integers(6)):
            counts = rng.integers(0, length + 1, texts) if fits else rng.integers(-1, length + 2, texts)
            shared = rng.integers(0, counts.min() + 1) if fits else rng.integers(-1, length + 2)
            room = size - int(counts.sum() - (texts - 1) * shared)
            start = int(rng.integers(0, max(room, 0) + 1) if fits else rng.integers(-2, size + 2))
            if not fits or room >= 0:
                table.append(((start // 2**31, start % 2**31), shared, counts))
        compare_padded(tokens, table, (length, pad, left), fits)


def compare_padded(tokens: Any, table: list[Any], settings: tuple[int, int, bool], fits: bool) -> None:
    """Of rows that are told by their starts, what they share, and lengths."""
    texts = len(table[0][2]) if table else 1
    parts = [np.array([row[k] for row in table], np.int32) for k in range(3)]
    starts, lengths = parts[0].reshape(-1, 2), parts[2].reshape(-1, texts)
    given = starts, None if texts == 1 else parts[1], lengths, *settings
    ids, mask, wrong = host_kernels.padded(tokens, *given)
    expected_ids, expected_mask, expected_wrong = ragged.padded(tokens, *given)
    assert wrong == expected_wrong
    assert (wrong < 0) or not fits
    first = len(table) if wrong < 0 else wrong
    for found, expected in ((ids, expected_ids), (mask, expected_mask)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found[:, :first], expected[:, :first])


@pytest.mark.parametrize("side", ["right", "left"])
def test_nothing_that_is_given_out_is_what_was_given(side: Any, tmp_path: Path) -> None:
    """Else compiled programs of torch would refuse it."""
    rows = stored([[([7, 8], 1), ([7, 9], 1)]], tmp_path / "tokens.bin") | {"scores": np.zeros((1, 2), np.float32)}
    made = Padded(str(tmp_path / "tokens.bin"), "uint16", 2, scored=True, bucket=2, side=side).read(rows, np.asarray)
    texts = made.chosen_data, made.rejected_data
    for given in rows.values():
        for x in (made.prompt_rindex, *(part for text in texts for part in (text.input_ids, text.end_scores))):
            assert not np.shares_memory(x, given)


def test_the_kernel_is_used_unless_it_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For whatever arrays."""
    called = []
    kernel = _native.pad_rows
    monkeypatch.setattr(_native, "pad_rows", lambda *args: (called.append(0), kernel(*args))[1])
    rows = stored([[([7, 8], 1)], [([5], 1)]], tmp_path / "tokens.bin")
    whole = {name: np.ascontiguousarray(leaf) for name, leaf in rows.items()}
    padded = Padded(str(tmp_path / "tokens.bin"), "uint16", 1, bucket=2)
    assert not rows["lengths"].flags.c_contiguous
    for leaf in whole.values():
        leaf.flags.writeable = False
    for given in (rows, whole):
        with frb.kernels(False):
            assert padded.read(given, np.asarray).input_ids.tolist() == [[7, 8], [5, 0]]
        with frb.kernels(True):
            assert padded.read(given, np.asarray).input_ids.tolist() == [[7, 8], [5, 0]]
    assert len(called) == 2
    np.array([7, 8, 5], np.int64).tofile(tmp_path / "wide.bin")
    wide = dataclasses.replace(padded, path=str(tmp_path / "wide.bin"), dtype="int64")
    assert wide.read(rows, np.asarray).input_ids.tolist() == [[7, 8], [5, 0]], "which the kernel does not know"
    assert len(called) == 2


@pytest.mark.parametrize("pad", [2**31, -(2**31) - 1, 2**40, True, 1.0, "0", None])
def test_a_pad_that_is_no_int32_is_refused(pad: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"Padded: pad: expected an int32, got {pad!r}")):
        Padded("tokens.bin", "uint16", 1, bucket=2, pad=pad)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("pad", [2**31 - 1, -(2**31), np.int64(7)])
def test_pads_may_be_any_int32(pad: Any, on: bool, tmp_path: Path) -> None:
    rows = stored([[([7, 8], 1)], [([5], 1)]], tmp_path / "tokens.bin")
    with frb.kernels(on):
        made = Padded(str(tmp_path / "tokens.bin"), "uint16", 1, bucket=2, pad=pad).read(rows, np.asarray)
    assert made.input_ids.tolist() == [[7, 8], [5, pad]]


@pytest.mark.parametrize("on", [True, False])
def test_rows_of_other_texts_are_refused(on: bool, tmp_path: Path) -> None:
    rows = stored([[([7, 8], 1)], [([5], 1)]], tmp_path / "tokens.bin")
    read = Padded(str(tmp_path / "tokens.bin"), "uint16", 1, bucket=2).read
    with frb.kernels(on):
        assert read(rows, np.asarray).input_ids.tolist() == [[7, 8], [5, 0]]
        rows["lengths"][1] = 2
        with pytest.raises(
            ValueError, match=r"tokens.bin: row 1 of a batch tells of tokens beyond its 3; the rows are"
        ):
            read(rows, np.asarray)


def test_there_is_room_for_more_tokens_than_an_int32_tells(tmp_path: Path) -> None:
    place = 2**31 + 5
    with open(tmp_path / "tokens.bin", "wb") as file:  # the file is sparse
        file.seek(2 * place)
        file.write(np.array([7, 8, 9], np.uint16).tobytes())
    row = np.array([(halves(place), (1,), (3,))], row_dtype(1, False))
    rows = {name: row[name] for name in row.dtype.names or ()}
    made = Padded(str(tmp_path / "tokens.bin"), "uint16", 1, bucket=4).read(rows, np.asarray)
    assert made.input_ids.tolist() == [[7, 8, 9, 0]]


def test_another_file_in_the_place_of_one_that_was_read_is_read_anew(tmp_path: Path) -> None:
    read = Padded(str(tmp_path / "tokens.bin"), "uint16", 1, bucket=2).read
    rows = stored([[([7, 8], 1)]], tmp_path / "tokens.bin")
    assert read(rows, np.asarray).input_ids.tolist() == [[7, 8]]
    stored([[([5, 6], 1)]], tmp_path / "new.bin")
    os.replace(tmp_path / "new.bin", tmp_path / "tokens.bin")
    assert read(rows, np.asarray).input_ids.tolist() == [[5, 6]]
    os.truncate(tmp_path / "tokens.bin", 2)
    with pytest.raises(ValueError, match=r"row 0 of a batch tells of tokens beyond its 1"):
        read(rows, np.asarray)
    os.remove(tmp_path / "tokens.bin")
    with pytest.raises(FileNotFoundError, match="prepare the texts anew, or put it back"):
        read(rows, np.asarray)
    os.mkfifo(tmp_path / "tokens.bin")  # which would keep who opens it waiting
    with pytest.raises(OSError, match="the file of tokens: no regular file; prepare the texts anew"):
        read(rows, np.asarray)


def test_a_file_that_lasts_is_looked_at_once(tmp_path: Path) -> None:
    rows = stored([[([7, 8], 1)]], tmp_path / "tokens.bin")
    lasting = Padded(str(tmp_path / "tokens.bin"), "uint16", 1, bucket=2, lasting=True)
    for _ in range(2):
        assert lasting.read(rows, np.asarray).input_ids.tolist() == [[7, 8]]
        if (tmp_path / "tokens.bin").exists():
            os.remove(tmp_path / "tokens.bin")
    with pytest.raises(FileNotFoundError, match="prepare the texts anew, or put it back"):
        dataclasses.replace(lasting, lasting=False).read(rows, np.asarray)
    assert prepared(tmp_path).spec(4).transforms[0].function.lasting


def test_few_files_are_kept_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "MOST_FILES", 3)
    monkeypatch.setattr(padding, "_FILES", {})
    before = len(os.listdir("/proc/self/fd"))
    for k in range(5):
        rows = stored([[([k, 8], 1)]], tmp_path / f"{k}.bin")
        for _ in range(2):
            read = Padded(str(tmp_path / f"{k}.bin"), "uint16", 1, bucket=2).read(rows, np.asarray)
            assert read.input_ids.tolist() == [[k, 8]]
    assert [os.path.basename(path) for path, _ in padding._FILES] == ["2.bin", "3.bin", "4.bin"]
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 3, "one of its own, and one of the mapping"


def test_texts_whose_file_was_put_aside_are_mapped_anew(tmp_path: Path) -> None:
    """The file that was mapped is there still, by another name."""
    data = prepared(tmp_path)
    expected = data.spec(4).transforms[0].function
    row = {name: np.array(leaf[:4]) for name, leaf in data.rows.items()}
    first = expected.read(row, np.asarray).chosen_data.input_ids
    path = os.path.join(data.path, "tokens.bin")
    os.rename(path, tmp_path / "aside.bin")
    other = np.fromfile(tmp_path / "aside.bin", data.dtype)[::-1].copy()
    other.tofile(path)
    again = data.spec(4).transforms[0].function.read(row, np.asarray).chosen_data.input_ids
    assert not np.array_equal(first, again)


def prepared(path: Path, n: int = 21, seed: int = 0, **options: Any) -> frb.text.Prepared:
    """Pairs whose texts are all different, and have 3 to 40 tokens; the padding is the end token."""
    rng = np.random.default_rng(seed)

    def text(most: int) -> str:
        return " ".join(rng.choice(WORDS[:-1], rng.integers(1, most)))

    rows = [
        {
            "prompt": f"{text(30)} {' '.join(np.array(WORDS)[[k // 5, k % 5]])}",
            "chosen": f"yes {text(7)}",
            "rejected": "no",
        }
        for k in range(n)
    ]
    return frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=END, separator=" "), root=path, **options)


def texts_of(numpy: Any, items: Any, mask: Any = None) -> list[tuple[tuple[int, ...], ...]]:
    """The tokens of each pair of a batch, whose arrays a function makes NumPy's."""
    pair = items.chosen_data, items.rejected_data
    sides = [(numpy(text.input_ids), numpy(text.attention_mask)) for text in pair]
    real = np.ones(len(sides[0][0]), bool) if mask is None else numpy(mask)
    return [tuple(tuple(ids[i][kept[i]].tolist()) for ids, kept in sides) for i in real.nonzero()[0]]


def all_of(data: frb.text.Prepared) -> list[tuple[tuple[int, ...], ...]]:
    return [tuple(tuple(ids.tolist()) for ids in data.example(k)) for k in range(data.examples)]


def test_an_epoch_is_a_pass_and_the_end_is_a_token(library: Backend, tmp_path: Path) -> None:
    data, rb = prepared(tmp_path), library.rb
    spec = data.spec(4, bucket=16, pad=END)
    assert (spec.sampler, spec.writer, spec.storage) == (frb.WithoutReplacement(), frb.Immutable(), frb.Memmap())
    assert spec.item_bytes == 28
    state = rb.init(spec, items=data.rows)
    assert int(rb.size(state)) == 21
    seen: Counter[Any] = Counter()
    lengths = set()
    for k, sample in enumerate(frb.iterate(rb, state, rb.key(0), n=18)):  # three epochs of six batches: without end
        assert type(sample.items) is frb.text.PairwiseDataset
        found = texts_of(library.numpy, sample.items, sample.mask)
        assert all(text[-1] == END for pair in found for text in pair)  # whatever stands behind it
        seen.update(found)
        length = sample.items.chosen_data.input_ids.shape[1]
        longest = max(len(text) for pair in found for text in pair)
        assert length == sample.items.rejected_data.input_ids.shape[1]
        assert length % 16 == 0
        if len(found) == 4:
            assert longest <= length < longest + 16
        lengths.add(length)
        if (k + 1) % 6 == 0:
            assert seen == Counter(dict.fromkeys(all_of(data), (k + 1) // 6))
    assert len(lengths) > 1
    assert len(lengths) <= data.longest // 16 + 1
    passes = [texts_of(library.numpy, sample.items) for sample in frb.iterate(rb, state, rb.key(0), epochs=2)]
    assert Counter(pair for found in passes for pair in found) == Counter(all_of(data) * 2)


def test_texts_are_read_one_by_one_too(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    expected = data.spec(bucket=8).on_sample.function.read(data.rows, np.asarray)
    assert texts_of(np.asarray, expected) == all_of(data)
    for k in range(data.examples):
        chosen, rejected = data.example(k)
        at = data.rows["prompts"][k]
        assert chosen[: at[0]].tolist() == rejected[: at[1]].tolist()
    assert data.example(-1)[0].tolist() == data.example(20)[0].tolist()
    with pytest.raises(IndexError, match="below 21"):
        data.example(21)


def test_a_fixed_length_is_sampled_in_compiled_programs_too(tmp_path: Path) -> None:
    import jax_backend as rb
    import torch_backend

    data = prepared(tmp_path)
    spec = data.spec(4, length=48, side="left", storage=frb.Device())
    state = rb.init(spec, items=data.rows)
    compiled = jax.jit(rb.sample)(state, rb.key(3))[1]
    eager = rb.sample(state, rb.key(3))[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, compiled, eager))
    assert compiled.items.chosen_data.input_ids.shape == (4, 48)

    def two(state: Any, key: Any) -> Any:
        return jax.lax.scan(lambda state, key: rb.sample(state, key), state, rb.split(key, 5))[1]

    batches = jax.jit(two)(state, rb.key(0))
    assert batches.items.prompt_rindex.shape == (5, 4, 2)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batches.items)
    drawn = set(texts_of(np.asarray, flat))
    assert len(drawn) == 20
    assert drawn < set(all_of(data))
    given = rb.sample_spec(spec)
    assert given == torch_backend.sample_spec(spec)
    assert given["chosen_data"]["input_ids"].shape == (4, 48)
    for name in ("jax", "torch"):
        library = {"jax": rb, "torch": torch_backend}[name]
        with pytest.raises(ValueError, match=r"shapes that it gives depend on values, .*length="):
            library.sample_spec(data.spec(4))
    with pytest.raises(ValueError, match=r"depend on values.*storage=frb\.Memmap"):
        rb.sample(rb.init(data.spec(4, storage=frb.Device()), items=data.rows), rb.key(0))


@pytest.mark.parametrize("compiler", effort(["eager"], ["eager", "aot_eager"]))
@pytest.mark.parametrize("storage", effort([frb.Memmap()], [frb.Memmap(), frb.Device()]), ids=repr)
@pytest.mark.parametrize("sampler", effort([frb.Uniform()], [frb.Uniform(), frb.WithoutReplacement()]), ids=repr)
def test_a_fixed_length_is_sampled_under_torch_compile_too(
    tmp_path: Path, sampler: Any, storage: Any, compiler: str
) -> None:
    import torch

    import torch_backend as rb

    def step(state: Any, key: Any) -> Any:
        """A batch, and what a program computes of it."""
        state, sample = rb.sample_(state, key)
        return state, sample.items, sample.items.chosen_data.input_ids.sum(1)

    torch.compiler.reset()  # of one function it keeps eight programs only
    compiled = torch.compile(step, fullgraph=True, backend=compiler)
    for seed in range(effort(1, 2)):  # another file of tokens is another function, though all shapes are the same
        data = prepared(tmp_path, n=20, seed=seed)
        spec = data.spec(4, length=48, side="left", sampler=sampler, storage=storage)
        states = [rb.own_(rb.init(spec, items=data.rows)) for _ in range(2)]
        seen: Counter[Any] = Counter()
        for k in range(5):
            (states[0], *expected), (states[1], *found) = step(states[0], rb.key(k)), compiled(states[1], rb.key(k))
            pairs = zip(*map(torch.utils._pytree.tree_leaves, (expected, found)), strict=True)
            assert all(torch.equal(one, other) and one.dtype is other.dtype for one, other in pairs)
            assert type(found[0]) is frb.text.PairwiseDataset
            seen.update(texts_of(torch.Tensor.numpy, found[0]))
        assert seen.keys() <= set(all_of(data))
        if isinstance(sampler, frb.WithoutReplacement):
            assert seen == Counter(all_of(data))


def test_torch_compile_is_told_what_the_host_gives(tmp_path: Path) -> None:
    """The operation that it sees: of each file its own, with the shapes and dtypes that were promised."""
    import torch

    from torch_backend.engines import mapping as compiled

    numbers = []
    for seed in (0, 1, 0):
        data = prepared(tmp_path, n=5, seed=seed)
        transform = data.spec(2, length=48, pad=END).on_sample
        leaves = [torch.from_numpy(np.array(data.rows[name])) for name in transform.given.names]
        numbers.append(compiled._number(transform))
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(compiled._read, (numbers[-1], [5], leaves), test_utils=checks)
        found = dict(zip(transform.after.names, compiled._read(numbers[-1], [5], leaves), strict=True))
        text = zip(found["chosen_data/input_ids"], found["chosen_data/attention_mask"], strict=True)
        assert [tuple(ids[mask].tolist()) for ids, mask in text] == [chosen for chosen, _ in all_of(data)]
    assert numbers[0] == numbers[2] != numbers[1]


@pytest.mark.long
def test_torch_compile_asks_for_a_fixed_length(tmp_path: Path) -> None:
    import torch

    import torch_backend as rb

    data = prepared(tmp_path)
    state = rb.own_(rb.init(data.spec(4, sampler=frb.Uniform()), items=data.rows))
    with pytest.raises(Exception, match=r"shapes that it gives depend on values, .*length="):
        torch.compile(rb.sample_, fullgraph=True, backend="eager")(state, rb.key(0))


def test_buffers_of_texts_are_sent_saved_and_told(library: Backend, tmp_path: Path) -> None:
    data, rb = prepared(tmp_path / "cache"), library.rb
    spec = data.spec(4, bucket=16)
    assert frb.convert.from_json(frb.convert.to_json(spec)) == spec == pickle.loads(pickle.dumps(spec))
    state = rb.init(spec, items=data.rows)
    expected = texts_of(library.numpy, rb.sample(state, rb.key(5))[1].items)
    frb.save(state, tmp_path / "saved")
    for other in (frb.load(tmp_path / "saved", rb), pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        assert texts_of(library.numpy, rb.sample(other, rb.key(5))[1].items) == expected
    device = jax.devices()[0] if library.library == "jax" else "cpu"
    there = rb.init(spec, items=data.rows, device=device)
    batch = next(iter(frb.iterate(rb, there, rb.key(5), n=1, device=device)))
    assert len(texts_of(library.numpy, batch.items)) == 4
    if library.library == "jax":
        assert rb.sample(there, rb.key(5))[1].items.chosen_data.input_ids.committed
        assert not rb.sample(state, rb.key(5))[1].items.chosen_data.input_ids.committed
    mixed = frb.Mixture([rb.init(data.spec(length=48), items=data.rows)] * 2, p=[0.5, 0.5])
    assert rb.sample(mixed, rb.key(0), 4)[1].items.chosen_data.input_ids.shape == (4, 48)


def test_prompts_are_prompt_data(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    rows = [{"prompt": "why so", "label": "no"}, {"prompt": "now", "label": "yes yes"}]
    data = frb.text.prompts(rows, of_words(), frb.text.Tokenization(eos=END, separator=" "), root=tmp_path)
    state = rb.init(data.spec(2, bucket=3, sampler=frb.InOrder()), items=data.rows)
    items = rb.sample(state, rb.key(0))[1].items
    assert type(items) is frb.text.PromptData
    assert library.numpy(items.input_ids).tolist() == [[0, 1, 2, END, 0, 0], [6, 3, 3, END, 0, 0]]
    assert library.numpy(items.labels).tolist() == [[-100, -100, 2, END, -100, -100], [-100, 3, 3, END, -100, -100]]
    assert library.numpy(items.prompt_rindex).tolist() == [2, 1]
    alone = frb.text.prompts(rows, of_words(), columns={"reply": None}, root=tmp_path)
    state = rb.init(alone.spec(2, bucket=3, side="left", pad=9, sampler=frb.InOrder()), items=alone.rows)
    items = rb.sample(state, rb.key(0))[1].items
    assert items.labels is None
    assert library.numpy(items.input_ids).tolist() == [[9, 0, 1], [9, 9, 6]]
    assert library.numpy(items.prompt_rindex).tolist() == [3, 3]


def test_scores_are_those_of_the_end(library: Backend, tmp_path: Path) -> None:
    rows = [{"prompt": "why", "chosen": " yes", "rejected": " no", "a": k, "b": -k} for k in range(3)]
    data = frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=END), scores=("a", "b"), root=tmp_path)
    rb = library.rb
    items = rb.sample(rb.init(data.spec(3, sampler=frb.InOrder()), items=data.rows), rb.key(0))[1].items
    assert library.numpy(items.chosen_data.end_scores).tolist() == [0, 1, 2]
    assert library.numpy(items.rejected_data.end_scores).tolist() == [0, -1, -2]
    loss = rb.text.bradley_terry_loss(items.chosen_data.end_scores, items.rejected_data.end_scores)
    assert float(loss) < np.log(2)


def test_some_of_the_rows_and_other_samplers(library: Backend, tmp_path: Path) -> None:
    data, rb = prepared(tmp_path), library.rb
    kept = data.rows["lengths"].max(1) <= 20
    assert 0 < kept.sum() < len(kept)
    spec = dataclasses.replace(data.spec(5, bucket=20), capacity=int(kept.sum()), sampler=frb.Uniform())
    state = rb.init(spec, items={name: leaf[kept] for name, leaf in data.rows.items()})
    sample = rb.sample(state, rb.key(0))[1]
    assert sample.items.chosen_data.input_ids.shape == (5, 20)
    assert set(texts_of(library.numpy, sample.items)) <= {all_of(data)[k] for k in kept.nonzero()[0]}


def test_what_does_not_fit_is_refused(library: Backend, tmp_path: Path) -> None:
    data, rb = prepared(tmp_path), library.rb
    for options, message in (
        ({"length": 5}, f"expected length from {data.longest} on, the tokens of the longest text; .*max_length=5"),
        ({"bucket": 0}, "expected bucket from 1 on"),
        ({"pad": -1}, "expected pad from 0 on"),
        ({"side": "both"}, "expected side as 'right' or 'left'"),
    ):
        with pytest.raises(ValueError, match=message):
            data.spec(4, **options)  # type: ignore[arg-type]  # that is what is tested
    function = data.spec(4).on_sample.function
    with pytest.raises(ValueError, match="at='sample'"):
        frb.BufferSpec(data.spec(4).item, 9, transforms=frb.map_items(function, at="add"))
    with pytest.raises(ValueError, match="says itself what it takes"):
        frb.map_items(function, keyed=True)
    state = rb.init(data.spec(4, length=data.longest), items=data.rows)
    os.rename(data.path, f"{data.path}.moved")
    with pytest.raises(FileNotFoundError, match=r"file of tokens.*prepare the texts anew, or put it back"):
        rb.sample(state, rb.key(0))


def test_rows_of_kernels_go_where_samples_go() -> None:
    """Kernels give rows that are read on the host as arrays of NumPy; a state with another target sends them there."""
    torch = pytest.importorskip("torch")
    from functional_rb.core.strategy import Selection
    from torch_backend.memory.library import Torch

    rows, handles = np.arange(6, dtype=np.int32).reshape(3, 2), torch.zeros(3, dtype=torch.int32)
    weights = torch.ones(3)
    sent, selection = Torch().sent_sample([rows], Selection(handles, weights, weights), torch.device("meta"))
    assert (sent[0].device.type, sent[0].shape, sent[0].dtype) == ("meta", (3, 2), torch.int32)
    assert selection.handles.device.type == "meta"
