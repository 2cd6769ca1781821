// Draws without replacement in proportion to values, by the order of arrivals: `structures.exponential_race`.
#pragma once
#include <algorithm>

#include "arrivals.h"
#include "spans.h"

FRB_BEGIN

// Exponentially distributed numbers, of which each draw gives one: `exponential_race.exponentials`.
FRB_INLINE void exponentials(const int32_t* draws, float* numbers) {
  int32_t heads[FANOUT], more[FANOUT];
  uint64_t logs[FANOUT];
  for (int k = 0; k < FANOUT; ++k) {
    const int32_t draw = most(draws[k], 1), rest = draw < (1 << 24) ? 0 : draw & 127;
    const float head = float(draw - rest);
    heads[k] = bits_of(head), more[k] = int32_t(float(rest) * BY_LN2 / head);
  }
  make_logs(FANOUT, [&](int64_t k) { return heads[k]; }, [](Longs log) { return log; }, logs);
  for (int k = 0; k < FANOUT; ++k) {
    const uint64_t left = (uint64_t(POINT + BIAS) << POINT) - (logs[k] + uint64_t(more[k]));
    numbers[k] = float(int32_t(left >> POINT)) + float(int32_t(left & uint64_t(MASK))) * (1.0f / 2147483648.0f);
  }
}

// Which child of a node a draw chooses; FANOUT where there is nothing.
FRB_INLINE int chosen_child(const float* sums, int32_t draw) {
  int32_t weights[FANOUT];
  int64_t total = 0, reach = 0;
  as_integers(sums, weights);
  for (int k = 0; k < FANOUT; ++k) total += weights[k];
  const int32_t target = high_product(draw, int32_t(total));
  for (int k = 0; k < FANOUT; ++k)
    if ((reach += weights[k]) > target) return k;
  return FANOUT;
}

// The leaves that arrive first, in the order of their arrival, as many as there are rows of draws but the last; of each
// whether it ever does. Returns when the next one arrives.
inline float first_arrivals(const Plan& plan, const float* tree, Matrix<const int32_t> draws, int32_t* slots, uint8_t* live) {
  const int64_t rows = draws.rows, top = plan->levels - 1;
  // Times, which are ordered as their bits are, and whose they are. 32 bits tell that of any batch: of a level at most as many
  // nodes are kept as it may have, 16^7 above the leaves of the largest tree, of eight levels.
  Scratch<uint64_t> arrivals(rows * FANOUT);
  Scratch<int32_t> nodes(rows, true), before(rows);
  Scratch<float> times(rows, true);
  int64_t count = 1;
  for (int64_t depth = 0; depth <= top; ++depth) {
    const LevelRecord& level = plan.level(top - depth);
    // At each node's time one of its children arrives: so whatever arrives after the last of enough nodes is too late.
    const float latest = count == rows ? times[count - 1] : never();
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float* sums = tree + (int64_t(level.sums) + nodes[i]) * FANOUT;
      const int32_t* words = draws.at + i * draws.columns + depth * (1 + FANOUT);
      const int chosen = chosen_child(sums, words[0]);
      float numbers[FANOUT];
      exponentials(words + 1, numbers);
      if (!depth) times[0] = wait_of(chosen < FANOUT ? numbers[chosen] : 0.0f, add_up(sums));
      for (int k = 0; k < FANOUT; ++k) {
        const float arrival = times[i] + (k == chosen ? 0.0f : wait_of(numbers[k], sums[k]));
        if (arrival <= latest) arrivals[n++] = uint64_t(uint32_t(bits_of(arrival))) << 32 | uint64_t(i * FANOUT + k);
      }
    }
    count = least(n, rows);
    if (count < n) std::nth_element(arrivals.at, arrivals.at + count, arrivals.at + n);
    std::sort(arrivals.at, arrivals.at + count);
    std::copy_n(nodes.at, rows, before.at);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t whose = uint32_t(arrivals[i]);
      times[i] = float_of(int32_t(arrivals[i] >> 32));
      nodes[i] = least(before[whose / FANOUT] * FANOUT + int32_t(whose % FANOUT), level.nodes - 1);
    }
  }
  for (int64_t i = count; i < rows; ++i) nodes[i] = 0, times[i] = never();
  for (int64_t i = 0; i + 1 < rows; ++i) slots[i] = nodes[i], live[i] = times[i] < never();
  return times[rows - 1];
}

FRB_END
