// Functions of float32 for AVX2, on whole vectors: those for which the compiler finds more
// instructions, or puts them into an order in which they wait for each other.
#pragma once
#include "isa/exponential.h"
#include "vector_special.h"

#if defined(__AVX2__) && !defined(__AVX512F__)
namespace needle::NEEDLE_ISA::avx2 {

using Floats = Vector<float>;

inline Floats abs(const Floats& x) { return _mm256_andnot_ps(splat(-0.f), x); }

// 2^149 x is -1 or less, 0, or 1 or more; the fused sum makes 0 of -0. NaNs pass.
inline Floats sign(const Floats& x) {
  const Floats large = _mm256_fmadd_ps(x * 0x1p126f, splat(0x1p23f), Floats{});
  return smaller(splat(1.f), larger(splat(-1.f), large));
}

// From an estimate y of 11 bits or more: 1 / sqrt(1 - e) = 1 + e / 2 + 3 e^2 / 8 + ... where
// e = 1 - x y^2. At most 1.0 ulp, and faster than a root and a division, which one slow unit
// computes. The formula does not hold for 0, infinity, subnormal and negative numbers.
inline Floats rsqrt(const Floats& x) {
  const Floats y = _mm256_rsqrt_ps(x), e = _mm256_fnmadd_ps(x * y, y, splat(1.f));
  const Floats far = _mm256_cmp_ps(abs(e), splat(1.f), _CMP_NLT_UQ);
  if (__builtin_expect(_mm256_movemask_ps(far), 0)) return 1 / _mm256_sqrt_ps(x);
  return (y * e) * (e * 0.375f + 0.5f) + y;
}

// As math::erf, but few steps wait for the one before: of a function this long, processors that
// look ahead over few instructions see few vectors at once.
inline Floats erf(const Floats& x) {
  using V = Floats;
  constexpr auto& c = math::Special<float>::kErf;
  constexpr auto& e = math::Exponential<float>::kExp;
  constexpr float kBiased = math::kRounder<float> + math::kBias<float>;
  const V sign = splat(-0.0f), t = smaller(splat(4.0f), abs(x));
  const V t2 = t * t, t4 = t2 * t2;
  const V low = (c[2] * t + c[1]) + (c[4] * t + c[3]) * t2;
  const V high = (c[6] * t + c[5]) + (c[8] * t + c[7]) * t2;
  const V p = (low + high * t4) * t + c[0];
  const V z = _mm256_fnmsub_ps(t, p, t), lost = _mm256_fnmadd_ps(t, p, -t - z);
  const V shifted = z * math::kLog2E<float> + kBiased, n = shifted - kBiased;
  using E = math::Exponential<float>;
  const V r = (z - n * E::kLn2High) - n * E::kLn2Low, r2 = r * r;
  const V q = ((e[2] * r + e[1]) + (e[4] * r + e[3]) * r2) * r + e[0];
  const V rest = (r2 * q + lost) + r;
  const V power = (V)((Vector<int32_t>)shifted << math::kMantissa<float>);
  return _mm256_or_ps((1.0f - power) - rest * power, _mm256_and_ps(sign, x));
}

}  // namespace needle::NEEDLE_ISA::avx2
#endif
