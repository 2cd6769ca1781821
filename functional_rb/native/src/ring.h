// Rings of slots, one a lane: `structures.ring`.
//
// cursors, sizes: int32 [lanes], see `ring.RingState`. A place is a slot counted from the beginning of its lane.
#pragma once
#include "records.h"

FRB_BEGIN

struct Lanes {
  const int32_t* cursors;
  const int32_t* sizes;
};

FRB_INLINE int64_t lane_of(const Ring& ring, int64_t slot) { return short_div(slot, ring->length); }

// How far behind the head of its ring a place lies, 1 to the ring's length.
FRB_INLINE int64_t back_of(const Ring& ring, int64_t head, int64_t place) {
  return place < head ? head - place : head - place + ring->length;
}

// The place that lies so far behind the head of its ring; what is out of bounds counts as the nearest.
FRB_INLINE int64_t place_of(const Ring& ring, int64_t head, int64_t back) {
  const int64_t length = ring->length, place = head - least(most<int64_t>(back, 1), length);
  return place < 0 ? place + length : place;
}

// The slot of a handle whose item is still stored in its lane's ring, else -1: `ring.locate`.
FRB_INLINE int64_t locate(const Ring& ring, const Lanes& lanes, int64_t handle) {
  const int64_t capacity = ring->capacity, length = ring->length, turns = ring->turns;
  if (handle < 0 || handle >= turns * capacity) return -1;
  const int64_t turn = short_div(handle, capacity), slot = handle - turn * capacity, lane = lane_of(ring, slot);
  int64_t age = int64_t(lanes.cursors[lane]) - 1 - (turn * length + slot - lane * length);
  if (age < 0) age += turns * length;
  return age < lanes.sizes[lane] ? slot : -1;
}

// The handle of the item that lies in a slot now: `ring.handle_of_slot`.
FRB_INLINE int32_t handle_in_ring(const Ring& ring, const Lanes& lanes, int64_t slot) {
  const int64_t length = ring->length, limit = length * ring->turns, lane = lane_of(ring, slot), cursor = lanes.cursors[lane];
  const int64_t number = floor_mod(cursor - back_of(ring, short_mod(cursor, length), slot - lane * length), limit);
  return int32_t(number / length * ring->capacity + slot);
}

#if !defined(__CUDACC__)
// The marked rows of a lane but the first `skipped`, then its last row, as if it were marked many times.
inline void choose_rows(const uint8_t* mask, int64_t lane, int64_t lanes, int64_t steps, int64_t skipped,
                            int32_t* source, uint8_t* live, int64_t count) {
  int64_t entry = lane;
  for (int64_t row = lane; row < steps * lanes; row += lanes)
    if (mask[row] && --skipped < 0) {
      source[entry] = int32_t(row), live[entry] = 1;
      entry += lanes;
    }
  for (; entry < count; entry += lanes) source[entry] = int32_t((steps - 1) * lanes + lane), live[entry] = 0;
}

// Which slots a batch takes. Without a mask there are no source and live either.
FRB_ENTRY void choose_slots(Ring ring, int64_t steps, Lanes old, const uint8_t* mask, Span<int32_t> slots, int32_t* source,
                            uint8_t* live, int32_t* written, int32_t* new_cursors, int32_t* new_sizes) {
  const int64_t lanes = ring->lanes, length = ring->length, limit = length * ring->turns, n = slots.size / lanes;
  auto within = [&](int64_t number) { return number < limit ? number : number - limit; };
  for (int64_t lane = 0; lane < lanes; ++lane) {
    int64_t marked = steps;
    if (mask) {
      marked = 0;
      for (int64_t row = lane; row < steps * lanes; row += lanes) marked += mask[row] != 0;
    }
    const int64_t skipped = most<int64_t>(marked - n, 0), cursor = old.cursors[lane];
    int64_t place = short_mod(within(cursor + skipped), length);
    for (int64_t entry = lane; entry < n * lanes; entry += lanes) {
      slots[entry] = int32_t(lane * length + place);
      place = place + 1 < length ? place + 1 : 0;
    }
    if (mask) choose_rows(mask, lane, lanes, steps, skipped, source, live, slots.size);
    written[lane] = int32_t(marked);
    new_cursors[lane] = int32_t(within(cursor + marked));
    new_sizes[lane] = int32_t(least(old.sizes[lane] + marked, length));
  }
}

#endif

FRB_END
