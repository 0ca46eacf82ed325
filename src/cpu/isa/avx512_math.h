// Functions of namespace math for vectors of float32, by instructions that only AVX-512 has:
// exponent and mantissa of any number in one each, tables that lie in registers, 2^n without
// detours. Ends of domains, subnormals and NaN come out right by themselves; the portable forms
// spend a third of their instructions on them. Largest errors in units in the last place: sqrt and
// reciprocal 0.5, log 0.8, exp and log2 0.9, exp2 1.0, log1p, log10 and rsqrt 1.1, erf 1.2, expm1
// 1.4, sin, cos and atanh 1.6, silu 2.4, gelu_tanh 2.6, tan 3.0, gelu 3.2.
#pragma once
#include "isa/exponential.h"
#include "isa/lanes.h"
#include "vector_math.h"

#if defined(__AVX512F__)
namespace needle::NEEDLE_ISA::avx512 {

using Floats = Vector<float>;
using Ints = Vector<int32_t>;

inline Ints bits(const Floats& x) { return (Ints)x; }

// x with the sign of y.
inline Floats copysign(const Floats& x, const Floats& y) {
  constexpr int kSecondOrThirdByFirst = 0xca;
  const __m512i sign = _mm512_set1_epi32(std::numeric_limits<int32_t>::min());
  return (Floats)_mm512_ternarylogic_epi32(sign, (__m512i)y, (__m512i)x, kSecondOrThirdByFirst);
}

// a * b + c, rounded once. Written where accuracy depends on it; elsewhere the compiler fuses.
inline Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return _mm512_fmadd_ps(a, b, c);
}

// The last 5 bits of a number of `place` say which entry.
inline Floats entry(const float (&table)[32], const Ints& place) {
  return _mm512_permutex2var_ps(load(table), (__m512i)place, load(table + 16));
}

inline Floats exp(const Floats& x) { return exponential(x); }

inline Floats exp2(const Floats& x) {
  constexpr float kLow = -151, kHigh = 129;  // 0 below, infinite above
  const Floats t = bounded(x, kLow, kHigh), shifted = t + math::kRounder<float>;
  const Floats r = t - (shifted - math::kRounder<float>);
  return scaled(1.f + r * math::polynomial(math::Exponential<float>::kExp2, r), shifted);
}

// With e^x = 2^n (1 + rest), where |rest| < 0.42. Next to the largest number 2^n is infinite
// itself.
inline Floats expm1(const Floats& x) {
  using E = math::Exponential<float>;
  constexpr float kOne = -48, kHigh = 89, kLastPower = 88;  // -1 below, infinite above
  const Floats t = bounded(x, kOne, kHigh),
               shifted = t * math::kLog2E<float> + math::kRounder<float>;
  const Floats n = shifted - math::kRounder<float>, r = (t - n * E::kLn2High) - n * E::kLn2Low;
  const Floats rest = r * r * math::polynomial(E::kExp, r) + r, power = scaled(splat(1.f), shifted);
  Floats result = fused(rest, power, power - 1.f);
  if (__builtin_expect(_mm512_cmp_ps_mask(t, splat(kLastPower), _CMP_GT_OQ), 0)) {
    const Floats half = scaled(splat(0.5f), shifted);
    result = t > kLastPower ? fused(rest, half, half) * 2.f : result;
  }
  return copysign(result, x);  // keeps -0
}

// ---- roots and reciprocals --------------------------------------------------------------------

// Newton's steps from estimates of 14 bits, faster than square roots and divisions when operands
// are in the caches. The statements about rounding were tested for every mantissa with estimates
// all over the 14 bits, because processors estimate differently.

// c - a * b, rounded once.
inline Floats residual(const Floats& a, const Floats& b, const Floats& c) {
  return _mm512_fnmadd_ps(a, b, c);
}

inline Floats rsqrt(const Floats& x) {
  const Floats y = _mm512_rsqrt14_ps(x), e = residual(x * y, y, splat(1.f));
  const __mmask16 steps = _mm512_cmp_ps_mask(e, e, _CMP_ORD_Q);  // not where y is 0 or infinite
  return _mm512_mask3_fmadd_ps(0.5f * y, e, y, steps);
}

// Correctly rounded; scaled up where the last residual would be subnormal.
inline Floats sqrt(const Floats& x) {
  constexpr int kZerosAndInfinity = 0x100100;  // classes 2 and 5 of x are the results
  const __mmask16 tiny = _mm512_cmp_ps_mask(x, splat(0x1p-90f), _CMP_LT_OQ);
  const Floats lifted = _mm512_mask_mul_ps(x, tiny, x, splat(0x1p48f));
  const Floats y = _mm512_rsqrt14_ps(lifted), g = lifted * y, h = 0.5f * y;
  const Floats r = residual(g, h, splat(0.5f)), near = fused(g, r, g);
  const Floats root = fused(residual(near, near, lifted), fused(h, r, h), near);
  const Floats result = _mm512_mask_mul_ps(root, tiny, root, splat(0x1p-24f));
  return _mm512_fixupimm_ps(result, x, _mm512_set1_epi32(kZerosAndInfinity), 0);
}

// Correctly rounded. Divides where the estimate is not a normal number, and where the last step
// would end halfway between two numbers (P. Markstein: only mantissas whose bits are all ones).
inline Floats reciprocal(const Floats& x) {
  constexpr int kZerosInfinitiesSubnormals = 0x3e;
  const Floats y = _mm512_rcp14_ps(x), near = fused(y, residual(x, y, splat(1.f)), y);
  const Floats e = residual(x, near, splat(1.f));
  const __mmask16 rare = _mm512_fpclass_ps_mask(y, kZerosInfinitiesSubnormals);
  const __mmask16 halfway = _mm512_cmp_ps_mask(e, splat(0x1p-24f), _CMP_EQ_OQ);
  if (__builtin_expect(rare | halfway, 0)) return 1 / x;
  return fused(near, e, near);
}

// The same bits by the processor's own instructions, which keep one slow unit busy and leave the
// others to Newton's steps: with half of the vectors each, both units work at the same time.
inline Floats sqrt_by_divider(const Floats& x) { return _mm512_sqrt_ps(x); }
inline Floats reciprocal_by_divider(const Floats& x) { return 1 / x; }

// ---- logarithms -------------------------------------------------------------------------------

// x = 2^k m and 1 <= m < 2; 1 / c is a number of 7 bits near m, by its first 5 bits, and exactly
// 1 or 1/2 at the ends, so that logarithms near 0 are exact. m / c = 1 + r, |r| <= 1/32. Of
// logarithms, `high` has no bits below 2^-16: sums of it are exact.
struct LogTable {
  static constexpr int kSize = 32;
  float inverse[kSize], high[kSize], low[kSize];  // 1 / c and unit log2(c)
  float unit_high, unit_low;                      // the value of one k; unit_low >= 0

  static constexpr double head(double x) { return static_cast<int64_t>(x * 0x1p16) * 0x1p-16; }

  constexpr explicit LogTable(double unit) : inverse(), high(), low(), unit_high(), unit_low() {
    unit_high = static_cast<float>(head(unit));
    unit_low = static_cast<float>(unit - head(unit));
    for (int i = 0; i < kSize; ++i) {
      const int near = static_cast<int>(128 / (1 + (i + 0.5) / kSize) + 0.5);
      const int part = i == 0 ? 128 : i == kSize - 1 ? 64 : near;
      const double value = unit * __builtin_log2(128.0 / part);
      inverse[i] = static_cast<float>(part) / 128;
      high[i] = static_cast<float>(head(value));
      low[i] = static_cast<float>(value - head(value));
    }
  }
};

inline constexpr LogTable kLn(0.693147180559945309417), kLog2(1), kLog10(0.301029995663981195214);

// k is -infinity at 0 and infinity at infinity, m is NaN below 0.
struct Split {
  Floats k, m;
  explicit Split(const Floats& x)
      : k(_mm512_getexp_ps(x)), m(_mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan)) {}
  Ints place() const { return bits(m) >> (math::kMantissa<float> - 5); }
};

// The logarithm of 2^k c (1 + r).
template <const LogTable& table>
inline Floats log_from(const Split& x, const Floats& r, float log_e) {
  const Floats high = x.k * table.unit_high + entry(table.high, x.place());
  Floats low = entry(table.low, x.place());
  if constexpr (table.unit_low != 0) low += x.k * table.unit_low;
  // (log(1 + r) - r) / r^2
  const Floats p = (r * (-0.244650617f * log_e) + 0.333384901f * log_e) * r - 0.500001192f * log_e;
  return high + fused(r, splat(log_e), fused(r * r, p, low));
}

template <const LogTable& table>
inline Floats logarithm(const Floats& x, float log_e) {
  const Split parts(x);
  const Floats inverse = entry(table.inverse, parts.place());
  return log_from<table>(parts, fused(parts.m, inverse, splat(-1.f)), log_e);
}

inline Floats log(const Floats& x) { return logarithm<kLn>(x, 1); }
inline Floats log2(const Floats& x) { return logarithm<kLog2>(x, math::kLog2E<float>); }
inline Floats log10(const Floats& x) { return logarithm<kLog10>(x, 0.434294481903251827651f); }

// log(1 + x + rest), where |rest| is less than half a unit in the last place of x. The rounding
// error of 1 + x is added after the table has scaled it, which needs fewer instructions than the
// portable form.
inline Floats log1p_of_sum(const Floats& x, const Floats& rest) {
  constexpr int kEnds = 0x3530400;  // by class: -infinity at 0, infinity at its own, NaN below 0
  const Floats larger = _mm512_max_ps(splat(1.f), x), smaller = _mm512_min_ps(splat(1.f), x);
  const Floats sum = larger + smaller, lost = smaller - (sum - larger) + rest;
  const Split parts(sum);
  const Floats inverse = entry(kLn.inverse, parts.place());
  const Floats shrunk = _mm512_scalef_ps(lost, -parts.k);
  const Floats r = fused(shrunk, inverse, fused(parts.m, inverse, splat(-1.f)));
  return _mm512_fixupimm_ps(log_from<kLn>(parts, r, 1), sum, _mm512_set1_epi32(kEnds), 0);
}

inline Floats log1p(const Floats& x) { return copysign(log1p_of_sum(x, Floats{}), x); }

// log((1 + t) / (1 - t)) / 2 with the rounding errors of the difference and the quotient.
inline Floats atanh(const Floats& x) {
  const Floats t = _mm512_abs_ps(x), under = 1.f - t, lost = (1.f - under) - t;
  const Floats quotient = 2.f * t / under;
  const Floats rest = residual(quotient, lost, residual(quotient, under, 2.f * t));
  return copysign(0.5f * log1p_of_sum(quotient, rest), x);
}

// ---- circular functions -----------------------------------------------------------------------

// The reduction stays in float32, whose vectors hold twice as many numbers. From kFar on it loses
// accuracy.
constexpr float kFar = 32768;
inline bool is_far(float x) { return std::fabs(x) > kFar; }

// x = n pi/2 + r - n kPart3, |r| <= pi/4. The first difference is exact, because all bits of n
// times the first part are above the last of x; the last part is felt where r is small.
struct NearAngle {
  static constexpr float kPart1 = 0x1.921fb4p0f, kPart2 = 0x1.4442dp-24f, kPart3 = 0x1.846988p-48f;
  Ints quadrant;
  Floats n, r;
};

inline NearAngle reduce_angle(const Floats& x) {
  const Floats shifted = x * 0.636619772367581343076f + math::kRounder<float>;
  const Floats n = shifted - math::kRounder<float>;
  const Floats first = fused(n, splat(-NearAngle::kPart1), x);
  return {bits(shifted), n, fused(n, splat(-NearAngle::kPart2), first)};
}

inline __mmask16 is_odd(const Ints& quadrant) {
  return _mm512_test_epi32_mask((__m512i)quadrant, _mm512_set1_epi32(1));
}

inline Floats sine_in_quadrant(const Ints& quadrant, const Floats& near_zero,
                               const Floats& cosine) {
  const Floats value = _mm512_mask_mov_ps(near_zero, is_odd(quadrant), cosine);
  return (Floats)(bits(value) ^ ((quadrant & 2) << 30));
}

// sin(r - n kPart3) - r
inline Floats sine_rest(const NearAngle& a, const Floats& square) {
  const Floats cubic = a.r * square * math::polynomial(math::Trigonometric<float>::kSin, square);
  return cubic - a.n * NearAngle::kPart3;
}

inline Floats cos_near_zero(const Floats& square) {
  return (square * math::polynomial(math::Trigonometric<float>::kCos, square) - 0.5f) * square + 1;
}

inline Floats sin(const Floats& x) {
  const NearAngle a = reduce_angle(x);
  const Floats square = a.r * a.r;
  const Floats near_zero = x == 0 ? a.r : a.r + sine_rest(a, square);  // keeps -0
  return sine_in_quadrant(a.quadrant, near_zero, cos_near_zero(square));
}

inline Floats cos(const Floats& x) {
  const NearAngle a = reduce_angle(x);
  const Floats square = a.r * a.r;
  return sine_in_quadrant(a.quadrant + 1, a.r + sine_rest(a, square), cos_near_zero(square));
}

// tan(r), or -1 / tan(r) in odd quadrants, by an estimate of 14 bits and a step of Newton's.
inline Floats tan(const Floats& x) {
  const NearAngle a = reduce_angle(x);
  const Floats r = a.r - a.n * NearAngle::kPart3, square = r * r;
  const Floats t = r + r * square * math::polynomial(math::Trigonometric<float>::kTan, square);
  const Floats estimate = _mm512_rcp14_ps(t), inverse = estimate + estimate * (1 - t * estimate);
  return _mm512_mask_sub_ps(t, is_odd(a.quadrant), Floats{}, inverse);
}

// ---- the error function -----------------------------------------------------------------------

// erf(a + h) = erf(a) + h p(h) for a = 0, 1/4, ..., 15/4; the first p gives erf(h) = h + h p(h).
alignas(64) constexpr float kErf[6][16] = {
    {0.128379166f, 1.06001413f, 0.87878257f, 0.642931044f, 0.415107489f, 0.236521125f, 0.118930303f,
     0.0527750067f, 0.0206669886f, 0.00714231888f, 0.00217828294f, 0.000586276175f, 0.000139252501f,
     2.91888118e-05f, 5.39936036e-06f, 8.81415076e-07f},
    {-8.4686917e-07f, -0.265004396f, -0.439389378f, -0.482195497f, -0.415105939f, -0.295651555f,
     -0.178396389f, -0.092357032f, -0.0413342863f, -0.0160702094f, -0.00544560514f, -0.00161217758f,
     -0.000417715579f, -9.48473753e-05f, -1.88926952e-05f, -3.30400349e-06f},
    {-0.376086563f, -0.309145331f, -0.146512896f, 0.0267152395f, 0.138327673f, 0.167538971f,
     0.138776466f, 0.090177983f, 0.0482313558f, 0.0217244402f, 0.00834737066f, 0.00275816978f,
     0.000787951634f, 0.00019536f, 4.21543082e-05f, 7.9330157e-06f},
    {-0.000686129264f, 0.126636073f, 0.183655247f, 0.151574761f, 0.0696982294f, -0.00618375931f,
     -0.0448876955f, -0.0483525246f, -0.0345491208f, -0.0190840401f, -0.00859024096f,
     -0.00323132146f, -0.00103037653f, -0.000281038374f, -6.59696452e-05f, -1.33853864e-05f},
    {0.11819756f, 0.082479015f, 0.00401335629f, -0.0586490259f, -0.0724476427f, -0.0471648797f,
     -0.0131564531f, 0.00816612132f, 0.0137563497f, 0.0106813535f, 0.00592661323f, 0.00259110169f,
     0.000928870752f, 0.000278780761f, 7.09325977e-05f, 1.54271256e-05f},
    {-0.0194285959f, -0.0495379232f, -0.0413879566f, -0.0107324896f, 0.0151896216f, 0.0220269989f,
     0.0144657148f, 0.00421168236f, -0.00175110297f, -0.00309432461f, -0.00225302042f,
     -0.00115074078f, -0.000459249917f, -0.000149513493f, -4.06035324e-05f, -9.32200328e-06f},
};

struct ErfStarts {
  alignas(64) float high[16], low[16];
  constexpr ErfStarts() : high(), low() {
    for (int i = 0; i < 16; ++i) {
      const double value = __builtin_erf(i * 0.25);
      high[i] = static_cast<float>(value);
      low[i] = static_cast<float>(value - high[i]);
    }
  }
};
inline constexpr ErfStarts kErfStarts;

inline Floats erf(const Floats& x) {
  constexpr float kEnd = 0x1.fffffep1f;                           // 1 from here on
  constexpr float kRounder = math::kRounder<float> / 4;           // leaves the number of quarters
  const Floats t = _mm512_min_ps(splat(kEnd), _mm512_abs_ps(x));  // of NaN: the second
  const Floats shifted =
      _mm512_add_round_ps(t, splat(kRounder), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const __m512i place = (__m512i)shifted;  // of which 4 bits are looked at
  const auto entry = [&](const float (&table)[16]) -> Floats {
    return _mm512_permutexvar_ps(place, load(table));
  };
  const Floats h = t - (shifted - kRounder);
  Floats p = entry(kErf[5]);
#pragma GCC unroll 8
  for (int i = 4; i >= 0; --i) p = p * h + entry(kErf[i]);
  const __mmask16 first = _mm512_testn_epi32_mask(place, _mm512_set1_epi32(15));
  const Floats start = _mm512_mask_mov_ps(entry(kErfStarts.high), first, h);
  return copysign(start + (p * h + entry(kErfStarts.low)), x);
}

// ---- silu -------------------------------------------------------------------------------------

// As math::silu, with the steps at the ends by a mask.
inline Floats silu(const Floats& x) {
  using E = math::Exponential<float>;
  constexpr float kEnd = math::kSigmoidEnd[0], kOne = 20;  // from there on the quotient is x
  constexpr float kRounder = math::kRounder<float> - 64;
  const __mmask16 inside = _mm512_cmp_ps_mask(x, splat(kOne), _CMP_NGT_UQ);
  const Floats t = bounded(x, -kEnd, kOne);
  const Floats shifted = residual(t, splat(math::kLog2E<float>), splat(kRounder));
  const Floats n = shifted - kRounder;
  const Floats r = (-t - n * E::kLn2High) - n * E::kLn2Low;
  const Floats m = (math::polynomial(E::kExp, r) * r + 1.f) * r + 1.f;  // exp(-t) / 2^n
  const Floats power = (Floats)(bits(m) + (bits(shifted) << math::kMantissa<float>));
  const Floats least = _mm512_max_ps(splat(-1000.f), x);  // not infinity through infinity
  return _mm512_mask_mul_ps(x, inside, least / (power + 0x1p-64f), splat(0x1p-64f));
}

// ---- gelu_tanh --------------------------------------------------------------------------------

// x / (1 + exp(-z)) as silu, where z = 2 sqrt(2 / pi) (x + 0.044715 x^3) = x (a + b x^2). An error
// of z counts as often as z is large, so the slope a + b x^2 has a second part: its rounding error,
// exactly, because the first part of a ends at 2^-20, and the errors of x^2, a and b. The product
// of the slope and x loses no bit before the multiple of ln 2 is subtracted.
inline Floats gelu_tanh(const Floats& x) {
  using E = math::Exponential<float>;
  constexpr double kA = 1.59576912160573071176, kB = 0.044715 * kA;
  constexpr float kAHigh = static_cast<float>(static_cast<int32_t>(kA * 0x1p20) * 0x1p-20);
  constexpr float kALow = static_cast<float>(kA - kAHigh);
  constexpr float kBHigh = static_cast<float>(kB), kBLow = static_cast<float>(kB - kBHigh);
  constexpr float kEnd = 11, kOne = 5.5f;  // 0 before -kEnd; from kOne on the quotient is x
  constexpr float kRounder = math::kRounder<float> - 64;
  const __mmask16 inside = _mm512_cmp_ps_mask(x, splat(kOne), _CMP_NGT_UQ);
  const Floats t = bounded(x, -kEnd, kOne), square = t * t;
  const Floats square_low = fused(t, t, -square);
  const Floats slope = fused(square, splat(kBHigh), splat(kAHigh));
  const Floats parts = fused(square_low, splat(kBHigh), fused(square, splat(kBLow), splat(kALow)));
  const Floats slope_low = fused(square, splat(kBHigh), kAHigh - slope) + parts;
  const Floats shifted = residual(t * slope, splat(math::kLog2E<float>), splat(kRounder));
  const Floats n = shifted - kRounder;
  const Floats reduced = residual(n, splat(E::kLn2Low), residual(t, slope, n * -E::kLn2High));
  const Floats r = residual(t, slope_low, reduced);
  const Floats m = (math::polynomial(E::kExp, r) * r + 1.f) * r + 1.f;  // exp(-z) / 2^n
  const Floats power = (Floats)(bits(m) + (bits(shifted) << math::kMantissa<float>));
  const Floats least = _mm512_max_ps(splat(-kEnd), x);
  return _mm512_mask_mul_ps(x, inside, least / (power + 0x1p-64f), splat(0x1p-64f));
}

// ---- gelu -------------------------------------------------------------------------------------

// 2^(64 + i / 32), less i in the place where 32 n is added: that makes it 2^(64 + n).
struct PowerStarts {
  alignas(64) float of[32];
  constexpr PowerStarts() : of() {
    for (int i = 0; i < 32; ++i) {
      const auto power = static_cast<float>(__builtin_exp2(64 + i / 32.0));
      of[i] = __builtin_bit_cast(float, __builtin_bit_cast(int32_t, power) - (i << 18));
    }
  }
};
inline constexpr PowerStarts kPowerStarts;

// 2^64 exp(-t^2 / 2) for 0 <= t < 16: t^2 = r - n 2 ln 2, |r| < 0.022, and 32 n is an integer. The
// square has twice the bits of t, and all of them count; n times the first part is exact.
inline Floats lifted_gaussian(const Floats& t) {
  using E = math::Exponential<float>;
  constexpr float kRounder = math::kRounder<float> / 32, kPart1 = 2 * E::kLn2High;
  const Floats shifted = fused(t * t, splat(-0.5f * math::kLog2E<float>), splat(kRounder));
  const Floats part1 = fused(shifted, splat(kPart1), splat(-kRounder * kPart1));
  const Floats r = fused(part1, splat(E::kLn2Low / E::kLn2High), fused(t, t, part1));
  const Floats power =
      (Floats)((bits(shifted) << 18) + bits(entry(kPowerStarts.of, bits(shifted))));
  return fused(power, r * ((r * (-1.0f / 48) + 0.125f) * r - 0.5f), power);
}

// s(t) = t Phi(-t) exp(t^2 / 2), where Phi is the distribution function of the normal distribution,
// rises from 0 to 0.4. kOffset + t, in [1, 16), lies in an eighth of an octave; there a polynomial
// of t - centre meets s at 5 points. Its relative error is at most 2^-23.7, 2^-24.6 from 0.22 on.
struct TailTable {
  static constexpr int kSize = 32, kTerms = 5;
  static constexpr float kOffset = 1.03125f;
  alignas(64) float centre[kSize], coefficients[kTerms][kSize];

  static constexpr double s(double t) {
    return 0.5 * t * __builtin_erfc(t * 0.707106781186547524401) * __builtin_exp(0.5 * t * t);
  }

  // Through Chebyshev's points; in the first interval through 0 and four of them.
  constexpr void fit(int place, double low, double high) {
    const int zeros = low < 0;
    const double middle = zeros ? high / 2 : (low + high) / 2, c = zeros ? 0 : middle;
    double x[kTerms] = {}, p[kTerms] = {};
    for (int k = zeros; k < kTerms; ++k) {
      const double angle = 3.14159265358979323846 * (k - zeros + 0.5) / (kTerms - zeros);
      x[k] = middle - c + (high - middle) * __builtin_cos(angle);
      p[k] = s(c + x[k]);
    }
    for (int d = 1; d < kTerms; ++d)  // Newton's form
      for (int k = kTerms - 1; k >= d; --k) p[k] = (p[k] - p[k - 1]) / (x[k] - x[k - d]);
    for (int d = kTerms - 2; d >= 0; --d)
      for (int k = d; k < kTerms - 1; ++k) p[k] -= x[d] * p[k + 1];
    centre[place] = static_cast<float>(c);
    for (int k = 0; k < kTerms; ++k) coefficients[k][place] = static_cast<float>(p[k]);
  }

  constexpr TailTable() : centre(), coefficients() {
    for (int i = 0; i < kSize; ++i) {
      const double octave = 1 << i / 8, low = octave * (1 + i % 8 * 0.125) - kOffset;
      fit((i + 24) % kSize, low, low + octave * 0.125);  // of 1 the exponent ends in 3, of 2 in 0
    }
  }
};
inline constexpr TailTable kTail;

// max(x, 0) - |x| Phi(-|x|). Scaled back in the last step: results below the normal numbers are
// rounded once. (_mm512_range_ps finds t in one step, but on some processors waits for the old
// value of its result register, which is slower.)
inline Floats gelu(const Floats& x) {
  constexpr float kEnd = math::Special<float>::kTailEnd;
  const Floats t = _mm512_min_ps(splat(kEnd), _mm512_abs_ps(x));  // of NaN: the second
  const Ints place = bits(t + TailTable::kOffset) >> (math::kMantissa<float> - 3);
  const Floats h = t - entry(kTail.centre, place);
  Floats s = entry(kTail.coefficients[4], place);
#pragma GCC unroll 8
  for (int i = 3; i >= 0; --i) s = s * h + entry(kTail.coefficients[i], place);
  const Floats positive = _mm512_max_ps(splat(-0.0f), x);  // of NaN and of zeros: the second
  return fused(s * lifted_gaussian(t), splat(-0x1p-64f), positive);
}

}  // namespace needle::NEEDLE_ISA::avx512
#endif
