// The kernels for GPUs, and the threads of a block of each: of one of many, or of one that does much by itself.
#pragma once
#include "gpu_choosing.h"
#include "gpu_hindsight.h"
#include "gpu_limits.h"
#include "gpu_maps.h"
#include "gpu_mixtures.h"
#include "gpu_race.h"
#include "gpu_reading.h"
#include "gpu_turns.h"
#include "gpu_updates.h"

FRB_BEGIN

namespace gpu {

constexpr int THREADS = 256, THREADS_OF_ONE = 1024;
#define FRB_GPU_KERNELS(X)                                                                                         \
  X(rank, THREADS_OF_ONE) X(add, THREADS) X(update, THREADS_OF_ONE) X(finish_update, THREADS) X(sample, THREADS)   \
  X(rank_in_rings, THREADS_OF_ONE) X(add_to_rings, THREADS_OF_ONE) X(draw_epoch, THREADS_OF_ONE)                   \
  X(read_epoch, THREADS) X(draw_slices, THREADS) X(draw_in_turn, THREADS) X(draw_in_order, THREADS) X(compare_frames, THREADS) \
  X(add_with_frames, THREADS_OF_ONE) X(store_frames, THREADS) X(sample_frames, THREADS)      \
  X(line_up, THREADS_OF_ONE) X(add_waiting, THREADS_OF_ONE) X(keep_waiting, THREADS) X(read_drawn, THREADS)   \
  X(find_keys, THREADS) X(enter_keys, THREADS_OF_ONE) X(keep_keys, THREADS)              \
  X(sample_mixture, THREADS) X(sample_mixed_slices, THREADS) X(apart, THREADS) X(share_rows, THREADS_OF_ONE) \
  X(place_rows, THREADS) X(pack_keys, THREADS) X(find_goals, THREADS) \
  X(spend, THREADS_OF_ONE) X(choose, THREADS_OF_ONE) X(arrive, THREADS_OF_ONE)

}  // namespace gpu

FRB_END
