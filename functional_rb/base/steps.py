"""What the parts of a step are called, in TorchRL's episode data format and wherever steps are taken apart."""

from typing import Final

OBSERVATION: Final = "observation"
ACTION: Final = "action"
REWARD: Final = "reward"
# The part that has what came after the action.
NEXT: Final = "next"
# The parts that say whether an episode was over.
FLAGS: Final = ("done", "terminated", "truncated")
