// The error function, GELU, powers and lengths.
#pragma once
#include "vector_exponential.h"

namespace needle::NEEDLE_ISA::math {

template <class T>
struct Special;

template <>
struct Special<float> {
  // -log(erfc(t)) / t - 1, up to 4
  static constexpr float kErf[] = {0.128379166f,     0.636619389f,     0.102777831f,
                                   -0.0191530641f,   -0.000160396303f, 0.00166702771f,
                                   -0.000632837007f, 0.000117641321f,  -9.25627046e-06f};
  // Phi(-t) exp(t^2 / 2) / (u kTailScale) where u = 1 / (1 + kTailScale t), of u - kTailCentre; Phi
  // is the distribution function of the normal distribution, and t Phi(-t) is 0 from kTailEnd on
  static constexpr float kTailEnd = 14.6f, kTailScale = 0.2125f, kTailCentre = 0.625f;
  static constexpr float kTail[] = {0.96288389f, 1.89363647f,   2.93941426f,
                                    3.55926538f, 3.22513628f,   1.94401133f,
                                    0.43754527f, -0.385311067f, -0.299013495f};
};

template <>
struct Special<double> {
  // erf(x) / x - 1, of x^2
  static constexpr double kErf[] = {
      0.1283791670955126,      -0.3761263890318375,     0.11283791670954857,
      -0.026866170645072893,   0.005223977624780835,    -0.0008548326978740568,
      0.00012055331036846668,  -1.4925593505766364e-05, 1.6460972801190717e-06,
      -1.6350025076223882e-07, 1.4657878989888879e-08,  -1.1365663136628493e-09,
      5.945257693941542e-11};
  static constexpr double kTailEnd = 39, kTailScale = 0.25, kTailCentre = 0.5625;
  static constexpr double kTail[] = {
      0.8377004943765662,   1.4278091535135178,    1.851515102895587,      1.741989925710424,
      1.0269651008353327,   0.1413415966420524,    -0.3079035194588821,    -0.17545053367641542,
      0.09752767082564678,  0.10229361427333865,   -0.04753836493088543,   -0.056525522494961705,
      0.035543747985478276, 0.02872500417965895,   -0.03105907952289161,   -0.009452840163890903,
      0.025800888460534566, -0.004428854870111982, -0.017856733072846014,  0.012416825546470516,
      0.008965158775365214, -0.012803331886633192, -0.0029380148618761773, 0.006331240230833115,
      0.0009391918854855198};
};

// Coefficients of (exp(-q / 2) - 1 + q / 2) / q^2.
template <class T>
struct HalfExponential {
  static constexpr int kTerms = sizeof(Exponential<T>::kExp) / sizeof(T);
  T coefficients[kTerms];
  constexpr HalfExponential() : coefficients() {
    T scale = T(0.25);
    for (int i = 0; i < kTerms; ++i, scale *= T(-0.5))
      coefficients[i] = Exponential<T>::kExp[i] * scale;
  }
};

// exp(-t^2 / 2) for 0 <= t, reduced. The square has twice the bits of t, and all of them count.
// With a fused multiply-add t^2 itself is reduced.
template <class T>
Reduced<T> reduce_gaussian(T t) {
  using E = Exponential<T>;
  if constexpr (kHasFma) {
    T shifted = t * t * (T(-0.5) * kLog2E<T>)+kRounder<T>;
    T n = shifted - kRounder<T>;
    T q = multiply_add(t, t, n * (2 * E::kLn2High)) + n * (2 * E::kLn2Low);
    constexpr HalfExponential<T> kHalf;
    T rest = q * (q * polynomial(kHalf.coefficients, q) - T(0.5));
    return {bits(shifted) - bits(kRounder<T>), rest};
  }
  T upper = upper_half(t);
  return reduce_exp(T(-0.5) * upper * upper, T(-0.5) * (t - upper) * (t + upper));
}

// t Phi(-t) exp(t^2 / 2) for t >= 0. What the polynomial takes is u - kTailCentre, but the rounding
// of u near 1 would be many units in the last place of t. Without fused multiply-adds so much is
// rounded elsewhere that the largest roundings here are kept.
template <class T>
Two<T> scaled_tail(T t) {
  using S = Special<T>;
  constexpr T kOffset = 1 / S::kTailScale;
  T rest = t / (kOffset + t);  // 1 - u
  if constexpr (kHasFma) return {rest * polynomial(S::kTail, (1 - S::kTailCentre) - rest), 0};
  Two<T> sum = sum_of_ordered(t > kOffset ? t : kOffset, t > kOffset ? kOffset : t);
  rest -= rest * (sum.low * (S::kTailScale - S::kTailScale * rest));
  return product(rest, polynomial(S::kTail, (1 - S::kTailCentre) - rest));
}

template <class T>
T gelu(T x) {  // x Phi(x) = x - x Phi(-x)
  T t = abs(x) > Special<T>::kTailEnd ? Special<T>::kTailEnd : abs(x);
  Two<T> tail = scaled_tail(t);
  Reduced<T> e = reduce_gaussian(t);
  T lifted = (tail.high + (tail.high * e.rest + tail.low)) * power_of_two<T>(e.k + kLift<T>);
  return (x < T(-0.0) ? T(-0.0) : x) - lower(lifted);
}

// 1 - exp(-t - t p(t)). Near 0 what rounding the exponent loses would be a unit of the result.
inline float erf(float x) {
  using S = Special<float>;
  using E = Exponential<float>;
  constexpr float kBiased = kRounder<float> + kBias<float>;  // the last bits are 2^n's exponent
  float t = abs(x) > 4 ? 4 : abs(x), p = polynomial(S::kErf, t);
  float z = multiply_add(-t, p, -t), lost = multiply_add(-t, p, -t - z);
  float shifted = z * kLog2E<float> + kBiased, n = shifted - kBiased;
  float r = z - n * E::kLn2High - n * E::kLn2Low;
  float rest = (r * r * polynomial(E::kExp, r) + lost) + r;
  float power = from_bits<float>(bits(shifted) << kMantissa<float>);
  return copysign((1 - power) - rest * power, x);
}

inline double erf(double x) {
  constexpr double kRootTwo = 1.41421356237309504880;
  double square = x * x, small = x + x * polynomial(Special<double>::kErf, square);
  double t = abs(x) > 6 ? 6 : abs(x);  // erf(t) = 1 - 2 Phi(-sqrt(2) t)
  double rest = kRootTwo * scaled_tail(kRootTwo * t).high / t * exp_of_negative(-t * t, 0.0);
  return t < 1 ? small : copysign(1 - rest, x);
}

// 2 sqrt(2 / pi) (x + 0.044715 x^3) = x (a + b x^2) in twice the precision: where exp of it is
// small, one rounding of it would be many of the result.
template <class T>
T gelu_tanh(T x) {
  constexpr long double kA = 1.59576912160573071176L, kB = 0.044715L * kA;
  constexpr T kAHigh = T(kA), kALow = T(kA - kAHigh), kBHigh = T(kB), kBLow = T(kB - kBHigh);
  constexpr T kEnd = sizeof(T) == 4 ? 11 : 22;
  T t = x < -kEnd ? -kEnd : x > kEnd ? kEnd : x;
  Two<T> square = product(t, t), cubic = product(kBHigh, square.high);
  T cubic_low = cubic.low + (kBLow * square.high + kBHigh * square.low);
  T low_high = kAHigh > cubic.high ? cubic.high : kAHigh;
  Two<T> slope = sum_of_ordered(kAHigh > cubic.high ? kAHigh : cubic.high, low_high);
  Two<T> z = product(t, slope.high);
  T z_low = z.low + t * (slope.low + (cubic_low + kALow));
  return times_sigmoid(x < -kEnd ? -kEnd : x, z.high, z_low);
}

// Phi(x) + x Phi'(x); of -t that is (Phi(-t) exp(t^2 / 2) - t Phi'(0)) exp(-t^2 / 2).
template <class T>
T gelu_slope(T x) {
  using S = Special<T>;
  constexpr T kDensity = T(0.398942280401432677940);
  T t = abs(x) > S::kTailEnd ? S::kTailEnd : abs(x);
  T u = 1 / (1 / S::kTailScale + t);
  T tail = u * polynomial(S::kTail, (1 - S::kTailCentre) - t * u);
  T below = lower(lifted_exp(reduce_gaussian(t), tail - t * kDensity));
  return x < 0 ? below : 1 - below;
}

template <class T>
T gelu_tanh_slope(T x) {
  constexpr T kA = T(1.59576912160573071176), kB = T(0.044715);
  T t = x < -40 ? -40 : x > 40 ? 40 : x, square = t * t;
  return gated_slope(t, kA * t * (1 + kB * square), kA * (1 + 3 * kB * square));
}

// float32 powers by way of float64: 2^(y log2(|x|)). As a float64 no float32 is subnormal.
inline double log2_of_positive(float x) {
  constexpr double kAtanh[] = {2.885390081777859, 0.9617966941075713, 0.5770779434334171,
                               0.412209171803241, 0.3199083502563668, 0.2828684388405676};
  Parts<double> p = split_normal<double>(x);
  double s = (p.m - 1) / (p.m + 1);
  return p.k + s * polynomial(kAtanh, s * s);
}

inline double exp2_in_double(double x) {
  constexpr double kExp2[] = {0.9999999999610607,     0.6931471807311566,    0.24022651204185094,
                              0.05550410347294464,    0.009618026440354038,  0.0013333925451443462,
                              0.00015469553517093507, 1.5201727780037286e-05};
  x = x < -200 ? -200 : x;
  x = x > 200 ? 200 : x;
  double shifted = x + kRounder<double>;
  double k = shifted - kRounder<double>;
  int64_t exponent = bits(shifted) - bits(kRounder<double>);
  return polynomial(kExp2, x - k) * power_of_two<double>(exponent);
}

inline float power(float x, float y) {
  float t = abs(x);
  double log2 = t == 0                  ? -kInfinity<double>
                : t == kInfinity<float> ? kInfinity<double>
                                        : log2_of_positive(t);
  float size = static_cast<float>(exp2_in_double(y * log2));
  float half = 0.5f * y;
  bool whole = std::floor(y) == y, odd = whole && std::floor(half) != half;
  bool negative = copysign(1.0f, x) < 0;
  float result = negative && odd ? -size : size;
  bool undefined = x < 0 && !whole && t != kInfinity<float>;
  result = undefined ? kNan<float> : result;
  result = x != x || y != y ? x + y : result;
  return x == 1 || y == 0 || (x == -1 && abs(y) == kInfinity<float>) ? 1 : result;
}
inline double power(double x, double y) { return std::pow(x, y); }
template <class T>
T power(T x, T y) {
  return integer_power(x, y);
}

inline float hypot(float x, float y) {
  double a = x, b = y;
  float length = static_cast<float>(std::sqrt(a * a + b * b));
  return abs(x) == kInfinity<float> || abs(y) == kInfinity<float> ? kInfinity<float> : length;
}
inline double hypot(double x, double y) {
  double size = abs(x) > abs(y) ? abs(x) : abs(y);
  double shrink = size > 0x1p500 ? 0x1p-600 : size < 0x1p-400 ? 0x1p600 : 1;  // no square overflows
  double a = x * shrink, b = y * shrink;
  double length = std::sqrt(a * a + b * b) * (1 / shrink);
  bool infinite = (abs(x) == kInfinity<double>) | (abs(y) == kInfinity<double>);
  return infinite ? kInfinity<double> : length;
}

}  // namespace needle::NEEDLE_ISA::math
