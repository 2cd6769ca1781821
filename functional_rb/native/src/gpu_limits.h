// What is drawn with a limit to how often each item comes, for GPUs: as `spend` of `samplers.h`.
#pragma once
#include "gpu_updates.h"

FRB_BEGIN

namespace gpu {

FRB_INLINE int64_t cells_of_draws(int64_t batch) { return 2 * batch; }

// `InOrder.draw` with a limit: each item in a row as often as it may still be drawn. The cells have the first items from an end
// on, and where the draws of each end.
template <class Block> FRB_INLINE void draw_from_an_end(const Block& block, const Call& call, const Plan& plan) {
  const int64_t batch = call.batch, start = floor_mod(call.counters[ring_of(call)->cursors], plan->capacity);
  const int64_t size = counted(Children(row(call.tree, top_of(plan).sums)).sum()), before = marked_before(plan, call.tree, start);
  int32_t *items = call.scratch, *ends = items + batch;
  hand_on_counters(block, call);
  block.each(batch, [&](int64_t k) {
    items[k] = slot_of_rank(plan, call.tree, rank_from_an_end(k, size, before, plan->newest_first));
    ends[k] = k < size ? int32_t(least<int64_t>(most(plan->limit - call.times[items[k]], 0), batch)) : 0;
  });
  const int64_t drawn = block.running(batch, [&](int64_t k) { return ends[k]; },
                                      [&](int32_t a, int32_t b) { return int32_t(least<int64_t>(int64_t(a) + b, batch)); },
                                      [&](int64_t k, int32_t end) { ends[k] = end; });
  block.each(batch, [&](int64_t k) {
    for (int64_t i = k ? ends[k - 1] : 0; i < (k + 1 < batch ? ends[k] : batch); ++i) {
      call.slots[i] = items[k];
      tell(call, i, i < drawn ? handle_of(call, plan, items[k]) : -1, 1.0f, 1.0f);
    }
  });
}

// Count what `sample` has drawn, or what is drawn here from an end, of which draws beyond the limit are none: by one block.
//
// Draws of an item count in their order. In each turn the first that waits in a cell is counted: whoever waits for it draws
// the same item, or one that comes there too, which goes on to another cell.
template <class Block> FRB_INLINE void spend(const Block& block, const Call& call) {
  enum : uint8_t { NONE, COUNTED, WAITS };
  const Plan plan = plan_of(call);
  const int64_t batch = call.batch, room = cells_of_draws(batch);
  const int64_t wanted = call.wanted_at ? least<int64_t>(*call.wanted_at, batch) : batch;
  const bool in_order = plan->draws == FROM_AN_END;
  if (in_order) draw_from_an_end(block, call, plan);
  block.each(batch, [&](int64_t i) {
    const int32_t slot = call.slots[i] = i < asked(call) ? call.slots[i] : 0;
    if (call.saved_slots)
      call.saved_slots[i] = slot, call.saved_times[i] = call.times[slot], call.saved_values[i] = call.tree[slot];
    call.drawn[i] = i < wanted && call.handles[i] >= 0 ? in_order ? COUNTED : WAITS : NONE;
  });
  const int32_t *items = call.scratch, *ends = items + batch;
  block.each(in_order ? batch : 0, [&](int64_t k) {  // all draws of an item at once
    const int64_t count = least<int64_t>(ends[k], wanted) - (k ? least<int64_t>(ends[k - 1], wanted) : 0);
    if (count > 0) call.times[items[k]] += int32_t(count);
  });
  for (uint32_t turn = 0, left = !in_order; left; ++turn) {
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
