// When leaves arrive in a race, and the chance of one to be among the first, for CPUs and GPUs: `structures.exponential_race`.
#pragma once
#include "powers.h"

FRB_BEGIN

// Of time; and when what has no rate arrives. A child of each node is chosen by one word, and each waits by one more.
constexpr float TIME_UNIT = 262144.0f;
FRB_INLINE float never() { return float_of(0x7F800000); }
// From here on a chance is 1, and up to there a series gives it.
constexpr float CERTAIN = 64.0f, SMALL = 0.25f;
constexpr float BY_LN2 = 3098164009.0f;  // 2^31 / ln 2

FRB_INLINE float wait_of(float number, float rate) {
  return rate > 0 ? most(number * TIME_UNIT / rate, LEAST_CHANCE) : never();
}

// The chance of a leaf to be among the first, given when the next one arrives: `exponential_race.inclusion`.
FRB_INLINE float inclusion(float value, float threshold) {
  if (!(value > 0)) return 0.0f;
  const float x = least(value * threshold * (1.0f / TIME_UNIT), CERTAIN);
  if (x < SMALL) {
    const int64_t fixed = int64_t(x * 2147483648.0f), series[] = {E1, E2, E3, E4, E5, E6};
    int64_t slope = series[5];
    for (int k = 4; k >= 0; --k) slope = series[k] - (fixed * slope >> POINT);
    return most(float(int32_t(slope)) * (1.0f / 2147483648.0f) * x, LEAST_CHANCE);
  }
  const int64_t whole = int64_t(x);
  const uint64_t rest = uint64_t((x - float(whole)) * 2147483648.0f), raised = (RAISED << POINT) - ((uint64_t(whole) << POINT) + rest);
  return 1.0f - float_of(exp2_of(raised));
}

FRB_END
