// Whose goals items get in hindsight, for GPUs: `transforms.her.find_goals`.
#pragma once
#include "gpu_slices.h"

FRB_BEGIN

namespace gpu {

// Which arrays a call names: where the rings are, and what is drawn of which slots; and what is found.
enum OfGoals { RING_CURSORS, RING_SIZES, STEPS_IN_EPISODES, OF_SLOTS, ARE_REAL, GOAL_WORDS, ARE_CHOSEN, SOURCES, SOURCE_HANDLES, ARRAYS_OF_GOALS };
// Lanes in which one thread looks for an item.
constexpr int MOST_LANES_OF_GOALS = 256;

template <class T> FRB_INLINE T* goals_array(const Call& call, OfGoals which) { return reinterpret_cast<T*>(call.items[which]); }

FRB_INLINE bool is_relabelled(const Goals& goals, const int32_t* two) {
  if (goals->whole > 0) return below(two, goals->whole) + 1 < goals->whole;
  return goals->whole < 0 || two[0] < goals->high || (two[0] == goals->high && two[1] < goals->low);
}

// The slot of any stored item, all equally likely.
FRB_INLINE int64_t any_slot(const Ring& ring, const Lanes& lanes, const int32_t* two) {
  int64_t size = 0, lane = 0;
  for (int64_t k = 0; k < ring->lanes; ++k) size += lanes.sizes[k];
  int64_t position = below(two, size);
  while (lane + 1 < ring->lanes && position >= lanes.sizes[lane]) position -= lanes.sizes[lane++];
  const int64_t number = floor_mod(int64_t(lanes.cursors[lane]) - lanes.sizes[lane] + position, int64_t(ring->length) * ring->turns);
  return lane * ring->length + short_mod(number, ring->length);
}

// The slot of a step of the trajectory that a stored step belongs to; one of its lane, whatever others have made of the steps.
FRB_INLINE int64_t slot_of_goal(const Call& call, const Ring& ring, const Goals& goals, const Lanes& lanes, int64_t slot, const int32_t* two) {
  const int64_t length = ring->length, lane = lane_of(ring, slot), place = slot - lane * length;
  const Lane of(ring, lanes, goals_array<const int32_t>(call, STEPS_IN_EPISODES), lane);
  const int64_t back = back_of(ring, of.head, place), step = of.step(back);
  const int64_t before = least(step, most<int64_t>(of.size - back, 0)), after = steps_from(of, back, step, back) - 1;
  const int64_t ahead = goals->strategy == OF_FINAL    ? after
                        : goals->strategy == OF_FUTURE ? below(two, after + 1)
                                                       : below(two, before + after + 1) - before;
  return slot - place + floor_mod(place + ahead, length);
}

// Each column of blocks has `tile` items.
template <class Block> FRB_INLINE void find_goals(const Block& block, const Call& call) {
  const Ring ring = ring_of(call);
  const Goals goals = record_of<Goals>(call.beside);
  const Lanes lanes{goals_array<const int32_t>(call, RING_CURSORS), goals_array<const int32_t>(call, RING_SIZES)};
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  block.each(here, [&](int64_t k) {
    const int64_t i = begin + k, slot = bounded(goals_array<const int32_t>(call, OF_SLOTS)[i], ring->capacity);
    const int32_t* words = goals_array<const int32_t>(call, GOAL_WORDS) + 4 * i;
    const bool chosen = goals_array<const uint8_t>(call, ARE_REAL)[i] && is_relabelled(goals, words);
    const int64_t source = goals->strategy == OF_ANY ? any_slot(ring, lanes, words + 2)
                                                     : slot_of_goal(call, ring, goals, lanes, slot, words + 2);
    goals_array<uint8_t>(call, ARE_CHOSEN)[i] = chosen;
    goals_array<int32_t>(call, SOURCES)[i] = int32_t(source);
    goals_array<int32_t>(call, SOURCE_HANDLES)[i] = chosen ? handle_in_ring(ring, lanes, source) : -1;
  });
}

}  // namespace gpu

FRB_END
