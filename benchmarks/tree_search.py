"""Searches on JAX beside mctx's: 64 trees, and a model that costs little."""

from __future__ import annotations

from typing import Any

import functional_rb as frb
from benchmarks.contender import Backend, Calls, Searching

BATCH, SLOTS, WIDTH = 64, 9, 8
SIMULATIONS: dict[Searching, int] = {"search 32": 32, "search 200": 200, "search 800": 800}


def _model() -> tuple[Any, Any]:
    """A world of some numbers: what lies behind actions (numbers, logits, value, reward), and where it begins."""
    import jax.numpy as jnp

    def model(x: Any, action: Any) -> tuple[Any, ...]:
        x = 0.5 * x + 0.3 * jnp.sin(action[:, None] + jnp.arange(float(WIDTH)))
        return x, jnp.sin(7 * x[:, :1] + jnp.arange(float(SLOTS))), jnp.sin(11 * x[:, 0]), jnp.cos(x[:, 1])

    return model, jnp.linspace(0, 1, BATCH)[:, None] + jnp.arange(float(WIDTH))


def of_ours(name: str, group: Searching, backend: Backend) -> Calls:
    """`rb.init` and `search`, compiled together."""
    import jax
    import jax.numpy as jnp

    import jax_backend as rb

    (model, start), count = _model(), SIMULATIONS[group]
    spec = frb.trees.TreeSpec({"x": frb.Unbounded((WIDTH,))}, count + 1, SLOTS)

    def step(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
        x, prior, value, reward = model(node["x"], action)
        return frb.trees.Expansion({"x": x}, prior, value, reward, 0.9)

    def search(key: Any, policy: Any) -> Any:
        x, prior, value, _ = model(start, jnp.zeros(BATCH))
        tree = rb.init(spec, items=frb.trees.Expansion({"x": x}, prior, value))
        return rb.trees.search(tree, key, step, count, policy)

    return _calls(name, backend, group, jax.jit(search, static_argnums=1), frb.trees.MuZero(), frb.trees.GumbelMuZero())


def of_mctx(name: str, group: Searching, backend: Backend) -> Calls:
    """mctx's two policies, with the settings that are theirs and ours."""
    import jax
    import jax.numpy as jnp
    import mctx

    model, start = _model()

    def step(params: Any, key: Any, action: Any, x: Any) -> Any:
        x, prior, value, reward = model(x, action)
        told = mctx.RecurrentFnOutput(reward=reward, discount=0.9 + 0 * reward, prior_logits=prior, value=value)
        return told, x

    def search(key: Any, policy: Any) -> Any:
        x, prior, value, _ = model(start, jnp.zeros(BATCH))
        root = mctx.RootFnOutput(prior_logits=prior, value=value, embedding=x)
        return policy((), key, root, step, SIMULATIONS[group])

    policies = mctx.muzero_policy, mctx.gumbel_muzero_policy
    return _calls(name, backend, group, jax.jit(search, static_argnums=1), *policies)


def _calls(name: str, backend: Backend, group: Searching, search: Any, muzero: Any, gumbel: Any) -> Calls:
    import jax

    key = jax.random.key(0)
    calls = {
        "muzero": lambda: jax.block_until_ready(search(key, muzero)),
        "gumbel": lambda: jax.block_until_ready(search(key, gumbel)),
    }
    return Calls(name, backend, group, calls)
