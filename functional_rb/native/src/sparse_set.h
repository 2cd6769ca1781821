// Sparse sets, step by step where the core does all steps of a batch at once; `structures.sparse_set`.
//
// What Python calls reads the set and says what to write; writing is left to the core, so that older versions learn of it.
#pragma once
#include "records.h"

FRB_BEGIN

// Which of the marked slots are members; count is int32 [1].
FRB_ENTRY void members(Span<const int32_t> order, const int32_t* place, const int32_t* count, Span<const int32_t> slots,
                       const uint8_t* marked, uint8_t* members) {
  for (int64_t i = 0; i < slots.size; ++i) {
    const int64_t position = place[bounded(slots[i], order.size)];
    members[i] = marked[i] && position < count[0] && order[bounded(position, order.size)] == slots[i];
  }
}

// Which slots lie where once distinct positions have come behind a boundary, as many as there is room for. Positions that
// lie nowhere, or are there twice, as others may have made them, stay where they are. Returns how many slots these are.
inline int64_t exchange(Span<const int32_t> order, int64_t boundary, Span<const int32_t> positions, int32_t* at,
                        int32_t* slots) {
  const int64_t n = positions.size;
  Scratch<uint8_t> stays(n, true);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t behind = positions[i] - boundary;
    if (0 <= behind && behind < n) stays[behind] = 1;
  }
  const int64_t last = least(n, order.size - boundary), end = least(boundary, order.size);
  int64_t count = 0, filler = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (positions[i] < 0 || positions[i] >= end) continue;
    while (filler < last && stays[filler]) ++filler;
    if (filler >= last) break;
    at[count] = positions[i], slots[count] = order[boundary + filler];
    at[count + 1] = int32_t(boundary + filler), slots[count + 1] = order[positions[i]];
    count += 2;
    ++filler;
  }
  return count;
}

// Which slots lie at which positions once the marked ones are out, how many these are, and the new boundary.
FRB_ENTRY void exchanges(Span<const int32_t> order, const int32_t*, const int32_t* boundary, Span<const int32_t> positions,
                         const uint8_t* marked, int32_t* at, int32_t* slots, int32_t* after, int32_t* moved) {
  Scratch<int32_t> moving(positions.size);
  int64_t count = 0;
  for (int64_t i = 0; i < positions.size; ++i)
    if (marked[i]) moving[count++] = positions[i];
  const int64_t behind = int64_t(boundary[0]) - count;
  after[0] = int32_t(behind);
  // No set has so few members, unless others have made it.
  moved[0] = behind < 0 ? 0 : int32_t(exchange(order, behind, {moving.at, count}, at, slots));
}

// Where the marked slots come to lie behind a count, how many they are, and the new count.
FRB_ENTRY void appended(const int32_t*, const int32_t*, const int32_t* count, Span<const int32_t> slots,
                        const uint8_t* marked, int32_t* at, int32_t* chosen, int32_t* after, int32_t* count_chosen) {
  int32_t n = 0;
  for (int64_t i = 0; i < slots.size; ++i)
    if (marked[i]) at[n] = count[0] + n, chosen[n++] = slots[i];
  after[0] = count[0] + n, count_chosen[0] = n;
}

// Choose distinct numbers below n, each by a row of words, by a Fisher-Yates shuffle that stores only what moves.
FRB_ENTRY void distinct(Matrix<const int32_t> draws, const int32_t* n, Span<int32_t> chosen) {
  const int64_t count = chosen.size;
  int64_t size = 4;
  while (size < 4 * count) size *= 2;
  Scratch<int64_t> keys(size), values(size);
  memset(keys.at, 0xFF, size_t(size) * sizeof(int64_t));
  // A key's place in the table, or the free one where it would go. The factor spreads them (Knuth, vol. 3, section 6.4).
  auto seek = [&](int64_t key) {
    int64_t k = ((key * 0x9E3779B1LL) >> 15) & (size - 1);
    while (keys[k] != key && keys[k] != -1) k = (k + 1) & (size - 1);
    return k;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t left = *n - i;
    if (left <= 0) {
      chosen[i] = 0;
      continue;
    }
    const int64_t j = below(draws.at + i * draws.columns, left), last = seek(left - 1);
    const int64_t moved = keys[last] == left - 1 ? values[last] : left - 1, taken = seek(j);
    chosen[i] = int32_t(keys[taken] == j ? values[taken] : j);
    keys[taken] = j, values[taken] = moved;
  }
}

FRB_END
