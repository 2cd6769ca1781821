// Powers in fixed point and random bits, bit for bit those of `functional_rb.ops`: of one number, or of a vector's.
//
// Numbers in fixed point are in units of 2^-31 here, and never negative: so vectors of all processors do for them. L is
// uint64_t, or a vector of such.
#pragma once
#include "tables.h"
#if !defined(__CUDACC__)
#include "vectors.h"
#endif

FRB_BEGIN

constexpr int POINT = 31;
// Added to exponents of two, so that none of a power is negative.
constexpr uint64_t RAISED = 1ull << 29;
constexpr int32_t BAD = -1;

// What vectors have by instructions of theirs, of one number.
FRB_INLINE uint64_t product(uint64_t a, uint64_t b) { return a * b; }
FRB_INLINE int32_t low_half(uint64_t x) { return int32_t(uint32_t(x)); }
FRB_INLINE uint64_t from_half(int32_t x) { return uint32_t(x); }

// `a * b / 2^31`, rounded down, for numbers below 2^32.
template <class L> FRB_INLINE L mul_high(L a, L b) { return product(a, b) >> POINT; }

// The product of two numbers in fixed point, rounded down.
template <class L> FRB_INLINE L times(L x, L y) {
  const L x_whole = x >> POINT, y_whole = y >> POINT, x_rest = x & uint64_t(MASK), y_rest = y & uint64_t(MASK);
  return (product(x_whole, y_whole) << POINT) + product(x_whole, y_rest) + product(x_rest, y_whole) +
         mul_high(x_rest, y_rest);
}

// Where the tables have what is looked up of a float.
FRB_INLINE uint32_t entry_of(uint32_t bits) { return (bits >> 15) & 0xFF; }

// `log2(x) + 128` of positive normal floats by their bits, and what the tables have of them.
template <class L> FRB_INLINE L log2_biased(L bits, L inverse, L log) {
  const L r = mul_high<L>((bits & ((1ull << 15) - 1)) << 8, inverse), none{};
  const L slope = none + uint64_t(C1) - mul_high<L>(r, none + uint64_t(C2) - mul_high<L>(r, none + uint64_t(C3)));
  return (((bits >> 23) + uint64_t(BIAS - 127)) << POINT) + log + 2 * mul_high<L>(r, slope);
}
FRB_INLINE uint64_t log2_biased(int32_t number) {
  const uint32_t bits = uint32_t(number), entry = entry_of(bits);
  return log2_biased<uint64_t>(bits, uint32_t(INVERSE[entry]), uint32_t(LOG[entry]));
}

// The bits of `2 ** y`, for y + RAISED and what the table has of it.
template <class L> FRB_INLINE L exp2_of(L raised, L base) {
  const L x = raised & ((1ull << 23) - 1), none{};
  const L slope = none + uint64_t(E1) + mul_high<L>(x, none + uint64_t(E2) + mul_high<L>(x, none + uint64_t(E3)));
  const L mantissa = base + mul_high<L>(base, mul_high<L>(x, slope));
  const auto whole = low_half((raised >> POINT) - RAISED), low = decltype(whole){} - 126, high = decltype(whole){} + 126;
  const auto from_below = whole > low ? whole : low, held = from_below < high ? from_below : high;
  return (from_half(held + 126) << 23) + (mantissa >> 7) + ((mantissa >> 6) & 1);
}
FRB_INLINE int32_t exp2_of(uint64_t raised) {
  return int32_t(exp2_of<uint64_t>(raised, uint32_t(EXP[raised >> 23 & 0xFF])));
}

FRB_INLINE uint64_t mix(uint64_t x) {
  x = (x ^ (x >> SHIFT_1)) * FACTOR_1;
  x = (x ^ (x >> SHIFT_2)) * FACTOR_2;
  return x ^ (x >> SHIFT_3);
}

template <int A, int B, int C, int D> FRB_INLINE void rounds(uint32_t& x, uint32_t& y) {
  x += y; y = (y << A | y >> (32 - A)) ^ x;
  x += y; y = (y << B | y >> (32 - B)) ^ x;
  x += y; y = (y << C | y >> (32 - C)) ^ x;
  x += y; y = (y << D | y >> (32 - D)) ^ x;
}

// Number k of what `jax.random.bits(key, ...) >> 1` gives for a key of two words: Threefry-2x32 of 20 rounds (Salmon et al.,
// Parallel Random Numbers: As Easy as 1, 2, 3, 2011), as JAX has it where it is partitionable.
FRB_INLINE int32_t threefry_word(uint32_t k0, uint32_t k1, int64_t k) {
  const uint32_t k2 = k0 ^ k1 ^ 0x1BD11BDAu;
  uint32_t x = k0, y = uint32_t(k) + k1;
  rounds<13, 15, 26, 6>(x, y); x += k1; y += k2 + 1;
  rounds<17, 29, 16, 24>(x, y); x += k2; y += k0 + 2;
  rounds<13, 15, 26, 6>(x, y); x += k0; y += k1 + 3;
  rounds<17, 29, 16, 24>(x, y); x += k1; y += k2 + 4;
  rounds<13, 15, 26, 6>(x, y); x += k2; y += k0 + 5;
  return int32_t((x ^ y) >> 1);
}

FRB_END
