"""Functions of items: carried out last of all when sampling, first when adding, and nothing is lost when they fail."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.contract.mapped_items import STEP, Noise, Pair, Record, as_lists, batch, forgetful, scaled, stacked

# --- sampling -------------------------------------------------------------------------------------------------------

FULL = {"writer": frb.StopWhenFull(), "sampler": frb.Queue()}
ALL: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"sampler": frb.Prioritized(max_times_sampled=4)},
    "epochs": {"sampler": frb.WithoutReplacement()},
    "queue": FULL,
    "slices": {"sampler": frb.Slices(3, end_keys="done")},
    "flat slices": {"sampler": frb.Slices(3, end_keys="done", flat=True)},
    "trajectories": {"sampler": frb.SlicesWithoutReplacement(3, end_keys="done")},
    "returns": {"transforms": (frb.n_step(2, 0.5, end_keys="done"),)},
    "returns of added": {"transforms": (frb.n_step(2, 0.5, at="add", end_keys="done"),)},
    "goals": {"transforms": (frb.n_step(2, 0.5, end_keys="done"), frb.her("future", 4))},
    "frames": {"compact": frb.Compact()},
    "lanes": {"lanes": 2},
    "mapped files": {"storage": "mapped"},
    "shared files": {"storage": "shared"},
}


def storage_of(name: Any, library: Any, path: Path) -> Any:
    """Files where they are asked for; on JAX else the host, where nothing is compiled but the function of items."""
    if name is not None:
        return frb.Memmap(path / f"{len(list(path.iterdir()))}", shared=name == "shared")
    return frb.Host() if library.name == "jax" else frb.Device()


@pytest.mark.few_on_jax(6)
@pytest.mark.parametrize("name", ALL)
def test_a_sample_is_what_the_function_gives_of_the_sample_without_it(library: Any, name: str, tmp_path: Path) -> None:
    rb, settings = library.rb, dict(ALL[name])
    others, kind = settings.pop("transforms", ()), settings.pop("storage", None)
    samples = []
    for transforms in (others, (frb.map_items(stacked), *others)):
        storage = storage_of(kind, library, tmp_path)
        spec = frb.BufferSpec(STEP, 8, transforms=transforms, storage=storage, **settings)
        items = batch(6)
        if "lanes" in settings:
            items = {name: x.reshape(3, 2, *x.shape[1:]) for name, x in items.items()}
        state = rb.add(rb.init(spec), items)
        samples.append((spec, *rb.sample(state, rb.key(3), 3)))
    (_, after, plain), (spec, mapped_after, mapped) = samples
    assert as_lists(mapped.items) == as_lists(stacked(plain.items))
    for field in mapped._fields:
        if field != "items":
            assert as_lists(getattr(mapped, field)) == as_lists(getattr(plain, field)), field
    assert as_lists(rb.items(mapped_after)) == as_lists(rb.items(after))
    shapes = [np.shape(np.asarray(x)) for x in (mapped.items["both"], *mapped.items["reward"])]
    told = rb.sample_spec(spec, 3)
    assert [told["both"].shape, *(part.shape for part in told["reward"])] == shapes


def test_a_key_that_follows_from_the_samples(library: Any) -> None:
    rb = library.rb

    def with_key(items: Any, key: Any) -> Any:
        key = key if library.name == "torch" else __import__("jax").random.key_data(key)[-1].astype("int32")
        return items | {"key": items["done"] * 0 + key}

    gives = rb.map_spec(with_key, STEP, keyed=True)
    assert gives == frb.Composite(STEP | {"key": frb.Unbounded((), gives["key"].dtype)})
    added = frb.BufferSpec(STEP, 8, transforms=frb.map_items(with_key, at="add", keyed=True, gives=gives))
    with pytest.raises(ValueError, match=r"add: map_items\(.*with_key, at='add'\) takes a key"):
        rb.add(rb.init(added), batch(2))
    specs = [frb.BufferSpec(STEP, 8, transforms=t) for t in ((), frb.map_items(with_key, keyed=True))]
    plain, mapped = (rb.add(rb.init(spec), batch(6)) for spec in specs)
    _, expected = rb.sample(plain, rb.key(1), 4)
    keys = []
    for seed in (1, 1, 2):
        _, sample = rb.sample(mapped, rb.key(seed), 4)
        keys.append(as_lists(sample.items["key"])[0])
        if seed == 1:
            assert as_lists(sample.indices) == as_lists(expected.indices)
    first = as_lists(rb.key(1)) if library.name == "torch" else 1  # what JAX's key of a small seed has last
    assert keys[0] == keys[1] != keys[2]
    assert keys[0] != first


def test_functions_that_draw_take_the_same_draws_on_both_backends() -> None:
    draws = np.arange(8, dtype=np.int32).reshape(4, 2)
    given = {("reward",): np.zeros((2, 2), np.float32)}
    for name in ("jax", "torch"):
        with __import__("tests.support.backends", fromlist=["make"]).make(name) as made:
            ops = importlib.import_module(f"{name}_backend.arrays.ops")
            arrays = {path: made.array(x) for path, x in given.items()}
            found = Noise().apply(ops, arrays, (2, 2), made.array(draws), None)
            assert made.numpy(found["reward",]).tolist() == [[0, 2], [4, 6]]


def test_an_item_function_draws_by_the_key(library: Any) -> None:
    rb = library.rb
    spec = frb.BufferSpec(STEP, 8, sampler=frb.InOrder(), transforms=frb.map_items(Noise()))
    state = rb.add(rb.init(spec), batch(8))
    rewards = [as_lists(rb.sample(state, rb.key(seed), 8)[1].items["reward"]) for seed in (1, 1, 2)]
    noise = np.array(rewards) - np.arange(8)
    assert rewards[0] == rewards[1] != rewards[2]
    assert set(noise.ravel()) <= set(range(8))
    assert len(set(noise[0])) > 1
    twice = dataclasses.replace(spec, transforms=frb.map_items(Noise(), at="add"))
    with pytest.raises(ValueError, match=r"add: map_items\(Noise.*takes a key; give add\(\.\.\., key=key\)"):
        rb.add(rb.init(twice), batch(2))
    stored = [as_lists(rb.items(rb.add(rb.init(twice), batch(8), key=rb.key(k)))["reward"]) for k in (1, 1, 2)]
    assert stored[0] == stored[1] != stored[2]


# --- containers -----------------------------------------------------------------------------------------------------


@pytest.mark.few_on_jax(5)
@pytest.mark.parametrize("kind", [dict, tuple, list, Pair, Record, "TensorDict", "tensorclass"])
@pytest.mark.parametrize("at", ["add", "sample"])
def test_containers_come_back_as_the_function_gives_them(library: Any, kind: Any, at: Any) -> None:
    rb, values = library.rb, (np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3, dtype=np.int32))
    arrays = [library.array(x) for x in values]
    if isinstance(kind, str):
        if library.name != "torch":
            pytest.skip("containers of tensordict are torch's")
        whole = _of_tensordict(kind, arrays)
        item = frb.specs.spec_of(whole[0])
    else:
        whole = _in(kind, *arrays)
        item = _in(kind, frb.Unbounded((2,)), frb.Unbounded((), "int32"))

    def changed(items: Any) -> Any:
        if isinstance(kind, str):
            made = items.clone()
            made.set("first", items.get("first").double()[:, :1])
            return made
        first, second = _out(kind, items)
        return _in(kind, first[:, :1].astype("float16") if library.name == "jax" else first[:, :1].double(), second)

    gives = rb.map_spec(changed, item)
    wide = "float16" if library.name == "jax" else "float64"
    by_path = {path: (leaf.shape, leaf.dtype) for path, leaf in frb.specs.regrouped.leaves_of(gives).items()}
    assert list(by_path.values()) == [((1,), wide), ((), "int32")]
    whole_function = frb.map_items(changed, at=at, gives=gives)
    leaf_function = frb.map_items(frb.items.cast(wide, keys=[str(next(iter(by_path))[0])]), at=at)
    storage = frb.Host() if library.name == "jax" else frb.Device()
    for transform, width in ((whole_function, 1), (leaf_function, 2)):
        spec = frb.BufferSpec(item, 4, sampler=frb.InOrder(), transforms=transform, storage=storage)
        _, sample = rb.sample(rb.add(rb.init(spec), whole), rb.key(0), 3)
        assert type(sample.items) is type(whole)
        first, second = _out(kind, sample.items)
        assert np.asarray(first).dtype == wide
        assert as_lists(first) == values[0][:, :width].tolist()
        assert as_lists(second) == [0, 1, 2]
        if isinstance(kind, str):
            assert tuple(sample.items.batch_size) == (3,)


def _in(kind: Any, first: Any, second: Any) -> Any:
    if kind in (tuple, list):
        return kind([first, second])
    return kind(first=first, second=second)


def _out(kind: Any, items: Any) -> tuple[Any, Any]:
    if kind in (tuple, list, Pair):
        return items[0], items[1]
    if kind is dict or isinstance(kind, str):
        return items.get("first"), items.get("second")
    return items.first, items.second


@functools.cache
def _tensorclass() -> Any:
    import tensordict
    import torch

    made = type(
        "Both", (), {"__annotations__": {"first": torch.Tensor, "second": torch.Tensor}, "__module__": __name__}
    )
    return tensordict.tensorclass(made)


def _of_tensordict(kind: str, arrays: list[Any]) -> Any:
    from tensordict import TensorDict

    named = dict(zip(("first", "second"), arrays, strict=True))
    return TensorDict(named, [3]) if kind == "TensorDict" else _tensorclass()(**named, batch_size=[3])


def noted(items: Any) -> Any:
    return {"note": items["note"], "twice": items["reward"] * 2}


def test_objects_are_handed_on(library: Any) -> None:
    rb, item = library.rb, {"note": frb.specs.NonTensor(), "reward": frb.Unbounded(())}
    notes = np.array(["a", ["b"], None], object)
    gives = rb.map_spec(noted, item)
    assert gives == frb.Composite(note=frb.specs.NonTensor(), twice=frb.Unbounded(()))
    for transform, name in (
        (frb.map_items(noted), "twice"),
        (frb.map_items(noted, at="add", gives=gives), "twice"),
        (frb.map_items(frb.items.cast("float16", keys=["reward"])), "reward"),
    ):
        spec = frb.BufferSpec(item, 4, frb.InOrder(), transforms=transform, storage=frb.Host())
        state = rb.add(rb.init(spec), {"note": notes, "reward": np.ones(3, np.float32)})
        _, sample = rb.sample(state, rb.key(0), 3)
        assert sample.items["note"].tolist() == notes.tolist()
        assert sample.items[name].shape == (3,)


def test_slices_are_masked(library: Any) -> None:
    rb = library.rb
    sampler = frb.Slices(3, end_keys="done", strict_length=False)
    storage = frb.Host() if library.name == "jax" else frb.Device()

    def marked(items: Any, mask: Any) -> Any:
        return items | {"real": mask}

    spec = frb.BufferSpec(STEP, 8, sampler, transforms=frb.map_items(marked, masked=True), storage=storage)
    _, sample = rb.sample(rb.add(rb.init(spec), batch(7)), rb.key(0), 4)
    assert as_lists(sample.items["real"]) == as_lists(sample.mask)
    assert {len(set(row)) for row in as_lists(sample.mask)} == {1, 2}  # some are short


# --- adding ---------------------------------------------------------------------------------------------------------


def test_added_items_are_mapped_before_returns_are_added_up(library: Any) -> None:
    rb = library.rb
    doubled = frb.map_items(functools.partial(scaled, factor=2.0), at="add", gives=STEP)
    returns = frb.n_step(2, 0.5, at="add", end_keys="done")
    storage = frb.Host() if library.name == "jax" else frb.Device()
    spec = frb.BufferSpec(STEP, 8, frb.InOrder(), transforms=(returns, doubled), storage=storage)
    state = rb.add(rb.init(spec), batch(5), mask=np.array([True, True, True, False, True]))
    _, sample = rb.sample(state, rb.key(0), 4)
    assert as_lists(sample.items["reward"]) == [0 + 0.5 * 2, 2 + 0.5 * 4, 4 + 0.5 * 8, 8]


def test_what_is_stored_is_what_the_rest_is_about(library: Any) -> None:
    rb = library.rb
    wide = frb.map_items(frb.items.cast("int32", keys=["reward"]), at="add")
    half = frb.map_items(frb.items.cast("float16", keys=["reward"]))
    storage = frb.Host() if library.name == "jax" else frb.Device()
    spec = frb.BufferSpec(STEP, 4, frb.InOrder(), transforms=(half, wide), storage=storage)
    assert (spec.stored["reward"].dtype, spec.item["reward"].dtype) == ("int32", "float32")
    state = rb.init(spec, items=batch(3))
    state = rb.add(state, batch(1, start=9) | {"done": np.array([True])}, validate=True)
    assert np.asarray(rb.get(state, np.array([3]))["reward"]).dtype == np.int32
    state = rb.update(state, np.array([0]), items={"reward": np.array([7], np.int32)})
    _, sample = rb.sample(state, rb.key(0), 4)
    assert np.asarray(sample.items["reward"]).dtype == np.float16
    assert as_lists(sample.items["reward"]) == [7, 1, 2, 9]
    with pytest.raises(TypeError, match=r"leaf 'reward'"):
        rb.add(state, batch(1) | {"reward": np.zeros(1, np.int32)})


def test_what_is_added_is_validated_as_it_came(library: Any) -> None:
    rb, storage = library.rb, frb.Host() if library.name == "jax" else frb.Device()
    halved = frb.map_items(frb.items.cast("float16"), at="add")
    spec = frb.BufferSpec({"x": frb.Bounded(0, 1, (2,))}, 4, transforms=halved, storage=storage)
    with pytest.raises(ValueError, match=r"leaf 'x': row 1 lies outside of Bounded"):
        rb.add(rb.init(spec), {"x": np.array([[0, 1], [0, 2]], np.float32)}, validate=True)


def test_what_is_told_of_samples_is_checked(library: Any) -> None:
    rb, storage = library.rb, frb.Host() if library.name == "jax" else frb.Device()
    for function, gives, error, message in (
        (
            scaled,
            {"reward": frb.Unbounded((), "int32")},
            TypeError,
            r"'reward': expected int32 \(2,\) as `gives` says, ",
        ),
        (forgetful, {}, ValueError, r"forgetful.*expected the keys .*'reward'\], got \['obs'"),
    ):
        told = frb.map_items(function, gives=STEP | gives)
        state = rb.add(rb.init(frb.BufferSpec(STEP, 4, transforms=told, storage=storage)), batch(3))
        with pytest.raises(error, match=message):
            rb.sample(state, rb.key(0), 2)


def test_a_living_state_takes_another_function(library: Any) -> None:
    rb = library.rb
    spec = frb.BufferSpec(STEP, 4, frb.InOrder(), transforms=frb.map_items(scaled))
    state = rb.add(rb.init(spec), batch(3))
    other = dataclasses.replace(spec, transforms=frb.map_items(functools.partial(scaled, factor=3.0)))
    _, sample = rb.sample(rb.with_spec(state, other), rb.key(0), 3)
    assert as_lists(sample.items["reward"]) == [0, 3, 6]


# --- from here to there ---------------------------------------------------------------------------------------------


def test_functions_are_told_by_name(library: Any, tmp_path: Path) -> None:
    rb = library.rb
    transforms = (frb.map_items(stacked), frb.map_items(frb.items.cast("int32", keys=["reward"]), at="add"))
    spec = frb.BufferSpec(STEP, 4, frb.InOrder(), transforms=transforms)
    assert pickle.loads(pickle.dumps(spec)) == spec
    text = frb.convert.to_json(spec)
    assert frb.convert.from_json(text, known=(stacked,)) == spec
    with pytest.raises(ValueError, match=r"known=\(stacked,\)"):
        frb.convert.from_json(text)
    state = rb.add(rb.init(spec), batch(3))
    frb.save(state, tmp_path)
    loaded = frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(known=(stacked,)))
    expected = as_lists(rb.sample(state, rb.key(0), 3)[1].items)
    assert loaded.spec == spec
    assert as_lists(rb.sample(loaded, rb.key(0), 3)[1].items) == expected
    other = rb.init(spec)
    other = rb.load_state_dict(other, rb.state_dict(state))
    assert as_lists(rb.sample(other, rb.key(0), 3)[1].items) == expected
    unnamed = frb.BufferSpec(STEP, 4, transforms=frb.map_items(lambda items: items))
    for write in (pickle.dumps, frb.convert.to_json):
        with pytest.raises((pickle.PicklingError, ValueError), match=r"def at the top of a module"):
            write(unnamed)


def test_a_function_of_the_other_backend_is_told_from_an_error() -> None:
    import jax.numpy as jnp

    import jax_backend
    import torch_backend

    spec = frb.BufferSpec(STEP, 4, transforms=frb.map_items(lambda items: items | {"obs": jnp.exp(items["obs"])}))
    state = torch_backend.from_dlpack(jax_backend.add(jax_backend.init(spec), batch(3)))
    with pytest.raises(TypeError, match=r"came from the other one: rb.with_spec\(state, spec\)"):
        torch_backend.sample(state, torch_backend.key(0), 2)


def test_batches_and_epochs_have_what_the_function_gives(library: Any) -> None:
    rb = library.rb
    storage = frb.Host() if library.name == "jax" else frb.Device()
    spec = frb.BufferSpec(STEP, 8, frb.WithoutReplacement(), transforms=frb.map_items(stacked), storage=storage)
    state = rb.add(rb.init(spec), batch(5))
    lengths = [sample.items["both"].shape[0] for sample in frb.iterate(rb, state, rb.key(0), 2, epochs=1)]
    assert lengths == [2, 2, 1]
    device = "cpu" if library.name == "torch" else __import__("jax").devices()[0]
    with frb.iterate(rb, state, rb.key(0), 2, n=2, device=device) as batches:
        found = [as_lists(sample.items) for sample in batches]
    assert [sorted(items) for items in found] == [["both", "reward"]] * 2
    assert isinstance(found[0]["reward"], tuple)


def test_it_is_a_value() -> None:
    transform = frb.map_items(functools.partial(scaled, factor=2.0))
    assert transform == frb.map_items(functools.partial(scaled, factor=2.0)) != frb.map_items(scaled)
    gives = [frb.map_items(scaled, gives={"x": frb.Unbounded((n,))}) for n in (2, 2, 3)]
    assert gives[0] == gives[1] != gives[2]
    assert hash(gives[0]) == hash(gives[1])
    cast = frb.map_items(frb.items.cast("int8"), at="add")
    specs = [frb.BufferSpec({"x": frb.Unbounded((), dtype)}, 4, transforms=cast) for dtype in ("float32", "int32")]
    assert specs[0].stored == specs[1].stored
    assert specs[0] != specs[1]  # as other items are added
