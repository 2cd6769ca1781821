// Whole draws of `samplers.Slices` and `PrioritizedSlices`; the items are read too, unless they may be frames.
#pragma once
#include <algorithm>

#include "buffer.h"
#include "positions.h"
#include "reading.h"

FRB_BEGIN

// What a call tells of slices.
inline Slices slices_of(const BufferCall& c) {
  return {c.slots, c.handles, c.drawn, c.is_first, c.is_last, c.truncated};
}

// The windows of a lane that come once while they are new, with how many of the lane were complete with each step.
struct FreshWindows {
  const Lane of;
  const int32_t* numbers;
  const int64_t completed, given;

  FreshWindows(const BufferCall& c, const Ring& ring, const Lanes& lanes, int64_t lane)
      : of(ring, lanes, c.in_episode, lane), numbers(c.times + lane * ring->length), completed(c.counters[ring->completed + lane]),
        given(c.counters[ring->completed + ring->lanes + lane]) {}

  // How many are complete only after the step so far back: the more, the further that is.
  int64_t newer(int64_t back) const { return (completed - numbers[place_of(of.ring, of.head, back)]) & (MOST_WINDOWS - 1); }
  // How many are whole and were not given: `fresh_windows.waiting`.
  int64_t waiting() const {
    const int64_t oldest = of.size - (of.ring->window_length - 1);  // with which the oldest whole one may be complete
    if (oldest < 1) return 0;
    return least(newer(oldest) + completes(of.ring, of.step(oldest)), (completed - given) & (MOST_WINDOWS - 1));
  }
  // How far back the last step of the oldest lies, if so many are left.
  int64_t last_step(int64_t left) const {
    int64_t back = 1;
    for (int64_t end = of.size; back < end;) {
      const int64_t middle = (back + end + 1) / 2;
      if (newer(middle) < left) back = middle;
      else end = middle - 1;
    }
    return back;
  }
};

// What a lane gives next: how far back the last step lies. It comes after what is older, or as old and of a lane before.
struct Following {
  int64_t back, lane, left;
  bool operator<(const Following& other) const { return back != other.back ? back < other.back : lane > other.lane; }
};

// Give the oldest windows of all lanes, as many as count: their first steps. Returns how many: `fresh_windows.take_oldest`.
inline int64_t take_oldest(const BufferCall& c, const Ring& ring, const Lanes& lanes, int32_t* starts) {
  Scratch<Following> following(ring->lanes);
  int32_t* const given = c.new_counters + ring->completed + ring->lanes;
  int64_t count = 0, taken = 0;
  for (int64_t lane = 0; lane < ring->lanes; ++lane) {
    const FreshWindows of(c, ring, lanes, lane);
    const int64_t left = of.waiting();
    given[lane] = int32_t((of.completed - left) & (MOST_WINDOWS - 1));
    if (left) following[count++] = {of.last_step(left), lane, left};
  }
  std::make_heap(following.at, following.at + count);
  for (const int64_t wanted = counting(c); taken < wanted && count; ++taken) {
    std::pop_heap(following.at, following.at + count);
    Following& oldest = following[count - 1];
    const FreshWindows of(c, ring, lanes, oldest.lane);
    starts[taken] = int32_t(oldest.lane * ring->length + place_of(ring, of.of.head, oldest.back + ring->window_length - 1));
    given[oldest.lane] = int32_t((given[oldest.lane] + 1) & (MOST_WINDOWS - 1));
    if (!--oldest.left) {
      --count;
      continue;
    }
    oldest.back = of.last_step(oldest.left);
    std::push_heap(following.at, following.at + count);
  }
  return taken;
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
  const int64_t fresh = plan->draws == FRESH_SLICES ? take_oldest(c, ring, lanes, starts.at) : 0;
  if (fresh) {  // in place of what was drawn: whole windows, one behind the other
    RingRecord pieces = *ring.at;
    pieces.period = pieces.window_length, pieces.strict = 1, pieces.left = pieces.right = pieces.by_trajectory = 0;
    cut(Ring{&pieces}, lanes, c.in_episode, c.counters + ring->next, {starts.at, fresh}, last, nullptr, slices_of(c));
  }
  const float scale = 1.0f / (by_priority && total > 0 ? total : most(total, 1.0f));
  bool any_real = false;
  for (int64_t i = 0; i < c.batch; ++i) {
    const bool real = c.drawn[i * ring->window_length] != 0;
    c.probabilities[i] = !real ? 0.0f : i < fresh ? 1.0f : most(c.probabilities[i] * scale, LEAST_CHANCE);
    c.weights[i] = real ? c.weights[i] : 0.0f;
    any_real = any_real || real;
  }
  // Also where nothing was drawn: these may be some of the slices of a batch, and the rows of masked ones are written too.
  if (c.given) load_drawn(c, c.slots, c.batch * ring->window_length);
  return any_real ? DONE : NONE_DRAWN;
}

FRB_END
