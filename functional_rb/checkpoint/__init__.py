"""Checkpoints: states in files, atomically and verified. The format is described in docs/checkpoints.md."""

from functional_rb.checkpoint.background import Saving, save_async
from functional_rb.checkpoint.listing import Checkpoint, checkpoints
from functional_rb.checkpoint.loading import Reading
from functional_rb.checkpoint.moment import save as save  # public as `frb.save`
from functional_rb.checkpoint.restoring import load as load  # public as `frb.load`
from functional_rb.checkpoint.restoring import load_spec
from functional_rb.checkpoint.saving import Saved

__all__ = ["Checkpoint", "Reading", "Saved", "Saving", "checkpoints", "load_spec", "save_async"]
__dir__ = __all__.copy
