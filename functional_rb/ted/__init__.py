"""TED, TorchRL's episode data format: steps whose root is at time t and whose "next" is at t + 1.

    {<observation leaves>, "action", "done", "terminated", "truncated",
     "next": {<the same observation leaves>, "reward", "done", "terminated", "truncated"}}

done is terminated | truncated. A buffer stores such items as any others, and finds ends of episodes, rewards and next
observations under these names.
"""

from functional_rb.ted.check import check
from functional_rb.ted.recording import Carry, begin, from_gymnasium, reset, to_gymnasium
from functional_rb.ted.steps import Transition, from_transitions, step_mdp, to_transitions

__all__ = [
    "Carry",
    "Transition",
    "begin",
    "check",
    "from_gymnasium",
    "from_transitions",
    "reset",
    "step_mdp",
    "to_gymnasium",
    "to_transitions",
]
