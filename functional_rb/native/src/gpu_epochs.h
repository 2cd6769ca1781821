// Sparse sets, and draws of epochs, for GPUs: as `sparse_set.h` and `epochs.h`.
#pragma once
#include "gpu.h"

FRB_BEGIN

namespace gpu {

// A sparse set that one block writes to. What it will overwrite is noted before, in all of the room that there is for
// it.
struct Deck {
  int32_t *order, *place, *saved;
  int64_t capacity, column, room;
  // Where items share frames, half of the room is for when they come, and half for when others go.
  FRB_INLINE Deck(const Call& call, const Plan& plan)
      : order(call.order), place(call.place), saved(call.saved_deck), capacity(plan->capacity), column(call.deck_room),
        room(call.saved_at ? column / 2 : column) {}
  FRB_INLINE Deck second() const {
    Deck other = *this;
    if (saved) other.saved += room;
    return other;
  }
  FRB_INLINE void put(int64_t at, int32_t slot) const {
    order[at] = slot, place[bounded(slot, capacity)] = int32_t(at);
  }
  FRB_INLINE bool has(int32_t slot, int64_t count) const {
    const int64_t at = place[slot];
    return at < count && order[bounded(at, capacity)] == slot;
  }
  // Note positions, and slots whose own may change: `tell` says the k-th of both, the slot -1 for that at the position.
  template <class Block, class Tell> FRB_INLINE void note(const Block& block, int64_t count, const Tell& tell) const {
    if (!saved) return;
    block.each(room, [&](int64_t k) {
      int64_t at = 0, slot = -1;
      if (k < count) tell(k, at, slot);
      at = bounded(at, capacity), slot = bounded(slot < 0 ? order[at] : slot, capacity);
      saved[k] = int32_t(at), saved[column + k] = order[at];
      saved[2 * column + k] = int32_t(slot), saved[3 * column + k] = place[slot];
    });
  }
  // Exchange what lies at distinct positions below a boundary for what stays behind it, the first for the first; `work`
  // has room for three times as many.
  template <class Block>
  FRB_INLINE void move(const Block& block, int64_t boundary, const int32_t* positions, int64_t taken,
                       int32_t* work) const {
    const int64_t last = least(taken, capacity - boundary), end = least(boundary, capacity);
    int32_t *stays = work, *from = work + taken, *to = from + taken;
    block.each(taken, [&](int64_t k) { stays[k] = 0; });
    block.each(taken, [&](int64_t k) {
      const int64_t behind = positions[k] - boundary;
      if (0 <= behind && behind < taken) stays[behind] = 1;
    });
    const int32_t goes = block.ranks(taken, [&](int64_t k) { return positions[k] >= 0 && positions[k] < end; },
                                     [&](int64_t k, int64_t found) { from[found] = positions[k]; });
    const int32_t comes = block.ranks(last, [&](int64_t k) { return !stays[k]; },
                                      [&](int64_t k, int64_t found) { to[found] = int32_t(boundary + k); });
    block.each(least(goes, comes), [&](int64_t k) {
      const int32_t behind = order[to[k]], before = order[from[k]];
      put(from[k], behind), put(to[k], before);
    });
  }
};

// How many are to be drawn, may be, and are.
struct Epochs {
  int64_t wanted, whole, remaining, left, given, taken;
  FRB_INLINE Epochs(const Call& call, const Plan& plan, const Epoch& epoch)
      : wanted(counting(call)), whole(epoch->drop_last ? wanted : least<int64_t>(wanted, 1)),
        remaining(call.counters[epoch->remaining]),
        left(least<int64_t>(most<int64_t>(remaining < whole ? call.counters[epoch->count] : remaining, 0),
                            plan->capacity)),
        given(left < whole ? 0 : left), taken(least(given, wanted)) {}
};

// What an epoch's draw has in the scratch: the slots that are found, int32 [batch], and what it works with. The table's
// size is a power of two of at least 2 * batch.
FRB_INLINE int64_t numbers_of_epoch(int64_t batch, int64_t table) { return 8 * batch + 2 * table; }

// Choose distinct numbers below n by a Fisher-Yates shuffle, each step of which exchanges the last of those that are
// left for the chosen one. A chosen number was exchanged before if an earlier step chose it too: then the latest of
// these has put there what was last then, and so forth.
template <class Block>
FRB_INLINE void shuffle(const Block& block, const Call& call, int64_t n, int32_t* chosen, int64_t count,
                        int32_t* work) {
  const Words words(call);
  const int64_t size = call.scratch_size;
  int32_t *numbers = work, *next = numbers + count, *before = next + count;
  int32_t *keys = before + count, *lists = keys + size;
  auto seek = [&](int32_t key) {
    int64_t at = (uint32_t(key) * 2654435769u >> 8) & (size - 1);
    while (keys[at] != key && keys[at] != -1) at = (at + 1) & (size - 1);
    return at;
  };
  // The latest step before the i-th that chose a number.
  auto latest = [&](int64_t i, int64_t number) {
    int32_t found = -1;
    for (int32_t k = lists[seek(int32_t(number))]; k >= 0; k = next[k])
      if (k < i) found = most(found, k);
    return found;
  };
  block.each(size, [&](int64_t k) { keys[k] = lists[k] = -1; });
  block.each(count, [&](int64_t i) {
    const int32_t two[2] = {words(i * call.words), words(i * call.words + 1)};
    const int32_t number = numbers[i] = int32_t(below(two, n - i));
    int64_t at = (uint32_t(number) * 2654435769u >> 8) & (size - 1);
    for (;; at = (at + 1) & (size - 1)) {
      const int32_t found = block.exchange_if(keys + at, -1, number);
      if (found == -1 || found == number) break;
    }
    next[i] = block.exchange(lists + at, int32_t(i));
  });
  block.each(count, [&](int64_t i) { before[i] = latest(i, n - 1 - i); });
  block.each(count, [&](int64_t i) {
    int32_t step = latest(i, numbers[i]);
    if (step < 0) return void(chosen[i] = numbers[i]);
    while (before[step] >= 0) step = before[step];
    chosen[i] = int32_t(n - 1 - step);
  });
}

// Draw slots without replacement: by one block, before `read_epoch`. Those behind the live ones are just in bounds.
template <class Block> FRB_INLINE void draw_epoch(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Epoch epoch = epoch_of(call);
  const Deck deck(call, plan);
  const Epochs of(call, plan, epoch);
  const int64_t batch = call.batch, taken = of.taken, after = of.given - taken;
  int32_t *found = call.scratch, *positions = found + batch, *work = positions + batch;
  block.each(ring_of(call)->counters, [&](int64_t k) { call.new_counters[k] = call.counters[k]; });
  shuffle(block, call, of.given, positions, taken, work);
  block.each(batch, [&](int64_t i) {
    const bool live = i < taken;
    found[i] = int32_t(bounded(deck.order[live ? positions[i] : 0], plan->capacity));
    call.weights[i] = live ? 1.0f : 0.0f;
    call.probabilities[i] = live ? 1.0f / float(most<int64_t>(of.left - i, 1)) : 0.0f;
  });
  deck.note(block, 2 * taken,
            [&](int64_t k, int64_t& at, int64_t&) { at = k < taken ? positions[k] : after + k - taken; });
  deck.move(block, after, positions, taken, work);
  block.each(of.given ? 1 : 0, [&](int64_t) {
    const int64_t done = (after < of.whole) + (0 < of.remaining && of.remaining < of.whole);
    call.new_counters[epoch->remaining] = after < of.whole ? 0 : int32_t(after);
    call.new_counters[epoch->epochs_done] = saturated(int64_t(call.counters[epoch->epochs_done]) + done);
  });
}

}  // namespace gpu

FRB_END
