// The 16-bit floating types, as bits. Conversions round to nearest even and are written without
// branches, so that loops over them vectorise.
#pragma once
#include <cstdint>
#include <cstring>

namespace needle {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float to_float(BFloat16 x) { return float_of(uint32_t{x.bits} << 16); }

inline BFloat16 to_bfloat16(float x) {
  uint32_t bits = bits_of(x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  uint32_t quiet_nan = (bits >> 16) | 0x40;  // rounding could carry a NaN into infinity
  return {static_cast<uint16_t>(x != x ? quiet_nan : rounded)};
}

inline float to_float(Half x) {
  constexpr uint32_t kExponent = 0x0f800000, kRebias = 112u << 23;
  uint32_t magnitude = (x.bits & 0x7fffu) << 13;
  uint32_t exponent = magnitude & kExponent;
  uint32_t normal = magnitude + kRebias + (exponent == kExponent ? kRebias : 0);
  float subnormal = float_of(magnitude + (113u << 23)) - float_of(113u << 23);
  uint32_t bits = exponent == 0 ? bits_of(subnormal) : normal;
  return float_of(bits | (x.bits & 0x8000u) << 16);
}

inline Half to_half(float x) {
  constexpr uint32_t kInfinity = 0x7f800000, kOverflow = 0x477ff000, kSmallest = 0x38800000;
  uint32_t magnitude = bits_of(x) & 0x7fffffff;
  uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5, whose last place is worth one subnormal step, makes the hardware round.
  uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  uint32_t bits = magnitude < kSmallest ? subnormal : normal;
  bits = magnitude >= kOverflow ? 0x7c00 : bits;
  bits = magnitude > kInfinity ? 0x7e00 : bits;
  return {static_cast<uint16_t>(bits | (bits_of(x) >> 16 & 0x8000))};
}

}  // namespace needle
