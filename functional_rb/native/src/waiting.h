// Steps that wait for those that follow them, and the items over n steps that they become: `NStepOfAdded.incoming`.
//
// Rows are those of all waiting steps, n - 1 of each lane, and behind them those of the batch.
#pragma once
#include "rows.h"
#include "step_queue.h"

FRB_BEGIN

// What a batch makes of the steps that wait. The counters of how many wait are written at once, the steps by `keep`.
class Waiting : Returns {
 public:
  explicit Waiting(const BufferCall& call)
      : Returns{*record_of<Queue>(call.queue).at}, call_(call), made_(call), plan_(plan_of(call)),
        packed_(record_of<Plan>(call.beside_plan)), n_(told.n), agents_(told.agents), before_(told.lanes * (n_ - 1)),
        rows_(call.batch + before_), words_(told.id < 0 ? 0 : packed_.leaf(told.id).bytes / 4), ended_(call.batch),
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
    for (int64_t k = 0; k < told.following + told.own; ++k) changes_[following()[k]] = true;  // one behind the other
    for (int64_t k = 0; k < told.rewards; ++k) changes_[rewards()[k].leaf] = true;
    made_.items = items_.at, made_.given = plan_->leaves, made_.item_count = items_.size;
    made_.batch = rows_, made_.mask = complete_.at;
  }
  void line_up() {
    for (int64_t i = 0; i < call_.batch; ++i) ended_[i] = is_last(packed_, agents_, [&](int64_t k) { return leaf(k, before_ + i); });
    for (int64_t row = 0; words_ && row < rows_; ++row) memcpy(ids_.at + row * words_, leaf(told.id, row), size_t(words_) * 4);
    plan_line({call_.counters + told.pending, told.lanes}, ended_.at, {ids_.at, rows_, words_}, call_.mask,
              {window_.at, rows_, n_}, real_.at, complete_.at, waiting_.at, call_.new_counters + told.pending);
  }
  // Which steps count for each agent: those until it is done.
  void look_at_agents() {
    for (int64_t i = 0; i < there_.size; i += n_) {
      const int64_t row = i / n_ / agents_, agent = i / n_ % agents_;
      bool goes_on = true;
      for (int64_t k = 0; k < n_; ++k) {
        there_[i + k] = goes_on && real_[row * n_ + k];
        for (int64_t j = 0; j < told.done; ++j) goes_on &= !leaf(done()[j], window_[row * n_ + k])[agent];
      }
    }
  }
  // Rewards are added up where items have them, and how many steps these are where the entry behind the leaves says so.
  void add_rewards_up() {
    for (int64_t k = 0; k < told.rewards; ++k) {
      const Reward& reward = rewards()[k];
      by_dtype(reward.dtype, [&](auto number, auto stored) { add_up<decltype(number), decltype(stored)>(reward); });
    }
  }
  // Add up, as numbers T, what is stored otherwise.
  template <class T, class Stored> void add_up(const Reward& reward) {
    const int64_t lines = reward.agents, width = packed_.leaf(reward.leaf).bytes / lines / int64_t(sizeof(Stored));
    Scratch<T> powers(n_), each(rows_ * n_ * lines * width), total(rows_ * lines * width);
    for (int64_t k = 0; k < n_; ++k) powers[k] = T(discount(k));
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
    for (int64_t k = 0; k < told.following; ++k) take(following()[k], row, window_[begin + steps_of_all - 1]);
    for (int64_t k = 0; k < told.rewards; ++k) {
      const int64_t reward = rewards()[k].leaf, bytes = packed_.leaf(reward).bytes;
      if (bytes) copy(made(first + 1 + k, row), leaf(reward, window_[begin]), bytes);
    }
    for (int64_t agent = 0; agent < agents_; ++agent) {
      int32_t steps;
      memcpy(&steps, made(first, row) + 4 * agent, 4);
      const int64_t last = window_[begin + steps - 1];
      for (int64_t k = 0; k < told.own; ++k)
        if (const int64_t bytes = packed_.leaf(own()[k]).bytes / agents_)
          copy(made(own()[k], row) + agent * bytes, leaf(own()[k], last) + agent * bytes, bytes);
      const bool terminated = told.terminated >= 0 && leaf(told.terminated, last)[agent] &&
                              !(told.truncated >= 0 && leaf(told.truncated, last)[agent]);
      made(first + 1 + told.rewards, row)[agent] = !terminated;
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
  const Plan packed_;
  const int64_t n_, agents_, before_, rows_, words_;
  Scratch<uint8_t> ended_;
  Scratch<int32_t> ids_, window_, waiting_, others_;
  Scratch<uint8_t> real_, there_, complete_, changes_;
  Scratch<int64_t> items_;
  Scratch<char> made_leaves_, kept_;
};

FRB_END
