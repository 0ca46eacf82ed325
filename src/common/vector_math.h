// The functions behind the rows of functions.def, for the CPU. Scalar code without branches or
// calls, so that the compiler turns loops over it into vector code.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace needle::NEEDLE_ISA::math {

template <class T>
constexpr bool is_float = std::is_floating_point_v<T>;

template <class T>
T abs(T x) {
  if constexpr (is_float<T>) return std::fabs(x);
  return x < 0 ? -x : x;
}
template <class T>
T sqrt(T x) {
  return std::sqrt(x);
}
template <class T>
T floor(T x) {
  return std::floor(x);
}
template <class T>
T ceil(T x) {
  return std::ceil(x);
}
template <class T>
T trunc(T x) {
  return std::trunc(x);
}
template <class T>
T round(T x) {
  return std::rint(x);
}
template <class T>
T copysign(T x, T y) {
  return std::copysign(x, y);
}
template <class T>
T nextafter(T x, T y) {
  return std::nextafter(x, y);
}

template <class T>
T exp(T x) {
  return std::exp(x);
}
template <class T>
T exp2(T x) {
  return std::exp2(x);
}
template <class T>
T expm1(T x) {
  return std::expm1(x);
}
template <class T>
T log(T x) {
  return std::log(x);
}
template <class T>
T log2(T x) {
  return std::log2(x);
}
template <class T>
T log10(T x) {
  return std::log10(x);
}
template <class T>
T log1p(T x) {
  return std::log1p(x);
}
template <class T>
T sin(T x) {
  return std::sin(x);
}
template <class T>
T cos(T x) {
  return std::cos(x);
}
template <class T>
T tan(T x) {
  return std::tan(x);
}
template <class T>
T asin(T x) {
  return std::asin(x);
}
template <class T>
T acos(T x) {
  return std::acos(x);
}
template <class T>
T atan(T x) {
  return std::atan(x);
}
template <class T>
T sinh(T x) {
  return std::sinh(x);
}
template <class T>
T cosh(T x) {
  return std::cosh(x);
}
template <class T>
T tanh(T x) {
  return std::tanh(x);
}
template <class T>
T asinh(T x) {
  return std::asinh(x);
}
template <class T>
T acosh(T x) {
  return std::acosh(x);
}
template <class T>
T atanh(T x) {
  return std::atanh(x);
}
template <class T>
T erf(T x) {
  return std::erf(x);
}
template <class T>
T atan2(T y, T x) {
  return std::atan2(y, x);
}
template <class T>
T hypot(T x, T y) {
  return std::hypot(x, y);
}

template <class T>
T maximum(T x, T y) {
  return x > y || x != x ? x : y;
}
template <class T>
T minimum(T x, T y) {
  return x < y || x != x ? x : y;
}
template <class T>
T clip(T x, T low, T high) {
  return minimum(maximum(x, low), high);
}

template <class T>
T sigmoid(T x) {
  return 1 / (1 + exp(-x));
}

// log(1 + exp(x))
template <class T>
T softplus(T x) {
  return maximum(x, T(0)) + log1p(exp(-abs(x)));
}

template <class T>
T logaddexp(T x, T y) {
  T difference = x == y ? 0 : abs(x - y);  // equal infinities
  return maximum(x, y) + log1p(exp(-difference));
}

template <class T>
T gelu(T x) {
  return T(0.5) * x * (1 + erf(x * T(0.70710678118654752440)));
}

template <class T>
T gelu_tanh(T x) {
  constexpr T kScale = T(1.5957691216057308);  // 2 sqrt(2 / pi)
  return x * sigmoid(kScale * (x + T(0.044715) * x * x * x));
}

template <class T>
T invert(T x) {
  if constexpr (std::is_same_v<T, bool>) {
    return !x;
  } else {
    return ~x;
  }
}

// Shifts by any count: what falls out is gone, a right shift fills with the sign.
template <class T>
T shift_left(T x, T y) {
  using Unsigned = std::make_unsigned_t<T>;
  constexpr int kBits = 8 * sizeof(T);
  bool inside = static_cast<Unsigned>(y) < kBits;
  return inside ? static_cast<T>(static_cast<uint64_t>(x) << (y & (kBits - 1))) : 0;
}
template <class T>
T shift_right(T x, T y) {
  using Unsigned = std::make_unsigned_t<T>;
  constexpr int kBits = 8 * sizeof(T);
  return x >> (static_cast<Unsigned>(y) < kBits ? y : kBits - 1);
}

// Division rounds down and the remainder has the divisor's sign; x // 0 and x % 0 are 0 for
// integers.
template <class T>
T floor_divide(T x, T y) {
  if constexpr (is_float<T>) {
    if (y == 0) return x / y;
    T rest = std::fmod(x, y);
    T quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;
    return quotient == 0 ? copysign(T(0), x / y) : std::rint(quotient);
  } else {
    if (y == 0) return 0;
    if (static_cast<T>(y + 1) == 0 && std::is_signed_v<T>) return -x;  // the smallest / -1 traps
    T quotient = x / y, rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? quotient - 1 : quotient;
  }
}

template <class T>
T remainder(T x, T y) {
  if constexpr (is_float<T>) {
    T rest = std::fmod(x, y);
    if (rest == 0) return copysign(T(0), y);
    return (y < 0) != (rest < 0) ? rest + y : rest;
  } else {
    return y == 0 ? 0 : x - floor_divide(x, y) * y;
  }
}

// Integers: by squaring; a negative exponent gives the truncated quotient.
template <class T>
T power(T x, T y) {
  if constexpr (is_float<T>) {
    return std::pow(x, y);
  } else {
    if (y < 0) return x == 1 ? 1 : static_cast<T>(x + 1) == 0 ? (y & 1 ? -1 : 1) : 0;
    T result = 1;
    for (; y != 0; y >>= 1, x *= x)
      if (y & 1) result *= x;
    return result;
  }
}

}  // namespace needle::NEEDLE_ISA::math
