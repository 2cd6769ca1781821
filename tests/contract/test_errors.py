"""Every error that shapes, dtypes and static settings can tell: its kind, its words, and that it damages nothing."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch.utils import _pytree as pytree

import functional_rb as frb
from tests.support.backends import VARIANTS, Backend

ITEM = {
    "obs": {"camera": frb.Unbounded((2, 2), "uint8"), "speed": frb.Unbounded((3,))},
    "id": frb.Unbounded((), "int32"),
    "reward": frb.Unbounded(()),
}
PRIORITIZED = frb.BufferSpec(ITEM, 6, frb.Prioritized())
UNIFORM = frb.BufferSpec(ITEM, 6)

Cases = list[tuple[Any, ...]]
"""Of each what the error says, and what makes it. It is a ValueError, unless the words begin with "TypeError: "."""


def told(words: str) -> tuple[type[Exception], str]:
    """The kind of an error, and its message."""
    kind, colon, message = words.partition("TypeError: ")
    return (TypeError, message) if colon else (ValueError, kind)


@contextlib.contextmanager
def refused(words: str, *, exactly: bool = True) -> Iterator[None]:
    """An error of this kind, and no subclass: JAX's own errors are often subclasses of TypeError that name nothing."""
    kind, message = told(words)
    with pytest.raises(kind, match=message) as caught:
        yield
    assert type(caught.value) is kind or not exactly, f"{caught.value!r}"


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


# All of the arguments after the state. The errors follow from shapes and dtypes, and so they come while tracing too.
ADD: Cases = [
    (r"TypeError: leaf 'reward': expected dtype float32, got float64; convert", put("reward", np.zeros(4))),
    (r"TypeError: leaf 'id': expected dtype int32, got int64; convert", put("id", np.arange(4))),
    (r"TypeError: leaf 'obs/camera': expected dtype uint8, got int8", put("obs/camera", np.zeros((4, 2, 2), np.int8))),
    (r"TypeError: leaf 'reward': expected dtype float32, got <U1", put("reward", np.asarray(["a"] * 4))),
    (r"TypeError: leaf 'reward': expected dtype float32, got object", put("reward", np.asarray([None] * 4))),
    (r"TypeError: leaf 'reward': expected dtype float32, got >f4", put("reward", np.zeros(4, ">f4"))),
    (r"TypeError: leaf 'reward': expected an array of dtype float32, got list; give", put("reward", [0.0] * 4)),
    (r"TypeError: leaf 'reward': expected an array of dtype float32, got NoneType; give", put("reward", None)),
    (r"TypeError: leaf 'reward': expected an array .* got dict", put("reward", {"a": floats(4)})),
    (
        r"leaf 'obs/speed': expected shape \(3,\) for one item or \('B', 3\) for a batch, got \(4, 2\); reshape",
        put("obs/speed", np.zeros((4, 2), np.float32)),
    ),
    (r"leaf 'obs/speed': expected shape .* got \(4, 1, 3\)", put("obs/speed", np.zeros((4, 1, 3), np.float32))),
    (r"leaf 'obs/speed': expected shape .* got \(\)", put("obs/speed", np.float32(1))),
    (
        r"leaf 'reward': expected 4 rows as leaf 'id' has, got 3 rows; give every leaf the same",
        put("reward", floats(3)),
    ),
    (r"leaf 'obs/camera': expected no batch axis as leaf 'id' has, got 4 rows", put("id", np.int32(3))),
    (
        r"leaf 'obs/camera': expected 1 rows as leaf 'id' has, got no batch axis",
        {**batch(1), "obs": {"camera": np.zeros((2, 2), np.uint8), "speed": np.zeros(3, np.float32)}},
    ),
    (r"'the item': expected the keys \['id', 'obs', 'reward'\], got \['obs', 'id'\]; give exactly", put("reward", ...)),
    (r"leaf 'obs': expected the keys \['camera', 'speed'\], got \['camera'\]", put("obs/speed", ...)),
    (r"leaf 'obs': expected the keys .*got \['camera', 'speed', 'extra'\]", put("obs/extra", floats(4))),
    (r"expected the keys .*'reward'\], got .*'rewards'\]", {**put("reward", ...), "rewards": floats(4)}),
    (r"leaf 'obs': expected the keys \['camera', 'speed'\], got ndarray", put("obs", floats(4))),
    (r"leaf 'obs': expected the keys .* got \[0, 1\]", put("obs", (floats(4), floats(4)))),
    (r"expected the keys .* got NoneType", None),
    (r"TypeError: mask: expected dtype bool, got uint8; convert", batch(4), np.ones(4, np.uint8)),
    (r"TypeError: mask: expected dtype bool, got <U1", batch(4), np.asarray(["a"] * 4)),
    (r"TypeError: mask: expected an array of dtype bool, got list", batch(4), [True] * 4),
    (r"mask: expected shape \(B,\).*got \(4, 1\); reshape", batch(4), np.ones((4, 1), bool)),
    (r"mask: expected 4 rows as the items have, got 3 rows; give one for each", batch(4), np.ones(3, bool)),
    (r"mask: expected shape \(B,\).*got \(\)", batch(4), np.bool_(True)),
    (r"TypeError: priorities: expected dtype float32, got float64; convert", batch(4), None, np.full(4, 0.1)),
    (r"TypeError: priorities: expected dtype float32, got int32", batch(4), None, np.ones(4, np.int32)),
    (r"TypeError: priorities: expected an array of dtype float32, got float", batch(4), None, 1.0),
    (r"priorities: expected 4 rows as the items have, got 5 rows", batch(4), None, floats(5)),
    (r"priorities: expected shape \(B,\).*got \(4, 2\)", batch(4), None, np.ones((4, 2), np.float32)),
]
UPDATE: Cases = [
    (r"TypeError: indices: expected dtype int32, got bool; convert", np.zeros(2, bool)),
    (r"TypeError: indices: expected dtype int32, got uint32", np.arange(2, dtype=np.uint32)),
    (r"TypeError: indices: expected dtype int32, got float32", floats(2)),
    (r"TypeError: indices: expected an array of dtype int32, got list", [0, 1]),
    (r"TypeError: indices: expected an array of dtype int32, got int", 0),
    (r"indices: expected shape \(B,\), got \(2, 1\); give sample.indices", np.zeros((2, 1), np.int32)),
    (r"indices: expected shape \(B,\), got \(\)", np.int32(0)),
    (r"TypeError: priorities: expected dtype float32, got int16", handles(2), np.ones(2, np.int16)),
    (r"priorities: expected shape \(2,\), one for each index, got \(3,\)", handles(2), floats(3)),
    (r"priorities: expected shape \(2,\).*got \(\)", handles(2), np.float32(1)),
    (
        r"leaf 'obs/depth': no such leaf .*'id', 'obs/camera', 'obs/speed', 'reward'",
        handles(2),
        None,
        {"obs": {"depth": floats(2)}},
    ),
    (r"leaf 'the item': no such leaf", handles(2), None, floats(2)),
    (r"TypeError: leaf 'id': expected dtype int32, got float32", handles(2), None, {"id": floats(2)}),
    (
        r"leaf 'obs/speed': expected shape \(2, 3\), one row for each index, got \(2, 2\)",
        handles(2),
        None,
        {"obs": {"speed": np.zeros((2, 2), np.float32)}},
    ),
    (r"leaf 'reward': expected shape \(2,\).*got \(\)", handles(2), None, {"reward": 1.0}),
]
SAMPLE: Cases = [
    (r"batch_size is missing; give sample\(\.\.\., batch_size=n\) or BufferSpec\(batch_size=n\)",),
    (r"expected batch_size >= 0, got -1", -1),
    (r"TypeError: expected batch_size as a Python int.*got float", 2.0),
    (r"TypeError: expected batch_size as a Python int.*got bool", True),
    (r"TypeError: expected batch_size as a Python int.*got str", "2"),
    (r"TypeError: expected batch_size as a Python int.*got ndarray", np.arange(2)),
    (r"beta: expected a scalar, got shape \(2,\)", 2, np.ones(2, np.float32)),
    (r"TypeError: beta: expected a number or a float32 scalar, got list", 2, [0.5]),
    (r"TypeError: beta: expected a number or a float32 scalar, got str", 2, "0.5"),
    (r"TypeError: beta: expected a number or a float32 scalar, got complex", 2, 1j),
    (r"TypeError: beta: expected a number or a float32 scalar, got bool", 2, True),
    (r"beta: expected a number in \[0, 100\], got -0\.5", 2, -0.5),
    (r"beta: expected a number in \[0, 100\], got nan", 2, float("nan")),
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
        self.place = self.memory()

    def memory(self) -> Any:
        """Where the rows of torch's states are: a refusal moves nothing."""
        return self.state._version.memory.rows.data_ptr() if self.backend.library == "torch" else None

    def check(self, words: str, call: Callable[[Any], Any]) -> None:
        with refused(words):
            call(self.state)
        assert self.memory() == self.place
        assert content(self.backend, self.state) == self.before
        if self.backend.library == "jax":  # the same while tracing, where the state has no values
            import jax

            for traced in (jax.eval_shape, lambda call, state: jax.jit(call)(state)):
                with refused(words, exactly=False):
                    traced(call, self.state)


EAGER = [name for name in VARIANTS if name != "jax-jit"]
"""JAX narrows the NumPy arguments of a user's jit before we see them; `check_traced` has the inputs inside instead."""


@pytest.fixture
def refusals(backend: Backend) -> Refusals:
    return Refusals(backend, PRIORITIZED)


def is_of_indices(words: str) -> bool:
    return told(words)[1].startswith("indices")


REFUSED = {
    "add": ADD,
    "update": UPDATE,
    "sample": SAMPLE,
    "get": [case for case in UPDATE if is_of_indices(case[0])],
    "is_live": [case for case in UPDATE if is_of_indices(case[0])],
}


@pytest.mark.parametrize("function", REFUSED)
@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_what_is_wrong_by_its_shape_or_dtype(refusals: Refusals, function: str) -> None:
    backend, rb = refusals.backend, refusals.backend.rb
    in_place = backend.consumes and function in ("add", "update", "sample")
    call = getattr(rb, function + "_" if in_place else function)
    key = [rb.key(0)] if function == "sample" else []
    for words, *given in REFUSED[function]:
        refusals.check(words, lambda s, g=given: call(s, *key, *g))


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_add_refuses_the_backends_own_arrays_too(refusals: Refusals) -> None:
    own = refusals.backend.tree
    for words, *given in (
        ("TypeError: leaf 'obs/camera': expected dtype uint8, got int8", put("obs/camera", np.zeros((4, 2, 2), "i1"))),
        (r"leaf 'obs/speed': .* got \(4, 2\)", put("obs/speed", np.zeros((4, 2), np.float32))),
        ("TypeError: mask: expected dtype bool, got int8", batch(4), np.ones(4, np.int8)),
    ):
        refusals.check(words, lambda s, g=given: refusals.backend.add(s, *own(g)))


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_uniform_buffers_refuse_priorities_and_beta(backend: Backend) -> None:
    refusals = Refusals(backend, UNIFORM)
    remedy = r"the sampler is Uniform\(max_times_sampled=None\); use BufferSpec\(sampler=frb\.Prioritized\(\)\)"
    refusals.check("add: priorities were given, but " + remedy, lambda s: backend.add(s, batch(4), None, floats(4)))
    refusals.check("update: priorities .*" + remedy, lambda s: backend.update(s, handles(2), floats(2)))
    message = r"sample: beta was given, but the sampler is Uniform\(max_times_sampled=None\), whose weights are all 1"
    refusals.check(message, lambda s: backend.rb.sample(s, backend.rb.key(0), 2, beta=0.5))


def test_keys_are_checked(library: Backend) -> None:
    refusals = Refusals(library, PRIORITIZED)
    remedy = r"made by rb\.key\(seed\) or rb\.split, got "
    several = library.rb.split(library.rb.key(0), 3)
    number = library.array(np.float32(1))
    for key, got in ((0, "int"), (None, "NoneType"), ("key", "str"), (several, r"\(3,\)"), (number, "")):
        refusals.check("TypeError: ^key: expected .*" + remedy + got, lambda s, k=key: library.rb.sample(s, k, 2))
    foreign = other_backend(library).key(0)
    refusals.check("TypeError: ^key: expected .*" + remedy, lambda s: library.rb.sample(s, foreign, 2))


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
    for what, call in {
        "leaf 'obs/speed'": lambda s: rb.add(s, put("obs/speed", foreign(np.zeros((4, 3), np.float32)))),
        "mask": lambda s: rb.add(s, batch(4), foreign(np.ones(4, bool))),
        "priorities": lambda s: rb.add(s, batch(4), None, foreign(floats(4))),
        "indices": lambda s: rb.update(s, foreign(handles(2))),
        "(?:)priorities": lambda s: rb.update(s, handles(2), foreign(floats(2))),
        "leaf 'reward'": lambda s: rb.update(s, handles(2), items={"reward": foreign(floats(2))}),
        "beta": lambda s: rb.sample(s, rb.key(0), 2, beta=foreign(np.float32([0.5]))[0]),
        "(?:)indices": lambda s: rb.get(s, foreign(handles(2))),
        "(?:)(?:)indices": lambda s: rb.is_live(s, foreign(handles(2))),
    }.items():
        refusals.check("TypeError: " + what + remedy, call)


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
    calls |= {
        "add_": lambda s: rb.add_(s, batch(2)),
        "sample_": lambda s: rb.sample_(s, rb.key(0), 2),
        "update_": lambda s: rb.update_(s, handles(2), floats(2)),
    }
    return calls | ({"own_": rb.own_} if hasattr(rb, "own_") else {})


READS: dict[str, Callable[[Any], Any]] = {
    "tree": lambda s: s.tree,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "leaves": lambda s: pytree.tree_leaves(s),
}
"""What else reads a state of torch."""


def test_states_of_the_other_backend_are_refused(library: Backend) -> None:
    other = other_backend(library)
    state = other.add(other.init(PRIORITIZED), batch(4))
    mine, got = ("jax_backend", "torch") if library.library == "jax" else ("torch_backend", "JAX")
    for name, call in calls_on_states(library.rb).items():
        who = rf"^{name.rstrip('_')}_?: expected a state of {mine}, got one of {got}"
        with refused(rf"TypeError: {who}; bring it over by rb\.from_dlpack", exactly=False):
            call(state)
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


UNFIT: Cases = [
    (r"256 does not fit into uint8 \(0 to 255\); change", "u", 256),
    ("-1 does not fit into uint8", "u", -1),
    ("2147483648 does not fit into int32", "i", 2**31),
    (r"1e\+39 does not fit into float32 \(up to 3\.40282e\+38\); change", "f", 1e39),
    ("does not fit into float32", "f", -(10**400)),
    (r"does not fit into float16 \(up to 65504", "h", 65536),
    ("does not fit into bfloat16", "b", 3.4e38),
    ("does not fit into complex64", "c", 1e39j),
    ("TypeError: expected an array of dtype uint8, got 1.0 of type float; give arrays", "u", 1.0),
    ("TypeError: expected an array of dtype uint8, got True of type bool", "u", True),
    ("TypeError: expected an array of dtype bool, got 1 of type int", "t", 1),
    ("TypeError: expected an array of dtype float32, got True of type bool", "f", True),
    ("TypeError: expected an array of dtype float32, got 1j of type complex", "f", 1j),
    ("TypeError: expected an array of dtype float32, got str", "f", "1"),
    ("TypeError: expected dtype float32, got float64", "f", np.float64(1)),
]


def test_python_numbers_that_do_not_fit(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec(SCALARS, 3))
    for words, leaf, value in UNFIT:
        kind, message = told(words)
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


RESERVOIR = frb.Reservoir()
WRONG_MEMBERS: Cases = [
    (
        "BufferSpec.capacity: expected a multiple of lanes=3, got 10; 9 would do",
        lambda: spec_with(capacity=10, lanes=3),
    ),
    ("BufferSpec.lanes: expected 1 to 8, got 0", lambda: spec_with(lanes=0)),
    ("BufferSpec.lanes: expected 1 to 8, got 9", lambda: spec_with(lanes=9)),
    ("TypeError: BufferSpec.lanes: expected an int, got True", lambda: spec_with(lanes=True)),
    ("TypeError: BufferSpec.lanes: expected an int, got 2.0", lambda: spec_with(lanes=2.0)),
    ("Slices: expected length as a positive int, got 0", lambda: frb.Slices(0)),
    ("Slices: expected length as a positive int, got '2'", lambda: frb.Slices("2")),
    ("PrioritizedSlices: expected length as a positive int, got 2.5", lambda: frb.PrioritizedSlices(2.5)),
    ("Slices: expected period as a positive int, got 0", lambda: frb.Slices(2, period=0)),
    (
        r"Slices: span=\(True, True\) gives slices shorter than 2 steps.*give strict_length=False",
        lambda: frb.Slices(2, span=True),
    ),
    (r"expected span as a bool, a number of steps from 0 to length - 1 = 1, .*3", lambda: frb.Slices(2, span=3)),
    (r"expected span as a bool, .*, got \(True,\)", lambda: frb.Slices(2, span=(True,))),
    (r"expected span as a bool, .*, got \(-1, 0\)", lambda: frb.Slices(2, span=(-1, 0))),
    (r"expected span as a bool, .*, got 0.5", lambda: frb.Slices(2, span=0.5)),
    ("Slices: expected strict_length as a bool, got 'no'", lambda: frb.Slices(2, strict_length="no")),
    ("Slices: expected flat as a bool, got 1", lambda: frb.Slices(2, flat=1)),
    ("Slices: expected batch 'slices' or 'steps', got 'windows'", lambda: frb.Slices(2, batch="windows")),
    ("Slices: expected weighting 'trajectory' or 'window', got 'x'", lambda: frb.Slices(2, weighting="x")),
    ("Slices: expected end_keys as a tuple of leaves' names, got 16", lambda: frb.Slices(2, 16)),
    ("TypeError: expected the key of a leaf as a name, .*, got 3", lambda: spec_with(frb.Slices(2, end_keys=(3,)))),
    (
        r"windows that reach out before .*; give span=\(False, True\), or weighting='trajectory'",
        lambda: frb.SlicesWithoutReplacement(2, weighting="window", span=(True, False), strict_length=False),
    ),
    ("expected weighting 'trajectory' or 'window'", lambda: frb.SlicesWithoutReplacement(2, weighting="x")),
    ("expected drop_last as a bool, got 3", lambda: frb.SlicesWithoutReplacement(2, drop_last=3)),
    (
        r"PrioritizedSlices: priorities belong to the first step .*; give span=\(False, True\)",
        lambda: frb.PrioritizedSlices(2, span=True, strict_length=False),
    ),
    ("PrioritizedSlices: expected alpha as a number", lambda: frb.PrioritizedSlices(2, alpha=-1)),
    (
        r"Slices: the item has no leaf 'done' .*; give end_keys=.* or trajectory_key=.*\('x',\)",
        lambda: frb.BufferSpec(LEAF, 8, frb.Slices(2)),
    ),
    (
        "end key 'x': expected one bool an item, got .*float32.*; name another leaf",
        lambda: spec_with(frb.Slices(2, end_keys="x")),
    ),
    (r"has no leaf 'no'; name one of \('done', 'id', ", lambda: spec_with(frb.Slices(2, end_keys=("no",)))),
    ("trajectory key 'x': expected one integer an item", lambda: spec_with(frb.Slices(2, trajectory_key="x"))),
    ("has no leaf 'no/id'; name one of", lambda: spec_with(frb.Slices(2, trajectory_key=("no", "id")))),
    (
        "Slices: a slice of 9 steps never fits into the 8 of a lane; give a larger BufferSpec.capacity",
        lambda: spec_with(frb.Slices(9)),
    ),
    ("a slice of 5 steps never fits into the 4 of a lane", lambda: spec_with(frb.Slices(5), lanes=2)),
    (
        r"Queue: RoundRobin\(\) would overwrite .*; leave the writer out, or use writer=frb.StopWhenFull\(\)",
        lambda: spec_with(frb.Queue(), frb.RoundRobin()),
    ),
    (
        r"Queue: items of several lanes have no single order, got lanes=2; give Queue\(length=",
        lambda: spec_with(frb.Queue(), lanes=2),
    ),
    ("Queue: expected length as a positive int or None, got 0", lambda: frb.Queue(0)),
    ("Queue: expected length as a positive int or None, got True", lambda: frb.Queue(True)),
    ("Queue: a window of 9 steps never fits into the 8 of a lane", lambda: spec_with(frb.Queue(9))),
    (r"Fifo: .*got lanes=2; leave .* or take .*frb.Queue\(length=", lambda: spec_with(frb.Fifo(), lanes=2)),
    ("Lifo: with max_times_sampled the capacity may be", lambda: spec_with(frb.Lifo(2), capacity=2**24 + 1)),
    ("Fifo: expected max_times_sampled as a positive int or None, got 0", lambda: frb.Fifo(0)),
    ("Uniform: expected max_times_sampled as a positive int or None, got True", lambda: frb.Uniform(True)),
    ("Prioritized: expected max_times_sampled as a positive", lambda: frb.Prioritized(max_times_sampled=-1)),
    ("Prioritized: expected replacement as a bool, got 'no'", lambda: frb.Prioritized(replacement="no")),
    ("Recency: expected strength as an int from 1 to 64, got 0", lambda: frb.Recency(0)),
    ("Recency: expected strength as an int from 1 to 64, got 65", lambda: frb.Recency(65)),
    ("Recency: expected strength as an int from 1 to 64, got 2.0", lambda: frb.Recency(2.0)),
    ("WithoutReplacement: expected drop_last as a bool, got 32", lambda: frb.WithoutReplacement(32)),
    ("WithoutReplacement: expected shuffle as a bool, got 1", lambda: frb.WithoutReplacement(shuffle=1)),
    *(
        (
            f"{name}: needs items in the order .*, and Reservoir.. chooses slots; leave",
            partial(spec_with, one, RESERVOIR),
        )
        for name, one in (
            ("Slices", frb.Slices(2)),
            ("Queue", frb.Queue()),
            ("Fifo", frb.Fifo()),
            ("Recency", frb.Recency()),
            ("WithoutReplacement", frb.WithoutReplacement(shuffle=False)),
        )
    ),
    ("MaxValue: the item has no leaf 'no'; name one of", lambda: spec_with(writer=frb.MaxValue("no"))),
    ("TypeError: expected the key of a leaf as a name, .*, got 3", lambda: spec_with(writer=frb.MaxValue(3))),
    (r"expected reduction as one of \('sum', .*got 'mode'", lambda: frb.MaxValue("x", "mode")),
    (
        "MaxValue: leaf 'done': expected real numbers of at most 32 bits .*bool.*; name another leaf",
        lambda: spec_with(writer=frb.MaxValue("done")),
    ),
    (
        "MaxValue: leaf 'n': expected real numbers of at most 32 bits .*int64",
        lambda: frb.BufferSpec({"n": frb.Unbounded((), "int64")}, 4, writer=frb.MaxValue("n")),
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
CALLS: Cases = [
    (r"leaf 'done': expected shape \(3,\) for a step of all lanes or .*\(4,\)", LANED, (3,), "add", steps(4)),
    (r"or \('T', 3\) for several, got \(\); reshape it, or change BufferSpec.l", LANED, (3,), "add", steps()),
    (r"leaf 'done': .* got \(3, 2\)", LANED, (3,), "add", steps(3, 2)),
    (r"leaf 'done': .* got \(1, 1, 3\)", LANED, (3,), "add", steps(1, 1, 3)),
    (
        r"leaf 'id': expected 3 rows as leaf 'done' has, got leading axes \(2, 3\)",
        LANED,
        (3,),
        "add",
        {**steps(2, 3), "done": np.zeros(3, bool)},
    ),
    (
        r"mask: expected leading axes \(2, 3\) as the items have, got 6 rows; give one for each item",
        LANED,
        (3,),
        "add",
        steps(2, 3),
        np.ones(6, bool),
    ),
    ("mask: expected 3 rows as the items have, got lea", LANED, (3,), "add", steps(3), np.ones((1, 3), bool)),
    (
        r"TypeError: ^key: expected .* made by rb.key\(seed\) or rb.split, got int",
        LANED,
        (3,),
        "add",
        steps(3),
        None,
        None,
        3,
    ),
    (
        r"priorities: expected leading axes \(2, 3\) as the items have, got 6 rows",
        spec_with(frb.Prioritized(), capacity=12, lanes=3),
        (3,),
        "add",
        steps(2, 3),
        None,
        floats(6),
    ),
    (r"this buffer is Immutable: .*; use writer=", spec_with(writer=frb.Immutable()), (3,), "add", steps(1)),
    (
        r"this buffer is Immutable: .*never change; use writer=frb.RoundRobin\(\)",
        spec_with(writer=frb.Immutable()),
        (3,),
        "update",
        ONE,
        None,
        {"x": floats(1)},
    ),
    (
        r"add: Reservoir\(\) draws which items to keep; give add\(..., key=key\), a new key at every call",
        spec_with(writer=frb.Reservoir()),
        (3,),
        "add",
        steps(1),
    ),
    ("TypeError: ^key: expected .* got int", spec_with(writer=frb.Reservoir()), (3,), "add", steps(1), None, None, 3),
    (
        "sample: expected batch_size as a multiple of lanes=3, .* got 2",
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (2, 3),
        "sample",
        2,
    ),
    (
        "sample: expected batch_size as a multiple of the slices' length 2, .* got 3",
        spec_with(frb.Slices(2, batch="steps")),
        (4,),
        "sample",
        3,
    ),
    (
        r"update: priorities were given, but the sampler is Slices\(length=2.*use .*frb.PrioritizedSlices",
        spec_with(frb.Slices(2)),
        (4,),
        "update",
        ONE,
        floats(1),
    ),
    (r"of slices .reshape\(-1\)", spec_with(frb.Slices(2)), (4,), "update", np.zeros((2, 2), np.int32)),
    ("add: priorities were given, but .*Fifo", spec_with(frb.Fifo()), (4,), "add", steps(1), None, floats(1)),
    ("sample: beta was given, but the sampler is Slices", spec_with(frb.Slices(2)), (4,), "sample", 2, 0.5),
    (r"epochs: the sampler Uniform.* with replacement; use .*WithoutReplacem", spec_with(), (), "epochs", 2),
    ("epochs: expected n >= 0, got -1", spec_with(frb.WithoutReplacement()), (3,), "epochs", 2, -1),
    ("epochs: expected batch_size >= 1, got 0", spec_with(frb.WithoutReplacement()), (3,), "epochs", 0),
    ("TypeError: epochs: expected n as a Python int", spec_with(frb.WithoutReplacement()), (3,), "epochs", 2, 1.5),
    ("sample: batch_size is missing", spec_with(frb.WithoutReplacement()), (3,), "epochs"),
]
"""What follows from shapes and settings, so that the buffer need not be filled."""
VALUES: Cases = [
    (
        "add: the buffer is full: 2 items do not fit into the room for 1; sample .* first, or add fewer",
        spec_with(frb.Queue(), capacity=4),
        (3,),
        "add",
        steps(2),
    ),
    (
        "2 items do not fit into the room for 1 in lane 1; .*nothing was written",
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (3, 3),
        "add",
        steps(2, 3),
        np.array([[True, True, False], [False, True, True]]),
    ),
    ("1 items do not fit into the room for 0", spec_with(writer=frb.StopWhenFull()), (8,), "add", steps(1)),
    ("sample: the buffer is empty; add items first", spec_with(frb.Queue()), (), "sample", 2),
    (
        "none of the 3 stored items completes a window of 2 steps; add more",
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (3,),
        "sample",
        3,
    ),
    (
        "none of the 3 stored items make a full batch, and drop_last drops smaller ones; add more, or draw fewer",
        spec_with(frb.WithoutReplacement(drop_last=True)),
        (3,),
        "sample",
        4,
    ),
    (
        "none of the 3 stored items make a full batch",
        spec_with(frb.WithoutReplacement(drop_last=True, shuffle=False)),
        (3,),
        "sample",
        4,
    ),
    (
        "none of the 3 stored items begins a slice of 2 steps; .*drop_last drops batches that are not full",
        spec_with(frb.SlicesWithoutReplacement(2, drop_last=True)),
        (3,),
        "sample",
        4,
    ),
    ("begins a slice of 4 steps; .* give strict_length=False", spec_with(frb.Slices(4)), (3,), "sample", 1),
    ("a slice of 4 steps with a positive priority", spec_with(frb.PrioritizedSlices(4)), (3,), "sample", 1),
    ("sample: the buffer is empty", spec_with(frb.WithoutReplacement()), (), "epochs", 2),
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
    for fill, words, spec, lead, name, *given in cases:
        fill = fill or isinstance(spec.writer, frb.Immutable)
        state = filled_with(rb, spec, *lead) if fill and lead else rb.init(spec)
        before = arrays_of(backend, state)
        function = getattr(rb, name + "_" if backend.consumes and name != "epochs" else name)
        key = [rb.key(0)] if name in ("sample", "epochs") else []
        for _ in range(2):
            with refused(words):
                list(function(state, *key, *given))
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
    cases: Cases = [
        ("random_crop: expected length from 1 to the 5 steps of a trajectory, got 0", whole, 0),
        ("from 1 to the 5 steps of a trajectory, got 6", whole, 6),
        ("TypeError: random_crop: expected length as a Python int", whole, 2.0),
        (r"leaf 'x': expected shape \('B', 'T', '...'\), got \(2,\); give", {"x": floats(2)}, 1),
        (r"leaf 'y': expected shape \(2, 5, '...'\), got", {**whole, "y": np.zeros((2, 4), np.int32)}, 1),
        ("TypeError: leaf 'x/0': expected an array of numbers, got int", {"x": [1, 2]}, 1),
        ("random_crop: expected at least one leaf", {"x": None}, 1),
        ("TypeError: leaf 'x': expected an array of numbers, got <U1", {"x": np.asarray([["a"]])}, 1),
        ("random_crop: expected at least one leaf", {}, 1),
        ("TypeError: lengths: expected dtype int32, got int64; convert", whole, 2, np.array([5, 2])),
        ("TypeError: lengths: expected an array of dtype int32, got list", whole, 2, [5, 2]),
        (r"lengths: expected shape \(2,\), one for each trajectory, got \(1,\)", whole, 2, np.array([5], np.int32)),
    ]
    for words, items, *more in cases:
        with refused(words):
            rb.random_crop(items, rb.key(0), *more)
    with pytest.raises(TypeError, match=r"^key: expected .* made by rb\.key\(seed\)"):
        rb.random_crop(whole, 0, 2)
    if library.library == "jax":
        with pytest.raises(TypeError, match=r"leaf 'x': dtype float64 needs JAX's 64-bit mode.*use float32"):
            rb.random_crop({"x": np.zeros((2, 5))}, rb.key(0), 2)


# --- specs ----------------------------------------------------------------------------------------------------------

WRONG_SPECS: Cases = [
    ("BufferSpec.capacity: expected 1 to 2147483647, got 0", lambda: frb.BufferSpec(LEAF, 0)),
    ("BufferSpec.capacity: expected 1 to 2147483647, got -1", lambda: frb.BufferSpec(LEAF, -1)),
    ("BufferSpec.capacity: expected 1 to 2147483647, got 2147483648", lambda: frb.BufferSpec(LEAF, 2**31)),
    ("TypeError: BufferSpec.capacity: expected an int, got True", lambda: frb.BufferSpec(LEAF, True)),
    ("TypeError: BufferSpec.capacity: expected an int, got 2.5", lambda: frb.BufferSpec(LEAF, 2.5)),
    ("TypeError: BufferSpec.capacity: expected an int, got '9'", lambda: frb.BufferSpec(LEAF, "9")),
    ("TypeError: BufferSpec.capacity: expected an int", lambda: frb.BufferSpec(LEAF, np.float32(4))),
    (
        r"sum tree of 2147483647 items .*use frb\.Uniform\(\) or several",
        lambda: frb.BufferSpec(LEAF, 2**31 - 1, frb.Prioritized()),
    ),
    ("BufferSpec.batch_size: expected 1 to", lambda: frb.BufferSpec(LEAF, 4, batch_size=0)),
    ("TypeError: BufferSpec.batch_size: expected an int, got True", lambda: frb.BufferSpec(LEAF, 4, batch_size=True)),
    (
        r"TypeError: BufferSpec.sampler: expected an instance.*; write Prioritized\(\)",
        lambda: frb.BufferSpec(LEAF, 4, frb.Prioritized),
    ),
    ("TypeError: BufferSpec.sampler: expected an instance .*got 'uniform'", lambda: frb.BufferSpec(LEAF, 4, "uniform")),
    (r"TypeError: BufferSpec.writer: .*; write RoundRobin\(\)", lambda: frb.BufferSpec(LEAF, 4, writer=frb.RoundRobin)),
    ("TypeError: BufferSpec.writer: expected an instance .*got 'ring'", lambda: frb.BufferSpec(LEAF, 4, writer="ring")),
    (
        r"TypeError: leaf 'a/b': expected a spec such as frb\.Unbounded\(shape\), got ndarray; frb\.spec_of",
        lambda: frb.BufferSpec({"a": {"b": np.zeros(3)}}, 4),
    ),
    ("TypeError: leaf 'a/1': expected a spec .* got int", lambda: frb.BufferSpec({"a": (frb.Unbounded(()), 3)}, 4)),
    ("TypeError: leaf 'a': expected a spec .* got the class", lambda: frb.BufferSpec({"a": frb.Unbounded}, 4)),
    ("TypeError: expected a spec .* got NoneType", lambda: frb.BufferSpec(None, 4)),
    ("TypeError: names that are strings, got 0", lambda: frb.BufferSpec({"a": {0: frb.Unbounded(())}}, 4)),
    ("TypeError: names that are strings, got 1", lambda: frb.Composite({1: frb.Unbounded(())})),
    (r"TypeError: expected a shape as a tuple, got 3; write \(3,\)", lambda: frb.Unbounded(3)),
    (r"TypeError: write \(3,\)", lambda: frb.Unbounded(np.int64(3))),
    (r"sizes >= 0, got \(-1,\)", lambda: frb.Unbounded((-1,))),
    (r"TypeError: tuple of ints, got \(2\.5,\)", lambda: frb.Unbounded((2.5,))),
    ("TypeError: tuple of ints, got '12'", lambda: frb.Unbounded("12")),
    ("TypeError: tuple of ints, got None", lambda: frb.Unbounded(None)),
    ("TypeError: dtype 'float8' cannot be stored; expected one of bool, int8", lambda: frb.Unbounded((), "float8")),
    ("TypeError: complex128.* cannot be stored", lambda: frb.Unbounded((), np.complex128)),
    ("TypeError: object.* cannot be stored", lambda: frb.Unbounded((), object)),
    ("TypeError: dtype None cannot be stored", lambda: frb.Unbounded((), None)),
    ("TypeError: cannot be stored", lambda: frb.Unbounded((), ["float32"])),
    ("expected low <= high everywhere, got low=2.0, high=1.0", lambda: frb.Bounded(2.0, 1.0)),
    ("expected low <= high everywhere", lambda: frb.Bounded([0.0, 3.0], 1.0, (2,))),
    ("expected low <= high everywhere", lambda: frb.Bounded(float("nan"), 1.0)),
    (r"low of shape \(3,\) does not broadcast to \(2,\)", lambda: frb.Bounded([0.0, 0.0, 0.0], 1.0, (2,))),
    (r"high of shape \(2,\) does not broadcast to \(\)", lambda: frb.Bounded(0.0, [1.0, 1.0])),
    ("TypeError: expected low as a number or an array of them, got 'a'", lambda: frb.Bounded("a", "b")),
    ("TypeError: expected high as a number or an array of them, got None", lambda: frb.Bounded(0, None)),
    (r"expected alpha as a number in \[0, 100\], got -0.1", lambda: frb.Prioritized(alpha=-0.1)),
    (r"expected beta as a number in \[0, 100\], got -1", lambda: frb.Prioritized(beta=-1)),
    ("expected alpha as a number", lambda: frb.Prioritized(alpha=float("inf"))),
    ("expected beta as a number", lambda: frb.Prioritized(beta=float("nan"))),
    ("expected alpha as a number", lambda: frb.Prioritized(alpha="0.6")),
    ("expected alpha as a number", lambda: frb.Prioritized(alpha=True)),
    ("expected new_priority 'live' or 'ever', got 'max'", lambda: frb.Prioritized(new_priority="max")),
    *WRONG_MEMBERS,
]


@pytest.mark.parametrize(("words", "make"), WRONG_SPECS, ids=[words[:50] for words, _ in WRONG_SPECS])
def test_wrong_specs(words: str, make: Callable[[], Any]) -> None:
    with refused(words):
        make()


# --- one backend only -----------------------------------------------------------------------------------------------


def test_a_traced_batch_size_is_refused() -> None:
    import jax

    import jax_backend as rb

    state = rb.add(rb.init(PRIORITIZED), batch(4))
    for words, function in (
        ("TypeError: sample: expected batch_size as a Python int.*static", lambda n: rb.sample(state, rb.key(0), n)[1]),
        ("TypeError: can_sample: expected n as a Python int.*static", lambda n: rb.can_sample(state, n)),
    ):
        with refused(words):
            jax.jit(function)(2)


def test_64_bits_into_jax_are_refused_not_narrowed() -> None:
    import jax_backend as rb

    state = rb.add(rb.init(PRIORITIZED), batch(4))
    for path, wide in (("id", np.arange(4)), ("reward", np.zeros(4)), ("id", np.arange(4, dtype=np.uint64))):
        with pytest.raises(TypeError, match=f"leaf '{path}': .* got {wide.dtype}"):
            rb.add(state, put(path, wide))


@pytest.mark.parametrize("by", ["add_", "sample_", "update_", "own_"])
def test_consumed_states(library: Backend, by: str) -> None:
    calls = calls_on_states(library.rb)
    if by not in calls:
        return
    for call in (*calls.values(), *(READS.values() if library.library == "torch" else ())):
        state = library.rb.add(library.rb.init(PRIORITIZED), batch(4))
        calls[by](state)
        with pytest.raises(RuntimeError, match=r"was consumed by an in-place function.*go on with what that returned"):
            call(state)


@pytest.mark.parametrize("consumes", [False, True])
def test_another_device_is_refused_and_nothing_is_consumed(consumes: bool) -> None:
    import torch

    import torch_backend as rb

    far: dict[str, Any] = {"device": "meta"}
    state = rb.add(rb.init(PRIORITIZED), batch(4))
    place = state._version.memory.rows.data_ptr()
    add, update = (rb.add_, rb.update_) if consumes else (rb.add, rb.update)
    speed = torch.zeros(4, 3)
    message = r": expected a tensor on cpu, where the state is, got one on meta; move it by \.to\('cpu'\)"
    for words, call in {
        "leaf 'obs/speed'" + message: lambda: add(state, put("obs/speed", speed.to("meta"))),
        "leaf '.*'" + message: lambda: add(state, pytree.tree_map(lambda x: torch.from_numpy(x).to("meta"), batch(4))),
        "mask" + message: lambda: add(state, batch(4), torch.ones(4, dtype=torch.bool, **far)),
        "indices" + message: lambda: update(state, torch.zeros(2, dtype=torch.int32, **far)),
        "priorities" + message: lambda: update(state, handles(2), torch.ones(2, **far)),
        "leaf 'obs/speed': .*sparse": lambda: add(state, put("obs/speed", speed.to_sparse())),
    }.items():
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    assert state._version.memory.rows.data_ptr() == place
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
