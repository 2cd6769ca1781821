// The kernels of `gpu.h` for CUDA, each called with one record.
#include "gpu.h"

namespace {

using frb::gpu::MOST_DRAWS;
using frb::gpu::THREADS;
using frb::gpu::THREADS_OF_ONE;
constexpr int WARP = 32;
constexpr unsigned ALL = 0xFFFFFFFFu;  // threads of a warp

// A block of the grid.
struct Block {
  int64_t* shared;  // for each thread one
  int32_t* drawn;
  __device__ int64_t x() const { return blockIdx.x; }
  __device__ int64_t y() const { return blockIdx.y; }
  __device__ int64_t rows() const { return gridDim.y; }
  __device__ int32_t* slots() const { return drawn; }
  template <class F> __device__ void each(int64_t n, const F& f) const {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
    __syncthreads();
  }
  // What all threads have, put together: in each warp by halves, and then of the warps by the first of them.
  template <class T, class F> __device__ T together(T own, const F& of_two) const {
    for (int half = WARP / 2; half; half /= 2) own = of_two(own, T(__shfl_xor_sync(ALL, own, half)));
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = int64_t(own);
    __syncthreads();
    T found = threadIdx.x % WARP < blockDim.x / WARP ? T(shared[threadIdx.x % WARP]) : T(0);
    for (int half = WARP / 2; half; half /= 2) found = of_two(found, T(__shfl_xor_sync(ALL, found, half)));
    __syncthreads();
    return found;
  }
  template <class F> __device__ int64_t total(int64_t n, const F& f) const {
    long long own = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) own += f(i);
    return together(own, [](long long a, long long b) { return a + b; });
  }
  template <class F> __device__ int32_t largest(int64_t n, const F& f) const {
    int32_t own = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) own = frb::most(own, f(i));
    return together(own, [](int32_t a, int32_t b) { return frb::most(a, b); });
  }
  // Tell each marked number how many before it are.
  template <class M, class F> __device__ void ranks(int64_t n, const M& marked, const F& f) const {
    int64_t before = 0;
    for (int64_t first = 0; first < n; first += blockDim.x) {
      const int64_t i = first + threadIdx.x;
      const bool own = i < n && marked(i);
      shared[threadIdx.x] = own;
      __syncthreads();
      for (int by = 1; by < blockDim.x; by *= 2) {
        const int64_t more = threadIdx.x >= by ? shared[threadIdx.x - by] : 0;
        __syncthreads();
        shared[threadIdx.x] += more;
        __syncthreads();
      }
      if (own) f(i, before + shared[threadIdx.x] - 1);
      before += shared[blockDim.x - 1];
      __syncthreads();
    }
  }
  __device__ int32_t exchange_if(int32_t* at, int32_t expected, int32_t wanted) const { return atomicCAS(at, expected, wanted); }
  __device__ void raise(int32_t* at, int32_t x) const { atomicMax(at, x); }
};

}  // namespace

#define FRB_KERNEL(name, threads)                                                                             \
  extern "C" __global__ void __launch_bounds__(threads) frb_##name(const __grid_constant__ frb::gpu::Call call) { \
    __shared__ int64_t shared[threads];                                                                       \
    __shared__ int32_t drawn[MOST_DRAWS];                                                                     \
    frb::gpu::name(Block{shared, drawn}, call);                                                               \
  }
FRB_GPU_KERNELS(FRB_KERNEL)
