"""What a backend brings along, and how functions that are written once become its public ones.

Each backend has one `Lib`, in its `lib.py`. A public function takes it first; `Lib.bind` gives the function without it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar

from functional_rb.base import lazy
from functional_rb.base.arrays import Array, NumpyArray
from functional_rb.base.tracing import constant

P = ParamSpec("P")
R = TypeVar("R")
# A function whose arguments its users agree upon.
Function: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Function)
A = TypeVar("A", bound=Array)
"""The arrays of a backend: `jax.Array` or `torch.Tensor`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Lib(Generic[A]):
    """One library of arrays.

    Attributes:
        name: of the backend's package, whose public functions are bound to this.
        array: the class of its arrays.
        shown: how signatures name that class.
        ops: the array primitives, see `ops.protocol`.
        convert: an array of a leaf's dtype, of what a caller gives for the leaf of this name; anything else is refused.
        as_array: an array of a number or an array of NumPy, on the device of the second array, if there is one.
        build_mapping: a mapping of a type, None for a dict, of its parts by name and the batch axes that they share.
        unsupported: why the backend cannot have a dtype, with the remedy; None if it can.
        to_numpy: an array's numbers on the host.
        is_traced: whether a leaf is an array whose numbers are not known, as a program is being traced.
        outline: `specs.values.Outline.of`, cached where it can be.
        draw: random values [n, *shape] of an outline by position of the leaf, of `(outline, key, n, device, mask)`.
        inside: whether values [N, *shape] lie in the domain of each unit of an outline, bool [N] for each.
        nearest: the nearest values of the domain of an outline, by position of the leaf.
        encoded: `ArraySpec.encoded` of a spec, for an array of this backend.
        decoded: `ArraySpec.decoded` of a spec, for an array of this backend.
        carry_out: `function(ops, static, owned, *given, consume=None)`. What is static can be hashed; `owned` is a nest
            of arrays that the function may write to, and copied first where others see it; `consume` is what it was
            taken from, which is not needed any more, and its field, which is None once that is consumed: before
            anything is written, so that an interrupt leaves nothing readable that is half done.
        engine: what carries out the functions of buffers on a state: a `buffer.backend.Backend`.
        engine_for: the engine that makes a state of a spec.
        in_place: what carries out the writes that consume a state, a `buffer.in_place.InPlace`, for an engine.
        mapper: carries out functions of items, a `buffer.mapping.Mapper`.
        host: the engine that takes Python objects as well.
        mixtures: what of mixtures is the backend's own: `draw(mixture, request, consume)` gives the mixture afterwards,
            leaves and a selection, see `mixture.drawing`; `stacked(numbers)` is an array float32 of numbers, some of
            which may be scalar arrays, or traced; `carry_out(function, static, *arrays)` calls
            `function(ops, static, *arrays)` on arrays of several buffers, in one program where it is compiled;
            `are_values(buffers)` is whether a write that leaves them as they are is as fast as one in place, and then
            `consumed_together(buffers, after)` gives those that follow, with all of the buffers consumed.
        sharded: what carries out the functions of sharded buffers.
        elsewhere: moves a state to the storage of another spec.
        chain: what does a usual call whole, natively, for a state; None where there is nothing, or somebody traces.
        around: what a public function is wrapped in.
    """

    name: str
    array: type[A]
    shown: str
    ops: Any
    convert: Callable[..., A]
    as_array: Callable[..., A]
    build_mapping: Function
    unsupported: Callable[[str], str | None]
    to_numpy: Callable[..., NumpyArray]
    is_traced: Callable[[object], bool]
    outline: Function
    draw: Callable[..., Mapping[int, A]]
    inside: Callable[..., Sequence[A]]
    nearest: Callable[..., Mapping[int, A]]
    encoded: Callable[..., A]
    decoded: Callable[..., A]
    carry_out: Function
    engine: Function
    engine_for: Function
    in_place: Function
    mapper: ModuleType
    host: ModuleType
    mixtures: ModuleType
    sharded: ModuleType
    elsewhere: Function
    chain: Function
    around: Callable[..., Function]

    def within(self, module: str) -> Lib[A]:
        """This `Lib`, for the public functions of a module of the backend."""
        return dataclasses.replace(self, name=f"{self.name}.{module}")

    @classmethod
    def of(cls, lib: AnyLib, **more: object) -> Self:
        """A backend's `Lib` with what it has besides, or in place of that, for a kind of functions."""
        return cls(**{field.name: getattr(lib, field.name) for field in dataclasses.fields(lib)} | more)

    def bind(self, function: Callable[Concatenate[Self, P], R], name: str = "") -> Callable[P, R]:
        """A public function of the backend: one that is written once, without its first argument, which is this.

        It has the docstring of the function, and its signature, in which the arrays are those of the backend; and its
        name, unless there is another.
        """

        def public(*args: P.args, **named: P.kwargs) -> R:
            return function(self, *args, **named)

        whole: Any = function
        public.__name__ = public.__qualname__ = name or whole.__name__
        public.__module__, public.__doc__ = self.name, whole.__doc__
        signature = inspect.signature(whole)
        _, *parameters = signature.parameters.values()
        public.__signature__ = signature.replace(  # type: ignore[attr-defined]  # `inspect` reads it
            parameters=[each.replace(annotation=self._told(each.annotation)) for each in parameters],
            return_annotation=self._told(signature.return_annotation),
        )
        return self.around(public)

    def _told(self, annotation: object) -> Any:
        """An annotation, a text, with the backend's name of its arrays."""
        if not isinstance(annotation, str):
            return annotation
        words = [self.shown if word == "A" else word for word in annotation.split(" ")]
        return " ".join(words)


AnyLib: TypeAlias = Lib[Any]
# Of the backends that are in use, each of which adds its own.
_IN_USE: list[AnyLib] = []
# Of a backend and a module of it, such as `text`, what that has more than its `Lib`.
_MORE: dict[tuple[str, str], Any] = {}


def add_library(lib: AnyLib) -> None:
    """Have the methods of records find a backend by its arrays."""
    _IN_USE.append(lib)


def library_of(*values: object) -> AnyLib | None:
    """The backend that an array among some values is of; None if there are only NumPy's, numbers and other things."""
    for value in values:
        for lib in _IN_USE:
            if isinstance(value, lib.array):
                return lib
    return None


@constant  # as torch.compile can neither import nor wait for a lock
def _look_up(backend: str, module: str) -> bool:
    if (backend, module) not in _MORE:
        _MORE[backend, module] = lazy.imported(f"{backend}.{module}").LIB
    return True


def more_of(lib: AnyLib, module: str) -> Any:
    """What a module of a backend, such as `text`, has more than its `Lib`; it is imported when it is first used."""
    _look_up(lib.name, module)
    return _MORE[lib.name, module]


def documented_by(core: Callable[..., object]) -> Callable[[F], F]:
    """Give a function the docstring of the one to which it hands its calls on."""

    def attach(function: F) -> F:
        function.__doc__ = core.__doc__
        return function

    return attach
