"""Makes a directory aside, and dies: PATH."""

import os
import sys

from functional_rb.base import files

aside = files.aside(sys.argv[1])
aside.__enter__()
os._exit(0)
