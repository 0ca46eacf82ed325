// Circular functions and their inverses.
#pragma once
#include "vector_basic.h"

namespace needle::NEEDLE_ISA::math {

template <class T>
struct Trigonometric;

template <>
struct Trigonometric<float> {
  // (sin(r) - r) / r^3, (cos(r) - 1 + r^2 / 2) / r^4, (asin(x) - x) / x^3, (atan(x) - x) / x^3,
  // (tan(r) - r) / r^3, all of the square
  static constexpr float kSin[] = {-0.166666552f, 0.00833217613f, -0.000195169778f};
  static constexpr float kCos[] = {0.0416666456f, -0.0013887313f, 2.44327875e-05f};
  static constexpr float kAsin[] = {0.166667536f, 0.0749523267f, 0.0454783067f, 0.0241411775f,
                                    0.0422302336f};
  static constexpr float kAtan[] = {-0.333332986f,  0.199985489f,   -0.142642438f,
                                    0.109521925f,   -0.0840346739f, 0.0579578541f,
                                    -0.0311780814f, 0.0109147206f,  -0.00179364544f};
  static constexpr float kTan[] = {0.333331525f,  0.133389339f,   0.0533999577f,
                                   0.0244712792f, 0.00305279996f, 0.00942577235f};
};

template <>
struct Trigonometric<double> {
  static constexpr double kSin[] = {-0.16666666666666632,    0.00833333333332237,
                                    -0.00019841269829771148, 2.755731367863497e-06,
                                    -2.5050755954318748e-08, 1.5896666008223587e-10};
  static constexpr double kCos[] = {0.041666666666666595,   -0.0013888888888872978,
                                    2.4801587288800692e-05, -2.7557314164147127e-07,
                                    2.0875698728783984e-09, -1.1358424422968516e-11};
  static constexpr double kAsin[] = {
      0.16666666666666763,  0.07499999999970096,  0.044642857175288826, 0.030381942675154414,
      0.02237221590919413,  0.01735159544585417,  0.01398101912374313,  0.011397288741667197,
      0.010789342599147194, 0.003672113492678443, 0.021790800246402956, -0.021116908506861317,
      0.03270226450751917};
  static constexpr double kAtan[] = {
      -0.3333333333333307,   0.1999999999995146,   -0.14285714282575018,    0.11111111007024423,
      -0.09090907002975829,  0.07692279839258669,  -0.06666404058305994,    0.058805278240650426,
      -0.052535186146761406, 0.04722322485069411,  -0.04219179792950624,    0.03664193037026232,
      -0.02990389270090579,  0.021984899087264965, -0.013900606351779006,   0.00719653801071152,
      -0.002884937362539948, 0.000831328843594138, -0.00015216244418885544, 1.3225239505673865e-05};
};

template <class T>
constexpr T kHalfPi = T(1.57079632679489661923);
template <class T>  // the rounding error of kHalfPi
constexpr T kHalfPiLow = sizeof(T) == 4 ? T(-4.37113900018624283e-8) : T(6.12323399573676604e-17);

// x = quadrant * pi/2 + r + low, |r| <= pi/4, where low is below the rounding error of r.
template <class T>
struct Angle {
  int32_t quadrant;
  T r, low;
};

// Beyond it the reduction loses accuracy, and loops take the slow way through the C library.
template <class T>
bool is_rare_angle(T x) {
  return abs(x) > 1000000;
}

// In float64 for both types: products of a quadrant and the first parts of pi/2 are exact.
template <class T>
Angle<T> reduce_angle(T angle) {
  constexpr double kPart1 = 0x1.921fb544p0, kPart2 = 0x1.0b4611a6p-34,
                   kPart3 = 0x1.3198a2e037073p-69;
  double x = angle;
  double shifted = x * 0.63661977236758134308 + kRounder<double>;
  double n = shifted - kRounder<double>;
  double r = x - n * kPart1 - n * kPart2 - n * kPart3;
  return {static_cast<int32_t>(bits(shifted)), static_cast<T>(r), T(0)};
}

// The same in float32, where x less n times the first part is exact if rounded once. Large angles
// may be in the next quadrant: |r| <= pi/4 + 0.024. The series of sine and cosine bear that.
template <class T>
Angle<T> reduce_angle_of_sine(T x) {
  if constexpr (!kHasFma || sizeof(T) != 4) {
    return reduce_angle(x);
  } else {
    constexpr T kPart1 = 0x1.921fb6p0, kPart2 = -0x1.777a5cp-25, kPart3 = -0x1.ee59dap-50;
    T shifted = multiply_add(x, T(0.63661977236758134308), kRounder<T>);
    T n = shifted - kRounder<T>;
    T high = multiply_add(-n, kPart1, x);
    Two<T> second = product(n, kPart2);
    T r = high - second.high, lost = high - r - second.high - second.low;
    return {bits(shifted), r, multiply_add(-n, kPart3, lost)};
  }
}

template <class T>
T sin_near_zero(Angle<T> a) {
  T square = a.r * a.r;
  return a.r + (a.r * square * polynomial(Trigonometric<T>::kSin, square) + a.low);
}

template <class T>
T cos_near_zero(Angle<T> a) {
  T square = a.r * a.r;
  T half = T(0.5) * square, head = 1 - half;
  T lost = 1 - head - half - a.r * a.low;
  return head + (square * square * polynomial(Trigonometric<T>::kCos, square) + lost);
}

// The sine if `turns` is even, the cosine if it is odd, with the sign that both have there.
template <class T>
T sine_in_quadrant(int32_t turns, Angle<T> a) {
  T value = turns & 1 ? cos_near_zero(a) : sin_near_zero(a);
  return turns & 2 ? -value : value;
}

template <class T>
T sin(T x) {
  Angle<T> a = reduce_angle_of_sine(x);
  T value = sine_in_quadrant(a.quadrant, a);
  return x == 0 ? x : value;  // keeps -0
}

template <class T>
T cos(T x) {
  Angle<T> a = reduce_angle_of_sine(x);
  return sine_in_quadrant(a.quadrant + 1, a);
}

// In float32 by a polynomial: the roundings of a sine and a cosine would add up. In float64 that
// would have more terms than both of them.
template <class T>
T tan(T x) {
  Angle<T> a = reduce_angle(x);
  bool odd = a.quadrant & 1;
  T value;
  if constexpr (sizeof(T) == 4) {
    T square = a.r * a.r, t = a.r + a.r * square * polynomial(Trigonometric<T>::kTan, square);
    value = odd ? -1 / t : t;
  } else {
    T s = sin_near_zero(a), c = cos_near_zero(a);
    value = (odd ? -c : s) / (odd ? s : c);
  }
  return x == 0 ? x : value;
}

// asin(s) where z = s^2 <= 1/4.
template <class T>
T asin_near_zero(T s, T z) {
  return s + s * z * polynomial(Trigonometric<T>::kAsin, z);
}

template <class T>
T asin(T x) {
  T t = abs(x);
  bool large = t > T(0.5);  // asin(t) = pi/2 - 2 asin(sqrt((1 - t) / 2))
  T z = large ? T(0.5) * (1 - t) : t * t;
  T value = asin_near_zero(large ? sqrt(z) : t, z);
  T rest = kHalfPi<T> - 2 * value;  // exact near pi/6
  return copysign(large ? rest + kHalfPiLow<T> : value, x);
}

template <class T>
T acos(T x) {
  T t = abs(x);
  bool large = t > T(0.5);
  T z = large ? T(0.5) * (1 - t) : t * t;
  T value = asin_near_zero(large ? sqrt(z) : t, z);
  T near_one = x > 0 ? 2 * value : 2 * kHalfPi<T> - (2 * value - 2 * kHalfPiLow<T>);
  T near_zero = kHalfPi<T> - (copysign(value, x) - kHalfPiLow<T>);
  return large ? near_one : near_zero;
}

template <class T>
T atan_up_to_one(T x) {
  T square = x * x;
  return x + x * square * polynomial(Trigonometric<T>::kAtan, square);
}

template <class T>
T atan(T x) {
  T t = abs(x);
  bool large = t > 1;  // atan(t) = pi/2 + atan(-1 / t); near pi/4 the first sum is exact
  T r = large ? -1 / t : t, high = large ? kHalfPi<T> + r : r, low = large ? kHalfPiLow<T> : 0;
  T square = r * r;
  return copysign(high + (r * square * polynomial(Trigonometric<T>::kAtan, square) + low), x);
}

template <class T>
T atan2(T y, T x) {
  T a = abs(y), b = abs(x);
  bool steep = a > b;
  T low = steep ? b : a, high = steep ? a : b;
  T ratio = high == 0 ? 0 : low == high ? 1 : low / high;  // two zeros, two infinities
  T value = atan_up_to_one(ratio);
  value = steep ? kHalfPi<T> - (value - kHalfPiLow<T>) : value;
  value = copysign(T(1), x) < 0 ? 2 * kHalfPi<T> - (value - 2 * kHalfPiLow<T>) : value;
  return x != x || y != y ? x + y : copysign(value, y);
}

}  // namespace needle::NEEDLE_ISA::math
