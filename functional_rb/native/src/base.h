// What all kernels are written with: views of memory that the caller keeps alive, and whole numbers as Python has them.
//
// Compilers for GPUs read it too (`gpu.h`), also the one that comes with the driver's libraries and has no headers.
#pragma once
#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#ifdef FRB_FAULTS
#include <unistd.h>
#endif
#endif

#if defined(__CUDACC__)
#define FRB_INLINE __device__ __forceinline__
#define FRB_TABLE static __device__ const
#define FRB_UNROLL _Pragma("unroll")
#else
#define FRB_INLINE inline __attribute__((always_inline))
#define FRB_TABLE constexpr
#define FRB_UNROLL
#endif
// A kernel: compiled once, though both Python and XLA call it.
#define FRB_ENTRY inline __attribute__((noinline))
// Each instruction set has a namespace of its own, so that the linker never takes one's function for another's.
#ifndef FRB_ISA
#define FRB_ISA baseline
#endif
#define FRB_BEGIN namespace frb { inline namespace FRB_ISA {
#define FRB_END } }

FRB_BEGIN

// Faults that tests plant, to see that sanitizers report each; in other builds there are none.
#ifdef FRB_FAULTS
inline int64_t planted = 0, races = 0;
FRB_ENTRY void plant(int64_t fault) { planted = fault; }
#define FRB_FAULT(fault) (planted == (fault))
#else
#define FRB_FAULT(fault) false
#endif
enum Fault { BEHIND_THE_ROWS = 1, FREED, OVERFLOWN, RACE, BEHIND_THE_DRAWS, UNLOCKED, BEHIND_THE_QUEUE, FEW_THREADS };

constexpr int64_t INT32_MOST = 2147483647;
// No item that can be drawn has a smaller probability: 2^-126.
constexpr float LEAST_CHANCE = 1.1754943508222875e-38f;
// Bytes that processors read from memory at once.
constexpr int64_t LINE = 64;

template <class T> FRB_INLINE T least(T a, T b) { return b < a ? b : a; }
template <class T> FRB_INLINE T most(T a, T b) { return a < b ? b : a; }

// Division that rounds down, and what it leaves, for a divisor above zero.
FRB_INLINE int64_t floor_div(int64_t x, int64_t n) { return x / n - (x % n < 0); }
FRB_INLINE int64_t floor_mod(int64_t x, int64_t n) { int64_t rest = x % n; return rest < 0 ? rest + n : rest; }

// The same for numbers in [0, 2^32), in half the time.
FRB_INLINE int64_t short_div(int64_t x, int64_t n) { return uint32_t(x) / uint32_t(n); }
FRB_INLINE int64_t short_mod(int64_t x, int64_t n) { return uint32_t(x) % uint32_t(n); }

// A sum as an int32 counter holds it: it stays at the largest.
FRB_INLINE int32_t saturated(int64_t x) { return int32_t(least(x, INT32_MOST)); }

// A place among `size`, the first for one outside: an array that others may have made may say anything.
FRB_INLINE int64_t bounded(int64_t place, int64_t size) { return 0 <= place && place < size ? place : 0; }

// Which of n two words of 31 random bits choose, all equally likely: `ops.random_bits.below`.
FRB_INLINE int64_t below(const int32_t* words, int64_t n) {
  return (int64_t(words[0]) * n + ((int64_t(words[1]) * n) >> 31)) >> 31;
}

// Elements in a row; an array that is not given has none.
template <class T> struct Span {
  T* at = nullptr;
  int64_t size = 0;
  FRB_INLINE T& operator[](int64_t k) const { return at[k]; }
  FRB_INLINE Span part(int64_t first, int64_t count) const { return {at + first, count}; }
  FRB_INLINE operator Span<const T>() const { return {at, size}; }
};

// An array of several axes.
template <class T, int N> struct Array {
  T* at = nullptr;
  int64_t shape[N] = {};
};

// Rows of elements; an array that is not given has none.
template <class T> struct Matrix {
  T* at = nullptr;
  int64_t rows = 0, columns = 0;
};

// Numbers that are known before a call, as a record is.
template <class T> struct Numbers : Span<const T> {};

// An array that changes in place: a result that lies where an operand lay.
template <class T> struct Changed {
  T* at;
};

#if !defined(__CUDACC__)
// Memory for the time of one call: of small ones in place, as taking it would be a part of their time. Where faults are
// planted it is always taken, so that sanitizers see what is read behind it.
#ifdef FRB_FAULTS
constexpr size_t BYTES_IN_PLACE = 0;
#else
constexpr size_t BYTES_IN_PLACE = 256;
#endif
template <class T> class Scratch {
 public:
  explicit Scratch(int64_t size, bool zeros = false) : size(size) {
    const size_t count = size_t(most<int64_t>(size, 1));
    if (count <= BYTES_IN_PLACE / sizeof(T)) {
      at = reinterpret_cast<T*>(in_place_);
      if (zeros) memset(in_place_, 0, count * sizeof(T));
      return;
    }
    at = static_cast<T*>(zeros ? calloc(count, sizeof(T)) : malloc(count * sizeof(T)));
    if (!at) throw std::bad_alloc();
  }
  ~Scratch() {
    if (at != reinterpret_cast<T*>(in_place_)) free(at);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  FRB_INLINE T& operator[](int64_t k) const { return at[k]; }
  FRB_INLINE operator Span<T>() const { return {at, size}; }
  FRB_INLINE operator Span<const T>() const { return {at, size}; }

  T* at = nullptr;
  int64_t size;

 private:
  alignas(8) char in_place_[BYTES_IN_PLACE + 8];
};

#endif

FRB_INLINE float float_of(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
FRB_INLINE int32_t bits_of(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }

#if !defined(__CUDACC__)
// Bytes between places that do not overlap; what scalars and short vectors have without a call.
FRB_INLINE void copy(char* to, const char* from, int64_t count) {
  if (count == 4) {
    memcpy(to, from, 4);
  } else if (count == 8) {
    memcpy(to, from, 8);
  } else if (count == 1) {
    *to = *from;
  } else if (16 <= count && count <= 128) {
    const int64_t last = count - 16;  // some are copied twice, rather than one by one
    for (int64_t k = 0; k < last; k += 16) memcpy(to + k, from + k, 16);
    memcpy(to + last, from + last, 16);
  } else {
    memcpy(to, from, size_t(count));
  }
}

// Ask for memory that will be read or written soon, without waiting for it. It comes to the cache of the second level: to
// the first one a processor has a few lines on their way at a time, to the second several times as many.
FRB_INLINE void expect(const void* at) { __builtin_prefetch(at, 0, 2); }
FRB_INLINE void expect_bytes(const char* at, int64_t count) {
  for (int64_t k = 0; k < count; k += LINE) expect(at + k);
  if (count > 1) expect(at + count - 1);
}

#endif

// Where an array begins, as calls on CPUs and on GPUs have it.
FRB_INLINE char* place(int64_t address) { return reinterpret_cast<char*>(address); }
FRB_INLINE char* place(char* at) { return at; }

FRB_END
