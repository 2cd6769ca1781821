"""functional_rb on JAX: `import jax_backend as rb`."""

from typing import TYPE_CHECKING
from typing import cast as _cast

from functional_rb.base import lazy as _lazy
from functional_rb.public import buffers as _buffers
from functional_rb.public import moments as _moments
from functional_rb.public import structures as _structures
from functional_rb.specs import functions as _values
from jax_backend import compat as compat  # first, as it refuses what is missing or too old
from jax_backend.arrays import containers as containers  # of its library, which it tells the core
from jax_backend.arrays.keys import key as key
from jax_backend.arrays.keys import split as split
from jax_backend.compiling.jit import jit as jit
from jax_backend.interop import processes as processes  # which tells multiprocessing how states are sent
from jax_backend.interop.dicts import load_state_dict as load_state_dict
from jax_backend.interop.dicts import state_dict as state_dict
from jax_backend.interop.dlpack import from_dlpack as from_dlpack
from jax_backend.lib import LIB as _LIB
from jax_backend.scale.state import partition_specs as partition_specs
from jax_backend.scale.state import shard as shard

if TYPE_CHECKING:
    from functional_rb.trees.signatures import Add as _Add
    from functional_rb.trees.signatures import Draw as _Draw
    from functional_rb.trees.signatures import Init as _Init
    from functional_rb.trees.signatures import ReadAll as _ReadAll
    from functional_rb.trees.signatures import WithSpec as _WithSpec
    from jax_backend import text as text
    from jax_backend import trees as trees
else:
    __getattr__, __dir__ = _lazy.namespace(__name__, {__name__: ("text", "trees")})

add = _cast("_Add", _LIB.bind(_buffers.add))
add_ = _cast("_Add", _LIB.bind(_buffers.add_))
can_sample = _LIB.bind(_buffers.can_sample)
clear = _LIB.bind(_buffers.clear)
clear_ = _LIB.bind(_buffers.clear_)
contains = _LIB.bind(_values.contains)
counts = _LIB.bind(_buffers.counts)
decode = _LIB.bind(_values.decode)
encode = _LIB.bind(_values.encode)
enumerate = _LIB.bind(_values.enumerate_values, "enumerate")
get = _LIB.bind(_buffers.get)
init = _cast("_Init", _LIB.bind(_buffers.init))
is_live = _LIB.bind(_buffers.is_live)
items = _cast("_ReadAll", _LIB.bind(_buffers.items))
lookup = _LIB.bind(_structures.lookup)
map_spec = _LIB.bind(_buffers.map_spec)
moments = _LIB.bind(_moments.moments)
newest = _LIB.bind(_buffers.newest)
priorities = _LIB.bind(_buffers.priorities)
probabilities = _LIB.bind(_buffers.probabilities)
project = _LIB.bind(_values.project)
rand = _LIB.bind(_values.rand)
sample = _cast("_Draw", _LIB.bind(_buffers.sample))
sample_ = _cast("_Draw", _LIB.bind(_buffers.sample_))
sample_spec = _LIB.bind(_buffers.sample_spec)
size = _LIB.bind(_buffers.size)
update = _LIB.bind(_buffers.update)
update_ = _LIB.bind(_buffers.update_)
visits = _LIB.bind(_structures.visits)
with_spec = _cast("_WithSpec", _LIB.bind(_buffers.with_spec))
zeros = _LIB.bind(_values.zeros)

__all__ = [*_buffers.NAMES, "partition_specs", "shard"]
