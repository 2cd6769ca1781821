"""functional_rb on JAX: `import jax_backend as rb`."""

from jax_backend.dlpack import from_dlpack
from jax_backend.functions import (
    add,
    can_sample,
    epochs,
    get,
    init,
    is_live,
    items,
    key,
    passes,
    random_crop,
    refused,
    rejected,
    sample,
    size,
    split,
    stale,
    update,
)

__all__ = [
    "add",
    "can_sample",
    "epochs",
    "from_dlpack",
    "get",
    "init",
    "is_live",
    "items",
    "key",
    "passes",
    "random_crop",
    "refused",
    "rejected",
    "sample",
    "size",
    "split",
    "stale",
    "update",
]
