// Where writers that choose slots put what is added, for GPUs: as `choosing.h`.
#pragma once
#include "choices.h"
#include "gpu_addition.h"

FRB_BEGIN

namespace gpu {

FRB_INLINE int64_t power_of_two(int64_t n) {
  int64_t found = 1;
  while (found < n) found *= 2;
  return found;
}

// Sort numbers, as many as a power of two (Batcher, Sorting networks and their applications, 1968, bitonic).
template <class Block> FRB_INLINE void sort(const Block& block, uint64_t* at, int64_t n) {
  for (int64_t run = 2; run <= n; run *= 2)
    for (int64_t apart = run / 2; apart; apart /= 2)
      block.each(n / 2, [&](int64_t i) {
        const int64_t low = 2 * i - (i & (apart - 1));
        const uint64_t a = at[low], b = at[low + apart];
        if ((a > b) == !(low & run)) at[low] = b, at[low + apart] = a;
      });
}

// What a choice works with, behind what it tells: rows, and nodes of the tree of ranks, below what orders them, and numbers that
// ranks are made of.
constexpr uint64_t NO_ROW = 0xFFFFFFFFFFFFFFFF;
struct ChoiceRoom {
  uint64_t *rows, *nodes;
  float* numbers;
  int64_t size, each;
  int32_t* end;
  FRB_INLINE explicit ChoiceRoom(const Addition& of)
      : rows(reinterpret_cast<uint64_t*>(of.call.scratch + parts(of.end - of.call.scratch, 2) * 2)),
        size(power_of_two(of.call.batch)) {
    const bool ranks = of.ring->chooses == BEST;
    nodes = rows + size, each = ranks ? of.plan.leaf(of.ring->rank).bytes / 2 : 0;
    numbers = reinterpret_cast<float*>(nodes + (ranks ? power_of_two(FANOUT * of.places) : 0));
    end = reinterpret_cast<int32_t*>(numbers) + each * of.call.batch;
  }
};

FRB_INLINE bool is_marked(const Call& call, int64_t row) { return !call.mask || call.mask[row]; }
// Numbers whose order is that of ranks.
FRB_INLINE uint64_t ordered(int32_t rank) { return uint64_t(uint32_t(rank) ^ 0x80000000u) << 32; }
FRB_INLINE int32_t rank_in(uint64_t x) { return int32_t(uint32_t(x >> 32) ^ 0x80000000u); }

// Item number t goes to a slot drawn from 0 ... t, the first ones in their order; of rows that go to one the last stays. Returns
// how many there are.
template <class Block> FRB_INLINE int64_t draw_places(const Block& block, const Addition& of, const ChoiceRoom& room) {
  const Call& call = of.call;
  const int64_t capacity = of.plan->capacity, seen = most(call.counters[of.ring->seen], 0);
  const Words words(call);
  block.each(room.size, [&](int64_t k) { room.rows[k] = NO_ROW; });
  const int64_t marked = block.ranks(call.batch, [&](int64_t row) { return is_marked(call, row); }, [&](int64_t row, int64_t rank) {
    const int64_t number = least(seen + rank, INT32_MOST - 1);
    const int32_t two[2] = {words(row * call.words), words(row * call.words + 1)};
    const int64_t slot = number < capacity ? number : below(two, number + 1);
    if (slot < capacity) room.rows[row] = uint64_t(slot) << 32 | uint64_t(row);
  });
  const int64_t now = least(seen + marked, INT32_MOST - 1);
  block.each(1, [&](int64_t) {
    call.new_counters[of.ring->seen] = int32_t(now), call.new_counters[of.ring->sizes] = int32_t(least(now, capacity));
  });
  sort(block, room.rows, room.size);
  auto stays = [&](int64_t k) {
    return room.rows[k] != NO_ROW && (k + 1 == room.size || room.rows[k] >> 32 != room.rows[k + 1] >> 32);
  };
  return block.ranks(room.size, stays, [&](int64_t k, int64_t found) {
    of.chosen[found] = int32_t(room.rows[k] >> 32), of.rows[found] = int32_t(uint32_t(room.rows[k]));
  });
}

// The best new row goes where the lowest rank is, if its own is higher, the second best where the second lowest is, and so on.
// Level by level only so many nodes can matter as there are rows, and those alone that are lower than the best of these.
template <class Block>
FRB_INLINE int64_t find_places(const Block& block, const Addition& of, const ChoiceRoom& room, const MinLevels& levels, const int32_t* tree) {
  const Call& call = of.call;
  const int64_t bytes = of.plan.leaf(of.ring->rank).bytes;
  block.each(room.size, [&](int64_t row) {
    int32_t rank;
    const bool ranked = row < call.batch && is_marked(call, row) &&
                        rank_of(of.ring, call.items[of.ring->rank] + row * bytes, bytes / 4, room.numbers + row * room.each, &rank);
    room.rows[row] = ranked ? ordered(~rank) | uint64_t(row) : NO_ROW;
  });
  const int64_t bad = block.total(call.batch, [&](int64_t row) { return int64_t(is_marked(call, row) && room.rows[row] == NO_ROW); });
  sort(block, room.rows, room.size);
  const int64_t rows = block.total(call.batch, [&](int64_t k) { return int64_t(room.rows[k] != NO_ROW); });
  auto rank_at = [&](int64_t k) { return ~rank_in(room.rows[k]); };
  int64_t kept = rows > 0;
  block.each(1, [&](int64_t) { of.chosen[0] = 0; });
  for (int64_t level = levels.count - 1; level >= 0; --level) {
    auto child = [&](int64_t i) { return of.chosen[i / FANOUT] * int64_t(FANOUT) + i % FANOUT; };
    auto old = [&](int64_t i) { return tree[levels.first[level] * FANOUT + child(i)]; };
    const int64_t lower = block.ranks(kept * FANOUT, [&](int64_t i) { return child(i) < levels.nodes[level] && old(i) < rank_at(0); },
                                      [&](int64_t i, int64_t found) { room.nodes[found] = ordered(old(i)) | uint64_t(child(i)); });
    const int64_t size = power_of_two(lower);
    block.each(size - lower, [&](int64_t i) { room.nodes[lower + i] = NO_ROW; });
    sort(block, room.nodes, size);
    kept = least(lower, least(rows, of.places));
    block.each(kept, [&](int64_t i) { of.chosen[i] = int32_t(uint32_t(room.nodes[i])); });
  }
  auto takes = [&](int64_t k) { return rank_at(k) > rank_in(room.nodes[k]); };  // none behind one that does not
  const int64_t count = block.total(kept, [&](int64_t k) { return int64_t(takes(k)); });
  const int64_t filled = block.total(kept, [&](int64_t k) { return int64_t(takes(k) && rank_in(room.nodes[k]) == UNRANKED); });
  block.each(count, [&](int64_t k) { of.rows[k] = int32_t(uint32_t(room.rows[k])); });
  block.each(1, [&](int64_t) {
    call.new_counters[of.ring->refused] = saturated(int64_t(call.counters[of.ring->refused]) + bad);
    call.new_counters[of.ring->sizes] = saturated(int64_t(call.counters[of.ring->sizes]) + filled);
  });
  return count;
}

// Let the tree of ranks have those of new items. All rows on the ways to their slots are saved, before one is written.
template <class Block>
FRB_INLINE void rank_anew(const Block& block, const Addition& of, const ChoiceRoom& room, const MinLevels& levels, int32_t* tree, int64_t count) {
  const Call& call = of.call;
  if (int32_t* saved = reinterpret_cast<int32_t*>(call.others()[0]))
    block.each(of.places * levels.count, [&](int64_t i) {
      const int64_t level = i % levels.count, row = levels.first[level] + (of.chosen[i / levels.count] >> 4 * (level + 1));
      call.saved_places[i] = int32_t(row);
      for (int64_t k = 0; k < FANOUT; ++k) saved[i * FANOUT + k] = tree[row * FANOUT + k];
    });
  block.each(count, [&](int64_t k) { tree[of.chosen[k]] = ~rank_in(room.rows[k]); });
  for (int64_t level = 1; level < levels.count; ++level)
    block.each(count, [&](int64_t k) {
      const int64_t node = of.chosen[k] >> 4 * level;
      const int32_t* children = tree + (levels.first[level - 1] + node) * FANOUT;
      int32_t lowest = children[0];
      for (int64_t i = 1; i < FANOUT; ++i) lowest = least(lowest, children[i]);
      leave(tree + levels.first[level] * FANOUT + node, lowest);
    });
}
static_assert(FANOUT == 16, "of which 4 bits are a child's");

// Choose where the rows of a batch go: by one block, before `add_to_rings`. Places that get none name a slot that stays as it is.
template <class Block> FRB_INLINE void choose(const Block& block, const Call& call) {
  const Addition of(call);
  const ChoiceRoom room(of);
  const MinLevels levels(of.plan->capacity);
  int32_t* tree = reinterpret_cast<int32_t*>(call.rows_beside[0]);
  const bool ranks = of.ring->chooses == BEST;
  block.each(of.ring->counters, [&](int64_t k) { call.new_counters[k] = call.counters[k]; });
  const int64_t count = ranks ? find_places(block, of, room, levels, tree) : draw_places(block, of, room);
  block.each(1, [&](int64_t) { of.marked[0] = int32_t(count), of.bases[0] = int32_t(INT32_MOST); });
  block.each(of.places, [&](int64_t slot) { of.slots[slot] = 1; });
  block.each(count, [&](int64_t k) { if (of.chosen[k] < of.places) of.slots[of.chosen[k]] = 0; });
  block.each(of.places, [&](int64_t slot) { if (of.slots[slot]) block.lower(of.bases, int32_t(slot)); });
  block.each(of.places - count, [&](int64_t k) { of.chosen[count + k] = of.bases[0]; });
  if (ranks) rank_anew(block, of, room, levels, tree, count);
}

}  // namespace gpu

FRB_END
