// The product of two matrices by one thread, block by block. Operands are read where they lie if
// that is fast enough, else packed (gemm_pack.h), which also takes care of any strides: a block of
// b, which stays in the second cache while the rows of a block of a pass; of these the rows of a
// tile stay in the first while all columns of b's block pass.
#pragma once
#include "axes.h"
#include "gemm_pack.h"
#include "gemm_tile.h"

namespace needle::NEEDLE_ISA {

struct Strides {
  int64_t row, column;
};

// When an operand is packed: never, before the product of a block, or by those who read it first.
enum Packing { kInPlace, kPackedBefore, kPackedOnReading };

// How a thread goes through its matrices.
struct Blocking {
  int64_t block_m, block_n, block_k;
  Packing pack_a, pack_b;
  bool keep_a;  // packed: for the next block of columns
};

// Parts of an operand that are read later: lines of elements side by side.
template <class T>
struct Lines {
  const T* first;
  int64_t count, length, stride;

  int64_t pieces(int64_t size) const { return count * parts(length, size); }

  // Those are of `size` elements. Null after the last.
  const T* piece(int64_t index, int64_t size) const {
    if (index >= pieces(size)) return nullptr;
    const int64_t per_line = parts(length, size);
    return first + index / per_line * stride + index % per_line * size;
  }
};

// A product of matrices of one type, any strides, for one thread.
template <class T>
struct Product {
  int64_t m, n, k;
  const T* a;
  Strides a_strides;
  const T* b;
  Strides b_strides;
  T* c;
  int64_t c_row;
  T* packed_a;
  T* packed_b;
  Lines<T> next_a = {}, next_b = {};  // the operands of the product after this
  bool has_b = false;                 // b's only block is packed already
};

template <class T>
int64_t panel_pitch(int64_t width) {
  return round_up(width, kLanes<T>);
}

// Rows i.. times columns j.., for steps p.. of k.
struct Block {
  int64_t i_begin, i_end, j_begin, j_end, p, k;
};

template <class T>
Block block_at(const Blocking& s, const Product<T>& o, int64_t i, int64_t j, int64_t p) {
  return {i, least(i + s.block_m, o.m), j, least(j + s.block_n, o.n), p, least(s.block_k, o.k - p)};
}

// After the last: one without steps.
template <class T>
Block next_block(const Blocking& s, const Product<T>& o, const Block& block) {
  if (block.j_end < o.n) return block_at(s, o, block.i_begin, block.j_end, block.p);
  if (block.i_end < o.m) return block_at(s, o, block.i_end, 0, block.p);
  return block_at(s, o, 0, 0, block.p + block.k);
}

// Packs a's rows, those of a tile after those of another; if rows lie side by side, a few steps of
// all tiles at a time, which share lines of the cache.
template <class T>
void pack_rows(const Product<T>& o, const Block& block) {
  constexpr int64_t kSteps = 8;
  const int64_t chunk = o.a_strides.row == 1 ? kSteps : block.k;
  for (int64_t p = 0; p < block.k; p += chunk) {
    const int64_t steps = least(chunk, block.k - p);
    for (int64_t i = block.i_begin, height; i < block.i_end; i += height) {
      height = tile_height(block.i_end - i);
      const T* from = o.a + i * o.a_strides.row + (block.p + p) * o.a_strides.column;
      pack_panel(o.packed_a + (i - block.i_begin) * block.k + p * height, height, from, height,
                 o.a_strides.row, steps, o.a_strides.column);
    }
  }
}

// Packs columns j.. and steps p.. of b.
template <class T>
void pack_columns(const Product<T>& o, int64_t j_begin, int64_t j_end, int64_t p, int64_t k) {
  for (int64_t j = j_begin; j < j_end; j += kTileColumns<T>) {
    const int64_t width = least(kTileColumns<T>, j_end - j);
    const T* from = o.b + p * o.b_strides.row + j * o.b_strides.column;
    pack_panel(o.packed_b + (j - j_begin) * k, panel_pitch<T>(width), from, width,
               o.b_strides.column, k, o.b_strides.row);
  }
}

template <class T>
Lines<T> lines_of_a(const Product<T>& o, const Block& block) {
  const T* first = o.a + block.i_begin * o.a_strides.row + block.p * o.a_strides.column;
  const int64_t rows = block.i_end - block.i_begin;
  if (o.a_strides.column == 1) return {first, rows, block.k, o.a_strides.row};
  return {first, block.k, rows, o.a_strides.column};
}

template <class T>
Lines<T> lines_of_b(const Product<T>& o, const Block& block) {
  const T* first = o.b + block.p * o.b_strides.row + block.j_begin * o.b_strides.column;
  const int64_t columns = block.j_end - block.j_begin;
  if (o.b_strides.column == 1) return {first, block.k, columns, o.b_strides.row};
  return {first, columns, block.k, o.b_strides.column};
}

// What tiles fetch, because packing waits for memory and tiles do not: rows of a for the next row
// of tiles, the next blocks of a and b (Intel Sapphire Rapids: products of 512 to 2048 take 0.92
// to 1.0 of the time, with b transposed 0.88 to 0.98), and the next matrices of a batch (64 x
// 128^3: 0.84). Rows that are read in place come from the second cache, but 1024 x 256 x 128 takes
// 0.97, too.
template <class T>
struct Ahead {
  Lines<T> rows, a, b;
  const T* own;  // to fetch instead of nothing
};

template <class T>
Ahead<T> what_follows(const Blocking& s, const Product<T>& o, const Block& block, const Block& next,
                      int64_t row) {
  Ahead<T> ahead = {};
  Block rest = block;
  rest.i_begin = row;
  const bool first_columns = block.j_begin == 0, packs_a = next.k > 0 && next.j_begin == 0;
  if (s.pack_a == kPackedOnReading && first_columns) ahead.rows = lines_of_a(o, rest);
  if (s.pack_a == kInPlace && o.a_strides.row == block.k && row < block.i_end)  // without gaps
    ahead.rows = {lines_of_a(o, rest).first, 1, kTileRows * block.k, 0};
  if (s.pack_a == kPackedBefore && packs_a) ahead.a = lines_of_a(o, next);
  if (s.pack_b && next.k > 0) ahead.b = lines_of_b(o, next);
  return ahead;
}

// panel: of this row of tiles; left: tiles of the block after this one; tile: of the matrix.
template <class T>
void fetch_ahead(const Product<T>& o, const Ahead<T>& ahead, int64_t panel, int64_t left,
                 int64_t tile, Tile<T>& t) {
  const T* a = ahead.rows.count ? ahead.rows.piece(panel, t.k) : ahead.a.piece(left, t.k);
  const T* b = ahead.b.piece(left, t.k);
  if (!a) a = o.next_a.piece(tile, t.k);
  if (!b) b = o.next_b.piece(tile, t.k);
  t.next_a = a ? a : ahead.own;
  t.next_b = b ? b : t.a;
  const int64_t size = kFetched * t.k;
  t.next = o.next_b.piece(tile, size);
  if (!t.next) t.next = o.next_a.piece(tile - o.next_b.pieces(size), size);
  if (!t.next) t.next = ahead.rows.piece(panel, size);
}

// One row of tiles.
template <class T>
void multiply_rows(const Blocking& s, const Product<T>& o, const Block& block, const Block& next,
                   int64_t i, int64_t height, int64_t& tile) {
  const T* rows = o.a + i * o.a_strides.row + block.p * o.a_strides.column;
  T* packed_rows = o.packed_a + (s.keep_a ? (i - block.i_begin) * block.k : 0);
  if (s.pack_a == kPackedOnReading && block.j_begin == 0)
    pack_panel(packed_rows, height, rows, height, o.a_strides.row, block.k, o.a_strides.column);
  Tile<T> t;
  t.k = block.k;
  t.c_row = o.c_row;
  t.add = block.p > 0;
  t.a = s.pack_a ? packed_rows : rows;
  t.a_row = s.pack_a ? 1 : o.a_strides.row;
  t.a_step = s.pack_a ? height : o.a_strides.column;
  const bool packing = s.pack_b == kPackedOnReading && i == block.i_begin && !o.has_b;
  const bool packed = s.pack_b != kInPlace && !packing;
  Ahead<T> ahead = what_follows(s, o, block, next, i + height);
  ahead.own = s.pack_a ? t.a : nullptr;
  const int64_t panels = parts(block.j_end - block.j_begin, kTileColumns<T>);
  int64_t left = panels * parts(block.i_end - i, kTileRows), panel = 0;
  for (int64_t j = block.j_begin; j < block.j_end; j += kTileColumns<T>) {
    t.width = least(kTileColumns<T>, block.j_end - j);
    T* columns = o.packed_b + (j - block.j_begin) * block.k;
    t.b = packed ? columns : o.b + block.p * o.b_strides.row + j;
    t.b_step = packed ? panel_pitch<T>(t.width) : o.b_strides.row;
    t.padded = packed;
    t.copy = packing ? columns : nullptr;
    t.c = o.c + i * o.c_row + j;
    fetch_ahead(o, ahead, panel++, --left, tile++, t);
    tile_for<T>(height, parts(t.width, kLanes<T>))(t);
  }
}

template <class T>
void multiply(const Blocking& s, const Product<T>& o) {
  int64_t tile = 0;
  for (Block block = block_at(s, o, 0, 0, 0), next; block.k > 0; block = next) {
    next = next_block(s, o, block);
    if (s.pack_a == kPackedBefore && block.j_begin == 0) pack_rows(o, block);
    if (s.pack_b == kPackedBefore && !o.has_b)
      pack_columns(o, block.j_begin, block.j_end, block.p, block.k);
    for (int64_t i = block.i_begin, height; i < block.i_end; i += height) {
      height = tile_height(block.i_end - i);
      multiply_rows(s, o, block, next, i, height, tile);
    }
  }
}

}  // namespace needle::NEEDLE_ISA
