// What blocks that are emulated on the CPU have in common: where they are in the grid, what their threads share, and atomics.
#pragma once
#include "gpu_kernels.h"

namespace emulated {

enum Order { FORWARD, BACKWARD, SCATTERED };

// The k-th of n turns.
inline int64_t turn(int64_t k, int64_t n, int64_t order) {
  if (order == FORWARD) return k;
  if (order == BACKWARD) return n - 1 - k;
  const int64_t step = n % 7 ? 7 : n % 11 ? 11 : 1;  // that has no divisor with n in common
  return (k * step + n / 3) % n;
}

// A function that lives elsewhere, of whatever type: what takes one is compiled once, and not for each of the kernels' own.
template <class> struct Any;
template <class R, class... A> struct Any<R(A...)> {
  const void* function;
  R (*call)(const void*, A...);
  template <class F> Any(const F& f)
      : function(&f), call([](const void* f, A... a) { return R((*static_cast<const F*>(f))(a...)); }) {}
  R operator()(A... a) const { return call(function, a...); }
};
using Work = Any<void(int64_t)>;

struct Grid {
  int64_t kernel, columns, lines, order;
};

template <class Block> struct Place {
  int64_t number;  // of the block
  Grid grid;
  int32_t* all;
  int64_t x() const { return number % grid.columns; }
  int64_t y() const { return number / grid.columns; }
  int64_t rows() const { return grid.lines; }
  int32_t* shared() const { return all; }
  int32_t ranks(int64_t n, Any<bool(int64_t)> marked, Any<void(int64_t, int64_t)> f) const {
    return static_cast<const Block*>(this)->running(
        n, [&](int64_t i) { return int32_t(marked(i)); }, [](int32_t a, int32_t b) { return a + b; },
        [&](int64_t i, int32_t found) { if (marked(i)) f(i, int64_t(found) - 1); });
  }
  int32_t exchange_if(int32_t* at, int32_t expected, int32_t wanted) const {
    __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;  // as it was found
  }
  int32_t exchange(int32_t* at, int32_t x) const { return __atomic_exchange_n(at, x, __ATOMIC_RELAXED); }
  int32_t add(int32_t* at, int32_t x) const { return __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }
  void raise(int32_t* at, int32_t x) const {
    int32_t found = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (found < x && !__atomic_compare_exchange_n(at, &found, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
  void lower(int32_t* at, int32_t x) const {
    int32_t found = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (x < found && !__atomic_compare_exchange_n(at, &found, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
};

}  // namespace emulated
