"""How replies are made of random bits: alike on both backends, and on the device of the prompts alone."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import torch

from functional_rb.text import advantages, generation, laws, rollouts
from tests.support import backends
from tests.support.language_models import END, MASK, PROMPTS, REPLIES, VOCABULARY, N, table
from torch_backend import text
from torch_backend.arrays import ops


def test_the_same_bits_give_the_same_replies_on_both_backends() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**31, (3, REPLIES, N, 2)).astype(np.int32)
    params = rng.normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    settings = generation.Settings(N, REPLIES, REPLIES, (END,), END)
    made = []
    for name in ("jax", "torch"):
        with backends.make(name) as library:
            ops, own = library.ops, importlib.import_module(f"{name}_backend.text")

            def generate(
                params: Any, prompts: Any, mask: Any, bits: Any, law: Any, ops: Any = ops, own: Any = own
            ) -> Any:
                model, empty = generation.prepared(ops, generation.model_of(ops, table, params), None, prompts, N)
                return generation.generate(ops, model, empty, own._copied, prompts, mask, bits, law, settings)

            law = laws.Law(*map(library.array, (np.float32(0.8), np.int32(4), np.float32(0.95))))
            function = jax.jit(generate) if name == "jax" else generate
            found = function(*map(library.array, (params, PROMPTS, MASK, bits)), law)
            made.append(found._make(map(library.numpy, found)))
    for name in ("tokens", "mask", "lengths", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(made[0], name), getattr(made[1], name), name)
    for name in ("log_probs", "law_log_probs"):
        np.testing.assert_allclose(getattr(made[0], name), getattr(made[1], name), atol=1e-5, err_msg=name)
    assert len(set(map(tuple, made[0].tokens.tolist()))) > 6


def test_everything_stays_on_the_device_of_the_prompts() -> None:
    """On torch's device without memory, which refuses tensors of the CPU, and to be looked at."""
    with torch.device("meta"):
        prompts, mask, bits = torch.zeros(2, 4).int(), torch.ones(2, 4).bool(), torch.zeros(2, 4, 3, 2).int()
        params, number, scores = torch.zeros(5, 5), torch.zeros(()), torch.zeros(8)
        law = laws.Law(number, number.int(), number)
    model = generation.model_of(ops, table, params)
    for at_once in (4, 2):
        settings = generation.Settings(3, 4, at_once, (4,), 0, stops=False)
        given = generation.prepared(ops, model, None, prompts, 3)
        made = generation.generate(ops, *given, text._copied, prompts, mask, bits, law, settings)
    joined = generation.join(ops, prompts, mask, made.tokens, made.mask, 0)
    reference = generation.log_probs(ops, model, joined.ids, joined.mask)
    told = rollouts.episodes(ops, joined, made, scores, reference, number)
    found = advantages.gae(ops, told.reward, reference, told.terminated, told.truncated, told.mask, number, number)
    assert {x.device.type for x in (*made, *joined, reference, *told, *found)} == {"meta"}
