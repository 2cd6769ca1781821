"""What a sampler must do, whichever it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.core.strategy import Selection
from functional_rb.testing.faults import differing, kind_of, no_error
from functional_rb.testing.laws import TINY, Step, shares
from functional_rb.testing.strategies import BITS
from functional_rb.testing.transform_rules import check_leaves
from functional_rb.testing.tried import Tried

# A draw of this probability is not put down to chance.
RARE = 1e-9


def check_selection(
    tried: Tried,
    selection: Selection,
    leaves: Sequence[NumpyArray],
    size: int,
    some: bool,
    enough: bool,
    more: NumpyArray | None,
) -> None:
    """Check a `Selection`, and the leaves that were read for it."""
    spec = tried.spec
    lead = tuple(spec.sampler.leading_shape(size))
    one = lead if selection.weights.shape == lead else lead[:1]
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {"handles": ("int32", lead)}
    wanted |= dict.fromkeys(("weights", "probabilities"), ("float32", one))
    wanted |= dict.fromkeys(("mask", "is_first", "is_last", "truncated"), ("bool", lead))
    for name, (dtype, shape) in wanted.items():
        array = getattr(selection, name)
        if array is None:
            continue
        fits = array.shape == shape or (name != "handles" and array.size == math.prod(lead))
        tried.expect(
            array.dtype.name == dtype and fits,
            f"`Selection.{name}`: expected {dtype} {list(shape)}, got {kind_of(array)}; see `Selection` for its shapes",
        )
    handles = selection.handles.reshape(-1)
    mask = handles != -1 if selection.mask is None else selection.mask.reshape(-1)
    tried.expect(
        ((handles == -1) == ~mask).all(),
        "the handles of masked draws: expected -1 where the mask is False, and nowhere else, got "
        f"{selection.handles.tolist()}; write `ops.where(mask, handles, -1)`",
    )
    tried.expect(
        some or not mask.any(),
        "a draw from a buffer of which `drawable(1)` is False: expected handles of -1, weights and probabilities "
        f"of 0, got {selection.handles.tolist()}; mask what cannot be drawn, as `uniform.alike` does, or let "
        "`drawable` be True",
    )
    tried.expect(
        not enough or mask.any(),
        f"a draw from a buffer of which `drawable({size})` is True: expected some real draws, got "
        f"{selection.handles.tolist()}; let `drawable` say what `draw` does",
    )
    # A slice may have one weight for all of its steps; it is real if its first step is.
    real = mask if len(selection.weights) == len(mask) else mask.reshape(len(selection.weights), -1)[:, 0]
    for name in ("weights", "probabilities"):
        numbers = getattr(selection, name).reshape(-1)
        good = ((numbers > 0) & (numbers <= 1 + 1e-6))[real].all() and (numbers[~real] == 0).all()
        tried.expect(
            good,
            f"`Selection.{name}`: expected numbers in (0, 1] for what was drawn, and 0 for what was not, got "
            f"{numbers.tolist()}; scale weights by the largest, and mask what is not real",
        )
    gone = [int(handle) for handle in handles[mask] if int(handle) not in tried.stored]
    tried.expect(
        not gone,
        f"a draw: expected handles of what is stored, some of {sorted(tried.stored)}, got {gone}; draw from "
        "`draft.size(ops)` items or by a tree that forgets in `removed` and `cleared`; take handles from "
        "`draft.handles_of(ops, slots)`",
    )
    check_leaves(tried, handles, mask, leaves, lead, more)
    for name, extra in selection.extras.items():
        tried.expect(
            extra.shape[: len(lead)] == lead,
            f"the extra {name!r}: expected a row for each item, {list(lead)} in front, got {list(extra.shape)}; "
            "give one row for each of `own`",
        )


def check_heeding(
    tried: Tried, count: int, bits: NumpyArray, beta: NumpyArray, size: int, more: NumpyArray | None
) -> None:
    """Check that a draw of which only the first rows count, as in a mixture, is a draw of so many in every respect."""
    spec, carrier = tried.spec, tried.carriers[0]
    if not (spec.sampler.heeds_wanted and spec.sampler.remembers):
        return
    try:
        spec.sampler.check_batch(spec.plan, count)
    except ValueError:
        return
    rows, words = spec.sampler.draw_shape(spec.plan, count)
    fewer = None if more is None else more[: spec.extra_shape(count)[0]]
    with no_error(tried.who, f"`draw` of {size}, of which {count} count"):
        whole = carrier.run("draw", tried.arrays, spec, bits, beta, size, more, np.asarray(count, np.int32))
        alone = carrier.run("draw", tried.arrays, spec, bits[:rows, :words], beta, count, fewer)
    changed = [name for name, _, _ in differing(alone[0], whole[0], "state")]
    drawn, expected = whole[2].handles.reshape(-1), alone[2].handles.reshape(-1)
    tried.expect(
        not changed and (drawn[: expected.size] == expected).all(),
        f"a draw of {size}, of which {count} count: expected what a draw of {count} gives, handles "
        f"{expected.tolist()}, and the state after it, got handles {drawn.tolist()}, and a difference in "
        f"{', '.join(changed) or 'nothing'}; remember the first `draft.wanted` rows alone, or let `heeds_wanted` "
        "be False",
    )


def check_probabilities(tried: Tried, some: bool) -> None:
    """Check the probabilities that the sampler gives of the next draw."""
    handles = np.array(sorted(tried.stored), np.int32)
    if not handles.size:
        return
    chances = tried.call("probabilities", tried.arrays, tried.spec, handles)
    within = ((chances >= 0) & (chances <= 1 + 1e-6)).all()
    good = chances.dtype == np.float32 and chances.shape == handles.shape and within
    tried.expect(good, f"`probabilities`: expected float32 [n], each from 0 to 1, got {chances}; divide by the total")
    total = float(chances.sum(dtype=np.float64))
    # A batch may begin with one of each lane.
    tried.expect(
        not some or abs(total - 1) < 1e-4 or 1 < total <= (tried.spec.lanes or 1) + 1e-4,
        f"`probabilities` of all that is stored: expected a sum of 1, as something can be drawn, got {total:.6g} "
        f"of {chances.tolist()}; tell with which probability the next draw begins with each item",
    )
    if tried.trial.sampler_law is None or not some:
        return
    if tried.model is not None:
        steps = sorted(tried.model.steps(), key=lambda step: step.handle)
    else:
        capacity = tried.spec.capacity
        steps = [Step(k, 0, h % capacity, h, tried.stored[h]) for k, h in enumerate(sorted(tried.stored))]
    wanted = shares(dict(enumerate(map(float, tried.trial.sampler_law(steps)))))
    expected = [wanted.get(k, 0.0) for k in range(len(steps))]
    tried.expect(
        np.allclose(chances, expected, rtol=1e-4, atol=TINY),
        f"`probabilities`: expected what the law says, {np.round(expected, 6).tolist()}, got "
        f"{np.round(chances, 6).tolist()}; see `added`, `updated` and `probabilities`",
    )


def check_frequencies(tried: Tried, draws: int = 1500) -> None:
    """Check that the first of each of many batches is drawn as `probabilities` says."""
    spec, carrier = tried.spec, tried.carriers[0]
    size = spec.batch_size or 6
    if not tried.stored or not bool(tried.call("drawable", tried.arrays, spec, size)):
        return
    handles = np.array(sorted(tried.stored), np.int32)
    chances = tried.call("probabilities", tried.arrays, spec, handles).astype(np.float64)
    rng = np.random.default_rng(0)
    shape = spec.sampler.draw_shape(spec.plan, size)
    more = np.zeros(spec.extra_shape(size), np.int32) if spec.plan.extra_words else None
    beta = np.asarray(getattr(spec.sampler, "beta", 0.0), np.float32)
    first = np.zeros(draws, np.int64)
    for k in range(draws):
        bits = rng.integers(0, BITS, shape, np.int32)
        selection = carrier.run("draw", tried.arrays, spec, bits, beta, size, more)[2]
        first[k] = selection.handles.reshape(-1)[0]
    counts = np.array([(first == handle).sum() for handle in handles])
    for handle, count, probability in zip(handles.tolist(), counts.tolist(), chances.tolist(), strict=True):
        # Chernoff's bound of a count that far from its mean.
        share = count / draws
        rare = 2 * math.exp(-draws * divergence(share, probability))
        tried.expect(
            rare > RARE,
            f"how often handle {handle} comes first in {draws} draws: expected about {draws * probability:.0f} "
            f"times, as `probabilities` says, got {count} times; let `probabilities` say what `draw` does, and "
            "use random bits that are independent of each other",
        )


def divergence(share: float, probability: float) -> float:
    """The relative entropy of two coins (Kullback and Leibler, 1951)."""
    probability = min(max(probability, 1e-12), 1 - 1e-12)
    parts = [(share, probability), (1 - share, 1 - probability)]
    return sum(p * math.log(p / q) for p, q in parts if p > 0)
