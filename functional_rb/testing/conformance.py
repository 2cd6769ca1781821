"""The conformance suite for a sampler, a writer or a transform of one's own.

Each of the three functions takes histories of a buffer that has the strategy, beside plain lists of items. Every step
is carried out by the core over NumPy's arrays, once in place and once on arrays that cannot be written, and by the core
over torch and JAX (under `jit`), where these are installed; all must agree bit for bit. Then the public functions of
each backend are taken through a history: called eagerly, under `jax.jit`, and in place.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis
import numpy as np

from functional_rb.base.extras import is_there
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.strategy import Transform
from functional_rb.samplers.base import SamplerBase
from functional_rb.samplers.uniform import Uniform
from functional_rb.specs import Binary, Unbounded
from functional_rb.specs.base import SpecNest
from functional_rb.testing import carriers, strategies
from functional_rb.testing.faults import ConformanceError, expect
from functional_rb.testing.map_rules import check_map
from functional_rb.testing.public_walk import PublicWalk
from functional_rb.testing.sampler_rules import check_frequencies
from functional_rb.testing.strategies import Action, Add
from functional_rb.testing.tried import SamplerLaw, TransformLaw, Trial, WriterLaw
from functional_rb.testing.walk import Walk
from functional_rb.transforms.map_items import MapItems
from functional_rb.writers.base import WriterBase

# The item that strategies are tried with, if no other is given.
ITEM = {
    "id": Unbounded((), "int32"),
    "obs": Unbounded((2,)),
    "reward": Unbounded(()),
    "done": Binary(()),
}
# What can be tried: the core on NumPy, on torch and on JAX; the public functions of both backends.
CARRIERS = ("numpy", "torch-core", "jax-core", "torch", "torch-inplace", "jax", "jax-jit")
# Histories are drawn, and one that shows a fault is shortened, which takes some seconds.
PHASES = (hypothesis.Phase.generate, hypothesis.Phase.shrink)


def check_sampler(
    sampler: SamplerBase,
    *,
    item: Mapping[str, SpecNest] | None = None,
    law: SamplerLaw | None = None,
    examples: int = 20,
    run_on: Sequence[str] | None = None,
    **spec: Any,
) -> None:
    """See that a sampler keeps the contract of samplers.

    Whatever is added, drawn, updated and cleared: draws name items that are stored, and tell of each what is stored;
    weights and probabilities lie in (0, 1]; a draw changes the state only if the sampler says so (`remembers`); what it
    keeps stays in the shapes and dtypes that it declares; `probabilities` adds up to 1 and is what draws obey; an empty
    buffer gives nothing; of a draw of which not all counts, as in a mixture, it remembers what counts (`heeds_wanted`).
    All carriers give the same bits.

    Args:
        sampler: an instance.
        item: a dict of specs; by default `ITEM`. A leaf "id" that numbers the items is added to it.
        law: what the sampler should do, in plain Python: of the stored items, how likely the next draw is to begin with
            each, up to a factor. No sampler is told of leaves that `update` exchanges, so with a law only the leaf "id"
            is.
        examples: how many histories.
        run_on: which of `CARRIERS` are tried; by default all whose backend is installed.
        spec: other fields of the `BufferSpec`: capacity (12), lanes, batch_size (6), writer, one of the library's.

    Raises:
        ConformanceError: for the first thing that is wrong, with the shortest history that shows it.

    Example:
        >>> from functional_rb import Prioritized, Recency
        >>> check_sampler(Recency(2), run_on=["numpy"], examples=5)
        >>> check_sampler(Prioritized(alpha=1.0), law=lambda steps: [step.value for step in steps],
        ...               run_on=["numpy"], examples=5)
    """
    who = _check_strategy(sampler, SamplerBase, "sampler", "SamplerBase")
    buffer_spec = BufferSpec(_with_id(item), sampler=sampler, **{"capacity": 12, "batch_size": 6, **spec})
    _check_run(Trial(who, buffer_spec, sampler_law=law), examples, _carriers(run_on))


def check_writer(
    writer: WriterBase,
    *,
    item: Mapping[str, SpecNest] | None = None,
    capacity: int = 6,
    lanes: int | None = None,
    law: WriterLaw | None = None,
    examples: int = 20,
    run_on: Sequence[str] | None = None,
) -> None:
    """See that a writer keeps the contract of writers.

    Whatever is added and cleared: what is stored was added, whole, in marked rows, and once; what stays keeps its
    handle, and a handle that has named an item never names another; the size is that of what is stored; a writer that
    says it does not overwrite does not; clearing takes everything out. All carriers give the same bits.

    Args:
        writer: an instance.
        item: a dict of specs; by default `ITEM`. A leaf "id" that numbers the items is added to it.
        capacity: the capacity of the buffer.
        lanes: the lanes of the buffer.
        law: what the writer should do, in plain Python: of all items that were added since the buffer was empty, in
            their order, those that are stored now, in any order.
        examples: how many histories.
        run_on: which of `CARRIERS` are tried; by default all whose backend is installed.

    Raises:
        ConformanceError: for the first thing that is wrong, with the shortest history that shows it.

    Example:
        >>> from functional_rb import RoundRobin
        >>> check_writer(RoundRobin(), law=lambda added: added[-6:], run_on=["numpy"], examples=5)
    """
    who = _check_strategy(writer, WriterBase, "writer", "WriterBase")
    spec = BufferSpec(_with_id(item), capacity, Uniform(), writer, lanes=lanes, batch_size=6)
    _check_run(Trial(who, spec, writer_law=law), examples, _carriers(run_on))


def check_transform(
    transform: Transform,
    *,
    item: Mapping[str, SpecNest] | None = None,
    capacity: int = 12,
    lanes: int | None = None,
    sampler: SamplerBase | None = None,
    law: TransformLaw | None = None,
    examples: int = 20,
    run_on: Sequence[str] | None = None,
) -> None:
    """See that a transform keeps the contract of transforms.

    Whatever is added and drawn: leaves keep the shapes and dtypes of their specs, extras have a row for each item;
    drawing changes nothing that is stored. All carriers give the same bits. Of functions of items (`map_items`), with
    batches of several sizes: a sample is as `rb.sample_spec` tells, the same for the same key, and what is stored does
    not change; an `ItemFunction` gives the same numbers of the same draws with each library.

    Args:
        transform: an instance. With a function that is written for one backend, `run_on` names that.
        item: a dict of specs; by default `ITEM`. A leaf "id" that numbers the items is added to it.
        capacity: the capacity of the buffer.
        lanes: the lanes of the buffer.
        sampler: the sampler of the buffer; by default `Uniform`.
        law: what the transform should do, in plain Python: called with the items that a lane holds, from the oldest on,
            the place of one of them, and its random bits int32 [words], it gives the leaves of that item, by path, that
            are read as others than were stored.
        examples: how many histories.
        run_on: which of `CARRIERS` are tried; by default all whose backend is installed.

    Raises:
        ConformanceError: for the first thing that is wrong, with the shortest history that shows it.

    Example:
        >>> from functional_rb import n_step
        >>> check_transform(n_step(2, gamma=0.5, next_keys=[]), run_on=["numpy"], examples=5)
    """
    who = _check_strategy(transform, Transform, "transform", "Transform")
    spec = BufferSpec(
        _with_id(item), capacity, Uniform() if sampler is None else sampler, lanes=lanes, transforms=transform
    )
    if isinstance(transform, MapItems):
        return check_map(who, transform, spec, _carriers(run_on))
    return _check_run(Trial(who, spec, transform_law=law), examples, _carriers(run_on))


# --- before anything is run ------------------------------------------------------------------------------------------


def _check_strategy(strategy: object, base: type, kind: str, name: str) -> str:
    """Refuse what cannot be part of a spec; returns the name to tell."""
    who = type(strategy).__name__
    expect(
        isinstance(strategy, base),
        who,
        f"its class: expected an instance of a {name}, got {strategy!r}; inherit from {name}",
    )
    frozen = getattr(getattr(strategy, "__dataclass_params__", None), "frozen", False)
    expect(
        frozen,
        who,
        f"its class: expected a frozen dataclass, got {type(strategy)}; write @dataclasses.dataclass(frozen=True) "
        "over it",
    )
    try:
        hashed = hash(strategy)
    except TypeError as error:
        raise ConformanceError(
            f"{who}: its fields: expected values that have a hash, as a spec is static, got {strategy!r} ({error}); "
            f"write tuples for lists and arrays"
        ) from error
    try:
        again = pickle.loads(pickle.dumps(strategy))
    except Exception as error:
        raise ConformanceError(
            f"{who}: pickling: expected what other processes can read, got {error}; define the {kind} and the "
            f"functions in its fields at the top level of a module"
        ) from error
    same = again == strategy and hash(again) == hashed
    expect(same, who, f"pickling: expected an equal copy, got {again!r}; let fields compare by what they mean")
    return who


def _with_id(item: Mapping[str, SpecNest] | None) -> dict[str, SpecNest]:
    parts: object = ITEM if item is None else item  # users pass anything
    if not isinstance(parts, Mapping):
        raise TypeError(f"expected item as a dict of specs, got {item!r:.80}")
    return {"id": Unbounded((), "int32"), **parts}


def _carriers(run_on: Sequence[str] | None) -> tuple[str, ...]:
    if run_on is None:
        return tuple(name for name in CARRIERS if name == "numpy" or is_there(name.split("-")[0]))
    for name in run_on:
        if name not in CARRIERS:
            raise ValueError(f"expected run_on as some of {CARRIERS}, got {name!r}")
    return tuple(run_on)


# --- histories -------------------------------------------------------------------------------------------------------


def _check_run(trial: Trial, examples: int, names: Sequence[str]) -> None:
    # The cheapest first, so that a fault is shown by the core on NumPy, whose arrays one can print, if it has it.
    numpys = [carriers.on_numpy(carriers.IN_PLACE), carriers.on_numpy(carriers.VALUES)]
    others: list[carriers.Carrier] = [carriers.on_torch()] if "torch-core" in names else []
    others += [carriers.on_jax()] if "jax-core" in names else []
    _each_history(trial, examples, False, lambda: Walk(trial, numpys))
    if trial.sampler_law or not (trial.writer_law or trial.transform_law):
        _check_distribution(trial, numpys[0])
    if others:
        _each_history(trial, 3, True, lambda: Walk(trial, [numpys[0], *others]))
    for name in names:
        if not name.endswith("-core") and name != "numpy":
            _each_history(trial, 2, True, functools.partial(PublicWalk, trial, name))


def _each_history(trial: Trial, examples: int, alike: bool, begin: Callable[[], Walk]) -> None:
    spec = trial.spec
    size = spec.batch_size or 6
    # Where programs are compiled, all calls have few shapes, as each shape is a program.
    options: dict[str, Any] = {"sizes": (3,), "batch_sizes": (size,), "steps": 12, "alike": True}
    options = options if alike else {"sizes": (0, 1, 2, 3, 7), "batch_sizes": (size,), "steps": 14}

    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        phases=PHASES,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.histories(spec, **options))
    def on(history: list[Action]) -> None:
        begin().run(history)

    on()


def _check_distribution(trial: Trial, carrier: carriers.Carrier) -> None:
    # Chance is judged for a full buffer: what comes first in each of many batches.
    spec = trial.spec
    if spec.lanes is not None or not spec.writer.overwrites:
        return
    walk = Walk(trial, [carrier])
    walk.go_on("init", walk.call("init", spec))
    new = strategies.numbered(spec.item, strategies.some_items(spec.item, spec.capacity, 7), 0)
    priorities = np.arange(1, spec.capacity + 1, dtype=np.float32) if spec.sampler.has_priorities else None
    walk.add(Add(new, None, priorities, 3))
    check_frequencies(walk)
