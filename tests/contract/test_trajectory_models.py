"""Samplers of slices beside plain Python lists of windows."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends
from tests.support.histories import STEP, Rng, Shapes, histories, pick, run, seeds
from tests.support.random_members import ON_JAX, VARIANTS
from tests.support.random_slices import EPISODES, random_spec

ON_TORCH = Shapes((0, 1, 1, 2, 3, 5, 9, 20), (1, 1, 2, 3, 8), False)


@pytest.mark.parametrize("kind", ["with", "prioritized", "without"])
@histories(50)
@hypothesis.given(rng=seeds)
def test_on_torch(kind: str, rng: Rng) -> None:
    run(rng, [pick(rng, VARIANTS)], random_spec(rng, kind), 30, ON_TORCH)


ON_BOTH = [
    frb.BufferSpec(EPISODES, 14, frb.Slices(3, trajectory_key="episode", period=2), lanes=2),
    frb.BufferSpec(STEP, 15, frb.PrioritizedSlices(2, strict_length=False, span=(False, True)), lanes=3),
    frb.BufferSpec(STEP, 14, frb.SlicesWithoutReplacement(2), lanes=2),
]


@pytest.mark.parametrize("spec", ON_BOTH, ids=lambda spec: type(spec.sampler).__name__)
@histories(5)
@hypothesis.given(rng=seeds)
def test_from_one_backend_to_the_other(spec: frb.BufferSpec, rng: Rng) -> None:
    run(rng, ["jax", "torch"], spec, 25, ON_JAX)


@hypothesis.settings(max_examples=40)
@hypothesis.given(data=st.data())
def test_epochs(data: st.DataObject) -> None:
    length, batch = data.draw(st.integers(1, 3), "length"), data.draw(st.integers(1, 5), "batch")
    steps, flat = data.draw(st.booleans(), "batch counts steps"), data.draw(st.booleans(), "flat")
    drop_last = data.draw(st.booleans(), "drop_last")
    ends = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=20), "ends"))
    ids = np.arange(len(ends), dtype=np.int32)
    starts = [k for k in range(len(ends) - length + 1) if not ends[k : k + length - 1].any()]
    with backends.make("torch") as backend:
        rb, form = backend.rb, {"batch": "steps" if steps else "slices", "flat": flat, "drop_last": drop_last}
        sampler = frb.SlicesWithoutReplacement(length, weighting="window", **form)
        state = rb.init(frb.BufferSpec({"id": frb.Unbounded((), "int32"), "done": frb.Binary()}, 20, sampler))
        state = rb.add(state, {"id": ids, "done": ends})
        if not starts or (drop_last and len(starts) < batch):
            with pytest.raises(ValueError, match="none of"):
                list(rb.epochs(state, rb.key(2), batch * length if steps else batch))
            return
        samples = [sample for _, sample in rb.epochs(state, rb.key(2), batch * length if steps else batch, 2)]
        drawn = []
        for sample in samples:
            rows = len(sample.weights)
            lead = (rows * length,) if flat else (rows, length)
            assert all(tuple(x.shape) == lead for x in (sample.items["id"], sample.indices, *sample[4:-1]))
            assert len(sample.probabilities) == rows <= batch
            assert sample.mask.all()
            drawn.append(backend.numpy(sample.items["id"]).reshape(rows, length))
    full, rest = divmod(len(starts), batch)
    assert [len(x) for x in drawn] == ([batch] * full + [rest] * (rest > 0 and not drop_last)) * 2
    for half in (drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]):
        rows = np.concatenate(half).tolist()
        assert len({row[0] for row in rows}) == len(rows)
        assert all(row == list(range(row[0], row[0] + length)) and row[0] in starts for row in rows)
        assert drop_last or len(rows) == len(starts)
