// namespace math, as src/common/functions.def asks for it.
#pragma once
#include "prelude.cuh"

namespace math {

#define OF_FLOATS(name)                                          \
  __device__ inline float name(float x) { return ::name##f(x); } \
  __device__ inline double name(double x) { return ::name(x); }
OF_FLOATS(sqrt)
OF_FLOATS(exp)
OF_FLOATS(exp2)
OF_FLOATS(expm1)
OF_FLOATS(log)
OF_FLOATS(log2)
OF_FLOATS(log10)
OF_FLOATS(log1p)
OF_FLOATS(sin)
OF_FLOATS(cos)
OF_FLOATS(tan)
OF_FLOATS(asin)
OF_FLOATS(acos)
OF_FLOATS(atan)
OF_FLOATS(sinh)
OF_FLOATS(cosh)
OF_FLOATS(tanh)
OF_FLOATS(asinh)
OF_FLOATS(acosh)
OF_FLOATS(atanh)
OF_FLOATS(erf)
OF_FLOATS(erfc)
OF_FLOATS(floor)
OF_FLOATS(ceil)
OF_FLOATS(trunc)
#undef OF_FLOATS

#define OF_TWO_FLOATS(name)                                                  \
  __device__ inline float name(float x, float y) { return ::name##f(x, y); } \
  __device__ inline double name(double x, double y) { return ::name(x, y); }
OF_TWO_FLOATS(fmod)
OF_TWO_FLOATS(atan2)
OF_TWO_FLOATS(hypot)
OF_TWO_FLOATS(copysign)
OF_TWO_FLOATS(nextafter)
#undef OF_TWO_FLOATS

__device__ inline float round(float x) { return ::rintf(x); }  // half to even
__device__ inline double round(double x) { return ::rint(x); }
__device__ inline float abs(float x) { return ::fabsf(x); }
__device__ inline double abs(double x) { return ::fabs(x); }
template <class T>
__device__ inline T abs(T x) {
  return x < 0 ? -x : x;
}

template <class T>
__device__ inline T sigmoid(T x) {
  const T small = exp(-abs(x));
  return (x >= 0 ? T(1) : small) / (1 + small);
}
template <class T>
__device__ inline T silu(T x) {
  return (x < -1000 ? T(-1000) : x) * sigmoid(x);  // not infinity times 0
}
template <class T>
__device__ inline T softplus(T x) {
  return (x > 0 || x != x ? x : T(0)) + log1p(exp(-abs(x)));
}
template <class T>
__device__ inline T gelu(T x) {  // x Phi(x)
  return x == -abs(x) && isinf(x) ? T(-0.0) : T(0.5) * x * erfc(-x * T(0.70710678118654752440));
}
template <class T>
__device__ inline T gelu_tanh(T x) {
  const T inner = T(1.5957691216057308) * (x + T(0.044715) * x * x * x);  // 2 sqrt(2 / pi)
  return (x < -1000 ? T(-1000) : x) * sigmoid(inner);
}
// s + x s (1 - s) z', where s = sigmoid(z), without a difference: the derivative of x sigmoid(z).
template <class T>
__device__ inline T gated_slope(T x, T z, T z_slope) {
  const T e = exp(-abs(z)), part = 1 / (1 + e);
  return (z < 0 ? e * part : part) + x * (e * part * part) * z_slope;
}
template <class T>
__device__ inline T silu_slope(T x) {  // not infinity times 0
  const T t = x < -1000 ? T(-1000) : x > 1000 ? T(1000) : x;
  return gated_slope(t, t, T(1));
}
template <class T>
__device__ inline T gelu_slope(T x) {  // Phi(x) + x Phi'(x); at 40 the last is 0
  const T t = x < -40 ? T(-40) : x > 40 ? T(40) : x;
  return T(0.5) * erfc(-t * T(0.70710678118654752440)) +
         t * T(0.39894228040143267794) * exp(T(-0.5) * t * t);
}
template <class T>
__device__ inline T gelu_tanh_slope(T x) {
  const T a = T(1.5957691216057308), b = T(0.044715);
  const T t = x < -40 ? T(-40) : x > 40 ? T(40) : x, square = t * t;
  return gated_slope(t, a * t * (1 + b * square), a * (1 + 3 * b * square));
}
template <class T>
__device__ inline T logaddexp(T x, T y) {
  const T top = x > y || x != x ? x : y;
  const T gap = x == y ? T(0) : abs(x - y);
  return x != x || y != y ? x + y : top + log1p(exp(-gap));
}
template <class T>
__device__ inline T clip(T x, T low, T high) {
  const T raised = x < low ? low : x;
  const T capped = raised > high ? high : raised;
  return low != low ? low : high != high ? high : capped;
}

// ---- integers ---------------------------------------------------------------------------------

template <class T>
__device__ inline T invert(T x) {
  if constexpr (is_same<T, bool>) {
    return !x;
  } else {
    return static_cast<T>(~x);
  }
}

template <class T>
using Unsigned =
    typename Choose<sizeof(T) == 1, u8,
                    typename Choose<sizeof(T) == 2, u16,
                                    typename Choose<sizeof(T) == 4, u32, u64>::type>::type>::type;

// Shifts by any count; a right shift fills with the sign.
template <class T>
__device__ inline T shift_left(T x, T y) {
  constexpr unsigned kBits = 8 * sizeof(T);
  const u64 count = static_cast<Unsigned<T>>(y);
  return count < kBits ? static_cast<T>(static_cast<Unsigned<T>>(x) << count) : static_cast<T>(0);
}
template <class T>
__device__ inline T shift_right(T x, T y) {
  constexpr unsigned kLast = 8 * sizeof(T) - 1;
  const u64 count = static_cast<Unsigned<T>>(y);
  if (count <= kLast) return static_cast<T>(x >> count);
  return Traits<T>::is_signed ? static_cast<T>(x >> kLast) : static_cast<T>(0);
}

__device__ inline float power(float x, float y) { return ::powf(x, y); }
__device__ inline double power(double x, double y) { return ::pow(x, y); }
template <class T>  // by squaring; a negative exponent gives the truncated quotient
__device__ inline T power(T x, T y) {
  if (y < 0) return x == 1 ? 1 : x != static_cast<T>(-1) ? 0 : y & 1 ? -1 : 1;
  Unsigned<T> result = 1, base = static_cast<Unsigned<T>>(x);
  for (; y != 0; y >>= 1, base = static_cast<Unsigned<T>>(static_cast<u64>(base) * base))
    if (y & 1) result = static_cast<Unsigned<T>>(static_cast<u64>(result) * base);
  return static_cast<T>(result);
}

// ---- division: rounds down, and the remainder has the divisor's sign; x // 0 is 0 for integers
// ---

template <class T>
__device__ inline T floor_divide(T x, T y) {
  if constexpr (Traits<T>::is_floating) {
    if (y == 0 || isinf(x) || isinf(y)) return floor(x / y);
    const T rest = fmod(x, y);
    T quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;
    T whole = floor(quotient);  // but for rounding, `quotient` is whole
    if (quotient - whole > T(0.5)) whole += 1;
    return whole == 0 ? copysign(T(0), x / y) : whole;
  } else {
    if (y == 0) return 0;
    if (Traits<T>::is_signed && y == static_cast<T>(-1))
      return static_cast<T>(Unsigned<T>(0) - static_cast<Unsigned<T>>(x));
    const T rest = x % y;
    return static_cast<T>(x / y - (rest != 0 && (rest < 0) != (y < 0)));
  }
}

template <class T>
__device__ inline T remainder(T x, T y) {
  if constexpr (Traits<T>::is_floating) {
    const T rest = fmod(x, y);
    if (rest == 0) return copysign(T(0), y);
    return (y < 0) != (rest < 0) ? rest + y : rest;
  } else {
    if (y == 0 || (Traits<T>::is_signed && y == static_cast<T>(-1))) return 0;
    const T rest = x % y;
    return static_cast<T>(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
  }
}

}  // namespace math
