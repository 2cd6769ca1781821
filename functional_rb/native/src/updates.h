// What an update does to a batch, and to a buffer.
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
  Scratch<int32_t> powers(count);
  make_values(plan, priorities, powers.at, count);
  int32_t refused = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    entry[i] = int32_t(place_of_slot(slots.at, last, slots[i], 32 - bits));
    last[entry[i]] = int32_t(i);
    if (live[i] && powers[i] >= 0) {
      winner[entry[i]] = int32_t(i);
      largest = most(largest, powers[i]);
    } else if (live[i]) {
      ++refused;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t wins = winner[entry[i]];
    replaced[i] = wins != NOBODY;
    values[i] = float_of(most(powers[wins != NOBODY ? wins : last[entry[i]]], 0));
  }
  bad[0] = refused, peak[0] = largest;
}

// Set priorities, which come as bits, and rewrite leaves, if there are any, of the items that handles name; of equal handles
// the last wins. All that is overwritten is saved before anything is written.
//
// Where slices are drawn (the ring has windows) kept has the priorities of all steps, and the tree those of steps with which
// a slice begins. Who finds slots may ask for their leaves.
template <class Find> inline Outcome update_found(const BufferCall& c, bool sliced, const Find& find, bool asks = false) {
  const Plan plan = plan_of(c);
  const Ring ring = ring_of(c);
  const Addresses storage = storage_of(c), saved = saved_of(c), leaves = leaves_of(c);
  const int64_t batch = c.batch;
  const int32_t* handles = c.given_handles;
  float* tree = c.tree;
  float* kept = sliced ? c.kept : tree;
  Scratch<int32_t> slots(batch), values(c.priorities ? batch : 0);
  int64_t live = 0, named = 0, rejected = 0, count = 0;
  for (int64_t i = 0; i < batch; ++i) {
    slots[i] = int32_t(find(handles[i]));
    live += slots[i] >= 0;
    named += handles[i] != -1;  // that stands for what could not be drawn
  }
  if (c.priorities) {
    for (int64_t i = 0; !asks && i < batch; ++i) expect(tree + most(slots[i], 0));
    for (int64_t i = 0; sliced && i < batch; ++i) expect(kept + most(slots[i], 0));
    make_values(plan, c.priorities, values.at, batch);
  }
  if (int32_t* const saved_slots = c.room ? c.saved_slots : nullptr) {
    int64_t at = 0;
    for (int64_t i = 0; i < batch; ++i)
      if (slots[i] >= 0) saved_slots[at++] = slots[i];
    for (int64_t i = 0; saved.size && i < at; ++i) save_items(plan, storage, saved_slots[i], saved, i, 1);
    if (float* const to = c.saved_values)
      for (int64_t i = 0; i < at; ++i) to[i] = tree[saved_slots[i]];
    if (float* const to = c.saved_kept)
      for (int64_t i = 0; i < at; ++i) to[i] = kept[saved_slots[i]];
  }
  if (c.priorities) expect_paths(plan, tree, slots.at, batch);
  int32_t peak = c.counters[PEAK];
  for (int64_t i = 0; i < batch; ++i) {
    const int32_t slot = slots[i];
    if (slot < 0) continue;
    if (c.given) store_item(plan, storage, slot, leaves, i);
    if (!c.priorities) continue;
    if (values[i] < 0) {
      ++rejected;
      continue;
    }
    kept[slot] = c.times && c.times[slot] >= plan->limit ? 0.0f : float_of(values[i]);
    peak = most(peak, values[i]);
    slots[count++] = slot;
  }
  if (sliced) {
    const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = slots[i], lane = lane_of(ring, slot);
      const Lane of(ring, lanes, c.in_episode, lane);
      tree[slot] = of.weight(back_of(ring, of.head, slot - lane * ring->length)) > 0 ? kept[slot] : 0.0f;
    }
  }
  refresh(plan, tree, slots.at, count);
  c.saved_count[0] = live;
  for (int64_t k = COUNTERS; c.ring && k < ring->counters; ++k) c.new_counters[k] = c.counters[k];
  return tell_counters(c, c.counters[CURSOR], c.counters[SIZE], rejected, named - live, peak);
}
FRB_ENTRY Outcome update(const BufferCall& c) {
  if (c.current) {  // `handles.locate_current`
    const int64_t capacity = plan_of(c)->capacity;
    return update_found(c, false, [&](int64_t handle) {
      return handle >= 0 && c.current[handle % capacity] == handle ? handle % capacity : -1;
    });
  }
  if (!c.ring || ring_of(c)->lanes == 1) {
    const Finder find(plan_of(c), c.counters);
    return update_found(c, c.ring && ring_of(c)->window_length, find);
  }
  const Ring ring = ring_of(c);
  const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
  return update_found(c, ring->window_length != 0, [&](int64_t handle) {
    const int64_t slot = locate(ring, lanes, handle);
    if (c.priorities && slot >= 0) expect(c.tree + slot);  // while others are looked for
    return slot;
  }, true);
}

FRB_END
