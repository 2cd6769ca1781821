"""What happens between what is added and what is sampled: each transform in a module of its own."""

from functional_rb.core.strategy import Transform
from functional_rb.transforms.her import her
from functional_rb.transforms.map_items import map_items
from functional_rb.transforms.n_step import n_step

__all__ = ["Transform", "her", "map_items", "n_step"]
