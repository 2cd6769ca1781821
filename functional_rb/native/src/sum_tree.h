// The sum tree: one node's children, FANOUT numbers side by side, as vectors of the processor; `structures.sum_tree`.
#pragma once
#include "numbers.h"

FRB_BEGIN

// The lower and the upper halves of each four of two vectors, one from each in turn.
FRB_INLINE Floats lower(Floats v, Floats w) { return FRB_SHUFFLE(v, w, FRB_LANES(0, SIDE, 1, SIDE + 1)); }
FRB_INLINE Floats upper(Floats v, Floats w) { return FRB_SHUFFLE(v, w, FRB_LANES(2, SIDE + 2, 3, SIDE + 3)); }

static_assert(FANOUT == 16, "as rows are read here");

#ifdef __AVX2__
// Exchange halves, so that the lower ones of both lie in the first vector.
FRB_INLINE void gather_halves(Floats& v, Floats& w) {
  const Floats low = FRB_SHUFFLE(v, w, 0, 1, 2, 3, 8, 9, 10, 11);
  w = FRB_SHUFFLE(v, w, 4, 5, 6, 7, 12, 13, 14, 15);
  v = low;
}
#endif

// Make rows of four columns, in each four of four vectors.
FRB_INLINE void turn(Floats* rows) {
  const Floats a = lower(rows[0], rows[2]), b = lower(rows[1], rows[3]);
  const Floats c = upper(rows[0], rows[2]), d = upper(rows[1], rows[3]);
  rows[0] = lower(a, b), rows[1] = upper(a, b), rows[2] = lower(c, d), rows[3] = upper(c, d);
}

// SIDE consecutive children of SIDE rows, side by side.
FRB_INLINE void load_children(const float* const* rows, int first, Floats* children) {
  for (int i = 0; i < SIDE; ++i) children[i] = vector_at(rows[i] + first);
#ifdef __AVX2__
  for (int i = 0; i < 4; ++i) gather_halves(children[i], children[i + 4]);
#endif
  for (int k = 0; k < SIDE; k += 4) turn(children + k);
}

// SIDE rows folded, each to one number, side by side: halves onto halves, in the order of `sum_tree.add_up`.
template <class F> FRB_INLINE Floats fold(const float* const* rows, const F& of_two) {
  Floats folded[SIDE];
#ifdef __AVX2__
  for (int i = 0; i < SIDE; ++i) folded[i] = of_two(vector_at(rows[i]), vector_at(rows[i] + 8));
  for (int i = 0; i < 4; ++i) {
    gather_halves(folded[i], folded[i + 4]);
    folded[i] = of_two(folded[i], folded[i + 4]);
  }
#else
  for (int i = 0; i < SIDE; ++i) {
    const Floats even = of_two(vector_at(rows[i]), vector_at(rows[i] + 8));
    folded[i] = of_two(even, of_two(vector_at(rows[i] + 4), vector_at(rows[i] + 12)));
  }
#endif
  turn(folded);
  return of_two(of_two(folded[0], folded[2]), of_two(folded[1], folded[3]));
}

FRB_INLINE Floats sum_of_two(Floats v, Floats w) { return v + w; }

// Of numbers that are not negative the larger and the smaller positive one: these are ordered as their bits are.
FRB_INLINE Floats larger(Floats v, Floats w) {
  const Ints a = Ints(v), b = Ints(w);
  return Floats(a > b ? a : b);
}
// Less one, zero is the largest of the unsigned.
FRB_INLINE Floats smaller(Floats v, Floats w) {
  const Words a = Words(v) - 1u, b = Words(w) - 1u;
  return Floats((a < b ? a : b) + 1u);
}

// The sum of a row, halves onto halves.
FRB_INLINE float add_up(const float* row) {
  typedef float Floats4 __attribute__((vector_size(16)));
  Floats4 quarters[4];
  memcpy(quarters, row, sizeof(quarters));
  const Floats4 c = (quarters[0] + quarters[2]) + (quarters[1] + quarters[3]);
  return (c[0] + c[2]) + (c[1] + c[3]);
}

// The bits of the smallest positive number of a row, 0 if there is none: positive floats are ordered as their bits are,
// and less one, zero is the largest of the unsigned.
FRB_INLINE int32_t smallest(const float* row) {
  uint32_t low = 0xFFFFFFFFu;
  for (int i = 0; i < FANOUT; ++i) low = least(low, uint32_t(bits_of(row[i])) - 1u);
  return int32_t(low + 1u);
}

// The bits of the largest number of a row, none of which is negative.
FRB_INLINE int32_t largest(const float* row) {
  int32_t high = bits_of(row[0]);
  for (int i = 1; i < FANOUT; ++i) high = most(high, bits_of(row[i]));
  return high;
}

// Which children of SIDE rows draws in [0, 2^31) pick.
FRB_INLINE Ints pick_children(const float* const* rows, const int32_t* draws) {
  Floats children[FANOUT], sums[FANOUT];
  for (int k = 0; k < FANOUT; k += SIDE) load_children(rows, k, children + k);
  for (int k = 0; k < FANOUT / 2; ++k) sums[k] = children[k] + children[k + FANOUT / 2];
  for (int half = FANOUT / 4; half; half /= 2)
    for (int k = 0; k < half; ++k) sums[k] = sums[k] + sums[k + half];
  // Children in units of 2^-29 of the power of two of their sum: exponents are moved, as some factors are no floats.
  const Words moved = ((127 + 29) - (Words(sums[0]) >> 23)) << 23;
  const Ints one = Ints{} + bits_of(1.0f);
  Ints reach[FANOUT];
  for (int k = 0; k < FANOUT; ++k) {
    const Ints scaled = Ints(Words(children[k]) + moved), least_one = scaled > one ? scaled : one;
    const Ints positive = Ints(children[k]) > 0;
    reach[k] = __builtin_convertvector(Floats(least_one & positive), Ints);
    // As words, since numbers that are no priorities, which others may have written, add up beyond what an int has.
    if (k) reach[k] = Ints(Words(reach[k]) + Words(reach[k - 1]));
  }
  const Ints total = reach[FANOUT - 1];
  Ints target, passed[2]{};
  for (int i = 0; i < SIDE; ++i) target[i] = int32_t((uint64_t(uint32_t(total[i])) * uint32_t(draws[i])) >> 31);
  for (int k = 0; k < FANOUT; ++k) passed[k % 2] += reach[k] > target;
  return passed[0] + passed[1] + FANOUT;
}

// So few nodes are computed one by one sooner than side by side.
constexpr int64_t FEW = 2;

// Compute one node from its children.
FRB_INLINE void refresh_node(const LevelRecord& own, const LevelRecord& below, float* tree, int64_t node) {
  tree[int64_t(own.sums) * FANOUT + node] = add_up(tree + (below.sums + node) * FANOUT);
  const float low = float_of(smallest(tree + (below.smallest + node) * FANOUT));
  tree[int64_t(own.smallest) * FANOUT + node] = low;
  tree[int64_t(own.largest) * FANOUT + node] = float_of(largest(tree + (below.largest + node) * FANOUT));
}

// Compute numbers that SIDE nodes have, from those of their children, which begin in given rows.
template <class F>
FRB_INLINE void refresh_side(float* tree, int64_t own, int64_t below, const int32_t* nodes, const F& of_two) {
  const float* rows[SIDE];
  for (int i = 0; i < SIDE; ++i) rows[i] = tree + (below + nodes[i]) * FANOUT;
  const Floats made = fold(rows, of_two);
  for (int i = 0; i < SIDE; ++i) tree[own * FANOUT + nodes[i]] = made[i];
}

// Compute nodes of a level from their children; `nodes` has room for SIDE more, which it is filled up with.
inline void refresh_nodes(const LevelRecord& own, const LevelRecord& below, float* tree, int32_t* nodes,
                          int64_t count) {
  int64_t start = 0;
  for (int64_t k = 0; count && k < SIDE; ++k) nodes[count + k] = nodes[count - 1];
  for (; start + FEW < count; start += SIDE) {
    refresh_side(tree, own.sums, below.sums, nodes + start, sum_of_two);
    refresh_side(tree, own.smallest, below.smallest, nodes + start, smaller);
    refresh_side(tree, own.largest, below.largest, nodes + start, larger);
  }
  for (; start < count; ++start) refresh_node(own, below, tree, nodes[start]);
}

// Compute all nodes above `count` leaves from `first` on.
inline void refresh_range(const Plan& plan, float* tree, int64_t first, int64_t count) {
  int64_t last = first + count - 1;
  for (int64_t level = 1; level < plan->levels; ++level) {
    first /= FANOUT;
    last /= FANOUT;
    for (int64_t start = first; start <= last; start += SIDE) {
      const int64_t together = least<int64_t>(last + 1 - start, SIDE);
      int32_t nodes[2 * SIDE];
      for (int k = 0; k < SIDE; ++k) nodes[k] = int32_t(start + k);
      refresh_nodes(plan.level(level), plan.level(level - 1), tree, nodes, together);
    }
  }
}

// Ask for what `refresh` will read and write above leaves, in place of which there may be -1. Levels that have no more
// nodes than there are leaves are left out: all of them will be there after a few.
inline void expect_paths(const Plan& plan, const float* tree, const int32_t* leaves, int64_t count) {
  int64_t below = 1;  // leaves below each node
  for (int64_t k = 1; k < plan->levels && plan.level(k).nodes > count; ++k) {
    const LevelRecord& level = plan.level(k);
    const float *sums = tree + int64_t(level.sums) * FANOUT, *smallest = tree + int64_t(level.smallest) * FANOUT;
    const float* largest = tree + int64_t(level.largest) * FANOUT;
    below *= FANOUT;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = most(leaves[i], 0) / below;
      expect(sums + node), expect(smallest + node), expect(largest + node);
    }
  }
}

// A level is swept by marking its nodes if it has at most so many for each that changed below, else node by node.
constexpr int64_t SPARSE = 2;

// Compute all nodes above given leaves.
inline void refresh(const Plan& plan, float* tree, const int32_t* leaves, int64_t count) {
  Scratch<int32_t> nodes(count + SIDE);
  const int32_t* changed = leaves;
  for (int64_t level = 1; level < plan->levels; ++level) {
    const LevelRecord &own = plan.level(level), &below = plan.level(level - 1);
    int64_t kept = 0;
    if (own.nodes > SPARSE * count) {
      int32_t before = -1;
      for (int64_t i = 0; i < count; ++i) {
        const int32_t node = changed[i] / FANOUT;
        nodes[kept] = node;
        kept += node != before;
        before = node;
      }
    } else {
      Scratch<uint8_t> marked(own.nodes, true);
      for (int64_t i = 0; i < count; ++i) marked[changed[i] / FANOUT] = 1;
      for (int32_t node = 0; kept < count && node < own.nodes; ++node) {
        nodes[kept] = node;
        kept += marked[node];
      }
    }
    refresh_nodes(own, below, tree, nodes.at, kept);
    changed = nodes.at;
    count = kept;
  }
}

// So many draws go down together: enough that memory is there when it is read.
constexpr int64_t TOGETHER = 128;

// Which leaves up to TOGETHER draws choose. Level by level, so that cache misses of draws overlap: what a draw comes to
// next is asked for at once.
FRB_INLINE void descend_together(const Plan& plan, const float* tree, Matrix<const int32_t> draws, int32_t* slots) {
  const int64_t top = plan->levels - 1, count = draws.rows;
  int32_t nodes[TOGETHER]{}, words[TOGETHER]{};
  for (int64_t depth = 0; depth <= top; ++depth) {
    const LevelRecord& level = plan.level(top - depth);
    const float* children = tree + int64_t(level.sums) * FANOUT;
    const float* next = tree + int64_t(plan.level(most<int64_t>(top - depth - 1, 0)).sums) * FANOUT;
    for (int64_t i = 0; i < count; ++i) words[i] = draws.at[i * draws.columns + depth];
    for (int64_t start = 0; start < count; start += SIDE) {
      int32_t* at = nodes + start;
      const float* rows[SIDE];
      for (int k = 0; k < SIDE; ++k) rows[k] = children + int64_t(at[k]) * FANOUT;
      Ints node = vector_at(at) * FANOUT + pick_children(rows, words + start);
      const Ints last = Ints{} + (level.nodes - 1);
      node = node < last ? node : last;
      set_vector(at, node);
      for (int k = 0; depth < top && k < SIDE; ++k) expect(next + int64_t(at[k]) * FANOUT);
    }
  }
  memcpy(slots, nodes, size_t(count) * sizeof(int32_t));
}

// Which leaves draws choose, each by the first words of its row; `sum_tree.descend`.
FRB_ENTRY void descend(Plan plan, const float* tree, Matrix<const int32_t> draws, int32_t* slots) {
  for (int64_t start = 0; start < draws.rows; start += TOGETHER) {
    const int64_t n = least(TOGETHER, draws.rows - start);
    descend_together(plan, tree, {draws.at + start * draws.columns, n, draws.columns}, slots + start);
  }
}

// What all leaves add up to.
FRB_INLINE float total_of(const Plan& plan, const float* tree) {
  return add_up(tree + int64_t(plan.level(plan->levels - 1).sums) * FANOUT);
}

// Write leaves and what is above them; what is no leaf is left out. `sum_tree.set_leaves`.
FRB_ENTRY void set_leaves(Plan plan, Changed<float> tree, Span<const int32_t> leaves, const float* values) {
  const int64_t capacity = plan.level(0).nodes;
  Scratch<int32_t> changed(leaves.size);
  int64_t count_changed = 0;
  for (int64_t i = 0; i < leaves.size; ++i)
    if (0 <= leaves[i] && leaves[i] < capacity) {
      tree.at[leaves[i]] = values[i];
      changed[count_changed++] = leaves[i];
    }
  refresh(plan, tree.at, changed.at, count_changed);
}

FRB_END
