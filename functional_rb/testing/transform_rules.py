"""What a transform must do, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.core.strategy import Transform
from functional_rb.testing.faults import kind_of, near, shown_item
from functional_rb.testing.laws import Step
from functional_rb.testing.tried import Tried


def check_leaves(
    tried: Tried,
    handles: NumpyArray,
    mask: NumpyArray,
    leaves: Sequence[NumpyArray],
    lead: tuple[int, ...],
    more: NumpyArray | None,
) -> None:
    """Check what was read of each item."""
    spec, law = tried.spec, tried.trial.transform_law
    reads = any(type(transform).reading is not Transform.reading for transform in spec.transforms)
    for path, leaf, kind in zip(spec.plan.names, leaves, spec.plan.leaves, strict=True):
        tried.expect(
            leaf.shape == (*lead, *kind.shape) and leaf.dtype.name == kind.dtype,
            f"leaf {path!r} of a sample: expected {kind.dtype} {[*lead, *kind.shape]}, got {kind_of(leaf)}; let "
            "readers keep the shapes and dtypes of the leaves",
        )
    flat = [leaf.reshape(-1, *kind.shape) for leaf, kind in zip(leaves, spec.plan.leaves, strict=True)]
    for row in np.flatnonzero(mask):
        handle = int(handles[row])
        got = {path: leaf[row] for path, leaf in zip(spec.plan.names, flat, strict=True)}
        expected = dict(tried.stored[handle])
        if reads and law is None:
            continue  # only a law could say what the transform should read
        if law is not None:
            lane, place = lane_of(tried, handle)
            bits = np.zeros(0, np.int32) if more is None else more[row]
            expected |= {path: np.asarray(leaf) for path, leaf in law(lane, place, bits).items()}
        wrong = [path for path in got if not near(got[path], expected[path], law is None)]
        tried.expect(
            not wrong,
            f"the item of handle {handle} as it is sampled: expected "
            f"{shown_item({path: expected[path] for path in wrong})}, got "
            f"{shown_item({path: got[path] for path in wrong})}; "
            f"{'the slots that `draw` returns are those of its handles' if law is None else 'see `reading`'}",
        )


def lane_of(tried: Tried, handle: int) -> tuple[list[Step], int]:
    """The items of a handle's lane, from the oldest on, and its place among them."""
    ring = tried.spec.plan.ring
    lane = handle % ring.capacity // ring.length
    same = sorted(h for h in tried.stored if h % ring.capacity // ring.length == lane)
    steps = [Step(k, lane, h % ring.capacity, h, tried.stored[h]) for k, h in enumerate(same)]
    return steps, same.index(handle)
