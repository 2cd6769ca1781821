// Draws from mixtures of buffers that draw single items, or slices, with replacement: what `mixture.drawing` gives. CPUs
// share a batch out by the same functions (`mixtures.h`).
#pragma once
#include "gpu_slices.h"

FRB_BEGIN

namespace gpu {

// Buffers of a mixture that a call can name.
constexpr int MOST_MIXED = 12;
// Bits of a row's fraction, by which quotas are rounded, and shares that count: see `mixture.shares`.
constexpr int STEPS = 30;
constexpr int32_t BELOW = 1073741823;
constexpr float PART = 1073741824.0f, ROUNDING = 4.76837158203125e-7f;
constexpr float LEAST_SHARE = 7.888609052210118e-31f, MOST_SHARE = 1.2676506002282294e30f;

// What stands behind the record of a mixture: where what a draw has to know of each of its buffers lies. Without counters the
// first are three numbers, as `drawing.Status` has them.
struct OfBuffer {
  const int32_t* counters;
  const float *sums, *smallest;  // the root's rows: null without a tree, and the smallest also where it counts windows
  FRB_INLINE float size() const { return counters ? float(counters[SIZE]) : sums[1]; }
  FRB_INLINE bool drawable() const {
    if (!counters) return sums[0] > 0;
    return counters[SIZE] > 0 && (!sums || Children(sums).sum() > 0);
  }
  // The least chance of an item.
  FRB_INLINE float least_chance() const {
    if (!counters) return sums[2];
    if (!sums) return 1.0f / float(most(counters[SIZE], 1));
    const float sum = Children(sums).sum();
    return smallest ? most(Children(smallest).smallest() * (1.0f / (sum > 0 ? sum : 1.0f)), LEAST_CHANCE) : 1.0f / most(sum, 1.0f);
  }
};
FRB_INLINE OfBuffer buffer_of(const Call& call, int64_t k) {
  char* const* at = call.others() + 3 * k;
  return {reinterpret_cast<const int32_t*>(at[0]), reinterpret_cast<const float*>(at[1]),
          reinterpret_cast<const float*>(at[2])};
}
FRB_INLINE Mixture mixture_of(const Call& call) { return record_of<Mixture>(call.beside); }

#if !defined(__CUDACC__)
// Put what all kernels have to know of a mixture into a call; of its record that is one of its buffers.
inline void tell_mixture(Mixture mixture, int64_t number, const float* array, const BufferCall* calls, Call& call) {
  memcpy(call.beside, mixture.at, sizeof(MixtureRecord) + size_t(mixture->buffers) * sizeof(float));
  reinterpret_cast<MixtureRecord*>(call.beside)->number = int32_t(number);
  char** arrays = call.items + MOST;
  for (int64_t k = 0; k < mixture->buffers; ++k, arrays += 3) {
    const Plan plan = record_of<Plan>(calls[k].plan);
    arrays[0] = reinterpret_cast<char*>(const_cast<int32_t*>(calls[k].counters));
    const auto root = [&](int32_t row) { return plan->levels ? calls[k].tree + int64_t(row) * FANOUT : nullptr; };
    const LevelRecord none{}, &top = plan->levels ? top_of(plan) : none;
    const bool counts = calls[k].ring && record_of<Ring>(calls[k].ring)->window_length && !calls[k].kept;
    arrays[1] = reinterpret_cast<char*>(root(top.sums));
    arrays[2] = counts ? nullptr : reinterpret_cast<char*>(root(top.smallest));
  }
  *arrays = reinterpret_cast<char*>(const_cast<float*>(array));
}
#endif

// What each buffer gives, which the threads of a block share: its share, the least chance of its items, and where the rows
// that it gives end, or the draws that choose it; then the least chance of all items.
struct Shares {
  float of[MOST_MIXED], chances[MOST_MIXED];
  int32_t ends[MOST_MIXED], rest[MOST_MIXED];
  float least;
};
static_assert(sizeof(int32_t) * (MOST_DRAWS + GROUPS) + sizeof(Shares) <= sizeof(int32_t) * SHARED, "as a block has");
static_assert(sizeof(Cut) * MOST_DRAWS + sizeof(Shares) <= sizeof(int32_t) * SHARED, "as a block has");

// `drawing.plan` as far as shares go, and `shares.normalized`; the sum is 0 if nothing can be drawn.
FRB_INLINE float normalize(const Call& call, Mixture mixture, Shares& shares) {
  const float* given = reinterpret_cast<const float*>(call.others()[3 * mixture->buffers]);
  float total = 0.0f;
  for (int64_t k = 0; k < mixture->buffers; ++k) {
    const OfBuffer of = buffer_of(call, k);
    const float p = given ? given[k] : mixture->by_size ? of.size() : float_of(mixture.behind()[k]);
    shares.of[k] = of.drawable() && p >= LEAST_SHARE ? least(p, MOST_SHARE) : 0.0f;
    shares.chances[k] = of.least_chance();
    total = total + shares.of[k];
  }
  const float scale = 1.0f / (total > 0 ? total : 1.0f);
  for (int64_t k = 0; k < mixture->buffers; ++k) {
    shares.of[k] = shares.of[k] * scale;
    const float chance = shares.of[k] > 0 ? shares.of[k] * shares.chances[k] : 1.0f;
    shares.least = k ? least(shares.least, chance) : chance;
  }
  return total;
}

FRB_INLINE int64_t largest(const Shares& shares, int64_t count) {
  int64_t found = 0;
  for (int64_t k = 1; k < count; ++k)
    if (shares.of[k] > shares.of[found]) found = k;
  return found;
}

// Where the rows of each buffer end: `shares.quotas` and `shares.by_random_rounding`, by a draw in [0, 2^30).
FRB_INLINE void round_quotas(int64_t count, int64_t batch, float total, int32_t draw, Shares& shares) {
  int32_t left = total > 0 ? int32_t(batch) : 0, over = 0, end = 0;
  for (int64_t k = 0; k < count; ++k) {
    float quota = most(shares.of[k] * float(batch), 0.0f);
    const float nearest = float(int32_t(quota + 0.5f)), error = most(quota - nearest, nearest - quota);
    if (error <= quota * ROUNDING) quota = nearest;
    const int32_t whole = int32_t(quota);
    const int32_t rest = int32_t((quota - float(whole)) * PART);
    shares.ends[k] = whole, shares.rest[k] = quota > 0 && whole == 0 ? most(rest, 1) : rest;
    over -= shares.rest[k];
    left += (over >> STEPS) - whole, over &= BELOW;
  }
  const int64_t k_of_most = largest(shares, count);
  const int32_t rest = shares.rest[k_of_most] + over;
  shares.ends[k_of_most] += left + (rest >> STEPS), shares.rest[k_of_most] = rest & BELOW;
  over = draw;
  for (int64_t k = 0; k < count; ++k) {
    over += shares.rest[k];
    end += shares.ends[k] + (over >> STEPS), over &= BELOW;
    shares.ends[k] = end;
  }
}

// Where the draws in [0, 2^30) end that choose each buffer: `shares.borders`.
FRB_INLINE void find_borders(int64_t count, Shares& shares) {
  int32_t sum = 0, end = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int32_t part = int32_t(shares.of[k] * PART);
    sum += shares.ends[k] = shares.of[k] > 0 ? most(part, 1) : part;
  }
  shares.ends[largest(shares, count)] += (1 << STEPS) - sum;
  for (int64_t k = 0; k < count; ++k) shares.ends[k] = end += shares.ends[k];
}

// One of the keys that a key is split into, for the buffers one each behind that for the choice of these.
FRB_INLINE uint64_t split(uint64_t key, int64_t k) { return mix(mix(key + SPLIT) + uint64_t(k + 1) * GAMMA); }
FRB_INLINE uint64_t key_in_mixture(const Call& call, int64_t k) {
  if (!call.threefry_at) return split(uint64_t(call.key_at ? *call.key_at : call.key), k);
  const Words words(call);
  return uint64_t(uint32_t(words(2 * k))) << 32 | uint32_t(words(2 * k + 1));
}
FRB_INLINE Words key_of(const Call& call, int64_t k) { return Words(call.threefry_at, key_in_mixture(call, k)); }

// What each buffer gives; the sum of shares, 0 if nothing can be drawn.
FRB_INLINE float share_out(const Call& call, const Words& choices, Shares& shares) {
  const Mixture mixture = mixture_of(call);
  const float total = normalize(call, mixture, shares);
  if (mixture->exact) round_quotas(mixture->buffers, call.batch, total, choices(0) >> 1, shares);
  else find_borders(mixture->buffers, shares);
  return total;
}
// What tells by `Shares::ends` which buffer gives a row. Rows of a part have the same; with "exact" the rows themselves are
// counted, in the order of the buffers.
FRB_INLINE int64_t chosen_by(Mixture mixture, const Words& choices, int64_t row) {
  return mixture->exact ? row : int64_t(choices(row / mixture->rows_of_a_part)) >> 1;
}

// Share a batch out, and have `draw(words, i, rank)` draw each row of a block that is the buffer's own: the i-th of the block,
// of which so many rows of the buffer come before.
template <class Block, class Draw>
FRB_INLINE void draw_own_rows(const Block& block, const Call& call, Shares& shares, int64_t begin, int64_t here, const Draw& draw) {
  const Mixture mixture = mixture_of(call);
  const int64_t count = mixture->buffers, number = mixture->number;
  const Words choices = key_of(call, 0), words = key_of(call, 1 + number);
  hand_on_counters(block, call);
  block.each(1, [&](int64_t) { share_out(call, choices, shares); });
  auto gives = [&](int64_t row) {
    const int64_t x = chosen_by(mixture, choices, row);
    return (number == 0 || x >= shares.ends[number - 1]) && (number == count - 1 || x < shares.ends[number]);
  };
  const int64_t before = block.total(begin, [&](int64_t row) { return int64_t(gives(row)); });
  block.ranks(here, [&](int64_t i) { return gives(begin + i); },
              [&](int64_t i, int64_t rank) { draw(words, i, before + rank); });
}

// Name what a row has of one buffer, nothing where the handle is negative.
FRB_INLINE void name_in_mixture(const Call& call, int64_t row, int32_t handle) {
  call.handles[2 * row] = handle < 0 ? -1 : mixture_of(call)->number, call.handles[2 * row + 1] = handle;
}

// Tell a draw's chance, and its weight among all that the mixture may give.
FRB_INLINE void weigh_in_mixture(const Call& call, const Shares& shares, int64_t row, bool real, float chance) {
  const Mixture mixture = mixture_of(call);
  const float probability = real ? chance * shares.of[mixture->number] : 0.0f;
  call.probabilities[row] = probability;
  call.weights[row] = !real ? 0.0f : mixture->weighs ? weight_of(probability, shares.least, beta_of(call)) : 1.0f;
}

// Draw what one buffer gives, to its rows of the batch: the others write theirs. Each column of blocks has `tile` rows.
template <class Block> FRB_INLINE void sample_mixture(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Ring ring = ring_of(call);
  int32_t *slots = block.shared(), *ends = slots + MOST_DRAWS;
  Shares& shares = *reinterpret_cast<Shares*>(ends + GROUPS);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  if (ring->lanes > 1 && !plan->levels) count_groups(block, call, ring, ends);
  block.each(here, [&](int64_t i) { slots[i] = -1; });
  draw_own_rows(block, call, shares, begin, here, [&](const Words& words, int64_t i, int64_t rank) {
    slots[i] = draw_item(call, plan, ring, words, ends, rank, block.y() == 0, [&](int32_t handle, float, float chance) {
      const bool real = handle >= 0 && shares.of[mixture_of(call)->number] > 0;
      name_in_mixture(call, begin + i, real ? handle : -1);
      weigh_in_mixture(call, shares, begin + i, real, chance);
    });
  });
  load_items(block, call, plan, begin, here, [&](int64_t i) { return slots[i]; });
}

// The same of slices, one a row.
template <class Block> FRB_INLINE void sample_mixed_slices(const Block& block, const Call& call) {
  const Plan plan = plan_of(call);
  const Ring ring = ring_of(call);
  Cut* cuts = reinterpret_cast<Cut*>(block.shared());
  Shares& shares = *reinterpret_cast<Shares*>(cuts + MOST_DRAWS);
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  block.each(here, [&](int64_t i) { cuts[i].first = -1; });
  draw_own_rows(block, call, shares, begin, here, [&](const Words& words, int64_t i, int64_t rank) {
    const float value = draw_window(call, plan, ring, words, rank, cuts[i]);
    if (!(shares.of[mixture_of(call)->number] > 0)) cuts[i].real = 0;
    if (block.y() == 0)
      weigh_in_mixture(call, shares, begin + i, cuts[i].real > 0, chance_of_window(call, plan, value));
  });
  read_windows(block, call, plan, ring, cuts, begin, here,
               [&](int64_t row, int32_t handle) { name_in_mixture(call, row, handle); });
}

// --- mixtures of buffers of any kind, and of mixtures -----------------------------------------------------------------
//
// One launch shares a batch out, each buffer draws as many rows as it may have to give, of which the first count, by its own
// launches, and one for each puts its rows where they belong in the batch.

// The part that a row is of: part k begins at ceil(k * wanted / parts).
FRB_INLINE int64_t part_of(int64_t row, int64_t wanted, int64_t parts) {
  int64_t low = 0, high = parts;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if ((middle * wanted + parts - 1) / parts <= row) low = middle;
    else high = middle;
  }
  return low;
}

// The arrays that `share_rows` writes: of the mixture a `drawing.Status`; of each buffer its share and the least chance of its
// items; and `shares.Assignment`, if that is asked for.
enum Sharing { STATUS_OUT, SHARES_OUT, IDS_OUT, RANKS_OUT, COUNTS_OUT };

template <class Block> FRB_INLINE void share_rows(const Block& block, const Call& call) {
  const Mixture mixture = mixture_of(call);
  const int64_t count = mixture->buffers;
  const Words choices = key_of(call, 0);
  Shares& shares = *reinterpret_cast<Shares*>(block.shared());
  int32_t *ids = reinterpret_cast<int32_t*>(call.items[IDS_OUT]), *ranks = reinterpret_cast<int32_t*>(call.items[RANKS_OUT]);
  int32_t* counts = reinterpret_cast<int32_t*>(call.items[COUNTS_OUT]);
  const int64_t asked_for = call.wanted_at ? most<int64_t>(0, least<int64_t>(*call.wanted_at, call.batch)) : call.batch;
  block.each(1, [&](int64_t) {
    const float total = normalize(call, mixture, shares);
    float stored = 0.0f, *status = reinterpret_cast<float*>(call.items[STATUS_OUT]);
    for (int64_t k = 0; k < count; ++k) stored = stored + (shares.of[k] > 0 ? buffer_of(call, k).size() : 0.0f);
    status[0] = total > 0 ? 1.0f : 0.0f, status[1] = stored, status[2] = shares.least;
    for (int64_t k = 0; k < count; ++k) {
      float* of = reinterpret_cast<float*>(call.items[SHARES_OUT]) + 2 * k;
      of[0] = shares.of[k], of[1] = shares.chances[k];
    }
    if (mixture->exact) round_quotas(count, total > 0 ? asked_for : 0, total, choices(0) >> 1, shares);
    else find_borders(count, shares);
  });
  if (!ids) return;
  bool any = false;
  for (int64_t k = 0; k < count; ++k) any |= shares.of[k] > 0;
  const int64_t wanted = any ? asked_for : 0;
  block.each(call.batch, [&](int64_t row) {
    const int64_t chosen = mixture->exact ? row
                           : int64_t(choices(mixture->parts ? part_of(row, wanted, mixture->parts) : row)) >> 1;
    int64_t id = 0;
    while (id + 1 < count && chosen >= shares.ends[id]) ++id;
    ids[row] = int32_t(id);
    ranks[row] = mixture->exact && row < shares.ends[count - 1] ? int32_t(row - (id ? shares.ends[id - 1] : 0)) : 0;
  });
  for (int64_t k = 0; k < count; ++k) {
    int64_t given = mixture->exact ? shares.ends[k] - (k ? shares.ends[k - 1] : 0) : 0;
    if (!mixture->exact)
      given = block.ranks(wanted, [&](int64_t row) { return ids[row] == k; },
                          [&](int64_t row, int64_t rank) { ranks[row] = int32_t(rank); });
    block.each(1, [&](int64_t) { counts[k] = int32_t(given); });
  }
}

// The arrays that `place_rows` reads and writes, beside those that are taken as they are.
enum Placing { IDS, RANKS, COUNTS, SHARES, STATUS, HANDLES, PROBABILITIES, CHANCES, ALL_HANDLES, ALL_PROBABILITIES, ALL_WEIGHTS };

template <class Block> FRB_INLINE void place_rows(const Block& block, const Call& call) {
  const Places places = record_of<Places>(call.beside);
  auto ints = [&](Placing k) { return reinterpret_cast<int32_t*>(call.storage[k]); };
  auto floats = [&](Placing k) { return reinterpret_cast<float*>(call.storage[k]); };
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  const int64_t number = places->number, steps = places->steps, columns = places->columns, all = places->columns_of_all;
  auto is_own = [&](int64_t row) { return ints(IDS)[row] == number; };
  auto is_real = [&](int64_t row) { return ints(COUNTS)[number] > ints(RANKS)[row]; };
  if (block.y() == 0) {
    block.each(here * steps, [&](int64_t j) {
      const int64_t row = begin + j / steps, step = j % steps;
      if (!is_own(row)) return;
      const int32_t* from = ints(HANDLES) + (ints(RANKS)[row] * steps + step) * columns;
      int32_t* to = ints(ALL_HANDLES) + (row * steps + step) * all;
      const bool nothing = from[columns - 1] < 0 || !is_real(row);
      to[0] = nothing ? -1 : int32_t(number);
      for (int64_t c = 1; c < all; ++c) to[c] = nothing ? -1 : c == all - 1 ? from[columns - 1] : c < columns ? from[c - 1] : 0;
    });
    block.each(here, [&](int64_t i) {
      const int64_t row = begin + i;
      if (!is_own(row)) return;
      const int64_t from = ints(RANKS)[row];
      const float share = floats(SHARES)[2 * number], least_of_it = floats(SHARES)[2 * number + 1];
      const float probability = floats(PROBABILITIES)[from];
      const float chance = (call.storage[CHANCES] ? floats(CHANCES)[from] : places->has_chances ? probability : least_of_it) * share;
      floats(ALL_PROBABILITIES)[row] = is_real(row) ? probability * share : 0.0f;
      float weight = chance;
      if (places->tells_weights) {
        const bool there = is_real(row) && ints(HANDLES)[from * steps * columns + columns - 1] >= 0;
        weight = !there ? 0.0f : places->weighs ? weight_of(chance, floats(STATUS)[2], beta_of(call)) : 1.0f;
      }
      floats(ALL_WEIGHTS)[row] = weight;
    });
  }
  int64_t turn = 0;
  for (int64_t k = 0; k < places->arrays; ++k) {
    const int64_t bytes = places.behind()[k];
    // What a function of items gives may begin anywhere.
    const int64_t unit = int64_t(unit_of(uint64_t(bytes) | aligned(call.items[k], 0, call.others()[k], 0)));
    if (k < places->flags) {
      block.each(block.y() ? 0 : here * bytes, [&](int64_t j) {
        const int64_t row = begin + j / bytes;
        if (is_own(row)) call.others()[k][row * bytes + j % bytes] = is_real(row) && call.items[k][ints(RANKS)[row] * bytes + j % bytes];
      });
      continue;
    }
    const int64_t each_line = parts(bytes / unit, block.rows()) * unit, first = block.y() * each_line;
    if (first < bytes)
      copy_each(block, turn, here, least(each_line, bytes - first), uint64_t(unit),
                [&](int64_t i) { return is_own(begin + i) ? call.others()[k] + (begin + i) * bytes + first : nullptr; },
                [&](int64_t i) { return call.items[k] + ints(RANKS)[begin + i] * bytes + first; });
  }
}

// Handles for each buffer: its own among those of a mixture, int32 [batch, columns], and -1 in place of those of others.
template <class Block> FRB_INLINE void apart(const Block& block, const Call& call) {
  const Paths paths = record_of<Paths>(call.plan);
  const int64_t columns = paths->columns, buffers = paths->buffers;
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  block.each(here * buffers, [&](int64_t k) {
    const int64_t i = begin + k / buffers, number = k % buffers;
    const int32_t* row = reinterpret_cast<const int32_t*>(call.items[0]) + i * columns;
    const int32_t* path = paths.behind() + number * (columns - 1);
    bool own = true;
    for (int64_t c = 0; c + 1 < columns; ++c) own &= row[c] == path[c];
    reinterpret_cast<int32_t*>(call.items[1 + number])[i] = own ? row[columns - 1] : -1;
  });
}

}  // namespace gpu

FRB_END
