"""Offline datasets as buffers: readers of others' formats, one converter, and what is opened of it.

A `Reader` gives `Episode`s. `convert` writes those of any reader as the mapped files of an immutable buffer, in TED;
`load` opens them on either backend. `fetch` brings the files of others. What is exported here is public as
`frb.datasets`.
"""

from functional_rb.datasets.convert import Conversion, convert
from functional_rb.datasets.derived import concat, split
from functional_rb.datasets.derived import filter_episodes as filter
from functional_rb.datasets.derived import map_episodes as map
from functional_rb.datasets.episode import Episode, StepSpec
from functional_rb.datasets.exporting.export import export
from functional_rb.datasets.fetching.fetch import fetch
from functional_rb.datasets.fetching.remote import RemoteFile, Retry
from functional_rb.datasets.gymnasium import Recording
from functional_rb.datasets.loading import info, load
from functional_rb.datasets.reader import Reader, register
from functional_rb.datasets.statistics import statistics

__all__ = [
    "Conversion",
    "Episode",
    "Reader",
    "Recording",
    "RemoteFile",
    "Retry",
    "StepSpec",
    "concat",
    "convert",
    "export",
    "fetch",
    "filter",
    "info",
    "load",
    "map",
    "register",
    "split",
    "statistics",
]
__dir__ = __all__.copy
