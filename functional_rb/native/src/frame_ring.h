// Frames that are stored once: `frame_ring.places`, `frame_store.plan_frames` and `frame_store.overwritten`.
#pragma once
#include "records.h"

FRB_BEGIN

// Where the frames of the stacks lie that are asked for, int32 [count * stack].
FRB_ENTRY void places(Chain chain, Span<const int32_t> at, Span<const int32_t> slots, int32_t* frames) {
  const int64_t room = chain->room, limit = chain->limit, depth = chain->stack;
  for (int64_t i = 0; i < slots.size; ++i) {
    const int64_t slot = bounded(slots[i], at.size), first = slot / chain->length * room, code = at[slot];
    const int64_t newest = (code >> 1) + (code & 1 ? chain->jump : chain->step);
    for (int64_t j = 0; j < depth; ++j) {
      int64_t number = newest - depth + 1 + j;
      if (number < 0) number += limit;
      else if (number >= limit) number -= limit;
      frames[i * depth + j] = int32_t(first + short_mod(number, room));
    }
  }
}

// How many frames a step takes: of its own stack, and of the one that follows it.
struct Taken {
  int64_t own, following;
};
FRB_INLINE Taken taken_by(const Chain& chain, const uint8_t* shares, const uint8_t* moves, int64_t row) {
  const int64_t depth = chain->depth;
  if (!chain->paired) return {shares[row] ? 1 : depth, 0};
  return {shares[row] ? 0 : depth, !moves || moves[row] ? 1 : depth};
}

// Which frames of steps, one for each entry of shares, go where; moves is null if all do.
FRB_ENTRY void plan_frames(Chain chain, Span<const int32_t> cursor, const int32_t* written, Span<const uint8_t> shares,
                           const uint8_t* moves, Span<int32_t> slots, int32_t* source, uint8_t* live, int32_t* after,
                           int32_t* at) {
  const int64_t room = chain->room, limit = chain->limit, depth = chain->depth, lanes = cursor.size;
  const int64_t frames = frames_of_a_step(chain.at), steps = shares.size / lanes, n = slots.size / lanes;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    int64_t end = 0;
    for (int64_t t = 0; t < steps; ++t) {
      const Taken taken = taken_by(chain, shares.at, moves, t * lanes + lane);
      const int64_t newest = floor_mod(int64_t(cursor[lane]) - 1 + end + taken.own + limit, limit);
      at[lane * steps + t] = int32_t(2 * newest + (taken.following > 1));
      if (t < written[lane]) end += taken.own + taken.following;
    }
    after[lane] = int32_t(floor_mod(int64_t(cursor[lane]) + end, limit));
    for (int64_t k = 0; k < n; ++k) {
      const int64_t number = floor_mod(int64_t(after[lane]) - n + k + limit, limit);
      slots[lane * n + k] = int32_t(lane * room + number % room);
      source[lane * n + k] = 0, live[lane * n + k] = end - n + k >= 0;
    }
    int64_t first = n - end;  // the place of the lane's first new frame; those before place 0 are overwritten at once
    for (int64_t t = 0; t < least<int64_t>(written[lane], steps); ++t) {
      const Taken taken = taken_by(chain, shares.at, moves, t * lanes + lane);
      const int64_t both = taken.own + taken.following;
      for (int64_t rank = 0; rank < both; ++rank) {
        const int64_t which = rank < taken.own ? depth - taken.own + rank : 2 * depth - both + rank;
        if (first + rank >= 0) source[lane * n + first + rank] = int32_t((t * lanes + lane) * frames + which);
      }
      first += both;
    }
  }
}

// Which of the oldest items lose frames by a write, and how many are left in each lane; the cursors stay.
FRB_ENTRY void overwritten(Chain chain, Span<const int32_t> at, Span<const int32_t> cursors, const int32_t* sizes,
                           const int32_t* after, Span<int32_t> slots, uint8_t* gone, int32_t*, int32_t* new_sizes) {
  const int64_t length = chain->length, limit = chain->limit, items = chain->item_limit, n = slots.size / cursors.size;
  for (int64_t lane = 0; lane < cursors.size; ++lane) {
    const int64_t oldest = int64_t(cursors[lane]) - sizes[lane] + items;
    new_sizes[lane] = sizes[lane];
    for (int64_t k = 0; k < n; ++k) {
      const int64_t slot = lane * length + floor_mod(oldest + k, items) % length;
      int64_t behind = int64_t(after[lane]) - (at[bounded(slot, at.size)] >> 1);
      behind += (behind < 0 ? limit : 0) + chain->depth - 1;
      const bool lost = k < sizes[lane] && behind > chain->room;
      slots[lane * n + k] = int32_t(slot), gone[lane * n + k] = lost;
      new_sizes[lane] -= lost;
    }
  }
}

FRB_END
