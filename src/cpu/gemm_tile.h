// The innermost piece of the matrix product: a tile of the result, held in registers.
#pragma once
#include "lanes.h"

namespace needle::NEEDLE_ISA {

// Tiles have up to kTileRows rows and two vectors of columns. Their sums, two vectors of b and one
// of a must fit the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
#elif defined(__x86_64__)
constexpr int kTileRows = 4;
#else
constexpr int kTileRows = 8;
#endif
constexpr int kTileVectors = 2;
template <class T>
constexpr int64_t kTileColumns = kTileVectors * kLanes<T>;

// Heights of the tiles that cover `rest` rows: none so low that its sums wait for each other.
inline int64_t tile_height(int64_t rest) {
  constexpr int64_t kFull = kTileRows, kPart = kTileRows * 2 / 3;
  return rest <= kFull ? rest : rest < kFull + kFull / 2 ? kPart : kFull;
}

// a: rows a_row apart, steps of k a_step apart. b: steps b_step apart, columns side by side; unless
// kMaskedLoads, whole vectors of columns can be read. c: rows c_row apart, `width` columns.
template <class T>
struct Tile {
  int64_t k;
  const T* a;
  int64_t a_row, a_step;
  const T* b;
  int64_t b_step;
  T* c;
  int64_t c_row, width;
  bool add;  // to what c holds
};

template <class T, int rows, int vectors>
void multiply_tile(const Tile<T>& t) {
  constexpr int64_t kWidth = kLanes<T>;
  const Tail<T> last(t.width - (vectors - 1) * kWidth);
  Vector<T> sum[rows][vectors] = {};
  const T* a[(rows + 2) / 3];  // x86 reaches rows 0, 1 and 2 from one pointer
  for (int i = 0; i < (rows + 2) / 3; ++i) a[i] = t.a + i * 3 * t.a_row;
  // The lines of c lie far apart and are needed only at the end: time to fetch them.
  for (int i = 0; t.add && i < rows; ++i)
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(t.c + i * t.c_row + j * kWidth);
  const T* b = t.b;
  for (int64_t p = 0, k = t.k; p < k; ++p) {
    Vector<T> column[vectors];
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j)
      column[j] =
          kMaskedLoads && j == vectors - 1 ? last.load(b + j * kWidth) : load(b + j * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const T x = a[i / 3][i % 3 * t.a_row];
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j) sum[i][j] += x * column[j];
    }
    b += t.b_step;
#pragma GCC unroll 8
    for (auto& pointer : a) pointer += t.a_step;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    T* c = t.c + i * t.c_row;
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j, c += kWidth) {
      if (j + 1 < vectors)
        store(c, t.add ? sum[i][j] + load(c) : sum[i][j]);
      else
        last.store(c, t.add ? sum[i][j] + last.load(c) : sum[i][j]);
    }
  }
}

template <class T>
using MultiplyTile = void (*)(const Tile<T>&);

}  // namespace needle::NEEDLE_ISA
