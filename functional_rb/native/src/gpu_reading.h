// What is read of items that were drawn, for GPUs: with returns over n steps (`transforms.returns`), and with frames that items
// share, wherever they are drawn by a launch of its own.
#pragma once
#include "gpu_rings.h"
#include "gpu_slices.h"
#include "gpu_waiting.h"
#include "returns_read.h"

FRB_BEGIN

namespace gpu {

// Read items from given slots: each column of blocks `tile` of them.
template <class Block> FRB_INLINE void read_drawn(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const ReturnsRead<Call> of(call, *reinterpret_cast<const QueueRecord*>(call.beside + call.returns_at));
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
