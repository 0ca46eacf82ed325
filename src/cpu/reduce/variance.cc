// Sums of squared distances from the mean, in one pass over the memory: of each block while it is
// in the cache; blocks are joined as a tree. Source: Chan, Golub, LeVeque, "Algorithms for
// computing the sample variance", 1983, equations 1.5.
#include <algorithm>
#include <cmath>

#include "reduce/reduce.h"

namespace needle::NEEDLE_ISA {
namespace {

// `next` is fetched from memory meanwhile: this takes as long as the sum before it, and without it
// memory would only get the requests of that sum.
template <class A>
A squares_around(const A* x, A mean, int64_t n, const A* next) {
  int64_t i = kMaskedLoads ? n : n / kLanes<A> * kLanes<A>;
  A total = sum_vectors<A>(i, [=](int64_t j, const auto& part) {
    fetch_ahead(next, j);
    const Vector<A> apart = part.load(x + j) - mean;
    return apart * apart;
  });
  for (; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total;
}

template <class A>
void join(Moments<A>& part, const Moments<A>& later, int64_t width) {
  if (later.count == 0) return;
  if (part.count == 0) {  // the code below gives NaN, 0 * inf, for an infinite squared mean
    std::copy_n(later.mean, width, part.mean);
    std::copy_n(later.squares, width, part.squares);
    part.count = later.count;
    return;
  }
  const int64_t count = part.count + later.count;
  const A share = static_cast<A>(later.count) / static_cast<A>(count);
  const A weight = share * static_cast<A>(part.count);
  for (int64_t j = 0; j < width; ++j) {
    const A apart = later.mean[j] - part.mean[j];
    part.mean[j] += apart * share;
    part.squares[j] += later.squares[j] + apart * apart * weight;
  }
  part.count = count;
}

// One stretch of at most kBlock elements, already in the cache for the second pass.
template <bool centred, class A>
void add_block(Moments<A>& part, const A* x, int64_t n, Order order) {
  Moments<A> own;
  own.count = n;
  own.mean[0] = centred ? fold_dense<kSum>(x, n, order) / static_cast<A>(n) : A(0);
  const A* next = order == Order::kLines ? nullptr : x + kRun + kBlock;
  own.squares[0] = squares_around(x, own.mean[0], n, next);
  join(part, own, 1);
}

template <bool centred, class A>
void fold_row(const State<A>& s, const void* x, int64_t origin, int64_t begin, int64_t end,
              Moments<A>& part) {
  part.count = 0;
  part.mean[0] = part.squares[0] = 0;
  if (end - begin > kBlock) {
    Moments<A> later;
    const int64_t half = middle(begin, end, kBlock);
    fold_row<centred>(s, x, origin, begin, half, part);
    fold_row<centred>(s, x, origin, half, end, later);
    return join(part, later, 1);
  }
  for_numbers(s, x, origin, begin, end, [&](const A* element, int64_t n, int64_t) {
    add_block<centred>(part, element, n, s.order);
  });
}

template <bool centred, class A>
void fold_strip(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                Moments<A>& part) {
  if (end - begin > kRows) {
    Moments<A> later;
    const int64_t half = middle(begin, end, kRows);
    fold_strip<centred>(s, x, unit, begin, half, part);
    fold_strip<centred>(s, x, unit, half, end, later);
    return join(part, later, unit.width);
  }
  A buffer[kStrip];
  const auto row = [&](int64_t i) {
    return fetch(s, x, unit.x + s.reduced.at(i).x, unit.width, s.strip.x, buffer);
  };
  part.count = end - begin;
  for (int64_t j = 0; j < unit.width; ++j) part.mean[j] = part.squares[j] = 0;
  for (int64_t i = begin; i < end && centred; ++i) {
    const A* element = row(i);
    for (int64_t j = 0; j < unit.width; ++j) part.mean[j] += element[j];
  }
  for (int64_t j = 0; j < unit.width; ++j) part.mean[j] /= static_cast<A>(end - begin);
  for (int64_t i = begin; i < end; ++i) {
    const A* element = row(i);
    for (int64_t j = 0; j < unit.width; ++j) {
      const A apart = element[j] - part.mean[j];
      part.squares[j] += apart * apart;
    }
  }
}

// The root of the mean square, or sum of squares, of a result whose squares leave the range of A:
// of its elements times a power of two, in double.
template <bool centred, class A>
double far_root(const State<A>& s, const void* x, int64_t origin) {
  const auto each = [&](const auto& body) {
    for (int64_t i = 0; i < s.length; ++i)
      body(*as<A>(byte_offset(x, (origin + s.reduced.at(i).x) * s.x_size)));
  };
  double most = 0, sum = 0, squares = 0;
  each([&](double v) { most = std::max(most, std::fabs(v)); });
  const double scale = most > 0 && most < INFINITY ? std::ldexp(1.0, -std::ilogb(most)) : 1;
  if (centred) each([&](double v) { sum += v * scale; });
  const double mean = sum / static_cast<double>(s.length);
  each([&](double v) { squares += (v * scale - mean) * (v * scale - mean); });
  return std::sqrt(squares * (centred ? s.factor : 1.0)) / scale;
}

template <int32_t op, class A>
struct Deviation : ReadsMemory {
  static constexpr bool kCentred = op != kNorm;
  using Part = Moments<A>;
  static void fold(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                   Part& part) {
    if (s.strip.size == 1)
      fold_row<kCentred>(s, x, unit.x, begin, end, part);
    else
      fold_strip<kCentred>(s, x, unit, begin, end, part);
  }
  static void join(Part& part, const Part& later, int64_t width) {
    NEEDLE_ISA::join(part, later, width);
  }
  static void finish(const State<A>& s, void* out, const void* x, const Unit& unit, Part& part) {
    constexpr A kLeast = sizeof(A) == 8 ? A(0x1p-800) : A(0x1p-100);
    if (kCentred)
      for (int64_t j = 0; j < unit.width; ++j) part.squares[j] *= static_cast<A>(s.factor);
    for (int64_t j = 0; op != kVariance && j < unit.width; ++j) {
      A& found = part.squares[j];
      const bool inside = found >= kLeast && found < INFINITY;
      found = inside ? std::sqrt(found)
                     : static_cast<A>(far_root<kCentred>(s, x, unit.x + j * s.strip.x));
    }
    write_unit(s, out, unit, part.squares);
  }
};

}  // namespace

template <class A>
Run variance_run(int32_t op) {
  if constexpr (std::is_floating_point_v<A>)
    return op == kVariance    ? run_units<Deviation<kVariance, A>, A>
           : op == kDeviation ? run_units<Deviation<kDeviation, A>, A>
                              : run_units<Deviation<kNorm, A>, A>;
  else
    return nullptr;
}
template Run variance_run<float>(int32_t);
template Run variance_run<double>(int32_t);
template Run variance_run<int64_t>(int32_t);

}  // namespace needle::NEEDLE_ISA
