"""What compiled programs of JAX do, read off their text."""

from __future__ import annotations

import re

import numpy as np


def big_copies(text: str, elements: int) -> list[str]:
    """The copy instructions of a compiled program whose result is not small."""
    found = []
    for line in text.splitlines():
        match = re.search(r"= \(?\w+\[([\d,]*)\]\S* (?:copy|copy-start)\(", line)
        if match and np.prod([int(n) for n in match[1].split(",") if n], dtype=np.int64) > elements:
            found.append(line.strip()[:150])
    return found
