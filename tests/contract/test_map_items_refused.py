"""Functions of items that fail, or give what they did not tell: nothing is lost; and in compiled programs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.testing import ConformanceError, check_transform
from tests.contract.mapped_items import (
    STEP,
    Noise,
    Unhashable,
    as_lists,
    batch,
    fails,
    same,
    scaled,
    stacked,
)

# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_what_the_function_gives_is_checked(library: Any) -> None:
    rb = library.rb
    wrong: dict[str, tuple[Any, type[Exception], str]] = {
        "numpy": (lambda i: i | {"obs": np.zeros((3, 2))}, TypeError, r"leaf 'obs': expected an array of the backend"),
        "number": (lambda i: i | {"obs": 1.0}, TypeError, r"leaf 'obs': expected an array of the backend.*float"),
        "summed": (lambda i: {"x": i["reward"].sum()}, ValueError, r"leaf 'x': expected a first axis of 3"),
        "raises": (fails, ValueError, r"map_items\(fails, at='sample'\): .*reward \(3,\).*RuntimeError: it cannot"),
    }
    for function, error, message in wrong.values():
        # JAX's own in-place form donates before it calls: once is enough of what takes long to compile.
        storage = frb.Device() if library.name == "torch" or function is fails else frb.Host()
        sampler, transform = frb.WithoutReplacement(), frb.map_items(function)
        spec = frb.BufferSpec(STEP, 4, sampler, transforms=transform, storage=storage)
        for name in ("sample", "sample_"):
            state = rb.add(rb.init(dataclasses.replace(spec, transforms=())), batch(4))
            expected = as_lists(rb.sample(state, rb.key(7), 3)[1].indices)
            state = rb.with_spec(state, spec)
            with pytest.raises(error, match=message) as caught:
                getattr(rb, name)(state, rb.key(7), 3)
            assert isinstance(caught.value.__cause__, RuntimeError) == (function is fails)
            state = rb.with_spec(state, dataclasses.replace(spec, transforms=()))
            assert as_lists(getattr(rb, name)(state, rb.key(7), 3)[1].indices) == expected  # nothing has been drawn


def test_what_is_stored_must_be_as_told(library: Any) -> None:
    rb = library.rb
    with pytest.raises(ValueError, match=r"scaled, at='add'\): expected gives="):
        frb.BufferSpec(STEP, 4, transforms=frb.map_items(scaled, at="add"))
    for gives, error, message in (
        (STEP | {"reward": frb.Unbounded((2,))}, ValueError, r"gives: leaf 'reward'.*\(2,\).*gives float32 \(\)"),
        (STEP | {"reward": frb.Unbounded((), "int32")}, TypeError, r"gives: leaf 'reward'.*int32.*gives float32"),
        (STEP | {"more": frb.Unbounded(())}, ValueError, r"gives: .*'more'.*rb.map_spec"),
    ):
        spec = frb.BufferSpec(STEP, 4, transforms=frb.map_items(scaled, at="add", gives=gives))
        with pytest.raises(error, match=message):
            rb.init(spec)
    late = frb.map_items(fails, at="add", gives=STEP)
    with pytest.raises(ValueError, match="it cannot"):
        rb.init(frb.BufferSpec(STEP, 4, transforms=late))


def test_a_function_that_returns_nothing_is_told(library: Any) -> None:
    rb = library.rb

    def forgetful(items: Any) -> None:
        items["reward"] = items["reward"] * 2

    stored = rb.add(rb.init(frb.BufferSpec(STEP, 4)), batch(3))
    for function, error, message in (
        (forgetful, TypeError, r"forgetful.*to return the items, a nest of arrays, got None; return them"),
        (lambda items: {}, ValueError, r"to return some leaf, got \{\}"),
        (lambda items: 3, TypeError, "expected an array of the backend, got builtins.int"),
    ):
        spec = frb.BufferSpec(STEP, 4, transforms=frb.map_items(function))
        calls = [lambda spec=spec: rb.sample(rb.with_spec(stored, spec), rb.key(0), 2)]
        calls += [lambda function=function: rb.map_spec(function, STEP), lambda spec=spec: rb.sample_spec(spec, 2)]
        if function is forgetful:
            late = frb.BufferSpec(STEP, 4, transforms=frb.map_items(forgetful, at="add", gives=STEP))
            calls.append(lambda late=late: rb.init(late))
        for call in calls:
            with pytest.raises(error, match=message):
                call()


def test_shapes_that_depend_on_values_are_refused_where_nothing_is_traced() -> None:
    import torch

    import torch_backend as rb

    def sometimes(items: Any) -> Any:
        if items["reward"].sum() == 0:
            return items
        if items["reward"].sum() == 3:
            return items | {"reward": items["reward"][:, None]}
        return (
            {"reward": items["reward"]} if items["reward"].sum() == 6 else items | {"reward": items["reward"].double()}
        )

    spec = frb.BufferSpec(STEP, 4, frb.InOrder(), transforms=frb.map_items(sometimes))
    start = rb.init(spec)
    ones = {name: torch.from_numpy(x) for name, x in batch(3).items()}
    for reward, error, message in (
        (0, None, ""),
        (1, ValueError, r"leaf 'reward': expected float32 \(3,\) as for a batch before, got float32 \(3, 1\)"),
        (2, ValueError, r"the item.*got \['reward'\].*a batch before"),
        (5, TypeError, r"leaf 'reward': expected float32 \(3,\).*got float64"),
    ):
        state = rb.add(start, ones | {"reward": torch.full((3,), float(reward))})
        if error is None:
            rb.sample(state, rb.key(0), 3)
            continue
        with pytest.raises(error, match=message):
            rb.sample(state, rb.key(0), 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: frb.map_items(3), TypeError, "expected a function of items, or one of frb.items, got 3"),  # type: ignore[arg-type]  # refused
        (lambda: frb.map_items(scaled, at="store"), ValueError, "expected at='sample' or at='add', got 'store'"),  # type: ignore[arg-type]  # refused
        (lambda: frb.map_items(Noise(), keyed=True), ValueError, "leave keyed, masked and gives out"),
        (lambda: frb.map_items(Unhashable()), TypeError, "can be hashed"),
        (
            lambda: frb.BufferSpec(STEP, 4, transforms=(frb.map_items(scaled), frb.map_items(stacked))),
            ValueError,
            "at most one of a kind.*compose",
        ),
        (
            lambda: frb.BufferSpec(STEP, 4, transforms=frb.map_items(frb.items.cast("int8", keys=["ob"]))),
            ValueError,
            "cast: the item has no leaf 'ob'",
        ),
    ],
)
def test_what_is_wrong_before_any_array_exists(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# --- programs -------------------------------------------------------------------------------------------------------


def test_a_function_that_does_nothing_costs_nothing() -> None:
    import jax

    import jax_backend

    specs = [frb.BufferSpec(STEP, 8, transforms=t) for t in ((), frb.map_items(same), frb.map_items(same, masked=True))]
    texts = []
    for spec in specs:
        assert spec.known.buffer
        state = jax_backend.init(spec)
        texts.append(jax.jit(jax_backend.sample, static_argnums=2).lower(state, jax_backend.key(0), 3).as_text())
    assert texts[0] == texts[1] == texts[2]


def test_functions_of_items_under_jaxs_transformations() -> None:
    import jax

    import jax_backend as rb

    spec = frb.BufferSpec(STEP, 8, frb.InOrder(), transforms=(frb.map_items(stacked), frb.map_items(Noise(), at="add")))
    items = jax.tree.map(jax.numpy.asarray, batch(4))
    key = rb.key(0)

    @jax.jit
    def program(state: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, sample = rb.sample(rb.add(state, items, key=key), key, 2)
            return state, sample.items

        return jax.lax.scan(step, state, jax.random.split(key, 2))[1]

    found = program(rb.init(spec))
    state = rb.init(spec)
    for k in range(2):
        state = rb.add(state, items, key=jax.random.split(key, 2)[k])
        state, sample = rb.sample(state, jax.random.split(key, 2)[k], 2)
        np.testing.assert_array_equal(sample.items["reward"][0], found["reward"][0][k])
    keys = jax.random.split(key, 3)
    many = jax.vmap(lambda key: rb.sample(state, key, 2)[1].items["both"])(keys)
    assert many.shape == (3, 2, 2, 2)


def test_functions_of_items_are_traced_whole_by_torch_compile() -> None:
    import torch

    import torch_backend as rb

    spec = frb.BufferSpec(STEP, 8, transforms=(frb.map_items(stacked), frb.map_items(Noise(), at="add")))
    items = {name: torch.from_numpy(x) for name, x in batch(4).items()}
    state = rb.add(rb.init(spec), items, key=rb.key(5))

    def step(state: Any, key: Any) -> Any:
        state, sample = rb.sample_(rb.add_(state, items, key=key), key, 3)
        return state, sample.items["both"], sample.items["reward"][0]

    expected = step(rb.own_(rb.add(rb.init(spec), items, key=rb.key(5))), rb.key(1))[1:]
    found = torch.compile(step, fullgraph=True, backend="eager")(rb.own_(state), rb.key(1))[1:]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


# --- the conformance suite ------------------------------------------------------------------------------------------


def unrepeatable(items: Any) -> Any:
    import torch

    return items | {"obs": torch.rand(items["obs"].shape)}


def of_several(items: Any) -> Any:
    """Loses the axis of a batch of one."""
    return items | {"reward": items["reward"].squeeze()}


@dataclasses.dataclass(frozen=True)
class Uneven(Noise):
    """Computes something else on NumPy than on torch."""

    def apply(self, ops: Any, leaves: Any, lead: Any, draws: Any, mask: Any) -> Any:
        return leaves if isinstance(leaves["reward",], np.ndarray) else super().apply(ops, leaves, lead, draws, mask)


@dataclasses.dataclass(frozen=True)
class Lying(Noise):
    """Gives another dtype than it says."""

    def spec(self, leaves: Any, lead: int) -> Any:
        return leaves | {("reward",): frb.Unbounded((), "float16")}


def test_the_conformance_suite_tries_functions_of_items() -> None:
    on = ["numpy", "torch"]
    for at in ("sample", "add"):
        check_transform(frb.map_items(Noise(), at=at), run_on=on, lanes=2)
    for function, message in (
        (
            of_several,
            r"`add` and `sample` of a batch of 1 on torch_backend: .*leaf 'reward': expected a first axis of 1",
        ),
        (unrepeatable, r"leaf 'obs' of a second sample by the same key: .*keyed=True"),
        (Uneven(), r"leaf 'reward' on torch: expected what NumPy gives.*by `ops` alone"),
        (Lying(), r"`apply` on numpy: .*leaf 'reward': expected float16 as its spec says, got float32"),
    ):
        with pytest.raises(ConformanceError, match=f"(?s){message}"):
            check_transform(frb.map_items(function), run_on=on)
