// The constants of `functional_rb.ops.fixed_point` and `random_bits`; a test compares them.
#pragma once
#include "base.h"

FRB_BEGIN

// Numbers of 256 points, which the compiler computes: `fixed_point.TABLES`.
struct Points {
  int32_t at[256];
  FRB_INLINE constexpr int32_t operator[](int64_t k) const { return at[k]; }
};
constexpr double LN_2 = 0.6931471805599453;
// log2(c) and 1 / c of c in [1, 2), and 2^x of x in [0, 1), by series that doubles add up.
constexpr double log_of(double x) {
  const double z = x / (2 + x);
  double power = z, sum = 0;
  for (int k = 1; k < 40; k += 2) sum += power / k, power *= z * z;
  return 2 * sum / LN_2 * 2147483648.0;
}
constexpr double inverse_of(double x) { return 2147483648.0 / (1 + x); }
constexpr double exp_of(double x) {
  double term = 1, sum = 1;
  for (int k = 1; k < 20; ++k) term *= x * LN_2 / k, sum += term;
  return sum * 1073741824.0;
}
template <double (*F)(double)> constexpr Points table_of() {
  Points points{};
  for (int k = 0; k < 256; ++k) {
    const double x = F(k / 256.0) + 0.5;
    points.at[k] = x < 2147483647.0 ? int32_t(x) : 2147483647;
  }
  return points;
}
FRB_TABLE Points LOG{table_of<log_of>()}, INVERSE{table_of<inverse_of>()}, EXP{table_of<exp_of>()};
constexpr int64_t C1 = 1549082005, C2 = 774541002, C3 = 516360668;
constexpr int64_t E1 = 1488522236, E2 = 515882496, E3 = 119194166;
constexpr int64_t E4 = 20654775, E5 = 2863360, E6 = 330788;
constexpr int64_t MASK = 2147483647, BIAS = 128;
constexpr float SMALLEST = 7.888609052210118e-31f, LARGEST = 3.961408125713217e+28f;
constexpr uint64_t GAMMA = 11400714819323198485ull, DRAW = 1442695040888963407ull, SPLIT = 6364136223846793005ull;
constexpr uint64_t FACTOR_1 = 13787848793156543929ull, FACTOR_2 = 10723151780598845931ull;
constexpr int SHIFT_1 = 30, SHIFT_2 = 27, SHIFT_3 = 31;

FRB_END
