"""What happens between what is added and what is sampled: each transform in a module of its own."""

from functional_rb.transforms.base import Transform

__all__ = ["Transform"]
