// Packing: operands laid out in the order in which tiles read them.
#pragma once
#include "lanes.h"

namespace needle::NEEDLE_ISA {

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
// Alternating pairs of a and b in each quarter: the first halves of the quarters, or the second.
inline Vector<float> first_pairs(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
inline Vector<float> second_pairs(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}

// out[j * pitch + i] = line[i][j] for 16 lines and j in 0..3.
inline void transpose_16x4(float* out, int64_t pitch, const float* const* line, int64_t begin) {
  using Four = FourOf<float>::type;
  Vector<float> row[4];  // row[i]: lines i, i + 4, i + 8 and i + 12
  for (int i = 0; i < 4; ++i) {
    Four four[4];
    for (int j = 0; j < 4; ++j) std::memcpy(&four[j], line[4 * j + i] + begin, sizeof(Four));
    const auto low = __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 4, 5, 6, 7);
    const auto high = __builtin_shufflevector(four[2], four[3], 0, 1, 2, 3, 4, 5, 6, 7);
    row[i] =
        __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  const Vector<float> even01 = first_pairs(row[0], row[2]), odd01 = first_pairs(row[1], row[3]);
  const Vector<float> even23 = second_pairs(row[0], row[2]), odd23 = second_pairs(row[1], row[3]);
  store(out, first_pairs(even01, odd01));
  store(out + pitch, second_pairs(even01, odd01));
  store(out + 2 * pitch, first_pairs(even23, odd23));
  store(out + 3 * pitch, second_pairs(even23, odd23));
}

// As pack_transposed, for 8 to 16 lines. Writes whole vectors: with fewer lines pitch must be their
// number, and each vector goes over what the one before wrote too much; the last step goes by
// elements, because nothing beyond it may be written.
inline void pack_lines(float* __restrict out, int64_t pitch, const float* x, int64_t lines,
                       int64_t stride, int64_t steps) {
  const float* line[16];
  for (int i = 0; i < 16; ++i) line[i] = x + (i < lines ? i : lines - 1) * stride;
  const int64_t whole = lines == 16 ? steps : steps - 1;
  int64_t p = 0;
  for (; p + 4 <= whole; p += 4) transpose_16x4(out + p * pitch, pitch, line, p);
  for (; p < steps; ++p)
    for (int64_t i = 0; i < lines; ++i) out[p * pitch + i] = line[i][p];
}
#endif

// The lines of x become columns of out. Few lines and few steps at a time, so that neither the
// lines nor the part of out evict each other from the cache.
template <class T>
void pack_transposed(T* __restrict out, int64_t pitch, const T* x, int64_t lines, int64_t stride,
                     int64_t steps) {
  constexpr int64_t kSteps = 64;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) {
    if (pitch == lines && lines >= 8 && lines < 16)
      return pack_lines(out, pitch, x, lines, stride, steps);
    for (; lines >= 16; lines -= 16, out += 16, x += 16 * stride)
      pack_lines(out, pitch, x, 16, stride, steps);
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

// out[outer * pitch + inner] = x[inner, outer]; out's elements beyond n_inner become zero.
template <class T>
void pack_panel(T* __restrict out, int64_t pitch, const T* x, int64_t n_inner, int64_t inner_stride,
                int64_t n_outer, int64_t outer_stride) {
  if (n_inner < pitch)
    for (int64_t p = 0; p < n_outer; ++p)
      for (int64_t i = n_inner; i < pitch; ++i) out[p * pitch + i] = 0;
  if (inner_stride == 1) {
    constexpr int64_t kWidth = kLanes<T>;
    const int64_t whole = n_inner / kWidth * kWidth;
    const Tail<T> tail(n_inner - whole);
    for (int64_t p = 0; p < n_outer; ++p) {
      const T* from = x + p * outer_stride;
      T* to = out + p * pitch;
      for (int64_t i = 0; i < whole; i += kWidth) store(to + i, load(from + i));
      if (whole < n_inner) tail.store(to + whole, tail.load(from + whole));
    }
    return;
  }
  if (outer_stride == 1) return pack_transposed(out, pitch, x, n_inner, inner_stride, n_outer);
  for (int64_t i = 0; i < n_inner; ++i)
    for (int64_t p = 0; p < n_outer; ++p)
      out[p * pitch + i] = x[i * inner_stride + p * outer_stride];
}

}  // namespace needle::NEEDLE_ISA
