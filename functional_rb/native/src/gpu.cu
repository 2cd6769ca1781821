// The kernels of `gpu_kernels.h` for CUDA, each called with one record.
#include "gpu_kernels.h"

namespace {

using frb::gpu::SHARED;
using frb::gpu::THREADS;
using frb::gpu::THREADS_OF_ONE;
constexpr int WARP = 32;
constexpr unsigned ALL = 0xFFFFFFFFu;  // threads of a warp

// A block of the grid.
struct Block {
  int64_t* told;  // for each warp one
  int32_t* all;
  __device__ int64_t x() const { return blockIdx.x; }
  __device__ int64_t y() const { return blockIdx.y; }
  __device__ int64_t rows() const { return gridDim.y; }
  __device__ int32_t* shared() const { return all; }
  template <class F> __device__ void each(int64_t n, const F& f) const {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
    __syncthreads();
  }
  __device__ void wait() const { __syncthreads(); }
  // Take what `load` finds for each number to where it says, without waiting for other threads. A thread does so for several
  // at a time, so that it waits once for all that it reads; the warps behind `turn` threads begin.
  template <class Piece, class F> __device__ void move(int64_t n, int64_t& turn, const F& load) const {
    constexpr int AT_ONCE = 2;
    const int64_t begin = (threadIdx.x + blockDim.x - turn) % blockDim.x;
    turn = (turn + (n + WARP - 1) / WARP * WARP) % blockDim.x;
    for (int64_t first = begin; first < n; first += AT_ONCE * blockDim.x) {
      Piece held[AT_ONCE], *to[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        const int64_t i = first + k * blockDim.x;
        to[k] = i < n ? load(i, held[k]) : nullptr;
      }
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
        if (to[k]) *to[k] = held[k];
    }
  }
  // What all threads have, put together: in each warp by halves, and then of the warps by the first of them.
  template <class T, class F> __device__ T together(T own, const F& of_two) const {
    for (int half = WARP / 2; half; half /= 2) own = of_two(own, T(__shfl_xor_sync(ALL, own, half)));
    if (threadIdx.x % WARP == 0) told[threadIdx.x / WARP] = int64_t(own);
    __syncthreads();
    T found = threadIdx.x % WARP < blockDim.x / WARP ? T(told[threadIdx.x % WARP]) : T(0);
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
  // Tell each number what it and those before it are, put together; zero is put to anything without effect. Returns
  // what all are.
  template <class F, class O, class T>
  __device__ int32_t running(int64_t n, const F& f, const O& of_two, const T& tell) const {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    auto in_warp = [&](int32_t x) {
      for (int by = 1; by < WARP; by *= 2) {
        const int32_t before = __shfl_up_sync(ALL, x, by);
        if (lane >= by) x = of_two(before, x);
      }
      return x;
    };
    int32_t before = 0;
    for (int64_t first = 0; first < n; first += blockDim.x) {
      const int64_t i = first + threadIdx.x;
      const int32_t own = in_warp(i < n ? f(i) : 0);
      if (lane == WARP - 1) told[warp] = own;
      __syncthreads();
      const int32_t of_warps = in_warp(lane < warps ? int32_t(told[lane]) : 0);
      const int32_t others = __shfl_sync(ALL, of_warps, warp ? warp - 1 : 0);
      const int32_t all = __shfl_sync(ALL, of_warps, warps - 1);
      if (i < n) tell(i, of_two(before, warp ? of_two(others, own) : own));
      before = of_two(before, all);
      __syncthreads();
    }
    return before;
  }
  // Tell each marked number how many before it are; returns how many all are.
  template <class M, class F> __device__ int32_t ranks(int64_t n, const M& marked, const F& f) const {
    return running(n, [&](int64_t i) { return int32_t(marked(i)); }, [](int32_t a, int32_t b) { return a + b; },
                   [&](int64_t i, int32_t found) { if (marked(i)) f(i, int64_t(found) - 1); });
  }
  __device__ int32_t exchange_if(int32_t* at, int32_t expected, int32_t wanted) const { return atomicCAS(at, expected, wanted); }
  __device__ int32_t exchange(int32_t* at, int32_t x) const { return atomicExch(at, x); }
  __device__ int32_t add(int32_t* at, int32_t x) const { return atomicAdd(at, x); }
  __device__ void raise(int32_t* at, int32_t x) const { atomicMax(at, x); }
  __device__ void lower(int32_t* at, int32_t x) const { atomicMin(at, x); }
};

}  // namespace

#define FRB_KERNEL(name, threads)                                                                             \
  extern "C" __global__ void __launch_bounds__(threads, THREADS_OF_ONE / threads) frb_##name(const __grid_constant__ frb::gpu::Call call) { \
    __shared__ int64_t told[WARP];                                                                            \
    __shared__ int32_t shared[SHARED];                                                                        \
    frb::gpu::name(Block{told, shared}, call);                                                                \
  }
FRB_GPU_KERNELS(FRB_KERNEL)
