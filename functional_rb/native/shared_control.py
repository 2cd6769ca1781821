"""Where the words lie by which processes agree on a shared buffer (`control.bin`): int64, but for the counters."""

from __future__ import annotations

from typing import Final

# Twice the number of finished writes; odd while one is under way. It has a cache line of its own.
SEQUENCE: Final = 0
# The files have room on the disk for the slots below this one.
RESERVED: Final = 8
# What the write under way is: ADD, UPDATE or CLEAR.
KIND: Final = 16
# The first slot that an add writes.
FIRST: Final = 17
# How many slots an add writes, around the ring; for an update, how many are saved in the journal.
COUNT: Final = 18
# Whether the journal has the items of these slots too, as the update rewrites leaves.
HAS_ROWS: Final = 19
# Two vectors of SLOT int32 each, the second SLOT_WORDS words on. After n writes the one of n's parity is in force.
COUNTERS: Final = 32
SLOT: Final = 16
SLOT_WORDS: Final = 8
BYTES: Final = 4096

ADD: Final = 1
UPDATE: Final = 2
CLEAR: Final = 3

# The counter, behind those that every state has (`counters.BASE`), of items whose adds were cut short.
LOST: Final = 6

# What the functions that read return where there were writes all the time.
TORN: Final = -1
# How often functions that read begin anew, because there was a write meanwhile.
TRIES: Final = 8
# What they return where there is nothing to draw or to read.
NOTHING: Final = 0
DRAWN: Final = 1

SOUND: Final = 0
"""What `shared_repair` and `shared_problem_of_control` find where nothing is damaged."""
BAD_WORDS: Final = 1
BAD_COUNTERS: Final = 2
BAD_INTENT: Final = 3
BAD_JOURNAL: Final = 4
