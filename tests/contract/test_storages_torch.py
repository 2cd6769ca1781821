"""Storages of torch: what torch.compile makes of them, where samples go, and Python objects; see `test_storages`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb

STORAGES = {"host": frb.Host(), "memmap": frb.Memmap()}


def stored_in(spec: frb.BufferSpec, storage: Any) -> frb.BufferSpec:
    return dataclasses.replace(spec, storage=storage)


def batch(first: int, n: int) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(first, first + n, dtype=torch.float32)[:, None].expand(n, 512).contiguous()}


def spec_of(path: Any = None, capacity: int = 16, storage: Any = None, **flags: Any) -> frb.BufferSpec:
    storage = frb.Memmap(path, **flags) if storage is None else storage
    return frb.BufferSpec({"x": frb.Unbounded((512,))}, capacity, frb.Prioritized(), storage=storage)


def first_column(tree: Any) -> list[float]:
    return tree["x"][:, 0].tolist()


# ---------------------------------------------------------------- torch.compile


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="eager")


def in_place(state: Any, items: Any) -> Any:
    state, sample = rb.sample_(rb.add_(state, items), rb.key(1), 4)
    return rb.update_(state, sample.indices, None, items), sample


@pytest.mark.parametrize("name", ["host", "memmap"])
def test_in_place_forms_trace_whole(name: str) -> None:
    plain = dataclasses.replace(spec_of(), sampler=frb.Uniform())  # less to trace
    wanted, expected = in_place(rb.add(rb.init(stored_in(plain, frb.Device())), batch(1, 16)), batch(30, 4))
    state = rb.own_(rb.add(rb.init(stored_in(plain, STORAGES[name])), batch(1, 16)))
    state, sample = compiled(in_place)(state, batch(30, 4))
    assert torch.equal(sample.indices, expected.indices)
    assert torch.equal(sample.items["x"], expected.items["x"])
    assert torch.equal(rb.items(state)["x"], rb.items(wanted)["x"])


def test_adding_to_files_without_reserved_room_is_not_traced() -> None:
    state = rb.own_(rb.add(rb.init(dataclasses.replace(spec_of(), capacity=100_000)), batch(1, 16)))
    with pytest.raises(Exception, match=r"add_: room for a Memmap buffer.*outside of the compiled function"):
        compiled(rb.add_)(state, batch(30, 2))
    assert first_column(rb.get(state, torch.arange(17, dtype=torch.int32))) == [*range(1, 17), 0]


# ---------------------------------------------------------------- where samples go


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_samples_go_to_the_device_that_init_names(storage: Any) -> None:
    # A device without content, which is everywhere: only where things are can be seen.
    state = rb.add(rb.init(spec_of(storage=storage), device="meta"), batch(1, 5))
    for other in (state, pickle.loads(pickle.dumps(state)), copy.deepcopy(state), pytree.tree_map(lambda x: x, state)):
        after, sample = rb.sample(other, rb.key(0), 4)
        assert {x.device.type for x in pytree.tree_leaves(tuple(sample))} == {"meta"}
        assert rb.get(after, torch.zeros(2, dtype=torch.int32))["x"].device.type == "meta"
        assert rb.is_live(after, torch.zeros(2, dtype=torch.int32)).device.type == "meta"
        assert rb.items(after)["x"].device.type == "cpu"
        assert int(rb.size(rb.add(after, batch(6, 1)))) == 6
    _, sample = rb.sample_(state, rb.key(0), 4)
    assert sample.items["x"].device.type == "meta"


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_a_device_by_name_and_what_comes_before_it() -> None:
    assert rb.init(spec_of(storage=frb.Device("meta"))).rows.device.type == "meta"
    assert rb.init(spec_of(storage=frb.Device("meta")), device="cpu").rows.device.type == "cpu"
    assert rb.init(spec_of(storage=frb.Device())).rows.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_on_an_accelerator_results_are_those_of_the_host(storage: Any) -> None:
    state, wanted = rb.init(spec_of(storage=storage), device="cuda"), rb.init(spec_of(storage=frb.Device("cpu")))
    for k in range(20):
        items = batch(7 * k, 5)
        state = rb.add(state, {"x": items["x"].cuda()} if k % 2 else items, priorities=torch.ones(5).cuda())
        wanted = rb.add(wanted, items, priorities=torch.ones(5))
        state, sample = rb.sample(state, rb.key(k), 8)
        wanted, expected = rb.sample(wanted, rb.key(k), 8)
        assert sample.items["x"].is_cuda
        assert torch.equal(sample.items["x"].cpu(), expected.items["x"])
        assert torch.equal(sample.weights.cpu(), expected.weights)
        new = torch.rand(8, generator=torch.Generator().manual_seed(k))
        state = rb.update(state, sample.indices, new.cuda(), {"x": sample.items["x"] + 1})
        wanted = rb.update(wanted, expected.indices, new, {"x": expected.items["x"] + 1})
        assert torch.equal(rb.get(state, sample.indices)["x"].cpu(), rb.get(wanted, expected.indices)["x"])
        assert bool(rb.is_live(state, sample.indices).all())


# ---------------------------------------------------------------- Python objects


def test_objects_alone_one_or_a_list_of_them() -> None:
    spec = frb.BufferSpec(item=frb.specs.NonTensor(), capacity=4, storage=frb.Host())
    state = rb.add(rb.init(spec), {"any": "object"})
    state = rb.add(state, ["a", [1, 2], None])
    assert rb.items(state).tolist() == [{"any": "object"}, "a", [1, 2], None]
    state = rb.add(state, [["a list"]])
    assert rb.items(state).tolist() == [["a list"], "a", [1, 2], None]
    state, sample = rb.sample(state, rb.key(0), 3)
    assert sample.items.shape == (3,)
    assert all(x in [["a list"], "a", [1, 2], None] for x in sample.items.tolist())
    state = rb.add(state, [])
    assert int(rb.size(state)) == 4


def test_lists_of_objects_in_lanes_and_in_nests() -> None:
    spec = frb.BufferSpec({"a": frb.specs.NonTensor(), "b": frb.specs.NonTensor()}, 4, lanes=2, storage=frb.Host())
    state = rb.add(rb.init(spec), {"a": ["p", "q"], "b": [1, 2]})
    state = rb.add(state, {"a": [["r", "s"]], "b": [[3, 4]]})
    assert rb.items(state)["a"].tolist() == ["p", "r", "q", "s"]
    assert rb.items(state)["b"].tolist() == [1, 3, 2, 4]
    with pytest.raises(ValueError, match="leaf 'b': expected objects of shape"):
        rb.add(state, {"a": ["p", "q"], "b": [1]})
