// Exponentials, logarithms and functions made of them.
#pragma once
#include "vector_basic.h"

namespace needle::NEEDLE_ISA::math {

template <class T>
struct Exponential;

template <>
struct Exponential<float> {
  static constexpr float kLow = -104, kHigh = 90;  // 0 and infinity beyond
  static constexpr float kLn2High = 0x1.63p-1f, kLn2Low = -0x1.bd0106p-13f;
  // (exp(r) - 1 - r) / r^2 and (2^r - 1) / r
  static constexpr float kExp[] = {0.49999994f, 0.166665196f, 0.0416684039f, 0.00836889818f,
                                   0.00138142519f};
  static constexpr float kExp2[] = {0.693147182f,   0.240226477f,   0.0555033199f,
                                    0.00961843971f, 0.00133991323f, 0.000153531641f};
  // (log(1 + f) - f + f^2 / 2) / f^3
  static constexpr float kLog[] = {0.333333135f,  -0.250000089f, 0.200021237f,
                                   -0.166680053f, 0.142194554f,  -0.124053411f,
                                   0.118886873f,  -0.116774961f, 0.0674771741f};
  // (sinh(x) - x) / x^3, of x^2, up to kSinhSplit
  static constexpr float kSinh[] = {0.16666664f, 0.008333469f, 0.0001982007f, 2.8818206e-06f};
};

template <>
struct Exponential<double> {
  static constexpr double kLow = -746, kHigh = 711;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kExp[] = {
      0.5000000000000011,     0.16666666666666405,    0.041666666666527366,   0.008333333333497736,
      0.0013888888944470885,  0.00019841269501491733, 2.4801492134505306e-05, 2.755758905989299e-06,
      2.7630621459723615e-07, 2.4999810702188528e-08};
  static constexpr double kExp2[] = {
      0.6931471805599453,     0.24022650695910133,    0.05550410866482006,    0.00961812910759357,
      0.0013333558146780093,  0.00015403530457874936, 1.5252733489455159e-05, 1.321543487155739e-06,
      1.0178200458827259e-07, 7.073858438902141e-09,  4.434730853956467e-10};
  // (2 atanh(s) - 2 s) / s^3, of s^2
  static constexpr double kLog[] = {0.6666666666666734,  0.39999999999415253, 0.2857142874229011,
                                    0.22222198580136143, 0.18183564117801285, 0.1531405211326763,
                                    0.1479597037844422};
  static constexpr double kSinh[] = {0.16666666666666666,    0.00833333333333346,
                                     0.00019841269841211167, 2.755731923704123e-06,
                                     2.5052106792451903e-08, 1.6059155925682742e-10,
                                     7.642649067498029e-13,  2.9074460560875488e-15};
};

template <class T>
constexpr T kLn2 = T(0.693147180559945309417);
template <class T>
constexpr T kLog2E = T(1.44269504088896340736);

// ---- exponentials -----------------------------------------------------------------------------

// exp(x) = 2^k (1 + rest), |rest| < 0.42.
template <class T>
struct Reduced {
  Int<T> k;
  T rest;
};

template <class T>
Reduced<T> reduce_exp(T x) {
  using E = Exponential<T>;
  T shifted = x * kLog2E<T> + kRounder<T>;
  T n = shifted - kRounder<T>;
  T r = x - n * E::kLn2High - n * E::kLn2Low;
  return {bits(shifted) - bits(kRounder<T>), r * r * polynomial(E::kExp, r) + r};
}

// exp(high + low); low is the part that rounding high + low would lose.
template <class T>
Reduced<T> reduce_exp(T high, T low) {
  using E = Exponential<T>;
  T shifted = (high + low) * kLog2E<T> + kRounder<T>;
  T n = shifted - kRounder<T>;
  T r = (high - n * E::kLn2High) + (low - n * E::kLn2Low);
  return {bits(shifted) - bits(kRounder<T>), r * r * polynomial(E::kExp, r) + r};
}

// x 2^k where 2^k may be beyond the normal numbers.
template <class T>
T scale(T x, Int<T> k) {
  Int<T> half = k >> 1;
  return x * power_of_two<T>(half) * power_of_two<T>(k - half);
}

// x 2^k where both x and that are normal numbers.
template <class T>
T times_power_of_two(T x, Int<T> k) {
  return from_bits<T>(bits(x) + k * (Int<T>{1} << kMantissa<T>));
}

template <class T>
T clamp_exponent(T x) {
  x = x < Exponential<T>::kLow ? Exponential<T>::kLow : x;
  return x > Exponential<T>::kHigh ? Exponential<T>::kHigh : x;
}

template <class T>
T exp(T x) {
  Reduced<T> e = reduce_exp(clamp_exponent(x));
  return scale(1 + e.rest, e.k);
}

// Results that may be subnormal are computed 2^kLift times as large and scaled last, so that they
// are rounded to few bits only once.
template <class T>
constexpr Int<T> kLift = sizeof(T) == 4 ? 64 : 512;
template <class T>
T lower(T x) {
  return x * power_of_two<T>(-kLift<T>);
}

// factor exp(x), lifted, where x <= 0 was reduced.
template <class T>
T lifted_exp(Reduced<T> x, T factor) {
  return (factor + factor * x.rest) * power_of_two<T>(x.k + kLift<T>);
}

// exp(high + low) for arguments up to 0, a little cheaper.
template <class T>
T exp_of_negative(T high, T low) {
  high = high < Exponential<T>::kLow ? Exponential<T>::kLow : high;
  return lower(lifted_exp(reduce_exp(high, low), T(1)));
}

// exp(x) where |x| <= kExpUsual: 2^k is a normal number, and so is the result. The same bits as exp
// with fewer instructions.
template <class T>
constexpr T kExpUsual = sizeof(T) == 4 ? 87 : 708;
template <class T>
T usual_exp(T x) {
  Reduced<T> e = reduce_exp(x);
  return times_power_of_two(1 + e.rest, e.k);
}

template <class T>
T half_exp(T x) {  // exp(x) / 2 for x >= 0, without overflow before the end
  Reduced<T> e = reduce_exp(x > Exponential<T>::kHigh ? Exponential<T>::kHigh : x);
  return scale(1 + e.rest, e.k - 1);
}

template <class T>
constexpr T kExp2Usual = kBias<T> - 1;
template <class T>
T usual_exp2(T x) {
  T shifted = x + kRounder<T>;
  T r = x - (shifted - kRounder<T>);
  T power = 1 + r * polynomial(Exponential<T>::kExp2, r);
  return times_power_of_two(power, bits(shifted) - bits(kRounder<T>));
}

template <class T>
T exp2(T x) {
  constexpr T kLow = kMantissa<T> == 23 ? -151 : -1076, kHigh = kBias<T> + 2;
  x = x < kLow ? kLow : x;
  x = x > kHigh ? kHigh : x;
  T shifted = x + kRounder<T>;
  T r = x - (shifted - kRounder<T>);
  return scale(1 + r * polynomial(Exponential<T>::kExp2, r), bits(shifted) - bits(kRounder<T>));
}

template <class T>
T expm1(T x) {
  constexpr T kLow = -2 * (kMantissa<T> + 1);  // -1 below
  constexpr T kHigh = (kBias<T> + 1.1) * kLn2<T>;
  T clamped = x < kLow ? kLow : x > kHigh ? kHigh : x;
  Reduced<T> e = reduce_exp(clamped);
  T half = power_of_two<T>(e.k - 1);  // 2^k itself may be infinite
  T result = (e.rest * half + (half - T(0.5))) * 2;
  return x == 0 ? x : e.k == 0 ? e.rest : result;  // keeps -0
}

constexpr double kSigmoidEnd[] = {112, 760};  // even x exp(-end) is 0: float, double
template <class T>
T cut_exponent(T x) {
  constexpr T kEnd = T(kSigmoidEnd[sizeof(T) == 8]);
  return abs(x) > kEnd ? kEnd : abs(x);
}

// x / (1 + exp(-|z|)), or x exp(-|z|) / (1 + exp(-|z|)) if x < 0, where -|z| is reduced.
// Dividing by 2^kLift + 2^kLift exp(z) rounds subnormal results once. Where the exponential is
// rounded twice, what the sum loses is not.
template <class T>
T over_one_plus(T x, Reduced<T> e) {
  Two<T> sum = sum_of_ordered(power_of_two<T>(kLift<T>), lifted_exp(e, T(1)));
  T quotient = (x < 0 ? lifted_exp(e, x) : x) / (x < 0 ? sum.high : lower(sum.high));
  T corrected = quotient - quotient * lower(sum.low);
  return (x < 0) & (corrected != 0) ? corrected : quotient;  // keeps -0
}

// x / (1 + exp(-z)) where z = high + low has the sign of x.
template <class T>
T times_sigmoid(T x, T high, T low) {
  return over_one_plus(x, reduce_exp(-cut_exponent(high), high < 0 ? low : -low));
}

template <class T>
T sigmoid(T x) {
  T size = abs(x) > -Exponential<T>::kLow ? -Exponential<T>::kLow : abs(x);
  T lifted = lifted_exp(reduce_exp(-size), T(1)), one = power_of_two<T>(kLift<T>);
  Two<T> sum = sum_of_ordered(one, lifted);
  T quotient = (x < 0 ? lifted : one) / sum.high;
  return quotient - quotient * lower(sum.low);
}

// x / (1 + exp(-x)), both sides of the quotient's line times 2^-kLift: the sum keeps its bits where
// exp would be infinite, and results below the normal numbers are rounded once.
template <class T>
T silu(T x) {
  using E = Exponential<T>;
  constexpr T kEnd = T(kSigmoidEnd[sizeof(T) == 8]),
              kOne = sizeof(T) == 4 ? 20 : 40;  // x from here
  constexpr T kRounded = kRounder<T> - kLift<T>;
  T t = x < -kEnd ? -kEnd : x > kOne ? kOne : x;
  T shifted = kRounded - t * kLog2E<T>, n = shifted - kRounded;
  T r = (-t - n * E::kLn2High) - n * E::kLn2Low;
  T m = (polynomial(E::kExp, r) * r + 1) * r + 1;  // exp(-t) / 2^n
  T power = from_bits<T>(bits(m) + bits(shifted) * (Int<T>{1} << kMantissa<T>));
  T least = x < -1000 ? -1000 : x;  // not infinity through infinity
  T quotient = lower(least / (power + power_of_two<T>(-kLift<T>)));
  return x > kOne ? x : quotient;
}

// s + x s (1 - s) z', where s = sigmoid(z), without a difference: the derivative of x sigmoid(z).
template <class T>
T gated_slope(T x, T z, T z_slope) {
  T size = -abs(z) < Exponential<T>::kLow ? Exponential<T>::kLow : -abs(z);
  T e = lower(lifted_exp(reduce_exp(size), T(1))), part = 1 / (1 + e);
  return (z < 0 ? e * part : part) + x * (e * part * part) * z_slope;
}

template <class T>
T silu_slope(T x) {  // not infinity times 0
  T t = x < -1000 ? -1000 : x > 1000 ? 1000 : x;
  return gated_slope(t, t, T(1));
}

template <class T>
T tanh(T x) {
  constexpr T kEnd = sizeof(T) == 4 ? 10 : 20;  // 1 beyond
  T t = abs(x) > kEnd ? kEnd : abs(x);
  Reduced<T> e = reduce_exp(-2 * t);
  T power = power_of_two<T>(e.k);
  T decrease = e.rest * power + (power - 1);  // exp(-2 t) - 1
  return copysign(decrease / (2 + decrease), x);
}

// Just below a result of 2 the first exponential has units twice as large as those of the result:
// the polynomial serves up to there.
constexpr double kSinhSplit = 1.45;

template <class T>
T sinh(T x) {
  T e = half_exp(abs(x));
  T square = x * x;
  T small = x + x * square * polynomial(Exponential<T>::kSinh, square);
  return abs(x) < T(kSinhSplit) ? small : copysign(e - T(0.25) / e, x);
}

template <class T>
T cosh(T x) {
  T e = half_exp(abs(x));
  return e + T(0.25) / e;
}

// ---- logarithms -------------------------------------------------------------------------------

// x = 2^k m with m in [sqrt(1/2), sqrt(2)).
template <class T>
struct Parts {
  T k, m;
};

template <class T>
Parts<T> split_normal(T x) {
  constexpr T kRootHalf = T(0.707106781186547524401);
  constexpr Int<T> kMask = (Int<T>{1} << kMantissa<T>)-1;
  Int<T> offset = bits(x) - bits(kRootHalf);
  T k = static_cast<T>(static_cast<int32_t>(offset >> kMantissa<T>));
  return {k, from_bits<T>((offset & kMask) + bits(kRootHalf))};
}

template <class T>
Parts<T> split(T x) {
  constexpr T kLift = T(Int<T>{1} << kMantissa<T>);
  bool subnormal = x < std::numeric_limits<T>::min();
  Parts<T> p = split_normal(subnormal ? x * kLift : x);
  return {subnormal ? p.k - kMantissa<T> : p.k, p.m};
}

// log(1 + f) - f
template <class T>
T log1p_rest(T f) {
  if constexpr (sizeof(T) == 4) {
    return f * f * (f * polynomial(Exponential<T>::kLog, f) - T(0.5));
  } else {
    T s = f / (2 + f), square = s * s, half = T(0.5) * f * f;
    return s * (half + square * polynomial(Exponential<T>::kLog, square)) - half;
  }
}

// Puts the values at and beyond the ends of the domain of log around `inside`.
template <class T>
T log_ends(T x, T inside) {
  T outside = x == 0 ? -kInfinity<T> : x > 0 ? x : kNan<T>;
  return (x > 0) & (x < kInfinity<T>) ? inside : outside;
}

// Logarithms of 2^k m. Normal positive numbers need nothing else, which saves instructions.
template <class T>
T log_of(Parts<T> p) {
  using E = Exponential<T>;
  T f = p.m - 1;
  return p.k * E::kLn2High + (f + (log1p_rest(f) + p.k * E::kLn2Low));
}

template <class T>
T log2_of(Parts<T> p) {
  constexpr T kRest = T(1.44269504088896340736 - 1);
  T f = p.m - 1, rest = log1p_rest(f);
  T low = rest * kLog2E<T> + f * kRest;  // f log2(e) = f + f (log2(e) - 1)
  return p.k + (f + low);
}

template <class T>
T log10_of(Parts<T> p) {
  constexpr T kLog10E = T(0.434294481903251827651);
  constexpr T kHigh = sizeof(T) == 4 ? T(0x1.344p-2) : T(0x1.34413509f6p-2);
  constexpr T kLow = sizeof(T) == 4 ? T(0x1.3509f8p-18) : T(0x1.9fef311f12b36p-42);
  T f = p.m - 1, rest = log1p_rest(f);
  return p.k * kHigh + (f * kLog10E + (rest * kLog10E + p.k * kLow));
}

template <class T>
T log(T x) {
  return log_ends(x, log_of(split(x)));
}
template <class T>
T log2(T x) {
  return log_ends(x, log2_of(split(x)));
}
template <class T>
T log10(T x) {
  return log_ends(x, log10_of(split(x)));
}

// Is x positive, and neither subnormal nor infinite?
template <class T>
bool is_normal(T x) {
  return (x >= std::numeric_limits<T>::min()) & (x < kInfinity<T>);
}

// 2^k (1 + f + low)
template <class T>
struct Sum {
  T k, f, low;
};

// high + low, where low is the rounding error of the normal number `high`.
template <class T>
Sum<T> split_sum(T high, T low) {
  constexpr T kFar = 2 * kMantissa<T>;  // from 2^kFar on `low` is too small to matter
  Parts<T> p = split_normal(high);
  T shrink = power_of_two<T>(static_cast<int32_t>(p.k < kFar ? -p.k : -kFar));  // 2^-k
  return {p.k, p.m - 1, low * shrink};
}

template <class T>
T log1p(T x) {
  using E = Exponential<T>;
  T u = 1 + x;
  T lost = abs(x) < 1 ? x - (u - 1) : 1 - (u - x);  // 1 + x = u + lost
  Sum<T> p = split_sum(u, lost);                    // 1 + x is 0 or normal
  T f = p.f + p.low;
  T inside = p.k * E::kLn2High + (f + (log1p_rest(f) + p.k * E::kLn2Low));
  return x == 0 ? x : log_ends(u, inside);  // keeps -0
}

// log(1 + t) for t in [0, 1]
template <class T>
T log1p_of_fraction(T t) {
  using E = Exponential<T>;
  bool large = t > T(0.414213562373095);
  T f = large ? T(0.5) * (t - 1) : t;  // 1 + t = 2 (1 + f)
  T k = large ? 1 : 0;
  return k * E::kLn2High + (f + (log1p_rest(f) + k * E::kLn2Low));
}

// log(1 + exp(x))
template <class T>
T softplus(T x) {
  return (x > 0 ? x : 0) + log1p_of_fraction(exp_of_negative(-abs(x), T(0)));
}

// log(exp(x) + exp(y))
template <class T>
T logaddexp(T x, T y) {
  T difference = x == y ? 0 : abs(x - y);  // equal infinities
  return (x > y ? x : y) + log1p_of_fraction(exp_of_negative(-difference, T(0)));
}

// From here on sqrt(x^2 + 1) = x; the square is far from infinity.
template <class T>
constexpr T kHuge = sizeof(T) == 4 ? T(0x1p28) : T(0x1p57);

template <class T>
T asinh(T x) {
  T t = abs(x);
  bool large = t > kHuge<T>;
  T value = log1p(large ? t : t + t * t / (1 + sqrt(t * t + 1)));
  return copysign(large ? value + kLn2<T> : value, x);
}

template <class T>
T acosh(T x) {  // log(x + root), with all that its sum loses
  using E = Exponential<T>;
  T t = x - 1, root = sqrt(2 * t + t * t), sum = x + root;
  bool large = x > kHuge<T>;
  Sum<T> p = split_sum(large ? x : sum, large ? 0 : root - (sum - x));
  Two<T> f = sum_of_ordered(p.f, p.low);
  T k = large ? p.k + 1 : p.k;
  T low = log1p_rest(f.high) + f.low + k * E::kLn2Low;
  T value = k * E::kLn2High + (f.high + low);
  return x < 1 ? kNan<T> : log_ends(x, value);
}

template <class T>
T atanh(T x) {
  T t = abs(x);
  return copysign(T(0.5) * log1p(2 * t / (1 - t)), x);
}

}  // namespace needle::NEEDLE_ISA::math
