// update of a buffer for GPUs, of items in one ring or in several: as `buffer.h` and `updates.h`.
#pragma once
#include "gpu.h"

FRB_BEGIN

namespace gpu {

// The slot of a handle whose item is still stored, else -1.
FRB_INLINE int32_t find(const Plan& plan, const int32_t* counters, int32_t handle) {
  const int32_t newest = int32_t(uint32_t(counters[CURSOR]) - 1u), size = least(counters[SIZE], plan->capacity);
  const int32_t last = int32_t(floor_mod(int64_t(counters[CURSOR]) - 1, plan->capacity));
  const int32_t ahead = int32_t(uint32_t(newest) - uint32_t(handle));
  const int32_t age = ahead < 0 ? int32_t(uint32_t(ahead) + uint32_t(plan->modulus)) : ahead;
  const int32_t slot = int32_t(uint32_t(last) - uint32_t(age));
  const bool stored = (handle >= 0) & (handle < plan->modulus) & (age >= 0) & (age < size);
  return stored ? slot < 0 ? slot + plan->capacity : slot : -1;
}

// The same where a writer chooses slots.
FRB_INLINE int32_t find_current(const Plan& plan, const int32_t* current, int32_t handle) {
  const int64_t slot = handle < 0 ? 0 : short_mod(handle, plan->capacity);
  return handle >= 0 && current[slot] == handle ? int32_t(slot) : -1;
}

FRB_INLINE uint32_t spread(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}
FRB_INLINE int64_t scaled(uint32_t random, int64_t n) { return int64_t(uint64_t(random) * uint64_t(n) >> 32); }

// Numbers that the blocks of an update leave each other, and how many.
enum Sum { OF_REJECTED, OF_STALE, OF_PEAK, SUMS };
FRB_INLINE int64_t numbers_of_update(int64_t batch, int64_t owners) { return 11 * batch + SUMS * owners; }

// What an update knows of each row, int32 [batch] each, in the scratch: its slot, -1 for none, and its value; of the
// rows that name the same slot one that leads them, and for each that leads the last with a good priority, the last
// that is stored, and where the list of all begins. Rows that name nothing are among those of slot 0, which is saved
// for them.
struct Rows {
  int32_t *slots, *values, *leaders, *good, *last, *lists, *next, *cells, *sums;
  int64_t batch, owners, room;  // of cells for each owner
  FRB_INLINE explicit Rows(const Call& call)
      : slots(call.scratch), values(slots + call.batch), leaders(values + call.batch), good(leaders + call.batch),
        last(good + call.batch), lists(last + call.batch), next(lists + call.batch), cells(next + call.batch),
        sums(cells + 4 * call.batch), batch(call.batch), owners(call.owners), room(4 * batch / owners) {}
  // Each block finds the slots of all rows, and writes the same ones.
  FRB_INLINE int32_t slot(int64_t i) const { return left_at(slots + i); }
  FRB_INLINE int32_t key(int64_t i) const { return most(slot(i), 0); }
  // Who alone reads and writes a slot's priorities and the node above it.
  FRB_INLINE int64_t owner(int32_t slot) const { return scaled(spread(uint32_t(slot / FANOUT)), owners); }
  FRB_INLINE bool wins(int64_t i) const { return values[i] >= 0 && good[leaders[i]] == int32_t(i); }
  // The row that saves and writes items for all of its slot: the last that is stored, else the last.
  FRB_INLINE bool carries(int64_t i) const { return last[leaders[i]] % batch == i; }
};

FRB_INLINE void count_update(const Call& call, int64_t rejected, int64_t stale, int32_t peak) {
  call.new_counters[REJECTED] = saturated(int64_t(call.counters[REJECTED]) + rejected);
  call.new_counters[STALE] = saturated(int64_t(call.counters[STALE]) + stale);
  call.new_counters[PEAK] = most(call.counters[PEAK], peak);
}

// Which counters there are.
FRB_INLINE int64_t counters_of(const Call& call) { return most<int64_t>(ring_of(call)->counters, COUNTERS); }

// Set the priorities of the items that handles name; of equal handles the last good one wins. Each block has the slots
// that it owns; if there is one, it has the rest of the tree and the counters too, else `finish_update` has. Where
// items are rewritten, that does it.
template <class Block> FRB_INLINE void update(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Ring ring = ring_of(call);
  const Rows rows(call);
  const int64_t batch = call.batch, x = block.x(), sliced = call.in_rings && ring->window_length;
  const bool alone = rows.owners == 1;
  float *tree = call.tree, *kept = sliced ? call.kept : tree;
  const Lanes lanes{call.counters + ring->cursors, call.counters + ring->sizes};
  auto mine = [&](int64_t i) { return alone || rows.owner(rows.key(i)) == x; };
  if (x == 0) block.each(counters_of(call), [&](int64_t k) { call.new_counters[k] = call.counters[k]; });
  block.each(batch, [&](int64_t i) {
    const int32_t handle = call.given_handles[i];
    leave(rows.slots + i, call.current    ? find_current(plan, call.current, handle)
                          : call.in_rings ? int32_t(locate(ring, lanes, handle)) : find(plan, call.counters, handle));
    if (!mine(i)) return;
    const int32_t slot = rows.key(i);
    rows.values[i] = rows.slot(i) < 0 || !call.priorities ? BAD : value_of(plan, call.priorities[i]);
    rows.leaders[i] = rows.good[i] = rows.last[i] = rows.lists[i] = -1;
    if (call.saved_slots) call.saved_slots[i] = slot;
    if (call.saved_values) call.saved_values[i] = tree[slot];
    if (call.saved_kept) call.saved_kept[i] = kept[slot];
  });
  const int64_t stale = block.total(batch, [&](int64_t i) {
    return int64_t(rows.slot(i) < 0 && call.given_handles[i] != -1 && mine(i));
  });
  const int64_t rejected = block.total(batch, [&](int64_t i) {
    return int64_t(call.priorities && rows.slot(i) >= 0 && mine(i) && rows.values[i] < 0);
  });
  const int32_t peak = block.largest(batch, [&](int64_t i) { return mine(i) ? most(rows.values[i], 0) : 0; });
  // Rows of equal slots meet in a cell. Where those of other slots come there too, one row stays, and with it its
  // equals; the others go on to another cell.
  for (uint32_t turn = 0, left = 1; left; ++turn) {
    auto cell = [&](int64_t i) {
      return rows.cells + x * rows.room + scaled(spread(uint32_t(rows.key(i)) + turn * 0x9E3779B9u), rows.room);
    };
    block.each(batch, [&](int64_t i) { if (mine(i) && rows.leaders[i] < 0) leave(cell(i), int32_t(i)); });
    left = uint32_t(block.total(batch, [&](int64_t i) {
      if (!mine(i) || rows.leaders[i] >= 0) return int64_t(0);
      const int32_t found = *cell(i);
      if (rows.key(found) == rows.key(i)) rows.leaders[i] = found;
      return int64_t(rows.leaders[i] < 0);
    }));
  }
  block.each(batch, [&](int64_t i) {
    if (!mine(i)) return;
    const int32_t leader = rows.leaders[i];
    if (rows.values[i] >= 0) block.raise(rows.good + leader, int32_t(i));
    if (!call.given) return;
    block.raise(rows.last + leader, int32_t(rows.slot(i) < 0 ? i : batch + i));
    rows.next[i] = block.exchange(rows.lists + leader, int32_t(i));
  });
  if (call.priorities) {
    block.each(batch, [&](int64_t i) {
      if (!mine(i) || !rows.wins(i)) return;
      const int32_t slot = rows.slot(i), lane = sliced ? int32_t(lane_of(ring, slot)) : 0;
      kept[slot] = call.times && call.times[slot] >= plan->limit ? 0.0f : float_of(rows.values[i]);
      if (!sliced) return;
      const Lane of(ring, lanes, call.in_episode, lane);
      const bool begins = of.weight(back_of(ring, of.head, slot - lane * ring->length)) > 0;
      tree[slot] = begins ? float_of(rows.values[i]) : 0.0f;
    });
    auto leaf = [&](int64_t i) { return mine(i) && rows.wins(i) ? rows.slot(i) : -1; };
    if (plan->levels > 1)
      block.each(3 * batch, [&](int64_t k) {
        if (const int32_t slot = leaf(k / 3); slot >= 0) refresh_number(plan, tree, 1, slot / FANOUT, int(k % 3));
      });
    if (alone) refresh_above(block, plan, tree, 2, batch, leaf);
  }
  block.each(1, [&](int64_t) {
    int32_t* sums = rows.sums + SUMS * x;
    sums[OF_REJECTED] = int32_t(rejected), sums[OF_STALE] = int32_t(stale), sums[OF_PEAK] = peak;
    if (alone) count_update(call, rejected, stale, peak);
  });
}

// The same bytes of rows: what lies in their slot is saved for all that name it, by the one that carries.
template <class T, class Block>
FRB_INLINE void save_for_all(const Block& block, const Rows& rows, int64_t begin, int64_t count, const char* stored,
                             char* saved, int64_t stride, int64_t width) {
  const uint32_t pieces = uint32_t(width / int64_t(sizeof(T)));
  block.each(count * pieces, [&](int64_t k) {
    const int64_t place = pieces == 1 ? k : int64_t(uint32_t(k) / pieces), piece = k - place * pieces;
    const int64_t i = begin + place;
    if (!rows.carries(i)) return;
    const T old = reinterpret_cast<const T*>(stored + rows.key(i) * stride)[piece];
    for (int32_t other = rows.lists[rows.leaders[i]]; other >= 0; other = rows.next[other])
      reinterpret_cast<T*>(saved + other * stride)[piece] = old;
  });
}

// Save and rewrite items, `tile` rows by each column of blocks; and if several blocks had the slots, by one more what
// these have left.
template <class Block> FRB_INLINE void finish_update(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Rows rows(call);
  const int64_t several = rows.owners > 1, begin = (block.x() - several) * call.tile;
  if (several && block.x() == 0) {
    if (block.y() == 0) {
      auto leaf = [&](int64_t i) { return rows.wins(i) ? rows.slot(i) : -1; };
      if (call.priorities) refresh_above(block, plan, call.tree, 2, call.batch, leaf);
      block.each(1, [&](int64_t) {
        int64_t rejected = 0, stale = 0;
        int32_t peak = 0;
        for (int64_t k = 0; k < rows.owners; ++k) {
          const int32_t* sums = rows.sums + SUMS * k;
          rejected += sums[OF_REJECTED], stale += sums[OF_STALE], peak = most(peak, sums[OF_PEAK]);
        }
        count_update(call, rejected, stale, peak);
      });
    }
    return;
  }
  const int64_t here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  for (int64_t k = 0; k < call.saved_arrays(); ++k) {
    const int64_t bytes = plan.stored_bytes(k);
    const Part part = part_of(block, k, bytes);
    const char* stored = call.storage[k] + part.first;
    char* saved = call.saved()[k] + part.first;
    const uint64_t unit = unit_of(aligned(stored, bytes, saved, part.width));
    if (unit == 16) save_for_all<Four>(block, rows, begin, here, stored, saved, bytes, part.width);
    else if (unit == 4) save_for_all<int32_t>(block, rows, begin, here, stored, saved, bytes, part.width);
    else save_for_all<char>(block, rows, begin, here, stored, saved, bytes, part.width);
  }
  store_items(block, call, plan, here,
              [&](int64_t i) { return rows.carries(begin + i) && rows.slot(begin + i) >= 0 ? begin + i : -1; },
              [&](int64_t i) { return int64_t(rows.slot(begin + i)); });
}

}  // namespace gpu

FRB_END
