// Where writers that choose slots put what is added: `writers.reservoir`, `writers.max_value`, `structures.min_tree`.
#pragma once
#include <algorithm>

#include "buffer.h"
#include "choices.h"
#include "spans.h"

FRB_BEGIN

// A tree of minima over the ranks of stored items.
class MinTree : MinLevels {
 public:
  MinTree(const BufferCall& call, int64_t capacity) : MinLevels(capacity), c(call), tree_(reinterpret_cast<int32_t*>(c.beside[0])) {}
  int32_t operator[](int64_t slot) const { return tree_[slot]; }
  // The first slot of the lowest rank; one in bounds, whatever others have made of the tree.
  int64_t lowest() const {
    int64_t node = 0;
    for (int64_t k = count - 1; k >= 0; --k) {
      const int32_t* children = row(k, node);
      node = least(node * FANOUT + (std::min_element(children, children + FANOUT) - children), nodes[k] - 1);
    }
    return node;
  }
  // Give a slot another rank; rows are saved as they were.
  void set(int64_t slot, int32_t rank) {
    int64_t node = slot;
    for (int64_t k = 0; k < count; ++k, node /= FANOUT) {
      int32_t* children = row(k, node / FANOUT);
      if (c.saved_beside && c.saved_beside[0]) {
        memcpy(place(c.saved_beside[0]) + c.saved_count[3] * ROW, children, ROW);
        c.saved_places[c.saved_count[3]++] = int32_t((children - tree_) / FANOUT);
      }
      children[node % FANOUT] = rank;
      rank = *std::min_element(children, children + FANOUT);
    }
  }

 private:
  static constexpr int64_t ROW = 64;  // bytes of one
  int32_t* row(int64_t level, int64_t node) const { return tree_ + (first[level] + node) * FANOUT; }

  const BufferCall& c;
  int32_t* tree_;
};

// What the rows of a batch ask for: a row each in the lower words, and above them what orders these.
class Choice {
 public:
  explicit Choice(const BufferCall& call) : c(call), ring(ring_of(c)), capacity(plan_of(c)->capacity), asked(ring->chooses ? c.batch : 0) {
    if (ring->chooses == RESERVOIR) draw();
    if (ring->chooses == BEST) rank();
  }
  // Which rows go to which slots, as many as there are; of ranks that are higher than the lowest of all.
  int64_t carry_out(int32_t* slots, int32_t* source, int64_t room) {
    if (ring->chooses == RESERVOIR) return take_last(slots, source);
    MinTree tree(c, capacity);
    int64_t count = 0;
    for (int32_t filled = 0; count < least(n, room); ++count) {
      const int32_t new_rank = ~int32_t(uint32_t(asked[count] >> 32) ^ 0x80000000u);
      const int64_t slot = tree.lowest();
      if (new_rank <= tree[slot]) break;
      filled += tree[slot] == UNRANKED;
      c.new_counters[ring->sizes] = saturated(int64_t(c.counters[ring->sizes]) + filled);
      tree.set(slot, new_rank);
      slots[count] = int32_t(slot), source[count] = int32_t(uint32_t(asked[count]));
    }
    return count;
  }

 private:
  bool is_marked(int64_t row) const { return !c.mask || c.mask[row]; }
  // Item number t goes to a slot drawn from 0 ... t, the first ones in their order.
  void draw() {
    const Bits bits(c);
    int64_t seen = most(c.counters[ring->seen], 0);
    for (int64_t row = 0; row < c.batch; ++row) {
      if (!is_marked(row)) continue;
      const int64_t slot = seen < capacity ? seen : below(bits.all.at + 2 * row, seen + 1);
      if (slot < capacity) asked[n++] = uint64_t(slot) << 32 | uint64_t(row);
      seen = least(seen + 1, INT32_MOST - 1);
    }
    std::sort(asked.at, asked.at + n);
    c.new_counters[ring->seen] = int32_t(seen), c.new_counters[ring->sizes] = int32_t(least(seen, capacity));
  }
  // Of the rows that go to one slot the last one stays.
  int64_t take_last(int32_t* slots, int32_t* source) const {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i + 1 < n && asked[i] >> 32 == asked[i + 1] >> 32) continue;
      slots[count] = int32_t(asked[i] >> 32), source[count++] = int32_t(uint32_t(asked[i]));
    }
    return count;
  }
  // The rows that have a rank, the highest first, and of equal ones the earlier.
  void rank() {
    const int64_t bytes = plan_of(c).leaf(ring->rank).bytes;
    Scratch<float> numbers(bytes / 2);  // as many as a power of two may take
    int64_t bad = 0;
    for (int64_t row = 0; row < c.batch; ++row) {
      int32_t rank;
      if (!is_marked(row)) continue;
      if (!rank_of(ring, place(c.items[ring->rank]) + row * bytes, bytes / 4, numbers.at, &rank)) ++bad;
      else asked[n++] = uint64_t(uint32_t(~rank) ^ 0x80000000u) << 32 | uint64_t(row);
    }
    std::sort(asked.at, asked.at + n);
    c.new_counters[ring->refused] = saturated(int64_t(c.counters[ring->refused]) + bad);
  }

  const BufferCall& c;
  const Ring ring;
  const int64_t capacity;
  int64_t n = 0;
  Scratch<uint64_t> asked;
};

FRB_END
