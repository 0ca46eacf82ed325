// Functions of two vectors of float32, as avx512_math.h has those of one.
#pragma once
#include "isa/avx512_math.h"

#if defined(__AVX512F__)
namespace needle::NEEDLE_ISA::avx512 {

// ---- floored division ------------------------------------------------------------------------

// Rounding x / y does not cross an integer, but may go up to one. Then the rest, which is exact,
// has not y's sign: those lanes are `above`. Infinities and quotients that have no fraction are
// `rare`.
struct Division {
  Floats quotient, rest;
  __mmask16 above, rare;
};

inline Division divide_down(const Floats& x, const Floats& y) {
  const Floats exact = x / y, quotient = _mm512_floor_ps(exact), rest = residual(quotient, y, x);
  const __mmask16 signs = _mm512_movepi32_mask((__m512i)(bits(rest) ^ bits(y)));
  const __mmask16 large = _mm512_cmp_ps_mask(_mm512_abs_ps(exact), splat(0x1p23f), _CMP_NLT_UQ);
  const __mmask16 infinite = _mm512_cmp_ps_mask(rest, rest, _CMP_UNORD_Q);
  return {quotient, rest, _mm512_mask_cmp_ps_mask(signs, rest, Floats{}, _CMP_NEQ_UQ),
          static_cast<__mmask16>(large | infinite)};
}

// Rare lanes of a result anew, one by one. Not inlined, so that what it needs does not lie in
// memory all the time.
template <float (*exact)(float, float)>
[[gnu::noinline]] Floats corrected(Floats result, Floats x, Floats y, __mmask16 rare) {
  constexpr int64_t kWidth = kLanes<float>;
  float a[kWidth], b[kWidth], all[kWidth];
  store(a, x);
  store(b, y);
  store(all, result);
  for (uint32_t left = rare; left; left &= left - 1) {
    const int i = __builtin_ctz(left);
    all[i] = exact(a[i], b[i]);
  }
  return load(all);
}

inline Floats floor_divide(const Floats& x, const Floats& y) {
  const Division d = divide_down(x, y);
  const Floats down = _mm512_mask_sub_ps(d.quotient, d.above, d.quotient, splat(1.f));
  if (__builtin_expect(!d.rare, 1)) return down;
  return corrected<math::exact_floor_divide<float>>(down, x, y, d.rare);
}

inline Floats remainder(const Floats& x, const Floats& y) {
  const Division d = divide_down(x, y);
  const Floats up = _mm512_mask_add_ps(d.rest, d.above, d.rest, y);
  const Floats rest = d.rest == 0 ? copysign(Floats{}, y) : up;
  if (__builtin_expect(!d.rare, 1)) return rest;
  return corrected<math::exact_remainder<float>>(rest, x, y, d.rare);
}

// ---- powers ------------------------------------------------------------------------------------

// By float64, as math::power: 2^(y log2|x|), 0.51 units in the last place.
using Doubles = Vector<double>;

inline Doubles fused(const Doubles& a, const Doubles& b, const Doubles& c) {
  return _mm512_fmadd_pd(a, b, c);
}

// Of |x| = 2^k m the first 4 bits of m find c, and m / c = 1 + r, -1/31 <= r <= 1/16; c is exactly
// 1 or 2 at the ends, so that logarithms near 0 are exact.
struct PowerTables {
  alignas(64) double inverse[16], log2[16];  // 1 / c and log2(c)
  alignas(64) double exp2[8];                // 2^(i/8)

  constexpr PowerTables() : inverse(), log2(), exp2() {
    for (int i = 0; i < 16; ++i) {
      const double c = i == 0 ? 1 : i == 15 ? 2 : 1 + (i + 0.5) / 16;
      inverse[i] = 1 / c;
      log2[i] = __builtin_log2(c);
    }
    for (int i = 0; i < 8; ++i) exp2[i] = __builtin_exp2(i / 8.0);
  }
};
inline constexpr PowerTables kPower;

inline Doubles log2_of_size(const Doubles& x) {
  // log2(1 + r) / r
  constexpr double kLog2[] = {1.4426950408900256,   -0.72134752030941595, 0.48089833345509163,
                              -0.36067419083358598, 0.28856840303954618,  -0.24033777866286732,
                              0.18862560003746434};
  const Doubles k = _mm512_getexp_pd(x);
  const Doubles m = _mm512_getmant_pd(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
  const __m512i place = _mm512_srli_epi64((__m512i)m, 48);
  const auto entry = [&](const double (&table)[16]) -> Doubles {
    return _mm512_permutex2var_pd(load(table), place, load(table + 8));
  };
  const Doubles r = fused(m, entry(kPower.inverse), splat(-1.0));
  return fused(r, math::polynomial(kLog2, r), k + entry(kPower.log2));
}

// With x = n + f, where n is a number of eighths.
inline Doubles exp2(const Doubles& x) {
  // (2^f - 1) / f
  constexpr double kExp2[] = {0.69314717801713086, 0.24022650842832825, 0.055509317047135768,
                              0.0096181290208249872};
  constexpr double kRounder = math::kRounder<double> / 8, kEnd = 256;
  const Doubles t = bounded(x, -kEnd, kEnd), shifted = t + kRounder;
  const Doubles n = shifted - kRounder, f = t - n;
  const Doubles part = _mm512_permutexvar_pd((__m512i)shifted, load(kPower.exp2));
  const Doubles power = fused(part, f * math::polynomial(kExp2, f), part);
  return _mm512_scalef_pd(power, n);
}

inline __m256 power_of_size(__m256 x, __m256 y) {
  return _mm512_cvtpd_ps(exp2(_mm512_cvtps_pd(y) * log2_of_size(_mm512_cvtps_pd(x))));
}

// The sign where x is negative; there only powers of whole numbers exist, and all of infinity.
inline Floats with_sign(const Floats& size, const Floats& x, const Floats& y, __mmask16 negative) {
  const Floats half = y * 0.5f;
  const __mmask16 whole = _mm512_cmp_ps_mask(_mm512_floor_ps(y), y, _CMP_EQ_OQ);
  const __mmask16 even = _mm512_cmp_ps_mask(_mm512_floor_ps(half), half, _CMP_EQ_OQ);
  const __mmask16 finite = _mm512_cmp_ps_mask(x, splat(-math::kInfinity<float>), _CMP_NEQ_UQ);
  const __mmask16 below = _mm512_cmp_ps_mask(x, Floats{}, _CMP_LT_OQ);
  const Floats result = _mm512_mask_xor_ps(size, negative & whole & ~even, size, splat(-0.f));
  return _mm512_mask_mov_ps(result, below & finite & ~whole, splat(math::kNan<float>));
}

// 1^y and x^0 are 1 for all of them, and so is (-1)^y where y is infinite.
inline Floats with_ones(const Floats& result, const Floats& x, const Floats& y) {
  const __mmask16 one = _mm512_cmp_ps_mask(x, splat(1.f), _CMP_EQ_OQ);
  const __mmask16 zeroth = _mm512_cmp_ps_mask(y, Floats{}, _CMP_EQ_OQ);
  const __mmask16 infinite =
      _mm512_cmp_ps_mask(_mm512_abs_ps(y), splat(math::kInfinity<float>), _CMP_EQ_OQ);
  const __mmask16 minus_one = _mm512_cmp_ps_mask(x, splat(-1.f), _CMP_EQ_OQ);
  return _mm512_mask_mov_ps(result, one | zeroth | (minus_one & infinite), splat(1.f));
}

inline Floats power(const Floats& x, const Floats& y) {
  const __m512 size = _mm512_abs_ps(x);
  const __m256 low = power_of_size(_mm512_castps512_ps256(size), _mm512_castps512_ps256(y));
  const __m256 high = power_of_size(_mm512_extractf32x8_ps(size, 1), _mm512_extractf32x8_ps(y, 1));
  Floats result = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  const __mmask16 negative = _mm512_movepi32_mask((__m512i)x);
  if (negative) result = with_sign(result, x, y, negative);
  const __mmask16 undefined = _mm512_cmp_ps_mask(result, result, _CMP_UNORD_Q);
  return __builtin_expect(undefined, 0) ? with_ones(result, x, y) : result;
}

// ---- gradients of activations ------------------------------------------------------------------

// As math::gated_slope.
inline Floats gated_slope(const Floats& x, const Floats& z, const Floats& z_slope) {
  const Floats e = exponential(-(Floats)_mm512_abs_ps(z)), part = 1.f / (1.f + e);
  return (z < 0 ? e * part : part) + x * (e * part * part) * z_slope;
}

inline Floats silu_grad(const Floats& x, const Floats& y) {
  const Floats t = bounded(x, -1000.f, 1000.f);
  return y * gated_slope(t, t, splat(1.f));
}

inline Floats gelu_grad(const Floats& x, const Floats& y) {
  const Floats t = bounded(x, -40.f, 40.f), density = exponential(t * t * -0.5f);
  return y * (0.5f * (1.f + erf(t * 0.707106781f)) + t * 0.398942280f * density);
}

inline Floats gelu_tanh_grad(const Floats& x, const Floats& y) {
  constexpr float kA = 1.59576912f, kB = 0.044715f;
  const Floats t = bounded(x, -40.f, 40.f), square = t * t;
  return y * gated_slope(t, kA * t * (1.f + kB * square), kA * (1.f + 3 * kB * square));
}

// Faster than the portable form, because expm1 is.
inline Floats elu(const Floats& x, const Floats& y) { return x > 0 ? x : y * expm1(x); }

}  // namespace needle::NEEDLE_ISA::avx512
#endif
