"""Records on JAX: `rb.records`."""

from functional_rb.public import records
from functional_rb.public.records import batch_shape as batch_shape
from jax_backend.lib import LIB

_lib = LIB.within("records")

at = _lib.bind(records.at)
cat = _lib.bind(records.cat)
stack = _lib.bind(records.stack)
unbind = _lib.bind(records.unbind)

__all__ = [*records.NAMES]
__dir__ = __all__.copy
