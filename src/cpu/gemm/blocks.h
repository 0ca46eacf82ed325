// The product of two matrices by one thread, block by block. Operands are read where they lie if
// that is fast enough, else packed (pack.h), which also takes care of any strides: a block of
// b, which stays in the second cache while the rows of a block of a pass; of these the rows of a
// tile stay in the first while all columns of b's block pass.
#pragma once
#include "base/axes.h"
#include "gemm/epilogue.h"
#include "gemm/pack.h"
#include "gemm/tile.h"

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
  bool keep_a;           // packed: for the next block of columns
  int64_t tile_columns;  // of those that are not at the end
  bool fetch_b;          // in place: it is far, in the third cache or memory
  bool add;              // to what the result holds
};

// Parts of an operand that are read later: lines of elements side by side.
template <class T>
struct Lines {
  const T* first;
  int64_t count, length, stride;

  int64_t pieces(int64_t size) const { return count * parts(length, size); }
};

// Goes through pieces of `size` elements of lines. Divides only at the beginning, because a tile
// does not take long.
template <class T>
class Pieces {
 public:
  Pieces() = default;
  // From this piece on; if `index` is negative, the first piece comes -index calls later.
  Pieces(const Lines<T>& lines, int64_t size, int64_t index) {
    if (lines.count == 0) return;
    per_line_ = parts(lines.length, size);
    early_ = index < 0 ? -index : 0;
    left_ = lines.count * per_line_ - index - early_;
    if (left_ <= 0) return;
    const int64_t line = (index + early_) / per_line_, begin = (index + early_) % per_line_;
    at_ = lines.first + line * lines.stride + begin * size;
    in_line_ = per_line_ - begin;
    size_ = size;
    to_next_line_ = lines.stride - (per_line_ - 1) * size;
  }

  // Null after the last.
  const T* next() {
    if (early_ > 0 || left_ <= 0) {
      --early_;
      return nullptr;
    }
    const T* piece = at_;
    --left_;
    at_ += --in_line_ ? size_ : to_next_line_;
    if (in_line_ == 0) in_line_ = per_line_;
    return piece;
  }

 private:
  const T* at_ = nullptr;
  int64_t left_ = 0, early_ = 0, in_line_ = 0, per_line_ = 0, size_ = 0, to_next_line_ = 0;
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
  T* packed_a = nullptr;
  T* packed_b = nullptr;
  Lines<T> next_a = {}, next_b = {};  // the operands of the product after this
  // bfloat16 for the matrix unit, instead of a and b, and where it says that it could not.
  const uint16_t *half_a = nullptr, *half_b = nullptr;
  bool* unfit = nullptr;
  // What follows, on the buffers of the whole product, of which c is a part.
  const EpiloguePlan* epilogue = nullptr;
  void* const* buffers = nullptr;

  // Of rows i.. and columns j.. after these steps of k.
  void finish(int64_t i, int64_t rows, int64_t j, int64_t width, int64_t steps) const {
    if (epilogue && steps == k)
      finish_rows(*epilogue, buffers, c + i * c_row + j - as<T>(buffers[0]), rows, width);
  }
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
Block block_at(const Blocking& s, const Product<T>& o, int64_t i_begin, int64_t i_end, int64_t j,
               int64_t p) {
  return {i_begin, i_end, j, least(j + s.block_n, o.n), p, least(s.block_k, o.k - p)};
}

// Of the same rows. After the last: one without steps.
template <class T>
Block next_block(const Blocking& s, const Product<T>& o, const Block& block) {
  const bool more = block.j_end < o.n;
  return block_at(s, o, block.i_begin, block.i_end, more ? block.j_end : 0,
                  more ? block.p : block.p + block.k);
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
                 o.a_strides.row, steps, o.a_strides.column, block.k - p - steps);
    }
  }
}

// How many of the `rest` columns the next tile has: the last two of wide ones share four vectors.
template <class T>
int64_t tile_width(int64_t rest, int64_t tile_columns) {
  constexpr int64_t kShared = 4 * kLanes<T>;
  if (rest <= tile_columns) return rest;
  return tile_columns > kTileColumns<T> && rest <= kShared ? kTileColumns<T> : tile_columns;
}

// Packs a block's columns of b.
template <class T>
void pack_columns(const Product<T>& o, const Block& block, int64_t tile_columns) {
  for (int64_t j = block.j_begin, width; j < block.j_end; j += width) {
    width = tile_width<T>(block.j_end - j, tile_columns);
    const T* from = o.b + block.p * o.b_strides.row + j * o.b_strides.column;
    pack_panel(o.packed_b + (j - block.j_begin) * block.k, panel_pitch<T>(width), from, width,
               o.b_strides.column, block.k, o.b_strides.row);
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

// Packing waits for memory and tiles do not, so tiles fetch rows of a for the next row of tiles,
// the next blocks of a and b, and the next matrices of a batch. Rows that are read in place come
// from the second cache, but gain as well.
template <class T>
struct Ahead {
  Lines<T> rows, a, b;
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

// The lines that the tiles of one row of tiles fetch. `later`: number of tiles of the block after
// this row; tile: number of tiles of the product before it.
template <class T>
class Fetching {
 public:
  Fetching(const Product<T>& o, const Ahead<T>& ahead, const Tile<T>& t, int64_t later,
           int64_t tile) {
    if (t.a_row == 1) {
      pace_ = o.next_a.count ? kFetched : kPace;  // all of the next matrices: few tiles
      const int64_t size = pace_ / 2 * t.k;
      a_ = ahead.rows.count ? Pieces<T>(ahead.rows, size, 0) : Pieces<T>(ahead.a, size, later);
      b_ = Pieces<T>(ahead.b, size, later);
      next_a_ = Pieces<T>(o.next_a, size, tile);
      next_b_ = Pieces<T>(o.next_b, size, tile);
    } else {
      const int64_t size = kFetched * t.k;
      a_ = Pieces<T>(ahead.rows, size, 0);
      next_b_ = Pieces<T>(o.next_b, size, tile);
      next_a_ = Pieces<T>(o.next_a, size, tile - o.next_b.pieces(size));
    }
  }

  void set_next(Tile<T>& t) {
    const T *a = a_.next(), *b = b_.next(), *next_a = next_a_.next(), *next_b = next_b_.next();
    t.pace = pace_;
    if (t.a_row == 1) {
      t.next_a = a ? a : next_a;
      t.next_b = b ? b : next_b;
    } else {
      t.next = next_b ? next_b : next_a ? next_a : a;
    }
  }

 private:
  int64_t pace_ = kPace;
  Pieces<T> a_, b_, next_a_, next_b_;
};

// What one thread does, block after block. Rows of a that are not of its slab are packed for
// themselves.
template <class T>
class Multiplier {
 public:
  using Element = T;
  static constexpr int64_t kRows = kTileRows;
  static constexpr bool kReadsHalves = false;

  Multiplier(const Blocking& blocking, const Product<T>& product) : s_(blocking), o_(product) {}

  // From now on, these rows are its own.
  void begin(const Block& slab);
  void multiply(const Block& block, bool own);

 private:
  void multiply_row_of_tiles(int64_t i, int64_t height, bool own);

  const Blocking& s_;
  const Product<T>& o_;
  Block slab_, block_ = {};
  bool has_b_ = false;  // packed the block's
  int64_t tile_ = 0;    // number of tiles so far
};

template <class T>
void Multiplier<T>::begin(const Block& slab) {
  slab_ = slab;
  if (s_.pack_a == kPackedBefore) pack_rows(o_, slab);
}

template <class T>
void Multiplier<T>::multiply(const Block& block, bool own) {
  has_b_ = has_b_ && block.j_begin == block_.j_begin && block.p == block_.p;
  block_ = block;
  if (s_.pack_b == kPackedBefore && !has_b_) pack_columns(o_, block, s_.tile_columns);
  for (int64_t i = block.i_begin, height; i < block.i_end; i += height) {
    height = tile_height(block.i_end - i);
    multiply_row_of_tiles(i, height, own);
    has_b_ = true;
  }
}

template <class T>
void Multiplier<T>::multiply_row_of_tiles(int64_t i, int64_t height, bool own) {
  const T* rows = o_.a + i * o_.a_strides.row + block_.p * o_.a_strides.column;
  const bool kept = s_.keep_a && own;
  T* packed_rows = o_.packed_a + (kept ? (i - slab_.i_begin) * block_.k : 0);
  const bool first = s_.pack_a == kPackedOnReading && block_.j_begin == 0;
  if (s_.pack_a && (!own || first))
    pack_panel(packed_rows, height, rows, height, o_.a_strides.row, block_.k, o_.a_strides.column);
  Tile<T> t;
  t.k = block_.k;
  t.c_row = o_.c_row;
  t.add = block_.p > 0 || s_.add;
  t.a = s_.pack_a ? packed_rows : rows;
  t.a_row = s_.pack_a ? 1 : o_.a_strides.row;
  t.a_step = s_.pack_a ? height : o_.a_strides.column;
  const bool packing = s_.pack_b == kPackedOnReading && !has_b_;
  const bool packed = s_.pack_b != kInPlace && !packing;
  Block rest = block_;
  if (own) {
    rest.i_begin = slab_.i_begin;
    rest.i_end = slab_.i_end;
  }
  const Ahead<T> ahead = what_follows(s_, o_, rest, next_block(s_, o_, rest), i + height);
  const int64_t panels = parts(block_.j_end - block_.j_begin, s_.tile_columns);
  const int64_t later = panels * (parts(rest.i_end - i, kTileRows) - 1);
  Fetching<T> fetching(o_, ahead, t, later, tile_);
  tile_ += panels;
  for (int64_t j = block_.j_begin; j < block_.j_end; j += t.width) {
    t.width = tile_width<T>(block_.j_end - j, s_.tile_columns);
    T* columns = o_.packed_b + (j - block_.j_begin) * block_.k;
    t.b = packed ? columns : o_.b + block_.p * o_.b_strides.row + j;
    t.b_step = packed ? panel_pitch<T>(t.width) : o_.b_strides.row;
    t.padded = packed;
    t.copy = packing ? columns : nullptr;
    t.fetches = s_.fetch_b && !has_b_;
    t.c = o_.c + i * o_.c_row + j;
    fetching.set_next(t);
    any_tile_for<T>(height, parts(t.width, kLanes<T>))(t);
  }
  o_.finish(i, height, block_.j_begin, block_.j_end - block_.j_begin, block_.p + block_.k);
}

// All of it, by one thread, with a class like Multiplier.
template <class M>
void multiply(const Blocking& s, const Product<typename M::Element>& o) {
  M own(s, o);
  for (int64_t i = 0; i < o.m; i += s.block_m) {
    for (Block block = block_at(s, o, i, least(i + s.block_m, o.m), 0, 0); block.k > 0;
         block = next_block(s, o, block)) {
      if (block.j_begin == 0) own.begin(block);
      own.multiply(block, true);
    }
  }
}

}  // namespace needle::NEEDLE_ISA
