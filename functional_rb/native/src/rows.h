// How items lie in storage: packed rows, and an array for each wide leaf; `structures.row_layout`.
//
// Addresses recur: `storage` int64 [1 + wide] of the rows and the wide arrays, `leaves` int64 [leaves] of contiguous
// arrays [B, *shape], 0 for one that is not given.
#pragma once
#include "records.h"

FRB_BEGIN

using Addresses = Span<const int64_t>;

// Write row `row` of the given leaves to a slot.
FRB_INLINE void store_item(const Plan& plan, Addresses storage, int64_t slot, Addresses leaves, int64_t row) {
  if (FRB_FAULT(BEHIND_THE_ROWS)) slot = plan->capacity;
  for (int64_t k = 0; k < plan->leaves; ++k) {
    const LeafRecord& leaf = plan.leaf(k);
    const int64_t bytes = leaf.bytes;
    if (leaves[k] && bytes) {
      char* target = place(storage[leaf.storage]) + slot * plan.stored_bytes(leaf.storage);
      copy(target + leaf.offset, place(leaves[k]) + row * bytes, bytes);
    }
  }
}

// Copy the whole item in a slot to row `at` of the arrays to save in.
FRB_INLINE void save_item(const Plan& plan, Addresses storage, int64_t slot, Addresses saved, int64_t at) {
  for (int64_t array = 0; array < saved.size; ++array) {
    const int64_t bytes = plan.stored_bytes(array);
    if (bytes) copy(place(saved[array]) + at * bytes, place(storage[array]) + slot * bytes, bytes);
  }
}

// A piece of each row that is read: where it begins, and its bytes.
struct Piece {
  int64_t first, width;
};

// The bytes among which the packed leaves lie; all of the row where that is half of it or more.
inline Piece piece_of_rows(const Plan& plan, int64_t stride) {
  int64_t first = stride, last = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) {
    const LeafRecord& leaf = plan.leaf(k);
    if (leaf.bytes && leaf.storage == 0) {
      first = least<int64_t>(first, leaf.offset);
      last = most<int64_t>(last, int64_t(leaf.offset) + leaf.bytes);
    }
  }
  const int64_t width = most<int64_t>(last - first, 0);
  if (2 * width < stride) return {first, width};
  return {0, stride};
}

// The pieces of rows that are read.
struct Rows {
  const char* at;
  int64_t stride, width;
  FRB_INLINE const char* operator[](int64_t slot) const { return at + slot * stride; }
  // Ask for a row that will be read, but not for much of it: the rest comes by itself once it is read.
  FRB_INLINE void expect(int64_t slot) const { expect_bytes((*this)[slot], least<int64_t>(width, 256)); }
};
inline Rows rows_of(const Plan& plan, Addresses storage) {
  const int64_t stride = plan.stored_bytes(0);
  const Piece piece = piece_of_rows(plan, stride);
  return {place(storage[0]) + piece.first, stride, piece.width};
}

// So many rows are asked for before one is read.
constexpr int64_t AHEAD = 64;

// Copy the rows in given slots one behind the other; whole rows of consecutive slots together.
inline void load_rows(const Rows& rows, const int32_t* slots, int64_t count, char* to) {
  for (int64_t i = 0; i < least(AHEAD, count); ++i) rows.expect(slots[i]);
  const bool whole = rows.width == rows.stride;
  for (int64_t start = 0, stop = 0; stop < count; start = stop) {
    do {
      if (stop + AHEAD < count) rows.expect(slots[stop + AHEAD]);
      ++stop;
    } while (whole && stop < count && slots[stop] == slots[stop - 1] + 1);
    copy(to + start * rows.width, rows[slots[start]], (stop - start) * rows.width);
  }
}

// Copy pieces of one size that lie a stride apart.
inline void copy_column(char* to, const char* from, int64_t count, int64_t stride, int64_t bytes) {
  if (bytes == 4)
    for (int64_t i = 0; i < count; ++i) memcpy(to + i * 4, from + i * stride, 4);
  else if (bytes == 1)
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
  else
    for (int64_t i = 0; i < count; ++i) copy(to + i * bytes, from + i * stride, bytes);
}

// How many bytes of rows are read together, before they are split into leaves.
constexpr int64_t SCRATCH_BYTES = 65536;

// Read the items in given slots into contiguous arrays.
//
// Rows are copied whole first, to a place that stays in the cache: the copies of different rows wait for memory together,
// as those of their leaves would not. Of a part of the leaves only the bytes among which these lie.
inline void load_items(const Plan& plan, Addresses storage, const int32_t* slots, int64_t count, Addresses leaves) {
  const int64_t first = piece_of_rows(plan, plan.stored_bytes(0)).first;
  const Rows rows = rows_of(plan, storage);
  const int64_t together = most<int64_t>(1, SCRATCH_BYTES / most<int64_t>(rows.width, 1));
  Scratch<char> scratch(least(together, count) * rows.width);
  for (int64_t start = 0; start < count; start += together) {
    const int64_t n = least(together, count - start);
    if (rows.width) load_rows(rows, slots + start, n, scratch.at);
    for (int64_t k = 0; k < plan->leaves; ++k) {
      const LeafRecord& leaf = plan.leaf(k);
      const int64_t bytes = leaf.bytes;
      if (bytes && leaf.storage == 0)
        copy_column(place(leaves[k]) + start * bytes, scratch.at + leaf.offset - first, n, rows.width, bytes);
    }
  }
  for (int64_t k = 0; k < plan->leaves; ++k) {
    const LeafRecord& leaf = plan.leaf(k);
    const int64_t bytes = leaf.bytes;
    if (leaf.storage == 0) continue;
    for (int64_t i = 0; i < count; ++i)
      copy(place(leaves[k]) + i * bytes, place(storage[leaf.storage]) + int64_t(slots[i]) * bytes, bytes);
  }
}

// Read rows of a storage that has `capacity` of them; in place of a slot that is none the first.
FRB_ENTRY void read(const int32_t* slots, Addresses storage, Addresses leaves, Plan plan, int64_t capacity, int64_t count) {
  Scratch<int32_t> sound(count);
  for (int64_t i = 0; i < count; ++i) sound[i] = int32_t(bounded(slots[i], capacity));
  load_items(plan, storage, sound.at, count, leaves);
}

// Write rows of a batch, those that `source` names or its last, to slots; slots and rows that are none are left out.
FRB_ENTRY void store(const int32_t* slots, const int32_t* source, const uint8_t* live, Addresses storage, Addresses leaves,
                  Plan plan, int64_t capacity, int64_t count, int64_t batch) {
  for (int64_t i = 0; i < count; ++i) {
    if (live && !live[i]) continue;
    const int64_t row = source ? source[i] : batch - count + i;
    if (0 <= slots[i] && slots[i] < capacity && 0 <= row && row < batch) store_item(plan, storage, slots[i], leaves, row);
  }
}

FRB_END
