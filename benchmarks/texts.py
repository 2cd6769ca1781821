"""Preparing and loading texts beside `datasets.map` and torchrl's loader."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import functional_rb as frb
from benchmarks import ours
from benchmarks.compare import Effort, Section, joined, measure
from benchmarks.contender import Calls, Entry, Texting
from benchmarks.goals import DATASETS_MAP, LEAST_SHARE, LOADER, OURS_UNIFORM, text_comparisons
from benchmarks.group_report import markdown, who_did_not_run
from benchmarks.report import ratio_rows

GROUPS: tuple[Texting, ...] = ("tokenizing", "batches of texts")
END = "<|end|>"
SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class TextWorkload:
    """What is tokenized and drawn: pairs of texts like those of openai_summarize_comparisons.

    Attributes:
        pairs: of texts with a prompt in common.
        prompt: words of a prompt, the median of a log-normal law.
        reply: words of a reply at most.
        max_length: tokens of a text at most, to which torchrl pads all.
        vocabulary: tokens that there are.
        batch: pairs drawn at a time.
        bucket: to whose multiples batches are padded.
        seed: of all random numbers.
    """

    pairs: int = 1000
    prompt: int = 180
    reply: int = 50
    max_length: int = 550
    vocabulary: int = 5000
    batch: int = 32
    bucket: int = 64
    seed: int = 0


WORK = TextWorkload()


@functools.lru_cache(maxsize=2)
def rows(work: TextWorkload) -> list[dict[str, str]]:
    """Texts of words that are as frequent as those of a language (Zipf)."""
    rng = np.random.default_rng(work.seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(8000)]
    chances = 1 / np.arange(1, len(words) + 1)

    def text(count: int) -> str:
        return " ".join(rng.choice(words, count, p=chances / chances.sum()))

    def reply() -> str:
        return " " + text(int(rng.integers(work.reply // 5, work.reply)))

    lengths = rng.lognormal(np.log(work.prompt), 0.5, work.pairs).astype(int) + 1
    return [{"prompt": text(n), "chosen": reply(), "rejected": reply()} for n in lengths.tolist()]


@functools.lru_cache(maxsize=2)
def tokenizer(work: TextWorkload) -> Any:
    """Byte pairs of these texts, as transformers has them; the padding is the end, as with GPT-2."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=work.vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator((row["prompt"] for row in rows(work)[:500]), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=END)


def roster(work: TextWorkload, group: Texting) -> list[Entry]:
    """Everyone who takes part in one group."""
    builders: dict[str, Callable[..., Calls]] = (
        {ours.NAME: of_ours_tokenizing, DATASETS_MAP: of_map}
        if group == "tokenizing"
        else {ours.NAME: of_ours, OURS_UNIFORM: of_ours, LOADER: of_torchrl}
    )
    return [Entry(name, "torch", group, partial(build, name, work, group)) for name, build in builders.items()]


def text_section(
    work: TextWorkload,
    effort: Effort,
    *,
    groups: Iterable[Texting] = GROUPS,
    entries: Callable[[TextWorkload, Texting], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other; who cannot run is named with the reason. Tokenizing takes seconds a call."""
    parts: list[Section] = []
    for group in groups:
        turns = Effort(max(1, effort.rounds // 60), 1) if group == "tokenizing" else effort
        parts.append(measure({("torch", group): partial(entries, work, group)}, text_comparisons(), turns, say=say))
    return joined(parts)


def held(work: TextWorkload) -> dict[str, int]:
    """Bytes of the files with all texts: ours, and torchrl's tables of ids and masks in int64."""
    with tempfile.TemporaryDirectory() as root:
        data = prepared(work, root)
        taken = sum(os.path.getsize(os.path.join(data.path, name)) for name in ("tokens.bin", "rows.bin"))
    return {ours.NAME: taken, LOADER: 2 * data.examples * work.max_length * 2 * 8}


def text(section: Section, work: TextWorkload) -> str:
    """The section in Markdown: what was measured, bytes, ratios and medians, and who did not run."""
    about = (
        f"{work.pairs:,} pairs of texts, of at most {work.max_length} tokens of a vocabulary of {work.vocabulary:,}, "
        f"are tokenized into files, and {work.batch} pairs at a time drawn and padded, each pair once an epoch."
    )
    who = [
        f"- {ours.NAME}: `frb.text.preference`, jointly; `rb.sample` of its buffer, in steps of {work.bucket} tokens",
        f"- {OURS_UNIFORM}: the same, drawn by `frb.Uniform()`",
        f"- {DATASETS_MAP}: `Dataset.map(batched=True)` of both texts with the same tokenizer, to a file",
        f"- {LOADER}: the buffer that `get_dataloader` makes, of tables as `TokenizedDatasetLoader` has them",
    ]
    bytes_held = held(work)
    share = bytes_held[ours.NAME] / bytes_held[LOADER]
    verdict = "pass" if share <= LEAST_SHARE else "MISSED"
    sizes = (
        f"Bytes held: {ours.NAME} {bytes_held[ours.NAME]:,}, torchrl's padded int64 tables {bytes_held[LOADER]:,}: "
        f"{share:.3f} of them, goal <= {LEAST_SHARE:g}: {verdict}."
    )
    times = "Time of `compared` over time of `against`, median and quartiles of the rounds' ratios:"
    missing = who_did_not_run(section)
    return "\n".join([about, "", *who, "", sizes, "", times, "", *markdown(ratio_rows(section)), "", *missing])


def prepared(work: TextWorkload, root: str) -> frb.text.Prepared:
    """The texts as ours."""
    return frb.text.preference(
        rows(work), tokenizer(work), frb.text.Tokenization(max_length=work.max_length), root=root, progress=False
    )


def of_ours_tokenizing(name: str, work: TextWorkload, group: Texting) -> Calls:
    """Ours, into a folder of its own each time, so that nothing is found again."""
    import datasets

    table = datasets.Dataset.from_list(rows(work))

    def tokenize() -> None:
        with tempfile.TemporaryDirectory() as root:
            frb.text.preference(table, tokenizer(work), root=root, progress=False)

    return Calls(name, "torch", group, {"tokenize": tokenize})


def of_map(name: str, work: TextWorkload, group: Texting) -> Calls:
    """Hugging Face's way, without its progress bar."""
    import datasets

    table, tokenize_texts = datasets.Dataset.from_list(rows(work)), tokenizer(work)
    datasets.disable_progress_bars()

    def ids(batch: dict[str, list[str]]) -> dict[str, Any]:
        texts = {side: [p + r for p, r in zip(batch["prompt"], batch[side], strict=True)] for side in SIDES}
        return {f"{side}_ids": tokenize_texts(given)["input_ids"] for side, given in texts.items()}

    def tokenize() -> None:
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "tokens.arrow")
            table.map(
                ids, batched=True, remove_columns=table.column_names, cache_file_name=path, load_from_cache_file=False
            )

    return Calls(name, "torch", group, {"tokenize": tokenize})


def of_ours(name: str, work: TextWorkload, group: Texting) -> Calls:
    """A buffer of prepared texts."""
    import torch_backend as rb

    root = tempfile.mkdtemp()
    data = prepared(work, root)
    sampler = frb.Uniform() if name == OURS_UNIFORM else frb.WithoutReplacement(drop_last=True)
    states = [rb.init(data.spec(work.batch, bucket=work.bucket, sampler=sampler), items=data.rows)]
    keys = itertools.cycle(list(rb.split(rb.key(work.seed), 512)))

    def sample() -> None:
        states[0], _ = rb.sample(states[0], next(keys))

    made = Calls(name, "torch", group, {"sample": sample})
    weakref.finalize(made, shutil.rmtree, root, ignore_errors=True)
    return made


def of_torchrl(name: str, work: TextWorkload, group: Texting) -> Calls:
    """What `get_dataloader` makes, of tables that need no download."""
    from tensordict import TensorDict
    from torchrl.data import SamplerWithoutReplacement, TensorDictReplayBuffer, TensorStorage
    from torchrl.data.llm import PairwiseDataset, RewardData, TensorDictTokenizer

    root = tempfile.mkdtemp()
    process = TensorDictTokenizer(tokenizer(work), max_length=work.max_length)
    parts: dict[str, Any] = {}
    for side in SIDES:
        parts[f"{side}_data"] = process({"text": [row["prompt"] + row[side] for row in rows(work)]})
    stored = TensorDict(parts, batch_size=[work.pairs]).memmap_(root)
    sides = {key: RewardData(**dict(stored[key].items()), batch_size=stored.batch_size) for key in parts}
    pairs = PairwiseDataset(**sides, batch_size=stored.batch_size)
    buffer: Any = TensorDictReplayBuffer(
        storage=TensorStorage(pairs),
        collate_fn=lambda x: x.as_tensor().to("cpu", non_blocking=True),
        sampler=SamplerWithoutReplacement(drop_last=True),
        batch_size=work.batch,
    )
    made = Calls(name, "torch", group, {"sample": buffer.sample})
    weakref.finalize(made, shutil.rmtree, root, ignore_errors=True)
    return made
