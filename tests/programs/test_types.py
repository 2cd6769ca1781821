"""What type checkers read of the public functions: mypy checks this file as it does the packages."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, assert_type

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.base.arrays import Array
from functional_rb.buffer.state import State
from functional_rb.checkpoint.background import SaveFuture
from functional_rb.checkpoint.manifest import Checkpoint
from functional_rb.core.sample import AnySample, MaskedSample, SliceSample
from functional_rb.hash_maps.functions import HashMap
from functional_rb.trees import Expansion
from functional_rb.trees.forest import Forest
from functional_rb.trees.view import TreeView

BUFFER = frb.BufferSpec({"x": frb.Unbounded(())}, 4)
MAP = frb.HashMapSpec(frb.Unbounded(()), 4)
FOREST = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=4, children=2)
TREE = frb.trees.TreeSpec({"x": frb.Unbounded(())}, capacity=9, children=2)

Items = dict[str, Any]
ITEM = {"x": frb.Unbounded(()), "group": frb.Unbounded((), "int32"), "done": frb.Binary(())}
BATCH = {"x": np.zeros(6, np.float32), "group": np.arange(6, dtype=np.int32) // 2, "done": np.zeros(6, np.bool_)}


@dataclasses.dataclass(frozen=True)
class Step:
    """An item of one's own. (That a pytree is made of it is the backends' affair: here only types are.)"""

    x: Any


def test_init_gives_what_the_spec_is_of() -> None:
    made = jax_backend.init(BUFFER), jax_backend.init(MAP), jax_backend.init(FOREST, device=None)
    assert_type(made, tuple[frb.State[frb.Sample[dict[str, Any]]], HashMap, Forest])
    assert [type(x).__name__ for x in made[1:]] == ["HashMap", "Forest"]
    same = torch_backend.init(BUFFER, items=None), torch_backend.init(MAP), torch_backend.init(FOREST)
    assert_type(same, tuple[frb.State[frb.Sample[dict[str, Any]]], HashMap, Forest])
    assert [type(x).__name__ for x in same[1:]] == ["HashMap", "Forest"]
    assert isinstance(made[0], frb.State)
    assert isinstance(same[0], frb.State)


def nothing() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(1, np.float32)


def test_functions_of_users_may_say_what_they_are_given() -> None:
    def step(node: dict[str, Any], action: Any, key: np.ndarray[Any, Any]) -> Expansion:
        return Expansion(node, np.zeros((1, 2), np.float32), nothing())

    def label(tree: TreeView, node: int) -> str:
        return f"{tree.visits[node]} visits"

    def has_room(state: frb.State) -> bool:
        return int(torch_backend.size(state)) < state.spec.capacity

    root = Expansion({"x": nothing()}, np.zeros((1, 2), np.float32), nothing())
    tree, _ = torch_backend.trees.search(torch_backend.init(TREE, items=root), torch_backend.key(0), step, 1)
    assert torch_backend.trees.view(tree.at(0)).to_string(label, max_nodes=1).startswith("2 visits")
    frb.Cell(torch_backend.init(BUFFER)).wait_for(has_room, timeout=60)


# --- samples: what is asserted of types is what comes, on both backends ---------------------------------------------


def drawn(*specs: frb.BufferSpec) -> Iterable[AnySample[Any]]:
    """A sample of a buffer of each spec, on both backends."""
    for rb in (jax_backend, torch_backend):
        for spec in specs:
            yield rb.sample(rb.add(rb.init(spec), BATCH), rb.key(0), 2)[1]


def test_a_sampler_says_of_which_class_samples_are() -> None:
    plain = (
        frb.BufferSpec(ITEM, 8),
        frb.BufferSpec(ITEM, 8, frb.Prioritized(0.5)),
        frb.BufferSpec(ITEM, 8, frb.Recency()),
    )
    assert_type(plain[0], frb.BufferSpec[frb.Sample[Items]])
    assert_type(plain[1], frb.BufferSpec[frb.Sample[Items]])
    assert_type(plain[2], frb.BufferSpec[frb.Sample[Items]])
    assert {type(sample) for sample in drawn(*plain)} == {frb.Sample}

    masked = (
        frb.BufferSpec(ITEM, 8, frb.WithoutReplacement()),
        frb.BufferSpec(ITEM, 8, frb.InOrder()),
        frb.BufferSpec(ITEM, 8, frb.Queue(), batch_size=2),
        frb.BufferSpec(ITEM, 8, frb.Groups(2, "group")),
        frb.BufferSpec(ITEM, 8, frb.Uniform(3)),
        frb.BufferSpec(ITEM, 8, frb.Prioritized(max_times_sampled=3)),
        frb.BufferSpec(ITEM, 8, frb.Prioritized(replacement=False), frb.StopWhenFull()),
    )
    assert_type(masked[0], frb.BufferSpec[MaskedSample[Items]])
    assert_type(masked[1], frb.BufferSpec[MaskedSample[Items]])
    assert_type(masked[2], frb.BufferSpec[MaskedSample[Items]])
    assert_type(masked[3], frb.BufferSpec[MaskedSample[Items]])
    assert_type(masked[4], frb.BufferSpec[MaskedSample[Items]])
    assert_type(masked[5], frb.BufferSpec[MaskedSample[Items]])
    assert_type(masked[6], frb.BufferSpec[MaskedSample[Items]])
    assert {type(sample) for sample in drawn(*masked)} == {MaskedSample}

    sliced = (
        frb.BufferSpec(ITEM, 8, frb.Slices(2)),
        frb.BufferSpec(ITEM, 8, frb.PrioritizedSlices(2)),
        frb.BufferSpec(ITEM, 8, frb.SlicesWithoutReplacement(2)),
    )
    assert_type(sliced[0], frb.BufferSpec[SliceSample[Items]])
    assert_type(sliced[1], frb.BufferSpec[SliceSample[Items]])
    assert_type(sliced[2], frb.BufferSpec[SliceSample[Items]])
    assert {type(sample) for sample in drawn(*sliced)} == {SliceSample}


def limited(most: int | None, replacement: bool) -> None:
    assert_type(frb.Uniform(most), frb.Uniform[Array | None])
    assert_type(frb.BufferSpec(ITEM, 8, frb.Uniform(most)), frb.BufferSpec[frb.Sample[Items] | MaskedSample[Items]])
    given = frb.Prioritized(max_times_sampled=most, replacement=replacement)
    assert_type(frb.BufferSpec(ITEM, 8, given), frb.BufferSpec[frb.Sample[Items] | MaskedSample[Items]])


def test_where_only_the_program_knows_the_option_samples_are_of_either_class() -> None:
    limited(None, True)
    limited(2, False)


def test_samples_have_the_items_of_the_spec() -> None:
    spec = frb.BufferSpec(Step(frb.Unbounded(())), 8, frb.Slices(2, end_keys=()))
    assert_type(spec, frb.BufferSpec[SliceSample[Step]])
    assert_type(frb.BufferSpec(Step(frb.Unbounded(())), 8), frb.BufferSpec[frb.Sample[Step]])
    assert_type(frb.BufferSpec(frb.Unbounded(()), 8, frb.InOrder()), frb.BufferSpec[MaskedSample[Any]])
    assert_type(frb.BufferSpec((frb.Unbounded(()),), 8), frb.BufferSpec[frb.Sample[Any]])
    assert_type(frb.BufferSpec(frb.Composite(ITEM), 8, frb.Recency()), frb.BufferSpec[frb.Sample[Any]])
    batch = Step(np.zeros((6,), np.float32))
    _, sample = jax_backend.sample_(jax_backend.add(jax_backend.init(spec), batch), jax_backend.key(0), 2)
    assert_type(sample, SliceSample[Step])
    assert type(sample.items) is Step
    state = torch_backend.add(torch_backend.init(spec), batch)
    read = torch_backend.get(state, [0, 1]), torch_backend.items(state)
    assert_type(read, tuple[Step, Step])
    assert {type(items) for items in read} == {Step}


def negated(items: Items) -> Items:
    return items | {"x": -items["x"]}


def test_transforms_leave_the_class_of_samples_as_it_is() -> None:
    item = {"reward": frb.Unbounded(()), "next_x": frb.Unbounded(()), "x": frb.Unbounded(()), "done": frb.Binary(())}
    returns = frb.BufferSpec(item, 8, frb.Prioritized(), transforms=frb.n_step(2, 0.9, next_keys="next_x"))
    assert_type(returns, frb.BufferSpec[frb.Sample[Items]])
    mapped = frb.BufferSpec(ITEM, 8, frb.Slices(2), transforms=[frb.map_items(negated)])
    assert_type(mapped, frb.BufferSpec[SliceSample[Any]])
    by_default = frb.BufferSpec(ITEM, 8, transforms=frb.map_items(frb.items.cast("float32")))
    assert_type(by_default, frb.BufferSpec[frb.Sample[Any]])
    assert [type(sample) for sample in drawn(mapped, by_default)] == [SliceSample, frb.Sample] * 2


def test_functions_on_states_keep_what_is_known_of_samples() -> None:
    state = torch_backend.init(frb.BufferSpec(ITEM, 8, frb.WithoutReplacement()))
    assert_type(state, State[MaskedSample[Items]])
    state = torch_backend.add_(torch_backend.clear(torch_backend.add(state, BATCH)), BATCH)
    assert_type(state, State[MaskedSample[Items]])
    for one in frb.iterate(torch_backend, state, torch_backend.key(0), 4, epochs=1):
        assert_type(one, MaskedSample[Items])
        assert type(one) is MaskedSample
    other = torch_backend.with_spec(state, frb.BufferSpec(ITEM, 8))
    assert_type(other, State[frb.Sample[Items]])
    assert_type(frb.Cell(other).state, State[frb.Sample[Items]])
    with frb.iterate(torch_backend, other, torch_backend.key(0), 2, n=1) as batches:
        assert_type(batches.state, State[frb.Sample[Items]])
        for sample in batches:
            assert_type(sample, frb.Sample[Items])
            assert type(sample) is frb.Sample


def test_buffers_that_processes_share_and_that_are_dealt_to_devices_give_the_same_samples() -> None:
    spec = frb.BufferSpec(ITEM, 8, frb.Prioritized(), storage=frb.Memmap(shared=True))
    shared = torch_backend.add(torch_backend.init(spec), BATCH)
    sample = torch_backend.sample(shared, torch_backend.key(0), 2)[1]
    assert_type(sample, frb.Sample[Items])
    assert type(sample) is frb.Sample

    over = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("shards",)), PartitionSpec("shards"))
    sharded = jax_backend.init(frb.BufferSpec(ITEM, 16, frb.Slices(2), lanes=2), sharding=over)
    assert_type(sharded, State[SliceSample[Items]])
    lanes = {name: np.stack([leaf, leaf], 1) for name, leaf in BATCH.items()}
    alone = jax_backend.shard(jax_backend.add(sharded, lanes), None)
    assert_type(alone, State[SliceSample[Items]])
    sharded, drawn = jax_backend.sample(jax_backend.shard(alone, over), jax_backend.key(0), 2, draw="local")
    assert_type(drawn, SliceSample[Items])
    assert type(drawn) is SliceSample


def test_a_mixture_gives_the_samples_that_all_of_its_buffers_give() -> None:
    plain, sliced = frb.BufferSpec(Step(frb.Unbounded(())), 8), frb.BufferSpec(ITEM, 8, frb.Slices(2))
    batch = Step(np.zeros(6, np.float32))
    one, other = (torch_backend.add(torch_backend.init(plain), batch) for _ in range(2))
    mixture, sample = torch_backend.sample(frb.Mixture([one, other]), torch_backend.key(0), 2)
    assert_type(mixture, frb.Mixture[frb.Sample[Step]])
    assert_type(sample, frb.Sample[Step])
    assert type(sample) is frb.Sample
    assert type(sample.items) is Step
    # Of buffers that differ, and of what is annotated without saying, samples may be of each class.
    limited = torch_backend.init(frb.BufferSpec(Step(frb.Unbounded(())), 8, frb.Uniform(3)))
    assert_type(frb.Mixture([one, limited]), frb.Mixture)
    assert isinstance(any_of(torch_backend.add(torch_backend.init(sliced), BATCH)), SliceSample)


def any_of(state: frb.State) -> AnySample[Any]:
    _, sample = torch_backend.sample(state, torch_backend.key(0), 1)
    assert_type(sample, AnySample[Any])
    return sample


def test_a_save_is_told_by_a_variable_whether_it_goes_on_in_the_background(tmp_path: Path) -> None:
    state = torch_backend.init(BUFFER)
    flags: list[bool] = [False, True]
    assert_type(frb.save(state, tmp_path / "0"), Checkpoint)
    assert_type(frb.save(state, tmp_path / "1", keep=1, background=True), SaveFuture)
    for flag in flags:
        saved = frb.save(state, tmp_path / "2", background=flag)
        assert_type(saved, Checkpoint | SaveFuture)
        assert isinstance(saved, SaveFuture) == flag
        assert (saved.result() if isinstance(saved, SaveFuture) else saved).items == 0


# Were it not found that these are wrong, mypy would say that nothing has to be ignored.
def wrong(state: State[frb.Sample[Items]]) -> None:
    _, sample = jax_backend.sample(state, jax_backend.key(0))
    assert_type(sample, SliceSample[Items])  # type: ignore[assert-type]
    sample.nothing  # type: ignore[attr-defined]  # noqa: B018
    taken: State[SliceSample[Items]] = state  # type: ignore[assignment]
    jax_backend.add(taken, {}, batch_size=3)  # type: ignore[call-overload]


# What is annotated without saying of which items is of any, and no error of `mypy --strict`.
def described(sample: frb.Sample, state: frb.State[frb.Sample], spec: frb.BufferSpec, mixture: frb.Mixture) -> None:
    assert_type(sample, frb.Sample[Any])
    assert_type(jax_backend.sample(state, jax_backend.key(0))[1], frb.Sample[Any])
    assert_type(jax_backend.init(spec), frb.State)
    assert_type(torch_backend.sample(mixture, torch_backend.key(0), 2)[1], AnySample[Any])
