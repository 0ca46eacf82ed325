// Attention, block by block of queries and keys, so that the scores are never in memory as a whole:
// what forward and backward passes share (Dao et al., "FlashAttention", 2022, arXiv:2205.14135).
// Sums over keys, or over queries, run over blocks in ascending order and within a block along one
// chain, so their bits depend neither on the number of threads nor on what lies behind a key.
#pragma once
#include <cmath>
#include <cstring>

#include "base/axes.h"
#include "isa/exponential.h"
#include "gemm/pack.h"
#include "gemm/tile.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kKeyBlock = 64, kQueryBlock = 8 * kTileRows;

// A matrix of a head: rows `row` apart.
template <class T>
struct Rows {
  T* data;
  int64_t row;
  T* at(int64_t i) const { return data + i * row; }
};

struct HeadStrides {
  int64_t batch, head, row;
};

struct AttentionState {
  int64_t batch, heads, groups, queries, keys, depth, width;  // width: of v and out
  HeadStrides q, k, v, out;
  int64_t mask[4];        // strides
  int64_t chunks, chunk;  // stretches of queries of a head, and their length
  int64_t scratch;        // elements that a thread needs
  double scale;
  bool causal, has_mask, mask_is_bool;
  int team;

  int64_t per_group() const { return heads / groups; }
};

inline HeadStrides head_strides(const Operand& x) {
  return {x.strides[0], x.strides[1], x.strides[2]};
}

template <class T>
Rows<T> head_of(const void* x, const HeadStrides& s, int64_t batch, int64_t head) {
  using Element = std::remove_const_t<T>;
  auto* first = const_cast<Element*>(as<Element>(x));
  return {first + batch * s.batch + head * s.head, s.row};
}

// c = a b, or c += a b; b's rows are `b_step` apart.
template <class T>
void multiply_block(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_step,
                    const T* b, int64_t b_step, T* c, int64_t c_row, bool add) {
  for (int64_t j = 0; j < n; j += kTileColumns<T>) {
    const int64_t width = least(kTileColumns<T>, n - j);
    const int64_t vectors = parts(width, kLanes<T>);
    for (int64_t i = 0, height; i < m; i += height) {
      height = tile_height(m - i);
      Tile<T> t{};
      t.k = k;
      t.a = a + i * a_row;
      t.a_row = a_row;
      t.a_step = a_step;
      t.b = b + j;
      t.b_step = b_step;
      t.c = c + i * c_row + j;
      t.c_row = c_row;
      t.width = width;
      t.add = add;
      t.pace = kPace;
      shared_tile<T>(height, vectors)(t);
    }
  }
}

// out [depth, kKeyBlock], zeros beside it.
template <class T>
void transpose_block(T* out, Rows<const T> x, int64_t n, int64_t depth) {
  pack_panel(out, kKeyBlock, x.data, n, x.row, depth, 1);
}

template <class T>
T largest_lane(Vector<T> v) {
#pragma GCC unroll 4
  for (int width = kLanes<T> / 2; width > 0; width /= 2) v = larger(v, exchange<T>(v, width));
  return v[0];
}

// exp(x) for x <= 0; so small ones are 0 that their products would be denormal numbers.
template <class T>
inline Vector<T> probability(const Vector<T>& x) {
  constexpr T kLeast = sizeof(T) == 4 ? -69 : -700;
  return x < kLeast ? Vector<T>{} : exponential(x);
}

// ---- which keys a query sees ----------------------------------------------------------------

// The keys of a batch item, and how many of them each query sees.
struct Sight {
  int64_t keys, offset;  // row i sees keys up to i + offset if causal
  bool causal;

  int64_t of(int64_t query) const {
    if (!causal) return keys;
    return most(0, least(keys, query + offset + 1));
  }
  // The first query that sees a key.
  int64_t first(int64_t key) const { return causal ? most(0, key - offset) : 0; }
};

inline Sight sight_of(const AttentionState& s, const int64_t* lengths, int64_t batch) {
  const int64_t keys = lengths ? most(0, least(s.keys, lengths[batch])) : s.keys;
  return {keys, keys - s.queries, s.causal};
}

// What is added to the scores of a block of keys, a row at a time.
template <class T>
class Mask {
 public:
  Mask(const AttentionState& s, const void* mask, int64_t batch, int64_t head)
      : row_(s.mask[2]), step_(s.mask[3]), exists_(s.has_mask && mask), is_bool_(s.mask_is_bool) {
    const int64_t first = batch * s.mask[0] + head * s.mask[1];
    data_ = exists_ ? as<char>(mask) + first * (is_bool_ ? 1 : sizeof(T)) : nullptr;
  }

  bool exists() const { return exists_; }
  bool is_shared() const { return row_ == 0; }  // by all queries

  void read(T* out, int64_t query, int64_t key, int64_t n) const {
    const int64_t first = query * row_ + key * step_;
    if (is_bool_) {
      const auto* x = as<uint8_t>(data_) + first;
      for (int64_t j = 0; j < n; ++j) out[j] = x[j * step_] ? T(0) : -math::kInfinity<T>;
    } else {
      const T* x = as<T>(data_) + first;
      for (int64_t j = 0; j < n; ++j) out[j] = x[j * step_];
    }
  }

  // Whether every query passes over these keys; looked at only where that is quick.
  bool hides(int64_t key, int64_t n) const {
    if (!exists_ || !is_bool_ || !is_shared()) return false;
    const auto* x = as<uint8_t>(data_) + key * step_;
    for (int64_t j = 0; j < n; ++j)
      if (x[j * step_]) return false;
    return true;
  }

 private:
  const char* data_;
  int64_t row_, step_;
  bool exists_, is_bool_;
};

// scores[0, seen) become scaled scores with the mask; up to the end of the last vector -inf.
// Returns the number of vectors.
template <class T>
int64_t finish_scores(T* scores, int64_t seen, T scale, const T* mask) {
  const int64_t vectors = parts(seen, kLanes<T>);
  for (int64_t p = 0; p < vectors; ++p) {
    Vector<T> x = load(scores + p * kLanes<T>) * scale;
    if (mask) x += load(mask + p * kLanes<T>);
    store(scores + p * kLanes<T>, x);
  }
  for (int64_t j = seen; j < vectors * kLanes<T>; ++j) scores[j] = -math::kInfinity<T>;
  return vectors;
}

// The mask's rows of a block of queries and keys, read when they are asked for.
template <class T>
class MaskRows {
 public:
  MaskRows(const Mask<T>& mask, T* buffer, int64_t key, int64_t n)
      : mask_(mask), buffer_(buffer), key_(key), n_(n) {
    if (mask.exists() && mask.is_shared()) mask.read(buffer, 0, key, n);
  }
  const T* row(int64_t query) const {
    if (!mask_.exists()) return nullptr;
    if (!mask_.is_shared()) mask_.read(buffer_, query, key_, n_);
    return buffer_;
  }

 private:
  const Mask<T>& mask_;
  T* buffer_;
  int64_t key_, n_;
};

// What shapes, strides and dtypes say; a reason, or null. Strides of the last axes must be 1.
const char* describe_attention(AttentionState& s, double scale, bool causal, const Operand& q,
                               const Operand& k, const Operand& v, const Operand& mask);

}  // namespace needle::NEEDLE_ISA
