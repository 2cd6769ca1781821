// add, update and draws of a buffer whose items lie in one ring: `buffer.functions`, whole.
//
// Counters are read from one vector and written to another, so that the old one stays as it was.
#pragma once
#include <algorithm>

#include "ring.h"
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

// Write a batch. `items` has the addresses of its leaves, and behind them those of rows to save in what is overwritten,
// with `room` for so many slots and values; tells how many slots were saved. Priorities come as bits.
FRB_ENTRY void add(float* tree, const int32_t* counters, int32_t* new_counters, const uint8_t* mask, const int32_t* priorities,
                int32_t* saved_slots, float* saved_values, Addresses storage, Addresses items, Plan plan, int64_t batch,
                int64_t room, Span<int64_t> saved_count) {
  const Addresses leaves = items.part(0, plan->leaves), saved = items.part(plan->leaves, items.size - plan->leaves);
  const int64_t capacity = plan->capacity;
  const bool has_tree = plan->levels != 0, saves = saved_slots && room;
  int64_t marked = batch;
  if (mask) {
    marked = 0;
    for (int64_t row = 0; row < batch; ++row) marked += mask[row] != 0;
  }
  const int64_t skipped = most<int64_t>(marked - capacity, 0);
  const int64_t first = floor_mod(int64_t(counters[CURSOR]) + skipped, capacity);
  const int32_t by_default = bits_of(new_value(plan, tree, counters));
  Scratch<int32_t> values(has_tree && priorities ? batch : 0);
  if (has_tree && priorities) make_values(plan, priorities, values.at, batch);
  int32_t peak = counters[PEAK];
  int64_t rejected = 0, passed = 0, done = 0;
  for (int64_t row = 0, stop = 0; row < batch; row = stop + 1) {
    // Rows that lie together go to slots that do.
    for (stop = row; stop < batch && (!mask || mask[stop]);) ++stop;
    const int64_t left_out = least(skipped - passed, stop - row);
    passed += left_out, row += left_out;
    while (row < stop) {
      const int64_t slot = first + done < capacity ? first + done : first + done - capacity;
      const int64_t count = least(stop - row, capacity - slot);
      for (int64_t i = 0; saves && i < count; ++i) {
        saved_slots[done + i] = int32_t(slot + i);
        if (saved_values) saved_values[done + i] = tree[slot + i];
      }
      if (saves) save_items(plan, storage, slot, saved, done, count);
      store_items(plan, storage, slot, leaves, row, count);
      for (int64_t i = 0; has_tree && i < count; ++i) {
        const bool given = priorities && values[row + i] >= 0;
        const int32_t value = given ? values[row + i] : by_default;
        rejected += priorities && !given;
        tree[slot + i] = float_of(value);
        peak = most(peak, value);
      }
      done += count, row += count;
    }
  }
  const int64_t written = marked - skipped;
  if (has_tree && written) {
    const int64_t head = least(written, capacity - first);
    refresh_range(plan, tree, first, head);
    if (written > head) refresh_range(plan, tree, 0, written - head);
  }
  if (FRB_FAULT(OVERFLOWN)) peak += int32_t(INT32_MOST);
#ifdef FRB_FAULTS
  if (FRB_FAULT(UNLOCKED)) usleep(5000);  // without the GIL: so others write with nothing in between
#endif
  saved_count[0] = written;
  new_counters[CURSOR] = int32_t(floor_mod(int64_t(counters[CURSOR]) + marked, plan->modulus));
  new_counters[SIZE] = int32_t(least(int64_t(counters[SIZE]) + marked, capacity));
  new_counters[REJECTED] = saturated(int64_t(counters[REJECTED]) + rejected);
  new_counters[STALE] = counters[STALE];
  new_counters[PEAK] = peak;
  new_counters[INVALID] = counters[INVALID];
}

// Set priorities, and rewrite leaves, of the items that handles name; of equal handles the last wins. `items` has `given`
// leaves (or none), and behind them rows to save in; all that is overwritten is saved before anything is written.
FRB_ENTRY void update(float* tree, const int32_t* counters, int32_t* new_counters, const int32_t* handles,
                   const int32_t* priorities, int32_t* saved_slots, float* saved_values, Addresses storage, Addresses items,
                   Plan plan, int64_t batch, int64_t given, int64_t room, Span<int64_t> saved_count) {
  const Addresses leaves = items.part(0, given), saved = items.part(given, items.size - given);
  Scratch<int32_t> slots(batch), values(priorities ? batch : 0);
  const Finder find(plan, counters);
  int64_t live = 0, named = 0, rejected = 0, count = 0;
  for (int64_t i = 0; i < batch; ++i) {
    slots[i] = find(handles[i]);
    live += slots[i] >= 0;
    named += handles[i] != -1;  // that stands for what could not be drawn
  }
  if (priorities) {
    for (int64_t i = 0; i < batch; ++i) expect(tree + most(slots[i], 0));
    make_values(plan, priorities, values.at, batch);
  }
  if (saved_slots && room)
    for (int64_t i = 0, at = 0; i < batch; ++i) {
      const int64_t slot = slots[i];
      if (slot < 0) continue;
      saved_slots[at] = int32_t(slot);
      save_items(plan, storage, slot, saved, at, 1);
      if (saved_values) saved_values[at] = tree[slot];
      ++at;
    }
  if (priorities) expect_paths(plan, tree, slots.at, batch);
  int32_t peak = counters[PEAK];
  for (int64_t i = 0; i < batch; ++i) {
    const int32_t slot = slots[i];
    if (slot < 0) continue;
    if (given) store_item(plan, storage, slot, leaves, i);
    if (!priorities) continue;
    if (values[i] < 0) {
      ++rejected;
      continue;
    }
    tree[slot] = float_of(values[i]);
    peak = most(peak, values[i]);
    slots[count++] = slot;
  }
  refresh(plan, tree, slots.at, count);
  new_counters[CURSOR] = counters[CURSOR];
  new_counters[SIZE] = counters[SIZE];
  new_counters[REJECTED] = saturated(int64_t(counters[REJECTED]) + rejected);
  new_counters[STALE] = saturated(int64_t(counters[STALE]) + named - live);
  new_counters[PEAK] = peak;
  new_counters[INVALID] = counters[INVALID];
  saved_count[0] = live;
}

// What a draw tells of a batch of items.
struct Selection {
  int32_t* handles;
  float* weights;
  float* probabilities;
};

// `Uniform.draw`: each of the `size` items has the probability 1 / size; all weights are 1.
inline bool draw_uniform(const Plan& plan, const int32_t* counters, const int32_t* draws, int64_t words, int32_t* slots,
                             const Selection& told, int64_t batch) {
  const int64_t size = counters[SIZE], capacity = plan->capacity, modulus = plan->modulus;
  const int64_t oldest = floor_mod(int64_t(counters[CURSOR]) - size, modulus);
  const float weight = size ? 1.0f : 0.0f, chance = weight * (1.0f / float(most<int64_t>(size, 1)));
  for (int64_t i = 0; i < batch; ++i) {
    int64_t handle = oldest + below(draws + i * words, size);
    if (handle >= modulus) handle -= modulus;
    slots[i] = int32_t(short_mod(handle, capacity));
    told.handles[i] = size ? int32_t(handle) : -1;
    told.weights[i] = weight;
    told.probabilities[i] = chance;
  }
  return size > 0;
}

// `Prioritized.draw`: value / total is a probability, (value / smallest) ** -beta a weight.
inline bool draw_prioritized(const Plan& plan, const float* tree, const int32_t* counters, const int32_t* draws,
                                 int64_t words, float beta, int32_t* slots, const Selection& told, int64_t batch,
                                 Addresses storage) {
  const Rows rows = rows_of(plan, storage);
  const float total =
      descend_levels(plan, tree, draws, words, slots, batch, [&](int64_t slot) { rows.expect(slot); });
  if (!(total > 0)) {
    for (int64_t i = 0; i < batch; ++i) told.handles[i] = -1, told.weights[i] = 0, told.probabilities[i] = 0;
    return false;
  }
  const float* row = tree + int64_t(plan.level(plan->levels - 1).smallest) * FANOUT;
  const int64_t capacity = plan->capacity, modulus = plan->modulus, cursor = counters[CURSOR];
  const int64_t next_slot = floor_mod(cursor, capacity);
  const float scale = 1.0f / total;
  for (int64_t i = 0; i < batch; ++i) told.probabilities[i] = tree[slots[i]];
  weigh(told.probabilities, float_of(smallest(row)), beta, told.weights, batch);
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t slot = slots[i], behind = slot < next_slot ? next_slot - slot : next_slot - slot + capacity;
    told.handles[i] = int32_t(behind <= cursor ? cursor - behind : cursor - behind + modulus);
    told.probabilities[i] = most(told.probabilities[i] * scale, LEAST_CHANCE);
  }
  return true;
}

inline bool draw_slots(const Plan& plan, const float* tree, const int32_t* counters, const int32_t* draws,
                           int64_t words, float beta, int32_t* slots, const Selection& told, int64_t batch,
                           Addresses storage) {
  if (plan->levels) return draw_prioritized(plan, tree, counters, draws, words, beta, slots, told, batch, storage);
  return draw_uniform(plan, counters, draws, words, slots, told, batch);
}

// Draw by random bits int32 [batch, words]; whether anything could be drawn.
FRB_ENTRY bool draw(const float* tree, const int32_t* counters, const int32_t* draws, int32_t* handles, float* weights,
                 float* probabilities, Addresses storage, Addresses leaves, Plan plan, int64_t words, float beta,
                 int64_t batch) {
#ifdef FRB_FAULTS
  if (FRB_FAULT(RACE)) ++races;
#endif
  Scratch<int32_t> slots(batch);
  const Selection told{handles, weights, probabilities};
  const bool drawn = draw_slots(plan, tree, counters, draws, words, beta, slots.at, told, batch, storage);
  load_items(plan, storage, slots.at, batch, leaves);
  return drawn;
}

// `Uniform.draw` of several lanes: positions are counted lane by lane, each from its oldest item on.
inline bool draw_uniform_in_rings(const Ring& ring, const int32_t* counters, const int32_t* draws, int64_t words,
                                  int32_t* slots, const Selection& told, int64_t batch) {
  const Lanes lanes{counters + ring->cursors, counters + ring->sizes};
  const int64_t size = counters[SIZE], length = ring->length, limit = length * ring->turns;
  Scratch<int32_t> ends(ring->lanes);
  int32_t end = 0;
  for (int64_t lane = 0; lane < ring->lanes; ++lane) ends[lane] = end += lanes.sizes[lane];
  const float weight = size ? 1.0f : 0.0f, chance = weight * (1.0f / float(most<int64_t>(size, 1)));
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t position = below(draws + i * words, size);
    const int32_t* at = std::upper_bound(ends.at, ends.at + ring->lanes, int32_t(position));
    const int64_t lane = least<int64_t>(at - ends.at, ring->lanes - 1), held = lanes.sizes[lane];
    const int64_t number = floor_mod(int64_t(lanes.cursors[lane]) - held + position - (ends[lane] - held), limit);
    slots[i] = int32_t(lane * length + number % length);
    told.handles[i] = size ? int32_t(number / length * ring->capacity + slots[i]) : -1;
    told.weights[i] = weight;
    told.probabilities[i] = chance;
  }
  return size > 0;
}

// As `draw`, of several lanes.
FRB_ENTRY bool draw_in_rings(const float* tree, const int32_t* counters, const int32_t* draws, int32_t* handles, float* weights,
                             float* probabilities, Addresses storage, Addresses leaves, Plan plan, Ring ring,
                             int64_t words, float beta, int64_t batch) {
  Scratch<int32_t> slots(batch);
  const Selection told{handles, weights, probabilities};
  bool drawn;
  if (plan->levels) {
    drawn = draw_prioritized(plan, tree, counters, draws, words, beta, slots.at, told, batch, storage);
    const Lanes lanes{counters + ring->cursors, counters + ring->sizes};
    for (int64_t i = 0; drawn && i < batch; ++i) handles[i] = handle_in_ring(ring, lanes, slots[i]);
  } else {
    drawn = draw_uniform_in_rings(ring, counters, draws, words, slots.at, told, batch);
  }
  if (FRB_FAULT(BEHIND_THE_DRAWS)) slots[batch] = 0;
  load_items(plan, storage, slots.at, batch, leaves);
  return drawn;
}

// Make random bits from a key, and draw by them.
FRB_ENTRY bool sample(const float* tree, const int32_t* counters, int32_t* handles, float* weights, float* probabilities,
                   Addresses storage, Addresses leaves, Plan plan, int64_t key, int64_t words, float beta, int64_t batch) {
  Scratch<int32_t> draws(batch * words);
  if (FRB_FAULT(FREED)) free(draws.at);
  fill_random(key, draws.at, batch * words);
  return draw(tree, counters, draws.at, handles, weights, probabilities, storage, leaves, plan, words, beta, batch);
}

// Powers of priorities, which come as bits, and which of them are good: `importance.stored_value`.
FRB_ENTRY void stored_values(const int32_t* priorities, float* values, uint8_t* good, Plan plan, int64_t count) {
  Scratch<int32_t> made(count);
  make_values(plan, priorities, made.at, count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = float_of(most(made[i], 0));
    good[i] = made[i] >= 0;
  }
}

// The weights (value / smallest) ** -beta, of a smallest and a beta [1]: `importance.importance_weights`.
FRB_ENTRY void importance_weights(const float* values, const float* smallest, const float* beta, float* weights,
                               int64_t count) {
  weigh(values, smallest[0], beta[0], weights, count);
}

// Numbers below n int32 [counts], of one n for each or for all, by words int32 [size, 2]: `ops.random_bits.below`.
FRB_ENTRY void below_each(const int32_t* words, const int32_t* n, int32_t* chosen, int64_t counts, int64_t size) {
  for (int64_t i = 0; i < size; ++i) chosen[i] = int32_t(below(words + 2 * i, n[counts > 1 ? i : 0]));
}

FRB_END
