"""Trees as values: the search tree of a planner, forests of what was seen, and functions that read trees on the host.

A tree is an immutable pytree of arrays with pure functions, the same on JAX and on torch, as a buffer is.
"""

from functional_rb.trees.drawing import plot, to_string
from functional_rb.trees.forest import Forest
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.policies import GumbelMuZero, MuZero
from functional_rb.trees.reading import (
    branching_action,
    children,
    contains,
    edges,
    full_specs,
    fully_expanded,
    get_vertex_by_hash,
    get_vertex_by_id,
    is_terminal,
    max_length,
    node_hash,
    node_observation,
    node_observations,
    num_children,
    num_vertices,
    parent,
    prev_action,
    rollout_from_path,
    selected_actions,
    valid_paths,
    vertices,
    visits,
)
from functional_rb.trees.scores import EXP3, PUCT, UCB1, CompletedQ, UCB1Tuned
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import Expansion, Tree
from functional_rb.trees.view import view

__all__ = [
    "EXP3",
    "PUCT",
    "UCB1",
    "CompletedQ",
    "Expansion",
    "Forest",
    "ForestSpec",
    "GumbelMuZero",
    "MuZero",
    "Tree",
    "TreeSpec",
    "UCB1Tuned",
    "branching_action",
    "children",
    "contains",
    "edges",
    "full_specs",
    "fully_expanded",
    "get_vertex_by_hash",
    "get_vertex_by_id",
    "is_terminal",
    "max_length",
    "node_hash",
    "node_observation",
    "node_observations",
    "num_children",
    "num_vertices",
    "parent",
    "plot",
    "prev_action",
    "rollout_from_path",
    "selected_actions",
    "to_string",
    "valid_paths",
    "vertices",
    "view",
    "visits",
]
__dir__ = __all__.copy
