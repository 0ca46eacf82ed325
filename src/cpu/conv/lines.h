// The innermost pieces of a direct convolution: tiles of results, held in registers, whose rows are
// pixels wherever they lie. Their sums run along lines of taps.
#pragma once
#include <utility>

#include "conv/conv.h"
#include "gemm/tile.h"

namespace needle::NEEDLE_ISA {

// Taps that lie one after the other in memory and in the packed weights.
struct Line {
  int64_t a, b, length;
};

// Properties of all rows of a tile.
struct LineTile {
  const Line* lines;
  int64_t line_count;
  const float* b;
  int64_t b_row;
  const float* bias;  // null: none
  int64_t width;
  float slope;
};

// ---- rows that each have a pointer

constexpr int kRows = kTileRows < 12 ? kTileRows : 12;

struct RowTile : LineTile {
  const float* a[kRows];
  float* c[kRows];
  bool streams;
  const float* next;  // fetched by `fetches`: the sources of the next rows, side by side
};

// Bias and slope are tested once, not for every vector.
template <int rows, int vectors>
inline void store_rows(const RowTile& t, Vector<float> (&sum)[rows][vectors]) {
  constexpr int64_t kWidth = kLanes<float>;
  const Tail<float> last(t.width - (vectors - 1) * kWidth);
  const auto each = [&](const auto& body) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) body(sum[r][j], t.c[r] + j * kWidth, j);
  };
  if (t.bias || t.slope != 1)
    each([&](Vector<float>& x, float*, int j) __attribute__((always_inline)) {
      const float* bias = t.bias + j * kWidth;
      if (t.bias) x += j + 1 < vectors ? load(bias) : last.load(bias);
      x = activate(x, t.slope);
    });
  if (t.streams) {
    each([&](const Vector<float>& x, float* to, int)
             __attribute__((always_inline)) { Streamed<float>().store(to, x); });
    return;
  }
  each([&](const Vector<float>& x, float* to, int j) __attribute__((always_inline)) {
    if (j + 1 < vectors)
      store(to, x);
    else
      last.store(to, x);
  });
}

// fetches: a part of the next sources with each step. All at once they would wait for each other,
// and the products for them.
template <int rows, int vectors, bool fetches>
void multiply_lines(const RowTile& t) {
  constexpr int64_t kWidth = kLanes<float>;
  Vector<float> sum[rows][vectors] = {};
  // The results lie far apart and are written only at the end: time to fetch their lines.
  for (int r = 0; r < rows && !t.streams; ++r)
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(t.c[r] + j * kWidth, 1);
  const int64_t b_row = t.b_row;
  [[maybe_unused]] const float* next = t.next;
  for (int64_t i = 0; i < t.line_count; ++i) {
    const Line line = t.lines[i];
    const float* b = t.b + line.b;
    for (int64_t p = line.a, end = line.a + line.length; p < end; ++p, b += b_row) {
      if constexpr (fetches) {
        __builtin_prefetch(next);
        next += rows;
      }
      Vector<float> column[vectors];
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) column[j] = load(b + j * kWidth);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r)  // the addresses have two registers: see TileRows
        multiply_add<vectors>(sum[r], t.a[r] + p, column, vectors == 1);
    }
  }
  store_rows(t, sum);
}

using MultiplyLines = void (*)(const RowTile&);
template <int vectors, int... rows>
MultiplyLines lines_in(int64_t height, std::integer_sequence<int, rows...>) {
  static constexpr MultiplyLines kTiles[] = {multiply_lines<rows + 1, vectors, false>...};
  return kTiles[height - 1];
}
inline MultiplyLines lines_for(int64_t rows, int64_t vectors, bool fetches) {
  constexpr std::make_integer_sequence<int, kRows> kAll;
  if (fetches)
    return vectors == 1 ? multiply_lines<kRows, 1, true> : multiply_lines<kRows, 2, true>;
  return vectors == 1 ? lines_in<1>(rows, kAll) : lines_in<2>(rows, kAll);
}

// ---- strips of neighbours that share a pointer, one vector of columns

// Where b is one vector, twice as many rows fit the registers, but not their pointers. x86 reaches
// seven neighbours from one pointer: with their distance, three and five times that in registers.
constexpr int kStrips = 4;
constexpr int kNeighbours = kTileRows / 2;

struct StripTile : LineTile {
  const float* a[kStrips];  // of the first neighbour
  float* c[kStrips];
  int64_t a_step, c_step;  // floats from neighbour to neighbour
};

template <int strips, int neighbours>
void multiply_strips(const StripTile& t) {
  constexpr int rows = strips * neighbours;
  Vector<float> sum[rows][1] = {};
  for (int s = 0; s < strips; ++s)
    for (int n = 0; n < neighbours; ++n) __builtin_prefetch(t.c[s] + n * t.c_step, 1);
  const int64_t b_row = t.b_row, step = t.a_step * static_cast<int64_t>(sizeof(float));
  const int64_t away[] = {0, step, 2 * step, 3 * step, 4 * step, 5 * step, 2 * (3 * step)};
  static_assert(kNeighbours <= sizeof away / sizeof *away);
  for (int64_t i = 0; i < t.line_count; ++i) {
    const Line line = t.lines[i];
    const float *b = t.b + line.b, *a[strips];
    for (int s = 0; s < strips; ++s) a[s] = t.a[s] + line.a;
    for (int64_t p = line.length; p > 0; --p, b += b_row) {
      const Vector<float> column[1] = {load(b)};
#pragma GCC unroll 32
      for (int r = 0; r < rows; ++r)
        multiply_add<1>(sum[r], as<float>(byte_offset(a[r / neighbours], away[r % neighbours])),
                        column, true);
#pragma GCC unroll 4
      for (auto& pointer : a) ++pointer;
    }
  }
  Vector<float> results[rows];
#pragma GCC unroll 32
  for (int r = 0; r < rows; ++r) results[r] = sum[r][0];
  const Tail<float> columns(t.width);
  const Vector<float> bias = t.bias ? columns.load(t.bias) : Vector<float>{};
  for (int s = 0; s < strips; ++s)
    for (int n = 0; n < neighbours; ++n) {
      const Vector<float> x = results[s * neighbours + n] + bias;
      columns.store(t.c[s] + n * t.c_step, t.slope == 1 ? x : activate(x, t.slope));
    }
}

using MultiplyStrips = void (*)(const StripTile&);
template <int... i>
MultiplyStrips strips_in(int64_t index, std::integer_sequence<int, i...>) {
  static constexpr MultiplyStrips kTiles[] = {
      multiply_strips<i / kNeighbours + 1, i % kNeighbours + 1>...};
  return kTiles[index];
}
inline MultiplyStrips strips_for(int64_t strips, int64_t neighbours) {
  constexpr std::make_integer_sequence<int, kStrips * kNeighbours> kAll;
  return strips_in((strips - 1) * kNeighbours + neighbours - 1, kAll);
}

}  // namespace needle::NEEDLE_ISA
