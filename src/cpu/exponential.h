// exp of vectors. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial, times 2^n. At most
// 0.92 ulp with fused multiply-adds, 1.17 without.
#pragma once
#include "lanes.h"
#include "vector_exponential.h"

namespace needle::NEEDLE_ISA {

#if defined(__AVX512F__)
// Of a NaN both give the second operand.
inline Vector<float> bounded(const Vector<float>& x, float low, float high) {
  return _mm512_min_ps(splat(high), _mm512_max_ps(splat(low), x));
}
inline Vector<double> bounded(const Vector<double>& x, double low, double high) {
  return _mm512_min_pd(splat(high), _mm512_max_pd(splat(low), x));
}

// x 2^n where n = shifted - kRounder.
inline Vector<float> scaled(const Vector<float>& x, const Vector<float>& shifted) {
  return _mm512_scalef_ps(x, shifted - math::kRounder<float>);
}
inline Vector<double> scaled(const Vector<double>& x, const Vector<double>& shifted) {
  return _mm512_scalef_pd(x, shifted - math::kRounder<double>);
}
#else
template <class A>
inline Vector<A> bounded(Vector<A> x, A low, A high) {
  x = x < low ? splat<A>(low) : x;
  return x > high ? splat<A>(high) : x;
}

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

template <class V>
inline V exponential_of(V x) {
  using A = std::decay_t<decltype(x[0])>;
  using E = math::Exponential<A>;
  x = bounded(x, E::kLow, E::kHigh);
  const V shifted = x * math::kLog2E<A> + math::kRounder<A>, n = shifted - math::kRounder<A>;
  const V r = (x - n * E::kLn2High) - n * E::kLn2Low;
  return scaled((math::polynomial(E::kExp, r) * r + A(1)) * r + A(1), shifted);
}

inline Vector<float> exponential(const Vector<float>& x) { return exponential_of(x); }
inline Vector<double> exponential(const Vector<double>& x) { return exponential_of(x); }

}  // namespace needle::NEEDLE_ISA
