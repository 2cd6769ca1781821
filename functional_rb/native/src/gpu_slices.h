// Draws of slices for GPUs, and what is read of an epoch's draw: as `slices.h` and `episode_windows.h`.
#pragma once
#include "gpu_epochs.h"

FRB_BEGIN

namespace gpu {

// A window that was drawn: the slot of its first step (negative for a row that is not to be read), the one behind its lane,
// how many steps are real, the handle of the first, and that of the lane's first slot where the ring begins anew.
struct Cut {
  int32_t first, end, real, handle, again, begins, ends;
};
static_assert(sizeof(Cut) * MOST_DRAWS <= sizeof(int32_t) * SHARED, "which a block's threads share");

FRB_INLINE Cut cut(const Call& call, const Ring& ring, int64_t start, bool live, const int32_t* words) {
  const Lanes lanes{call.counters + ring->cursors, call.counters + ring->sizes};
  const int64_t length = ring->length, slot = bounded(start, ring->capacity), lane = lane_of(ring, slot);
  const Lane of(ring, lanes, call.in_episode, lane);
  const Window window = begin_window(of, back_of(ring, of.head, slot - lane * length), words, live);
  const int64_t back = least(most<int64_t>(window.back, 1), length), cursor = lanes.cursors[lane];
  const int64_t real = steps_from(of, back, window.start, window.steps);
  const int64_t following = real < back ? of.step(back - real) : call.counters[ring->next + lane];
  int64_t turn = short_div(cursor, length);
  if (back > short_mod(cursor, length)) turn = (turn ? turn : ring->turns) - 1;  // before the head came round
  const int64_t first = lane * length + place_of(ring, of.head, back);
  const int64_t next_turn = turn + 1 < ring->turns ? turn + 1 : 0;
  return {int32_t(first), int32_t((lane + 1) * length), int32_t(real), int32_t(turn * ring->capacity + first),
          int32_t(next_turn * ring->capacity + lane * length), window.start == 0, following == 0};
}

// Tell the steps of windows, of which `name` takes the handles, and read them.
template <class Block, class Name>
FRB_INLINE void read_windows(const Block& block, const Call& call, const Plan& plan, const Ring& ring, const Cut* cuts,
                             int64_t begin, int64_t here, const Name& name) {
  const int64_t width = ring->window_length, row = begin * width;
  auto at = [&](const Cut& of, int64_t k) { return of.first + int32_t(least<int64_t>(k, most(of.real - 1, 0))); };
  auto slot = [&](int64_t i) {
    const int64_t of = short_div(i, width);
    const int32_t found = at(cuts[of], i - of * width);
    return cuts[of].first < 0 ? -1 : found < cuts[of].end ? found : found - ring->length;
  };
  if (block.y() == 0)
    block.each(here * width, [&](int64_t i) {
      const Cut& of = cuts[short_div(i, width)];
      if (of.first < 0) return;
      const int64_t k = short_mod(i, width);
      const int32_t found = at(of, k);
      const bool real = k < of.real, last = k + 1 == of.real;
      if (call.slots) call.slots[row + i] = int32_t(slot(i));
      name(row + i, !real ? -1 : found < of.end ? of.handle + int32_t(k) : of.again + found - of.end);
      call.drawn[row + i] = real;
      call.is_first[row + i] = real && k == 0 && of.begins;
      call.is_last[row + i] = last && of.ends, call.truncated[row + i] = last && !of.ends;
    });
  load_items(block, call, plan, row, here * width, slot);
}

// The windows of a batch that is drawn from one buffer.
template <class Block>
FRB_INLINE void read_windows(const Block& block, const Call& call, const Plan& plan, const Ring& ring, const Cut* cuts,
                             int64_t begin, int64_t here) {
  read_windows(block, call, plan, ring, cuts, begin, here, [&](int64_t at, int32_t handle) { call.handles[at] = handle; });
}

// Draw a window by the words of the i-th; returns what the tree has of where it begins, or 1 where the tree counts windows.
FRB_INLINE float draw_window(const Call& call, const Plan& plan, const Ring& ring, const Words& words, int64_t i, Cut& found) {
  const int64_t behind = (i + 1) * call.words - 2;
  const int32_t two[2] = {words(behind), words(behind + 1)}, start = descend(call, plan, words, i);
  const float value = call.kept ? call.tree[start] : 1.0f;
  found = cut(call, ring, start, value > 0, two);
  return value;
}
// The chance of a window with such a value.
FRB_INLINE float chance_of_window(const Call& call, const Plan& plan, float value) {
  const float total = Children(row(call.tree, top_of(plan).sums)).sum();
  return most(value * (1.0f / (call.kept && total > 0 ? total : most(total, 1.0f))), LEAST_CHANCE);
}

// Draw slices by random words: each column of blocks `tile` of them. By priority the tree has that of each step where
// one begins; else it counts the windows.
template <class Block> FRB_INLINE void draw_slices(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Ring ring = ring_of(call);
  const Words words(call);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, asked(call) - begin), 0);
  Cut* cuts = reinterpret_cast<Cut*>(block.shared());
  hand_on_counters(block, call);
  block.each(here, [&](int64_t k) {
    const int64_t i = begin + k;
    const float value = draw_window(call, plan, ring, words, i, cuts[k]);
    if (block.y() != 0) return;
    const bool real = cuts[k].real > 0;
    const float smallest = Children(row(call.tree, top_of(plan).smallest)).smallest();
    call.probabilities[i] = real ? chance_of_window(call, plan, value) : 0.0f;
    call.weights[i] = !real ? 0.0f : call.kept ? weight_of(value, smallest, beta_of(call)) : 1.0f;
  });
  read_windows(block, call, plan, ring, cuts, begin, here);
}

// Tell and read what `draw_epoch` has found: each column of blocks `tile` items or slices.
template <class Block> FRB_INLINE void read_epoch(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Ring ring = ring_of(call);
  const Words words(call);
  const Epochs of(call, plan, epoch_of(call));
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  const int32_t* found = call.scratch + begin;
  const Lanes lanes{call.counters + ring->cursors, call.counters + ring->sizes};
  if (ring->window_length) {
    Cut* cuts = reinterpret_cast<Cut*>(block.shared());
    block.each(here, [&](int64_t k) {
      const int64_t i = begin + k;
      const int32_t two[2] = {words(i * call.words + 2), words(i * call.words + 3)};
      cuts[k] = cut(call, ring, found[k], i < of.taken, two);
      if (block.y() == 0 && !cuts[k].real) call.weights[i] = call.probabilities[i] = 0;
    });
    read_windows(block, call, plan, ring, cuts, begin, here);
    return;
  }
  if (block.y() == 0)
    block.each(here, [&](int64_t k) {
      const bool live = begin + k < of.taken;
      if (call.slots) call.slots[begin + k] = found[k];
      call.drawn[begin + k] = live, call.handles[begin + k] = live ? handle_in_ring(ring, lanes, found[k]) : -1;
    });
  load_items(block, call, plan, begin, here, [&](int64_t k) { return found[k]; });
}

}  // namespace gpu

FRB_END
