// Products of float32 by the matrix unit of Intel's processors (AMX). It has eight tiles of 16
// lines of 64 bytes, and adds the product of two tiles of bfloat16 to one of float32 with sixteen
// times the multiplications that the vectors have; six of them make one of float32 (gemm_split.h),
// one is enough where all numbers are bfloat16.
#pragma once
#include "gemm_blocks.h"
#include "gemm_split.h"

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

// A product of tiles begins a sum; what it was before is stored.
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

// Where sums go: rows c_row apart.
struct UnitResult {
  float* c;
  int64_t c_row, height, width;
  bool add;

  UnitResult columns(int64_t j, int64_t most_columns) const {
    return {c + j, c_row, height, least(most_columns, width - j), add};
  }
};

// Writes what tiles hold, some rows at a time: from `row` on.
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

// One or two strips of a times all of b: `out` is what they give. When the unit goes on after a
// while, it is slow for a quarter of a microsecond (Intel Granite Rapids), so sums are stored one
// by one while the next are computed, and written later, some with each step. After more than five
// steps without a store, even the shortest pause made it slow (a tile of 256 steps took 1.3 of the
// time): every kBreak steps something is stored that nobody reads.
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

// As Multiplier, in parts of numbers. Rows and columns whose numbers are too small or too large for
// that are multiplied by vectors.
template <int n_parts>
class UnitMultiplier {
 public:
  using Element = float;
  static constexpr int64_t kRows = 2 * kStripWidth, kColumns = 2 * kStripWidth;
  static constexpr bool kReadsHalves = n_parts == 1;

  UnitMultiplier(const Blocking& s, const Product<float>& o)
      : s_(s),
        o_(o),
        by_vectors_{s.block_m,     s.block_n, s.block_k,           kPackedBefore,
                    kPackedBefore, false,     kTileColumns<float>, false},
        product_by_vectors_(o),
        vectors_(by_vectors_, product_by_vectors_),
        packed_a_(reinterpret_cast<std::byte*>(o.packed_a)),
        packed_b_(reinterpret_cast<std::byte*>(o.packed_b)) {
    product_by_vectors_.packed_a = o.packed_b + packed_b(s);
    product_by_vectors_.packed_b = product_by_vectors_.packed_a + packed_rows(s);
  }

  // What it wants as packed_a and packed_b, and behind these for the vectors' operands; in
  // elements.
  static int64_t packed_a(const Blocking& s) {
    return parts(s.keep_a ? s.block_m : kRows, kRows) * panel_bytes(s.block_k) / kFloatBytes;
  }
  static int64_t packed_b(const Blocking& s) {
    return parts(s.block_n, kStripWidth) * strip_bytes(s.block_k) / kFloatBytes;
  }
  static int64_t packed_for_vectors(const Blocking& s) {
    return packed_rows(s) + round_up(s.block_n, kTileColumns<float>) * s.block_k;
  }

  void begin(const Block& slab) { slab_ = slab; }

  void multiply(const Block& block, bool own) {
    has_b_ = has_b_ && block.j_begin == block_.j_begin && block.p == block_.p;
    block_ = block;
    if (!has_b_) pack_b();
    for (int64_t i = block.i_begin; i < block.i_end; i += kRows) {
      const int64_t height = least(kRows, block.i_end - i);
      const Panel* a = packed_panel(i, height, own);
      if (a->exponents.fit(b_exponents_))
        multiply_panel(a->strips, i, height);
      else if (o_.unfit)
        *o_.unfit = true;
      else
        vectors_.multiply({i, i + height, block.j_begin, block.j_end, block.p, block.k}, false);
    }
  }

 private:
  // Up to two strips of a.
  struct Panel {
    alignas(64) Exponents exponents;
    alignas(64) std::byte strips[1];  // or more
  };
  static constexpr int64_t kFloatBytes = sizeof(float);
  static int64_t strip_bytes(int64_t k) { return parts(k, kStripSteps) * kStripBytes<n_parts>; }
  static int64_t panel_bytes(int64_t k) { return offsetof(Panel, strips) + 2 * strip_bytes(k); }
  static int64_t packed_rows(const Blocking& s) { return round_up(kTileRows * s.block_k, 16); }

  void pack_b() {
    const int64_t at = block_.p * o_.b_strides.row + block_.j_begin * o_.b_strides.column;
    const int64_t width = block_.j_end - block_.j_begin;
    const Strides by = o_.b_strides;
    b_exponents_ = o_.half_b ? lay_out_strips(packed_b_, {o_.half_b + at, by.column, by.row}, width,
                                              block_.k, true)
                             : split_strips<n_parts>(packed_b_, {o_.b + at, by.column, by.row},
                                                     width, block_.k, true);
    has_b_ = true;
  }

  // A thread's own panels are packed for the first block of columns, and kept.
  const Panel* packed_panel(int64_t i, int64_t height, bool own) {
    const bool kept = s_.keep_a && own;
    const int64_t number = kept ? (i - slab_.i_begin) / kRows : 0;
    auto* panel = reinterpret_cast<Panel*>(packed_a_ + number * panel_bytes(block_.k));
    if (kept && block_.j_begin > 0) return panel;
    const int64_t at = i * o_.a_strides.row + block_.p * o_.a_strides.column;
    const Strides by = o_.a_strides;
    panel->exponents = o_.half_a
                           ? lay_out_strips(panel->strips, {o_.half_a + at, by.row, by.column},
                                            height, block_.k, false)
                           : split_strips<n_parts>(panel->strips, {o_.a + at, by.row, by.column},
                                                   height, block_.k, false);
    return panel;
  }

  // The last strip of b may be one alone.
  void multiply_panel(const std::byte* a, int64_t i, int64_t height) {
    const int64_t steps = parts(block_.k, kStripSteps), width = block_.j_end - block_.j_begin;
    const int64_t whole = round_up(width, kStripWidth) / kColumns * kColumns;
    const UnitResult out = {o_.c + i * o_.c_row + block_.j_begin, o_.c_row, height,
                            least(width, whole), block_.p > 0};
    const UnitResult rest = {out.c + whole, o_.c_row, height, width - whole, out.add};
    if (whole > 0) {
      if (height > kStripWidth)
        multiply_strips<2, 2, n_parts>(a, packed_b_, steps, out);
      else
        multiply_strips<1, 2, n_parts>(a, packed_b_, steps, out);
    }
    if (rest.width <= 0) return;
    const std::byte* b = packed_b_ + whole / kStripWidth * steps * kStripBytes<n_parts>;
    if (height > kStripWidth)
      multiply_strips<2, 1, n_parts>(a, b, steps, rest);
    else
      multiply_strips<1, 1, n_parts>(a, b, steps, rest);
  }

  const Blocking& s_;
  const Product<float>& o_;
  const Blocking by_vectors_;
  Product<float> product_by_vectors_;
  Multiplier<float> vectors_;
  std::byte *const packed_a_, *const packed_b_;
  Block slab_ = {}, block_ = {};
  bool has_b_ = false;
  Exponents b_exponents_;
  const MatrixUnit unit_;
};

}  // namespace needle::NEEDLE_ISA

#endif
