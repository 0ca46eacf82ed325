// Packing: operands laid out in the order in which tiles read them.
#pragma once
#include "base/axes.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kPackedAhead = 8;  // steps

template <class T>
struct FourOf {
  typedef T type __attribute__((vector_size(4 * sizeof(T))));
};

// out[j * pitch + i] = x[i * stride + j] for i, j in 0..3.
template <class T>
inline void transpose_4x4(T* out, int64_t pitch, const T* x, int64_t stride) {
  using Four = typename FourOf<T>::type;
  Four row[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&row[i], x + i * stride, sizeof(Four));
  const Four low02 = __builtin_shufflevector(row[0], row[2], 0, 4, 1, 5);
  const Four low13 = __builtin_shufflevector(row[1], row[3], 0, 4, 1, 5);
  const Four high02 = __builtin_shufflevector(row[0], row[2], 2, 6, 3, 7);
  const Four high13 = __builtin_shufflevector(row[1], row[3], 2, 6, 3, 7);
  const Four column[4] = {__builtin_shufflevector(low02, low13, 0, 4, 1, 5),
                          __builtin_shufflevector(low02, low13, 2, 6, 3, 7),
                          __builtin_shufflevector(high02, high13, 0, 4, 1, 5),
                          __builtin_shufflevector(high02, high13, 2, 6, 3, 7)};
  for (int j = 0; j < 4; ++j) std::memcpy(out + j * pitch, &column[j], sizeof(Four));
}

#if defined(__AVX512F__)
// In each quarter of a and b: the first halves or the second ones, by numbers or by pairs of them.
inline Vector<float> first_numbers(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
inline Vector<float> second_numbers(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
inline Vector<float> first_pairs(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
inline Vector<float> second_pairs(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
// Every other quarter of a and b.
inline Vector<float> even_quarters(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
inline Vector<float> odd_quarters(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

inline void transpose_square(Vector<float> (&x)[16]) {
  Vector<float> y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = first_numbers(x[i], x[i + 1]);
    y[i + 1] = second_numbers(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // x[i + j]: column j of each quarter, lines i to i + 3
    x[i] = first_pairs(y[i], y[i + 2]);
    x[i + 1] = second_pairs(y[i], y[i + 2]);
    x[i + 2] = first_pairs(y[i + 1], y[i + 3]);
    x[i + 3] = second_pairs(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Vector<float> even0 = even_quarters(x[j], x[j + 4]);
    const Vector<float> odd0 = odd_quarters(x[j], x[j + 4]);
    const Vector<float> even8 = even_quarters(x[j + 8], x[j + 12]);
    const Vector<float> odd8 = odd_quarters(x[j + 8], x[j + 12]);
    x[j] = even_quarters(even0, even8);
    x[j + 4] = even_quarters(odd0, odd8);
    x[j + 8] = odd_quarters(even0, even8);
    x[j + 12] = odd_quarters(odd0, odd8);
  }
}

#endif

// Stores the lanes of `part` at `to`. Without masks a whole vector takes less time: it is stored if
// it ends before `end`, where all that follows is zero or stored later.
template <class T>
inline void store_lanes(T* to, const T* end, const Vector<T>& v, const Tail<T>& part) {
  if (!kMaskedLoads && end - to >= kLanes<T>)
    store(to, v);
  else
    part.store(to, v);
}

#if defined(__AVX2__)
// As pack_transposed, for as many lines as a vector has lanes, or fewer. Reads a whole line of the
// cache at a time with AVX-512: lines that lie far apart may evict each other before the next.
inline void pack_lines(float* __restrict out, int64_t pitch, const float* x, int64_t lines,
                       int64_t stride, int64_t steps) {
  constexpr int64_t kWidth = kLanes<float>;
  const Tail<float> width(lines);
  const float* end = out + (steps - 1) * pitch + (pitch > kWidth ? kWidth : pitch);
  for (int64_t p = 0; p < steps; p += kWidth) {
    const int64_t n = steps - p < kWidth ? steps - p : kWidth;
    Vector<float> block[kWidth];
#if defined(__AVX512F__)
    const Tail<float> length(n);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWidth; ++i)
      block[i] = length.load(x + (i < lines ? i : lines - 1) * stride + p);
    transpose_square(block);
#else
    static constexpr float kNone[kWidth] = {};
    const auto line = [&](int64_t i) { return i < lines ? x + i * stride + p : kNone; };
    if (n == kWidth) {
      load_transposed(block, line);
    } else {
      float rest[kWidth][kWidth];
      for (int64_t i = 0; i < kWidth; ++i) std::memcpy(rest[i], line(i), n * sizeof(float));
      load_transposed(block, [&](int64_t i) { return rest[i]; });
    }
#endif
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWidth; ++i)
      if (i < n) store_lanes(out + (p + i) * pitch, end, block[i], width);
  }
}
#endif

// The lines of x become columns of out. Few lines and few steps at a time, so that neither the
// lines nor the part of out evict each other from the cache.
template <class T>
void pack_transposed(T* __restrict out, int64_t pitch, const T* x, int64_t lines, int64_t stride,
                     int64_t steps) {
  constexpr int64_t kSteps = 64;
#if defined(__AVX2__)
  if constexpr (std::is_same_v<T, float>) {
    constexpr int64_t kWidth = kLanes<T>;
    for (; lines >= kWidth / 2; lines -= kWidth, out += kWidth, x += kWidth * stride)
      pack_lines(out, pitch, x, lines < kWidth ? lines : kWidth, stride, steps);
    if (lines <= 0) return;
  }
#endif
  for (int64_t begin = 0; begin < steps; begin += kSteps) {
    const int64_t end = begin + kSteps < steps ? begin + kSteps : steps;
    int64_t i = 0;
    for (; i < lines && lines >= 4; i += 4) {
      const int64_t line = i + 4 <= lines ? i : lines - 4;  // the last four may be copied twice
      int64_t p = begin;
      for (; p + 4 <= end; p += 4)
        transpose_4x4(out + p * pitch + line, pitch, x + line * stride + p, stride);
      for (; p < end; ++p)
        for (int64_t j = line; j < line + 4; ++j) out[p * pitch + j] = x[j * stride + p];
    }
    for (; i < lines; ++i)
      for (int64_t p = begin; p < end; ++p) out[p * pitch + i] = x[i * stride + p];
  }
}

// out[p * pitch + i] = x[p * stride + i] for n_inner elements of n_outer lines, behind which lie as
// many as `later`, which are packed after them. Where these lines follow, a part of a vector is
// read and stored together with what lies behind it, which the next line overwrites: masks and
// parts of vectors are slower.
template <class T>
void pack_lines_in_order(T* __restrict out, int64_t pitch, const T* x, int64_t n_inner,
                         int64_t n_outer, int64_t stride, int64_t later) {
  constexpr int64_t kWidth = kLanes<T>;
  const int64_t whole = n_inner / kWidth * kWidth, vectors = (n_inner + kWidth - 1) / kWidth;
  const int64_t spilt_over = (vectors * kWidth + pitch - 1) / pitch;  // lines from its own on
  const bool spills = !kMaskedLoads && pitch == n_inner && stride >= kWidth;
  const int64_t wide = spills ? least(n_outer, n_outer + later - spilt_over) : 0;
  int64_t p = 0;
  for (; p < wide; ++p) {
    const T* from = x + p * stride;
    __builtin_prefetch(from + kPackedAhead * stride);
    store(out + p * pitch, load(from));
    for (int64_t i = kWidth; i < n_inner; i += kWidth) store(out + p * pitch + i, load(from + i));
  }
  if (p == n_outer) return;
  const Tail<T> tail(n_inner - whole);
  const T* end = out + (n_outer + later) * pitch;
  for (; p < n_outer; ++p) {
    const T* from = x + p * stride;
    T* to = out + p * pitch;
    __builtin_prefetch(from + kPackedAhead * stride);
    for (int64_t i = 0; i < whole; i += kWidth) store(to + i, load(from + i));
    if (whole < n_inner) store_lanes(to + whole, end, tail.load(from + whole), tail);
  }
}

// out[outer * pitch + inner] = x[inner, outer]; out's elements beyond n_inner become zero. `later`
// as above.
template <class T>
void pack_panel(T* __restrict out, int64_t pitch, const T* x, int64_t n_inner, int64_t inner_stride,
                int64_t n_outer, int64_t outer_stride, int64_t later = 0) {
  if (n_inner < pitch)
    for (int64_t p = 0; p < n_outer; ++p)
      for (int64_t i = n_inner; i < pitch; ++i) out[p * pitch + i] = 0;
  if (inner_stride == 1)
    return pack_lines_in_order(out, pitch, x, n_inner, n_outer, outer_stride, later);
  if (outer_stride == 1) return pack_transposed(out, pitch, x, n_inner, inner_stride, n_outer);
  for (int64_t i = 0; i < n_inner; ++i)
    for (int64_t p = 0; p < n_outer; ++p)
      out[p * pitch + i] = x[i * inner_stride + p * outer_stride];
}

}  // namespace needle::NEEDLE_ISA
