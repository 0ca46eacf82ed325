// Reading and writing runs of any dtype in the type that kernels compute in: float for float32,
// float16 and bfloat16, double for float64, int64_t for integers and bool. Row kernels are thus
// written, and compiled, for two or three types instead of ten.
#pragma once
#include <type_traits>

#include "half.h"
#include "isa/isa.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace needle::NEEDLE_ISA {

template <class A, class S>
inline A widen(S x) {
  return static_cast<A>(x);
}
template <class A>
inline A widen(BFloat16 x) {
  return static_cast<A>(to_float(x));
}
template <class A>
inline A widen(Half x) {
  return static_cast<A>(to_float(x));
}

template <class S, class A>
inline S narrow(A x) {
  if constexpr (std::is_same_v<S, BFloat16>)
    return to_bfloat16(static_cast<float>(x));
  else if constexpr (std::is_same_v<S, Half>)
    return to_half(static_cast<float>(x));
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
