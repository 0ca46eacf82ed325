// Neighbouring lines side by side: element i of line j of a strip is strip[i * width + j]. What
// depends on the element before then does so in each of the lines, which a vector holds.
#pragma once
#include <utility>

#include "base/axes.h"
#include "base/convert.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {

template <class V>
using ElementOf = std::decay_t<decltype(std::declval<V>()[0])>;

// Lanes of two vectors a and b one after another: of each pair of neighbours `width` lanes wide
// either the first ones of both, or the second ones. V is a vector or a part of one.
template <class V, int width, bool second, int... lane>
inline void choose(V& out, const V& a, const V& b, std::integer_sequence<int, lane...>) {
  using Lane = std::conditional_t<sizeof(ElementOf<V>) == 8, int64_t, int32_t>;
  typedef Lane Lanes __attribute__((vector_size(sizeof(V))));
  constexpr int kCount = sizeof...(lane), kMoved = second ? width : 0;
  const Lanes chosen = {Lane(lane & width ? kCount + lane - width + kMoved : lane + kMoved)...};
  out = __builtin_shuffle(a, b, chosen);
}

// rows, as many as lanes, becomes its transpose.
template <class V, int width = 1>
inline void turn(V* rows) {
  constexpr int kCount = sizeof(V) / sizeof(ElementOf<V>);
  if constexpr (width < kCount) {
    constexpr std::make_integer_sequence<int, kCount> kAll;
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      if (i & width) continue;
      const V a = rows[i], b = rows[i + width];
      choose<V, width, false>(rows[i], a, b, kAll);
      choose<V, width, true>(rows[i + width], a, b, kAll);
    }
    turn<V, 2 * width>(rows);
  }
}

constexpr int64_t kChunk = 64;  // elements of a line at a time

// n elements, `stride` apart, of kLanes<A> lines, of which each begins so many elements from x.
template <class A>
void read_lines(A* strip, Read<A> read, int64_t size, const void* x, const int64_t* lines,
                int64_t n, int64_t stride) {
  constexpr int64_t kWidth = kLanes<A>;
  A row[kWidth][kChunk] = {};
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = least(n - i, kChunk);
    for (int64_t r = 0; r < kWidth; ++r)
      read(row[r], byte_offset(x, (lines[r] + i * stride) * size), count, stride);
    for (int64_t j = 0; j < count; j += kWidth) {
      Vector<A> square[kWidth];
      for (int64_t r = 0; r < kWidth; ++r) square[r] = load(row[r] + j);
      turn(square);
      for (int64_t k = 0; k < least(kWidth, count - j); ++k)
        store(strip + (i + j + k) * kWidth, square[k]);
    }
  }
}

template <class A>
void write_run(Write<A> write, int64_t size, void* out, const A* x, int64_t n, int64_t stride) {
  if (stride == 1) return write(out, x, n);
  for (int64_t i = 0; i < n; ++i) write(byte_offset(out, i * stride * size), x + i, 1);
}

// The same back, of the first `used` lines.
template <class A>
void write_lines(const A* strip, Write<A> write, int64_t size, void* out, const int64_t* lines,
                 int64_t used, int64_t n, int64_t stride) {
  constexpr int64_t kWidth = kLanes<A>;
  A row[kWidth][kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = least(n - i, kChunk);
    for (int64_t j = 0; j < count; j += kWidth) {
      Vector<A> square[kWidth];
      for (int64_t k = 0; k < kWidth; ++k)
        square[k] = load(strip + (i + least(j + k, count - 1)) * kWidth);
      turn(square);
      for (int64_t r = 0; r < kWidth; ++r) store(row[r] + j, square[r]);
    }
    for (int64_t r = 0; r < used; ++r)
      write_run(write, size, byte_offset(out, (lines[r] + i * stride) * size), row[r], count,
                stride);
  }
}

}  // namespace needle::NEEDLE_ISA
