"""How long the programs of `tools.gpu.programs` take on the GPU of this machine: `python -m tools.gpu.jax_calls`.

A state is donated, and a call has ended when the GPU has done its work; microseconds, of a loop for one turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import functional_rb as frb
import jax_backend as rb
from functional_rb.buffer.state import State
from functional_rb.hash_maps.functions import HashMap
from jax_backend.kernels import gpus
from tools.gpu.programs import ADDED, TURNS, programs

# For each program, once it has been compiled.
SECONDS = 0.25


def filled(state: Any) -> Any:
    """A buffer of some thousand items, or several of them, or a mixture; or an empty hash map."""
    if isinstance(state, HashMap):
        return rb.init(state.spec)
    if isinstance(state, frb.Mixture):
        return state.with_states([filled(each) for each in state.states])
    spec, lead = state.spec, state.counters.shape[:-1]
    rng = np.random.default_rng(0)
    rows = (64 * ADDED,) if spec.lanes is None else (64 * ADDED // spec.lanes, spec.lanes)
    items = {
        name: jnp.asarray(rng.integers(0, 2, (*rows, *leaf.shape))).astype(leaf.dtype)
        for name, leaf in spec.item.items()
    }
    made = rb.add_(rb.init(spec), items)
    return jax.tree.map(lambda x: jnp.stack([x] * lead[0]), made) if lead else made


def arguments(given: Any) -> Any:
    """Arrays of the shapes that are told, and keys."""
    rng = np.random.default_rng(1)

    def array(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return rb.split(rb.key(0), int(np.prod(x.shape))).reshape(x.shape) if x.shape else rb.key(0)
        return jnp.asarray(rng.integers(0, 2 if x.dtype == bool else 100, x.shape)).astype(x.dtype)

    return jax.tree.map(array, given)


def timed(function: Callable[..., Any], shapes: tuple[Any, ...]) -> tuple[float, float]:
    """The median of a call, and of one that is not waited for, in microseconds."""
    state, given = filled(shapes[0]), arguments(shapes[1:])
    compiled = jax.jit(function, donate_argnums=0)

    def call(state: Any) -> tuple[Any, Any]:
        made = compiled(state, *given)
        return made if isinstance(made, State) else made[0], made

    for _ in range(3):
        state, made = call(state)
    jax.block_until_ready(made)
    taken, began = [], time.perf_counter()
    while time.perf_counter() - began < SECONDS or len(taken) < 5:
        before = time.perf_counter()
        state, made = call(state)
        jax.block_until_ready(made)
        taken.append(time.perf_counter() - before)
    count = 50
    before = time.perf_counter()
    for _ in range(count):
        state, made = call(state)
    jax.block_until_ready(made)
    return 1e6 * statistics.median(taken), 1e6 * (time.perf_counter() - before) / count


def main() -> int:
    """Print a table; 0 if kernels were there."""
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}; kernels: {gpus.ready()}", flush=True)
    plus = jax.jit(lambda x: x + 1)
    x = jax.block_until_ready(plus(jnp.zeros(())))
    taken = []
    for _ in range(2000):
        before = time.perf_counter()
        jax.block_until_ready(plus(x))
        taken.append(time.perf_counter() - before)
    print(f"x + 1: {1e6 * statistics.median(taken):.1f}", flush=True)
    print("| program | by kernels | one after the other | by XLA | one after the other |\n|---|---|---|---|---|")
    for name, function, shapes in programs():
        turns, row = TURNS if str(TURNS) in name else 1, []
        for on in (True, False) if "--kernels" not in sys.argv else (True,):
            with frb.kernels(on):
                jax.clear_caches()
                row += [f"{x / turns:.1f}" for x in timed(function, shapes)]
        print(f"| {name} | {' | '.join(row)} |", flush=True)
    return 0 if gpus.ready() else 1


if __name__ == "__main__":
    sys.exit(main())
