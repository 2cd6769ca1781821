"""The kernel of `items.crops.windows`, on raw memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import entry_point
from functional_rb.cpu_kernels.raw_memory import copy_bytes, ints


@entry_point
def windows(
    images: Any,
    top: Any,
    left: Any,
    made: Any,
    count: Any,
    height: Any,
    width: Any,
    rows: Any,
    columns: Any,
    pixel: Any,
) -> None:
    """Do what `items.crops.windows` does, of images with so many bytes a pixel: the piece of a row inside is copied."""
    top, left = ints(top, count), ints(left, count)
    for k in range(count):
        first = np.int64(left[k])
        begin = min(max(-first, 0), columns)  # columns before the image, and from `end` on those behind it
        end = max(min(width - first, columns), begin)
        for i in range(rows):
            row = min(max(np.int64(top[k]) + i, 0), height - 1)
            source, target = images + (k * height + row) * width * pixel, made + (k * rows + i) * columns * pixel
            if end > begin:
                copy_bytes(target + begin * pixel, source + (first + begin) * pixel, (end - begin) * pixel)
            for j in range(begin):
                copy_bytes(target + j * pixel, source, pixel)
            for j in range(end, columns):
                copy_bytes(target + j * pixel, source + (width - 1) * pixel, pixel)
