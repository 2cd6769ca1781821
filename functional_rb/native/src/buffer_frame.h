// A call on a buffer as a frame of XLA's tells it.
//
// Its first record, the form, says which fields of `BufferCall` the other records, the operands and the results are, by
// their numbers in `CALL_FIELDS`; below zero for what is none. `of_buffer` of `functional_rb/native/kernels.py` makes it.
#pragma once
#include <cstddef>
#include <deque>
#include <vector>

#include "positions.h"
#include "xla_frame.h"

FRB_BEGIN

// Where a field lies, and of how many bytes the elements of its array are; 0 for any, and for what is no array.
struct CallField {
  const char* name;
  size_t offset, bytes;
};
#define FRB_TOLD(name) {#name, offsetof(BufferCall, name), 0}
#define FRB_GIVEN(name) {#name, offsetof(BufferCall, name), sizeof(*BufferCall::name)}
constexpr CallField CALL_FIELDS[] = {
    // Several arrays, or none.
    {"storage", 0, 0}, {"items", 0, 0}, {"beside", 0, 0},
    // Numbers, and records.
    FRB_TOLD(batch), FRB_TOLD(words), FRB_TOLD(capacity), FRB_TOLD(rows),
    FRB_TOLD(plan), FRB_TOLD(ring), FRB_TOLD(epoch), FRB_TOLD(queue), FRB_TOLD(frames), FRB_TOLD(beside_plan), FRB_TOLD(returns),
    FRB_TOLD(stored), {"map", offsetof(BufferCall, plan), 0}, {"paths", offsetof(BufferCall, plan), 0},
    {"goals", offsetof(BufferCall, plan), 0},
    // One array each.
    FRB_GIVEN(tree), FRB_GIVEN(kept), FRB_GIVEN(order), FRB_GIVEN(place), FRB_GIVEN(times), FRB_GIVEN(current), FRB_GIVEN(in_episode), FRB_GIVEN(frame_at),
    FRB_GIVEN(counters), FRB_GIVEN(new_counters), FRB_GIVEN(mask), FRB_GIVEN(priorities), FRB_GIVEN(given_handles),
    FRB_GIVEN(draws), FRB_GIVEN(threefry_at), FRB_GIVEN(beta_at), FRB_GIVEN(wanted_at), FRB_GIVEN(slots), FRB_GIVEN(source),
    FRB_GIVEN(handles), FRB_GIVEN(weights), FRB_GIVEN(probabilities), FRB_GIVEN(drawn), FRB_GIVEN(is_first),
    FRB_GIVEN(is_last), FRB_GIVEN(truncated)};
enum { STORAGE_FIELD, ITEMS_FIELD, BESIDE_FIELD, LISTS, NUMBERS = LISTS, RECORDS = LISTS + 4 };

class Told : public BufferCall {
 public:
  // Of a form with so many other records, `record(k)` tells where each begins, and `array(k, bytes)` where each operand, and
  // then each result, of elements of so many bytes; null for one that is not given.
  template <class RecordAt, class ArrayAt>
  Told(Span<const int32_t> form, int64_t records, const RecordAt& record, const ArrayAt& array)
      : BufferCall{}, most_(form.size - records), lists_(LISTS * most_) {
    for (int64_t k = 0; k < records; ++k) {
      const int32_t* at = record(k);
      if (form[k] < RECORDS) put(form[k], int64_t(*at));
      else put(form[k], at);
    }
    for (int64_t k = 0; k < most_; ++k) {
      const int32_t field = form[records + k];
      if (field < 0) continue;
      char* at = array(k, CALL_FIELDS[field].bytes);
      if (field < LISTS) lists_[field * most_ + counts_[field]++] = reinterpret_cast<int64_t>(at);
      else put(field, at);
    }
    storage = list(STORAGE_FIELD), arrays = counts_[STORAGE_FIELD];
    items = list(ITEMS_FIELD), given = item_count = counts_[ITEMS_FIELD];
    beside = list(BESIDE_FIELD);
  }
  // Of the form that is one of a call's records, and of so many behind it.
  Told(const Call& call, int64_t form, int64_t records)
      : Told(call.record_words<int32_t>(form), records, [&](int64_t k) { return call.record_words<int32_t>(form + 1 + k).at; },
             [&](int64_t k, size_t bytes) { return call.array(k, bytes); }) {}
  explicit Told(const Call& call) : Told(call, 0, call.records() - 1) {}

 private:
  template <class T> void put(int32_t field, T x) {
    memcpy(reinterpret_cast<char*>(static_cast<BufferCall*>(this)) + CALL_FIELDS[field].offset, &x, sizeof x);
  }
  const int64_t* list(int32_t field) const { return lists_.at + field * most_; }

  const int64_t most_;
  Scratch<int64_t> lists_;
  int64_t counts_[LISTS] = {};
};

// A mixture, and of each buffer the form and what it tells of; an operand, the second, may have the shares.
class ToldMixture {
 public:
  explicit ToldMixture(const Call& call) : record(call.record_words<int32_t>(0).at), shares(call.in<float>(1)) {
    for (int64_t k = 0; k < record_of<Mixture>(record)->buffers; ++k)
      calls.push_back(told_.emplace_back(call, 1 + RECORDS_OF_EACH * k, RECORDS_OF_EACH - 1));
  }
  const int32_t* const record;
  const float* const shares;
  std::vector<BufferCall> calls;

 private:
  static constexpr int64_t RECORDS_OF_EACH = 5;
  std::deque<Told> told_;
};

// Carry the kernel of a mixture out on one call, on the CPU.
template <auto F> void carry_out(const Call& call, Outcome (*)(const int32_t*, const float*, const BufferCall*)) {
  const ToldMixture told(call);
  F(told.record, told.shares, told.calls.data());
}

// Carry a kernel of a buffer out on one call, on the CPU.
template <auto F> void carry_out(const Call& call, Outcome (*)(const BufferCall&)) {
  int64_t saved[4];
  Told whole(call);
  whole.saved_count = saved;
  if (whole.beta_at) whole.beta = *whole.beta_at;
  // Of single items those behind the ones that count are not drawn, but for the first.
  if (whole.wanted_at && record_of<Plan>(whole.plan)->draws == ITEMS) whole.batch = most<int64_t>(1, counting(whole));
  const RingRecord* ring = record_of<Ring>(whole.ring).at;
  // New counters begin as the old ones, which may lie in the same memory.
  Scratch<int32_t> old(ring && whole.new_counters ? ring->counters : 0);
  if (old.size) {
    memcpy(old.at, whole.counters, size_t(old.size) * sizeof(int32_t));
    memmove(whole.new_counters, old.at, size_t(old.size) * sizeof(int32_t));
    whole.counters = old.at;
  }
  // Steps of slices are read by their slots.
  Scratch<int32_t> slots(ring && whole.handles && !whole.slots ? whole.batch * ring->window_length : 0);
  if (slots.size) whole.slots = slots.at;
  F(whole);
}

FRB_END
