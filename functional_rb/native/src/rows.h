// How items lie in storage: packed rows, and an array for each wide leaf; `structures.row_layout`.
//
// Addresses recur: `storage` int64 [1 + wide] of the rows and the wide arrays, `leaves` int64 [leaves] of contiguous
// arrays [B, *shape], 0 for one that is not given.
#pragma once
#include "buffer_call.h"
#include "records.h"

FRB_BEGIN

using Addresses = Span<const int64_t>;

// What a call on a buffer names.
inline Plan plan_of(const BufferCall& c) { return record_of<Plan>(c.plan); }
inline Ring ring_of(const BufferCall& c) { return record_of<Ring>(c.ring); }
inline Addresses storage_of(const BufferCall& c) { return {c.storage, c.arrays}; }
inline Addresses leaves_of(const BufferCall& c) { return {c.items, c.given}; }
inline Addresses saved_of(const BufferCall& c) { return {c.items + c.given, c.item_count - c.given}; }

// Copy pieces of one size, which lie so many bytes apart here and there.
FRB_ENTRY void copy_column(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t count,
                           int64_t bytes) {
  if (bytes == 4)
    for (int64_t i = 0; i < count; ++i) memcpy(to + i * to_stride, from + i * from_stride, 4);
  else if (bytes == 1)
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
  else
    for (int64_t i = 0; i < count; ++i) copy(to + i * to_stride, from + i * from_stride, bytes);
}

// Write consecutive rows of the given leaves to consecutive slots. Leaf by leaf: so where each begins is asked for
// before, as else one after the other would be waited for.
inline void store_items(const Plan& plan, Addresses storage, int64_t slot, Addresses leaves, int64_t row,
                        int64_t count) {
  if (FRB_FAULT(BEHIND_THE_ROWS)) slot = plan->capacity;
  for (int64_t k = 0; count > 1 && k < plan->leaves; ++k) {
    const int64_t bytes = plan.leaf(k).bytes;
    if (leaves[k]) expect_bytes(place(leaves[k]) + row * bytes, least(count * bytes, 3 * LINE));
  }
  for (int64_t k = 0; k < plan->leaves; ++k) {
    const LeafRecord& leaf = plan.leaf(k);
    const int64_t bytes = leaf.bytes, stride = plan.stored_bytes(leaf.storage);
    if (!leaves[k] || !bytes) continue;
    char* to = place(storage[leaf.storage]) + slot * stride + leaf.offset;
    const char* from = place(leaves[k]) + row * bytes;
    if (count == 1) copy(to, from, bytes);
    else copy_column(to, stride, from, bytes, count, bytes);
  }
}
FRB_INLINE void store_item(const Plan& plan, Addresses storage, int64_t slot, Addresses leaves, int64_t row) {
  store_items(plan, storage, slot, leaves, row, 1);
}

// Copy the whole items in consecutive slots to consecutive rows of the arrays to save in.
FRB_INLINE void save_items(const Plan& plan, Addresses storage, int64_t slot, Addresses saved, int64_t at,
                           int64_t count) {
  for (int64_t array = 0; array < saved.size; ++array) {
    const int64_t bytes = plan.stored_bytes(array);
    if (bytes) copy(place(saved[array]) + at * bytes, place(storage[array]) + slot * bytes, count * bytes);
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

// Rows, of which a piece each is read.
struct Rows {
  const char* at;
  int64_t stride;
  Piece piece;
  FRB_INLINE const char* operator[](int64_t slot) const { return at + slot * stride + piece.first; }
  // Ask for what will be read of a row, but not for much of it: the rest comes by itself once it is read.
  FRB_INLINE void expect(int64_t slot) const { expect_bytes((*this)[slot], least(piece.width, 4 * LINE)); }
};
inline Rows rows_of(const Plan& plan, Addresses storage) {
  const int64_t stride = plan.stored_bytes(0);
  return {place(storage[0]), stride, piece_of_rows(plan, stride)};
}

// So many rows are asked for before one is read.
constexpr int64_t ROWS_AHEAD = 64;

// Copy what is read of the rows in given slots one behind the other; whole rows of consecutive slots together.
inline void load_rows(const Rows& rows, const int32_t* slots, int64_t count, char* to) {
  const int64_t width = rows.piece.width;
  for (int64_t i = 0; i < least(ROWS_AHEAD, count); ++i) rows.expect(slots[i]);
  const bool whole = width == rows.stride;
  for (int64_t start = 0, stop = 0; stop < count; start = stop) {
    do {
      if (stop + ROWS_AHEAD < count) rows.expect(slots[stop + ROWS_AHEAD]);
      ++stop;
    } while (whole && stop < count && slots[stop] == slots[stop - 1] + 1);
    copy(to + start * width, rows[slots[start]], (stop - start) * width);
  }
}

// How many bytes of rows are read together, before they are split into leaves.
constexpr int64_t SCRATCH_BYTES = 65536;

// Read the items in given slots into contiguous arrays.
//
// Rows are copied whole first, to a place that stays in the cache: the copies of different rows wait for memory together,
// as those of their leaves would not. Of a part of the leaves only the bytes among which these lie.
inline void load_items(const Plan& plan, Addresses storage, const int32_t* slots, int64_t count, Addresses leaves) {
  const Rows rows = rows_of(plan, storage);
  const int64_t width = rows.piece.width, together = most<int64_t>(1, SCRATCH_BYTES / most<int64_t>(width, 1));
  Scratch<char> scratch(least(together, count) * width);
  for (int64_t start = 0; start < count; start += together) {
    const int64_t n = least(together, count - start);
    if (width) load_rows(rows, slots + start, n, scratch.at);
    for (int64_t k = 0; k < plan->leaves; ++k) {
      const LeafRecord& leaf = plan.leaf(k);
      const int64_t bytes = leaf.bytes;
      const char* from = scratch.at + leaf.offset - rows.piece.first;
      if (bytes && leaf.storage == 0) copy_column(place(leaves[k]) + start * bytes, bytes, from, width, n, bytes);
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
FRB_ENTRY void read(Plan plan, Addresses storage, int64_t capacity, Span<const int32_t> slots, Addresses leaves) {
  Scratch<int32_t> sound(slots.size);
  for (int64_t i = 0; i < slots.size; ++i) sound[i] = int32_t(bounded(slots[i], capacity));
  load_items(plan, storage, sound.at, slots.size, leaves);
}

// Write rows of a batch, those that `source` names or its last, to slots; slots and rows that are none are left out.
FRB_ENTRY void store(Plan plan, Addresses storage, int64_t capacity, Span<const int32_t> slots, const int32_t* source,
                     const uint8_t* live, Addresses leaves, int64_t batch) {
  for (int64_t i = 0; i < slots.size; ++i) {
    if (live && !live[i]) continue;
    const int64_t row = source ? source[i] : batch - slots.size + i;
    if (0 <= slots[i] && slots[i] < capacity && 0 <= row && row < batch) store_item(plan, storage, slots[i], leaves, row);
  }
}

FRB_END
