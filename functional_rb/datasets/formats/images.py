"""Images as PNG or JPEG, of a size that is known before they are decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.datasets.episode import DatasetError, expecting

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

WHO = "datasets: images"
KINDS = ("PNG", "JPEG")


def decoded(
    contents: Sequence[bytes], shape: tuple[int, ...], dtype: DTypeLike, where: str, kinds: Sequence[str] = KINDS
) -> NumpyArray:
    """Images [n, *shape] of their bytes; those of another size or kind are refused, and not decoded."""
    images = np.empty((len(contents), *shape), dtype)
    for k, content in enumerate(contents):
        with _opened(content, f"{where}, image {k}", kinds) as image:
            # Pillow has read the header alone: a few bytes may claim an image of gigabytes.
            if image.size != (shape[1], shape[0]):
                size = f"{image.size[0]} by {image.size[1]}"
                raise DatasetError(f"{where}, image {k}: expected {shape[1]} by {shape[0]} pixels, got {size}")
            with expecting(f"{where}, image {k}: it cannot be decoded", OSError, ValueError, SyntaxError, remedy=""):
                values = np.asarray(image)
        fits = values.dtype.kind in "bu" and values.dtype.itemsize <= images.dtype.itemsize
        if not fits or values.size != images[k].size:
            raise DatasetError(
                f"{where}, image {k}: expected {images.dtype} {shape}, got {values.dtype} {values.shape}; "
                f"its colours are of another kind"
            )
        images[k] = values.reshape(shape)
    return images


def encoded(values: NumpyArray) -> list[bytes]:
    """Images uint8 [n, height, width, channels], of 1, 3 or 4 channels, as files of PNG, which loses nothing."""
    image, contents = imported("PIL.Image", WHO), []
    for pixels in values:
        content = io.BytesIO()
        image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(content, "PNG")
        contents.append(content.getvalue())
    return contents


def size_of(content: bytes, where: str) -> tuple[int, int]:
    with _opened(content, where, KINDS) as image:
        return int(image.size[1]), int(image.size[0])


def _opened(content: bytes, where: str, kinds: Sequence[str]) -> ImageFile:
    image = imported("PIL.Image", WHO)
    errors = OSError, ValueError, SyntaxError, TypeError, image.DecompressionBombError  # TypeError: of None
    with expecting(f"{where}: expected an image, {' or '.join(kinds)}", *errors, remedy=""):
        opened: ImageFile = image.open(io.BytesIO(bytes(content)), formats=list(kinds))
        return opened
