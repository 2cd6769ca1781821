"""Values of a spec drawn, tested and projected, and items checked in an add, beside peers and the floor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle
from typing import Any, get_args

import numpy as np

import functional_rb as frb
from benchmarks import floor, ours
from benchmarks.compare import Effort, Section, measure
from benchmarks.contender import AnySampler, Backend, Calls, Checking, Entry
from benchmarks.goals import spec_comparisons
from benchmarks.group_report import ratios_text
from benchmarks.workload import ROW_WORDS, Batch, Workload

# Eager adds on JAX copy the state: a small one, lest that hide the check.
WORK = Workload(capacity=10_000)

CHOICES = {"choice": frb.Categorical(5), "onehot": frb.specs.OneHot(4)}
WORDS = ROW_WORDS + 2  # 32-bit words of a value: a choice has four bytes, and so has the one-hot vector


def item_spec(work: Workload) -> dict[str, Any]:
    """The spec of the workload's items, and two kinds of choices beside."""
    return {**ours.buffer_spec(work, "uniform").item, **CHOICES}


def given(work: Workload, batch: int) -> tuple[Batch, Batch]:
    """Values inside of the spec, and the same with half of the actions outside of their bounds."""
    import torch_backend as rb

    inside = {name: leaf.numpy() for name, leaf in rb.rand(item_spec(work), rb.key(work.seed), batch).items()}
    return inside, inside | {"action": inside["action"] * np.float32(2)}


def roster(work: Workload, backend: Backend, group: Checking) -> list[Entry]:
    """Everyone who takes part in one group."""
    of_jax = backend == "jax"
    builders: dict[str, Callable[..., Calls]]
    if group == "specs":
        builders = {ours.NAME: of_ours, floor.RANDOM: bare_uniform}
        builders |= {ours.EAGER: of_ours} if of_jax else {"torchrl": of_torchrl, "gymnasium": of_gymnasium}
    else:
        names = (ours.NAME, ours.VALIDATED, ours.EAGER, ours.EAGER_VALIDATED)
        builders = dict.fromkeys(names if of_jax else names[:2], of_adds)
    return [Entry(name, backend, group, partial(build, name, work, backend)) for name, build in builders.items()]


def specs(
    work: Workload,
    effort: Effort,
    *,
    groups: Iterable[tuple[Backend, Checking]] = tuple((b, g) for g in get_args(Checking) for b in get_args(Backend)),
    entries: Callable[[Workload, Backend, Checking], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other; who cannot run is named with the reason."""
    built: dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]] = {
        (backend, group): partial(entries, work, backend, group) for backend, group in groups
    }
    return measure(built, spec_comparisons(), effort, say=say)


def text(section: Section, work: Workload) -> str:
    """The section in Markdown: what was measured, ratios and medians, and who did not run."""
    about = (
        f"A value is an item of the other sections (observations of 17 numbers, actions of 6 between -1 and 1) with a "
        f"`Categorical(5)` and a `OneHot(4)` beside. {work.sample_size} are drawn, tested or projected at a time; all "
        f"that are tested lie inside, and of those projected half of the actions do not. {work.add_size} are added "
        f"to a buffer of {work.capacity:,}."
    )
    who = [
        f"- {ours.NAME}: `rb.rand`, `rb.contains` and `rb.project`, on JAX jitted; adds with the state donated",
        f"- {ours.EAGER}: the same calls on JAX, not jitted; {ours.VALIDATED}: `rb.add(..., validate=True)`",
        "- torchrl: `rand`, `is_in` (one answer for all values) and `project` of the same spec, expanded",
        "- gymnasium: `sample` and `contains` (one answer) of a vector environment's space, `Discrete` for `OneHot`",
        f"- {floor.RANDOM}: as many bytes of uniform float32",
    ]
    return ratios_text(about, "\n".join(who), section)


def of_ours(name: str, work: Workload, backend: Backend) -> Calls:
    """The public functions, jitted on JAX but for those that are told to be eager."""
    rb, put, wait, jit = _library(backend, jitted=name == ours.NAME)
    spec, (inside, outside) = item_spec(work), map(put, given(work, work.sample_size))
    rand = jit(lambda key: rb.rand(spec, key, work.sample_size))
    contains, project = (jit(partial(call, spec)) for call in (rb.contains, rb.project))
    keys = cycle(list(rb.split(rb.key(work.seed), work.draws)))
    return Calls(
        name,
        backend,
        "specs",
        {
            "rand": lambda: wait(rand(next(keys))),
            "contains": lambda: wait(contains(inside)),
            "project": lambda: wait(project(outside)),
        },
    )


def of_adds(name: str, work: Workload, backend: Backend) -> Calls:
    """Adds with the check or without, on JAX jitted with the state donated or eager."""
    rb, put, wait, jit = _library(backend, jitted=name in (ours.NAME, ours.VALIDATED))
    add = jit(partial(rb.add, validate=name in (ours.VALIDATED, ours.EAGER_VALIDATED)), donate_argnums=0)
    state = rb.init(frb.BufferSpec(item=item_spec(work), capacity=work.capacity))
    items = put(given(work, work.add_size)[0])

    def add_some() -> None:
        nonlocal state
        state = wait(add(state, items))

    return Calls(name, backend, "validate", {"add": add_some})


def of_torchrl(name: str, work: Workload, backend: Backend) -> Calls:
    """The same spec of torchrl's."""
    import torch
    from tensordict import TensorDict

    torch.manual_seed(work.seed)
    spec = frb.convert.to_library(item_spec(work), "torchrl").expand(work.sample_size)
    batches = given(work, work.sample_size)
    inside, outside = (TensorDict(dict(batch), batch_size=[work.sample_size]) for batch in batches)
    calls = {"rand": spec.rand, "contains": lambda: spec.is_in(inside), "project": lambda: spec.project(outside)}
    return Calls(name, backend, "specs", calls)


def of_gymnasium(name: str, work: Workload, backend: Backend) -> Calls:
    """The batched space of as many environments."""
    from gymnasium.vector.utils import batch_space

    spec = item_spec(work)
    one = frb.convert.to_library(spec | {"onehot": spec["onehot"].to_categorical()}, "gymnasium")
    space = batch_space(one, work.sample_size)
    space.seed(work.seed)
    inside = space.sample()
    return Calls(name, backend, "specs", {"rand": space.sample, "contains": lambda: space.contains(inside)})


def bare_uniform(name: str, work: Workload, backend: Backend) -> Calls:
    """Uniform numbers of as many bytes as the values have."""
    shape = (work.sample_size, WORDS)
    if backend == "torch":
        import torch

        return Calls(name, backend, "specs", {"rand": partial(torch.rand, shape)})
    import jax

    uniform = jax.jit(partial(jax.random.uniform, shape=shape))
    keys = cycle(list(jax.random.split(jax.random.key(work.seed), work.draws)))
    return Calls(name, backend, "specs", {"rand": lambda: jax.block_until_ready(uniform(next(keys)))})


def _library(backend: Backend, *, jitted: bool) -> tuple[Any, Any, Any, Any]:
    """The backend; what makes its arrays of a NumPy batch; what waits for a result; what compiles a function."""

    def as_it_is(function: Any, **told: Any) -> Any:
        return function

    if backend == "torch":
        import torch_backend
        from benchmarks.torch_loop import to_tensors

        return torch_backend, partial(to_tensors, device="cpu"), as_it_is, as_it_is
    import jax

    import jax_backend
    from benchmarks.jax_loop import to_device

    return jax_backend, to_device, jax.block_until_ready, jax.jit if jitted else as_it_is
