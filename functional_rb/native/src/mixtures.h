// Draws from mixtures of buffers alike, on CPUs: what `gpu_mixtures.h` does on GPUs, by the same shares.
#pragma once
#include "gpu_mixtures.h"
#include "samplers.h"

FRB_BEGIN

// What the buffers have drawn, each as much as it gives, one buffer after the other.
class DrawnApart {
 public:
  DrawnApart(int64_t draws, int64_t length, bool slices)
      : handles(draws * length), slots(draws * length), chances(draws), length_(length), steps_(draws * length),
        masks_(slices ? MASKS * steps_ : 0), weights_(draws) {}
  // Draw so many from one of the buffers, by a key of its own; nothing is read.
  void draw_from(BufferCall call, uint64_t key, int64_t first, int64_t count) const {
    const uint32_t words[2] = {uint32_t(key >> 32), uint32_t(key)};
    if (call.threefry_at) call.threefry_at = words;
    call.key = int64_t(key), call.batch = count, call.given = 0;
    call.handles = handles.at + first * length_, call.slots = slots.at + first * length_;
    call.probabilities = chances.at + first, call.weights = weights_.at + first;
    call.drawn = mask(0, first), call.is_first = mask(1, first), call.is_last = mask(2, first), call.truncated = mask(3, first);
    if (count) draw(call);
  }
  // What a slice says of its steps, nothing where it is none.
  void tell_masks(const BufferCall& to, int64_t row, int64_t from, bool real) const {
    uint8_t* const all[MASKS] = {to.drawn, to.is_first, to.is_last, to.truncated};
    for (int k = 0; masks_.size && k < MASKS; ++k)
      for (int64_t step = 0; step < length_; ++step) all[k][row * length_ + step] = real && mask(k, from)[step];
  }

  const Scratch<int32_t> handles, slots;
  const Scratch<float> chances;

 private:
  static constexpr int MASKS = 4;
  uint8_t* mask(int k, int64_t first) const { return masks_.at + k * steps_ + first * length_; }
  const int64_t length_, steps_;
  const Scratch<uint8_t> masks_;
  const Scratch<float> weights_;
};

// Read steps of items, each from a buffer of its own.
inline void load_mixed(const BufferCall* calls, const int32_t* of, const int32_t* slots, int64_t steps) {
  const Plan plan = plan_of(calls[0]);  // rows of all lie alike
  const Among bytes = among(plan, [](int64_t) { return true; });
  for (int64_t start = 0, asked = 0, stop; start < steps; start = stop) {
    for (; asked < least(start + 2 * ROWS_TOGETHER, steps); ++asked)
      expect_row(plan, storage_of(calls[of[asked]]), bytes, slots[asked]);
    for (stop = start + 1; stop < least(start + ROWS_TOGETHER, steps) && of[stop] == of[start];) ++stop;
    load_leaves(plan, storage_of(calls[of[start]]), start, stop - start, leaves_of(calls[0]), [=](int64_t) { return slots + start; });
  }
}

// Draw a batch of a mixture, see `BufferKernels`.
FRB_ENTRY Outcome sample_mixture(const int32_t* record, const float* array, const BufferCall* calls) {
  const Mixture mixture = record_of<Mixture>(record);
  const BufferCall& to = calls[0];
  const bool slices = plan_of(to)->draws == SLICES;
  const int64_t length = slices ? ring_of(to)->window_length : 1, steps = to.batch * length;
  gpu::Call told{};
  static_cast<BufferCall&>(told) = to;
  gpu::tell_mixture(mixture, 0, array, calls, told);
  const gpu::Words choices(to.threefry_at, gpu::key_in_mixture(told, 0));
  gpu::Shares shares{};
  const bool any = gpu::share_out(told, choices, shares) > 0;
  Scratch<int32_t> of(steps), slots(steps);  // of each step the buffer, and where it lies there
  int64_t next[gpu::MOST_MIXED + 1] = {};    // of each buffer what is handed out next
  for (int64_t row = 0; row < to.batch; ++row) {
    const int64_t chosen = gpu::chosen_by(mixture, choices, row);
    int32_t number = 0;
    while (number + 1 < mixture->buffers && chosen >= shares.ends[number]) ++number;
    std::fill_n(of.at + row * length, length, number);
    ++next[number + 1];
  }
  for (int64_t k = 0; k < mixture->buffers; ++k) next[k + 1] += next[k];
  const DrawnApart apart(to.batch, length, slices);
  for (int64_t k = 0; k < mixture->buffers; ++k) {
    apart.draw_from(calls[k], gpu::key_in_mixture(told, 1 + k), next[k], next[k + 1] - next[k]);
    if (calls[k].new_counters) memcpy(calls[k].new_counters, calls[k].counters, size_t(ring_of(calls[k])->counters) * sizeof(int32_t));
  }
  for (int64_t row = 0; row < to.batch; ++row) {
    const int32_t number = of[row * length];
    const int64_t from = next[number]++;
    const bool real = shares.of[number] > 0 && apart.handles[from * length] >= 0;
    for (int64_t step = 0; step < length; ++step) {
      const int64_t i = row * length + step, j = from * length + step;
      const int32_t handle = real ? apart.handles[j] : -1;
      to.handles[2 * i] = handle < 0 ? -1 : number, to.handles[2 * i + 1] = handle, slots[i] = apart.slots[j];
    }
    apart.tell_masks(to, row, from, real);
    to.probabilities[row] = real ? apart.chances[from] * shares.of[number] : 0.0f;
  }
  if (mixture->weighs) weigh(to.probabilities, shares.least, gpu::beta_of(told), to.weights, to.batch);
  for (int64_t row = 0; row < to.batch; ++row)
    if (to.handles[2 * row * length] < 0) to.weights[row] = 0.0f;
    else if (!mixture->weighs) to.weights[row] = 1.0f;
  load_mixed(calls, of.at, slots.at, steps);
  return any ? DONE : NONE_DRAWN;
}

FRB_END
