// exp of vectors. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial, for float the one whose
// largest relative error is least, for double Taylor's; times 2^n. At most 1.03 ulp.
#pragma once
#include "lanes.h"

namespace needle::NEEDLE_ISA {

// Beyond these 0 and infinity; the comparisons keep a NaN.
template <class A>
inline Vector<A> clamp_exponent(Vector<A> x) {
  constexpr A kLow = sizeof(A) == 4 ? A(-104) : A(-746), kHigh = sizeof(A) == 4 ? A(89) : A(710);
  x = x < kLow ? splat<A>(kLow) : x;
  return x > kHigh ? splat<A>(kHigh) : x;
}

// e^r - 1
inline Vector<float> polynomial(const Vector<float>& r) {
  Vector<float> p = 1.381453789e-3f * r + 8.368745320e-3f;
  p = p * r + 4.166839083e-2f;
  p = p * r + 1.666652040e-1f;
  p = p * r + 4.999999343e-1f;
  return p * r * r + r;
}

inline Vector<double> polynomial(const Vector<double>& r) {
  Vector<double> p = 1.6059043836821613e-10 * r + 2.0876756987868099e-9;  // 1/13!, 1/12!, ...
  p = p * r + 2.5052108385441719e-8;
  p = p * r + 2.7557319223985891e-7;
  p = p * r + 2.7557319223985893e-6;
  p = p * r + 2.4801587301587302e-5;
  p = p * r + 1.9841269841269841e-4;
  p = p * r + 1.3888888888888889e-3;
  p = p * r + 8.3333333333333333e-3;
  p = p * r + 4.1666666666666664e-2;
  p = p * r + 1.6666666666666666e-1;
  p = p * r + 0.5;
  return p * r * r + r;
}

template <class A>
inline Vector<A> remainder(const Vector<A>& x, const Vector<A>& n) {
  if constexpr (sizeof(A) == 4)
    return (x - n * 0.693359375f) + n * 2.12194440e-4f;
  else
    return (x - n * 0.69314718036912382) - n * 1.9082149292705877e-10;
}

#if defined(__AVX512F__)
inline Vector<float> exponential(Vector<float> x) {
  x = _mm512_min_ps(splat(89.f), _mm512_max_ps(splat(-104.f), x));  // of a NaN: the second operand
  const Vector<float> n = _mm512_roundscale_ps(x * 1.44269504f, 8);
  return _mm512_scalef_ps(polynomial(remainder<float>(x, n)) + 1.f, n);
}

inline Vector<double> exponential(Vector<double> x) {
  x = _mm512_min_pd(splat(710.), _mm512_max_pd(splat(-746.), x));
  const Vector<double> n = _mm512_roundscale_pd(x * 1.4426950408889634, 8);
  return _mm512_scalef_pd(polynomial(remainder<double>(x, n)) + 1., n);
}
#else
// 2^n in two factors, so that overflow and subnormal results come out right. Adding kRound leaves n
// in the low bits.
inline Vector<float> exponential(Vector<float> x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23
  x = clamp_exponent<float>(x);
  const Vector<float> shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  const Vector<float> p = polynomial(remainder<float>(x, n));
  const Vector<int32_t> whole = (Vector<int32_t>)shifted - 0x4b400000, half = whole >> 1;
  const Vector<float> scale1 = (Vector<float>)((half + 127) << 23);
  const Vector<float> scale2 = (Vector<float>)((whole - half + 127) << 23);
  return (p * scale1 + scale1) * scale2;
}

inline Vector<double> exponential(Vector<double> x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  x = clamp_exponent<double>(x);
  const Vector<double> shifted = x * 1.4426950408889634 + kRound, n = shifted - kRound;
  const Vector<double> p = polynomial(remainder<double>(x, n));
  const Vector<int64_t> whole = (Vector<int64_t>)shifted - 0x4338000000000000;
  const Vector<int64_t> half = whole >> 1;
  const Vector<double> scale1 = (Vector<double>)((half + 1023) << 52);
  const Vector<double> scale2 = (Vector<double>)((whole - half + 1023) << 52);
  return (p * scale1 + scale1) * scale2;
}
#endif

}  // namespace needle::NEEDLE_ISA
