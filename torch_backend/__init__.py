"""functional_rb on torch: `import torch_backend as rb`."""

from torch_backend.functions import (
    add,
    can_sample,
    get,
    init,
    is_live,
    items,
    rejected,
    sample,
    size,
    stale,
    update,
)
from torch_backend.random import key, split

__all__ = [
    "add",
    "can_sample",
    "get",
    "init",
    "is_live",
    "items",
    "key",
    "rejected",
    "sample",
    "size",
    "split",
    "stale",
    "update",
]
