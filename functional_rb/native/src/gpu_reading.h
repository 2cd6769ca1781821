// What is read of items that were drawn, for GPUs: with returns over n steps (`transforms.returns`), and with frames that items
// share, wherever they are drawn by a launch of its own.
#pragma once
#include "gpu_rings.h"
#include "gpu_slices.h"
#include "gpu_waiting.h"

FRB_BEGIN

namespace gpu {

// Returns that are made as items are read. Leaves are named as they lie in the rows; what is told beside the items lies behind
// these: of how many steps each is, the rewards of the first, whether to bootstrap, and with which discount.
struct ReturnsRead : Returns {
  const Call& call;
  const Plan plan;
  const Ring ring;
  const int64_t agents, first, beside;
  FRB_INLINE explicit ReturnsRead(const Call& call)
      : Returns{*reinterpret_cast<const QueueRecord*>(call.beside + call.returns_at)}, call(call), plan(plan_of(call)),
        ring(ring_of(call)), agents(most<int64_t>(told.agents, 1)), first(told.pending >= 0 ? told.pending : plan->leaves),
        beside(told.pending >= 0 ? plan->leaves : first + 2 + told.rewards) {}

  FRB_INLINE const char* leaf(int64_t k, int64_t slot) const {
    const LeafRecord& leaf = plan.leaf(k);
    return call.storage[leaf.storage] + leaf.offset + slot * plan.stored_bytes(leaf.storage);
  }
  // The slot so many steps behind one.
  FRB_INLINE int64_t step(int64_t slot, int64_t k) const {
    const int64_t end = (lane_of(ring, slot) + 1) * ring->length;
    return slot + k < end ? slot + k : slot + k - ring->length;
  }
  // How many steps from a slot on there are of its trajectory, itself the first.
  FRB_INLINE int64_t steps_of_all(int64_t slot) const {
    const int64_t lane = lane_of(ring, slot);
    const Lane of(ring, {call.counters + ring->cursors, call.counters + ring->sizes}, call.in_episode, lane);
    const int64_t back = back_of(ring, of.head, slot - lane * ring->length);
    return most<int64_t>(steps_from(of, back, of.step(back), told.n), 1);
  }
  // How many of these count for an agent, which may be done before.
  FRB_INLINE int64_t steps_of(int64_t slot, int64_t all, int64_t agent) const {
    int64_t steps = 1;
    for (; told.agents > 1 && steps < all; ++steps) {
      bool found = false;
      for (int64_t k = 0; k < told.done; ++k) found |= leaf(done()[k], step(slot, steps - 1))[agent] != 0;
      if (found) return steps;
    }
    return all;
  }
};

// Tell of returns beside the items of some slots, each of so many steps, to rows from `begin` on.
template <class Block>
FRB_INLINE void tell_returns(const Block& block, const ReturnsRead& of, int64_t begin, int64_t here, const int32_t* slots,
                             const int32_t* all) {
  const Call& call = of.call;
  const int64_t agents = of.agents;
  auto told = [&](int64_t k) { return call.items[k]; };
  block.each(here * agents, [&](int64_t j) {
    const int64_t i = short_div(j, agents), agent = j - i * agents, at = begin * agents + j;
    if (of.told.pending >= 0) {
      const int64_t steps = reinterpret_cast<const int32_t*>(of.leaf(of.first, slots[i]))[agent];
      reinterpret_cast<float*>(told(of.beside))[at] = float(of.discount(bounded(steps, of.told.powers)));
      return;
    }
    const int64_t steps = of.steps_of(slots[i], all[i], agent), last = of.step(slots[i], steps - 1);
    const bool ends = of.told.terminated >= 0 && of.leaf(of.told.terminated, last)[agent] &&
                      !(of.told.truncated >= 0 && of.leaf(of.told.truncated, last)[agent]);
    reinterpret_cast<int32_t*>(told(of.first))[at] = int32_t(steps);
    told(of.first + 1 + of.told.rewards)[at] = !ends;
    reinterpret_cast<float*>(told(of.beside))[at] = float(of.discount(steps));
  });
  for (int64_t r = 0; r < of.told.rewards; ++r) {
    const Returns::Reward& reward = of.rewards()[r];
    by_dtype(reward.dtype, [&](auto number, auto as_stored) {
      using T = decltype(number);
      using Stored = decltype(as_stored);
      const int64_t width = of.plan.leaf(reward.leaf).bytes / int64_t(sizeof(Stored));
      block.each(here * width, [&](int64_t j) {
        const int64_t i = short_div(j, width), at = j - i * width;
        auto stored = [&](int64_t k) { return reinterpret_cast<const Stored*>(of.leaf(reward.leaf, of.step(slots[i], k)))[at]; };
        const int64_t steps = reward.agents > 1 ? of.steps_of(slots[i], all[i], at) : all[i];
        const T sum = of.sum<T>(steps, [&](int64_t k) { return T(stored(k)); });
        reinterpret_cast<Stored*>(told(reward.leaf))[begin * width + j] = Stored(sum);
        reinterpret_cast<Stored*>(told(of.first + 1 + r))[begin * width + j] = stored(0);
      });
    });
  }
  for (int64_t n = 0; n < of.told.own; ++n) {  // of each agent's own last step
    const int64_t k = of.own()[n], width = of.plan.leaf(k).bytes, bytes = width / agents;
    if (bytes)
      block.each(here * width, [&](int64_t j) {
        const int64_t i = short_div(j, width), at = j - i * width;
        const int64_t steps = of.steps_of(slots[i], all[i], short_div(at, bytes));
        told(k)[begin * width + j] = of.leaf(k, of.step(slots[i], steps - 1))[at];
      });
  }
}

// Read items from given slots: each column of blocks `tile` of them.
template <class Block> FRB_INLINE void read_drawn(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const ReturnsRead of(call);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  const bool sums = call.returns && of.told.pending < 0;
  int32_t *slots = block.shared(), *last = slots + MOST_DRAWS, *all = last + MOST_DRAWS, *more = all + MOST_DRAWS;
  block.each(here, [&](int64_t i) {
    slots[i] = int32_t(bounded(call.slots[begin + i], plan->capacity));
    if (!sums) return;
    all[i] = int32_t(of.steps_of_all(slots[i]));
    last[i] = int32_t(of.step(slots[i], all[i] - 1));
  });
  int64_t turn = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) {
    if (sums && (of.is_reward(k) || of.is_own(k))) continue;
    const int32_t* from = sums && of.follows(k) ? last : slots;
    load_leaf(block, call, plan, turn, k, begin, here, [&](int64_t i) { return from[i]; });
  }
  if (call.returns && block.y() == 0) tell_returns(block, of, begin, here, slots, all);
  if (!call.frames) return;
  auto follows = [&](int64_t leaf) { return sums && of.follows(-1 - leaf); };
  load_frames(block, call, begin, here, slots, more, [&](int64_t leaf) { return !follows(leaf); });
  if (!sums) return;
  block.wait();  // until nobody needs what lies in the room
  load_frames(block, call, begin, here, last, more, follows);
}

}  // namespace gpu

FRB_END
