"""Every error that shapes, dtypes and static settings can tell: its kind, its words, and that it damages nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import VARIANTS, Backend

ITEM = {
    "obs": {"camera": frb.Unbounded((2, 2), "uint8"), "speed": frb.Unbounded((3,))},
    "id": frb.Unbounded((), "int32"),
    "reward": frb.Unbounded(()),
}
PRIORITIZED = frb.BufferSpec(ITEM, 6, frb.Prioritized())
UNIFORM = frb.BufferSpec(ITEM, 6)
TYPE, VALUE = TypeError, ValueError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Case = tuple[str, Callable[..., Any], type[Exception], str]


def batch(n: int) -> dict[str, Any]:
    number = np.arange(n, dtype=np.int32)
    speed = np.repeat(number[:, None], 3, 1).astype(np.float32)
    return {
        "obs": {"camera": np.full((n, 2, 2), 7, np.uint8), "speed": speed},
        "id": number,
        "reward": number.astype(np.float32),
    }


def put(path: str, value: Any, n: int = 4) -> dict[str, Any]:
    """A batch with one leaf replaced; `...` takes it out."""
    items = batch(n)
    *outer, name = path.split("/")
    part = items
    for key in outer:
        part = part[key]
    if value is ...:
        del part[name]
    else:
        part[name] = value
    return items


def handles(n: int) -> Any:
    return np.arange(n, dtype=np.int32)


def floats(n: int) -> Any:
    return np.ones(n, np.float32)


# (what is wrong, the arguments after the state, the error, its message). All follow from shapes and dtypes, and so they
# are errors while tracing too.
ADD: list[tuple[str, Any, dict[str, Any], type[Exception], str]] = [
    (
        "float64 into float32",
        put("reward", np.zeros(4)),
        {},
        TYPE,
        r"leaf 'reward': expected dtype float32, got float64; convert",
    ),
    ("int64 into int32", put("id", np.arange(4)), {}, TYPE, r"leaf 'id': expected dtype int32, got int64; convert"),
    (
        "nested dtype",
        put("obs/camera", np.zeros((4, 2, 2), np.int8)),
        {},
        TYPE,
        r"leaf 'obs/camera': expected dtype uint8, got int8",
    ),
    ("strings", put("reward", np.asarray(["a"] * 4)), {}, TYPE, r"leaf 'reward': expected dtype float32, got <U1"),
    ("objects", put("reward", np.asarray([None] * 4)), {}, TYPE, r"leaf 'reward': expected dtype float32, got object"),
    ("big-endian", put("reward", np.zeros(4, ">f4")), {}, TYPE, r"leaf 'reward': expected dtype float32, got >f4"),
    (
        "a list",
        put("reward", [0.0] * 4),
        {},
        TYPE,
        r"leaf 'reward': expected an array of dtype float32, got list; give",
    ),
    ("None", put("reward", None), {}, TYPE, r"leaf 'reward': expected an array of dtype float32, got NoneType; give"),
    ("a dict for a leaf", put("reward", {"a": floats(4)}), {}, TYPE, r"leaf 'reward': expected an array .* got dict"),
    (
        "shape",
        put("obs/speed", np.zeros((4, 2), np.float32)),
        {},
        VALUE,
        r"leaf 'obs/speed': expected shape \(3,\) for one item or \('B', 3\) for a batch, got \(4, 2\); reshape",
    ),
    (
        "rank",
        put("obs/speed", np.zeros((4, 1, 3), np.float32)),
        {},
        VALUE,
        r"leaf 'obs/speed': expected shape .* got \(4, 1, 3\)",
    ),
    (
        "scalar for a vector",
        put("obs/speed", np.float32(1)),
        {},
        VALUE,
        r"leaf 'obs/speed': expected shape .* got \(\)",
    ),
    (
        "batch sizes",
        put("reward", floats(3)),
        {},
        VALUE,
        r"leaf 'reward': expected 4 rows as leaf 'id' has, got 3 rows; give every leaf the same",
    ),
    (
        "one leaf without batch",
        put("id", np.int32(3)),
        {},
        VALUE,
        r"leaf 'obs/camera': expected no batch axis as leaf 'id' has, got 4 rows",
    ),
    (
        "one leaf with batch",
        {
            **batch(1),
            "obs": {"camera": np.zeros((2, 2), np.uint8), "speed": np.zeros(3, np.float32)},
        },
        {},
        VALUE,
        r"leaf 'obs/camera': expected 1 rows as leaf 'id' has, got no batch axis",
    ),
    (
        "missing leaf",
        put("reward", ...),
        {},
        VALUE,
        r"'the item': expected the keys \['id', 'obs', 'reward'\], got \['obs', 'id'\]; give exactly",
    ),
    (
        "missing nested leaf",
        put("obs/speed", ...),
        {},
        VALUE,
        r"leaf 'obs': expected the keys \['camera', 'speed'\], got \['camera'\]",
    ),
    (
        "extra leaf",
        put("obs/extra", floats(4)),
        {},
        VALUE,
        r"leaf 'obs': expected the keys .*got \['camera', 'speed', 'extra'\]",
    ),
    (
        "renamed leaf",
        {**put("reward", ...), "rewards": floats(4)},
        {},
        VALUE,
        r"expected the keys .*'reward'\], got .*'rewards'\]",
    ),
    (
        "array for a dict",
        put("obs", floats(4)),
        {},
        VALUE,
        r"leaf 'obs': expected the keys \['camera', 'speed'\], got ndarray",
    ),
    (
        "tuple for a dict",
        put("obs", (floats(4), floats(4))),
        {},
        VALUE,
        r"leaf 'obs': expected the keys .* got \[0, 1\]",
    ),
    ("no items", None, {}, VALUE, r"expected the keys .* got NoneType"),
    ("mask dtype", batch(4), {"mask": np.ones(4, np.uint8)}, TYPE, r"mask: expected dtype bool, got uint8; convert"),
    ("mask of strings", batch(4), {"mask": np.asarray(["a"] * 4)}, TYPE, r"mask: expected dtype bool, got <U1"),
    ("mask list", batch(4), {"mask": [True] * 4}, TYPE, r"mask: expected an array of dtype bool, got list"),
    (
        "mask rank",
        batch(4),
        {"mask": np.ones((4, 1), bool)},
        VALUE,
        r"mask: expected shape \(B,\).*got \(4, 1\); reshape",
    ),
    (
        "mask length",
        batch(4),
        {"mask": np.ones(3, bool)},
        VALUE,
        r"mask: expected 4 rows as the items have, got 3 rows; give one for each",
    ),
    ("scalar mask for a batch", batch(4), {"mask": np.bool_(True)}, VALUE, r"mask: expected shape \(B,\).*got \(\)"),
    (
        "priorities dtype",
        batch(4),
        {"priorities": np.full(4, 0.1)},
        TYPE,
        r"priorities: expected dtype float32, got float64; convert",
    ),
    (
        "priorities int",
        batch(4),
        {"priorities": np.ones(4, np.int32)},
        TYPE,
        r"priorities: expected dtype float32, got int32",
    ),
    (
        "priorities number",
        batch(4),
        {"priorities": 1.0},
        TYPE,
        r"priorities: expected an array of dtype float32, got float",
    ),
    (
        "priorities length",
        batch(4),
        {"priorities": floats(5)},
        VALUE,
        r"priorities: expected 4 rows as the items have, got 5 rows",
    ),
    (
        "priorities rank",
        batch(4),
        {"priorities": np.ones((4, 2), np.float32)},
        VALUE,
        r"priorities: expected shape \(B,\).*got \(4, 2\)",
    ),
]
UPDATE: list[tuple[str, Any, dict[str, Any], type[Exception], str]] = [
    ("indices bool", np.zeros(2, bool), {}, TYPE, r"indices: expected dtype int32, got bool; convert"),
    ("indices uint32", np.arange(2, dtype=np.uint32), {}, TYPE, r"indices: expected dtype int32, got uint32"),
    ("indices float", floats(2), {}, TYPE, r"indices: expected dtype int32, got float32"),
    ("indices list", [0, 1], {}, TYPE, r"indices: expected an array of dtype int32, got list"),
    ("indices int", 0, {}, TYPE, r"indices: expected an array of dtype int32, got int"),
    (
        "indices rank",
        np.zeros((2, 1), np.int32),
        {},
        VALUE,
        r"indices: expected shape \(B,\), got \(2, 1\); give sample.indices",
    ),
    ("indices scalar", np.int32(0), {}, VALUE, r"indices: expected shape \(B,\), got \(\)"),
    (
        "priorities dtype",
        handles(2),
        {"priorities": np.ones(2, np.int16)},
        TYPE,
        r"priorities: expected dtype float32, got int16",
    ),
    (
        "priorities length",
        handles(2),
        {"priorities": floats(3)},
        VALUE,
        r"priorities: expected shape \(2,\), one for each index, got \(3,\)",
    ),
    (
        "priorities scalar",
        handles(2),
        {"priorities": np.float32(1)},
        VALUE,
        r"priorities: expected shape \(2,\).*got \(\)",
    ),
    (
        "unknown leaf",
        handles(2),
        {"items": {"obs": {"depth": floats(2)}}},
        VALUE,
        r"leaf 'obs/depth': no such leaf .*'id', 'obs/camera', 'obs/speed', 'reward'",
    ),
    ("no structure", handles(2), {"items": floats(2)}, VALUE, r"leaf 'the item': no such leaf"),
    ("leaf dtype", handles(2), {"items": {"id": floats(2)}}, TYPE, r"leaf 'id': expected dtype int32, got float32"),
    (
        "leaf shape",
        handles(2),
        {"items": {"obs": {"speed": np.zeros((2, 2), np.float32)}}},
        VALUE,
        r"leaf 'obs/speed': expected shape \(2, 3\), one row for each index, got \(2, 2\)",
    ),
    (
        "leaf without batch",
        handles(2),
        {"items": {"reward": 1.0}},
        VALUE,
        r"leaf 'reward': expected shape \(2,\).*got \(\)",
    ),
]
SAMPLE: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "no batch_size",
        {},
        VALUE,
        r"batch_size is missing; give sample\(\.\.\., batch_size=n\) or BufferSpec\(batch_size=n\)",
    ),
    ("negative", {"batch_size": -1}, VALUE, r"expected batch_size >= 0, got -1"),
    ("float", {"batch_size": 2.0}, TYPE, r"expected batch_size as a Python int.*got float"),
    ("bool", {"batch_size": True}, TYPE, r"expected batch_size as a Python int.*got bool"),
    ("word", {"batch_size": "2"}, TYPE, r"expected batch_size as a Python int.*got str"),
    ("vector", {"batch_size": np.arange(2)}, TYPE, r"expected batch_size as a Python int.*got ndarray"),
    (
        "beta vector",
        {"batch_size": 2, "beta": np.ones(2, np.float32)},
        VALUE,
        r"beta: expected a scalar, got shape \(2,\)",
    ),
    ("beta list", {"batch_size": 2, "beta": [0.5]}, TYPE, r"beta: expected a number or a float32 scalar, got list"),
    ("beta word", {"batch_size": 2, "beta": "0.5"}, TYPE, r"beta: expected a number or a float32 scalar, got str"),
    ("beta complex", {"batch_size": 2, "beta": 1j}, TYPE, r"beta: expected a number or a float32 scalar, got complex"),
    ("beta bool", {"batch_size": 2, "beta": True}, TYPE, r"beta: expected a number or a float32 scalar, got bool"),
    ("beta negative", {"batch_size": 2, "beta": -0.5}, VALUE, r"beta: expected a number in \[0, 100\], got -0\.5"),
    ("beta nan", {"batch_size": 2, "beta": float("nan")}, VALUE, r"beta: expected a number in \[0, 100\], got nan"),
]


def content(backend: Backend, state: Any) -> list[bytes]:
    """Everything that can be read of a state, as bytes."""
    arrays = [
        *backend.rb.items(state)["obs"].values(),
        backend.rb.items(state)["id"],
        backend.rb.items(state)["reward"],
    ]
    arrays += [state.counters, *([] if state.tree is None else [state.tree])]
    return [backend.numpy(array).tobytes() for array in arrays]


class Refusals:
    """Calls functions with bad input, and checks after each that the state reads as before."""

    def __init__(self, backend: Backend, spec: frb.BufferSpec) -> None:
        self.backend = backend
        self.state = backend.rb.add(backend.rb.init(spec), batch(4))
        self.before = content(backend, self.state)

    def check(self, call: Callable[[Any], Any], kind: type[Exception], message: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of what kind is asked below
            call(self.state)
        # Exactly this kind: JAX's own errors are often subclasses of TypeError that name nothing.
        assert type(caught.value) is kind, f"{caught.value!r}"
        assert re.search(message, str(caught.value)), str(caught.value)
        assert content(self.backend, self.state) == self.before
        if self.backend.library == "jax":
            self.check_traced(call, kind, message)
        return str(caught.value)

    def check_traced(self, call: Callable[[Any], Any], kind: type[Exception], message: str) -> None:
        """The same while tracing, where the state has no values."""
        import jax

        with pytest.raises(kind, match=message):
            jax.eval_shape(call, self.state)
        with pytest.raises(kind, match=message):
            jax.jit(call)(self.state)


EAGER = [name for name in VARIANTS if name != "jax-jit"]
"""JAX narrows the NumPy arguments of a user's jit before we see them; `check_traced` has the inputs inside instead."""


@pytest.fixture
def refusals(backend: Backend) -> Refusals:
    return Refusals(backend, PRIORITIZED)


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_add_refuses(refusals: Refusals) -> None:
    for what, items, more, kind, message in ADD:
        print(what)
        refusals.check(lambda s, i=items, m=more: refusals.backend.add(s, i, **m), kind, message)


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_add_refuses_the_backends_own_arrays_too(refusals: Refusals) -> None:
    array = refusals.backend.array
    bad = put("obs/camera", array(np.zeros((4, 2, 2), np.int8)))
    refusals.check(lambda s: refusals.backend.add(s, bad), TYPE, "leaf 'obs/camera': expected dtype uint8, got int8")
    bad = put("obs/speed", array(np.zeros((4, 2), np.float32)))
    refusals.check(lambda s: refusals.backend.add(s, bad), VALUE, r"leaf 'obs/speed': .* got \(4, 2\)")
    mask = array(np.ones(4, np.int8))
    refusals.check(lambda s: refusals.backend.add(s, batch(4), mask), TYPE, "mask: expected dtype bool, got int8")


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_update_refuses(refusals: Refusals) -> None:
    for what, indices, more, kind, message in UPDATE:
        print(what)
        refusals.check(lambda s, i=indices, m=more: refusals.backend.update(s, i, **m), kind, message)
        if what.startswith("indices"):
            refusals.check(lambda s, i=indices: refusals.backend.rb.get(s, i), kind, message)
            refusals.check(lambda s, i=indices: refusals.backend.rb.is_live(s, i), kind, message)


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_sample_refuses(refusals: Refusals) -> None:
    sample = refusals.backend._function("sample") if refusals.backend.library == "torch" else refusals.backend.rb.sample
    for what, more, kind, message in SAMPLE:
        print(what)
        refusals.check(lambda s, m=more: sample(s, refusals.backend.rb.key(0), **m), kind, message)


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_uniform_buffers_refuse_priorities_and_beta(backend: Backend) -> None:
    refusals = Refusals(backend, UNIFORM)
    remedy = r"the sampler is Uniform\(max_times_sampled=None\); use BufferSpec\(sampler=frb\.Prioritized\(\)\)"
    refusals.check(
        lambda s: backend.add(s, batch(4), None, floats(4)), VALUE, "add: priorities were given, but " + remedy
    )
    refusals.check(lambda s: backend.update(s, handles(2), floats(2)), VALUE, "update: priorities .*" + remedy)
    message = r"sample: beta was given, but the sampler is Uniform\(max_times_sampled=None\), whose weights are all 1"
    refusals.check(lambda s: backend.rb.sample(s, backend.rb.key(0), 2, beta=0.5), VALUE, message)


def test_keys_are_checked(library: Backend) -> None:
    refusals = Refusals(library, PRIORITIZED)
    remedy = r"made by rb\.key\(seed\) or rb\.split, got "
    for key, got in (
        (0, "int"),
        (None, "NoneType"),
        ("key", "str"),
        (library.rb.split(library.rb.key(0), 3), r"\(3,\)"),
    ):
        refusals.check(lambda s, k=key: library.rb.sample(s, k, 2), TYPE, "^key: expected .*" + remedy + got)
    foreign = other_backend(library).key(0)
    refusals.check(lambda s: library.rb.sample(s, foreign, 2), TYPE, "^key: expected .*" + remedy)


def test_seeds_are_checked() -> None:
    import torch_backend

    for seed in (1.5, "a", None):
        with pytest.raises(TypeError, match="key: expected a seed as a Python int"):
            torch_backend.key(seed)  # type: ignore[arg-type]  # refused
    with pytest.raises(TypeError, match=r"made by rb\.key"):
        torch_backend.split(0)  # type: ignore[arg-type]  # refused


def other_backend(library: Backend) -> Any:
    import jax_backend
    import torch_backend

    return torch_backend if library.library == "jax" else jax_backend


def test_arrays_of_the_other_backend_are_refused(library: Backend) -> None:
    """And the error names the bridge."""
    import jax.numpy as jnp
    import torch

    def foreign(array: np.ndarray) -> Any:
        return torch.from_numpy(array) if library.library == "jax" else jnp.asarray(array)

    rb, refusals = library.rb, Refusals(library, PRIORITIZED)
    got = "got a torch tensor" if library.library == "jax" else "got a JAX array"
    remedy = rf".*{got}; bring it over by rb\.from_dlpack"
    items = put("obs/speed", foreign(np.zeros((4, 3), np.float32)))
    refusals.check(lambda s: rb.add(s, items), TYPE, "leaf 'obs/speed'" + remedy)
    refusals.check(lambda s: rb.add(s, batch(4), foreign(np.ones(4, bool))), TYPE, "mask" + remedy)
    refusals.check(lambda s: rb.add(s, batch(4), None, foreign(floats(4))), TYPE, "priorities" + remedy)
    refusals.check(lambda s: rb.update(s, foreign(handles(2))), TYPE, "indices" + remedy)
    refusals.check(lambda s: rb.update(s, handles(2), foreign(floats(2))), TYPE, "priorities" + remedy)
    refusals.check(
        lambda s: rb.update(s, handles(2), items={"reward": foreign(floats(2))}), TYPE, "leaf 'reward'" + remedy
    )
    refusals.check(lambda s: rb.sample(s, rb.key(0), 2, beta=foreign(np.float32([0.5]))[0]), TYPE, "beta" + remedy)
    refusals.check(lambda s: rb.get(s, foreign(handles(2))), TYPE, "indices" + remedy)
    refusals.check(lambda s: rb.is_live(s, foreign(handles(2))), TYPE, "indices" + remedy)


def calls_on_states(rb: Any) -> dict[str, Callable[[Any], Any]]:
    """Every function that takes a state, by name."""
    calls: dict[str, Callable[[Any], Any]] = {
        "add": lambda s: rb.add(s, batch(2)),
        "sample": lambda s: rb.sample(s, rb.key(0), 2),
        "update": lambda s: rb.update(s, handles(2), floats(2)),
        "get": lambda s: rb.get(s, handles(2)),
        "is_live": lambda s: rb.is_live(s, handles(2)),
    }
    for name in ("items", "size", "can_sample", "rejected", "stale"):
        calls[name] = getattr(rb, name)
    if hasattr(rb, "add_"):
        calls |= {
            "add_": lambda s: rb.add_(s, batch(2)),
            "sample_": lambda s: rb.sample_(s, rb.key(0), 2),
            "update_": lambda s: rb.update_(s, handles(2), floats(2)),
        }
    if hasattr(rb, "own_"):
        calls["own_"] = rb.own_
    return calls


def test_states_of_the_other_backend_are_refused(library: Backend) -> None:
    other = other_backend(library)
    state = other.add(other.init(PRIORITIZED), batch(4))
    mine, got = ("jax_backend", "torch") if library.library == "jax" else ("torch_backend", "JAX")
    for name, call in calls_on_states(library.rb).items():
        with pytest.raises(TypeError) as caught:
            call(state)
        message = (
            rf"^{name.rstrip('_')}_?: expected a state of {mine}, got one of {got}; bring it over by rb\.from_dlpack"
        )
        assert re.search(message, str(caught.value)), (name, str(caught.value))
    # The state is none the worse for it, and crosses as the error says.
    assert int(other.size(state)) == 4
    assert int(library.rb.size(library.rb.from_dlpack(state, copy=True))) == 4


def test_what_is_no_state_is_refused(library: Backend) -> None:
    rb = library.rb
    state = rb.add(rb.init(PRIORITIZED), batch(4))
    pair = rb.sample(state, rb.key(0), 2)
    for name, call in calls_on_states(rb).items():
        for wrong, message in (
            (pair, r"expected a State, got tuple; unpack it: state, sample = rb\.sample"),
            (PRIORITIZED, "expected a State, got BufferSpec"),
            (None, "expected a State, got NoneType"),
        ):
            with pytest.raises(TypeError, match=message) as caught:
                call(wrong)
            assert str(caught.value).startswith((name, name.rstrip("_"))), name


def test_init_refuses(library: Backend) -> None:
    for wrong in (ITEM, None, frb.Unbounded(()), frb.BufferSpec):
        with pytest.raises(TypeError, match=r"init: expected a BufferSpec, got \w+; write rb\.init\(frb\.BufferSpec"):
            library.rb.init(wrong)


def test_init_without_a_key_refuses_items_for_a_writer_that_draws(library: Backend) -> None:
    spec = frb.BufferSpec(ITEM, 6, writer=frb.Reservoir())
    with pytest.raises(ValueError, match=r"init: Reservoir\(\) draws which items to keep; give them to rb\.add"):
        library.rb.init(spec, items=batch(3))


def test_epochs_refuses_batches_of_nothing(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec(ITEM, 6, frb.WithoutReplacement()), items=batch(3))
    with pytest.raises(ValueError, match=r"epochs: expected batch_size >= 1, got 0"):
        next(library.rb.epochs(state, library.rb.key(0), 0))


def test_can_sample_refuses(library: Backend) -> None:
    state = library.rb.init(PRIORITIZED)
    for wrong, kind in ((2.5, TypeError), ("2", TypeError), (True, TypeError), (-1, ValueError)):
        with pytest.raises(kind, match="can_sample: expected n "):
            library.rb.can_sample(state, wrong)


# --- what only values can tell, where they are at hand --------------------------------------------------------------


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_sampling_an_empty_buffer(backend: Backend) -> None:
    for spec in (UNIFORM, PRIORITIZED):
        state = backend.init(spec)
        for _ in range(2):  # the first refusal must not have consumed it
            with pytest.raises(ValueError, match=r"sample: the buffer is empty; add items first \(rb\.can_sample"):
                backend.sample(state, backend.rb.key(0), 2)
        _, sample = backend.sample(state, backend.rb.key(0), 0)
        assert sample.indices.shape == (0,)


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_sampling_items_of_priority_zero(backend: Backend) -> None:
    state = backend.add(backend.init(PRIORITIZED), batch(3), None, np.zeros(3, np.float32))
    assert not bool(backend.rb.can_sample(state))
    with pytest.raises(ValueError, match="sample: none of the 3 stored items has a positive priority; update some"):
        backend.sample(state, backend.rb.key(0), 2)
    state = backend.update(state, handles(1), floats(1))
    _, sample = backend.sample(state, backend.rb.key(0), 5)
    assert sample.indices.tolist() == [0] * 5


SCALARS = {
    "f": frb.Unbounded(()),
    "h": frb.Unbounded((), "float16"),
    "b": frb.Unbounded((), "bfloat16"),
    "c": frb.Unbounded((), "complex64"),
    "u": frb.Unbounded((), "uint8"),
    "i": frb.Unbounded((), "int32"),
    "t": frb.Binary(()),
}
NUMBERS = {"f": 1.5, "h": 2, "b": 3.0, "c": 1j, "u": 255, "i": -(2**31), "t": True}


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_python_numbers_stand_for_scalar_leaves_where_they_fit(backend: Backend) -> None:
    spec = frb.BufferSpec(SCALARS, 3)
    state = backend.add(backend.init(spec), NUMBERS)
    items = backend.rb.items(state)
    assert {k: backend.numpy(v)[0].item() for k, v in items.items()} == NUMBERS
    edges = {"f": 3.4028234663852886e38, "h": 65504, "b": float("inf"), "c": 7, "u": 0, "i": 2**31 - 1, "t": False}
    items = backend.rb.items(backend.add(state, edges))
    assert {k: backend.numpy(v)[1].item() for k, v in items.items()} == edges


@pytest.mark.parametrize(
    ("leaf", "value", "kind", "message"),
    [
        ("u", 256, VALUE, r"256 does not fit into uint8 \(0 to 255\); change"),
        ("u", -1, VALUE, "-1 does not fit into uint8"),
        ("i", 2**31, VALUE, "2147483648 does not fit into int32"),
        ("f", 1e39, VALUE, r"1e\+39 does not fit into float32 \(up to 3\.40282e\+38\); change"),
        ("f", -(10**400), VALUE, "does not fit into float32"),
        ("h", 65536, VALUE, r"does not fit into float16 \(up to 65504"),
        ("b", 3.4e38, VALUE, r"does not fit into bfloat16"),
        ("c", 1e39j, VALUE, "does not fit into complex64"),
        ("u", 1.0, TYPE, "expected an array of dtype uint8, got 1.0 of type float; give arrays"),
        ("u", True, TYPE, "expected an array of dtype uint8, got True of type bool"),
        ("t", 1, TYPE, "expected an array of dtype bool, got 1 of type int"),
        ("f", True, TYPE, "expected an array of dtype float32, got True of type bool"),
        ("f", 1j, TYPE, "expected an array of dtype float32, got 1j of type complex"),
        ("f", "1", TYPE, "expected an array of dtype float32, got str"),
        ("f", np.float64(1), TYPE, "expected dtype float32, got float64"),
    ],
)
def test_python_numbers_that_do_not_fit(library: Backend, leaf: str, value: Any, kind: Any, message: str) -> None:
    state = library.rb.init(frb.BufferSpec(SCALARS, 3))
    with pytest.raises(kind, match=f"leaf '{leaf}': .*{message}"):
        library.rb.add(state, NUMBERS | {leaf: value})
    assert int(library.rb.size(state)) == 0


def test_numbers_do_not_stand_for_arrays(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec({"x": frb.Unbounded((2,))}, 3))
    with pytest.raises(TypeError, match="leaf 'x': expected an array of dtype float32, got float"):
        library.rb.add(state, {"x": 1.0})


# --- samplers and writers --------------------------------------------------------------------------------------------

LEAF = {"x": frb.Unbounded(())}
STEP = {
    "x": frb.Unbounded(()),
    "done": frb.Binary(()),
    "id": frb.Unbounded((), "int32"),
    "v": frb.Unbounded((2,), "float16"),
}


def spec_with(sampler: Any = None, writer: Any = None, capacity: int = 8, lanes: Any = None) -> frb.BufferSpec:
    given = {} if writer is None else {"writer": writer}
    return frb.BufferSpec(STEP, capacity, sampler or frb.Uniform(), lanes=lanes, **given)


WRONG_MEMBERS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: spec_with(capacity=10, lanes=3),
        VALUE,
        "BufferSpec.capacity: expected a multiple of lanes=3, got 10; 9 would do",
    ),
    (lambda: spec_with(lanes=0), VALUE, "BufferSpec.lanes: expected 1 to 8, got 0"),
    (lambda: spec_with(lanes=9), VALUE, "BufferSpec.lanes: expected 1 to 8, got 9"),
    (lambda: spec_with(lanes=True), TYPE, "BufferSpec.lanes: expected an int, got True"),
    (lambda: spec_with(lanes=2.0), TYPE, "BufferSpec.lanes: expected an int, got 2.0"),
    (lambda: frb.Slices(0), VALUE, "Slices: expected length as a positive int, got 0"),
    (lambda: frb.Slices("2"), VALUE, "Slices: expected length as a positive int, got '2'"),
    (lambda: frb.PrioritizedSlices(2.5), VALUE, "PrioritizedSlices: expected length as a positive int, got 2.5"),
    (lambda: frb.Slices(2, period=0), VALUE, "Slices: expected period as a positive int, got 0"),
    (
        lambda: frb.Slices(2, span=True),
        VALUE,
        r"Slices: span=\(True, True\) gives slices shorter than 2 steps.*give strict_length=False",
    ),
    (lambda: frb.Slices(2, span=3), VALUE, r"expected span as a bool, a number of steps from 0 to length - 1 = 1, .*3"),
    (lambda: frb.Slices(2, span=(True,)), VALUE, r"expected span as a bool, .*, got \(True,\)"),
    (lambda: frb.Slices(2, span=(-1, 0)), VALUE, r"expected span as a bool, .*, got \(-1, 0\)"),
    (lambda: frb.Slices(2, span=0.5), VALUE, r"expected span as a bool, .*, got 0.5"),
    (lambda: frb.Slices(2, strict_length="no"), VALUE, "Slices: expected strict_length as a bool, got 'no'"),
    (lambda: frb.Slices(2, flat=1), VALUE, "Slices: expected flat as a bool, got 1"),
    (lambda: frb.Slices(2, batch="windows"), VALUE, "Slices: expected batch 'slices' or 'steps', got 'windows'"),
    (lambda: frb.Slices(2, weighting="x"), VALUE, "Slices: expected weighting 'trajectory' or 'window', got 'x'"),
    (lambda: frb.Slices(2, 16), VALUE, "Slices: expected end_keys as a tuple of leaves' names, got 16"),
    (lambda: spec_with(frb.Slices(2, end_keys=(3,))), TYPE, "expected the key of a leaf as a name, .*, got 3"),
    (
        lambda: frb.SlicesWithoutReplacement(2, weighting="window", span=(True, False), strict_length=False),
        VALUE,
        r"windows that reach out before .*; give span=\(False, True\), or weighting='trajectory'",
    ),
    (lambda: frb.SlicesWithoutReplacement(2, weighting="x"), VALUE, "expected weighting 'trajectory' or 'window'"),
    (lambda: frb.SlicesWithoutReplacement(2, drop_last=3), VALUE, "expected drop_last as a bool, got 3"),
    (
        lambda: frb.PrioritizedSlices(2, span=True, strict_length=False),
        VALUE,
        r"PrioritizedSlices: priorities belong to the first step .*; give span=\(False, True\)",
    ),
    (lambda: frb.PrioritizedSlices(2, alpha=-1), VALUE, "PrioritizedSlices: expected alpha as a number"),
    (
        lambda: frb.BufferSpec(LEAF, 8, frb.Slices(2)),
        VALUE,
        r"Slices: the item has no leaf 'done' .*; give end_keys=.* or trajectory_key=.*\('x',\)",
    ),
    (
        lambda: spec_with(frb.Slices(2, end_keys="x")),
        VALUE,
        "end key 'x': expected one bool an item, got .*float32.*; name another leaf",
    ),
    (lambda: spec_with(frb.Slices(2, end_keys=("no",))), VALUE, r"has no leaf 'no'; name one of \('done', 'id', "),
    (lambda: spec_with(frb.Slices(2, trajectory_key="x")), VALUE, "trajectory key 'x': expected one integer an item"),
    (lambda: spec_with(frb.Slices(2, trajectory_key=("no", "id"))), VALUE, "has no leaf 'no/id'; name one of"),
    (
        lambda: spec_with(frb.Slices(9)),
        VALUE,
        "Slices: a slice of 9 steps never fits into the 8 of a lane; give a larger BufferSpec.capacity",
    ),
    (lambda: spec_with(frb.Slices(5), lanes=2), VALUE, "a slice of 5 steps never fits into the 4 of a lane"),
    (
        lambda: spec_with(frb.Queue(), frb.RoundRobin()),
        VALUE,
        r"Queue: RoundRobin\(\) would overwrite .*; leave the writer out, or use writer=frb.StopWhenFull\(\)",
    ),
    (
        lambda: spec_with(frb.Queue(), lanes=2),
        VALUE,
        r"Queue: items of several lanes have no single order, got lanes=2; give Queue\(length=",
    ),
    (lambda: frb.Queue(0), VALUE, "Queue: expected length as a positive int or None, got 0"),
    (lambda: frb.Queue(True), VALUE, "Queue: expected length as a positive int or None, got True"),
    (lambda: spec_with(frb.Queue(9)), VALUE, "Queue: a window of 9 steps never fits into the 8 of a lane"),
    (lambda: spec_with(frb.Fifo(), lanes=2), VALUE, r"Fifo: .*got lanes=2; leave .* or take .*frb.Queue\(length="),
    (lambda: spec_with(frb.Lifo(2), capacity=2**24 + 1), VALUE, "Lifo: with max_times_sampled the capacity may be"),
    (lambda: frb.Fifo(0), VALUE, "Fifo: expected max_times_sampled as a positive int or None, got 0"),
    (lambda: frb.Uniform(True), VALUE, "Uniform: expected max_times_sampled as a positive int or None, got True"),
    (lambda: frb.Prioritized(max_times_sampled=-1), VALUE, "Prioritized: expected max_times_sampled as a positive"),
    (lambda: frb.Prioritized(replacement="no"), VALUE, "Prioritized: expected replacement as a bool, got 'no'"),
    (lambda: frb.Recency(0), VALUE, "Recency: expected strength as an int from 1 to 64, got 0"),
    (lambda: frb.Recency(65), VALUE, "Recency: expected strength as an int from 1 to 64, got 65"),
    (lambda: frb.Recency(2.0), VALUE, "Recency: expected strength as an int from 1 to 64, got 2.0"),
    (lambda: frb.WithoutReplacement(32), VALUE, "WithoutReplacement: expected drop_last as a bool, got 32"),
    (lambda: frb.WithoutReplacement(shuffle=1), VALUE, "WithoutReplacement: expected shuffle as a bool, got 1"),
    *(
        (
            lambda sampler=sampler: spec_with(sampler, frb.Reservoir()),
            VALUE,
            rf"{type(sampler).__name__}: needs items in the order .*, and Reservoir\(\) chooses slots; leave",
        )
        for sampler in (frb.Slices(2), frb.Queue(), frb.Fifo(), frb.Recency(), frb.WithoutReplacement(shuffle=False))
    ),
    (lambda: spec_with(writer=frb.MaxValue("no")), VALUE, "MaxValue: the item has no leaf 'no'; name one of"),
    (lambda: spec_with(writer=frb.MaxValue(3)), TYPE, "expected the key of a leaf as a name, .*, got 3"),
    (lambda: frb.MaxValue("x", "mode"), VALUE, r"expected reduction as one of \('sum', .*got 'mode'"),
    (
        lambda: spec_with(writer=frb.MaxValue("done")),
        VALUE,
        "MaxValue: leaf 'done': expected real numbers of at most 32 bits .*bool.*; name another leaf",
    ),
    (
        lambda: frb.BufferSpec({"n": frb.Unbounded((), "int64")}, 4, writer=frb.MaxValue("n")),
        VALUE,
        "MaxValue: leaf 'n': expected real numbers of at most 32 bits .*int64",
    ),
]


def steps(*lead: int) -> dict[str, np.ndarray]:
    number = np.arange(np.prod(lead, dtype=int), dtype=np.int32).reshape(lead)
    v = np.zeros((*lead, 2), np.float16)
    return {"x": number.astype(np.float32), "done": np.zeros(lead, bool), "id": number, "v": v}


def filled_with(rb: Any, spec: frb.BufferSpec, *lead: int) -> Any:
    if isinstance(spec.writer, frb.Immutable):
        return rb.init(spec, items=steps(*lead))
    return rb.add(rb.init(spec), steps(*lead), key=rb.key(0) if isinstance(spec.writer, frb.Reservoir) else None)


ONE = np.zeros(1, np.int32)
LANED = spec_with(capacity=12, lanes=3)
# (the buffer, how it is filled, the function, its arguments, the error, its message)
CALLS: list[tuple[frb.BufferSpec, tuple[int, ...], str, Any, dict[str, Any], type[Exception], str]] = [
    (
        LANED,
        (3,),
        "add",
        (steps(4),),
        {},
        VALUE,
        r"leaf 'done': expected shape \(3,\) for a step of all lanes or .*\(4,\)",
    ),
    (
        LANED,
        (3,),
        "add",
        (steps(),),
        {},
        VALUE,
        r"or \('T', 3\) for several, got \(\); reshape it, or change BufferSpec.l",
    ),
    (LANED, (3,), "add", (steps(3, 2),), {}, VALUE, r"leaf 'done': .* got \(3, 2\)"),
    (LANED, (3,), "add", (steps(1, 1, 3),), {}, VALUE, r"leaf 'done': .* got \(1, 1, 3\)"),
    (
        LANED,
        (3,),
        "add",
        ({**steps(2, 3), "done": np.zeros(3, bool)},),
        {},
        VALUE,
        r"leaf 'id': expected 3 rows as leaf 'done' has, got leading axes \(2, 3\)",
    ),
    (
        LANED,
        (3,),
        "add",
        (steps(2, 3), np.ones(6, bool)),
        {},
        VALUE,
        r"mask: expected leading axes \(2, 3\) as the items have, got 6 rows; give one for each item",
    ),
    (
        LANED,
        (3,),
        "add",
        (steps(3), np.ones((1, 3), bool)),
        {},
        VALUE,
        "mask: expected 3 rows as the items have, got lea",
    ),
    (
        LANED,
        (3,),
        "add",
        (steps(3),),
        {"key": 3},
        TYPE,
        r"^key: expected .* made by rb.key\(seed\) or rb.split, got int",
    ),
    (
        spec_with(frb.Prioritized(), capacity=12, lanes=3),
        (3,),
        "add",
        (steps(2, 3), None, floats(6)),
        {},
        VALUE,
        r"priorities: expected leading axes \(2, 3\) as the items have, got 6 rows",
    ),
    (
        spec_with(writer=frb.Immutable()),
        (3,),
        "add",
        (steps(1),),
        {},
        VALUE,
        r"this buffer is Immutable: .*; use writer=",
    ),
    (
        spec_with(writer=frb.Immutable()),
        (3,),
        "update",
        (ONE,),
        {"items": {"x": floats(1)}},
        VALUE,
        r"this buffer is Immutable: .*never change; use writer=frb.RoundRobin\(\)",
    ),
    (
        spec_with(writer=frb.Reservoir()),
        (3,),
        "add",
        (steps(1),),
        {},
        VALUE,
        r"add: Reservoir\(\) draws which items to keep; give add\(..., key=key\), a new key at every call",
    ),
    (spec_with(writer=frb.Reservoir()), (3,), "add", (steps(1),), {"key": 3}, TYPE, "^key: expected .* got int"),
    (
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (2, 3),
        "sample",
        (2,),
        {},
        VALUE,
        "sample: expected batch_size as a multiple of lanes=3, .* got 2",
    ),
    (
        spec_with(frb.Slices(2, batch="steps")),
        (4,),
        "sample",
        (3,),
        {},
        VALUE,
        "sample: expected batch_size as a multiple of the slices' length 2, .* got 3",
    ),
    (
        spec_with(frb.Slices(2)),
        (4,),
        "update",
        (ONE, floats(1)),
        {},
        VALUE,
        r"update: priorities were given, but the sampler is Slices\(length=2.*use .*frb.PrioritizedSlices",
    ),
    (spec_with(frb.Slices(2)), (4,), "update", (np.zeros((2, 2), np.int32),), {}, VALUE, r"of slices .reshape\(-1\)"),
    (
        spec_with(frb.Fifo()),
        (4,),
        "add",
        (steps(1), None, floats(1)),
        {},
        VALUE,
        "add: priorities were given, but .*Fifo",
    ),
    (
        spec_with(frb.Slices(2)),
        (4,),
        "sample",
        (2, 0.5),
        {},
        VALUE,
        "sample: beta was given, but the sampler is Slices",
    ),
    (
        spec_with(),
        (),
        "epochs",
        (2,),
        {},
        VALUE,
        r"epochs: the sampler Uniform.* with replacement; use .*WithoutReplacem",
    ),
    (spec_with(frb.WithoutReplacement()), (3,), "epochs", (2, -1), {}, VALUE, "epochs: expected n >= 0, got -1"),
    (spec_with(frb.WithoutReplacement()), (3,), "epochs", (2, 1.5), {}, TYPE, "epochs: expected n as a Python int"),
    (spec_with(frb.WithoutReplacement()), (3,), "epochs", (), {}, VALUE, "sample: batch_size is missing"),
]
"""What follows from shapes and settings, so that the buffer need not be filled."""
VALUES: list[tuple[frb.BufferSpec, tuple[int, ...], str, Any, dict[str, Any], type[Exception], str]] = [
    (
        spec_with(frb.Queue(), capacity=4),
        (3,),
        "add",
        (steps(2),),
        {},
        VALUE,
        "add: the buffer is full: 2 items do not fit into the room for 1; sample .* first, or add fewer",
    ),
    (
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (3, 3),
        "add",
        (steps(2, 3), np.array([[True, True, False], [False, True, True]])),
        {},
        VALUE,
        "2 items do not fit into the room for 1 in lane 1; .*nothing was written",
    ),
    (
        spec_with(writer=frb.StopWhenFull()),
        (8,),
        "add",
        (steps(1),),
        {},
        VALUE,
        "1 items do not fit into the room for 0",
    ),
    (spec_with(frb.Queue()), (), "sample", (2,), {}, VALUE, "sample: the buffer is empty; add items first"),
    (
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (3,),
        "sample",
        (3,),
        {},
        VALUE,
        "none of the 3 stored items completes a window of 2 steps; add more",
    ),
    (
        spec_with(frb.WithoutReplacement(drop_last=True)),
        (3,),
        "sample",
        (4,),
        {},
        VALUE,
        "none of the 3 stored items make a full batch, and drop_last drops smaller ones; add more, or draw fewer",
    ),
    (
        spec_with(frb.WithoutReplacement(drop_last=True, shuffle=False)),
        (3,),
        "sample",
        (4,),
        {},
        VALUE,
        "none of the 3 stored items make a full batch",
    ),
    (
        spec_with(frb.SlicesWithoutReplacement(2, drop_last=True)),
        (3,),
        "sample",
        (4,),
        {},
        VALUE,
        "none of the 3 stored items begins a slice of 2 steps; .*drop_last drops batches that are not full",
    ),
    (
        spec_with(frb.Slices(4)),
        (3,),
        "sample",
        (1,),
        {},
        VALUE,
        "begins a slice of 4 steps; .* give strict_length=False",
    ),
    (
        spec_with(frb.PrioritizedSlices(4)),
        (3,),
        "sample",
        (1,),
        {},
        VALUE,
        "a slice of 4 steps with a positive priority",
    ),
    (spec_with(frb.WithoutReplacement()), (), "epochs", (2,), {}, VALUE, "sample: the buffer is empty"),
]
"""What only values can tell."""


def arrays_of(backend: Backend, state: Any) -> list[bytes]:
    tree = [] if state.tree is None else [state.tree]
    return [
        backend.numpy(x).tobytes() for x in (state.rows, *state.wide, *tree, *state.auxiliary.values(), state.counters)
    ]


@pytest.mark.parametrize("backend", ["jax", "torch", "torch-core", "torch-inplace"], indirect=True)
def test_calls_that_samplers_and_writers_refuse(backend: Backend) -> None:
    """Each by its words, twice: the first must have changed nothing, nor consumed the state."""
    rb = backend.rb
    slow = backend.library == "jax"  # which compiles for every buffer, so some will do
    cases = [(not slow, *case) for case in CALLS] + [(True, *case) for case in VALUES[:: 4 if slow else 1]]
    for fill, spec, lead, name, given, more, kind, message in cases:
        fill = fill or isinstance(spec.writer, frb.Immutable)
        state = filled_with(rb, spec, *lead) if fill and lead else rb.init(spec)
        before = arrays_of(backend, state)
        function = getattr(rb, name + "_" if backend.consumes and name != "epochs" else name)
        if name in ("sample", "epochs"):
            given = (rb.key(0), *given)
        for _ in range(2):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - of what kind is asked below
                list(function(state, *given, **more))
            assert type(caught.value) is kind, f"{message}: {caught.value!r}"
            assert re.search(message, str(caught.value)), str(caught.value)
        assert arrays_of(backend, state) == before


def test_items_that_have_all_been_drawn(backend: Backend) -> None:
    for sampler in (frb.Uniform(1), frb.Prioritized(max_times_sampled=1), frb.Fifo(1)):
        if backend.name == "jax-jit":
            return
        state = filled_with(backend.rb, spec_with(sampler), 2)
        while bool(backend.rb.can_sample(state)):
            state, _ = backend.sample(state, backend.rb.key(0), 2)
        before = arrays_of(backend, state)
        with pytest.raises(ValueError, match=r"none of the 2 stored items (may be drawn again|has a positive)"):
            backend.sample(state, backend.rb.key(0), 2)
        assert arrays_of(backend, state) == before


def test_a_key_that_is_not_needed_does_no_harm(library: Backend) -> None:
    rb = library.rb
    for spec in (UNIFORM, PRIORITIZED, frb.BufferSpec(ITEM, 6, lanes=2)):
        items = batch(2)
        states = [rb.add(rb.init(spec), items, key=key) for key in (None, rb.key(3))]
        assert arrays_of(library, states[0]) == arrays_of(library, states[1])


def test_init_refuses_items_that_do_not_fit(library: Backend) -> None:
    rb = library.rb
    with pytest.raises(
        ValueError, match=r"init: an Immutable buffer is filled as it is made; give rb.init\(spec, items="
    ):
        rb.init(spec_with(writer=frb.Immutable()))
    for writer in (frb.Immutable(), frb.StopWhenFull()):
        with pytest.raises(ValueError, match=r"init: 9 items do not fit into a capacity of 8; give .*capacity=9"):
            rb.init(spec_with(writer=writer), items=steps(9))
    with pytest.raises(ValueError, match=r"init: Reservoir\(\) draws .*; give them to rb.add\(state, items, key=key\)"):
        rb.init(spec_with(writer=frb.Reservoir()), items=steps(3))
    with pytest.raises(TypeError, match="leaf 'id': expected dtype int32, got int64"):
        rb.init(spec_with(), items={**steps(3), "id": np.arange(3)})


def test_random_crop_refuses(library: Backend) -> None:
    rb, whole = library.rb, {"x": np.zeros((2, 5, 3), np.float32), "y": np.zeros((2, 5), np.int32)}
    cases: list[tuple[Any, Any, Any, type[Exception], str]] = [
        (whole, 0, None, VALUE, "random_crop: expected length from 1 to the 5 steps of a trajectory, got 0"),
        (whole, 6, None, VALUE, "from 1 to the 5 steps of a trajectory, got 6"),
        (whole, 2.0, None, TYPE, "random_crop: expected length as a Python int"),
        ({"x": floats(2)}, 1, None, VALUE, r"leaf 'x': expected shape \('B', 'T', '...'\), got \(2,\); give"),
        ({**whole, "y": np.zeros((2, 4), np.int32)}, 1, None, VALUE, r"leaf 'y': expected shape \(2, 5, '...'\), got"),
        ({"x": [1, 2]}, 1, None, TYPE, "leaf 'x/0': expected an array of numbers, got int"),
        ({"x": None}, 1, None, VALUE, "random_crop: expected at least one leaf"),
        ({"x": np.asarray([["a"]])}, 1, None, TYPE, "leaf 'x': expected an array of numbers, got <U1"),
        ({}, 1, None, VALUE, "random_crop: expected at least one leaf"),
        (whole, 2, np.array([5, 2]), TYPE, "lengths: expected dtype int32, got int64; convert"),
        (whole, 2, [5, 2], TYPE, "lengths: expected an array of dtype int32, got list"),
        (
            whole,
            2,
            np.array([5], np.int32),
            VALUE,
            r"lengths: expected shape \(2,\), one for each trajectory, got \(1,\)",
        ),
    ]
    for items, length, lengths, kind, message in cases:
        with pytest.raises(kind, match=message):
            rb.random_crop(items, rb.key(0), length, lengths)
    with pytest.raises(TypeError, match=r"^key: expected .* made by rb\.key\(seed\)"):
        rb.random_crop(whole, 0, 2)
    if library.library == "jax":
        with pytest.raises(TypeError, match=r"leaf 'x': dtype float64 needs JAX's 64-bit mode.*use float32"):
            rb.random_crop({"x": np.zeros((2, 5))}, rb.key(0), 2)


# --- specs ----------------------------------------------------------------------------------------------------------

WRONG_SPECS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: frb.BufferSpec(LEAF, 0), VALUE, "BufferSpec.capacity: expected 1 to 2147483647, got 0"),
    (lambda: frb.BufferSpec(LEAF, -1), VALUE, "BufferSpec.capacity: expected 1 to 2147483647, got -1"),
    (lambda: frb.BufferSpec(LEAF, 2**31), VALUE, "BufferSpec.capacity: expected 1 to 2147483647, got 2147483648"),
    (lambda: frb.BufferSpec(LEAF, True), TYPE, "BufferSpec.capacity: expected an int, got True"),
    (lambda: frb.BufferSpec(LEAF, 2.5), TYPE, "BufferSpec.capacity: expected an int, got 2.5"),
    (lambda: frb.BufferSpec(LEAF, "9"), TYPE, "BufferSpec.capacity: expected an int, got '9'"),
    (lambda: frb.BufferSpec(LEAF, np.float32(4)), TYPE, "BufferSpec.capacity: expected an int"),
    (
        lambda: frb.BufferSpec(LEAF, 2**31 - 1, frb.Prioritized()),
        VALUE,
        r"sum tree of 2147483647 items .*use frb\.Uniform\(\) or several",
    ),
    (lambda: frb.BufferSpec(LEAF, 4, batch_size=0), VALUE, "BufferSpec.batch_size: expected 1 to"),
    (lambda: frb.BufferSpec(LEAF, 4, batch_size=True), TYPE, "BufferSpec.batch_size: expected an int, got True"),
    (
        lambda: frb.BufferSpec(LEAF, 4, frb.Prioritized),
        TYPE,
        r"BufferSpec.sampler: expected an instance.*; write Prioritized\(\)",
    ),
    (lambda: frb.BufferSpec(LEAF, 4, "uniform"), TYPE, "BufferSpec.sampler: expected an instance .*got 'uniform'"),
    (lambda: frb.BufferSpec(LEAF, 4, writer=frb.RoundRobin), TYPE, r"BufferSpec.writer: .*; write RoundRobin\(\)"),
    (lambda: frb.BufferSpec(LEAF, 4, writer="ring"), TYPE, "BufferSpec.writer: expected an instance .*got 'ring'"),
    (
        lambda: frb.BufferSpec({"a": {"b": np.zeros(3)}}, 4),
        TYPE,
        r"leaf 'a/b': expected a spec such as frb\.Unbounded\(shape\), got ndarray; frb\.spec_of",
    ),
    (lambda: frb.BufferSpec({"a": (frb.Unbounded(()), 3)}, 4), TYPE, "leaf 'a/1': expected a spec .* got int"),
    (lambda: frb.BufferSpec({"a": frb.Unbounded}, 4), TYPE, "leaf 'a': expected a spec .* got the class"),
    (lambda: frb.BufferSpec(None, 4), TYPE, "expected a spec .* got NoneType"),
    (lambda: frb.BufferSpec({"a": {0: frb.Unbounded(())}}, 4), TYPE, "names that are strings, got 0"),
    (lambda: frb.Composite({1: frb.Unbounded(())}), TYPE, "names that are strings, got 1"),
    (lambda: frb.Unbounded(3), TYPE, r"expected a shape as a tuple, got 3; write \(3,\)"),
    (lambda: frb.Unbounded(np.int64(3)), TYPE, r"write \(3,\)"),
    (lambda: frb.Unbounded((-1,)), VALUE, r"sizes >= 0, got \(-1,\)"),
    (lambda: frb.Unbounded((2.5,)), TYPE, r"tuple of ints, got \(2\.5,\)"),
    (lambda: frb.Unbounded("12"), TYPE, "tuple of ints, got '12'"),
    (lambda: frb.Unbounded(None), TYPE, "tuple of ints, got None"),
    (lambda: frb.Unbounded((), "float8"), TYPE, "dtype 'float8' cannot be stored; expected one of bool, int8"),
    (lambda: frb.Unbounded((), np.complex128), TYPE, "complex128.* cannot be stored"),
    (lambda: frb.Unbounded((), object), TYPE, "object.* cannot be stored"),
    (lambda: frb.Unbounded((), None), TYPE, "dtype None cannot be stored"),
    (lambda: frb.Unbounded((), ["float32"]), TYPE, "cannot be stored"),
    (lambda: frb.Bounded(2.0, 1.0), VALUE, "expected low <= high everywhere, got low=2.0, high=1.0"),
    (lambda: frb.Bounded([0.0, 3.0], 1.0, (2,)), VALUE, "expected low <= high everywhere"),
    (lambda: frb.Bounded(float("nan"), 1.0), VALUE, "expected low <= high everywhere"),
    (lambda: frb.Bounded([0.0, 0.0, 0.0], 1.0, (2,)), VALUE, r"low of shape \(3,\) does not broadcast to \(2,\)"),
    (lambda: frb.Bounded(0.0, [1.0, 1.0]), VALUE, r"high of shape \(2,\) does not broadcast to \(\)"),
    (lambda: frb.Bounded("a", "b"), TYPE, "expected low as a number or an array of them, got 'a'"),
    (lambda: frb.Bounded(0, None), TYPE, "expected high as a number or an array of them, got None"),
    (lambda: frb.Prioritized(alpha=-0.1), VALUE, r"expected alpha as a number in \[0, 100\], got -0.1"),
    (lambda: frb.Prioritized(beta=-1), VALUE, r"expected beta as a number in \[0, 100\], got -1"),
    (lambda: frb.Prioritized(alpha=float("inf")), VALUE, "expected alpha as a number"),
    (lambda: frb.Prioritized(beta=float("nan")), VALUE, "expected beta as a number"),
    (lambda: frb.Prioritized(alpha="0.6"), VALUE, "expected alpha as a number"),
    (lambda: frb.Prioritized(alpha=True), VALUE, "expected alpha as a number"),
    (lambda: frb.Prioritized(new_priority="max"), VALUE, "expected new_priority 'live' or 'ever', got 'max'"),
    *WRONG_MEMBERS,
]


@pytest.mark.parametrize(("make", "kind", "message"), WRONG_SPECS, ids=[m[:50] for *_, m in WRONG_SPECS])
def test_wrong_specs(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


# --- one backend only -----------------------------------------------------------------------------------------------


def test_a_traced_batch_size_is_refused() -> None:
    import jax

    import jax_backend as rb

    state = rb.add(rb.init(PRIORITIZED), batch(4))
    for message, function in (
        ("sample: expected batch_size as a Python int.*static", lambda n: rb.sample(state, rb.key(0), n)[1]),
        ("can_sample: expected n as a Python int.*static", lambda n: rb.can_sample(state, n)),
    ):
        with pytest.raises(TypeError, match=message):
            jax.jit(function)(2)


def test_64_bits_into_jax_are_refused_not_narrowed() -> None:
    import jax_backend as rb

    state = rb.add(rb.init(PRIORITIZED), batch(4))
    for path, wide in (("id", np.arange(4)), ("reward", np.zeros(4)), ("id", np.arange(4, dtype=np.uint64))):
        with pytest.raises(TypeError, match=f"leaf '{path}': .* got {wide.dtype}"):
            rb.add(state, put(path, wide))


def test_consumed_states(library: Backend) -> None:
    rb = library.rb

    def consumed(by: str) -> Any:
        state = rb.add(rb.init(PRIORITIZED), batch(4))
        calls_on_states(rb)[by](state)
        return state

    for by in ("add_", "sample_", "update_", "own_")[: 4 if hasattr(rb, "own_") else 3]:
        for call in calls_on_states(rb).values():
            state = consumed(by)
            with pytest.raises(
                RuntimeError, match=r"was consumed by an in-place function.*go on with what that returned"
            ):
                call(state)


def test_another_device_is_refused_and_nothing_is_consumed() -> None:
    import torch

    import torch_backend as rb

    far: dict[str, Any] = {"device": "meta"}
    state = rb.add(rb.init(PRIORITIZED), batch(4))
    message = r"expected a tensor on cpu, where the state is, got one on meta; move it by \.to\('cpu'\)"
    items = put("obs/speed", torch.zeros(4, 3, **far))
    for add in (rb.add, rb.add_):
        with pytest.raises(ValueError, match="leaf 'obs/speed': " + message):
            add(state, items)
        with pytest.raises(ValueError, match="mask: " + message):
            add(state, batch(4), torch.ones(4, dtype=torch.bool, **far))
    for update in (rb.update, rb.update_):
        with pytest.raises(ValueError, match="indices: " + message):
            update(state, torch.zeros(2, dtype=torch.int32, **far))
        with pytest.raises(ValueError, match="priorities: " + message):
            update(state, handles(2), torch.ones(2, **far))
    assert rb.items(state)["id"].tolist() == [0, 1, 2, 3, 0, 0]


def test_an_empty_branch_that_the_item_lacks(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec({"x": {"y": frb.Unbounded(())}}, 4))
    state = library.rb.add(state, {"x": {"y": np.zeros(2, np.float32)}})
    with pytest.raises(ValueError, match=r"leaf 'bogus': no such leaf in BufferSpec.item; expected some of \['x/y'\]"):
        library.rb.update(state, np.array([0], np.int32), items={"bogus": {}})
    unchanged = library.rb.update(state, np.array([0], np.int32), items={"x": {}})
    assert int(library.rb.stale(unchanged)) == 0


@pytest.mark.parametrize("keys", [{"end_keys": ("done",)}, {"trajectory_key": "id"}], ids=["end", "trajectory"])
def test_what_tells_where_trajectories_end_is_not_rewritten(library: Backend, keys: dict[str, Any]) -> None:
    item = {"id": frb.Unbounded((), "int32"), "done": frb.Binary(()), "x": frb.Unbounded(())}
    state = library.init(frb.BufferSpec(item, 8, frb.Slices(length=2, **keys)))
    numbers = np.arange(4, dtype=np.int32)
    state = library.add(state, library.tree({"id": numbers // 2, "done": numbers == 1, "x": np.zeros(4, np.float32)}))
    name = "done" if "end_keys" in keys else "id"
    leaf = np.zeros(1, bool if name == "done" else np.int32)
    with pytest.raises(
        ValueError, match=f"update: leaf '{name}' tells Slices where trajectories end, .*; leave it out"
    ):
        library.update(state, library.array(numbers[:1]), None, {name: library.array(leaf)})
    after = library.update(state, library.array(numbers[:1]), None, {"x": library.array(np.ones(1, np.float32))})
    assert library.numpy(library.rb.items(after)["x"])[0] == 1
