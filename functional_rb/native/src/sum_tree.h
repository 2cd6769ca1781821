// The sum tree: one node's children, FANOUT numbers side by side, as vectors of the processor; `structures.sum_tree`.
#pragma once
#include "numbers.h"

FRB_BEGIN

typedef float Floats __attribute__((vector_size(4 * FANOUT), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * FANOUT), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(4 * FANOUT), aligned(4)));
typedef float Floats8 __attribute__((vector_size(32), aligned(4)));
typedef float Floats4 __attribute__((vector_size(16), aligned(4)));
typedef int32_t Ints4 __attribute__((vector_size(16), aligned(4)));

// `v` moved by so many places, zeros coming in.
#if defined(__clang__) || __GNUC__ >= 12
#define FRB_UP4(v, a, b, c, d) __builtin_shufflevector(v, Ints4{}, a, b, c, d)
#else
#define FRB_UP4(v, a, b, c, d) __builtin_shuffle(v, Ints4{}, Ints4{a, b, c, d})
#endif

// The sum of a row, halves onto halves.
FRB_INLINE float add_up(const float* row) {
  Floats8 a, b;
  memcpy(&a, row, 32);
  memcpy(&b, row + 8, 32);
  a = a + b;
  Floats4 c, d;
  memcpy(&c, &a, 16);
  memcpy(&d, reinterpret_cast<const char*>(&a) + 16, 16);
  c = c + d;
  return (c[0] + c[2]) + (c[1] + c[3]);
}

// The bits of the smallest positive number of a row, 0 if there is none: positive floats are ordered as their bits are,
// and less one, zero is the largest of the unsigned.
FRB_INLINE int32_t smallest(const float* row) {
  uint32_t found = 0xFFFFFFFFu;
  for (int i = 0; i < FANOUT; ++i) found = least(found, uint32_t(bits_of(row[i])) - 1u);
  return int32_t(found + 1u);
}

// The bits of the largest number of a row, none of which is negative.
FRB_INLINE int32_t largest(const float* row) {
  int32_t found = bits_of(row[0]);
  for (int i = 1; i < FANOUT; ++i) found = most(found, bits_of(row[i]));
  return found;
}

// Which child of a row a draw in [0, 2^31) picks; `unit` is the power of two that brings their sum into [1, 2).
FRB_INLINE int64_t pick_child(const float* row, float unit, int32_t draw) {
  Ints4 sums[4];
  for (int k = 0; k < 4; ++k) {
    Floats4 children;
    memcpy(&children, row + 4 * k, 16);
    const Ints4 whole = __builtin_convertvector((children * unit) * 536870912.0f, Ints4);
    const Ints4 positive = (children > 0.0f) & 1;
    Ints4 x = whole > positive ? whole : positive;
    x += FRB_UP4(x, 4, 0, 1, 2);
    x += FRB_UP4(x, 4, 4, 0, 1);
    sums[k] = x;
  }
  for (int k = 1; k < 4; ++k) sums[k] += FRB_UP4(sums[k - 1], 3, 3, 3, 3);
  const uint64_t total = uint32_t(sums[3][3]);
  const int32_t target = int32_t((total * uint64_t(uint32_t(draw))) >> 31);
  const Ints4 passed = (sums[0] <= target) + (sums[1] <= target) + (sums[2] <= target) + (sums[3] <= target);
  return -(passed[0] + passed[1] + passed[2] + passed[3]);
}

// Compute one node from its children.
FRB_INLINE void refresh_node(const LevelRecord& own, const LevelRecord& below, float* tree, int64_t node) {
  tree[int64_t(own.sums) * FANOUT + node] = add_up(tree + (below.sums + node) * FANOUT);
  const float low = float_of(smallest(tree + (below.smallest + node) * FANOUT));
  tree[int64_t(own.smallest) * FANOUT + node] = low;
  tree[int64_t(own.largest) * FANOUT + node] = float_of(largest(tree + (below.largest + node) * FANOUT));
}

// Compute all nodes above `count` leaves from `first` on.
inline void refresh_range(const Plan& plan, float* tree, int64_t first, int64_t count) {
  int64_t last = first + count - 1;
  for (int64_t level = 1; level < plan->levels; ++level) {
    first /= FANOUT;
    last /= FANOUT;
    const LevelRecord &own = plan.level(level), &below = plan.level(level - 1);
    for (int64_t node = first; node <= last; ++node) refresh_node(own, below, tree, node);
  }
}

// A level is swept by marking its nodes if it has at most so many for each that changed below, else node by node.
constexpr int64_t SPARSE = 2;

// Compute all nodes above given leaves, which are written over.
inline void refresh(const Plan& plan, float* tree, int32_t* nodes, int64_t count) {
  for (int64_t level = 1; level < plan->levels; ++level) {
    const LevelRecord &own = plan.level(level), &below = plan.level(level - 1);
    int64_t kept = 0;
    if (own.nodes > SPARSE * count) {
      for (int64_t i = 0; i < count; ++i) {
        const int32_t node = nodes[i] / FANOUT;
        if (kept && nodes[kept - 1] == node) continue;
        nodes[kept++] = node;
        refresh_node(own, below, tree, node);
      }
    } else {
      Scratch<uint8_t> marked(own.nodes, true);
      for (int64_t i = 0; i < count; ++i) marked[nodes[i] / FANOUT] = 1;
      for (int32_t node = 0; node < own.nodes; ++node)
        if (marked[node]) {
          nodes[kept++] = node;
          refresh_node(own, below, tree, node);
        }
    }
    count = kept;
  }
}

// Which leaves draws choose, int32 [count]; `sum_tree.descend`. Level by level, so that cache misses of draws overlap.
// Draws lie `stride` words apart. Returns the total.
inline float descend_levels(const Plan& plan, const float* tree, const int32_t* draws, int64_t stride, int32_t* slots,
                                int64_t count) {
  const int64_t top = plan->levels - 1;
  const float total = add_up(tree + int64_t(plan.level(top).sums) * FANOUT);
  Scratch<float> sums(count);
  for (int64_t i = 0; i < count; ++i) sums[i] = total, slots[i] = 0;
  for (int64_t depth = 0; depth <= top; ++depth) {
    const LevelRecord& level = plan.level(top - depth);
    const int64_t first = level.sums, last = level.nodes - 1;
    for (int64_t i = 0; i < count; ++i) {
      // A node equals the sum of its children bit for bit, so the parent's value is at hand.
      const float unit = float_of(int32_t(uint32_t(254 - (bits_of(sums[i]) >> 23)) << 23));
      const float* row = tree + (first + slots[i]) * FANOUT;
      const int64_t child = least<int64_t>(pick_child(row, unit, draws[i * stride + depth]), FANOUT - 1);
      sums[i] = row[child];
      slots[i] = int32_t(least(int64_t(slots[i]) * FANOUT + child, last));
    }
  }
  return total;
}

FRB_ENTRY void descend(const float* tree, const int32_t* draws, int32_t* slots, Plan plan, int64_t batch, int64_t words) {
  descend_levels(plan, tree, draws, words, slots, batch);
}

// Write leaves and what is above them; what is no leaf is left out. `sum_tree.set_leaves`.
FRB_ENTRY void set_leaves(float* tree, const int32_t* leaves, const float* values, Plan plan, int64_t count) {
  const int64_t capacity = plan.level(0).nodes;
  Scratch<int32_t> changed(count);
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i)
    if (0 <= leaves[i] && leaves[i] < capacity) {
      tree[leaves[i]] = values[i];
      changed[found++] = leaves[i];
    }
  refresh(plan, tree, changed.at, found);
}

FRB_END
