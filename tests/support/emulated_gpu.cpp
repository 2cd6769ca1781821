// The kernels of `gpu_kernels.h` by emulated blocks, one after the other, whose threads take turns in an order that tests
// choose: what depends on the order gives other bits in another one. As a team, blocks and their threads are at work at the
// same time, so that a sanitizer sees who reads and writes the same. A read that comes before the write it should wait for is
// seen. A write that overtakes a read is not, as all reads come at once and writes after them, and as a team ends with each
// step: only compute-sanitizer's racecheck sees that, on a GPU.
#include "gpu_kernels.h"

#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

enum Order { FORWARD, BACKWARD, SCATTERED, TEAM };
constexpr int64_t MEMBERS = 2;

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

// Have members of a team do their share each.
void together(Work share) {
  std::vector<std::thread> members;
  for (int64_t k = 0; k < MEMBERS; ++k) members.emplace_back([share, k] { share(k); });
  for (std::thread& member : members) member.join();
}
// Whether two members do the same, in the first step of a block: a race that a test plants.
const bool planted = getenv("FRB_EMULATED_RACE");

// The k-th of n turns.
int64_t turn(int64_t k, int64_t n, int64_t order) {
  if (order == FORWARD || order == TEAM) return k;
  if (order == BACKWARD) return n - 1 - k;
  const int64_t step = n % 7 ? 7 : n % 11 ? 11 : 1;  // that has no divisor with n in common
  return (k * step + n / 3) % n;
}

struct Block {
  int64_t column, line, lines, order;
  int32_t* all;
  std::vector<std::function<void()>>* moved;  // what threads have written that have not waited for each other since
  int64_t x() const { return column; }
  int64_t y() const { return line; }
  int64_t rows() const { return lines; }
  int32_t* shared() const { return all; }
  void each(int64_t n, Work f) const {
    if (order == TEAM && n > 1)
      return together([&](int64_t member) {
        for (int64_t k = planted ? 0 : member; k < n; k += MEMBERS) f(k);
      });
    for (int64_t k = 0; k < n; ++k) f(turn(k, n, order));
    wait();
  }
  void wait() const {
    for (const auto& write : *moved) write();
    moved->clear();
  }
  template <class Piece, class F> void move(int64_t n, int64_t&, const F& load) const { moving<Piece>(n, load); }
  template <class Piece> void moving(int64_t n, Any<Piece*(int64_t, Piece&)> load) const {
    if (order == TEAM)
      return each(n, [&](int64_t i) {
        Piece held;
        if (Piece* to = load(i, held)) *to = held;
      });
    // No other thread sees it before all have waited, so that a wait that is missing is noticed.
    std::vector<std::pair<Piece*, Piece>> made;
    for (int64_t k = 0; k < n; ++k) {
      Piece held;
      if (Piece* to = load(turn(k, n, order), held)) made.emplace_back(to, held);
    }
    moved->push_back([made] {
      for (const auto& [to, held] : made) *to = held;
    });
  }
  int64_t total(int64_t n, Any<int64_t(int64_t)> f) const {
    int64_t found = 0;
    for (int64_t k = 0; k < n; ++k) found += f(turn(k, n, order));
    wait();
    return found;
  }
  int32_t largest(int64_t n, Any<int32_t(int64_t)> f) const {
    int32_t found = 0;
    for (int64_t k = 0; k < n; ++k) found = frb::most(found, f(turn(k, n, order)));
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
        for (int64_t k = 0; k < here; ++k) work(turn(k, here, order));
      };
      each_in_turn([&](int64_t k) { own[k] = f(first + k); });
      wait();
      for (int64_t k = 0; k < here; ++k) own[k] = found = of_two(found, own[k]);
      each_in_turn([&](int64_t k) { tell(first + k, own[k]); });
    }
    return found;
  }
  int32_t ranks(int64_t n, Any<bool(int64_t)> marked, Any<void(int64_t, int64_t)> f) const {
    return running(n, [&](int64_t i) { return int32_t(marked(i)); }, [](int32_t a, int32_t b) { return a + b; },
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

void launched(int64_t columns, int64_t lines, int64_t order, Any<void(const Block&)> kernel) {
  auto carry_out = [&](int64_t block) {
    std::vector<int32_t> shared(frb::gpu::SHARED);
    std::vector<std::function<void()>> moved;
    const Block own{block % columns, block / columns, lines, order, shared.data(), &moved};
    kernel(own);
    own.wait();
  };
  const int64_t blocks = columns * lines;
  if (order == TEAM && blocks > 1)
    return together([&](int64_t member) {
      for (int64_t k = member; k < blocks; k += MEMBERS) carry_out(k);
    });
  for (int64_t k = 0; k < blocks; ++k) carry_out(turn(k, blocks, order));
}

#define FRB_CARRIED_OUT(name, threads) \
  [](const Block& block, const frb::gpu::Call& call) { frb::gpu::name(block, call); },
using Kernel = void (*)(const Block&, const frb::gpu::Call&);
const Kernel kernels[] = {FRB_GPU_KERNELS(FRB_CARRIED_OUT)};

struct Launched {
  int64_t kernel, columns, lines;
};
std::vector<Launched> all;
int64_t order = FORWARD;

}  // namespace

extern "C" {
// As cuLaunchKernel is called; kernels are numbered from 1 on.
int frb_launch(void* kernel, unsigned x, unsigned y, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void** arguments,
               void**) {
  const int64_t number = reinterpret_cast<int64_t>(kernel) - 1;
  const frb::gpu::Call& call = *static_cast<const frb::gpu::Call*>(arguments[0]);
  all.push_back({number, x, y});
  launched(x, y, order, [&](const Block& block) { kernels[number](block, call); });
  return 0;
}
int64_t frb_record_bytes() { return sizeof(frb::gpu::Call); }
void frb_in_order(int64_t wanted) { order = wanted; }
// The launches since the last call: how many, and (kernel, columns, lines) of each where there is room.
int64_t frb_launched(int64_t* told, int64_t room) {
  const int64_t count = int64_t(all.size());
  for (int64_t k = 0; k < count && k < room; ++k)
    told[3 * k] = all[size_t(k)].kernel, told[3 * k + 1] = all[size_t(k)].columns, told[3 * k + 2] = all[size_t(k)].lines;
  if (told) all.clear();
  return count;
}
}
