// Products by instructions for bfloat16: of float32 in parts (split.h), or of bfloat16.
#pragma once
#include "gemm/blocks.h"
#include "gemm/split.h"

#if defined(__AVX512F__)

namespace needle::NEEDLE_ISA {

// Where sums go: rows c_row apart.
struct UnitResult {
  float* c;
  int64_t c_row, height, width;
  bool add;

  UnitResult columns(int64_t j, int64_t most_columns) const {
    return {c + j, c_row, height, least(most_columns, width - j), add};
  }
};

// As Multiplier, in parts of numbers, by a unit that has kParts of them, and multiply<rows,
// columns>(): one or two strips of a times all of b, strips of it one or two at a time. It computes
// kPerCycle products in a cycle, where vectors compute 32, and begins in kPause cycles. Rows and
// columns whose numbers are too small or too large for that are multiplied by vectors.
template <class Unit>
class UnitMultiplier {
  static constexpr int n_parts = Unit::kParts;

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

  void multiply_panel(const std::byte* a, int64_t i, int64_t height) {
    multiply_strips(a, i, height);
    o_.finish(i, height, block_.j_begin, block_.j_end - block_.j_begin, block_.p + block_.k);
  }

  // The last strip of b may be one alone.
  void multiply_strips(const std::byte* a, int64_t i, int64_t height) {
    const int64_t steps = parts(block_.k, kStripSteps), width = block_.j_end - block_.j_begin;
    const int64_t whole = round_up(width, kStripWidth) / kColumns * kColumns;
    const UnitResult out = {o_.c + i * o_.c_row + block_.j_begin, o_.c_row, height,
                            least(width, whole), block_.p > 0 || s_.add};
    const UnitResult rest = {out.c + whole, o_.c_row, height, width - whole, out.add};
    if (whole > 0) {
      if (height > kStripWidth)
        Unit::template multiply<2, 2>(a, packed_b_, steps, out);
      else
        Unit::template multiply<1, 2>(a, packed_b_, steps, out);
    }
    if (rest.width <= 0) return;
    const std::byte* b = packed_b_ + whole / kStripWidth * steps * kStripBytes<n_parts>;
    if (height > kStripWidth)
      Unit::template multiply<2, 1>(a, b, steps, rest);
    else
      Unit::template multiply<1, 1>(a, b, steps, rest);
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
  const Unit unit_ = {};
};

}  // namespace needle::NEEDLE_ISA

#endif
