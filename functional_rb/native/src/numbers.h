// Powers in fixed point and random bits, bit for bit those of `functional_rb.ops`.
#pragma once
#include "buffer_call.h"
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

// Make powers of so many floats together.
constexpr int64_t POWERS_TOGETHER = 64;

// Of at most so many positive normal floats, whose bits `number` tells, what `make` makes of log2(x) + 128.
//
// What the tables have is looked up for all first, and lies in memory: a vector would be long in coming together.
template <class N, class M> FRB_INLINE void make_logs(int64_t count, const N& number, const M& make, uint64_t* made) {
  alignas(64) uint32_t bits[POWERS_TOGETHER], first[POWERS_TOGETHER], second[POWERS_TOGETHER];
  for (int64_t i = 0; i < count; ++i) {
    bits[i] = uint32_t(number(i));
    first[i] = uint32_t(INVERSE[entry_of(bits[i])]), second[i] = uint32_t(LOG[entry_of(bits[i])]);
  }
  for (int64_t i = count; i % (SIDE / 2); ++i) bits[i] = first[i] = second[i] = 0;
  for (int64_t i = 0; i < count; i += SIDE / 2)
    set_vector(made + i, make(log2_biased(longs_at(bits + i), longs_at(first + i), longs_at(second + i))));
}

// Make powers of positive normal floats: `number` tells the bits of each, `exponent` makes y + RAISED of log2(x) + 128,
// and `take` takes the bits of each power.
template <class N, class E, class T>
FRB_INLINE void make_powers(int64_t count, const N& number, const E& exponent, const T& take) {
  alignas(64) uint32_t bits[POWERS_TOGETHER], base[POWERS_TOGETHER];
  alignas(64) uint64_t raised[POWERS_TOGETHER];
  for (int64_t start = 0; start < count; start += POWERS_TOGETHER) {
    const int64_t n = least(POWERS_TOGETHER, count - start);
    make_logs(n, [&](int64_t i) { return number(start + i); }, exponent, raised);
    for (int64_t i = 0; i < n; ++i) base[i] = uint32_t(EXP[(raised[i] >> 23) & 0xFF]);
    for (int64_t i = n; i % (SIDE / 2); ++i) base[i] = 0;
    for (int64_t i = 0; i < n; i += SIDE / 2) set_words(bits + i, exp2_of(vector_at(raised + i), longs_at(base + i)));
    for (int64_t i = 0; i < n; ++i) take(start + i, int32_t(bits[i]));
  }
}

constexpr int32_t BAD = -1;

// The bits of priorities to the power alpha as the tree holds them, BAD for bad ones. They come as bits: comparing them
// with zero as floats would take a subnormal for zero on threads that flush them, as XLA's do.
FRB_ENTRY void make_values(const Plan& plan, const int32_t* priorities, int32_t* values, int64_t count) {
  const int32_t smallest = bits_of(SMALLEST), largest = bits_of(LARGEST);
  auto normal = [&](int64_t i) { return most(priorities[i], 0x00800000); };
  auto take = [&](int64_t i, int32_t power) {
    const int32_t bits = priorities[i], value = least(most(power, smallest), largest);
    values[i] = (bits & 0x7FFFFFFF) == 0 ? 0 : bits < 0 || bits >= 0x7F800000 ? BAD : value;
  };
  if (plan->alpha_is_one) {
    for (int64_t i = 0; i < count; ++i) take(i, normal(i));
    return;
  }
  const Longs alpha = longs_of((uint64_t(plan->alpha_whole) << POINT) + uint64_t(plan->alpha_fraction));
  const uint64_t bias = (uint64_t(plan->bias_whole) << POINT) + uint64_t(plan->bias_fraction);
  const Longs raised = longs_of((RAISED << POINT) - bias);
  make_powers(count, normal, [&](Longs log) { return times(log, alpha) + raised; }, take);
}

// `(value / smallest) ** -beta`; there are no weights where beta is negative or NaN, and NaN says so.
FRB_ENTRY void weigh(const float* values, float smallest, float beta, float* weights, int64_t count) {
  if (!(beta >= 0)) {
    for (int64_t i = 0; i < count; ++i) weights[i] = float_of(0x7FC00000);
    return;
  }
  beta = least(beta, 1048576.0f);
  const int64_t whole = int64_t(beta);
  const uint64_t exponent = (uint64_t(whole) << POINT) + uint64_t((beta - float(whole)) * 2147483648.0f);
  // The distance of logarithms is raised by 256, so that it is not negative even for a value that no item has.
  const uint64_t more = 256, base = log2_biased(bits_of(most(smallest, SMALLEST)));
  const Longs moved = longs_of((more << POINT) - base), raised = longs_of((RAISED << POINT) + more * exponent);
  const Longs factor = longs_of(exponent);
  make_powers(
      count, [&](int64_t i) { return bits_of(most(values[i], SMALLEST)); },
      [&](Longs log) { return raised - times(log + moved, factor); },
      [&](int64_t i, int32_t power) { weights[i] = float_of(power); });
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

FRB_ENTRY void fill_draws(const int64_t* key, Span<int32_t> words) { fill_random(key[0], words.at, words.size); }

// Random bits [batch, words] of a call: those that are given, or of its key.
class Bits {
 public:
  explicit Bits(const BufferCall& c, int64_t more_rows = 0)
      : made_(c.draws ? 0 : (c.batch + more_rows) * c.words),
        all{c.draws ? c.draws : made_.at, c.batch + more_rows, c.words} {
    if (!c.draws) fill_random(c.key, made_.at, made_.size);
  }

 private:
  Scratch<int32_t> made_;

 public:
  const Matrix<const int32_t> all;
};

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
