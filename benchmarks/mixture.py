"""Drawing from several buffers beside flashbax's mixer and torchrl's ensembles."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, get_args

import numpy as np

import functional_rb as frb
from benchmarks import ours
from benchmarks.compare import Effort, Section, measure
from benchmarks.contender import AnySampler, Backend, Calls, Entry, Mixing
from benchmarks.goals import MIXERS, OURS_MIXED, mixture_comparisons
from benchmarks.group_report import markdown, who_did_not_run
from benchmarks.report import ratio_rows

GROUPS: tuple[tuple[Backend, Mixing], ...] = tuple((b, g) for b in get_args(Backend) for g in get_args(Mixing))


@dataclass(frozen=True)
class MixtureWorkload:
    """What the buffers hold.

    Attributes:
        capacity: items in each of them, all of which are there.
        width: float32 numbers in an item.
        batch: items drawn from all together, the same share from each.
        keys: different ones in turn.
        seed: of all random numbers.
    """

    capacity: int = 100_000
    width: int = 40
    batch: int = 256
    keys: int = 512
    seed: int = 0


WORK = MixtureWorkload()


def count_of(group: Mixing) -> int:
    """How many buffers there are in a group."""
    return int(group.split(" ")[1])


def is_prioritized(group: Mixing) -> bool:
    """Whether they are drawn by priorities."""
    return group.startswith("prioritized")


def roster(work: MixtureWorkload, backend: Backend, group: Mixing) -> list[Entry]:
    """Everyone who takes part in one group."""
    builders: dict[str, Callable[..., Calls]] = {
        **dict.fromkeys(OURS_MIXED if backend == "torch" else [ours.NAME], of_ours),
        MIXERS[backend]: of_flashbax if backend == "jax" else of_torchrl,
    }
    return [Entry(name, backend, group, partial(build, name, work, backend, group)) for name, build in builders.items()]


def mixture(
    work: MixtureWorkload,
    effort: Effort,
    *,
    groups: Iterable[tuple[Backend, Mixing]] = GROUPS,
    entries: Callable[[MixtureWorkload, Backend, Mixing], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other; who cannot run is named with the reason."""
    built: dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]] = {
        (backend, group): partial(entries, work, backend, group) for backend, group in groups
    }
    return measure(built, mixture_comparisons(), effort, say=say)


def text(section: Section, work: MixtureWorkload) -> str:
    """The section in Markdown: what was measured, ratios and medians, and who did not run."""
    about = (
        f"Batches of {work.batch} items of {work.width} float32 numbers are drawn from 2 or 4 buffers of "
        f"{work.capacity:,} items each, the same share from each, uniformly or by priority."
    )
    who = [
        f'- {ours.NAME}: `rb.sample` of a `frb.Mixture` with `how="exact"`, and on torch the others; compiled on JAX',
        f"- {MIXERS['jax']}: `make_mixer` of item buffers, or of prioritised trajectory buffers of one step, compiled",
        f"- {MIXERS['torch']}: `ReplayBufferEnsemble` of `TensorDictReplayBuffer`s",
    ]
    times = "Time of `compared` over time of `against`, median and quartiles of the rounds' ratios:"
    return "\n".join([about, "", *who, "", times, "", *markdown(ratio_rows(section)), "", *who_did_not_run(section)])


def _stored(work: MixtureWorkload) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The items of a buffer, and their priorities."""
    rng = np.random.default_rng(work.seed)
    return rng.random((work.capacity, work.width), np.float32), rng.lognormal(size=work.capacity).astype(np.float32)


def of_ours(name: str, work: MixtureWorkload, backend: Backend, group: Mixing) -> Calls:
    """A mixture on either backend."""
    rb = importlib.import_module(f"{backend}_backend")
    items, priorities = _stored(work)
    sampler = frb.Prioritized() if is_prioritized(group) else frb.Uniform()
    spec = frb.BufferSpec({"x": frb.Unbounded((work.width,))}, work.capacity, sampler)
    given = priorities if is_prioritized(group) else None
    states = [rb.add_(rb.init(spec), {"x": items}, priorities=given) for _ in range(count_of(group))]
    mixed = frb.Mixture(states, p=[1.0] * len(states), how=OURS_MIXED[name])
    keys = cycle(list(rb.split(rb.key(work.seed), work.keys)))
    if backend == "torch":
        return Calls(name, backend, group, {"sample": lambda: rb.sample(mixed, next(keys), work.batch)})
    import jax

    draw = jax.jit(lambda state, key: rb.sample(state, key, work.batch)[1])
    return Calls(name, backend, group, {"sample": lambda: jax.block_until_ready(draw(mixed, next(keys)))})


def of_flashbax(name: str, work: MixtureWorkload, backend: Backend, group: Mixing) -> Calls:
    """flashbax's mixer."""
    import flashbax
    import jax
    import jax.numpy as jnp
    from flashbax.buffers.mixer import make_mixer

    items, priorities = _stored(work)
    rows = {"x": jnp.asarray(items)}
    if is_prioritized(group):
        buffer: Any = flashbax.make_prioritised_trajectory_buffer(
            add_batch_size=1,
            sample_batch_size=work.batch,
            sample_sequence_length=1,
            period=1,
            min_length_time_axis=1,
            max_length_time_axis=work.capacity,
            device=jax.default_backend(),
        )
        rows = {"x": rows["x"][None]}
    else:
        buffer = flashbax.make_item_buffer(work.capacity, 1, work.batch, add_batches=True)
    state = buffer.add(buffer.init({"x": jnp.zeros(work.width)}), rows)
    if is_prioritized(group):
        state = buffer.set_priorities(state, jnp.arange(work.capacity), jnp.asarray(priorities))
    count = count_of(group)
    states = [jax.tree.map(jnp.copy, state) for _ in range(count)]
    draw = jax.jit(make_mixer([buffer] * count, work.batch, [1 / count] * count).sample)
    keys = cycle(list(jax.random.split(jax.random.key(work.seed), work.keys)))
    return Calls(name, backend, group, {"sample": lambda: jax.block_until_ready(draw(states, next(keys)))})


def of_torchrl(name: str, work: MixtureWorkload, backend: Backend, group: Mixing) -> Calls:
    """torchrl's ensemble."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import (
        LazyTensorStorage,
        ReplayBufferEnsemble,
        TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer,
    )

    items, priorities = _stored(work)
    buffers: list[Any] = []
    for _ in range(count_of(group)):
        storage = LazyTensorStorage(work.capacity)
        if is_prioritized(group):
            importlib.import_module("torchrl._torchrl")  # so that the report shows why it does not load
            buffers.append(
                TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, batch_size=work.batch)
            )
        else:
            buffers.append(TensorDictReplayBuffer(storage=storage, batch_size=work.batch))
        buffers[-1].extend(TensorDict({"x": torch.from_numpy(items)}, [work.capacity]))
        if is_prioritized(group):
            buffers[-1].update_priority(torch.arange(work.capacity), torch.from_numpy(priorities))
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=work.batch)
    return Calls(name, backend, group, {"sample": ensemble.sample})
