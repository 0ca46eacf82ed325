// Reading and writing runs of any dtype in the type that kernels compute in: float for float32,
// float16 and bfloat16, double for float64, int64_t for integers and bool. Row kernels are thus
// written, and compiled, for two or three types instead of ten.
#pragma once
#include <cstring>
#include <type_traits>

#include "isa.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace needle::NEEDLE_ISA {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float to_float(BFloat16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

inline float to_float(Float16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, body = (x.bits & 0x7fffu) << 13;
  // Moving the exponent by a multiplication makes subnormals come out right as well.
  const float finite = __builtin_bit_cast(float, body) * 0x1p112f;
  const uint32_t bits =
      body >= 0x0f800000u ? body | 0x7f800000u : __builtin_bit_cast(uint32_t, finite);
  return __builtin_bit_cast(float, bits | sign);
}

inline BFloat16 to_bfloat16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  return {static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded)};
}

inline Float16 to_float16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 lines the bits of a subnormal half up with the end of the sum's significand.
  const float small = __builtin_bit_cast(float, magnitude) + 0.5f;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, small) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return {static_cast<uint16_t>(half | sign)};
}

template <class A, class S>
inline A widen(S x) {
  return static_cast<A>(x);
}
template <class A>
inline A widen(BFloat16 x) {
  return static_cast<A>(to_float(x));
}
template <class A>
inline A widen(Float16 x) {
  return static_cast<A>(to_float(x));
}

template <class S, class A>
inline S narrow(A x) {
  if constexpr (std::is_same_v<S, BFloat16>)
    return to_bfloat16(static_cast<float>(x));
  else if constexpr (std::is_same_v<S, Float16>)
    return to_float16(static_cast<float>(x));
  else if constexpr (std::is_same_v<S, bool>)
    return x != 0;
  else
    return static_cast<S>(x);
}

// n elements at x, `stride` elements apart, into out; and back from x into dense out.
template <class A>
using Read = void (*)(A* out, const void* x, int64_t n, int64_t stride);
template <class A>
using Write = void (*)(void* out, const A* x, int64_t n);

// Null for a dtype that A does not compute in.
template <class A>
Read<A> reader(DType dtype);
template <class A>
Write<A> writer(DType dtype);
Read<int64_t> truth_reader(DType dtype);  // 1 where x != 0 (NaN is true), any dtype

inline bool is_floating(DType dtype) { return dtype <= kFloat16; }

// One element of an index or label operand.
using ReadIndex = int64_t (*)(const void* x, int64_t position);
ReadIndex index_reader(DType dtype);  // null: not an integer dtype

}  // namespace needle::NEEDLE_ISA
