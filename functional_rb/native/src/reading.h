// What is read of items that were drawn.
#pragma once
#include "returns_read.h"
#include "rows.h"

FRB_BEGIN

// Who does the work of a block of a GPU alone.
struct Alone {
  template <class F> FRB_INLINE void each(int64_t count, const F& f) const {
    for (int64_t i = 0; i < count; ++i) f(i);
  }
};

// Read items with the returns that are made of them and of the steps behind them, whose bytes are asked for before too. No memory
// is taken for that: of an epoch the draw has been written by now.
inline void load_returns(const BufferCall& c, const ReturnsRead<BufferCall>& of, const int32_t* slots, int64_t count) {
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
  }
}

// Read what was drawn, as the call says.
inline void load_drawn(const BufferCall& c, const int32_t* slots, int64_t count) {
  if (!c.returns) return load_items(plan_of(c), storage_of(c), slots, count, leaves_of(c));
  const ReturnsRead<BufferCall> of(c, *record_of<Queue>(c.returns).at);
  if (of.told.pending < 0) return load_returns(c, of, slots, count);
  load_items(of.plan, storage_of(c), slots, count, leaves_of(c));
  tell_returns(Alone(), of, 0, count, slots, nullptr);
}

FRB_END
