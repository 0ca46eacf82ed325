// Included by every kernel file: types, shared memory, geometry, casts.
//
// The same text is compiled by NVRTC for a GPU, and by a host compiler against emu/cuda_emu.h.
// Parameters of kernels are 8 bytes wide each (pointers, i64, double, structs of those), so that a
// launch is a row of 8-byte words.
#pragma once

#ifdef NEEDLE_EMULATOR
#include "cuda_emu.h"
#else
#define SHARED(type, name, ...) __shared__ __align__(128) type name __VA_ARGS__
#define DYNAMIC_SHARED(type, name)                      \
  extern __shared__ __align__(16) char needle_shared[]; \
  type* name = reinterpret_cast<type*>(needle_shared)
#endif

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

constexpr int kMaxDims = 16;
constexpr unsigned kAllLanes = 0xffffffffu;

template <bool condition, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};
template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

// ---- 16-bit floating types ------------------------------------------------------------------

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

__device__ inline u32 bits_of(float x) { return __float_as_uint(x); }
__device__ inline float float_of(u32 x) { return __uint_as_float(x); }

__device__ inline float to_float(bf16 x) { return float_of(static_cast<u32>(x.bits) << 16); }

__device__ inline bf16 to_bf16(float x) {  // to nearest, ties to even
  const u32 bits = bits_of(x);
  const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return {static_cast<u16>(x != x ? (bits >> 16) | 0x40u : rounded)};
}

#ifdef NEEDLE_EMULATOR
__device__ inline float to_float(f16 x) {
  const u32 sign = (x.bits & 0x8000u) << 16, body = (x.bits & 0x7fffu) << 13;
  const float finite = float_of(body) * 0x1p112f;  // makes subnormals come out right as well
  return float_of((body >= 0x0f800000u ? body | 0x7f800000u : bits_of(finite)) | sign);
}
__device__ inline f16 to_f16(float x) {
  const u32 bits = bits_of(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const u32 subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const u32 normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
  u32 half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return {static_cast<u16>(half | sign)};
}
#else
__device__ inline float to_float(f16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
__device__ inline f16 to_f16(float x) {
  f16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
#endif

// ---- what a type computes in, and casts -------------------------------------------------------

template <class T>
struct Traits {
  static constexpr bool is_floating = false, is_signed = static_cast<T>(-1) < static_cast<T>(0);
  static constexpr int digits = 8 * sizeof(T) - is_signed;
  using Compute = T;
};
template <>
struct Traits<bool> {
  static constexpr bool is_floating = false, is_signed = false;
  static constexpr int digits = 1;
  using Compute = bool;
};
#define FLOATING(T, C)                                          \
  template <>                                                   \
  struct Traits<T> {                                            \
    static constexpr bool is_floating = true, is_signed = true; \
    static constexpr int digits = 0;                            \
    using Compute = C;                                          \
  };
FLOATING(float, float)
FLOATING(double, double)
FLOATING(f16, float)
FLOATING(bf16, float)
#undef FLOATING

template <class T>
using Compute = typename Traits<T>::Compute;

template <class T>
__device__ inline T widen(T x) {
  return x;
}
__device__ inline float widen(f16 x) { return to_float(x); }
__device__ inline float widen(bf16 x) { return to_float(x); }

template <class T>
__device__ inline T lowest() {
  if constexpr (is_same<T, bool>) {
    return false;
  } else if constexpr (Traits<T>::is_floating) {
    return -static_cast<T>(1) / static_cast<T>(0);
  } else {
    return Traits<T>::is_signed ? static_cast<T>(static_cast<u64>(1) << (8 * sizeof(T) - 1))
                                : static_cast<T>(0);
  }
}
template <class T>
__device__ inline T highest() {
  if constexpr (is_same<T, bool>) {
    return true;
  } else if constexpr (Traits<T>::is_floating) {
    return static_cast<T>(1) / static_cast<T>(0);
  } else {
    return static_cast<T>(~lowest<T>());
  }
}

// Truncates; numbers out of range become the nearest T, NaN becomes 0.
template <class T, class F>
__device__ inline T saturate(F x) {
  constexpr int digits = Traits<T>::digits;
  constexpr T kTop = static_cast<T>((static_cast<u64>(1) << digits) - 1);
  constexpr T kBottom = Traits<T>::is_signed ? static_cast<T>(-kTop - 1) : static_cast<T>(0);
  constexpr F kEnd = static_cast<F>(static_cast<u64>(1) << (digits - 1)) * 2;  // above the top
  const bool low = !(x > static_cast<F>(kBottom)), high = x >= kEnd;
  const T inside = static_cast<T>(low || high ? F(0) : x);
  return x != x ? static_cast<T>(0) : low ? kBottom : high ? kTop : inside;
}

// To float, so that rounding that to 16 bits gives x rounded once: an inexact result is made odd.
__device__ inline float to_odd(double x) {
  const float nearest = static_cast<float>(x);
  u32 bits = bits_of(nearest);
  const bool inexact = static_cast<double>(nearest) != x && x == x;
  bits -= inexact && fabs(static_cast<double>(nearest)) > fabs(x);
  return float_of(bits | inexact);
}
__device__ inline float to_odd(float x) { return x; }
__device__ inline float to_odd(i64 x) { return to_odd(static_cast<double>(x)); }
__device__ inline float to_odd(i32 x) { return to_odd(static_cast<double>(x)); }
__device__ inline float to_odd(i16 x) { return static_cast<float>(x); }
__device__ inline float to_odd(i8 x) { return static_cast<float>(x); }
__device__ inline float to_odd(u8 x) { return static_cast<float>(x); }
__device__ inline float to_odd(bool x) { return static_cast<float>(x); }

template <class To, class From>
__device__ inline To cast(From x) {
  if constexpr (is_same<To, From>) {
    return x;
  } else {
    const auto value = widen(x);
    if constexpr (is_same<To, bool>) {
      return value != 0;
    } else if constexpr (is_same<To, f16>) {
      return to_f16(to_odd(value));
    } else if constexpr (is_same<To, bf16>) {
      return to_bf16(to_odd(value));
    } else if constexpr (Traits<From>::is_floating && !Traits<To>::is_floating) {
      return saturate<To>(value);
    } else {
      return static_cast<To>(value);
    }
  }
}

// ---- geometry ---------------------------------------------------------------------------------

template <int n>
struct Pointers {
  void* p[n];
};

// Shape and strides of n operands, in elements; the host has merged axes where possible.
template <int n>
struct Geometry {
  i64 ndim, count;
  i64 shape[kMaxDims];
  i64 strides[n][kMaxDims];
};

// Offsets of the element at `position` in C order.
template <int n, class Index>
struct Offsets {
  Index at[n];
  __device__ Offsets(const Geometry<n>& g, Index position) {
#pragma unroll
    for (int k = 0; k < n; ++k) at[k] = 0;
    for (int d = static_cast<int>(g.ndim) - 1; d > 0; --d) {
      const Index size = static_cast<Index>(g.shape[d]);
      const Index rest = position / size, i = position - rest * size;
#pragma unroll
      for (int k = 0; k < n; ++k) at[k] += i * static_cast<Index>(g.strides[k][d]);
      position = rest;
    }
#pragma unroll
    for (int k = 0; k < n; ++k) at[k] += position * static_cast<Index>(g.strides[k][0]);
  }
};

template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T v[n];
};

// The position of this thread in a one-dimensional grid.
template <class Index>
__device__ inline Index position_in_grid() {
  return static_cast<Index>(blockIdx.x) * static_cast<Index>(blockDim.x) +
         static_cast<Index>(threadIdx.x);
}
