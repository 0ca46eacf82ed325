// exp of vectors. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial, times 2^n. At most
// 0.92 ulp with fused multiply-adds, 1.17 without.
#pragma once
#include "lanes.h"
#include "vector_special.h"

namespace needle::NEEDLE_ISA {

// A NaN stays one.
template <class V, class A>
inline V bounded(const V& x, A low, A high) {
  return smaller(splat(high), larger(splat(low), x));
}

// x 2^n where n = shifted - kRounder.
#if defined(__AVX512F__)
inline Vector<float> scaled(const Vector<float>& x, const Vector<float>& shifted) {
  return _mm512_scalef_ps(x, shifted - math::kRounder<float>);
}
inline Vector<double> scaled(const Vector<double>& x, const Vector<double>& shifted) {
  return _mm512_scalef_pd(x, shifted - math::kRounder<double>);
}
#else
template <class V>
inline V scaled(const V& x, const V& shifted) {
  using A = std::decay_t<decltype(x[0])>;
  using Lane = math::Int<A>;
  constexpr Lane kBias = math::kBias<A>;
  constexpr int kMantissa = math::kMantissa<A>;
  const Vector<Lane> n = (Vector<Lane>)shifted - __builtin_bit_cast(Lane, math::kRounder<A>);
  const Vector<Lane> half = n >> 1;  // in two factors: 2^n may be beyond the normal numbers
  const V first = (V)((half + kBias) << kMantissa);
  const V second = (V)((n - half + kBias) << kMantissa);
  return x * first * second;
}
#endif

// exp(x) 2^-n, and n + rounder.
template <class V, class A>
inline V exponential_of(const V& x, A rounder, V& shifted) {
  using E = math::Exponential<A>;
  shifted = x * math::kLog2E<A> + rounder;
  const V n = shifted - rounder, r = (x - n * E::kLn2High) - n * E::kLn2Low;
  return (math::polynomial(E::kExp, r) * r + A(1)) * r + A(1);
}

template <class V>
inline V exponential(const V& x) {
  using A = std::decay_t<decltype(x[0])>;
  using E = math::Exponential<A>;
  V shifted;
  const V power = exponential_of(bounded(x, E::kLow, E::kHigh), math::kRounder<A>, shifted);
  return scaled(power, shifted);
}

// kLifted exp(x) for x up to 43 (double: 354). One factor scales it, because nothing is below the
// normal numbers yet (Zen 1: softmax and cross entropy take 0.75 of the time).
#if defined(__AVX512F__)
template <class A>
constexpr A kLifted = 1;
template <class V>
inline V lifted_exponential(const V& x) {
  return exponential(x);
}
#else
template <class A>
constexpr A kLifted = sizeof(A) == 4 ? 0x1p64 : 0x1p512;
template <class V>
inline V lifted_exponential(const V& x) {
  using A = std::decay_t<decltype(x[0])>;
  using Lane = math::Int<A>;
  // With it the last bits of `shifted` are the exponent of the lifted power.
  constexpr A kRounder = math::kRounder<A> + math::kLift<A> + math::kBias<A>;
  V shifted;
  const V power = exponential_of(larger(splat(math::Exponential<A>::kLow), x), kRounder, shifted);
  return power * (V)((Vector<Lane>)shifted << math::kMantissa<A>);
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
// As math::erf. Few steps wait for the one before, because of such long functions processors look
// ahead over few vectors (Zen 1: 0.75 of the time).
inline Vector<float> erf(const Vector<float>& x) {
  using V = Vector<float>;
  constexpr auto& c = math::Special<float>::kErf;
  constexpr auto& e = math::Exponential<float>::kExp;
  constexpr float kBiased = math::kRounder<float> + math::kBias<float>;
  const V sign = splat(-0.0f), size = _mm256_andnot_ps(sign, x), t = smaller(splat(4.0f), size);
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
#endif

}  // namespace needle::NEEDLE_ISA
