"""Searches as one graph of torch.compile, in a process in which nothing has run before: named as arguments."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

import functional_rb as frb
import torch_backend as rb

ZEROS = torch.zeros(3)


def step(node: Any, action: torch.Tensor, key: Any) -> frb.trees.Expansion:
    reward = action.to(torch.float32)
    return frb.trees.Expansion({"x": node["x"] + action}, torch.zeros(3, 2), ZEROS, reward, 0.9)


def check(simulations: int, policy: Callable[[], Any], chance_step: Any = None) -> None:
    """Three calls of one compiled search beside the same without a compiler."""
    spec = frb.trees.TreeSpec({"x": frb.Unbounded(())}, 4, 2, statistics="squares", chance=True)
    root = frb.trees.Expansion({"x": ZEROS}, torch.zeros(3, 2), ZEROS)
    keys = rb.split(rb.key(1), 3)

    def search(key: torch.Tensor) -> Any:
        tree = rb.init(spec, items=root)
        tree, proposal = rb.trees.search(tree, key, step, simulations, policy(), chance_step=chance_step)
        tree = rb.trees.subtree(tree, proposal.slot)
        return tree.visits, tree.value, proposal.slot, proposal.weights

    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled = torch.compile(search, fullgraph=True, backend="eager")
    found = [compiled(key) for key in keys]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1, "compiled again"
    for key, got in zip(keys, found, strict=True):
        for a, b in zip(search(key), got, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    print("as eager")


# Simulations, the policy, and what chance does. What a search remembers belongs to a thread, or to such a number.
CASES: dict[str, tuple[Any, ...]] = {
    "usual": (1, lambda: None),
    "tuned": (2, lambda: frb.trees.MuZero(frb.trees.UCB1(tuned=True))),
    "gumbel": (3, lambda: frb.trees.GumbelMuZero()),
    "chance": (2, lambda: frb.trees.MuZero(), step),
    "gumbel with chance, once": (1, lambda: frb.trees.GumbelMuZero(), step),
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        thread = threading.Thread(target=check, args=CASES[name])
        thread.start()
        thread.join()
