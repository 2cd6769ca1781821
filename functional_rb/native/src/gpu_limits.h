// What is drawn with a limit to how often each item comes, for GPUs: as `spend` of `samplers.h`.
#pragma once
#include "gpu_updates.h"

FRB_BEGIN

namespace gpu {

FRB_INLINE int64_t cells_of_draws(int64_t batch) { return 2 * batch; }

// Count what `sample` has drawn, of which draws beyond the limit are none: by one block.
//
// Draws of an item count in their order. In each turn the first that waits in a cell is counted: whoever waits for it draws
// the same item, or one that comes there too, which goes on to another cell.
template <class Block> FRB_INLINE void spend(const Block& block, const Call& call) {
  enum : uint8_t { NONE, COUNTED, WAITS };
  const Plan plan = plan_of(call);
  const int64_t batch = call.batch, room = cells_of_draws(batch);
  const int64_t wanted = call.wanted_at ? least<int64_t>(*call.wanted_at, batch) : batch;
  block.each(batch, [&](int64_t i) {
    const int32_t slot = call.slots[i] = i < asked(call) ? call.slots[i] : 0;
    if (call.saved_slots)
      call.saved_slots[i] = slot, call.saved_times[i] = call.times[slot], call.saved_values[i] = call.tree[slot];
    call.drawn[i] = i < wanted && call.handles[i] >= 0 ? WAITS : NONE;
  });
  for (uint32_t turn = 0, left = 1; left; ++turn) {
    auto cell = [&](int64_t i) { return call.scratch + scaled(spread(uint32_t(call.slots[i]) + turn * 0x9E3779B9u), room); };
    block.each(room, [&](int64_t k) { call.scratch[k] = int32_t(INT32_MOST); });
    block.each(batch, [&](int64_t i) {
      if (call.drawn[i] == WAITS && call.times[call.slots[i]] >= plan->limit) call.drawn[i] = NONE;
      if (call.drawn[i] == WAITS) block.lower(cell(i), int32_t(i));
    });
    left = uint32_t(block.total(batch, [&](int64_t i) {
      if (call.drawn[i] != WAITS || *cell(i) != i) return int64_t(call.drawn[i] == WAITS);
      ++call.times[call.slots[i]];
      call.drawn[i] = COUNTED;
      return int64_t(0);
    }));
  }
  auto spent = [&](int64_t i) { return call.drawn[i] && call.times[call.slots[i]] >= plan->limit ? call.slots[i] : -1; };
  block.each(batch, [&](int64_t i) {
    if (!call.drawn[i]) tell(call, i, -1, 0.0f, 0.0f);
    if (spent(i) >= 0) leave(call.tree + spent(i), 0.0f);
  });
  refresh_above(block, plan, call.tree, 1, batch, spent);
}

}  // namespace gpu

FRB_END
