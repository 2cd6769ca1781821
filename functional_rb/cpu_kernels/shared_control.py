"""The words that processes agree by: where in `control.bin` each lies. int64 unless said otherwise."""

from __future__ import annotations

from typing import Final

SEQUENCE: Final = 0
"""Twice the number of finished writes; odd while one is under way. It has a cache line of its own."""
RESERVED: Final = 8
"""The files have room on the disk for the slots below this one."""
KIND: Final = 16
"""Of the write under way: ADD, UPDATE or CLEAR."""
FIRST: Final = 17
"""Of an add: the first slot that it writes."""
COUNT: Final = 18
"""How many slots it writes, around the ring; of an update: how many are saved in the journal."""
HAS_ROWS: Final = 19
"""Whether the journal has the items of these slots, as an update rewrites leaves."""
COUNTERS: Final = 32
"""Two vectors of SLOT int32 each, the second one SLOT_WORDS on. After n writes the one of n's parity is in force."""
SLOT: Final = 16
SLOT_WORDS: Final = 8
BYTES: Final = 4096

ADD: Final = 1
UPDATE: Final = 2
CLEAR: Final = 3

LOST: Final = 6
"""The place behind the counters that every state has (`counters.BASE`) for the items of adds that were cut short."""
