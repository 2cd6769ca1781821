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

// Copy pieces of one size to where they lie so many bytes apart; `from` tells where each is.
template <class From>
FRB_INLINE void copy_pieces(char* to, int64_t apart, const From& from, int64_t count, int64_t bytes) {
  if (bytes == 4)
    for (int64_t i = 0; i < count; ++i) memcpy(to + i * apart, from(i), 4);
  else if (bytes == 1)
    for (int64_t i = 0; i < count; ++i) to[i * apart] = *from(i);
  else
    for (int64_t i = 0; i < count; ++i) copy(to + i * apart, from(i), bytes);
}
FRB_ENTRY void copy_column(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t count,
                           int64_t bytes) {
  copy_pieces(to, to_stride, [=](int64_t i) { return from + i * from_stride; }, count, bytes);
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

// Copy a piece of each row in given slots, one behind the other.
FRB_ENTRY void gather(char* to, const char* from, int64_t stride, const int32_t* slots, int64_t count, int64_t bytes) {
  copy_pieces(to, bytes, [=](int64_t i) { return from + slots[i] * stride; }, count, bytes);
}

// So many rows are read leaf by leaf, while as many others are on their way.
constexpr int64_t ROWS_TOGETHER = 64;

// The bytes of a row among which packed leaves lie, those of which `wanted` says so.
struct Among {
  int64_t first, size;
};
template <class Wanted> FRB_INLINE Among among(const Plan& plan, const Wanted& wanted) {
  int64_t first = plan.stored_bytes(0), last = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) {
    const LeafRecord& leaf = plan.leaf(k);
    if (!leaf.bytes || leaf.storage != 0 || !wanted(k)) continue;
    first = least<int64_t>(first, leaf.offset), last = most<int64_t>(last, int64_t(leaf.offset) + leaf.bytes);
  }
  return {first, most<int64_t>(last - first, 0)};
}
// Ask for these before, but not for very many: more of a row comes by itself.
FRB_INLINE void expect_row(const Plan& plan, Addresses storage, const Among& bytes, int64_t slot) {
  expect_bytes(place(storage[0]) + slot * plan.stored_bytes(0) + bytes.first, least(bytes.size, 16 * LINE));
}

// Read so many items into rows from one on of contiguous arrays, each leaf from where `slots_of` says; null for one that is not
// read.
template <class SlotsOf>
FRB_INLINE void load_leaves(const Plan& plan, Addresses storage, int64_t start, int64_t count, Addresses leaves,
                            const SlotsOf& slots_of) {
  for (int64_t k = 0; k < plan->leaves; ++k) {
    const LeafRecord& leaf = plan.leaf(k);
    const int64_t bytes = leaf.bytes;
    const int32_t* slots = slots_of(k);
    const char* from = place(storage[leaf.storage]) + leaf.offset;
    if (bytes && slots) gather(place(leaves[k]) + start * bytes, from, plan.stored_bytes(leaf.storage), slots, count, bytes);
  }
}

// Read the items in given slots into contiguous arrays.
inline void load_items(const Plan& plan, Addresses storage, const int32_t* slots, int64_t count, Addresses leaves) {
  const Among bytes = among(plan, [](int64_t) { return true; });
  for (int64_t start = 0, asked = 0; start < count; start += ROWS_TOGETHER) {
    for (; asked < least(start + 2 * ROWS_TOGETHER, count); ++asked) expect_row(plan, storage, bytes, slots[asked]);
    const int64_t n = least(ROWS_TOGETHER, count - start);
    load_leaves(plan, storage, start, n, leaves, [=](int64_t) { return slots + start; });
  }
}

// Read rows of a storage alone; in place of a slot that is none the first.
FRB_ENTRY Outcome read(const BufferCall& c) {
  Scratch<int32_t> sound(c.batch);
  for (int64_t i = 0; i < c.batch; ++i) sound[i] = int32_t(bounded(c.slots[i], c.capacity));
  load_items(plan_of(c), storage_of(c), sound.at, c.batch, leaves_of(c));
  return DONE;
}

// Write rows of a batch, those that `source` names or its last, to slots; slots and rows that are none are left out, and what
// a mask says of slots.
FRB_ENTRY Outcome store(const BufferCall& c) {
  for (int64_t i = 0; i < c.batch; ++i) {
    if (c.mask && !c.mask[i]) continue;
    const int64_t slot = c.slots[i], row = c.source ? c.source[i] : c.rows - c.batch + i;
    if (0 <= slot && slot < c.capacity && 0 <= row && row < c.rows)
      store_item(plan_of(c), storage_of(c), slot, leaves_of(c), row);
  }
  return DONE;
}

// Write a batch as rows.
FRB_ENTRY Outcome pack(const BufferCall& c) {
  memset(place(c.storage[0]), 0, size_t(c.batch * plan_of(c).stored_bytes(0)));
  store_items(plan_of(c), storage_of(c), 0, leaves_of(c), 0, c.batch);
  return DONE;
}

FRB_END
