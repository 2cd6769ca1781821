"""What lies in a directory of checkpoints, told in one page: `python -m functional_rb inspect PATH`.

NumPy is all it needs to read one, besides what checkpoints need themselves; no backend is imported.
"""

from functional_rb.inspection.page import page
from functional_rb.inspection.report import Report, inspect

__all__ = ["Report", "inspect", "page"]
