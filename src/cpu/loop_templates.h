// How a row of functions.def becomes loops. Included by the files that instantiate them.
#pragma once
#include <tuple>

#include "loops.h"
#include "vector_math.h"

namespace needle::NEEDLE_ISA {

// The types of the dtypes that have loops, in their order; void: computed as float32.
using Types =
    std::tuple<float, double, void, void, int8_t, int16_t, int32_t, int64_t, uint8_t, bool>;
template <DType dtype>
using TypeOf = std::tuple_element_t<dtype, Types>;

// The dtypes and results that a row may name.
constexpr uint32_t FLOATS = 1u << kFloat32 | 1u << kFloat64;
constexpr uint32_t INTEGERS =
    1u << kInt8 | 1u << kInt16 | 1u << kInt32 | 1u << kInt64 | 1u << kUInt8;
constexpr uint32_t NUMBERS = FLOATS | INTEGERS;
constexpr uint32_t INTEGRAL = INTEGERS | 1u << kBool;
constexpr uint32_t ALL = NUMBERS | INTEGRAL;
enum Result { SAME, BOOL };

// `out` may be one of the inputs, so no pointer is restrict; but no element depends on another.
template <class F, class T, class R>
void unary_loop(void* out, const void* const* inputs, int64_t n) {
  R* o = static_cast<R*>(out);
  const T* x = static_cast<const T*>(inputs[0]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) o[i] = static_cast<R>(F::apply(x[i]));
}

template <class F, class T, class R>
void binary_loop(void* out, const void* const* inputs, int64_t n) {
  R* o = static_cast<R*>(out);
  const T* x = static_cast<const T*>(inputs[0]);
  const T* y = static_cast<const T*>(inputs[1]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) o[i] = static_cast<R>(F::apply(x[i], y[i]));
}

template <class F, class X, class T, class R>
void ternary_loop(void* out, const void* const* inputs, int64_t n) {
  R* o = static_cast<R*>(out);
  const X* x = static_cast<const X*>(inputs[0]);
  const T* y = static_cast<const T*>(inputs[1]);
  const T* z = static_cast<const T*>(inputs[2]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) o[i] = static_cast<R>(F::apply(x[i], y[i], z[i]));
}

// The loop of one row for one dtype, or null where the row does not list it.
template <class F, int arity, uint32_t dtypes, Result result, DType dtype>
constexpr Contiguous instantiate() {
  if constexpr ((dtypes >> dtype & 1) != 0) {
    using T = TypeOf<dtype>;
    using R = std::conditional_t<result == BOOL, bool, T>;
    if constexpr (arity == 1) return unary_loop<F, T, R>;
    if constexpr (arity == 2) return binary_loop<F, T, R>;
    if constexpr (arity == 3) return ternary_loop<F, typename F::template First<T>, T, R>;
  }
  return nullptr;
}

#define LOOP_ROW(F, arity, dtypes, result)               \
  {                                                      \
      instantiate<F, arity, dtypes, result, kFloat32>(), \
      instantiate<F, arity, dtypes, result, kFloat64>(), \
      nullptr,                                           \
      nullptr,                                           \
      instantiate<F, arity, dtypes, result, kInt8>(),    \
      instantiate<F, arity, dtypes, result, kInt16>(),   \
      instantiate<F, arity, dtypes, result, kInt32>(),   \
      instantiate<F, arity, dtypes, result, kInt64>(),   \
      instantiate<F, arity, dtypes, result, kUInt8>(),   \
      instantiate<F, arity, dtypes, result, kBool>(),    \
  }

}  // namespace needle::NEEDLE_ISA
