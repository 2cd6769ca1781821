"""How a mixture is laid out: what is known of all mixtures whose buffers have the same specs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

from functional_rb.base.nest import LEAF, Structure, as_several, show
from functional_rb.buffer import checks, samples
from functional_rb.buffer.known import Draws
from functional_rb.buffer.mapping import Mapper
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
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
    """The leaves that the items of all buffers have.

    Attributes:
        structure: which containers the items come in.
        names: the leaves' paths as errors show them, in the order of the structure.
        kinds: of each leaf.
        places: for each buffer that is no mixture, where among its own leaves these are.
        own: and the structure that these come in.
    """

    structure: Structure
    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    places: tuple[tuple[int, ...], ...]
    own: tuple[Structure, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """How samples are laid out.

    Attributes:
        leaves: of the items.
        steps: how many steps a slice has; None for single items.
        flat: whether slices come in one row.
        mapped: whether a function of items is applied.
        may_be_short: whether a sample has a mask: where some buffer may have less to give than was asked for, or gives
            slices.
        betas: the different beta of the samplers that have priorities, ascending.
        without_chance: the first of these samplers for which the chance of a single draw is not known.
        alike: whether one call of a kernel may draw from all buffers: none is a mixture, and all give single items, or
            slices, with replacement, as they are stored; or single items of the same leaves, on all of which the same
            function of items can be carried out at once.
    """

    leaves: Leaves
    steps: int | None
    flat: bool
    mapped: bool
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
        spec.known.draws in (Draws.ITEMS, Draws.SLICES)
        and spec.known.plain
        and not (spec.known.on_hosts_alone or spec.plan.objects)
        for spec in specs
    )
    nested = any(not isinstance(one, BufferSpec) for one in form[1])
    if mapped:
        whole = form[0].leaves is None and _same_function(specs)
    else:
        whole = set(leaves.places) == {tuple(range(len(specs[0].plan.leaves)))}
    alike = plain and not nested and whole
    return Layout(leaves, steps, flat, mapped, short, betas, without_chance, alike)


def _same_function(specs: Sequence[BufferSpec]) -> bool:
    """Whether all buffers have the same function of single items, which needs no numbers drawn for each, and leaves."""
    function, kinds = specs[0].on_sample, {_kinds_of(spec) for spec in specs}
    if any(spec.on_sample != function for spec in specs) or len(kinds) > 1 or _slicing(specs[0])[0] is not None:
        return False
    return function is not None and not (function.draws or function.on_host)


def _kinds_of(spec: BufferSpec) -> tuple[tuple[str, Kind], ...]:
    leaves = zip(spec.plan.names, spec.plan.leaves, strict=True)
    return tuple((name, (tuple(leaf.shape), leaf.dtype)) for name, leaf in leaves)


# Of each call of `sample`, and of each program that JAX traces. torch.compile, which asks too, traces no such cache.
layout_at_once = functools.lru_cache(maxsize=256)(layout_of)


def stored_leaves(form: Form) -> Leaves:
    """The leaves that all buffers store alike, where functions of items may give samples others.

    Raises:
        ValueError: if the buffers store different items, or with such functions, if they store no leaf alike.
    """
    specs = specs_of(form)
    if all(spec.on_sample is None for spec in specs):
        return _leaves_of(form, None)
    each, wanted = [_leaves_of(spec, None) for spec in specs], _wanted(form)
    kinds = [dict(zip(one.names, one.kinds, strict=True)) for one in each]
    first = each[0]
    names = tuple(
        name
        for name in first.names
        if all(one.get(name) == kinds[0][name] for one in kinds) and all(name in one for one in wanted)
    )
    if not names:
        raise ValueError(
            "get: expected a leaf of samples that all buffers store alike, as get reads what is stored, and not what "
            "functions of items make of it; read each buffer by itself: rb.get(mixture[k], handles)"
        )
    structure = first.structure
    if names != first.names or any(one.structure != structure for one in each):
        structure, names = _in_dicts(names)
    return _chosen(each, structure, names)


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
        return Leaves(outline.structure, outline.names, kinds, (tuple(range(len(kinds))),), (outline.structure,))
    spec, forms = form
    members = [_leaves_of(one, mapper) for one in forms]
    if spec.leaves is None:
        for k, other in enumerate(members):
            _check_same(members[0], other, k)
        return _chosen(members, members[0].structure, members[0].names)
    for k, member in enumerate(members):
        for name in spec.leaves:
            if name not in member.names:
                raise ValueError(
                    f"Mixture: leaves: states[{k}] has no leaf {name!r}, expected some of "
                    f"{', '.join(map(repr, member.names))}{as_several(tuple(name.split('/')), member.names)}"
                )
    return _chosen(members, *_in_dicts(spec.leaves))


def _chosen(members: Sequence[Leaves], structure: Structure, names: tuple[str, ...]) -> Leaves:
    """Leaves of these names, which all members have, of the same kinds in all of them."""
    at = [[member.names.index(name) for name in names] for member in members]
    kinds = tuple(members[0].kinds[k] for k in at[0])
    for number, (member, own) in enumerate(zip(members, at, strict=True)):
        for name, kind, k in zip(names, kinds, own, strict=True):
            if member.kinds[k] != kind:  # then the rows of all cannot come in one array
                shape, dtype = member.kinds[k]
                raise ValueError(
                    f"Mixture: leaf {name!r}: expected shape {kind[0]} and dtype {kind[1]} as in states[0], got "
                    f"{shape} and {dtype} in states[{number}]; leave the leaf out of frb.Mixture(..., leaves=[...])"
                )
    places = (
        tuple(places[k] for k in own) for member, own in zip(members, at, strict=True) for places in member.places
    )
    return Leaves(structure, names, kinds, tuple(places), tuple(one for member in members for one in member.own))


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
    # Of n-step returns beside single steps a sample could not tell by what each row is to be bootstrapped.
    returns = [next((one for one in spec.transforms if isinstance(one, NStep)), None) for spec in specs]
    several = next((one for one in returns if one is not None), None)
    if several is None or None not in returns:
        return
    raise ValueError(
        f"sample: buffer {returns.index(None)} of the mixture gives single steps, while others give n-step returns, "
        f"whose extras discount and nonterminal all rows need; give it transforms="
        f"frb.n_step(1, gamma={several.gamma}), by rb.with_spec(state, dataclasses.replace(state.spec, transforms=...))"
    )
