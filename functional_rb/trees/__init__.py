"""Trees as values: the search tree of a planner, forests of what was seen, and trees as they are read on the host.

A tree is an immutable pytree of arrays with pure functions, the same on JAX and on torch, as a buffer is.
"""

from functional_rb.base.arrays import DeviceLike as _DeviceLike
from functional_rb.lib import A as _A
from functional_rb.lib import Lib as _Lib
from functional_rb.lib import more_of as _more_of
from functional_rb.public import structures as _structures
from functional_rb.trees import api as _api
from functional_rb.trees import forest as _forest
from functional_rb.trees import forest_growth as _growth
from functional_rb.trees.forest import Forest
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.policies import GumbelMuZero, MuZero
from functional_rb.trees.scores import EXP3, PUCT, UCB1, CompletedQ
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import Expansion, Tree

_structures.register(
    {
        "add": _forest.add,
        "add_": _forest.add_,
        "check": _forest.check_forest,
        "counts": _forest.refused,
        "lookup": _forest.lookup,
        "merge": _growth.merge,
        "size": _forest.size,
        "visits": _forest.visits,
        "with_spec": _growth.with_spec,
    },
    Forest,
)
_structures.register({"init": _forest.init}, ForestSpec)


def _planted(lib: _Lib[_A], spec: TreeSpec, device: _DeviceLike, items: Expansion) -> Tree:
    # Trees need more of a backend than its `Lib` has.
    return _api.init(_more_of(lib, "trees"), spec, items, device)


_structures.register({"init": _planted}, TreeSpec)

__all__ = [
    "EXP3",
    "PUCT",
    "UCB1",
    "CompletedQ",
    "Expansion",
    "ForestSpec",
    "GumbelMuZero",
    "MuZero",
    "Tree",
    "TreeSpec",
]
__dir__ = __all__.copy
