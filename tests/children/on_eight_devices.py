"""Sharded buffers on eight devices: run by `tests.programs.test_meshes` in a process that was told to have so many."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from jax_backend import compat
from jax_backend.scale.state import ShardedState
from tests.support.effort import effort
from tests.support.sharded_logs import BATCH, LANES, LENGTH, SPECS, Log, check, jitted, log, run, sharding_of, step
from tests.support.versions import is_version
from tests.support.xla_options import AS_USERS

# On each number of shards; the others on one.
ALL = ("prioritized",)
# In `make test`, beside those; `make test-all` has the others too. Slices, prioritized and of n steps, are dealt to
# devices in tests of their own below.
SOME = ("prioritized, with a limit", "n-step of added, groups", "compact slices", "queue", "reservoir", "best")
CASES = [
    (name, shards)
    for k, name in enumerate(SPECS)
    if name in (*ALL, *effort(SOME, [*SPECS]))
    for shards in (effort((3,), (2, 3, 8)) if name in effort(ALL, [*SPECS]) else ((2, 3, 8)[k % 3],))
]


@pytest.mark.parametrize(("name", "shards"), CASES)
def test_the_same_log_gives_the_same_state_and_samples(name: str, shards: int) -> None:
    """On any number of shards, under plain jit, donated, in a scan."""
    state = rb.init(SPECS[name], sharding=sharding_of(shards))
    assert isinstance(state, ShardedState)
    check(jitted(run)(state, log(name)), name)


@pytest.mark.parametrize("name", effort(["uniform"], ["uniform", "prioritized"]))
def test_without_kernels_as_on_accelerators(name: str) -> None:
    """The mask of the uniform buffer goes alone, one byte a row, packed by primitives."""
    with frb.kernels(False):
        state = rb.init(SPECS[name], sharding=sharding_of(3))
        check(jitted(run)(state, log(name)), name)


@pytest.mark.skipif(not compat.IS_EXPLICIT, reason="explicit axes are for JAX 0.7.2 on")
def test_explicit_axes() -> None:
    state = rb.init(SPECS["prioritized"], sharding=sharding_of(8, AxisType.Explicit))
    after = jitted(run)(state, log("prioritized"))
    check(after, "prioritized")
    assert after[0].part.rows.sharding.spec[0] == "d"
    assert after[0].tree.sharding.is_fully_replicated
    assert after[1].indices.sharding.spec == P(None, "d")
    uneven = rb.init(SPECS["prioritized"], sharding=sharding_of(3, AxisType.Explicit))
    assert rb.items(uneven)["x"].shape == (LANES * LENGTH, 2), "which three devices do not divide"


def mapped(shards: int, state: Any, draw: Any = "global") -> Any:
    """The same program, in which each device collects from the lanes of its own."""

    def body(state: frb.State, log: Log) -> Any:
        return lax.scan(functools.partial(step, draw=draw, axis_name="d"), state, log)

    lanes = P(None, None, "d")
    specs = rb.partition_specs(state)
    of_log = Log(lanes, lanes, lanes, P(None, "d"), P())
    checked = is_version(jax, "0.7")  # JAX 0.6 checks its own `searchsorted` wrongly
    mesh = sharding_of(shards).mesh
    return jax.shard_map(body, mesh=mesh, in_specs=(specs, of_log), out_specs=(specs, P(None, "d")), check_vma=checked)


def padded(log: Log, shards: int) -> Log:
    """With lanes that the buffer does not have, so that each device gets as many."""
    missing = -LANES % shards

    def more(x: Any) -> Any:
        return np.pad(np.asarray(x), [(0, missing if k == 2 else 0) for k in range(x.ndim)], mode="edge")

    return jax.tree.map(more, log._replace(priorities=None, keys=None))._replace(
        priorities=log.priorities, keys=log.keys
    )


@pytest.mark.parametrize(("name", "shards"), [("prioritized", 8), ("n-step slices", 3)])
def test_in_the_users_shard_map(name: str, shards: int) -> None:
    state = rb.init(SPECS[name], sharding=sharding_of(shards))
    check(jitted(mapped(shards, state))(state, padded(log(name), shards)), name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reservoir", r"add: expected the same key on each device, as Reservoir\(\) chooses slots"),
        ("prioritized", r"the same key on each device.* give one key to all, or draw='local'"),
    ],
)
def test_a_writer_that_draws_and_a_draw_of_all_need_one_key(name: str, expected: str) -> None:
    if not is_version(jax, "0.7"):
        pytest.skip("JAX 0.6 checks its own searchsorted wrongly, so that nothing tells where keys differ")
    state = rb.init(SPECS[name], sharding=sharding_of(5))
    item = jax.tree.map(lambda x: x[0], log(name).items)

    def body(state: frb.State, keys: Any, item: Any) -> Any:
        state = rb.add(state, item, key=keys[0] if state.spec.writer.words else None)
        return rb.sample(state, keys[0], 5 * BATCH, axis_name="d")[1].indices

    given = (rb.partition_specs(state), P("d"), P(None, "d"))
    program = jax.shard_map(body, mesh=sharding_of(5).mesh, in_specs=given, out_specs=P("d"))
    with pytest.raises(ValueError, match=expected):
        jax.eval_shape(program, state, rb.split(rb.key(0), 5), item)


COLLECTIVE = r"= (\S+) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
# Slots of a lane, so that no array of a program has a shard's size by chance.
LARGE = 1250


def numbers(shape: str) -> int:
    """How many there are in an array, as XLA shows its shape."""
    return int(np.prod([int(n) for n in re.findall(r"\d+", shape.split("[")[1].split("]")[0])] or [1]))


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("prioritized", "global"),
        ("prioritized", "local"),
        ("reservoir", "global"),
        *effort([], [("best", "local")]),
        *effort([], [(name, "global") for name in ("compact", "n-step of added", "queue")]),
    ],
)
def test_only_what_is_drawn_goes_between_devices_and_nothing_is_copied(name: str, draw: str) -> None:
    """Where a part tells how many items its lanes got and have, these numbers go too, fewer than those of a batch.

    Where a writer chooses slots of all shards, what is added goes to all of them.
    """
    spec = dataclasses.replace(SPECS[name], lanes=16, capacity=16 * LARGE)
    batch = 2 * BATCH if name == "queue" else BATCH  # of each lane as many
    sharding = sharding_of(8)
    state = rb.init(spec, sharding=sharding)
    row = jax.tree.map(lambda x: jnp.zeros((16, *x.shape), x.dtype), jax.eval_shape(lambda: rb.zeros(spec.item)))
    row = jax.device_put(row, sharding)

    def program(state: frb.State, keys: Any, row: Any) -> Any:
        def one(state: frb.State, key: Any) -> Any:
            state = rb.add(state, row, key=key if spec.writer.words else None)
            state, sample = rb.sample(state, key, batch, draw=draw)  # type: ignore[arg-type]  # one of both
            return state, sample.items["reward"].sum()

        return lax.scan(one, state, keys)

    compiled = rb.jit(program).lower(state, rb.split(rb.key(0), 3), row).compile(AS_USERS)
    text = compiled.as_text()
    found = [(kind, numbers(shape)) for shape, kind in re.findall(COLLECTIVE, text)]
    words = spec.item_bytes // 4 + 8  # and what transforms tell
    rows_moved = [(kind, n) for kind, n in found if n > 1]
    if state.dealing.by_slots:
        added = [n for kind, n in rows_moved if kind != "reduce-scatter"]
        assert len(added) == 1, found
        assert added[0] <= 16 * words
        rows_moved = [(kind, n) for kind, n in rows_moved if kind == "reduce-scatter"]
    if draw == "global":
        assert [kind for kind, _ in rows_moved if kind == "reduce-scatter"] == ["reduce-scatter"], found
        numbers_told = [n for kind, n in rows_moved if kind != "reduce-scatter"]
        assert len(numbers_told) == int(state.dealing.part_tells), found
        assert sum(numbers_told) <= 2 * 16
        assert max(n for _, n in rows_moved) <= np.prod(spec.sampler.leading_shape(batch // 8)) * words
    else:
        assert not rows_moved, found
    large = [shape for shape in re.findall(r"= (\S+) copy\(", text) if numbers(shape) >= 2 * LARGE]
    assert not large
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 2 * LARGE * state.part.rows.shape[1] / 2


def test_the_page_runs_on_all_of_them() -> None:
    page = Path(__file__).parents[2] / "docs" / "scale.md"
    namespace: dict[str, Any] = {"rb": rb}
    blocks = re.findall(r"^```python jax\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.read_text().count("```python jax")
    for source in blocks:
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)


def test_the_example_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optax")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import cartpole_spec
    import mesh_dqn

    config = dataclasses.replace(cartpole_spec.QUICK, eval_every=20, capacity=100)
    result = mesh_dqn.main(config, tmp_path / "curve.png")
    assert [row.iteration for row in result.rows] == [20, 40]
    assert np.isfinite([(row.loss, row.greedy_return) for row in result.rows]).all()
    assert result.stored == 96, "12 of each of 8 lanes"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
