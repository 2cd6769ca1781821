// add, update and draws of a buffer for GPUs: the same bits as `buffer.h`, shared out among threads.
//
// A kernel is written for one block of a grid, as loops `block.each(n, f)` after each of which all threads of the block
// wait for each other; only what is copied (`block.move`) needs a `block.wait()` before others read it, or write what it
// read. Blocks never wait for other blocks. Who carries it out is a template's argument: a block of a GPU (`gpu.cu`), or
// one that is emulated (`tests/support/emulated_gpu.cpp`), by threads whose order tests choose, or that a sanitizer watches.
#pragma once
#include "records.h"
#include "buffer_call.h"
#include "episode_windows.h"
#include "positions.h"
#include "powers.h"

FRB_BEGIN

namespace gpu {

// Leaves of an item, and arrays that they lie in, that a call can name; and numbers of the records.
constexpr int MOST = 40, PLAN = 288, RINGS = 64, EPOCHS = 6;
// The same of rows beside the items: frames that these share, or steps that wait for others.
constexpr int MOST_BESIDE = 17, PLAN_BESIDE = 80, RECORD_BESIDE = 96;

// What a kernel is called with: the records and the addresses that lie with the host elsewhere are in it, so that a GPU
// reads all of it as constants. No larger than the 4,096 bytes that every GPU takes.
struct Call : BufferCall {
  int32_t plan[PLAN], ring[RINGS], epoch[EPOCHS];
  int32_t beside[RECORD_BESIDE], beside_plan[PLAN_BESIDE];
  char* storage[MOST];    // rows, and wide arrays
  char* rows_beside[MOST_BESIDE];
  char* items[2 * MOST];  // leaves that are added, or that are drawn; and behind them rows to save in
  int32_t* scratch;
  int64_t scratch_size;
  int64_t tile;           // so many draws, or rows, are a block's
  int64_t in_rings;       // whether handles name items in rings
  int64_t owners;         // so many blocks share the slots out among them
  int64_t ranked, lines;  // a block ranks the rows of so many lanes; so many lines of blocks compare frames
  int32_t ranges[6];      // what a write to each lane may change, by distances: see `episode_windows.h`
  int64_t range_count;
  int64_t returns_at;     // where in `beside` it says which returns are made as items are read
  FRB_INLINE char* const* saved() const { return items + given; }
  FRB_INLINE int64_t saved_arrays() const { return item_count - given; }
  // Leaves of another kind, where nothing is saved behind those that are named first.
  FRB_INLINE char* const* others() const { return items + MOST; }
};
static_assert(sizeof(Call) <= 4096, "as every GPU takes it");

FRB_INLINE Plan plan_of(const Call& call) { return Plan{{reinterpret_cast<const BufferRecord*>(call.plan)}}; }
FRB_INLINE Ring ring_of(const Call& call) { return Ring{reinterpret_cast<const RingRecord*>(call.ring)}; }
FRB_INLINE Epoch epoch_of(const Call& call) { return Epoch{reinterpret_cast<const EpochRecord*>(call.epoch)}; }

// Draws of a block, and groups of lanes, which its threads share; and all numbers that they share.
constexpr int MOST_DRAWS = 64, GROUPS = 256, SHARED = 512;

FRB_INLINE int64_t parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

// --- numbers, one at a time: see `numbers.h` ------------------------------------------------------------------------

// The bits of a priority to the power alpha as the tree holds it, BAD for a bad one.
FRB_INLINE int32_t value_of(const Plan& plan, int32_t bits) {
  if ((bits & 0x7FFFFFFF) == 0) return 0;
  if (bits < 0 || bits >= 0x7F800000) return BAD;
  int32_t power = most(bits, 0x00800000);
  if (!plan->alpha_is_one) {
    const uint64_t alpha = (uint64_t(plan->alpha_whole) << POINT) + uint64_t(plan->alpha_fraction);
    const uint64_t bias = (uint64_t(plan->bias_whole) << POINT) + uint64_t(plan->bias_fraction);
    power = exp2_of(times<uint64_t>(log2_biased(power), alpha) + ((RAISED << POINT) - bias));
  }
  return least(most(power, bits_of(SMALLEST)), bits_of(LARGEST));
}

// `(value / smallest) ** -beta`.
FRB_INLINE float weight_of(float value, float smallest, float beta) {
  if (!(beta >= 0)) return float_of(0x7FC00000);
  beta = least(beta, 1048576.0f);
  const int64_t whole = int64_t(beta);
  const uint64_t exponent = (uint64_t(whole) << POINT) + uint64_t((beta - float(whole)) * 2147483648.0f);
  const uint64_t more = 256, base = log2_biased(bits_of(most(smallest, SMALLEST)));
  const uint64_t distance = log2_biased(bits_of(most(value, SMALLEST))) + ((more << POINT) - base);
  return float_of(exp2_of((RAISED << POINT) + more * exponent - times<uint64_t>(distance, exponent)));
}

// The random words of a call, those that are given or those of its key; or those of another key.
struct Words {
  const int32_t* given;
  bool of_jax;
  uint64_t base;
  FRB_INLINE Words(bool of_jax, uint64_t key) : given(nullptr), of_jax(of_jax), base(of_jax ? key : mix(key + DRAW)) {}
  FRB_INLINE explicit Words(const Call& call) : given(call.draws), of_jax(call.threefry_at) {
    base = of_jax ? uint64_t(call.threefry_at[0]) << 32 | call.threefry_at[1]
                  : mix(uint64_t(call.key_at ? *call.key_at : call.key) + DRAW);
  }
  FRB_INLINE int32_t operator()(int64_t k) const {
    if (given) return given[k];
    return of_jax ? threefry_word(uint32_t(base >> 32), uint32_t(base), k) : int32_t(mix(base + uint64_t(k + 1) * GAMMA) >> 33);
  }
};

FRB_INLINE float beta_of(const Call& call) { return call.beta_at ? *call.beta_at : call.beta; }
// How many rows are drawn: as many as are asked for, but at least one.
FRB_INLINE int64_t asked(const Call& call) {
  return call.wanted_at ? most<int64_t>(1, least<int64_t>(*call.wanted_at, call.batch)) : call.batch;
}

// --- the sum tree: see `sum_tree.h` ---------------------------------------------------------------------------------

struct alignas(16) Four { float at[4]; };

struct Children {
  float at[FANOUT];
  // Rows of a tree begin at multiples of their size.
  FRB_INLINE explicit Children(const float* row) {
    FRB_UNROLL
    for (int k = 0; k < FANOUT; k += 4) {
      const Four four = *reinterpret_cast<const Four*>(row + k);
      at[k] = four.at[0], at[k + 1] = four.at[1], at[k + 2] = four.at[2], at[k + 3] = four.at[3];
    }
  }
  // Halves onto halves.
  FRB_INLINE float sum() const {
    float eight[8], four[4];
    FRB_UNROLL
    for (int k = 0; k < 8; ++k) eight[k] = at[k] + at[k + 8];
    FRB_UNROLL
    for (int k = 0; k < 4; ++k) four[k] = eight[k] + eight[k + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
  FRB_INLINE float smallest() const {
    uint32_t found = 0xFFFFFFFFu;
    FRB_UNROLL
    for (int k = 0; k < FANOUT; ++k) found = least(found, uint32_t(bits_of(at[k])) - 1u);
    return float_of(int32_t(found + 1u));
  }
  FRB_INLINE float largest() const {
    int32_t found = 0;
    FRB_UNROLL
    for (int k = 0; k < FANOUT; ++k) found = most(found, bits_of(at[k]));
    return float_of(found);
  }
  // Which one a draw in [0, 2^31) picks.
  FRB_INLINE int32_t pick(int32_t draw) const {
    const uint32_t moved = ((127 + 29) - (uint32_t(bits_of(sum())) >> 23)) << 23;
    int32_t reach[FANOUT], total = 0, passed = 0;
    FRB_UNROLL
    for (int k = 0; k < FANOUT; ++k) {
      const int32_t bits = bits_of(at[k]), scaled = int32_t(uint32_t(bits) + moved);
      if (bits > 0) total += int32_t(float_of(most(scaled, bits_of(1.0f))));
      reach[k] = total;
    }
    const int32_t target = int32_t(uint64_t(uint32_t(total)) * uint32_t(draw) >> POINT);
    FRB_UNROLL
    for (int k = 0; k < FANOUT; ++k) passed += reach[k] <= target;
    return passed;
  }
};

// The root's row of sums, of smallest or of largest.
FRB_INLINE const LevelRecord& top_of(const Plan& plan) { return plan.level(plan->levels - 1); }
FRB_INLINE const float* row(const float* tree, int64_t k) { return tree + k * FANOUT; }

// Write what other threads may write at the same time: what one of them has stays, be it which it may.
template <class T> FRB_INLINE void leave(T* at, T x) {
#if defined(__CUDACC__)
  *at = x;
#else
  __atomic_store(at, &x, __ATOMIC_RELAXED);
#endif
}
// Read it while others may still write it again as it is.
template <class T> FRB_INLINE T left_at(const T* at) {
#if defined(__CUDACC__)
  return *at;
#else
  T x;
  __atomic_load(at, &x, __ATOMIC_RELAXED);
  return x;
#endif
}

// Compute one of the three numbers of a node. Threads that do it for the same node find the same bits.
FRB_INLINE void refresh_number(const Plan& plan, float* tree, int64_t level, int64_t node, int which) {
  const LevelRecord &own = plan.level(level), &below = plan.level(level - 1);
  if (which == 0) leave(tree + int64_t(own.sums) * FANOUT + node, Children(row(tree, below.sums + node)).sum());
  if (which == 1) leave(tree + int64_t(own.smallest) * FANOUT + node, Children(row(tree, below.smallest + node)).smallest());
  if (which == 2) leave(tree + int64_t(own.largest) * FANOUT + node, Children(row(tree, below.largest + node)).largest());
}

template <class Block> FRB_INLINE void refresh_range(const Block& block, const Plan& plan, float* tree, int64_t first, int64_t count) {
  int64_t last = first + count - 1;
  for (int64_t level = 1; level < plan->levels; ++level) {
    first /= FANOUT, last /= FANOUT;
    block.each(3 * (last - first + 1), [&](int64_t k) { refresh_number(plan, tree, level, first + k / 3, int(k % 3)); });
  }
}

// Compute the nodes above given leaves, -1 for none, from a level on; all of a level where it has no more than leaves.
template <class Block, class Leaf>
FRB_INLINE void refresh_above(const Block& block, const Plan& plan, float* tree, int64_t first_level, int64_t count,
                              const Leaf& leaf) {
  int64_t below = 1;
  for (int64_t level = 1; level < plan->levels; ++level) {
    below *= FANOUT;
    if (level < first_level) continue;
    const int64_t nodes = plan.level(level).nodes;
    block.each(3 * least(nodes, count), [&](int64_t k) {
      const int64_t i = k / 3, from = nodes <= count ? i : leaf(i);
      if (from >= 0) refresh_number(plan, tree, level, nodes <= count ? i : short_div(from, below), int(k % 3));
    });
  }
}

// --- rows -----------------------------------------------------------------------------------------------------------

// Copy `bytes` for each of `count` places between where `to` and `from` say; nothing to a place of null. What is copied by
// several calls with one `turn` is copied at the same time, by other threads where there are enough. Nobody waits for it.
template <class Piece, class Block, class To, class From>
FRB_INLINE void copy_pieces(const Block& block, int64_t& turn, int64_t count, int64_t bytes, const To& to, const From& from) {
  const uint32_t pieces = uint32_t(bytes / int64_t(sizeof(Piece)));
  block.template move<Piece>(count * pieces, turn, [&](int64_t k, Piece& held) {
    const int64_t place = pieces == 1 ? k : int64_t(uint32_t(k) / pieces), piece = k - place * pieces;
    Piece* target = reinterpret_cast<Piece*>(to(place));
    if (!target) return target;
    held = reinterpret_cast<const Piece*>(from(place))[piece];
    return target + piece;
  });
}
template <class Block, class To, class From>
FRB_INLINE void copy_each(const Block& block, int64_t& turn, int64_t count, int64_t bytes, uint64_t alignment, const To& to,
                          const From& from) {
  if (alignment % 16 == 0 && bytes % 16 == 0) copy_pieces<Four>(block, turn, count, bytes, to, from);
  else if (alignment % 4 == 0 && bytes % 4 == 0) copy_pieces<int32_t>(block, turn, count, bytes, to, from);
  else copy_pieces<char>(block, turn, count, bytes, to, from);
}

// By how much places in two arrays are aligned, whose items lie so many bytes apart.
FRB_INLINE uint64_t aligned(const char* a, int64_t a_stride, const char* b, int64_t b_stride) {
  return reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | uint64_t(a_stride) | uint64_t(b_stride);
}
FRB_INLINE uint64_t unit_of(uint64_t all) { return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1; }

// The bytes of an item in an array that a line of blocks copies: those of a wide array they share out among them, and
// what is packed one line has alone, as leaves lie in it anyhow.
struct Part {
  int64_t first, width;
};
template <class Block> FRB_INLINE Part part_of(const Block& block, int64_t array, int64_t bytes) {
  if (array == 0) return {0, block.y() == 0 ? bytes : 0};
  const int64_t share = ((bytes + 15) / 16 + block.rows() - 1) / block.rows() * 16, first = block.y() * share;
  return {first, most<int64_t>(least(share, bytes - first), 0)};
}

// Save whole items from `slot(i)` in rows from `first` on.
template <class Block, class Slot>
FRB_INLINE void save_items(const Block& block, const Call& call, const Plan& plan, int64_t first, int64_t count,
                           const Slot& slot) {
  int64_t turn = 0;
  for (int64_t k = 0; k < call.saved_arrays(); ++k) {
    const int64_t bytes = plan.stored_bytes(k);
    const Part part = part_of(block, k, bytes);
    if (!part.width) continue;
    char *stored = call.storage[k] + part.first, *rows = call.saved()[k] + first * bytes + part.first;
    copy_each(block, turn, count, part.width, unit_of(aligned(stored, bytes, rows, bytes)),
              [&](int64_t i) { return rows + i * bytes; }, [&](int64_t i) { return stored + slot(i) * bytes; });
  }
  block.wait();
}

// Write the leaves that are given of `row(i)`, which is negative for none, to `slot(i)`.
template <class Block, class Row, class Slot>
FRB_INLINE void store_items(const Block& block, const Call& call, const Plan& plan, int64_t count, const Row& row,
                            const Slot& slot) {
  int64_t turn = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) {
    const LeafRecord& leaf = plan.leaf(k);
    const int64_t bytes = leaf.bytes, stride = plan.stored_bytes(leaf.storage);
    const Part part = part_of(block, leaf.storage, bytes);
    if (!part.width || !call.items[k]) continue;
    char *stored = call.storage[leaf.storage] + leaf.offset + part.first, *rows = call.items[k] + part.first;
    copy_each(block, turn, count, part.width, unit_of(aligned(stored, stride, rows, bytes)),
              [&](int64_t i) { return row(i) < 0 ? nullptr : stored + slot(i) * stride; },
              [&](int64_t i) { return rows + row(i) * bytes; });
  }
}

// --- add ------------------------------------------------------------------------------------------------------------

// Which row of a masked batch goes to each place behind the cursor, -1 for none, int32 [scratch_size], and behind that
// how many rows are marked. By one block, before `add`.
template <class Block> FRB_INLINE void rank(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  int32_t* source = call.scratch;
  const int64_t places = call.scratch_size;
  block.each(places, [&](int64_t i) { source[i] = -1; });
  const int64_t marked = block.total(call.batch, [&](int64_t i) { return int64_t(call.mask[i] != 0); });
  const int64_t skipped = most<int64_t>(marked - plan->capacity, 0);
  block.ranks(call.batch, [&](int64_t i) { return call.mask[i] != 0; }, [&](int64_t i, int64_t found) {
    if (found >= skipped) source[found - skipped] = int32_t(i);
  });
  block.each(1, [&](int64_t) { source[places] = int32_t(marked); });
}

// What both parts of `add` know of a batch.
struct Added {
  Plan plan;
  const int32_t* source;
  int64_t marked, skipped, first, written;
  FRB_INLINE explicit Added(const Call& call) : plan(plan_of(call)), source(call.mask ? call.scratch : nullptr) {
    marked = source ? int64_t(source[call.scratch_size]) : call.batch;
    skipped = most<int64_t>(marked - plan->capacity, 0);
    first = floor_mod(int64_t(call.counters[CURSOR]) + skipped, plan->capacity);
    written = marked - skipped;
  }
  FRB_INLINE int64_t slot(int64_t place) const {
    const int64_t slot = first + place;
    return slot < plan->capacity ? slot : slot - plan->capacity;
  }
  // The row that goes to a place, -1 for none.
  FRB_INLINE int64_t row(int64_t place) const { return source ? int64_t(source[place]) : place + skipped; }
};

FRB_INLINE void count(const Call& call, int64_t cursor, int64_t size, int64_t rejected, int64_t stale, int32_t peak) {
  call.new_counters[CURSOR] = int32_t(cursor);
  call.new_counters[SIZE] = int32_t(size);
  call.new_counters[REJECTED] = saturated(int64_t(call.counters[REJECTED]) + rejected);
  call.new_counters[STALE] = saturated(int64_t(call.counters[STALE]) + stale);
  call.new_counters[PEAK] = peak;
  call.new_counters[INVALID] = call.counters[INVALID];
}

// The value of a new item without a priority, or with a bad one: see `new_value`. Read before a leaf is written.
FRB_INLINE int32_t value_by_default(const Call& call, const Plan& plan) {
  if (!plan->levels) return 0;
  const float known =
      plan->ever ? float_of(call.counters[PEAK]) : Children(row(call.tree, top_of(plan).largest)).largest();
  return bits_of(known > 0 ? known : 1.0f);
}

// The tree's part, and the counters: by the first block.
template <class Block> FRB_INLINE void add_priorities(const Block& block, const Call& call, const Added& batch) {
  const Plan& plan = batch.plan;
  float* tree = call.tree;
  int64_t rejected = 0;
  int32_t peak = call.counters[PEAK];
  if (plan->levels) {
    const int32_t by_default = value_by_default(call, plan);
    auto given = [&](int64_t place) { return call.priorities ? value_of(plan, call.priorities[batch.row(place)]) : BAD; };
    auto value = [&](int64_t place) { return given(place) >= 0 ? given(place) : by_default; };
    const int64_t saved = call.saved_values ? least<int64_t>(call.batch, plan->capacity) : 0;
    // Behind this all have also read the largest, before a leaf is written.
    block.each(saved, [&](int64_t p) { call.saved_values[p] = tree[batch.slot(p)]; });
    block.each(batch.written, [&](int64_t p) { tree[batch.slot(p)] = float_of(value(p)); });
    if (call.priorities) rejected = block.total(batch.written, [&](int64_t p) { return int64_t(given(p) < 0); });
    peak = most(peak, block.largest(batch.written, value));
    const int64_t head = least(batch.written, plan->capacity - batch.first);
    if (head) refresh_range(block, plan, tree, batch.first, head);
    if (batch.written > head) refresh_range(block, plan, tree, 0, batch.written - head);
  }
  block.each(1, [&](int64_t) {
    count(call, floor_mod(int64_t(call.counters[CURSOR]) + batch.marked, plan->modulus),
          least<int64_t>(int64_t(call.counters[SIZE]) + batch.marked, plan->capacity), rejected, 0, peak);
  });
}

// Write a batch. Each column of blocks but the first saves and writes `tile` places; the first has the tree and the
// counters. Slots behind those that are written are saved too, as they are: how many rows are marked the host does not
// know.
template <class Block> FRB_INLINE void add(const Block& block, const Call& call) {
  const Added batch(call);
  if (block.x() == 0) {
    if (block.y() == 0) add_priorities(block, call, batch);
    return;
  }
  const int64_t places = least<int64_t>(call.batch, batch.plan->capacity), begin = (block.x() - 1) * call.tile;
  const int64_t here = most<int64_t>(least(call.tile, places - begin), 0);
  auto slot = [&](int64_t i) { return batch.slot(begin + i); };
  if (call.saved_slots && block.y() == 0)
    block.each(here, [&](int64_t i) { call.saved_slots[begin + i] = int32_t(slot(i)); });
  save_items(block, call, batch.plan, begin, here, slot);
  store_items(block, call, batch.plan, here, [&](int64_t i) { return batch.row(begin + i); }, slot);
}

// --- draws ----------------------------------------------------------------------------------------------------------

FRB_INLINE void tell(const Call& call, int64_t i, int32_t handle, float weight, float probability) {
  call.handles[i] = handle, call.weights[i] = weight, call.probabilities[i] = probability;
}

// `Uniform.draw`; returns the slot, and tells of the item.
template <class Tell>
FRB_INLINE int32_t draw_uniform(const Call& call, const Plan& plan, const Words& words, int64_t i, const Tell& tell) {
  const int64_t size = call.counters[SIZE], modulus = plan->modulus;
  const int64_t oldest = floor_mod(int64_t(call.counters[CURSOR]) - size, modulus);
  const float weight = size ? 1.0f : 0.0f, chance = weight * (1.0f / float(most<int64_t>(size, 1)));
  const int32_t two[2] = {words(i * call.words), words(i * call.words + 1)};
  const int64_t position = below(two, size);
  int64_t handle = oldest + position;
  if (handle >= modulus) handle -= modulus;
  if (call.current) handle = call.current[bounded(position, plan->capacity)];
  tell(size ? int32_t(handle) : -1, weight, chance);
  return int32_t(call.current ? bounded(position, plan->capacity) : short_mod(handle, plan->capacity));
}

// Sum up how many items lie in the lanes, or count there, up to the end of each group, to numbers that the threads share.
template <class Block, class Size>
FRB_INLINE void count_groups(const Block& block, const Ring& ring, int32_t* ends, const Size& size) {
  const int64_t lanes = ring->lanes, each = parts(lanes, GROUPS);
  block.running(parts(lanes, each), [&](int64_t group) {
    int32_t sum = 0;
    for (int64_t lane = group * each; lane < least(lanes, (group + 1) * each); ++lane) sum += int32_t(size(lane));
    return sum;
  }, [](int32_t a, int32_t b) { return a + b; }, [&](int64_t group, int32_t found) { ends[group] = found; });
}
template <class Block>
FRB_INLINE void count_groups(const Block& block, const Call& call, const Ring& ring, int32_t* ends) {
  count_groups(block, ring, ends, [&](int64_t lane) { return call.counters[ring->sizes + lane]; });
}

// The lane that a position lies in, counted lane by lane, and how many items there are in those before it. `ends` are those of
// `count_groups`; of a single lane nobody asks them.
struct InLane {
  int64_t lane, before;
};
template <class Size> FRB_INLINE InLane find_lane(const Ring& ring, const int32_t* ends, int64_t position, const Size& size) {
  const int64_t lanes = ring->lanes, each = parts(lanes, GROUPS);
  int64_t group = 0, last = parts(lanes, each) - 1;
  while (group < last) {
    const int64_t middle = (group + last) / 2;
    if (ends[middle] > position) last = middle;
    else group = middle + 1;
  }
  int64_t lane = group * each, before = group ? ends[group - 1] : 0;
  for (; lane + 1 < lanes && before + size(lane) <= position; ++lane) before += size(lane);
  return {lane, before};
}
FRB_INLINE InLane find_lane(const Call& call, const Ring& ring, const int32_t* ends, int64_t position) {
  return find_lane(ring, ends, position, [&](int64_t lane) { return int64_t(call.counters[ring->sizes + lane]); });
}

// `Uniform.draw` of several lanes: positions are counted lane by lane.
template <class Tell>
FRB_INLINE int32_t draw_uniform_in_rings(const Call& call, const Ring& ring, const Words& words, const int32_t* ends,
                                         int64_t i, const Tell& tell) {
  const int32_t *cursors = call.counters + ring->cursors, *sizes = call.counters + ring->sizes;
  const int64_t size = call.counters[SIZE], length = ring->length;
  const int32_t two[2] = {words(i * call.words), words(i * call.words + 1)};
  const int64_t position = below(two, size);
  const auto [lane, before] = find_lane(call, ring, ends, position);
  const int64_t number = floor_mod(int64_t(cursors[lane]) - sizes[lane] + position - before, length * ring->turns);
  const int64_t turn = short_div(number, length), slot = lane * length + number - turn * length;
  const float weight = size ? 1.0f : 0.0f;
  tell(size ? int32_t(turn * ring->capacity + slot) : -1, weight, weight * (1.0f / float(most<int64_t>(size, 1))));
  return int32_t(slot);
}

// `Recency.draw`: the newest of several draws, each by two words.
template <class Tell>
FRB_INLINE int32_t draw_recent(const Call& call, const Ring& ring, const Words& words, const int32_t* ends, int64_t i,
                               bool tells, const Tell& tell) {
  const int64_t size = call.counters[SIZE];
  int64_t lane = 0, back = 0;
  for (int64_t k = 0; k < call.words; k += 2) {
    const int32_t two[2] = {words(i * call.words + k), words(i * call.words + k + 1)};
    const int64_t position = below(two, size);
    const auto [other, before] = find_lane(call, ring, ends, position);
    const int64_t distance = before + size_of(ring, call.counters, other) - position;
    if (!k || distance < back) lane = other, back = distance;
  }
  const Item item = item_at(ring, call.counters, lane, size_of(ring, call.counters, lane) - back);
  if (tells) {
    auto in_lane = [&](int64_t k) { return size_of(ring, call.counters, k); };
    tell(size ? item.handle : -1, size ? 1.0f : 0.0f, chance_of_newest(ring->lanes, in_lane, size, back, call.words / 2));
  }
  return item.slot;
}

// The handle of the item in a slot.
FRB_INLINE int32_t handle_of(const Call& call, const Plan& plan, int64_t slot) {
  const Ring ring = ring_of(call);
  if (call.current) return call.current[slot];
  if (ring->lanes > 1) return handle_in_ring(ring, {call.counters + ring->cursors, call.counters + ring->sizes}, slot);
  const int64_t capacity = plan->capacity, cursor = call.counters[CURSOR], next = floor_mod(cursor, capacity);
  const int64_t behind = slot < next ? next - slot : next - slot + capacity;
  return int32_t(behind <= cursor ? cursor - behind : cursor - behind + plan->modulus);
}

// The leaf that the words of a draw choose.
FRB_INLINE int32_t descend(const Call& call, const Plan& plan, const Words& words, int64_t i) {
  const int64_t top = plan->levels - 1;
  int32_t node = 0;
  for (int64_t depth = 0; depth <= top; ++depth) {
    const LevelRecord& level = plan.level(top - depth);
    const int32_t child = Children(row(call.tree, int64_t(level.sums) + node)).pick(words(i * call.words + depth));
    node = least(node * FANOUT + child, level.nodes - 1);
  }
  return node;
}

// `Prioritized.draw`, and `Uniform.draw` with a limit.
template <class Tell>
FRB_INLINE int32_t draw_prioritized(const Call& call, const Plan& plan, const Words& words, int64_t i, bool tells,
                                    const Tell& tell) {
  const float* tree = call.tree;
  const float total = Children(row(tree, top_of(plan).sums)).sum();
  if (!(total > 0)) {
    tell(-1, 0.0f, 0.0f);
    return 0;
  }
  const int32_t node = descend(call, plan, words, i);
  if (!tells) return node;
  if (!plan->prioritized) {  // a 1 for each item that may be drawn
    tell(handle_of(call, plan, node), 1.0f, 1.0f / float(most<int64_t>(counted(total), 1)));
    return node;
  }
  const float value = tree[node], smallest = Children(row(tree, top_of(plan).smallest)).smallest();
  tell(handle_of(call, plan, node), weight_of(value, smallest, beta_of(call)), most(value * (1.0f / total), LEAST_CHANCE));
  return node;
}

// Read a leaf of items from `slot(i)`, nothing from a negative one, to rows from `first` on; of wide items each line of blocks
// a share of the bytes.
template <class Block, class Slot>
FRB_INLINE void load_leaf(const Block& block, const Call& call, const Plan& plan, int64_t& turn, int64_t k, int64_t first,
                          int64_t count, const Slot& slot) {
  const LeafRecord& leaf = plan.leaf(k);
  const int64_t bytes = leaf.bytes, stride = plan.stored_bytes(leaf.storage);
  if (!bytes || !call.items[k]) return;
  const char* stored = call.storage[leaf.storage] + leaf.offset;
  char* rows = call.items[k] + first * bytes;
  const int64_t unit = int64_t(unit_of(aligned(stored, stride, rows, bytes) | uint64_t(bytes)));
  const int64_t share = parts(bytes / unit, block.rows()) * unit, from = block.y() * share;
  const int64_t width = least(share, bytes - from);
  if (width > 0)
    copy_each(block, turn, count, width, uint64_t(unit),
              [&](int64_t i) { return slot(i) < 0 ? nullptr : rows + i * bytes + from; },
              [&](int64_t i) { return stored + int64_t(slot(i)) * stride + from; });
}
// The same of all leaves.
template <class Block, class Slot>
FRB_INLINE void load_items(const Block& block, const Call& call, const Plan& plan, int64_t first, int64_t count,
                           const Slot& slot) {
  int64_t turn = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) load_leaf(block, call, plan, turn, k, first, count, slot);
}

// Tell a draw's counters, which it leaves as they are, so that what needs them comes once all has been read.
template <class Block> FRB_INLINE void hand_on_counters(const Block& block, const Call& call) {
  if (call.new_counters && block.x() == 0 && block.y() == 0)
    block.each(ring_of(call)->counters, [&](int64_t k) { call.new_counters[k] = call.counters[k]; });
}

// Draw one item, the i-th of the random words; `ends` are those of `count_groups`, where they are needed.
template <class Tell>
FRB_INLINE int32_t draw_item(const Call& call, const Plan& plan, const Ring& ring, const Words& words, const int32_t* ends,
                             int64_t i, bool tells, const Tell& tell) {
  auto told = [&](int32_t handle, float weight, float chance) { if (tells) tell(handle, weight, chance); };
  return plan->levels            ? draw_prioritized(call, plan, words, i, tells, told)
         : plan->draws == RECENT ? draw_recent(call, ring, words, ends, i, tells, told)
         : ring->lanes > 1       ? draw_uniform_in_rings(call, ring, words, ends, i, told)
                                 : draw_uniform(call, plan, words, i, told);
}

// Draw by random words of the key: each column of blocks `tile` items, to slots that its threads share. The blocks of the
// first line tell which; each line draws them again. Returns how many; `ends` has room for GROUPS.
template <class Block> FRB_INLINE int64_t draw_slots(const Block& block, const Call& call, int32_t* slots, int32_t* ends) {
  const Plan plan = plan_of(call);
  const Ring ring = ring_of(call);
  const Words words(call);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, asked(call) - begin), 0);
  hand_on_counters(block, call);
  if (ring->lanes > 1 && !plan->levels) count_groups(block, call, ring, ends);
  block.each(here, [&](int64_t i) {
    slots[i] = draw_item(call, plan, ring, words, ends, begin + i, block.y() == 0, [&](int32_t handle, float weight, float chance) {
      tell(call, begin + i, handle, weight, chance);
    });
    if (block.y() == 0 && call.slots) call.slots[begin + i] = slots[i];
  });
  return here;
}

template <class Block> FRB_INLINE void sample(const Block& block, const Call& call) {
  int32_t* slots = block.shared();
  const int64_t begin = block.x() * call.tile, here = draw_slots(block, call, slots, slots + MOST_DRAWS);
  load_items(block, call, plan_of(call), begin, here, [&](int64_t i) { return slots[i]; });
}

}  // namespace gpu

FRB_END
