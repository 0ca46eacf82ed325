// float32 as a sum of bfloat16, x = x1 + x2 + x3: each is what is left by those before it, rounded
// to its 8 significant bits, and the third leaves nothing. A product of two float32 is then
// x1 y1 + x1 y2 + x2 y1 + x2 y2 + x1 y3 + x3 y1 but for 2^-24 of it, which is what the rounding of
// a float32 may take, too (Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial
// Intelligence Datatype For Higher-Precision Computations, 2019).
//
// Operands are laid out as the matrix unit reads them (amx.h): in strips of 16 rows of a or 16
// columns of b, 32 steps of k after 32 others; of these, a tile for each part. A tile has 16 lines
// of 16 pairs of bfloat16. For a, a line is a row and its pairs are steps q and q + 16; for b, a
// line is such a pair of steps and its pairs are columns.
// A number that is a bfloat16 has one part.
//
// Because the unit adds 32 products before it rounds to a sum, errors are less than half of those
// of vectors: at 512^3 a relative root mean square of 1.8e-7 instead of 4.1e-7, of normal numbers
// (bench/product_error.py). The unit takes denormal numbers for zero, so what is packed says how
// small and large its numbers are, and pieces that could lose bits, or are not finite, are
// multiplied by vectors.
#pragma once
#include <algorithm>
#include <cstddef>

#include "base/axes.h"
#include "gemm/pack.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kStripWidth = 16, kStripSteps = 32;
constexpr int64_t kUnitTileBytes = 1024;
constexpr int kSplitParts = 3;
template <int n_parts>
constexpr int64_t kStripBytes = n_parts * kUnitTileBytes;  // of kStripSteps steps

#if defined(__AVX512F__)

// Of numbers other than zero: the exponents of the least and of the greatest, as they are stored.
// The unit takes numbers below 2^-126 for zero, be they parts, products or sums, and products must
// not overflow before the sum does.
struct Exponents {
  int32_t least = 255, greatest = 0;

  // Have all numbers three parts, and do all products of numbers keep their bits?
  bool fit(const Exponents& other) const {
    constexpr int32_t kLeastSplit = 127 - 126 + 24, kGreatestSplit = 253;
    constexpr int32_t kLeastProduct = 2 * 127 - 126 + 28, kGreatestProduct = 2 * 127 + 100;
    const auto split = [](const Exponents& x) {
      return x.least >= kLeastSplit && x.greatest <= kGreatestSplit;
    };
    return split(*this) && split(other) && least + other.least >= kLeastProduct &&
           greatest + other.greatest <= kGreatestProduct;
  }
};

// Finds them: without their signs, floats are ordered as integers.
class Extremes {
 public:
  void see(__m512i x) {
    const __m512i twice = _mm512_add_epi32(x, x);  // the exponent is in front
    greatest_ = _mm512_max_epu32(greatest_, twice);
    least_ = _mm512_min_epu32(least_, _mm512_sub_epi32(twice, _mm512_set1_epi32(1)));  // not 0
  }
  Exponents exponents() const {
    uint32_t least[16], greatest[16];
    _mm512_storeu_si512(least, least_);
    _mm512_storeu_si512(greatest, greatest_);
    return {static_cast<int32_t>(*std::min_element(least, least + 16) >> 24),
            static_cast<int32_t>(*std::max_element(greatest, greatest + 16) >> 24)};
  }

 private:
  __m512i greatest_ = _mm512_setzero_si512(), least_ = _mm512_set1_epi32(-1);
};

// The nearest bfloat16, away from zero if there are two, as a float32.
inline __m512i round_to_part(__m512i x) {
  const __m512i half = _mm512_set1_epi32(0x8000), kept = _mm512_set1_epi32(0xffff0000);
  return _mm512_and_si512(_mm512_add_epi32(x, half), kept);
}
inline __m512i without(__m512i x, __m512i part) {
  return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(part)));
}

// A line of each part's tile, from its first and second numbers of pairs.
template <int n_parts>
inline void split_line(std::byte* out, __m512i x, __m512i y) {
#pragma GCC unroll 3
  for (int64_t part = 0; part < n_parts; ++part) {
    const bool last = part == n_parts - 1;
    const __m512i x_part = last ? x : round_to_part(x), y_part = last ? y : round_to_part(y);
    _mm512_store_si512(out + part * kUnitTileBytes,
                       _mm512_or_si512(_mm512_srli_epi32(x_part, 16), y_part));
    x = without(x, x_part);
    y = without(y, y_part);
  }
}

// The tiles of 32 steps. Line i of the first numbers is at x + i * stride, of the second at
// y_offset behind.
template <int n_parts>
inline void split_lines(std::byte* out, const float* x, int64_t stride, int64_t y_offset,
                        Extremes& extremes) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < kStripWidth; ++i, x += stride, out += kVectorBytes) {
    const __m512i first = _mm512_loadu_si512(x), second = _mm512_loadu_si512(x + y_offset);
    extremes.see(first);
    extremes.see(second);
    split_line<n_parts>(out, first, second);
  }
}

// An operand: x[i, p], i across strips, p along k. One of the strides is 1.
struct SplitOperand {
  const float* x;
  int64_t across, along;
};

// 16 lines of 16 numbers: out[i][p], or out[p][i] if `by_steps`. Beyond width or steps: zeros.
inline void copy_square(float* out, const SplitOperand& o, int64_t width, int64_t steps,
                        bool by_steps) {
  Vector<float> square[16];
  const bool along = o.along == 1;  // lines of memory lie along k
  const int64_t lines = along ? width : steps, stride = along ? o.across : o.along;
  const Tail<float> part(most(0, least(along ? steps : width, 16)));
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i)
    square[i] = i < lines ? part.load(o.x + i * stride) : Vector<float>{};
  if (along == by_steps) transpose_square(square);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) store(out + i * 16, square[i]);
}

// Tiles of up to 32 steps of up to 16 rows of a, or if `by_steps`, columns of b.
template <int n_parts>
inline void split_step(std::byte* out, const SplitOperand& o, int64_t width, int64_t steps,
                       bool by_steps, Extremes& extremes) {
  const int64_t half = kStripSteps / 2 * o.along;
  if (width == kStripWidth && steps == kStripSteps && (o.along == 1) != by_steps)
    return split_lines<n_parts>(out, o.x, by_steps ? o.along : o.across, half, extremes);
  alignas(64) float squares[2][16 * 16];
  copy_square(squares[0], o, width, steps, by_steps);
  copy_square(squares[1], {o.x + half, o.across, o.along}, width, steps - kStripSteps / 2,
              by_steps);
  split_lines<n_parts>(out, squares[0], 16, squares[1] - squares[0], extremes);
}

// step(out, where, width, steps) for the strips of `width` rows or columns, `steps` steps each.
template <int n_parts, class Operand, class Step>
inline void for_strips(std::byte* out, const Operand& o, int64_t width, int64_t steps,
                       const Step& step) {
  const int64_t strip_bytes = parts(steps, kStripSteps) * kStripBytes<n_parts>;
  const auto lay_out = [&](int64_t i, int64_t p) {
    step(out + i / kStripWidth * strip_bytes + p / kStripSteps * kStripBytes<n_parts>,
         Operand{o.x + i * o.across + p * o.along, o.across, o.along},
         least(kStripWidth, width - i), least(kStripSteps, steps - p));
  };
  if (o.along == 1)
    for (int64_t i = 0; i < width; i += kStripWidth)
      for (int64_t p = 0; p < steps; p += kStripSteps) lay_out(i, p);
  else
    for (int64_t p = 0; p < steps; p += kStripSteps)
      for (int64_t i = 0; i < width; i += kStripWidth) lay_out(i, p);
}

template <int n_parts>
inline Exponents split_strips(std::byte* out, const SplitOperand& o, int64_t width, int64_t steps,
                              bool by_steps) {
  Extremes extremes;
  for_strips<n_parts>(out, o, width, steps,
                      [&](std::byte* to, const SplitOperand& from, int64_t lines, int64_t length) {
                        split_step<n_parts>(to, from, lines, length, by_steps, extremes);
                      });
  return extremes.exponents();
}

// ---- numbers that are bfloat16, as they lie in memory

struct HalfOperand {
  const uint16_t* x;
  int64_t across, along;
};

class HalfExtremes {
 public:
  void see(__m512i x) {
    const __m512i twice = _mm512_add_epi16(x, x);
    greatest_ = _mm512_max_epu16(greatest_, twice);
    least_ = _mm512_min_epu16(least_, _mm512_sub_epi16(twice, _mm512_set1_epi16(1)));
  }
  Exponents exponents() const {
    uint16_t least[32], greatest[32];
    _mm512_storeu_si512(least, least_);
    _mm512_storeu_si512(greatest, greatest_);
    return {*std::min_element(least, least + 32) >> 8,
            *std::max_element(greatest, greatest + 32) >> 8};
  }

 private:
  __m512i greatest_ = _mm512_setzero_si512(), least_ = _mm512_set1_epi16(-1);
};

alignas(64) constexpr uint16_t kHalfPairs[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                 21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

// As split_step. Steps q and q + 16 become pairs in lines of memory; if these are not the tile's,
// pairs are transposed.
inline void lay_out_step(std::byte* out, const HalfOperand& o, int64_t width, int64_t steps,
                         bool by_steps, HalfExtremes& extremes) {
  const bool along = o.along == 1;
  const auto mask = static_cast<__mmask32>((uint64_t{1} << (along ? steps : width)) - 1);
  const __m512i pairs = _mm512_load_si512(kHalfPairs);
  const auto half_line = [&](int64_t p) {
    return p < steps ? _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), o.x + p * o.along)
                     : _mm256_setzero_si256();
  };
  Vector<float> lines[16];
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) {
    __m512i line = _mm512_setzero_si512();
    if (!along)
      line = _mm512_inserti64x4(_mm512_castsi256_si512(half_line(i)), half_line(i + 16), 1);
    else if (i < width)
      line = _mm512_maskz_loadu_epi16(mask, o.x + i * o.across);
    extremes.see(line);
    lines[i] = (Vector<float>)_mm512_permutexvar_epi16(pairs, line);
  }
  if (along == by_steps) transpose_square(lines);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i)
    store(reinterpret_cast<float*>(out + i * kVectorBytes), lines[i]);
}

inline Exponents lay_out_strips(std::byte* out, const HalfOperand& o, int64_t width, int64_t steps,
                                bool by_steps) {
  HalfExtremes extremes;
  for_strips<1>(out, o, width, steps,
                [&](std::byte* to, const HalfOperand& from, int64_t lines, int64_t length) {
                  lay_out_step(to, from, lines, length, by_steps, extremes);
                });
  return extremes.exponents();
}

#endif

}  // namespace needle::NEEDLE_ISA
