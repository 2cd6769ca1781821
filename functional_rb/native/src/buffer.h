// add, update and draws of a buffer whose items lie in one ring: `buffer.functions`, whole.
//
// Counters are read from one vector and written to another, so that the old one stays as it was.
#pragma once
#include <algorithm>

#include "positions.h"
#include "rows.h"
#include "sum_tree.h"

FRB_BEGIN

// A new item's value, as `Prioritized.new_value` has it: the largest that is stored, or that ever was; 1 at first.
FRB_INLINE float new_value(const Plan& plan, const float* tree, const int32_t* counters) {
  if (plan->levels == 0) return 0.0f;
  const float* row = tree + int64_t(plan.level(plan->levels - 1).largest) * FANOUT;
  const float value = float_of(plan->ever ? counters[PEAK] : largest(row));
  return value > 0 ? value : 1.0f;
}

// Finds the slots of handles: that of a handle whose item is still stored, else -1.
class Finder {
 public:
  FRB_INLINE Finder(const Plan& plan, const int32_t* counters)
      : modulus_(plan->modulus), capacity_(plan->capacity), newest_(int32_t(uint32_t(counters[CURSOR]) - 1u)),
        size_(least(counters[SIZE], plan->capacity)),
        slot_(int32_t(floor_mod(int64_t(counters[CURSOR]) - 1, plan->capacity))) {}
  // Without a division, and in words of which a vector holds many: the modulus is a multiple of the capacity.
  FRB_INLINE int32_t operator()(int32_t handle) const {
    const int32_t ahead = int32_t(uint32_t(newest_) - uint32_t(handle));
    const int32_t age = ahead < 0 ? int32_t(uint32_t(ahead) + uint32_t(modulus_)) : ahead;
    const int32_t slot = int32_t(uint32_t(slot_) - uint32_t(age));
    const bool stored = (handle >= 0) & (handle < modulus_) & (age >= 0) & (age < size_);
    return stored ? slot < 0 ? slot + capacity_ : slot : -1;
  }

 private:
  int32_t modulus_, capacity_, newest_, size_, slot_;
};

// The new counters of a write that is done.
inline Outcome tell_counters(const BufferCall& c, int64_t cursor, int64_t size, int64_t rejected, int64_t stale,
                             int32_t peak) {
  const int32_t* old = c.counters;
  const int32_t counters[COUNTERS] = {int32_t(cursor), int32_t(size), saturated(int64_t(old[REJECTED]) + rejected),
                                  saturated(int64_t(old[STALE]) + stale), peak, old[INVALID]};
  memcpy(c.new_counters, counters, sizeof counters);
  return DONE;
}

// Write a batch of leaves, and save what is overwritten where there is room for it. Priorities come as bits.
FRB_ENTRY Outcome add(const BufferCall& c) {
  const Plan plan = plan_of(c);
  const Addresses storage = storage_of(c), leaves = leaves_of(c);
  const int64_t capacity = plan->capacity;
  const bool has_tree = plan->levels != 0, saves = c.saved_slots && c.room;
  int64_t marked = c.batch;
  if (c.mask) {
    marked = 0;
    for (int64_t row = 0; row < c.batch; ++row) marked += c.mask[row] != 0;
  }
  const int64_t skipped = most<int64_t>(marked - capacity, 0);
  const int64_t first = floor_mod(int64_t(c.counters[CURSOR]) + skipped, capacity);
  const int32_t by_default = bits_of(new_value(plan, c.tree, c.counters));
  const bool prioritized = has_tree && c.priorities;
  Scratch<int32_t> values(prioritized ? c.batch : 0);
  if (prioritized) make_values(plan, c.priorities, values.at, c.batch);
  int32_t peak = c.counters[PEAK];
  int64_t rejected = 0, passed = 0, done = 0;
  for (int64_t row = 0, stop = 0; row < c.batch; row = stop + 1) {
    // Rows that lie together go to slots that do.
    for (stop = row; stop < c.batch && (!c.mask || c.mask[stop]);) ++stop;
    const int64_t left_out = least(skipped - passed, stop - row);
    passed += left_out, row += left_out;
    while (row < stop) {
      const int64_t slot = first + done < capacity ? first + done : first + done - capacity;
      const int64_t count = least(stop - row, capacity - slot);
      for (int64_t i = 0; saves && i < count; ++i) {
        c.saved_slots[done + i] = int32_t(slot + i);
        if (c.saved_values) c.saved_values[done + i] = c.tree[slot + i];
      }
      if (saves) save_items(plan, storage, slot, saved_of(c), done, count);
      store_items(plan, storage, slot, leaves, row, count);
      for (int64_t i = 0; has_tree && i < count; ++i) {
        const bool has_own = prioritized && values[row + i] >= 0;
        const int32_t value = has_own ? values[row + i] : by_default;
        rejected += prioritized && !has_own;
        c.tree[slot + i] = float_of(value);
        peak = most(peak, value);
      }
      done += count, row += count;
    }
  }
  const int64_t written = marked - skipped;
  if (has_tree && written) {
    const int64_t head = least(written, capacity - first);
    refresh_range(plan, c.tree, first, head);
    if (written > head) refresh_range(plan, c.tree, 0, written - head);
  }
  if (FRB_FAULT(OVERFLOWN)) peak += int32_t(INT32_MOST);
#ifdef FRB_FAULTS
  if (FRB_FAULT(UNLOCKED)) usleep(5000);  // without the GIL: so others write with nothing in between
#endif
  c.saved_count[0] = written;
  const int64_t cursor = floor_mod(int64_t(c.counters[CURSOR]) + marked, plan->modulus);
  return tell_counters(c, cursor, least(int64_t(c.counters[SIZE]) + marked, capacity), rejected, 0, peak);
}

// The handle of the item that lies in a slot now.
FRB_INLINE int32_t handle_of(const BufferCall& c, const Ring& ring, const Lanes& lanes, int64_t slot) {
  return c.current ? c.current[slot] : handle_in_ring(ring, lanes, slot);
}

// `Uniform.draw`: each of the `size` items has the probability 1 / size; all weights are 1. Positions of several lanes are
// counted lane by lane, each from its oldest item on.
inline bool draw_uniform(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots) {
  const Plan plan = plan_of(c);
  const int64_t size = c.counters[SIZE], capacity = plan->capacity, modulus = plan->modulus;
  const int64_t oldest = floor_mod(int64_t(c.counters[CURSOR]) - size, modulus), first = c.current ? 0 : short_mod(oldest, capacity);
  const float weight = size ? 1.0f : 0.0f, chance = weight * (1.0f / float(most<int64_t>(size, 1)));
  for (int64_t i = 0; i < c.batch; ++i) {
    const int64_t position = below(draws.at + i * draws.columns, size), handle = oldest + position, slot = first + position;
    slots[i] = int32_t(bounded(slot < capacity ? slot : slot - capacity, capacity));
    c.handles[i] = !size ? -1 : c.current ? c.current[slots[i]] : int32_t(handle < modulus ? handle : handle - modulus);
    c.weights[i] = weight;
    c.probabilities[i] = chance;
  }
  return size > 0;
}
inline bool draw_uniform_in_rings(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots) {
  const Ring ring = ring_of(c);
  const int64_t size = c.counters[SIZE], length = ring->length, limit = length * ring->turns;
  Scratch<int32_t> ends(ring->lanes);
  int32_t end = 0;
  for (int64_t lane = 0; lane < ring->lanes; ++lane) ends[lane] = end += size_of(ring, c.counters, lane);
  const float weight = size ? 1.0f : 0.0f, chance = weight * (1.0f / float(most<int64_t>(size, 1)));
  for (int64_t i = 0; i < c.batch; ++i) {
    const int64_t position = below(draws.at + i * draws.columns, size);
    const int32_t* at = std::upper_bound(ends.at, ends.at + ring->lanes, int32_t(position));
    const int64_t lane = least<int64_t>(at - ends.at, ring->lanes - 1), held = size_of(ring, c.counters, lane);
    const int64_t number = floor_mod(int64_t(c.counters[ring->cursors + lane]) - held + position - (ends[lane] - held), limit);
    slots[i] = int32_t(lane * length + number % length);
    c.handles[i] = size ? int32_t(number / length * ring->capacity + slots[i]) : -1;
    c.weights[i] = weight;
    c.probabilities[i] = chance;
  }
  return size > 0;
}

// `Prioritized.draw`: value / total is a probability, (value / smallest) ** -beta a weight.
inline bool draw_prioritized(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots, bool by_slot) {
  const Plan plan = plan_of(c);
  const float total = total_of(plan, c.tree);
  descend(plan, c.tree, draws, slots);
  if (!(total > 0)) {
    for (int64_t i = 0; i < c.batch; ++i) c.handles[i] = -1, c.weights[i] = 0, c.probabilities[i] = 0;
    return false;
  }
  const float* row = c.tree + int64_t(plan.level(plan->levels - 1).smallest) * FANOUT;
  const int64_t capacity = plan->capacity, modulus = plan->modulus, cursor = c.counters[CURSOR];
  const int64_t next_slot = floor_mod(cursor, capacity);
  const float scale = 1.0f / total;
  for (int64_t i = 0; i < c.batch; ++i) c.probabilities[i] = c.tree[slots[i]];
  weigh(c.probabilities, float_of(smallest(row)), c.beta, c.weights, c.batch);
  for (int64_t i = 0; i < c.batch; ++i) {
    const int64_t slot = slots[i], behind = slot < next_slot ? next_slot - slot : next_slot - slot + capacity;
    c.handles[i] = int32_t(behind <= cursor ? cursor - behind : cursor - behind + modulus);
    c.probabilities[i] = most(c.probabilities[i] * scale, LEAST_CHANCE);
  }
  if (!by_slot) return true;
  const Ring ring = ring_of(c);
  const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
  for (int64_t i = 0; i < c.batch; ++i) c.handles[i] = handle_of(c, ring, lanes, slots[i]);
  return true;
}

// Choose items by random bits; whether anything could be drawn. Without a ring there is one lane.
inline bool draw_slots(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots) {
  const bool in_rings = c.ring && ring_of(c)->lanes > 1;
  if (plan_of(c)->levels) return draw_prioritized(c, draws, slots, in_rings || c.current);
  return in_rings ? draw_uniform_in_rings(c, draws, slots) : draw_uniform(c, draws, slots);
}

// Powers of priorities, which come as bits, and which of them are good: `importance.stored_value`.
FRB_ENTRY void stored_values(Plan plan, Span<const int32_t> priorities, float* values, uint8_t* good) {
  Scratch<int32_t> powers(priorities.size);
  make_values(plan, priorities.at, powers.at, priorities.size);
  for (int64_t i = 0; i < priorities.size; ++i) {
    values[i] = float_of(most(powers[i], 0));
    good[i] = powers[i] >= 0;
  }
}

// The weights (value / smallest) ** -beta, of a smallest and a beta [1]: `importance.importance_weights`.
FRB_ENTRY void importance_weights(Span<const float> values, const float* smallest, const float* beta, float* weights) {
  weigh(values.at, smallest[0], beta[0], weights, values.size);
}

// Numbers below n, of one n for each or for all: `ops.random_bits.below`.
FRB_ENTRY void below_each(const int32_t* words, Span<const int32_t> n, Span<int32_t> chosen) {
  for (int64_t i = 0; i < chosen.size; ++i) chosen[i] = int32_t(below(words + 2 * i, n[n.size > 1 ? i : 0]));
}

FRB_END
