"""TED, TorchRL's episode data format: steps whose root is at time t and whose "next" is at t + 1.

    {<observation leaves>, "action", "done", "terminated", "truncated",
     "next": {<the same observation leaves>, "reward", "done", "terminated", "truncated"}}

done is terminated | truncated. A buffer stores such items as any others, and finds ends of episodes, rewards and next
observations under these names. What is exported here is public as `frb.ted`.
"""

from functional_rb.ted.buffers import flat_to_ted, nested_to_ted, ted_to_flat, ted_to_nested
from functional_rb.ted.check import check
from functional_rb.ted.forms import Flat, Lanes, Nested, flat_to_nested, nested_to_flat
from functional_rb.ted.hdf5 import h5_combine, h5_split
from functional_rb.ted.memmaps import load, save
from functional_rb.ted.recording import Carry, begin, from_gymnasium, reset, to_gymnasium
from functional_rb.ted.steps import Transition, from_transitions, step_mdp, to_transitions

__all__ = [
    "Carry",
    "Flat",
    "Lanes",
    "Nested",
    "Transition",
    "begin",
    "check",
    "flat_to_nested",
    "flat_to_ted",
    "from_gymnasium",
    "from_transitions",
    "h5_combine",
    "h5_split",
    "load",
    "nested_to_flat",
    "nested_to_ted",
    "reset",
    "save",
    "step_mdp",
    "ted_to_flat",
    "ted_to_nested",
    "to_gymnasium",
    "to_transitions",
]
