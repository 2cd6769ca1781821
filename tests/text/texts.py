"""Rows of texts and of conversations, and what was prepared of them, by its tokens."""

from __future__ import annotations

from typing import Any

import functional_rb as frb

ROWS = [
    {"prompt": "why is the sky so blue?", "chosen": " it is the light.", "rejected": " yes."},
    {"prompt": "the café, größer", "chosen": " naïve 🙂 so", "rejected": " naïve 🙂 no"},
    {"prompt": "", "chosen": "the cat", "rejected": "the dog"},
]
GOOD = {"prompt": "why", "chosen": " yes", "rejected": " no"}
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


def ids_of(prepared: frb.text.Prepared) -> list[list[list[int]]]:
    return [[tokens.tolist() for tokens in prepared.example(k)] for k in range(prepared.examples)]


def borders(prepared: frb.text.Prepared) -> list[list[int]]:
    return prepared.rows["prompts"].tolist()


def decoded(tokenizer: Any, made: frb.text.Prepared) -> list[list[tuple[str, str]]]:
    """Prompt and reply of each text of each example."""
    return [
        [(tokenizer.decode(ids[:at]), tokenizer.decode(ids[at:])) for ids, at in zip(texts, begin, strict=True)]
        for texts, begin in zip(ids_of(made), borders(made), strict=True)
    ]
