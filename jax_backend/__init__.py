"""functional_rb on JAX: `import jax_backend as rb`."""

from typing import TYPE_CHECKING

from functional_rb.base import lazy as _lazy
from jax_backend import compat as compat  # first, as it refuses what is missing or too old
from jax_backend import containers as containers  # of its library, which it tells the core
from jax_backend import hash_maps as hash_maps
from jax_backend import moments as moments
from jax_backend import processes as processes  # which tells multiprocessing how states are sent
from jax_backend import records as records
from jax_backend.dicts import load_state_dict, state_dict
from jax_backend.dlpack import from_dlpack
from jax_backend.donation import jit
from jax_backend.functions import (
    add,
    add_,
    can_sample,
    clear,
    clear_,
    contains,
    counts,
    cursor,
    decode,
    encode,
    enumerate,
    epochs,
    get,
    init,
    is_live,
    items,
    key,
    map_spec,
    newest,
    ones,
    priorities,
    probabilities,
    project,
    rand,
    random_crop,
    sample,
    sample_,
    sample_spec,
    size,
    split,
    update,
    update_,
    with_spec,
    zeros,
)
from jax_backend.shapes import shape_dtype_struct
from jax_backend.sharded_state import partition_specs, shard, unshard

if TYPE_CHECKING:
    from jax_backend import forests as forests
    from jax_backend import text as text
    from jax_backend import trees as trees
else:
    __getattr__, __dir__ = _lazy.namespace(__name__, {__name__: ("forests", "text", "trees")})

__all__ = [
    "add",
    "add_",
    "can_sample",
    "clear",
    "clear_",
    "contains",
    "counts",
    "cursor",
    "decode",
    "encode",
    "enumerate",
    "epochs",
    "forests",
    "from_dlpack",
    "get",
    "hash_maps",
    "init",
    "is_live",
    "items",
    "jit",
    "key",
    "load_state_dict",
    "map_spec",
    "moments",
    "newest",
    "ones",
    "partition_specs",
    "priorities",
    "probabilities",
    "project",
    "rand",
    "random_crop",
    "records",
    "sample",
    "sample_",
    "sample_spec",
    "shape_dtype_struct",
    "shard",
    "size",
    "split",
    "state_dict",
    "text",
    "trees",
    "unshard",
    "update",
    "update_",
    "with_spec",
    "zeros",
]
