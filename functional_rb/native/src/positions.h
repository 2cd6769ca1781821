// Draws that follow from where items lie in their lanes, for CPUs and GPUs alike: of newer items rather than older ones, of the
// oldest that are taken out, from an end, and in epochs in order.
#pragma once
#include "buffer_call.h"
#include "ring.h"

FRB_BEGIN

// Retreat of a sequence number, and advance, in a ring: `ring.retreat`, `ring.advance`.
FRB_INLINE int64_t back_by(int64_t number, int64_t by, int64_t limit) { return number < by ? number - by + limit : number - by; }
FRB_INLINE int64_t on_by(int64_t number, int64_t by, int64_t limit) { return number + by < limit ? number + by : number + by - limit; }

// How many items a lane has, by counters, of which others may have made anything: so many as it has room for at most.
FRB_INLINE int32_t size_of(const Ring& ring, const int32_t* counters, int64_t lane) {
  return least(most(counters[ring->sizes + lane], 0), ring->length);
}

// The item of a lane that has a sequence number: its slot, in bounds whatever the number is, and its handle.
struct Item {
  int32_t slot, handle;
};
FRB_INLINE Item item_of(const Ring& ring, int64_t lane, int64_t number) {
  const int64_t slot = lane * ring->length + floor_mod(number, ring->length);
  return {int32_t(slot), int32_t(number / ring->length * ring->capacity + slot)};
}
// The item at a position, the lane's oldest being at 0: `ring.item_at`.
FRB_INLINE Item item_at(const Ring& ring, const int32_t* counters, int64_t lane, int64_t position) {
  const int64_t limit = int64_t(ring->length) * ring->turns, cursor = counters[ring->cursors + lane];
  return item_of(ring, lane, on_by(back_by(cursor, size_of(ring, counters, lane), limit), position, limit));
}

// The chance of an item so far behind its lane's head to be the newest of so many draws among all: `Recency._preference`, with
// `size(lane)` items in each lane.
template <class Size>
FRB_INLINE float chance_of_newest(int64_t lanes, const Size& size, int64_t of_all, int64_t back, int64_t draws) {
  int32_t as_old = 0, older = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t n = most<int64_t>(size(lane) - back + 1, 0);
    as_old += int32_t(n), older += int32_t(most<int64_t>(n - 1, 0));
  }
  const float scale = 1.0f / float(most<int64_t>(of_all, 1)), a = float(as_old) * scale, b = float(older) * scale;
  float factor = 1.0f, power = 1.0f;
  for (int64_t k = 1; k < draws; ++k) power = power * a, factor = factor * b + power;
  return (of_all > 0 ? scale : 0.0f) * factor;
}

// How many of the items, or windows, that are drawn count.
FRB_INLINE int64_t counting(const BufferCall& c) {
  return c.wanted_at ? most<int64_t>(0, least<int64_t>(*c.wanted_at, c.batch)) : c.batch;
}

// Where a row of what a queue gives lies, and whether it is there: `Queue.draw`, of windows of so many steps, of which the
// first `wanted` count.
struct InTurn {
  int64_t lane, position;
  bool live;
};
FRB_INLINE InTurn taken_at(const Ring& ring, const int32_t* counters, int64_t row, int64_t length, int64_t wanted) {
  const int64_t window = row / length, lane = window % ring->lanes, first = window / ring->lanes * length;
  const bool live = window < wanted && first + length <= size_of(ring, counters, lane);
  return {lane, live ? first + row % length : 0, live};
}
// How many items of a lane are taken out.
FRB_INLINE int64_t taken_of(const Ring& ring, const int32_t* counters, int64_t lane, int64_t length, int64_t wanted) {
  const int64_t windows = (wanted + ring->lanes - 1 - lane) / ring->lanes;
  return least<int64_t>(size_of(ring, counters, lane) / length, windows) * length;
}

// The position of the k-th item of so many from an end: `InOrder.draw`; behind the last one that of the last.
FRB_INLINE int64_t from_an_end(int64_t k, int64_t size, bool newest_first) {
  const int64_t last = most<int64_t>(size - 1, 0), position = least(k, last);
  return newest_first ? last - position : position;
}

// The marked slot of some rank, and how many marked ones lie before a slot: `structures.order_statistics`.
FRB_INLINE int32_t slot_of_rank(const Plan& plan, const float* tree, int64_t rank) {
  int64_t node = 0;
  for (int64_t k = plan->levels - 1; k >= 0; --k) {
    const float* counts = tree + (plan.level(k).sums + node) * FANOUT;
    int64_t child = 0;
    for (; child < FANOUT && counted(counts[child]) <= rank; ++child) rank -= counted(counts[child]);
    node = least<int64_t>(node * FANOUT + child, plan.level(k).nodes - 1);
  }
  return int32_t(node);
}
FRB_INLINE int64_t marked_before(const Plan& plan, const float* tree, int64_t slot) {
  int64_t count = 0;
  for (int64_t k = 0; k < plan->levels; ++k, slot /= FANOUT)
    for (int64_t left = slot / FANOUT * FANOUT; left < slot; ++left)
      count += counted(tree[int64_t(plan.level(k).sums) * FANOUT + left]);
  return count;
}

// The rank of the k-th of so many marked slots from an end of a ring, of which so many lie before its oldest item.
FRB_INLINE int64_t rank_from_an_end(int64_t k, int64_t size, int64_t before, bool newest_first) {
  const int64_t rank = before + from_an_end(k, size, newest_first);
  return least(rank < size ? rank : rank - size, most<int64_t>(size - 1, 0));
}

// Of an epoch in order: where a lane goes on, where it ends, and how many items are left of it: `without_replacement._left`. The
// ring's cursor and size are those of some counters, the epoch is where it was by its own.
struct Rest {
  int64_t first, end, left;
};
FRB_INLINE Rest rest_of(const Ring& ring, const Epoch& epoch, const int32_t* epoch_counters, const int32_t* counters, int64_t lane) {
  const int64_t limit = int64_t(ring->length) * ring->turns, cursor = counters[ring->cursors + lane];
  const int64_t next = epoch_counters[epoch->next + lane], end = epoch_counters[epoch->end + lane], added = back_by(cursor, end, limit);
  const int64_t back = least<int64_t>(back_by(cursor, next, limit), size_of(ring, counters, lane));
  return {back_by(cursor, back, limit), end, most<int64_t>(back - added, 0)};
}
// The same of an epoch that begins.
FRB_INLINE Rest all_of(const Ring& ring, const int32_t* counters, int64_t lane) {
  const int64_t cursor = counters[ring->cursors + lane], size = size_of(ring, counters, lane);
  return {back_by(cursor, size, int64_t(ring->length) * ring->turns), cursor, size};
}

FRB_END
