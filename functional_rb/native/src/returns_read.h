// Returns over n steps that are made as items are read (`transforms.n_step_stored`), or told of as they were stored
// (`transforms.n_step_added`), for CPUs and GPUs alike.
#pragma once
#include "episode_windows.h"
#include "step_queue.h"

FRB_BEGIN

// Returns that are made as items are read. Leaves are named as they lie in the rows; what is told beside the items lies behind
// these: of how many steps each is, the rewards of the first, whether to bootstrap, and with which discount.
template <class Call> struct ReturnsRead : Returns {
  const Call& call;
  const Plan plan;
  const Ring ring;
  const int64_t agents, first, beside;
  FRB_INLINE ReturnsRead(const Call& call, const QueueRecord& told)
      : Returns{told}, call(call), plan(plan_of(call)), ring(ring_of(call)), agents(most<int64_t>(told.agents, 1)),
        first(told.pending >= 0 ? told.pending : plan->leaves),
        beside(told.pending >= 0 ? plan->leaves : first + 2 + told.rewards) {}

  FRB_INLINE const char* leaf(int64_t k, int64_t slot) const {
    const LeafRecord& leaf = plan.leaf(k);
    return place(call.storage[leaf.storage]) + leaf.offset + slot * plan.stored_bytes(leaf.storage);
  }
  // The slot so many steps behind one. To divide takes as long as all the rest of an item's returns.
  FRB_INLINE int64_t step(int64_t slot, int64_t k) const {
    if (k == 0) return slot;
    const int64_t end = ring->lanes == 1 ? ring->length : (lane_of(ring, slot) + 1) * ring->length;
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
template <class Block, class Call>
FRB_INLINE void tell_returns(const Block& block, const ReturnsRead<Call>& of, int64_t begin, int64_t here,
                             const int32_t* slots, const int32_t* all) {
  const int64_t agents = of.agents;
  auto told = [&](int64_t k) { return place(of.call.items[k]); };
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
        const T sum = of.template sum<T>(steps, [&](int64_t k) { return T(stored(k)); });
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

FRB_END
