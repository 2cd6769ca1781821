"""What all specs have in common: how they change shape, how they are shown, and what a single unit does with values."""

from __future__ import annotations

import abc
import inspect
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np

from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import text_form

Number = bool | int | float
# A number for every element, or nested tuples that broadcast to a shape: arrays cannot be hashed.
Table: TypeAlias = Number | tuple["Table", ...]
# A spec, or specs in nested dicts, tuples, dataclasses and whatever container is registered.
#
# Dynamic, as Python has no type for that, and as of a part, of an index or of a squeezed spec only the values of the
# arguments say of which kind it is.
SpecNest: TypeAlias = Any
# A change of shape: it acts on the leading axes of an array and leaves those behind them as they are.
Change = Callable[[NumpyArray], NumpyArray]


class Domain(NamedTuple):
    """The values that a leaf may take: those between two bounds, both included.

    Attributes:
        low: a number, or nested tuples that broadcast to the leaf's shape.
        high: a number, or nested tuples that broadcast to the leaf's shape.
        discrete: whether only whole numbers (or truth values) occur.
    """

    low: Table
    high: Table
    discrete: bool


class Spec(abc.ABC):
    """A description of values: of one array, or of a nest of them.

    `expand`, `squeeze`, `unsqueeze`, `reshape` and indexing act upon `axes`: for an array all axes but those that one
    value takes (the n of a `OneHot`), and the batch axes for a spec of several parts.
    """

    __slots__ = ()
    # The names of the constructor's arguments, in their order; the attributes of these names make an equal spec.
    arguments: ClassVar[tuple[str, ...]] = ()

    @property
    @abc.abstractmethod
    def axes(self) -> tuple[int, ...]:
        """The sizes of the axes that changes of shape act upon."""

    @property
    def leading(self) -> tuple[int, ...]:
        """The first of `axes`: those that every array of a value has in front."""
        return self.axes

    @abc.abstractmethod
    def changed(self, k: int, change: Change) -> SpecNest:
        """The spec of a value after a change of its first k axes."""

    @abc.abstractmethod
    def cardinality(self) -> int | float:
        """How many values lie in the domain, what masks forbid left out.

        Returns:
            A Python int of any size; `math.inf` where reals have room, or objects. Whole numbers without bounds of
            their own have those of their dtype.

        Example:
            >>> from functional_rb import Binary, Categorical, Composite, Unbounded
            >>> Composite(done=Binary((3,)), action=Categorical(4, mask=[True, True, False, True])).cardinality()
            24
            >>> Unbounded(()).cardinality(), Unbounded((), "int8").cardinality()
            (inf, 256)
        """

    def consolidate(self) -> Self:
        """Give members side by side the same names: what one lacks becomes a leaf of its dtype with size 0.

        Returns:
            The same spec, with all in it consolidated. In a member that lacks a part, that part has the batch axes of
            the member and no elements: each axis behind those has size 0, and a scalar gets one axis of size 0. Where
            no member lacks a part, an equal spec.

        Example:
            >>> from functional_rb import Composite, Unbounded
            >>> from functional_rb.specs import Stacked
            >>> agents = Stacked([Composite(obs=Unbounded((3,))), Composite(obs=Unbounded((5,)), gps=Unbounded((2,)))])
            >>> whole = agents.consolidate()
            >>> whole[0].gps.shape, whole["gps"].shape, whole == agents, whole.consolidate() == whole
            ((0,), (2, -1), False, True)
        """
        return self

    @abc.abstractmethod
    def without_elements(self, batch_axes: int, batch_shape: tuple[int, ...]) -> Spec:
        """The spec of what has no elements, in place of a part that others have.

        Args:
            batch_axes: how many batch axes this spec has in front.
            batch_shape: those that stand in their place.
        """

    def expand(self, *shape: object) -> Self:
        """Repeat along new leading axes, and along axes of size 1.

        Args:
            *shape: the new sizes; -1 keeps one.

        Raises:
            ValueError: if the present axes do not broadcast to them.

        Example:
            >>> from functional_rb import Bounded, Composite
            >>> Bounded([0, -1], 1, (2,)).expand(3, 2)
            Bounded((0.0, -1.0), 1.0, (3, 2))
            >>> Composite(obs=Bounded(-1, 1, (2,))).expand(3).obs.shape
            (3, 2)
        """
        sizes, axes = sizes_of(shape), self.axes
        new = len(sizes) - len(axes)
        wanted = tuple(axes[i - new] if n == -1 and i >= new else n for i, n in enumerate(sizes))
        # Of fewer sizes than axes nothing fits, and `zip` is not to say so first.
        fits = new >= 0 and all(have in (1, want) for have, want in zip(axes, wanted[max(new, 0) :], strict=new >= 0))
        if not fits or any(n < 0 for n in wanted):
            raise ValueError(f"expand: {axes} does not broadcast to {sizes}; only axes of size 1, and new ones, grow")
        return self.changed(len(axes), lambda x: np.broadcast_to(x, (*wanted, *x.shape[len(axes) :])))

    def squeeze(self, axis: int | None = None) -> SpecNest:
        """The spec without one axis of size 1, or without all axes of size 1.

        Raises:
            ValueError: if the axis has another size.

        Example:
            >>> from functional_rb import Unbounded
            >>> Unbounded((1, 3, 1)).squeeze(), Unbounded((1, 3, 1)).squeeze(-1)
            (Unbounded((3,)), Unbounded((1, 3)))
        """
        axes = self.axes
        squeezed = {i for i, n in enumerate(axes) if n == 1}
        if axis is not None:
            squeezed = {axis_of(axis, len(axes), "squeeze")}
        if any(axes[i] != 1 for i in squeezed):
            raise ValueError(f"squeeze: axis {axis} of {axes} has another size than 1")
        kept = tuple(n for i, n in enumerate(axes) if i not in squeezed)
        return self.changed(len(axes), lambda x: x.reshape((*kept, *x.shape[len(axes) :])))

    def unsqueeze(self, axis: int) -> SpecNest:
        """The spec with a new axis of size 1.

        Example:
            >>> from functional_rb import Unbounded
            >>> Unbounded((3,)).unsqueeze(-1)
            Unbounded((3, 1))
        """
        place = axis_of(axis, len(self.axes) + 1, "unsqueeze")
        return self.changed(len(self.axes), lambda x: np.expand_dims(x, place))

    def reshape(self, *shape: object) -> SpecNest:
        """The same elements in other axes.

        Args:
            *shape: the new sizes; one may be -1 and follows from the others.

        Raises:
            ValueError: if these are not as many elements.

        Example:
            >>> from functional_rb.specs import OneHot
            >>> OneHot(5, shape=(2, 3, 5)).reshape(-1).shape
            (6, 5)
        """
        axes = self.axes
        wanted = filled(sizes_of(shape), math.prod(axes))
        if wanted is None:
            raise ValueError(f"reshape: {axes} has {math.prod(axes)} elements, which do not fill {sizes_of(shape)}")
        return self.changed(len(axes), lambda x: x.reshape((*wanted, *x.shape[len(axes) :])))

    def __getitem__(self, index: object) -> SpecNest:
        """The spec of `value[index]`; the index is one of NumPy's, for the first of the axes.

        Where a number and a list stand apart, as in `spec[0, :, [0, 1]]`, NumPy and JAX put the list's axes in front:
        this is the spec of their values. Torch leaves them in their place, which `spec[0][:, [0, 1]]` does everywhere.

        Raises:
            IndexError: if it is out of bounds, or has too many parts.

        Example:
            >>> from functional_rb import Unbounded
            >>> Unbounded((4, 3, 5))[0, :, [0, 1]].shape, Unbounded((4, 3, 5))[0][:, [0, 1]].shape
            ((2, 3), (3, 2))
        """
        axes = self.axes
        parts, left = index_parts(self, index)
        # `changed` also moves what tables hold for each element, so the index is applied to arrays, not to the shape.
        try:
            if not left and any(entry is Ellipsis for entry in parts):
                # Even an ellipsis for no axes says where arrays stand apart: let NumPy find the elements.
                elements = np.arange(math.prod(axes)).reshape(axes)[parts]
                return self.changed(len(axes), lambda x: x.reshape((-1, *x.shape[len(axes) :]))[elements])
            parts = without_ellipsis(parts, left)
            return self.changed(len(axes), lambda x: x[parts])
        except IndexError as error:
            raise IndexError(
                f"{type(self).__name__}: {index!r:.80} is no index of its axes {axes}: {error}; indices are NumPy's, "
                f"which torch reads in another way where a number and a list stand apart: index by one, then by the "
                f"other, spec[0][:, [0, 1]]"
            ) from None

    def __iter__(self) -> Iterator[SpecNest]:
        """The specs along the first axis.

        Raises:
            TypeError: if there is none, or members side by side differ in its size.
        """
        if not self.axes or self.axes[0] < 0:
            raise TypeError(f"{type(self).__name__} has no first axis to iterate over, its axes are {self.axes}")
        return (self[i] for i in range(self.axes[0]))

    def __contains__(self, value: object) -> bool:
        """Refuse: what holds arrays of a backend is asked of the backend."""
        raise TypeError("a spec does not look at values: write rb.contains(spec, value)")

    def defaults(self) -> dict[str, object]:
        """The defaults of the constructor's arguments, by name; in place of None what follows from the others."""
        parameters = inspect.signature(type(self)).parameters.values()
        return {each.name: each.default for each in parameters if each.default is not each.empty}

    def __repr__(self) -> str:
        """The call that makes the spec, without arguments that equal their defaults, in one line or several."""
        return text_form.shown(self, full=True)

    def __str__(self) -> str:
        """The call that makes the spec, with long tables of numbers abbreviated."""
        return text_form.shown(self, full=False)

    def call_parts(self, show: Callable[[object], str]) -> tuple[str, list[str], str]:
        """How the text begins, the arguments, and the end; arguments are positional until one is left out."""
        shown = []
        named = False
        defaults = self.defaults()
        for name in self.arguments:
            value = getattr(self, name)
            if name in defaults and defaults[name] == value:
                named = True
            else:
                shown.append(f"{name}={show(value)}" if named else show(value))
        return f"{type(self).__name__}(", shown, ")"


class Unit(Spec):
    """A spec whose values are dealt with as a whole: arrays, or several arrays that vary together.

    Its methods take values of N items at once, as arrays of the backend [N, *shape].
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def words(self) -> int:
        """How many random words of 31 bits `draw` takes for a value."""

    @abc.abstractmethod
    def draw(self, ops: SpecOps, bits: Array) -> Nest:
        """A value for each row of random bits int32 [N, words], uniform in [0, 2^31): uniform over what is allowed.

        Reals with one bound are exponential away from it, and those with none normal. Padding is zero.
        """

    @abc.abstractmethod
    def inside(self, ops: SpecOps, x: Nest) -> Array:
        """Whether values of the dtype lie in the domain, bool [N]. NaN lies in none. Padding is not looked at."""

    @abc.abstractmethod
    def nearest(self, ops: SpecOps, x: Nest) -> Nest:
        """The values of the domain nearest to these; in place of NaN, those nearest to 0. Padding becomes zero."""

    @abc.abstractmethod
    def from_host(self, value: object, batch: tuple[int, ...]) -> Nest:
        """What is stored, in NumPy, for a value of an environment, or for nested sequences of values.

        Args:
            value: as Gymnasium has it.
            batch: the leading axes, if there are any.
        """

    @abc.abstractmethod
    def to_host(self, x: Nest) -> object:
        """What an environment has for stored values [*batch, *shape] in NumPy: the inverse of `from_host`."""


def sizes_of(shape: tuple[object, ...]) -> tuple[int, ...]:
    """Sizes that were passed one by one, or as one tuple."""
    whole: Any = shape[0] if len(shape) == 1 and not hasattr(shape[0], "__index__") else shape
    return tuple(operator.index(n) for n in whole)


def filled(sizes: tuple[int, ...], count: int) -> tuple[int, ...] | None:
    """Sizes of `count` elements, where one -1 follows from the others; None if they have another number of elements."""
    known = math.prod(n for n in sizes if n != -1)  # of several -1 none follows from the others
    if sizes.count(-1) == 1 and known and count % known == 0:
        sizes = tuple(count // known if n == -1 else n for n in sizes)
    return sizes if math.prod(sizes) == count and all(n >= 0 for n in sizes) else None


def checked_shape(shape: object) -> tuple[int, ...]:
    """A shape as a tuple of Python ints; refuses what is no shape, and negative sizes."""
    if isinstance(shape, int | np.integer):
        raise TypeError(f"expected a shape as a tuple, got {shape!r}; write ({shape},)")
    try:
        sizes = tuple(operator.index(n) for n in shape)  # type: ignore[attr-defined]  # whatever cannot is refused
    except TypeError:
        raise TypeError(f"expected a shape as a tuple of ints, got {shape!r}; write (3, 4), say") from None
    if any(n < 0 for n in sizes):
        raise ValueError(f"expected a shape of sizes >= 0, got {sizes}")
    return sizes


def changed_shape(shape: tuple[int, ...], change: Change) -> tuple[int, ...]:
    """What a change makes of a shape: of a probe of stride 0, which takes one byte whatever the shape is."""
    return change(np.broadcast_to(np.int8(0), shape)).shape


def broadcast(value: object, shape: tuple[int, ...], who: str, name: str) -> NumpyArray:
    """Numbers as `numbers` reads them, broadcast to a shape; a single number stays a scalar."""
    array = numbers(value, who, name)
    try:
        whole = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{who}: {name} of shape {array.shape} does not broadcast to {shape}") from None
    return whole if array.ndim or not whole.size else array


def numbers(value: object, who: str, name: str) -> NumpyArray:
    """Real numbers or truth values of any library, or nested sequences of them, as a NumPy array."""
    refusal = f"{who}: expected {name} as a number or an array of them"
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{refusal}, got {value!r:.80}; {error}") from None
    except (TypeError, RuntimeError) as error:
        # Of torch's tensors those that are bfloat16, have a gradient, or lie on another device.
        if not hasattr(value, "tolist"):
            raise TypeError(f"{refusal}, got {value!r:.80}; {error}") from None
        return numbers(value.tolist(), who, name)
    if array.dtype.kind in "fO" and not hasattr(value, "dtype"):
        exact = np.asarray(value, object)  # NumPy makes floats of whole numbers beyond int64
        if exact.size and all(isinstance(n, int) for n in exact.flat):
            return exact
    # bfloat16, which an extension brings to NumPy, is of none of these kinds.
    if array.dtype.kind not in "biuf" and str(array.dtype) != "bfloat16":
        raise TypeError(f"{refusal}, got {value!r:.80}")
    return array


def as_table(array: object) -> Table:
    """The hashable form of an array: a number if all elements are equal, else nested tuples.

    Leading axes along which nothing changes are left out. So equal constraints compare equal whatever array they came
    in, and the bounds of an image are one number.

    Example:
        >>> as_table(np.zeros((84, 84, 3))), as_table(np.array([[0, 1], [0, 1]])), as_table(np.array([[0, 0], [1, 1]]))
        (0.0, (0, 1), ((0, 0), (1, 1)))
    """
    array = np.asarray(array)
    if not array.size:
        return 0
    # Axes that were broadcast have stride 0, so that a huge batch need not be compared.
    while array.ndim and (not array.strides[0] or (array.ndim > 1 and (array == array[:1]).all())):
        array = array[0, ...]
    # One number where all are the same: two specs that mean the same bounds are equal, however these were given.
    first = array.flat[0]
    if (array == first).all():
        return first.item() if isinstance(first, np.generic) else first
    return _nested_tuple(array.tolist())


def _nested_tuple(value: Number | list[Any]) -> Table:
    return tuple(_nested_tuple(v) for v in value) if isinstance(value, list) else value


def axis_of(axis: int, count: int, who: str) -> int:
    """An axis counted from the front."""
    if not -count <= axis < count:
        raise ValueError(f"{who}: there is no axis {axis} among {count}")
    return axis % count


def index_parts(spec: Spec, index: object) -> tuple[tuple[Any, ...], int]:
    """The parts of an index, and how many of a spec's axes are left for an Ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    # Torch's tensors may lie on a GPU, where NumPy does not read them.
    parts = tuple(entry.detach().cpu() if hasattr(entry, "detach") else entry for entry in parts)
    left = len(spec.axes)
    for entry in parts:
        if isinstance(entry, slice):
            left -= 1
        elif entry is not None and entry is not Ellipsis:
            array = np.asarray(entry)
            left -= array.ndim if array.dtype == bool else 1
    if left < 0:
        raise IndexError(f"{type(spec).__name__} has {len(spec.axes)} axes to index, {spec.axes}, got {index!r}")
    if sum(entry is Ellipsis for entry in parts) > 1:
        raise IndexError(f"{type(spec).__name__}: expected an index with a single ellipsis, got {index!r}")
    return parts, left


def without_ellipsis(parts: tuple[object, ...], left: int) -> tuple[Any, ...]:
    """The parts of an index with a slice for each of the `left` axes that an Ellipsis stands for."""
    at = next((i for i, entry in enumerate(parts) if entry is Ellipsis), None)
    return parts if at is None else (*parts[:at], *[slice(None)] * left, *parts[at + 1 :])
