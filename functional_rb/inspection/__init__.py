"""Reports about a directory of checkpoints: `python -m functional_rb inspect PATH`.

A report needs NumPy and what checkpoints themselves need, but no backend. `inspect` and `page` are public.
"""

from functional_rb.inspection.page import page
from functional_rb.inspection.report import Report, inspect

__all__ = ["Report", "inspect", "page"]
