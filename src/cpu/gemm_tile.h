// The innermost piece of the matrix product: a tile of the result, held in registers.
#pragma once
#include "lanes.h"

namespace needle::NEEDLE_ISA {

// Tiles have up to kTileRows rows and two vectors of columns. Their sums, two vectors of b and one
// of a must fit the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 14;
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

// Heights of the tiles of at most `most` rows that cover `rest` rows: none so low that its sums
// wait for each other.
inline int64_t tile_height(int64_t rest, int64_t most = kTileRows) {
  return rest <= most ? rest : rest < most + most / 2 ? (rest + 1) / 2 : most;
}

// a: rows a_row apart, steps of k a_step apart. b: steps b_step apart, columns side by side; unless
// kMaskedLoads or `padded`, whole vectors of columns can be read. c: rows c_row apart, `width`
// columns.
template <class T>
struct Tile {
  int64_t k;
  const T* a;
  int64_t a_row, a_step;
  const T* b;
  int64_t b_step;
  T* c;
  int64_t c_row, width;
  bool add;                   // to what c holds
  bool padded = false;        // columns of b beyond the width can be read: whole vectors
  T* copy = nullptr;          // where to lay the columns of b one after the other, in whole vectors
  const T* next_a = nullptr;  // k elements to be packed later: to fetch
  const T* next_b = nullptr;  // the same, if next_a is given
};

// sum[j] += *x * column[j] in row `row` of a tile. With AVX-512 a product can read *x from memory
// by itself: an instruction less, but a load more. Two thirds of the rows do, so that neither the
// loads nor the instructions take longer than the products (Intel Sapphire Rapids, products of 256
// and 512: 4 to 8 % faster, with two steps of the loop at once 6 to 10 %).
template <int vectors>
inline void multiply_add(Vector<float> (&sum)[vectors], const float* x,
                         const Vector<float> (&column)[vectors], [[maybe_unused]] int row) {
#if defined(__AVX512F__)
  if (row % 3 != 0) {
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j)
      asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum[j]) : "v"(column[j]), "m"(*x));
    return;
  }
#endif
  const float value = *x;
#pragma GCC unroll 8
  for (int j = 0; j < vectors; ++j) sum[j] += value * column[j];
}

template <int vectors>
inline void multiply_add(Vector<double> (&sum)[vectors], const double* x,
                         const Vector<double> (&column)[vectors], int) {
  const double value = *x;
#pragma GCC unroll 8
  for (int j = 0; j < vectors; ++j) sum[j] += value * column[j];
}

// How b is read: in whole vectors, without masks; with a partial last one; or for the first time,
// copying it for the tiles below.
enum class Columns { kWhole, kPartial, kCopied };

// adjacent: a_row is 1, and one pointer reaches all rows.
template <class T, int rows, int vectors, bool adjacent, Columns columns>
inline void sum_tile(const Tile<T>& t) {
  constexpr int64_t kWidth = kLanes<T>, kLine = 64 / sizeof(T);
  constexpr int64_t kAhead = 8;  // steps: no prefetcher sees far rows coming
  const Tail<T> last(t.width - (vectors - 1) * kWidth);
  Vector<T> sum[rows][vectors] = {};
  constexpr int kPerPointer = adjacent ? rows : 3;  // x86 reaches rows 0, 1 and 2 from one pointer
  const int64_t a_row = adjacent ? 1 : t.a_row;
  const T* a[(rows + kPerPointer - 1) / kPerPointer];
  for (int i = 0; i * kPerPointer < rows; ++i) a[i] = t.a + i * kPerPointer * a_row;
  const T* b = t.b;
  T* copy = t.copy;
  const int64_t a_step = t.a_step, b_step = t.b_step;
  const bool add = t.add;
  const T *next_a = t.next_a, *next_b = t.next_b;
  // The lines of c lie far apart and are needed only at the end: time to fetch them.
  const auto fetch_c = [&](int64_t i) {
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(t.c + i * t.c_row + j * kWidth, 1);
  };
  const int64_t k = t.k;
  const bool fetches = adjacent && next_a;
  for (int64_t i = fetches ? k / kLine : 0; i < rows; ++i) fetch_c(i);
  for (int64_t p = 0, end = k; p < k; end = k) {
    if (fetches) {  // little at once
      if (p < rows * kLine) fetch_c(p / kLine);
      __builtin_prefetch(next_a + p, 0, 2);
      __builtin_prefetch(next_b + p, 0, 2);
      if (p + kLine < k) end = p + kLine;
    }
#if !defined(NEEDLE_SANITIZE)  // which makes it too large for the compiler
#pragma GCC unroll 2
#endif
    for (; p < end; ++p) {
      Vector<T> column[vectors];
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j)
        column[j] = kMaskedLoads && columns != Columns::kWhole && j == vectors - 1
                        ? last.load(b + j * kWidth)
                        : load(b + j * kWidth);
      if constexpr (columns == Columns::kCopied) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; ++j) {
          __builtin_prefetch(b + kAhead * b_step + j * kWidth);
          store(copy + j * kWidth, column[j]);
        }
        copy += vectors * kWidth;
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i)
        multiply_add<vectors>(sum[i], &a[i / kPerPointer][i % kPerPointer * a_row], column, i);
      b += b_step;
#pragma GCC unroll 8
      for (auto& pointer : a) pointer += a_step;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    T* c = t.c + i * t.c_row;
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j, c += kWidth) {
      if (j + 1 < vectors)
        store(c, add ? sum[i][j] + load(c) : sum[i][j]);
      else
        last.store(c, add ? sum[i][j] + last.load(c) : sum[i][j]);
    }
  }
}

template <class T, int rows, int vectors, Columns columns>
inline void multiply_columns(const Tile<T>& t) {
  if (t.a_row == 1)
    sum_tile<T, rows, vectors, true, columns>(t);
  else
    sum_tile<T, rows, vectors, false, columns>(t);
}

template <class T, int rows, int vectors>
void multiply_tile(const Tile<T>& t) {
#if defined(NEEDLE_SANITIZE)  // under which each kind of tile compiles for a minute
  constexpr bool masked = kMaskedLoads;
#else
  const bool masked = kMaskedLoads && !t.padded && t.width < vectors * kLanes<T>;
#endif
  if (t.copy)
    multiply_columns<T, rows, vectors, Columns::kCopied>(t);
  else if (masked)
    multiply_columns<T, rows, vectors, Columns::kPartial>(t);
  else
    multiply_columns<T, rows, vectors, Columns::kWhole>(t);
}

template <class T>
using MultiplyTile = void (*)(const Tile<T>&);

}  // namespace needle::NEEDLE_ISA
