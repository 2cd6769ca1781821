"""What the items of a mixture's samples are made of: the leaves that its buffers have in common."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeAlias

from functional_rb.base.nest import LEAF, Structure, as_several, show
from functional_rb.buffer import samples
from functional_rb.buffer.known import Draws
from functional_rb.buffer.mapping import Mapper
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.mixture.value import Mixture, MixtureSpec
from functional_rb.specs.regrouped import with_lead
from functional_rb.specs.values import Outline


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The leaves of a sample.

    Attributes:
        structure: which containers the items come in.
        names: the leaves' paths as errors show them, in the order of the structure.
        leaves: for each leaf its shape, behind the axis of the batch, and its dtype.
        members: of a mixture, the layouts of its buffers.
        places: of a mixture, for each buffer, where among its own leaves these are.
        alike: whether all buffers of a mixture are ones that one call of a kernel may draw from: of single items, or of
            slices, with replacement, read as they are stored.
    """

    structure: Structure
    names: tuple[str, ...]
    leaves: tuple[tuple[tuple[int, ...], str], ...]
    members: tuple[Layout, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()
    alike: bool = False


# What is static about a state or a mixture, hashable.
Form: TypeAlias = "BufferSpec | tuple[MixtureSpec, tuple[Form, ...]]"


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


def layout_of(form: Form, mapper: Mapper | None = None) -> Layout:
    """The layout of what a state or a mixture gives.

    Args:
        form: of the state or the mixture.
        mapper: evaluates functions of items, for the layout of samples; None for that of what is stored.

    Raises:
        ValueError: if the buffers hold different items and no leaves are named, or one of those is not in all of them.
    """
    mapped = any(spec.on_sample is not None for spec in specs_of(form))
    return _layout_of(form, mapper if mapped else None)


def _layout_of(form: Form, mapper: Mapper | None) -> Layout:
    if isinstance(form, BufferSpec):
        # Shapes are asked for with a batch of 2, whose axis is then left out.
        outline, lead = form.plan.outline, form.sampler.leading_shape(2)[1:]
        # The steps of a slice are axes of what a function of items gives, as it may change them. They are so for all
        # buffers of a mixture or for none, as a TensorDict knows how many axes of it are the batch's.
        if mapper is not None:
            spec_of_sample = samples.sample_spec(mapper, form, 2)
            outline, lead = Outline.of(with_lead(spec_of_sample, lambda shape: shape[1:]), "Mixture"), ()
        leaves = tuple(((*lead, *leaf.shape), str(leaf.dtype)) for leaf in outline.leaves)
        return Layout(outline.structure, outline.names, leaves)
    spec, forms = form
    members = tuple(_layout_of(one, mapper) for one in forms)
    first = members[0]
    if spec.leaves is None:
        for k, other in enumerate(members):
            _check_same(first, other, k)
        structure, names = first.structure, first.names
    else:
        _check_named(members, spec.leaves)
        structure, names = _in_dicts(spec.leaves)
    places = tuple(tuple(member.names.index(name) for name in names) for member in members)
    leaves = tuple(first.leaves[place] for place in places[0])
    for k, member in enumerate(members):
        for name, leaf, place in zip(names, leaves, places[k], strict=True):
            shape, dtype = member.leaves[place]
            if (shape, dtype) != leaf:  # then the rows of all cannot come in one array
                raise ValueError(
                    f"Mixture: leaf {name!r}: expected shape {leaf[0]} and dtype {leaf[1]} as in states[0], got "
                    f"{shape} and {dtype} in states[{k}]; leave the leaf out of frb.Mixture(..., leaves=[...])"
                )
    whole = tuple(range(len(first.names)))
    alike = all(place == whole for place in places) and all(
        isinstance(one, BufferSpec)
        and one.known.draws in (Draws.ITEMS, Draws.SLICES)
        and one.known.plain
        and not (one.known.on_hosts_alone or one.plan.objects or one.on_sample)
        for one in forms
    )
    return Layout(structure, names, leaves, members, places, alike)


# JAX asks for the layout of each program that it traces. torch.compile, which asks too, traces no such cache.
layout_at_once = functools.lru_cache(maxsize=256)(layout_of)


@functools.lru_cache(maxsize=256)
def stored_layout(form: Form) -> Layout:
    """The layout of what is stored, where functions of items may give samples other leaves.

    Raises:
        ValueError: if the buffers store different items, or with such functions, if they store no leaf alike.
    """
    specs = specs_of(form)
    if all(spec.on_sample is None for spec in specs):
        return layout_of(form)
    members, wanted = [layout_of(spec) for spec in specs], _wanted(form)
    first = members[0]
    stored = [dict(zip(one.names, one.leaves, strict=True)) for one in members]
    kept = [
        k
        for k, name in enumerate(first.names)
        if all(leaves.get(name) == first.leaves[k] for leaves in stored) and all(name in one for one in wanted)
    ]
    if not kept:
        raise ValueError(
            "get: expected a leaf of samples that all buffers store alike, as get reads what is stored, and not what "
            "functions of items make of it; read each buffer by itself: rb.get(mixture[k], handles)"
        )
    if len(kept) == len(first.names) and all(one.structure == first.structure for one in members):
        return first
    names = tuple(first.names[k] for k in kept)
    structure, ordered = _in_dicts(names)
    return Layout(structure, ordered, tuple(first.leaves[first.names.index(name)] for name in ordered))


def _wanted(form: Form) -> list[tuple[str, ...]]:
    # The leaves that a mixture names, and those that each mixture in it does.
    if isinstance(form, BufferSpec):
        return []
    inner = [names for one in form[1] for names in _wanted(one)]
    return inner if form[0].leaves is None else [form[0].leaves, *inner]


def _check_same(first: Layout, other: Layout, k: int) -> None:
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


def _check_named(members: Sequence[Layout], names: tuple[str, ...]) -> None:
    for k, member in enumerate(members):
        for name in names:
            if name not in member.names:
                raise ValueError(
                    f"Mixture: leaves: states[{k}] has no leaf {name!r}, expected some of "
                    f"{', '.join(map(repr, member.names))}{as_several(tuple(name.split('/')), member.names)}"
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
