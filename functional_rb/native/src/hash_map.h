// Hash maps: one key after another, where the core does a batch in rounds; `structures.hash_map`.
#pragma once
#include "buffer_call.h"
#include "records.h"

FRB_BEGIN

constexpr int32_t EMPTY = 2147483647;  // in the table: nobody is here
constexpr int64_t MAP_MASK = INT32_MOST;
enum MapCounter { MAP_SIZE, MAP_REFUSED };

// So many keys before it is its turn, a key's first place is fetched: the memory answers many at a time.
constexpr int64_t AHEAD = 16;

// The numbers that a hash is made of, as they are told.
struct ToldNumbers {
  Map map;
  FRB_INLINE int64_t mask(int64_t k) const { return map.behind()[k]; }
  FRB_INLINE int64_t factor(int64_t k) const { return map.behind()[map->words + k]; }
  FRB_INLINE int64_t sign(int64_t k) const { return map.behind()[2 * map->words + k]; }
};

// Where a search for a key ended, and how many steps led there from where its way begins.
struct Way {
  int64_t place, steps;
};

// A map's arrays: table int32 [table_size], keys int32 [capacity, words].
struct Table {
  Map map;
  const int32_t* table;
  const int32_t* keys;

  // Where the way of a key begins: `hash_map.homes`.
  template <class Numbers> FRB_INLINE int64_t home(const int32_t* key, const Numbers& of) const {
    int64_t mixed = 0;
    for (int64_t k = 0; k < map->words; ++k) {
      const int64_t product = ((int64_t(key[k]) & MAP_MASK) ^ of.mask(k)) * of.factor(k);
      mixed ^= (product >> 31) ^ (product & MAP_MASK);
      if (key[k] < 0) mixed ^= of.sign(k);
    }
    const int64_t product = (mixed ^ map->mask) * int64_t(map->factor);
    const int64_t bits = (product >> 31) ^ (product & MAP_MASK);
    return bits & ((int64_t(1) << map->hash_bits) - 1) & (int64_t(map->table_size) - 1);
  }

  // The place that has a key, or the free one where it would go. -1 if there is neither, in a table that is none of a
  // map: a map's never fills.
  FRB_INLINE Way seek(const int32_t* key, int64_t place) const {
    const int64_t words = map->words, last = int64_t(map->table_size) - 1;
    for (int64_t step = 0; step <= last; ++step) {
      const int32_t id = table[place];
      if (id == EMPTY) return {place, step};
      if (uint32_t(id) < uint32_t(map->capacity)) {
        int64_t k = 0;
        while (k < words && keys[id * words + k] == key[k]) ++k;
        if (k == words) return {place, step};
      }
      place = (place + step + 1) & last;
    }
    return {-1, last + 1};
  }
};

#if !defined(__CUDACC__)
// A call on a map: its record stands in place of a plan, its arrays are the storage, and the items are rows int32 [batch,
// words], ids int32 [batch] and, where keys are put in, which are new, uint8 [batch].
struct MapCall {
  const Map map;
  int32_t *const table, *const keys, *const counts, *const counters;
  const Matrix<const int32_t> rows;
  int32_t* const ids;

  explicit MapCall(const BufferCall& c)
      : map(record_of<Map>(c.plan)), table(array(c.storage[0])), keys(array(c.storage[1])), counts(array(c.storage[2])),
        counters(array(c.storage[3])), rows{array(c.items[0]), c.batch, map->words}, ids(array(c.items[1])) {}

 private:
  static int32_t* array(int64_t address) { return reinterpret_cast<int32_t*>(address); }
};

// The homes of rows, in their order; that of a row is fetched AHEAD rows before.
class Homes {
 public:
  FRB_INLINE Homes(const Table& table, Matrix<const int32_t> rows) : table_(table), rows_(rows) {
    for (int64_t k = 0; k < least(AHEAD - 1, rows.rows); ++k) fetch(k);
  }
  FRB_INLINE int64_t next(int64_t i) {
    if (i + AHEAD - 1 < rows_.rows) fetch(i + AHEAD - 1);
    return waiting_[i % AHEAD];
  }

 private:
  FRB_INLINE void fetch(int64_t k) {
    waiting_[k % AHEAD] = table_.home(rows_.at + k * table_.map->words, ToldNumbers{table_.map});
    __builtin_prefetch(table_.table + waiting_[k % AHEAD], 1);
  }

  const Table& table_;
  Matrix<const int32_t> rows_;
  int64_t waiting_[AHEAD];
};

// The id of each row, -1 for one that is not there.
FRB_ENTRY Outcome map_lookup(const BufferCall& call) {
  const MapCall c(call);
  const Table of{c.map, c.table, c.keys};
  Homes homes(of, c.rows);
  for (int64_t i = 0; i < c.rows.rows; ++i) {
    const int64_t place = of.seek(c.rows.at + i * c.rows.columns, homes.next(i)).place;
    c.ids[i] = place >= 0 && c.table[place] != EMPTY ? c.table[place] : -1;
  }
  return DONE;
}

// Count rows, and enter those that are new.
FRB_ENTRY Outcome map_insert(const BufferCall& call) {
  const MapCall c(call);
  const int64_t words = c.map->words;
  const Table of{c.map, c.table, c.keys};
  uint8_t* const fresh = reinterpret_cast<uint8_t*>(call.items[2]);
  int32_t &size = c.counters[MAP_SIZE], &refused = c.counters[MAP_REFUSED];
  Homes homes(of, c.rows);
  for (int64_t i = 0; i < c.rows.rows; ++i) {
    const int64_t first = homes.next(i);
    c.ids[i] = -1, fresh[i] = 0;
    if (call.mask && !call.mask[i]) continue;
    const int32_t* row = c.rows.at + i * words;
    const int64_t place = of.seek(row, first).place;
    if (place < 0 || c.table[place] == EMPTY) {
      const int32_t number = most(size, 0);
      if (place < 0 || number >= c.map->capacity) {
        refused += refused < MAP_MASK;
        continue;
      }
      memcpy(c.keys + number * words, row, size_t(words) * sizeof(int32_t));
      c.table[place] = number, fresh[i] = 1;
      size = number + 1;
    }
    int32_t& count = c.counts[c.ids[i] = c.table[place]];
    count += count < MAP_MASK;
  }
  return DONE;
}

#endif

FRB_END
