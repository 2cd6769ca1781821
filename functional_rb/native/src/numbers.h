// Powers in fixed point and random bits, bit for bit those of `functional_rb.ops`.
#pragma once
#include "records.h"
#include "tables.h"
#include "vectors.h"

FRB_BEGIN

// Numbers in fixed point are in units of 2^-31 here, and never negative: so vectors of all processors do for them.
constexpr int POINT = 31;
// Added to exponents of two, so that none of a power is negative.
constexpr uint64_t RAISED = 1ull << 29;

FRB_INLINE Longs longs_of(uint64_t x) { return Longs{} + x; }

// `a * b / 2^31`, rounded down, for numbers below 2^32.
FRB_INLINE Longs mul_high(Longs a, Longs b) { return product(a, b) >> POINT; }

// The product of two numbers in fixed point, rounded down.
FRB_INLINE Longs times(Longs x, Longs y) {
  const Longs x_whole = x >> POINT, y_whole = y >> POINT, x_rest = x & uint64_t(MASK), y_rest = y & uint64_t(MASK);
  return (product(x_whole, y_whole) << POINT) + product(x_whole, y_rest) + product(x_rest, y_whole) +
         mul_high(x_rest, y_rest);
}

// Where the tables have what is looked up of a float.
FRB_INLINE uint32_t entry_of(uint32_t bits) { return (bits >> 15) & 0xFF; }

// `log2(x) + 128` of positive normal floats by their bits, and what the tables have of them.
FRB_INLINE Longs log2_biased(Longs bits, Longs inverse, Longs log) {
  const Longs r = mul_high((bits & ((1ull << 15) - 1)) << 8, inverse);
  const Longs slope = longs_of(C1) - mul_high(r, longs_of(C2) - mul_high(r, longs_of(C3)));
  return (((bits >> 23) + uint64_t(BIAS - 127)) << POINT) + log + 2 * mul_high(r, slope);
}
FRB_INLINE uint64_t log2_biased(int32_t bits) {
  const uint32_t entry = entry_of(uint32_t(bits));
  return log2_biased(longs_of(uint32_t(bits)), longs_of(uint32_t(INVERSE[entry])), longs_of(uint32_t(LOG[entry])))[0];
}

// The bits of `2 ** y`, for y + RAISED and what the table has of it.
FRB_INLINE Longs exp2_of(Longs raised, Longs base) {
  const Longs x = raised & ((1ull << 23) - 1);
  const Longs slope = longs_of(E1) + mul_high(x, longs_of(E2) + mul_high(x, longs_of(E3)));
  const Longs mantissa = base + mul_high(base, mul_high(x, slope));
  const Ints whole = Ints((raised >> POINT) - RAISED), low = Ints{} - 126, high = Ints{} + 126;
  const Ints from_below = whole > low ? whole : low, held = from_below < high ? from_below : high;
  return ((Longs(held + 126) & 0xFFFFFFFFull) << 23) + (mantissa >> 7) + ((mantissa >> 6) & 1);
}

// Make powers of positive normal floats, which are their bits; `exponent` makes y + RAISED of log2(x) + 128.
//
// What is looked up in tables is looked up one by one, for some together, as vectors would wait for each of their numbers.
template <class F> FRB_INLINE void make_powers(int32_t* numbers, int64_t count, const F& exponent) {
  constexpr int64_t BLOCK = 64, STEP = SIDE / 2;
  uint32_t bits[BLOCK], first[BLOCK], second[BLOCK];
  alignas(64) uint64_t raised[BLOCK];
  for (int64_t start = 0; start < count; start += BLOCK) {
    const int64_t n = least(BLOCK, count - start), padded = (n + STEP - 1) / STEP * STEP;
    for (int64_t i = 0; i < padded; ++i) {
      bits[i] = uint32_t(numbers[start + least(i, n - 1)]);
      first[i] = uint32_t(INVERSE[entry_of(bits[i])]), second[i] = uint32_t(LOG[entry_of(bits[i])]);
    }
    for (int64_t i = 0; i < padded; i += STEP) {
      const Longs made = exponent(log2_biased(longs_at(bits + i), longs_at(first + i), longs_at(second + i)));
      *reinterpret_cast<Longs*>(raised + i) = made;
    }
    for (int64_t i = 0; i < padded; ++i) first[i] = uint32_t(EXP[(raised[i] >> 23) & 0xFF]);
    for (int64_t i = 0; i < padded; i += STEP)
      set_words(bits + i, exp2_of(*reinterpret_cast<const Longs*>(raised + i), longs_at(first + i)));
    memcpy(numbers + start, bits, size_t(n) * sizeof(int32_t));
  }
}

constexpr int32_t BAD = -1;

// The bits of priorities to the power alpha as the tree holds them, BAD for bad ones. They come as bits: comparing them
// with zero as floats would take a subnormal for zero on threads that flush them, as XLA's do.
FRB_ENTRY void stored_bits(const Plan& plan, const int32_t* priorities, int32_t* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = most(priorities[i], 0x00800000);
  if (!plan->alpha_is_one) {
    const Longs alpha = longs_of((uint64_t(plan->alpha_whole) << POINT) + uint64_t(plan->alpha_fraction));
    const uint64_t bias = (uint64_t(plan->bias_whole) << POINT) + uint64_t(plan->bias_fraction);
    const Longs raised = longs_of((RAISED << POINT) - bias);
    make_powers(values, count, [&](Longs log) { return times(log, alpha) + raised; });
  }
  const int32_t smallest = bits_of(SMALLEST), largest = bits_of(LARGEST);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = priorities[i], value = least(most(values[i], smallest), largest);
    values[i] = (bits & 0x7FFFFFFF) == 0 ? 0 : bits < 0 || bits >= 0x7F800000 ? BAD : value;
  }
}

// The bits of `(value / smallest) ** -beta` of values given by theirs; NaN where beta is negative or NaN.
FRB_ENTRY void weigh(int32_t* values, float smallest, float beta, int64_t count) {
  const bool good = beta >= 0;
  const int32_t least_bits = bits_of(SMALLEST);
  for (int64_t i = 0; i < count; ++i) values[i] = good ? most(values[i], least_bits) : 0x7FC00000;
  if (!good) return;
  beta = least(beta, 1048576.0f);
  const uint64_t whole = uint64_t(beta), rest = uint64_t((beta - float(whole)) * 2147483648.0f);
  const Longs exponent = longs_of((whole << POINT) + rest);
  // Distances from the smallest are raised by 256: so none is negative, though a value is that of no item.
  constexpr uint64_t MORE = 256;
  const Longs moved = longs_of((MORE << POINT) - log2_biased(most(bits_of(smallest), least_bits)));
  const Longs raised = longs_of((RAISED << POINT) + MORE * ((whole << POINT) + rest));
  make_powers(values, count, [&](Longs log) { return raised - times(log + moved, exponent); });
}

FRB_INLINE void weigh_floats(const float* values, float smallest, float beta, float* weights, int64_t count) {
  Scratch<int32_t> bits(count);
  memcpy(bits.at, values, size_t(count) * sizeof(float));
  weigh(bits.at, smallest, beta, count);
  memcpy(weights, bits.at, size_t(count) * sizeof(float));
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
