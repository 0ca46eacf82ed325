// Products of float32 by the matrix unit AMX. It has eight tiles of 16
// lines of 64 bytes, and adds the product of two tiles of bfloat16 to one of float32 with sixteen
// times the multiplications that the vectors have; six of them make one of float32 (split.h),
// one is enough where all numbers are bfloat16.
#pragma once
#include "gemm/unit.h"

#if defined(__AVX512F__) && defined(NEEDLE_ASSEMBLES_AMX)
#define NEEDLE_AMX 1

namespace needle::NEEDLE_ISA {

// The unit, for as long as this lives. (Beyond that its state would be saved at each change of
// threads.)
class MatrixUnit {
 public:
  MatrixUnit() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t line_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t lines[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const tiles;
    asm volatile("ldtilecfg %0" ::"m"(tiles));
  }
  ~MatrixUnit() { asm volatile("tilerelease"); }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

template <int tile>
inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
template <int tile>
inline void load_tile(const std::byte* from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(int64_t{64}), "i"(tile) : "memory");
}
template <int tile>
inline void store_tile(float* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(tile) : "memory");
}
template <int sum, int a, int b>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}

// Tiles 0 to 3 are sums, 4 and 5 parts of a, 6 and 7 of b.
constexpr int kSums = 4, kA = 4, kB = 6;
constexpr int64_t kTileNumbers = kStripWidth * kStripWidth;

// A product of tiles begins a sum, after the previous sum was stored.
template <bool begins, int sum, int a, int b>
inline void add_product(float* sums) {
  if constexpr (begins) {
    store_tile<sum>(sums + sum * kTileNumbers);
    clear_tile<sum>();
  }
  multiply_tiles<sum, a, b>();
}

// If there are less than four sums, each is kept in several copies, because a product waits for the
// one before it; but of numbers in one part, a step has only one product for each.
template <int rows, int columns, int n_parts>
constexpr int kCopies = n_parts == 1 ? 1 : kSums / (rows * columns);

// `turn` numbers the products of parts.
template <int rows, int columns, int turn, bool first_step, int n_parts>
inline void multiply_parts(float* sums) {
  constexpr int kOfSum = kCopies<rows, columns, n_parts>, kFirst = turn % kOfSum * rows * columns;
  constexpr bool begins = first_step && turn < kOfSum;
  add_product<begins, kFirst, kA, kB>(sums);
  if constexpr (columns == 2) add_product<begins, kFirst + 1, kA, kB + 1>(sums);
  if constexpr (rows == 2) add_product<begins, kFirst + columns, kA + 1, kB>(sums);
  if constexpr (rows == 2 && columns == 2) add_product<begins, kFirst + 3, kA + 1, kB + 1>(sums);
}
template <int strips, int first, int part>
inline void load_parts(const std::byte* x, int64_t strip_bytes) {
  load_tile<first>(x + (part - 1) * kUnitTileBytes);
  if constexpr (strips == 2) load_tile<first + 1>(x + strip_bytes + (part - 1) * kUnitTileBytes);
}

// kStripSteps steps of strips of a and b, `strip_bytes` apart.
template <int rows, int columns, int n_parts, bool first>
inline void multiply_step(const std::byte* a, const std::byte* b, int64_t strip_bytes,
                          float* sums) {
  if constexpr (n_parts == 1) {
    load_parts<rows, kA, 1>(a, strip_bytes);
    load_parts<columns, kB, 1>(b, strip_bytes);
    multiply_parts<rows, columns, 0, first, n_parts>(sums);
    return;
  }
  load_parts<rows, kA, 3>(a, strip_bytes);
  load_parts<columns, kB, 1>(b, strip_bytes);
  multiply_parts<rows, columns, 0, first, n_parts>(sums);
  load_parts<rows, kA, 2>(a, strip_bytes);
  multiply_parts<rows, columns, 1, first, n_parts>(sums);
  load_parts<columns, kB, 2>(b, strip_bytes);
  multiply_parts<rows, columns, 2, first, n_parts>(sums);
  load_parts<rows, kA, 1>(a, strip_bytes);
  multiply_parts<rows, columns, 3, first, n_parts>(sums);
  load_parts<columns, kB, 3>(b, strip_bytes);
  multiply_parts<rows, columns, 4, first, n_parts>(sums);
  load_parts<columns, kB, 1>(b, strip_bytes);
  multiply_parts<rows, columns, 5, first, n_parts>(sums);
}

// Writes the content of tiles, some rows at a time, from `row` on.
template <int rows, int columns, int n_parts>
inline void write_sums(const float* sums, const UnitResult& out, int64_t row, int64_t end) {
  constexpr int64_t kCopy = rows * columns * kTileNumbers;
  const Tail<float> halves[2] = {Tail<float>(least(16, out.width)),
                                 Tail<float>(most(0, out.width - 16))};
  for (int64_t i = row; i < least(end, out.height); ++i)
#pragma GCC unroll 2
    for (int64_t j = 0; j < columns; ++j) {
      const float* sum = sums + (i / 16 * columns + j) * kTileNumbers + i % 16 * 16;
      float* to = out.c + i * out.c_row + j * 16;
      Vector<float> total = load(sum);
#pragma GCC unroll 3
      for (int64_t copy = 1; copy < kCopies<rows, columns, n_parts>; ++copy)
        total += load(sum + copy * kCopy);
      halves[j].store(to, out.add ? total + halves[j].load(to) : total);
    }
}

// One or two strips of a times all of b: `out` is what they give. After a pause the unit is slow
// for a while, so sums are stored one by one while the next are computed, and written later, some
// with each step. After more than five steps without a store, even the shortest pause makes it
// slow, so every kBreak steps something is stored that nobody reads.
template <int rows, int columns, int n_parts>
void multiply_strips(const std::byte* a, const std::byte* b, int64_t steps, const UnitResult& out) {
  constexpr int64_t kBreak = 4, kWidth = columns * kStripWidth;
  const int64_t strip_bytes = steps * kStripBytes<n_parts>,
                rows_per_step = parts(out.height, steps);
  alignas(64) float sums[kSums * kTileNumbers], unused[kTileNumbers];
  UnitResult before = {};
  for (int64_t j = 0; j < out.width; j += kWidth, b += columns * strip_bytes) {
    const UnitResult now = out.columns(j, kWidth);
    multiply_step<rows, columns, n_parts, true>(a, b, strip_bytes, sums);
    for (int64_t p = 1; p <= steps; ++p) {
      write_sums<rows, columns, n_parts>(sums, before, (p - 1) * rows_per_step, p * rows_per_step);
      if (p == steps) break;
      const int64_t at = p * kStripBytes<n_parts>;
      multiply_step<rows, columns, n_parts, false>(a + at, b + at, strip_bytes, sums);
      if (p % kBreak == 0) store_tile<kA>(unused);
    }
    before = now;
  }
  store_tile<0>(sums);
  store_tile<1>(sums + kTileNumbers);
  store_tile<2>(sums + 2 * kTileNumbers);
  store_tile<3>(sums + 3 * kTileNumbers);
  write_sums<rows, columns, n_parts>(sums, before, 0, before.height);
}

// Multiplies the operands that UnitMultiplier has laid out.
template <int n_parts>
struct MatrixUnitParts {
  static constexpr int kParts = n_parts;
  static constexpr double kPerCycle = n_parts == 1 ? 300 : 70, kPause = 4000;
  const MatrixUnit unit = {};

  template <int rows, int columns>
  static void multiply(const std::byte* a, const std::byte* b, int64_t steps,
                       const UnitResult& out) {
    multiply_strips<rows, columns, n_parts>(a, b, steps, out);
  }
};

}  // namespace needle::NEEDLE_ISA

#endif
