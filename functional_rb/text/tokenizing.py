"""Tokenizers of Hugging Face behind one face: what tells tokens apart, and where a prompt ends among them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

# An object of `transformers` or of `tokenizers`: a tokenizer, or what one gives. Neither is imported here.
HuggingFace: TypeAlias = Any
# A text around which a tokenizer's own special tokens are looked for.
FRAMED = "a"
# What follows a conversation: a reply, whose beginning the template writes too; more of its last message; nothing.
Then = Literal["reply", "more", "end"]
_OF_THE_SYSTEM = (OSError, MemoryError, ImportError)


class TemplateFailed(Exception):
    """A chat template that raised an error, which is the cause, for one conversation."""


class Tokens(NamedTuple):
    """A tokenized text."""

    ids: list[int]  # the tokens of prompt and reply
    prompt: int  # how many of them are the prompt's
    merged: bool  # whether the prompt ends within a token


class Tokenizing:
    """A tokenizer of `transformers` or `tokenizers`, which is left as it is.

    Special tokens are put around texts here, `prefix` and `suffix`, the same whether prompt and reply are tokenized
    together or apart; those that a text itself names are taken as such, as tokenizers do. All are below `vocabulary`.
    """

    def __init__(self, tokenizer: HuggingFace, who: str) -> None:
        self._tokenizer, self._who = tokenizer, who
        fast = getattr(tokenizer, "backend_tokenizer", None)
        # A fast tokenizer of `transformers` has one of `tokenizers` inside.
        if fast is None and hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str"):
            fast = tokenizer
        if fast is None and not hasattr(tokenizer, "get_vocab"):
            raise TypeError(
                f"{who}: expected tokenizer as one of transformers, such as AutoTokenizer.from_pretrained(...), or of "
                f"tokenizers, got {type(tokenizer).__name__}"
            )
        self._fast: HuggingFace = None
        if fast is not None:
            self._fast = type(fast).from_str(fast.to_str())  # a copy
            self._fast.no_padding()
            self._fast.no_truncation()
            if (split := getattr(tokenizer, "split_special_tokens", None)) is not None:
                self._fast.encode_special_tokens = split
        self.prefix, self.suffix = self._frame()
        self.eos: int | None = getattr(tokenizer, "eos_token_id", None)  # ends a reply
        pad = getattr(tokenizer, "pad_token_id", None)
        padding = getattr(tokenizer, "padding", None)
        if pad is None and isinstance(padding, dict):
            pad = padding["pad_id"]
        self.pad: int = next(int(x) for x in (pad, self.eos, 0) if x is not None)
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else tokenizer.get_vocab_size(with_added_tokens=True)
        # Tokens that were added may have larger numbers than there are tokens.
        self.vocabulary = max(size, self.pad + 1, max(tokenizer.get_vocab().values(), default=0) + 1)

    def identity(self) -> bytes:
        """A checksum of all that tokens and conversations depend on, but not of how the tokenizer pads and cuts."""
        # A slow tokenizer has no one text that says what it is, so the files that it saves are read.
        digest = hashlib.blake2b(digest_size=16)
        facts = [type(self._tokenizer).__name__, self.prefix, self.suffix, self.eos, self.pad, self.vocabulary]
        facts.append(getattr(self._tokenizer, "chat_template", None))
        digest.update(json.dumps(facts).encode())
        if self._fast is not None:
            digest.update(self._fast.to_str().encode())
            return digest.digest()
        with tempfile.TemporaryDirectory() as directory:
            for path in sorted(self._tokenizer.save_pretrained(directory)):
                digest.update(os.path.basename(path).encode())
                with open(path, "rb") as file:
                    digest.update(file.read())
        return digest.digest()

    def together(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens]:
        """Prompts and their replies, each tokenized as one text, without special tokens around it.

        A token that has characters of both is the reply's: a model that is given the prompt is to tell it.
        """
        texts = [prompt + reply for prompt, reply in pairs]
        if self._fast is None:
            return self._together_slowly(pairs, texts)
        tokens = []
        for (prompt, _), text, encoding in zip(pairs, texts, self._encoded(texts), strict=True):
            # The first character of the reply tells the border; characters that no token has are passed over.
            at, ids, border = len(prompt), encoding.ids, None
            while at < len(text) and (border := encoding.char_to_token(at)) is None:  # no token has this character
                at += 1
            border = len(ids) if border is None else border
            within = border < len(ids) and encoding.token_to_chars(border)[0] < len(prompt)
            tokens.append(Tokens(ids, border, within))
        return tokens

    def _together_slowly(self, pairs: Sequence[tuple[str, str]], texts: list[str]) -> list[Tokens]:
        # The prompt is tokenized alone, as a slow tokenizer does not say which token has which characters.
        tokens = []
        for (prompt, _), ids, alone in zip(pairs, self.apart(texts), self.apart([p for p, _ in pairs]), strict=True):
            border = common(alone, ids)
            tokens.append(Tokens(ids, border, bool(prompt) and border < len(alone)))
        return tokens

    def apart(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts, each by itself, without special tokens around it."""
        if self._fast is not None:
            return [encoding.ids for encoding in self._encoded(list(texts))]
        return self._tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []

    def render(self, messages: Sequence[object], then: Then, options: Mapping[str, object]) -> str:
        """A conversation by the tokenizer's chat template, which is told what follows, and options such as tools."""
        if getattr(self._tokenizer, "chat_template", None) is None:
            raise ValueError(
                f"{self._who}: there are conversations, and the tokenizer has no chat template; give it one "
                f"(tokenizer.chat_template = ...), or give texts"
            )
        how = {"tokenize": False, "add_generation_prompt": then == "reply"}
        if then == "more":
            how["continue_final_message"] = True
        try:
            text: str = self._tokenizer.apply_chat_template(list(messages), **how, **options)
        except Exception as error:
            if not is_of_text(error):
                raise
            raise TemplateFailed(f"the chat template failed by {shown(error)}") from error
        return text

    def _encoded(self, texts: list[str]) -> list[HuggingFace]:
        return self._fast.encode_batch(texts, add_special_tokens=False)

    def _frame(self) -> tuple[list[int], list[int]]:
        if self._fast is not None and not self._fast.num_special_tokens_to_add(False):
            return [], []
        # What stands around the bare tokens in the tokenizer's own output.
        bare = self.apart([FRAMED])[0]
        if self._fast is not None:
            whole: list[int] = self._fast.encode(FRAMED).ids
        else:
            whole = self._tokenizer(FRAMED)["input_ids"]
        for at in range(len(whole) - len(bare) + 1):
            if whole[at : at + len(bare)] == bare:
                return whole[:at], whole[at + len(bare) :]
        return [], []


def is_of_text(error: BaseException) -> bool:
    """Whether an error comes of the text that a tokenizer was given; one of the system is raised as it is.

    What panics in a tokenizer written in Rust is no `Exception`.
    """
    ours = isinstance(error, Exception) and not isinstance(error, _OF_THE_SYSTEM)
    return ours or type(error).__name__ == "PanicException"


def shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def common(a: Sequence[object], b: Sequence[object]) -> int:
    """How long the longest common beginning of two texts or lists is."""
    # The end is bisected: comparing slices is done in C, a loop over tokens is not.
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
