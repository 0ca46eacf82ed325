// Stable sort along one axis. Every value becomes an unsigned key whose order is the wanted one,
// paired with its position; equal keys then never are equal pairs, and long lines are sorted by
// their keys' digits (least significant first, which is stable).
#include <algorithm>
#include <type_traits>

#include "base/axes.h"
#include "base/convert.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int kDigitBits = 11;
constexpr int64_t kDigits = 1 << kDigitBits;
constexpr int64_t kShort = 1024;  // below, comparing is faster than counting digits

template <class Key>
struct Pair {
  Key key;
  uint32_t position;
  bool operator<(const Pair& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

struct State {
  Axes kept;
  int64_t n, count, stride, out_stride, item_size;  // count: of the results in a line
  int64_t area;                                     // bytes of workspace per thread
  bool descending;
  int team;
  void (*sort_line)(const State& s, void* values, int64_t* indices, const void* x, void* area);
};

// Keys of floating numbers: NaN is last in either order; -0 equals 0.
template <class S>
inline auto key_of(S x, bool descending) {
  if constexpr (std::is_same_v<S, BFloat16> || std::is_same_v<S, Half>) {
    return key_of(to_float(x), descending);
  } else {
    using Key = std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>;
    constexpr Key kSign = Key(1) << (sizeof(S) * 8 - 1);
    const Key bits = __builtin_bit_cast(Key, x + S(0));
    const Key key = bits & kSign ? ~bits : bits | kSign;
    return x != x ? ~Key(0) : descending ? static_cast<Key>(~key) : key;
  }
}

// Sorts pairs[0..n); returns where the result lies, pairs or other.
template <class Key>
Pair<Key>* sort_by_digits(Pair<Key>* pairs, Pair<Key>* other, int64_t n) {
  constexpr int kPasses = (sizeof(Key) * 8 + kDigitBits - 1) / kDigitBits;
  uint32_t counts[kPasses][kDigits] = {};
  for (int64_t i = 0; i < n; ++i)
    for (int pass = 0; pass < kPasses; ++pass)
      ++counts[pass][pairs[i].key >> (pass * kDigitBits) & (kDigits - 1)];
  for (int pass = 0; pass < kPasses; ++pass) {
    uint32_t* count = counts[pass];
    const int shift = pass * kDigitBits;
    if (count[pairs[0].key >> shift & (kDigits - 1)] == n) continue;  // one digit for all
    uint32_t start = 0;
    for (int64_t digit = 0; digit < kDigits; ++digit) {
      const uint32_t size = count[digit];
      count[digit] = start;
      start += size;
    }
    for (int64_t i = 0; i < n; ++i)
      other[count[pairs[i].key >> shift & (kDigits - 1)]++] = pairs[i];
    std::swap(pairs, other);
  }
  return pairs;
}

constexpr int64_t kGroup = 16;

// The `count` least of n pairs, key(i) and i, in order, into pairs[0..count), where n / kGroup is
// more. The least keys of 4 * count groups (or of kGroup keys each) are found; keys above the
// count-th of these, which are most of all, are skipped a group at a time.
template <class Key, class KeyAt>
void select(Pair<Key>* pairs, int64_t n, int64_t count, const KeyAt& key) {
  const int64_t size = most(n / (4 * count * kGroup), 1) * kGroup, groups = parts(n, size);
  Key* lowest = reinterpret_cast<Key*>(pairs + n);
  Key* ranked = lowest + groups;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t end = least(n, (group + 1) * size);
    Key low = ~Key(0);
#pragma omp simd reduction(min : low)
    for (int64_t i = group * size; i < end; ++i) low = key(i) < low ? key(i) : low;
    lowest[group] = ranked[group] = low;
  }
  std::nth_element(ranked, ranked + count - 1, ranked + groups);
  const Key bound = ranked[count - 1];
  int64_t kept = 0;
  for (int64_t group = 0; group < groups; ++group) {
    if (lowest[group] > bound) continue;
    const int64_t end = least(n, (group + 1) * size);
    for (int64_t i = group * size; i < end; ++i) {
      const Key own = key(i);
      pairs[kept] = {own, static_cast<uint32_t>(i)};
      kept += own <= bound;
    }
  }
  std::partial_sort(pairs, pairs + count, pairs + kept);
}

// Sorts n pairs of key(i) and i; at least the first `count` of the result are in order.
template <class Key, class KeyAt>
const Pair<Key>* sort_keys(Pair<Key>* pairs, int64_t n, int64_t count, const KeyAt& key) {
  if (n >= kShort && count < n / kGroup) {
    if (count) select(pairs, n, count, key);
    return pairs;
  }
  for (int64_t i = 0; i < n; ++i) pairs[i] = {key(i), static_cast<uint32_t>(i)};
  if (n >= kShort) return sort_by_digits(pairs, pairs + n, n);
  std::sort(pairs, pairs + n);
  return pairs;
}

template <class S, class Key>
void write_line(const State& s, void* values, int64_t* indices, const S* from,
                const Pair<Key>* pairs) {
  S* to = as<S>(values);
  for (int64_t i = 0; i < s.count; ++i) {
    to[i * s.out_stride] = from[pairs[i].position * s.stride];
    indices[i * s.out_stride] = pairs[i].position;
  }
}

template <class S>
void sort_line(const State& s, void* values, int64_t* indices, const void* x, void* area) {
  using Key = decltype(key_of(S{}, false));
  const S* from = as<S>(x);
  const bool descending = s.descending;
  const auto sort = [&](const auto& key) {
    write_line(s, values, indices, from, sort_keys(as<Pair<Key>>(area), s.n, s.count, key));
  };
  if (s.stride == 1)  // neighbours make vectors
    sort([=](int64_t i) { return key_of(from[i], descending); });
  else
    sort([=, step = s.stride](int64_t i) { return key_of(from[i * step], descending); });
}

// Integers are sorted by their distances from the first of the order, which mostly are short.
template <class S>
void sort_integers(const State& s, void* values, int64_t* indices, const void* x, void* area) {
  const S* from = as<S>(x);
  S least = from[0], most = from[0];
  for (int64_t i = 1; i < s.n; ++i) {
    const S own = from[i * s.stride];
    least = own < least ? own : least;
    most = own > most ? own : most;
  }
  const auto distance = [&](int64_t i) {
    const uint64_t own = static_cast<uint64_t>(from[i * s.stride]);
    return s.descending ? static_cast<uint64_t>(most) - own : own - static_cast<uint64_t>(least);
  };
  if (static_cast<uint64_t>(most) - static_cast<uint64_t>(least) <= UINT32_MAX) {
    const auto key = [&](int64_t i) { return static_cast<uint32_t>(distance(i)); };
    write_line(s, values, indices, from, sort_keys(as<Pair<uint32_t>>(area), s.n, s.count, key));
  } else {
    write_line(s, values, indices, from,
               sort_keys(as<Pair<uint64_t>>(area), s.n, s.count, distance));
  }
}

int64_t run_sort(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  run_tasks(s.team, s.n ? s.kept.total() : 0, [&](int64_t task, int thread) {
    const Offsets at = s.kept.at(task);
    s.sort_line(s, byte_offset(buffers[0], at.out * s.item_size), as<int64_t>(buffers[1]) + at.out,
                byte_offset(buffers[2], at.x * s.item_size),
                byte_offset(workspace, thread * s.area));
  });
  return -1;
}

using SortLine = decltype(State::sort_line);

SortLine line_sorter(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return sort_line<float>;
    case kFloat64:
      return sort_line<double>;
    case kBFloat16:
      return sort_line<BFloat16>;
    case kFloat16:
      return sort_line<Half>;
    case kInt8:
      return sort_integers<int8_t>;
    case kInt16:
      return sort_integers<int16_t>;
    case kInt32:
      return sort_integers<int32_t>;
    case kInt64:
      return sort_integers<int64_t>;
    default:
      return sort_integers<uint8_t>;
  }
}

}  // namespace

const char* plan_sort(Plan* plan, const Operand& values, const Operand& indices, const Operand& x,
                      int32_t axis, bool descending) {
  State& s = state_of<State>(plan);
  if (values.dtype != x.dtype || indices.dtype != kInt64) return "sort: wrong result dtypes";
  s.kept.count = 0;
  s.n = s.count = s.stride = s.out_stride = 1;
  for (int i = 0; i < x.ndim; ++i) {
    if (i != axis)
      s.kept.add(x.shape[i], x.strides[i], values.strides[i]);
    else
      s.n = x.shape[i], s.stride = x.strides[i], s.out_stride = values.strides[i];
    if (i == axis) s.count = values.shape[i];
  }
  if (s.count > s.n) return "sort: results longer than x";
  if (element_count(x) == 0) s.n = s.count = 0;  // the axis may be long, and another empty
  if (s.n > UINT32_MAX) return "sort: more than 2^32 elements in a line";
  s.kept.merge();
  s.item_size = kItemSize[x.dtype];
  s.descending = descending;
  s.sort_line = line_sorter(x.dtype);
  s.team = team_size(s.kept.total(), product({element_count(x), 8}));
  const int64_t pair = s.item_size == 8 ? sizeof(Pair<uint64_t>) : sizeof(Pair<uint32_t>);
  s.area = round_up(2 * s.n * pair, 64) + 64;
  plan->run = run_sort;
  plan->workspace = s.team * s.area;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
