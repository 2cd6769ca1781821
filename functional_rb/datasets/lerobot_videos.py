"""Frames of the videos of LeRobot's datasets, decoded by a library that the user names."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.datasets.episode import DatasetError, expecting
from functional_rb.datasets.formats import streams

Array = NumpyArray
# Gives the frames uint8 [n, *shape] of a video at so many seconds [n], which grow, given the shape of a frame too.
Decode = Callable[[str, Array, tuple[int, ...]], Array]
WHO = "datasets: videos"
# Seconds that are decoded rather than skipped: a key frame that comes before them may be as far back.
AHEAD = 10.0


def decoding(name: str, videos: int) -> AbstractContextManager[Decode]:
    """What decodes so many videos by turns, until it is closed: "pyav", or "module:function".

    Such a function is called with a video's path and seconds [n], float64, which grow, and gives frames uint8
    [n, height, width, 3].
    """
    if name == "pyav":
        return Pyav(videos)
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"datasets: video: expected 'pyav' or 'module:function', got {name!r}")
    decode: Callable[[str, Array], Array] = getattr(importlib.import_module(module), function)
    return contextlib.nullcontext(lambda path, times, shape: decode(path, times))


def frames(decode: Decode, video: tuple[str, float], times: Array, shape: tuple[int, ...], where: str) -> Array:
    """The frames of an episode at times that are counted from its begin."""
    path, begin = video
    decoded = decode(path, begin + times.astype(np.float64), shape)
    if decoded.shape != (len(times), *shape) or decoded.dtype != np.uint8:
        raise DatasetError(
            f"{where}, {path}: expected uint8 {(len(times), *shape)}, got {decoded.dtype} {decoded.shape}"
        )
    return decoded


class Pyav:
    """Decodes by PyAV. Videos stay open, so that the next frames are decoded on from those before."""

    def __init__(self, videos: int) -> None:
        imported("av", WHO)
        self._most = max(videos, 1)
        self._open: dict[str, _Video] = {}  # the one that was read last comes last

    def __enter__(self) -> Pyav:
        return self

    def __exit__(self, *_: object) -> None:
        for video in self._open.values():
            video.close()
        self._open.clear()

    def __call__(self, path: str, times: Array, shape: tuple[int, ...]) -> Array:
        """The frames uint8 [n, *shape] nearest to seconds [n], which grow.

        A video that ends half a frame or more before the last of them is refused, and frames of another size are.
        """
        video = self._open.pop(path, None) or _Video(path)
        try:
            frames = video.frames(times, shape)
        except BaseException:
            video.close()
            raise
        self._open[path] = video
        # As many videos stay open as are read by turns, so that each is decoded on from where it was.
        while len(self._open) > self._most:
            self._open.pop(next(iter(self._open))).close()
        return frames


class _Video:
    """A video that is open, and the frame to which it is decoded."""

    def __init__(self, path: str) -> None:
        with streams.opened(path):
            pass  # it is a regular file
        self._path, self._av = path, imported("av", WHO)
        with self._damage():
            self._container = self._av.open(path)
        self._frames: Iterator[object] | None = None  # nothing is decoded
        self._frame: Any = None
        self._before = 0.0  # the second of the frame before, or another after which this one is the first

    def close(self) -> None:
        self._container.close()

    def frames(self, times: Array, shape: tuple[int, ...]) -> Array:
        pictures = np.empty((len(times), *shape), np.uint8)
        with self._damage():
            stream = self._container.streams.video[0]
            # Times are those of a clock, and frames lie at multiples of their distance: half of it tells them apart.
            half, unit = 0.5 / float(stream.average_rate), float(stream.time_base)
            for at, time in enumerate(times.tolist()):
                # The nearest frame is the first one later than half a frame before.
                after = time - half
                if self._frames is None or not self._before <= after <= self._before + AHEAD:
                    offset = max(int(time / unit) - 1, 0)  # decoding begins at the key frame before it
                    self._container.seek(offset, stream=stream, backward=True)
                    self._frames, self._frame = self._container.decode(stream), None
                    self._before = after
                while self._frame is None or self._second(unit) <= after:
                    if self._frame is not None:
                        self._before = self._second(unit)
                    self._frame = next(self._frames, None)
                    if self._frame is None:
                        raise DatasetError(f"{self._path}: expected a frame at second {time}, the video ends before")
                size = self._frame.height, self._frame.width, 3
                if size != shape:
                    raise DatasetError(f"{self._path}, second {time}: expected a frame of shape {shape}, got {size}")
                pictures[at] = self._frame.to_ndarray(format="rgb24")
        return pictures

    def _second(self, unit: float) -> float:
        return float(self._frame.pts) * unit

    def _damage(self) -> AbstractContextManager[None]:
        # Besides errors of its own, PyAV raises others for streams, rates and names that are not there.
        errors = self._av.FFmpegError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError
        return expecting(f"{self._path}: expected a video that PyAV decodes", *errors)
