"""GPT-2 on torch, as `examples/gpt2_jax.py` has it on JAX, written in place into its cache."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional as F


def model(heads: int, layers: int, width: int) -> tuple[Any, Any]:
    return partial(step, heads), partial(empty_cache, layers, heads, width // heads)


def empty_cache(layers: int, heads: int, size: int, rows: int, tokens: int) -> dict[str, Any]:
    made = {name: [torch.zeros(rows, tokens, heads, size) for _ in range(layers)] for name in ("keys", "values")}
    positions = torch.full((rows, tokens), -1, dtype=torch.int32)
    return {"size": torch.tensor(0), "positions": positions, **made}


def step(heads: int, params: Any, cache: Any, ids: torch.Tensor, positions: torch.Tensor) -> Any:
    x = params["wte.weight"][ids] + params["wpe.weight"][positions.clamp_min(0)]
    places = positions
    if cache is not None:
        columns = cache["size"] + torch.arange(ids.shape[1])
        places = cache["positions"].index_copy_(1, columns, positions)
    seen = (places[:, None] >= 0) & (places[:, None] <= positions[:, :, None])
    for i in range(sum(name.endswith("ln_1.bias") for name in params)):
        at = f"h.{i}."
        q, k, v = dense(params, at + "attn.c_attn", norm(params, at + "ln_1", x)).chunk(3, -1)
        q, k, v = (y.reshape(*y.shape[:2], heads, -1) for y in (q, k, v))
        if cache is not None:
            k = cache["keys"][i].index_copy_(1, columns, k)
            v = cache["values"][i].index_copy_(1, columns, v)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        weights = torch.where(seen[:, None], scores, -1e30).softmax(-1)
        mixed = torch.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
        x = x + dense(params, at + "attn.c_proj", mixed)
        hidden = F.gelu(dense(params, at + "mlp.c_fc", norm(params, at + "ln_2", x)), approximate="tanh")
        x = x + dense(params, at + "mlp.c_proj", hidden)
    if cache is not None:
        cache = {**cache, "size": cache["size"] + ids.shape[1]}
    return norm(params, "ln_f", x) @ params["wte.weight"].T, cache


def dense(params: Any, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ params[name + ".weight"] + params[name + ".bias"]


def norm(params: Any, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], params[name + ".weight"], params[name + ".bias"])
