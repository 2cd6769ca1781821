// What n-step returns are made of: `returns.fold_floats` and `step_queue.plan_line`.
#pragma once
#include "records.h"

FRB_BEGIN

// Numbers of two bytes, which are computed with as float32. Of what is no number float16 keeps the sign and what fits of the
// rest, as processors do; for bfloat16, of which they and libraries make different bits, it becomes one that says so.
struct Half {
  uint16_t bits;
  Half() = default;
  FRB_INLINE explicit Half(float x) {
    const uint32_t all = uint32_t(bits_of(x)), size = all & 0x7FFFFFFFu, sign = all >> 16 & 0x8000u;
    if (size > 0x7F800000u) bits = uint16_t(sign | 0x7E00u | (size >> 13 & 0x3FFu));
    else if (size >= 0x47800000u) bits = uint16_t(sign | 0x7C00u);  // 2^16 and more
    else if (size < 0x38800000u)  // behind 0.5 floats are 2^-24 apart, as these are
      bits = uint16_t(sign | uint32_t(bits_of(float_of(int32_t(size)) + 0.5f) - bits_of(0.5f)));
    else bits = uint16_t(sign | ((size - (112u << 23) + 0xFFFu + (size >> 13 & 1u)) >> 13));
  }
  FRB_INLINE explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7FFFu;
    if (size < 0x400u) return float_of(int32_t(sign | uint32_t(bits_of(float(size) * 0x1p-24f))));
    return float_of(int32_t(sign | ((size << 13) + (size < 0x7C00u ? 112u << 23 : 224u << 23))));
  }
};
struct Brain {
  uint16_t bits;
  Brain() = default;
  FRB_INLINE explicit Brain(float x) {
    const uint32_t all = uint32_t(bits_of(x));
    bits = (all & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0 : uint16_t((all + 0x7FFFu + (all >> 16 & 1u)) >> 16);
  }
  FRB_INLINE explicit operator float() const { return float_of(int32_t(uint32_t(bits) << 16)); }
};

// What a reward's numbers are, as records say it.
enum RewardDtype { OF_FLOAT64, OF_FLOAT32, OF_FLOAT16, OF_BFLOAT16 };

// What a record tells of returns over n steps, and what is added up.
struct Returns {
  struct Reward { int32_t leaf, agents, dtype; };
  const QueueRecord& told;
  FRB_INLINE const int32_t* ends() const { return reinterpret_cast<const int32_t*>(&told + 1); }
  FRB_INLINE const int32_t* following() const { return ends() + told.ends; }
  FRB_INLINE const int32_t* own() const { return following() + told.following; }
  FRB_INLINE const int32_t* done() const { return own() + told.own; }
  FRB_INLINE const Reward* rewards() const { return reinterpret_cast<const Reward*>(done() + told.done); }
  FRB_INLINE const int32_t* discounts() const { return reinterpret_cast<const int32_t*>(rewards() + told.rewards); }
  FRB_INLINE const int32_t* end() const { return discounts() + 2 * told.powers; }
  // How many entries of a sample there are beside the items, of returns that are made as these are read.
  FRB_INLINE int64_t told_beside() const { return 3 + told.rewards; }
  FRB_INLINE double discount(int64_t k) const {
    double power;
    memcpy(&power, discounts() + 2 * k, 8);
    return power;
  }
  // Whether a step is marked as the last one, by all marks of leaves that have one, or one for each agent. A mark is set where
  // it is in some leaf; `leaf` tells where the step has its own.
  template <class LeafAt> FRB_INLINE bool is_last(const Plan& packed, int64_t agents, const LeafAt& leaf) const {
    return all_set(packed, 1, leaf) || (agents > 1 && all_set(packed, agents, leaf));
  }
  template <class LeafAt> FRB_INLINE bool all_set(const Plan& packed, int64_t marks, const LeafAt& leaf) const {
    for (int64_t mark = 0; mark < marks; ++mark) {
      bool set = false;
      for (int64_t k = 0; k < told.ends; ++k)
        if (packed.leaf(ends()[k]).bytes == marks) set |= leaf(ends()[k])[mark] != 0;
      if (!set) return false;
    }
    return true;
  }
  FRB_INLINE static bool is_among(const int32_t* leaves, int64_t count, int64_t leaf) {
    for (int64_t k = 0; k < count; ++k)
      if (leaves[k] == leaf) return true;
    return false;
  }
  FRB_INLINE bool follows(int64_t leaf) const { return is_among(following(), told.following, leaf); }
  FRB_INLINE bool is_own(int64_t leaf) const { return is_among(own(), told.own, leaf); }
  FRB_INLINE bool is_reward(int64_t leaf) const {
    bool is_reward = false;
    for (int64_t r = 0; r < told.rewards; ++r) is_reward |= rewards()[r].leaf == leaf;
    return is_reward;
  }
  // Rewards of so many steps, each product and each sum of which is rounded by itself.
  template <class T, class Number> FRB_INLINE T sum(int64_t steps, const Number& number) const {
    T total = number(0);
    for (int64_t k = 1; k < told.n; ++k) {
      const T term = k < steps ? number(k) * T(discount(k)) : T(0);
      total += term != 0 ? term : T(0);  // which makes of -0 a 0
    }
    return total;
  }
};

// Call a function with a number as which rewards of a dtype are added up, and one as they are stored.
template <class F> FRB_INLINE void by_dtype(int32_t dtype, const F& f) {
  if (dtype == OF_FLOAT64) f(double(), double());
  else if (dtype == OF_FLOAT32) f(float(), float());
  else if (dtype == OF_FLOAT16) f(float(), Half());
  else f(float(), Brain());
}

#if !defined(__CUDACC__)
// Add up rewards [m, n, w], real uint8 [m, n], to total [m, w].
template <class T>
inline void fold_rewards(Numbers<T> discounts, const T* rewards, const uint8_t* real, Span<T> total, Span<int32_t> steps) {
  const int64_t n = discounts.size, m = steps.size, w = total.size / most<int64_t>(m, 1);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < w; ++j) total[i * w + j] = rewards[i * n * w + j];
    int32_t count = 1;
    for (int64_t k = 1; k < n; ++k) {
      const bool there = real[i * n + k] != 0;
      count += there;
      for (int64_t j = 0; j < w; ++j) {
        const T term = rewards[(i * n + k) * w + j] * discounts[k];
        total[i * w + j] += there && term != 0 ? term : T(0);  // which makes of -0 a 0
      }
    }
    steps[i] = count;
  }
}

// Plan the line of steps that wait in each lane, for rows = S * lanes = batch + lanes * (n - 1).
//
// held and pending [lanes], how many wait before and after; ended and mask [batch]; ids [rows, words]; window and real
// [rows, n]; complete [rows]; waiting [lanes * (n - 1)].
FRB_ENTRY void plan_line(Span<const int32_t> held, const uint8_t* ended, Matrix<const int32_t> ids, const uint8_t* mask,
                         Matrix<int32_t> window, uint8_t* real, uint8_t* complete, int32_t* waiting, int32_t* pending) {
  const int64_t lanes = held.size, n = window.columns, words = ids.columns;
  const int64_t columns = window.rows / lanes, steps = columns - (n - 1), before = lanes * (n - 1);
  Scratch<int32_t> line(columns);  // the row in each column of a lane
  for (int64_t lane = 0; lane < lanes; ++lane) {
    int64_t count = 0;  // how many columns are taken; the rest has the lane's last row
    const int64_t waited = least(most<int64_t>(held[lane], 0), n - 1);
    for (; count < waited; ++count) line[count] = int32_t(lane * (n - 1) + count);
    for (int64_t step = 0; step < steps; ++step)
      if (!mask || mask[step * lanes + lane]) line[count++] = int32_t(before + step * lanes + lane);
    for (int64_t k = count; k < columns; ++k) line[k] = int32_t(before + (steps - 1) * lanes + lane);
    // The windows, from the last column to the first.
    int64_t stop = count, done = 0;
    bool known = false;
    for (int64_t column = columns - 1; column >= 0; --column) {
      const int64_t entry = column * lanes + lane, fresh = line[column] - before;
      const bool is_last = fresh >= 0 && ended[fresh];
      bool next_differs = false;
      if (column + 1 < count)
        for (int64_t word = 0; word < words; ++word)
          next_differs |= ids.at[line[column] * words + word] != ids.at[line[column + 1] * words + word];
      if (column < count && (is_last || next_differs)) stop = column + 1, known = true;
      for (int64_t k = 0; k < n; ++k) {
        window.at[entry * n + k] = line[least(column + k, columns - 1)];
        real[entry * n + k] = column + k < stop;
      }
      const bool finished = column < count && (known || column + n <= stop);
      complete[entry] = finished;
      done += finished;
    }
    for (int64_t k = 0; k < n - 1; ++k) waiting[lane * (n - 1) + k] = line[least(done + k, columns - 1)];
    pending[lane] = int32_t(count - done);
  }
}

#endif

FRB_END
