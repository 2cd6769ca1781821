"""How a mixture is laid out: what is known of all mixtures whose buffers have the same specs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from functional_rb.base.nest import LEAF, Structure, as_several, show
from functional_rb.buffer import checks, samples
from functional_rb.buffer.known import Draws
from functional_rb.buffer.mapping import Mapper
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.item_function import HostFunction, ItemFunction
from functional_rb.mixture.shares import LARGEST_BATCH
from functional_rb.mixture.value import Mixture, MixtureSpec
from functional_rb.samplers.base import SamplerBase
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.specs.regrouped import with_lead
from functional_rb.specs.values import Outline
from functional_rb.transforms.returns import NStep

# What is static about a state or a mixture, hashable.
Form: TypeAlias = "BufferSpec | tuple[MixtureSpec, tuple[Form, ...]]"
# Shape, behind the axis of the batch, and dtype of a leaf.
Kind: TypeAlias = tuple[tuple[int, ...], str]


def form_of(state: State | Mixture) -> Form:
    """The spec of a state; of a mixture its own and the forms of its buffers."""
    if isinstance(state, Mixture):
        return state.spec, tuple(form_of(one) for one in state.states)
    return state.spec


def specs_of(form: Form) -> tuple[BufferSpec, ...]:
    """The specs of all buffers, in their order."""
    return (form,) if isinstance(form, BufferSpec) else tuple(spec for one in form[1] for spec in specs_of(one))


@functools.cache
def remembers(form: Form) -> bool:
    """Whether drawing changes any of the buffers."""
    return any(spec.sampler.remembers for spec in specs_of(form))


@dataclasses.dataclass(frozen=True, eq=False)
class Leaves:
    """The leaves that samples of a buffer have, or those that the samples of all buffers of a mixture have.

    Attributes:
        structure: which containers the items come in.
        names: the leaves' paths as errors show them, in the order of the structure.
        kinds: of each leaf.
        places: for each state of a mixture, where among its own leaves these are.
        members: for each state of a mixture, its own leaves.
    """

    structure: Structure
    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    places: tuple[tuple[int, ...], ...] = ()
    members: tuple[Leaves, ...] = ()


class Whole(NamedTuple):
    """A function of items that is carried out on a whole batch, as all buffers have it and store the same leaves.

    Attributes:
        spec: of one of the buffers.
        structure: in which containers the leaves come that it gives.
        places: which of these leaves a sample has.
    """

    spec: BufferSpec
    structure: Structure
    places: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """How samples are laid out.

    Attributes:
        leaves: of the items.
        size: how many rows a batch has.
        steps: how many steps a slice has; None for single items.
        flat: whether slices come in one row.
        mapped: whether a function of items is applied.
        function: that of the whole batch; None where each buffer applies its own to what it draws, or there is none.
        may_be_short: whether a sample has a mask: where some buffer may have less to give than was asked for, or gives
            slices.
        betas: the different beta of the samplers that have priorities, ascending.
        without_chance: the first of these samplers for which the chance of a single draw is not known.
        alike: whether one call of a kernel may draw from all buffers: none is a mixture, and all give single items, or
            slices, with replacement, of the same leaves as they are stored.
    """

    leaves: Leaves
    size: int
    steps: int | None
    flat: bool
    mapped: bool
    function: Whole | None
    may_be_short: bool
    betas: tuple[float, ...]
    without_chance: SamplerBase | None
    alike: bool


def layout_of(form: Form, mapper: Mapper, size: int) -> Layout:
    """The layout of samples of a mixture, of so many rows; the mapper evaluates functions of items.

    Raises:
        ValueError: for a batch that the mixture cannot give, or buffers that hold or give different items.
    """
    assert not isinstance(form, BufferSpec)
    _check_size(form, size)
    specs = specs_of(form)
    _check_n_step(specs)
    steps, flat, _ = _slicing(specs[0])
    mapped = any(spec.on_sample is not None for spec in specs)
    leaves = _leaves_of(form, mapper if mapped else None)
    short = steps is not None or any(not spec.sampler.single_law or spec.sampler.remembers for spec in specs)
    weighing = [spec.sampler for spec in specs if spec.sampler.has_priorities]
    betas = tuple(sorted({getattr(sampler, "beta", 0.0) for sampler in weighing}))
    without_chance = next((sampler for sampler in weighing if not sampler.single_law), None)
    plain = all(
        spec.known.draws in (Draws.ITEMS, Draws.SLICES) and spec.known.plain and not spec.plan.objects for spec in specs
    )
    nested = any(not isinstance(one, BufferSpec) for one in form[1])
    as_stored = set(leaves.places) == {tuple(range(len(specs[0].plan.leaves)))}
    function = _whole(specs, leaves) if mapped else None
    alike = plain and not nested and (function is not None if mapped else as_stored)
    return Layout(leaves, size, steps, flat, mapped, function, short, betas, without_chance, alike)


def _whole(specs: Sequence[BufferSpec], leaves: Leaves) -> Whole | None:
    # What the host's functions give may depend on each other's shapes, and they read what each buffer stores.
    spec, places = specs[0], tuple(range(len(leaves.names)))
    if spec.on_sample is None or spec.on_sample.on_host:
        return None
    for other in specs:
        same = other.on_sample == spec.on_sample and other.plan.structure == spec.plan.structure
        if not same or _kinds_of(other) != _kinds_of(spec):
            return None
    while leaves.members:
        leaves, places = leaves.members[0], tuple(leaves.places[0][k] for k in places)
    return Whole(spec, leaves.structure, places)


def needs_whole_batch(spec: BufferSpec) -> bool:
    """Whether what a function of items gives of a row may depend on which rows come with it.

    Those of the library treat each item, or slice, by itself. A sampler that remembers what it draws, and draws whole
    batches alone, would lose items.
    """
    function = spec.on_sample
    if function is None or isinstance(function.function, ItemFunction | HostFunction):
        return False
    return spec.sampler.heeds_wanted


def _kinds_of(spec: BufferSpec) -> dict[str, Kind]:
    return {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in zip(spec.plan.names, spec.plan.leaves, strict=True)}


# Asked by each call of `sample`, and as JAX traces a program. torch.compile, which asks too, traces no such cache.
layout_at_once = functools.lru_cache(maxsize=256)(layout_of)


def stored_leaves(form: Form) -> tuple[Structure, tuple[str, ...]]:
    """The containers and the names of the leaves that all buffers store alike, whatever functions of items make of it.

    Raises:
        ValueError: if there are none, or if the buffers store different items, and no functions that may tell why.
    """
    specs, wanted = specs_of(form), _wanted(form)
    if all(spec.on_sample is None for spec in specs):
        leaves = _leaves_of(form, None)
        return leaves.structure, leaves.names
    plan, kinds = specs[0].plan, [_kinds_of(spec) for spec in specs]
    names = tuple(
        name
        for name in plan.names
        if all(one.get(name) == kinds[0][name] for one in kinds) and all(name in one for one in wanted)
    )
    if not names:
        raise ValueError(
            "get: expected a leaf of samples that all buffers store alike, as get reads what is stored, and not what "
            "functions of items make of it; read each buffer by itself: rb.get(mixture[k], handles)"
        )
    whole = names == plan.names and all(spec.plan.structure == plan.structure for spec in specs)
    return (plan.structure, names) if whole else _in_dicts(names)


def _wanted(form: Form) -> list[tuple[str, ...]]:
    # The leaves that a mixture names, and those that each mixture in it does.
    if isinstance(form, BufferSpec):
        return []
    inner = [names for one in form[1] for names in _wanted(one)]
    return inner if form[0].leaves is None else [form[0].leaves, *inner]


def _leaves_of(form: Form, mapper: Mapper | None) -> Leaves:
    """The leaves of samples, by a mapper, or without one of what is stored."""
    if isinstance(form, BufferSpec):
        # Shapes are asked for with a batch of 2, whose axis is then left out.
        outline, lead = form.plan.outline, form.sampler.leading_shape(2)[1:]
        # The steps of a slice are axes of what a function of items gives, as it may change them. They are so for all
        # buffers of a mixture or for none, as a TensorDict knows how many axes of it are the batch's.
        if mapper is not None:
            spec_of_sample = samples.sample_spec(mapper, form, 2)
            outline, lead = Outline.of(with_lead(spec_of_sample, lambda shape: shape[1:]), "Mixture"), ()
        kinds = tuple(((*lead, *leaf.shape), str(leaf.dtype)) for leaf in outline.leaves)
        return Leaves(outline.structure, outline.names, kinds)
    spec, forms = form
    members = tuple(_leaves_of(one, mapper) for one in forms)
    structure, names = members[0].structure, members[0].names
    if spec.leaves is not None:
        structure, names = _in_dicts(spec.leaves)
    for k, member in enumerate(members):
        if spec.leaves is None:
            _check_same(members[0], member, k)
        missing = next((name for name in spec.leaves or () if name not in member.names), None)
        if missing is not None:
            raise ValueError(
                f"Mixture: leaves: states[{k}] has no leaf {missing!r}, expected some of "
                f"{', '.join(map(repr, member.names))}{as_several(tuple(missing.split('/')), member.names)}"
            )
    places = tuple(tuple(member.names.index(name) for name in names) for member in members)
    kinds = tuple(members[0].kinds[place] for place in places[0])
    for k, (member, positions) in enumerate(zip(members, places, strict=True)):
        for name, kind, place in zip(names, kinds, positions, strict=True):
            if member.kinds[place] != kind:  # then the rows of all cannot come in one array
                shape, dtype = member.kinds[place]
                raise ValueError(
                    f"Mixture: leaf {name!r}: expected shape {kind[0]} and dtype {kind[1]} as in states[0], got "
                    f"{shape} and {dtype} in states[{k}]; leave the leaf out of frb.Mixture(..., leaves=[...])"
                )
    return Leaves(structure, names, kinds, places, members)


def _check_same(first: Leaves, other: Leaves, k: int) -> None:
    missing = [name for name in first.names if name not in other.names]
    more = [name for name in other.names if name not in first.names]
    if missing:
        difference = f"leaf {missing[0]!r} is in states[0] and not in states[{k}]"
    elif more:
        difference = f"leaf {more[0]!r} is in states[{k}] and not in states[0]"
    elif first.structure != other.structure:
        difference = f"states[{k}] has its leaves in other containers than states[0]"
    else:
        return
    raise ValueError(
        f"Mixture: expected buffers that hold the same items, but {difference}; name the leaves that samples should "
        f"have: frb.Mixture(..., leaves=[...])"
    )


def _in_dicts(names: tuple[str, ...]) -> tuple[Structure, tuple[str, ...]]:
    """Dicts for leaves of these names, and the names in the order in which the leaves lie in it."""

    def structure(paths: Sequence[Sequence[str]]) -> Structure:
        if paths == [[]]:
            return LEAF
        below: dict[str, list[Sequence[str]]] = {}
        for first, *rest in paths:
            below.setdefault(first, []).append(rest)
        return Structure("mapping", None, tuple(below), tuple(map(structure, below.values())))

    nested = structure([name.split("/") for name in names])
    return nested, tuple(show(path) for path in nested.paths)


def _check_size(form: tuple[MixtureSpec, tuple[Form, ...]], size: int) -> None:
    if size > LARGEST_BATCH:
        raise ValueError(f"sample: expected batch_size up to {LARGEST_BATCH} of a mixture, got {size}; draw several")
    if form[0].how == "buffers" and size % form[0].parts:
        raise ValueError(
            f"sample: expected batch_size as a multiple of the mixture's {form[0].parts} parts, got {size}; give "
            f"frb.Mixture(..., parts=...), or how='exact'"
        )
    kinds = {}
    for spec in specs_of(form):
        sampler = spec.sampler
        if getattr(sampler, "batch", "slices") == "steps":
            raise ValueError(
                f"sample: a mixture's batch_size counts slices, and {sampler} counts steps; give it batch='slices'"
            )
        if not sampler.takes_out:
            sampler.check_batch(spec.plan, size)
        checks.rows_of_sample(spec, size)
        kinds[_slicing(spec)] = sampler
    if len(kinds) > 1:
        raise ValueError(
            f"sample: expected buffers whose samplers all give single items, or slices of one length in the same form, "
            f"got {', '.join(map(str, kinds.values()))}; give them the same length and flat"
        )


def _slicing(spec: BufferSpec) -> tuple[int | None, bool, bool]:
    """How many steps a slice has, None of single items; whether these come in one row, and are of trajectories."""
    shape = spec.sampler.leading_shape(2)
    steps = None if shape == (2,) else math.prod(shape) // 2
    return steps, steps is not None and len(shape) == 1, isinstance(spec.sampler, Trajectories)


def _check_n_step(specs: Sequence[BufferSpec]) -> None:
    # A sample of n-step returns and single steps could not tell by what each row is to be bootstrapped.
    returns = [next((one for one in spec.transforms if isinstance(one, NStep)), None) for spec in specs]
    several = next((one for one in returns if one is not None), None)
    if several is None or None not in returns:
        return
    raise ValueError(
        f"sample: buffer {returns.index(None)} of the mixture gives single steps, while others give n-step returns, "
        f"whose extras discount and nonterminal all rows need; give it transforms="
        f"frb.n_step(1, gamma={several.gamma}), by rb.with_spec(state, dataclasses.replace(state.spec, transforms=...))"
    )
