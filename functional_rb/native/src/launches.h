// Launches of the kernels of `gpu_kernels.h`: what `kernels.cpp` does on the CPU, on arrays that lie on a GPU.
#pragma once
#include "gpu_kernels.h"
#include "python.h"

FRB_BEGIN
namespace gpu {

#define FRB_NUMBER(name, threads) name##_kernel,
enum Kernel { FRB_GPU_KERNELS(FRB_NUMBER) KERNELS };
#undef FRB_NUMBER

// CUDA's driver as far as it is called here, or who emulates it.
struct Driver {
  int (*launch)(void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                unsigned threads_z, unsigned shared_bytes, void* stream, void** arguments, void** more);
  int (*current)(void** context);  // null where there are no contexts
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*words)(int status, const char** text);
};

// The kernels as they were loaded for a device; null as long as they were not.
struct Device {
  void* context;
  void* kernels[KERNELS];
};

// What `BufferKernels` says; null for what there is no kernel for.
extern const BufferKernels buffers;
int add(const BufferCall& c);
int add_to_rings(const BufferCall& c);
int update(const BufferCall& c);
int update_priorities(const BufferCall& c);
int draw(const BufferCall& c);
// Read what was drawn: items from `slots`, with returns, and with the frames that they share.
int read_drawn(const BufferCall& c);

// Look keys up in a hash map, and put them in: the plan is that of the map, its arrays are the storage, and of the items
// the first are the rows of keys, the others what is told of each.
int map_lookup(const BufferCall& c);
int map_insert(const BufferCall& c);

// Draw from a mixture: a launch for each buffer.
int sample_mixture(const int32_t* record, const float* array, const BufferCall* calls);

// Share a batch out, and put what a buffer has drawn where it belongs: calls have what `gpu_mixtures.h` says.
int share_rows(Call& call);
int place_rows(Call& call);

// Part a mixture's handles, the first of the items, for each of its buffers: the others.
int apart(const BufferCall& c);

// Find whose goals items get in hindsight: a record says how in place of a plan, the items are the arrays that `OfGoals` names.
int find_goals(const BufferCall& c);

// Pack keys, see `pack_keys` of `gpu_maps.h`; `stored` says how their leaves are.
int pack_keys(const BufferCall& c);

// CUDA's words for what a launch returned.
const char* problem(int outcome);

// The context of a device for as long as this lives: a new thread has none, and several devices take turns.
class Within {
 public:
  explicit Within(int64_t device);
  ~Within();

 private:
  bool elsewhere_;
};

// Whether who launches has streams and contexts: not where it is emulated.
bool has_streams();
// The device whose context this thread has; below zero if kernels were loaded for none such.
int64_t device_here();

// How many leaves and arrays, and numbers of records, a call can name.
inline bool fits(int64_t leaves, int64_t arrays, int64_t numbers, int64_t ring) {
  return leaves <= MOST && arrays <= MOST && numbers <= PLAN && ring <= RINGS;
}
inline bool fits_beside(int64_t arrays, int64_t numbers, int64_t record) {
  return arrays <= MOST_BESIDE && numbers <= PLAN_BESIDE && record <= RECORD_BESIDE;
}

// Add functions to the module by which Python tells of the driver and of devices; false with an error.
bool add_launches(PyObject* module);
// Add the handlers that XLA calls on GPUs (`xla_launches.cpp`); false with an error.
bool add_xla_launches(PyObject* module);

}  // namespace gpu
FRB_END
