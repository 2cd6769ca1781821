// add for GPUs, of buffers whose items lie in rings, with what samplers keep of new items: as `added.h`.
#pragma once
#include "choices.h"
#include "gpu_epochs.h"
#include "gpu_frames.h"

FRB_BEGIN

namespace gpu {

// The step in its episode of each marked row, lane by lane, and the next one of each lane, with its newest trajectory
// key: `episodes.note`.
template <class Block> FRB_INLINE void count_steps(const Block& block, const Addition& of) {
  const Call& call = of.call;
  const Ring& ring = of.ring;
  const int64_t steps = of.steps, words = ring->newest ? of.plan.leaf(ring->id).bytes / 4 : 0;
  const int32_t* keys = words ? reinterpret_cast<const int32_t*>(call.items[ring->id]) : nullptr;
  auto ended = [&](int64_t row) {
    bool found = false;
    for (int64_t k = 0; k < ring->ends; ++k) found |= call.items[ring.behind()[k]][row] != 0;
    return found;
  };
  auto begins = [&](int64_t i) {
    const int64_t lane = short_div(i, steps), k = i - lane * steps;
    if (k >= of.count(lane)) return 0;
    const int64_t own = of.row(lane, k), before = k ? of.row(lane, k - 1) : 0;
    bool found = k && ended(before);
    for (int64_t word = 0; word < words; ++word) {
      const int32_t newest = k ? keys[before * words + word] : call.counters[ring->newest + lane + word * of.lanes];
      found |= keys[own * words + word] != newest;
    }
    return found ? int(i + 1) : 0;
  };
  auto larger = [](int32_t a, int32_t b) { return most(a, b); };
  block.running(of.lanes * steps, begins, larger, [&](int64_t i, int32_t found) {
    const int64_t lane = short_div(i, steps), first = lane * steps;
    if (i - first < of.count(lane))
      of.in_episode[i] = int32_t(found > first ? i + 1 - found : call.counters[ring->next + lane] + i - first);
  });
  block.each(of.lanes, [&](int64_t lane) {
    const int64_t count = of.count(lane);
    int64_t following = call.counters[ring->next + lane];
    if (count) {
      const int64_t last = of.row(lane, count - 1);
      following = ended(last) ? 0 : int64_t(of.in_episode[lane * steps + count - 1]) + 1;
      for (int64_t word = 0; word < words; ++word)
        call.new_counters[ring->newest + lane + word * of.lanes] = keys[last * words + word];
    }
    call.new_counters[ring->next + lane] = following >= LONGEST ? 0 : int32_t(following);
  });
}

// How many windows of its lane are complete with each marked row, lane by lane: `fresh_windows.note`.
template <class Block> FRB_INLINE void count_windows(const Block& block, const Addition& of) {
  const Call& call = of.call;
  const Ring& ring = of.ring;
  auto completed = [&](int64_t i) {
    const int64_t lane = short_div(i, of.steps), k = i - lane * of.steps;
    return int32_t(k >= of.skipped(lane) && k < of.count(lane) && completes(ring, of.in_episode[i]));
  };
  auto sum = [](int32_t a, int32_t b) { return a + b; };
  block.running(of.lanes * of.steps, completed, sum, [&](int64_t i, int32_t found) { of.windows[i] = found; });
  auto number = [&](int64_t i) {
    const int64_t lane = short_div(i, of.steps), first = lane * of.steps;
    const int64_t here = int64_t(of.windows[i]) - of.windows[first] + completed(first);
    return int32_t((call.counters[ring->completed + lane] + here) & (MOST_WINDOWS - 1));
  };
  block.each(of.lanes, [&](int64_t lane) {
    call.new_counters[ring->completed + lane] = number((lane + 1) * of.steps - 1);
  });
  block.each(of.places, [&](int64_t place) {
    const Addition::At at = of.at(place);
    if (at.k >= 0) call.times[of.slot_at(place)] = number(at.lane * of.steps + at.k);
  });
}

// Note which versions of the policy made new items, of which `leaf(k, row)` is a leaf, and let the tree have how fresh these are:
// `Staleness.added`.
template <class Block, class Leaf> FRB_INLINE void date(const Block& block, const Addition& of, const Leaf& leaf) {
  const Call& call = of.call;
  block.each(of.places, [&](int64_t place) {
    const Addition::At at = of.at(place);
    if (at.k < 0) return;
    int32_t& made_by = call.times[of.slots[place]];
    memcpy(&made_by, leaf(of.ring->made_by, of.row(at.lane, at.k)), sizeof made_by);  // of a long one the lower word
    call.tree[of.slots[place]] = freshness(of.ring, call.counters[of.ring->version], made_by);
  });
}

// Let slots leave the sparse set, others take positions over (in lanes that have a target), and new ones come, which
// are not in this epoch. Returns how many there are then.
template <class Block>
FRB_INLINE int64_t renew(const Block& block, const Addition& of, const Deck& deck, int64_t size, int64_t gone, int64_t come,
                         bool moves) {
  const Call& call = of.call;
  const Epoch epoch = epoch_of(call);
  const int64_t remaining = call.new_counters[epoch->remaining];
  const int64_t moving = moves ? of.lanes : 0;
  int32_t *positions = of.work, *work = positions + of.most_moving;
  const int64_t drawable = block.ranks(gone, [&](int64_t i) { return deck.place[of.leaving[i]] < remaining; },
                                       [&](int64_t i, int64_t found) { positions[found] = deck.place[of.leaving[i]]; });
  const int64_t touched = most(gone, come);
  deck.note(block, 2 * gone + touched + come + moving, [&](int64_t k, int64_t& at, int64_t& slot) {
    if (k < gone) return void(at = deck.place[of.leaving[k]]);
    if ((k -= gone) < gone) return void(at = k < drawable ? remaining - drawable + k : 0);
    if ((k -= gone) < touched) return void(at = size - gone + k);
    if ((k -= touched) < come) return void(slot = of.coming[k]);
    k -= come;
    if (of.targets[k] >= 0) at = deck.place[of.changed[of.sources[k]]], slot = of.changed[of.targets[k]];
  });
  if (remaining >= drawable) deck.move(block, remaining - drawable, positions, drawable, work);
  block.each(gone, [&](int64_t i) { positions[i] = deck.place[of.leaving[i]]; });
  if (size >= gone) deck.move(block, size - gone, positions, gone, work);
  block.each(moving, [&](int64_t k) {
    if (of.targets[k] < 0) return;
    deck.put(bounded(deck.place[of.changed[of.sources[k]]], deck.capacity), of.changed[of.targets[k]]);
  });
  block.each(come, [&](int64_t i) {
    if (const int64_t at = size - gone + i; at >= 0 && at < deck.capacity) deck.put(at, of.coming[i]);
  });
  block.each(1, [&](int64_t) {
    const bool emptied = remaining > 0 && remaining == drawable;
    call.new_counters[epoch->remaining] = int32_t(remaining - drawable);
    call.new_counters[epoch->epochs_done] = saturated(int64_t(call.new_counters[epoch->epochs_done]) + emptied);
    if (of.ring->window_length) call.new_counters[epoch->count] = int32_t(size - gone + come);
  });
  return size - gone + come;
}

// Let new items be in the sparse set in place of those that lay there: `WithoutReplacement.added`.
template <class Block> FRB_INLINE int64_t renew_items(const Block& block, const Addition& of) {
  const Deck deck(of.call, of.plan);
  const int64_t size = of.call.counters[epoch_of(of.call)->count];
  auto comes = [&](int64_t place) { return of.slots[place] >= 0; };
  auto leaves = [&](int64_t place) { return comes(place) && deck.has(of.slots[place], size); };
  const int64_t gone = block.ranks(of.places, leaves,
                                   [&](int64_t place, int64_t found) { of.leaving[found] = of.slots[place]; });
  const int64_t come = block.ranks(of.places, comes,
                                   [&](int64_t place, int64_t found) { of.coming[found] = of.slots[place]; });
  return renew(block, of, deck, size, gone, come, false);
}

// Let what begins where steps have come be in the sparse set; the trajectory that goes on in a lane keeps its position
// as its last start moves: `SlicesWithoutReplacement.added`.
template <class Block> FRB_INLINE int64_t renew_starts(const Block& block, const Addition& of) {
  enum { LEAVES = 1, COMES = 2, GOES_ON = 4 };
  const Call& call = of.call;
  const Ring& ring = of.ring;
  const Deck deck(call, of.plan);
  const int64_t size = call.counters[epoch_of(call)->count];
  auto lane_at = [&](int64_t i) { return short_div(i, of.changing); };
  auto back = [&](int64_t i) {
    const int64_t lane = lane_at(i), head = short_mod(call.new_counters[ring->cursors + lane], ring->length);
    return back_of(ring, head, of.changed[i] - lane * ring->length);
  };
  block.each(of.lanes, [&](int64_t lane) { of.sources[lane] = of.targets[lane] = -1; });
  block.each(of.entries, [&](int64_t i) {
    const int64_t lane = lane_at(i), behind = back(i);
    bool single = true;  // the oldest step, which comes last, may be among the others
    for (int64_t k = 0; k < call.range_count && i - lane * of.changing == of.changing - 1; k += 2)
      single &= behind <= call.ranges[k] || behind > call.ranges[k + 1];
    const bool old = deck.has(of.changed[i], size), now = of.numbers[i] > 0, fresh = behind <= of.count(lane);
    const int32_t leaves = old && (fresh || !now) ? LEAVES : 0, comes = now && (fresh || !old) ? COMES : 0;
    of.numbers[i] = single ? leaves | comes : 0;
    if (single && leaves && !fresh) block.raise(of.sources + lane, int32_t(i));
  });
  block.each(ring->by_trajectory ? of.entries : 0, [&](int64_t i) {
    const int64_t lane = lane_at(i), source = of.sources[lane];
    if (source < 0 || !(of.numbers[i] & COMES)) return;
    // As far apart as their steps are.
    const int64_t apart = int64_t(call.in_episode[of.changed[i]]) - call.in_episode[of.changed[source]];
    if (apart == back(source) - back(i)) block.raise(of.targets + lane, int32_t(i));
  });
  block.each(of.lanes, [&](int64_t lane) {
    if (of.targets[lane] < 0) return;
    of.numbers[of.sources[lane]] &= ~LEAVES;
    of.numbers[of.targets[lane]] &= ~COMES;
  });
  const int64_t gone = block.ranks(of.entries, [&](int64_t i) { return (of.numbers[i] & LEAVES) != 0; },
                                   [&](int64_t i, int64_t found) { of.leaving[found] = of.changed[i]; });
  const int64_t come = block.ranks(of.entries, [&](int64_t i) { return (of.numbers[i] & COMES) != 0; },
                                   [&](int64_t i, int64_t found) { of.coming[found] = of.changed[i]; });
  return renew(block, of, deck, size, gone, come, true);
}

// The entries whose numbers the steps that have come may have changed: `changed`.
template <class Block> FRB_INLINE void find_changed(const Block& block, const Addition& of) {
  const Call& call = of.call;
  const Ring& ring = of.ring;
  const Lanes lanes{call.new_counters + ring->cursors, call.new_counters + ring->sizes};
  block.each(of.entries, [&](int64_t i) {
    const int64_t e = short_div(i, of.changing);
    const Lane lane(ring, lanes, call.in_episode, e);
    int64_t k = i - e * of.changing, behind = most<int64_t>(lane.size, 1);  // the oldest comes last
    if (k < of.changing - 1)
      for (int64_t range = 0; range < call.range_count; range += 2) {
        const int64_t size = call.ranges[range + 1] - call.ranges[range];
        if (k >= 0 && k < size) behind = call.ranges[range] + 1 + k;
        k -= size;
      }
    of.changed[i] = int32_t(e * ring->length + place_of(ring, lane.head, behind));
    of.numbers[i] = int32_t(ring->by_trajectory ? lane.last_start(behind) : lane.weight(behind));
  });
}

// Let the tree have what begins where steps have come: `Slices.added`, `PrioritizedSlices.added`.
template <class Block> FRB_INLINE void show(const Block& block, const Addition& of) {
  const Call& call = of.call;
  block.each(of.entries, [&](int64_t i) {
    const int32_t slot = of.changed[i];
    if (call.saved_slots) call.saved_slots[of.places + i] = slot, call.saved_values[of.places + i] = call.tree[slot];
    of.numbers[i] = bits_of(!call.kept ? float(of.numbers[i]) : of.numbers[i] > 0 ? call.kept[slot] : 0.0f);
  });
  block.each(of.entries, [&](int64_t i) { leave(call.tree + of.changed[i], float_of(of.numbers[i])); });
  refresh_above(block, of.plan, call.tree, 1, of.entries, [&](int64_t i) { return of.changed[i]; });
}

// How many items there are in all lanes.
template <class Block> FRB_INLINE void count_items(const Block& block, const Addition& of) {
  const Call& call = of.call;
  if (of.lanes == 1) return;
  const int32_t* sizes = call.new_counters + of.ring->sizes;
  const int64_t size = block.total(of.lanes, [&](int64_t lane) { return int64_t(sizes[lane]); });
  block.each(1, [&](int64_t) { call.new_counters[CURSOR] = 0, call.new_counters[SIZE] = int32_t(size); });
}

// How many items are left of an epoch in order, by some counters of rings; 0 where there is none.
template <class Block> FRB_INLINE int64_t left_in_order(const Block& block, const Addition& of, const int32_t* counters) {
  const Call& call = of.call;
  if (!call.BufferCall::epoch || call.order) return 0;  // which is null on the host where there is none
  const Epoch epoch = epoch_of(call);
  return block.total(of.lanes, [&](int64_t lane) { return rest_of(of.ring, epoch, call.counters, counters, lane).left; });
}

// Note that an epoch in order of which something was left is done, where all that was is gone now: `_note_emptied`.
template <class Block> FRB_INLINE void note_emptied(const Block& block, const Addition& of, int64_t left_before) {
  const Call& call = of.call;
  const int64_t left = left_in_order(block, of, call.new_counters);
  block.each(1, [&](int64_t) {
    int32_t& done = call.new_counters[epoch_of(call)->epochs_done];
    done = saturated(int64_t(done) + (left_before > 0 && !left));
  });
}

// Let samplers know which items have lost frames: `removed`.
template <class Block> FRB_INLINE void lose(const Block& block, const Addition& of, int64_t members) {
  const Call& call = of.call;
  const Ring& ring = of.ring;
  const int64_t left = left_in_order(block, of, call.new_counters);
  block.each(of.lanes, [&](int64_t lane) { call.new_counters[ring->sizes + lane] -= int32_t(lost_in(of, lane)); });
  count_items(block, of);
  if (left) note_emptied(block, of, left);
  if (!ring->window_length && !call.order) return;
  const Lanes lanes{call.new_counters + ring->cursors, call.new_counters + ring->sizes};
  block.each(of.lost_entries, [&](int64_t i) {
    const int64_t slot = of.lost[i], e = slot < 0 ? 0 : lane_of(ring, slot);
    const Lane lane(ring, lanes, call.in_episode, e);
    const bool may_begin = ring->window_length && slot >= 0;
    of.lost_numbers[i] = may_begin ? int32_t(lane.number(back_of(ring, lane.head, slot - e * ring->length))) : 0;
  });
  if (call.order) {
    const Deck deck = Deck(call, of.plan).second();
    auto old = [&](int64_t i) { return of.lost[i] >= 0 && deck.has(of.lost[i], members); };
    const int64_t gone = block.ranks(of.lost_entries, [&](int64_t i) { return old(i) && !of.lost_numbers[i]; },
                                     [&](int64_t i, int64_t found) { of.leaving[found] = of.lost[i]; });
    const int64_t come = block.ranks(of.lost_entries, [&](int64_t i) { return of.lost_numbers[i] > 0 && !old(i); },
                                     [&](int64_t i, int64_t found) { of.coming[found] = of.lost[i]; });
    renew(block, of, deck, members, gone, come, false);
    return;
  }
  block.each(of.lost_entries, [&](int64_t i) {
    const int32_t slot = of.lost[i], number = of.lost_numbers[i];
    if (slot >= 0) call.tree[slot] = !call.kept ? float(number) : number > 0 ? call.kept[slot] : 0.0f;
  });
  refresh_above(block, of.plan, call.tree, 1, of.lost_entries, [&](int64_t i) { return of.lost[i]; });
}

// All but the rows, by one block; `leaf(k, row)` is a leaf of a row of the batch.
template <bool OF_FRAMES, class Block, class Leaf>
FRB_INLINE void add_beside(const Block& block, const Addition& of, const Leaf& leaf) {
  const Call& call = of.call;
  const Plan& plan = of.plan;
  const Ring& ring = of.ring;
  float* values = ring->window_length ? call.kept : call.tree;
  const int32_t by_default = plan->prioritized ? value_by_default(call, plan) : bits_of(1.0f);
  block.each(ring->chooses ? 0 : ring->counters, [&](int64_t k) { call.new_counters[k] = call.counters[k]; });
  if (call.saved_slots)
    block.each(of.places, [&](int64_t place) {
      const int64_t slot = of.slot_at(place);
      call.saved_slots[place] = int32_t(slot);
      if (call.saved_values) call.saved_values[place] = call.tree[slot];
      if (call.saved_kept) call.saved_kept[place] = call.kept[slot];
      if (call.saved_steps) call.saved_steps[place] = call.in_episode[slot];
      if (call.saved_times) call.saved_times[place] = call.times[slot];
      if (call.saved_current) call.saved_current[place] = call.current[slot];
    });
  block.each(ring->chooses ? 0 : of.lanes, [&](int64_t lane) {
    const int64_t count = of.count(lane), size = int64_t(call.counters[ring->sizes + lane]) + count;
    call.new_counters[ring->cursors + lane] = int32_t(of.within(call.counters[ring->cursors + lane] + count));
    call.new_counters[ring->sizes + lane] = int32_t(least<int64_t>(size, ring->length));
  });
  count_items(block, of);
  if (of.stops()) {
    const int64_t refused = block.total(of.lanes, [&](int64_t lane) { return of.wanted(lane) - of.count(lane); });
    block.each(1, [&](int64_t) { call.new_counters[ring->refused] = saturated(call.counters[ring->refused] + refused); });
  }
  if (const int64_t left = left_in_order(block, of, call.counters)) note_emptied(block, of, left);
  if (!of.keeps) return;
  if (ring->next) count_steps(block, of);
  if (ring->completed) count_windows(block, of);
  block.each(of.places, [&](int64_t place) {
    const Addition::At at = of.at(place);
    of.slots[place] = at.k < 0 ? -1 : int32_t(of.slot_at(place));
    if (at.k < 0) return void(of.values[place] = BAD);
    if (call.times && !ring->completed) call.times[of.slots[place]] = 0;
    if (call.current) call.current[of.slots[place]] = renewed(plan, of.slots[place], call.current[of.slots[place]]);
    of.values[place] = call.priorities ? value_of(plan, call.priorities[of.row(at.lane, at.k)]) : BAD;
    if (ring->next) call.in_episode[of.slots[place]] = of.in_episode[at.lane * of.steps + at.k];
  });
  if (OF_FRAMES) number_frames(block, of), find_lost(block, of);
  int64_t members = 0;
  if (call.order && !ring->window_length) members = renew_items(block, of);
  if (ring->version) {
    date(block, of, leaf);
  } else if (values) {
    auto value = [&](int64_t place) { return of.values[place] < 0 ? by_default : of.values[place]; };
    block.each(of.places, [&](int64_t place) {
      if (of.slots[place] >= 0) values[of.slots[place]] = float_of(value(place));
    });
    const int64_t rejected = block.total(of.places, [&](int64_t place) {
      return int64_t(call.priorities && of.slots[place] >= 0 && of.values[place] < 0);
    });
    const int32_t peak =
        block.largest(of.places, [&](int64_t place) { return of.slots[place] < 0 ? 0 : value(place); });
    block.each(1, [&](int64_t) {
      if (plan->prioritized) call.new_counters[PEAK] = most(call.counters[PEAK], peak);
      call.new_counters[REJECTED] = saturated(int64_t(call.counters[REJECTED]) + rejected);
    });
  }
  if (ring->window_length) {
    find_changed(block, of);
    if (call.order) members = renew_starts(block, of);
    else show(block, of);
  } else if (values) {
    const int64_t lost = OF_FRAMES ? of.lost_entries : 0;
    block.each(lost, [&](int64_t i) {  // what is gone has no priority
      if (of.lost[i] >= 0) call.tree[of.lost[i]] = 0;
    });
    refresh_above(block, plan, call.tree, 1, of.places + lost,
                  [&](int64_t i) { return i < of.places ? of.slots[i] : of.lost[i - of.places]; });
  }
  if (OF_FRAMES) lose(block, of, members);
}

// Write a batch. Each column of blocks but the first saves and writes `tile` places, also saves those behind what is
// marked; the first has the counters, and what the sampler keeps.
template <bool OF_FRAMES, class Block> FRB_INLINE void write_to_rings(const Block& block, const Call& call) {
  const Addition of(call);
  if (block.x() == 0) {
    auto leaf = [&](int64_t k, int64_t row) { return call.items[k] + row * of.plan.leaf(k).bytes; };
    if (block.y() == 0) add_beside<OF_FRAMES>(block, of, leaf);
    return;
  }
  const int64_t begin = (block.x() - 1) * call.tile, here = most<int64_t>(least(call.tile, of.places - begin), 0);
  auto slot = [&](int64_t i) { return of.slot_at(begin + i); };
  save_items(block, call, of.plan, begin, here, slot);
  store_items(block, call, of.plan, here, [&](int64_t i) { return of.row_at(begin + i); }, slot);
}
template <class Block> FRB_INLINE void add_to_rings(const Block& block, const Call& call) { write_to_rings<false>(block, call); }
// The same of items that share frames, which are compared before.
template <class Block> FRB_INLINE void add_with_frames(const Block& block, const Call& call) { write_to_rings<true>(block, call); }

}  // namespace gpu

FRB_END
