#include "base/walk.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {
namespace {

// The dims longer than 1, sorted by the stride of the first output: its memory order.
int sort_dims(const Operand& out, int* order) {
  int ndim = 0;
  for (int d = out.ndim - 1; d >= 0; --d) {
    if (out.shape[d] == 1) continue;
    int at = ndim++;
    for (; at > 0 && std::abs(out.strides[d]) < std::abs(out.strides[order[at - 1]]); --at)
      order[at] = order[at - 1];
    order[at] = d;
  }
  return ndim;
}

// True if dim d continues the walk's last dim in every operand.
bool continues(const int64_t* last, const Operand* const* operands, int count, int d) {
  for (int i = 0; i < count; ++i)
    if (operands[i]->strides[d] != last[0] * last[1 + i]) return false;
  return true;
}

void pad_dims(Walk* walk) {
  for (; walk->ndim < 2; ++walk->ndim) {
    int64_t* dim = walk->dim(walk->ndim);
    dim[0] = 1;
    for (int i = 0; i < walk->operands; ++i) dim[1 + i] = 0;
  }
}

// The dim in which an operand is closest to contiguous, if that is not the innermost: a transposed
// operand. 0 if there is none.
int transposed_dim(const Walk& walk) {
  for (int i = 0; i < walk.operands; ++i) {
    int64_t inner = std::abs(walk.dim(0)[1 + i]), least = inner;
    int best = 0;
    if (inner <= 1) continue;
    for (int d = 1; d < walk.ndim; ++d) {
      int64_t stride = std::abs(walk.dim(d)[1 + i]);
      if (stride != 0 && stride < least && walk.dim(d)[0] > 1) least = stride, best = d;
    }
    if (best != 0) return best;
  }
  return 0;
}

void choose_block(Walk* walk, int64_t tile) {
  constexpr int64_t kTransposedRows = 64;
  int rows_dim = transposed_dim(*walk);
  int width = 1 + walk->operands;
  for (int d = rows_dim; d > 1; --d)
    std::swap_ranges(walk->dim(d), walk->dim(d) + width, walk->dim(d - 1));
  int64_t cols = walk->dim(0)[0], rows = walk->dim(1)[0];
  walk->rows = rows_dim != 0 ? std::min({rows, kTransposedRows, tile}) : 1;
  walk->cols = std::min(cols, tile / walk->rows);
  // Of whole rows the other operands are dense, which need no copies.
  constexpr int64_t kLeastRows = 8;
  if (cols * kLeastRows <= tile) walk->cols = cols;
  if (walk->cols == cols || rows_dim != 0) walk->rows = std::min(rows, tile / walk->cols);
  walk->blocks = (cols + walk->cols - 1) / walk->cols * ((rows + walk->rows - 1) / walk->rows);
  for (int d = 2; d < walk->ndim; ++d) walk->blocks *= walk->dim(d)[0];
}

}  // namespace

bool plan_walk(Walk* walk, const Operand* const* operands, int count, int64_t tile) {
  constexpr int kCapacity = sizeof(walk->sizes) / sizeof(int64_t);
  const Operand& out = *operands[0];
  walk->ndim = 0;
  walk->operands = count;
  walk->rows = walk->cols = 1;
  walk->blocks = 0;
  for (int d = 0; d < out.ndim; ++d)
    if (out.shape[d] == 0) return true;
  int order[kMaxDims];
  int dims = sort_dims(out, order);
  for (int k = 0; k < dims; ++k) {
    int d = order[k];
    if (walk->ndim > 0) {
      int64_t* last = walk->dim(walk->ndim - 1);
      if (continues(last, operands, count, d)) {
        last[0] *= out.shape[d];
        continue;
      }
    }
    if ((std::max(walk->ndim, 1) + 1) * (1 + count) > kCapacity) return false;
    int64_t* dim = walk->dim(walk->ndim++);
    dim[0] = out.shape[d];
    for (int i = 0; i < count; ++i) dim[1 + i] = operands[i]->strides[d];
  }
  pad_dims(walk);
  choose_block(walk, tile);
  return true;
}

bool is_dense(const Walk& walk, int operand) {
  int64_t col_stride = walk.dim(0)[1 + operand], row_stride = walk.dim(1)[1 + operand];
  bool dense_cols = walk.cols == 1 || col_stride == 1;
  bool dense_rows = row_stride == walk.cols && walk.dim(0)[0] % walk.cols == 0;
  return dense_cols && (walk.rows == 1 || dense_rows);
}

void Position::seek(const Walk& walk, int64_t block) {
  for (int i = 0; i < walk.operands; ++i) offsets[i] = 0;
  for (int d = 0; d < walk.ndim; ++d) {
    const int64_t* dim = walk.dim(d);
    int64_t step = d == 0 ? walk.cols : d == 1 ? walk.rows : 1;
    int64_t count = (dim[0] + step - 1) / step;
    index[d] = block % count * step;
    block /= count;
    for (int i = 0; i < walk.operands; ++i) offsets[i] += index[d] * dim[1 + i];
  }
  cols = std::min(walk.cols, walk.dim(0)[0] - index[0]);
  rows = std::min(walk.rows, walk.dim(1)[0] - index[1]);
}

void Position::seek_element(const Walk& walk, int64_t element, int64_t most) {
  for (int i = 0; i < walk.operands; ++i) offsets[i] = 0;
  for (int d = 0; d < walk.ndim; ++d) {
    const int64_t* dim = walk.dim(d);
    index[d] = element % dim[0];
    element /= dim[0];
    for (int i = 0; i < walk.operands; ++i) offsets[i] += index[d] * dim[1 + i];
  }
  const int64_t row = walk.dim(0)[0], rest = walk.dim(1)[0] - index[1];
  const bool whole = index[0] == 0 && walk.cols == row && most >= row;
  rows = whole ? std::min({walk.rows, most / row, rest}) : 1;
  cols = std::min({walk.cols, row - index[0], most});
}

void Position::advance(const Walk& walk) {
  for (int d = 0; d < walk.ndim; ++d) {
    const int64_t* dim = walk.dim(d);
    int64_t step = d == 0 ? walk.cols : d == 1 ? walk.rows : 1;
    int64_t move = index[d] + step < dim[0] ? step : -index[d];
    index[d] += move;
    for (int i = 0; i < walk.operands; ++i) offsets[i] += move * dim[1 + i];
    if (d == 0) cols = std::min(step, dim[0] - index[0]);
    if (d == 1) rows = std::min(step, dim[0] - index[1]);
    if (move > 0) return;
  }
}

namespace {

// The side of the squares that are transposed in registers.
template <class T>
constexpr int kSide = kVectorBytes / sizeof(T) < 16 ? kVectorBytes / sizeof(T) : 16;

template <class T>
struct LineOf {
  typedef T type __attribute__((vector_size(kSide<T> * sizeof(T)), aligned(1), may_alias));
};

// a[0] b[0] a[1] b[1] ... of one half of both.
template <class T, int start, int... i>
typename LineOf<T>::type interleave(typename LineOf<T>::type a, typename LineOf<T>::type b,
                                    std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (start + i / 2 + i % 2 * kSide<T>)...);
}

// out[j][i] = x[i][j] for a square: interleaving the first half of the lines with the second, once
// per bit of an index, rotates the bits of (line, place) until they are exchanged.
template <class T>
__attribute__((flatten)) void transpose_square(T* out, int64_t out_stride, const T* x,
                                               int64_t x_stride) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (sizeof(T) == sizeof(float)) {
    Vector<float> columns[8];
    const auto line = [&](int64_t i) { return reinterpret_cast<const float*>(x + i * x_stride); };
    load_transposed(columns, line);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) store(reinterpret_cast<float*>(out + i * out_stride), columns[i]);
    return;
  }
#endif
  using Line = typename LineOf<T>::type;
  constexpr int n = kSide<T>;
  constexpr auto places = std::make_integer_sequence<int, n>();
  Line lines[n], mixed[n];
  for (int i = 0; i < n; ++i) lines[i] = *reinterpret_cast<const Line*>(x + i * x_stride);
  for (int bit = 1; bit < n; bit *= 2) {
    for (int i = 0; i < n / 2; ++i) {
      mixed[2 * i] = interleave<T, 0>(lines[i], lines[i + n / 2], places);
      mixed[2 * i + 1] = interleave<T, n / 2>(lines[i], lines[i + n / 2], places);
    }
    for (int i = 0; i < n; ++i) lines[i] = mixed[i];
  }
  for (int i = 0; i < n; ++i) *reinterpret_cast<Line*>(out + i * out_stride) = lines[i];
}

// out[j][i] = x[i][j], lines x places of x.
template <class T>
void transpose(T* out, int64_t out_stride, const T* x, int64_t x_stride, int64_t lines,
               int64_t places) {
  constexpr int64_t n = kSide<T>;
  int64_t whole_lines = lines / n * n, whole_places = places / n * n;
  for (int64_t i = 0; i < whole_lines; i += n)
    for (int64_t j = 0; j < whole_places; j += n)
      transpose_square(out + j * out_stride + i, out_stride, x + i * x_stride + j, x_stride);
  for (int64_t i = 0; i < lines; ++i)
    for (int64_t j = i < whole_lines ? whole_places : 0; j < places; ++j)
      out[j * out_stride + i] = x[i * x_stride + j];
}

template <class T, int... i>
typename LineOf<T>::type reversed(typename LineOf<T>::type x, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(x, x, (kSide<T> - 1 - i)...);
}

// out[i] = x[-i]
template <class T>
__attribute__((flatten)) void reverse(T* out, const T* x, int64_t count) {
  using Line = typename LineOf<T>::type;
  constexpr int n = kSide<T>;
  int64_t i = 0;
  for (; i + n <= count; i += n)
    *reinterpret_cast<Line*>(out + i) = reversed<T>(*reinterpret_cast<const Line*>(x - i - n + 1),
                                                    std::make_integer_sequence<int, n>());
  for (; i < count; ++i) out[i] = x[-i];
}

// Element (r, c) of the one goes to element (r, c) of the other.
template <class T>
void move_block(T* out, int64_t out_row, int64_t out_col, const T* x, int64_t x_row, int64_t x_col,
                int64_t rows, int64_t cols) {
  if (out_col == 1 && x_col == 1) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) out[r * out_row + c] = x[r * x_row + c];
  } else if (out_col == 1 && x_col == 0) {
    for (int64_t r = 0; r < rows; ++r) std::fill_n(out + r * out_row, cols, x[r * x_row]);
  } else if (out_col == 1 && x_col == -1) {
    for (int64_t r = 0; r < rows; ++r) reverse(out + r * out_row, x + r * x_row, cols);
  } else if (out_col == -1 && x_col == 1) {
    const int64_t last = cols - 1;
    for (int64_t r = 0; r < rows; ++r)
      reverse(out + r * out_row - last, x + r * x_row + last, cols);
  } else if (out_col == 1 && x_row == 1) {
    transpose(out, out_row, x, x_col, cols, rows);
  } else if (out_row == 1 && x_col == 1) {
    transpose(out, out_col, x, x_row, rows, cols);
  } else {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) out[r * out_row + c * out_col] = x[r * x_row + c * x_col];
  }
}

template <class T>
void load(void* tile, const void* x, int64_t rows, int64_t cols, int64_t row, int64_t col) {
  move_block(static_cast<T*>(tile), cols, 1, static_cast<const T*>(x), row, col, rows, cols);
}

template <class T>
void store(void* out, const void* tile, int64_t rows, int64_t cols, int64_t row, int64_t col) {
  move_block(static_cast<T*>(out), row, col, static_cast<const T*>(tile), cols, 1, rows, cols);
}

}  // namespace

void load_block(void* tile, const void* x, int64_t rows, int64_t cols, int64_t row_stride,
                int64_t col_stride, int64_t item) {
  if (item == 4) return load<uint32_t>(tile, x, rows, cols, row_stride, col_stride);
  if (item == 8) return load<uint64_t>(tile, x, rows, cols, row_stride, col_stride);
  if (item == 2) return load<uint16_t>(tile, x, rows, cols, row_stride, col_stride);
  return load<uint8_t>(tile, x, rows, cols, row_stride, col_stride);
}

void store_block(void* out, const void* tile, int64_t rows, int64_t cols, int64_t row_stride,
                 int64_t col_stride, int64_t item) {
  if (item == 4) return store<uint32_t>(out, tile, rows, cols, row_stride, col_stride);
  if (item == 8) return store<uint64_t>(out, tile, rows, cols, row_stride, col_stride);
  if (item == 2) return store<uint16_t>(out, tile, rows, cols, row_stride, col_stride);
  return store<uint8_t>(out, tile, rows, cols, row_stride, col_stride);
}

}  // namespace needle::NEEDLE_ISA
