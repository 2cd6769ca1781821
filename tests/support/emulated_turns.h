// Blocks one after the other, whose threads take turns at each step: what depends on the order gives other bits in another one.
// A read that comes before the write it should wait for is seen. A write that overtakes a read is not, as all reads of a step
// come at once and writes after them; `emulated_threads.h` sees that too.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "emulated_block.h"

namespace emulated {

struct Block : Place<Block> {
  std::vector<std::function<void()>>* moved;  // what threads have written that have not waited for each other since
  void each(int64_t n, Work f) const {
    for (int64_t k = 0; k < n; ++k) f(turn(k, n, grid.order));
    wait();
  }
  void wait() const {
    for (const auto& write : *moved) write();
    moved->clear();
  }
  template <class Piece, class F> void move(int64_t n, int64_t&, const F& load) const { moving<Piece>(n, load); }
  // No other thread sees it before all have waited, so that a wait that is missing is noticed.
  template <class Piece> void moving(int64_t n, Any<Piece*(int64_t, Piece&)> load) const {
    std::vector<std::pair<Piece*, Piece>> made;
    for (int64_t k = 0; k < n; ++k) {
      Piece held;
      if (Piece* to = load(turn(k, n, grid.order), held)) made.emplace_back(to, held);
    }
    moved->push_back([made] {
      for (const auto& [to, held] : made) *to = held;
    });
  }
  int64_t total(int64_t n, Any<int64_t(int64_t)> f) const {
    int64_t found = 0;
    for (int64_t k = 0; k < n; ++k) found += f(turn(k, n, grid.order));
    wait();
    return found;
  }
  int32_t largest(int64_t n, Any<int32_t(int64_t)> f) const {
    int32_t found = 0;
    for (int64_t k = 0; k < n; ++k) found = frb::most(found, f(turn(k, n, grid.order)));
    wait();
    return found;
  }
  // As on a GPU, where each thread has a number: all of so many have asked for theirs before one of them is told.
  int32_t running(int64_t n, Any<int32_t(int64_t)> f, Any<int32_t(int32_t, int32_t)> of_two,
                  Any<void(int64_t, int32_t)> tell) const {
    constexpr int64_t THREADS = 32;
    int32_t own[THREADS], found = 0;
    for (int64_t first = 0; first < n; first += THREADS) {
      const int64_t here = frb::least(n - first, THREADS);
      auto each_in_turn = [&](Work work) {
        for (int64_t k = 0; k < here; ++k) work(turn(k, here, grid.order));
      };
      each_in_turn([&](int64_t k) { own[k] = f(first + k); });
      wait();
      for (int64_t k = 0; k < here; ++k) own[k] = found = of_two(found, own[k]);
      each_in_turn([&](int64_t k) { tell(first + k, own[k]); });
    }
    return found;
  }
};

inline void carry_out(const Grid& grid, Any<void(const Block&)> kernel) {
  const int64_t blocks = grid.columns * grid.lines;
  for (int64_t k = 0; k < blocks; ++k) {
    std::vector<int32_t> shared(frb::gpu::SHARED);
    std::vector<std::function<void()>> moved;
    const Block block{{turn(k, blocks, grid.order), grid, shared.data()}, &moved};
    kernel(block);
    block.wait();
  }
}

}  // namespace emulated
