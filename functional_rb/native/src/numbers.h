// Powers and random bits of many numbers at once, see `powers.h`.
#pragma once
#include "buffer_call.h"
#include "powers.h"
#include "records.h"

FRB_BEGIN

FRB_INLINE Longs longs_of(uint64_t x) { return Longs{} + x; }

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

// int32 [count] uniform in [0, 2^31), of a key: `ops.random_bits.bits`.
inline void fill_random(int64_t key, int32_t* words, int64_t count) {
  const uint64_t base = mix(uint64_t(key) + DRAW);
  for (int64_t k = 0; k < count; ++k) words[k] = int32_t(mix(base + uint64_t(k + 1) * GAMMA) >> 33);
}

FRB_ENTRY void fill_draws(const int64_t* key, Span<int32_t> words) { fill_random(key[0], words.at, words.size); }

// The draws of a key of JAX's, of as many rows as are wanted, if that is given, but at least of one.
FRB_ENTRY void threefry(const uint32_t* key, const int32_t* wanted, Matrix<int32_t> draws) {
  const int64_t rows = wanted ? most<int64_t>(1, least<int64_t>(wanted[0], draws.rows)) : draws.rows;
  const uint32_t k0 = key[0], k1 = key[1];
  for (int64_t i = 0; i < rows * draws.columns; ++i) draws.at[i] = threefry_word(k0, k1, i);
}

// Random bits [batch, words] of a call: those that are given, or of its key.
class Bits {
 public:
  explicit Bits(const BufferCall& c, int64_t more_rows = 0)
      : made_(c.draws ? 0 : (c.batch + more_rows) * c.words),
        all{c.draws ? c.draws : made_.at, c.batch + more_rows, c.words} {
    if (c.threefry_at) threefry(c.threefry_at, nullptr, {made_.at, all.rows, all.columns});
    else if (!c.draws) fill_random(c.key, made_.at, made_.size);
  }

 private:
  Scratch<int32_t> made_;

 public:
  const Matrix<const int32_t> all;
};

FRB_END
