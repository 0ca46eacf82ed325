// Products of the matrices within convolutions, by the tiles of gemm/tile.h.
#pragma once
#include "conv/conv.h"
#include "gemm/tile.h"

namespace needle::NEEDLE_ISA {

// c [rows, width] (+)= a [rows, k] b [k, width]; width is at most kTileColumns.
inline void multiply_rows(const Tile<float>& shape, int64_t rows) {
  Tile<float> t = shape;
  const int64_t vectors = parts(t.width, kLanes<float>);
  for (int64_t i = 0, height; i < rows; i += height) {
    height = tile_height(rows - i);
    tile_for<float>(height, vectors)(t);
    t.a += height * t.a_row;
    t.c += height * t.c_row;
  }
}

}  // namespace needle::NEEDLE_ISA
