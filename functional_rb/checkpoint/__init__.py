"""Checkpoints: states in files, atomically and verified. The format is described in docs/checkpoints.md."""

from functional_rb.checkpoint.background import save as save  # public as `frb.save`
from functional_rb.checkpoint.listing import checkpoints
from functional_rb.checkpoint.loading import LoadOptions
from functional_rb.checkpoint.restoring import load as load  # public as `frb.load`
from functional_rb.checkpoint.restoring import load_spec

__all__ = ["LoadOptions", "checkpoints", "load_spec"]
__dir__ = __all__.copy
