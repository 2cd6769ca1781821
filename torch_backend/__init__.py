"""functional_rb on torch: `import torch_backend as rb`."""

from torch_backend.dlpack import from_dlpack
from torch_backend.functions import (
    add,
    can_sample,
    epochs,
    get,
    init,
    is_live,
    items,
    passes,
    random_crop,
    refused,
    rejected,
    sample,
    size,
    stale,
    update,
)
from torch_backend.inplace import add_, own_, sample_, update_
from torch_backend.random import key, split

__all__ = [
    "add",
    "add_",
    "can_sample",
    "epochs",
    "from_dlpack",
    "get",
    "init",
    "is_live",
    "items",
    "key",
    "own_",
    "passes",
    "random_crop",
    "refused",
    "rejected",
    "sample",
    "sample_",
    "size",
    "split",
    "stale",
    "update",
    "update_",
]
