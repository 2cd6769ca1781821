"""Images as PNG or JPEG, of a size that is known before they are decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.base.extras import imported
from functional_rb.datasets.episode import Array, DatasetError

KINDS = ("PNG", "JPEG")


def decoded(
    contents: Sequence[Any], shape: tuple[int, ...], dtype: Any, where: str, kinds: Sequence[str] = KINDS
) -> Array:
    """Images [n, *shape].

    Args:
        contents: of each, its bytes.
        shape: height and width, and channels.
        dtype: of the values.
        where: file and episode, for errors.
        kinds: those that are read.

    Raises:
        DatasetError: for what is no such image, or one of another size: it is not decoded.
        ImportError: if Pillow is missing.
    """
    made = np.empty((len(contents), *shape), dtype)
    for k, content in enumerate(contents):
        with _opened(content, f"{where}, image {k}", kinds) as image:
            if image.size != (shape[1], shape[0]):
                found = f"{image.size[0]} by {image.size[1]}"
                raise DatasetError(f"{where}, image {k}: expected {shape[1]} by {shape[0]} pixels, got {found}")
            try:
                values = np.asarray(image)
            except (OSError, ValueError, SyntaxError) as error:
                raise DatasetError(f"{where}, image {k}: it cannot be decoded: {error}") from None
        if values.size != made[k].size or values.dtype.kind not in "bu" or values.dtype.itemsize > made.dtype.itemsize:
            raise DatasetError(
                f"{where}, image {k}: expected {made.dtype} {shape}, got {values.dtype} {values.shape}; "
                f"its colours are of another kind"
            )
        made[k] = values.reshape(shape)
    return made


def encoded(values: Array) -> list[bytes]:
    """Images uint8 [n, height, width, channels], of 1, 3 or 4 channels, as files of PNG, which loses nothing."""
    image, made = _pillow(), []
    for pixels in values:
        content = io.BytesIO()
        image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(content, "PNG")
        made.append(content.getvalue())
    return made


def size_of(content: object, where: str) -> tuple[int, int]:
    with _opened(content, where, KINDS) as image:
        return int(image.size[1]), int(image.size[0])


def _opened(content: Any, where: str, kinds: Sequence[str]) -> Any:
    image = _pillow()
    try:
        return image.open(io.BytesIO(bytes(content)), formats=list(kinds))
    except (OSError, ValueError, SyntaxError, TypeError, image.DecompressionBombError) as error:  # TypeError: of None
        raise DatasetError(f"{where}: expected an image, {' or '.join(kinds)}: {error}") from None


def _pillow() -> Any:
    return imported("PIL.Image", "datasets: images")
