"""Kills processes that prepare texts, and lets others go on: a program, which imports the core and tokenizers alone.

    python -m tests.children.kill_preparation DIRECTORY SEED KILLS

However often a process was killed, and at whatever instant, the files are at last those of one that was not.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import functional_rb as frb
from functional_rb.text import writing
from tests.support.tokenizers_trained import WORDS, of_words

ROWS, PIECE = 240, 3


def rows() -> list[dict[str, str]]:
    """The same at every call; some of them too long."""
    chance = random.Random(0)

    def text(most: int) -> str:
        return " ".join(chance.choices(WORDS[:-1], k=chance.randrange(1, most)))

    return [{"prompt": text(12), "chosen": text(6) + " yes", "rejected": text(6) + " no"} for _ in range(ROWS)]


def prepare(root: str) -> frb.text.Prepared:
    """What each process does; at one half of them the rows can be read once only."""
    given = rows() if root.endswith("0") else iter(rows())
    return frb.text.preference(
        given, of_words(), frb.text.Tokenization(eos=12, max_length=15, separator=" ", rows_at_once=PIECE), root=root
    )


def content(prepared: frb.text.Prepared) -> dict[str, bytes]:
    """The files and what they contain."""
    return {path.name: path.read_bytes() for path in Path(prepared.path).iterdir()}


def tell(told: int) -> None:
    """Have this process say whenever a piece is written."""
    append = writing.Growing.append

    def appended(self: writing.Growing, contents: dict[str, Any]) -> None:
        append(self, contents)
        os.write(told, b".")

    writing.Growing.append = appended  # type: ignore[method-assign]  # of this process alone


def killed(root: str, pieces: int, seconds: float) -> bool:
    """Kill a process that prepares, so long after it has written so many pieces; whether it was at work."""
    reading, telling = os.pipe()
    child = os.fork()
    if not child:
        try:
            tell(telling)
            prepare(root)
        finally:
            os._exit(0)
    os.close(telling)
    while pieces > 0 and (said := os.read(reading, pieces)):
        pieces -= len(said)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.close(reading)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(directory: str, seed: int, kills: int) -> None:
    """Kill so many, up to three in a row, and print how many were at work, and how many had begun to write."""
    chance = random.Random(seed)
    expected = content(prepare(os.path.join(directory, "whole")))
    assert set(expected) == {"tokens.bin", "rows.bin", "prepared.json"}
    at_work = begun_to_write = done = trial = 0
    while done < kills:
        root = os.path.join(directory, f"{trial}-{trial % 2}")
        for _ in range(chance.randrange(1, 4)):
            done += 1
            # Some before the first piece, or after the last.
            at_work += killed(root, chance.randrange(ROWS // PIECE), chance.random() * 0.004)
            begun_to_write += any(path.stat().st_size for path in Path(root).glob("*.part/tokens.bin"))
        made = prepare(root)
        assert content(made) == expected, f"trial {trial}: other bytes"
        left = os.listdir(root)
        assert left == [os.path.basename(made.path)], left
        trial += 1
    print(done, at_work, begun_to_write, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
