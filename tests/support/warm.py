"""What the server of `test_processes` imports before it forks children: all, with torch's kernels loaded."""

from __future__ import annotations

from tests.programs import test_processes
from tests.support import backends

with backends.make("torch") as library:
    for state in test_processes.members(library):
        test_processes.told(library, state)
