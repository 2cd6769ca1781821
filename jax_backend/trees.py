"""Trees on JAX: `rb.trees`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import jax

from functional_rb.base.arrays import DeviceLike, Nest
from functional_rb.trees import api, forest_tree
from functional_rb.trees import search as core
from functional_rb.trees.lib import Search, TreesLib
from functional_rb.trees.search import Draws, Evaluated
from functional_rb.trees.state import Tree
from jax_backend import lib
from jax_backend.arrays import ops
from jax_backend.compiling import compile
from jax_backend.engines import execute


def _program(function: compile.F) -> compile.F:
    # All that a function of trees gives has a row for each tree.
    return compile.program(function, by_row=True)


@functools.partial(jax.jit, static_argnames=("function", "static"), inline=True)
@_program
def _traced(operands: tuple[object, ...], function: Callable[..., object], static: tuple[object, ...]) -> Nest:
    return function(ops, *operands, *static)


def _run(
    function: Callable[..., object], *operands: object, static: tuple[object, ...] = (), writes: bool = False
) -> Nest:
    return _traced(operands, function=function, static=static)


def _draws(key: jax.Array, rows: int, words: int, like: object) -> jax.Array:
    return compile.draws(key, rows, words)


def _put(nest: Nest, device: DeviceLike) -> Nest:
    return nest if device is None else jax.device_put(nest, device)


def _searching(lib: object, tree: Tree, key: jax.Array, search: Search) -> tuple[Tree, jax.Array, jax.Array]:
    # While tracing nothing is compiled by itself: the step may use what is being traced.
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((tree, key)))
    return (_searched if traced else _search)(tree, key, search=search)


@_program
def _searched(tree: Tree, key: jax.Array, search: Search) -> tuple[Tree, jax.Array, jax.Array]:
    tree = jax.lax.stop_gradient(tree)  # what a search proposes is a target; JAX has no derivatives of its loops
    batch, slots = tree.batch[0], tree.spec.children
    keys = jax.random.split(key, 1 + search.simulations)
    bits = compile.draws(keys[0], batch, 1 + slots * search.policy.words + search.simulations)
    draws = Draws.of(bits, keys[1:], slots, search.policy.words)

    def by_users_rules(function: core.Step) -> core.Step:
        def ask(*args: object) -> Evaluated:
            leaves, structure = jax.tree.flatten(args)
            return jax.lax.stop_gradient(
                ops.call(lambda *leaves: function(*jax.tree.unflatten(structure, leaves)), *leaves)
            )

        return ask

    asked, by_chance = api.callers(LIB, tree, search)
    chance = None if by_chance is None else by_users_rules(by_chance)
    return core.search(
        ops.OPS, tree, draws, by_users_rules(asked), search.policy, search.simulations, search.max_depth, chance
    )


_search = jax.jit(_searched, static_argnames="search")

LIB: Final[TreesLib[jax.Array]] = TreesLib.of(
    lib.LIB.within("trees"),
    run=_run,
    check_key=execute.check_key,
    draws=_draws,
    device_of=lambda x: None,
    device_by_default=lambda: None,
    put=_put,
    searching=_searching,
)

backup = LIB.bind(api.backup)
expand = LIB.bind(api.expand)
reset = LIB.bind(api.reset)
search = LIB.bind(api.search)
select = LIB.bind(api.select)
subtree = LIB.bind(api.subtree)
view = LIB.bind(forest_tree.view)

__all__ = [*api.NAMES]
__dir__ = __all__.copy
