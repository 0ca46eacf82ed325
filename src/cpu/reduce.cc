// Reductions. A unit is a strip of results side by side (columns), if a kept axis is contiguous, or
// a single result (a row), if the reduced axis is. The reduced positions of a unit are folded by a
// binary tree over fixed blocks, so that a result does not depend on the number of threads and the
// error of a float sum grows with the logarithm of its length.
#include <limits>

#include "axes.h"
#include "convert.h"
#include "lanes.h"
#include "kernels_linear.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kBlock = 1024;   // row elements folded without recursion, and read at once
constexpr int64_t kStrip = 1024;   // results side by side
constexpr int64_t kRows = 16;      // rows folded without recursion under a strip
constexpr int64_t kChunk = 65536;  // elements of a task
constexpr int64_t kFewUnits = 8;   // fewer large units than this are cut into chunks
constexpr int64_t kAhead = 4096;   // bytes: the processor itself does not look over a page's end
constexpr int64_t kShortRow = 16;  // rows are not worth folding one by one below this

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

template <int32_t op, class A>
inline A fold_lanes(const Vector<A>& v) {
  A lane[kLanes<A>];
  store(lane, v);
  for (int64_t width = kLanes<A> / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) lane[i] = combine<op>(lane[i], lane[i + width]);
  return lane[0];
}

template <int32_t op, class A>
A fold_dense(const A* x, int64_t n) {
  constexpr int64_t kWidth = kLanes<A>, kUnroll = 8;
  A tail = identity<op, A>();
  int64_t i = 0;
  if (n >= kWidth) {
    Vector<A> sum[kUnroll];
    for (auto& s : sum) s = splat<A>(identity<op, A>());
    for (; i + kUnroll * kWidth <= n; i += kUnroll * kWidth) {
      for (int64_t j = 0; j < kUnroll; ++j) {
        __builtin_prefetch(x + i + j * kWidth + kAhead / sizeof(A));
        sum[j] = combine<op>(sum[j], load(x + i + j * kWidth));
      }
    }
    for (; i + kWidth <= n; i += kWidth) sum[0] = combine<op>(sum[0], load(x + i));
    for (int64_t width = kUnroll / 2; width > 0; width /= 2)
      for (int64_t j = 0; j < width; ++j) sum[j] = combine<op>(sum[j], sum[j + width]);
    tail = fold_lanes<op, A>(sum[0]);
  }
  for (; i < n; ++i) tail = combine<op>(tail, x[i]);
  return tail;
}

// ---- the plan

struct Layout {
  Axes kept, reduced;
  Axis strip;  // the kept axis along which a strip lies; size 1 for rows
  int64_t strip_length, strips, units, units_per_task;
  int64_t length, chunk, chunks;  // reduced positions: all, of a chunk, number of chunks
  int64_t x_size, out_size;       // bytes of an element
  int team;
  bool dense;  // x can be folded where it lies
  bool mean;
};

template <class A>
struct State : Layout {
  Read<A> read;
  Write<A> write;
};

struct Unit {
  int64_t x, out, width;
};

Unit unit_at(const Layout& s, int64_t index) {
  const int64_t first = index % s.strips * s.strip_length, rest = s.strip.size - first;
  const Offsets offsets = s.kept.at(index / s.strips);
  return {offsets.x + first * s.strip.x, offsets.out + first * s.strip.out,
          rest < s.strip_length ? rest : s.strip_length};
}

// n elements from x as numbers to compute with: x itself, or a copy in buffer.
template <class A>
inline const A* fetch(const State<A>& s, const void* x, int64_t offset, int64_t n, int64_t stride,
                      A* buffer) {
  const void* from = byte_offset(x, offset * s.x_size);
  if (s.dense) return as<A>(from);
  s.read(buffer, from, n, stride);
  return buffer;
}

// Calls body(elements, n, position) for each contiguous stretch of positions begin..end of a row.
template <class A, class Body>
inline void for_stretches(const State<A>& s, const void* x, int64_t origin, int64_t begin,
                          int64_t end, const Body& body) {
  A buffer[kBlock];
  const Axis inner = s.reduced.count ? s.reduced.axis[s.reduced.count - 1] : Axis{1, 1, 0};
  while (begin < end) {
    const int64_t rest = inner.size - begin % inner.size;
    const int64_t n = rest < end - begin ? rest : end - begin;
    body(fetch(s, x, origin + s.reduced.at(begin).x, n, inner.x, buffer), n, begin);
    begin += n;
  }
}

inline int64_t middle(int64_t begin, int64_t end, int64_t unit) {
  return begin + round_up((end - begin) / 2, unit);
}

// ---- sum, prod, max, min (and any, all as maximum and minimum of truth)

template <int32_t op, class A>
A fold_row(const State<A>& s, const void* x, int64_t origin, int64_t begin, int64_t end) {
  if (end - begin > kBlock) {
    const int64_t half = middle(begin, end, kBlock);
    const A left = fold_row<op>(s, x, origin, begin, half);
    return combine<op>(left, fold_row<op>(s, x, origin, half, end));
  }
  A total = identity<op, A>();
  for_stretches(s, x, origin, begin, end, [&](const A* element, int64_t n, int64_t) {
    total = combine<op>(total, fold_dense<op>(element, n));
  });
  return total;
}

// Vectors by hand: of the comparisons that maxima need the compiler makes scalar code.
template <int32_t op, class A>
void combine_into(A* total, const A* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>)
    store(total + i, combine<op>(load(total + i), load(x + i)));
  for (; i < n; ++i) total[i] = combine<op>(total[i], x[i]);
}

// Four rows at a time, because the totals are read and written once for all of them.
template <int32_t op, class A>
void combine_four_into(A* total, const A* x0, const A* x1, const A* x2, const A* x3, int64_t n) {
  const auto tree = [](auto t, auto a, auto b, auto c, auto d) {
    return combine<op>(t, combine<op>(combine<op>(a, b), combine<op>(c, d)));
  };
  int64_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>)
    store(total + i, tree(load(total + i), load(x0 + i), load(x1 + i), load(x2 + i), load(x3 + i)));
  for (; i < n; ++i) total[i] = tree(total[i], x0[i], x1[i], x2[i], x3[i]);
}

template <int32_t op, class A>
void fold_strip(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                A* total) {
  A other[kStrip];
  if (end - begin > kRows) {
    const int64_t half = middle(begin, end, kRows);
    fold_strip<op>(s, x, unit, begin, half, total);
    fold_strip<op>(s, x, unit, half, end, other);
    combine_into<op>(total, other, unit.width);
    return;
  }
  for (int64_t j = 0; j < unit.width; ++j) total[j] = identity<op, A>();
  const auto row = [&](int64_t i) {
    const int64_t offset = unit.x + s.reduced.at(i).x;
    return fetch(s, x, offset, unit.width, s.strip.x, other);
  };
  int64_t i = begin;
  for (; s.dense && i + 4 <= end; i += 4)
    combine_four_into<op>(total, row(i), row(i + 1), row(i + 2), row(i + 3), unit.width);
  for (; i < end; ++i) combine_into<op>(total, row(i), unit.width);
}

template <int32_t op, class A>
void fold(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
          A* total) {
  if (s.strip.size == 1)
    *total = fold_row<op>(s, x, unit.x, begin, end);
  else
    fold_strip<op>(s, x, unit, begin, end, total);
}

template <class A>
void finish(const State<A>& s, void* out, const Unit& unit, A* total) {
  if (s.mean)
    for (int64_t j = 0; j < unit.width; ++j) total[j] /= static_cast<A>(s.length);
  void* to = byte_offset(out, unit.out * s.out_size);
  if (unit.width == 1 || s.strip.out == 1) return s.write(to, total, unit.width);
  for (int64_t j = 0; j < unit.width; ++j)
    s.write(byte_offset(to, j * s.strip.out * s.out_size), total + j, 1);
}

// Combines the parts of chunks first .. first + n - 1 into the first one, as a tree.
template <int32_t op, class A>
void fold_parts(A* parts, int64_t n, int64_t width) {
  for (int64_t step = 1; step < n; step *= 2)
    for (int64_t i = 0; i + step < n; i += 2 * step)
      combine_into<op>(parts + i * kStrip, parts + (i + step) * kStrip, width);
}

template <int32_t op, class A>
int64_t run_fold(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  void* out = buffers[0];
  const void* x = buffers[1];
  if (s.chunks > 1) {
    A* parts = as<A>(workspace);
    run_tasks(s.team, s.units * s.chunks, [&](int64_t task, int) {
      const int64_t begin = task % s.chunks * s.chunk;
      const int64_t end = begin + s.chunk < s.length ? begin + s.chunk : s.length;
      fold<op>(s, x, unit_at(s, task / s.chunks), begin, end, parts + task * kStrip);
    });
    for (int64_t i = 0; i < s.units; ++i) {
      const Unit unit = unit_at(s, i);
      fold_parts<op>(parts + i * s.chunks * kStrip, s.chunks, unit.width);
      finish(s, out, unit, parts + i * s.chunks * kStrip);
    }
    return -1;
  }
  const int64_t tasks = (s.units + s.units_per_task - 1) / s.units_per_task;
  run_tasks(s.team, tasks, [&](int64_t task, int) {
    const int64_t last = (task + 1) * s.units_per_task;
    for (int64_t i = task * s.units_per_task; i < last && i < s.units; ++i) {
      A total[kStrip];
      const Unit unit = unit_at(s, i);
      fold<op>(s, x, unit, 0, s.length, total);
      finish(s, out, unit, total);
    }
  });
  return -1;
}

// ---- argmax, argmin

template <class A>
struct Best {
  A value[kStrip];
  int64_t position[kStrip];
};

template <int32_t op, class A>
void find_in_row(const State<A>& s, const void* x, int64_t origin, int64_t begin, int64_t end,
                 Best<A>& best) {
  best.position[0] = -1;
  for (; begin < end; begin += kBlock) {
    const int64_t stop = begin + kBlock < end ? begin + kBlock : end;
    for_stretches(s, x, origin, begin, stop, [&](const A* element, int64_t n, int64_t position) {
      const A value = fold_dense<op>(element, n);
      if (best.position[0] >= 0 && !better<op>(value, best.value[0])) return;
      int64_t i = 0;
      while (element[i] != value && element[i] == element[i]) ++i;
      best.value[0] = value;
      best.position[0] = position + i;
    });
  }
}

template <int32_t op, class A>
void find_in_strip(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                   Best<A>& best) {
  A buffer[kStrip];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t offset = unit.x + s.reduced.at(i).x;
    const A* row = fetch(s, x, offset, unit.width, s.strip.x, buffer);
    for (int64_t j = 0; j < unit.width; ++j) {
      const bool take = i == begin || better<op>(row[j], best.value[j]);
      best.value[j] = take ? row[j] : best.value[j];
      best.position[j] = take ? i : best.position[j];
    }
  }
}

template <int32_t op, class A>
void find(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
          Best<A>& best) {
  if (s.strip.size == 1)
    find_in_row<op>(s, x, unit.x, begin, end, best);
  else
    find_in_strip<op>(s, x, unit, begin, end, best);
}

template <class A>
void finish_positions(const State<A>& s, void* out, const Unit& unit, const Best<A>& best) {
  for (int64_t j = 0; j < unit.width; ++j)
    as<int64_t>(out)[unit.out + j * s.strip.out] = best.position[j];
}

template <int32_t op, class A>
void keep_better(Best<A>& best, const Best<A>& later, int64_t width) {
  for (int64_t j = 0; j < width; ++j) {
    if (!better<op>(later.value[j], best.value[j])) continue;
    best.value[j] = later.value[j];
    best.position[j] = later.position[j];
  }
}

template <int32_t op, class A>
int64_t run_find(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  void* out = buffers[0];
  const void* x = buffers[1];
  if (s.chunks > 1) {
    Best<A>* parts = as<Best<A>>(workspace);
    run_tasks(s.team, s.units * s.chunks, [&](int64_t task, int) {
      const int64_t begin = task % s.chunks * s.chunk;
      const int64_t end = begin + s.chunk < s.length ? begin + s.chunk : s.length;
      find<op>(s, x, unit_at(s, task / s.chunks), begin, end, parts[task]);
    });
    for (int64_t i = 0; i < s.units; ++i) {
      const Unit unit = unit_at(s, i);
      Best<A>& best = parts[i * s.chunks];
      for (int64_t c = 1; c < s.chunks; ++c)
        keep_better<op>(best, parts[i * s.chunks + c], unit.width);
      finish_positions(s, out, unit, best);
    }
    return -1;
  }
  const int64_t tasks = (s.units + s.units_per_task - 1) / s.units_per_task;
  run_tasks(s.team, tasks, [&](int64_t task, int) {
    const int64_t last = (task + 1) * s.units_per_task;
    for (int64_t i = task * s.units_per_task; i < last && i < s.units; ++i) {
      Best<A> best;
      const Unit unit = unit_at(s, i);
      find<op>(s, x, unit, 0, s.length, best);
      finish_positions(s, out, unit, best);
    }
  });
  return -1;
}

// ---- planning

// Fills kept and reduced; out's strides are those of a dense array.
void split_axes(Layout& s, const Operand& x, uint32_t axes, bool ordered) {
  s.kept.count = s.reduced.count = 0;
  int64_t out_stride[kMaxDims], stride = 1;
  for (int i = x.ndim - 1; i >= 0; --i) {
    out_stride[i] = stride;
    if (!(axes >> i & 1)) stride *= x.shape[i];
  }
  for (int i = 0; i < x.ndim; ++i) {
    if (axes >> i & 1)
      s.reduced.add(x.shape[i], x.strides[i], 0);
    else
      s.kept.add(x.shape[i], x.strides[i], out_stride[i]);
  }
  s.length = s.reduced.total();
  s.kept.sort();
  if (!ordered) s.reduced.sort();
  s.kept.merge();
  s.reduced.merge();
}

// Rows, or strips along the innermost kept axis?
void choose_strip(Layout& s, bool same_type) {
  const Axis inner = s.reduced.count ? s.reduced.axis[s.reduced.count - 1] : Axis{1, 0, 0};
  const Axis kept = s.kept.count ? s.kept.axis[s.kept.count - 1] : Axis{1, 0, 0};
  const int64_t inner_step = inner.x < 0 ? -inner.x : inner.x;
  const int64_t kept_step = kept.x < 0 ? -kept.x : kept.x;
  const bool short_rows = inner.size < kShortRow && kept.size >= 2 * kShortRow;
  const bool rows = kept.size <= 1 || kept_step == 0 ||
                    (!short_rows && inner_step > 0 && inner_step <= kept_step);
  s.strip = rows ? Axis{1, 0, 0} : s.kept.pop();
  s.dense = same_type && (rows ? inner.x == 1 || inner.size == 1 : s.strip.x == 1);
  // What has to be gathered should still be in the cache when the next position is.
  s.strip_length = s.dense ? kStrip : kStrip / 4;
  s.strips = (s.strip.size + s.strip_length - 1) / s.strip_length;
  s.units = s.kept.total() * s.strips;
}

// Cuts the work into tasks of about kChunk elements. No choice depends on the number of threads.
void choose_tasks(Layout& s) {
  const int64_t width = s.strip.size < s.strip_length ? s.strip.size : s.strip_length;
  const int64_t unit_work = width * s.length, work = unit_work * s.units;
  s.chunk = s.length;
  s.chunks = 1;
  if (s.units < kFewUnits && unit_work > 2 * kChunk) {
    s.chunk = round_up((kChunk + width - 1) / width, s.strip.size == 1 ? kBlock : kRows);
    s.chunks = (s.length + s.chunk - 1) / s.chunk;
  }
  s.units_per_task = unit_work >= kChunk ? 1 : kChunk / (unit_work ? unit_work : 1);
  if (s.units_per_task > (s.units + 3) / 4) s.units_per_task = (s.units + 3) / 4;
  if (s.units_per_task < 1) s.units_per_task = 1;
  s.team = team_size(s.units * s.chunks, work);
}

bool is_arg(int32_t op) { return op == kArgMax || op == kArgMin; }

template <class A>
Run choose_run(int32_t op) {
  switch (op) {
    case kSum:
    case kMean:
      return run_fold<kSum, A>;
    case kProd:
      return run_fold<kProd, A>;
    case kMax:
      return run_fold<kMax, A>;
    case kMin:
      return run_fold<kMin, A>;
    case kAny:
      return run_fold<kAny, int64_t>;
    case kAll:
      return run_fold<kAll, int64_t>;
    case kArgMax:
      return run_find<kMax, A>;
    case kArgMin:
      return run_find<kMin, A>;
    default:
      return nullptr;
  }
}

template <class A>
const char* plan_in(Plan* plan, int32_t op, const Operand& out, const Operand& x, uint32_t axes,
                    Read<A> read) {
  State<A>& s = state_of<State<A>>(plan);
  plan->run = choose_run<A>(op);
  s.read = read;
  s.write = writer<A>(out.dtype);
  if (!plan->run || !s.read || !s.write) return "reduce: no such combination of dtypes";
  s.x_size = kItemSize[x.dtype];
  s.out_size = kItemSize[out.dtype];
  s.mean = op == kMean;
  split_axes(s, x, axes, is_arg(op));
  const bool truth = op == kAny || op == kAll;
  const bool same = (std::is_same_v<A, float> && x.dtype == kFloat32) ||
                    (std::is_same_v<A, double> && x.dtype == kFloat64) ||
                    (std::is_same_v<A, int64_t> && x.dtype == kInt64 && !truth);
  choose_strip(s, same);
  choose_tasks(s);
  const int64_t part = is_arg(op) ? sizeof(Best<A>) : kStrip * sizeof(A);
  plan->workspace = s.chunks > 1 ? s.units * s.chunks * part : 0;
  return nullptr;
}

}  // namespace

const char* plan_reduce(Plan* plan, int32_t op, const Operand& out, const Operand& x,
                        uint32_t axes) {
  if (is_arg(op) && out.dtype != kInt64) return "reduce: positions are int64";
  if (op == kAny || op == kAll) {
    if (out.dtype != kBool) return "reduce: any and all give bool";
    return plan_in<int64_t>(plan, op, out, x, axes, truth_reader(x.dtype));
  }
  if (x.dtype == kFloat64)
    return plan_in<double>(plan, op, is_arg(op) ? Operand{kFloat64, 0, nullptr, nullptr} : out, x,
                           axes, reader<double>(x.dtype));
  if (is_floating(x.dtype))
    return plan_in<float>(plan, op, is_arg(op) ? Operand{kFloat32, 0, nullptr, nullptr} : out, x,
                          axes, reader<float>(x.dtype));
  if (op == kMean) return "reduce: mean needs a floating dtype";
  return plan_in<int64_t>(plan, op, out, x, axes, reader<int64_t>(x.dtype));
}

}  // namespace needle::NEEDLE_ISA
