"""Hash maps on torch: `rb.hash_maps`."""

from functional_rb.hash_maps import functions
from torch_backend.lib import LIB

_lib = LIB.within("hash_maps")

count = _lib.bind(functions.count)
init = _lib.bind(functions.init)
insert = _lib.bind(functions.insert)
insert_ = _lib.bind(functions.insert_)
keys = _lib.bind(functions.keys)
lookup = _lib.bind(functions.lookup)
refused = _lib.bind(functions.refused)
size = _lib.bind(functions.size)
with_spec = _lib.bind(functions.with_spec)

__all__ = [*functions.NAMES]
__dir__ = __all__.copy
