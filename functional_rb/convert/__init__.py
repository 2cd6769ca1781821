"""Specs in the words of others, and from them; each library is imported only when its function is called."""

from functional_rb.convert.gymnasium import from_gymnasium, to_gymnasium
from functional_rb.convert.json import from_json, to_json

__all__ = ["from_gymnasium", "from_json", "to_gymnasium", "to_json"]
