"""What the server of `test_processes` imports before it forks children: all, with torch's kernels loaded."""

from __future__ import annotations

from tests.support import backends, sent_states

with backends.make("torch") as library:
    for state in sent_states.members(library):
        sent_states.told(library, state)
