"""Frames of the videos of LeRobot's datasets, decoded by a library that the user names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from functional_rb.convert.common import imported
from functional_rb.datasets.episode import Array, DatasetError

Decode = Callable[[str, Array], Array]
"""Gives the frames uint8 [n, height, width, 3] of a video at so many seconds, which grow."""


def decoder(name: str) -> Decode:
    """What decodes videos: "pyav", or "module:function".

    Raises:
        ImportError: if it is missing.
        ValueError: for another text.
    """
    if name == "pyav":
        imported("av", "datasets: videos", "av")
        return pyav
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"datasets: video: expected 'pyav' or 'module:function', got {name!r}")
    found: Decode = getattr(importlib.import_module(module), function)
    return found


def frames(decode: Decode, video: tuple[str, float], times: Array, shape: tuple[int, ...], where: str) -> Array:
    """The frames of an episode at times that are counted from its begin.

    Raises:
        DatasetError: for frames of another size, or another number of them.
    """
    path, begin = video
    found = decode(path, begin + times.astype(np.float64))
    if found.shape != (len(times), *shape) or found.dtype != np.uint8:
        raise DatasetError(f"{where}, {path}: expected uint8 {(len(times), *shape)}, got {found.dtype} {found.shape}")
    return found


def pyav(path: str, times: Array) -> Array:
    """The frames nearest to some seconds, decoded by PyAV.

    Args:
        path: of the video.
        times: seconds [n], which grow.

    Returns:
        uint8 [n, height, width, 3].

    Raises:
        DatasetError: if the video ends half a frame or more before the last of them.
    """
    av: Any = imported("av", "datasets: videos", "av")
    with av.open(path) as container:
        stream = container.streams.video[0]
        half = 0.5 / float(stream.average_rate)
        container.seek(max(int(times[0] / float(stream.time_base)) - 1, 0), stream=stream, backward=True)
        chosen: list[Array] = []
        for frame in container.decode(stream):
            while len(chosen) < len(times) and frame.pts * float(stream.time_base) > times[len(chosen)] - half:
                chosen.append(frame.to_ndarray(format="rgb24"))
            if len(chosen) == len(times):
                return np.stack(chosen)
    raise DatasetError(f"{path}: expected a frame at second {times[len(chosen)]}, and the video ends before")
