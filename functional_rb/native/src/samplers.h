// Whole draws of all samplers: also without replacement by priority, with a limit to how often each item comes, in turn, and of
// newer items rather than older ones.
#pragma once
#include "epochs.h"
#include "positions.h"
#include "race.h"

FRB_BEGIN

// What lanes hold of a call: where each goes on, how many items are stored in it, and those one after the other. Others may
// have made anything of the counters: so sizes are such as lanes have, and each number names a slot of its lane.
struct Stored {
  const Ring ring;
  const int32_t* cursors;
  const int64_t limit;
  Scratch<int32_t> sizes, ends;

  explicit Stored(const BufferCall& c)
      : ring(ring_of(c)), cursors(c.counters + ring->cursors), limit(int64_t(ring->length) * ring->turns), sizes(ring->lanes),
        ends(ring->lanes) {
    int32_t end = 0;
    for (int64_t lane = 0; lane < ring->lanes; ++lane) ends[lane] = end += sizes[lane] = size_of(ring, c.counters, lane);
  }
  int64_t size() const { return ends[ring->lanes - 1]; }
  int64_t lane_at(int64_t position) const {
    return least<int64_t>(std::upper_bound(ends.at, ends.at + ring->lanes, int32_t(position)) - ends.at, ring->lanes - 1);
  }
  int64_t oldest(int64_t lane) const { return back_by(cursors[lane], sizes[lane], limit); }
  // The item of a lane at a position, counted from its oldest on.
  Item item(int64_t lane, int64_t position) const { return item_of(ring, lane, on_by(oldest(lane), position, limit)); }
};

// Let a draw be none.
FRB_INLINE void mask_out(const BufferCall& c, int64_t i) { c.handles[i] = -1, c.drawn[i] = 0, c.weights[i] = c.probabilities[i] = 0; }

// `prioritized.arrived`: the probability is that of being in the batch.
inline bool draw_in_race(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots) {
  const Plan plan = plan_of(c);
  const Ring ring = ring_of(c);
  const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
  const float threshold = first_arrivals(plan, c.tree, draws, slots, c.drawn);
  const float* row = c.tree + int64_t(plan.level(plan->levels - 1).smallest) * FANOUT;
  for (int64_t i = 0; i < c.batch; ++i) c.probabilities[i] = inclusion(c.tree[slots[i]], threshold);
  weigh(c.probabilities, inclusion(float_of(smallest(row)), threshold), c.beta, c.weights, c.batch);
  for (int64_t i = 0; i < c.batch; ++i)
    if (c.drawn[i]) c.handles[i] = handle_of(c, ring, lanes, slots[i]);
    else mask_out(c, i);
  return c.drawn[0];
}

// `Uniform.draw` with a limit: the tree has a 1 for each item that may be drawn.
inline bool draw_marked(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots) {
  const Ring ring = ring_of(c);
  const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
  const float total = total_of(plan_of(c), c.tree);
  descend(plan_of(c), c.tree, draws, slots);
  const int64_t left = counted(total);
  const float weight = left ? 1.0f : 0.0f, chance = weight * (1.0f / float(most<int64_t>(left, 1)));
  for (int64_t i = 0; i < c.batch; ++i) {
    c.handles[i] = left ? handle_of(c, ring, lanes, slots[i]) : -1;
    c.weights[i] = weight, c.probabilities[i] = chance;
  }
  return left > 0;
}

// Count draws, of which those beyond the limit are none: `draw_limits.spend`. What has reached it has no leaf any more.
inline void spend(const BufferCall& c, const int32_t* slots) {
  const Plan plan = plan_of(c);
  Scratch<int32_t> spent(c.batch);
  const int64_t wanted = counting(c);
  int64_t count = 0, noted = 0;
  for (int64_t i = 0; i < c.batch; ++i) {
    const int32_t slot = slots[i];
    c.drawn[i] = i < wanted && c.handles[i] >= 0 && c.times[slot] < plan->limit;
    if (!c.drawn[i]) {
      mask_out(c, i);
      continue;
    }
    if (c.saved_slots) {  // of what comes again too: the first note of it counts
      c.saved_slots[noted] = slot, c.saved_times[noted] = c.times[slot];
      c.saved_values[noted++] = c.tree[slot];
    }
    if (++c.times[slot] < plan->limit) continue;
    c.tree[slot] = 0.0f, spent[count++] = slot;
  }
  c.saved_count[0] = noted;
  refresh(plan, c.tree, spent.at, count);
}

// `Recency.draw`: the newest of several draws, each by two words.
inline bool draw_recent(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots) {
  const Stored stored(c);
  const int64_t size = stored.size(), lanes = stored.ring->lanes;
  for (int64_t i = 0; i < c.batch; ++i) {
    int64_t lane = 0, back = INT32_MOST;
    for (int64_t k = 0; k < draws.columns; k += 2) {
      const int64_t position = below(draws.at + i * draws.columns + k, size), other = stored.lane_at(position);
      const int64_t distance = stored.ends[other] - position;
      if (distance < back || !k) lane = other, back = distance;
    }
    const Item item = stored.item(lane, stored.sizes[lane] - back);
    slots[i] = item.slot, c.handles[i] = size ? item.handle : -1, c.weights[i] = size ? 1.0f : 0.0f;
    c.probabilities[i] = chance_of_newest(lanes, [&](int64_t other) { return stored.sizes[other]; }, size, back, draws.columns / 2);
  }
  return size > 0;
}

// Tell what is drawn in turn: all weights and probabilities are 1, of each group of so many that come together.
FRB_INLINE void tell_in_turn(const BufferCall& c, int64_t i, bool live, int64_t together = 1) {
  c.drawn[i] = live;
  if (!live) c.handles[i] = -1;
  c.weights[i / together] = c.probabilities[i / together] = live ? 1.0f : 0.0f;
}

// `Queue.draw`: the oldest of each lane, which is shorter by them then.
inline bool take_out(const BufferCall& c, int32_t* slots) {
  const Ring ring = ring_of(c);
  const int64_t length = plan_of(c)->length;
  const int64_t wanted = counting(c);
  bool any = false;
  for (int64_t i = 0; i < c.batch * length; ++i) {
    const InTurn taken = taken_at(ring, c.counters, i, length, wanted);
    const Item item = item_at(ring, c.counters, taken.lane, taken.position);
    slots[i] = item.slot, c.handles[i] = item.handle;
    tell_in_turn(c, i, taken.live, length);
    any = any || taken.live;
  }
  int32_t *sizes = c.new_counters + ring->sizes, left = 0;
  for (int64_t lane = 0; lane < ring->lanes; ++lane)
    left += sizes[lane] = int32_t(size_of(ring, c.counters, lane) - taken_of(ring, c.counters, lane, length, wanted));
  c.new_counters[SIZE] = left;
  return any;
}

// How many items are left of an epoch in order, in rings whose cursors and sizes are among some counters.
inline int64_t left_in_order(const BufferCall& c, const int32_t* counters) {
  const Ring ring = ring_of(c);
  int64_t left = 0;
  for (int64_t lane = 0; lane < ring->lanes; ++lane)
    left += rest_of(ring, record_of<Epoch>(c.epoch), c.counters, counters, lane).left;
  return left;
}

// `WithoutReplacement.draw` without shuffling: lane by lane, each from its oldest on.
inline bool draw_in_order(const BufferCall& c, int32_t* slots) {
  const Stored stored(c);
  const Epoch epoch = record_of<Epoch>(c.epoch);
  const int64_t lanes = stored.ring->lanes, wanted = counting(c), whole = epoch->drop_last ? wanted : 1;
  const int64_t before = left_in_order(c, c.counters);
  const bool fresh = before < whole;
  const int64_t total = fresh ? stored.size() : before, taken = total < whole ? 0 : least(total, wanted);
  const bool done = total - taken < whole;
  int64_t passed = 0;
  int32_t padding = 0;  // the first of those that are left
  for (int64_t lane = 0, i = 0; lane < lanes; ++lane) {
    const Rest rest = fresh ? all_of(stored.ring, c.counters, lane) : rest_of(stored.ring, epoch, c.counters, c.counters, lane);
    if (!passed) padding = item_of(stored.ring, lane, rest.first).slot;
    const int64_t ahead = least(most<int64_t>(taken - passed, 0), rest.left);
    for (int64_t k = 0; k < ahead; ++k, ++i) {
      const Item item = item_of(stored.ring, lane, on_by(rest.first, k, stored.limit));
      slots[i] = item.slot, c.handles[i] = item.handle;
      tell_in_turn(c, i, true);
    }
    passed += rest.left;
    if (!taken) continue;  // the epoch stays as it is
    c.new_counters[epoch->next + lane] = int32_t(done ? rest.end : on_by(rest.first, ahead, stored.limit));
    c.new_counters[epoch->end + lane] = int32_t(rest.end);
  }
  for (int64_t i = taken; i < c.batch; ++i) slots[i] = padding, tell_in_turn(c, i, false);
  if (taken) c.new_counters[epoch->epochs_done] = saturated(int64_t(c.counters[epoch->epochs_done]) + done + (fresh && before > 0));
  return taken > 0;
}

// `InOrder.draw`: from the oldest item on, or from the newest; with a limit each in a row as often as it may still be drawn.
inline bool draw_from_an_end(const BufferCall& c, int32_t* slots) {
  const Plan plan = plan_of(c);
  const Stored stored(c);
  const int64_t capacity = plan->capacity, oldest = floor_mod(stored.oldest(0), capacity), row = plan->levels - 1;
  const int64_t size = plan->limit ? counted(add_up(c.tree + int64_t(plan.level(row).sums) * FANOUT)) : stored.size();
  const int64_t first = plan->limit ? marked_before(plan, c.tree, floor_mod(stored.cursors[0], capacity)) : 0;
  const auto slot_at = [&](int64_t place) {  // counted from the end
    if (plan->limit) return slot_of_rank(plan, c.tree, rank_from_an_end(place, size, first, plan->newest_first));
    return int32_t((oldest + from_an_end(place, size, plan->newest_first)) % capacity);
  };
  const Lanes lanes{stored.cursors, stored.sizes.at};
  int64_t i = 0;
  for (int64_t place = 0; place < least(size, c.batch) && i < c.batch; ++place) {
    const int32_t slot = slot_at(place);
    for (int64_t left = plan->limit ? int64_t(plan->limit) - c.times[slot] : 1; left > 0 && i < c.batch; --left) slots[i++] = slot;
  }
  const int64_t drawn = i;
  for (const int32_t padding = slot_at(c.batch - 1); i < c.batch;) slots[i++] = padding;
  for (i = 0; i < c.batch; ++i) {
    c.handles[i] = handle_in_ring(stored.ring, lanes, slots[i]);
    tell_in_turn(c, i, i < drawn);
  }
  return drawn > 0;
}

// Draw single items, or windows that a queue gives, and read them; where others do that, they are told the slots.
inline Outcome draw_items(const BufferCall& c) {
#ifdef FRB_FAULTS
  if (FRB_FAULT(RACE)) ++races;
#endif
  const Plan plan = plan_of(c);
  const int64_t rows = c.batch * plan->length;
  if (plan->draws == QUEUE && !c.wanted_at && c.batch % ring_of(c)->lanes) return NONE_DRAWN;  // the reference refuses that
  const Bits bits(c, plan->draws == ARRIVALS);
  Scratch<int32_t> slots(rows);
  if (FRB_FAULT(FREED)) free(slots.at);
  const bool drawn = plan->draws == ARRIVALS      ? draw_in_race(c, bits.all, slots.at)
                     : plan->draws == RECENT      ? draw_recent(c, bits.all, slots.at)
                     : plan->draws == QUEUE       ? take_out(c, slots.at)
                     : plan->draws == IN_TURN     ? draw_in_order(c, slots.at)
                     : plan->draws == FROM_AN_END ? draw_from_an_end(c, slots.at)
                     : plan->draws == LIMITED && !plan->prioritized ? draw_marked(c, bits.all, slots.at)
                                                                    : draw_slots(c, bits.all, slots.at);
  if (FRB_FAULT(BEHIND_THE_DRAWS)) slots[c.batch] = 0;
  if (c.slots) memcpy(c.slots, slots.at, size_t(rows) * sizeof(int32_t));
  if (c.given) load_drawn(c, slots.at, rows);
  if (plan->limit) spend(c, slots.at);
  return drawn ? DONE : NONE_DRAWN;
}

// Draw what the plan says. Where there is nothing all is masked, and the state stays as it is.
FRB_ENTRY Outcome draw(const BufferCall& c) {
  switch (plan_of(c)->draws) {
    case SLICES: case FRESH_SLICES: return draw_slices(c);
    case EPOCH: case EPOCH_OF_SLICES: return draw_epoch(c);
    default: return draw_items(c);
  }
}

FRB_END
