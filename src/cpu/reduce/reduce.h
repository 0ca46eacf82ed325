// Shared by all reductions. A unit is a strip of results side by side (columns), if a kept axis is
// contiguous, or a single result (a row), if the reduced axis is. The reduced positions of a unit
// are cut into fixed blocks and chunks, whose parts are joined as a tree, so that a result does not
// depend on the number of threads.
#pragma once
#include "base/axes.h"
#include "base/convert.h"
#include "reduce/fold.h"
#include "base/spans.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kStrip = 1024;   // results side by side
constexpr int64_t kRows = 16;      // rows folded without recursion under a strip
constexpr int64_t kChunk = 65536;  // elements of a task
constexpr int64_t kFewUnits = 8;   // fewer large units than this are cut into chunks
constexpr int64_t kShortRow = 16;  // rows are not worth folding one by one below this

// ---- the plan

struct Layout {
  Axes kept, reduced;
  Axis strip;  // the kept axis along which a strip lies; size 1 for rows
  int64_t strip_length, strips, units, units_per_task;
  int64_t length, chunk, chunks;  // reduced positions: all, of a chunk, number of chunks
  int64_t x_size, out_size;       // bytes of an element
  int64_t start;                  // where x begins, if reduced axes are walked from their other end
  int64_t bytes;                  // of x
  int team;
  bool dense;   // x can be folded where it lies
  Order order;  // in which rows that come from memory are read
  DType dtype;  // of x
  bool mean;
  double factor;  // of variances
};

template <class A>
struct State : Layout {
  Read<A> read;
  Write<A> write;
};

struct Unit {
  int64_t x, out, width;
};

inline Unit unit_at(const Layout& s, int64_t index) {
  if (s.strip.size == 1) {  // a row: without a division the result is ready sooner
    const Offsets offsets = s.kept.at(index);
    return {s.start + offsets.x, offsets.out, 1};
  }
  const int64_t first = index % s.strips * s.strip_length, rest = s.strip.size - first;
  const Offsets offsets = s.kept.at(index / s.strips);
  return {s.start + offsets.x + first * s.strip.x, offsets.out + first * s.strip.out,
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

// Calls body(offset, n, stride, position) for each stretch of positions begin..end of a row that
// lie `stride` apart.
template <class Body>
inline void for_stretches(const Layout& s, int64_t origin, int64_t begin, int64_t end,
                          const Body& body) {
  const Axis inner = s.reduced.count ? s.reduced.axis[s.reduced.count - 1] : Axis{1, 1, 0};
  while (begin < end) {
    const int64_t rest = inner.size - begin % inner.size;
    const int64_t n = rest < end - begin ? rest : end - begin;
    body(origin + s.reduced.at(begin).x, n, inner.x, begin);
    begin += n;
  }
}

// The same with body(elements, n, position), where n is kBlock at most.
template <class A, class Body>
inline void for_numbers(const State<A>& s, const void* x, int64_t origin, int64_t begin,
                        int64_t end, const Body& body) {
  A buffer[kBlock];
  for_stretches(s, origin, begin, end, [&](int64_t at, int64_t n, int64_t stride, int64_t place) {
    body(fetch(s, x, at, n, stride, buffer), n, place);
  });
}

// Of sums, products and extremes: a result of a row, or those of a strip.
template <class A, int64_t most_results>
struct Totals {
  A total[most_results];
};

// Kernels whose x lies in memory.
struct ReadsMemory {
  static const void* source(const Layout&, const void* x, int64_t) { return x; }
};

// Kernel::Part is the state of a unit after some of its positions. Kernel::fold makes one of
// positions begin..end, Kernel::join adds a later one, Kernel::finish writes the results. Kernels
// of rows' totals have fold_apart, which does so of units as far as they can be folded four at a
// time, and returns where that ends. Kernel::source is what a task, up to a unit, folds.
template <class Kernel, class A>
int64_t run_units(const Plan* plan, void* const* buffers, void* workspace) {
  using Part = typename Kernel::Part;
  const State<A>& s = state_of<State<A>>(plan);
  void* out = buffers[0];
  const void* x = buffers[1];
  // As in run_pieces (spans.h).
  const bool in_order = s.order == Order::kApart && rereads_in_order();
  const bool backwards = !in_order && s.bytes > second_caches_bytes() && next_is_backwards();
  if (s.chunks > 1) {
    Part* parts = as<Part>(workspace);
    run_spans(s.team, s.units * s.chunks, backwards, [&](int64_t task, int) {
      const int64_t begin = task % s.chunks * s.chunk;
      const int64_t end = begin + s.chunk < s.length ? begin + s.chunk : s.length;
      auto&& source = Kernel::source(s, x, task / s.chunks + 1);
      Kernel::fold(s, source, unit_at(s, task / s.chunks), begin, end, parts[task]);
    });
    for (int64_t i = 0; i < s.units; ++i) {
      const Unit unit = unit_at(s, i);
      Part* own = parts + i * s.chunks;
      for (int64_t step = 1; step < s.chunks; step *= 2)
        for (int64_t c = 0; c + step < s.chunks; c += 2 * step)
          Kernel::join(own[c], own[c + step], unit.width);
      Kernel::finish(s, out, x, unit, own[0]);
    }
    return -1;
  }
  const int64_t tasks = (s.units + s.units_per_task - 1) / s.units_per_task;
  run_spans(s.team, tasks, backwards, [&](int64_t task, int) {
    const int64_t end = (task + 1) * s.units_per_task, last = end < s.units ? end : s.units;
    int64_t i = task * s.units_per_task;
    if constexpr (std::is_same_v<Part, Totals<A, 1>>)
      if (s.order == Order::kApart) i = Kernel::fold_apart(s, x, out, i, last);
    auto&& source = Kernel::source(s, x, last);
    for (; i < last; ++i) {
      Part part;
      const Unit unit = unit_at(s, i);
      Kernel::fold(s, source, unit, 0, s.length, part);
      Kernel::finish(s, out, x, unit, part);
    }
  });
  return -1;
}

// Writes the results of a unit.
template <class A>
void write_unit(const State<A>& s, void* out, const Unit& unit, const A* total) {
  void* to = byte_offset(out, unit.out * s.out_size);
  if (unit.width == 1 || s.strip.out == 1) return s.write(to, total, unit.width);
  for (int64_t j = 0; j < unit.width; ++j)
    s.write(byte_offset(to, j * s.strip.out * s.out_size), total + j, 1);
}

// ---- planning

// Fills kept and reduced; out's strides are those of a dense array.
inline void split_axes(Layout& s, const Operand& x, uint32_t axes, bool ordered) {
  s.kept.count = s.reduced.count = 0;
  s.start = 0;
  int64_t out_stride[kMaxDims], stride = 1;
  for (int i = x.ndim - 1; i >= 0; --i) {
    out_stride[i] = stride;
    if (!(axes >> i & 1)) stride *= x.shape[i];
  }
  for (int i = 0; i < x.ndim; ++i) {
    const bool turned = !ordered && x.shape[i] > 1 && x.strides[i] < 0;
    if (axes >> i & 1) {
      if (turned) s.start += (x.shape[i] - 1) * x.strides[i];
      s.reduced.add(x.shape[i], turned ? -x.strides[i] : x.strides[i], 0);
    } else {
      s.kept.add(x.shape[i], x.strides[i], out_stride[i]);
    }
  }
  s.length = s.reduced.total();
  s.kept.sort();
  if (!ordered) s.reduced.sort();
  s.kept.merge();
  s.reduced.merge();
}

// Rows, or strips along the innermost kept axis?
inline void choose_strip(Layout& s, bool same_type) {
  const Axis inner = s.reduced.count ? s.reduced.axis[s.reduced.count - 1] : Axis{1, 0, 0};
  const Axis kept = s.kept.count ? s.kept.axis[s.kept.count - 1] : Axis{1, 0, 0};
  const int64_t inner_step = inner.x < 0 ? -inner.x : inner.x;
  const int64_t kept_step = kept.x < 0 ? -kept.x : kept.x;
  const bool short_rows = inner.size < kShortRow && kept.size >= 2 * kShortRow;
  const bool rows = kept.size <= 1 || kept_step == 0 ||
                    (!short_rows && inner_step > 0 && inner_step <= kept_step);
  s.strip = rows ? Axis{1, 0, 0} : s.kept.pop();
  s.dense = same_type && (rows ? inner.x == 1 || inner.size == 1 : s.strip.x == 1);
  // Gathered cache lines should still be in the cache for the next position.
  s.strip_length = s.dense ? kStrip : kStrip / 4;
  s.strips = (s.strip.size + s.strip_length - 1) / s.strip_length;
  s.units = s.kept.total() * s.strips;
}

// Cuts the work into tasks of about kChunk elements. No choice depends on the number of threads.
inline void choose_tasks(Layout& s) {
  const int64_t width = s.strip.size < s.strip_length ? s.strip.size : s.strip_length;
  const int64_t unit_work = width * s.length;
  const int64_t work = product({unit_work, s.units});
  s.bytes = product({work, s.x_size});
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

inline Order order_of(const Layout& s) {
  if (!s.dense || s.strip.size != 1) return Order::kTogether;
  if (runs_over_pages()) return Order::kLines;
  return reads_apart() && s.bytes >= streaming_bytes() ? Order::kApart : Order::kTogether;
}

// Of kVariance (variance.cc): the mean of a unit's positions so far, and the sum of their squared
// distances from it.
template <class A>
struct Moments {
  int64_t count;
  A mean[kStrip], squares[kStrip];
};
// op: kVariance, kDeviation or kNorm, whose mean counts as 0.
template <class A>
Run variance_run(int32_t op);

}  // namespace needle::NEEDLE_ISA
