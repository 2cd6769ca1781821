"""What values are made of: typed, frozen, hashable descriptions without any array of a backend.

One kind of spec a module; `values` takes nests of them apart, `functions` has the public functions on values. The names
in `__all__` are public as `frb.specs`; the usual specs are so in `frb` itself.
"""

from functional_rb.specs.array import ArraySpec
from functional_rb.specs.array import Binary as Binary
from functional_rb.specs.array import Bounded as Bounded
from functional_rb.specs.array import Unbounded as Unbounded
from functional_rb.specs.base import Spec as Spec
from functional_rb.specs.categorical import Categorical as Categorical
from functional_rb.specs.categorical import OneHot
from functional_rb.specs.composite import Composite as Composite
from functional_rb.specs.composite import freeze as freeze
from functional_rb.specs.example import spec_of
from functional_rb.specs.graph import Graph
from functional_rb.specs.multi_categorical import MultiCategorical, MultiOneHot
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.one_of import OneOf
from functional_rb.specs.sequence import Sequence
from functional_rb.specs.stacked import Stacked, stack
from functional_rb.specs.text import Text
from functional_rb.specs.varying import Varying as Varying

__all__ = [
    "ArraySpec",
    "Graph",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "OneOf",
    "Sequence",
    "Stacked",
    "Text",
    "spec_of",
    "stack",
]
__dir__ = __all__.copy
