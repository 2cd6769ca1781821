// The kernels of `gpu_kernels.h` by blocks that are emulated on the CPU: by threads that take turns in an order that tests choose,
// or, under ThreadSanitizer, by threads that it knows as such.
#ifdef __SANITIZE_THREAD__
#include "emulated_threads.h"
#else
#include "emulated_turns.h"
#endif

#include <vector>

namespace {

#define FRB_CARRIED_OUT(name, threads) \
  [](const emulated::Block& block, const frb::gpu::Call& call) { frb::gpu::name(block, call); },
using Kernel = void (*)(const emulated::Block&, const frb::gpu::Call&);
const Kernel kernels[] = {FRB_GPU_KERNELS(FRB_CARRIED_OUT)};

std::vector<emulated::Grid> all;
int64_t order = emulated::FORWARD;

}  // namespace

extern "C" {
// As cuLaunchKernel is called; kernels are numbered from 1 on.
int frb_launch(void* kernel, unsigned x, unsigned y, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void** arguments,
               void**) {
  const emulated::Grid grid{reinterpret_cast<int64_t>(kernel) - 1, x, y, order};
  const frb::gpu::Call& call = *static_cast<const frb::gpu::Call*>(arguments[0]);
  all.push_back(grid);
  emulated::carry_out(grid, [&](const emulated::Block& block) { kernels[grid.kernel](block, call); });
  return 0;
}
int64_t frb_record_bytes() { return sizeof(frb::gpu::Call); }
void frb_in_order(int64_t wanted) { order = wanted; }
// The launches since the last call: how many, and (kernel, columns, lines) of each where there is room.
int64_t frb_launched(int64_t* told, int64_t room) {
  const int64_t count = int64_t(all.size());
  for (int64_t k = 0; k < count && k < room; ++k)
    told[3 * k] = all[size_t(k)].kernel, told[3 * k + 1] = all[size_t(k)].columns, told[3 * k + 2] = all[size_t(k)].lines;
  if (told) all.clear();
  return count;
}
}
