"""Functions of items for `frb.map_items`, each a frozen dataclass that works on both backends."""

from functional_rb.items.burn_in import burn_in
from functional_rb.items.cast import cast
from functional_rb.items.choices import action_discretize, one_hot
from functional_rb.items.color_jitter import color_jitter
from functional_rb.items.compose import compose
from functional_rb.items.crops import crop, random_shift
from functional_rb.items.discounts import reward_to_go
from functional_rb.items.frame_stack import frame_stack
from functional_rb.items.grayscale import grayscale
from functional_rb.items.joining import cat, flatten
from functional_rb.items.names import rename, select
from functional_rb.items.normalize import normalize
from functional_rb.items.resize import resize
from functional_rb.items.rewards import clip_reward
from functional_rb.items.to_image import to_image

__all__ = [
    "action_discretize",
    "burn_in",
    "cast",
    "cat",
    "clip_reward",
    "color_jitter",
    "compose",
    "crop",
    "flatten",
    "frame_stack",
    "grayscale",
    "normalize",
    "one_hot",
    "random_shift",
    "rename",
    "resize",
    "reward_to_go",
    "select",
    "to_image",
]
__dir__ = __all__.copy
