// The kernels as XLA and Python call them: which operand and which result is which argument.
//
// `functional_rb/native/kernels.py` declares what they are called with: first records, then operands.
#pragma once
#include "epochs.h"
#include "frame_ring.h"
#include "hash_map.h"
#include "images.h"
#include "slices.h"
#include "spans.h"
#include "sparse_set.h"
#include "step_queue.h"
#include "updates.h"
#include "xla_frame.h"

FRB_BEGIN
namespace handlers {

// The addresses of consecutive operands, or results.
struct Places {
  Scratch<int64_t> at;
  Places(int64_t count) : at(count) {}
  Addresses addresses() const { return {at.at, at.size}; }
};
struct Sources : Places {
  Sources(const Call& call, int64_t first, int64_t count) : Places(count) {
    for (int64_t k = 0; k < count; ++k) at[k] = reinterpret_cast<int64_t>(call.in<char>(first + k));
  }
};
struct Targets : Places {
  Targets(const Call& call, int64_t first, int64_t count) : Places(count) {
    for (int64_t k = 0; k < count; ++k) at[k] = reinterpret_cast<int64_t>(call.out<char>(first + k));
  }
};

// How many rows of a batch are to be filled: as an operand says, if it is given, but at least the first.
inline int64_t asked(const Call& call, int64_t k, int64_t batch) {
  const int32_t* wanted = call.in<int32_t>(k);
  return wanted ? most<int64_t>(1, least<int64_t>(wanted[0], batch)) : batch;
}

// plan, batch, rows, *wide, tree, counters, mask, priorities, *leaves -> rows, *wide, tree, counters.
inline void add(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const int64_t wide = plan->wide;
  const Targets storage(call, 0, 1 + wide);
  const Sources leaves(call, 7 + wide, plan->leaves);
  int64_t saved;
  frb::add(call.out<float>(1 + wide), call.in<int32_t>(4 + wide), call.out<int32_t>(2 + wide), call.in<uint8_t>(5 + wide),
           call.in<int32_t>(6 + wide), nullptr, nullptr, storage.addresses(), leaves.addresses(), plan,
           call.in<int32_t>(1)[0], 0, {&saved, 1});
}

// plan, rings, rows, *wide, tree, counters, draws, beta, wanted (empty for all) -> *leaves, handles, weights, probabilities.
inline void draw(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const Ring ring = call.record<Ring>(1);
  const int64_t wide = plan->wide, last = plan->leaves;
  const Sources storage(call, 2, 1 + wide);
  const Targets leaves(call, 0, last);
  const Operand draws = call.operand(5 + wide);
  const int64_t batch = draws.rows(), words = draws.length() / most<int64_t>(batch, 1), count = asked(call, 7 + wide, batch);
  const float *tree = call.in<float>(3 + wide), beta = *call.in<float>(6 + wide);
  const int32_t *counters = call.in<int32_t>(4 + wide), *bits = call.in<int32_t>(5 + wide);
  int32_t* handles = call.out<int32_t>(last);
  float *weights = call.out<float>(last + 1), *chances = call.out<float>(last + 2);
  if (ring->lanes > 1)
    frb::draw_in_rings(tree, counters, bits, handles, weights, chances, storage.addresses(), leaves.addresses(), plan, ring,
                       words, beta, count);
  else
    frb::draw(tree, counters, bits, handles, weights, chances, storage.addresses(), leaves.addresses(), plan, words, beta,
              count);
}

// key uint32 [2], wanted (empty for all) -> draws int32 [B, words].
inline void threefry(const Call& call) {
  const uint32_t* key = call.in<uint32_t>(0);
  const Operand draws = call.result(0);
  const int64_t rows = draws.rows(), words = draws.length() / most<int64_t>(rows, 1);
  fill_threefry(key[0], key[1], call.out<int32_t>(0), asked(call, 1, rows) * words);
}

// plan, tree, counters, handles, priorities -> tree, counters; where leaves are rewritten also rows, *wide, *leaves (empty
// for those that are not) -> rows, *wide.
inline void update(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const bool rewrites = call.operands() > 5;
  const int64_t arrays = rewrites ? 1 + plan->wide : 0, given = rewrites ? plan->leaves : 0;
  const Targets storage(call, 2, arrays);
  const Sources leaves(call, 5 + arrays, given);
  int64_t saved;
  frb::update(call.out<float>(0), call.in<int32_t>(2), call.out<int32_t>(1), call.in<int32_t>(3), call.in<int32_t>(4),
              nullptr, nullptr, storage.addresses(), leaves.addresses(), plan, call.operand(3).length(), given, 0,
              {&saved, 1});
}

// plan, tree, draws [B, words] -> leaves [B].
inline void descend(const Call& call) {
  const Operand draws = call.operand(2);
  const int64_t batch = draws.rows();
  frb::descend(call.in<float>(1), call.in<int32_t>(2), call.out<int32_t>(0), call.record<Plan>(0), batch,
               draws.length() / most<int64_t>(batch, 1));
}

// plan, tree, first, end [D], which [1], draws [B, words] -> leaves [B], totals, smallest [D].
inline void draw_in_span(const Call& call) {
  frb::draw_in_span(call.in<float>(1), call.in<int32_t>(2), call.in<int32_t>(3), *call.in<int32_t>(4),
                    call.in<int32_t>(5), call.out<int32_t>(0), call.out<float>(1), call.out<float>(2),
                    call.record<Plan>(0), call.operand(2).length(), call.operand(5).rows());
}

// plan, tree, leaves, values -> tree.
inline void set_leaves(const Call& call) {
  frb::set_leaves(call.out<float>(0), call.in<int32_t>(2), call.in<float>(3), call.record<Plan>(0),
                  call.operand(2).length());
}

// plan, rows, *wide, slots -> *leaves.
inline void read(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const Sources storage(call, 1, 1 + plan->wide);
  const Targets leaves(call, 0, plan->leaves);
  frb::read(call.in<int32_t>(2 + plan->wide), storage.addresses(), leaves.addresses(), plan, call.operand(1).rows(),
            call.operand(2 + plan->wide).length());
}

// plan, rows, *wide, slots, source, live (empty for none), *leaves [B, *shape] -> rows, *wide.
inline void store(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const int64_t wide = plan->wide;
  const Targets storage(call, 0, 1 + wide);
  const Sources leaves(call, 5 + wide, plan->leaves);
  frb::store(call.in<int32_t>(2 + wide), call.in<int32_t>(3 + wide), call.in<uint8_t>(4 + wide), storage.addresses(),
             leaves.addresses(), plan, call.result(0).rows(), call.operand(2 + wide).length(),
             call.operand(5 + wide).rows());
}

// plan, *leaves [B, *shape] -> rows [B, words].
inline void pack(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const Sources leaves(call, 1, plan->leaves);
  const Targets rows(call, 0, 1);
  const int64_t batch = call.result(0).rows();
  memset(call.out<char>(0), 0, size_t(batch * plan.stored_bytes(0)));
  for (int64_t i = 0; i < batch; ++i) store_item(plan, rows.addresses(), i, leaves.addresses(), i);
}

// plan, priorities -> values, good.
inline void stored_values(const Call& call) {
  frb::stored_values(call.in<int32_t>(1), call.out<float>(0), call.out<uint8_t>(1), call.record<Plan>(0),
                     call.operand(1).length());
}

// values, smallest, beta -> weights.
inline void importance_weights(const Call& call) {
  frb::importance_weights(call.in<float>(0), call.in<float>(1), call.in<float>(2), call.out<float>(0),
                          call.operand(0).length());
}

// plan, slots, live, priorities -> values, replaced, bad, peak.
inline void updated_values(const Call& call) {
  frb::updated_values(call.in<int32_t>(1), call.in<uint8_t>(2), call.in<int32_t>(3), call.out<float>(0),
                      call.out<uint8_t>(1), call.out<int32_t>(2), call.out<int32_t>(3), call.record<Plan>(0),
                      call.operand(1).length());
}

// plan, windows, tree, kept, counters, handles, priorities, in_episode -> tree, kept, counters.
inline void update_priorities(const Call& call) {
  int64_t saved;
  frb::update_priorities(call.out<float>(0), call.out<float>(1), call.in<int32_t>(4), call.out<int32_t>(2),
                         call.in<int32_t>(5), call.in<int32_t>(6), call.in<int32_t>(7), nullptr, nullptr, nullptr,
                         call.record<Plan>(0), call.record<Ring>(1), call.operand(5).length(), 0, {&saved, 1});
}

// plan, steps, cursors, sizes, mask -> slots, source, live, written, cursors, sizes (no mask: it and two are empty).
inline void choose_slots(const Call& call) {
  frb::choose_slots(call.in<int32_t>(2), call.in<int32_t>(3), call.in<uint8_t>(4), call.out<int32_t>(0),
                    call.out<int32_t>(1), call.out<uint8_t>(2), call.out<int32_t>(3), call.out<int32_t>(4),
                    call.out<int32_t>(5), call.record<Ring>(0), call.in<int32_t>(1)[0], call.result(0).length());
}

// next_in_episode, written, begins, ends (one may be empty) -> steps, next_in_episode.
inline void steps_in_episodes(const Call& call) {
  frb::steps_in_episodes(call.in<int32_t>(0), call.in<int32_t>(1), call.in<uint8_t>(2), call.in<uint8_t>(3),
                         call.out<int32_t>(0), call.out<int32_t>(1), call.result(1).length(), call.result(0).length());
}

// plan, distances, cursors, sizes, in_episode -> lane, back, slots, numbers.
inline void changed(const Call& call) {
  const Span<const int32_t> ranges = call.all_in<int32_t>(1);
  frb::changed(call.in<int32_t>(2), call.in<int32_t>(3), call.in<int32_t>(4), call.out<int32_t>(0), call.out<int32_t>(1),
               call.out<int32_t>(2), call.out<int32_t>(3), call.record<Ring>(0), ranges, call.result(0).length());
}

// plan, cursors, sizes, in_episode, slots -> weights.
inline void weights_at(const Call& call) {
  frb::weights_at(call.in<int32_t>(1), call.in<int32_t>(2), call.in<int32_t>(3), call.in<int32_t>(4),
                  call.out<int32_t>(0), call.record<Ring>(0), call.result(0).length());
}

// plan, cursors, sizes, in_episode, next_in_episode, starts, draws [S, 2], live (empty for all) -> as `Slices` has them.
inline void expand(const Call& call) {
  frb::expand(call.in<int32_t>(1), call.in<int32_t>(2), call.in<int32_t>(3), call.in<int32_t>(4), call.in<int32_t>(5),
              call.in<int32_t>(6), call.in<uint8_t>(7), call.out<int32_t>(0), call.out<int32_t>(1), call.out<uint8_t>(2),
              call.out<uint8_t>(3), call.out<uint8_t>(4), call.out<uint8_t>(5), call.record<Ring>(0),
              call.operand(5).length());
}

// plan, cursors, sizes, in_episode, slots -> slots [m, n], real [m, n].
inline void following(const Call& call) {
  const int64_t count = call.operand(4).length();
  frb::following(call.in<int32_t>(1), call.in<int32_t>(3), call.in<int32_t>(4), call.out<int32_t>(0),
                 call.out<uint8_t>(1), call.record<Ring>(0), count, call.result(0).length() / most<int64_t>(count, 1));
}

// plan, cursors, sizes, in_episode, slots -> before, after.
inline void extent(const Call& call) {
  frb::extent(call.in<int32_t>(1), call.in<int32_t>(2), call.in<int32_t>(3), call.in<int32_t>(4), call.out<int32_t>(0),
              call.out<int32_t>(1), call.record<Ring>(0), call.operand(4).length());
}

// plan, at, slots -> places.
inline void places(const Call& call) {
  frb::places(call.in<int32_t>(1), call.in<int32_t>(2), call.out<int32_t>(0), call.record<Chain>(0),
              call.operand(1).length(), call.operand(2).length());
}

// discounts [n], rewards [m, n, w], real -> total [m, w], steps [m].
template <class T> void fold(const Call& call) {
  const int64_t m = call.result(1).length();
  fold_each(call.in<T>(1), call.in<uint8_t>(2), call.out<T>(0), call.out<int32_t>(1), call.all_in<T>(0), m,
            call.result(0).length() / most<int64_t>(m, 1));
}
inline void fold_float32(const Call& call) { fold<float>(call); }
inline void fold_float64(const Call& call) { fold<double>(call); }

// held, ended, ids [rows, words], mask (empty for none) -> window, real, complete, waiting, pending.
inline void plan_line(const Call& call) {
  const int64_t rows = call.result(0).rows();
  frb::plan_line(call.in<int32_t>(0), call.in<uint8_t>(1), call.in<int32_t>(2), call.in<uint8_t>(3),
                 call.out<int32_t>(0), call.out<uint8_t>(1), call.out<uint8_t>(2), call.out<int32_t>(3),
                 call.out<int32_t>(4), call.operand(0).length(), call.operand(1).length(),
                 call.operand(2).length() / most<int64_t>(rows, 1), call.result(0).length() / most<int64_t>(rows, 1));
}

// plan, table, keys, counts, counters, rows -> ids.
inline void map_lookup(const Call& call) {
  frb::map_lookup(call.in<int32_t>(1), call.in<int32_t>(2), call.in<int32_t>(5), call.out<int32_t>(0),
                  call.record<Map>(0), call.operand(5).rows());
}

// plan, table, keys, counts, counters, rows, mask (empty for none) -> the map's four arrays, ids, fresh.
inline void map_insert(const Call& call) {
  frb::map_insert(call.out<int32_t>(0), call.out<int32_t>(1), call.out<int32_t>(2), call.out<int32_t>(3),
                  call.in<int32_t>(5), call.in<uint8_t>(6), call.out<int32_t>(4), call.out<uint8_t>(5),
                  call.record<Map>(0), call.operand(5).rows());
}

// draws [B, 2], n [B] or [] -> chosen [B].
inline void below(const Call& call) {
  below_each(call.in<int32_t>(0), call.in<int32_t>(1), call.out<int32_t>(0), call.operand(1).length(),
             call.result(0).length());
}

// key int64 [1] -> draws int32.
inline void fill_draws(const Call& call) {
  fill_random(call.in<int64_t>(0)[0], call.out<int32_t>(0), call.result(0).length());
}

// plan, cursor, written, shares, moves (empty if all do) -> slots, source, live, after, at.
inline void plan_frames(const Call& call) {
  frb::plan_frames(call.in<int32_t>(1), call.in<int32_t>(2), call.in<uint8_t>(3), call.in<uint8_t>(4),
                   call.out<int32_t>(0), call.out<int32_t>(1), call.out<uint8_t>(2), call.out<int32_t>(3),
                   call.out<int32_t>(4), call.record<Chain>(0), call.operand(1).length(), call.operand(3).length(),
                   call.result(0).length());
}

// plan, at, cursors, sizes, after -> slots, gone, cursors, sizes.
inline void overwritten(const Call& call) {
  frb::overwritten(call.in<int32_t>(1), call.in<int32_t>(2), call.in<int32_t>(3), call.in<int32_t>(4),
                   call.out<int32_t>(0), call.out<uint8_t>(1), call.out<int32_t>(3), call.record<Chain>(0),
                   call.operand(1).length(), call.operand(2).length(), call.result(0).length());
}

// order, place, count, slots, marked -> found.
inline void members(const Call& call) {
  frb::members(call.in<int32_t>(0), call.in<int32_t>(1), call.in<int32_t>(2), call.in<int32_t>(3), call.in<uint8_t>(4),
               call.out<uint8_t>(0), call.operand(0).length(), call.operand(3).length());
}

// order, place, boundary, positions, marked -> positions, slots, boundary, and how many of these are meant.
inline void exchanges(const Call& call) {
  call.out<int32_t>(3)[0] =
      int32_t(move_back(call.in<int32_t>(0), call.in<int32_t>(2), call.in<int32_t>(3), call.in<uint8_t>(4),
                        call.out<int32_t>(0), call.out<int32_t>(1), call.out<int32_t>(2), call.operand(0).length(),
                        call.operand(3).length()));
}

// order, place, count, slots, marked -> positions, slots, count, and how many of these are meant.
inline void appended(const Call& call) {
  call.out<int32_t>(3)[0] =
      int32_t(frb::appended(call.in<int32_t>(2), call.in<int32_t>(3), call.in<uint8_t>(4), call.out<int32_t>(0),
                            call.out<int32_t>(1), call.out<int32_t>(2), call.operand(3).length()));
}

// draws [B, 2], n -> chosen [B].
inline void distinct(const Call& call) {
  shuffle(call.in<int32_t>(0), 2, call.in<int32_t>(1)[0], call.out<int32_t>(0), call.result(0).length());
}

// bytes of a pixel, images [n, H, W, k], top, left -> windows [n, rows, columns, k].
inline void windows(const Call& call) {
  const int64_t* image = call.operand(1).dims;
  const int64_t* window = call.result(0).dims;
  frb::windows(call.in<char>(1), call.in<int32_t>(2), call.in<int32_t>(3), call.out<char>(0), image[0], image[1], image[2],
               window[1], window[2], call.in<int32_t>(0)[0]);
}

// Arrays, and others to wait for -> the same arrays, which lie in the same memory: XLA's reads come before its writes.
inline void barrier(const Call&) {}

}  // namespace handlers
FRB_END
