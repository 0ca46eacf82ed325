// Building blocks of the vector mathematics, signs and roundings, integer arithmetic, division.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace needle::NEEDLE_ISA::math {

template <class T>
constexpr bool is_float = std::is_floating_point_v<T>;
template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

// ---- the layout of floating-point numbers --------------------------------------------------

template <class T>
using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T>
constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
template <class T>
constexpr int kBias = sizeof(T) == 4 ? 127 : 1023;

template <class T>
Int<T> bits(T x) {
  Int<T> result;
  std::memcpy(&result, &x, sizeof x);
  return result;
}

template <class T>
T from_bits(Int<T> x) {
  T result;
  std::memcpy(&result, &x, sizeof x);
  return result;
}

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
constexpr bool kHasFma = true;
inline float multiply_add(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double multiply_add(double x, double y, double z) { return __builtin_fma(x, y, z); }
#else
constexpr bool kHasFma = false;
template <class T>
T multiply_add(T x, T y, T z) {
  return x * y + z;
}
#endif

// 2^k for the exponents of normal numbers.
template <class T>
T power_of_two(Int<T> k) {
  return from_bits<T>((k + kBias<T>)*(Int<T>{1} << kMantissa<T>));
}

// Adding it leaves the nearest integer in the low bits.
template <class T>
constexpr T kRounder = sizeof(T) == 4 ? T(0x1.8p23) : T(0x1.8p52);

// Of a number or a vector of them; there are two coefficients or more.
template <class T, int n, class X>
X polynomial(const T (&coefficients)[n], const X& x) {
  X result = x * coefficients[n - 1] + coefficients[n - 2];
#pragma GCC unroll 32
  for (int i = n - 3; i >= 0; --i) result = result * x + coefficients[i];
  return result;
}

// The upper half of the bits of x, whose square is exact.
template <class T>
T upper_half(T x) {
  constexpr Int<T> kLower = (Int<T>{1} << (kMantissa<T> + 2) / 2) - 1;
  return from_bits<T>(bits(x) & ~kLower);
}

// A number as the sum of two, the second far below the first.
template <class T>
struct Two {
  T high, low;
};

// x y without rounding.
template <class T>
Two<T> product(T x, T y) {
  T high = x * y;
  if constexpr (kHasFma) return {high, multiply_add(x, y, -high)};
  T a = upper_half(x), b = upper_half(y);
  return {high, (a * b - high) + (a * (y - b) + (x - a) * b) + (x - a) * (y - b)};
}

// x + y without rounding, where |x| >= |y| or x = 0.
template <class T>
Two<T> sum_of_ordered(T x, T y) {
  T high = x + y;
  return {high, y - (high - x)};
}

// ---- signs, roundings, order ----------------------------------------------------------------

template <class T>
T abs(T x) {
  if constexpr (is_float<T>) {
    return std::fabs(x);
  } else {
    return x < 0 ? -x : x;
  }
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
T round(T x) {  // half to even
  return std::rint(x);
}
template <class T>
T copysign(T x, T y) {
  return std::copysign(x, y);
}

template <class T>
T nextafter(T x, T y) {
  Int<T> below = -Int<T>{x < y}, positive = -Int<T>{x > 0};  // no bits or all
  Int<T> up = bits(x) + ((below ^ positive) | 1);
  T from_zero = copysign(std::numeric_limits<T>::denorm_min(), y);
  T moved = x == 0 ? from_zero : from_bits<T>(up);
  return x == y ? y : __builtin_isunordered(x, y) ? x + y : moved;
}

template <class T>
T maximum(T x, T y) {
  return (x > y) | (x != x) ? x : y;
}
template <class T>
T minimum(T x, T y) {
  return (x < y) | (x != x) ? x : y;
}
template <class T>
T clip(T x, T low, T high) {
  T raised = x < low ? low : x;
  T capped = raised > high ? high : raised;
  if constexpr (is_float<T>) {
    // All bits are set, which is a NaN, if a bound is NaN; a choice would be a jump.
    return from_bits<T>(bits(capped) | -Int<T>{__builtin_isunordered(low, high)});
  } else {
    return capped;
  }
}

// ---- integers -------------------------------------------------------------------------------

template <class T>
T invert(T x) {
  if constexpr (std::is_same_v<T, bool>) {
    return !x;
  } else {
    return ~x;
  }
}

// Shifts by any count; a right shift fills with the sign.
template <class T>
T shift_left(T x, T y) {
  using Unsigned = std::make_unsigned_t<T>;
  constexpr int kBits = 8 * sizeof(T);
  T shifted;
  if constexpr (sizeof(T) >= 4) {
    shifted = static_cast<T>(static_cast<Unsigned>(x) << (y & (kBits - 1)));
  } else {  // a product of vectors, where these have no shifts by different counts
    shifted = static_cast<T>(static_cast<Unsigned>(x) * (Unsigned{1} << (y & (kBits - 1))));
  }
  return static_cast<Unsigned>(y) < kBits ? shifted : 0;
}
template <class T>
T shift_right(T x, T y) {
  using Unsigned = std::make_unsigned_t<T>;
  constexpr T kLast = 8 * sizeof(T) - 1;
  if constexpr (!std::is_signed_v<T>) {
    return y <= kLast ? x >> (y & kLast) : 0;
  } else {
    return x >> (static_cast<Unsigned>(y) <= static_cast<Unsigned>(kLast) ? y : kLast);
  }
}

// By squaring; a negative exponent gives the truncated quotient.
template <class T>
T integer_power(T x, T y) {
  if (y < 0) return x == 1 ? 1 : x != -1 ? 0 : y & 1 ? -1 : 1;
  T result = 1;
  for (; y != 0; y >>= 1, x *= x)
    if (y & 1) result *= x;
  return result;
}

// ---- division: rounds down, and the remainder has the divisor's sign ------------------------

// Vectors of int64 become float64, and back, by instructions that AVX-512 has, or up to 2^51 in the
// low bits of numbers whose last place counts ones.
#if defined(__AVX512DQ__)
constexpr int64_t kLargestLong = int64_t{1} << 52;
inline double to_double(int64_t x) { return static_cast<double>(x); }
inline int64_t to_long(double x) { return static_cast<int64_t>(x); }
#else
constexpr int64_t kLargestLong = int64_t{1} << 51;
inline double to_double(int64_t x) {
  return from_bits<double>(x + bits(kRounder<double>)) - kRounder<double>;
}
inline int64_t to_long(double x) { return bits(x + kRounder<double>) - bits(kRounder<double>); }
#endif
#if defined(__AVX2__)  // which rounds vectors down
constexpr bool kDividesLongs = true;
#else
constexpr bool kDividesLongs = false;
#endif
template <class T>
constexpr bool divides_longs = kDividesLongs && std::is_same_v<T, int64_t>;

// x // 0 is 0, and the smallest integer // -1 itself. The quotient of two integers is at least
// 1/y away from the next integer, which a floating-point number of twice their bits resolves; that
// of two int64 up to kLargestLong a float64.
template <class T, bool by_float = sizeof(T) < 8 || divides_longs<T>>
T integer_floor_divide(T x, T y) {
  T divisor = y == 0 || (std::is_signed_v<T> && y == static_cast<T>(-1)) ? 1 : y;
  T quotient;
  if constexpr (by_float && sizeof(T) == 8) {
    quotient = to_long(std::floor(to_double(x) / to_double(divisor)));
  } else if constexpr (by_float) {
    using Float = std::conditional_t<sizeof(T) == 4, double, float>;
    quotient = static_cast<T>(std::floor(static_cast<Float>(x) / static_cast<Float>(divisor)));
  } else {
    T rest = x % divisor;
    quotient = x / divisor - (rest != 0 && (rest < 0) != (y < 0));
  }
  return y == 0 ? 0 : divisor == y ? quotient : -x;
}

inline bool is_rare_quotient(int64_t x, int64_t y) {
  constexpr uint64_t kEnd = kLargestLong;
  return (static_cast<uint64_t>(x) + kEnd > 2 * kEnd) |
         (static_cast<uint64_t>(y) + kEnd > 2 * kEnd);
}
inline int64_t exact_floor_divide(int64_t x, int64_t y) {
  return integer_floor_divide<int64_t, false>(x, y);
}
inline int64_t exact_remainder(int64_t x, int64_t y) {
  return y == 0 ? 0 : x - exact_floor_divide(x, y) * y;
}

// Floats, exactly: slow. Up to 2^29 float64 resolves a quotient of float32 and holds quotient * y.
template <class T>
bool resolves_in_float64(T x, T y) {
  return sizeof(T) == 4 && abs(x) < T(0x1p29) * abs(y) && abs(y) != kInfinity<T>;
}
template <class T>
T exact_remainder(T x, T y) {
  T rest = std::fmod(x, y);
  if (rest == 0) return copysign(T(0), y);
  return (y < 0) != (rest < 0) ? rest + y : rest;
}
template <class T>
T exact_floor_divide(T x, T y) {
  if (resolves_in_float64(x, y)) return static_cast<T>(std::floor(double{x} / double{y}));
  if (y == 0 || abs(x) == kInfinity<T> || abs(y) == kInfinity<T>) return std::floor(x / y);
  T rest = std::fmod(x, y);
  T quotient = (x - rest) / y;
  if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;
  T whole = std::floor(quotient);  // but for rounding, `quotient` is whole
  if (quotient - whole > T(0.5)) whole += 1;
  return whole == 0 ? copysign(T(0), x / y) : whole;
}

// Up to this quotient divide_down is right: with a fused multiply-add, as long as quotients can
// have a fraction.
template <class T>
constexpr T kLargestQuotient = kHasFma          ? T(Int<T>{1} << kMantissa<T>)
                               : sizeof(T) == 4 ? T(0x1p29)
                                                : 0;

// A power of two times y is exact or infinite, and costs less than x / y.
template <class T>
bool is_rare_quotient(T x, T y) {
  return !(abs(x) < kLargestQuotient<T> * abs(y)) | (abs(y) == kInfinity<T>);
}

template <class T>
struct Division {
  T quotient, rest;
};

template <class T>
auto divide_down(T x, T y) {
  if constexpr (!kHasFma) {
    double quotient = std::floor(double{x} / double{y});
    return Division<double>{quotient, x - quotient * y};
  } else {
    T quotient = std::floor(x / y), rest = multiply_add(-quotient, y, x);
    bool above = rest != 0 && (rest < 0) != (y < 0);  // x / y was rounded up to a whole number
    return Division<T>{above ? quotient - 1 : quotient, above ? rest + y : rest};
  }
}

template <class T>
T floor_divide(T x, T y) {
  if constexpr (is_float<T>) {
    return static_cast<T>(divide_down(x, y).quotient);
  } else {
    return integer_floor_divide(x, y);
  }
}

template <class T>
T remainder(T x, T y) {
  if constexpr (is_float<T>) {
    T rest = static_cast<T>(divide_down(x, y).rest);
    return rest == 0 ? copysign(T(0), y) : rest;
  } else {
    return y == 0 ? 0 : x - integer_floor_divide(x, y) * y;
  }
}

}  // namespace needle::NEEDLE_ISA::math
