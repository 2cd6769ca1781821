// Draws in turn for GPUs, as `samplers.h` has them: of the oldest items, or windows, which are taken out, from an end, and in epochs.
#pragma once
#include "gpu.h"

FRB_BEGIN

namespace gpu {

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

// An epoch in order, as a draw goes on with it: `WithoutReplacement._next`.
struct OfEpoch {
  const Call& call;
  const Ring ring;
  const Epoch epoch;
  const int64_t wanted, whole, limit;
  int64_t before, total, taken;  // how many are left of this epoch, of the one that is drawn from, and are drawn
  bool fresh;
  template <class Block>
  FRB_INLINE OfEpoch(const Block& block, const Call& call)
      : call(call), ring(ring_of(call)), epoch(epoch_of(call)), wanted(counting(call)), whole(epoch->drop_last ? wanted : 1),
        limit(int64_t(ring->length) * ring->turns) {
    before = block.total(ring->lanes, [&](int64_t lane) { return rest_of(ring, epoch, call.counters, call.counters, lane).left; });
    fresh = before < whole;
    total = !fresh ? before : block.total(ring->lanes, [&](int64_t lane) { return int64_t(size_of(ring, call.counters, lane)); });
    taken = total < whole ? 0 : least(total, wanted);
  }
  FRB_INLINE Rest rest(int64_t lane) const {
    return fresh ? all_of(ring, call.counters, lane) : rest_of(ring, epoch, call.counters, call.counters, lane);
  }
};

// Let the epoch go on behind what is drawn, by one block, once the counters have been handed on.
template <class Block> FRB_INLINE void go_on(const Block& block, const OfEpoch& of) {
  const Call& call = of.call;
  const bool done = of.total - of.taken < of.whole;
  block.running(of.ring->lanes, [&](int64_t lane) { return int32_t(of.rest(lane).left); }, [](int32_t a, int32_t b) { return a + b; },
                [&](int64_t lane, int32_t found) {
    const Rest rest = of.rest(lane);
    const int64_t ahead = least(most<int64_t>(of.taken - (found - rest.left), 0), rest.left);
    call.new_counters[of.epoch->next + lane] = int32_t(done ? rest.end : on_by(rest.first, ahead, of.limit));
    call.new_counters[of.epoch->end + lane] = int32_t(rest.end);
  });
  block.each(1, [&](int64_t) {
    const int64_t epochs = int64_t(call.counters[of.epoch->epochs_done]) + done + (of.fresh && of.before > 0);
    call.new_counters[of.epoch->epochs_done] = saturated(epochs);
  });
}

// Draw what is left of an epoch lane by lane, each from its oldest item on, and read it: each column of blocks `tile` items.
template <class Block> FRB_INLINE void draw_in_order(const Block& block, const Call& call) {
  const OfEpoch of(block, call);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  int32_t *slots = block.shared(), *ends = slots + MOST_DRAWS;
  auto left = [&](int64_t lane) { return of.rest(lane).left; };
  hand_on_counters(block, call);
  if (of.taken && block.x() == 0 && block.y() == 0) go_on(block, of);
  if (of.ring->lanes > 1) count_groups(block, of.ring, ends, left);
  block.each(here, [&](int64_t k) {
    const int64_t i = begin + k, place = i < of.taken ? i : 0;
    const auto [lane, before] = find_lane(of.ring, ends, place, left);
    const Item item = item_of(of.ring, lane, on_by(of.rest(lane).first, place - before, of.limit));
    slots[k] = item.slot;
    if (block.y() != 0) return;
    const bool live = i < of.taken;
    if (call.slots) call.slots[i] = item.slot;
    call.drawn[i] = live, call.handles[i] = live ? item.handle : -1;
    call.weights[i] = call.probabilities[i] = live ? 1.0f : 0.0f;
  });
  load_items(block, call, plan_of(call), begin, here, [&](int64_t k) { return slots[k]; });
}

}  // namespace gpu

FRB_END
