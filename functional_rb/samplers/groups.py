"""Groups of items that belong together, such as the replies to one prompt."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from functional_rb.base import nest
from functional_rb.base.nest import Key
from functional_rb.core import soundness
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.sample import Items, MaskedSample
from functional_rb.core.strategy import Selection, need_order
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below
from functional_rb.samplers.base import SamplerBase, check_bools, check_count, even_chance
from functional_rb.samplers.importance import shares
from functional_rb.samplers.slices import Slices
from functional_rb.structures import episode_windows, key_groups, key_rows, order_statistics, sparse_set, sum_tree
from functional_rb.structures.episode_windows import Lanes
from functional_rb.structures.key_groups import KeyGroups
from functional_rb.structures.key_rows import KeyRows

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

MEAN, DEVIATION = "group_mean", "group_deviation"
SMALLEST = 2.0**-126
# Half of what the bits of a float32 have for its exponent 0: with half of a number's bits, a root within a tenth.
HALF_EXPONENT = 127 << 22


class _Chosen(NamedTuple):
    """Groups that a draw has chosen.

    Attributes:
        sizes: int32 [n], how many items each has; any number where there is none.
        chances: float32 [n], of each; 0 where there is none.
        at: gives the slots int32 [n * m] of items by their numbers in their groups, int32 [n, m].
    """

    sizes: Array
    chances: Array
    at: Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class Groups(SamplerBase):
    """Some items of each of n groups: leaves [n, per_group, *shape], as GRPO and RLOO take replies.

    Items of a group are added one after another, and a leaf tells where the next group begins, so a group is drawn in
    O(log n). A key that comes back after others, as in A B A B, begins a new group; with `interleaved=True` all stored
    items with one key are a group, wherever they lie.

    Each group is equally likely, and none comes twice in a batch; of fewer than n groups each comes as often
    as any other, or once more. Of a larger group come `per_group` neighbours in a circle from any item on:
    each is equally likely, none comes twice. Of a group that is being overwritten what is left counts. `sample.mask`,
    bool [n, per_group], marks real items; all weights are 1; the probability is the group's.

    Attributes:
        per_group: how many items of each group.
        group_key: path of an integer leaf, such as a prompt's number, that is another in every group than in the one
            before, or, if they are interleaved, than in all others.
        reward_key: path of a leaf of one number an item; `sample.extras` then tells "group_mean" and
            "group_deviation" (with n - 1 in the denominator; 0 of a single item), float32 [n, per_group], of the items
            drawn of each group.
        whole: whether groups with fewer stored items are left out; else they come padded, masked.
        interleaved: whether items of a group may lie anywhere among others, such as replies that come as they are done.
            Nothing is then kept of groups: each draw sorts the keys of all slots, in O(n log n). Any writer will do.

    Raises:
        ValueError: for settings out of range, a leaf that the item lacks or that cannot tell, a number that does not
            fit into a lane (if `whole`), or a writer that does not keep items in order, if groups are not interleaved.

    Example:
        >>> Groups(8, group_key="prompt", reward_key="score").whole
        True
    """

    per_group: int
    group_key: Key
    reward_key: Key | None = None
    whole: bool = True
    interleaved: bool = False

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> MaskedSample[Items]: ...

    def __post_init__(self) -> None:
        check_bools(self, "whole", "interleaved")
        check_count(self, "per_group", "a positive int")
        Slices(self.per_group, end_keys=())  # which knows how many there may be

    # The sampler whose index finds groups: a group has a window of so many items if it has so many.
    @functools.cached_property
    def _slices(self) -> Slices:
        return Slices(self.per_group, (), self.group_key, strict_length=self.whole)

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        # A group is stored as a trajectory is, if its items lie side by side.
        return None if self.interleaved else self._slices.boundaries

    @property
    def why_nothing(self) -> str:
        other = "" if self.interleaved else ", or interleaved=True, if other items lie between those of a group"
        return f"completes a group of {self.per_group} items; add more, or give whole=False{other}"

    # How many items a group has at least that is drawn.
    @property
    def _least(self) -> int:
        return self.per_group if self.whole else 1

    def check(self, plan: Plan) -> None:
        # Groups are read off rings, and their leaves exist.
        who = type(self).__name__
        room = plan.capacity if self.interleaved else plan.ring.length
        if not self.interleaved:
            need_order(plan, who)
        if self._least > room:
            raise ValueError(
                f"{who}: {self.per_group} items of a group never fit into the {room} of "
                f"{'a buffer' if self.interleaved else 'a lane'}; "
                f"give a larger BufferSpec.capacity, or whole=False, for smaller groups"
            )
        most = plan.capacity // self._least
        if most > order_statistics.MAX_CAPACITY:
            raise ValueError(
                f"{who}: {most} groups may be stored, and at most 2^24 are counted exactly; use several buffers, or a "
                f"smaller BufferSpec.capacity"
            )
        self._slices.boundaries.check(plan.outline, who)
        if self.reward_key is None:
            return
        leaf = plan.outline.leaves[nest.position(plan.outline.names, self.reward_key, who)]
        if not any(kind in leaf.dtype for kind in ("int", "float")) or math.prod(leaf.shape) != 1:
            raise ValueError(
                f"{who}: reward key {self.reward_key!r}: expected one number an item, got {leaf.dtype} of shape "
                f"{leaf.shape}; name another leaf"
            )

    def problem(self, contents: Found) -> str | None:
        # No group lies where nothing is stored.
        return soundness.problem_of_weights(contents)

    def tree_rows(self, capacity: int) -> int:
        # A sum tree over the slots, as the index; none where groups are interleaved.
        return 0 if self.interleaved else self._slices.tree_rows(capacity)

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Two words for the group, and two for the item from which it comes.
        return batch, 4

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        return batch, self.per_group

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        # Note which groups there are wherever the new items may have changed it.
        if not self.interleaved:
            self._slices.added(ops, draft, write, leaves, priorities)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        if not self.interleaved:
            self._slices.removed(ops, draft, removal)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # Find groups by random ranks that differ, then go around each from one of its items.
        there = self._sorted(ops, draft) if self.interleaved else None
        # The tree has a one for each group. Of fewer groups than are wanted, one shuffle of all is gone round.
        groups = ops.cast(sum_tree.total(draft.known_tree), "int32") if there is None else there.number
        shuffled = sparse_set.distinct(ops, draws[:, :2], groups)
        turn = ops.arange(batch, like=shuffled) % ops.maximum(groups, ops.full_like(groups, 1))
        ranks = ops.take(shuffled, turn)
        chosen = self._in_runs(ops, draft, ranks) if there is None else self._anywhere(ops, there, ranks)
        is_group = chosen.chances > 0  # without groups, as of an empty buffer, anything is chosen
        sizes = ops.where(is_group, chosen.sizes, ops.full_like(chosen.sizes, 1))
        place = ops.arange(self.per_group, like=sizes)[None, :]
        real = is_group[:, None] & (place < sizes[:, None])
        around = below(ops, draws[:, -2:], sizes)[:, None] + ops.where(real, place, ops.full_like(place, 0))
        around = ops.where(around < sizes[:, None], around, around - sizes[:, None])
        slots = chosen.at(ops.where(is_group[:, None], around, ops.full_like(around, 0)))
        handles = draft.handles_of(ops, slots).reshape(batch, self.per_group)
        extras = self._statistics(ops, draft, slots, real, sizes)
        handles = ops.where(real, handles, ops.full_like(handles, -1))
        return slots, Selection(handles, ops.cast(is_group, "float32"), chosen.chances, real, extras=extras)

    def _in_runs(self, ops: Ops, draft: Draft, ranks: Array) -> _Chosen:
        lanes = Lanes(draft.plan.ring, draft.counters.ends)
        members = order_statistics.select(ops, draft.known_tree, draft.plan.capacity, ranks)
        chances = shares(ops, draft, members)
        before, after = episode_windows.extent(ops, lanes, draft.auxiliary[STEP_IN_EPISODE], members)

        def at(around: Array) -> Array:
            away = around - ops.where(chances > 0, before, ops.full_like(before, 0))[:, None]
            first = members[:, None] + ops.full_like(around, 0)
            return episode_windows.shifted(ops, lanes, first.reshape(-1), away.reshape(-1))

        return _Chosen(before + after + 1, chances, at)

    def _anywhere(self, ops: Ops, groups: KeyGroups, ranks: Array) -> _Chosen:
        begins = key_groups.select(ops, groups, ranks)
        sizes = ops.take(groups.sizes, begins)

        def at(around: Array) -> Array:
            return ops.take(groups.slots, (begins[:, None] + around).reshape(-1))

        return _Chosen(sizes, self._chances(ops, groups, sizes), at)

    def _sorted(self, ops: Ops, draft: Draft) -> KeyGroups:
        plan = draft.plan
        position = nest.position(plan.outline.names, self.group_key, type(self).__name__)
        slots = ops.arange(plan.capacity, like=draft.counters.ends.sizes)
        keys = draft.read(ops, slots, [position])[position]
        leaf = plan.outline.leaves[position]
        words = key_rows.pack(ops, KeyRows((((), leaf.shape, leaf.dtype),)), [keys], slots)
        _, live = draft.locate(ops, draft.handles_of(ops, slots))
        return key_groups.find(ops, words, live, self._least)

    # The chances of groups of these sizes; that of a size 0 is 0.
    @staticmethod
    def _chances(ops: Ops, groups: KeyGroups, sizes: Array) -> Array:
        chance = even_chance(ops, groups.number) + ops.cast(ops.full_like(sizes, 0), "float32")
        return ops.where(sizes > 0, chance, ops.full_like(chance, 0))

    # Mean and deviation of the rewards of each group's real items, float32 [n, per_group].
    def _statistics(self, ops: Ops, draft: Draft, slots: Array, real: Array, sizes: Array) -> dict[str, Array]:
        if self.reward_key is None:
            return {}
        position = nest.position(draft.plan.outline.names, self.reward_key, type(self).__name__)
        values = ops.cast(draft.read(ops, slots, [position])[position].reshape(*real.shape), "float32")
        none = ops.full_like(values, 0)
        rewards = ops.where(real, values, none)
        count = ops.cast(ops.minimum(sizes, ops.full_like(sizes, self.per_group)), "float32")[:, None]
        mean = ops.divide(_sums(ops, rewards), count)
        apart = rewards - mean
        # A choice stands between products and sums, or a compiler might round the two as one.
        squares = ops.where(real, apart * apart, none)
        fewer = ops.maximum(count - 1, ops.full_like(count, 1))
        deviation = _square_root(ops, ops.divide(_sums(ops, squares), fewer))
        return {MEAN: ops.where(real, mean + none, none), DEVIATION: ops.where(real, deviation + none, none)}

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # The chance of a group, and then that of one of its items.
        if self.interleaved:
            groups = self._sorted(ops, draft)
            sizes = key_groups.sizes_of(ops, groups, slots)
            known = ops.cast(ops.maximum(sizes, ops.full_like(sizes, 1)), "float32")
            return ops.divide(self._chances(ops, groups, sizes), known)
        lanes, in_episode = Lanes(draft.plan.ring, draft.counters.ends), draft.auxiliary[STEP_IN_EPISODE]
        _, marked = episode_windows.of_trajectories(ops, self._slices.rule, lanes, in_episode, slots)
        before, after = episode_windows.extent(ops, lanes, in_episode, slots)
        return ops.divide(shares(ops, draft, marked), ops.cast(before + after + 1, "float32"))

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        # Whether there is a group: it may come again and again.
        return self._sorted(ops, draft).number > 0 if self.interleaved else self._slices.drawable(ops, draft, n)


# The sums of rows, float32 [n, 1] of [n, m], added two by two, so that all carriers round alike.
def _sums(ops: Ops, x: Array) -> Array:
    while x.shape[1] > 1:
        half, odd = x.shape[1] // 2, x.shape[1] % 2
        rest = [x[:, 2 * half :]] if odd else []
        x = ops.concat([x[:, :half] + x[:, half : 2 * half], *rest], 1)
    return x


# Square roots of float32 that are not negative, by Newton's steps: those of libraries differ.
def _square_root(ops: Ops, x: Array) -> Array:
    positive = (x >= SMALLEST) & (x < math.inf)
    safe = ops.where(positive, x, ops.full_like(x, 1))
    root = ops.bitcast((ops.bitcast(safe, "int32") >> 1) + HALF_EXPONENT, "float32")
    for _ in range(4):
        root = 0.5 * (root + ops.divide(safe, root))
    return ops.where(positive, root, ops.where(x < SMALLEST, ops.full_like(x, 0), x))
