"""What users give in another form: taken where nothing is lost, else refused with the way to write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.versions import enable_x64

ITEM = {"obs": frb.Unbounded((2,)), "reward": frb.Unbounded(()), "done": frb.Binary(())}


def rows(count: int = 4) -> dict[str, Any]:
    return {
        "obs": np.zeros((count, 2), np.float32),
        "reward": np.arange(count, dtype=np.float32),
        "done": np.zeros(count, bool),
    }


def filled(library: Backend, count: int = 4) -> Any:
    return library.add(library.init(frb.BufferSpec(ITEM, 8, frb.Prioritized(alpha=1.0))), rows(count))


def test_handles_in_a_list(library: Backend) -> None:
    rb, state = library.rb, filled(library)
    assert rb.get(state, [3, 1, -1, 2**40])["reward"].tolist() == [3, 1, 0, 0]
    assert rb.is_live(state, [0, 4]).tolist() == [True, False]
    assert rb.get(state, [])["reward"].shape == (0,)
    assert rb.get(state, list(np.array([3, 1])))["reward"].tolist() == [3, 1]  # of NumPy's numbers
    state = library.update(state, [3, 0], np.float32([5, 7]))
    assert rb.priorities(state, [0, 1, 3]).tolist() == [7, 1, 5]
    mixture = frb.Mixture([state, state])
    assert rb.get(mixture, [[1, 3], [0, 2]])["reward"].tolist() == [3, 2]


BIG = [-(2**40), -2, -1, 0, 1, 2, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**62]
VARIANTS = ["jax", "torch", "jax-host", "torch-inplace"]


@pytest.mark.parametrize("backend", VARIANTS, indirect=True)
def test_handles_of_64_bits(backend: Backend) -> None:
    rb, state = backend.rb, filled(backend, 3)
    handles, live = np.array(BIG, np.int64), [h in (0, 1, 2) for h in BIG]
    assert backend.numpy(rb.is_live(state, handles)).tolist() == live
    assert backend.numpy(rb.get(state, handles)["reward"]).tolist() == [0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0]
    state = backend.update(state, handles, backend.array(np.full(len(BIG), 7, np.float32)))
    assert int(rb.counts(state).stale) == 7  # all but the three, and -1
    assert backend.numpy(rb.priorities(state, handles)).tolist() == [7.0 * x for x in live]
    assert backend.numpy(rb.is_live(state, np.array([1, 2, 3], np.uint8))).tolist() == [True, True, False]


@pytest.mark.parametrize("given", [[0.0, 1.0], [True, False], ["a"], [2**70], [[0], [1, 2]], [None]])
def test_lists_of_other_things(library: Backend, given: list[Any]) -> None:
    with pytest.raises(TypeError, match=r"indices: expected handles, whole numbers as sample.indices has them, got"):
        library.rb.get(filled(library), given)


DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "float16", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_as_priorities(library: Backend, dtype: str) -> None:
    rb, state = library.rb, filled(library)
    state = rb.update(state, np.array([0, 2], np.int32), np.array([3, 100], dtype))
    assert rb.priorities(state, [0, 1, 2]).tolist() == [3, 1, 100]
    state = rb.add(state, rows(2), priorities=np.array([9, 8], dtype))
    assert rb.priorities(state, [4, 5]).tolist() == [9, 8]


@pytest.mark.parametrize("number", [2**24 + 1, -(2**24) - 1, 2**31 - 1, 2**53 + 1, 2**62 + 1])
def test_whole_numbers_that_would_be_rounded(library: Backend, number: int) -> None:
    state, dtype = filled(library), "int32" if number < 2**31 else "int64"
    with pytest.raises(TypeError, match=f"priorities: expected dtype float32, got {dtype}"):
        library.rb.update(state, [0], np.array([number], dtype))
    assert library.rb.priorities(state, [0]).tolist() == [1]
    exact = library.rb.update(state, [0, 1, 2], np.array([2**30, -5, 2**25 + 4]))  # a bad one is counted, as of floats
    assert library.rb.priorities(exact, [0, 1, 2]).tolist() == [2**30, 1, 2**25 + 4]
    assert int(library.rb.counts(exact).rejected) == 1


@pytest.mark.parametrize("backend", VARIANTS, indirect=True)
def test_other_floats_as_priorities(backend: Backend) -> None:
    """As a column too; where a number would be rounded they are refused."""
    import ml_dtypes

    rb, exact = backend.rb, np.array([0.5, 3.0, np.nan])
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16, np.float32):
        state = backend.init(frb.BufferSpec(ITEM, 8, frb.Prioritized(alpha=1.0)))
        state = backend.add(state, rows(3), priorities=exact.astype(dtype)[:, None])
        assert backend.numpy(rb.priorities(state, np.arange(3))).tolist() == [0.5, 3.0, 1.0]
        state = backend.update(state, np.arange(3)[::-1].copy(), exact.astype(dtype)[:, None] * dtype(2))
        assert backend.numpy(rb.priorities(state, np.arange(3))).tolist() == [0.5, 6.0, 1.0]
        assert int(rb.counts(state).rejected) == 2
    for bad in (0.1, 1e300, 1e-60):
        with pytest.raises(TypeError, match="priorities: expected dtype float32, got float64"):
            backend.update(state, np.arange(3), np.array([bad, 1, 1]))
    with pytest.raises(ValueError, match=r"priorities: expected shape \(3,\)"):
        backend.update(state, np.arange(3), np.ones((1, 3), np.float32))


def test_while_tracing(library: Backend) -> None:
    rb, state = library.rb, filled(library)
    if library.library == "jax":
        import jax
        import jax.numpy as jnp

        changed = jax.jit(rb.update)(state, jnp.array([2, 0], jnp.int16), jnp.array([[4.0], [8.0]], jnp.bfloat16))
        assert rb.priorities(changed, [0, 2]).tolist() == [8, 4]
        update = jax.jit(lambda state, p: rb.update(state, [0, 2], p))
        changed = update(state, jnp.array([3, 4], jnp.int16))
        with pytest.raises(TypeError, match="priorities: expected dtype float32, got int32"):
            update(state, jnp.array([3, 4]))
        with enable_x64(True), pytest.raises(TypeError, match="expected dtype float32, got float64"):
            update(state, jnp.array([4.0, 8.0]))
    else:
        import torch

        program = torch.compile(rb.update_, fullgraph=True, backend="eager")
        changed = program(rb.own_(state), torch.tensor([2, 2**40]), torch.tensor([[4.0], [8.0]], dtype=torch.bfloat16))
        assert rb.priorities(changed, [0, 2]).tolist() == [1, 4]
        assert int(rb.counts(changed).stale) == 1
        program = torch.compile(lambda state, p: rb.update_(state, [0, 2], p), fullgraph=True, backend="eager")
        changed = program(rb.own_(changed), torch.tensor([3, 4], dtype=torch.int16))
    assert rb.priorities(changed, [0, 2]).tolist() == [3, 4]


REFUSED: list[tuple[Callable[[Any, Any, Any], Any], str]] = [
    (lambda rb, s, pair: rb.sample(s, 4), r"sample: expected a key, .* 4; write sample\(state, rb.key\(seed\), 4\)"),
    (lambda rb, s, pair: rb.sample_(s, 4), r"sample_: expected a key, .* write sample_\(state, rb.key\(seed\), 4\)"),
    (lambda rb, s, pair: rb.sample(frb.Mixture([s, s]), 4), r"sample: expected a key, got the number 4"),
    (lambda rb, s, pair: rb.sample(s, np.int64(4)), r"sample: expected a key, .* 4; write sample\(state, rb.key"),
    (lambda rb, s, pair: rb.sample(s, 4, rb.key(0)), r"got the number 4; write sample\(state, rb.key\(seed\), 4\)"),
    (lambda rb, s, pair: rb.sample(s, 0, 4), r"got the number 0; write sample\(state, rb.key\(seed\), 4\)"),
    (lambda rb, s, pair: frb.Mixture([pair, s]), r"Mixture: states\[0\]: .* got tuple; unpack it"),
    (lambda rb, s, pair: rb.update(s, [0], items=pair), "update: expected items, got a state and a sample; unpack it"),
    (lambda rb, s, pair: rb.update(s, [0], items=pair[1]), "update: expected items, got a Sample; give sample.items"),
    (lambda rb, s, pair: rb.update(s, pair, np.ones(2, np.float32)), "unpack it: .* and give sample.indices"),
    (lambda rb, s, pair: rb.get(s, pair), "got tuple; unpack it: state, sample = rb.sample"),
    (lambda rb, s, pair: rb.get(s, pair[1]), "got Sample; give sample.indices"),
    (lambda rb, s, pair: rb.add(s, pair), "add: expected items, got a state and a sample; unpack it"),
    (lambda rb, s, pair: rb.add(s, pair[1]), "add: expected items, got a Sample; give sample.items"),
    (lambda rb, s, pair: rb.text.pairs_of_groups(pair, np.zeros((1, 2))), "pairs_of_groups: .*; unpack it"),
    (lambda rb, s, pair: rb.size(pair), "size: expected a State, got tuple; unpack it"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_one_thing_in_place_of_another(library: Backend, call: Any, text: str) -> None:
    state = filled(library)
    pair = library.rb.sample(state, library.rb.key(0), 2)
    with pytest.raises(TypeError, match=text):
        call(library.rb, state, pair)


def test_the_odd_key_is_named(library: Backend) -> None:
    state = filled(library)
    given = {("rewrd" if name == "reward" else name): x for name, x in rows().items()}
    with pytest.raises(ValueError, match=r"the leaves of the spec: 'reward' is missing, there is no 'rewrd'$"):
        library.rb.add(state, given)
    with pytest.raises(ValueError, match=r"the leaves of the spec: there is no 'info'$"):
        library.rb.add(state, rows() | {"info": np.zeros(4)})
