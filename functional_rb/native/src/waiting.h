// Steps that wait for those that follow them, and the items over n steps that they become: `NStepOfAdded.incoming`.
//
// Rows are those of all waiting steps, n - 1 of each lane, and behind them those of the batch.
#pragma once
#include "rows.h"
#include "step_queue.h"

FRB_BEGIN

// What a batch makes of the steps that wait. The counters of how many wait are written at once, the steps by `keep`.
class Waiting {
 public:
  explicit Waiting(const BufferCall& call)
      : call_(call), made_(call), plan_(plan_of(call)), queue_(record_of<Queue>(call.queue)),
        packed_(record_of<Plan>(call.beside_plan)), n_(queue_->n), agents_(queue_->agents), before_(queue_->lanes * (n_ - 1)),
        rows_(call.batch + before_), words_(queue_->id < 0 ? 0 : packed_.leaf(queue_->id).bytes / 4), ended_(call.batch),
        ids_(rows_ * words_), window_(rows_ * n_), waiting_(before_), others_(agents_ > 1 ? rows_ : 0), real_(rows_ * n_),
        there_(agents_ > 1 ? rows_ * agents_ * n_ : 0), complete_(rows_), changes_(plan_->leaves, true),
        items_(plan_->leaves + call.item_count - call.given), made_leaves_(rows_ * bytes_of_items()),
        kept_(before_ * stored_bytes(), true) {
    name_leaves();
    line_up();
    look_at_agents();
    add_rewards_up();
    for (int64_t row = 0; row < rows_; ++row) finish(row);
    pack();
  }
  // The call that adds the items that are complete.
  const BufferCall& call() const { return made_; }

  // Let the steps wait that are not.
  void keep() const {
    const char* from = kept_.at;
    call_.saved_count[3] = before_;
    for (int64_t i = 0; call_.saved_places && i < before_; ++i) call_.saved_places[i] = int32_t(i);
    for (int64_t array = 0; before_ && array < 1 + packed_->wide; ++array) {
      const int64_t bytes = before_ * packed_.stored_bytes(array);
      if (!bytes) continue;
      if (call_.saved_places) memcpy(place(call_.saved_beside[array]), place(call_.beside[array]), size_t(bytes));
      memcpy(place(call_.beside[array]), from, size_t(bytes));
      from += bytes;
    }
  }

 private:
  const int32_t* ends() const { return queue_.behind(); }
  const int32_t* following() const { return ends() + queue_->ends; }
  const int32_t* own() const { return following() + queue_->following; }
  const int32_t* done() const { return own() + queue_->own; }
  struct Reward { int32_t leaf, agents, dtype; };
  const Reward* rewards() const { return reinterpret_cast<const Reward*>(done() + queue_->done); }
  const int32_t* discounts() const { return reinterpret_cast<const int32_t*>(rewards() + queue_->rewards); }
  int64_t bytes_of_items() const {
    int64_t sum = 0;
    for (int64_t k = 0; k < plan_->leaves; ++k) sum += whole(plan_.leaf(k).bytes);
    return sum;
  }
  int64_t stored_bytes() const {
    int64_t sum = 0;
    for (int64_t array = 0; array < 1 + packed_->wide; ++array) sum += packed_.stored_bytes(array);
    return sum;
  }
  static int64_t whole(int64_t bytes) { return (bytes + 7) / 8 * 8; }  // so that numbers are where processors want them

  // A leaf of a row.
  const char* leaf(int64_t k, int64_t row) const {
    const LeafRecord& leaf = packed_.leaf(k);
    if (row >= before_) return place(call_.items[k]) + (row - before_) * leaf.bytes;
    return place(call_.beside[leaf.storage]) + row * packed_.stored_bytes(leaf.storage) + leaf.offset;
  }
  char* made(int64_t k, int64_t row) const { return place(items_[k]) + row * plan_.leaf(k).bytes; }
  void take(int64_t k, int64_t row, int64_t from) const {
    if (const int64_t bytes = packed_.leaf(k).bytes) copy(made(k, row), leaf(k, from), bytes);
  }

  void name_leaves() {
    int64_t at = 0;
    for (int64_t k = 0; k < plan_->leaves; ++k) {
      items_[k] = reinterpret_cast<int64_t>(made_leaves_.at) + at;
      at += rows_ * whole(plan_.leaf(k).bytes);
    }
    for (int64_t k = call_.given; k < call_.item_count; ++k) items_[plan_->leaves + k - call_.given] = call_.items[k];
    for (int64_t k = 0; k < queue_->following + queue_->own; ++k) changes_[following()[k]] = true;  // one behind the other
    for (int64_t k = 0; k < queue_->rewards; ++k) changes_[rewards()[k].leaf] = true;
    made_.items = items_.at, made_.given = plan_->leaves, made_.item_count = items_.size;
    made_.batch = rows_, made_.mask = complete_.at;
  }
  void line_up() {
    for (int64_t i = 0; i < call_.batch; ++i) ended_[i] = ends_by(i, 1) || (agents_ > 1 && ends_by(i, agents_));
    for (int64_t row = 0; words_ && row < rows_; ++row) memcpy(ids_.at + row * words_, leaf(queue_->id, row), size_t(words_) * 4);
    plan_line({call_.counters + queue_->pending, queue_->lanes}, ended_.at, {ids_.at, rows_, words_}, call_.mask,
              {window_.at, rows_, n_}, real_.at, complete_.at, waiting_.at, call_.new_counters + queue_->pending);
  }
  // Whether a row of the batch is marked as the last by leaves with so many marks, of which all have to be set in some leaf.
  bool ends_by(int64_t row, int64_t marks) const {
    for (int64_t mark = 0, set = 0; mark < marks; ++mark, set = 0) {
      for (int64_t k = 0; k < queue_->ends; ++k)
        if (packed_.leaf(ends()[k]).bytes == marks) set |= place(call_.items[ends()[k]])[row * marks + mark] != 0;
      if (!set) return false;
    }
    return true;
  }
  // Which steps count for each agent: those until it is done.
  void look_at_agents() {
    for (int64_t i = 0; i < there_.size; i += n_) {
      const int64_t row = i / n_ / agents_, agent = i / n_ % agents_;
      bool goes_on = true;
      for (int64_t k = 0; k < n_; ++k) {
        there_[i + k] = goes_on && real_[row * n_ + k];
        for (int64_t j = 0; j < queue_->done; ++j) goes_on &= !leaf(done()[j], window_[row * n_ + k])[agent];
      }
    }
  }
  // Rewards are added up where items have them, and how many steps these are where the entry behind the leaves says so.
  void add_rewards_up() {
    for (int64_t k = 0; k < queue_->rewards; ++k) {
      const Reward& reward = rewards()[k];
      if (reward.dtype == OF_FLOAT64) add_up<double, double>(reward);
      else if (reward.dtype == OF_FLOAT32) add_up<float, float>(reward);
      else if (reward.dtype == OF_FLOAT16) add_up<float, Half>(reward);
      else add_up<float, Brain>(reward);
    }
  }
  // Add up, as numbers T, what is stored otherwise.
  template <class T, class Stored> void add_up(const Reward& reward) {
    const int64_t lines = reward.agents, width = packed_.leaf(reward.leaf).bytes / lines / int64_t(sizeof(Stored));
    Scratch<T> powers(n_), each(rows_ * n_ * lines * width), total(rows_ * lines * width);
    for (int64_t k = 0; k < n_; ++k) {
      double power;
      memcpy(&power, discounts() + 2 * k, 8);
      powers[k] = T(power);
    }
    for (int64_t i = 0; i < rows_ * n_; ++i) {
      const char* from = leaf(reward.leaf, window_[i]);
      for (int64_t k = 0; k < lines * width; ++k) {
        Stored x;
        memcpy(&x, from + k * int64_t(sizeof x), sizeof x);
        each[((i / n_ * lines + k / width) * n_ + i % n_) * width + k % width] = T(x);
      }
    }
    int32_t* steps = lines < agents_ ? others_.at : reinterpret_cast<int32_t*>(made(packed_->leaves, 0));
    fold_rewards<T>({powers.at, n_}, each.at, lines > 1 ? there_.at : real_.at, total, {steps, rows_ * lines});
    Stored* to = reinterpret_cast<Stored*>(made(reward.leaf, 0));
    for (int64_t i = 0; i < total.size; ++i) to[i] = Stored(total[i]);
  }
  // The other leaves of an item, and what is told of it beside.
  void finish(int64_t row) {
    const int64_t first = packed_->leaves, begin = row * n_;
    for (int64_t k = 0; k < first; ++k)
      if (!changes_[k]) take(k, row, window_[begin]);
    int64_t steps_of_all = 1;
    while (steps_of_all < n_ && real_[begin + steps_of_all]) ++steps_of_all;
    for (int64_t k = 0; k < queue_->following; ++k) take(following()[k], row, window_[begin + steps_of_all - 1]);
    for (int64_t k = 0; k < queue_->rewards; ++k) {
      const int64_t reward = rewards()[k].leaf, bytes = packed_.leaf(reward).bytes;
      if (bytes) copy(made(first + 1 + k, row), leaf(reward, window_[begin]), bytes);
    }
    for (int64_t agent = 0; agent < agents_; ++agent) {
      int32_t steps;
      memcpy(&steps, made(first, row) + 4 * agent, 4);
      const int64_t last = window_[begin + steps - 1];
      for (int64_t k = 0; k < queue_->own; ++k)
        if (const int64_t bytes = packed_.leaf(own()[k]).bytes / agents_)
          copy(made(own()[k], row) + agent * bytes, leaf(own()[k], last) + agent * bytes, bytes);
      const bool terminated = queue_->terminated >= 0 && leaf(queue_->terminated, last)[agent] &&
                              !(queue_->truncated >= 0 && leaf(queue_->truncated, last)[agent]);
      made(first + 1 + queue_->rewards, row)[agent] = !terminated;
    }
  }
  // The steps that wait from now on, as they are stored.
  void pack() {
    Scratch<int64_t> arrays(1 + packed_->wide);
    int64_t at = reinterpret_cast<int64_t>(kept_.at);
    for (int64_t array = 0; array < 1 + packed_->wide; ++array) arrays[array] = at, at += before_ * packed_.stored_bytes(array);
    const Addresses storage{arrays.at, arrays.size};
    if (FRB_FAULT(BEHIND_THE_QUEUE)) waiting_[before_] = 0;
    for (int64_t i = 0; i < before_; ++i) {
      if (waiting_[i] >= before_) {
        store_item(packed_, storage, i, {call_.items, packed_->leaves}, waiting_[i] - before_);
      } else {
        for (int64_t array = 0; array < arrays.size; ++array)
          if (const int64_t bytes = packed_.stored_bytes(array))
            copy(place(arrays[array]) + i * bytes, place(call_.beside[array]) + waiting_[i] * bytes, bytes);
      }
    }
  }

  const BufferCall& call_;
  BufferCall made_;
  const Plan plan_;
  const Queue queue_;
  const Plan packed_;
  const int64_t n_, agents_, before_, rows_, words_;
  Scratch<uint8_t> ended_;
  Scratch<int32_t> ids_, window_, waiting_, others_;
  Scratch<uint8_t> real_, there_, complete_, changes_;
  Scratch<int64_t> items_;
  Scratch<char> made_leaves_, kept_;
};

FRB_END
