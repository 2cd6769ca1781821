// `add` of buffers whose items lie in rings, of any number of lanes, or where a writer chooses, whole: with what samplers keep of
// new items.
#pragma once
#include <algorithm>

#include "choosing.h"
#include "new_frames.h"
#include "samplers.h"
#include "waiting.h"

FRB_BEGIN

// What one call adds. The new counters begin as the old ones; all memory is asked for before anything is written.
class Addition {
 public:
  explicit Addition(const BufferCall& call, NewFrames* frames = nullptr)
      : c(call), plan(plan_of(c)), ring(ring_of(c)), epoch(record_of<Epoch>(c.epoch)), frames(frames), lanes(ring->lanes),
        room(least<int64_t>(c.batch / lanes, ring->length) * lanes), slots(room), source(room), written(lanes),
        live(room), steps(ring->next ? c.batch : 0), values(c.priorities ? c.batch : 0),
        entries(most(ring->window_length ? 3 * room + lanes : 0, frames ? frames->most_lost() + lanes : 0)), numbers(entries.size),
        left(entries.size), members(c.order ? c.counters[epoch->count] : 0),
        most_leaving(!c.order ? 0 : most(room, entries.size)), leaving(most_leaving), work(6 * most_leaving + 2 * lanes), choice(c) {
    if (!ring->chooses) choose();
    if (c.epoch && !c.order) note_emptied(left_in_order(c, c.counters));
    if (ring->next) count_steps();
    if (c.priorities) make_values(plan, c.priorities, values.at, c.batch);
  }

  void carry_out() {
    const int32_t by_default = bits_of(plan->prioritized ? new_value(plan, c.tree, c.counters) : 1.0f);
    if (ring->chooses) count = choice.carry_out(slots.at, source.at, room);
    save();
    for (int64_t i = 0; c.current && i < count; ++i) c.current[slots[i]] = renewed(plan, slots[i], c.current[slots[i]]);
    if (c.order && !ring->window_length) renew_items();
    store();
    for (int64_t i = 0; ring->next && i < count; ++i) c.in_episode[slots[i]] = steps[source[i]];
    if (ring->completed) count_windows();
    else
      for (int64_t i = 0; c.times && i < count; ++i) c.times[slots[i]] = 0;
    if (frames) frames->store(slots.at, source.at, count);
    if (ring->version) date();
    else if (float* kept = ring->window_length ? c.kept : c.tree) value(kept, by_default);
    if (ring->window_length) show();
    else if (c.tree) refresh(plan, c.tree, slots.at, count);
    if (frames) lose();
    if (c.order && ring->window_length) c.new_counters[epoch->count] = int32_t(members);
  }

 private:
  // Which rows go where, in the order of `ring.plan_write`, and the cursors and sizes afterwards.
  void choose() {
    int32_t* sizes = c.new_counters + ring->sizes;
    choose_slots(ring, c.batch / lanes, {c.counters + ring->cursors, c.counters + ring->sizes}, c.mask, slots, source.at,
                 live.at, written.at, c.new_counters + ring->cursors, sizes);
    for (int64_t i = 0; i < room; ++i) {
      if (c.mask && !live[i]) continue;
      slots[count] = slots[i];
      source[count++] = c.mask ? source[i] : int32_t(c.batch - room + i);
    }
    if (lanes == 1) return;
    int64_t size = 0;
    for (int64_t lane = 0; lane < lanes; ++lane) size += sizes[lane];
    c.new_counters[CURSOR] = 0, c.new_counters[SIZE] = int32_t(size);
  }
  // The step in its episode of each row, and the next one of each lane, with its newest trajectory key: `episodes.note`.
  void count_steps() {
    const int64_t bytes = ring->newest ? plan.leaf(ring->id).bytes : 0;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t key = ring->newest + lane;  // where the first word of it lies
      int32_t newest[2] = {}, key_of_row[2] = {};
      for (int64_t k = 0; k < bytes / 4; ++k) newest[k] = c.counters[key + k * lanes];
      int64_t following = c.counters[ring->next + lane];
      for (int64_t row = lane; row < c.batch; row += lanes) {
        if (c.mask && !c.mask[row]) continue;
        if (bytes) memcpy(key_of_row, place(c.items[ring->id]) + row * bytes, size_t(bytes));
        if (key_of_row[0] != newest[0] || key_of_row[1] != newest[1]) following = 0;
        steps[row] = int32_t(following++), newest[0] = key_of_row[0], newest[1] = key_of_row[1];
        for (int64_t k = 0; k < ring->ends; ++k)
          if (place(c.items[ring.behind()[k]])[row]) following = 0;
      }
      for (int64_t k = 0; k < bytes / 4; ++k) c.new_counters[key + k * lanes] = newest[k];
      c.new_counters[ring->next + lane] = following >= LONGEST ? 0 : int32_t(following);
    }
  }
  // How many windows of its lane are complete with each step: `fresh_windows.note`.
  void count_windows() {
    for (int64_t i = 0; i < count; ++i) {
      int32_t& completed = c.new_counters[ring->completed + lane_of(ring, slots[i])];
      completed = int32_t((int64_t(completed) + completes(ring, steps[source[i]])) & (MOST_WINDOWS - 1));
      c.times[slots[i]] = completed;
    }
  }
  // Note what the slots hold beside the rows.
  void save() {
    c.saved_count[0] = count, c.saved_count[1] = 0;
    for (int64_t i = 0; c.saved_slots && i < count; ++i) {
      const int32_t slot = c.saved_slots[i] = slots[i];
      if (c.saved_values) c.saved_values[i] = c.tree[slot];
      if (c.saved_kept) c.saved_kept[i] = c.kept[slot];
      if (c.saved_steps) c.saved_steps[i] = c.in_episode[slot];
      if (c.saved_times) c.saved_times[i] = c.times[slot];
      if (c.saved_current) c.saved_current[i] = c.current[slot];
    }
  }
  // Save and write rows; those that lie together go to slots that do.
  void store() {
    const Addresses storage = storage_of(c), leaves = leaves_of(c), saved = saved_of(c);
    for (int64_t i = 0, stop; i < count; i = stop) {
      for (stop = i + 1; stop < count && slots[stop] == slots[i] + stop - i && source[stop] == source[i] + stop - i;) ++stop;
      save_items(plan, storage, slots[i], saved, i, stop - i);
      store_items(plan, storage, slots[i], leaves, source[i], stop - i);
    }
  }
  // Give new items their priorities: `Priorities.initial_values`.
  void value(float* kept, int32_t by_default) {
    int64_t rejected = 0;
    int32_t peak = c.counters[PEAK];
    for (int64_t i = 0; i < count; ++i) {
      const bool good = c.priorities && values[source[i]] >= 0;
      const int32_t value = good ? values[source[i]] : by_default;
      rejected += c.priorities && !good;
      kept[slots[i]] = float_of(value), peak = most(peak, value);
    }
    if (plan->prioritized) c.new_counters[PEAK] = peak;
    c.new_counters[REJECTED] = saturated(int64_t(c.counters[REJECTED]) + rejected);
  }
  // Note which versions of the policy made new items, and let the tree have how fresh these are: `Staleness.added`.
  void date() {
    const int64_t bytes = plan.leaf(ring->made_by).bytes;
    for (int64_t i = 0; i < count; ++i) {
      int32_t& made_by = c.times[slots[i]];
      memcpy(&made_by, place(c.items[ring->made_by]) + source[i] * bytes, sizeof made_by);  // of a long one the lower word
      c.tree[slots[i]] = freshness(ring, c.counters[ring->version], made_by);
    }
  }
  // Let the tree have what begins where steps have come: `Slices.added`, `PrioritizedSlices.added`.
  void show() {
    int32_t ranges[6];
    const int64_t size = distances(ring, room / lanes, ranges);
    int64_t changed_ones = lanes;
    for (int64_t k = 0; k < size; k += 2) changed_ones += lanes * (ranges[k + 1] - ranges[k]);
    changed(ring, {ranges, size}, {c.new_counters + ring->cursors, c.new_counters + ring->sizes}, c.in_episode, nullptr,
            nullptr, {entries.at, changed_ones}, numbers.at);
    if (c.order) return renew_starts(changed_ones / lanes);
    put_leaves(changed_ones);
  }
  // Let the leaves of entries be what their numbers say, and note what they were: slots may come again, and then count first.
  void put_leaves(int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const int32_t slot = entries[i];
      const int64_t at = count + c.saved_count[1] + i;
      if (c.saved_slots) c.saved_slots[at] = slot, c.saved_values[at] = c.tree[slot];
      left[i] = ring->window_length && !c.kept ? float(numbers[i])
                : numbers[i] > 0               ? c.kept[slot]
                                               : 0.0f;
    }
    c.saved_count[1] += n;
    set_leaves(plan, {c.tree}, {entries.at, n}, left.at);
  }
  // An epoch in order of which all that was left is gone now is done.
  void note_emptied(int64_t before) {
    const bool emptied = before > 0 && !left_in_order(c, c.new_counters);
    c.new_counters[epoch->epochs_done] = saturated(int64_t(c.new_counters[epoch->epochs_done]) + emptied);
  }
  // Let samplers know which items are gone: `removed`.
  void lose() {
    const int64_t left_before = c.epoch && !c.order ? left_in_order(c, c.new_counters) : 0;
    const Span<const int32_t> oldest = frames->lose();
    if (left_before) note_emptied(left_before);
    const int64_t each = oldest.size / lanes;
    int64_t n = 0;
    // Where windows begin may change at the oldest step that is left as well: it comes in its turn, or behind all others.
    for (int64_t turn = 0; turn < (ring->window_length ? 2 : 1); ++turn)
      for (int64_t lane = 0; lane < lanes; ++lane) {
        int64_t gone = 0;
        while (gone < each && frames->is_gone(lane * each + gone)) ++gone;
        for (int64_t i = 0; !turn && i < gone; ++i) entries[n++] = oldest[lane * each + i];
        const int64_t head = short_mod(c.new_counters[ring->cursors + lane], ring->length);
        const int64_t size = c.new_counters[ring->sizes + lane];
        if (ring->window_length && size && turn == (gone == each))
          entries[n++] = int32_t(lane * ring->length + place_of(ring, head, size));
      }
    const Lanes ends{c.new_counters + ring->cursors, c.new_counters + ring->sizes};
    if (ring->window_length) weights_at(ring, ends, c.in_episode, {entries.at, n}, numbers.at);
    else std::fill_n(numbers.at, n, 0);
    if (!c.order) return c.tree ? put_leaves(n) : void();
    int32_t* coming = work.at + 5 * most_leaving;
    int64_t gone = 0, come = 0;
    for (int64_t i = 0; i < n; ++i) {
      const bool old = is_member(entries[i]), now = numbers[i] > 0;
      if (old && !now) leaving[gone++] = entries[i];
      if (now && !old) coming[come++] = entries[i];
    }
    renew(gone, coming, come, 0);
  }
  bool is_member(int32_t slot) const {
    const int64_t at = c.place[slot];
    return at < members && c.order[bounded(at, plan->capacity)] == slot;
  }
  // Let new items be in the sparse set in place of those that lay there: `WithoutReplacement.added`.
  void renew_items() {
    int64_t gone = 0;
    for (int64_t i = 0; i < count; ++i)
      if (is_member(slots[i])) leaving[gone++] = slots[i];
    renew(gone, slots.at, count, 0);
  }
  // Let what begins where steps have come be in the sparse set; the trajectory that goes on in a lane keeps its position as
  // its last start moves: `SlicesWithoutReplacement.added`.
  void renew_starts(int64_t each) {
    enum { LEAVES = 1, COMES = 2 };
    int32_t *coming = work.at + 5 * most_leaving, *moves = coming + most_leaving;
    int64_t gone = 0, come = 0, moved = 0;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int32_t* steps_of_lane = entries.at + lane * each;
      int32_t* what = numbers.at + lane * each;
      const int64_t head = short_mod(c.new_counters[ring->cursors + lane], ring->length);
      const auto back = [&](int64_t i) { return back_of(ring, head, steps_of_lane[i] - lane * ring->length); };
      int64_t source = -1, target = -1;
      for (int64_t i = 0; i < each; ++i) {
        const bool old = is_member(steps_of_lane[i]), now = what[i] > 0, fresh = back(i) <= written[lane];
        // The oldest step, which comes last, may be among the others.
        const bool single = i + 1 < each || std::find(steps_of_lane, steps_of_lane + i, steps_of_lane[i]) == steps_of_lane + i;
        what[i] = !single ? 0 : (old && (fresh || !now) ? LEAVES : 0) | (now && (fresh || !old) ? COMES : 0);
        if (what[i] & LEAVES && !fresh) source = i;
      }
      for (int64_t i = 0; ring->by_trajectory && source >= 0 && i < each; ++i)  // as far apart as their steps are
        if (what[i] & COMES && int64_t(c.in_episode[steps_of_lane[i]]) - c.in_episode[steps_of_lane[source]] == back(source) - back(i)) target = i;
      if (target >= 0) {
        what[source] &= ~LEAVES, what[target] &= ~COMES;
        moves[moved] = steps_of_lane[source], moves[lanes + moved++] = steps_of_lane[target];
      }
      for (int64_t i = 0; i < each; ++i) {
        if (what[i] & LEAVES) leaving[gone++] = steps_of_lane[i];
        if (what[i] & COMES) coming[come++] = steps_of_lane[i];
      }
    }
    renew(gone, coming, come, moved);
  }
  // Let slots leave the sparse set, others take positions over, and new ones come, which are not in this epoch.
  void renew(int64_t gone, const int32_t* coming, int64_t come, int64_t moved) {
    const Deck deck = deck_of(c);
    const int64_t size = members, remaining = c.new_counters[epoch->remaining];
    int32_t *positions = work.at + 4 * most_leaving, *moves = work.at + 6 * most_leaving;
    int64_t drawable = 0;
    for (int64_t i = 0; i < gone; ++i)
      if (const int32_t at = c.place[leaving[i]]; at < remaining) positions[drawable++] = at;
    if (remaining >= drawable) deck.move(remaining - drawable, positions, drawable, work.at);
    for (int64_t i = 0; i < gone; ++i) positions[i] = c.place[leaving[i]];
    if (size >= gone) deck.move(size - gone, positions, gone, work.at);
    for (int64_t i = 0; i < moved; ++i) deck.put(bounded(c.place[moves[i]], plan->capacity), moves[lanes + i]);
    for (int64_t i = 0; i < come; ++i)
      if (const int64_t at = size - gone + i; at >= 0 && at < plan->capacity) deck.put(at, coming[i]);
    const bool emptied = remaining > 0 && remaining == drawable;
    c.new_counters[epoch->remaining] = int32_t(remaining - drawable);
    c.new_counters[epoch->epochs_done] = saturated(int64_t(c.new_counters[epoch->epochs_done]) + emptied);
    members += come - gone;
  }

  const BufferCall& c;
  const Plan plan;
  const Ring ring;
  const Epoch epoch;
  NewFrames* const frames;
  const int64_t lanes, room;
  int64_t count = 0;  // of rows that are stored
  Scratch<int32_t> slots, source, written;
  Scratch<uint8_t> live;
  Scratch<int32_t> steps, values, entries, numbers;
  Scratch<float> left;
  int64_t members;  // of the sparse set
  const int64_t most_leaving;  // or coming
  Scratch<int32_t> leaving, work;
  Choice choice;
};

// The rows of a batch that a buffer has room for which stops when it is full: `StopWhenFull.plan_write`.
class Fitting {
 public:
  explicit Fitting(const BufferCall& call) : call_(call), ring_(ring_of(call)), taken_(fits(call) ? 0 : call.batch) {
    if (!taken_.size) return;
    int64_t lost = 0;
    for (int64_t lane = 0; lane < ring_->lanes; ++lane) {
      int64_t room = ring_->length - size_of(ring_, call.counters, lane);
      for (int64_t row = lane; row < call.batch; row += ring_->lanes) {
        const bool marked = !call.mask || call.mask[row];
        taken_[row] = marked && room > 0;
        room -= taken_[row], lost += marked - taken_[row];
      }
    }
    call_.mask = taken_.at;
    call_.new_counters[ring_->refused] = saturated(int64_t(call.counters[ring_->refused]) + lost);
  }
  const BufferCall& call() const { return call_; }

 private:
  // Whether all of a batch fits, whatever is marked.
  bool fits(const BufferCall& call) const {
    bool all_fit = true;
    for (int64_t lane = 0; ring_->refused && !ring_->chooses && lane < ring_->lanes; ++lane)
      all_fit = all_fit && call.batch / ring_->lanes <= ring_->length - size_of(ring_, call.counters, lane);
    return all_fit;
  }

  BufferCall call_;
  const Ring ring_;
  Scratch<uint8_t> taken_;
};

// What the tree has of items that some versions of the policy made; that which learns is one number.
FRB_ENTRY void freshness_of_each(Ring ring, const int32_t* version, Span<const int32_t> made_by, float* values) {
  for (int64_t i = 0; i < made_by.size; ++i) values[i] = freshness(ring, *version, made_by[i]);
}

// Add what is given, or what is made of it.
FRB_ENTRY Outcome add_to_rings(const BufferCall& call) {
  if (call.queue) {
    const Waiting waiting(call);
    const Fitting fitting(waiting.call());
    Addition(fitting.call()).carry_out();
    waiting.keep();
    return DONE;
  }
  const Fitting fitting(call);
  if (call.frames) {
    NewFrames frames(fitting.call());
    Addition(frames.call(), &frames).carry_out();
  } else {
    Addition(fitting.call()).carry_out();
  }
  return DONE;
}

FRB_END
