// Folding numbers that lie side by side: with vectors, as a binary tree over fixed blocks, so that
// the error of a float sum grows with the logarithm of its length.
#pragma once
#include <cstring>
#include <limits>

#include "axes.h"
#include "lanes.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kBlock = 1024;  // row elements read at once
constexpr int64_t kRun = 4096;    // neighbours folded as one block

// In which order a processor reads blocks best; the bits of what they are folded to are the same.
enum class Order : int8_t {
  kQuarters,  // the quarters of a block together
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

// step(total, x, j) for all vectors of a block, in eight totals (j: which), two of each quarter,
// and the totals combined. n is a multiple of the lanes. The quarters of a block are read together:
// the processor then runs ahead of four pages, not one (0.75 of the time on Sapphire Rapids).
template <int32_t op, class A, class Step>
inline Vector<A> fold_block(const A* x, int64_t n, const Step& step) {
  constexpr int64_t kWidth = kLanes<A>, kUnroll = 8, kStreams = 4, kEach = kUnroll / kStreams;
  // Written out, because a loop would become a call that clears memory: slower than all the rest.
  const Vector<A> none = splat<A>(identity<op, A>());
  Vector<A> total[kUnroll] = {none, none, none, none, none, none, none, none};
  const int64_t quarter = n / (kUnroll * kWidth) * kEach * kWidth;
  for (int64_t i = 0; i < quarter; i += kEach * kWidth) {
#pragma GCC unroll 8
    for (int64_t j = 0; j < kUnroll; ++j) {
      const A* at = x + j / kEach * quarter + i + j % kEach * kWidth;
      __builtin_prefetch(at + kRun, 0, 2);  // the processor itself does not look over a page's end
      total[j] = step(total[j], load(at), j);
    }
  }
  for (int64_t i = kStreams * quarter; i < n; i += kWidth)
    total[0] = step(total[0], load(x + i), 0);
#pragma GCC unroll 3
  for (int64_t width = kUnroll / 2; width > 0; width /= 2)
#pragma GCC unroll 4
    for (int64_t j = 0; j < width; ++j) total[j] = combine<op>(total[j], total[j + width]);
  return total[0];
}

// Vectors of at most 32 bytes.
template <class A>
struct NarrowOf {
  typedef A type __attribute__((vector_size(kVectorBytes < 32 ? kVectorBytes : 32)));
};

// The same bits, the quarters one after the other: 0.7 of the time on Zen 4, whose prefetching goes
// on over the ends of pages but follows few streams. V is a vector or a part of one: with parts
// fewer loads wait for memory at once, which then are not ahead of the prefetching (0.9 of the time
// of sums of rows; comparisons need so many instructions that they are not).
template <int32_t op, class V, class A, class Step>
inline Vector<A> fold_block_in_order(const A* x, int64_t n, const Step& step) {
  constexpr int64_t kPart = sizeof(V) / sizeof(A), kParts = kLanes<A> / kPart;
  constexpr int64_t kStreams = 4, kEach = 2 * kLanes<A>;
  struct Quarter {
    V even[kParts], odd[kParts];
  };
  const auto add = [&](V(&total)[kParts], const A* from, int64_t which) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kParts; ++i) {
      V part;
      std::memcpy(&part, from + i * kPart, sizeof part);
      total[i] = step(total[i], part, which);
    }
  };
  const int64_t size = n / (kStreams * kEach) * kEach;
  const auto quarter = [&](const A* from, int64_t which) __attribute__((always_inline)) {
    Quarter total;
#pragma GCC unroll 4
    for (int64_t i = 0; i < kParts; ++i) total.even[i] = total.odd[i] = V{} + identity<op, A>();
#pragma GCC unroll 8
    for (int64_t i = 0; i < size; i += kEach) {
      add(total.even, from + i, which);
      add(total.odd, from + i + kLanes<A>, which + 1);
    }
    return total;
  };
  Quarter a = quarter(x, 0);
  const Quarter b = quarter(x + size, 2), c = quarter(x + 2 * size, 4);
  const Quarter d = quarter(x + 3 * size, 6);
  for (int64_t i = kStreams * size; i < n; i += kLanes<A>) add(a.even, x + i, 0);
  const auto tree = [](const V& e, const V& f, const V& g, const V& h) {
    return combine<op>(combine<op>(e, g), combine<op>(f, h));
  };
  V total[kParts];
#pragma GCC unroll 4
  for (int64_t i = 0; i < kParts; ++i)
    total[i] = combine<op>(tree(a.even[i], b.even[i], c.even[i], d.even[i]),
                           tree(a.odd[i], b.odd[i], c.odd[i], d.odd[i]));
  Vector<A> whole;
  std::memcpy(&whole, total, sizeof whole);
  return whole;
}

// The same bits for blocks at four places: a quarter of each at a time, step(total, x, place).
template <int32_t op, class A, class Step>
inline void fold_four_blocks(const A* const* x, int64_t n, const Step& step, Vector<A>* folded) {
  constexpr int64_t kWidth = kLanes<A>, kEach = 2 * kWidth, kPlaces = 4;
  const Vector<A> none = splat<A>(identity<op, A>());
  const int64_t size = n / (kPlaces * kEach) * kEach;
  Vector<A> quarters[kPlaces][8];
  for (int64_t quarter = 0; quarter < 4; ++quarter) {
    Vector<A> total[8] = {none, none, none, none, none, none, none, none};
    for (int64_t i = quarter * size; i < (quarter + 1) * size; i += kEach) {
#pragma GCC unroll 8
      for (int64_t j = 0; j < 8; ++j)
        total[j] = step(total[j], load(x[j / 2] + i + j % 2 * kWidth), j / 2);
    }
    for (int64_t j = 0; j < 8; ++j) quarters[j / 2][2 * quarter + j % 2] = total[j];
  }
  for (int64_t place = 0; place < kPlaces; ++place) {
    Vector<A>* total = quarters[place];
    for (int64_t i = 4 * size; i < n; i += kWidth)
      total[0] = step(total[0], load(x[place] + i), place);
    for (int64_t width = 4; width > 0; width /= 2)
      for (int64_t j = 0; j < width; ++j) total[j] = combine<op>(total[j], total[j + width]);
    folded[place] = total[0];
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

  Vector<A> operator()(const Vector<A>& best, const Vector<A>& v, int64_t j) {
    check[j % 4] += v * A(0);
    return op == kMax ? (v > best ? v : best) : (v < best ? v : best);
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

// Blocks are combined as a binary tree. n is a multiple of the lanes and not 0.
template <int32_t op, class A>
Vector<A> fold_vectors(const A* x, int64_t n, Order order) {
  if (n <= kRun) return fold_run<op>(x, n, order);
  Vector<A> part[64];  // of numbers of blocks that are powers of two, the largest first
  int parts = 0;
  const auto append = [&](Vector<A> total, int64_t before) {
    for (; before & 1; before >>= 1) total = combine<op>(part[--parts], total);
    part[parts++] = total;
  };
  int64_t i = 0;
  for (; order == Order::kApart && i + kGroup <= n; i += kGroup)
    append(fold_group<op>(x + i), i / kGroup);
  for (; i < n; i += kRun)
    append(fold_run<op>(x + i, n - i < kRun ? n - i : kRun, order), i / kRun);
  Vector<A> total = part[--parts];
  while (parts) total = combine<op>(part[--parts], total);
  return total;
}

template <int32_t op, class A>
A fold_dense(const A* x, int64_t n, Order order = Order::kQuarters) {
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

}  // namespace needle::NEEDLE_ISA
