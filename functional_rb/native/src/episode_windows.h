// Windows of the steps of episodes that lie in rings: `structures.episode_windows`.
//
// in_episode: int32 [capacity], which step of its episode lies in each slot; `own` is the part that belongs to one lane.
#pragma once
#include "ring.h"

FRB_BEGIN

constexpr int64_t LONGEST = int64_t(1) << 30;
// Windows that come once while they are new are counted modulo this number: `fresh_windows.MOST`.
constexpr int64_t MOST_WINDOWS = int64_t(1) << 30;

// Whether such a window is complete with the step of its episode that has this number.
FRB_INLINE bool completes(const Ring& ring, int64_t step) { return short_mod(step + 1, ring->window_length) == 0; }

// One lane as its windows see it: its steps, where its head is, and how many of them are live.
struct Lane {
  Ring ring;
  const int32_t* own;
  int64_t head, size;

  FRB_INLINE Lane(const Ring& ring, const Lanes& lanes, const int32_t* in_episode, int64_t lane)
      : ring(ring),
        own(in_episode + lane * ring->length),
        head(short_mod(lanes.cursors[lane], ring->length)),
        size(lanes.sizes[lane]) {}

  FRB_INLINE int64_t step(int64_t back) const { return own[place_of(ring, head, back)]; }

  // Whether the trajectory of a live step has a live step so far after it.
  FRB_INLINE bool goes_on(int64_t back, int64_t step, int64_t distance) const {
    return back - distance >= 1 && this->step(back - distance) - step == distance;
  }

  // How far on the last step is that a window needs.
  FRB_INLINE int64_t reach() const { return int64_t(ring->window_length) - 1 - ring->right; }

  // How many multiples of the period lie in [low, high].
  FRB_INLINE int64_t multiples(int64_t low, int64_t high) const {
    const int64_t period = ring->period;
    if (period == 1) return high - low + 1;
    const int64_t shift = (ring->window_length + period - 1) / period * period;
    return floor_div(high + shift, period) - floor_div(low - 1 + shift, period);
  }

  // How many windows begin at the step so far behind the head, at least 1: `episode_windows.weights`.
  FRB_INLINE int64_t weight(int64_t back) const {
    if (back > size) return 0;
    const int64_t step = this->step(back);
    const bool first_live = step == 0 || back == size;
    bool starts = short_mod(step, ring->period) == 0;
    if (starts && reach() > 0) starts = goes_on(back, step, reach()) || (first_live && !ring->strict);
    return starts + (ring->left && first_live ? multiples(step - ring->left, step - 1) : 0);
  }

  // Whether the last window of its trajectory begins there: `episode_windows.last_starts`.
  FRB_INLINE int64_t last_start(int64_t back) const {
    if (weight(back) == 0) return 0;
    const int64_t step = this->step(back), period = ring->period;
    return !goes_on(back, step, period - short_mod(step, period) + reach());
  }
  // What the index counts there.
  FRB_INLINE int64_t number(int64_t back) const { return ring->by_trajectory ? last_start(back) : weight(back); }
};

// A window that a draw gives: its first step, how far back that lies, and how many steps to go for.
struct Window {
  int64_t start, back, steps;
};
FRB_INLINE Window begin_window(const Lane& of, int64_t back, const int32_t* words, bool live) {
  const Ring& ring = of.ring;
  const int64_t step = of.step(back), length = ring->window_length;
  int64_t count, first = step;
  bool drawn;
  if (ring->by_trajectory) {
    drawn = live && of.last_start(back) > 0;
    first = most<int64_t>(step - (of.size - back), 0);
    count = drawn ? of.multiples(first - ring->left, step) : 0;
  } else {
    count = of.weight(back);
    drawn = live && count > 0;
  }
  const int64_t v = step - short_mod(step, ring->period) - below(words, count) * ring->period;
  const int64_t start = most(v, first);
  return {start, back + step - start, drawn ? v + length - start : 0};
}

// How many steps from one on, which is so far behind the head, are of its trajectory, whose first is a given one, up to a limit:
// as they count up, that is found by halves.
FRB_INLINE int64_t steps_from(const Lane& of, int64_t back, int64_t start, int64_t limit) {
  int64_t real = 0;
  for (int64_t end = least(limit, back); real < end;) {
    const int64_t middle = (real + end) / 2;
    if (of.step(back - middle) - start == middle) real = middle + 1;
    else end = middle;
  }
  return real;
}

#if !defined(__CUDACC__)
// The entries that a write of n steps to each lane may change, as ranges of distances; `episode_windows.distances`.
inline int64_t distances(const Ring& ring, int64_t n, int32_t* ranges) {
  const int64_t reach = int64_t(ring->window_length) - 1 - ring->right, firsts[] = {0, reach, ring->period + reach};
  int64_t size = 0, covered = 0;
  for (int k = 0; k < 2 + (ring->by_trajectory != 0); ++k) {
    const int64_t start = most(firsts[k], covered), stop = least<int64_t>(firsts[k] + n, ring->length);
    if (start >= stop) continue;
    ranges[size] = int32_t(start), ranges[size + 1] = int32_t(stop);
    size += 2, covered = stop;
  }
  return size;
}

// Which step of its episode each new step is, int32 [size], and the next one of each lane; begins or ends is null.
FRB_ENTRY void steps_in_episodes(Span<const int32_t> next_in_episode, const int32_t* written, const uint8_t* begins,
                                 const uint8_t* ends, Span<int32_t> in_episode, int32_t* new_next) {
  const int64_t steps = in_episode.size / next_in_episode.size;
  for (int64_t lane = 0; lane < next_in_episode.size; ++lane) {
    int64_t began = -int64_t(next_in_episode[lane]);
    const int64_t first = lane * steps;
    for (int64_t column = 0; column < steps; ++column) {
      const bool starts = begins && begins[first + column];
      if (starts || (ends && column && ends[first + column - 1])) began = column;
      in_episode[first + column] = int32_t(column - began);
    }
    const int64_t newest = first + bounded(int64_t(written[lane]) - 1, steps);
    int64_t following = int64_t(in_episode[newest]) + 1;
    if (following >= LONGEST || (ends && ends[newest])) following = 0;
    new_next[lane] = written[lane] > 0 ? int32_t(following) : next_in_episode[lane];
  }
}

// The entries whose numbers a write may have changed, at distances from the heads, and each lane's oldest step.
FRB_ENTRY void changed(Ring ring, Numbers<int32_t> ranges, Lanes lanes, const int32_t* in_episode, int32_t* lane,
                       int32_t* back, Span<int32_t> slots, int32_t* numbers) {
  const int64_t length = ring->length;
  int64_t entry = 0;
  for (int64_t e = 0; e < ring->lanes; ++e) {
    const Lane of(ring, lanes, in_episode, e);
    for (int64_t k = 0; k < ranges.size + 2; k += 2) {
      int64_t stop = most<int64_t>(of.size, 1), start = stop - 1;  // the oldest comes last
      if (k < ranges.size) start = ranges[k], stop = ranges[k + 1];
      for (int64_t behind = start + 1; behind <= stop && entry < slots.size; ++behind, ++entry) {
        if (lane) lane[entry] = int32_t(e), back[entry] = int32_t(behind);
        slots[entry] = int32_t(e * length + place_of(ring, of.head, behind));
        numbers[entry] = int32_t(of.number(behind));
      }
    }
  }
}

FRB_ENTRY void weights_at(Ring ring, Lanes lanes, const int32_t* in_episode, Span<const int32_t> slots, int32_t* numbers) {
  for (int64_t i = 0; i < slots.size; ++i) {
    const int64_t slot = bounded(slots[i], ring->capacity), lane = lane_of(ring, slot);
    const Lane of(ring, lanes, in_episode, lane);
    numbers[i] = int32_t(of.number(back_of(ring, of.head, slot - lane * ring->length)));
  }
}

// The fields of `episode_windows.Slices`, [S, K] each.
struct Slices {
  int32_t *slots, *handles;
  uint8_t *mask, *is_first, *is_last, *truncated;
};

// The slots and handles of so many steps from a place on, and of the padding behind them.
inline void name_steps(const Ring& ring, int64_t cursor, int64_t lane, int64_t place, int64_t back, int64_t count,
                           int32_t* slots, int32_t* handles) {
  const int64_t length = ring->length, capacity = ring->capacity;
  int64_t turn = short_div(cursor, length);
  if (back > short_mod(cursor, length)) turn = (turn ? turn : ring->turns) - 1;  // before the head came round
  const int64_t slot = lane * length + place, straight = least(count, length - place);
  int64_t handle = turn * capacity + slot;
  for (int64_t k = 0; k < straight; ++k) slots[k] = int32_t(slot + k), handles[k] = int32_t(handle + k);
  if (straight < count) {
    turn = turn + 1 < ring->turns ? turn + 1 : 0;
    handle = turn * capacity + lane * length;
    for (int64_t k = straight; k < count; ++k)
      slots[k] = int32_t(lane * length + k - straight), handles[k] = int32_t(handle + k - straight);
  }
  const int32_t last = count ? slots[count - 1] : int32_t(slot);
  for (int64_t k = count; k < ring->window_length; ++k) slots[k] = last, handles[k] = -1;
}

// Expand drawn starts to windows, each by the first two words of its row; live is null if all are.
inline void cut(const Ring& ring, const Lanes& lanes, const int32_t* in_episode, const int32_t* next_in_episode,
                Span<const int32_t> starts, Matrix<const int32_t> words, const uint8_t* live, const Slices& slices) {
  const int64_t length = ring->length, width = ring->window_length;
  for (int64_t i = 0; i < starts.size; ++i) {
    const int64_t slot = bounded(starts[i], ring->capacity), lane = lane_of(ring, slot);
    const Lane of(ring, lanes, in_episode, lane);
    const int64_t drawn_back = back_of(ring, of.head, slot - lane * length);
    const Window window = begin_window(of, drawn_back, words.at + i * words.columns, !live || live[i]);
    const int64_t back = least(most<int64_t>(window.back, 1), length);
    // How many steps from there on belong to the trajectory, and the step in episode of what follows.
    int64_t place = place_of(ring, of.head, back), real = 0, following = of.own[place];
    const int64_t first = place;
    while (real < window.steps && real < back && following - window.start == real) {
      ++real;
      place = place + 1 < length ? place + 1 : 0;
      following = real < back ? of.own[place] : next_in_episode[lane];
    }
    const int64_t row = i * width;
    name_steps(ring, lanes.cursors[lane], lane, first, back, real, slices.slots + row, slices.handles + row);
    for (int64_t k = row; k < row + width; ++k) slices.mask[k] = k - row < real;
    memset(slices.is_first + row, 0, size_t(width));
    memset(slices.is_last + row, 0, size_t(width));
    memset(slices.truncated + row, 0, size_t(width));
    if (real) {
      slices.is_first[row] = window.start == 0;
      slices.is_last[row + real - 1] = following == 0;
      slices.truncated[row + real - 1] = following != 0;
    }
  }
}

FRB_ENTRY void expand(Ring ring, Lanes lanes, const int32_t* in_episode, const int32_t* next_in_episode,
                      Span<const int32_t> starts, Matrix<const int32_t> words, const uint8_t* live, int32_t* slots,
                      int32_t* handles, uint8_t* mask, uint8_t* is_first, uint8_t* is_last, uint8_t* truncated) {
  const Slices slices{slots, handles, mask, is_first, is_last, truncated};
  cut(ring, lanes, in_episode, next_in_episode, starts, words, live, slices);
}

// The steps that follow each slot, itself the first, int32 [count, n], and which of them are of its trajectory.
FRB_ENTRY void following(Ring ring, Lanes lanes, const int32_t* in_episode, Span<const int32_t> slots,
                         Matrix<int32_t> following_slots, uint8_t* real) {
  const int64_t length = ring->length, n = following_slots.columns;
  for (int64_t i = 0; i < slots.size; ++i) {
    const int64_t slot = bounded(slots[i], ring->capacity), lane = lane_of(ring, slot);
    const int32_t* steps = in_episode + lane * length;
    int64_t place = slot - lane * length;
    const int64_t back = back_of(ring, short_mod(lanes.cursors[lane], length), place), start = steps[place];
    for (int64_t k = 0; k < n; ++k) {
      following_slots.at[i * n + k] = int32_t(lane * length + place);
      real[i * n + k] = k < back && int64_t(steps[place]) - start == k;
      if (k + 1 < back) place = place + 1 < length ? place + 1 : 0;  // else this is the newest
    }
  }
}

// How many live steps of its trajectory lie before and after each slot. The steps double and then halve: most
// trajectories are far shorter than their lane, so little is read, and near by.
FRB_ENTRY void extent(Ring ring, Lanes lanes, const int32_t* in_episode, Span<const int32_t> slots, int32_t* before,
                      int32_t* after) {
  for (int64_t i = 0; i < slots.size; ++i) {
    const int64_t slot = bounded(slots[i], ring->capacity), lane = lane_of(ring, slot);
    const Lane of(ring, lanes, in_episode, lane);
    const int64_t place = slot - lane * ring->length, back = back_of(ring, of.head, place), start = of.own[place];
    before[i] = int32_t(least(start, most<int64_t>(of.size - back, 0)));
    int64_t beyond = 1;
    while (of.goes_on(back, start, beyond)) beyond *= 2;
    int64_t distance = beyond / 2;
    for (int64_t further = distance / 2; further; further /= 2)
      if (of.goes_on(back, start, distance + further)) distance += further;
    after[i] = int32_t(distance);
  }
}

#endif

FRB_END
