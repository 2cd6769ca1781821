// Draws of epochs: `samplers.epochs.EpochKeeper.draw`, and what is told of it.
//
// They write to the sparse set itself, and save what they overwrite for older versions.
#pragma once
#include "buffer.h"
#include "sparse_set.h"

FRB_BEGIN

// A sparse set that is written to. Each write is noted with what was there: the position, the slot that lay there, the slot
// that comes, and its position before, with `room` for so many of each.
struct Deck {
  int32_t *order, *place, *saved;
  int64_t capacity, room, *count;

  void put(int64_t at, int32_t slot) const {
    int32_t* own = place + bounded(slot, capacity);
    if (saved) {
      int32_t* note = saved + (*count)++;
      note[0] = int32_t(at), note[room] = order[at], note[2 * room] = int32_t(own - place), note[3 * room] = *own;
    }
    order[at] = slot, *own = int32_t(at);
  }
  // Exchange what lies at positions below a boundary for what stays behind it; `work` has room for four times as many.
  void move(int64_t boundary, const int32_t* positions, int64_t taken, int32_t* work) const {
    const int64_t moved = exchange(order, capacity, boundary, positions, taken, work, work + 2 * taken);
    for (int64_t i = 0; i < moved; ++i) put(work[i], work[2 * taken + i]);
  }
};

// Draw slots without replacement, by random bits int32 [batch, words] of which two are taken; whether any were. Those behind
// the live ones are just in bounds.
FRB_ENTRY bool draw_epoch(const int32_t* counters, int32_t* new_counters, const int32_t* draws, int64_t words, int32_t* slots,
                       float* weights, float* probabilities, uint8_t* live, Plan plan, Epoch epoch, int64_t batch,
                       const Deck& deck) {
  Scratch<int32_t> positions(batch, true), work(4 * batch);
  const int64_t capacity = plan->capacity;
  const int64_t whole = epoch->drop_last ? batch : 1;
  const int64_t remaining = counters[epoch->remaining];
  const int64_t left = least(most<int64_t>(remaining < whole ? counters[epoch->count] : remaining, 0), capacity);
  const int64_t given = left < whole ? 0 : left, taken = least(given, batch);
  shuffle(draws, words, given, positions.at, taken);
  for (int64_t i = 0; i < batch; ++i) {
    slots[i] = int32_t(bounded(deck.order[positions[i]], capacity));
    live[i] = i < taken;
    weights[i] = live[i] ? 1.0f : 0.0f;
    probabilities[i] = live[i] ? 1.0f / float(most<int64_t>(left - i, 1)) : 0.0f;
  }
  deck.move(given - taken, positions.at, taken, work.at);
  if (given) {  // else nothing changes
    const int64_t after = given - taken, done = (after < whole) + (0 < remaining && remaining < whole);
    new_counters[epoch->remaining] = after < whole ? 0 : int32_t(after);
    new_counters[epoch->epochs_done] = saturated(int64_t(counters[epoch->epochs_done]) + done);
  }
  return taken > 0;
}

FRB_END
