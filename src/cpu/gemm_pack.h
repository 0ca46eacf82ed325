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

// The lines of x become columns of out. Few lines and few steps at a time, so that neither the
// lines nor the part of out evict each other from the cache.
template <class T>
void pack_transposed(T* __restrict out, int64_t pitch, const T* x, int64_t lines, int64_t stride,
                     int64_t steps) {
  constexpr int64_t kSteps = 64;
  for (int64_t begin = 0; begin < steps; begin += kSteps) {
    const int64_t end = begin + kSteps < steps ? begin + kSteps : steps;
    int64_t i = 0;
    for (; i + 4 <= lines; i += 4) {
      int64_t p = begin;
      for (; p + 4 <= end; p += 4)
        transpose_4x4(out + p * pitch + i, pitch, x + i * stride + p, stride);
      for (; p < end; ++p)
        for (int64_t j = i; j < i + 4; ++j) out[p * pitch + j] = x[j * stride + p];
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
