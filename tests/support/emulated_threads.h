// Blocks whose threads each carry out the whole kernel, as on a GPU, on a fiber of ThreadSanitizer's. Nothing orders what they
// read and write but the places where all wait, which are those of `gpu.cu`: so whatever two threads do to the same memory
// without a wait between them is reported, in whichever order it came, and also what threads of two blocks do. What is not
// seen: how threads of a warp get on, of which there are none here; what the programs that are run have no data for; and what
// was so many accesses ago that the sanitizer, which knows four to eight bytes, has forgotten it.
#pragma once
#include <sanitizer/tsan_interface.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "emulated_block.h"

namespace emulated {

// The threads of a block are fewer than on a GPU: what i and i + THREADS do is one thread's here. As it is a prime number,
// numbers that are some power of two apart are not. So many blocks have threads of their own, which others take after them.
constexpr int64_t THREADS = 7, BLOCKS = 5;
constexpr size_t STACK = 1 << 18;
constexpr int64_t TOLD = frb::gpu::THREADS;  // numbers that `running` has between two waits, of which each thread has several here

struct Team;

// A thread: what the sanitizer knows of it, and where it goes on. Its stack is its own, as what lies there is.
struct Fiber {
  void* known;
  ucontext_t at;
  Team* team;
  int64_t number, waits, passed;  // waits that it has come to in this kernel, and gone through in all
  char* gates;
  bool at_work;
};

inline Fiber fibers[BLOCKS][THREADS];
inline char gates[BLOCKS][2], launched, done;
inline struct { void* known; ucontext_t at; } host;
// A kernel of which a test leaves a wait out, counted from 1 on.
inline int64_t careless = -1, left_out = 0;

// What only moves from one stack to another is nobody's work.
#define FRB_UNSEEN __attribute__((no_sanitize_thread, noinline))

FRB_UNSEEN inline void move_on(void* known, ucontext_t* from, const ucontext_t* to) {
  __tsan_switch_to_fiber(known, __tsan_switch_to_fiber_no_sync);
  swapcontext(from, to);
}

struct Block : Place<Block> {
  Fiber* own;
  int64_t* told;
  // Two gates take turns: who comes to the next one has not yet let those through that are still at this one.
  FRB_UNSEEN void wait() const {
    if (++own->waits == left_out && grid.kernel == careless) return;
    char* gate = own->gates + own->passed++ % 2;
    __tsan_release(gate);
    move_on(host.known, &own->at, &host.at);
    __tsan_acquire(gate);
  }
  void each(int64_t n, Work f) const {
    for (int64_t i = own->number; i < n; i += THREADS) f(i);
    wait();
  }
  template <class Piece, class F> void move(int64_t n, int64_t& turn, const F& load) const { moving<Piece>(n, turn, load); }
  template <class Piece> void moving(int64_t n, int64_t& turn, Any<Piece*(int64_t, Piece&)> load) const {
    constexpr int AT_ONCE = 2;
    const int64_t begin = (own->number + THREADS - turn) % THREADS;
    turn = (turn + n) % THREADS;
    for (int64_t first = begin; first < n; first += AT_ONCE * THREADS) {
      Piece held[AT_ONCE], *to[AT_ONCE];
      for (int k = 0; k < AT_ONCE; ++k) {
        const int64_t i = first + k * THREADS;
        to[k] = i < n ? load(i, held[k]) : nullptr;
      }
      for (int k = 0; k < AT_ONCE; ++k)
        if (to[k]) *to[k] = held[k];
    }
  }
  int64_t together(int64_t own_part, Any<int64_t(int64_t, int64_t)> of_two) const {
    told[own->number] = own_part;
    wait();
    int64_t found = 0;
    for (int64_t k = 0; k < THREADS; ++k) found = of_two(found, told[k]);
    wait();
    return found;
  }
  int64_t total(int64_t n, Any<int64_t(int64_t)> f) const {
    int64_t found = 0;
    for (int64_t i = own->number; i < n; i += THREADS) found += f(i);
    return together(found, [](int64_t a, int64_t b) { return a + b; });
  }
  int32_t largest(int64_t n, Any<int32_t(int64_t)> f) const {
    int32_t found = 0;
    for (int64_t i = own->number; i < n; i += THREADS) found = frb::most(found, f(i));
    return int32_t(together(found, [](int64_t a, int64_t b) { return frb::most(a, b); }));
  }
  int32_t running(int64_t n, Any<int32_t(int64_t)> f, Any<int32_t(int32_t, int32_t)> of_two,
                  Any<void(int64_t, int32_t)> tell) const {
    int32_t found = 0;
    for (int64_t first = 0; first < n; first += TOLD) {
      const int64_t here = frb::least(n - first, TOLD);
      for (int64_t k = own->number; k < here; k += THREADS) told[k] = f(first + k);
      wait();
      for (int64_t k = 0; k < here; ++k) {
        found = of_two(found, int32_t(told[k]));
        if (k % THREADS == own->number) tell(first + k, found);
      }
      wait();
    }
    return found;
  }
};

// A block at work, whose memory no other block has.
struct Team {
  Any<void(const Block&)> kernel;
  int64_t number;
  Grid grid;
  int32_t shared[frb::gpu::SHARED];
  int64_t told[TOLD];
};

inline Fiber* called;  // who begins

inline void live() {
  Fiber* const own = called;
  for (;;) {
    Team* const team = own->team;
    __tsan_acquire(&launched);
    team->kernel(Block{{team->number, team->grid, team->shared}, own, team->told});
    __tsan_release(&done);
    own->at_work = false;
    move_on(host.known, &own->at, &host.at);
  }
}

FRB_UNSEEN inline void let_go_on(Fiber* fiber) {
  called = fiber;
  move_on(fiber->known, &host.at, &fiber->at);
}

FRB_UNSEEN inline void carry_out(Team* team) {
  host.known = __tsan_get_current_fiber();
  const int64_t group = team->number % BLOCKS;
  for (int64_t k = 0; k < THREADS; ++k) {
    Fiber* own = &fibers[group][k];
    if (!own->known) {
      own->known = __tsan_create_fiber(0), own->number = k, own->gates = gates[group];
      getcontext(&own->at);
      own->at.uc_stack.ss_sp = malloc(STACK), own->at.uc_stack.ss_size = STACK;
      makecontext(&own->at, live, 0);
    }
    own->team = team, own->waits = 0, own->at_work = true;
  }
  for (int64_t left = THREADS; left;) {
    if (left < THREADS) fputs("emulated threads wait for others that have ended\n", stderr), abort();
    left = 0;
    for (int64_t k = 0; k < THREADS; ++k) {
      Fiber* own = &fibers[group][turn(k, THREADS, team->grid.order)];
      let_go_on(own);
      left += own->at_work;
    }
  }
}

inline void carry_out(const Grid& grid, Any<void(const Block&)> kernel) {
  std::vector<Team> teams;
  const int64_t blocks = grid.columns * grid.lines;
  for (int64_t k = 0; k < blocks; ++k) teams.push_back({kernel, k, grid, {}, {}});
  __tsan_release(&launched);
  for (int64_t k = 0; k < blocks; ++k) carry_out(&teams[size_t(turn(k, blocks, grid.order))]);
  __tsan_acquire(&done);
}

}  // namespace emulated

extern "C" void frb_leave_out(int64_t kernel, int64_t wait) { emulated::careless = kernel, emulated::left_out = wait; }
