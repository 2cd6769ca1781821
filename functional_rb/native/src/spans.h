// Spans of a sum tree's leaves: what each adds up to, and draws among those of one; `sum_tree.draw_in_span`.
#pragma once
#include "sum_tree.h"

FRB_BEGIN

// A span at one level: the nodes at which it begins and ends, and of what lies within it below these two the sum and the
// smallest positive leaf.
struct Edge {
  int32_t first, last;
  float sums[2], smallest[2];
};

FRB_INLINE int32_t clamped(int32_t node, int32_t count) { return most(least(node, count - 1), 0); }

// The children of a node that lie within a span, 0 for the others; at its edges only what lies within.
FRB_INLINE void children_within(const float* row, int32_t node, const Edge& edge, const float* at_edges, float* children) {
  for (int i = 0; i < FANOUT; ++i) {
    const int32_t child = node * FANOUT + i;
    const bool inside = edge.first <= child && child <= edge.last;
    children[i] = !inside ? 0.0f : child == edge.first ? at_edges[0] : child == edge.last ? at_edges[1] : row[i];
  }
}

FRB_INLINE void of_span(const float* tree, const LevelRecord& level, const Edge& edge, int32_t node, float& sum,
                        float& low) {
  float children[FANOUT];
  children_within(tree + (int64_t(level.sums) + node) * FANOUT, node, edge, edge.sums, children);
  sum = add_up(children);
  children_within(tree + (int64_t(level.smallest) + node) * FANOUT, node, edge, edge.smallest, children);
  low = float_of(smallest(children));
}

// The edges of a span at each level, the leaves first, and what it adds up to; `sum_tree.spans`.
FRB_INLINE void measure_span(const Plan& plan, const float* tree, int32_t first, int32_t end, Edge* edges, float& total,
                             float& low) {
  edges[0] = {first, end - 1, {}, {}};
  for (int side = 0; side < 2; ++side) {
    const int32_t leaf = clamped(side ? end - 1 : first, plan.level(0).nodes);
    edges[0].sums[side] = edges[0].smallest[side] = tree[int64_t(plan.level(0).sums) * FANOUT + leaf];
  }
  for (int64_t k = 1; k < plan->levels; ++k) {
    const Edge& below = edges[k - 1];
    edges[k] = {below.first >> 4, below.last >> 4, {}, {}};  // rounded down, below 0 too
    for (int side = 0; side < 2; ++side) {
      const int32_t node = clamped(side ? edges[k].last : edges[k].first, plan.level(k).nodes);
      of_span(tree, plan.level(k - 1), below, node, edges[k].sums[side], edges[k].smallest[side]);
    }
  }
  of_span(tree, plan.level(plan->levels - 1), edges[plan->levels - 1], 0, total, low);
}

// Children of one node as integers in proportion; `sum_tree.as_integers`.
FRB_INLINE void as_integers(const float* children, int32_t* weights) {
  const int32_t moved = int32_t(((127u + 29u) - (uint32_t(bits_of(add_up(children))) >> 23)) << 23);
  for (int i = 0; i < FANOUT; ++i) {
    const int32_t bits = int32_t(uint32_t(bits_of(children[i])) + uint32_t(moved));
    weights[i] = bits_of(children[i]) > 0 ? int32_t(float_of(most(bits, bits_of(1.0f)))) : 0;
  }
}

FRB_INLINE int32_t high_product(int32_t a, int32_t b) { return int32_t((uint64_t(uint32_t(a)) * uint32_t(b)) >> 31); }

// The largest draw whose target lies below a given one, -1 for none; `sum_tree._draws_below`.
FRB_INLINE int32_t draws_below(int32_t reach, int32_t total) {
  if (reach <= 0) return -1;
  const uint64_t largest_draw = ((uint64_t(uint32_t(reach)) << 31) - 1) / uint32_t(total);
  return int32_t(least<uint64_t>(largest_draw, 0x7FFFFFFFu));
}

// Runs of whole children within a span, two for each level: what each adds up to, and which draws lead there.
struct Runs {
  float sums[FANOUT];
  int32_t below[2 * MOST_LEVELS][3];
};

FRB_INLINE void find_runs(const Plan& plan, const float* tree, const Edge* edges, Runs& runs) {
  const int levels = int(plan->levels);
  for (int height = 0; height < levels; ++height) {
    const Edge& edge = edges[height];
    const bool is_root = height + 1 == levels;
    const int32_t above = is_root ? 0 : edges[height + 1].first, other = is_root ? 0 : edges[height + 1].last;
    const int32_t inner = height > 0, start = edge.first + inner, end = edge.last + 1 - inner;
    const bool one = above == other;  // then it has a single run
    const int32_t begins[2] = {start, one ? end : other * FANOUT}, ends[2] = {one ? end : (above + 1) * FANOUT, end};
    const int32_t ways[2] = {edge.first, edge.last}, parents[2] = {above, other};
    for (int side = 0; side < 2; ++side) {
      const LevelRecord& level = plan.level(height);
      const int32_t node = clamped(parents[side], level.groups);
      const float* row = tree + (int64_t(level.sums) + node) * FANOUT;
      float within[FANOUT];
      int32_t weights[FANOUT], total = 0, reach[3]{};
      as_integers(row, weights);
      for (int i = 0; i < FANOUT; ++i) {
        const int32_t child = node * FANOUT + i;
        within[i] = begins[side] <= child && child < ends[side] ? row[i] : 0.0f;
        total += weights[i];
        reach[0] += child < begins[side] ? weights[i] : 0;
        reach[1] += child < ends[side] ? weights[i] : 0;
        reach[2] += child < ways[side] ? weights[i] : 0;
      }
      runs.sums[2 * height + side] = add_up(within);
      for (int k = 0; k < 3; ++k) runs.below[2 * height + side][k] = draws_below(reach[k], total);
    }
  }
}

// A sum that wraps around, as that of arrays does: of runs without any draw, to which nothing is led.
FRB_INLINE int32_t after(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }

// The draws by which `descend` goes to a run, drawn by the first of `words`, and below it any; `sum_tree._ways`.
FRB_INLINE void lead(const Runs& runs, int levels, int run, const int32_t* words, int32_t* led) {
  const int height = run / 2, side = run % 2;
  const int32_t low = runs.below[run][0], high = runs.below[run][1];
  const bool every = low < 0 && high == 0x7FFFFFFF;
  for (int depth = 0; depth < levels; ++depth) {
    const int k = levels - 1 - depth;
    led[depth] = k > height            ? after(runs.below[2 * k + side][2], 1)
                 : k < height || every ? words[1 + depth]
                                       : after(after(low, 1), high_product(words[1 + depth], high - low));
  }
}

// What spans of leaves add up to, their smallest positive leaves, and leaves of one of them by draws [batch, levels + 1].
FRB_ENTRY void draw_in_span(Plan plan, const float* tree, Span<const int32_t> first, const int32_t* end, const int32_t* which,
                            Matrix<const int32_t> draws, int32_t* leaves, float* totals, float* smallest) {
  const int levels = int(plan->levels);
  Edge edges[MOST_LEVELS], edges_of_run[MOST_LEVELS]{};
  for (int64_t k = 0; k < first.size; ++k) {
    measure_span(plan, tree, first[k], end[k], edges, totals[k], smallest[k]);
    if (k == *which) memcpy(edges_of_run, edges, sizeof(edges_of_run));
  }
  Runs runs{};
  find_runs(plan, tree, edges_of_run, runs);
  int32_t reach[FANOUT];
  as_integers(runs.sums, reach);
  for (int k = 1; k < FANOUT; ++k) reach[k] += reach[k - 1];
  Scratch<int32_t> led(draws.rows * levels);
  for (int64_t i = 0; i < draws.rows; ++i) {
    const int32_t* words = draws.at + i * draws.columns;
    const int32_t target = high_product(words[0], reach[FANOUT - 1]);
    int run = 0;
    for (int k = 0; k < FANOUT; ++k) run += reach[k] <= target;
    lead(runs, levels, least(run, 2 * levels - 1), words, led.at + i * levels);
  }
  descend(plan, tree, {led.at, draws.rows, levels}, leaves);
}

FRB_END
