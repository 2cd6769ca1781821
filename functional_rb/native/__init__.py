"""The native code: one C++ source of kernels (`src/`), which are equal to functions of the core bit for bit.

The extension is `functional_rb._native`; the modules here call it for arrays of any library that have an address.
"""

from functional_rb.native import sources

sources.check_made()
