"""Groups of items that belong together, such as the replies to one prompt."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from functional_rb.base import nest
from functional_rb.base.nest import Key
from functional_rb.core import soundness
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.sample import Items, MaskedSample
from functional_rb.core.strategy import Selection, need_order
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below
from functional_rb.samplers import group_rewards
from functional_rb.samplers.base import SamplerBase, check_bools, check_count, even_chance
from functional_rb.samplers.importance import shares
from functional_rb.samplers.slices import Slices
from functional_rb.structures import (
    episode_windows,
    key_groups,
    key_rows,
    min_tree,
    order_statistics,
    sparse_set,
    sum_tree,
    widest,
)
from functional_rb.structures.episode_windows import Lanes
from functional_rb.structures.key_groups import KeyGroups
from functional_rb.structures.key_rows import KeyRows

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

Take = Literal["random", "newest", "best", "spread"]


class _Chosen(NamedTuple):
    """Groups that a draw has chosen.

    Attributes:
        sizes: int32 [n], how many items each has; 1 where there is none.
        known: int32 [n], how many come first in the order by what is chosen: all but those whose reward is NaN.
        chances: float32 [n], of each; 0 where there is none.
        at: gives the slots int32 [n * m] of items by their numbers in their groups, int32 [n, m].
    """

    sizes: Array
    known: Array
    chances: Array
    at: Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class Groups(SamplerBase):
    """Some items of each of n groups: leaves [n, per_group, *shape], as GRPO and RLOO take replies.

    Items of a group are added one after another, and a leaf tells where the next group begins, so a group is drawn in
    O(log n). A key that comes back after others, as in A B A B, begins a new group; with `interleaved=True` all stored
    items with one key are a group, wherever they lie.

    Each group is equally likely, and none comes twice in a batch; of fewer than n groups each comes as often
    as any other, or once more. Of a larger group `take` says which items come, none of them twice. Of a group that is
    being overwritten what is left counts. `sample.mask`, bool [n, per_group], marks real items; all weights are 1; the
    probability is the group's.

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
        take: which items of a larger group come. "random": neighbours in a circle from any item on, each equally
            likely. "newest": those added last, the newest first. "best": those of the highest rewards, the best first.
            "spread": those whose rewards have the largest variance (RePO, Li et al., 2025, arXiv 2506.09340), of
            several such choices the one of the largest sum, the lowest first. Both of these sort all slots at each
            draw, and take rewards that are NaN last.

    Raises:
        ValueError: for settings out of range, a leaf that the item lacks or that cannot tell, a number that does not
            fit into a lane (if `whole`), no reward key where items are taken by rewards, or a writer that does not keep
            items in order, if groups are not interleaved or the newest items are taken.

    Example:
        >>> Groups(8, group_key="prompt", reward_key="score").whole
        True
    """

    per_group: int
    group_key: Key
    reward_key: Key | None = None
    whole: bool = True
    interleaved: bool = False
    take: Take = "random"

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> MaskedSample[Items]: ...

    def __post_init__(self) -> None:
        check_bools(self, "whole", "interleaved")
        check_count(self, "per_group", "a positive int")
        if self.take not in get_args(Take):
            raise ValueError(f"Groups: expected take as one of {get_args(Take)}, got {self.take!r}")
        if self._by_reward and self.reward_key is None:
            raise ValueError(f"Groups: take={self.take!r} chooses items by their rewards; give reward_key=...")
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
    def reads(self) -> tuple[Key, ...]:
        return (self.group_key,) if self.reward_key is None else (self.group_key, self.reward_key)

    @property
    def why_nothing(self) -> str:
        other = "" if self.interleaved else ", or interleaved=True, if other items lie between those of a group"
        return f"completes a group of {self.per_group} items; add more, or give whole=False{other}"

    @property
    def _by_reward(self) -> bool:
        return self.take in ("best", "spread")

    # Whether groups are found by sorting all slots.
    @property
    def _sorts(self) -> bool:
        return self.interleaved or self._by_reward

    # How many items a group has at least that is drawn.
    @property
    def _least(self) -> int:
        return self.per_group if self.whole else 1

    def check(self, plan: Plan) -> None:
        # Groups are read off rings, and their leaves exist.
        who = type(self).__name__
        room = plan.capacity if self.interleaved else plan.ring.length
        if not self.interleaved or self.take == "newest":
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
        # Two words for the group, and two for the item from which it comes, if that is any.
        return batch, 4 if self.take == "random" else 2

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
        # Find groups by random ranks that differ, then take some of the items of each.
        there = self._sorted(ops, draft) if self._sorts else None
        # The tree has a one for each group. Of fewer groups than are wanted, one shuffle of all is gone round.
        groups = ops.cast(sum_tree.total(draft.known_tree), "int32") if there is None else there.number
        shuffled = sparse_set.distinct(ops, draws[:, :2], groups)
        turn = ops.arange(batch, like=shuffled) % ops.maximum(groups, ops.full_like(groups, 1))
        ranks = ops.take(shuffled, turn)
        if there is None:
            chosen = self._in_runs(ops, draft, ranks)
        else:
            chosen = self._beginning(ops, draft, there, key_groups.select(ops, there, ranks))
        is_group = (chosen.chances > 0)[:, None]  # without groups, as of an empty buffer, anything is chosen
        place = ops.arange(self.per_group, like=ranks)[None, :]
        real = is_group & (place < chosen.sizes[:, None])
        places = ops.where(real, place, ops.full_like(place, 0))
        if self.take == "random":
            around = below(ops, draws[:, -2:], chosen.sizes)[:, None] + places
            numbers = ops.where(around < chosen.sizes[:, None], around, around - chosen.sizes[:, None])
        else:
            numbers = self._taken(ops, draft, chosen, places)
        slots = chosen.at(ops.where(is_group, numbers, ops.full_like(numbers, 0)))
        handles = draft.handles_of(ops, slots).reshape(batch, self.per_group)
        extras = self._statistics(ops, draft, slots, real)
        handles = ops.where(real, handles, ops.full_like(handles, -1))
        weights = ops.cast(chosen.chances > 0, "float32")
        return slots, Selection(handles, weights, chosen.chances, real, extras=extras)

    def _in_runs(self, ops: Ops, draft: Draft, ranks: Array) -> _Chosen:
        lanes = Lanes(draft.plan.ring, draft.counters.ends)
        members = order_statistics.select(ops, draft.known_tree, draft.plan.capacity, ranks)
        chances = shares(ops, draft, members)
        before, after = episode_windows.extent(ops, lanes, draft.auxiliary[STEP_IN_EPISODE], members)
        sizes = ops.where(chances > 0, before + after + 1, ops.full_like(before, 1))

        def at(numbers: Array) -> Array:
            away = numbers - ops.where(chances > 0, before, ops.full_like(before, 0))[:, None]
            first = members[:, None] + ops.full_like(numbers, 0)
            return episode_windows.shifted(ops, lanes, first.reshape(-1), away.reshape(-1))

        return _Chosen(sizes, sizes, chances, at)

    # The groups that begin at some places among the sorted slots int32 [n]; elsewhere there is none.
    def _beginning(self, ops: Ops, draft: Draft, groups: KeyGroups, begins: Array) -> _Chosen:
        sizes = ops.take(groups.sizes, begins)
        chances = self._chances(ops, groups, sizes)
        sizes = known = ops.maximum(sizes, ops.full_like(sizes, 1))
        if self._by_reward:
            _, good = min_tree.key_of(ops, self._rewards(ops, draft, groups.slots))
            good = ops.cast(good, "int32")
            counted = ops.cumsum(good)
            known = ops.take(counted, begins + sizes - 1) - ops.take(counted, begins) + ops.take(good, begins)

        def at(numbers: Array) -> Array:
            return ops.take(groups.slots, (begins[:, None] + numbers).reshape(-1))

        return _Chosen(sizes, known, chances, at)

    # The numbers int32 [n, per_group] of the items to take: those of a group ascend, behind them lie those without a
    # reward. Places are those in the sample: 0 up to the group's size, and any of these behind that.
    def _taken(self, ops: Ops, draft: Draft, chosen: _Chosen, places: Array) -> Array:
        known = chosen.known[:, None]
        if self.take != "spread":
            return ops.where(places < known, known - 1 - places, places)
        above = places + ops.maximum(known - self.per_group, ops.full_like(known, 0))
        low, high = (self._rewards(ops, draft, chosen.at(x)).reshape(*places.shape) for x in (places, above))
        # Of no more than are wanted all are taken, whatever their rewards.
        low, high = (ops.where(known > self.per_group, x, ops.full_like(x, 0)) for x in (low, high))
        return ops.where(places < widest.lowest_in(ops, low, high), places, above)

    # All slots, those of each group side by side and in the order by which its items are taken.
    def _sorted(self, ops: Ops, draft: Draft) -> KeyGroups:
        slots = ops.arange(draft.plan.capacity, like=draft.counters.ends.sizes)
        words = self._keys(ops, draft, slots) if self.interleaved else self._first_of_runs(ops, draft, slots)
        order = slots
        if self._by_reward:
            keys, good = min_tree.key_of(ops, self._rewards(ops, draft, slots))
            order = ops.argsort(ops.where(good, keys, ops.full_like(keys, min_tree.PADDING)))
        elif self.take == "newest":
            order = ops.argsort(-episode_windows.step_at(ops, Lanes(draft.plan.ring, draft.counters.ends), slots)[1])
        return key_groups.find(ops, words, draft.stored(ops), order, self._least)

    def _keys(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        outline = draft.plan.outline
        position = nest.position(outline.names, self.group_key, type(self).__name__)
        leaf, keys = outline.leaves[position], draft.read(ops, slots, [position])[position]
        return key_rows.pack(ops, KeyRows((((), leaf.shape, leaf.dtype),)), [keys], slots)

    # The slots in which the runs begin that items are in, int32 [n, 1]; any where there is no item.
    def _first_of_runs(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        lanes = Lanes(draft.plan.ring, draft.counters.ends)
        lane, back = episode_windows.step_at(ops, lanes, slots)
        older = ops.maximum(ops.take(lanes.size, lane) - back, ops.full_like(back, 0))
        before = ops.minimum(ops.take(draft.auxiliary[STEP_IN_EPISODE], slots), older)
        return episode_windows.slot_of(ops, lanes, lane, back + before)[:, None]

    # The chances of groups of these sizes; that of a size 0 is 0.
    @staticmethod
    def _chances(ops: Ops, groups: KeyGroups, sizes: Array) -> Array:
        chance = even_chance(ops, groups.number) + ops.cast(ops.full_like(sizes, 0), "float32")
        return ops.where(sizes > 0, chance, ops.full_like(chance, 0))

    # Of the rewards of each group's real items.
    def _statistics(self, ops: Ops, draft: Draft, slots: Array, real: Array) -> dict[str, Array]:
        if self.reward_key is None:
            return {}
        return group_rewards.statistics(ops, self._rewards(ops, draft, slots).reshape(*real.shape), real)

    # float32 [n] of slots int32 [n], where there is a reward key.
    def _rewards(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        assert self.reward_key is not None
        position = nest.position(draft.plan.outline.names, self.reward_key, type(self).__name__)
        return ops.cast(draft.read(ops, slots, [position])[position].reshape(-1), "float32")

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # The chance of a group, and then that of its items: of any, or of the one that is taken first.
        if self._sorts:
            return self._probabilities_if_sorted(ops, draft, slots)
        lanes, in_episode = Lanes(draft.plan.ring, draft.counters.ends), draft.auxiliary[STEP_IN_EPISODE]
        _, marked = episode_windows.of_trajectories(ops, self._slices.rule, lanes, in_episode, slots)
        before, after = episode_windows.extent(ops, lanes, in_episode, slots)
        chances = shares(ops, draft, marked)
        if self.take == "newest":
            return ops.where(after == 0, chances, ops.full_like(chances, 0))
        return ops.divide(chances, ops.cast(before + after + 1, "float32"))

    def _probabilities_if_sorted(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        groups = self._sorted(ops, draft)
        begins, there = key_groups.begins_of(ops, groups, slots)
        chosen = self._beginning(ops, draft, groups, begins)
        chances = ops.where(there, chosen.chances, ops.full_like(chosen.chances, 0))
        if self.take == "random":
            return ops.divide(chances, ops.cast(chosen.sizes, "float32"))
        place = ops.arange(self.per_group, like=slots)[None, :]
        places = ops.minimum(place, chosen.sizes[:, None] - 1)
        first = chosen.at(self._taken(ops, draft, chosen, places)[:, :1])
        return ops.where(first == slots, chances, ops.full_like(chances, 0))

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        # Whether there is a group: it may come again and again.
        return self._sorted(ops, draft).number > 0 if self.interleaved else self._slices.drawable(ops, draft, n)
