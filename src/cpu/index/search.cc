// Finding: places of several indices, indices out of range, bools that are true.
#include <algorithm>
#include <cstring>

#include "base/axes.h"
#include "base/convert.h"
#include "index/index_loops.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPiece = 8192;  // elements that a task walks

// ---- indices ---------------------------------------------------------------------------------

struct IndexState {
  Axes outer;
  Axis inner;
  DType dtype;
  int64_t size, low, high, kept;
  int team;
  bool first;
};

void plan_walk_of(IndexState& s, const Operand& x) {
  s.outer.count = 0;
  int64_t place = 1, places[kMaxDims];
  for (int i = x.ndim - 1; i >= 0; --i) {
    places[i] = place;
    place *= x.shape[i];
  }
  for (int i = 0; i < x.ndim; ++i) s.outer.add(x.shape[i], x.strides[i], places[i]);
  s.outer.merge();
  s.inner = s.outer.pop();
  s.dtype = x.dtype;
  s.team = team_size(s.outer.total() * parts(s.inner.size, kPiece), place);
}

// body(index, n, position): n indices from `index` on, s.inner.x apart. Returns the least result.
template <class T, class Body>
int64_t walk_indices(const IndexState& s, const void* x, const Body& body) {
  const int64_t pieces = parts(s.inner.size, kPiece);
  std::atomic<int64_t> bad{INT64_MAX};
  run_tasks(s.team, s.outer.total() * pieces, [&](int64_t task, int) {
    const Offsets at = s.outer.at(task / pieces);
    const int64_t begin = task % pieces * kPiece, n = least(s.inner.size - begin, kPiece);
    lower(bad, body(as<T>(x) + at.x + begin * s.inner.x, n, at.out + begin));
  });
  return bad == INT64_MAX ? -1 : bad.load();
}

template <class T>
int64_t run_linear_index(const Plan* plan, void* const* buffers, void*) {
  const IndexState& s = state_of<IndexState>(plan);
  const int64_t size = s.size, step = s.inner.x, before = s.first ? 0 : size;
  return walk_indices<T>(s, buffers[1], [=](const T* index, int64_t n, int64_t position) {
    int64_t* out = as<int64_t>(buffers[0]) + position;
    if (before == 0) std::memset(out, 0, n * sizeof(int64_t));
    uint64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t own = index[i * step], wrapped = own < 0 ? own + size : own;
      wrong |= static_cast<uint64_t>(wrapped) >= static_cast<uint64_t>(size);
      out[i] = out[i] * before + wrapped;
    }
    return wrong ? position : INT64_MAX;
  });
}

template <class T>
int64_t run_check_range(const Plan* plan, void* const* buffers, void*) {
  const IndexState& s = state_of<IndexState>(plan);
  const int64_t low = s.low, high = s.high, kept = s.kept, step = s.inner.x;
  return walk_indices<T>(s, buffers[0], [=](const T* x, int64_t n, int64_t position) {
    const auto wrong = [&](int64_t i) {
      const int64_t own = x[i * step];
      return (own < low || own >= high) && own != kept;
    };
    bool any = false;
    for (int64_t i = 0; i < n; ++i) any |= wrong(i);
    if (!any) return INT64_MAX;
    int64_t i = 0;
    while (!wrong(i)) ++i;
    return position + i;
  });
}

// One of the runs, for int64, int32, int16, int8, uint8.
Run of_index(DType dtype, const Run (&runs)[5]) {
  switch (dtype) {
    case kInt64:
      return runs[0];
    case kInt32:
      return runs[1];
    case kInt16:
      return runs[2];
    case kInt8:
      return runs[3];
    case kUInt8:
      return runs[4];
    default:
      return nullptr;
  }
}

// ---- bools -----------------------------------------------------------------------------------

struct TrueState {
  int64_t shape[kMaxDims], n;
  int ndim, team;
};

int64_t run_count_true(const Plan* plan, void* const* buffers, void*) {
  const TrueState& s = state_of<TrueState>(plan);
  const auto* x = as<uint8_t>(buffers[1]);
  run_tasks(s.team, parts(s.n, kTrueBlock), [&](int64_t block, int) {
    const int64_t end = least(s.n, (block + 1) * kTrueBlock);
    int32_t count = 0;
    for (int64_t i = block * kTrueBlock; i < end; ++i) count += x[i] != 0;
    as<int64_t>(buffers[0])[block] = count;
  });
  return -1;
}

constexpr int64_t kTogether = 64;

// Writes the positions of true elements among n <= kTogether neighbours in a line.
int64_t find_in_line(const uint8_t* x, int64_t n, int64_t column, int64_t* out, int64_t room) {
  int64_t found[kTogether + 1];
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {  // without branches, which could not be foreseen
    found[count] = column + i;
    count += x[i] != 0;
  }
  std::memcpy(out, found, least(count, room) * sizeof(int64_t));
  return count;
}

int64_t run_find_true(const Plan* plan, void* const* buffers, void*) {
  const TrueState& s = state_of<TrueState>(plan);
  const auto* x = as<uint8_t>(buffers[2]);
  const auto* starts = as<int64_t>(buffers[1]);
  const int64_t blocks = parts(s.n, kTrueBlock), total = starts[blocks];
  const int64_t line = s.shape[s.ndim - 1];
  run_tasks(s.team, blocks, [&](int64_t block, int) {
    const int64_t end = least(s.n, (block + 1) * kTrueBlock);
    int64_t to = starts[block];
    for (int64_t i = block * kTrueBlock, n; i < end && to < total; i += n) {
      const int64_t column = i % line;
      n = least(least(line - column, kTogether), end - i);
      int64_t* out = as<int64_t>(buffers[0]) + to;
      const int64_t count =
          find_in_line(x + i, n, column, out + (s.ndim - 1) * total, starts[block + 1] - to);
      for (int64_t axis = s.ndim - 2, rest = i / line; axis >= 0; rest /= s.shape[axis--])
        std::fill_n(out + axis * total, count, rest % s.shape[axis]);
      to += count;
    }
  });
  return -1;
}

const char* plan_true(Plan* plan, const Operand& x, Run run) {
  TrueState& s = state_of<TrueState>(plan);
  if (x.dtype != kBool || x.ndim == 0 || !is_dense(x)) return "nonzero: expected dense bools";
  std::copy_n(x.shape, x.ndim, s.shape);
  s.ndim = x.ndim;
  s.n = element_count(x);
  s.team = team_size(parts(s.n, kTrueBlock), s.n);
  plan->run = run;
  plan->workspace = 0;
  return nullptr;
}

// ---- triangles -------------------------------------------------------------------------------

struct TriangleState {
  Axes outer;
  int64_t rows, columns, row_step, column_step, k;
  int team;
  bool upper;
};

template <class T>
int64_t run_triangle(const Plan* plan, void* const* buffers, void*) {
  const TriangleState& s = state_of<TriangleState>(plan);
  run_tasks(s.team, s.outer.total() * s.rows, [&](int64_t task, int) {
    const int64_t row = task % s.rows;
    // the first column on the diagonal (upper), or after it
    const int64_t bound = row + s.k + (s.upper ? 0 : 1);
    const int64_t cut = bound < 0 ? 0 : least(bound, s.columns);
    const int64_t first = s.upper ? cut : 0, end = s.upper ? s.columns : cut;
    T* out = as<T>(buffers[0]) + task * s.columns;
    const T* x = as<T>(buffers[1]) + s.outer.at(task / s.rows).x + row * s.row_step;
    std::memset(static_cast<void*>(out), 0, first * sizeof(T));
    if (s.column_step == 1)
      std::memcpy(out + first, x + first, (end - first) * sizeof(T));
    else
      for (int64_t i = first; i < end; ++i) out[i] = x[i * s.column_step];
    std::memset(static_cast<void*>(out + end), 0, (s.columns - end) * sizeof(T));
  });
  return -1;
}

}  // namespace

const char* plan_linear_index(Plan* plan, const Operand& out, const Operand& index, int64_t size,
                              bool first) {
  IndexState& s = state_of<IndexState>(plan);
  if (out.dtype != kInt64 || !is_dense(out)) return "index: places are dense int64";
  plan_walk_of(s, index);
  s.size = size;
  s.first = first;
  plan->workspace = 0;
  plan->run = of_index(
      index.dtype, {run_linear_index<int64_t>, run_linear_index<int32_t>, run_linear_index<int16_t>,
                    run_linear_index<int8_t>, run_linear_index<uint8_t>});
  return plan->run ? nullptr : "index: expected an integer dtype";
}

const char* plan_check_range(Plan* plan, const Operand& x, int64_t low, int64_t high,
                             int64_t kept) {
  IndexState& s = state_of<IndexState>(plan);
  plan_walk_of(s, x);
  s.low = low;
  s.high = high;
  s.kept = kept;
  plan->workspace = 0;
  plan->run = of_index(
      x.dtype, {run_check_range<int64_t>, run_check_range<int32_t>, run_check_range<int16_t>,
                run_check_range<int8_t>, run_check_range<uint8_t>});
  return plan->run ? nullptr : "index: expected an integer dtype";
}

const char* plan_count_true(Plan* plan, const Operand& x) {
  return plan_true(plan, x, run_count_true);
}

const char* plan_find_true(Plan* plan, const Operand& x) {
  return plan_true(plan, x, run_find_true);
}

const char* plan_triangle(Plan* plan, const Operand& out, const Operand& x, int64_t k, bool upper) {
  TriangleState& s = state_of<TriangleState>(plan);
  if (x.ndim < 2 || !is_dense(out)) return "triangle: expected matrices";
  s.outer.count = 0;
  for (int i = 0; i < x.ndim - 2; ++i) s.outer.add(x.shape[i], x.strides[i], 0);
  s.rows = x.shape[x.ndim - 2];
  s.columns = x.shape[x.ndim - 1];
  s.row_step = x.strides[x.ndim - 2];
  s.column_step = x.strides[x.ndim - 1];
  s.k = most(-s.rows, least(k, s.columns));  // beyond, nothing changes
  s.upper = upper;
  s.team = team_size(s.outer.total() * s.rows, element_count(x));
  plan->workspace = 0;
  const Run by_size[] = {run_triangle<uint8_t>, run_triangle<uint16_t>, run_triangle<uint32_t>,
                         run_triangle<uint64_t>};
  plan->run = by_size[__builtin_ctzll(kItemSize[out.dtype])];
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
