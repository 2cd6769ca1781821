"""Records on JAX: `rb.records`."""

from __future__ import annotations

from functional_rb.interop import records
from functional_rb.interop.records import batch_shape as batch_shape
from functional_rb.interop.records import state_dict as state_dict
from jax_backend import values
from jax_backend.binder import Binder

_binds = Binder(lambda _: values)

at = _binds(records.at)
cat = _binds(records.cat)
stack = _binds(records.stack)
unbind = _binds(records.unbind)
load_state_dict = _binds(records.load_state_dict)

__all__ = [
    "at",
    "batch_shape",
    "cat",
    "load_state_dict",
    "stack",
    "state_dict",
    "unbind",
]
__dir__ = __all__.copy
