// Whole draws of `samplers.Slices` and `PrioritizedSlices`; the items are read behind it, as they may be frames.
#pragma once
#include "buffer.h"
#include "episode_windows.h"

FRB_BEGIN

// Draw slices by random bits int32 [batch, words], or by a key if there are none; whether there are any. By priority the
// tree has that of each step where one begins; else it counts the windows.
FRB_ENTRY bool draw_slices(const float* tree, const int32_t* counters, const int32_t* in_episode, const int32_t* given,
                        int32_t* slots, int32_t* handles, uint8_t* mask, uint8_t* is_first, uint8_t* is_last,
                        uint8_t* truncated, float* weights, float* probabilities, Plan plan, Ring ring, int64_t key,
                        int64_t words, bool by_priority, float beta, int64_t batch) {
  Scratch<int32_t> made(given ? 0 : batch * words), starts(batch);
  Scratch<uint8_t> live(batch);
  if (!given) fill_random(key, made.at, batch * words);
  const int32_t* draws = given ? given : made.at;
  const float total = descend_levels(plan, tree, draws, words, starts.at, batch, [](int32_t) {});
  const Slices told{slots, handles, mask, is_first, is_last, truncated};
  const Lanes lanes{counters + ring->cursors, counters + ring->sizes};
  for (int64_t i = 0; i < batch; ++i) {
    probabilities[i] = by_priority ? tree[starts[i]] : 1.0f;
    live[i] = probabilities[i] > 0, weights[i] = 1.0f;
  }
  const float* row = tree + int64_t(plan.level(plan->levels - 1).smallest) * FANOUT;
  if (by_priority) weigh(probabilities, float_of(smallest(row)), beta, weights, batch);
  cut(ring, lanes, in_episode, counters + ring->next, starts.at, draws + words - 2, words, live.at, told, batch);
  const float scale = 1.0f / (by_priority && total > 0 ? total : most(total, 1.0f));
  bool found = false;
  for (int64_t i = 0; i < batch; ++i) {
    const bool real = mask[i * ring->window_length] != 0;
    probabilities[i] = real ? most(probabilities[i] * scale, LEAST_CHANCE) : 0.0f;
    weights[i] = real ? weights[i] : 0.0f;
    found = found || real;
  }
  return found;
}

FRB_END
