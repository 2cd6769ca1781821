// Frames that items share, for GPUs: as `new_frames.h`, and what is read of them.
#pragma once
#include "gpu_addition.h"

FRB_BEGIN

namespace gpu {

// The frames of a buffer: how they are chained, and the leaves that are stored as such.
struct Frames {
  const Call& call;
  const ChainRecord& chain;
  const FramesRecord& told;
  const StackRecord* stacks;
  const Plan layout;
  FRB_INLINE explicit Frames(const Call& call)
      : call(call), chain(*reinterpret_cast<const ChainRecord*>(call.beside)),
        told(*reinterpret_cast<const FramesRecord*>(&chain + 1)), stacks(reinterpret_cast<const StackRecord*>(&told + 1)),
        layout{{reinterpret_cast<const BufferRecord*>(call.beside_plan)}} {}

  // A frame in a leaf of a row, or where it is stored: its pieces lie so many bytes apart.
  struct Frame {
    char* at;
    int64_t apart;
  };
  FRB_INLINE static int64_t bytes_of(const StackRecord& of) { return int64_t(of.outer) * of.bytes; }
  FRB_INLINE Frame given(const StackRecord& of, int64_t leaf, int64_t row, int64_t which) const {
    return {call.items[leaf] + row * of.depth * bytes_of(of) + which * of.bytes, int64_t(of.depth) * of.bytes};
  }
  FRB_INLINE Frame stored(int64_t k, int64_t place) const {
    const LeafRecord& leaf = layout.leaf(k);
    return {call.rows_beside[leaf.storage] + place * layout.stored_bytes(leaf.storage) + leaf.offset, stacks[k].bytes};
  }
  // How the pieces of a stack's frames are aligned, wherever they lie.
  FRB_INLINE uint64_t unit(int64_t k) const {
    const StackRecord& of = stacks[k];
    const char* next = of.following < 0 ? nullptr : call.items[of.following];
    return unit_of(uint64_t(of.bytes) | aligned(call.items[of.leaf], 0, next, 0) |
                   aligned(stored(k, 0).at, layout.stored_bytes(layout.leaf(k).storage), nullptr, 0));
  }
  // Of a lane's frames the number of the next one, and where one of a number lies.
  FRB_INLINE int64_t cursor(int64_t lane) const { return call.counters[told.cursor + lane]; }
  FRB_INLINE int64_t place(int64_t lane, int64_t number) const {
    return lane * chain.room + floor_mod(number, int64_t(chain.room));
  }

  // How many frames a step takes, of its own stack and of the one that follows it.
  struct Taken {
    int64_t own, both;
  };
  FRB_INLINE Taken taken(const Addition& of, int64_t row) const {
    bool shares = true, moves = true;
    for (int64_t line = 0; line < call.lines; ++line) {
      const int32_t* differ = of.differ + 2 * line * call.batch;
      shares &= !differ[row], moves &= !differ[call.batch + row];
    }
    const int64_t depth = chain.depth;
    if (!chain.paired) return {shares ? 1 : depth, shares ? 1 : depth};
    const int64_t own = shares ? 0 : depth;
    return {own, own + (moves ? 1 : depth)};
  }
  // How many frames lanes before this one take, and how many it takes itself.
  FRB_INLINE int64_t before(const Addition& of, int64_t entry) const { return entry ? of.frame_ends[entry - 1] : 0; }
  FRB_INLINE int64_t all_of(const Addition& of, int64_t lane) const {
    return of.frame_ends[(lane + 1) * of.steps - 1] - before(of, lane * of.steps);
  }
};

// --- add ------------------------------------------------------------------------------------------------------------

// Look for differences between frames of rows, each pair of which `pair` names by the row, and by which frame it is, from
// a first one on; a piece at a time. Each line of blocks has a share of these.
template <class T, class Block, class Pair>
FRB_INLINE void find_differences(const Block& block, const StackRecord& of, int64_t here, int64_t first, int32_t* differ,
                                 const Pair& pair) {
  const int64_t units = of.bytes / int64_t(sizeof(T)), frames = of.depth - first, all = of.outer * frames * units;
  const int64_t share = parts(all, block.rows()), begin = block.y() * share, width = least(share, all - begin);
  if (width <= 0) return;
  block.each(here * width, [&](int64_t k) {
    const int64_t i = short_div(k, width), at = begin + k - i * width, frame = short_div(at, units), unit = at - frame * units;
    const int64_t piece = short_div(frame, frames), which = first + frame - piece * frames;
    Frames::Frame one, other;
    if (!pair(i, which, one, other)) return;
    const T x = reinterpret_cast<const T*>(one.at + piece * one.apart)[unit];
    const T y = reinterpret_cast<const T*>(other.at + piece * other.apart)[unit];
    if (x != y) leave(differ + i, 1);
  });
}

// The same, by bytes or as many of them as a unit has.
template <class Block, class Pair>
FRB_INLINE void find_differences_by(const Block& block, uint64_t unit, const StackRecord& of, int64_t here, int64_t first,
                                    int32_t* differ, const Pair& pair) {
  if (unit == 1) find_differences<char>(block, of, here, first, differ, pair);
  else find_differences<int32_t>(block, of, here, first, differ, pair);
}

// Whether a step shares what is there of the one before, and whether its next observation is its own moved on: each column
// of blocks behind those that rank has `tile` rows.
template <class Block> FRB_INLINE void compare_frames(const Block& block, const Call& call) {
  const Addition of(call);
  const Frames frames(call);
  const int64_t ranking = call.mask ? parts(of.lanes, call.ranked) : 0;
  if (block.x() < ranking) {
    if (block.y() == 0) rank_lanes(block, of, block.x() * call.ranked, call.ranked);
    return;
  }
  const int64_t begin = (block.x() - ranking) * call.tile, here = most<int64_t>(least(call.tile, call.batch - begin), 0);
  int32_t *earlier = block.shared(), *shares = earlier + MOST_DRAWS, *moves = shares + MOST_DRAWS;
  // The row before each in its lane, -1 for none, and -2 for one that is not marked itself.
  block.each(here, [&](int64_t i) {
    int64_t row = begin + i;
    const bool marked = !call.mask || call.mask[row];
    do row -= of.lanes;
    while (row >= 0 && call.mask && !call.mask[row]);
    earlier[i] = !marked ? -2 : int32_t(most<int64_t>(row, -1)), shares[i] = moves[i] = 0;
  });
  for (int64_t k = 0; k < frames.told.stacks; ++k) {
    const StackRecord& stack = frames.stacks[k];
    const bool paired = stack.following >= 0;
    const int64_t old = paired ? stack.following : stack.leaf;
    const uint64_t unit = frames.unit(k);
    find_differences_by(block, unit, stack, here, !paired, shares, [&](int64_t i, int64_t which, auto& x, auto& y) {
      const int64_t row = begin + i, lane = short_mod(row, of.lanes), back = stack.depth - 1 - which;
      x = earlier[i] < 0 ? frames.stored(k, frames.place(lane, frames.cursor(lane) - 1 - back))
                         : frames.given(stack, old, earlier[i], which);
      y = frames.given(stack, stack.leaf, row, which - !paired);
      return earlier[i] != -2;
    });
    if (paired)
      find_differences_by(block, unit, stack, here, 1, moves, [&](int64_t i, int64_t which, auto& x, auto& y) {
        x = frames.given(stack, stack.leaf, begin + i, which), y = frames.given(stack, stack.following, begin + i, which - 1);
        return earlier[i] != -2;
      });
  }
  int32_t* differ = of.differ + 2 * block.y() * call.batch + begin;
  block.each(here, [&](int64_t i) { differ[i] = shares[i], differ[call.batch + i] = moves[i]; });
}

// Number the frames that steps take, and note at which one the items' own end: `frame_store.plan_frames`.
template <class Block> FRB_INLINE void number_frames(const Block& block, const Addition& of) {
  const Call& call = of.call;
  const Frames frames(call);
  const int64_t limit = frames.chain.limit, steps = of.steps;
  auto sum = [](int32_t a, int32_t b) { return a + b; };
  auto takes = [&](int64_t i) {
    const int64_t lane = short_div(i, steps), k = i - lane * steps;
    return k < of.count(lane) ? int32_t(frames.taken(of, of.row(lane, k)).both) : 0;
  };
  block.running(of.lanes * steps, takes, sum, [&](int64_t i, int32_t found) { of.frame_ends[i] = found; });
  if (call.saved_at) block.each(of.places, [&](int64_t place) { call.saved_at[place] = call.frame_at[of.slot_at(place)]; });
  block.each(of.places, [&](int64_t place) {
    const Addition::At at = of.at(place);
    if (at.k < 0) return;
    const int64_t entry = at.lane * steps + at.k, first = frames.before(of, entry) - frames.before(of, at.lane * steps);
    const Frames::Taken taken = frames.taken(of, of.row(at.lane, at.k));
    const int64_t newest = floor_mod(frames.cursor(at.lane) - 1 + first + taken.own + limit, limit);
    call.frame_at[of.slots[place]] = int32_t(2 * newest + (taken.both - taken.own > 1));
  });
  block.each(of.lanes, [&](int64_t lane) {
    call.new_counters[frames.told.cursor + lane] = int32_t(floor_mod(frames.cursor(lane) + frames.all_of(of, lane), limit));
  });
}

// How many items of a lane lose frames.
FRB_INLINE int64_t lost_in(const Addition& of, int64_t lane) { return of.losing[lane] - (lane ? of.losing[lane - 1] : 0); }

// Find the oldest items, which lose frames: `frame_store.overwritten`. Of each lane these come one behind the other, and then
// the oldest of those that are left where windows may begin anew with it: before those of other lanes, or, if all lose frames
// that may, behind these.
template <class Block> FRB_INLINE void find_lost(const Block& block, const Addition& of) {
  const Call& call = of.call;
  const Frames frames(call);
  const Ring& ring = of.ring;
  const int64_t each = of.most_lost / of.lanes, items = frames.chain.item_limit, length = ring->length;
  const int32_t *cursors = call.new_counters + ring->cursors, *sizes = call.new_counters + ring->sizes;
  block.each(of.lost_entries, [&](int64_t i) { of.lost[i] = -1; });
  auto is_lost = [&](int64_t i) {
    const int64_t lane = short_div(i, each), k = i - lane * each, oldest = int64_t(cursors[lane]) - sizes[lane] + items;
    const int64_t slot = lane * length + floor_mod(oldest + k, items) % length;
    int64_t behind = int64_t(call.new_counters[frames.told.cursor + lane]) -
                     (call.frame_at[bounded(slot, of.plan->capacity)] >> 1);
    behind += (behind < 0 ? frames.chain.limit : 0) + frames.chain.depth - 1;
    const bool gone = k < sizes[lane] && behind > frames.chain.room;
    if (gone) of.lost[i + lane] = int32_t(slot);
    return int32_t(gone);
  };
  block.running(of.most_lost, is_lost, [](int32_t a, int32_t b) { return a + b; }, [&](int64_t i, int32_t found) {
    if (short_mod(i, each) == each - 1) of.losing[short_div(i, each)] = found;
  });
  block.each(ring->window_length ? of.lanes : 0, [&](int64_t lane) {
    const int64_t gone = lost_in(of, lane), left = sizes[lane] - gone, head = short_mod(cursors[lane], length);
    const int64_t at = gone < each ? lane * (each + 1) + each : of.most_lost + of.lanes + lane;
    if (left > 0) of.lost[at] = int32_t(lane * length + place_of(ring, head, left));
  });
  if (call.saved_values)
    block.each(of.lost_entries, [&](int64_t i) {
      const int32_t slot = most(of.lost[i], 0);
      call.saved_slots[of.places + of.entries + i] = slot, call.saved_values[of.places + of.entries + i] = call.tree[slot];
    });
}

// Copy parts of frames, of which `from` names one for each of `count` places, from pieces that lie apart to where they lie
// one behind the other, which `to` says, null for none.
template <class T, class Block, class To, class From>
FRB_INLINE void copy_frames(const Block& block, int64_t& turn, int64_t count, int64_t bytes, const Part& part, const To& to,
                            const From& from) {
  const int64_t units = part.width / int64_t(sizeof(T));
  block.template move<T>(count * units, turn, [&](int64_t k, T& held) {
    const int64_t i = short_div(k, units), at = part.first + (k - i * units) * int64_t(sizeof(T)), piece = short_div(at, bytes);
    T* target = reinterpret_cast<T*>(to(i));
    if (!target) return target;
    const Frames::Frame frame = from(i);
    held = *reinterpret_cast<const T*>(frame.at + piece * frame.apart + at - piece * bytes);
    return target + k - i * units;
  });
}

// Save what lies where new frames go, and write these: each column of blocks has `tile` places. Those that no frame takes
// are saved as they are.
template <class Block> FRB_INLINE void store_frames(const Block& block, const Call& call) {
  const Addition of(call);
  const Frames frames(call);
  const Plan& layout = frames.layout;
  const int64_t each = of.frame_places / of.lanes, steps = of.steps, depth = frames.chain.depth;
  const int64_t begin = block.x() * call.tile, here = most<int64_t>(least(call.tile, of.frame_places - begin), 0);
  int32_t *places = block.shared(), *rows = places + MOST_DRAWS, *which = rows + MOST_DRAWS;
  block.each(here, [&](int64_t i) {
    const int64_t lane = short_div(begin + i, each), all = frames.all_of(of, lane), first = lane * steps;
    const int64_t number = all - each + begin + i - lane * each, before = frames.before(of, first);
    places[i] = int32_t(frames.place(lane, floor_mod(frames.cursor(lane) + number + frames.chain.limit, frames.chain.limit)));
    rows[i] = -1;
    if (call.saved_places && block.y() == 0) call.saved_places[begin + i] = places[i];
    if (number < 0) return;
    int64_t step = 0, last = of.count(lane) - 1;
    while (step < last) {
      const int64_t middle = (step + last) / 2;
      if (of.frame_ends[first + middle] - before > number) last = middle;
      else step = middle + 1;
    }
    rows[i] = int32_t(of.row(lane, step));
    const Frames::Taken taken = frames.taken(of, rows[i]);
    const int64_t rank = number - (frames.before(of, first + step) - before);
    which[i] = int32_t(rank < taken.own ? depth - taken.own + rank : 2 * depth - taken.both + rank);
  });
  int64_t turn = 0;
  for (int64_t k = 0; call.saved_places && k < 1 + layout->wide; ++k) {
    const int64_t bytes = layout.stored_bytes(k);
    const Part part = part_of(block, k, bytes);
    char *stored = call.rows_beside[k] + part.first, *saved = call.others()[k] + begin * bytes + part.first;
    if (part.width)
      copy_each(block, turn, here, part.width, unit_of(aligned(stored, bytes, saved, bytes)),
                [&](int64_t i) { return saved + i * bytes; }, [&](int64_t i) { return stored + places[i] * bytes; });
  }
  block.wait();
  for (int64_t k = 0; k < frames.told.stacks; ++k) {
    const StackRecord& stack = frames.stacks[k];
    const Part part = part_of(block, layout.leaf(k).storage, Frames::bytes_of(stack));
    if (!part.width) continue;
    auto to = [&](int64_t i) { return rows[i] < 0 ? nullptr : frames.stored(k, places[i]).at + part.first; };
    auto from = [&](int64_t i) {  // a stack that is less deep than others repeats its oldest frame
      const int64_t leaf = which[i] < depth ? stack.leaf : stack.following, of_leaf = which[i] < depth ? which[i] : which[i] - depth;
      return frames.given(stack, leaf, rows[i], most<int64_t>(of_leaf - (depth - stack.depth), 0));
    };
    if (frames.unit(k) == 1) copy_frames<char>(block, turn, here, stack.bytes, part, to, from);
    else copy_frames<int32_t>(block, turn, here, stack.bytes, part, to, from);
  }
}

// --- draws ----------------------------------------------------------------------------------------------------------

// Read the stacks of items from `slots`, and those that follow on them, as far as they are wanted, to rows from `first` on; of
// each row the lines of blocks have a share of the bytes. `newest` has room for three times as many numbers.
template <class Block, class Wanted>
FRB_INLINE void load_frames(const Block& block, const Call& call, int64_t first, int64_t count, const int32_t* slots,
                            int32_t* newest, const Wanted& wanted) {
  const Frames frames(call);
  const ChainRecord& chain = frames.chain;
  const int64_t room = chain.room;
  int32_t *following = newest + MOST_DRAWS, *begins = following + MOST_DRAWS;  // of the lane's places
  block.each(count, [&](int64_t i) {
    const int32_t code = call.frame_at[slots[i]];
    newest[i] = int32_t((code >> 1) % room), following[i] = int32_t(((code >> 1) + (code & 1 ? chain.depth : 1)) % room);
    begins[i] = int32_t(short_div(slots[i], chain.length) * room);
  });
  int64_t turn = 0;
  for (int64_t k = 0; k < 2 * frames.told.stacks; ++k) {
    const StackRecord& stack = frames.stacks[k / 2];
    const int64_t leaf = k % 2 ? stack.following : stack.leaf, depth = stack.depth, piece_bytes = depth * stack.bytes;
    if (leaf < 0 || !call.others()[leaf] || !wanted(leaf)) continue;
    const int32_t* ends = k % 2 ? following : newest;
    const int64_t bytes = stack.outer * piece_bytes;
    char* rows = call.others()[leaf] + first * bytes;
    const Frames::Frame origin = frames.stored(k / 2, 0);
    const int64_t stride = frames.layout.stored_bytes(frames.layout.leaf(k / 2).storage);
    auto frame = [&](int64_t i, int64_t which) {
      const int64_t place = ends[i] - (depth - 1) + which;
      return origin.at + (begins[i] + (place < 0 ? place + room : place)) * stride;
    };
    auto copy = [&](auto kind, int64_t width, const auto& load) {
      using T = decltype(kind);
      const int64_t all = bytes / width, share = parts(all, block.rows()), from = block.y() * share;
      const int64_t units = most<int64_t>(least(share, all - from), 0);
      block.template move<T>(count * units, turn, [&](int64_t n, T& held) {
        const int64_t i = units ? short_div(n, units) : 0, unit = from + n - i * units;
        held = load(i, unit);
        return reinterpret_cast<T*>(rows + i * bytes) + unit;
      });
    };
    auto piece_of = [&](auto kind) {
      using T = decltype(kind);
      copy(kind, sizeof(T), [&](int64_t i, int64_t unit) {
        const int64_t at = unit * int64_t(sizeof(T)), piece = short_div(at, piece_bytes), rest = at - piece * piece_bytes;
        const int64_t which = short_div(rest, stack.bytes);
        return *reinterpret_cast<const T*>(frame(i, which) + piece * stack.bytes + rest - which * stack.bytes);
      });
    };
    const uint64_t unit = unit_of(uint64_t(stack.bytes) | aligned(rows, bytes, origin.at, stride));
    if (unit >= 4) piece_of(int32_t());
    else if (piece_bytes == 4 && stack.bytes == 1 && aligned(rows, bytes, nullptr, 0) % 4 == 0)  // of images, the usual stack
      copy(int32_t(), 4, [&](int64_t i, int64_t piece) {
        uint32_t found = 0;
        FRB_UNROLL
        for (int which = 0; which < 4; ++which) found |= uint32_t(uint8_t(frame(i, which)[piece])) << (8 * which);
        return int32_t(found);
      });
    else piece_of(char());
  }
}

// As `sample`, of items that share frames.
template <class Block> FRB_INLINE void sample_frames(const Block& block, const Call& call) {
  int32_t* slots = block.shared();
  const int64_t begin = block.x() * call.tile, here = draw_slots(block, call, slots, slots + MOST_DRAWS);
  load_items(block, call, plan_of(call), begin, here, [&](int64_t i) { return slots[i]; });
  load_frames(block, call, begin, here, slots, slots + MOST_DRAWS, [](int64_t) { return true; });
}

}  // namespace gpu

FRB_END
