"""Every error that shapes, dtypes and static settings can tell: its kind, its words, and that it damages nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils import _pytree as pytree

import functional_rb as frb
from tests.contract.refusals import ITEM, PRIORITIZED, UNIFORM, Cases, batch, floats, refused, told
from tests.support import gpu
from tests.support.backends import VARIANTS, Backend


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
    (r"TypeError: priorities: expected dtype float32, got bool", batch(4), None, np.ones(4, bool)),
    (r"TypeError: priorities: expected an array of dtype float32, got float", batch(4), None, 1.0),
    (r"priorities: expected 4 rows as the items have, got 5 rows", batch(4), None, floats(5)),
    (r"priorities: expected shape \(B,\).*got \(4, 2\)", batch(4), None, np.ones((4, 2), np.float32)),
]


UPDATE: Cases = [
    (r"TypeError: indices: expected dtype int32, got bool; convert", np.zeros(2, bool)),
    (r"TypeError: indices: expected dtype int32, got uint32", np.arange(2, dtype=np.uint32)),
    (r"TypeError: indices: expected dtype int32, got float32", floats(2)),
    (r"TypeError: indices: expected handles, whole numbers as .*, got \[0.0, 1\]", [0.0, 1]),
    (r"TypeError: indices: expected an array of dtype int32, got int", 0),
    (r"indices: expected shape \(B,\), got \(2, 1\); give sample.indices", np.zeros((2, 1), np.int32)),
    (r"indices: expected shape \(B,\), got \(\)", np.int32(0)),
    (r"TypeError: priorities: expected dtype float32, got int32", handles(2), np.full(2, 2**24 + 1, np.int32)),
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


# JAX narrows the NumPy arguments of a user's jit before we see them; `check_traced` has the inputs inside instead.
EAGER = [name for name in VARIANTS if name != "jax-jit"]


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


@pytest.mark.few_on_jax(3)
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
    for key, got in ((None, "NoneType"), ("key", "str"), (several, r"\(3,\)"), (number, "")):
        refusals.check("TypeError: ^key: expected .*" + remedy + got, lambda s, k=key: library.rb.sample(s, k, 2))
    said = r"sample: expected a key, got the number 0; write sample\(state, rb\.key\(seed\), 2\)"
    refusals.check("TypeError: ^" + said, lambda s: library.rb.sample(s, 0, 2))
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
    for name in ("items", "size", "can_sample", "counts"):
        calls[name] = getattr(rb, name)
    calls |= {
        "add_": lambda s: rb.add_(s, batch(2)),
        "sample_": lambda s: rb.sample_(s, rb.key(0), 2),
        "update_": lambda s: rb.update_(s, handles(2), floats(2)),
    }
    return calls | ({"own_": rb.own_} if hasattr(rb, "own_") else {})


# What else reads a state of torch.
READS: dict[str, Callable[[Any], Any]] = {
    "tree": lambda s: s.tree,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "leaves": lambda s: pytree.tree_leaves(s),
}


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
    with gpu.refused(backend.library, "sample: none of the 3 stored items has a positive priority; update some"):
        backend.sample(copy.copy(state), backend.rb.key(0), 2)
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


def test_an_empty_branch_that_the_item_lacks(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec({"x": {"y": frb.Unbounded(())}}, 4))
    state = library.rb.add(state, {"x": {"y": np.zeros(2, np.float32)}})
    with pytest.raises(ValueError, match=r"leaf 'bogus': no such leaf in BufferSpec.item; expected some of \['x/y'\]"):
        library.rb.update(state, np.array([0], np.int32), items={"bogus": {}})
    unchanged = library.rb.update(state, np.array([0], np.int32), items={"x": {}})
    assert int(library.rb.counts(unchanged).stale) == 0


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
