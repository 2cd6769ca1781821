"""Arrays that cross between the backends without a copy: of all dtypes, shapes and nests, and those that cannot."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import functional_rb as frb
import jax_backend as jrb
import torch_backend as trb
from tests.agreement.bridged import address, arrays, as_bytes
from tests.support.versions import enable_x64, is_version

SHARED = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64"]


WITH_64_BITS = ["int64", "uint64", "float64"]


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def aligned(n: int, dtype: str) -> torch.Tensor:
    """n elements of random bytes at an address that JAX takes."""
    if dtype == "bool":
        return torch.from_numpy(np.random.default_rng(0).random(n) < 0.5).clone()
    kind = getattr(torch, dtype)
    raw = np.random.default_rng(0).integers(0, 100, n * kind.itemsize, np.uint8)
    return torch.from_numpy(raw).clone().view(kind)


@pytest.mark.parametrize("dtype", [*SHARED, *WITH_64_BITS])
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (1,), ()])
def test_arrays_share_memory(dtype: str, shape: tuple[int, ...]) -> None:
    with enable_x64(dtype in WITH_64_BITS):
        given = aligned(int(np.prod(shape)), dtype).reshape(shape)
        on_jax = jrb.from_dlpack(given)
        assert isinstance(on_jax, jax.Array)
        assert (on_jax.dtype.name, on_jax.shape) == (dtype, shape)
        assert address(on_jax) == address(given)
        assert as_bytes(on_jax) == as_bytes(given)
        back = trb.from_dlpack(on_jax)
        assert (back.dtype, tuple(back.shape)) == (given.dtype, shape)
        assert address(back) == address(given)
        own = jnp.array(np.asarray(on_jax))
        there = trb.from_dlpack(own)
        assert address(there) == address(own)
        assert as_bytes(there) == as_bytes(given)
        # Memory outlives the array that it came from.
        del given, own, on_jax
        assert as_bytes(back) == as_bytes(there)


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16"])
def test_empty_arrays(dtype: str) -> None:
    assert jrb.from_dlpack(torch.zeros((3, 0), dtype=getattr(torch, dtype))).shape == (3, 0)
    assert tuple(trb.from_dlpack(jnp.zeros((3, 0), dtype)).shape) == (3, 0)


def test_copies_are_copies() -> None:
    given = aligned(32, "float32")
    copied = jrb.from_dlpack({"x": given}, copy=True)["x"]
    assert address(copied) != address(given)
    assert as_bytes(copied) == as_bytes(given)
    wanted = as_bytes(given)
    given += 1
    assert as_bytes(copied) == wanted
    on_jax = jnp.arange(32.0)
    back = trb.from_dlpack((on_jax,), copy=True)[0]
    assert address(back) != address(on_jax)
    back += 1  # a copy may be written to
    assert on_jax.tolist() == list(range(32))
    for rb, own in ((trb, back), (jrb, on_jax)):
        assert address(rb.from_dlpack([own])[0]) == address(own)
        assert address(rb.from_dlpack([own], copy=True)[0]) != address(own)


class Point(dict[str, Any]):
    """A mapping of another type comes back as a dict."""


def test_nests_by_key_path() -> None:
    def x(k: int) -> torch.Tensor:
        return torch.full((16,), float(k))

    nest = {"z": x(0), "a": ({"b": x(1)}, [x(2), x(3)]), "empty": {}, "point": Point(y=x(4), x=x(5))}
    on_jax = jrb.from_dlpack(nest)
    assert list(on_jax) == ["z", "a", "empty", "point"]
    assert type(on_jax["a"]) is tuple
    assert type(on_jax["a"][1]) is list
    assert on_jax["empty"] == {}
    found = [on_jax["z"], on_jax["a"][0]["b"], *on_jax["a"][1], on_jax["point"]["y"], on_jax["point"]["x"]]
    assert [float(a[0]) for a in found] == [0, 1, 2, 3, 4, 5]
    back = trb.from_dlpack(jax.tree.map(lambda a: a, on_jax))  # JAX has sorted the keys
    assert address(back["a"][0]["b"]) == address(nest["a"][0]["b"])
    assert address(back["point"]["x"]) == address(nest["point"]["x"])


def test_tensordict_to_dict_and_back() -> None:
    td = TensorDict({"x": torch.arange(16.0), "n": {"y": torch.arange(32).reshape(16, 2).int()}}, [16])
    on_jax = jrb.from_dlpack(td)
    assert type(on_jax) is dict
    assert type(on_jax["n"]) is dict
    assert address(on_jax["n"]["y"]) == address(td["n", "y"])
    assert type(trb.from_dlpack(on_jax)) is dict
    back = trb.from_dlpack(on_jax, into=TensorDict)
    assert type(back) is TensorDict
    assert back.batch_size == back["n"].batch_size == (16,)
    assert address(back["n", "y"]) == address(td["n", "y"])
    with pytest.raises(TypeError, match=r"'a'.*holds tensors and TensorDicts, not a list"):
        trb.from_dlpack({"a": [jnp.zeros(3)]}, into=TensorDict)


def misaligned() -> torch.Tensor:
    return torch.arange(33.0)[1:]


def conjugated() -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 - 4j] * 8).conj()


def deleted() -> jax.Array:
    array = jnp.arange(16.0)
    array.delete()
    return array


def complex32() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the dtype experimental
        return torch.zeros(16, dtype=torch.complex32)


TO_JAX: dict[str, tuple[Callable[[], Any], str, type | None, Any]] = {
    # what: (array, what the refusal says, what copy=True raises (None: it works), the values then)
    "misaligned": (misaligned, r"aligned.*copy=True", None, np.arange(1, 33)),
    "strided": (lambda: torch.arange(64.0)[::2], r"strided view.*contiguous\(\).*copy=True", None, np.arange(0, 64, 2)),
    "transposed": (lambda: torch.eye(8).T[:, :4], r"strided view", None, np.eye(8)[:, :4]),
    "expanded": (lambda: torch.ones(1).expand(16), r"strided view", None, np.ones(16)),
    "grad": (lambda: torch.ones(16, requires_grad=True), r"requires grad.*detach\(\).*copy=True", None, np.ones(16)),
    "conjugated": (conjugated, r"resolve_conj.*copy=True", None, np.array([1 - 2j, 3 + 4j] * 8)),
    "negated": (lambda: torch._neg_view(torch.ones(16)), r"resolve_neg.*copy=True", None, -np.ones(16)),
    "int64": (lambda: torch.arange(16), r"dtype int64 needs.*jax_enable_x64", TypeError, None),
    "float64": (lambda: torch.ones(16).double(), r"dtype float64 needs.*jax_enable_x64", TypeError, None),
    "NumPy's int64": (lambda: np.arange(16), r"dtype int64 needs.*jax_enable_x64", TypeError, None),
    "complex32": (complex32, r"complex32.*cannot be shared", ValueError, None),
    "meta": (lambda: torch.zeros(16, device="meta"), r"device meta.*cannot be shared", ValueError, None),
    "NumPy strided": (lambda: np.arange(32, dtype=np.float32)[::2], r"strided view", None, np.arange(0, 32, 2)),
    "NumPy backwards": (lambda: np.arange(16, dtype=np.float32)[::-1], r"strided", None, np.arange(16)[::-1]),
    "number": (lambda: 3.0, r"expected an array that has __dlpack__, got float", TypeError, None),
}


TO_TORCH: dict[str, tuple[Callable[[], Any], str, type | None, Any]] = {
    "int4": (lambda: jnp.zeros(16, jnp.int4), r"int4.*cannot be shared", ValueError, None),
    "float8": (lambda: jnp.zeros(16, jnp.float8_e4m3), r"float8_e4m3.*cannot be shared", ValueError, None),
    "deleted": (deleted, r"float32.*cannot be shared", ValueError, None),
    "key": (lambda: jax.random.key(0), r"expected an array that has __dlpack__", TypeError, None),
    "NumPy strided": (lambda: np.arange(32, dtype=np.float32)[::2], r"strided view", None, np.arange(0, 32, 2)),
    "string": (lambda: "x", r"expected an array that has __dlpack__, got str", TypeError, None),
}


@pytest.mark.parametrize(("side", "what"), [("jax", what) for what in TO_JAX] + [("torch", what) for what in TO_TORCH])
def test_what_cannot_be_shared(side: str, what: str) -> None:
    rb = jrb if side == "jax" else trb
    make, message, copy_raises, values = (TO_JAX if side == "jax" else TO_TORCH)[what]
    tree = {"fine": np.ones(16, np.float32).copy(), "deep": [{"leaf": make()}]}
    path = r"from_dlpack: leaf 'deep/0/leaf'.*"
    with pytest.raises((TypeError, ValueError), match=path + message):
        rb.from_dlpack({"deep": tree["deep"]})
    if copy_raises is not None:
        with pytest.raises(copy_raises, match=path):
            rb.from_dlpack(tree, copy=True)
    else:
        np.testing.assert_array_equal(np.asarray(rb.from_dlpack(tree, copy=True)["deep"][0]["leaf"]), values)


def test_read_only_arrays_of_numpy_are_shared_or_refused() -> None:
    """Nobody writes to arrays of JAX, which from 0.12 on asks NumPy for such ones."""
    array = aligned(16, "float32").numpy()
    array.flags.writeable = False
    if is_version(jax, "0.12"):
        assert jrb.from_dlpack([array])[0].unsafe_buffer_pointer() == array.ctypes.data
    else:
        with pytest.raises(ValueError, match=r"leaf '0'.*readonly.*copy=True"):
            jrb.from_dlpack([array])
    assert np.asarray(jrb.from_dlpack([array], copy=True)[0]).tolist() == array.tolist()


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Slices(2)], ids=["uniform", "slices"])
def test_samples_cross_with_what_they_leave_out(sampler: Any) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded((4,)), "done": frb.Binary()}, 4, sampler)
    state = jrb.add(jrb.init(spec), {"x": np.ones((4, 4), np.float32), "done": np.zeros(4, bool)})
    _, sample = jrb.sample(state, jrb.key(0), 16)
    taken = trb.from_dlpack({"sample": sample})["sample"]
    assert type(taken) is type(sample)
    assert (taken.mask is None) == (sample.mask is None)
    assert taken.items["x"].tolist() == sample.items["x"].tolist()
    assert taken.indices.tolist() == sample.indices.tolist()
    assert trb.from_dlpack(sample._replace(indices=None)).indices is None
    with pytest.raises(TypeError, match="leaf 'indices': expected an array that has __dlpack__, got int"):
        trb.from_dlpack(sample._replace(indices=3))


def test_tracers_are_refused_by_torch() -> None:
    def inside(x: jax.Array) -> jax.Array:
        with pytest.raises((TypeError, ValueError), match=r"leaf 'x'.*Tracer"):
            trb.from_dlpack({"x": x})
        with pytest.raises((TypeError, ValueError), match=r"leaf 'x'.*traced"):
            trb.from_dlpack({"x": x}, copy=True)
        return x

    jax.jit(inside)(jnp.zeros(3))


@pytest.mark.gpu
@cuda
def test_another_device() -> None:
    given = torch.arange(32.0, device="cuda")
    if jax.default_backend() == "cpu":
        with pytest.raises(ValueError, match=r"leaf 'x' .*device cuda.*copy=True"):
            jrb.from_dlpack({"x": given})
        assert jrb.from_dlpack({"x": given}, copy=True)["x"].tolist() == list(range(32))
    else:
        assert address(jrb.from_dlpack({"x": given})["x"]) == given.data_ptr()
        state = trb.add(
            trb.init(frb.BufferSpec((frb.Unbounded((16,)),), 64), "cuda"), (torch.ones(3, 16, device="cuda"),)
        )
        assert address(jrb.from_dlpack(state).rows) == state.rows.data_ptr()


def test_a_state_with_64_bit_leaves_needs_x64() -> None:
    state = trb.init(frb.BufferSpec({"a": {"n": frb.Unbounded((), "int64")}}, 4))
    with pytest.raises(TypeError, match=r"leaf 'a/n': dtype int64 needs JAX's 64-bit mode.*jax_enable_x64"):
        jrb.from_dlpack({"state": state})


def test_a_consumed_or_donated_state_cannot_cross() -> None:
    state = trb.init(frb.BufferSpec({"x": frb.Unbounded((16,))}, 64))
    trb.own_(state)
    with pytest.raises(RuntimeError, match="consumed"):
        jrb.from_dlpack(state)
    state = jrb.init(frb.BufferSpec({"x": frb.Unbounded((16,))}, 64))
    for array in arrays(state):
        array.delete()
    with pytest.raises(RuntimeError, match="this state was consumed"):
        trb.from_dlpack(state)
