"""Features of LeRobot: what each column of its tables is of a dataset's steps, and the numbers that describe it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.exporting.steps import WHO, Unit
from functional_rb.datasets.formats import images
from functional_rb.datasets.statistics import Moments
from functional_rb.specs import ArraySpec, Text

if TYPE_CHECKING:
    import pyarrow

NAME = "LeRobot"
# The columns that every dataset of LeRobot has: where a row lies, and what was to be done there.
COUNTED = {"timestamp": "float32"}
COUNTED |= dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
MOST_AXES = 5


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column of LeRobot's tables."""

    name: str  # the name of the column, "observation.state"
    shape: tuple[int, ...]  # the shape of a value, with one axis at least; for an image height, width, channels
    dtype: str  # the dtype of the column's numbers, or "image"

    def metadata(self) -> Json:
        names = ["height", "width", "channels"] if self.dtype == "image" else None
        return {"dtype": self.dtype, "shape": list(self.shape), "names": names}

    def of_datasets(self) -> Json:
        """The feature as the library `datasets` describes it, by which LeRobot reads tables."""
        if self.dtype == "image":
            return {"_type": "Image"}
        value = {"dtype": self.dtype, "_type": "Value"}
        if self.shape == (1,):
            return value
        if len(self.shape) == 1:
            return {"feature": value, "length": self.shape[0], "_type": "Sequence"}
        return {"shape": list(self.shape), "dtype": self.dtype, "_type": f"Array{len(self.shape)}D"}

    def type(self) -> pyarrow.DataType:
        arrow = imported("pyarrow", WHO)
        if self.dtype == "image":
            return arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
        value = arrow.from_numpy_dtype(np.dtype(self.dtype))
        if len(self.shape) == 1:
            return value if self.shape == (1,) else arrow.list_(value, self.shape[0])
        for _ in self.shape:
            value = arrow.list_(value)
        return value

    def column(self, values: NumpyArray) -> pyarrow.Array:
        arrow = imported("pyarrow", WHO)
        if self.dtype == "image":
            rows = [{"bytes": content, "path": None} for content in images.encoded(values)]
            return arrow.array(rows, self.type())
        column = arrow.array(np.ascontiguousarray(values).reshape(-1))
        if len(self.shape) == 1:
            return column if self.shape == (1,) else arrow.FixedSizeListArray.from_arrays(column, self.shape[0])
        # LeRobot's `Array2D` and so on are lists in lists: the innermost axis first.
        for size in reversed(self.shape):
            ends = np.arange(0, len(column) + 1, size, dtype=np.int32)
            column = arrow.ListArray.from_arrays(ends, column)
        return column

    def moments(self, values: NumpyArray) -> Moments:
        """The moments of values [n, *shape]; for images those of their channels, scaled to [0, 1]."""
        if self.dtype != "image":
            return Moments.of(values)
        joined: Moments | None = None
        for image in values:  # one at a time, as they are larger as floats
            of_image = Moments.of(image.reshape(-1, self.shape[-1]) / 255)
            joined = of_image if joined is None else joined.joined(of_image)
        assert joined is not None  # there are some steps
        return joined

    def stats(self, moments: Moments, rows: int) -> Json:
        """Moments as LeRobot writes them: those of an image's channels have two axes more."""
        shape = (self.shape[-1], 1, 1) if self.dtype == "image" else self.shape
        numbers = {name: value.reshape(shape).tolist() for name, value in moments.by_name().items()}
        return {**numbers, "count": [rows]}


def feature_of(unit: Unit) -> Feature:
    spec, seen = unit.spec, unit.field == "observations" and is_image(unit.spec)
    unit.check(NAME, "/" if unit.field == "infos" else "/.")
    kind = dtypes.kind_of(spec.dtype) if isinstance(spec, ArraySpec) and not isinstance(spec, Text) else ""
    if not isinstance(spec, ArraySpec) or kind not in ("bool", "int", "float") or spec.dtype == "bfloat16":
        raise unit.refused(NAME, "numbers of NumPy's dtypes, and images", "change it by Dataset.map")
    if len(spec.shape) > MOST_AXES:
        raise unit.refused(NAME, f"at most {MOST_AXES} axes", "flatten some by Dataset.map")
    path: Sequence[object] = unit.path
    if unit.field == "observations" and not path:
        path = ["image" if seen else "state"]
    prefix = {"observations": ["observation"], "actions": ["action"], "infos": []}[unit.field]
    name = ".".join(map(str, (*prefix, *path)))
    if unit.field == "infos" and name.split(".")[0] in ("observation", "action"):
        raise unit.refused(NAME, "infos that are not called observation or action", "rename it by Dataset.map")
    if seen:
        return Feature(name, spec.shape if len(spec.shape) == 3 else (*spec.shape, 1), "image")
    return Feature(name, spec.shape or (1,), spec.dtype)


def is_image(spec: object) -> bool:
    """Whether arrays are taken for images: bytes with rows and columns, and 1, 3 or 4 channels last or none."""
    if not isinstance(spec, ArraySpec) or spec.dtype != "uint8":
        return False
    return len(spec.shape) == 2 or (len(spec.shape) == 3 and spec.shape[2] in (1, 3, 4))
