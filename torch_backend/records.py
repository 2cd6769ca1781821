"""Records on torch: `rb.records`."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, TypeVar

import torch

from functional_rb.base import nest
from functional_rb.base.containers import RECORDS
from functional_rb.base.extras import imported
from functional_rb.public import records
from functional_rb.public.records import batch_shape as batch_shape
from torch_backend.lib import LIB

A = TypeVar("A")

_lib = LIB.within("records")

at = _lib.bind(records.at)
cat = _lib.bind(records.cat)
stack = _lib.bind(records.stack)
unbind = _lib.bind(records.unbind)


def to_tensordict(data: object, batch_size: object = None, into: Any = None) -> Any:
    """A record as a TensorDict, the records in it as TensorDicts in that.

    Args:
        data: a record, or a nest of dicts and records of tensors.
        batch_size: the leading axes that the TensorDict tells; by default all that the leaves share.
        into: a tensorclass of the same fields, such as torchrl's `RewardData`, to make in place of a TensorDict.

    Returns:
        A TensorDict, or an instance of the class, over the same memory; fields that are None are left out.

    Raises:
        ImportError: if tensordict is not installed.

    Example:
        >>> text = frb.text.RewardData(torch.zeros(2, 8, dtype=torch.int32), torch.ones(2, 8, dtype=torch.bool))
        >>> rb.records.to_tensordict(text, batch_size=2).batch_size
        torch.Size([2])
    """
    tensordict = imported("tensordict", "records.to_tensordict")

    def as_dict(part: object) -> Any:
        found = None if isinstance(part, torch.Tensor) else nest.parts_of(part)
        if found is None:
            return part
        return {str(key): as_dict(x) for key, x in zip(found[0].keys, found[1], strict=True) if x is not None}

    shape = batch_shape(data) if batch_size is None else batch_size
    made = tensordict.TensorDict(as_dict(data), batch_size=shape)
    return made if into is None else into.from_tensordict(made)


def from_tensordict(data: Any, into: type[A]) -> A:
    """A record made of a TensorDict or a tensorclass, by the names of its fields.

    Args:
        data: a TensorDict or a tensorclass with the fields of the record.
        into: the class of the record.

    Returns:
        The record, over the same memory. A field that the class annotates as a record becomes one; a field that is not
        there, or None, takes its default.

    Raises:
        ValueError: for an entry that is no field, or a field without a default that is not there, naming it.

    Example:
        >>> from tensordict import TensorDict
        >>> text = TensorDict({"input_ids": torch.zeros(2, 8), "attention_mask": torch.ones(2, 8)}, [2])
        >>> rb.records.from_tensordict(text, frb.text.RewardData)
        RewardData(input_ids=float32 [2, 8], attention_mask=float32 [2, 8], rewards=None, end_scores=None)
    """
    found = {str(name): part for name, part in data.items() if part is not None}
    fields = {field.name: field for field in dataclasses.fields(into)}  # type: ignore[arg-type]  # a record is one
    needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    if not needed <= set(found) <= set(fields):
        raise ValueError(f"from_tensordict: expected the fields {list(fields)} of {into.__name__}, got {list(found)}")
    kinds = typing.get_type_hints(into)
    parts = {name: from_tensordict(x, kinds[name]) if kinds[name] in RECORDS else x for name, x in found.items()}
    return into(**parts)


__all__ = [*records.NAMES, "from_tensordict", "to_tensordict"]
__dir__ = __all__.copy
