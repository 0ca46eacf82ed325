// The error function, GELU, powers and lengths.
#pragma once
#include "vector_exponential.h"

namespace needle::NEEDLE_ISA::math {

template <class T>
struct Special;

template <>
struct Special<float> {
  static constexpr float kErfcEnd = 10.1f;  // 0 beyond
  // erf(x) / x - 1, of x^2
  static constexpr float kErf[] = {0.128379166f,   -0.37612626f,     0.112835854f, -0.026853811f,
                                   0.00518832728f, -0.000801018905f, 7.853844e-05f};
  // log(erfc(t) / u) + t^2 where u = 2 / (2 + t), of 1 - 2 u
  static constexpr float kErfc[] = {-0.671794057f,    -0.672643185f,   0.0473427363f,
                                    0.0468950011f,    -0.009863819f,   -0.00881546922f,
                                    0.00171121513f,   0.00228528003f,  -4.78572074e-05f,
                                    -0.000507490186f, -0.000134080037f};
};

template <>
struct Special<double> {
  static constexpr double kErfcEnd = 27.3;
  static constexpr double kErf[] = {
      0.1283791670955126,      -0.3761263890318375,     0.11283791670954857,
      -0.026866170645072893,   0.005223977624780835,    -0.0008548326978740568,
      0.00012055331036846668,  -1.4925593505766364e-05, 1.6460972801190717e-06,
      -1.6350025076223882e-07, 1.4657878989888879e-08,  -1.1365663136628493e-09,
      5.945257693941542e-11};
  static constexpr double kErfc[] = {
      -0.6717940840566923,     -0.6726432239776569,     0.047343306841902404,
      0.04689561023119218,     -0.009872689366250393,   -0.008824938557722713,
      0.001758933553980284,    0.002345812512337666,    -0.0001462468085558403,
      -0.000673678912329045,   -9.373550375597457e-05,  0.00017430364126521633,
      7.140364983164201e-05,   -3.174777925096751e-05,  -3.0197802491718824e-05,
      -1.3159337484101712e-07, 8.588317060670548e-06,   2.9395060362481686e-06,
      -1.3182338283262759e-06, -1.2454361232041492e-06, -1.1285872723944424e-07,
      2.543655305531917e-07,   1.0970444477724293e-07,  -1.1814775463714018e-08,
      -1.9181487601150835e-08, -3.929698351153186e-09};
};

// erfc(t) for t >= 0, where t^2 = -high - low; high carries few bits, so that it is exact.
template <class T>
T erfc_positive(T t, T high, T low) {
  T u = 2 / (2 + t);
  return u * exp_of_negative(high, low + polynomial(Special<T>::kErfc, 1 - 2 * u));
}

// The upper half of the bits of x, whose square is exact.
template <class T>
T upper_half(T x) {
  constexpr Int<T> kLower = (Int<T>{1} << (kMantissa<T> + 2) / 2) - 1;
  return from_bits<T>(bits(x) & ~kLower);
}

template <class T>
T erf(T x) {
  T square = x * x;
  T small = x + x * polynomial(Special<T>::kErf, square);
  T t = abs(x) > Special<T>::kErfcEnd ? Special<T>::kErfcEnd : abs(x);
  return abs(x) < 1 ? small : copysign(1 - erfc_positive(t, -t * t, T(0)), x);
}

// x Phi(x) = x erfc(-x / sqrt(2)) / 2
template <class T>
T gelu(T x) {
  constexpr T kRootHalf = T(0.707106781186547524401), kEnd = Special<T>::kErfcEnd / kRootHalf;
  T t = abs(x) > kEnd ? kEnd : abs(x);
  T upper = upper_half(t);
  T tail =
      erfc_positive(t * kRootHalf, T(-0.5) * upper * upper, T(-0.5) * (t - upper) * (t + upper));
  tail *= T(0.5) * t;
  return x < 0 ? -tail : x - tail;
}

template <class T>
T gelu_tanh(T x) {
  constexpr T kScale = T(1.5957691216057308);  // 2 sqrt(2 / pi)
  return x * sigmoid(kScale * (x + T(0.044715) * x * x * x));
}

// float32 powers by way of float64: 2^(y log2(|x|)).
inline double log2_of_positive(double x) {
  constexpr double kAtanh[] = {2.885390081777859, 0.9617966941075713, 0.5770779434334171,
                               0.412209171803241, 0.3199083502563668, 0.2828684388405676};
  Parts<double> p = split(x);
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
