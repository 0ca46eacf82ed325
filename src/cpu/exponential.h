// exp without branches or calls, so that loops over it become vector code.
#pragma once
#include "isa.h"

namespace needle::NEEDLE_ISA {

// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial, for float the one whose largest
// relative error is least, for double Taylor's; 2^n in two factors, so that overflow and subnormal
// results come out right. At most 1.03 ulp.
inline float exponential(float x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it leaves n in the low bits
  x = x < -104.f ? -104.f : x;          // these comparisons keep a NaN
  x = x > 89.f ? 89.f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const uint32_t whole = __builtin_bit_cast(uint32_t, shifted) - 0x4b400000u;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.381453789e-3f;
  p = p * r + 8.368745320e-3f;
  p = p * r + 4.166839083e-2f;
  p = p * r + 1.666652040e-1f;
  p = p * r + 4.999999343e-1f;
  p = p * r * r + r;
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(whole) >> 1);
  const float scale1 = __builtin_bit_cast(float, (half + 127u) << 23);
  const float scale2 = __builtin_bit_cast(float, (whole - half + 127u) << 23);
  return (p * scale1 + scale1) * scale2;
}

inline double exponential(double x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  x = x < -746. ? -746. : x;
  x = x > 710. ? 710. : x;
  const double shifted = x * 1.4426950408889634 + kRound;
  const double n = shifted - kRound;
  const uint64_t whole = __builtin_bit_cast(uint64_t, shifted) - 0x4338000000000000u;
  const double r = (x - n * 0.69314718036912382) - n * 1.9082149292705877e-10;
  double p = 1.6059043836821613e-10;  // 1/13!, 1/12!, ..., 1/2!
  p = p * r + 2.0876756987868099e-9;
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
  p = p * r * r + r;
  const uint64_t half = static_cast<uint64_t>(static_cast<int64_t>(whole << 32) >> 33);
  const double scale1 = __builtin_bit_cast(double, (half + 1023u) << 52);
  const double scale2 = __builtin_bit_cast(double, (whole - half + 1023u) << 52);
  return (p * scale1 + scale1) * scale2;
}

}  // namespace needle::NEEDLE_ISA
