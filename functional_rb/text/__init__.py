"""Text: the data of reinforcement learning from human feedback, as records and pure functions on both backends."""

from functional_rb.text.packing import Packed, pack, unpack

__all__ = ["Packed", "pack", "unpack"]
