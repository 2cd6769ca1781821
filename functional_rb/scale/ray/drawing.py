"""Batches of several shards: who is asked for how many rows, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.base import nest
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, MaskedSample, Sample, SliceSample
from functional_rb.ops import numpy_ops
from functional_rb.scale.ray import blocks, law
from functional_rb.scale.ray.arrays import NumPyArrays, unflatten
from functional_rb.scale.ray.blocks import Array
from functional_rb.scale.ray.draw import Draw
from functional_rb.scale.ray.messages import Drawn
from functional_rb.scale.ray.permits import Permits
from functional_rb.scale.ray.transport import ShardDiedError
from functional_rb.scale.ray.watch import Watch


class Drawing:
    """Draws of one client.

    Attributes:
        redraws: rows that were drawn anew from other shards, as their shard had died or was empty.
    """

    def __init__(self, watch: Watch, permits: Permits, spec: BufferSpec, arrays: NumPyArrays) -> None:
        """Of the client that has the watch."""
        self._watch, self._permits, self._arrays = watch, permits, arrays
        self._structure: nest.Structure | None = None if spec.on_sample is not None else spec.plan.outline.structure
        self.redraws = 0

    def begin(self, draw: Draw, deadline: float, exact: bool = False, wait: bool = True) -> bool:
        """Choose shards and ask them; False if that would have to wait, and must not."""
        if not self._permits.ask("sample", draw.size, deadline, "sample", wait):
            return False
        self._watch.poll()
        self._watch.post()
        if exact:
            self._watch.ask_all(deadline)
        if not self._wait_for_mass(deadline, wait):
            self._permits.give_back(draw.size)
            return False
        draw.restart(self._watch.standings)
        self._ask(draw, draw.size)
        return True

    def _wait_for_mass(self, deadline: float, wait: bool) -> bool:
        watch = self._watch
        while not any(standing.mass > 0 for standing in watch.standings):
            if not wait:
                return False
            watch.ask_behind_own(deadline)
            if any(standing.mass > 0 for standing in watch.standings):
                return True
            if watch.is_late(deadline):
                raise TimeoutError(
                    f"sample: waited {watch.options.timeout} s for items that can be drawn; {watch.stores()}: "
                    f"are actors adding?"
                )
            watch.pause()
        return True

    def _ask(self, draw: Draw, rows: int) -> None:
        """Ask shards for so many rows by the chances of the draw."""
        counts = np.bincount(law.choose(draw.chances, draw.random.random(rows)), minlength=len(draw.chances))
        for k in np.flatnonzero(counts).tolist():
            seed = int(draw.random.integers(0, 2**63))
            call = self._watch.transport.call(k, "sample", seed, int(counts[k]), draw.oldest)
            draw.calls.append((k, int(counts[k]), call))

    def finish(self, draw: Draw, betas: Sequence[float], deadline: float) -> list[AnySample[Any]]:
        """Wait for what was asked for, draw anew what dead and empty shards did not give, and put it together.

        Returns one sample for each beta, all of the same size.
        """
        while draw.calls:
            calls, draw.calls = draw.calls, []
            missing = sum(self._take(draw, *call, deadline) for call in calls)
            if missing:
                self.redraws += missing
                if not draw.chances.any():  # no shard is left: wait for one, and begin again
                    self._wait_for_mass(deadline, True)
                    draw.restart(self._watch.standings)
                    missing = draw.size
                self._ask(draw, missing)
        return self._together(draw, betas)

    def _take(self, draw: Draw, k: int, rows: int, call: object, deadline: float) -> int:
        """Take what one shard has drawn; how many rows are to be drawn anew, as it gave none."""
        try:
            drawn: Drawn = self._watch.transport.result(call, self._watch.left(deadline))
        except ShardDiedError:
            self._watch.died(k)
            return rows + draw.leave_out(k)
        except TimeoutError:
            raise TimeoutError(
                f"sample: waited for shard {k} to draw {rows} items; it is alive, but behind: start more shards"
            ) from None
        if self._watch.channels[k].alive:
            self._watch.hear(k, drawn.standing)
        if not drawn.rows:
            return rows + draw.leave_out(k)
        draw.parts.append((k, drawn))
        return 0

    def _together(self, draw: Draw, betas: Sequence[float]) -> list[AnySample[Any]]:
        """Samples of what shards have drawn, one for each beta."""
        parts = [(k, drawn, blocks.unpack(drawn.block)) for k, drawn in draw.parts]
        _, first, _ = parts[0]
        # Several batches come shard by shard, and no batch may have more of one shard than chance gives it. Rows are
        # drawn independently, so that in any order that does not look at them they are as good.
        order = draw.random.permutation(draw.size) if len(betas) > 1 else None
        columns = [aligned(arrays, order) for arrays in zip(*(arrays for _, _, arrays in parts), strict=True)]
        names = (*first.names, *first.extras)
        leaves, named = columns[: -len(names)], dict(zip(names, columns[-len(names) :], strict=True))
        chosen = np.repeat([draw.chances[k] for k, _, _ in parts], [drawn.rows for _, drawn, _ in parts])
        chance = (chosen if order is None else chosen[order]) * named["probabilities"].astype(np.float64)
        if "mask" in named:
            chance = np.where(named["mask"].reshape(len(chance), -1).any(1), chance, 0.0)
        named["probabilities"] = chance.astype(np.float32)
        least = law.least_chance(draw.chances, draw.leasts())
        if self._structure is None:
            self._structure = self._described(parts[0][0])
        size, samples = draw.size // len(betas), []
        for j, beta in enumerate(betas):
            at = slice(j * size, (j + 1) * size)
            weights = law.weights(chance[at], least, beta).astype(np.float32)
            these = {name: array[at] for name, array in named.items()} | {"weights": weights}
            samples.append(self._as_sample([leaf[at] for leaf in leaves], these, first.extras))
        return samples

    def _as_sample(self, leaves: list[Array], named: dict[str, Array], extras: Sequence[str]) -> AnySample[object]:
        """A sample of the backend's arrays."""
        assert self._structure is not None
        given = {name: self._arrays.given(array) for name, array in named.items()}
        lead = tuple(named["indices"].shape[:-1])
        mine = [self._arrays.given(leaf) for leaf in leaves]
        items = unflatten(self._structure, mine, self._arrays.build_mapping, lead)
        told = (items, given["indices"], given["weights"], given["probabilities"])
        more = {name: given[name] for name in extras}
        if "is_first" in given:
            return SliceSample(*told, given["mask"], given["is_first"], given["is_last"], given["truncated"], more)
        return MaskedSample(*told, given["mask"], more) if "mask" in given else Sample(*told, more)

    def _described(self, k: int) -> nest.Structure:
        """How items of samples look that a function of items has made."""
        call = self._watch.transport.call(k, "description")
        found: nest.Structure = self._watch.transport.result(call, self._watch.options.timeout)
        return found


def aligned(arrays: Sequence[Array], order: Any = None) -> Array:
    """Arrays one behind the other, in another order, in memory that every backend can share."""
    shape, dtype = (sum(len(array) for array in arrays), *arrays[0].shape[1:]), arrays[0].dtype
    whole = np.empty(shape, dtype) if dtype.hasobject else numpy_ops.aligned(np.empty, shape, dtype)
    if order is None:
        return np.concatenate(arrays, out=whole)
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    # With the usual mode, which raises, NumPy takes into memory of its own first: 17 times as long for 7 MB of frames.
    return joined.take(order, 0, out=whole, mode="clip")
