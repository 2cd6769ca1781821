"""Conversions of specs: from and to Gymnasium, dm_env and torchrl, and JSON texts. All that is exported is public."""

from functional_rb.convert.json import from_json, to_json
from functional_rb.convert.libraries import from_library, to_library

__all__ = ["from_json", "from_library", "to_json", "to_library"]
__dir__ = __all__.copy
