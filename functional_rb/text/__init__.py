"""Text: the data of reinforcement learning from human feedback, as records and pure functions on both backends."""

from functional_rb.base.containers import record
from functional_rb.text.decoding import Decoding, Reward
from functional_rb.text.kl import KLController
from functional_rb.text.packing import pack
from functional_rb.text.pipeline import Tokenization
from functional_rb.text.preparation import preference, prompts
from functional_rb.text.prepared import Prepared
from functional_rb.text.records import PairwiseDataset, PromptData, RewardData

__all__ = [
    "Decoding",
    "KLController",
    "PairwiseDataset",
    "Prepared",
    "PromptData",
    "Reward",
    "RewardData",
    "Tokenization",
    "pack",
    "preference",
    "prompts",
    "record",
]
__dir__ = __all__.copy
