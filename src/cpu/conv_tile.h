// The tiles of the matrix product (gemm_tile.h) by number of rows and of vectors.
#pragma once
#include <utility>

#include "conv.h"
#include "gemm_tile.h"

namespace needle::NEEDLE_ISA {

template <int vectors, int... rows>
inline MultiplyTile<float> tile_in(int64_t height, std::integer_sequence<int, rows...>) {
  static constexpr MultiplyTile<float> kTiles[] = {multiply_tile<float, rows + 1, vectors>...};
  return kTiles[height - 1];
}

inline MultiplyTile<float> tile_for(int64_t rows, int64_t vectors) {
  constexpr std::make_integer_sequence<int, kTileRows> kAll;
  return vectors == 1 ? tile_in<1>(rows, kAll) : tile_in<2>(rows, kAll);
}

// c [rows, width] (+)= a [rows, k] b [k, width]; width is at most kTileColumns.
inline void multiply_rows(const Tile<float>& shape, int64_t rows) {
  Tile<float> t = shape;
  const int64_t vectors = parts(t.width, kLanes<float>);
  for (int64_t i = 0, height; i < rows; i += height) {
    height = tile_height(rows - i);
    tile_for(height, vectors)(t);
    t.a += height * t.a_row;
    t.c += height * t.c_row;
  }
}

}  // namespace needle::NEEDLE_ISA
