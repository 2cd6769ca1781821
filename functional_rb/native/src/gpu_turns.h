// Draws in turn for GPUs, as `samplers.h` has them: of the oldest items, or windows, which are taken out, and from an end.
#pragma once
#include "gpu.h"

FRB_BEGIN

namespace gpu {

// How many of the items, or windows, that are drawn count.
FRB_INLINE int64_t counting(const Call& call) {
  return call.wanted_at ? most<int64_t>(0, least<int64_t>(*call.wanted_at, call.batch)) : call.batch;
}

// Take out what is drawn, by one block, once the counters have been handed on.
template <class Block> FRB_INLINE void take_out(const Block& block, const Call& call, const Ring& ring, int64_t length) {
  int32_t* sizes = call.new_counters + ring->sizes;
  const int64_t wanted = counting(call);
  block.each(ring->lanes, [&](int64_t lane) {
    sizes[lane] = int32_t(size_of(ring, call.counters, lane) - taken_of(ring, call.counters, lane, length, wanted));
  });
  const int64_t left = block.total(ring->lanes, [&](int64_t lane) { return int64_t(sizes[lane]); });
  block.each(1, [&](int64_t) { call.new_counters[SIZE] = int32_t(left); });
}

// Draw what comes next, and read it: each column of blocks `tile` rows, of which windows have several.
template <class Block> FRB_INLINE void draw_in_turn(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Ring ring = ring_of(call);
  const int64_t length = plan->length, rows = call.batch * length, wanted = counting(call);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, rows - begin), 0);
  const bool takes = plan->draws == QUEUE, newest_first = plan->newest_first;
  int32_t* slots = block.shared();
  hand_on_counters(block, call);
  if (takes && block.x() == 0 && block.y() == 0) take_out(block, call, ring, length);
  block.each(here, [&](int64_t k) {
    const int64_t i = begin + k, size = size_of(ring, call.counters, 0);
    const InTurn row = takes ? taken_at(ring, call.counters, i, length, wanted) : InTurn{0, from_an_end(i, size, newest_first), i < size};
    const Item item = item_at(ring, call.counters, row.lane, row.position);
    slots[k] = item.slot;
    if (block.y() != 0) return;
    if (call.slots) call.slots[i] = item.slot;
    call.drawn[i] = row.live, call.handles[i] = row.live ? item.handle : -1;
    const int64_t window = i / length;
    if (i == window * length) call.weights[window] = call.probabilities[window] = row.live ? 1.0f : 0.0f;
  });
  load_items(block, call, plan, begin, here, [&](int64_t k) { return slots[k]; });
}

}  // namespace gpu

FRB_END
