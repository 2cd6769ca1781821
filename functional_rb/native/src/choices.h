// What is computed for an item that is added, on CPUs and GPUs: how fresh it is, and, for writers that choose slots, its rank, its
// handle, and where ranks lie.
#pragma once
#include "records.h"

FRB_BEGIN

constexpr int32_t PADDING = 2147483647, UNRANKED = -2147483648;  // of what is no slot, and of an empty one

// The levels of a tree of minima over so many slots, the leaves first: in which rows each begins, and how many nodes it has.
struct MinLevels {
  int64_t count, first[MOST_LEVELS], nodes[MOST_LEVELS];
  FRB_INLINE explicit MinLevels(int64_t capacity) : count(levels_of(capacity)) {
    for (int64_t k = 0, row = 0, level = capacity; k < count; ++k, row += level) {
      first[k] = row, nodes[k] = level;
      level = (level + FANOUT - 1) / FANOUT;
    }
  }
};

// A float as an integer of the same order; whether it has a place in that, as NaN has none.
FRB_INLINE bool key_of_float(float number, int32_t* key) {
  const int32_t bits = bits_of(number), magnitude = bits & int32_t(INT32_MOST);
  *key = bits < 0 ? -magnitude : magnitude;
  return magnitude <= 0x7F800000;
}

// The lower of the numbers in the middle, found bit by bit, as that needs no room to sort in: `_median_key`.
FRB_INLINE bool median_of(const float* numbers, int64_t count, int32_t* rank) {
  bool good = true;
  for (int64_t low = UNRANKED, high = PADDING; low < high; *rank = int32_t(low)) {
    const int64_t middle = low + (high - low) / 2;
    int64_t below = 0;
    for (int64_t i = 0; i < count; ++i) good &= key_of_float(numbers[i], rank), below += *rank <= middle;
    if (below > (count - 1) / 2) high = middle;
    else low = middle + 1;
  }
  return good;
}

// The rank of a row as an integer of the same order, and whether it has one: `MaxValue._keys`.
FRB_INLINE bool rank_of(const Ring& ring, const char* row, int64_t count, float* numbers, int32_t* rank) {
  if (ring->reduction == WHOLE_NUMBER) {
    memcpy(rank, row, 4);
    *rank = least(most(*rank, UNRANKED + 1), PADDING - 1);
    return true;
  }
  int64_t size = 1;
  while (size < count) size *= 2;
  memcpy(numbers, row, size_t(count) * 4);
  if (ring->reduction == MEDIAN) return median_of(numbers, count, rank);
  for (int64_t i = count; i < size; ++i) numbers[i] = ring->reduction > MEAN ? numbers[i - count] : 0.0f;
  while ((size /= 2))
    for (int64_t i = 0; i < size; ++i) {
      const float a = numbers[i], b = numbers[size + i];
      if (ring->reduction <= MEAN) numbers[i] = a + b;
      else if (!(a != a) && (b != b || (ring->reduction == MAX ? b > a : b < a))) numbers[i] = b;  // a NaN stays
    }
  if (ring->reduction == MEAN) numbers[0] *= float(1.0 / double(count));
  return key_of_float(numbers[0], rank);
}

constexpr int HIGHEST_POWER = 5;  // as `samplers.staleness` has it

// What the tree has of an item by the version of the policy that learns, and by that which made it: `staleness.freshness`.
FRB_INLINE float freshness(const Ring& ring, int32_t now, int32_t made_by) {
  const int32_t staleness = most(int32_t(uint32_t(now) - uint32_t(made_by)), 0);
  const float fresh = 1.0f / float(least(staleness, (1 << 24) - 1) + 1);
  float value = staleness <= ring->stalest ? 1.0f : 0.0f;
  for (int k = 0; k < HIGHEST_POWER; ++k) value *= k < ring->power ? fresh : 1.0f;  // so that vectors can have it
  return value;
}

// The handle of a new item in a slot, by that of the one before: `handles.renewed`.
FRB_INLINE int32_t renewed(const Plan& plan, int64_t slot, int32_t old) {
  const int32_t last = most(old < -1 ? -2 - old : old, 0), room = plan->modulus - plan->capacity;
  return old == -1 ? int32_t(slot) : last >= room ? last - room : last + plan->capacity;
}

FRB_END
