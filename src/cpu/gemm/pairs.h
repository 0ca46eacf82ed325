// Products of bfloat16 by vectors: an instruction adds to each float32 the products of two pairs of
// bfloat16, on some processors twice the multiplications of float32 (multiplies_pairs). Operands
// are laid out as for the matrix unit: a line of a's tile is a row's pairs, one of b's a pair of 16
// columns.
#pragma once
#include "gemm/unit.h"

#if defined(__AVX512F__) && defined(NEEDLE_ASSEMBLES_AMX)
#define NEEDLE_PAIRS 1

namespace needle::NEEDLE_ISA {

inline void add_pairs(Vector<float>& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

constexpr int kPairRows = 8;  // 16 sums, of two strips of columns

// kPairRows rows of a strip of a times strips of b, which are `strip_bytes` long.
template <int columns>
inline void sum_pairs(Vector<float> (&sum)[kPairRows][columns], const std::byte* a,
                      const std::byte* b, int64_t strip_bytes) {
  for (const std::byte* end = a + strip_bytes; a < end; a += kUnitTileBytes) {
#pragma GCC unroll 2
    for (int64_t q = 0; q < kStripSteps / 2; ++q, b += kVectorBytes) {
      __m512i column[columns];
#pragma GCC unroll 2
      for (int64_t j = 0; j < columns; ++j) column[j] = _mm512_load_si512(b + j * strip_bytes);
#pragma GCC unroll 8
      for (int64_t i = 0; i < kPairRows; ++i) {
        const __m512i pair = _mm512_set1_epi32(as<int32_t>(a + i * kVectorBytes)[q]);
#pragma GCC unroll 2
        for (int64_t j = 0; j < columns; ++j) add_pairs(sum[i][j], pair, column[j]);
      }
    }
  }
}

template <int columns>
inline void multiply_pair_rows(const std::byte* a, const std::byte* b, int64_t strip_bytes,
                               const UnitResult& out) {
  Vector<float> sum[kPairRows][columns] = {};
  sum_pairs<columns>(sum, a, b, strip_bytes);
  const Tail<float> halves[2] = {Tail<float>(least(16, out.width)),
                                 Tail<float>(most(0, out.width - 16))};
#pragma GCC unroll 8
  for (int64_t i = 0; i < kPairRows; ++i) {
    if (i >= out.height) return;
#pragma GCC unroll 2
    for (int64_t j = 0; j < columns; ++j) {
      float* to = out.c + i * out.c_row + j * 16;
      halves[j].store(to, out.add ? sum[i][j] + halves[j].load(to) : sum[i][j]);
    }
  }
}

struct PairUnit {
  static constexpr int kParts = 1;
  static constexpr double kPerCycle = 60, kPause = 0;

  // Strips of b stay in the first cache while those of a pass.
  template <int rows, int columns>
  static void multiply(const std::byte* a, const std::byte* b, int64_t steps,
                       const UnitResult& out) {
    const int64_t strip_bytes = steps * kStripBytes<kParts>, width = columns * kStripWidth;
    for (int64_t j = 0; j < out.width; j += width, b += columns * strip_bytes)
      for (int64_t i = 0; i < out.height; i += kPairRows) {
        const UnitResult part = {out.c + i * out.c_row + j, out.c_row, out.height - i,
                                 least(width, out.width - j), out.add};
        multiply_pair_rows<columns>(
            a + i / kStripWidth * strip_bytes + i % kStripWidth * kVectorBytes, b, strip_bytes,
            part);
      }
  }
};

}  // namespace needle::NEEDLE_ISA

#endif
