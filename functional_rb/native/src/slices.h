// Whole draws of `samplers.Slices` and `PrioritizedSlices`; the items are read too, unless they may be frames.
#pragma once
#include "buffer.h"
#include "reading.h"

FRB_BEGIN

// What a call tells of slices.
inline Slices slices_of(const BufferCall& c) {
  return {c.slots, c.handles, c.drawn, c.is_first, c.is_last, c.truncated};
}

// Draw slices. By priority the tree has that of each step where one begins; else it counts the windows.
inline Outcome draw_slices(const BufferCall& c) {
  const Plan plan = plan_of(c);
  const Ring ring = ring_of(c);
  const Bits bits(c);
  const bool by_priority = c.kept != nullptr;
  Scratch<int32_t> starts(c.batch);
  Scratch<uint8_t> live(c.batch);
  const float total = total_of(plan, c.tree);
  descend(plan, c.tree, bits.all, starts.at);
  for (int64_t i = 0; i < c.batch; ++i) {
    c.probabilities[i] = by_priority ? c.tree[starts[i]] : 1.0f;
    live[i] = c.probabilities[i] > 0, c.weights[i] = 1.0f;
  }
  const float* row = c.tree + int64_t(plan.level(plan->levels - 1).smallest) * FANOUT;
  if (by_priority) weigh(c.probabilities, float_of(smallest(row)), c.beta, c.weights, c.batch);
  const Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
  const Matrix<const int32_t> last{bits.all.at + c.words - 2, c.batch, c.words};  // two words of each
  cut(ring, lanes, c.in_episode, c.counters + ring->next, starts, last, live.at, slices_of(c));
  const float scale = 1.0f / (by_priority && total > 0 ? total : most(total, 1.0f));
  bool any_real = false;
  for (int64_t i = 0; i < c.batch; ++i) {
    const bool real = c.drawn[i * ring->window_length] != 0;
    c.probabilities[i] = real ? most(c.probabilities[i] * scale, LEAST_CHANCE) : 0.0f;
    c.weights[i] = real ? c.weights[i] : 0.0f;
    any_real = any_real || real;
  }
  // Also where nothing was drawn: these may be some of the slices of a batch, and the rows of masked ones are written too.
  if (c.given) load_drawn(c, c.slots, c.batch * ring->window_length);
  return any_real ? DONE : NONE_DRAWN;
}

FRB_END
