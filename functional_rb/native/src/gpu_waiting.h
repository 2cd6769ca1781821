// Steps that wait for those that follow them, for GPUs: as `waiting.h`. Rows are columns of lanes, `column * lanes + lane`,
// in which the steps that wait come before those of the batch.
#pragma once
#include "gpu_rings.h"
#include "step_queue.h"

FRB_BEGIN

namespace gpu {

// What all parts of an addition know of the steps that wait. A call's batch has as many rows as there are columns.
struct Queued : Returns {
  const Call& call;
  const Plan packed;
  const int64_t n, lanes, columns, before, agents, words;
  // For each column the row of its step and how many steps count, of all and of each agent; for each lane how many wait; for
  // each place in the queue which row waits there, and those rows themselves.
  int32_t *line, *whole, *steps, *pending, *waiting, *ranks, *kept, *end;

  FRB_INLINE Queued(const Call& call, int32_t* scratch)
      : Returns{*reinterpret_cast<const QueueRecord*>(call.beside)}, call(call),
        packed{{reinterpret_cast<const BufferRecord*>(call.beside_plan)}}, n(told.n), lanes(told.lanes),
        columns(short_div(call.batch, lanes)), before(lanes * (n - 1)), agents(told.agents),
        words(told.id < 0 ? 0 : packed.leaf(told.id).bytes / 4) {
    line = scratch, whole = line + call.batch, steps = whole + call.batch;
    pending = steps + (agents > 1 ? call.batch * agents : 0), waiting = pending + lanes, ranks = waiting + before;
    kept = ranks + call.batch;
    kept += (4 - (kept - call.scratch) % 4) % 4;  // so that rows are where units of them are read
    end = kept + before * (stored_bytes() + 16 * (1 + packed->wide)) / 4 + 4;
  }
  FRB_INLINE int64_t stored_bytes() const {
    int64_t sum = 0;
    for (int64_t array = 0; array < 1 + packed->wide; ++array) sum += packed.stored_bytes(array);
    return sum;
  }
  // A leaf of a step, which waits or is of the batch, by its row among both.
  FRB_INLINE const char* leaf(int64_t k, int64_t row) const {
    const LeafRecord& leaf = packed.leaf(k);
    if (row >= before) return call.items[k] + (row - before) * leaf.bytes;
    return call.rows_beside[leaf.storage] + row * packed.stored_bytes(leaf.storage) + leaf.offset;
  }
  // The row of the step so many columns behind one of an entry.
  FRB_INLINE int64_t step(int64_t entry, int64_t k) const {
    const int64_t column = short_div(entry, lanes);
    return line[entry + lanes * (least(column + k, columns - 1) - column)];
  }
  FRB_INLINE int64_t steps_of(int64_t entry, int64_t agent) const {
    return agents > 1 ? steps[entry * agents + agent] : whole[entry];
  }
  FRB_INLINE bool is_last(int64_t row) const {
    return Returns::is_last(packed, agents, [&](int64_t k) { return call.items[k] + row * packed.leaf(k).bytes; });
  }
};

// Line the steps of lanes up, and find which are complete, which are the first of each lane: each block `ranked` lanes.
template <class Block> FRB_INLINE void line_up(const Block& block, const Call& call) {
  const Addition of(call);
  const Queued queue(call, of.end);
  const int64_t lanes = queue.lanes, n = queue.n, columns = queue.columns, steps = columns - (n - 1), before = queue.before;
  const int64_t first = block.x() * call.ranked, here = most<int64_t>(least(call.ranked, lanes - first), 0);
  int32_t* const line = queue.line;
  auto marked = [&](int64_t i) {
    const int64_t lane = first + short_div(i, steps);
    return int32_t(!call.mask || call.mask[short_mod(i, steps) * lanes + lane]);
  };
  int32_t* ranks = queue.ranks + first * steps;
  block.running(here * steps, marked, [](int32_t a, int32_t b) { return a + b; }, [&](int64_t i, int32_t found) { ranks[i] = found; });
  auto base = [&](int64_t k) { return k ? ranks[k * steps - 1] : 0; };
  auto waited = [&](int64_t k) {
    return least<int64_t>(most<int64_t>(call.counters[queue.told.pending + first + k], 0), n - 1);
  };
  auto count = [&](int64_t k) { return waited(k) + ranks[(k + 1) * steps - 1] - base(k); };
  block.each(here * columns, [&](int64_t i) {
    const int64_t k = short_div(i, columns), column = i - k * columns, lane = first + k;
    if (column < waited(k)) line[column * lanes + lane] = int32_t(lane * (n - 1) + column);
    else if (column >= count(k)) line[column * lanes + lane] = int32_t(before + (steps - 1) * lanes + lane);
  });
  block.each(here * steps, [&](int64_t i) {
    const int64_t k = short_div(i, steps), step = i - k * steps, lane = first + k;
    if (marked(i)) line[(waited(k) + ranks[i] - base(k) - 1) * lanes + lane] = int32_t(before + step * lanes + lane);
  });
  // From the last column to the first: the latest that was found is the next one at which a trajectory ends.
  auto entry = [&](int64_t i) { return (columns - 1 - short_mod(i, columns)) * lanes + first + short_div(i, columns); };
  auto stops = [&](int64_t i) {
    const int64_t k = short_div(i, columns), column = columns - 1 - short_mod(i, columns), at = entry(i), row = line[at];
    if (column >= count(k)) return 0;
    bool found = row >= before && queue.is_last(row - before);
    for (int64_t word = 0; word < queue.words && column + 1 < count(k); ++word)
      found |= reinterpret_cast<const int32_t*>(queue.leaf(queue.told.id, row))[word] !=
               reinterpret_cast<const int32_t*>(queue.leaf(queue.told.id, line[at + lanes]))[word];
    return found ? int(i + 1) : 0;
  };
  block.running(here * columns, stops, [](int32_t a, int32_t b) { return most(a, b); }, [&](int64_t i, int32_t found) {
    const int64_t k = short_div(i, columns), column = columns - 1 - short_mod(i, columns), begin = k * columns;
    const bool known = found > begin;
    const int64_t stop = known ? columns - (found - 1 - begin) : count(k);
    const bool complete = column < count(k) && (known || column + n <= stop);
    queue.whole[entry(i)] = int32_t(most<int64_t>(least(n, stop - column), 1)) * (complete ? 1 : -1);
  });
  block.each(here, [&](int64_t k) {
    int64_t done = 0, last = count(k);
    while (done < last) {  // those that are complete come first
      const int64_t middle = (done + last) / 2;
      if (queue.whole[middle * lanes + first + k] > 0) done = middle + 1;
      else last = middle;
    }
    of.marked[first + k] = int32_t(done), queue.pending[first + k] = int32_t(count(k) - done);
  });
  block.each(here * (n - 1), [&](int64_t i) {
    const int64_t k = short_div(i, n - 1), lane = first + k;
    queue.waiting[lane * (n - 1) + i - k * (n - 1)] =
        line[least(of.marked[lane] + i - k * (n - 1), columns - 1) * lanes + lane];
  });
  if (queue.agents > 1)
    block.each(here * columns * queue.agents, [&](int64_t i) {
      const int64_t agent = short_mod(i, queue.agents), at = entry(short_div(i, queue.agents));
      int64_t k = 1;
      for (; k < queue.whole[at]; ++k) {
        bool done = false;
        for (int64_t j = 0; j < queue.told.done; ++j) done |= queue.leaf(queue.done()[j], queue.step(at, k - 1))[agent] != 0;
        if (done) break;
      }
      queue.steps[at * queue.agents + agent] = int32_t(k);
    });
}

// Write a reward of rows, added up over steps as numbers T.
template <class T, class Stored, class Block, class Slot>
FRB_INLINE void store_reward(const Block& block, const Addition& of, const Queued& queue, const Queued::Reward& reward,
                             int64_t begin, int64_t here, const Slot& slot) {
  const int64_t size = sizeof(Stored);
  const LeafRecord& leaf = of.plan.leaf(reward.leaf);
  const int64_t stride = of.plan.stored_bytes(leaf.storage);
  const Part part = part_of(block, leaf.storage, leaf.bytes);
  const int64_t first = part.first / size, width = part.width / size;
  block.each(here * width, [&](int64_t k) {
    const int64_t i = short_div(k, width), at = first + k - i * width, entry = of.row_at(begin + i);
    if (entry < 0) return;
    const int64_t steps = reward.agents > 1 ? queue.steps_of(entry, at) : queue.whole[entry];
    auto number = [&](int64_t j) { return T(reinterpret_cast<const Stored*>(queue.leaf(reward.leaf, queue.step(entry, j)))[at]); };
    reinterpret_cast<Stored*>(of.call.storage[leaf.storage] + leaf.offset + slot(i) * stride)[at] = Stored(queue.sum<T>(steps, number));
  });
}

// Write the rewards of rows, how many steps these are, and whether to bootstrap from what follows.
template <class Block, class Slot>
FRB_INLINE void store_returns(const Block& block, const Addition& of, const Queued& queue, int64_t begin, int64_t here,
                              const Slot& slot) {
  const Call& call = of.call;
  const Plan& plan = of.plan;
  const int64_t agents = most<int64_t>(queue.agents, 1), first = queue.packed->leaves, flag = first + 1 + queue.told.rewards;
  auto stored = [&](int64_t k, int64_t i) {
    const LeafRecord& leaf = plan.leaf(k);
    return call.storage[leaf.storage] + leaf.offset + slot(i) * plan.stored_bytes(leaf.storage);
  };
  const Part part = part_of(block, plan.leaf(flag).storage, agents);
  block.each(here * part.width, [&](int64_t k) {
    const int64_t i = short_div(k, part.width), agent = part.first + k - i * part.width, entry = of.row_at(begin + i);
    if (entry < 0) return;
    const int64_t last = queue.step(entry, queue.steps_of(entry, agent) - 1), terminated = queue.told.terminated,
                  truncated = queue.told.truncated;
    const bool ends = terminated >= 0 && queue.leaf(terminated, last)[agent] &&
                      !(truncated >= 0 && queue.leaf(truncated, last)[agent]);
    stored(flag, i)[agent] = !ends;
  });
  for (int64_t r = 0; r < queue.told.rewards; ++r) {
    const Queued::Reward& reward = queue.rewards()[r];
    by_dtype(reward.dtype, [&](auto number, auto stored) {
      store_reward<decltype(number), decltype(stored)>(block, of, queue, reward, begin, here, slot);
    });
  }
  if (block.y() != 0) return;  // numbers of steps lie in rows that are packed
  block.each(here * agents, [&](int64_t k) {
    const int64_t i = short_div(k, agents), agent = k - i * agents, entry = of.row_at(begin + i);
    if (entry >= 0) reinterpret_cast<int32_t*>(stored(first, i))[agent] = int32_t(queue.steps_of(entry, agent));
  });
}

// Write a leaf of rows as it is in their own step, or in the last of those that count.
template <class Block, class Slot>
FRB_INLINE void store_leaf(const Block& block, const Addition& of, const Queued& queue, int64_t& turn, int64_t to, int64_t from,
                           int64_t begin, int64_t here, const Slot& slot, bool of_last) {
  const LeafRecord &target = of.plan.leaf(to), &waits = queue.packed.leaf(from);
  const int64_t stride = of.plan.stored_bytes(target.storage), their = queue.packed.stored_bytes(waits.storage);
  const Part part = part_of(block, target.storage, target.bytes);
  if (!part.width) return;
  char* stored = of.call.storage[target.storage] + target.offset + part.first;
  const uint64_t unit = aligned(stored, stride, of.call.items[from], target.bytes) |
                        aligned(of.call.rows_beside[waits.storage], their, nullptr, waits.offset);
  copy_each(block, turn, here, part.width, unit_of(unit),
            [&](int64_t i) { return of.row_at(begin + i) < 0 ? nullptr : stored + slot(i) * stride; },
            [&](int64_t i) {
    const int64_t entry = of.row_at(begin + i);
    return queue.leaf(from, queue.step(entry, of_last ? queue.whole[entry] - 1 : 0)) + part.first;
  });
}

// Write the leaves of rows that are complete.
template <class Block, class Slot>
FRB_INLINE void store_complete(const Block& block, const Addition& of, const Queued& queue, int64_t begin, int64_t here,
                               const Slot& slot) {
  int64_t turn = 0;
  const int64_t leaves = queue.packed->leaves;  // behind which the rewards of the first steps are stored
  for (int64_t k = 0; k < leaves + queue.told.rewards; ++k) {
    const bool is_given = k < leaves;
    if (is_given && queue.is_reward(k)) continue;
    if (is_given && queue.is_own(k) && !queue.follows(k)) {  // of each agent's own last step
      const LeafRecord& leaf = of.plan.leaf(k);
      const int64_t bytes = leaf.bytes / queue.agents, stride = of.plan.stored_bytes(leaf.storage);
      const Part part = part_of(block, leaf.storage, leaf.bytes);
      char* stored = of.call.storage[leaf.storage] + leaf.offset;
      if (bytes)
        block.each(here * part.width, [&](int64_t j) {
          const int64_t i = short_div(j, part.width), at = part.first + j - i * part.width, entry = of.row_at(begin + i);
          if (entry < 0) return;
          const int64_t steps = queue.steps_of(entry, short_div(at, bytes));
          stored[slot(i) * stride + at] = queue.leaf(k, queue.step(entry, steps - 1))[at];
        });
    } else {
      const int64_t from = is_given ? k : queue.rewards()[k - leaves].leaf;
      store_leaf(block, of, queue, turn, is_given ? k : k + 1, from, begin, here, slot, is_given && queue.follows(k));
    }
  }
  store_returns(block, of, queue, begin, here, slot);
}

// As `add_to_rings`, of what `line_up` found complete.
template <class Block> FRB_INLINE void add_waiting(const Block& block, const Call& call) {
  const Addition of(call);
  const Queued queue(call, of.end);
  if (block.x() == 0) {
    if (block.y() != 0) return;
    add_beside<false>(block, of, [&](int64_t k, int64_t entry) {
      const int64_t steps = queue.follows(k) ? queue.whole[entry] : queue.is_own(k) ? queue.steps_of(entry, 0) : 1;
      return queue.leaf(k, queue.step(entry, steps - 1));
    });
    block.each(of.lanes, [&](int64_t lane) { call.new_counters[queue.told.pending + lane] = queue.pending[lane]; });
    return;
  }
  const int64_t begin = (block.x() - 1) * call.tile, here = most<int64_t>(least(call.tile, of.places - begin), 0);
  auto slot = [&](int64_t i) { return of.slot_at(begin + i); };
  save_items(block, call, of.plan, begin, here, slot);
  store_complete(block, of, queue, begin, here, slot);
}

// Let the steps wait that are not complete: each column of blocks `ranked` lanes, as they move within these.
template <class Block> FRB_INLINE void keep_waiting(const Block& block, const Call& call) {
  const Addition of(call);
  const Queued queue(call, of.end);
  const int64_t each = queue.n - 1, first = block.x() * call.ranked * each;
  const int64_t here = most<int64_t>(least(call.ranked * each, queue.before - first), 0);
  if (call.saved_places && block.y() == 0)
    block.each(here, [&](int64_t i) { call.saved_places[first + i] = int32_t(first + i); });
  char* kept = reinterpret_cast<char*>(queue.kept);
  for (int64_t array = 0; array < 1 + queue.packed->wide; ++array) {
    const int64_t bytes = queue.packed.stored_bytes(array);
    const Part part = part_of(block, array, bytes);
    char *rows = call.rows_beside[array] + part.first, *room = kept + first * bytes + part.first;
    char* saved = call.saved_places ? call.others()[array] + first * bytes + part.first : nullptr;
    kept += (queue.before * bytes + 15) / 16 * 16;
    if (!part.width) continue;
    int64_t turn = 0;
    const uint64_t unit = unit_of(aligned(rows, bytes, room, part.width) | aligned(saved, 0, nullptr, 0));
    auto old = [&](int64_t i) { return rows + (first + i) * bytes; };
    auto to_room = [&](int64_t i) { return room + i * bytes; };
    if (saved) copy_each(block, turn, here, part.width, unit, [&](int64_t i) { return saved + i * bytes; }, old);
    copy_each(block, turn, here, part.width, unit,
              [&](int64_t i) { return queue.waiting[first + i] < queue.before ? to_room(i) : nullptr; },
              [&](int64_t i) { return rows + queue.waiting[first + i] * bytes; });
    block.wait();
    copy_each(block, turn, here, part.width, unit,
              [&](int64_t i) { return queue.waiting[first + i] < queue.before ? rows + (first + i) * bytes : nullptr; }, to_room);
    for (int64_t k = 0; k < queue.packed->leaves; ++k) {
      const LeafRecord& leaf = queue.packed.leaf(k);
      if (leaf.storage != array || !leaf.bytes) continue;
      const int64_t width = array ? part.width : leaf.bytes;
      const uint64_t of_leaf = unit_of(aligned(rows, bytes, call.items[k], leaf.bytes) | uint64_t(leaf.offset) | uint64_t(part.first));
      copy_each(block, turn, here, width, of_leaf,
                [&](int64_t i) { return queue.waiting[first + i] < queue.before ? nullptr : rows + (first + i) * bytes + leaf.offset; },
                [&](int64_t i) { return call.items[k] + (queue.waiting[first + i] - queue.before) * leaf.bytes + part.first; });
    }
  }
}

}  // namespace gpu

FRB_END
