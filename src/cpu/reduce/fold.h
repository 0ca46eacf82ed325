// Folding numbers that lie side by side: with vectors, as a binary tree over fixed blocks, so that
// the error of a float sum grows with the logarithm of its length.
#pragma once
#include <cstring>
#include <limits>

#include "base/axes.h"
#include "half.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kBlock = 1024;  // row elements read at once
constexpr int64_t kRun = 4096;    // neighbours folded as one block

// The order in which a processor reads blocks best; the bits of the results are the same.
enum class Order : int8_t {
  kTogether,  // the streams of a block together
  kLines,     // one line after the other
  kApart,     // four blocks far apart together
};

// ---- arithmetic: V is a number or a vector; integers wrap; NaN wins over any maximum or minimum

template <int32_t op, class A>
constexpr A identity() {
  using Limits = std::numeric_limits<A>;
  if (op == kSum || op == kAny) return A(0);
  if (op == kProd || op == kAll) return A(1);
  if (op == kMax) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return Limits::has_infinity ? Limits::infinity() : Limits::max();
}

template <int32_t op, class V>
inline V combine(V a, V b) {
  if constexpr (op == kMax || op == kAny)
    return a >= b ? a : (a != a ? a : b);
  else if constexpr (op == kMin || op == kAll)
    return a <= b ? a : (a != a ? a : b);
  else if constexpr (std::is_same_v<V, int64_t>)
    return op == kSum ? uint64_t(a) + uint64_t(b) : uint64_t(a) * uint64_t(b);
  else if constexpr (std::is_same_v<V, Vector<int64_t>>)
    return op == kSum ? V(Vector<uint64_t>(a) + Vector<uint64_t>(b))
                      : V(Vector<uint64_t>(a) * Vector<uint64_t>(b));
  else
    return op == kSum ? a + b : a * b;
}

template <int32_t op, class A>
inline bool better(A candidate, A best) {
  const bool wins = op == kMax ? candidate > best : candidate < best;
  return wins || (candidate != candidate && best == best);
}

inline int64_t middle(int64_t begin, int64_t end, int64_t unit) {
  return begin + round_up((end - begin) / 2, unit);
}

template <int32_t op, class A>
inline A fold_lanes(Vector<A> v) {
#pragma GCC unroll 4
  for (int width = kLanes<A> / 2; width > 0; width /= 2) v = combine<op>(v, exchange<A>(v, width));
  return v[0];
}

// A block is folded in eight totals, of streams that begin far apart: quarters, or halves where
// vectors are short, because two of their sums in a row would wait for each other.
constexpr int64_t kTotals = 8, kEach = kVectorBytes == 64 ? 2 : 4, kStreams = kTotals / kEach;

// Elements of a stream of n.
template <class A>
constexpr int64_t stream_length(int64_t n) {
  return n / (kTotals * kLanes<A>)*kEach * kLanes<A>;
}

template <int32_t op, class V>
inline V combine_totals(V (&total)[kTotals]) {
#pragma GCC unroll 3
  for (int64_t width = kTotals / 2; width > 0; width /= 2)
#pragma GCC unroll 4
    for (int64_t j = 0; j < width; ++j) total[j] = combine<op>(total[j], total[j + width]);
  return total[0];
}

// step(total, x, j) for all vectors of a block, where j says which total, and the totals combined.
// n is a multiple of the lanes. The streams are read together: the processor then runs ahead of as
// many pages. The next elements are fetched into the first cache, which is faster than fetching the
// next block into the second.
template <int32_t op, class A, class Step>
inline Vector<A> fold_block(const A* x, int64_t n, const Step& step) {
  constexpr int64_t kWidth = kLanes<A>, kAhead = 2048 / sizeof(A);
  // Written out, because a loop would become a call that clears memory: slower than all the rest.
  const Vector<A> none = splat<A>(identity<op, A>());
  Vector<A> total[kTotals] = {none, none, none, none, none, none, none, none};
  const int64_t length = stream_length<A>(n);
  for (int64_t i = 0; i < length; i += kEach * kWidth) {
#pragma GCC unroll 8
    for (int64_t j = 0; j < kTotals; ++j) {
      const A* at = x + j / kEach * length + i + j % kEach * kWidth;
      if (j * kVectorBytes % 64 == 0) __builtin_prefetch(at + kAhead);
      total[j] = step(total[j], load(at), j);
    }
  }
  for (int64_t i = kStreams * length; i < n; i += kWidth) total[0] = step(total[0], load(x + i), 0);
  return combine_totals<op>(total);
}

// Vectors of at most 32 bytes.
template <class A>
struct NarrowOf {
  typedef A type __attribute__((vector_size(kVectorBytes < 32 ? kVectorBytes : 32)));
};

// The same bits, the streams one after the other, for processors whose prefetching goes on over the
// ends of pages but follows few streams. V is a vector or a part of one: with parts fewer loads
// wait for memory at once, so they do not overtake the prefetching (comparisons need so many
// instructions that they do not overtake it anyway).
template <int32_t op, class V, class A, class Step>
inline Vector<A> fold_block_in_order(const A* x, int64_t n, const Step& step) {
  constexpr int64_t kPart = sizeof(V) / sizeof(A), kParts = kLanes<A> / kPart;
  V total[kParts][kTotals];
#pragma GCC unroll 4
  for (int64_t part = 0; part < kParts; ++part)
#pragma GCC unroll 8
    for (int64_t j = 0; j < kTotals; ++j) total[part][j] = V{} + identity<op, A>();
  const auto add = [&](const A* from, int64_t j) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int64_t part = 0; part < kParts; ++part) {
      V v;
      std::memcpy(&v, from + part * kPart, sizeof v);
      total[part][j] = step(total[part][j], v, j);
    }
  };
  const int64_t length = stream_length<A>(n);
#pragma GCC unroll 4
  for (int64_t stream = 0; stream < kStreams; ++stream) {
    const A* from = x + stream * length;
#pragma GCC unroll 4
    for (int64_t i = 0; i < length; i += kEach * kLanes<A>) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < kEach; ++j) add(from + i + j * kLanes<A>, stream * kEach + j);
    }
  }
  for (int64_t i = kStreams * length; i < n; i += kLanes<A>) add(x + i, 0);
  V whole[kParts];
#pragma GCC unroll 4
  for (int64_t part = 0; part < kParts; ++part) whole[part] = combine_totals<op>(total[part]);
  Vector<A> result;
  std::memcpy(&result, whole, sizeof result);
  return result;
}

// The same bits for blocks at four places: a stream of each at a time, step(total, x, place).
template <int32_t op, class A, class Step>
inline void fold_four_blocks(const A* const* x, int64_t n, const Step& step, Vector<A>* folded) {
  constexpr int64_t kWidth = kLanes<A>, kPlaces = 4;
  const Vector<A> none = splat<A>(identity<op, A>());
  const int64_t length = stream_length<A>(n);
  Vector<A> totals[kPlaces][kTotals];
  for (int64_t stream = 0; stream < kStreams; ++stream) {
    Vector<A> total[kPlaces * kEach];
#pragma GCC unroll 16
    for (int64_t j = 0; j < kPlaces * kEach; ++j) total[j] = none;
    for (int64_t i = stream * length; i < (stream + 1) * length; i += kEach * kWidth) {
#pragma GCC unroll 16
      for (int64_t j = 0; j < kPlaces * kEach; ++j)
        total[j] = step(total[j], load(x[j / kEach] + i + j % kEach * kWidth), j / kEach);
    }
    for (int64_t j = 0; j < kPlaces * kEach; ++j)
      totals[j / kEach][stream * kEach + j % kEach] = total[j];
  }
  for (int64_t place = 0; place < kPlaces; ++place) {
    for (int64_t i = kStreams * length; i < n; i += kWidth)
      totals[place][0] = step(totals[place][0], load(x[place] + i), place);
    folded[place] = combine_totals<op>(totals[place]);
  }
}

// With care for NaN, which wins.
template <int32_t op, class A>
inline Vector<A> fold_block_of_any(const A* x, int64_t n) {
  return fold_block<op>(x, n, [](const Vector<A>& total, const Vector<A>& v, int64_t) {
    return combine<op>(total, v);
  });
}

// Largest or smallest floating numbers by one instruction that may lose a NaN; the products with 0
// find it. They find infinities too: then, as with a NaN, the block is folded with care.
template <int32_t op, class A>
struct Extremes {
  Vector<A> check[4] = {};

  Vector<A> operator()(const Vector<A>& best, Vector<A> v, int64_t j) {
#if defined(__AVX512F__)
    asm("" : "+v"(v));  // or the product would load it again
#endif
    check[j % 4] += v * A(0);
    return extreme<op == kMax>(v, best);
  }
};

template <int32_t op, class A>
inline Vector<A> fold_extremes(const A* x, int64_t n, Order order) {
  Extremes<op, A> step;
  const auto add = [&](const Vector<A>& best, const Vector<A>& v, int64_t j) {
    return step(best, v, j);
  };
  const Vector<A> best = order == Order::kLines ? fold_block_in_order<op, Vector<A>>(x, n, add)
                                                : fold_block<op>(x, n, add);
  const Vector<A>* check = step.check;
  const bool finite = add_lanes<A>((check[0] + check[1]) + (check[2] + check[3])) == 0;
  return finite ? best : fold_block_of_any<op>(x, n);
}

template <int32_t op, class A>
constexpr bool kExtremes = std::is_floating_point_v<A> && (op == kMax || op == kMin);

template <int32_t op, class A>
inline Vector<A> fold_run(const A* x, int64_t n, Order order) {
  if constexpr (kExtremes<op, A>) {
    return fold_extremes<op>(x, n, order);
  } else {
    const auto step = [](const auto& a, const auto& b, int64_t) { return combine<op>(a, b); };
    using Narrow = typename NarrowOf<A>::type;
    return order == Order::kLines ? fold_block_in_order<op, Narrow>(x, n, step)
                                  : fold_block<op>(x, n, step);
  }
}

template <int32_t op, class A>
void fold_four_runs(const A* const* x, int64_t n, Vector<A>* folded) {
  if constexpr (kExtremes<op, A>) {
    Extremes<op, A> step;
    fold_four_blocks<op>(
        x, n, [&](const auto& best, const auto& v, int64_t j) { return step(best, v, j); }, folded);
    for (int place = 0; place < 4; ++place)
      if (add_lanes<A>(step.check[place]) != 0) folded[place] = fold_block_of_any<op>(x[place], n);
  } else {
    const auto step = [](const auto& a, const auto& b, int64_t) { return combine<op>(a, b); };
    fold_four_blocks<op>(x, n, step, folded);
  }
}

// n elements at each of four places, of at most four blocks.
template <int32_t op, class A>
void fold_four(const A* const* x, int64_t n, Vector<A>* folded) {
  if (n <= kRun) return fold_four_runs<op>(x, n, folded);
  const int64_t half = middle(0, n, kRun);
  const A* second[] = {x[0] + half, x[1] + half, x[2] + half, x[3] + half};
  Vector<A> later[4];
  fold_four<op>(x, half, folded);
  fold_four<op>(second, n - half, later);
  for (int place = 0; place < 4; ++place) folded[place] = combine<op>(folded[place], later[place]);
}

constexpr int64_t kGroup = 16 * kRun;  // elements whose quarters are far apart

template <int32_t op, class A>
Vector<A> fold_group(const A* x) {
  constexpr int64_t kQuarter = kGroup / 4;
  const A* at[] = {x, x + kQuarter, x + 2 * kQuarter, x + 3 * kQuarter};
  Vector<A> folded[4];
  fold_four<op>(at, kQuarter, folded);
  return combine<op>(combine<op>(folded[0], folded[1]), combine<op>(folded[2], folded[3]));
}

// Combines blocks as a binary tree.
template <int32_t op, class A>
class Tree {
 public:
  // Adds a block, or an aligned group of them, before which there are so many.
  void add(Vector<A> total, int64_t before) {
    for (; before & 1; before >>= 1) total = combine<op>(part_[--parts_], total);
    part_[parts_++] = total;
  }
  Vector<A> total() {
    Vector<A> total = part_[--parts_];
    while (parts_) total = combine<op>(part_[--parts_], total);
    return total;
  }

 private:
  Vector<A> part_[64];  // of numbers of blocks that are powers of two, the largest first
  int parts_ = 0;
};

// n is a multiple of the lanes and not 0.
template <int32_t op, class A>
Vector<A> fold_vectors(const A* x, int64_t n, Order order) {
  if (n <= kRun) return fold_run<op>(x, n, order);
  Tree<op, A> tree;
  int64_t i = 0;
  for (; order == Order::kApart && i + kGroup <= n; i += kGroup)
    tree.add(fold_group<op>(x + i), i / kGroup);
  for (; i < n; i += kRun)
    tree.add(fold_run<op>(x + i, n - i < kRun ? n - i : kRun, order), i / kRun);
  return tree.total();
}

template <int32_t op, class A>
A fold_dense(const A* x, int64_t n, Order order = Order::kTogether) {
  int64_t i = n / kLanes<A> * kLanes<A>;
  A total = i ? fold_lanes<op, A>(fold_vectors<op>(x, i, order)) : identity<op, A>();
  for (; i < n; ++i) total = combine<op>(total, x[i]);
  return total;
}

// The same for n elements at each of four places, at least a vector of them and at most four
// blocks.
template <int32_t op, class A>
void fold_four_dense(const A* const* x, int64_t n, A* folded) {
  const int64_t whole = n / kLanes<A> * kLanes<A>;
  Vector<A> total[4];
  fold_four<op>(x, whole, total);
  for (int place = 0; place < 4; ++place) {
    folded[place] = fold_lanes<op, A>(total[place]);
    for (int64_t i = whole; i < n; ++i) folded[place] = combine<op>(folded[place], x[place][i]);
  }
}

// n bfloat16 as float: of two neighbours, which are one word, each is a mask or a shift away, and
// those of even and odd places have totals of their own.
template <int32_t op>
float fold_bfloat16(const uint16_t* x, int64_t n) {
  constexpr int64_t kWidth = 2 * kLanes<float>;
  const Vector<float> none = splat<float>(identity<op, float>());
  Vector<float> total[kTotals] = {none, none, none, none, none, none, none, none};
  const auto add = [&total](const uint16_t* at, int64_t j) {
    Vector<uint32_t> words;
    std::memcpy(&words, at, sizeof words);
    total[j] = combine<op>(total[j], (Vector<float>)(words << 16));
    total[j + 1] = combine<op>(total[j + 1], (Vector<float>)(words & 0xffff0000u));
  };
  int64_t i = 0;
  for (; i + kTotals / 2 * kWidth <= n; i += kTotals / 2 * kWidth)
#pragma GCC unroll 4
    for (int64_t j = 0; j < kTotals; j += 2) add(x + i + j / 2 * kWidth, j);
  for (; i + kWidth <= n; i += kWidth) add(x + i, 0);
  float folded = fold_lanes<op, float>(combine_totals<op>(total));
  for (; i < n; ++i) folded = combine<op>(folded, to_float(BFloat16{x[i]}));
  return folded;
}

}  // namespace needle::NEEDLE_ISA
