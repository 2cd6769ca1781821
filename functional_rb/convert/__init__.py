"""Conversions of specs: from and to Gymnasium, dm_env and torchrl, and JSON texts.

Each library is imported only when its function is called. All functions exported here are public.
"""

from functional_rb.convert.dm_env import from_dm_env, to_dm_env
from functional_rb.convert.gymnasium import from_gymnasium, to_gymnasium
from functional_rb.convert.json import from_json, to_json
from functional_rb.convert.torchrl import from_torchrl, to_torchrl

__all__ = [
    "from_dm_env",
    "from_gymnasium",
    "from_json",
    "from_torchrl",
    "to_dm_env",
    "to_gymnasium",
    "to_json",
    "to_torchrl",
]
__dir__ = __all__.copy
