// exp of vectors. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial, times 2^n. At most
// 0.92 ulp with fused multiply-adds, 1.17 without.
#pragma once
#include "isa/lanes.h"
#include "vector_exponential.h"

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

// kLifted exp(x) for x up to 43 (double: 354). A single factor scales it, because no result is
// subnormal yet; that saves instructions in softmax and cross entropy.
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

}  // namespace needle::NEEDLE_ISA
