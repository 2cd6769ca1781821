"""Causal language models of Hugging Face's transformers as models of `rb.text`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from functional_rb.text.backend import EmptyCache, Step


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

    Args:
        model: the model, in `eval()` mode: in training it would drop out at random, or forget its cache.
        static: whether the cache is a `StaticCache`, which takes the memory of all L + n tokens at once; else it is a
            `DynamicCache`, which grows.

    Returns:
        The function and what makes its empty cache.

    Raises:
        ImportError: without transformers.
        TypeError: for what is no module with a config, and one that cannot continue texts.

    Example:
        >>> from transformers import AutoModelForCausalLM, GPT2Config
        >>> config = GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
        >>> model = AutoModelForCausalLM.from_config(config).eval()
        >>> step, cache = rb.text.causal_lm(model)
        >>> prompts, mask = np.array([[3, 4, 5], [0, 0, 6]]), np.array([[1, 1, 1], [0, 0, 1]])
        >>> made = rb.text.generate(step, model, prompts, rb.key(0), 4, eos=1, mask=mask, cache=cache, replies=2)
        >>> made.tokens.shape
        torch.Size([4, 4])
    """
    try:
        from transformers import DynamicCache, StaticCache
    except ImportError as error:
        raise ImportError("text.causal_lm needs transformers; pip install 'functional-rb[text]'") from error
    is_model = isinstance(model, torch.nn.Module) and hasattr(model, "config")
    if not is_model:
        raise TypeError(f"text.causal_lm: expected a model of transformers, got {type(model).__name__}")
    config = model.config
    if getattr(config, "is_encoder_decoder", False) or model.get_output_embeddings() is None:
        raise TypeError(
            f"text.causal_lm: {type(model).__name__} does not tell which token comes next; load the model by "
            f"AutoModelForCausalLM"
        )

    def cache(rows: int, tokens: int) -> _Cache:
        past = StaticCache(config, max_cache_len=tokens) if static else DynamicCache(config=config)
        return _Cache(past)

    return CausalLM(_Step(model), cache)


@dataclasses.dataclass
class _Cache:
    """What a model remembers of rows; the model writes into it.

    Attributes:
        past: transformers' cache.
        mask: bool [B, T], which of the T columns so far are tokens; None before the first.
    """

    past: Any
    mask: torch.Tensor | None = None

    def take(self, rows: torch.Tensor) -> _Cache:
        """Rows int32 [M] of it, in memory of their own."""
        past = copy.copy(self.past)
        past.layers = [_taken(layer, rows) for layer in past.layers]
        return _Cache(past, None if self.mask is None else self.mask.index_select(0, rows))

    def extend(self, mask: torch.Tensor) -> torch.Tensor:
        """Columns more, bool [B, T]; the mask of all columns."""
        self.mask = mask if self.mask is None else torch.cat([self.mask, mask], 1)
        return self.mask


def _taken(layer: Any, rows: torch.Tensor) -> Any:
    """Rows of a layer; what has no rows is copied too where the layer writes into it."""
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
        takes: the names of the arguments that the model knows.
        cached_as: under which of them it takes its cache.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.takes = frozenset(inspect.signature(model.forward).parameters)
        self.cached_as = "cache_params" if "cache_params" in self.takes else "past_key_values"

    def __call__(self, params: Any, cache: _Cache | None, ids: torch.Tensor, positions: torch.Tensor) -> Any:
        """Logits [B, T, V] of what follows each token, and the cache with these tokens."""
        order = _order(positions, cache is None)
        if order is None:
            return self.logits(params, cache, ids, positions), cache
        logits = self.logits(params, cache, ids.gather(1, order), positions.gather(1, order))
        back = order.argsort(1)[:, :, None].expand_as(logits)
        return logits.gather(1, back), cache

    def prefill(self, params: Any, cache: _Cache | None, ids: torch.Tensor, positions: torch.Tensor) -> _Cache | None:
        """The cache with these tokens; of the logits as few are computed as the model can."""
        order = _order(positions, False)
        if order is not None:
            ids, positions = ids.gather(1, order), positions.gather(1, order)
        options = {"logits_to_keep": 1} if "logits_to_keep" in self.takes else {}
        self.logits(params, cache, ids, positions, **options)
        return cache

    def logits(
        self, params: Any, cache: _Cache | None, ids: torch.Tensor, positions: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """Of rows whose padding is in front."""
        own = isinstance(params, torch.nn.Module)
        if not own and not isinstance(params, Mapping):
            raise TypeError(f"params: expected the model or a dict of its tensors, got {type(params).__name__}")
        model = params if own else self.model
        _check_mode(model, cache)
        mask = positions >= 0
        if cache is not None:
            if ids.shape[1] > 1:
                _check_columns(model, cache)
            options[self.cached_as] = cache.past
            every = cache.extend(mask)
            # What such a model remembers has no columns.
            mask = mask if self.cached_as == "cache_params" else every
        options |= {"use_cache": cache is not None, "attention_mask": mask.long()}
        if "position_ids" in self.takes:
            options["position_ids"] = positions.clamp_min(0).long()
        forward = model if own else functools.partial(torch.func.functional_call, model, dict(params))
        arguments = {"input_ids": ids.long(), **options}
        told = forward(**arguments) if own else forward((), arguments)
        return told.logits


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
    """Refuse to go on by several tokens at a time from a state, which transformers would forget without a word."""
    if cache.mask is not None and any(hasattr(layer, "recurrent_states") for layer in cache.past.layers):
        raise ValueError(
            f"{type(model).__name__} remembers a state in place of tokens, from which it goes on by one token at a "
            f"time; give tokens_at_once=1, or rows_at_once alone"
        )


def _check_mode(model: torch.nn.Module, cache: _Cache | None) -> None:
    """Refuse a model that drops out at random, or that forgets its cache."""
    if not model.training:
        return
    rates = [
        m.p if isinstance(m, torch.nn.Dropout) else getattr(m, "attention_dropout", 0) or 0 for m in model.modules()
    ]
    if cache is not None or any(rates):
        raise ValueError(
            f"{type(model).__name__} is in training mode, in which it drops out at random and may forget its cache; "
            f"call model.eval(), which keeps gradients"
        )
