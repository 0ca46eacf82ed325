// Conversions between all dtypes.
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/convert.h"
#include "isa/lanes.h"
#include "elementwise/loops.h"
#include "vector_basic.h"

namespace needle::NEEDLE_ISA {
namespace {

template <class T>
auto number(T x) {
  return x;
}
inline int32_t number(bool x) { return x ? 1 : 0; }  // compilers lack vectors of bool
inline float number(Half x) { return to_float(x); }
inline float number(BFloat16 x) { return to_float(x); }

// Truncates; numbers out of range become the nearest T, NaN becomes 0.
template <class T, class F>
T saturate(F x) {
  using Limits = std::numeric_limits<T>;
  constexpr bool kExact = Limits::digits <= std::numeric_limits<F>::digits;    // F holds the top
  constexpr F kEnd = static_cast<F>(uint64_t{1} << (Limits::digits - 1)) * 2;  // one above the top
  constexpr F kLow = static_cast<F>(Limits::min());
  constexpr F kHigh = kExact ? kEnd - 1 : kEnd * (1 - std::numeric_limits<F>::epsilon() / 2);
  F inside = x > kLow ? x : kLow;  // NaN too
  inside = inside < kHigh ? inside : kHigh;
  T value = static_cast<T>(inside);
  if constexpr (!kExact) value = x >= kEnd ? Limits::max() : value;
  return x != x ? T(0) : value;
}

// To float, so that rounding that to 16 bits gives x rounded once: an inexact result is made odd.
float to_odd_float(double x) {
  float nearest = static_cast<float>(x);
  uint32_t bits = bits_of(nearest);
  bool inexact = static_cast<double>(nearest) != x && x == x;
  bits -= inexact && std::abs(static_cast<double>(nearest)) > std::abs(x);
  return float_of(bits | inexact);
}

template <class T>
float to_odd(T x) {
  return sizeof(T) <= 2 || std::is_same_v<T, float> ? static_cast<float>(x) : to_odd_float(x);
}

template <class To, class From>
To convert(From x) {
  auto value = number(x);
  using Value = decltype(value);
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (std::is_same_v<To, Half>) {
    return to_half(to_odd(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(to_odd(value));
  } else if constexpr (std::is_floating_point_v<Value> && std::is_integral_v<To>) {
    return saturate<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class To, class From>
void convert_loop(void* out, const void* const* inputs, int64_t n) {
  auto* o = elements<To>(out);
  auto* x = elements<From>(inputs[0]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) o[i] = convert<To>(static_cast<From>(x[i]));
}

// As above, in the compiler's vectors: of the scalar form it makes chains of masks. The instruction
// gives the smallest integer for numbers that are too low, or for all out of range.
template <>
void convert_loop<int32_t, float>(void* out, const void* const* inputs, int64_t n) {
  constexpr int64_t kCount = kLanes<float>;
  auto* o = static_cast<int32_t*>(out);
  auto* x = static_cast<const float*>(inputs[0]);
  const Vector<float> end = splat(0x1p31f);
  const Vector<int32_t> top = splat(std::numeric_limits<int32_t>::max());
  int64_t i = 0;
  for (; i + kCount <= n; i += kCount) {
    Vector<float> v = load(x + i);
    Vector<int32_t> value = __builtin_convertvector(v, Vector<int32_t>);
    value = v >= end ? top : value;
    store(o + i, v == v ? value : Vector<int32_t>{});
  }
  for (; i < n; ++i) o[i] = convert<int32_t>(x[i]);
}

// As other kernels read and write them, by instructions where there are some.
#define CONVERSIONS_OF(Type, dtype)                                                 \
  template <>                                                                       \
  void convert_loop<Type, float>(void* out, const void* const* inputs, int64_t n) { \
    writer<float>(dtype)(out, static_cast<const float*>(inputs[0]), n);             \
  }                                                                                 \
  template <>                                                                       \
  void convert_loop<float, Type>(void* out, const void* const* inputs, int64_t n) { \
    reader<float>(dtype)(static_cast<float*>(out), inputs[0], n, 1);                \
  }
CONVERSIONS_OF(Half, kFloat16)
CONVERSIONS_OF(BFloat16, kBFloat16)

#if defined(__AVX2__) && !defined(__AVX512F__)
// By float64, which holds all numbers of a piece: vectors of int64 have no such instruction.
template <class To>
void convert_longs(void* out, const void* const* inputs, int64_t n) {
  constexpr int64_t kPiece = 64;
  constexpr uint64_t kEnd = math::kLargestLong;
  auto* o = static_cast<To*>(out);
  auto* x = static_cast<const int64_t*>(inputs[0]);
  for (int64_t first = 0; first < n; first += kPiece, o += kPiece, x += kPiece) {
    const int64_t count = n - first < kPiece ? n - first : kPiece;
    uint64_t beyond = 0;
    for (int64_t i = 0; i < count; ++i) beyond |= (static_cast<uint64_t>(x[i]) + kEnd) & -2 * kEnd;
    if (beyond)
      for (int64_t i = 0; i < count; ++i) o[i] = static_cast<To>(x[i]);
    else
      for (int64_t i = 0; i < count; ++i) o[i] = static_cast<To>(math::to_double(x[i]));
  }
}
template <>
void convert_loop<float, int64_t>(void* out, const void* const* inputs, int64_t n) {
  convert_longs<float>(out, inputs, n);
}
template <>
void convert_loop<double, int64_t>(void* out, const void* const* inputs, int64_t n) {
  convert_longs<double>(out, inputs, n);
}
#endif

#define CONVERSIONS_TO(To)                                                              \
  {                                                                                     \
      convert_loop<To, float>,   convert_loop<To, double>,  convert_loop<To, BFloat16>, \
      convert_loop<To, Half>,    convert_loop<To, int8_t>,  convert_loop<To, int16_t>,  \
      convert_loop<To, int32_t>, convert_loop<To, int64_t>, convert_loop<To, uint8_t>,  \
      convert_loop<To, bool>,                                                           \
  }

constexpr LoopRow kConversions[kDTypes] = {
    CONVERSIONS_TO(float),   CONVERSIONS_TO(double),  CONVERSIONS_TO(BFloat16),
    CONVERSIONS_TO(Half),    CONVERSIONS_TO(int8_t),  CONVERSIONS_TO(int16_t),
    CONVERSIONS_TO(int32_t), CONVERSIONS_TO(int64_t), CONVERSIONS_TO(uint8_t),
    CONVERSIONS_TO(bool),
};

}  // namespace

Contiguous conversion(DType from, DType to) { return kConversions[to][from]; }

}  // namespace needle::NEEDLE_ISA
