"""`state_dict` and `load_state_dict`: in torch's checkpoints, in Orbax's, and from one to the other."""

from __future__ import annotations

import dataclasses
import io
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import jax_backend
from functional_rb import inspection
from tests.support import lives
from tests.support.backends import Backend, make
from tests.support.members import MEMBERS

SPECS = {
    "plain": frb.BufferSpec({"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32")}, 8),
    "wide": frb.BufferSpec(
        {"image": frb.Unbounded((1100,), "uint8"), "half": frb.Unbounded((600,), "bfloat16"), "x": frb.Unbounded(())},
        capacity=6,
        sampler=frb.Prioritized(),
    ),
    "all wide": frb.BufferSpec({"image": frb.Unbounded((1100,), "uint8")}, 6),
    "compact": frb.BufferSpec(
        {"obs": frb.Unbounded((1100,), "uint8"), "next_obs": frb.Unbounded((1100,), "uint8"), "done": frb.Binary()},
        capacity=6,
        sampler=frb.WithoutReplacement(),
        compact=frb.Compact(),
    ),
    "lanes": frb.BufferSpec(
        {"x": frb.Unbounded(()), "done": frb.Binary()}, capacity=8, sampler=frb.Slices(2, strict_length=False), lanes=2
    ),
}


def some(spec: frb.BufferSpec, seed: int = 0) -> Any:
    """Four items, in two lanes if there are any."""
    with make("torch") as torch:
        drawn = torch.rb.rand(spec.item, torch.rb.key(seed), (2, 2) if spec.lanes else 4)
        return {name: torch.numpy(leaf) for name, leaf in drawn.items()}


def filled(library: Backend, spec: frb.BufferSpec) -> Any:
    return library.rb.add(library.rb.init(spec), library.tree(some(spec)))


def through_torch(given: dict[str, Any]) -> dict[str, Any]:
    """Through a file of a model's checkpoint, without pickled classes."""
    import torch

    model = torch.nn.Linear(2, 1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "buffer": given}, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)["buffer"]
    return loaded


def follow(library: Backend, state: Any, first: int, last: int) -> Any:
    """Some steps of a buffer's life: the state, and the bits of all that was seen."""
    seen = []
    for k, given in enumerate(lives.inputs(state.spec)):
        if first <= k < last:
            state, now = lives.step(library, state, given, lives.keys(library, k), look=False)
            seen.append(lives.bits(library, (now.sample, now.numbers)))
    return state, seen


@pytest.mark.parametrize("name", MEMBERS)
def test_going_on_is_as_never_having_stopped(name: str) -> None:
    with make("torch") as library:
        member = MEMBERS[name]
        last = 2 if isinstance(member.spec.writer, frb.StopWhenFull) else 4
        state, _ = follow(library, lives.begin(library, member.spec), 0, last // 2)
        loaded = library.rb.load_state_dict(member.spec, through_torch(library.rb.state_dict(state)))
        assert loaded.spec == state.spec
        went_on, wanted = follow(library, state, last // 2, last)
        again, found = follow(library, loaded, last // 2, last)
        assert found == wanted
        assert lives.state_bits(library, again) == lives.state_bits(library, went_on)


def named(state: Any) -> dict[str, Any]:
    """The arrays of a state by the names of its dict, in their order, those without elements too."""
    wide = {f"wide_{k}": x for k, x in enumerate(state.wide)}
    tree = {} if state.tree is None else {"tree": state.tree}
    kept = {f"kept_{name}": x for name, x in state.auxiliary.items()}
    return {"rows": state.rows, **wide, **tree, **kept, "counters": state.counters}


@pytest.mark.parametrize("name", SPECS)
def test_names_are_those_of_both_backends(name: str) -> None:
    """From torch to JAX and back, and every array as it was."""
    spec = SPECS[name]
    with make("torch") as torch, make("jax") as jax:
        state = filled(torch, spec)
        state, _ = torch.rb.sample(state, torch.rb.key(0), 2)
        first = torch.rb.state_dict(state)
        on_jax = jax.rb.load_state_dict(spec, first)
        second = jax.rb.state_dict(on_jax)
        back = torch.rb.load_state_dict(spec, second)
        planned = named(on_jax)
        assert list(first) == list(second) == [*(x for x in planned if planned[x].size), "spec"]
        assert lives.state_bits(torch, back) == lives.state_bits(torch, state) == lives.state_bits(jax, on_jax)
        for given in (first, second):
            for array, expected in ((given[x], planned[x]) for x in given if x != "spec"):
                assert tuple(array.shape) == expected.shape
                assert str(array.dtype).removeprefix("torch.") == str(expected.dtype).replace("bfloat16", "uint16")
        assert frb.convert.from_json(first["spec"]) == frb.convert.from_json(bytes(np.asarray(second["spec"]))) == spec
    assert (name == "all wide") == ("rows" not in first)


def test_the_dict_and_the_states_are_apart(library: Backend) -> None:
    import torch

    state = filled(library, SPECS["wide"])
    before = lives.state_bits(library, state)
    given = library.rb.state_dict(state)
    loaded = library.rb.load_state_dict(state, given)
    arrays = {name: np.array(library.numpy(array)) for name, array in given.items() if name != "spec"}
    later = [library.rb.add(one, library.tree(some(one.spec, 1))) for one in (state, loaded)]
    assert lives.state_bits(library, later[0]) == lives.state_bits(library, later[1]) != before
    assert all(np.array_equal(arrays[name], library.numpy(given[name])) for name in arrays)
    for array in given.values():
        if isinstance(array, torch.Tensor):
            array.zero_()
    assert lives.state_bits(library, state) == lives.state_bits(library, loaded) == before


def test_a_buffer_on_the_host_does_not_write_to_the_dict_that_it_was_loaded_from(library: Backend) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded((3,))}, 4, sampler=frb.Prioritized(), storage=frb.Host())
    state = library.rb.add(library.rb.init(spec), {"x": np.ones((3, 3), np.float32)})
    given = library.rb.state_dict(state)
    saved = {name: x if name == "spec" else np.array(library.numpy(x)) for name, x in given.items()}
    before = {name: np.copy(x) for name, x in saved.items() if name != "spec"}
    library.rb.add_(library.rb.load_state_dict(spec, saved), {"x": np.zeros((4, 3), np.float32)})
    for name, x in before.items():
        np.testing.assert_array_equal(saved[name], x, err_msg=name)


def test_memory_is_neither_pinned_nor_shared() -> None:
    """On torch a save leaves the state's memory to it, as the next add writes in place."""
    with make("torch") as library:
        state = filled(library, SPECS["wide"])
        memory = state._version.own()
        library.rb.state_dict(state)
        library.rb.load_state_dict(state, library.rb.state_dict(state))
        assert library.rb.add(state, library.tree(some(SPECS["wide"])))._version.own() is memory


def test_a_donated_state_leaves_the_dict_that_it_was_loaded_from() -> None:
    import jax

    with make("jax") as library:
        given = library.rb.state_dict(filled(library, SPECS["plain"]))
        loaded = library.rb.load_state_dict(SPECS["plain"], given)
        jax.jit(library.rb.add, donate_argnums=0)(loaded, library.tree(some(SPECS["plain"])))
        assert not any(array.is_deleted() for array in given.values())
        with pytest.raises(RuntimeError, match=r"this state was consumed .* donated to"):
            library.rb.state_dict(loaded)


def test_sharded_states_are_loaded_as_the_target_is() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    with make("jax") as library:
        state = filled(library, SPECS["plain"])
        where = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec())
        sharded = jax.device_put(state, where)
        loaded = library.rb.load_state_dict(sharded, library.rb.state_dict(state))
        assert loaded.rows.sharding == loaded.counters.sharding == where
        (device,) = jax.devices()[:1]
        assert library.rb.load_state_dict(state, library.rb.state_dict(state), device).rows.committed
        assert lives.state_bits(library, loaded) == lives.state_bits(library, state)
        with pytest.raises(TypeError, match="'rows' is traced; call it outside"):
            jax.jit(library.rb.state_dict)(state)


def test_parts_elsewhere_are_refused() -> None:
    state = jax_backend.init(SPECS["plain"])
    part: Any = SimpleNamespace(shape=(8, 4), is_deleted=lambda: False, is_fully_addressable=False)
    with pytest.raises(ValueError, match="other processes hold parts of 'rows'; give the state itself to Orbax"):
        jax_backend.state_dict(frb.State(part, (), None, state.counters, {}, state.spec))


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_another_storage_is_taken(library: Backend) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 4, storage=frb.Device("cpu"))
    state = library.rb.add(library.rb.init(spec), library.tree({"x": np.ones(3, np.float32)}))
    plain = frb.BufferSpec({"x": frb.Unbounded(())}, 4)
    loaded = library.rb.load_state_dict(plain, library.rb.state_dict(state))
    assert loaded.spec == plain
    assert lives.state_bits(library, loaded) == lives.state_bits(library, state)


# --- what does not fit ----------------------------------------------------------------------------------------------


def changed(**values: Any) -> Any:
    return lambda given: given | values


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda given: 3, TypeError, "expected a dict from rb.state_dict, got int"),
        (lambda given: {k: v for k, v in given.items() if k != "tree"}, ValueError, r"missing \['tree'\]"),
        (lambda given: {k: v for k, v in given.items() if k != "spec"}, ValueError, "the entry 'spec' is missing"),
        (changed(more=np.zeros(3)), ValueError, r"not known \['more'\]"),
        (changed(rows=np.zeros((5, 1), np.int32)), ValueError, r"'rows': expected the shape \[6, 1\], got \[5, 1\]"),
        (changed(rows=np.zeros((6, 1), np.int64)), TypeError, "'rows': expected dtype int32, got int64"),
        (changed(wide_0=[1, 2]), TypeError, r"'wide_0': expected an array uint16 \[6, 600\], got list"),
        (changed(spec="{"), ValueError, "'spec': expected the JSON of a BufferSpec"),
        (changed(spec=json.dumps({"spec": 3})), ValueError, "'spec': expected the JSON of a BufferSpec"),
        (changed(spec=np.zeros(3, np.uint8)), ValueError, "'spec': expected the JSON of a BufferSpec"),
    ],
)
def test_what_does_not_fit_is_named(library: Backend, change: Any, error: type[Exception], message: str) -> None:
    state = filled(library, SPECS["wide"])
    before = lives.state_bits(library, state)
    given = change(library.rb.state_dict(state))
    with pytest.raises(error, match=message):
        library.rb.load_state_dict(state, given)
    assert lives.state_bits(library, state) == before


@pytest.mark.parametrize(
    ("member", "other"),
    [
        ("sampler", frb.BufferSpec(SPECS["plain"].item, 8, frb.Recency(2))),
        ("capacity", frb.BufferSpec(SPECS["plain"].item, 9)),
        ("batch_size", frb.BufferSpec(SPECS["plain"].item, 8, batch_size=3)),
        ("item", frb.BufferSpec({"x": frb.Bounded(0, 1, (3,)), "n": frb.Unbounded((), "int32")}, 8)),
        ("item", frb.BufferSpec({"x": frb.Unbounded((3,)), "m": frb.Unbounded((), "int32")}, 8)),
    ],
)
def test_another_spec_is_refused(library: Backend, member: str, other: frb.BufferSpec) -> None:
    given = library.rb.state_dict(library.rb.init(SPECS["plain"]))
    with pytest.raises(ValueError, match=f"made of another spec|was of another spec: expected {member} "):
        library.rb.load_state_dict(other, given)


STEPS = {"x": frb.Unbounded(()), "done": frb.Binary()}
TURNS = frb.BufferSpec(STEPS, 40, frb.Prioritized())
LANES = frb.BufferSpec(STEPS, 8, frb.Slices(2, strict_length=False), lanes=2)
WITHOUT_REPLACEMENT = frb.BufferSpec(STEPS, 8, frb.WithoutReplacement())
WINDOWS = frb.BufferSpec(STEPS, 8, frb.SlicesWithoutReplacement(2, strict_length=False, weighting="window"))
IN_ORDER = frb.BufferSpec(STEPS, 8, frb.WithoutReplacement(shuffle=False))
BEST = frb.BufferSpec(STEPS, 8, writer=frb.MaxValue("x"))
HIGH = frb.BufferSpec(STEPS, 40, writer=frb.MaxValue("x"))
RESERVOIR = frb.BufferSpec(STEPS, 8, writer=frb.Reservoir())
SLICES = frb.BufferSpec(STEPS, 8, frb.PrioritizedSlices(2))
WAITING = frb.BufferSpec(
    STEPS | {"reward": frb.Unbounded(()), "terminated": frb.Binary(), "next": {"x": frb.Unbounded(())}},
    8,
    transforms=frb.n_step(3, 0.9, at="add"),
)
# Of the numbers that every state counts, which are part of the format; those of lanes, samplers and writers follow.
CURSOR, SIZE, STALE, PEAK, BASE = 0, 1, 3, 4, 6
FORGED = {
    "a size beyond the capacity": (TURNS, "counters", SIZE, 41, "its cursors are out of range"),
    "a size below nothing": (LANES, "counters", BASE + 2, -1, "its cursors are out of range"),
    "a negative cursor": (TURNS, "counters", CURSOR, -1, "its cursors are out of range"),
    "a cursor that no item has": (TURNS, "counters", CURSOR, 2**31 - 1, "its cursors are out of range"),
    "a lane that is too long": (LANES, "counters", BASE + 3, 5, "its cursors are out of range"),
    "another sum of sizes": (LANES, "counters", SIZE, 3, "its size is 3, and its lanes have 4 items"),
    "counts below nothing": (TURNS, "counters", STALE, -1, "counted less than nothing"),
    "a peak that is none": (TURNS, "counters", PEAK, 0x7FC00000, "the largest priority ever is no number"),
    "an infinite leaf": (TURNS, "tree", 2, np.inf, "the weight of slot 2 is inf"),
    "a leaf that is no number": (TURNS, "tree", 2, np.nan, "the weight of slot 2 is nan"),
    "a negative leaf": (TURNS, "tree", 2, -1, "the weight of slot 2 is -1"),
    "leaves that cannot be added up": (TURNS, "tree", 2, 3e38, "too large to be added up"),
    "a weight where nothing is stored": (TURNS, "tree", 20, 1, "slot 20 has a weight, and no item"),
    "a weight of no slot": (TURNS, "tree", 45, 1, "slot 45 of 40 has a weight"),
    "windows where nothing is stored": (LANES, "tree", 3, 1, "slot 3 has a weight, and no item"),
    "an age below nothing": (LANES, "kept_step_in_episode", 0, -1, "step_in_episode: expected 0 to"),
    "a slot beyond all in the sparse set": (
        WITHOUT_REPLACEMENT,
        "kept_order",
        0,
        8,
        "order: expected 0 to 7, found 8",
    ),
    "a place beyond all in the sparse set": (
        WITHOUT_REPLACEMENT,
        "kept_place",
        0,
        -3,
        "place: expected 0 to 7, found -3",
    ),
    "a slot twice in the sparse set": (
        WITHOUT_REPLACEMENT,
        "kept_order",
        1,
        0,
        "order has slot 0 at 1, and place 0",
    ),
    "a place of another slot": (
        WITHOUT_REPLACEMENT,
        "kept_place",
        2,
        3,
        "order has slot 2 at 2, and place 3",
    ),
    "a slot of the sparse set where nothing is stored": (
        WITHOUT_REPLACEMENT,
        "kept_order",
        0,
        6,
        "order has slot 6, and no item is stored there",
    ),
    "windows to be drawn where nothing is stored": (
        WINDOWS,
        "kept_order",
        0,
        6,
        "order has slot 6, and no item is stored there",
    ),
    "more windows than there are": (WINDOWS, "counters", BASE + 3, 9, "count: expected 0 to 8, found 9"),
    "more left than there are": (WITHOUT_REPLACEMENT, "counters", BASE + 1, 5, "remaining: expected 0 to 4, found 5"),
    "an epoch that goes on beyond": (IN_ORDER, "counters", BASE + 1, -1, "the epoch: expected 0 to"),
    "a handle of another slot": (BEST, "kept_handle", 1, 2, "the handle of slot 1 is 2"),
    "a handle too few": (BEST, "kept_handle", 1, -1, "3 slots have items, and its size is 4"),
    "a minimum of no leaf": (HIGH, "kept_rank", 16 * 3, -5, "its minima are not those of its leaves, at 48 for one"),
    "a rank where nothing is stored": (BEST, "kept_rank", 6, 5, "slot 6 has a rank and no item"),
    "no rank where an item is": (BEST, "kept_rank", 1, -(2**31), "slot 1 has a rank and no item, or an item and no"),
    "fewer seen than are stored": (RESERVOIR, "counters", BASE, 3, "seen: expected 4 to"),
    "a step's priority that is none": (SLICES, "kept_value", 2, np.nan, "value: slot 2 has nan"),
    "more waiting than can": (WAITING, "counters", BASE, 3, "n_step_pending: expected 0 to 2, found 3"),
    "frames beyond all": (SPECS["compact"], "kept_frame_at", 0, -2, "frame_at: expected 0 to"),
}


def forged(forgery: str) -> tuple[frb.BufferSpec, dict[str, Any], str]:
    """A state's dict with one number changed, in NumPy, and what is said of it."""
    spec, name, place, value, message = FORGED[forgery]
    with make("torch") as torch:
        rows = torch.rb.rand(spec.item, torch.rb.key(0), (2, 2) if spec.lanes else 4)
        key = torch.rb.key(1) if spec.writer.words else None
        state = torch.rb.add(torch.rb.init(spec), rows, key=key)
        given = {key: x if key == "spec" else np.array(torch.numpy(x)) for key, x in torch.rb.state_dict(state).items()}
        torch.rb.load_state_dict(spec, given)
    given[name].reshape(-1)[place] = value
    return spec, given, message


@pytest.mark.parametrize("forgery", FORGED)
def test_values_that_no_buffer_has_are_refused(forgery: str, tmp_path: Path) -> None:
    """By both backends, on the device and on the host; and in a checkpoint, where they are damage."""
    spec, given, message = forged(forgery)
    for name in ("torch", "jax"):
        with make(name) as library:
            for target in (spec, dataclasses.replace(spec, storage=frb.Host())):
                with pytest.raises(ValueError, match=f"^load_state_dict: .*{message}"):
                    library.rb.load_state_dict(target, given)
    arrays = {key: given.get(key, np.asarray(x)) for key, x in named(jax_backend.init(spec)).items()}
    wide = tuple(arrays[f"wide_{k}"] for k in range(len(spec.plan.layout.wide)))
    auxiliary = {key: arrays[f"kept_{key}"] for key in spec.plan.auxiliary}
    info = frb.save(frb.State(arrays["rows"], wide, arrays.get("tree"), arrays["counters"], auxiliary, spec), tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=message) as caught:
        frb.load(tmp_path, "torch")
    assert caught.value.file == info.path
    report = inspection.inspect(tmp_path)
    assert [file["name"] for file in report["files"] if file["problem"]] == ["0000000001.json"]


def test_sums_that_are_not_those_of_the_leaves_are_refused(library: Backend) -> None:
    given = library.rb.state_dict(library.rb.init(TURNS))
    tree = np.array(library.numpy(given["tree"]))
    tree[-3, 0] = 1
    with pytest.raises(ValueError, match="its sums are not those of its leaves"):
        library.rb.load_state_dict(TURNS, given | {"tree": tree})


def test_tensors_without_values_are_refused() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with make("torch") as library:
        given = library.rb.state_dict(library.rb.init(TURNS))
        for name in ("rows", "tree", "counters"):
            for empty in (given[name].to("meta"), FakeTensorMode().from_tensor(given[name])):
                with pytest.raises(TypeError, match=f"load_state_dict: '{name}': expected a tensor with its values in"):
                    library.rb.load_state_dict(TURNS, given | {name: empty})
        with pytest.raises(TypeError, match="'rows': expected a tensor with its values"):
            torch.func.vmap(lambda rows: library.rb.load_state_dict(TURNS, given | {"rows": rows}).rows)(
                given["rows"][None]
            )


def test_python_objects_are_refused() -> None:
    with make("torch") as library:
        state = library.rb.init(frb.BufferSpec({"name": frb.specs.NonTensor()}, 4))
        with pytest.raises(TypeError, match="leaf 'name' holds Python objects, which are no arrays"):
            library.rb.state_dict(state)


def test_what_is_no_state_is_refused(library: Backend) -> None:
    other = "jax" if library.library == "torch" else "torch"
    with make(other) as foreign:
        state = foreign.rb.init(SPECS["plain"])
        with pytest.raises(TypeError, match="state_dict"):
            library.rb.state_dict(state)
        with pytest.raises(TypeError, match="load_state_dict"):
            library.rb.load_state_dict(state, {})


# --- Orbax ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def orbax() -> Any:
    """It warns of topologies where none is told."""
    with warnings.catch_warnings(action="ignore"):
        yield pytest.importorskip("orbax.checkpoint", reason="Orbax is not installed")


@pytest.mark.parametrize("name", ["wide", "all wide", "compact"])
def test_a_dict_goes_through_orbax(orbax: Any, tmp_path: Path, name: str) -> None:
    spec = SPECS[name]
    with make("jax") as library, orbax.StandardCheckpointer() as checkpointer:
        state, _ = library.rb.sample(filled(library, spec), library.rb.key(0), 2)
        checkpointer.save(tmp_path / "buffer", library.rb.state_dict(state))
        checkpointer.wait_until_finished()
        as_told = checkpointer.restore(tmp_path / "buffer", library.rb.state_dict(library.rb.init(spec)))
        untold = checkpointer.restore(tmp_path / "buffer")
        assert frb.convert.from_json(bytes(np.asarray(untold["spec"]))) == spec
        for given in (as_told, untold):
            loaded = library.rb.load_state_dict(spec, given)
            assert lives.state_bits(library, loaded) == lives.state_bits(library, state)
    with make("torch") as torch:
        assert lives.state_bits(torch, torch.rb.load_state_dict(spec, untold)) == lives.state_bits(library, state)


def test_a_state_is_a_pytree_for_orbax(orbax: Any, tmp_path: Path) -> None:
    """It comes back as a state where one is given as the target; its spec is that of the target."""
    import jax

    member = MEMBERS["prioritized"]
    with make("jax") as library, orbax.StandardCheckpointer() as checkpointer:
        state, _ = follow(library, lives.begin(library, member.spec), 0, 2)
        checkpointer.save(tmp_path / "training", {"buffer": state, "step": 3})
        checkpointer.wait_until_finished()
        target = {"buffer": jax.eval_shape(lambda: library.rb.init(member.spec)), "step": 0}
        loaded = checkpointer.restore(tmp_path / "training", target)["buffer"]
        assert loaded.spec == member.spec
        (went_on, wanted), (again, found) = (follow(library, begun, 2, 4) for begun in (state, loaded))
        assert found == wanted
        assert lives.state_bits(library, again) == lives.state_bits(library, went_on)


def test_going_on_after_a_dict_on_jax() -> None:
    member = MEMBERS["prioritized"]
    with make("jax") as library:
        state, _ = follow(library, lives.begin(library, member.spec), 0, 2)
        loaded = library.rb.load_state_dict(state, library.rb.state_dict(state))
        (went_on, wanted), (again, found) = (follow(library, begun, 2, 4) for begun in (state, loaded))
        assert found == wanted
        assert lives.state_bits(library, again) == lives.state_bits(library, went_on)
