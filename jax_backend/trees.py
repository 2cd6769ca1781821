"""Trees on JAX: `rb.trees`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from functional_rb.trees import api, forest_tree, reuse
from functional_rb.trees import nodes as tree_nodes
from functional_rb.trees import search as core
from functional_rb.trees.policies import Policy
from functional_rb.trees.scores import Score
from functional_rb.trees.search import Draws, Evaluated, Leaf
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import Tree
from jax_backend import compile, execute, ops
from jax_backend.lib import LIB


class _Backend:
    """`functional_rb.trees.api.Backend` on JAX; its functions are compiled once for a spec and the shapes."""

    convert = staticmethod(execute.convert)
    build_mapping = staticmethod(execute.build_mapping)
    cast = staticmethod(ops.cast)

    def check_tree(self, tree: Tree, function: str) -> None:
        """Refuse trees of torch."""
        if not isinstance(tree.parent, jax.Array):
            raise TypeError(f"{function}: expected a tree of jax_backend; bring it over by rb.from_dlpack(tree)")

    def full(self, shape: tuple[int, ...], value: float, dtype: str, like: jax.Array) -> jax.Array:
        """An array of one value."""
        return jnp.full(shape, value, dtype)

    def init(self, spec: TreeSpec, root: Evaluated, device: Any) -> Tree:
        """Trees of one node each."""
        return _init(jax.device_put(root, device) if device is not None else root, spec=spec)

    def select(self, tree: Tree, key: jax.Array, score: Score, max_depth: int) -> Leaf:
        """Go down from the root."""
        execute.check_key(key)
        return _select(tree, key, score=score, max_depth=max_depth)

    def expand(self, tree: Tree, leaf: Leaf, found: Evaluated) -> tuple[Tree, Leaf]:
        """Store what lies behind edges."""
        return _expand(tree, leaf, found)

    def backup(self, tree: Tree, leaf: Leaf, score: Score) -> Tree:
        """Bring values back to the root."""
        return _backup(tree, leaf, score=score)

    def content(self, tree: Tree, leaf: Leaf) -> tuple[list[jax.Array], Any]:
        """The leaves of nodes and of actions."""
        return _content(tree, leaf)

    def search(
        self,
        tree: Tree,
        key: jax.Array,
        step: Callable[..., Any],
        simulations: int,
        policy: Policy,
        max_depth: int,
        chance_step: Callable[..., Any] | None,
    ) -> tuple[Tree, jax.Array, jax.Array]:
        """Search. While tracing nothing is compiled by itself: the step may use what is being traced."""
        execute.check_key(key)
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((tree, key)))
        function = _searched if traced else _search
        return function(
            tree,
            key,
            step=step,
            simulations=simulations,
            policy=policy,
            max_depth=max_depth,
            chance_step=chance_step,
        )

    def summary(self, tree: Tree) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The fields of a `Summary`."""
        return _summary(tree)

    def subtree(self, tree: Tree, slot: jax.Array) -> Tree:
        """Go on from a child."""
        return _subtree(tree, slot)

    def reset(self, tree: Tree, mask: jax.Array, root: Evaluated) -> Tree:
        """Begin some trees anew."""
        return _reset(tree, mask, root)


_backend = _Backend()


def _program(function: compile.F) -> compile.F:
    """A function of trees: all that it gives has a row for each."""
    return compile.program(function, by_row=True)


@functools.partial(jax.jit, static_argnames="spec")
@_program
def _init(root: Evaluated, spec: TreeSpec) -> Tree:
    return core.init(ops, spec, root, None)


@functools.partial(jax.jit, static_argnames=("score", "max_depth"), inline=True)
@_program
def _select(tree: Tree, key: jax.Array, score: Score, max_depth: int) -> Leaf:
    bits = compile.draws(key, tree.batch[0], 1)[:, 0]
    return core.select_by(ops, tree, score, bits, max_depth)


@functools.partial(jax.jit, inline=True)
@_program
def _expand(tree: Tree, leaf: Leaf, found: Evaluated) -> tuple[Tree, Leaf]:
    return core.expand(ops, tree, core.within(ops, tree, leaf), found)


@functools.partial(jax.jit, static_argnames="score", inline=True)
@_program
def _backup(tree: Tree, leaf: Leaf, score: Score) -> Tree:
    return core.backup(ops, *core.valued(ops, tree, core.within(ops, tree, leaf)), score)


@functools.partial(jax.jit, inline=True)
@_program
def _content(tree: Tree, leaf: Leaf) -> tuple[list[jax.Array], Any]:
    return core.content_of(ops, tree, core.within(ops, tree, leaf))


@_program
def _searched(
    tree: Tree,
    key: jax.Array,
    step: Callable[..., Any],
    simulations: int,
    policy: Policy,
    max_depth: int,
    chance_step: Callable[..., Any] | None,
) -> tuple[Tree, jax.Array, jax.Array]:
    batch, slots = tree.batch[0], tree.spec.children
    keys = jax.random.split(key, 1 + simulations)
    bits = compile.draws(keys[0], batch, 1 + slots * policy.words + simulations)
    draws = Draws.of(bits, keys[1:], slots, policy.words)

    def by_users_rules(function: core.Step) -> core.Step:
        def ask(*args: Any) -> Evaluated:
            leaves, structure = jax.tree.flatten(args)
            return ops.call(lambda *leaves: function(*jax.tree.unflatten(structure, leaves)), *leaves)

        return ask

    asked, by_chance = api.callers(_backend, tree, step, chance_step)
    chance = None if by_chance is None else by_users_rules(by_chance)
    return core.search(ops, tree, draws, by_users_rules(asked), policy, simulations, max_depth, chance)


_search = jax.jit(_searched, static_argnames=("step", "simulations", "policy", "max_depth", "chance_step"))


@jax.jit
@_program
def _summary(tree: Tree) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    return core.summary(ops, tree)


@jax.jit
@_program
def _subtree(tree: Tree, slot: jax.Array) -> Tree:
    return reuse.subtree(ops, tree, tree_nodes.empty(ops, tree.spec, tree.batch[0], None), slot)


@jax.jit
@_program
def _reset(tree: Tree, mask: jax.Array, root: Evaluated) -> Tree:
    return reuse.reset(ops, tree, core.init(ops, tree.spec, root, None), mask)


_lib = LIB.within("trees")

init = _lib.bind_to(_backend, api.init)
expand = _lib.bind_to(_backend, api.expand)
backup = _lib.bind_to(_backend, api.backup)
content = _lib.bind_to(_backend, api.content)
summary = _lib.bind_to(_backend, api.summary)
subtree = _lib.bind_to(_backend, api.subtree)
reset = _lib.bind_to(_backend, api.reset)
select = _lib.bind_to(_backend, api.select)
search = _lib.bind_to(_backend, api.search)
view = _lib.bind(forest_tree.view)

__all__ = [*api.NAMES]
__dir__ = __all__.copy
