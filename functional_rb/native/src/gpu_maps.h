// Hash maps for GPUs, whose keys are put in at the same time: as `structures.hash_map`, and bit for bit as `hash_map.h`.
#pragma once
#include "gpu.h"
#include "hash_map.h"

FRB_BEGIN

namespace gpu {

// The numbers that a hash is made of, each computed when it is asked for: for long keys they are more than a call can hold.
struct DrawnNumbers {
  uint64_t seed, above;  // the seed's bits from the 64th on
  int64_t words;
  FRB_INLINE explicit DrawnNumbers(Map map)
      : seed(uint64_t(uint32_t(map->seed_high)) << 32 | uint32_t(map->seed_low)), above(uint64_t(int64_t(map->seed_above))),
        words(map->words) {}
  // `mix` of a number that Python does not cut to 64 bits before.
  FRB_INLINE int64_t number(int64_t k) const {
    const uint64_t n = uint64_t(k + 1), product = n * GAMMA, low = product + seed;
    const uint64_t high = ((n * (GAMMA >> 32) + (n * (GAMMA & 0xFFFFFFFFu) >> 32)) >> 32) + (low < product) + above;
    uint64_t x = (low ^ (low >> SHIFT_1 | high << (64 - SHIFT_1))) * FACTOR_1;
    x = (x ^ (x >> SHIFT_2)) * FACTOR_2;
    return int64_t((x ^ (x >> SHIFT_3)) >> 33);
  }
  FRB_INLINE int64_t mask(int64_t k) const { return number(k); }
  FRB_INLINE int64_t factor(int64_t k) const { return number(words + k) | 1 << 30 | 1; }
  FRB_INLINE int64_t sign(int64_t k) const { return number(2 * words + k); }
};

// How elements of keys are stored: as they are, or as floats, of which there are one zero and one NaN; see `key_rows`.
enum Stored { AS_IT_IS, FLOAT16, BFLOAT16, FLOAT32, FLOAT64 };

FRB_INLINE uint32_t canonical(uint32_t bits, uint32_t magnitude, uint32_t infinity, uint32_t nan) {
  return (bits & magnitude) == 0 ? 0 : (bits & magnitude) > infinity ? nan : bits;
}
FRB_INLINE uint64_t canonical64(uint64_t bits) {
  const uint64_t magnitude = bits & 0x7FFFFFFFFFFFFFFFull;
  return magnitude == 0 ? 0 : magnitude > 0x7FF0000000000000ull ? 0x7FF8000000000000ull : bits;
}

// Pack a row of the leaves of keys, which are stored as is told of each.
FRB_INLINE void pack_row(const Plan& plan, const int32_t* stored, char* const* leaves, char* row, int64_t i) {
  const int64_t words = plan.stored_bytes(0) / int64_t(sizeof(int32_t));
  for (int64_t w = 0; w < words; ++w) reinterpret_cast<int32_t*>(row)[w] = 0;
  for (int64_t j = 0; j < plan->leaves; ++j) {
    const LeafRecord& leaf = plan.leaf(j);
    const char* from = leaves[j] + i * leaf.bytes;
    char* to = row + leaf.offset;
    const auto each = [&](auto one, const auto& change) {
      using Element = decltype(one);
      for (int64_t e = 0; e < leaf.bytes / int64_t(sizeof one); ++e) {
        memcpy(&one, from + e * sizeof one, sizeof one);
        one = Element(change(one));
        memcpy(to + e * sizeof one, &one, sizeof one);
      }
    };
    switch (stored[j]) {
      case FLOAT16: each(uint16_t(0), [](uint16_t x) { return canonical(x, 0x7FFF, 0x7C00, 0x7E00); }); break;
      case BFLOAT16: each(uint16_t(0), [](uint16_t x) { return canonical(x, 0x7FFF, 0x7F80, 0x7FC0); }); break;
      case FLOAT32: each(uint32_t(0), [](uint32_t x) { return canonical(x, 0x7FFFFFFF, 0x7F800000, 0x7FC00000); }); break;
      case FLOAT64: each(uint64_t(0), [](uint64_t x) { return canonical64(x); }); break;
      default: each(uint8_t(0), [](uint8_t x) { return x; });
    }
  }
}

// Pack the leaves of keys, the items, into rows behind them, `tile` of them by each block: `key_rows.pack`. Beside the plan of
// the rows there stands how each leaf is stored.
template <class Block> FRB_INLINE void pack_keys(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  block.each(here, [&](int64_t k) {
    const int64_t i = begin + k;
    pack_row(plan, call.beside, call.items, call.items[plan->leaves] + i * plan.stored_bytes(0), i);
  });
}

// What `waits` says of a row: that it asks for a place, or that it does not, as the map has its key or a mask leaves it out;
// else the first row with the same key. And what `own` says of a row without a number: that it has no place, or that there
// was no room for the one that has.
enum Waiting { ASKS = -1, SETTLED = -2 };
enum Own { NO_PLACE = -1, NO_ROOM = -2 };

// The layout of keys that come as leaves: behind the record of a map, where there is room for it.
enum { LEAVES_AT = sizeof(MapRecord) / sizeof(int32_t) };
static_assert(LEAVES_AT + sizeof(BufferRecord) / sizeof(int32_t) + 1 + 3 * MOST <= PLAN, "that of the most leaves");
FRB_INLINE Plan leaves_of(const Call& call) { return Plan{{reinterpret_cast<const BufferRecord*>(call.plan + LEAVES_AT)}}; }

// A call on a map, as `launches.cpp` tells it: the map's arrays, rows int32 [batch, words], what is told of each, and in the
// scratch what an insertion knows of each: its place, the steps that led there, how it waits, and its number. Where keys come as
// leaves, these stand before the rows, which `find_keys` packs.
struct Keyed {
  Map map;
  int64_t words;
  char* const* items;
  int32_t *table, *keys, *counts, *counters;
  int32_t* rows;
  int32_t* ids;
  uint8_t* fresh;
  int32_t *places, *steps, *waits, *own;
  FRB_INLINE explicit Keyed(const Call& call)
      : map(record_of<Map>(call.plan)), words(map->words), items(call.items + (call.stored ? leaves_of(call)->leaves : 0)),
        table(reinterpret_cast<int32_t*>(call.storage[0])),
        keys(reinterpret_cast<int32_t*>(call.storage[1])), counts(reinterpret_cast<int32_t*>(call.storage[2])),
        counters(reinterpret_cast<int32_t*>(call.storage[3])), rows(reinterpret_cast<int32_t*>(items[0])),
        ids(reinterpret_cast<int32_t*>(items[1])), fresh(reinterpret_cast<uint8_t*>(items[2])),
        places(call.scratch), steps(places + call.batch), waits(steps + call.batch), own(waits + call.batch) {}
  FRB_INLINE const int32_t* row(int64_t i) const { return rows + i * words; }
  // What stands in the table for a row that has a place; an earlier one drives out a later one.
  FRB_INLINE int32_t ticket(int64_t i) const { return int32_t(map->capacity + i); }
  FRB_INLINE bool same(int64_t i, int64_t other) const {
    int64_t k = 0;
    while (k < words && row(i)[k] == row(other)[k]) ++k;
    return k == words;
  }
  // Whether a row goes on; `own` says meanwhile whether it has a place.
  FRB_INLINE bool goes_on(int64_t i) const { return waits[i] == ASKS && !own[i] && steps[i] < map->table_size; }
  // The number that a row was given, or the first one of the same key.
  FRB_INLINE int32_t number(int64_t i) const { return own[waits[i] >= 0 ? waits[i] : i]; }
};

// Look each row up, `tile` of them by each block, once it has been packed if keys come as leaves. For an insertion also where
// those that the map does not have would go.
template <class Block> FRB_INLINE void find_keys(const Block& block, const Call& call) {
  const Keyed of(call);
  const Table table{of.map, of.table, of.keys};
  const DrawnNumbers numbers(of.map);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  block.each(here, [&](int64_t k) {
    const int64_t i = begin + k;
    if (call.stored) pack_row(leaves_of(call), call.beside, call.items, reinterpret_cast<char*>(of.rows + i * of.words), i);
    const Way way = table.seek(of.row(i), table.home(of.row(i), numbers));
    const int32_t id = way.place < 0 || of.table[way.place] == EMPTY ? -1 : of.table[way.place];
    const bool marked = !call.mask || call.mask[i];
    of.ids[i] = marked ? id : -1;
    if (!of.places) return;
    of.places[i] = int32_t(most<int64_t>(way.place, 0)), of.steps[i] = int32_t(way.steps);
    of.waits[i] = marked && id < 0 ? ASKS : SETTLED, of.own[i] = 0;
  });
}

// Copy new keys to where their numbers say, of `count` rows.
template <class Block> FRB_INLINE void keep(const Block& block, const Keyed& of, int64_t begin, int64_t count) {
  const int64_t bytes = of.words * int64_t(sizeof(int32_t));
  char* keys = reinterpret_cast<char*>(of.keys);
  const char* rows = reinterpret_cast<const char*>(of.row(begin));
  int64_t turn = 0;
  copy_each(block, turn, count, bytes, unit_of(aligned(keys, bytes, rows, bytes)),
            [&](int64_t i) { return of.fresh[begin + i] ? keys + of.ids[begin + i] * bytes : nullptr; },
            [&](int64_t i) { return rows + i * bytes; });
}

// Give new keys places and numbers, and count all: by one block, behind `find_keys`. Rows ask for places in rounds, see
// `hash_map._match`.
template <class Block> FRB_INLINE void enter_keys(const Block& block, const Call& call) {
  const Keyed of(call);
  const int64_t batch = call.batch;
  const int32_t size = most(of.counters[MAP_SIZE], 0), room = of.map->capacity - size;
  int32_t* left = block.shared();
  auto sum = [](int32_t a, int32_t b) { return a + b; };
  auto placed = [&](int64_t i) { return int32_t(of.waits[i] == ASKS && of.own[i]); };
  do {
    block.each(batch, [&](int64_t i) { if (of.goes_on(i)) block.lower(of.table + of.places[i], of.ticket(i)); });
    block.each(batch, [&](int64_t i) {
      if (i == 0) *left = 0;
      if (of.waits[i] != ASKS) return;
      const int32_t entry = of.table[of.places[i]];
      of.own[i] = entry == of.ticket(i);
      const int64_t other = int64_t(entry) - of.map->capacity;
      if (of.own[i]) return;
      if (0 <= other && other < batch && of.same(i, other)) of.waits[i] = int32_t(other);
      else if (of.steps[i] < of.map->table_size)
        of.places[i] = int32_t((int64_t(of.places[i]) + ++of.steps[i]) & (of.map->table_size - 1));
    });
    // What has a place before the first that goes on will keep it: so once these fill the map, the others are refused.
    block.running(batch, placed, sum, [&](int64_t i, int32_t before) { if (of.goes_on(i) && before < room) leave(left, 1); });
  } while (*left);
  const int32_t found = block.running(batch, placed, sum, [&](int64_t i, int32_t rank) {
    of.own[i] = !placed(i) ? NO_PLACE : rank <= room ? size + rank - 1 : NO_ROOM;
  });
  const int64_t refused = block.total(batch, [&](int64_t i) { return int64_t(of.waits[i] != SETTLED && of.number(i) < 0); });
  block.each(batch, [&](int64_t i) {
    if (of.waits[i] != SETTLED) of.ids[i] = most<int32_t>(of.number(i), -1);
    of.fresh[i] = of.waits[i] == ASKS && of.own[i] >= 0;
    if (of.waits[i] == ASKS && of.own[i] != NO_PLACE) of.table[of.places[i]] = of.fresh[i] ? of.own[i] : EMPTY;
    // What has overflown is set back by everyone who sees it, and so by the last one.
    if (of.ids[i] >= 0 && uint32_t(block.add(of.counts + of.ids[i], 1)) >= uint32_t(INT32_MOST))
      block.exchange(of.counts + of.ids[i], int32_t(INT32_MOST));
  });
  block.each(1, [&](int64_t) {
    of.counters[MAP_SIZE] = saturated(int64_t(of.counters[MAP_SIZE]) + most(least(found, room), 0));
    of.counters[MAP_REFUSED] = saturated(int64_t(of.counters[MAP_REFUSED]) + refused);
  });
  if (!call.lines) keep(block, of, 0, batch);
}

// Keep new keys where they are many or long: `tile` rows by each block, behind `enter_keys`.
template <class Block> FRB_INLINE void keep_keys(const Block& block, const Call& call) {
  const int64_t begin = block.x() * call.tile;
  keep(block, Keyed(call), begin, most<int64_t>(least(call.tile, call.batch - begin), 0));
}

}  // namespace gpu

FRB_END
