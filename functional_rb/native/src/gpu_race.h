// Draws without replacement by priority, for GPUs: as `race.h`.
#pragma once
#include "arrivals.h"
#include "gpu_choosing.h"

FRB_BEGIN

namespace gpu {

// An exponentially distributed number by a word: see `exponentials`.
FRB_INLINE float exponential(int32_t word) {
  const int32_t draw = most(word, 1), rest = draw < (1 << 24) ? 0 : draw & 127;
  const float head = float(draw - rest);
  const uint64_t log = log2_biased(bits_of(head)) + uint64_t(int32_t(float(rest) * BY_LN2 / head));
  const uint64_t left = (uint64_t(POINT + BIAS) << POINT) - log;
  return float(int32_t(left >> POINT)) + float(int32_t(left & uint64_t(MASK))) * (1.0f / 2147483648.0f);
}

// What a race works with: nodes below their times, times of all children of those that are kept, and of these alone.
struct RaceRoom {
  uint64_t* found;
  float *arrivals, *times;
  int32_t *nodes, *end;
  FRB_INLINE RaceRoom(int32_t* scratch, int64_t rows)
      : found(reinterpret_cast<uint64_t*>(scratch)), arrivals(reinterpret_cast<float*>(found + power_of_two(FANOUT * rows))),
        times(arrivals + FANOUT * rows), nodes(reinterpret_cast<int32_t*>(times + rows)), end(nodes + 2 * rows) {}
};

// Draw the leaves that arrive first, level by level, as many as there are rows of draws but the last: by one block.
template <class Block> FRB_INLINE void arrive(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Words words(call);
  const int64_t rows = call.batch + 1, top = plan->levels - 1;
  const RaceRoom room(call.scratch, rows);
  if (call.new_counters) block.each(ring_of(call)->counters, [&](int64_t k) { call.new_counters[k] = call.counters[k]; });
  block.each(1, [&](int64_t) { room.nodes[0] = 0; });
  int64_t count = 1;
  int32_t* nodes = room.nodes;
  for (int64_t depth = 0; depth <= top; ++depth) {
    const LevelRecord& level = plan.level(top - depth);
    int32_t *before = nodes, *after = room.nodes + (depth + 1) % 2 * rows;
    // At each node's time one of its children arrives: so whatever arrives after the last of enough nodes is too late.
    const float latest = depth && count == rows ? room.times[count - 1] : never();
    block.each(count * FANOUT, [&](int64_t i) {
      const int64_t node = i / FANOUT, k = i % FANOUT, first = node * call.words + depth * (1 + FANOUT);
      const float* sums = row(call.tree, int64_t(level.sums) + before[node]);
      const Children children(sums);
      const int32_t chosen = children.pick(words(first));
      const float own = depth ? room.times[node] : wait_of(chosen < FANOUT ? exponential(words(first + 1 + chosen)) : 0.0f, children.sum());
      room.arrivals[i] = own + (k == chosen ? 0.0f : wait_of(exponential(words(first + 1 + k)), sums[k]));
    });
    const int64_t in_time = block.ranks(count * FANOUT, [&](int64_t i) { return room.arrivals[i] <= latest; }, [&](int64_t i, int64_t found) {
      room.found[found] = uint64_t(uint32_t(bits_of(room.arrivals[i]))) << 32 | uint64_t(i);
    });
    const int64_t size = power_of_two(in_time);
    block.each(size - in_time, [&](int64_t i) { room.found[in_time + i] = NO_ROW; });
    sort(block, room.found, size);
    count = least(in_time, rows);
    block.each(count, [&](int64_t i) {
      const uint32_t whose = uint32_t(room.found[i]);
      room.times[i] = float_of(int32_t(room.found[i] >> 32));
      after[i] = least(before[whose / FANOUT] * FANOUT + int32_t(whose % FANOUT), level.nodes - 1);
    });
    nodes = after;
  }
  const float threshold = count == rows ? room.times[rows - 1] : never();
  const float lowest = inclusion(Children(row(call.tree, top_of(plan).smallest)).smallest(), threshold);
  block.each(call.batch, [&](int64_t i) {
    const int32_t slot = call.slots[i] = i < count ? nodes[i] : 0;
    const float chance = inclusion(call.tree[slot], threshold);
    call.drawn[i] = i < count && room.times[i] < never();
    if (call.drawn[i]) tell(call, i, handle_of(call, plan, slot), weight_of(chance, lowest, beta_of(call)), chance);
    else tell(call, i, -1, 0.0f, 0.0f);
  });
}

}  // namespace gpu

FRB_END
