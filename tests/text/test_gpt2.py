"""GPT-2 of the examples: the same on JAX and torch, and its parameters from Hugging Face's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support import backends
from tests.support.language_models import CONTEXT, LAYERS, WIDTH, gpt2


def test_logits_of_a_file_are_the_same_on_both_backends(tmp_path: Path) -> None:
    import gpt2_jax
    import jax

    params = gpt2_jax.init_params(3, 11, CONTEXT, WIDTH, LAYERS)
    file = {f"transformer.{name}": x for name, x in params.items()}
    file |= {f"transformer.h.{i}.attn.bias": np.ones((1, 1, CONTEXT, CONTEXT), bool) for i in range(LAYERS)}
    file |= {"lm_head.weight": params["wte.weight"] + 0}
    save_file(file, tmp_path / "model.safetensors")
    read = gpt2_jax.load(tmp_path / "model.safetensors")
    assert read.keys() == params.keys()
    ids = np.array([[0, 3, 5, 7, 10, 2], [0, 0, 9, 8, 4, 1]], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]], np.int32)
    logits = []
    for name in ("jax", "torch"):
        with backends.make(name) as library:
            step = jax.jit(gpt2(library)[0]) if name == "jax" else gpt2(library)[0]
            made, _ = step(library.tree(read), None, library.array(ids), library.array(positions))
            logits.append(library.numpy(made))
    seen = positions >= 0
    assert np.isfinite(logits[0]).all()  # of padding too
    np.testing.assert_allclose(logits[0][seen], logits[1][seen], atol=1e-4)
    assert np.abs(logits[0]).max() > 1
