"""A mixture: several states that are drawn from as one, itself a value."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, Literal, Self, TypedDict, Unpack, overload

import numpy as np

from functional_rb.base.arrays import ArrayLike, BackendArray
from functional_rb.base.containers import register_record
from functional_rb.base.nest import Key, checked_keys, show_key
from functional_rb.buffer.checks import UNPACK, check_together, is_pair
from functional_rb.buffer.state import State, StateHolder
from functional_rb.core.sample import Drawn

How = Literal["exact", "items", "buffers"]
WAYS: Final = ("exact", "items", "buffers")

Read = Callable[[BackendArray], Sequence[float] | None]
Keep = Callable[[BackendArray], BackendArray]
# How the numbers of arrays are read, and what a mixture keeps of an array, by the arrays' type.
_kinds: dict[type, tuple[Read, Keep]] = {np.ndarray: (np.ndarray.tolist, lambda p: p.astype(np.float32))}


def register_array(kind: type, read: Read, keep: Keep) -> None:
    """Say how to read the numbers of a backend's arrays, None while they are traced, and how to keep such an array.

    What is kept changes no more, whatever is written to the array that was given.
    """
    _kinds[kind] = read, keep


@dataclasses.dataclass(frozen=True)
class MixtureSpec:
    """What is static about a mixture; see `Mixture`.

    Attributes:
        p: the shares as plain numbers with the sum 1; None where they are an array, or follow from what is stored.
        how, leaves, parts, stacked: as in `Mixture`.
    """

    p: tuple[float, ...] | None
    how: How
    leaves: tuple[str, ...] | None
    parts: int
    stacked: bool


class _Options(TypedDict, total=False):
    leaves: Key | Sequence[Key] | None
    parts: int | None
    stacked: bool
    spec: MixtureSpec | None


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Mixture(StateHolder, Generic[Drawn]):
    """Several buffers that are drawn from as one, such as a dataset beside what an agent collects.

    A mixture is a value, and a pytree on both backends. It goes where a state goes: `rb.sample`, `rb.update`,
    `rb.get` and others. Its buffers may differ in sampler, capacity, storage and transforms, and may be mixtures.

    Attributes:
        states: K buffers of one backend.
        p: float32 [K], how much of a batch each gives, if it is an array; None if not.
        spec: what is static, among it the shares that are plain numbers.

    Example:
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> offline = rb.init(spec, items={"x": np.zeros(8, np.float32)})
        >>> online = rb.init(spec, items={"x": np.ones(2, np.float32)})
        >>> mixture = frb.Mixture([offline, online], p=[0.5, 0.5])
        >>> mixture, sample = rb.sample(mixture, rb.key(0), 6)
        >>> sample.extras["buffer_ids"].tolist(), sample.items["x"].tolist()
        ([0, 0, 0, 1, 1, 1], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    """

    states: tuple[State | Mixture, ...]
    p: BackendArray | None
    spec: MixtureSpec

    # Buffers that give samples of different types, of which type checkers have no common one, give any.
    @overload
    def __init__(
        self,
        states: Sequence[State[Drawn] | Mixture[Drawn]],
        p: object = None,
        how: How = "exact",
        **more: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Mixture, states: Sequence[State | Mixture], p: object = None, how: How = "exact", **more: Unpack[_Options]
    ) -> None: ...
    def __init__(
        self,
        states: Sequence[State | Mixture],
        p: object = None,
        how: How = "exact",
        *,
        leaves: Key | Sequence[Key] | None = None,
        parts: int | None = None,
        stacked: bool = False,
        spec: MixtureSpec | None = None,
    ) -> None:
        """Mix buffers.

        Args:
            states: at least one buffer, all of one backend; a mixture counts as one.
            p: how much of a batch each gives, not negative, of any positive sum: plain numbers are static under
                compilation, an array [K] may be traced. None for: in proportion to how many items each stores.
            how: "exact": each gives its share of every batch, rounded up or down by one draw for all, so that each
                gives just its share on average; the batch is in the order of the buffers. "items": the buffer of each
                item is drawn by p. "buffers": the batch has equal parts, and the buffer of each part is drawn by p.
            leaves: the keys of those leaves of the items that samples have, in dicts; by default all of them, where the
                buffers hold the same.
            parts: how many parts with "buffers"; K by default.
            stacked: whether the leaves of a sample come as [parts, B / parts, *shape], with "buffers".
            spec: what is static, in place of the others and unchecked, as a mixture is put together again of its parts,
                in whose place trees of arrays may have anything.

        Raises:
            TypeError: for what is no state, or a leaf's key that is none.
            ValueError: for no states at all, shares that are not one for each buffer, negative, not finite or all zero
                (of an array that is traced nothing is known: such shares count as 0), an unknown `how`, or `parts` and
                `stacked` without "buffers".
        """
        if spec is not None:
            self._set(states, p, spec)
            return
        checked = _checked_states(states)
        count = len(checked)
        if how not in WAYS:
            raise ValueError(f"Mixture: how: expected one of {', '.join(map(repr, WAYS))}, got {how!r}")
        if how != "buffers" and (parts is not None or stacked):
            raise ValueError(
                f"Mixture: expected parts and stacked with how='buffers' alone, as other ways give no equal parts, got "
                f"how={how!r}; leave them out, or reshape what is sampled"
            )
        number = count if parts is None else parts
        if type(number) is not int or number < 1:
            raise ValueError(f"Mixture: parts: expected a positive int, got {parts!r}")
        named = (
            None if leaves is None else tuple(show_key(key) for key in checked_keys(leaves, "leaves", "Mixture") or ())
        )
        if named is not None and (not named or len(set(named)) < len(named)):
            raise ValueError(f"Mixture: leaves: expected some keys, all different, got {leaves!r}")
        plain = None if p is None or hasattr(p, "dtype") else _plain(p, count)
        array = _kept(checked_shares(as_floats(p), count, "Mixture")) if hasattr(p, "dtype") else None
        self._set(checked, array, MixtureSpec(plain, how, named, number, bool(stacked)))

    def check(self) -> None:
        """Refuse a mixture that was put together of parts as the constructor refuses what it is given.

        Raises:
            TypeError: see `Mixture`; also if shares are no array.
            ValueError: see `Mixture`; also for shares that were given twice, or have another sum than 1.
        """
        spec = self.spec
        if self.p is not None and not (hasattr(self.p, "dtype") and hasattr(self.p, "shape") and spec.p is None):
            raise TypeError(f"Mixture: p: expected one array, got {type(self.p).__name__} beside {spec.p!r}")
        shares, parts = spec.p if self.p is None else self.p, spec.parts if spec.how == "buffers" else None
        expected = Mixture(self.states, shares, spec.how, leaves=spec.leaves, parts=parts, stacked=spec.stacked).spec
        alike = all(math.isclose(one, other) for one, other in zip(spec.p or (), expected.p or (), strict=True))
        if not alike or (expected.parts, expected.leaves) != (spec.parts, spec.leaves):
            raise ValueError(f"Mixture: expected {expected}, got {spec}")

    def _set(self, states: object, p: object, spec: MixtureSpec) -> None:
        for name, value in (("states", states), ("p", p), ("spec", spec)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[State | Mixture]:
        return iter(self.states)

    def __getitem__(self, k: int) -> State | Mixture:
        return self.states[k]

    def replace(self, k: int, state: State | Mixture) -> Self:
        """The same mixture with another k-th buffer.

        Raises:
            IndexError: if there is no k-th buffer.
            TypeError: for what is no state.
        """
        k = self.place(k, "replace")
        _checked_states([state])
        return self.with_states([*self.states[:k], state, *self.states[k + 1 :]])

    def place(self, k: object, function: str) -> int:
        """The number of a buffer as one from 0 to K - 1.

        Raises:
            TypeError: if it is no int.
            IndexError: if there is no such buffer.
        """
        if isinstance(k, bool) or not isinstance(k, int):
            raise TypeError(f"{function}: expected the number of a buffer as an int, got {type(k).__name__}")
        if not -len(self) <= k < len(self):
            raise IndexError(f"{function}: expected the number of a buffer from 0 to {len(self) - 1}, got {k}")
        return k % len(self)

    def with_states(self, states: Sequence[State | Mixture]) -> Self:
        """The same mixture of other buffers, as many, unchecked: they follow from these."""
        return type(self)(tuple(states), self.p, spec=self.spec)

    @property
    def depth(self) -> int:
        """How many numbers name a buffer: 1, and one more for each level of mixtures in it."""
        return 1 + max(state.depth if isinstance(state, Mixture) else 0 for state in self.states)

    @property
    def buffers(self) -> tuple[State, ...]:
        """All buffers in it that are no mixtures, in their order."""
        buffers: list[State] = []
        for state in self.states:  # asked for several times a sample: a loop takes a third of nested generators' time
            if isinstance(state, Mixture):
                buffers += state.buffers
            else:
                buffers.append(state)
        return tuple(buffers)

    @property
    def repeats(self) -> bool:
        """Whether to write one buffer in place would consume another: one that is there twice, or shares its arrays."""
        # Compared in pairs: of what `id` gives, torch.compile would trace each new state anew.
        return any(one is other or one.shares(other) for one, other in itertools.combinations(self.buffers, 2))

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The numbers that name each of these buffers, one for each level of mixtures."""
        paths: list[tuple[int, ...]] = []
        for k, state in enumerate(self.states):
            paths += [(k, *path) for path in state.paths] if isinstance(state, Mixture) else [(k,)]
        return tuple(paths)

    def with_buffers(self, buffers: Sequence[State | None]) -> Self:
        """The same mixture of other buffers that are no mixtures, as many; None for one that stays as it is."""
        if all(new is None or new is old for new, old in zip(buffers, self.buffers, strict=True)):
            return self
        rest = iter(buffers)
        states: list[State | Mixture] = []
        for state in self.states:
            if isinstance(state, Mixture):
                states.append(state.with_buffers([next(rest) for _ in state.buffers]))
            else:
                new = next(rest)
                states.append(state if new is None else new)
        return self.with_states(states)

    def check_alive(self) -> None:
        """Refuse a mixture of which a buffer was consumed; see `State.check_alive`."""
        for state in self.states:
            state.check_alive()

    def hint(self, function: str) -> str:
        """How the error goes on that refuses a mixture in place of a state."""
        return (
            f"; it takes single buffers: rb.{function}(mixture[k], ...), and mixture.replace(k, state) if it gives one"
        )

    def __repr__(self) -> str:
        static = ", ".join(f"{name}={value!r}" for name, value in vars(self.spec).items() if value is not None)
        return f"Mixture([{', '.join(map(repr, self.states))}], {static})"


# The parts that hold arrays.
FIELDS: Final = ("states", "p")
register_record(Mixture, FIELDS)


def _checked_states(states: object) -> tuple[State | Mixture, ...]:
    if isinstance(states, State | Mixture) or not isinstance(states, Sequence):
        raise TypeError(f"Mixture: expected a list of states, got {type(states).__name__}; write frb.Mixture([a, b])")
    if not states:
        raise ValueError("Mixture: expected at least one state, got none")
    for k, state in enumerate(states):
        if not isinstance(state, State | Mixture):
            remedy = f"; {UNPACK}" if is_pair(state) else ""
            raise TypeError(f"Mixture: states[{k}]: expected a State or a Mixture, got {type(state).__name__}{remedy}")
        check_together(state, f"Mixture: states[{k}]")
    return tuple(states)


def specs_of_buffers(
    count: int, specs: object, who: str
) -> Sequence[object]:  # what of a spec is none is refused later
    """Other specs for the buffers of a mixture, one for each, or None for those that stay as they are.

    Raises:
        TypeError: for what is no list of them.
        ValueError: for another number of them.
    """
    if not isinstance(specs, Sequence | Mixture):
        raise TypeError(
            f"{who}: spec: expected a list with a spec for each of the mixture's {count} buffers, None for what stays "
            f"as it is, got {type(specs).__name__}"
        )
    if len(specs) != count:
        raise ValueError(f"{who}: spec: expected one for each of the mixture's {count} buffers, got {len(specs)}")
    return tuple(specs)


def is_number(share: object) -> bool:
    """Whether a share is a number, or a scalar array of one: texts of NumPy have a shape as well."""
    if isinstance(share, (int, float)):
        return True
    kind = str(getattr(share, "dtype", ""))
    return getattr(share, "shape", None) == () and any(name in kind for name in ("float", "int", "bool"))


def as_floats(p: object) -> object:
    """Shares as they were given, but for whole numbers in an array of NumPy, which a list may have as well."""
    return p.astype(np.float32) if isinstance(p, np.ndarray) and p.dtype.kind in "iu" else p


def checked_shares(p: BackendArray, count: int, who: str, *, read: bool = True) -> BackendArray:
    """An array of shares, one for each buffer; others are refused, by its numbers too if they are known and read."""
    if tuple(p.shape) != (count,):
        raise ValueError(f"{who}: p: expected shape ({count},), one share for each buffer, got {tuple(p.shape)}")
    if "float" not in str(p.dtype):
        raise TypeError(f"{who}: p: expected dtype float32, got {p.dtype}; convert it yourself")
    numbers = _listed(p, None) if read else None
    if numbers is not None:
        _check_numbers(numbers, who)
    return p


def _listed(p: BackendArray, default: object) -> Any:
    # The numbers of an array, of a scalar the number; None while it is traced.
    return next((listed(p) for kind, (listed, _) in _kinds.items() if isinstance(p, kind)), default)


def _kept(p: BackendArray) -> BackendArray:
    return next((keep(p) for kind, (_, keep) in _kinds.items() if isinstance(p, kind)), p)


def _check_numbers(p: Sequence[float], who: str) -> None:
    if not all(math.isfinite(x) and x >= 0 for x in p) or not sum(p) > 0:
        raise ValueError(
            f"{who}: p: expected finite numbers that are not negative, one of them positive, got {list(p)}; a share of "
            f"0 leaves a buffer out"
        )


def _plain(p: ArrayLike, count: int) -> tuple[float, ...]:
    try:
        given = list(p)  # type: ignore[call-overload]  # refused if it is no list of numbers
        if not all(map(is_number, given)):
            raise TypeError
        numbers = [float(_listed(x, x)) for x in given]
    except (TypeError, ValueError, RuntimeError, OverflowError):  # of what is traced, or on meta; of large ints
        raise TypeError(
            f"Mixture: p: expected {count} numbers, or an array of them, got {p!r:.200}; of numbers that are traced "
            f"make one array (jnp.stack, torch.stack), or give them to rb.sample(..., p=[...])"
        ) from None
    if len(numbers) != count:
        raise ValueError(f"Mixture: p: expected {count} numbers, one share for each buffer, got {len(numbers)}")
    _check_numbers(numbers, "Mixture")
    largest = max(numbers)  # first divided by this, so that no sum overflows
    total = math.fsum(x / largest for x in numbers)
    return tuple(x / largest / total for x in numbers)
