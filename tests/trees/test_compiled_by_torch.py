"""Searches that torch.compile makes one graph of, in a process in which nothing has run before."""

from __future__ import annotations

import subprocess
import sys

from tests.support.effort import effort

PROGRAM = """
import sys
import threading

import torch

import functional_rb as frb
import torch_backend as rb

zeros = torch.zeros(3)
spec = frb.trees.TreeSpec({"x": frb.Unbounded(())}, 4, 2, statistics="squares", chance=True)
root = frb.trees.Expansion({"x": zeros}, torch.zeros(3, 2), zeros)
keys = rb.split(rb.key(1), 3)


def step(node, action, key):
    return frb.trees.Expansion({"x": node["x"] + action}, torch.zeros(3, 2), zeros, action.to(torch.float32), 0.9)


def check(simulations, policy, chance_step=None):
    def search(key):
        tree = rb.trees.init(spec, root)
        tree, proposal = rb.trees.search(tree, key, step, simulations, policy(), chance_step=chance_step)
        tree = rb.trees.subtree(tree, proposal.slot)
        return tree.visits, tree.value, proposal.slot, proposal.weights

    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled = torch.compile(search, fullgraph=True, backend="eager")
    found = [compiled(key) for key in keys]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1, "compiled again"
    for key, got in zip(keys, found):
        for a, b in zip(search(key), got, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    print("as eager")


# What a search remembers belongs to a thread, or to a number of simulations.
cases = {
    "usual": (1, lambda: None),
    "tuned": (2, lambda: frb.trees.MuZero(frb.trees.UCB1Tuned())),
    "gumbel": (3, lambda: frb.trees.GumbelMuZero()),
    "gumbel, once": (1, lambda: frb.trees.GumbelMuZero()),
    "chance": (2, lambda: frb.trees.MuZero(), step),
    "chance, once": (1, lambda: frb.trees.MuZero(), step),
}
for name in sys.argv[1:]:
    thread = threading.Thread(target=check, args=cases[name])
    thread.start()
    thread.join()
"""
CASES = effort(("gumbel, once", "chance, once"), ("usual", "tuned", "gumbel", "chance"))
"""Each simulation is traced anew, which takes seconds; what is usual and `UCB1Tuned` are in `test_search_games` too."""


def test_a_compiled_search_is_called_three_times_in_a_fresh_process() -> None:
    """What was seen while tracing is what is there at the second call, though nothing was searched before."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *CASES], capture_output=True, text=True, check=False)
    assert done.stdout.count("as eager") == len(CASES), done.stderr
