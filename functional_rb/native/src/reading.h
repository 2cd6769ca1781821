// What is read of items that were drawn.
#pragma once
#include "returns_read.h"
#include "stacks.h"

FRB_BEGIN

// Who does the work of a block of a GPU alone.
struct Alone {
  template <class F> FRB_INLINE void each(int64_t count, const F& f) const {
    for (int64_t i = 0; i < count; ++i) f(i);
  }
};

// Four images as one that has each of their pixels side by side.
FRB_ENTRY void interleave(char* to, const char* a, const char* b, const char* c, const char* d, int64_t pixels) {
  for (int64_t k = 0; k < pixels; ++k) to[4 * k] = a[k], to[4 * k + 1] = b[k], to[4 * k + 2] = c[k], to[4 * k + 3] = d[k];
}

// Read the stack of an item, or the one that follows on it, to a row: `frame_ring.read`.
inline void load_stack(const Stacks& of, int64_t k, int64_t slot, int64_t row) {
  const StackRecord& stack = of.stacks[k / 2];
  const Stacks::Lying frames = of.lying(k, slot);
  auto stored = [&](int64_t j) { return of.stored(k / 2, frames.place(j)); };
  auto given = [&](int64_t j) { return of.given(stack, of.leaf(k), row, j); };
  if (stack.bytes == 1 && stack.depth == 4)  // of images, the usual stack
    interleave(given(0).at, stored(0).at, stored(1).at, stored(2).at, stored(3).at, stack.outer);
  else if (of.in_a_row(k / 2) && frames.oldest >= 0)
    copy(given(0).at, stored(0).at, stack.depth * Stacks::bytes_of(stack));
  else
    for (int64_t j = 0; j < stack.depth; ++j) Stacks::copy_frame(stack, stored(j), given(j));
}

// A small stack is asked for so many items before it is read. Most of a larger one comes by itself, and to ask for it costs time.
constexpr int64_t ITEMS_AHEAD = 8, MOST_ASKED_FOR = 2048;
FRB_INLINE void expect_stack(const Stacks& of, int64_t k, int64_t slot) {
  const int64_t bytes = of.stacks[k / 2].depth * Stacks::bytes_of(of.stacks[k / 2]);
  if (bytes <= MOST_ASKED_FOR) expect_bytes(of.stored(k / 2, of.lying(k, slot).place(0)).at, bytes);
}

// Read the stacks of items, and those that follow on them, each leaf from the slots that `slots_of` says, into rows from one on.
template <class SlotsOf>
inline void load_stacks(const Stacks& of, int64_t start, int64_t count, const SlotsOf& slots_of) {
  const int64_t stacks = 2 * of.told->stacks;
  for (int64_t k = 0; k < stacks; ++k)
    for (int64_t i = 0; of.leaf(k) >= 0 && i < count; ++i) expect(of.whole.frame_at + slots_of(of.leaf(k))[i]);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < stacks; ++k)
      if (of.leaf(k) >= 0 && i + ITEMS_AHEAD < count) expect_stack(of, k, slots_of(of.leaf(k))[i + ITEMS_AHEAD]);
    for (int64_t k = 0; k < stacks; ++k)
      if (of.leaf(k) >= 0) load_stack(of, k, slots_of(of.leaf(k))[i], start + i);
  }
}

// Read items with the returns that are made of them and of the steps behind them, whose bytes are asked for before too. No memory
// is taken for that: of an epoch the draw has been written by now.
inline void load_returns(const BufferCall& c, const ReturnsRead<BufferCall>& of, const Stacks* stacks, const int32_t* slots, int64_t count) {
  const int64_t AHEAD = 2 * ROWS_TOGETHER;
  const Addresses storage = storage_of(c);
  int32_t all[AHEAD], last[AHEAD];  // of rows that are on their way, one behind the other around and around
  for (int64_t i = 0; i < least(AHEAD, count); ++i) expect(c.in_episode + slots[i]);
  const Among own = among(of.plan, [&](int64_t k) { return !of.follows(k); });
  const Among behind = among(of.plan, [&](int64_t k) { return of.follows(k) || of.is_own(k); });
  const Among rewards = among(of.plan, [&](int64_t k) { return of.is_reward(k); });
  for (int64_t start = 0, asked = 0; start < count; start += ROWS_TOGETHER) {
    for (; asked < least(start + AHEAD, count); ++asked) {
      const int64_t slot = slots[asked], steps = of.steps_of_all(slot), end = of.step(slot, steps - 1);
      all[asked % AHEAD] = int32_t(steps), last[asked % AHEAD] = int32_t(end);
      expect_row(of.plan, storage, own, slot);
      expect_row(of.plan, storage, behind, end);
      for (int64_t k = 1; k < steps; ++k) expect_row(of.plan, storage, rewards, of.step(slot, k));
      if (asked + AHEAD < count) expect(c.in_episode + slots[asked + AHEAD]);
    }
    const int64_t n = least(ROWS_TOGETHER, count - start), at = start % AHEAD;
    load_leaves(of.plan, storage, start, n, leaves_of(c), [&](int64_t k) -> const int32_t* {
      return of.is_reward(k) || of.is_own(k) ? nullptr : of.follows(k) ? last + at : slots + start;
    });
    tell_returns(Alone(), of, start, n, slots + start, all + at);
    if (stacks) load_stacks(*stacks, start, n, [&](int64_t leaf) { return of.follows(-1 - leaf) ? last + at : slots + start; });
  }
}

// Read the leaves that lie in rows, with what is told beside them, and stacks of frames, if there are any.
inline void load_leaves_drawn(const BufferCall& c, const Stacks* stacks, const int32_t* slots, int64_t count) {
  if (c.returns) {
    const ReturnsRead<BufferCall> of(c, *record_of<Queue>(c.returns).at);
    if (of.told.pending < 0) return load_returns(c, of, stacks, slots, count);
    load_items(of.plan, storage_of(c), slots, count, leaves_of(c));
    return tell_returns(Alone(), of, 0, count, slots, nullptr);
  }
  load_items(plan_of(c), storage_of(c), slots, count, leaves_of(c));
  if (stacks) load_stacks(*stacks, 0, count, [=](int64_t) { return slots; });
}

// Read what was drawn, as the call says.
inline void load_drawn(const BufferCall& c, const int32_t* slots, int64_t count) {
  if (!c.frames) return load_leaves_drawn(c, nullptr, slots, count);
  const Stacks of(c);
  int64_t leaves[MOST_LEAVES];  // those in rows, and behind them what is told beside the items
  const int64_t in_rows = plan_of(c)->leaves, beside = c.returns ? Returns{*record_of<Queue>(c.returns).at}.told_beside() : 0;
  for (int64_t k = 0; k < in_rows; ++k) leaves[k] = c.items[of.as_given()[k]];
  for (int64_t k = 0; k < beside; ++k) leaves[in_rows + k] = c.items[c.given - beside + k];
  BufferCall of_rows = c;
  of_rows.items = leaves, of_rows.given = in_rows + beside;
  load_leaves_drawn(of_rows, &of, slots, count);
}

FRB_END
