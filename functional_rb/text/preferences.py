"""Preferences: the loss of scores of pairs, and pairs and advantages of groups.

A backend binds each public function here; the examples are run with either one as `rb`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, BackendArray
from functional_rb.base.dtypes import shown
from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer import checks
from functional_rb.lib import A
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.specs import Unbounded
from functional_rb.text.lib import TextLib
from functional_rb.text.losses import checked_mask, mean, minus_log_sigmoid
from functional_rb.text.records import PairwiseDataset


def bradley_terry_loss(
    lib: TextLib[A], chosen: ArrayLike, rejected: ArrayLike, margin: ArrayLike = 0.0, mask: ArrayLike = None
) -> BackendArray:
    """How badly the scores of whole texts tell the preferred from the others; to be minimised.

    The mean of `-log sigmoid(chosen - rejected - margin)` over the pairs (R. A. Bradley and M. E. Terry, "Rank Analysis
    of Incomplete Block Designs", 1952). A pair of equal scores counts log 2.

    Args:
        chosen: float [B], the scores of the preferred texts.
        rejected: float [B], those of the others.
        margin: how much the scores should differ; a number, or float [B].
        mask: bool [B], which pairs count; all if None.

    Returns:
        float32 []; 0 if no pair counts. It can be differentiated with respect to the scores.

    Raises:
        ValueError: for shapes that do not fit.
        TypeError: for scores that are no floats.

    Example:
        >>> scores = np.array([2.0, 0.0], np.float32), np.array([0.0, 0.0], np.float32)
        >>> round(float(rb.text.bradley_terry_loss(*scores)), 4)
        0.41
    """
    arrays = [lib.converted(x, "float32", name) for x, name in ((chosen, "chosen"), (rejected, "rejected"))]
    if not isinstance(margin, int | float):
        arrays.append(lib.converted(margin, "float32", "margin"))
    real = checked_mask(lib, "bradley_terry_loss", 1, arrays, mask)
    if len(arrays) == 2:
        arrays.append(lib.number(margin, "float32", arrays[0]))
    return lib.run(_bradley_terry, *arrays, real)


def pairs_of_groups(
    lib: TextLib[A], items: object, scores: ArrayLike, mask: ArrayLike = None
) -> tuple[PairwiseDataset, BackendArray]:
    """The best and the worst item of each group as a pair, for DPO and for reward models.

    Args:
        items: any nest, such as `sample.items` of `frb.Groups`, leaves [n, G, ...].
        scores: float [n, G], by which they are ranked; NaN counts as no item. Of equal ones the first is taken.
        mask: bool [n, G], which items there are, such as `sample.mask`; all if None.

    Returns:
        A `PairwiseDataset` of nests like the items, leaves [n, ...], and bool [n]: whether the pair prefers anything,
        that is, whether the scores of the two differ.

    Raises:
        ValueError: for shapes that do not fit.
        TypeError: for scores that are no floats, leaves that are no arrays, and NumPy's of a dtype that the library
            would change, such as int64 in JAX without its 64-bit mode.

    Example:
        >>> replies = {"tokens": np.arange(6, dtype=np.int32).reshape(2, 3)}
        >>> pairs, differ = rb.text.pairs_of_groups(replies, np.array([[1, 3, 2], [4, 4, 4]], np.float32))
        >>> pairs.chosen_data["tokens"].tolist(), pairs.rejected_data["tokens"].tolist(), differ.tolist()
        ([1, 3], [0, 3], [True, False])
    """
    checks.check_unpacked(items, "pairs_of_groups")
    ranked = lib.converted(scores, "float32", "scores")
    real = checked_mask(lib, "pairs_of_groups", 2, [ranked], mask)
    leaves, structure = nest.flatten(items, lambda x: hasattr(x, "dtype") and not hasattr(x, "keys"))
    arrays = []
    for path, leaf in zip(structure.paths, leaves, strict=True):
        name = nest.show(path)
        if not hasattr(leaf, "shape") or tuple(leaf.shape[:2]) != tuple(ranked.shape):
            got = tuple(leaf.shape) if hasattr(leaf, "shape") else type(leaf).__name__
            raise ValueError(
                f"pairs_of_groups: leaf {name!r}: expected the leading axes {tuple(ranked.shape)} of the scores, got "
                f"{got}"
            )
        if isinstance(leaf, np.ndarray):
            checks.check_numpy(name, leaf)
            if is_object_array(leaf):
                raise TypeError(
                    f"pairs_of_groups: leaf {name!r}: expected numbers, got Python objects; leave the leaf out"
                )
        spec = Unbounded(tuple(leaf.shape), shown(leaf.dtype))
        if why := lib.unsupported(spec.dtype):
            raise TypeError(f"pairs_of_groups: leaf {name!r}: dtype {spec.dtype} {why}")
        arrays.append(lib.convert(lib.as_array(leaf, ranked) if isinstance(leaf, np.ndarray) else leaf, spec, name))
    best, worst, differ = lib.run(_extremes, arrays, ranked, real)
    shape = (int(ranked.shape[0]),)
    sides = [nest.unflatten(structure, row, lib.build_mapping, shape) for row in (best, worst)]
    return PairwiseDataset(*sides), differ


def group_advantages(
    lib: TextLib[A], scores: ArrayLike, mask: ArrayLike = None, scale: bool = True, epsilon: float = 1e-4
) -> BackendArray:
    """How much better each item is than the others of its group, which stands for a value model in GRPO and RLOO.

        A_i = (r_i - mean(r)) / (deviation(r) + epsilon)

    over the items of its group (Z. Shao et al., "DeepSeekMath", 2024, section 4.1.2). The deviation has G - 1 in the
    denominator, as in `frb.Groups` and in TRL. Without `scale` it is `r_i - mean(r)` (Z. Liu et al., "Understanding
    R1-Zero-Like Training", 2025); times G / (G - 1) that is the score less the mean of the others (RLOO: A. Ahmadian et
    al., "Back to Basics", 2024). Each token of a reply has the reply's advantage.

    Args:
        scores: float [n, G], such as `rollout(...).scores` of G replies to each of n prompts, reshaped.
        mask: bool [n, G], which items there are, such as `sample.mask`; all if None.
        scale: whether to divide by the deviation, static.
        epsilon: what is added to it, a positive number.

    Returns:
        float32 [n, G]; 0 where there is no item, of a single item, and where all scores of a group are alike.

    Raises:
        ValueError: for shapes that do not fit, for a score that is NaN or infinite where that can be seen, naming its
            place, and for an epsilon that is no positive number.
        TypeError: for scores that are no floats.

    Example:
        >>> rb.text.group_advantages(np.array([[1, 3], [2, 2]], np.float32), scale=False).tolist()
        [[-1.0, 1.0], [0.0, 0.0]]
    """
    values = lib.converted(scores, "float32", "scores")
    real = checked_mask(lib, "group_advantages", 2, [values], mask)
    added = _number(epsilon)
    if not 0 < added < math.inf:
        raise ValueError(f"group_advantages: expected epsilon as a positive number, got {epsilon!r:.80}")
    known, there = lib.values(values), None if real is None else lib.values(real)
    if known is not None:
        wrong = ~np.isfinite(known) if there is None else ~np.isfinite(known) & there
        if wrong.any():
            row, column = (int(k[0]) for k in wrong.nonzero())
            raise ValueError(
                f"group_advantages: the score of item {column} of group {row} is {known[row, column]}; give a finite "
                f"one, or mask it"
            )
    return lib.run(_group_advantages, values, real, static=(bool(scale), added))


def _bradley_terry(ops: TreeOps, chosen: Array, rejected: Array, margin: Array, real: Array | None) -> Array:
    ahead = chosen - rejected - margin
    real = ops.cast(ops.full_like(ahead, 1), "bool") if real is None else real
    # Before gradients meet the scores of pairs that do not count.
    ahead = ops.where(real, ahead, ops.full_like(ahead, 0))
    return mean(ops, minus_log_sigmoid(ops, ahead), real)


def _extremes(
    ops: TreeOps, leaves: list[Array], scores: Array, real: Array | None
) -> tuple[list[Array], list[Array], Array]:
    groups, size = scores.shape
    real = scores == scores if real is None else real & (scores == scores)
    # NaN is in no order, and would be the largest or the smallest by chance.
    lowest = ops.full_like(scores, -math.inf)
    high, low = (ops.where(real, x, lowest) for x in (scores, -scores))
    first = ops.arange(groups, like=scores) * size
    best, worst = first + ops.argmax(high), first + ops.argmax(low)
    rows = [leaf.reshape(groups * size, *leaf.shape[2:]) for leaf in leaves]
    differ = ops.largest(high) > -ops.largest(low)  # without any item this is -inf > inf
    return [ops.take(row, best) for row in rows], [ops.take(row, worst) for row in rows], differ


def _number(value: Any) -> float:
    # NaN for what is none: a text, an array of several axes, or one on meta.
    if isinstance(value, str) or getattr(value, "shape", ()) != ():
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def _group_advantages(ops: TreeOps, scores: Array, real: Array | None, scale: bool, epsilon: float) -> Array:
    # Means and deviations in two passes, so that large scores that differ little lose nothing.
    real = ops.cast(ops.full_like(scores, 1), "bool") if real is None else real
    none = ops.full_like(scores, 0)
    counted = ops.where(real, scores, none)
    count = ops.cast(ops.total(real), "float32")[:, None]
    one = ops.full_like(count, 1)
    # Scores are counted from one of them, as the mean of equal scores need not be that score.
    first = ops.largest(ops.where(real, scores, ops.full_like(scores, -math.inf)))[:, None]
    counted = ops.where(real, counted - first, none)
    apart = ops.where(real, counted - ops.total(counted)[:, None] / ops.maximum(count, one), none)
    if not scale:
        return apart
    variance = ops.total(apart * apart)[:, None] / ops.maximum(count - one, one)
    return apart / (variance**0.5 + epsilon)
