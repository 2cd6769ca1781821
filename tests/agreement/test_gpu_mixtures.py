"""Mixtures by kernels for GPUs: emulated in several orders, beside the plain engine to the bit, on torch and on JAX."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.ops import part_kernels
from jax_backend import mixtures as jax_mixtures
from jax_backend.compiling import compile
from tests.agreement import gpu_on_xla
from tests.agreement.jax_programs import bits, cuda, otherwise
from tests.agreement.mixed_samples import FLAGS, told
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort

pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]
ITEM: Final = {
    "x": frb.Unbounded(()),
    "n": frb.Unbounded((3,), "int32"),
    "image": frb.Unbounded((1100,), "uint8"),
    "done": frb.Binary(()),
}
SAMPLERS: Final = {
    "uniform": frb.Uniform(),
    "prioritized": frb.Prioritized(0.7, 0.4),
    "ever": frb.Prioritized(1.0, 0.4, "ever"),
}
SLICES: Final = {
    "trajectories": frb.Slices(3, strict_length=False),
    "windows": frb.Slices(3, weighting="window", strict_length=False, span=(1, 0)),
    "prioritized slices": frb.PrioritizedSlices(3, alpha=0.7, beta=0.4, strict_length=False),
}
FLAT: Final = {f"flat {name}": dataclasses.replace(sampler, flat=True) for name, sampler in SLICES.items()}
# Those whose rows may come in one batch.
KINDS: Final[tuple[dict[str, Any], ...]] = SAMPLERS, SLICES, FLAT
ALL: Final = SAMPLERS | SLICES | FLAT


def items(seed: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 2, (n, *leaf.shape)).astype(leaf.dtype) for name, leaf in ITEM.items()} | {
        "x": np.arange(n, dtype=np.float32) + 100 * seed
    }


def buffer(
    rb: Any, seed: int, capacity: int, sampler: str, count: int, silent: bool = False, lanes: int | None = None
) -> Any:
    """A buffer of some steps of each lane, some or all of which have priorities of zero."""
    state = rb.init(frb.BufferSpec(ITEM, capacity * (lanes or 1), ALL[sampler], lanes=lanes))
    if not count:
        return state
    lead = (count,) if lanes is None else (count, lanes)
    batch = {name: leaf.reshape(*lead, *leaf.shape[1:]) for name, leaf in items(seed, count * (lanes or 1)).items()}
    if not ALL[sampler].has_priorities:
        return rb.add(state, batch)
    numbers = np.random.default_rng(seed).choice([0.0, 0.3, 1.0, 7.5], lead).astype(np.float32) * (not silent)
    return rb.add(state, batch, priorities=numbers)


Case = tuple[list[tuple[Any, ...]], dict[str, Any], int, float | None, int]


@st.composite
def cases(draw: Any) -> Case:
    """Buffers, of which some are empty; how they are mixed; how many rows; beta; and a key."""
    count, names = draw(st.integers(1, 4)), [*draw(st.sampled_from(KINDS))]
    lanes = st.none() | st.integers(1, 3)
    each = st.tuples(st.integers(1, 17), st.sampled_from(names), st.integers(0, 20), st.booleans(), lanes)
    buffers = [draw(each) for _ in range(count)]
    how: dict[str, Any] = {"how": draw(st.sampled_from(["exact", "items", "buffers"]))}
    shares = draw(
        st.none() | st.lists(st.sampled_from([0.0, 1e-40, 0.1, 0.7, 1.0, 3.0]), min_size=count, max_size=count)
    )
    if shares is not None and sum(shares) > 0:
        how["p"] = draw(st.sampled_from([list, lambda p: torch.tensor(p)]))(shares)
    rows = draw(st.integers(1, 40))
    if how["how"] == "buffers":
        how["parts"] = draw(st.integers(1, 5))
        rows *= how["parts"]
    return buffers, how, rows, draw(st.none() | st.sampled_from([0.0, 0.4, 1.0])), draw(st.integers(0, 2**63))


def mixed(case: Case) -> frb.Mixture:
    buffers, how, *_ = case
    return frb.Mixture([buffer(torch_backend, k, *each) for k, each in enumerate(buffers)], **how)


@pytest.mark.few(2)
@pytest.mark.parametrize(("order", "blocks"), [("forward", 1000), ("backward", 3), ("scattered", 2)])
@hypothesis.settings(max_examples=effort(15, 500), deadline=None)
@hypothesis.given(cases())
def test_samples_are_those_of_the_plain_engine(order: str, blocks: int, case: Case) -> None:
    _, _, rows, beta, seed = case
    rb, key = torch_backend, torch_backend.key(seed)
    plain, kernels = mixed(case), len(case[0])
    try:
        expected = rb.sample(plain, key, rows, beta)[1]
    except ValueError:  # nothing can be drawn, or beta has to be told
        expected = None
    with emulated_gpu.using(order, blocks, share=30) as emulated:
        mixture = mixed(case)
        emulated.note()
        before = len(emulated.launched)
        try:
            after, found = rb.sample(mixture, key, rows, beta)
        except ValueError:
            assert expected is None
            return
        assert after is mixture
    name = "sample_mixture" if case[0][0][1] in SAMPLERS else "sample_mixed_slices"
    assert [name for name, _ in emulated.launched[before:]] == [name] * kernels
    if expected is None:
        assert (found.indices == -1).all()
        assert not found.weights.any()
    else:
        assert told(found) == told(expected)


def pair(rb: Any, **how: Any) -> frb.Mixture:
    states = [buffer(rb, 1, 8, "uniform", 5), buffer(rb, 2, 30, "prioritized", 20), buffer(rb, 3, 9, "ever", 4)]
    return frb.Mixture(states, **how)


def of_slices(rb: Any, flat: str = "", **how: Any) -> frb.Mixture:
    """Of buffers of slices, one of which has two lanes, and another one nothing."""
    states = [
        buffer(rb, 1, 8, f"{flat}trajectories", 6, lanes=2),
        buffer(rb, 2, 30, f"{flat}prioritized slices", 20),
        buffer(rb, 3, 9, f"{flat}windows", 0),
    ]
    return frb.Mixture(states, **how)


of_flat_slices = functools.partial(of_slices, flat="flat ")


def life(rb: Any, p: Any) -> list[bytes]:
    """Draws and updates of priorities in turn, after which what was drawn depends on them."""
    mixture, seen = pair(rb, p=[0.2, 0.5, 0.3], how="items"), []
    for k in range(4):
        mixture = rb.add(mixture, items(k, 3), to=k % 3)
        mixture, sample = rb.sample(mixture, rb.key(k), 12, 0.5, p=p if k % 2 else None)
        mixture = rb.update(mixture, sample.indices, abs(sample.items["x"]) % 7)
        seen += told(sample)
    drawn = rb.sample(mixture, rb.key(9), 200, 0.5)[1]
    return [*seen, *told(drawn), *(np.asarray(x).tobytes() for x in rb.counts(mixture))]


def test_draws_and_updates_of_torch() -> None:
    expected = life(torch_backend, [1.0, 2.0, 1.0])
    with emulated_gpu.using("scattered", blocks=3) as emulated:
        assert life(torch_backend, [1.0, 2.0, 1.0]) == expected
    names = [name for name, _ in emulated.launched]
    assert names[-3:] == ["sample_mixture"] * 3
    assert names.count("apart") == 4
    assert names.count("update") == 12  # also of the buffers that have no priorities


# --- JAX --------------------------------------------------------------------------------------------------------------


def step(mixture: Any, key: jax.Array, p: Any = None) -> Any:
    mixture, sample = jax_backend.sample(mixture, key, 12, 0.5, p=p)
    mixture = jax_backend.update(mixture, sample.indices, jnp.abs(sample.items["x"]) % 7)
    return mixture, (sample.items, sample.indices, sample.weights, sample.probabilities)


def in_a_scan(mixture: Any) -> Any:
    return lax.scan(step, mixture, jax_backend.split(jax_backend.key(3), 3))


def traced_shares(mixture: Any) -> Any:
    return step(mixture, jax_backend.key(1), jnp.asarray([0.3, 0.3, 0.4]) * jax_backend.size(mixture))


def by_vmap(mixture: Any) -> Any:
    keys = jax_backend.split(jax_backend.key(4), 3)
    return jax.vmap(lambda key, p: step(mixture, key, p)[1])(keys, jnp.arange(9.0).reshape(3, 3))


def in_a_cond(mixture: Any) -> Any:
    key = jax_backend.key(5)
    return lax.cond(jax_backend.size(mixture) > 3, lambda: step(mixture, key)[1], lambda: step(mixture, key)[1])


def slices_in_a_scan(mixture: Any) -> Any:
    def once(mixture: Any, key: jax.Array) -> Any:
        mixture, sample = jax_backend.sample(mixture, key, 12, 0.5)
        handles = sample.indices.reshape(-1, 2)
        return jax_backend.update(mixture, handles, jnp.abs(sample.items["x"]).reshape(-1) % 7), sample

    mixture, sample = lax.scan(once, mixture, jax_backend.split(jax_backend.key(7), 3))
    flags = [getattr(sample, name) for name in FLAGS]
    return mixture, (sample.items["n"], sample.indices, sample.weights, sample.probabilities, flags)


def of_empty_buffers(rb: Any, **how: Any) -> frb.Mixture:
    return frb.Mixture([buffer(rb, 1, 8, "uniform", 0), buffer(rb, 2, 30, "prioritized", 0)], **how)


PROGRAMS: Final[dict[str, tuple[Callable[[Any], Any], Callable[..., Any], dict[str, Any]]]] = {
    "scan": (in_a_scan, pair, {"how": "items", "p": [0.2, 0.5, 0.3]}),
    "vmap": (by_vmap, pair, {"how": "buffers", "parts": 4}),
    "slices": (slices_in_a_scan, of_slices, {"how": "exact", "p": [0.2, 0.5, 0.3]}),
    "shares": (traced_shares, pair, {"how": "exact"}),
    "cond": (in_a_cond, pair, {"how": "exact", "p": [0.2, 0.5, 0.3]}),
    "flat slices": (slices_in_a_scan, of_flat_slices, {"how": "items"}),
}


def run(program: str) -> Any:
    function, make, how = PROGRAMS[program]
    return bits(jax.jit(function)(make(jax_backend, **how)))


CPUS: Final[dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "exact": (pair, {"how": "exact"}),
    "buffers": (pair, {"how": "buffers", "p": [0.2, 0.5, 0.3], "parts": 4}),
    "slices": (of_slices, {"how": "exact", "p": [0.2, 0.5, 0.3]}),
    "flat slices": (of_flat_slices, {"how": "items"}),
    "nothing": (of_empty_buffers, {"how": "items"}),
}


@pytest.mark.parametrize("name", CPUS)
def test_one_call_on_cpus_draws_what_each_buffer_draws_by_itself(name: str) -> None:
    make, how = CPUS[name]
    mixture, told = make(jax_backend, **how), []
    keys, shares = (
        jax_backend.split(jax_backend.key(4), 3),
        jnp.asarray(np.eye(3, len(mixture), dtype=np.float32) + 0.1),
    )
    for draw in (jax_mixtures._at_once, jax_mixtures._by_buffer):

        def drawn(key: jax.Array, p: jax.Array, draw: Callable[..., Any] = draw) -> Any:
            with part_kernels.using(compile.table(True)):
                return draw(mixture, key, 12, p, None), draw(mixture, key, 12, None, p[0])

        compiled = jax.jit(jax.vmap(drawn))
        assert ("functional_rb_sample_mixture" in compiled.lower(keys, shares).as_text()) is (not told)
        told.append(bits(compiled(keys, shares)))
    assert told[0] == told[1]


@pytest.mark.parametrize("program", effort([*PROGRAMS][:3], [*PROGRAMS]))
def test_programs_of_jax(program: str) -> None:
    with otherwise():
        expected = run(program)
    with gpu_on_xla.using("scattered", blocks=4, share=3) as emulated:
        assert run(program) == expected
    names = [name for name, _ in emulated.launched]
    assert names.count("sample_mixed_slices" if "slices" in program else "sample_mixture") == (
        {"shares": 1, "cond": 1}.get(program, 3) * 3
    )
    assert not {"sample", "draw_slices"} & {*names}


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_jax_on_a_gpu(program: str) -> None:
    with otherwise():
        expected = run(program)
    assert run(program) == expected


# --- functions of items -----------------------------------------------------------------------------------------------


def halved(items: dict[str, Any]) -> dict[str, Any]:
    return {"x": items["x"] / 2, "sum": items["n"].sum(-1)}


def doubled(items: dict[str, Any]) -> dict[str, Any]:
    return {"x": items["x"] * 2, "sum": items["n"].sum(-1)}


MAPPED: Final[dict[str, tuple[tuple[Any, Any], bool]]] = {
    "the same function": ((halved, halved), True),
    "one of frb.items": ((frb.items.normalize(1.0, 3.0, "x"),) * 2, True),
    "different ones": ((halved, doubled), False),
    "with a key": ((frb.items.random_shift(2, "image"),) * 2, True),
}


def mapped_buffer(function: Any, seed: int) -> Any:
    image = frb.Bounded(0, 255, (6, 6, 1), "uint8")
    batch = items(seed, 9) | {"image": np.random.default_rng(seed).integers(0, 255, (9, 6, 6, 1)).astype(np.uint8)}
    spec = frb.BufferSpec(ITEM | {"image": image}, 20, frb.Prioritized(0.7, 0.4), transforms=frb.map_items(function))
    return torch_backend.add(torch_backend.init(spec), batch, priorities=np.arange(1, 10, dtype=np.float32))


@pytest.mark.parametrize("name", MAPPED)
def test_functions_of_items_that_all_buffers_have_are_carried_out_on_what_launches_draw(name: str) -> None:
    functions, is_launched = MAPPED[name]

    def sampled() -> Any:
        states = [mapped_buffer(function, k) for k, function in enumerate(functions)]
        return torch_backend.sample(frb.Mixture(states, [0.3, 0.7], how="items"), torch_backend.key(0), 16)[1]

    with frb.kernels(False):
        expected = sampled()
    with emulated_gpu.using("scattered") as emulated:
        found = sampled()
    host = sampled()
    names = {launched for launched, _ in emulated.launched}
    assert ("sample_mixture" in names) == is_launched
    for one in (found, host):
        assert one.items.keys() == expected.items.keys()
        assert all(torch.equal(one.items[key], expected.items[key]) for key in expected.items)
        for field in ("indices", "weights", "probabilities"):
            assert torch.equal(getattr(one, field), getattr(expected, field))
