// Whole draws of `samplers.Slices`; the items are read behind it, as they may be large, or frames.
#pragma once
#include "episode_windows.h"
#include "sum_tree.h"

FRB_BEGIN

// Draw slices by random bits int32 [batch, words], or by a key if there are none; whether there are any.
FRB_ENTRY bool draw_slices(const float* tree, const int32_t* counters, const int32_t* in_episode, const int32_t* given,
                        int32_t* slots, int32_t* handles, uint8_t* mask, uint8_t* is_first, uint8_t* is_last,
                        uint8_t* truncated, float* weights, float* probabilities, Plan plan, Ring ring, int64_t key,
                        int64_t words, int64_t batch) {
  Scratch<int32_t> made(given ? 0 : batch * words), starts(batch);
  if (!given) fill_random(key, made.at, batch * words);
  const int32_t* draws = given ? given : made.at;
  const float total = descend_levels(plan, tree, draws, words, starts.at, batch, [](int32_t) {});
  const Slices told{slots, handles, mask, is_first, is_last, truncated};
  const Lanes lanes{counters + ring->cursors, counters + ring->sizes};
  cut(ring, lanes, in_episode, counters + ring->next, starts.at, draws + words - 2, words, nullptr, told, batch);
  const float chance = 1.0f / most(total, 1.0f);
  bool found = false;
  for (int64_t i = 0; i < batch; ++i) {
    const bool live = mask[i * ring->window_length] != 0;
    weights[i] = live ? 1.0f : 0.0f;
    probabilities[i] = live ? chance : 0.0f;
    found = found || live;
  }
  return found;
}

FRB_END
