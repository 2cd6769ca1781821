// What additions to rings for GPUs know of a batch, and which of its rows are marked.
#pragma once
#include "gpu.h"

FRB_BEGIN

namespace gpu {

// What all parts of an addition know of it. Rows of a batch are numbered step by step, `row = step * lanes + lane`;
// places likewise, of which each lane has as many as it can take.
struct Addition {
  const Call& call;
  const Plan plan;
  const Ring ring;
  const int64_t lanes, steps, each, places;
  // Places that new frames may take, and items that they may take them from; with these the oldest of each lane may change too,
  // in its turn or behind all others.
  const int64_t frame_places, most_lost, lost_entries;
  // Entries of the tree, or of the sparse set, that change in a lane, and in all; slots that leave or come.
  const int64_t changing, entries, most_moving;
  const bool keeps;  // more than items and counters
  int32_t *marked, *bases, *rows, *slots, *values, *in_episode, *windows, *changed, *numbers;
  int32_t *leaving, *coming, *work, *sources, *targets;
  // Of frames: which steps do not go on with those before, how many frames they and those before them take, and items
  // that lose theirs, and what the sampler counts there afterwards.
  int32_t *differ, *frame_ends, *lost, *lost_numbers, *losing;
  int32_t *chosen, *end;  // slots, where a writer chooses them

  FRB_INLINE explicit Addition(const Call& call)
      : call(call), plan(plan_of(call)), ring(ring_of(call)), lanes(ring->lanes), steps(short_div(call.batch, lanes)),
        each(least<int64_t>(steps, ring->length)), places(each * lanes), frame_places(lanes * frames_in(call, true)),
        most_lost(lanes * frames_in(call, false)), lost_entries(call.frames ? most_lost + 2 * lanes : 0),
        changing(changing_in(call)), entries(ring->window_length ? lanes * changing : 0),
        most_moving(call.order ? most(most(places, entries), lost_entries) : 0),
        keeps(plan->levels || call.kept || call.order || ring->next || call.frames || ring->chooses) {
    const int64_t masked = ranks() ? 1 : 0, kept = keeps ? places : 0;
    marked = call.scratch, bases = marked + (call.mask || call.queue || ring->chooses ? lanes : 0), rows = bases + masked * lanes;
    slots = rows + masked * call.batch, values = slots + kept, in_episode = values + kept;
    windows = in_episode + (ring->next ? call.batch : 0);
    changed = windows + (ring->completed ? call.batch : 0), numbers = changed + entries;
    leaving = numbers + entries, coming = leaving + most_moving, work = coming + most_moving;
    sources = work + 4 * most_moving, targets = sources + (call.order ? lanes : 0);
    differ = targets + (call.order ? lanes : 0), frame_ends = differ + (call.frames ? 2 * call.lines * call.batch : 0);
    lost = frame_ends + (call.frames ? lanes * steps : 0), lost_numbers = lost + lost_entries;
    losing = lost_numbers + lost_entries;
    chosen = losing + (call.frames ? lanes : 0);
    end = chosen + (ring->chooses ? places : 0);
  }
  FRB_INLINE int64_t frames_in(const Call& call, bool places) const {
    if (!call.frames) return 0;
    const ChainRecord* chain = reinterpret_cast<const ChainRecord*>(call.beside);
    return most_frames(chain, steps, places ? chain->room : chain->length);
  }
  FRB_INLINE static int64_t changing_in(const Call& call) {
    int64_t found = 1;  // the oldest
    for (int64_t k = 0; k < call.range_count; k += 2) found += call.ranges[k + 1] - call.ranges[k];
    return found;
  }

  // Whether the rows that count are told one by one; of steps that have waited they are the first of each lane.
  FRB_INLINE bool ranks() const { return (call.mask && !call.queue) || ring->chooses; }
  FRB_INLINE bool stops() const { return ring->refused && !ring->chooses; }
  // How many rows of a lane are marked, and how many of these are written: a buffer that stops has no room for more.
  FRB_INLINE int64_t wanted(int64_t lane) const { return ranks() || call.queue ? int64_t(marked[lane]) : steps; }
  FRB_INLINE int64_t count(int64_t lane) const {
    if (!stops()) return wanted(lane);
    return least<int64_t>(wanted(lane), int64_t(ring->length) - call.counters[ring->sizes + lane]);
  }
  FRB_INLINE int64_t skipped(int64_t lane) const { return most<int64_t>(count(lane) - each, 0); }
  // The k-th marked row of a lane.
  FRB_INLINE int64_t row(int64_t lane, int64_t k) const {
    return ranks() ? int64_t(rows[lane * steps + k]) : k * lanes + lane;
  }
  // Which lane a place is of, and which of its marked rows goes there, -1 for none.
  struct At { int64_t lane, k; };
  FRB_INLINE At at(int64_t place) const {
    const int64_t step = short_div(place, lanes), lane = place - step * lanes, before = skipped(lane);
    return {lane, step < count(lane) - before ? before + step : -1};
  }
  FRB_INLINE int64_t row_at(int64_t place) const {
    const At at = this->at(place);
    return at.k < 0 ? -1 : row(at.lane, at.k);
  }
  FRB_INLINE int64_t slot_at(int64_t place) const {
    if (ring->chooses) return chosen[place];
    const int64_t step = short_div(place, lanes), lane = place - step * lanes, length = ring->length;
    const int64_t behind = short_mod(within(call.counters[ring->cursors + lane] + skipped(lane)), length) + step;
    return lane * length + (behind < length ? behind : behind - length);
  }
  FRB_INLINE int64_t within(int64_t number) const {
    const int64_t limit = int64_t(ring->length) * ring->turns;
    return number < limit ? number : number - limit;
  }
};

// The marked rows of some lanes, one behind the other, and how many they are.
template <class Block> FRB_INLINE void rank_lanes(const Block& block, const Addition& of, int64_t first, int64_t lanes) {
  const int64_t steps = of.steps, here = most<int64_t>(least(lanes, of.lanes - first), 0);
  auto lane_at = [&](int64_t i) { return first + short_div(i, steps); };
  auto row = [&](int64_t i) { return short_mod(i, steps) * of.lanes + lane_at(i); };
  auto marked = [&](int64_t i) { return int32_t(of.call.mask[row(i)] != 0); };
  auto sum = [](int32_t a, int32_t b) { return a + b; };
  block.running(here * steps, marked, sum, [&](int64_t i, int32_t found) {
    const int64_t step = short_mod(i, steps);
    if (step == 0) of.bases[lane_at(i)] = found - marked(i);
    if (step == steps - 1) of.marked[lane_at(i)] = found;
  });
  block.running(here * steps, marked, sum, [&](int64_t i, int32_t found) {
    if (marked(i)) of.rows[lane_at(i) * steps + found - 1 - of.bases[lane_at(i)]] = int32_t(row(i));
  });
  block.each(here, [&](int64_t i) { of.marked[first + i] -= of.bases[first + i]; });
}

// The same of all lanes, `ranked` by each block, before `add_to_rings`.
template <class Block> FRB_INLINE void rank_in_rings(const Block& block, const Call& call) {
  rank_lanes(block, Addition(call), block.x() * call.ranked, call.ranked);
}

}  // namespace gpu

FRB_END
