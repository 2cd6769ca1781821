"""TED, TorchRL's episode data format: steps whose root is at time t and whose "next" is at t + 1.

    {<observation leaves>, "action", "done", "terminated", "truncated",
     "next": {<the same observation leaves>, "reward", "done", "terminated", "truncated"}}

done is terminated | truncated. A buffer stores such items as any others, and finds ends of episodes, rewards and next
observations under these names. What is exported here is public as `frb.ted`.
"""

from functional_rb.ted.buffers import from_form, to_form
from functional_rb.ted.check import check
from functional_rb.ted.check_env import check_env
from functional_rb.ted.items import item_from_env
from functional_rb.ted.recording import begin, from_gymnasium
from functional_rb.ted.steps import from_transitions, step_mdp, to_transitions

__all__ = [
    "begin",
    "check",
    "check_env",
    "from_form",
    "from_gymnasium",
    "from_transitions",
    "item_from_env",
    "step_mdp",
    "to_form",
    "to_transitions",
]
__dir__ = __all__.copy
