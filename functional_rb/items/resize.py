"""Images in another size, by two matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Literal

import numpy as np

from functional_rb.base import nest
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead, plain
from functional_rb.items.images import Channels, ImageFunction, channels_back, channels_first, pair, to_bytes
from functional_rb.items.leafwise import within
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec

Method = Literal["linear", "cubic", "nearest"]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


# The kernel of R. G. Keys, "Cubic convolution interpolation for digital image processing" (1981), a = -1/2.
def _cubic(x: Floats) -> Floats:
    near, far = (1.5 * x - 2.5) * x * x + 1.0, ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


_KERNELS: Final[dict[str, Callable[[Floats], Floats]]] = {"linear": lambda x: np.maximum(0.0, 1.0 - x), "cubic": _cubic}


# So near to a half a number of bytes counts as one, and goes down: how sums were rounded decides nothing.
A_HALF: Final = 2.0**-12
# What `weights` gave: torch.compile, which cannot trace how they are computed, finds them here.
_KEPT: Final[dict[tuple[int, int, str, bool], Floats]] = {}


def weights(before: int, after: int, method: str, antialias: bool) -> Floats:
    """What each element of a line gives to each of a line of another length, float32 [after, before], read-only.

    The centre of element i of the new line is at `(i + 1/2) before / after - 1/2` of the old one. Elements there weigh
    as much as the kernel says for their distance, widened by `before / after` where that is above 1 and `antialias`
    holds; the weights of each row are divided by their sum, so that at the edges those weigh that are there.

    Example:
        >>> weights(4, 2, "linear", True).tolist()
        [[0.4285714328289032, 0.4285714328289032, 0.1428571492433548, 0.0], [0.0, 0.1428571492433548, \
0.4285714328289032, 0.4285714328289032]]
    """
    kept = _KEPT.get((before, after, method, antialias))
    if kept is not None:
        return kept
    scale = before / after
    centre = (np.arange(after) + 0.5) * scale - 0.5
    distance = np.abs(centre[:, None] - np.arange(before)) / (max(scale, 1.0) if antialias else 1.0)
    raw = _KERNELS[method](distance)
    matrix: Floats = (raw / raw.sum(1, keepdims=True)).astype(np.float32)
    matrix.flags.writeable = False
    _KEPT[before, after, method, antialias] = matrix
    return matrix


def nearest(before: int, after: int) -> list[int]:
    """The element of a line that is nearest to each of a line of another length; of two, the later one.

    Example:
        >>> nearest(4, 3), nearest(2, 4)
        ([0, 2, 3], [0, 0, 1, 1])
    """
    return [(2 * i + 1) * before // (2 * after) for i in range(after)]


@dataclasses.dataclass(frozen=True)
class Resize(ImageFunction):
    """Images in another size; see `resize`."""

    who: ClassVar[str] = "resize"

    size: tuple[int, int] = (1, 1)
    method: Method = "linear"
    antialias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", pair(self.size, self.who))
        if self.method not in ("linear", "cubic", "nearest"):
            raise ValueError(f"resize: expected method as 'linear', 'cubic' or 'nearest', got {self.method!r}")

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        # The other size; cubic weights may be negative, so that values may lie outside of their bounds.
        rows, columns, count = self.sizes(spec.shape)
        shape = self.shape(*self.size, count, spec.shape)
        if self.method != "nearest":  # beforehand, see `_KEPT`
            for before, after in zip((rows, columns), self.size, strict=True):
                weights(before, after, self.method, self.antialias)
        return plain(shape, spec.dtype) if self.method == "cubic" else within(spec, shape)

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        shape = tuple(x.shape[len(lead) :])
        where, (rows, columns, _) = self.where(shape), self.sizes(shape)
        images = channels_first(ops, x, where)
        if self.method == "nearest":
            for axis, (before, after) in enumerate(zip((rows, columns), self.size, strict=True), start=-2):
                taken = ops.take(ops.moveaxis(images, axis, 0), ops.integers(nearest(before, after), like=x))
                images = ops.moveaxis(taken, 0, axis)
            return channels_back(ops, images, where)
        down, across = (
            weights(before, after, self.method, self.antialias)
            for before, after in zip((rows, columns), self.size, strict=True)
        )
        flat = ops.cast(images, "float32").reshape(math.prod(images.shape[:-2]), rows, columns)
        resized = ops.resampled(ops.resampled(flat, down, 1), across, 2)
        resized = resized.reshape(*images.shape[:-2], *self.size)
        return channels_back(ops, to_bytes(ops, resized - A_HALF) if "uint8" in str(x.dtype) else resized, where)


def resize(
    size: int | tuple[int, int],
    keys: Key | Sequence[Key] | None = None,
    *,
    method: Method = "linear",
    antialias: bool = True,
    channels: Channels | None = None,
) -> Resize:
    """Images in another size, for `frb.map_items`: the same numbers on both backends, up to 1e-5.

    Rows and columns are multiplied by a matrix each (`functional_rb.items.resize.weights`), computed once in float64.
    With antialiasing this is what `jax.image.resize` and `torch.nn.functional.interpolate(antialias=True)` compute.
    Without, linear ones are the same too; cubic ones are JAX's, while torch has a = -3/4 in place of Keys's -1/2, and
    repeats what is at the edge. "nearest" is JAX's, and torch's "nearest-exact". Images of bytes stay bytes: they are
    computed as floats, which are rounded, halves down (within 2^-12, so that both backends give the same bytes), and
    brought between 0 and 255.

    Args:
        size: rows and columns, or one number for both.
        keys: the images, uint8 or float32; by default all that are, as for `to_image`.
        method: "linear", "cubic" (Keys, 1981), or "nearest".
        antialias: whether images that become smaller are smoothed.
        channels: where images have their channels, "first" or "last"; by default on their smallest axis.

    Raises:
        ValueError: for other values; where it is used, for leaves that are no images, naming them.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.resize(84), {"pixels": frb.Bounded(0, 255, (210, 160, 3), "uint8")})
        Composite({'pixels': Bounded(0, 255, (84, 84, 3), 'uint8')})
    """
    return Resize(nest.checked_keys(keys, "keys", "resize"), channels, pair(size, "resize"), method, antialias)
