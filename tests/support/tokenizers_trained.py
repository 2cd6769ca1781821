"""Tokenizers for tests, trained offline. Importing this takes no more than the tokenizers library."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = ("why", "so", "no", "yes", "maybe", "not", "now", "the", "cat", "sat", "on", "mat", "end")
END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = (
    "why is the sky so blue today? it is the light.",
    "the cat sat on the mat, and the dog did not.",
    "answer: yes, no, or maybe so; naïve café größer.",
)


def of_words() -> Tokenizer:
    """A token for each word, its number in `WORDS`; "mat" for all others."""
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="mat"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


class SlowWords:
    """A token for each word as `of_words` has it, by a tokenizer of Python's; `look` is given each text first."""

    def __init__(self, look: Callable[[str], object]) -> None:
        self._look, self._words = look, of_words()

    def __call__(self, texts: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        for text in [texts] if isinstance(texts, str) else texts:
            self._look(text)
        if isinstance(texts, str):
            return {"input_ids": self._words.encode(texts).ids}
        return {"input_ids": [self._words.encode(text).ids for text in texts]}

    def __len__(self) -> int:
        return len(WORDS)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._words.get_vocab())

    def save_pretrained(self, directory: str) -> list[str]:
        """Writes the files that say what it is."""
        path = os.path.join(directory, "words.json")
        self._words.save(path)
        return [path]


def of_merges() -> Tokenizer:
    """Characters, of which "a" and "b" side by side become one token."""
    made = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3, "<": 4}, [("a", "b")]))
    return made


@functools.cache
def bpe(vocabulary: int = 400) -> Tokenizer:
    """Byte pairs, with special tokens for conversations."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, "<|user|>", "<|assistant|>", "<|begin|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def of_transformers(template: str | None = TEMPLATE, **options: Any) -> Any:
    """The same as transformers has it; padding is the end token, as with GPT-2."""
    from transformers import PreTrainedTokenizerFast

    names = {"eos_token": END, "pad_token": END} | options
    made = PreTrainedTokenizerFast(tokenizer_object=bpe(), **names)
    made.chat_template = template
    return made
