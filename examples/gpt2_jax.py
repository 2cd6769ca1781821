"""GPT-2 as a pure function for `rb.text`, and its parameters from a file of Hugging Face.

Radford et al., "Language models are unsupervised multitask learners" (2019): learned positions, layer normalization
before attention and before the two dense layers, and the embedding's transpose as the last layer.

    params = load("model.safetensors")
    step, cache = model(heads=12)
    rb.text.generate(step, params, prompts, rb.key(0), frb.text.Decoding(20, eos=50256), cache=cache)
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]  # arrays by their names in Hugging Face's files, without "transformer."
Cache = dict[str, Any]
UNSEEN = -1e30  # finite, so that a row of padding alone becomes no NaN


def init_params(
    seed: int, vocabulary: int, context: int, width: int, layers: int, deviation: float = 0.3
) -> dict[str, np.ndarray]:
    """Random parameters, float32, normal with a standard deviation; those of learned scales are around 1."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (vocabulary, width), "wpe.weight": (context, width)}
    for i in range(layers):
        for name, m, n in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes |= {f"h.{i}.{name}.weight": (m * width, n * width), f"h.{i}.{name}.bias": (n * width,)}
        shapes |= {f"h.{i}.{ln}.{part}": (width,) for ln in ("ln_1", "ln_2") for part in ("weight", "bias")}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    drawn = {name: rng.normal(0.0, deviation, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: x + ("ln_" in name and name.endswith("weight")) for name, x in drawn.items()}


def load(path: str | Path) -> dict[str, np.ndarray]:
    """Parameters of a file of Hugging Face's GPT-2, in NumPy, without masks and the tied head."""
    from safetensors.numpy import load_file

    named = {name.removeprefix("transformer."): x for name, x in load_file(path).items()}
    return {name: x for name, x in named.items() if not name.endswith((".attn.bias", ".masked_bias", "lm_head.weight"))}


def model(heads: int, layers: int = 12, width: int = 768) -> tuple[Callable[..., Any], Callable[..., Cache]]:
    """The model as `rb.text` takes it, and what makes its empty cache."""
    return partial(step, heads), partial(empty_cache, layers, heads, width // heads)


def empty_cache(layers: int, heads: int, size: int, rows: int, tokens: int) -> Cache:
    block = jnp.zeros((rows, tokens, heads, size), jnp.float32)
    return {
        "size": jnp.int32(0),  # tokens so far, padding among them
        "positions": jnp.full((rows, tokens), -1, jnp.int32),
        "keys": [block] * layers,
        "values": [block] * layers,
    }


def step(heads: int, params: Params, cache: Cache | None, ids: jax.Array, positions: jax.Array) -> Any:
    """Logits [B, T, V] of what follows each of the tokens [B, T], and the cache with these."""
    x = params["wte.weight"][ids] + params["wpe.weight"][jnp.maximum(positions, 0)]
    if cache is not None:
        size, keys, values = cache["size"], list(cache["keys"]), list(cache["values"])
        places = jax.lax.dynamic_update_slice_in_dim(cache["positions"], positions, size, 1)
    else:
        places = positions
    seen = (places[:, None] >= 0) & (places[:, None] <= positions[:, :, None])
    for i in range(sum(name.endswith("ln_1.bias") for name in params)):
        at = f"h.{i}."
        q, k, v = jnp.split(dense(params, at + "attn.c_attn", norm(params, at + "ln_1", x)), 3, -1)
        q, k, v = (y.reshape(*y.shape[:2], heads, -1) for y in (q, k, v))
        if cache is not None:
            k = keys[i] = jax.lax.dynamic_update_slice_in_dim(keys[i], k, size, 1)
            v = values[i] = jax.lax.dynamic_update_slice_in_dim(values[i], v, size, 1)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        weights = jax.nn.softmax(jnp.where(seen[:, None], scores, UNSEEN), -1)
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
        x = x + dense(params, at + "attn.c_proj", mixed)
        hidden = jax.nn.gelu(dense(params, at + "mlp.c_fc", norm(params, at + "ln_2", x)))
        x = x + dense(params, at + "mlp.c_proj", hidden)
    logits = norm(params, "ln_f", x) @ params["wte.weight"].T
    if cache is not None:
        cache = {"size": size + ids.shape[1], "positions": places, "keys": keys, "values": values}
    return logits, cache


def dense(params: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ params[name + ".weight"] + params[name + ".bias"]


def norm(params: Params, name: str, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * params[name + ".weight"] + params[name + ".bias"]
