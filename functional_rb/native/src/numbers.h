// Powers in fixed point and random bits, bit for bit those of `functional_rb.ops`.
#pragma once
#include "records.h"
#include "tables.h"

FRB_BEGIN

// Numbers in fixed point are two words each, a whole part and a fraction in units of 2^-31, as those of the reference:
// so compilers make vectors of them, where loops go over arrays.
struct Fixed {
  uint32_t whole, fraction;
};

// `a * b / 2^31`, rounded down, for numbers below 2^31.
FRB_INLINE uint32_t mul_high(uint32_t a, uint32_t b) { return uint32_t((uint64_t(2 * a) * b) >> 32); }

// A fraction, of which the bit above it goes to the whole part.
FRB_INLINE Fixed plus(Fixed x, uint32_t whole, uint32_t fraction) {
  const uint32_t sum = x.fraction + fraction;
  return {x.whole + whole + (sum >> 31), sum & uint32_t(MASK)};
}
FRB_INLINE Fixed minus(Fixed x, Fixed y) {
  const uint32_t rest = x.fraction - y.fraction;
  return {x.whole - y.whole - (rest >> 31), rest & uint32_t(MASK)};
}

// `log2(x) + 128`.
FRB_INLINE Fixed log2_biased(int32_t bits) {
  const uint32_t mantissa = uint32_t(bits) & ((1u << 23) - 1), entry = mantissa >> 15;
  const uint32_t r = mul_high((mantissa & ((1u << 15) - 1)) << 8, uint32_t(INVERSE[entry]));
  const uint32_t slope = uint32_t(C1) - mul_high(r, uint32_t(C2) - mul_high(r, uint32_t(C3)));
  return {(uint32_t(bits) >> 23) + uint32_t(BIAS - 127), uint32_t(LOG[entry]) + 2 * mul_high(r, slope)};
}

// The product, rounded down, of numbers whose whole parts are below 2^31.
FRB_INLINE Fixed times(Fixed x, Fixed y) {
  const uint32_t mask = uint32_t(MASK);
  Fixed product{x.whole * y.whole + mul_high(x.whole, y.fraction), (x.whole * y.fraction) & mask};
  product = plus(product, mul_high(x.fraction, y.whole), (x.fraction * y.whole) & mask);
  return plus(product, 0, mul_high(x.fraction, y.fraction));
}

// The bits of `2 ** y`; the whole part may be negative.
FRB_INLINE int32_t exp2_of(Fixed y) {
  const int32_t whole = least(most(int32_t(y.whole), -126), 126);
  const uint32_t x = y.fraction & ((1u << 23) - 1), base = uint32_t(EXP[y.fraction >> 23]);
  const uint32_t slope = uint32_t(E1) + mul_high(x, uint32_t(E2) + mul_high(x, uint32_t(E3)));
  const uint32_t mantissa = base + mul_high(base, mul_high(x, slope));
  return int32_t((uint32_t(whole + 126) << 23) + (mantissa >> 7) + ((mantissa >> 6) & 1));
}

constexpr int32_t BAD = -1;

// The bits of priorities to the power alpha as the tree holds them, BAD for bad ones. They come as bits: comparing them
// with zero as floats would take a subnormal for zero on threads that flush them, as XLA's do.
inline void stored_bits(const Plan& plan, const int32_t* __restrict priorities, int32_t* __restrict values, int64_t count) {
  const Fixed alpha{uint32_t(plan->alpha_whole), uint32_t(plan->alpha_fraction)};
  const Fixed bias{uint32_t(plan->bias_whole), uint32_t(plan->bias_fraction)};
  const int32_t smallest = bits_of(SMALLEST), largest = bits_of(LARGEST);
  if (plan->alpha_is_one)
    for (int64_t i = 0; i < count; ++i) values[i] = most(priorities[i], 0x00800000);
  else
    for (int64_t i = 0; i < count; ++i)
      values[i] = exp2_of(minus(times(log2_biased(most(priorities[i], 0x00800000)), alpha), bias));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = priorities[i], value = least(most(values[i], smallest), largest);
    values[i] = (bits & 0x7FFFFFFF) == 0 ? 0 : bits < 0 || bits >= 0x7F800000 ? BAD : value;
  }
}

// `(value / smallest) ** -beta` of values above zero; there are no weights where beta is negative or NaN.
inline void weigh(const float* __restrict values, float smallest, float beta, float* __restrict weights, int64_t count) {
  if (!(beta >= 0)) {
    for (int64_t i = 0; i < count; ++i) weights[i] = float_of(0x7FC00000);
    return;
  }
  beta = least(beta, 1048576.0f);
  const uint32_t whole = uint32_t(beta);
  const Fixed exponent{whole, uint32_t((beta - float(whole)) * 2147483648.0f)};
  const int32_t floor = bits_of(SMALLEST);
  const Fixed base = log2_biased(most(bits_of(smallest), floor));
  for (int64_t i = 0; i < count; ++i) {
    const Fixed distance = minus(log2_biased(most(bits_of(values[i]), floor)), base);
    weights[i] = float_of(exp2_of(minus({0, 0}, times(distance, exponent))));
  }
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
