"""Running mean and deviation on JAX: `rb.moments`."""

from functional_rb.public import moments
from jax_backend.lib import LIB

_lib = LIB.within("moments")

init = _lib.bind(moments.init)
merge = _lib.bind(moments.merge)
normalize = _lib.bind(moments.normalize)
update = _lib.bind(moments.update)

__all__ = [*moments.NAMES]
__dir__ = __all__.copy
