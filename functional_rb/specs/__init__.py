"""What values are made of: typed, frozen, hashable descriptions, without any array of a backend."""

from functional_rb.specs.array import ArraySpec, Binary, Bounded, Unbounded
from functional_rb.specs.base import Domain, Spec
from functional_rb.specs.composite import Composite, freeze
from functional_rb.specs.discrete import Categorical, MultiCategorical, MultiOneHot, OneHot
from functional_rb.specs.exclusive import consolidate, has_exclusive_keys, has_stacked
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.stacked import Stacked, stack
from functional_rb.specs.text import Text
from functional_rb.specs.varying import Graph, OneOf, Sequence, Varying

__all__ = [
    "ArraySpec",
    "Binary",
    "Bounded",
    "Categorical",
    "Composite",
    "Domain",
    "Graph",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "OneOf",
    "Sequence",
    "Spec",
    "Stacked",
    "Text",
    "Unbounded",
    "Varying",
    "consolidate",
    "freeze",
    "has_exclusive_keys",
    "has_stacked",
    "stack",
]
