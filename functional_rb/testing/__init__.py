"""Tests for buffers, and for a sampler, a writer or a transform of one's own: list models, strategies, conformance.

`check_sampler`, `check_writer` and `check_transform` are the conformance suite, `strategies` is what property-based
tests draw from, `ListModel` a buffer in plain Python. Nothing else in the library imports this package.
"""

from functional_rb.base.extras import missing

try:
    import hypothesis as _hypothesis  # noqa: F401  # what the modules below cannot do without
except ImportError as error:
    raise missing("hypothesis", "functional_rb.testing", error) from error

from functional_rb.testing import strategies
from functional_rb.testing.conformance import check_sampler, check_transform, check_writer
from functional_rb.testing.faults import ConformanceError
from functional_rb.testing.laws import Law, SampleArrays, Step, shares
from functional_rb.testing.list_model import ListModel

__all__ = [
    "ConformanceError",
    "Law",
    "ListModel",
    "SampleArrays",
    "Step",
    "check_sampler",
    "check_transform",
    "check_writer",
    "shares",
    "strategies",
]
