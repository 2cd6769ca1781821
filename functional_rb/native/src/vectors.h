// Vectors of the processor, as compilers have them for all processors; products alone are written for each.
#pragma once
#include "base.h"
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

FRB_BEGIN

// So many numbers of 32 bits, and half as many of 64, lie side by side in a vector. Shuffles stay within four of them,
// so that they work for four and for eight alike.
#ifdef __AVX2__
constexpr int SIDE = 8;
#define FRB_LANES(a, b, c, d) a, b, c, d, (a) + 4, (b) + 4, (c) + 4, (d) + 4
#else
constexpr int SIDE = 4;
#define FRB_LANES(a, b, c, d) a, b, c, d
#endif
typedef float Floats __attribute__((vector_size(4 * SIDE)));
typedef int32_t Ints __attribute__((vector_size(4 * SIDE)));
typedef uint32_t Words __attribute__((vector_size(4 * SIDE)));
typedef uint64_t Longs __attribute__((vector_size(4 * SIDE)));
typedef uint32_t HalfWords __attribute__((vector_size(2 * SIDE)));

// The same anywhere in memory, read and written at once: of `memcpy` some compilers make pieces, for which reading the
// whole then has to wait.
typedef Floats FloatsAnywhere __attribute__((aligned(4), may_alias));
typedef Ints IntsAnywhere __attribute__((aligned(4), may_alias));
typedef Longs LongsAnywhere __attribute__((aligned(8), may_alias));
typedef HalfWords HalfWordsAnywhere __attribute__((aligned(4), may_alias));
FRB_INLINE Floats vector_at(const float* at) { return *reinterpret_cast<const FloatsAnywhere*>(at); }
FRB_INLINE Ints vector_at(const int32_t* at) { return *reinterpret_cast<const IntsAnywhere*>(at); }
FRB_INLINE Longs vector_at(const uint64_t* at) { return *reinterpret_cast<const LongsAnywhere*>(at); }
FRB_INLINE void set_vector(int32_t* at, Ints v) { *reinterpret_cast<IntsAnywhere*>(at) = v; }
FRB_INLINE void set_vector(uint64_t* at, Longs v) { *reinterpret_cast<LongsAnywhere*>(at) = v; }

// Numbers of 32 bits as such of 64, and back.
FRB_INLINE Longs longs_at(const uint32_t* at) {
  return __builtin_convertvector(*reinterpret_cast<const HalfWordsAnywhere*>(at), Longs);
}
FRB_INLINE void set_words(uint32_t* at, Longs v) {
  *reinterpret_cast<HalfWordsAnywhere*>(at) = __builtin_convertvector(v, HalfWords);
}

// The products of numbers below 2^32: what `*` makes of 64 bits would take three multiplications or more.
FRB_INLINE Longs product(Longs a, Longs b) {
#if defined(__AVX2__)
  return Longs(_mm256_mul_epu32(__m256i(a), __m256i(b)));
#elif defined(__SSE2__)
  return Longs(_mm_mul_epu32(__m128i(a), __m128i(b)));
#elif defined(__aarch64__)
  return Longs(vmull_u32(vmovn_u64(uint64x2_t(a)), vmovn_u64(uint64x2_t(b))));
#else
  return a * b;
#endif
}

// The lower halves of numbers of 64 bits are the first of each two; the upper ones are none's.
FRB_INLINE Ints low_half(Longs x) { return Ints(x); }
FRB_INLINE Longs from_half(Ints x) { return Longs(x) & 0xFFFFFFFFull; }

#if defined(__clang__) || __GNUC__ >= 12
#define FRB_SHUFFLE(v, w, ...) __builtin_shufflevector(v, w, __VA_ARGS__)
#else
#define FRB_SHUFFLE(v, w, ...) __builtin_shuffle(v, w, Ints{__VA_ARGS__})
#endif

FRB_END
