// How strided operands of one shape are visited: as blocks of at most a tile of elements.
#pragma once
#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

constexpr int kMaxOperands = 32;
// Bytes of the widest register in a tile: as many as the first cache holds of all tiles. Transposed
// operands want long pieces of memory in both directions.
constexpr int64_t kLeastTileBytes = 2048, kMostTileBytes = 16384;

// Dims are merged and reordered, innermost first. A block is `rows` x `cols` elements of the dims
// 1 and 0; the last ones in each dim are smaller.
struct Walk {
  int32_t ndim, operands;
  int64_t rows, cols, blocks;
  int64_t sizes[96];  // per dim: its length, then the stride of each operand

  const int64_t* dim(int d) const { return sizes + d * (1 + operands); }
  int64_t* dim(int d) { return sizes + d * (1 + operands); }
};

// operands[0] is an output: its memory order decides the order of the walk. `tile` is the most
// elements in a block. Returns false if the state cannot hold this many operands and dims.
bool plan_walk(Walk* walk, const Operand* const* operands, int count, int64_t tile);

// Whether every block of this operand lies dense in memory.
bool is_dense(const Walk& walk, int operand);

// The position of a block, with the offsets of the operands (in elements) kept up to date.
struct Position {
  int64_t rows, cols;  // of this block
  int64_t offsets[kMaxOperands];
  int64_t index[kMaxDims];

  void seek(const Walk& walk, int64_t block);
  // Goes to an element, counted in the order of the walk, for a block of at most so many from there
  // on: a part of a row, or whole rows if the walk's blocks are such.
  void seek_element(const Walk& walk, int64_t element, int64_t most);
  void advance(const Walk& walk);
};

// Copies a block to a dense tile, or back. Strides are in elements of `item` bytes.
void load_block(void* tile, const void* x, int64_t rows, int64_t cols, int64_t row_stride,
                int64_t col_stride, int64_t item);
void store_block(void* out, const void* tile, int64_t rows, int64_t cols, int64_t row_stride,
                 int64_t col_stride, int64_t item);

}  // namespace needle::NEEDLE_ISA
