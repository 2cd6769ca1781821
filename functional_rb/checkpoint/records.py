"""Nests of arrays in checkpoints: each is the one item of a buffer, so that all that holds of states holds of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.containers import RULES, register_record
from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.ops import numpy_ops
from functional_rb.specs import Composite, spec_of
from functional_rb.specs.base import SpecNest
from functional_rb.structures import row_layout


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """What tells an item that stands for a whole nest from the items of a buffer."""

    value: Nest  # the nest


NAMES: Final = ("value",)
register_record(Record, NAMES)


def as_state(value: object, who: str) -> State:
    """A state, or a nest of arrays as the state of a buffer that has it as its only item."""
    if isinstance(value, State):
        return value
    flat = nest.flatten(value, lambda x: isinstance(x, State) or hasattr(x, "dtype"))[0]
    if any(isinstance(leaf, State) for leaf in flat):
        raise TypeError(
            f"{who}: expected a State, or a nest of arrays, got {type(value).__name__} with a State in it; give each a "
            f"directory of its own, or several states as a frb.Mixture"
        )
    if not flat:
        raise TypeError(f"{who}: expected a State, or a nest of arrays, got {type(value).__name__} without any")
    for leaf in flat:
        if not (hasattr(leaf, "dtype") and hasattr(leaf, "shape")):
            raise TypeError(
                f"{who}: expected a State, or a nest of arrays, got {type(leaf).__name__}; it comes before the path"
            )
    record = Record(value)  # by whose type a nest is told from the item of a buffer with one slot
    spec = BufferSpec(spec_of(record), capacity=1)
    leaves = [on_host(leaf)[None] for leaf in nest.flatten_as(spec.plan.structure, record)]
    return State(*functions.add(numpy_ops.OPS, functions.init(numpy_ops.OPS, spec), spec, leaves, 1, None, None), spec)


def on_host(leaf: Nest) -> NumpyArray:
    if not hasattr(leaf, "detach"):
        return np.asarray(leaf)
    leaf = leaf.detach().cpu()
    if str(leaf.dtype) == "torch.bfloat16":  # which NumPy knows by an extension alone
        bits = leaf.contiguous().view(dtype=leaf.new_empty(0).half().short().dtype).numpy()
        return np.asarray(bits).view(numpy_ops.dtype_of("bfloat16"))
    return np.asarray(leaf.resolve_conj().resolve_neg().numpy())


def is_record(spec: BufferSpec) -> bool:
    return isinstance(spec.item, Composite) and getattr(spec.item._like[0], "type", None) is Record


def described(spec: BufferSpec) -> SpecNest:
    """What a checkpoint holds: the spec of its buffer, or those of a nest's arrays in the nest's containers."""
    return spec.item["value"] if is_record(spec) else spec


def problem(spec: BufferSpec, arrays: Arrays) -> str | None:
    """Why what a checkpoint has of a nest's containers (maps, trees, moments) cannot be those, naming one; or None."""
    return _problem_of(nest.unflatten(spec.plan.structure, _leaves(spec, arrays), nest.plain_mapping))


def _problem_of(value: object) -> str | None:
    rule, apart = RULES.get(type(value)), nest.parts_of(value)
    if rule is not None and (reason := rule(value)):
        return f"{type(value).__name__}: {reason}"
    for child in [] if apart is None else apart[1]:
        if reason := _problem_of(child):
            return reason
    return None


def _leaves(spec: BufferSpec, arrays: Arrays) -> list[NumpyArray]:
    return [leaf[0] for leaf in row_layout.unpack(numpy_ops.OPS, spec.plan.layout, arrays.rows, arrays.wide)]


def value_of(
    spec: BufferSpec,
    arrays: Arrays,
    place: Callable[[NumpyArray], Nest],
    build_mapping: Callable[..., Nest],
    mapped: bool,
) -> Nest:
    """The nest of a checkpoint, of the arrays of the buffer that stands for it; `place` makes each leaf the backend's.

    With `mapped` these are the file's own, and leaves stay in it where the backend can have that.
    """
    leaves = [place(leaf if mapped else leaf.copy()) for leaf in _leaves(spec, arrays)]
    return nest.unflatten(spec.plan.structure, leaves, build_mapping).value
