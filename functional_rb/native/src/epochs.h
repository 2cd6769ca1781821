// Draws of epochs: `samplers.epochs.EpochKeeper.draw`, and what is told of it.
//
// They write to the sparse set itself, and save what they overwrite for older versions.
#pragma once
#include "positions.h"
#include "slices.h"
#include "sparse_set.h"

FRB_BEGIN

// A sparse set that is written to. Each write is noted with what was there: the position, the slot that lay there, the slot
// that comes, and its position before, with `room` for so many of each.
struct Deck {
  int32_t *order, *place, *saved;
  int64_t capacity, room, *count;

  void put(int64_t at, int32_t slot) const {
    int32_t* at_slot = place + bounded(slot, capacity);
    if (saved) {
      int32_t* note = saved + (*count)++;
      note[0] = int32_t(at), note[room] = order[at], note[2 * room] = int32_t(at_slot - place), note[3 * room] = *at_slot;
    }
    order[at] = slot, *at_slot = int32_t(at);
  }
  // Exchange what lies at positions below a boundary for what stays behind it; `work` has room for four times as many.
  void move(int64_t boundary, const int32_t* positions, int64_t taken, int32_t* work) const {
    const int64_t moved = exchange({order, capacity}, boundary, {positions, taken}, work, work + 2 * taken);
    for (int64_t i = 0; i < moved; ++i) put(work[i], work[2 * taken + i]);
  }
};

// A call's, whose writes are saved.
inline Deck deck_of(const BufferCall& c) {
  return {c.order, c.place, c.saved_deck, plan_of(c)->capacity, c.deck_room, c.saved_count + 2};
}

// Draw slots without replacement; whether any were. Those behind the live ones are just in bounds.
inline bool draw_slots_of_epoch(const BufferCall& c, Matrix<const int32_t> draws, int32_t* slots, uint8_t* live) {
  const Epoch epoch = record_of<Epoch>(c.epoch);
  const Deck deck = deck_of(c);
  const int64_t batch = c.batch, capacity = deck.capacity, wanted = counting(c);
  const int64_t whole = epoch->drop_last ? wanted : least<int64_t>(wanted, 1);
  const int64_t remaining = c.counters[epoch->remaining];
  const int64_t left = least(most<int64_t>(remaining < whole ? c.counters[epoch->count] : remaining, 0), capacity);
  const int64_t whole_before = left < whole ? 0 : left, taken = least(whole_before, wanted);
  const int32_t below = int32_t(whole_before);
  Scratch<int32_t> positions(batch, true), work(4 * batch);
  distinct(draws, &below, {positions.at, taken});
  for (int64_t i = 0; i < batch; ++i) {
    slots[i] = int32_t(bounded(deck.order[positions[i]], capacity));
    live[i] = i < taken;
    c.weights[i] = live[i] ? 1.0f : 0.0f;
    c.probabilities[i] = live[i] ? 1.0f / float(most<int64_t>(left - i, 1)) : 0.0f;
  }
  deck.move(whole_before - taken, positions.at, taken, work.at);
  if (whole_before) {  // else nothing changes
    const int64_t after = whole_before - taken, done = (after < whole) + (0 < remaining && remaining < whole);
    c.new_counters[epoch->remaining] = after < whole ? 0 : int32_t(after);
    c.new_counters[epoch->epochs_done] = saturated(int64_t(c.counters[epoch->epochs_done]) + done);
  }
  return taken > 0;
}

// Draw items, or slices, and read them; where others do that, they are told the slots.
inline Outcome draw_epoch(const BufferCall& c) {
  const Ring ring = ring_of(c);
  const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
  const Bits bits(c);
  Scratch<int32_t> slots(c.batch);
  Scratch<uint8_t> live(c.batch);
  const bool drawn = draw_slots_of_epoch(c, bits.all, slots.at, live.at);
  const bool sliced = ring->window_length != 0;
  if (sliced)  // of which the words come behind those of the epoch
    cut(ring, lanes, c.in_episode, c.counters + ring->next, slots, {bits.all.at + 2, c.batch, c.words}, live.at, slices_of(c));
  for (int64_t i = 0; i < c.batch; ++i) {
    if (!sliced) c.drawn[i] = live[i], c.handles[i] = live[i] ? handle_in_ring(ring, lanes, slots[i]) : -1;
    else if (!c.drawn[i * ring->window_length]) c.weights[i] = c.probabilities[i] = 0;
  }
  if (!sliced && c.slots) memcpy(c.slots, slots.at, size_t(c.batch) * sizeof(int32_t));
  const int64_t rows = c.batch * (sliced ? ring->window_length : 1);
  if (c.given) load_drawn(c, sliced ? c.slots : slots.at, rows);
  return drawn ? DONE : NONE_DRAWN;
}

FRB_END
