// Sums, products and extremes (and any, all as maximum and minimum of truth) of rows and strips.
#pragma once
#include "reduce/reduce.h"

namespace needle::NEEDLE_ISA {

// One instruction sums eight unsigned bytes at a time; signed ones are summed as 128 more.
inline int64_t sum_bytes(const uint8_t* x, int64_t n, bool is_signed) {
  const uint8_t flipped = is_signed ? 128 : 0;
  int64_t total = 0, i = 0;
#if defined(__AVX2__)
  __m256i sums = _mm256_setzero_si256();
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(flipped));
  for (; i + 32 <= n; i += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i whole = _mm256_xor_si256(bytes, flip);
    sums = _mm256_add_epi64(sums, _mm256_sad_epu8(whole, _mm256_setzero_si256()));
  }
  for (int lane = 0; lane < 4; ++lane) total += ((__v4di)sums)[lane];
#elif defined(__SSE2__)
  __m128i sums = _mm_setzero_si128();
  const __m128i flip = _mm_set1_epi8(static_cast<char>(flipped));
  for (; i + 16 <= n; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    sums = _mm_add_epi64(sums, _mm_sad_epu8(_mm_xor_si128(bytes, flip), _mm_setzero_si128()));
  }
  total = ((__v2di)sums)[0] + ((__v2di)sums)[1];
#endif
  for (; i < n; ++i) total += static_cast<uint8_t>(x[i] ^ flipped);
  return total - flipped * n;
}

template <int32_t op, class A>
A fold_row(const State<A>& s, const void* x, int64_t origin, int64_t begin, int64_t end) {
  if (s.dense && s.reduced.count <= 1)
    return fold_dense<op>(as<A>(x) + origin + begin, end - begin, s.order);
  const bool adjacent = s.reduced.count == 0 || s.reduced.axis[s.reduced.count - 1].x == 1;
  if constexpr (op == kSum && std::is_same_v<A, int64_t>) {
    if (adjacent && s.x_size == 1) {
      A total = 0;
      for_stretches(s, origin, begin, end, [&](int64_t at, int64_t n, int64_t, int64_t) {
        total += sum_bytes(as<uint8_t>(x) + at, n, s.dtype == kInt8);
      });
      return total;
    }
  }
  if (end - begin > kBlock) {
    const int64_t half = middle(begin, end, kBlock);
    const A left = fold_row<op>(s, x, origin, begin, half);
    return combine<op>(left, fold_row<op>(s, x, origin, half, end));
  }
  A total = identity<op, A>();
  if constexpr ((op == kSum || op == kProd) && std::is_same_v<A, float>) {
    if (adjacent && s.dtype == kBFloat16) {
      for_stretches(s, origin, begin, end, [&](int64_t at, int64_t n, int64_t, int64_t) {
        total = combine<op>(total, fold_bfloat16<op>(as<uint16_t>(x) + at, n));
      });
      return total;
    }
  }
  for_numbers(s, x, origin, begin, end, [&](const A* element, int64_t n, int64_t) {
    total = combine<op>(total, fold_dense<op>(element, n, s.order));
  });
  return total;
}

// Vectors by hand: of the comparisons that maxima need the compiler makes scalar code.
template <int32_t op, class A>
void combine_into(A* total, const A* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>)
    store(total + i, combine<op>(load(total + i), load(x + i)));
  for (; i < n; ++i) total[i] = combine<op>(total[i], x[i]);
}

// Four rows at a time, because the totals are read and written once for all of them.
template <int32_t op, class A>
void combine_four_into(A* total, const A* x0, const A* x1, const A* x2, const A* x3, int64_t n) {
  const auto tree = [](auto t, auto a, auto b, auto c, auto d) {
    return combine<op>(t, combine<op>(combine<op>(a, b), combine<op>(c, d)));
  };
  int64_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>)
    store(total + i, tree(load(total + i), load(x0 + i), load(x1 + i), load(x2 + i), load(x3 + i)));
  for (; i < n; ++i) total[i] = tree(total[i], x0[i], x1[i], x2[i], x3[i]);
}

template <int32_t op, class A>
void fold_strip(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                A* total) {
  A other[kStrip];
  if (end - begin > kRows) {
    const int64_t half = middle(begin, end, kRows);
    fold_strip<op>(s, x, unit, begin, half, total);
    fold_strip<op>(s, x, unit, half, end, other);
    combine_into<op>(total, other, unit.width);
    return;
  }
  for (int64_t j = 0; j < unit.width; ++j) total[j] = identity<op, A>();
  const auto row = [&](int64_t i) {
    const int64_t offset = unit.x + s.reduced.at(i).x;
    return fetch(s, x, offset, unit.width, s.strip.x, other);
  };
  int64_t i = begin;
  for (; s.dense && i + 4 <= end; i += 4)
    combine_four_into<op>(total, row(i), row(i + 1), row(i + 2), row(i + 3), unit.width);
  for (; i < end; ++i) combine_into<op>(total, row(i), unit.width);
}

template <int32_t op, class A, int64_t most_results>
struct Fold : ReadsMemory {
  using Part = Totals<A, most_results>;
  static void fold(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                   Part& part) {
    if constexpr (most_results == 1)
      *part.total = fold_row<op>(s, x, unit.x, begin, end);
    else
      fold_strip<op>(s, x, unit, begin, end, part.total);
  }
  // Rows a quarter of the way from begin to end apart.
  static int64_t fold_apart(const State<A>& s, const void* x, void* out, int64_t begin,
                            int64_t end) {
    const int64_t step = (end - begin) / 4;
    if (s.reduced.count > 1 || s.length < kRun / 4 || s.length > 4 * kRun) return begin;
    for (int64_t i = begin; i < begin + step; ++i) {
      const A* at[4];
      A total[4];
      Unit row[4];
      for (int64_t k = 0; k < 4; ++k) {
        row[k] = unit_at(s, i + k * step);
        at[k] = as<A>(x) + row[k].x;
      }
      fold_four_dense<op>(at, s.length, total);
      for (int64_t k = 0; k < 4; ++k) {
        Part part;
        *part.total = total[k];
        finish(s, out, x, row[k], part);
      }
    }
    return begin + 4 * step;
  }
  static void join(Part& part, const Part& later, int64_t width) {
    combine_into<op>(part.total, later.total, width);
  }
  static void finish(const State<A>& s, void* out, const void*, const Unit& unit, Part& part) {
    if (s.mean)
      for (int64_t j = 0; j < unit.width; ++j) part.total[j] /= static_cast<A>(s.length);
    write_unit(s, out, unit, part.total);
  }
};

}  // namespace needle::NEEDLE_ISA
