"""Offline datasets as buffers: readers of others' formats, one converter, and what is opened of it.

A `Reader` gives `Episode`s. `convert` writes those of any reader as the mapped files of an immutable buffer, in TED: a
`Dataset`. `load` opens them on either backend. `fetch` brings the files of others. What is exported here is public as
`frb.datasets`.
"""

from functional_rb.datasets.convert import Conversion
from functional_rb.datasets.dataset import Dataset, convert
from functional_rb.datasets.episode import Episode, StepSpec
from functional_rb.datasets.fetching.fetch import fetch
from functional_rb.datasets.fetching.remote import RemoteFile, Retry
from functional_rb.datasets.gymnasium import Recording
from functional_rb.datasets.loading import load
from functional_rb.datasets.reader import Reader, register

__all__ = [
    "Conversion",
    "Dataset",
    "Episode",
    "Reader",
    "Recording",
    "RemoteFile",
    "Retry",
    "StepSpec",
    "convert",
    "fetch",
    "load",
    "register",
]
__dir__ = __all__.copy
