"""Text on torch: `rb.text`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch.utils import _pytree as pytree

from functional_rb.base.arrays import ArrayLike, Nest
from functional_rb.text import api, preferences
from functional_rb.text import generation as core
from functional_rb.text.generation import Cache, Generation, Settings
from functional_rb.text.laws import Law
from functional_rb.text.lib import EmptyCache, Step, TextLib
from torch_backend import lib
from torch_backend.arrays import convert, modes, ops, random
from torch_backend.models.causal_lm import CausalLM as CausalLM
from torch_backend.models.causal_lm import causal_lm as causal_lm

_FITS: dict[str, Callable[[torch.dtype], bool]] = {
    "int32": lambda dtype: not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool),
    "bool": lambda dtype: not (dtype.is_floating_point or dtype.is_complex),
    "float32": lambda dtype: dtype.is_floating_point,
}


def _converted(x: ArrayLike, dtype: str, name: str) -> torch.Tensor:
    # Also of 64 bits: token ids fit into 32.
    if isinstance(x, np.ndarray):
        x = convert.from_numpy(x).to(torch.get_default_device())  # where torch makes all that has no other place
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected an array of torch or NumPy, got {type(x).__name__}")
    if not _FITS[dtype](x.dtype):
        raise TypeError(f"{name}: expected dtype {dtype}, got {str(x.dtype).removeprefix('torch.')}; convert it")
    return ops.cast(x, dtype)


def _number(x: object, dtype: str, like: torch.Tensor) -> torch.Tensor:
    return convert.number(x, like.device, ops.DTYPES[dtype])


def _generating(
    step: Step,
    params: object,
    cache: EmptyCache | None,
    prompts: torch.Tensor,
    mask: torch.Tensor,
    key: torch.Tensor,
    law: Law,
    settings: Settings,
) -> Generation:
    # torch.compile makes all n steps of a reply, as it cannot look whether all have ended.
    batch, n, replies = prompts.shape[0], settings.n, settings.replies
    drawn = random.draws(random.check_key(key).to(prompts.device), batch * replies * n, 2)
    settings = settings._replace(stops=not torch.compiler.is_compiling())
    with modes.without_gradients():
        model, empty = core.prepared(ops.OPS, core.model_of(ops.OPS, step, _bound(step, params)), cache, prompts, n)
        bits = drawn.reshape(batch, replies, n, 2)
        return core.generate(ops.OPS, model, empty, _copied, prompts, mask, bits, law, settings)


def _log_probs_of(
    step: Step,
    params: object,
    ids: torch.Tensor,
    mask: torch.Tensor,
    rows_at_once: int | None,
    tokens_at_once: int | None,
    cache: EmptyCache | None,
) -> torch.Tensor:
    model = core.model_of(ops.OPS, step, _bound(step, params))
    log_probs: torch.Tensor = core.log_probs(ops.OPS, model, ids, mask, rows_at_once, tokens_at_once, cache)
    return log_probs


def _bound(step: Step, params: object) -> object:
    # A model that prepares its parameters for many calls does so once.
    return step.bound(params) if hasattr(step, "bound") else params


def _copied(cache: object, rows: torch.Tensor) -> Cache:
    def copy(x: object) -> object:
        if isinstance(x, (int, float)):
            return x
        if isinstance(x, torch.Tensor):
            return x.index_select(0, rows) if x.dim() else x.clone()
        if not hasattr(x, "take"):
            raise TypeError(f"cache: expected a nest of tensors and numbers, got {type(x).__name__} in it")
        return x.take(rows)

    return pytree.tree_map(copy, cache)


def _run(function: Callable[..., object], *operands: object, static: tuple[object, ...] = ()) -> Nest:
    return function(ops.OPS, *operands, *static)


LIB: Final[TextLib[torch.Tensor]] = TextLib.of(
    lib.LIB.within("text"),
    converted=_converted,
    number=_number,
    without_gradients=modes.without_gradients,
    run=_run,
    generating=_generating,
    log_probs_of=_log_probs_of,
)

bradley_terry_loss = LIB.bind(preferences.bradley_terry_loss)
gae = LIB.bind(api.gae)
generate = LIB.bind(api.generate)
group_advantages = LIB.bind(preferences.group_advantages)
log_probs = LIB.bind(api.log_probs)
pairs_of_groups = LIB.bind(preferences.pairs_of_groups)
rollout = LIB.bind(api.rollout)

__all__ = [*api.NAMES, "causal_lm"]
__dir__ = __all__.copy
