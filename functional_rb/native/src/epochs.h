// Whole draws of epochs: `samplers.epochs.EpochKeeper.draw`, and what is read and told of it.
//
// They write to the sparse set itself, and save what they overwrite for older versions.
#pragma once
#include "buffer.h"
#include "sparse_set.h"

FRB_BEGIN

// The handle of what lies in a slot: `ring.handle_of_slot`.
FRB_INLINE int64_t handle_of(const Epoch& epoch, const int32_t* counters, int64_t capacity, int64_t slot) {
  const int64_t lanes = epoch->lanes, length = capacity / lanes, limit = INT32_MOST / capacity * length;
  const int64_t cursor = counters[epoch->cursors + slot / length];
  const int64_t back = floor_mod(cursor, length) - 1 - slot % length;
  int64_t number = cursor - (back >= 0 ? back : back + length) - 1;
  if (number < 0) number += limit;
  return lanes == 1 ? number : floor_div(number, length) * capacity + slot;
}

// Exchange what lies at positions below a boundary for what stays behind it. What is overwritten is saved first: positions,
// and, `room` for each, the slots that lay there and the places of these.
inline void move(int32_t* order, int32_t* place, int64_t capacity, int64_t boundary, const int32_t* positions,
                     int64_t taken, int32_t* saved_at, int32_t* saved, int64_t room, int64_t* saved_count) {
  Scratch<int32_t> at(2 * taken), slots(2 * taken);
  const int64_t count = exchange(order, capacity, boundary, positions, taken, at.at, slots.at);
  for (int64_t i = 0; saved_at && i < count; ++i) {
    saved_at[i] = at[i], saved[i] = order[at[i]];
    saved[room + i] = place[bounded(order[at[i]], capacity)];
  }
  *saved_count = count;
  for (int64_t i = 0; i < count; ++i) {
    order[at[i]] = slots[i];
    place[bounded(slots[i], capacity)] = at[i];
  }
}

// Draw without replacement, by random bits int32 [batch, 2], or by a key if there are none; whether anything was.
FRB_ENTRY bool draw_epoch(int32_t* order, int32_t* place, const int32_t* counters, int32_t* new_counters, const int32_t* words,
                       int32_t* handles, float* weights, float* probabilities, uint8_t* mask, Addresses storage,
                       Addresses leaves, Plan plan, Epoch epoch, int64_t key, int64_t batch, int32_t* saved_at,
                       int32_t* saved_deck, int64_t room, int64_t* saved_count) {
  Scratch<int32_t> made(words ? 0 : 2 * batch), positions(batch, true), slots(batch);
  if (!words) fill_random(key, made.at, 2 * batch);
  const int64_t capacity = plan->capacity;
  const int64_t whole = epoch->drop_last ? batch : 1;
  const int64_t remaining = counters[epoch->remaining];
  const int64_t left = least(most<int64_t>(remaining < whole ? counters[SIZE] : remaining, 0), capacity);
  const int64_t given = left < whole ? 0 : left, taken = least(given, batch);
  shuffle(words ? words : made.at, given, positions.at, taken);
  for (int64_t i = 0; i < batch; ++i) slots[i] = int32_t(bounded(order[positions[i]], capacity));
  for (int64_t i = 0; i < batch; ++i) {
    const bool live = i < taken;
    mask[i] = live;
    weights[i] = live ? 1.0f : 0.0f;
    probabilities[i] = live ? 1.0f / float(most<int64_t>(left - i, 1)) : 0.0f;
    handles[i] = live ? int32_t(handle_of(epoch, counters, capacity, slots[i])) : -1;
  }
  load_items(plan, storage, slots.at, batch, leaves);
  move(order, place, capacity, given - taken, positions.at, taken, saved_at, saved_deck, room, saved_count);
  for (int64_t k = 0; k < epoch->counters; ++k) new_counters[k] = counters[k];
  if (given) {  // else nothing changes
    const int64_t after = given - taken, done = (after < whole) + (0 < remaining && remaining < whole);
    new_counters[epoch->remaining] = after < whole ? 0 : int32_t(after);
    new_counters[epoch->epochs_done] = saturated(int64_t(counters[epoch->epochs_done]) + done);
  }
  return taken > 0;
}

FRB_END
