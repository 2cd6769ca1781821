"""Specs of other libraries as specs, and back. A library is imported only when it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from functional_rb.convert import dm_env, gymnasium, torchrl
from functional_rb.specs.base import SpecNest

Library = Literal["dm_env", "gymnasium", "torchrl"]


class _Conversion(NamedTuple):
    """The functions of a library, and which options the first one takes."""

    spec_of: Callable[..., Any]
    back: Callable[..., Any]
    options: tuple[str, ...]


_CONVERSIONS: Final = {
    "dm_env": _Conversion(dm_env.from_dm_env, dm_env.to_dm_env, ("narrow",)),
    "gymnasium": _Conversion(gymnasium.spec_of_space, gymnasium.space_of_spec, ("narrow", "max_length", "max_edges")),
    "torchrl": _Conversion(torchrl.from_torchrl, torchrl.to_torchrl, ()),
}


def from_library(
    spec: object, library: Library, narrow: bool = False, max_length: int | None = None, max_edges: int | None = None
) -> SpecNest:
    """The spec of what another library's spec describes.

    | Gymnasium | dm_env | spec |
    |---|---|---|
    | `Box` without bounds (infinite, or all integers of the dtype) | `Array` | `Unbounded` |
    | `Box` of bools, and `MultiBinary` | `BoundedArray` of bools | `Binary`, of `MultiBinary` of int8 |
    | other `Box` | other `BoundedArray` | `Bounded` |
    | `Discrete`, `MultiDiscrete` | `DiscreteArray` | `Categorical`, `MultiCategorical` |
    | `Text`, `Sequence`, `Graph`, `OneOf` | | the specs of the same names |
    | | `StringArray`, `Array` of objects | `NonTensor`, as strings have any length |
    | `Dict`, `Tuple` | dicts, tuples, lists | `Composite`, tuple, list |

    A class of torchrl becomes that of the same name, for each but `Choice`. There a `Composite` has its shape as
    `batch_shape`, one with a `data_cls` becomes a `Composite.like` that, and a `StackedComposite` a `Stacked`. A
    `MultiCategorical` of one element whose values come without their axis (`remove_singleton`) becomes a `Categorical`.

    Args:
        spec: a space of Gymnasium, a spec of dm_env or a nest of them, or a spec of torchrl. Devices and names are left
            out.
        library: whose it is.
        narrow: of Gymnasium and dm_env: whether 64-bit numbers are stored in 32 bits, as JAX needs without x64; floats
            are then rounded.
        max_length: of Gymnasium: the most elements of a `Sequence`, and nodes of a `Graph`; a space has no such limit,
            a buffer needs one.
        max_edges: of Gymnasium: the most edges of a `Graph`.

    Raises:
        ImportError: if the library is not installed.
        TypeError: for what is none of the library's specs, or what no spec describes, naming the leaf; for an option
            that the library has no use for.
        ValueError: for another library; for a limit that is missing, or what does not fit, naming the leaf.

    Example:
        >>> from gymnasium import spaces
        >>> space = spaces.Dict(grip=spaces.Discrete(3), pose=spaces.Box(-1, 1, (2,), np.float64))
        >>> from_library(space, "gymnasium", narrow=True)
        Composite({'grip': Categorical(3), 'pose': Bounded(-1.0, 1.0, (2,))})
    """
    conversion = _conversion(library, "from_library")
    options = {"narrow": narrow, "max_length": max_length, "max_edges": max_edges}
    for name, value in options.items():
        if value not in (None, False) and name not in conversion.options:
            raise TypeError(f"from_library: specs of {library} have no use for {name}; leave it out")
    return conversion.spec_of(spec, **{name: options[name] for name in conversion.options})


def to_library(spec: object, library: Library) -> Any:
    """What describes the same values in another library.

    `from_library` gives the spec back, apart from what the library has no class for: an `ArraySpec` comes back as
    `Unbounded`. Gymnasium has no limits of length, a `Categorical` with axes comes back as `MultiCategorical`, other
    integers of two values as `Bounded`, a `Stacked` as a tuple. dm_env gives integers of several choices back as
    `Bounded`; there a leaf's name is its path. Neither knows a `Composite`'s `batch_shape`; torchrl has no tuples.

    Args:
        spec: a spec, or a nest of them.
        library: whose spec to make.

    Returns:
        A space of Gymnasium, a nest of dm_env's specs, or a spec of torchrl, on the CPU.

    Raises:
        ImportError: if the library is not installed.
        TypeError: for a leaf that is no spec, or that the library cannot describe, naming it and what to do instead.
        ValueError: for another library, or for what does not fit, naming the leaf.

    Example:
        >>> to_library(frb.Categorical(3), "gymnasium")
        Discrete(3, dtype=int32)
    """
    return _conversion(library, "to_library").back(spec)


def _conversion(library: str, who: str) -> _Conversion:
    if library not in _CONVERSIONS:
        raise ValueError(f"{who}: expected library as one of {sorted(_CONVERSIONS)}, got {library!r:.80}")
    return _CONVERSIONS[library]
