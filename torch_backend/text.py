"""Text on torch: `rb.text`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from functional_rb.text import api, preferences
from functional_rb.text import generation as core
from functional_rb.text.backend import EmptyCache, Step
from functional_rb.text.generation import Generation, Settings
from functional_rb.text.laws import Law
from torch_backend import convert, modes, ops, random
from torch_backend.causal_lm import CausalLM as CausalLM
from torch_backend.causal_lm import causal_lm as causal_lm
from torch_backend.lib import LIB

_FITS: dict[str, Callable[[torch.dtype], bool]] = {
    "int32": lambda dtype: not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool),
    "bool": lambda dtype: not (dtype.is_floating_point or dtype.is_complex),
    "float32": lambda dtype: dtype.is_floating_point,
}


class _Backend:
    """`functional_rb.text.backend.Backend` on torch."""

    build_mapping = staticmethod(convert.build_mapping)
    convert = staticmethod(convert.convert)

    def array(self, x: Any, dtype: str, name: str) -> torch.Tensor:
        """Tensors and NumPy's arrays, also of 64 bits: token ids fit into 32."""
        if isinstance(x, np.ndarray):
            x = convert.from_numpy(x)
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected an array of torch or NumPy, got {type(x).__name__}")
        if not _FITS[dtype](x.dtype):
            raise TypeError(f"{name}: expected dtype {dtype}, got {str(x.dtype).removeprefix('torch.')}; convert it")
        return ops.cast(x, dtype)

    def without_gradients(self) -> AbstractContextManager[Any]:
        """`torch.no_grad()`."""
        return modes.without_gradients()

    def number(self, x: object, dtype: str, like: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        return torch.as_tensor(x, dtype=ops.DTYPES[dtype], device=like.device)

    def values(self, x: torch.Tensor) -> Any:
        """The array in NumPy; None while tracing."""
        return None if torch.compiler.is_compiling() or convert.is_batched(x) else x.detach().cpu().numpy()

    def generate(
        self,
        step: Step,
        params: object,
        cache: EmptyCache | None,
        prompts: torch.Tensor,
        mask: torch.Tensor,
        key: torch.Tensor,
        law: Law,
        settings: Settings,
    ) -> Generation:
        """Generate replies; torch.compile makes all n steps of them, as it cannot look whether all have ended."""
        batch, n, replies = prompts.shape[0], settings.n, settings.replies
        drawn = random.draws(random.check_key(key).to(prompts.device), batch * replies * n, 2)
        settings = settings._replace(stops=not torch.compiler.is_compiling())
        with modes.without_gradients():
            model, empty = core.prepared(ops, core.model_of(ops, step, _bound(step, params)), cache, prompts, n)
            bits = drawn.reshape(batch, replies, n, 2)
            return core.generate(ops, model, empty, _copied, prompts, mask, bits, law, settings)

    def log_probs(
        self,
        step: Step,
        params: object,
        ids: torch.Tensor,
        mask: torch.Tensor,
        rows_at_once: int | None,
        tokens_at_once: int | None,
        cache: EmptyCache | None,
    ) -> torch.Tensor:
        """Tell log-probabilities."""
        model = core.model_of(ops, step, _bound(step, params))
        told: torch.Tensor = core.log_probs(ops, model, ids, mask, rows_at_once, tokens_at_once, cache)
        return told

    def run(self, function: Callable[..., Any], *given: Any, static: tuple[Any, ...] = ()) -> Any:
        """A function of the core."""
        return function(ops, *given, *static)


def _bound(step: Step, params: object) -> Any:
    """The parameters as a model is called with them: what it makes of them beforehand, if it does."""
    return step.bound(params) if hasattr(step, "bound") else params


def _copied(cache: object, rows: torch.Tensor) -> Any:
    def copy(x: object) -> Any:
        if isinstance(x, (int, float)):
            return x
        if isinstance(x, torch.Tensor):
            return x.index_select(0, rows) if x.dim() else x.clone()
        if not hasattr(x, "take"):
            raise TypeError(f"cache: expected a nest of tensors and numbers, got {type(x).__name__} in it")
        return x.take(rows)

    return pytree.tree_map(copy, cache)


_backend = _Backend()


_lib = LIB.within("text")

bradley_terry_loss = _lib.bind_to(_backend, preferences.bradley_terry_loss)
end_scores = _lib.bind_to(_backend, preferences.end_scores)
generate = _lib.bind_to(_backend, api.generate)
join = _lib.bind_to(_backend, api.join)
group_advantages = _lib.bind_to(_backend, preferences.group_advantages)
log_probs = _lib.bind_to(_backend, api.log_probs)
gae = _lib.bind_to(_backend, api.gae)
pairs_of_groups = _lib.bind_to(_backend, preferences.pairs_of_groups)
reward_loss = _lib.bind_to(_backend, preferences.reward_loss)
rollout = _lib.bind_to(_backend, api.rollout)
update_kl = _lib.bind_to(_backend, preferences.update_kl)

__all__ = [*api.NAMES, "causal_lm"]
__dir__ = __all__.copy
