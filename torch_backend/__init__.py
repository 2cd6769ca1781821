"""functional_rb on torch: `import torch_backend as rb`."""

from typing import TYPE_CHECKING

from functional_rb.base import lazy as _lazy
from torch_backend import compat as compat  # first, as it refuses what is missing or too old
from torch_backend import containers as containers  # of its library, which it tells the core
from torch_backend import hash_maps as hash_maps
from torch_backend import moments as moments
from torch_backend import processes as processes  # which tells multiprocessing how states are sent
from torch_backend import records as records
from torch_backend.compiling import jit
from torch_backend.dicts import load_state_dict, state_dict
from torch_backend.dlpack import from_dlpack
from torch_backend.execute import own_
from torch_backend.functions import (
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
    update,
    update_,
    with_spec,
    zeros,
)
from torch_backend.random import key, split

if TYPE_CHECKING:
    from torch_backend import forests as forests
    from torch_backend import text as text
    from torch_backend import trees as trees
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
    "own_",
    "priorities",
    "probabilities",
    "project",
    "rand",
    "random_crop",
    "records",
    "sample",
    "sample_",
    "sample_spec",
    "size",
    "split",
    "state_dict",
    "text",
    "trees",
    "update",
    "update_",
    "with_spec",
    "zeros",
]

if not compat.IS_TRACED:
    import sys

    compat.untrace_all(sys.modules[__name__])
