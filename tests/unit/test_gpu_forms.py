"""What GPUs compute in another form than XLA's operations for it: bit for bit the same."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from jax_backend.arrays import ops
from tests.support import backends

NARROW = "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "bool"


@pytest.mark.parametrize("word", ["int32", "float32"])
@pytest.mark.parametrize("narrow", NARROW)
def test_words_are_the_bytes_that_they_consist_of(narrow: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.random.default_rng(0).integers(0, 2 if narrow == "bool" else 256, (5, 24)).astype(np.uint8)
    own = np.asarray(ops.bitcast(jnp.asarray(bits), narrow))
    assert own.tobytes() == bits.tobytes()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    words = ops.bitcast(jnp.asarray(own), word)
    assert words.dtype == word
    assert np.asarray(words).tobytes() == bits.tobytes()
    again = ops.bitcast(words, narrow)
    assert (again.dtype, again.shape) == (own.dtype, own.shape)
    assert np.asarray(again).tobytes() == bits.tobytes()


def sizes_read(text: str) -> list[tuple[str, str]]:
    """What is read as what, where the one has more bits than the other."""
    found = re.findall(r"bitcast_convert .*: \(tensor<(?:\d+x)*(\w+)>\) -> tensor<(?:\d+x)*(\w+)>", text)
    return [(x, y) for x, y in found if re.sub(r"\D", "", x) != re.sub(r"\D", "", y)]


def test_bytes_of_rows_are_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As XLA puts nothing else into one launch with an operation that reads dtypes of one size as those of another."""

    def traced(words: int) -> list[tuple[str, str]]:  # specs of their own, as what is traced is kept
        item = {"done": frb.Binary(()), "bytes": frb.Bounded(0, 255, (words, 4), "uint8"), "x": frb.Unbounded(())}
        state = rb.init(frb.BufferSpec(item, 1000))
        batch = {name: jnp.zeros((8, *leaf.shape), leaf.dtype) for name, leaf in item.items()}

        def step(state: rb.State, key: jax.Array) -> tuple[rb.State, rb.Sample]:
            return rb.sample(rb.add(state, batch), key, 8)

        return sizes_read(jax.jit(step).trace(state, rb.key(0)).lower(lowering_platforms=("cuda",)).as_text())

    with backends.make("jax-core"):
        assert set(traced(11)) == {("ui8", "i32"), ("i32", "ui8")}
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert traced(12) == []


@pytest.mark.parametrize("nbytes", [ops.SHIFTED, ops.SHIFTED + 4])
def test_bytes_of_images_are_not(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for given, dtype in (
        (jnp.zeros((2, nbytes), jnp.uint8), "int32"),
        (jnp.zeros((2, nbytes // 4), jnp.int32), "uint8"),
    ):
        text = jax.jit(ops.bitcast, static_argnums=1).lower(given, dtype).as_text()
        assert bool(sizes_read(text)) == (nbytes > ops.SHIFTED)
