"""torchrl's specs as specs and back."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.convert.common import Path, at, shown
from functional_rb.specs import (
    ArraySpec,
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Spec,
    Stacked,
    Text,
    Unbounded,
    freeze,
)
from functional_rb.specs.base import SpecNest

if TYPE_CHECKING:
    import torch
    from torchrl.data import TensorSpec

FROM: Final = "from_library"
TO: Final = "to_library"


def from_torchrl(spec: TensorSpec) -> SpecNest:
    """The spec of a spec of torchrl."""
    return _FromTorchrl(imported("torchrl.data.tensor_specs", FROM)).spec(spec, ())


def to_torchrl(spec: SpecNest) -> TensorSpec:
    """A spec as a spec of torchrl."""
    specs = imported("torchrl.data.tensor_specs", TO)
    return _ToTorchrl(specs, imported("torch", TO)).spec(freeze(spec), ())


class _FromTorchrl:
    """Reads specs of torchrl; `specs` is its module."""

    def __init__(self, specs: ModuleType) -> None:
        # Subclasses come before their base classes.
        self.readers: tuple[tuple[type, Callable[[Any, Path], SpecNest]], ...] = (
            (specs.StackedComposite, self._stacked),
            (specs.Stacked, self._stacked),
            (specs.Composite, self._composite),
            (specs.MultiOneHot, lambda x, path: MultiOneHot(list(map(int, x.nvec)), *_mask_shape_dtype(x))),
            (specs.OneHot, lambda x, path: OneHot(x.n, *_mask_shape_dtype(x))),
            (specs.Binary, lambda x, path: Binary(tuple(x.shape), x.dtype)),
            (specs.MultiCategorical, self._multi_categorical),
            (specs.Categorical, self._categorical),
            (specs.Bounded, self._bounded),
            (specs.Unbounded, lambda x, path: Unbounded(tuple(x.shape), x.dtype)),
            (specs.NonTensor, lambda x, path: NonTensor(tuple(x.shape))),
            (specs.Choice, self._choice),
        )

    def spec(self, spec: TensorSpec, path: Path) -> SpecNest:
        for kind, read in self.readers:
            if isinstance(spec, kind):
                with at(FROM, path):
                    return read(spec, path)
        raise TypeError(f"{FROM}: {shown(path)}: expected a spec of torchrl, got {spec!r:.80}")

    def _stacked(self, spec: TensorSpec, path: Path) -> SpecNest:
        return Stacked(tuple(self.spec(member, (*path, i)) for i, member in enumerate(spec._specs)), spec.dim)

    def _composite(self, spec: TensorSpec, path: Path) -> SpecNest:
        parts = {name: self.spec(child, (*path, name)) for name, child in spec.items()}
        if spec.data_cls is None:
            return Composite(parts, batch_shape=tuple(spec.shape))
        return Composite.like(spec.data_cls, parts, tuple(spec.shape))

    def _categorical(self, spec: TensorSpec, path: Path) -> SpecNest:
        if spec.space.n < 1:
            raise ValueError("the number of choices is not known; write Categorical(n) with one")
        # What environments of torchrl have for `done` and `terminated`.
        if dtypes.name_of(spec.dtype) == "bool" and spec.space.n == 2 and spec.mask is None:
            return Binary(tuple(spec.shape))
        return Categorical(spec.space.n, *_mask_shape_dtype(spec))

    def _multi_categorical(self, spec: TensorSpec, path: Path) -> SpecNest:
        choices = MultiCategorical(_numbers(spec.nvec), *_mask_shape_dtype(spec))
        # What torchrl draws under a mask keeps its axis all the same.
        removed = spec.remove_singleton and choices.shape == (1,) and choices.mask is None
        return choices[0] if removed else choices

    def _bounded(self, spec: TensorSpec, path: Path) -> SpecNest:
        low, high = (_numbers(bound) for bound in (spec.space.low, spec.space.high))
        if dtypes.name_of(spec.dtype) == "bool" and high.all() and not low.any():
            return Binary(tuple(spec.shape))
        return Bounded(low, high, tuple(spec.shape), spec.dtype)

    def _choice(self, spec: TensorSpec, path: Path) -> SpecNest:
        raise TypeError(
            "a value of a Choice does not say which of the choices it is of, and no spec is of such values; store that "
            "beside it: OneOf([...])"
        )


class _ToTorchrl:
    """Makes specs of torchrl; `specs` is its module."""

    def __init__(self, specs: ModuleType, torch: ModuleType) -> None:
        self.specs, self.torch = specs, torch
        self.makers: dict[type, Callable[[Any, Path], TensorSpec]] = {
            ArraySpec: self._unbounded,
            Unbounded: self._unbounded,
            Bounded: self._bounded,
            Binary: lambda spec, path: specs.Binary(shape=spec.shape, dtype=self._dtype(spec)),
            Categorical: self._choices,
            OneHot: lambda spec, path: specs.OneHot(spec.n, spec.shape, **self._dtype_and_mask(spec)),
            MultiCategorical: self._choices,
            MultiOneHot: lambda spec, path: specs.MultiOneHot(spec.nvec, spec.shape, **self._dtype_and_mask(spec)),
            NonTensor: lambda spec, path: specs.NonTensor(spec.shape),
            Composite: self._composite,
            Stacked: self._stacked,
        }

    def spec(self, spec: SpecNest, path: Path) -> TensorSpec:
        with at(TO, path):
            make = self.makers.get(type(spec))
            if make is None:
                raise TypeError(f"no spec of torchrl has the values of {spec!r:.80}; {_remedy(spec)}")
            return make(spec, path)

    def _dtype(self, spec: ArraySpec) -> torch.dtype:
        return getattr(self.torch, spec.dtype)

    def _dtype_and_mask(self, spec: Categorical | OneHot | MultiCategorical | MultiOneHot) -> dict[str, object]:
        mask = None if spec.mask is None else self._tensor(spec.mask_table())
        return {"dtype": self._dtype(spec), "mask": mask}

    def _tensor(self, table: NumpyArray) -> torch.Tensor:
        return self.torch.tensor(np.array(table))

    def _unbounded(self, spec: ArraySpec, path: Path) -> TensorSpec:
        if spec.dtype == "complex64":
            raise TypeError("no spec of torchrl has complex numbers; store real and imaginary parts")
        return self.specs.Unbounded(spec.shape, dtype=self._dtype(spec))

    def _bounded(self, spec: Bounded, path: Path) -> TensorSpec:
        low, high = (self._tensor(spec.table(name)).to(self._dtype(spec)) for name in ("low", "high"))
        return self.specs.Bounded(low, high, spec.shape, dtype=self._dtype(spec))

    def _choices(self, spec: Categorical | MultiCategorical, path: Path) -> TensorSpec:
        if spec.start != 0:
            raise TypeError(f"choices of torchrl are numbered from 0 on, not from {spec.start!r}; write start=0")
        if isinstance(spec, Categorical):
            return self.specs.Categorical(spec.n, spec.shape, **self._dtype_and_mask(spec))
        nvec = self._tensor(spec.table("nvec").astype(np.int64))
        # By default torchrl draws a single choice without the axis that its own spec and ours have.
        return self.specs.MultiCategorical(nvec, spec.shape, **self._dtype_and_mask(spec), remove_singleton=False)

    def _composite(self, spec: Composite, path: Path) -> TensorSpec:
        parts = {name: self.spec(child, (*path, name)) for name, child in spec.items()}
        return self.specs.Composite(parts, shape=spec.batch_shape, data_cls=spec._kind)

    def _stacked(self, spec: Stacked, path: Path) -> TensorSpec:
        if len({type(member) for member in spec.members}) > 1:
            raise TypeError(f"torchrl has specs of one kind side by side, got {spec!r:.80}; write a dict of them")
        kind = self.specs.StackedComposite if isinstance(spec.members[0], Composite) else self.specs.Stacked
        return kind(*(self.spec(member, (*path, i)) for i, member in enumerate(spec.members)), dim=spec.axis)


def _mask_shape_dtype(spec: TensorSpec) -> tuple[NumpyArray | None, tuple[int, ...], str]:
    """The arguments that all specs of choices have behind their numbers of choices."""
    return None if spec.mask is None else _numbers(spec.mask), tuple(spec.shape), spec.dtype


def _numbers(tensor: torch.Tensor) -> NumpyArray:
    """A tensor as NumPy array; numbers of bfloat16, which NumPy lacks, are float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if dtypes.shown(tensor.dtype) == "bfloat16" else tensor).numpy()


def _remedy(spec: object) -> str:
    if isinstance(spec, Text):
        return f"write NonTensor({spec.axes})"
    if isinstance(spec, Spec):
        return "write a Composite of what is stored: spec.parts"
    return "write a dict of its parts"
