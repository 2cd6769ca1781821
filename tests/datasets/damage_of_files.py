"""Files with a few bytes changed, or cut: what a disk, a network or a stranger makes of them."""

from __future__ import annotations

import numpy as np


def flipped(content: bytes, rng: np.random.Generator) -> bytes:
    """One bit of one byte is another."""
    made = bytearray(content)
    made[rng.integers(len(made))] ^= 1 << int(rng.integers(8))
    return bytes(made)


def replaced(content: bytes, rng: np.random.Generator) -> bytes:
    """One byte is any other."""
    made = bytearray(content)
    made[rng.integers(len(made))] ^= int(rng.integers(1, 256))
    return bytes(made)


def cut(content: bytes, rng: np.random.Generator) -> bytes:
    """The end is missing."""
    return content[: rng.integers(len(content))]


def blotted(content: bytes, rng: np.random.Generator) -> bytes:
    """Up to 64 bytes in a row are zero, or have all bits set."""
    at, n = int(rng.integers(len(content))), int(rng.integers(1, 65))
    return content[:at] + rng.choice([b"\0", b"\xff"]) * len(content[at : at + n]) + content[at + n :]


WAYS = (flipped, replaced, cut, blotted)


def damaged(content: bytes, seed: int) -> bytes:
    """The content in another way for each seed, always the same for one."""
    rng = np.random.default_rng(seed)
    return WAYS[seed % len(WAYS)](content, rng)
