"""Where torch's tensors go that no device was named for: the state's device, or torch's default one.

The device "meta" stands in for an accelerator: it computes shapes and devices alone, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb

ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())}
SAMPLERS = [frb.Uniform(), frb.Prioritized(alpha=0.7), frb.WithoutReplacement(), frb.Slices(4, end_keys=("done",))]


def items(n: int) -> dict[str, np.ndarray]:
    number = np.arange(n, dtype=np.int32)
    return {"x": np.repeat(number[:, None], 3, 1).astype(np.float32), "n": number, "done": number % 5 == 4}


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_arrays_of_numpy_and_of_the_cpu_go_where_the_state_is(sampler: frb.Sampler) -> None:
    state = rb.init(frb.BufferSpec(ITEM, 16, sampler), device="meta")
    of_cpu = {name: torch.from_numpy(leaf) for name, leaf in items(5).items()}
    prioritized = isinstance(sampler, frb.Prioritized)
    given = np.ones(5, np.float32) if prioritized else None
    state = rb.add(state, items(5), np.arange(5) > 2, given)
    state = rb.add(rb.add(state, of_cpu), {"x": np.zeros(3, np.float32), "n": 3, "done": False})
    state, drawn = rb.sample(state, rb.key(0), 8)
    state = rb.update(state, np.arange(5), given, {"n": np.zeros(5, np.int32)})
    state = rb.update_(rb.add_(state, items(5)), torch.arange(5), items={"x": np.zeros((5, 3), np.float32)})
    found = (rb.get(state, np.arange(3)), rb.is_live(state, np.arange(3)), rb.can_sample(state, 3), drawn, state.rows)
    assert {leaf.device.type for leaf in pytree.tree_leaves(found) if leaf is not None} == {"meta"}


def test_states_and_samples_are_on_the_default_device(tmp_path: Path) -> None:
    spec = frb.BufferSpec(ITEM, 16)
    state = rb.add(rb.init(spec), items(5))
    saved = rb.state_dict(state)
    frb.save(state, tmp_path / "saved")
    with torch.device("meta"):
        for storage in (frb.Host(), frb.Memmap(tmp_path / "mapped")):
            assert str(rb.init(frb.BufferSpec(ITEM, 16, storage=storage))._target) == "meta"
        shared = rb.init(frb.BufferSpec(ITEM, 16, storage=frb.Memmap(shared=True)))
        assert str(rb.size(rb.add(shared, items(2))).device) == "meta"
        for made in (rb.init(spec), rb.load_state_dict(spec, saved), frb.load(tmp_path / "saved", rb)):
            assert str(made.rows.device) == "meta"
        assert str(frb.load(tmp_path / "saved", rb, device="cpu").rows.device) == "cpu"
    assert rb.init(frb.BufferSpec(ITEM, 16, storage=frb.Host()))._target is None


# --- kernels read and write the memory of the CPU -------------------------------------------------------------------
#
# On a machine with a GPU each of these handed the address of a tensor there to a kernel, or would have.


def told(state: rb.State, keys: list[torch.Tensor]) -> list[np.ndarray]:
    """All that the functions give of a buffer on the CPU, into which arrays of NumPy go."""
    found: list[Any] = []
    new = np.ones(4, np.float32) if isinstance(state.spec.sampler, frb.Prioritized) else None
    for key in keys:
        state, drawn = rb.sample(rb.add(state, items(5), mask=np.arange(5) > 0), key, 4)
        found += [drawn, rb.get(state, np.arange(3)), rb.is_live(state, np.arange(3))]
        state = rb.update(state, np.arange(4), new, {"n": np.zeros(4, np.int32)})
        state, drawn = rb.sample_(rb.add_(state, items(2)), key, 4)
        found += [drawn, rb.items(state)]
    arrays = [leaf for leaf in pytree.tree_leaves([found, rb.clear(state)]) if leaf is not None]
    assert {array.device.type for array in arrays} == {"cpu"}
    return [array.numpy() for array in arrays]


@pytest.mark.parametrize(
    "sampler", [*SAMPLERS, frb.InOrder(), frb.SlicesWithoutReplacement(2, end_keys=("done",))], ids=repr
)
@pytest.mark.parametrize("storage", [frb.Device("cpu"), frb.Host(), frb.Memmap()], ids=repr)
def test_buffers_on_the_cpu_are_the_same_beside_another_default_device(sampler: frb.Sampler, storage: Any) -> None:
    """Kernels of the CPU once wrote to what lay there."""
    keys, spec = [rb.key(k) for k in range(3)], frb.BufferSpec(ITEM, 16, sampler, storage=storage)
    expected = told(rb.init(spec), keys)
    with torch.device("meta"):
        got = told(rb.init(spec, device="cpu"), keys)
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


class OnAGpu(torch.Tensor):
    """A tensor that says that it is on a GPU; all that can be done with it is to copy it to the CPU."""

    copied: torch.Tensor

    @staticmethod
    def __new__(cls, copied: torch.Tensor) -> OnAGpu:
        made: OnAGpu = torch.Tensor._make_wrapper_subclass(cls, copied.shape, dtype=copied.dtype, device="cuda:0")
        made.copied = copied
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
        assert function is torch.ops.aten._to_copy.default, function
        assert kwargs["device"].type == "cpu"
        return args[0].copied.clone()


@pytest.mark.parametrize("storage", [frb.Device(), frb.Host()], ids=repr)
@pytest.mark.parametrize("sampler", [*SAMPLERS, frb.InOrder()], ids=repr)
def test_keys_on_a_gpu_draw_what_they_draw_on_the_cpu(sampler: frb.Sampler, storage: Any) -> None:
    """`rb.key` makes them on the default device, wherever the buffer is."""
    state = rb.add(rb.init(frb.BufferSpec(ITEM, 16, sampler, storage=storage), "cpu"), items(9))
    expected = rb.sample(state, rb.key(3), 4)[1]
    got = rb.sample(state, OnAGpu(rb.key(3)), 4)[1]
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
        assert a is b or torch.equal(a, b)


@pytest.mark.parametrize("how", ["exact", "items"])
@pytest.mark.parametrize("sampler", [frb.Prioritized(), frb.WithoutReplacement(), frb.Queue()], ids=repr)
def test_mixtures_on_the_cpu_are_the_same_beside_another_default_device(sampler: frb.Sampler, how: str) -> None:
    spec, keys = frb.BufferSpec(ITEM, 16, sampler), [rb.key(k) for k in range(2)]
    states = tuple(rb.add(rb.init(spec), items(n)) for n in (9, 12))

    def drawn() -> list[torch.Tensor]:
        mixture, found = frb.Mixture(states, p=[0.5, 0.5], how=how), []
        for key in keys:
            mixture, sample = rb.sample(mixture, key, 4)
            found += pytree.tree_leaves((sample.items, sample.indices, sample.weights))
        return found

    expected = drawn()
    with torch.device("meta"):
        got = drawn()
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def there(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).to("meta")


NEW, PLACES = np.ones(4, np.float32), np.arange(4, dtype=np.int32)
GIVEN_ELSEWHERE: list[tuple[str, Callable[[rb.State], Any]]] = [
    *((f"leaf '{k}'", lambda s, k=k: rb.add(s, {**items(4), k: there(items(4)[k])})) for k in ITEM),
    ("leaf 'done'", lambda s: rb.add_(s, {**items(4), "done": there(items(4)["done"])})),
    ("leaf '.*'", lambda s: rb.add(s, {name: there(leaf) for name, leaf in items(4).items()})),
    ("mask", lambda s: rb.add_(s, items(4), there(np.ones(4, bool)))),
    ("indices", lambda s: rb.update_(s, there(PLACES), NEW)),
    ("priorities", lambda s: rb.update_(s, PLACES, there(NEW))),
    ("mask", lambda s: rb.add(s, items(4), there(np.ones(4, bool)))),
    ("priorities", lambda s: rb.add(s, items(4), None, there(NEW))),
    ("indices", lambda s: rb.update(s, there(PLACES), NEW)),
    ("priorities", lambda s: rb.update(s, PLACES, there(NEW))),
    ("leaf 'n'", lambda s: rb.update(s, PLACES, items={"n": there(PLACES)})),
    ("indices", lambda s: rb.get(s, there(PLACES))),
    ("indices", lambda s: rb.is_live(s, there(PLACES))),
    ("indices", lambda s: rb.priorities(s, there(PLACES))),
]


@pytest.mark.parametrize("storage", [frb.Device(), frb.Host()], ids=repr)
@pytest.mark.parametrize(("name", "call"), GIVEN_ELSEWHERE)
def test_what_lies_elsewhere_is_refused_by_name(name: str, call: Callable[[rb.State], Any], storage: Any) -> None:
    state = rb.add(rb.init(frb.BufferSpec(ITEM, 16, frb.Prioritized(), storage=storage)), items(8))
    with pytest.raises(
        ValueError, match=rf"^{name}: expected a tensor on cpu, .* one on meta; move it by \.to\('cpu'\)"
    ):
        call(state)
    assert rb.items(state)["n"].tolist() == [*range(8), *[0] * 8]  # nor was it consumed


def test_keys_on_the_cpu_are_packed_there_whatever_the_default_device_is() -> None:
    pair = frb.HashMapSpec({"at": frb.Unbounded((), "int32"), "sign": frb.Binary(())}, capacity=4)
    keys = {"at": np.arange(3, dtype=np.int32), "sign": np.array([True, False, True])}
    made = rb.add(rb.init(pair), keys)[0]
    with torch.device("meta"):
        assert rb.lookup(made, keys).tolist() == [0, 1, 2]


def test_what_is_counted_in_a_mixture_goes_where_its_other_buffers_are() -> None:
    spec = frb.BufferSpec(ITEM, 16)
    mixture = frb.Mixture([rb.add(rb.init(spec), items(3)), rb.add(rb.init(spec, device="meta"), items(2))])
    for found in (rb.size(mixture, each=True), rb.size(mixture), rb.can_sample(mixture, 2)):
        assert found.device.type == "meta"
