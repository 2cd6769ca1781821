"""What describes a buffer: the item specs, `BufferSpec`, `spec_of`; and the examples in every docstring."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import importlib
import importlib.util
import math
import pickle
import pkgutil
import subprocess
import warnings
from typing import Any

import chex
import numpy as np
import pytest

import functional_rb as frb
from tests.specs.spec_examples import NAMES
from tests.support.backends import Backend
from tests.support.children import ROOT, program
from tests.support.effort import effort
from tests.support.grammar import Data, Pair

INF = math.inf
SPECS = [
    (frb.specs.ArraySpec((3,), "int16"), (3,), "int16", (-32768, 32767, True)),
    (frb.specs.ArraySpec(), (), "float32", (-INF, INF, False)),
    (frb.Unbounded((2, 0)), (2, 0), "float32", (-INF, INF, False)),
    (frb.Unbounded((), "uint64"), (), "uint64", (0, 2**64 - 1, True)),
    (frb.Unbounded((), "bool"), (), "bool", (0, 1, True)),
    (frb.Bounded(-1.0, 1.0, (6,)), (6,), "float32", (-1.0, 1.0, False)),
    (frb.Bounded(0, 255, (2, 2), np.uint8), (2, 2), "uint8", (0, 255, True)),
    (frb.Bounded([0, -1], 1, (2,), "int8"), (2,), "int8", ((0, -1), 1, True)),
    (
        frb.Bounded(-INF, np.asarray([[1.0], [2.0]]), (2, 2)),
        (2, 2),
        "float32",
        (-INF, ((1, 1), (2, 2)), False),
    ),
    (frb.Binary(), (), "bool", (0, 1, True)),
    (frb.Binary((4,), "float32"), (4,), "float32", (0, 1, True)),
]
COMPOSITE = frb.Composite(
    obs=frb.Composite(pos=frb.Unbounded((3,)), rgb=frb.Unbounded((8, 8), "uint8")), done=frb.Binary()
)


@pytest.mark.parametrize(("spec", "shape", "dtype", "domain"), SPECS, ids=lambda x: repr(x)[:40])
def test_item_specs_are_values(spec: Any, shape: Any, dtype: Any, domain: Any) -> None:
    assert (spec.shape, spec.dtype, spec.domain) == (shape, dtype, domain)
    assert type(spec.shape) is tuple
    assert type(eval(repr(spec), NAMES | {"inf": INF})) is type(spec)
    for name in ("shape", "dtype", "new"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(spec, name, ())
    others = [other for other, *_ in SPECS if other is not spec]
    assert spec not in others


def test_dtypes_of_every_library_mean_the_same() -> None:
    import jax.numpy as jnp
    import torch

    for name in ("bool", "int8", "int32", "uint16", "float16", "float32", "complex64"):
        for dtype in (name, np.dtype(name), getattr(jnp, name), jnp.dtype(name), getattr(torch, name)):
            assert frb.Unbounded((), dtype) == frb.Unbounded((), name)
    for dtype in (jnp.bfloat16, jnp.dtype("bfloat16"), torch.bfloat16, "bfloat16"):
        assert frb.Unbounded((), dtype).dtype == "bfloat16"
    assert frb.Unbounded((np.int64(3), 2)).shape == (3, 2)
    assert frb.Unbounded([3]).shape == (3,)
    assert all(type(n) is int for n in frb.Unbounded(np.asarray([3, 2])).shape)


def test_composites_give_their_parts() -> None:
    spec = COMPOSITE
    assert spec["obs"] is spec.obs
    assert spec["obs", "pos"] == spec.obs.pos == frb.Unbounded((3,))
    assert list(spec) == ["obs", "done"]
    assert len(spec) == 2
    assert "obs" in spec
    assert "pos" not in spec
    assert dict(spec) == {"obs": spec.obs, "done": frb.Binary()}
    assert spec.shape == {"obs": {"pos": (3,), "rgb": (8, 8)}, "done": ()}
    assert spec.dtype == {"obs": {"pos": "float32", "rgb": "uint8"}, "done": "bool"}
    assert spec.domain["obs"]["rgb"] == (0, 255, True)
    pair = frb.Composite(p=Pair(frb.Unbounded((2,)), (frb.Binary(),)))
    assert pair.shape == {"p": Pair((2,), ((),))}
    with pytest.raises(AttributeError, match=r"no part 'missing'.*\['obs', 'done'\]"):
        _ = spec.missing
    with pytest.raises(KeyError):
        _ = spec["obs", "missing"]


def test_composites_are_values() -> None:
    parts: dict[str, Any] = {"a": frb.Unbounded(()), "b": {"c": frb.Binary()}}
    spec = frb.Composite(parts)
    assert spec == frb.Composite({"b": frb.Composite(c=frb.Binary()), "a": frb.Unbounded(())})
    assert hash(spec) == hash(frb.Composite(b={"c": frb.Binary()}, a=frb.Unbounded(())))
    assert spec != frb.Composite(a=frb.Unbounded(()))
    assert spec != frb.Composite.like(dict, parts)
    parts["a"] = frb.Binary()
    parts["b"]["c"] = frb.Unbounded(())
    assert spec.shape == {"a": (), "b": {"c": ()}}
    assert (spec.a, spec.b.c) == (frb.Unbounded(()), frb.Binary())
    with pytest.raises(TypeError):
        spec["a"] = frb.Binary()  # type: ignore[index]  # refused


ITEMS = {
    "dict": {"x": frb.Unbounded((2,)), "y": {"z": frb.Binary()}},
    "tuple": (frb.Unbounded((2,)), [frb.Binary()]),
    "namedtuple": Pair({"x": frb.Unbounded((2,))}, frb.Binary()),
    "dataclass": Data({"x": frb.Unbounded((2,))}, (frb.Binary(),)),
    "composite": COMPOSITE,
    "leaf": frb.Unbounded((2,)),
    "empty": {},
}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_buffer_specs_are_values(item: Any) -> None:
    spec = frb.BufferSpec(item, 5, frb.Prioritized(0.5), batch_size=3)
    same = frb.BufferSpec(copy.deepcopy(item), np.int64(5), frb.Prioritized(0.5), frb.RoundRobin(), np.int32(3))
    for other in (same, pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec), dataclasses.replace(spec)):
        assert other == spec
        assert hash(other) == hash(spec)
        assert other.plan.names == spec.plan.names
        assert type(other.capacity) is int
        assert type(other.batch_size) is int
    different = [
        dataclasses.replace(spec, capacity=6),
        dataclasses.replace(spec, sampler=frb.Uniform()),
        dataclasses.replace(spec, sampler=frb.Prioritized(0.6)),
        dataclasses.replace(spec, batch_size=None),
        dataclasses.replace(spec, item={"other": frb.Unbounded(())}),
    ]
    assert spec not in different
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.capacity = 7  # type: ignore[misc]  # refused


def test_the_order_of_keys_does_not_tell_specs_apart() -> None:
    """Leaves lie in the order of their names (see `test_leaf_order`), and come back in that in which they came."""
    leaf, inner = frb.Unbounded(()), {"d": frb.Unbounded(()), "c": frb.Binary()}
    one, other = frb.BufferSpec({"a": leaf, "b": inner}, 4), frb.BufferSpec({"b": inner, "a": leaf}, 4)
    assert one == other
    assert one.plan.names == ("a", "b/c", "b/d")
    assert (list(one.item), list(other.item)) == (["a", "b"], ["b", "a"])
    assert frb.BufferSpec([inner], 4) != frb.BufferSpec((inner,), 4)
    names = {"next_a": "a", "next_b": "b"}
    backwards = frb.Compact(next=dict(reversed(names.items())), stack={"b": 3, "a": 2})
    assert frb.Compact(next=names, stack={"a": 2, "b": 3}) == backwards


def test_hashes_survive_another_process() -> None:
    spec = frb.BufferSpec(ITEMS["dict"], 5)
    subprocess.run(program("hash_of_a_spec"), input=pickle.dumps(spec), cwd=ROOT, check=True)


@pytest.mark.parametrize("kind", ["numpy", "jax", "torch"])
def test_spec_of_arrays(kind: str) -> None:
    import jax.numpy as jnp
    import torch

    make = {
        "numpy": lambda shape, dtype: np.zeros(shape, dtype),
        "jax": lambda shape, dtype: jnp.zeros(shape, dtype),
        "torch": lambda shape, dtype: torch.zeros(shape, dtype=getattr(torch, dtype)),
    }[kind]
    example = {
        "p": Pair(make((3,), "float32"), make((), "bool")),
        "d": Data(make((2, 2), "uint8"), [make((), "int32")]),
    }
    spec = frb.BufferSpec(frb.specs.spec_of(example), 4)
    by_hand = {
        "p": Pair(frb.Unbounded((3,)), frb.Binary()),
        "d": Data(frb.Unbounded((2, 2), "uint8"), [frb.Unbounded((), "int32")]),
    }
    assert spec == frb.BufferSpec(by_hand, 4)
    assert spec.plan.names == ("d/x", "d/y/0", "p/first", "p/second")


def test_spec_of_tensordict_and_tensorclass() -> None:
    import torch
    from tensordict import TensorDict, tensorclass

    import torch_backend as rb

    @tensorclass
    class Frame:
        pixels: torch.Tensor
        done: torch.Tensor

    frame = Frame(pixels=torch.zeros(4, 4, dtype=torch.uint8), done=torch.tensor(True), batch_size=[])
    example = TensorDict({"frame": frame, "reward": torch.tensor(1.5)}, batch_size=[])
    spec = frb.specs.spec_of(example)
    assert spec["frame", "pixels"] == frb.Unbounded((4, 4), "uint8")
    assert spec.frame.done == frb.Binary()
    state = rb.add(rb.init(frb.BufferSpec(spec, 3)), example)
    _, sample = rb.sample(state, rb.key(0), 2)
    assert isinstance(sample.items, TensorDict)
    assert sample.items.batch_size == torch.Size([2])
    assert isinstance(sample.items["frame"], Frame)
    assert sample.items["frame"].done.tolist() == [True, True]
    assert sample.items["reward"].tolist() == [1.5, 1.5]


def test_spec_of_says_which_leaf_it_cannot_store() -> None:
    import torch

    with pytest.raises(TypeError, match=r"leaf 'a/b': dtype.*complex128.*cannot be stored"):
        frb.specs.spec_of({"a": {"b": np.zeros(3, complex)}})
    with pytest.raises(TypeError, match="leaf 'a': expected an array, got float; give NumPy, JAX or torch"):
        frb.specs.spec_of({"a": 1.0})
    with pytest.raises(TypeError, match="names that are strings, got 0"):
        frb.specs.spec_of({"a": {0: np.zeros(3)}})
    ragged = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"leaf 'a': expected an array, got a nested tensor.*to_padded_tensor"):
        frb.specs.spec_of({"a": ragged})


def test_a_mapping_that_is_a_dataclass_comes_back_as_one(library: Backend) -> None:
    @chex.dataclass(frozen=True)
    class Step:
        reward: Any

    spec = frb.BufferSpec(Step(reward=frb.Unbounded(())), 4)
    assert spec.plan.names == ("reward",)
    given = Step(reward=np.ones(3, np.float32))
    assert isinstance(library.rb.items(library.rb.add(library.rb.init(spec), given)), Step)
    assert frb.BufferSpec(frb.specs.spec_of(Step(reward=np.float32(1))), 4) == spec


# --- the examples in docstrings -------------------------------------------------------------------------------------


def modules_of(package: str) -> list[str]:
    """All modules of a package."""
    root = importlib.import_module(package)
    return [package, *(found.name for found in pkgutil.walk_packages(root.__path__, f"{package}."))]


def run_examples(name: str, extra: dict[str, Any]) -> int:
    """Run the examples of a module's docstrings; how many there were."""
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, name, globs=vars(module) | extra):
        if not test.examples:
            continue
        report: list[str] = []
        runner.run(test, out=report.append)
        assert not report, "".join(report)
    return runner.summarize(verbose=False).attempted


# The functions that backends bind: their examples need one.
BOUND = (
    "functional_rb.buffer.api",
    "functional_rb.interop.dicts",
    "functional_rb.iteration.cell",
    "functional_rb.buffer.in_place",
    "functional_rb.buffer.reading",
    "functional_rb.buffer.samples",
    "functional_rb.iteration.batches",
    "functional_rb.hash_maps.functions",
    "functional_rb.public.jit",
    "functional_rb.public.structures",
    "functional_rb.specs.functions",
    "functional_rb.checkpoint.background",
    "functional_rb.checkpoint.listing",
    "functional_rb.checkpoint.moment",
    "functional_rb.checkpoint.restoring",
    "functional_rb.checkpoint.saving",
    "functional_rb.mixture.functions",
    "functional_rb.mixture.value",
    "functional_rb.shared.state",
    "functional_rb.native.switch",
    "functional_rb.scale.ray.client",
    "functional_rb.scale.ray.starting",
    "functional_rb.text.api",
    "functional_rb.text.generation",
    "functional_rb.text.preferences",
    "functional_rb.trees.api",
    "functional_rb.trees.forest",
    "functional_rb.trees.forest_growth",
    "functional_rb.trees.forest_tree",
    "functional_rb.trees.state",
    "functional_rb.trees.view",
)
# What takes its docstrings from modules of `BOUND`.
SAID_THERE = ("functional_rb.public.buffers",)
# What has subclasses of TransferQueue's classes, and cannot be imported without it.
SUBCLASSES = ("functional_rb.scale.transfer_queue.queue", "functional_rb.scale.transfer_queue.samplers")
# What these say is run on torch, of `BOUND`; here it would be compiled.
SAID_AGAIN = ("jax_backend.forests", "jax_backend.text", "jax_backend.trees")


def test_examples_of_the_core() -> None:
    absent = () if importlib.util.find_spec("transfer_queue") else SUBCLASSES
    names = [name for name in modules_of("functional_rb") if name not in (*BOUND, *SAID_THERE, *absent)]
    counts = {name: run_examples(name, {"np": np, "frb": frb}) for name in names}
    assert sum(counts.values()) >= 20, counts


def test_examples_of_the_functions(library: Backend) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extra = {"rb": library.rb, "frb": frb, "np": np}
        # What the core says of a function is true on either backend; on JAX, which compiles, most is said again.
        bound = BOUND if library.library == "torch" else effort((), BOUND)
        assert sum(run_examples(name, extra) for name in bound) >= 30 * bool(bound)
        modules = [name for name in modules_of(f"{library.library}_backend") if name not in effort(SAID_AGAIN, ())]
        counts = {name: run_examples(name, extra) for name in modules}
    assert sum(counts.values()) >= 15, counts


FUNCTIONS = ["init", "add", "sample", "update", "get", "items", "is_live", "size", "can_sample"]
ON_SPECS = ["rand", "zeros", "contains", "project", "encode", "decode"]


@pytest.mark.parametrize("name", [*FUNCTIONS, *ON_SPECS])
def test_every_function_has_an_example(library: Backend, name: str) -> None:
    function = getattr(library.rb, name)
    assert ">>> " in function.__doc__
    assert function.__module__ == f"{library.library}_backend"


def test_public_names_are_there_and_documented(library: Backend) -> None:
    for module in (frb, library.rb):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
    assert not set(library.rb.__all__) - set(dir(library.rb))
