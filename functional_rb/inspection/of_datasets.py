"""A converted dataset as a picture: how good and how long its episodes are, and what is seen in some of its steps."""

from __future__ import annotations

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets.stored import Stored
from functional_rb.inspection.picture import histograms, new_figure
from functional_rb.inspection.report import distribution
from functional_rb.specs import ArraySpec
from functional_rb.specs.values import Outline

WHO = "datasets info --picture"
# Images that are shown, at even distances.
FRAMES = 6
# Rows and columns that an image has at least.
LEAST = 8
Array = NumpyArray


def draw_dataset(reader: Stored, path: str) -> None:
    seen = _frames(reader)
    figure = new_figure(8, 5 if seen else 3, WHO)
    above, *below = figure.subfigures(2, 1, height_ratios=[3, 2]) if seen else [figure]
    summaries = list(reader.description.summaries())
    rows = [
        ("steps of an episode", "episodes", distribution(np.array([episode.steps for episode in summaries]))),
        ("return of an episode", "episodes", distribution(np.array([episode.total for episode in summaries]))),
    ]
    histograms(above, [row for row in rows if row[2]["histogram"] is not None])
    for subfigure in below:
        for axes, (slot, image) in zip(subfigure.subplots(1, len(seen), squeeze=False)[0], seen, strict=True):
            axes.imshow(image, cmap=None if image.ndim == 3 else "gray", vmin=0, vmax=255)
            axes.set_title(f"step {slot:,}", fontsize="small")
            axes.set_axis_off()
    description = reader.description
    figure.suptitle(f"{description.name}: {description.episodes:,} episodes, {description.steps:,} steps")
    figure.savefig(path, dpi=150)


def _frames(reader: Stored) -> list[tuple[int, Array]]:
    outline = Outline.of(reader.spec(narrow=False).observation, WHO)
    images = [
        k
        for k, member in enumerate(outline.members)
        if isinstance(spec := member.spec, ArraySpec)
        and spec.dtype == "uint8"
        and len(spec.shape) in (2, 3)
        and sorted(spec.shape)[-2] >= LEAST
    ]
    if not images:
        return []
    steps = reader.description.steps
    slots = np.unique(np.linspace(0, steps - 1, min(FRAMES, steps)).round().astype(int)).tolist()
    rows = [nest.flatten_as(outline.shape_of_units, step.observations)[images[0]][0] for step in reader.steps_at(slots)]
    return [(slot, _shown(row)) for slot, row in zip(slots, rows, strict=True)]


def _shown(image: Array) -> Array:
    # Grey [height, width], or colours [height, width, 3]. Of images stacked in one the first three channels, or the
    # last one, are shown.
    if image.ndim == 2:
        return image
    if image.shape[0] < min(image.shape[1:]):  # channels, or images, first
        image = np.moveaxis(image, 0, -1)
    return image[..., :3] if image.shape[-1] in (3, 4) else image[..., -1]
