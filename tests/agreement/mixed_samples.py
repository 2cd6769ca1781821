"""What a sample of a mixture tells, as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

FLAGS = ("mask", "is_first", "is_last", "truncated")


def told(sample: Any) -> list[bytes]:
    """What a sample tells, and the items of rows that were drawn."""
    real = sample.indices[..., 0] >= 0
    leaves = [leaf[real] for leaf in sample.items.values()]
    flags = [getattr(sample, name) for name in FLAGS if hasattr(sample, name)]
    arrays = *leaves, sample.indices, sample.weights, sample.probabilities, sample.extras["buffer_ids"], *flags
    return [np.asarray(x).tobytes() for x in arrays]
