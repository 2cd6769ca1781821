// The kernels that XLA and Python call otherwise than by their own parameters, as their arrays' number is a buffer's.
//
// `functional_rb/native/kernels.py` declares what they are called with: first records, then operands.
#pragma once
#include "epochs.h"
#include "frame_ring.h"
#include "hash_map.h"
#include "images.h"
#include "spans.h"
#include "step_queue.h"
#include "updates.h"
#include "xla_frame.h"

FRB_BEGIN
namespace handlers {

// The addresses of consecutive operands, or results.
class Places {
 public:
  template <class At> Places(int64_t count, const At& at) : at_(count) {
    for (int64_t k = 0; k < count; ++k) at_[k] = reinterpret_cast<int64_t>(at(k));
  }
  operator Addresses() const { return at_; }

 private:
  Scratch<int64_t> at_;
};
inline Places sources(const Call& call, int64_t first, int64_t count) {
  return {count, [&](int64_t k) { return call.in<char>(first + k); }};
}
inline Places targets(const Call& call, int64_t first, int64_t count) {
  return {count, [&](int64_t k) { return call.out<char>(first + k); }};
}

// A call on a buffer whose record is the first operand, with its storage and leaves.
struct Whole : BufferCall {
  int64_t saved[4];

  Whole(const Call& call, Addresses rows, Addresses leaves) : BufferCall{} {
    plan = call.in<int32_t>(0), saved_count = saved;
    storage = rows.at, arrays = rows.size, items = leaves.at, given = item_count = leaves.size;
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
  const Places storage = targets(call, 0, 1 + wide), leaves = sources(call, 7 + wide, plan->leaves);
  Whole c(call, storage, leaves);
  c.batch = call.in<int32_t>(1)[0], c.tree = call.out<float>(1 + wide);
  c.counters = call.in<int32_t>(4 + wide), c.new_counters = call.out<int32_t>(2 + wide);
  c.mask = call.in<uint8_t>(5 + wide), c.priorities = call.in<int32_t>(6 + wide);
  frb::add(c);
}

// plan, rings, rows, *wide, tree, counters, draws, beta, wanted (empty for all) -> *leaves, handles, weights, probabilities.
inline void draw(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const int64_t wide = plan->wide, last = plan->leaves;
  const Places storage = sources(call, 2, 1 + wide), leaves = targets(call, 0, last);
  const Operand draws = call.operand(5 + wide);
  Whole c(call, storage, leaves);
  c.ring = call.in<int32_t>(1), c.tree = const_cast<float*>(call.in<float>(3 + wide)), c.counters = call.in<int32_t>(4 + wide);
  c.draws = call.in<int32_t>(5 + wide), c.words = draws.columns(), c.beta = *call.in<float>(6 + wide);
  c.batch = asked(call, 7 + wide, draws.rows());
  c.handles = call.out<int32_t>(last), c.weights = call.out<float>(last + 1), c.probabilities = call.out<float>(last + 2);
  frb::draw(c);
}

// plan, tree, counters, handles, priorities -> tree, counters; where leaves are rewritten also rows, *wide, *leaves (empty
// for those that are not) -> rows, *wide.
inline void update(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const bool rewrites = call.operands() > 5;
  const int64_t arrays = rewrites ? 1 + plan->wide : 0, given = rewrites ? plan->leaves : 0;
  const Places storage = targets(call, 2, arrays), leaves = sources(call, 5 + arrays, given);
  Whole c(call, storage, leaves);
  c.batch = call.operand(3).length(), c.tree = call.out<float>(0);
  c.counters = call.in<int32_t>(2), c.new_counters = call.out<int32_t>(1);
  c.given_handles = call.in<int32_t>(3), c.priorities = call.in<int32_t>(4);
  frb::update(c);
}

// plan, windows, tree, kept, counters, handles, priorities, in_episode -> tree, kept, counters.
inline void update_priorities(const Call& call) {
  Whole c(call, {}, {});
  c.ring = call.in<int32_t>(1), c.batch = call.operand(5).length();
  c.tree = call.out<float>(0), c.kept = call.out<float>(1);
  c.counters = call.in<int32_t>(4), c.new_counters = call.out<int32_t>(2);
  c.given_handles = call.in<int32_t>(5), c.priorities = call.in<int32_t>(6);
  c.in_episode = const_cast<int32_t*>(call.in<int32_t>(7));
  frb::update(c);
}

// key uint32 [2], wanted (empty for all) -> draws int32 [B, words].
inline void threefry(const Call& call) {
  const uint32_t* key = call.in<uint32_t>(0);
  const Operand draws = call.result(0);
  fill_threefry(key[0], key[1], call.out<int32_t>(0), asked(call, 1, draws.rows()) * draws.columns());
}

// plan, rows, *wide, slots -> *leaves.
inline void read(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const Places storage = sources(call, 1, 1 + plan->wide), leaves = targets(call, 0, plan->leaves);
  const int64_t slots = 2 + plan->wide;
  frb::read(plan, storage, call.operand(1).rows(), {call.in<int32_t>(slots), call.operand(slots).length()}, leaves);
}

// plan, rows, *wide, slots, source, live (empty for none), *leaves [B, *shape] -> rows, *wide.
inline void store(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const int64_t slots = 2 + plan->wide;
  const Places storage = targets(call, 0, 1 + plan->wide), leaves = sources(call, slots + 3, plan->leaves);
  frb::store(plan, storage, call.result(0).rows(), {call.in<int32_t>(slots), call.operand(slots).length()},
             call.in<int32_t>(slots + 1), call.in<uint8_t>(slots + 2), leaves, call.operand(slots + 3).rows());
}

// plan, *leaves [B, *shape] -> rows [B, words].
inline void pack(const Call& call) {
  const Plan plan = call.record<Plan>(0);
  const Places leaves = sources(call, 1, plan->leaves), rows = targets(call, 0, 1);
  const int64_t batch = call.result(0).rows();
  memset(call.out<char>(0), 0, size_t(batch * plan.stored_bytes(0)));
  for (int64_t i = 0; i < batch; ++i) store_item(plan, rows, i, leaves, i);
}

// Arrays, and others to wait for -> the same arrays, which lie in the same memory: XLA's reads come before its writes.
inline void barrier(const Call&) {}

}  // namespace handlers
FRB_END
