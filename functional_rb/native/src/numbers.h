// Powers in fixed point and random bits, bit for bit those of `functional_rb.ops`.
#pragma once
#include "records.h"
#include "tables.h"

FRB_BEGIN

// `log2(x) + 128` in units of 2^-31.
FRB_INLINE int64_t log2_biased(int32_t bits) {
  const int64_t mantissa = bits & ((1 << 23) - 1), entry = mantissa >> 15;
  const int64_t r = (((mantissa & ((1 << 15) - 1)) << 8) * int64_t(INVERSE[entry])) >> 31;
  const int64_t slope = C1 - ((r * (C2 - ((r * C3) >> 31))) >> 31);
  return ((int64_t(bits >> 23) - 127 + BIAS) << 31) + int64_t(LOG[entry]) + 2 * ((r * slope) >> 31);
}

// The product with `whole + fraction / 2^31`, rounded down.
FRB_INLINE int64_t times(int64_t x, int64_t whole, int64_t fraction) {
  return x * whole + (x >> 31) * fraction + (((x & MASK) * fraction) >> 31);
}

// `2 ** y` for y in units of 2^-31.
FRB_INLINE float exp2_of(int64_t y) {
  const int64_t whole = least<int64_t>(most<int64_t>(y >> 31, -126), 126), fraction = y & MASK;
  const int64_t x = fraction & ((1 << 23) - 1);
  const int64_t slope = E1 + ((x * (E2 + ((x * E3) >> 31))) >> 31);
  const int64_t base = EXP[fraction >> 23];
  const int64_t mantissa = base + ((base * ((x * slope) >> 31)) >> 31);
  return float_of(int32_t(((whole + 126) << 23) + (mantissa >> 7) + ((mantissa >> 6) & 1)));
}

// `priority ** alpha` as the tree holds it, -1 for a bad priority. It comes as bits: comparing it with zero as a float
// would take a subnormal for zero on threads that flush them, as XLA's do.
FRB_INLINE float stored_value(const Plan& plan, int32_t bits) {
  if ((bits & 0x7FFFFFFF) == 0) return 0.0f;
  if (bits < 0 || bits >= 0x7F800000) return -1.0f;
  bits = most(bits, 0x00800000);
  float value;
  if (plan->alpha_is_one) {
    value = float_of(bits);
  } else {
    const int64_t y = times(log2_biased(bits), plan->alpha_whole, plan->alpha_fraction);
    value = exp2_of(y - int64_t(plan->bias_whole) * (int64_t(1) << 31) - plan->bias_fraction);
  }
  return least(most(value, SMALLEST), LARGEST);
}

// A beta in parts, once for a batch; it is no number where it is negative or NaN, and then no weight is.
struct Exponent {
  int64_t whole, fraction;
  bool good;
};
FRB_INLINE Exponent exponent_of(float beta) {
  if (!(beta >= 0)) return {0, 0, false};
  beta = least(beta, 1048576.0f);
  const int64_t whole = int64_t(beta);
  return {whole, int64_t((beta - float(whole)) * 2147483648.0f), true};
}

// `(value / smallest) ** -beta`, for the biased logarithm of the smallest as base.
FRB_INLINE float importance_weight(float value, int64_t base, const Exponent& beta) {
  if (!beta.good) return float_of(0x7FC00000);
  return exp2_of(-times(log2_biased(bits_of(value)) - base, beta.whole, beta.fraction));
}

FRB_INLINE uint64_t mix(uint64_t x) {
  x = (x ^ (x >> SHIFT_1)) * FACTOR_1;
  x = (x ^ (x >> SHIFT_2)) * FACTOR_2;
  return x ^ (x >> SHIFT_3);
}

// int32 [count] uniform in [0, 2^31), of a key: `ops.random_bits.bits`.
inline void fill_random(int64_t key, int32_t* words, int64_t count) {
  const uint64_t base = mix(uint64_t(key) + DRAW);
  for (int64_t k = 0; k < count; ++k) words[k] = int32_t(mix(base + uint64_t(k + 1) * GAMMA) >> 33);
}

template <int A, int B, int C, int D> FRB_INLINE void rounds(uint32_t& x, uint32_t& y) {
  auto turned = [](uint32_t v, int by) { return (v << by) | (v >> (32 - by)); };
  x += y; y = turned(y, A) ^ x;
  x += y; y = turned(y, B) ^ x;
  x += y; y = turned(y, C) ^ x;
  x += y; y = turned(y, D) ^ x;
}

// int32 [count] of what `jax.random.bits(key, (count,)) >> 1` gives for a key of two words: Threefry-2x32 of 20 rounds
// (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), as JAX has it where it is partitionable.
inline void fill_threefry(uint32_t k0, uint32_t k1, int32_t* words, int64_t count) {
  const uint32_t k2 = k0 ^ k1 ^ 0x1BD11BDAu;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x = k0, y = uint32_t(i) + k1;
    rounds<13, 15, 26, 6>(x, y); x += k1; y += k2 + 1;
    rounds<17, 29, 16, 24>(x, y); x += k2; y += k0 + 2;
    rounds<13, 15, 26, 6>(x, y); x += k0; y += k1 + 3;
    rounds<17, 29, 16, 24>(x, y); x += k1; y += k2 + 4;
    rounds<13, 15, 26, 6>(x, y); x += k2; y += k0 + 5;
    words[i] = int32_t((x ^ y) >> 1);
  }
}

FRB_END
