"""Causal language models of Hugging Face's transformers as models of `rb.text`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from functional_rb.base.extras import imported
from functional_rb.text.lib import EmptyCache, Step
from torch_backend import compat
from torch_backend.models import skeletons, wrapped_models


class CausalLM(NamedTuple):
    """A causal language model as `rb.text` takes it.

    Attributes:
        step: `(params, cache, ids, positions) -> (logits, cache)`.
        cache: `(rows, tokens) -> cache`, an empty one.
    """

    step: Step
    cache: EmptyCache


def causal_lm(model: Any, static: bool = False) -> CausalLM:
    """A causal language model of Hugging Face, any `AutoModelForCausalLM`, as `rb.text` takes models.

    Its parameters are then the model itself, another one of its kind, or a dict of tensors by their names such as
    `dict(model.named_parameters())`, tied ones once, in place of the model's own: a reference needs no second module.

    Rows are handed to the model with their padding in front, wherever it was, and with positions that count tokens
    alone: as in the model's own `generate`, so that sliding windows and recurrent layers are right too. Of the prompts
    it computes the logits of one column, not of all. The cache is transformers' own; `generate` holds that of the
    prompts once, and copies it for as many replies of each as are made at once.

    The model may be inside of another module, such as PEFT's, what `torch.compile` gives, or `DataParallel`; positions
    are to reach it. A dict of tensors is put into a copy of the module's objects, which shares all other tensors with
    it: other threads may call the module meanwhile, or give other dicts. The copy is not what `torch.compile` made.

    Args:
        model: the model, in `eval()` mode: in training it would drop out at random, or forget its cache.
        static: whether the cache is a `StaticCache`, which takes the memory of all L + n tokens at once; else it is a
            `DynamicCache`, which grows.

    Returns:
        The function and what makes its empty cache.

    Raises:
        ImportError: without transformers, or with one that is older than 5.18.
        TypeError: for what is no module with a config, and one that cannot continue texts; for a module around a model
            that does not hand positions on to it, or does not show that it does.

    Example:
        >>> from transformers import AutoModelForCausalLM, GPT2Config
        >>> config = GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
        >>> model = AutoModelForCausalLM.from_config(config).eval()
        >>> step, cache = rb.text.causal_lm(model)
        >>> prompts, mask = np.array([[3, 4, 5], [0, 0, 6]]), np.array([[1, 1, 1], [0, 0, 1]])
        >>> decoding = frb.text.Decoding(4, eos=1, replies=2)
        >>> made = rb.text.generate(step, model, prompts, rb.key(0), decoding, mask=mask, cache=cache)
        >>> made.tokens.shape
        torch.Size([4, 4])
    """
    transformers = imported("transformers", "text.causal_lm")
    compat.check_transformers(transformers)
    inner = model
    if isinstance(model, torch.nn.Module) and not hasattr(model, "get_output_embeddings"):
        inner = wrapped_models.innermost(model)
    if not all(hasattr(inner, name) for name in ("config", "get_output_embeddings", "forward")):
        raise TypeError(f"text.causal_lm: expected a model of transformers, got {type(model).__name__}")
    config = inner.config
    if getattr(config, "is_encoder_decoder", False) or inner.get_output_embeddings() is None:
        raise TypeError(
            f"text.causal_lm: {type(inner).__name__} does not tell which token comes next; load the model by "
            f"AutoModelForCausalLM"
        )

    def cache(rows: int, tokens: int) -> _Cache:
        if static:
            return _Cache(transformers.StaticCache(config, max_cache_len=tokens))
        return _Cache(transformers.DynamicCache(config=config))

    return CausalLM(_Step(model), cache)


@dataclasses.dataclass
class _Cache:
    """What a model remembers of rows; the model writes into it."""

    past: Any  # transformers' cache
    mask: torch.Tensor | None = None  # bool [B, T], which of the T columns so far are tokens; None before the first

    def take(self, rows: torch.Tensor) -> _Cache:
        """Rows int32 [M] of it, in memory of their own."""
        past = copy.copy(self.past)
        past.layers = [_taken(layer, rows) for layer in past.layers]
        return _Cache(past, None if self.mask is None else self.mask.index_select(0, rows))

    def extend(self, mask: torch.Tensor) -> torch.Tensor:
        """Columns more, bool [B, T]; the mask of all columns."""
        self.mask = mask if self.mask is None else torch.cat([self.mask, mask], 1)
        return self.mask


def _taken(layer: Any, rows: torch.Tensor) -> object:
    # What has no rows is copied too where the layer writes into it.
    taken = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(taken, name, dict(value))
        elif isinstance(value, torch.Tensor) and not value.dim():
            setattr(taken, name, value.clone())
    taken.reorder_cache(rows)
    return taken


class _Step:
    """The model's function; an object, as it has two forms.

    Attributes:
        model: whose own parameters those replace that are given as a dict.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._takes = wrapped_models.taken_by(model)

    def bound(self, params: object) -> torch.nn.Module | Mapping[str, torch.Tensor]:
        """The module that parameters mean: one to call as often as wanted, while they stay the same."""
        if isinstance(params, torch.nn.Module):
            return params
        if not isinstance(params, Mapping):
            raise TypeError(f"params: expected the model or a dict of its tensors, got {type(params).__name__}")
        return params if torch.compiler.is_compiling() else skeletons.with_tensors(self.model, params)

    def takes(self, model: torch.nn.Module) -> frozenset[str]:
        """The names of the arguments that a module knows."""
        same = model is self.model or torch.compiler.is_compiling()
        return self._takes if same else wrapped_models.taken_by(model)

    def __call__(
        self, params: object, cache: _Cache | None, ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, _Cache | None]:
        """Logits [B, T, V] of what follows each token, and the cache with these tokens."""
        order = _order(positions, cache is None)
        if order is None:
            return self.logits(params, cache, ids, positions), cache
        logits = self.logits(params, cache, ids.gather(1, order), positions.gather(1, order))
        back = order.argsort(1)[:, :, None].expand_as(logits)
        return logits.gather(1, back), cache

    def prefill(
        self, params: object, cache: _Cache | None, ids: torch.Tensor, positions: torch.Tensor
    ) -> _Cache | None:
        """The cache with these tokens; of the logits as few are computed as the model can."""
        order = _order(positions, False)
        if order is not None:
            ids, positions = ids.gather(1, order), positions.gather(1, order)
        self.logits(params, cache, ids, positions, logits_to_keep=1)
        return cache

    def logits(
        self, params: object, cache: _Cache | None, ids: torch.Tensor, positions: torch.Tensor, **options: object
    ) -> torch.Tensor:
        """Of rows whose padding is in front."""
        bound, tensors = self.bound(params), None
        if isinstance(bound, torch.nn.Module):
            model = bound
        else:  # traced into a graph, which calls no module
            model, tensors = self.model, dict(bound)
        _check_mode(model, cache)
        takes, mask = self.takes(model), positions >= 0
        options = {name: x for name, x in options.items() if name in takes}
        if cache is not None:
            if ids.shape[1] > 1:
                _check_columns(model, cache)
            cached_as = "cache_params" if "cache_params" in takes else "past_key_values"
            options[cached_as] = cache.past
            every = cache.extend(mask)
            # What such a model remembers has no columns.
            mask = mask if cached_as == "cache_params" else every
            if isinstance(model, torch.nn.DataParallel):  # which would give the whole cache to each device
                model = model.module
        options |= {"use_cache": cache is not None, "attention_mask": mask.long()}
        if wrapped_models.POSITIONS in takes:
            options[wrapped_models.POSITIONS] = positions.clamp_min(0).long()
        arguments = {"input_ids": ids.long(), **options}
        output = model(**arguments) if tensors is None else torch.func.functional_call(model, tensors, (), arguments)
        if not hasattr(output, "logits"):
            raise TypeError(
                f"params: expected {type(model).__name__} to give logits by that name, as transformers' models do, got "
                f"{type(output).__name__}; give the model inside of it"
            )
        logits: torch.Tensor = output.logits
        return logits


def _order(positions: torch.Tensor, whole: bool) -> torch.Tensor | None:
    """Columns [B, T] in an order that has each row's padding in front; None if they need none.

    Whole rows, without a cache, need it only if there is padding between tokens.
    """
    if positions.shape[1] == 1:
        return None
    mask = positions >= 0
    later, earlier = mask[:, 1:], mask[:, :-1]
    if not torch.compiler.is_compiling():
        begins = (later & ~earlier).sum(1) + mask[:, 0]
        if bool((begins <= 1).all() if whole else (later >= earlier).all()):
            return None
    return positions.argsort(dim=1, stable=True)


def _check_columns(model: torch.nn.Module, cache: _Cache) -> None:
    # transformers would forget such a state without a word.
    if cache.mask is not None and any(hasattr(layer, "recurrent_states") for layer in cache.past.layers):
        raise ValueError(
            f"{type(model).__name__} remembers a state in place of tokens, from which it goes on by one token at a "
            f"time; give tokens_at_once=1, or rows_at_once alone"
        )


def _check_mode(model: torch.nn.Module, cache: _Cache | None) -> None:
    # Only the modules that compute count: what is around the model may be in any mode.
    forgets = wrapped_models.innermost(model).training
    if not (model.training or forgets):
        return
    rates = [
        m.p if isinstance(m, torch.nn.Dropout) else getattr(m, "attention_dropout", 0) or 0
        for m in model.modules()
        if m.training
    ]
    if (cache is not None and forgets) or any(rates):
        raise ValueError(
            f"{type(model).__name__} is in training mode, in which it drops out at random and may forget its cache; "
            f"call model.eval(), which keeps gradients"
        )
