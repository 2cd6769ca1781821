// The frames of new items, which share those that others have: `frame_store.added`.
#pragma once
#include "ring.h"
#include "stacks.h"

FRB_BEGIN

// The frames of a batch. Steps are numbered as they come, `step * lanes + lane`, each lane's marked ones first.
class NewFrames : Stacks {
 public:
  explicit NewFrames(const BufferCall& call)
      : Stacks(call), made_(call), plan_(plan_of(call)), ring_(ring_of(call)),
        lanes_(ring_->lanes), steps_(call.batch / lanes_), most_(frames_of_a_step(chain.at)),
        items_(plan_->leaves + call.item_count - call.given), rows_(call.batch), ranks_(call.batch), written_(lanes_, true),
        shares_(call.batch, true), moves_(call.batch, true), slots_(lanes_ * most_frames(chain.at, steps_, chain->room)),
        source_(slots_.size), live_(slots_.size), after_(lanes_), at_(call.batch),
        lost_(lanes_ * most_frames(chain.at, steps_, chain->length)), gone_(lost_.size), sizes_(lanes_) {
    name_leaves();
    for (int64_t row = 0; row < call.batch; ++row) {
      if (call.mask && !call.mask[row]) continue;
      const int64_t lane = row % lanes_, step = written_[lane]++;
      rows_[step * lanes_ + lane] = int32_t(row), ranks_[row] = int32_t(step);
    }
    bool move = false;
    for (int64_t k = 0; k < told->stacks; ++k) move |= stacks[k].following >= 0 && stacks[k].depth > 1;
    for (int64_t lane = 0; lane < lanes_; ++lane)
      for (int64_t step = 0; step < written_[lane]; ++step) compare(lane, step);
    plan_frames(chain, {call.counters + told->cursor, lanes_}, written_.at, shares_, move ? moves_.at : nullptr, slots_,
                source_.at, live_.at, after_.at, at_.at);
  }
  // The call that adds the leaves that are stored as they are.
  const BufferCall& call() const { return made_; }

  // Store the frames of rows that go to given slots.
  void store(const int32_t* slots, const int32_t* rows, int64_t count) {
    int64_t done = 0;
    for (int64_t i = 0; i < slots_.size; ++i) {
      if (!live_[i]) continue;
      if (whole.saved_places) {
        whole.saved_places[done] = slots_[i];
        save_items(layout, storage(), slots_[i], {whole.saved_beside, storage().size}, done, 1);
      }
      write(slots_[i], source_[i]), ++done;
    }
    whole.saved_count[3] = done;
    for (int64_t i = 0; i < count; ++i) {
      int32_t& at = whole.frame_at[slots[i]];
      if (whole.saved_at) whole.saved_at[i] = at;
      at = at_[rows[i] % lanes_ * steps_ + ranks_[rows[i]]];
    }
    memcpy(whole.new_counters + told->cursor, after_.at, size_t(lanes_) * 4);
  }
  // Let the oldest items that have lost frames leave their lanes: the first ones of those that may, of each lane so many.
  Span<const int32_t> lose() {
    int32_t* sizes = whole.new_counters + ring_->sizes;
    overwritten(chain, {whole.frame_at, plan_->capacity}, {whole.new_counters + ring_->cursors, lanes_}, sizes, after_.at,
                lost_, gone_.at, nullptr, sizes_.at);
    int64_t size = 0;
    for (int64_t lane = 0; lane < lanes_; ++lane) size += sizes[lane] = sizes_[lane];
    whole.new_counters[SIZE] = int32_t(size);
    return lost_;
  }
  bool is_gone(int64_t i) const { return gone_[i]; }
  int64_t most_lost() const { return lost_.size; }

 private:
  static bool equal(const StackRecord& of, Frame x, Frame y) {
    for (int64_t piece = 0; of.bytes && piece < of.outer; ++piece)
      if (memcmp(x.at + piece * x.apart, y.at + piece * y.apart, size_t(of.bytes))) return false;
    return true;
  }

  // What is stored as it is, for the kernel that adds it.
  void name_leaves() {
    for (int64_t k = 0; k < plan_->leaves; ++k) items_[k] = whole.items[as_given()[k]];
    for (int64_t k = whole.given; k < whole.item_count; ++k) items_[plan_->leaves + k - whole.given] = whole.items[k];
    made_.items = items_.at, made_.given = plan_->leaves, made_.item_count = items_.size;
  }
  // Whether a step shares what is there of the one before, and whether its next observation is its own moved on.
  void compare(int64_t lane, int64_t step) {
    const int64_t entry = step * lanes_ + lane, row = rows_[entry], before = step ? rows_[entry - lanes_] : 0;
    bool shares = true, moves = true;
    for (int64_t k = 0; k < told->stacks; ++k) {
      const StackRecord& of = stacks[k];
      const bool paired = of.following >= 0;
      const int64_t old = paired ? of.following : of.leaf;
      if (step) shares = shares && (paired ? equal(of, old, before, of.leaf, row) : moved_on(of, old, before, of.leaf, row));
      for (int64_t j = paired ? 0 : 1; !step && shares && j < of.depth; ++j)
        shares = equal(of, stored(k, newest(lane, of.depth - 1 - j)), given(of, of.leaf, row, paired ? j : j - 1));
      moves = moves && (!paired || moved_on(of, of.leaf, row, of.following, row));
    }
    shares_[entry] = shares, moves_[entry] = moves;
  }
  bool equal(const StackRecord& of, int64_t x, int64_t x_row, int64_t y, int64_t y_row) const {
    const int64_t bytes = of.depth * bytes_of(of);
    return !bytes || !memcmp(given(of, x, x_row, 0).at, given(of, y, y_row, 0).at, size_t(bytes));
  }
  // Whether a stack y is x with the oldest frame dropped and another one added: in each piece so many bytes are compared.
  bool moved_on(const StackRecord& of, int64_t x, int64_t x_row, int64_t y, int64_t y_row) const {
    const char *before = given(of, x, x_row, 0).at, *after = given(of, y, y_row, 0).at;
    const int64_t group = int64_t(of.depth) * of.bytes, width = group - of.bytes, all = of.outer * group;
    if (width <= 0) return true;
    if (8 % group) {
      for (int64_t at = 0; at < all; at += group)
        if (memcmp(before + at + of.bytes, after + at, size_t(width))) return false;
      return true;
    }
    // Several pieces in a word, of which the bytes of the newest frame do not count.
    uint64_t counted = 0, differs = 0;
    for (int64_t at = 0; at < 8; ++at)
      if (at % group < width) counted |= uint64_t(0xFF) << (8 * at);
    const auto compare = [&](int64_t at, int64_t bytes) {
      uint64_t one = 0, other = 0;
      memcpy(&one, before + at, size_t(bytes)), memcpy(&other, after + at, size_t(bytes));
      differs |= ((one >> (8 * of.bytes)) ^ other) & counted;  // zeros behind the last piece
    };
    int64_t at = 0;
    for (; at + 8 <= all && !differs; at += 8) compare(at, 8);
    if (at < all && !differs) compare(at, all - at);
    return !differs;
  }
  // Where the newest frame of a lane lies, or one so far before it.
  int64_t newest(int64_t lane, int64_t back) const {
    // Numbers begin anew at a multiple of the room, so these are the places also of frames before number 0.
    return lane * chain->room + floor_mod(int64_t(whole.counters[told->cursor + lane]) - 1 - back, chain->room);
  }
  // Write a frame, of those that there may be of each step: a stack that is less deep than others repeats its oldest.
  void write(int64_t slot, int64_t source) {
    const int64_t row = rows_[source / most_], rank = source % most_, which = rank % chain->depth;
    for (int64_t k = 0; k < told->stacks; ++k) {
      const StackRecord& of = stacks[k];
      const int64_t leaf = rank < chain->depth ? of.leaf : of.following, skipped = chain->depth - of.depth;
      copy_frame(of, given(of, leaf, row, most<int64_t>(which - skipped, 0)), stored(k, slot));
    }
  }

  BufferCall made_;
  const Plan plan_;
  const Ring ring_;
  const int64_t lanes_, steps_, most_;
  Scratch<int64_t> items_;
  Scratch<int32_t> rows_, ranks_, written_;
  Scratch<uint8_t> shares_, moves_;
  Scratch<int32_t> slots_, source_;
  Scratch<uint8_t> live_;
  Scratch<int32_t> after_, at_, lost_;
  Scratch<uint8_t> gone_;
  Scratch<int32_t> sizes_;
};

FRB_END
