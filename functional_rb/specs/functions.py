"""The public functions on values of specs. Each takes a `Lib` first, which backends bind."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import Array, ArrayLike, BackendArray, DeviceLike, Nest, NumpyArray, PRNGKey
from functional_rb.lib import A, Lib
from functional_rb.specs import listing
from functional_rb.specs.array import ArraySpec, Binary
from functional_rb.specs.base import SpecNest, checked_shape
from functional_rb.specs.categorical import Categorical, OneHot
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.values import Member, Outline
from functional_rb.specs.varying import Varying

# The most values that `enumerate` lists.
MOST_VALUES = 2**24


def rand(
    lib: Lib[A],
    spec: SpecNest,
    key: PRNGKey,
    batch: int | Sequence[int] = (),
    device: DeviceLike = None,
    mask: ArrayLike = None,
) -> Nest:
    """Random values of a spec.

    Whole numbers, choices and reals between two bounds are uniform over what the spec allows, masks included; reals
    with one bound are exponential (mean 1) away from it, and those with none normal. The length of a `Text` or
    `Sequence`, and the numbers of a `Graph`, are uniform too.

    Args:
        spec: a spec, or a nest of them.
        key: randomness, from `key(seed)` or `split`; the same key draws the same values.
        batch: how many values: a number, or the sizes of leading axes; by default one value without such axes.
        device: where the values live; the backend's default if None.
        mask: bool [*batch, *axes, n], for a single `Categorical` or `OneHot` of n choices: which of the choices that
            the spec's own mask allows are allowed now. May be traced. Where it leaves none of them, it is ignored.

    Returns:
        A nest like the spec, leaves [*batch, *shape]. A `NonTensor` leaf is None, or an object array of None.

    Raises:
        TypeError: if a leaf is no spec, or of a dtype that the backend lacks, naming it; for a mask of another spec.
        ValueError: for a mask of another shape.

    Example:
        >>> spec = {"action": frb.Categorical(4, mask=[True, False, False, True]), "obs": frb.Bounded(-1, 1, (3,))}
        >>> value = rb.rand(spec, rb.key(0), 5)
        >>> value["obs"].shape[1], set(value["action"].tolist()) <= {0, 3}
        (3, True)
        >>> rb.contains(spec, value).tolist()
        [True, True, True, True, True]
        >>> int(rb.rand(frb.Categorical(3), rb.key(0), mask=np.array([False, False, True])))
        2
    """
    outline, lead = outline_of(lib, spec, "rand"), _lead(batch)
    masks: Array | None = None
    if mask is not None:
        leaf = outline.leaves[0]
        if outline.shape_of_units != nest.LEAF or not isinstance(leaf, Categorical | OneHot):
            raise TypeError(
                "rand: expected a single Categorical or OneHot for a mask; draw the other parts on their own"
            )
        of_one = Binary((*leaf.axes, leaf.n))
        whole = lib.convert(mask, of_one, "mask")
        if tuple(whole.shape) != (*lead, *of_one.shape):
            raise ValueError(f"rand: expected a mask of shape {(*lead, *of_one.shape)}, got {tuple(whole.shape)}")
        masks = whole.reshape(math.prod(lead), *of_one.shape)
    drawn = lib.draw(outline, key, math.prod(lead), device, masks)
    return built(lib, outline, _apart(drawn, lead), lead)


def zeros(lib: Lib[A], spec: SpecNest, batch: int | Sequence[int] = (), device: DeviceLike = None) -> Nest:
    """Zeros in the structure of a spec, whether or not zero lies in its domain.

    Args:
        spec: a spec, or a nest of them.
        batch: a number, or the sizes of leading axes; none by default.
        device: where the values live; the backend's default if None.

    Returns:
        A nest like the spec, leaves [*batch, *shape]. A `NonTensor` leaf is None, or an object array of None.

    Example:
        >>> rb.zeros({"obs": frb.Unbounded((2,))}, 3)["obs"].tolist()
        [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    outline, lead = outline_of(lib, spec, "zeros"), _lead(batch)
    arrays = {}
    for k in outline.arrays:
        leaf = outline.leaves[k]
        arrays[k] = lib.ops.zeros((*lead, *leaf.shape), leaf.dtype, device)
    return built(lib, outline, arrays, lead)


def enumerate_values(lib: Lib[A], spec: SpecNest) -> Nest:
    """All values of a spec, each once, the last element of the last leaf changing fastest, leaves sorted by name.

    Args:
        spec: a spec, or a nest of them, of whole numbers, truth values, choices and texts.

    Returns:
        A nest like the spec, leaves [N, *shape] for N = `spec.cardinality()`.

    Raises:
        TypeError: for a leaf that varies in length or kind, or is of objects, naming it.
        ValueError: if there are more than 2^24 values, or infinitely many, naming a leaf that has too many.

    Example:
        >>> found = rb.enumerate({"done": frb.Binary(), "action": frb.Categorical(3, mask=[True, False, True])})
        >>> found["action"].tolist(), found["done"].tolist()
        ([0, 0, 2, 2], [False, True, False, True])
    """
    outline = outline_of(lib, spec, "enumerate")
    counts = []
    for member in outline.members:
        if not isinstance(member.spec, ArraySpec):
            raise TypeError(
                f"enumerate: leaf {member.name!r}: the values of a {type(member.spec).__name__} are no arrays of one "
                f"shape; enumerate its parts"
            )
        counts.append(member.spec.cardinality())
        if math.prod(counts) > MOST_VALUES:
            raise ValueError(
                f"enumerate: leaf {member.name!r} has {counts[-1]} values, which makes {math.prod(counts)} of all, and "
                f"at most {MOST_VALUES} are listed; draw some by rb.rand"
            )
    sizes = [int(count) for count in counts]
    # The number of a value, in the mixed radix of the counts, has the position of each leaf's value as a digit.
    number, leaves = np.arange(math.prod(sizes)), {}
    for member, size in reversed(list(zip(outline.members, sizes, strict=True))):
        number, index = np.divmod(number, size)
        leaves[member.first] = _from_host(lib, listing.values_at(member.spec, index), member.spec, member.name)
    return built(lib, outline, leaves, (math.prod(sizes),))


def contains(lib: Lib[A], spec: SpecNest, x: Nest) -> A:
    """Whether values are what a spec describes.

    Args:
        spec: a spec, or a nest of them.
        x: a nest like it, leaves [*batch, *shape]: arrays of the backend or of NumPy, Python numbers for scalars.

    Returns:
        bool [*batch]. A structure, shape or dtype that does not fit gives one False. NaN lies in no domain;
        infinities lie in `Unbounded`.

    Example:
        >>> rb.contains(frb.Bounded(0, 1, (2,)), np.array([[0, 1], [0, 2]], np.float32)).tolist()
        [True, False]
        >>> bool(rb.contains({"done": frb.Binary()}, {"terminated": True}))
        False
    """
    outline = outline_of(lib, spec, "contains")
    try:
        leaves = nest.flatten_as(outline.structure, x)
        if any(_misfit(leaf, unit) for leaf, unit in zip(leaves, outline.leaves, strict=True)):
            return lib.ops.zeros((), "bool")
        arrays, lead = as_batch(lib, outline, leaves)
    except ValueError:  # another structure, or batch axes that differ
        return lib.ops.zeros((), "bool")
    masks: Sequence[BackendArray] = lib.inside(outline, arrays)
    if not masks:
        return lib.ops.zeros(lead, "bool") == 0
    return functools.reduce(operator.and_, masks).reshape(lead)


def project(lib: Lib[A], spec: SpecNest, x: Nest) -> Nest:
    """The nearest values that a spec allows; what is inside stays as it is.

    Numbers are clamped to their bounds, choices that a mask forbids become the nearest allowed one, a vector that is
    not one-hot becomes that of its largest allowed element, NaN becomes what is nearest to 0.

    Args:
        spec: a spec, or a nest of them.
        x: a nest like it, leaves [*batch, *shape].

    Returns:
        A nest like the spec, in the same shapes.

    Raises:
        TypeError: for a dtype that does not fit, naming the leaf.
        ValueError: for a structure or shape that does not fit.

    Example:
        >>> rb.project(frb.Bounded(-1, 1, (3,)), np.array([-2.0, 0.5, np.nan], np.float32)).tolist()
        [-1.0, 0.5, 0.0]
    """
    outline = outline_of(lib, spec, "project")
    leaves = nest.flatten_as(outline.structure, x)
    arrays, lead = as_batch(lib, outline, leaves)
    projected = _apart(lib.nearest(outline, arrays), lead)
    kept = {k: leaf for k, leaf in enumerate(leaves) if k not in projected}
    return built(lib, outline, projected | kept, lead)


def encode(lib: Lib[A], spec: SpecNest, value: object, batch: int | Sequence[int] = ()) -> Nest:
    """What is stored for a value that an environment gives.

    Indices become one-hot vectors for `OneHot` and `MultiOneHot`, texts code points, what varies in length padded
    arrays; numbers on the host take the spec's dtype (floats are rounded, whole numbers must fit). Arrays of the
    backend may be traced; their numbers are not known then, so choices in them are clamped, not refused.

    Args:
        spec: a spec, or a nest of them.
        value: a nest like it down to its `Sequence`s, `Graph`s and `OneOf`s, whose values are those of Gymnasium.
        batch: sizes of leading axes, needed only for texts and what varies in length or kind: as their values are no
            arrays, nested sequences of values are expected.

    Returns:
        A nest like the spec, leaves [*batch, *shape].

    Raises:
        TypeError: for a value of the wrong type, naming the leaf.
        ValueError: for a value that does not fit, naming the leaf.

    Example:
        >>> rb.encode(frb.specs.OneHot(3), np.array([2, 0])).tolist()
        [[False, False, True], [True, False, False]]
        >>> rb.decode(frb.specs.Text(5), rb.encode(frb.specs.Text(5), "abc"))
        'abc'
    """
    outline, lead = outline_of(lib, spec, "encode"), _lead(batch)
    values = nest.flatten_as(outline.shape_of_units, value)
    encoded: dict[int, object] = {}
    for member, one in zip(outline.members, values, strict=True):
        try:
            leaves = _encoded(lib, member, one, lead)
        except (TypeError, ValueError) as error:
            message = str(error)
            raise type(error)(message if message.startswith("leaf") else f"leaf {member.name!r}: {message}") from None
        encoded |= dict(enumerate(leaves, member.first))
    return built(lib, outline, encoded, lead)


def decode(lib: Lib[A], spec: SpecNest, x: Nest) -> Nest:
    """What an environment takes for stored values: the inverse of `encode`.

    Args:
        spec: a spec, or a nest of them.
        x: a nest like it, leaves [*batch, *shape].

    Returns:
        A nest like the spec down to its `Sequence`s, `Graph`s and `OneOf`s, which become values as Gymnasium has them
        (of a batch lists of values). One-hot vectors become indices int32, texts `str`, other leaves NumPy arrays.
        Where x is traced, these are arrays of the backend.

    Raises:
        TypeError: for a dtype that does not fit, or for a leaf that would become a Python object while tracing, naming
            the leaf.
        ValueError: for a structure or shape that does not fit.

    Example:
        >>> rb.decode({"action": frb.specs.OneHot(3)}, {"action": np.array([[False, True, False]])})
        {'action': array([1], dtype=int32)}
    """
    outline = outline_of(lib, spec, "decode")
    leaves = nest.flatten_as(outline.structure, x)
    arrays, lead = as_batch(lib, outline, leaves)
    traced = any(lib.is_traced(arrays[k]) for k in outline.arrays)
    values = []
    for member in outline.members:
        if isinstance(member.spec, NonTensor):
            values.append(leaves[member.first])
        elif traced:
            if isinstance(member.spec, Varying) or member.spec.host_only:
                raise TypeError(
                    f"decode: leaf {member.name!r}: {type(member.spec).__name__} becomes Python objects, which cannot "
                    f"be traced; call it outside of what is compiled"
                )
            decoded = lib.decoded(member.spec, arrays[member.first])
            values.append(decoded.reshape((*lead, *decoded.shape[1:])))
        else:
            host = [lib.to_numpy(a).reshape((*lead, *a.shape[1:])) for a in arrays[member.first :][: member.count]]
            at_member = nest.unflatten(member.structure, host, lambda container, parts, batch: parts)
            try:
                values.append(member.spec.to_host(at_member))
            except ValueError as error:
                raise ValueError(f"decode: leaf {member.name!r}: {error}") from None
    return nest.unflatten(outline.shape_of_units, values, lambda container, parts, batch: parts)


def _encoded(lib: Lib[A], member: Member, value: Nest, lead: tuple[int, ...]) -> list[object]:
    unit = member.spec
    if isinstance(unit, NonTensor):
        return [value]
    if isinstance(unit, ArraySpec) and isinstance(value, lib.array) and not unit.host_only:
        if lead and tuple(value.shape[: len(lead)]) != lead:
            raise ValueError(f"expected the batch axes {lead}, got shape {tuple(value.shape)}")
        return [lib.encoded(unit, value)]
    leaves = member.scatter(unit.from_host(value, lead))
    specs = nest.flatten_as(member.structure, unit)
    return [_from_host(lib, leaf, spec, member.name) for leaf, spec in zip(leaves, specs, strict=True)]


def _from_host(lib: Lib[A], leaf: NumpyArray, spec: ArraySpec, name: str) -> A:
    # Numbers of bfloat16 may come as float32, as NumPy lacks it.
    if spec.dtype == "bfloat16" and leaf.dtype == np.float32:
        return lib.ops.cast(lib.convert(leaf, ArraySpec(spec.shape), name), spec.dtype)
    return lib.convert(leaf, spec, name)


def outline_of(lib: Lib[A], spec: SpecNest, who: str) -> Outline:
    """A spec taken apart; refuses dtypes that the backend lacks, naming the leaf."""
    outline = lib.outline(spec, who)
    for name, leaf in zip(outline.names, outline.leaves, strict=True):
        why = lib.unsupported(leaf.dtype) if isinstance(leaf, ArraySpec) else None
        if why is not None:
            raise TypeError(f"{who}: leaf {name!r}: dtype {leaf.dtype} {why}")
    return outline


def _lead(batch: int | Sequence[int]) -> tuple[int, ...]:
    return checked_shape((batch,) if isinstance(batch, int | np.integer) else batch)


def _misfit(leaf: Nest, spec: ArraySpec | NonTensor) -> bool:
    # Whether dtype or shape fit the spec for no batch axes at all.
    if isinstance(spec, NonTensor):
        return isinstance(leaf, np.ndarray) and leaf.dtype == object and not _ends_with(leaf.shape, spec.shape)
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return dtypes.shown(leaf.dtype) != spec.dtype or not _ends_with(tuple(leaf.shape), spec.shape)
    if spec.shape or not isinstance(leaf, bool | int | float | complex):
        return True
    try:
        dtypes.check_scalar(leaf, spec.dtype, "")
    except (TypeError, ValueError):
        return True
    return False


def _ends_with(shape: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return len(shape) >= len(end) and shape[len(shape) - len(end) :] == end


def as_batch(lib: Lib[A], outline: Outline, leaves: Sequence[object]) -> tuple[list[BackendArray], tuple[int, ...]]:
    """Leaves as arrays [N, *shape] of the backend, None for objects, and the batch axes whose product N is."""
    lead: tuple[int, ...] | None = None
    arrays: list[BackendArray] = [None] * len(leaves)
    for k in outline.arrays:
        spec, name = outline.leaves[k], outline.names[k]
        arrays[k] = lib.convert(leaves[k], spec, name)
        shape = tuple(map(int, arrays[k].shape))
        if not _ends_with(shape, spec.shape):
            raise ValueError(f"leaf {name!r}: expected shape {('...', *spec.shape)}, got {shape}; reshape it")
        in_front = shape[: len(shape) - len(spec.shape)]
        if lead is not None and in_front != lead:
            raise ValueError(
                f"leaf {name!r}: expected the batch axes {lead}, as other leaves have, got {in_front}; give all the "
                f"same"
            )
        lead = in_front
    lead = lead or ()
    if len(lead) != 1:  # a reshape costs time on JAX
        for k in outline.arrays:
            arrays[k] = arrays[k].reshape(math.prod(lead), *outline.leaves[k].shape)
    return arrays, lead


def _apart(leaves: Mapping[int, Array], lead: tuple[int, ...]) -> dict[int, Array]:
    if len(lead) == 1:
        return dict(leaves)
    return {k: leaf.reshape((*lead, *leaf.shape[1:])) for k, leaf in leaves.items()}


def built(lib: Lib[A], outline: Outline, leaves: Mapping[int, object], lead: tuple[int, ...]) -> object:
    """The nest of leaves [*lead, *shape] by position; those that are missing are of objects, and None."""
    whole: list[object] = []
    for k, spec in enumerate(outline.leaves):
        shape = (*lead, *spec.shape)
        whole.append(leaves[k] if k in leaves else np.full(shape, None, object) if shape else None)
    return nest.unflatten(outline.structure, whole, lib.build_mapping, lead)
