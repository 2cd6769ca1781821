// What an update of priorities does to a batch, where items lie in rings.
#pragma once
#include "buffer.h"
#include "episode_windows.h"

FRB_BEGIN

constexpr int32_t NOBODY = -1;

// Where a slot has its entry in a table of open addressing, or may get one; entries are positions in `slots`. Consecutive
// numbers times the factor differ most in their upper bits: it is 2^32 over the golden ratio (Knuth, volume 3, 6.4).
FRB_INLINE int64_t place_of_slot(const int32_t* slots, const Scratch<int32_t>& last, int32_t slot, int shift) {
  int64_t at = (uint32_t(slot) * 2654435769u) >> shift;
  while (last[at] != NOBODY && slots[last[at]] != slot) at = at + 1 < last.size ? at + 1 : 0;
  return at;
}

// The new value of each slot of a batch, of which the last good one wins, and which slots get one; priorities come as
// bits. bad and peak are int32 [1]. `importance.updated_values`.
FRB_ENTRY void updated_values(Plan plan, Span<const int32_t> slots, const uint8_t* live, const int32_t* priorities,
                              float* values, uint8_t* replaced, int32_t* bad, int32_t* peak) {
  const int64_t count = slots.size;
  int bits = 1;
  while ((int64_t(1) << bits) < 2 * count) ++bits;
  Scratch<int32_t> last(int64_t(1) << bits), winner(last.size), entry(count);
  memset(last.at, 0xFF, size_t(last.size) * sizeof(int32_t));
  memset(winner.at, 0xFF, size_t(last.size) * sizeof(int32_t));
  Scratch<int32_t> made(count);
  make_values(plan, priorities, made.at, count);
  int32_t refused = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    entry[i] = int32_t(place_of_slot(slots.at, last, slots[i], 32 - bits));
    last[entry[i]] = int32_t(i);
    if (live[i] && made[i] >= 0) {
      winner[entry[i]] = int32_t(i);
      largest = most(largest, made[i]);
    } else if (live[i]) {
      ++refused;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t wins = winner[entry[i]];
    replaced[i] = wins != NOBODY;
    values[i] = float_of(most(made[wins != NOBODY ? wins : last[entry[i]]], 0));
  }
  bad[0] = refused, peak[0] = largest;
}

// An update of priorities alone, which come as bits. Where slices are drawn (the ring has windows), kept and in_episode
// are the arrays of all steps' priorities and of their steps in episode, and the tree has those of steps where a slice
// begins. All that is overwritten is saved before anything is written.
FRB_ENTRY Outcome update_priorities(const BufferCall& c) {
  const Plan plan = plan_of(c);
  const Ring ring = ring_of(c);
  const bool sliced = ring->window_length != 0;
  const int64_t batch = c.batch;
  float* kept = sliced ? c.kept : c.tree;
  for (int64_t k = 0; k < ring->counters; ++k) c.new_counters[k] = c.counters[k];
  const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
  Scratch<int32_t> slots(batch);
  int64_t live = 0, stale = 0, count = 0, rejected = 0;
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t slot = locate(ring, lanes, c.given_handles[i]);
    slots[i] = int32_t(slot);
    stale += slot < 0 && c.given_handles[i] != -1;  // that stands for what could not be drawn
    live += slot >= 0;
    if (slot < 0) continue;
    expect(c.tree + slot);
    if (sliced) expect(kept + slot);
  }
  expect_paths(plan, c.tree, slots.at, batch);
  if (c.saved_slots && c.room)
    for (int64_t i = 0, at = 0; i < batch; ++i) {
      const int32_t slot = slots[i];
      if (slot < 0) continue;
      c.saved_slots[at] = slot, c.saved_values[at] = c.tree[slot];
      if (sliced) c.saved_kept[at] = kept[slot];
      ++at;
    }
  c.saved_count[0] = live;
  int32_t peak = c.counters[PEAK];
  Scratch<int32_t> values(batch);
  make_values(plan, c.priorities, values.at, batch);
  for (int64_t i = 0; i < batch; ++i) {
    const int32_t slot = slots[i];
    if (slot < 0) continue;
    if (values[i] < 0) {
      ++rejected;
      continue;
    }
    kept[slot] = float_of(values[i]);
    peak = most(peak, values[i]);
    slots[count++] = slot;
  }
  for (int64_t i = 0; sliced && i < count; ++i) {
    const int64_t slot = slots[i], lane = lane_of(ring, slot);
    const Lane of(ring, lanes, c.in_episode, lane);
    const bool begins = of.weight(back_of(ring, of.head, slot - lane * ring->length)) > 0;
    c.tree[slot] = begins ? kept[slot] : 0.0f;
  }
  refresh(plan, c.tree, slots.at, count);
  return tell_counters(c, c.new_counters[CURSOR], c.new_counters[SIZE], rejected, stale, peak);
}

FRB_END
