// What kernels of whole buffers are called with, on the CPU and on GPUs.
#pragma once
#if !defined(__CUDACC_RTC__)
#include <cstdint>
#endif

namespace frb {

// Leaves that calls which read frames, and all of the version chain, name of an item.
constexpr int MOST_LEAVES = 64;

// Memory on the device that a call works on, for the time of the call: int32, so many; null where there is none.
struct Scratches {
  int32_t* (*take)(void* of, int64_t count);
  void* of;
};

// What the version chain, or XLA, tells the kernels of a buffer; what is not given is null.
struct BufferCall {
  const int32_t *plan, *ring, *epoch;  // records, which the host reads; of a hash map, of paths, or of goals, in place of a plan
  const int64_t* storage;
  float *tree, *kept;                  // the sum tree, and the priorities of all steps where it has those of some
  int32_t *order, *place;              // of a sparse set
  int32_t* times;                      // how often each item was drawn, how many windows were complete with it, or which version made it
  int32_t* current;                    // the handle in each slot, where a writer chooses slots
  int32_t* in_episode;
  // Rows of another layout beside the items: those of steps that wait for others, or of frames that items share.
  const int32_t *queue, *frames, *beside_plan;  // records
  const int32_t* returns;                       // that are made as items are read, see `QueueRecord`
  const int32_t* stored;                        // how elements of keys are, see `Stored` in `gpu_maps.h`
  const int64_t* beside;
  int32_t* frame_at;
  const int32_t* counters;
  int32_t* new_counters;
  const int64_t* items;  // addresses of leaves, and behind them those of rows to save in
  int64_t arrays, given, item_count, batch, row_bytes;
  const uint8_t* mask;
  const int32_t *priorities, *given_handles;
  int32_t* saved_slots;
  float *saved_values, *saved_kept;
  int32_t *saved_steps, *saved_times, *saved_current, *saved_deck;
  int32_t *saved_at, *saved_places;
  const int64_t* saved_beside;
  int64_t room, deck_room;
  int64_t* saved_count;  // of slots, of leaves of the tree behind these, of writes to a sparse set, and of rows beside
  int64_t key, words;
  const int32_t* draws;    // in place of the key
  const int32_t* source;   // which row of a batch goes to each slot
  int64_t capacity, rows;  // of a storage that is no buffer's, and of the batch
  int64_t* control;      // of a buffer that processes share
  float beta;
  int32_t *handles, *slots;
  float *weights, *probabilities;
  uint8_t *drawn, *is_first, *is_last, *truncated;
  // On a GPU, where all arrays lie: what would be read by the host may lie there too.
  const int64_t* key_at;
  const uint32_t* threefry_at;  // a key of JAX's in place of the key, two words
  const float* beta_at;
  const int32_t* wanted_at;  // how many of the items, or windows, of a batch count
  Scratches scratches;
  void* stream;
  int64_t device;  // below zero: nothing is launched, memory alone is asked for
};

// Below zero: what CUDA said when it refused a launch, negated.
enum Outcome { DONE, NONE_DRAWN, NO_MEMORY, DRAWN_TORN };

struct BufferKernels {
  int (*add)(const BufferCall&);
  int (*add_to_rings)(const BufferCall&);
  int (*update)(const BufferCall&);
  int (*update_priorities)(const BufferCall&);  // where items lie in rings; on the CPU that is the same
  int (*draw)(const BufferCall&);  // what the plan says
  // Draw from a mixture. Calls tell of each of its buffers, and all of the same batch, key and results; an array may have the
  // shares, which else the record tells.
  int (*sample_mixture)(const int32_t* mixture, const float* shares, const BufferCall* calls);
  int (*sample_shared)(const BufferCall&);
};

}  // namespace frb
