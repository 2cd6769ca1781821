"""Functions of items over slices that come in one row: each slice is one, as it is with an axis of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.effort import effort

items = frb.items
L = 4
ITEM = {
    "pixels": frb.Bounded(0, 255, (9, 7, 3), "uint8"),
    "image": frb.Bounded(0, 1, (3, 6, 5)),
    "next": {"pixels": frb.Bounded(0, 255, (9, 7, 3), "uint8")},
    "reward": frb.Unbounded(()),
    "done": frb.Binary(()),
}
RANDOM = items.compose(
    items.random_shift(2, ["pixels", ("next", "pixels")]),
    items.crop((5, 4), "image", at="random"),
    items.color_jitter(0.4, 0.3, 0.2, 0.1, "image"),
    items.random_shift(1, "pixels", per="step"),
)
ALONG = items.compose(items.reward_to_go(0.5), items.burn_in(2), items.frame_stack(2, "image"))
SAMPLERS = {
    "slices": frb.Slices(L),
    "short ones": frb.Slices(L, strict_length=False, span=True),
    "counted by steps": frb.Slices(L, batch="steps"),
    "once": frb.SlicesWithoutReplacement(L),
    "prioritized": frb.PrioritizedSlices(L),
}
STEPS = 24


def drawn(library: Backend, sampler: Any, function: Any, batch: int) -> dict[str, np.ndarray]:
    """What a sample has, by the names of leaves and entries; flat slices with two axes."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (STEPS, 9, 7, 3)).astype(np.uint8)
    rows = {
        "pixels": pixels,
        "image": rng.random((STEPS, 3, 6, 5)).astype(np.float32),
        "next": {"pixels": pixels},
        "reward": rng.normal(size=STEPS).astype(np.float32),
        "done": np.arange(STEPS) % 7 == 6,
    }
    spec = frb.BufferSpec(ITEM, STEPS, sampler, transforms=frb.map_items(function))
    state, sample = library.sample(library.add(library.init(spec), rows), library.rb.key(3), batch)
    assert library.rb.sample_spec(state.spec, batch)["reward"].shape == library.numpy(sample.items["reward"]).shape
    found = dict(sample.items) | {"mask": sample.mask, "next": sample.items["next"]["pixels"]}
    arrays = {name: library.numpy(x) for name, x in found.items()}
    return {name: x.reshape(-1, L, *x.shape[1 if sampler.flat else 2 :]) for name, x in arrays.items()}


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("name", SAMPLERS)
def test_flat_slices_are_changed_as_others_are(library: Backend, name: str) -> None:
    sampler, function = SAMPLERS[name], items.compose(RANDOM, ALONG)
    batch = 3 * L if name == "counted by steps" else 3
    apart = drawn(library, sampler, function, batch)
    flat = drawn(library, dataclasses.replace(sampler, flat=True), function, batch)
    assert apart.keys() == flat.keys()
    assert "reward_to_go" in flat
    for leaf, x in apart.items():
        np.testing.assert_array_equal(flat[leaf], x, err_msg=leaf)
    assert flat["mask"][:, 0].all()


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("function", [items.random_shift(2, "where"), items.crop(5, "where", at="random")])
def test_the_steps_of_a_slice_are_moved_alike(backend: Backend, function: Any) -> None:
    """Of images that tell their places; with `per="step"` each has its own."""
    item = {"where": frb.Bounded(0, 99, (8, 9, 1), "uint8"), "done": frb.Binary(())}
    where = np.broadcast_to(np.arange(72, dtype=np.uint8).reshape(8, 9, 1), (STEPS, 8, 9, 1)).copy()
    for per in ("slice", "step"):
        given = frb.map_items(dataclasses.replace(function, per=per))
        spec = frb.BufferSpec(item, STEPS, frb.Slices(L, flat=True), transforms=given)
        state = backend.add(backend.init(spec), {"where": where, "done": np.zeros(STEPS, bool)})
        _, sample = backend.sample(state, backend.rb.key(0), 16)
        places = backend.numpy(sample.items["where"])[:, 3, 3, 0].reshape(16, L)
        assert len(np.unique(places)) > 5
        assert (places == places[:, :1]).all() == (per == "slice")


def test_mixtures_of_flat_slices(library: Backend) -> None:
    item = {"where": frb.Bounded(0, 99, (8, 9, 1), "uint8"), "done": frb.Binary(())}
    where = np.broadcast_to(np.arange(72, dtype=np.uint8).reshape(8, 9, 1), (STEPS, 8, 9, 1)).copy()
    spec = frb.BufferSpec(item, STEPS, frb.Slices(L, flat=True), transforms=frb.map_items(items.random_shift(3)))
    state = library.add(library.init(spec), {"where": where, "done": np.zeros(STEPS, bool)})
    _, sample = library.rb.sample(frb.Mixture([state, state]), library.rb.key(0), 16)
    places = library.numpy(sample.items["where"])[:, 3, 3, 0].reshape(16, L)
    assert (places == places[:, :1]).all()
    assert len(np.unique(places)) > 5


def test_compiled_by_torch() -> None:
    torch = pytest.importorskip("torch")
    import torch_backend as rb

    item = {"where": frb.Bounded(0, 99, (8, 9, 1), "uint8"), "done": frb.Binary(())}
    where = torch.arange(72, dtype=torch.uint8).reshape(1, 8, 9, 1).repeat(STEPS, 1, 1, 1)
    shifted = frb.map_items(items.random_shift(2))
    flat, apart = (
        rb.add(
            rb.init(frb.BufferSpec(item, STEPS, frb.Slices(L, flat=flat), transforms=shifted)),
            {"where": where, "done": torch.zeros(STEPS, dtype=torch.bool)},
        )
        for flat in (True, False)
    )
    expected = rb.sample(apart, rb.key(1), 4)[1].items["where"].reshape(4, L, 8, 9, 1)
    program = torch.compile(lambda state, key: rb.sample_(state, key, 4), fullgraph=True, backend="eager")
    for state in effort([flat], [flat, apart]):
        _, sample = program(state, rb.key(1))
        assert torch.equal(sample.items["where"].reshape(4, L, 8, 9, 1), expected)
