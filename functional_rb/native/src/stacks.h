// Leaves that are stored as frames, which items share; see `structures.frame_ring`.
#pragma once
#include "frame_ring.h"
#include "rows.h"

FRB_BEGIN

// The leaves of a buffer's items that are stacks of frames, and where these lie.
struct Stacks {
  // A frame in a leaf, or where it is stored: its pieces lie so many bytes apart.
  struct Frame {
    char* at;
    int64_t apart;
  };
  const BufferCall& whole;  // of leaves as users give them
  const Chain chain;
  const FramesRecord* told;
  const StackRecord* stacks;
  const Plan layout;
  explicit Stacks(const BufferCall& call)
      : whole(call), chain(record_of<Chain>(call.frames)), told(reinterpret_cast<const FramesRecord*>(chain.behind())),
        stacks(reinterpret_cast<const StackRecord*>(told + 1)), layout(record_of<Plan>(call.beside_plan)) {}

  // Stacks are numbered one after the other, each with the one that follows on it: which leaf has it, or -1.
  int64_t leaf(int64_t k) const { return k % 2 ? stacks[k / 2].following : stacks[k / 2].leaf; }
  // Where its frames lie: where the room of their lane begins, and the oldest in it; those below 0 lie at the room's end.
  struct Lying {
    int64_t begin, oldest, room;
    int64_t place(int64_t which) const { return begin + oldest + which + (oldest + which < 0 ? room : 0); }
  };
  // Those of an item; what says where they are others may have made.
  Lying lying(int64_t k, int64_t slot) const {
    const int64_t room = chain->room, code = whole.frame_at[slot], further = k % 2 == 0 ? 0 : code & 1 ? chain->depth : 1;
    return {slot / chain->length * room, floor_mod((code >> 1) + further, room) - stacks[k / 2].depth + 1, room};
  }
  // Whether frames that are stored one after the other lie as those of a leaf do.
  bool in_a_row(int64_t k) const {
    return stacks[k].outer == 1 && layout.stored_bytes(layout.leaf(k).storage) == bytes_of(stacks[k]);
  }
  // Which of the leaves that are given each of those is that are stored as they are.
  const int32_t* as_given() const { return reinterpret_cast<const int32_t*>(stacks + told->stacks); }
  Addresses storage() const { return {whole.beside, 1 + layout->wide}; }
  static int64_t bytes_of(const StackRecord& of) { return int64_t(of.outer) * of.bytes; }
  Frame given(const StackRecord& of, int64_t leaf, int64_t row, int64_t which) const {
    return {place(whole.items[leaf]) + row * of.depth * bytes_of(of) + which * of.bytes, int64_t(of.depth) * of.bytes};
  }
  Frame stored(int64_t k, int64_t slot) const {
    const LeafRecord& leaf = layout.leaf(k);
    return {place(whole.beside[leaf.storage]) + slot * layout.stored_bytes(leaf.storage) + leaf.offset, stacks[k].bytes};
  }
  static void copy_frame(const StackRecord& of, Frame from, Frame to) {
    if (of.bytes == 1 && from.apart == 4 && to.apart == 1)  // of images, the usual stack
      for (int64_t piece = 0; piece < of.outer; ++piece) to.at[piece] = from.at[4 * piece];
    else if (of.bytes)
      copy_column(to.at, to.apart, from.at, from.apart, of.outer, of.bytes);
  }
};

FRB_END
