"""Functions of items for `frb.map_items`, each a frozen dataclass that works on both backends."""

from functional_rb.core.item_function import ItemFunction
from functional_rb.items.burn_in import BurnIn, burn_in
from functional_rb.items.cast import Cast, Recast, cast
from functional_rb.items.choices import ActionDiscretize, Numbered, OneHotted, Undiscretized, action_discretize, one_hot
from functional_rb.items.color_jitter import ColorJitter, color_jitter
from functional_rb.items.compose import Compose, compose
from functional_rb.items.crops import CenterCrop, RandomCrop, RandomShift, center_crop, random_crop, random_shift
from functional_rb.items.discounts import Discounted, discount_cumsum, reward_to_go
from functional_rb.items.frame_stack import FrameStack, Newest, frame_stack
from functional_rb.items.grayscale import Grayscale, grayscale
from functional_rb.items.joining import Cat, Flatten, Reshape, Split, cat, flatten
from functional_rb.items.moments import Moments, vec_norm
from functional_rb.items.names import Rename, Select, exclude, rename, select
from functional_rb.items.normalize import Denormalize, Normalize, normalize
from functional_rb.items.resize import Resize, resize
from functional_rb.items.rewards import ClipReward, SignReward, clip_reward, sign_reward
from functional_rb.items.to_image import FromImage, ToImage, to_image

KINDS = (
    ActionDiscretize,
    BurnIn,
    Cast,
    Cat,
    CenterCrop,
    ClipReward,
    ColorJitter,
    Compose,
    Denormalize,
    Discounted,
    Flatten,
    FrameStack,
    FromImage,
    Grayscale,
    Newest,
    Normalize,
    Numbered,
    OneHotted,
    RandomCrop,
    RandomShift,
    Recast,
    Rename,
    Reshape,
    Resize,
    Select,
    SignReward,
    Split,
    ToImage,
    Undiscretized,
)
"""The classes of these functions, whose names are part of the JSON format."""

__all__ = [
    "ItemFunction",
    "Moments",
    "action_discretize",
    "burn_in",
    "cast",
    "cat",
    "center_crop",
    "clip_reward",
    "color_jitter",
    "compose",
    "discount_cumsum",
    "exclude",
    "flatten",
    "frame_stack",
    "grayscale",
    "normalize",
    "one_hot",
    "random_crop",
    "random_shift",
    "rename",
    "resize",
    "reward_to_go",
    "select",
    "sign_reward",
    "to_image",
    "vec_norm",
]
__dir__ = __all__.copy
