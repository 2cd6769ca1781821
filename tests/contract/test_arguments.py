"""Arguments that make no sense are refused, by their name, and harm nothing; what is odd but has a meaning is taken."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import gpu
from tests.support.backends import Backend
from tests.support.versions import enable_x64

ITEM = {"x": frb.Unbounded((2,)), "id": frb.Unbounded((), "int32")}
BATCH = {"x": np.ones((4, 2), np.float32), "id": np.arange(4, dtype=np.int32)}
HANDLES = np.arange(4, dtype=np.int32)
PRIORITIES = np.array([1, 2, 4, 8], np.float32)
SAMPLERS = [
    frb.Uniform(),
    frb.Prioritized(),
    frb.Recency(2),
    frb.InOrder(),
    frb.Queue(),
    frb.WithoutReplacement(),
    frb.Slices(2),
    frb.SlicesWithoutReplacement(2),
]


def filled(rb: Any, sampler: Any = None, item: Any = None) -> Any:
    spec = frb.BufferSpec(ITEM if item is None else item, 8, frb.Prioritized() if sampler is None else sampler)
    return rb.add(rb.init(spec), BATCH, priorities=PRIORITIES if spec.sampler.has_priorities else None)


def content(library: Backend, state: Any) -> list[Any]:
    leaves = [*library.rb.items(state).values(), state.tree, state.counters]
    return [library.numpy(leaf).tobytes() for leaf in leaves]


# -- counts


@pytest.mark.parametrize("n", [1.5, True, "2", None, np.float32(2)])
def test_split_counts_in_whole_numbers(library: Backend, n: Any) -> None:
    with pytest.raises(TypeError, match=r"^split: expected n as a Python int"):
        library.rb.split(library.rb.key(0), n)


def test_split_counts_from_zero(library: Backend) -> None:
    rb = library.rb
    with pytest.raises(ValueError, match=r"^split: expected n >= 0, got -1$"):
        rb.split(rb.key(0), -1)
    with pytest.raises(ValueError, match=r"^split: expected n up to 2147483647, got 2147483648$"):
        rb.split(rb.key(0), 2**31)
    assert [rb.split(rb.key(0), n).shape[0] for n in (0, 1, np.int64(3))] == [0, 1, 3]


STEPS = {"x": frb.Unbounded((2,)), "id": frb.Unbounded((), "int32"), "done": frb.Binary()}


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_no_buffer_gives_more_than_can_be_counted(library: Backend, sampler: Any) -> None:
    """More than 2^31 - 1 items are none of any buffer: that is an answer, and drawing them an error at once."""
    rb = library.rb
    spec = frb.BufferSpec(STEPS, 8, sampler)
    if library.library == "jax":  # the same functions, with nothing to compile
        spec = dataclasses.replace(spec, storage=frb.Host())
    state = rb.add(rb.init(spec), BATCH | {"done": np.array([False, True] * 2)})
    assert bool(rb.can_sample(state, 2))
    for n in (2**31, 2**40):
        assert not bool(rb.can_sample(state, n))
        with pytest.raises(ValueError, match=f"^sample: expected batch_size up to 2147483647, got {n}$"):
            rb.sample(state, rb.key(0), n)


@pytest.mark.parametrize("storage", [frb.Device(), frb.Memmap(shared=True)], ids=["values", "shared"])
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "plain"])
def test_no_batch_has_more_rows_than_can_be_numbered(library: Backend, storage: Any, kernels: bool) -> None:
    if library.library == "jax" and storage == frb.Device():  # the same, with nothing to compile
        storage = frb.Host()
    if not kernels and storage == frb.Memmap(shared=True):
        pytest.skip("shared buffers always use kernels")
    rb, most = library.rb, (2**31 - 1) // 5 * 5
    sampler = frb.Uniform() if storage == frb.Memmap(shared=True) else frb.WithoutReplacement()
    spec = frb.BufferSpec({"nothing": frb.Unbounded((0,))}, 5, sampler, storage=storage)
    with frb.kernels(kernels):
        state = rb.add(rb.init(spec), {"nothing": np.zeros((3, 0), np.float32)})
        for rows in (most + 1, 2**31 + 5, 2**32):
            with pytest.raises(ValueError, match=f"^add: expected up to {most} rows in one batch, got {rows};"):
                rb.add(state, {"nothing": library.array(np.zeros((rows, 0), np.float32))})
        assert int(rb.counts(state).cursor) == 3


def test_rows_of_slices_are_counted_too(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec(STEPS, 8, frb.Slices(4)))
    with pytest.raises(ValueError, match=r"sample: 536870912 of Slices.* have 2147483648 rows, and at most 2147483647"):
        library.rb.sample(state, library.rb.key(0), 2**29)


@pytest.mark.parametrize("sampler", [frb.Uniform, frb.Prioritized])
def test_a_limit_of_numpys_is_a_number_of_pythons(sampler: Any) -> None:
    assert repr(sampler(max_times_sampled=np.int64(3))) == repr(sampler(max_times_sampled=3))


# -- keys


def test_all_64_bits_of_a_seed_count(library: Backend) -> None:
    rb = library.rb

    def drawn(seed: int) -> bytes:
        return bytes(library.numpy(rb.rand(frb.Unbounded((4,)), rb.key(seed))))

    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**40, 2**63, 2**63 + 1, 2**64 - 2**32]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len({drawn(seed) for seed in seeds}) == len(seeds)
        assert drawn(2**64 + 5) == drawn(5)
        assert drawn(2**70 + 2**40) == drawn(2**40) == drawn(np.int64(2**40))


def test_seeds_of_jax_are_its_own_and_can_be_traced() -> None:
    import jax

    import jax_backend as rb

    for seed in (0, 7, -1, 2**31 - 1, 2**32 - 1):
        assert (jax.random.key_data(rb.key(seed)) == jax.random.key_data(jax.random.key(seed))).all()
    with enable_x64(True):
        wide = jax.random.key_data(jax.random.key(2**40))
    assert (jax.random.key_data(jax.jit(lambda: rb.key(2**40))()) == wide).all()
    assert (jax.random.key_data(jax.jit(rb.key)(3)) == jax.random.key_data(rb.key(3))).all()


@pytest.mark.parametrize("compiled", [False, True])
def test_keys_of_jax_are_no_priorities(compiled: bool) -> None:
    """The dtype of keys has none of the attributes that NumPy's dtypes have."""
    import jax

    import jax_backend as rb

    state, keys = filled(rb), rb.split(rb.key(0), 4)
    calls = (lambda keys: rb.update(state, HANDLES, keys), lambda keys: rb.add(state, BATCH, priorities=keys))
    for call in calls:
        with pytest.raises(TypeError, match=r"^priorities: expected dtype float32, got key<fry>"):
            (jax.jit(call) if compiled else call)(keys)


def test_priorities_of_float64_that_a_traced_function_has_from_outside() -> None:
    """Their numbers are known, so they are looked at as in eager calls: also those that are weakly typed."""
    import jax

    import jax_backend as rb

    state = filled(rb)
    with enable_x64(True):
        exact, others = jax.numpy.asarray([1.0, 0.5, 3.0, 2.0]), jax.numpy.full(4, 0.1)
        told = jax.jit(lambda: rb.priorities(rb.update(state, HANDLES, exact), HANDLES))()
        np.testing.assert_allclose(told, exact, rtol=1e-6)
        for run in (lambda call: call(), lambda call: jax.jit(call)()):
            with pytest.raises(TypeError, match=r"^priorities: expected dtype float32, got float64"):
                run(lambda: rb.update(state, HANDLES, others))


# -- beta


@pytest.mark.parametrize("beta", [math.nan, -1.0, -1e-30, math.inf, 101.0])
def test_a_known_beta_is_in_its_range(backend: Backend, beta: float) -> None:
    """As a number, as NumPy's, as the backend's own."""
    if backend.name == "jax-jit":
        pytest.skip("there it is traced")
    state = filled(backend.rb)
    expected = r"^beta: expected a number in \[0, 100\], got "
    for given in (beta, np.float32(beta)):
        with pytest.raises(ValueError, match=expected):
            backend.sample(state, backend.rb.key(0), 4, given)
    with gpu.refused(backend.library, expected):
        backend.sample(copy.copy(state), backend.rb.key(0), 4, backend.array(np.float32(beta)))
    weights = backend.rb.sample(state, backend.rb.key(0), 4, backend.array(np.float32(1)))[1].weights
    assert np.isfinite(backend.numpy(weights)).all()


@pytest.mark.parametrize("sampler", [frb.Prioritized(), frb.PrioritizedSlices(2)], ids=["items", "slices"])
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "core"])
def test_a_traced_beta_that_is_none_gives_no_weights(sampler: Any, kernels: bool) -> None:
    """A schedule that runs below zero must not switch the correction off silently."""
    import jax

    import jax_backend as rb

    state = rb.init(frb.BufferSpec(STEPS, 8, sampler))
    state = rb.add(state, BATCH | {"done": np.array([False, True] * 2)}, priorities=PRIORITIES)
    draw = jax.jit(lambda beta: rb.sample(state, rb.key(0), 4, beta)[1].weights)
    with frb.kernels(kernels):
        assert all(np.isnan(draw(np.float32(beta))).all() for beta in (math.nan, -1.0, -math.inf))
        for beta in (0.0, -0.0, 1.0, math.inf):
            assert ((np.asarray(draw(np.float32(beta))) <= 1) & (np.asarray(draw(np.float32(beta))) > 0)).all()


# -- arrays that are more than their elements


def test_numpys_masked_arrays_are_refused(library: Backend) -> None:
    """What they mask would be stored, and a mask of theirs would be taken for the elements below it."""
    rb = library.rb
    state = filled(rb)
    before = content(library, state)
    hidden = [True, False, False, False]
    cases = [
        ("leaf 'x'", lambda: rb.add(state, BATCH | {"x": np.ma.array(BATCH["x"], mask=[[True, False]] * 4)})),
        ("mask", lambda: rb.add(state, BATCH, mask=np.ma.array(np.ones(4, bool), mask=hidden))),
        ("priorities", lambda: rb.add(state, BATCH, priorities=np.ma.array(PRIORITIES, mask=hidden))),
        ("priorities", lambda: rb.update(state, HANDLES, np.ma.array(PRIORITIES, mask=hidden))),
        ("indices", lambda: rb.update(state, np.ma.array(HANDLES, mask=hidden), PRIORITIES)),
        ("indices", lambda: rb.get(state, np.ma.array(HANDLES, mask=hidden))),
        ("leaf 'x'", lambda: rb.update(state, HANDLES, items={"x": np.ma.array(BATCH["x"])})),
    ]
    for name, call in cases:
        with pytest.raises(TypeError, match=f"^{name}: expected an array without a mask of its own, got numpy.ma"):
            call()
    assert content(library, state) == before


def test_foreign_byte_orders_are_refused_by_name(library: Backend) -> None:
    rb = library.rb
    state = filled(rb)
    cases = [
        ("leaf 'id': expected dtype int32, got >i4", lambda: rb.add(state, BATCH | {"id": HANDLES.astype(">i4")})),
        ("indices: expected dtype int32, got >i4", lambda: rb.get(state, HANDLES.astype(">i4"))),
        ("indices: expected dtype int32, got >i4", lambda: rb.is_live(state, HANDLES.astype(">i4"))),
        ("priorities: expected .*, got >f4", lambda: rb.add(state, BATCH, priorities=PRIORITIES.astype(">f4"))),
        ("priorities: expected .*, got >f4", lambda: rb.update(state, HANDLES, PRIORITIES.astype(">f4"))),
    ]
    for message, call in cases:
        with pytest.raises(TypeError, match=f"^{message}; convert it yourself"):
            call()


def masked(values: Any) -> Any:
    import torch
    from torch.masked import masked_tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that these are a prototype
        return masked_tensor(torch.from_numpy(values), torch.from_numpy(values > 0))


def fake(values: Any) -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.from_numpy(values))


def sparse(values: Any) -> Any:
    import torch

    return torch.from_numpy(values).cpu().to_sparse()  # not every device has sparse tensors


def nested(values: Any) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that these are a prototype
        return torch.nested.nested_tensor([torch.from_numpy(values).cpu()] * 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (masked, "expected a tensor that is an array in memory, got MaskedTensor"),
        (fake, "expected a tensor that is an array in memory, got FakeTensor"),
        (sparse, r"expected a dense tensor, got torch\.sparse_coo; give .*\.to_dense\(\)"),
        (nested, r"expected a dense tensor, got a nested one; give torch\.nested\.to_padded_tensor"),
    ],
)
def test_tensors_that_are_no_arrays_are_refused(make: Any, message: str) -> None:
    import torch

    import torch_backend as rb
    from tests.support.backends import make as made

    state = filled(rb)
    with made("torch") as library:
        before = content(library, state)
        cases = [
            ("leaf 'x'", lambda: rb.add(state, BATCH | {"x": make(BATCH["x"])})),
            ("mask", lambda: rb.add(state, BATCH, mask=make(np.ones(4, bool)))),
            ("priorities", lambda: rb.add(state, BATCH, priorities=make(PRIORITIES))),
            ("priorities", lambda: rb.update(state, HANDLES, make(PRIORITIES))),
            ("indices", lambda: rb.get(state, make(HANDLES + 1))),
            ("leaf 'x'", lambda: rb.update(state, HANDLES, items={"x": make(BATCH["x"])})),
        ]
        for name, call in cases:
            with pytest.raises(TypeError, match=f"^{name}: {message}"):
                call()
        assert content(library, state) == before

    class Tagged(torch.Tensor):
        """A class of a user's own, with elements like any tensor's."""

    for given in (torch.nn.Parameter(torch.full((4, 2), 3.0)), torch.full((4, 2), 3.0).as_subclass(Tagged)):
        after = rb.add(state, BATCH | {"x": given})
        assert (rb.get(after, HANDLES + 4)["x"] == 3).all()


def test_torchs_transforms_of_functions_cannot_write() -> None:
    """Their tensors stand for several, or have no memory; reading works under vmap."""
    import torch

    import torch_backend as rb

    state = filled(rb)
    x, rows = torch.ones(3, 4, 2), {"id": torch.arange(4, dtype=torch.int32)}
    with pytest.raises(TypeError, match=r"^add: torch\.vmap cannot write to one buffer for each of its rows; give all"):
        torch.vmap(lambda x: rb.size(rb.add(state, rows | {"x": x})))(x)
    with pytest.raises(TypeError, match=r"^update: torch\.vmap cannot write"):
        torch.vmap(lambda p: rb.size(rb.update(state, torch.arange(4, dtype=torch.int32), p)))(x[..., 0])
    with pytest.raises(TypeError, match=r"torch\.func differentiates through, .*; add and update outside"):
        torch.func.grad(lambda x: rb.size(rb.add(state, rows | {"x": x})) + x.sum())(x[0])
    stacked = torch.utils._pytree.tree_map(lambda x: torch.stack([x] * 3), state)
    written = torch.vmap(lambda s, x: rb.size(rb.add(s, rows | {"x": x})))(stacked, x)
    assert written.tolist() == [8, 8, 8]
    indices = torch.arange(6, dtype=torch.int32).reshape(3, 2)
    found = torch.vmap(lambda i: rb.get(state, i)["id"])(indices)
    assert found.tolist() == [[0, 1], [2, 3], [0, 0]]
    assert rb.size(state) == 4
    assert (rb.items(state)["x"][:4] == 1).all()


# -- nests


def nested(leaf: Any, depth: int) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def test_containers_may_be_64_deep(library: Backend) -> None:
    rb = library.rb
    spec = frb.BufferSpec(nested(frb.Unbounded(()), 64), 8)
    state = rb.add(rb.init(spec), nested(np.ones(4, np.float32), 64))
    state, sample = rb.sample(state, rb.key(0), 2)
    assert frb.convert.from_json(frb.convert.to_json(spec)) == spec == pickle.loads(pickle.dumps(spec))
    for _ in range(64):
        sample = sample._replace(items=sample.items["a"])
    assert sample.items.tolist() == [1, 1]


@pytest.mark.parametrize("depth", [65, 500, 3000])
def test_deeper_ones_are_refused(library: Backend, depth: int) -> None:
    message = "expected containers at most 64 deep in each other, got more"
    spec = nested(frb.Unbounded(()), depth)
    with pytest.raises(ValueError, match=message):
        frb.BufferSpec(spec, 8)
    with pytest.raises(ValueError, match=message):
        frb.specs.spec_of(nested(np.float32(1), depth))
    with pytest.raises(ValueError, match=message):
        library.rb.rand(spec, library.rb.key(0))
