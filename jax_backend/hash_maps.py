"""Hash maps on JAX: `rb.hash_maps`."""

from __future__ import annotations

from functional_rb.hash_maps import functions
from jax_backend import carried
from jax_backend.binder import Binder

_binds = Binder(lambda _: carried)

init = _binds(functions.init)
insert = _binds(functions.insert)
insert_ = _binds(functions.insert_)
with_spec = _binds(functions.with_spec)
lookup = _binds.array(functions.lookup)
count = _binds.array(functions.count)
size = _binds.array(functions.size)
refused = _binds.array(functions.refused)
keys = _binds(functions.keys)

__all__ = [
    "count",
    "init",
    "insert",
    "insert_",
    "keys",
    "lookup",
    "refused",
    "size",
    "with_spec",
]
__dir__ = __all__.copy
