"""Searches that torch.compile makes one graph of, in a process in which nothing has run before."""

from __future__ import annotations

import subprocess
import sys

from tests.support.effort import effort

# Each simulation is traced anew, which takes seconds; what is usual and UCB1-Tuned are in `test_search_games` too.
CASES = effort(("gumbel with chance, once",), ("usual", "tuned", "gumbel", "chance"))


def test_a_compiled_search_is_called_three_times_in_a_fresh_process() -> None:
    """What was seen while tracing is what is there at the second call, though nothing was searched before."""
    command = [sys.executable, "-m", "tests.children.compiled_searches", *CASES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.count("as eager") == len(CASES), done.stderr
