// scatter_add and put: adding or writing at indices.
#include <atomic>
#include <cstring>

#include "base/convert.h"
#include "index/index_loops.h"
#include "base/table.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

// Sums of halves are kept in float. Those of many numbers each are kept in double, because a float
// stops growing by ones at 2 ** 24.
constexpr int64_t kMany = 4096;

bool sums_many(int64_t updates, int64_t extent) {
  return updates > kMany && (updates >= 8 * extent || updates >= int64_t{1} << 24);
}

template <class T>
constexpr bool kIsFloating =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class T, class Sum>
void store_sums(T* to, const Sum* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = narrow<T>(sums[i]);
}

// ---- scatter_add of whole rows: updates are ordered by destination, so that each row of the
// result is written once, by one thread, in the order of its updates

constexpr int64_t kRowsPerTask = 64;

struct RowsOf {
  int32_t* first;  // by destination: where its updates begin in `order`; one more at the end
  int32_t* order;  // positions of the updates
};

// Fills `rows`; returns the position of the first bad index, or -1.
int64_t order_by_destination(const State& s, const void* index, const RowsOf& rows) {
  const Loop& loop = s.loop[0];
  std::memset(rows.first, 0, (s.extent + 1) * sizeof(int32_t));
  const auto destination = [&](int64_t i) {
    const void* at = byte_offset(index, i * loop.index * s.index_size);
    const int64_t found = read_index(s.index_dtype, at);
    return found < 0 ? found + s.extent : found;
  };
  for (int64_t i = 0; i < loop.size; ++i) {
    const int64_t row = destination(i);
    if (row < 0 || row >= s.extent) return i * s.loop[1].size;
    ++rows.first[row + 1];
  }
  for (int64_t row = 0; row < s.extent; ++row) rows.first[row + 1] += rows.first[row];
  for (int64_t i = 0; i < loop.size; ++i) rows.order[rows.first[destination(i)]++] = i;
  for (int64_t row = s.extent; row > 0; --row) rows.first[row] = rows.first[row - 1];
  rows.first[0] = 0;
  return -1;
}

// Zeros or a copy, past the caches: few of the rows are added to, and all are read much later.
inline void write_past_caches(void* to, const void* from, int64_t bytes) {
  const Streamed<float> part;
  for (int64_t i = 0; i < bytes; i += kVectorBytes) {
    const Vector<float> v = from ? load(as<float>(byte_offset(from, i))) : Vector<float>{};
    part.store(as<float>(byte_offset(to, i)), v);
  }
}

// Adds up the updates of a row, some of its columns at a time.
template <class Sum, class T>
void sum_row(const State& s, T* to, const T* updates, const int32_t* order, int64_t count) {
  constexpr int64_t kColumns = 256;
  Sum sums[kColumns];
  for (int64_t first = 0; first < s.loop[1].size; first += kColumns) {
    const int64_t rest = s.loop[1].size - first, n = rest < kColumns ? rest : kColumns;
    std::fill_n(sums, n, Sum(0));
    for (int64_t i = 0; i < count; ++i)
      Add<T, Sum>::row(sums, updates + order[i] * s.loop[0].source + first, {n, 1, 0, 1, 0, n}, n);
    store_sums(to + first, sums, n);
  }
}

template <class T>
void write_row(const State& s, T* to, const T* updates, const int32_t* order, int64_t count) {
  const int64_t n = s.loop[1].size, bytes = n * static_cast<int64_t>(sizeof(T));
  const auto update = [&](int64_t i) { return updates + order[i] * s.loop[0].source; };
  if (s.streams && count < 2) {
    write_past_caches(to, count ? update(0) : nullptr, bytes);
  } else if (count == 0) {
    std::memset(to, 0, bytes);
  } else if (count == 1) {
    std::memcpy(to, update(0), bytes);
  } else if (kIsFloating<T> && count > kMany) {
    sum_row<double>(s, to, updates, order, count);
  } else if constexpr (kIsFloating<T> && sizeof(T) == 2) {
    sum_row<float>(s, to, updates, order, count);
  } else {
    std::memcpy(to, update(0), bytes);
    for (int64_t i = 1; i < count; ++i) Add<T>::row(to, update(i), {n, 1, 0, 1, 0, n}, n);
  }
}

template <class T>
int64_t run_rows(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const RowsOf rows = {as<int32_t>(workspace), as<int32_t>(workspace) + s.extent + 1};
  const int64_t bad = order_by_destination(s, buffers[1], rows);
  if (bad >= 0) return bad;
  const int64_t tasks = (s.extent + kRowsPerTask - 1) / kRowsPerTask;
  run_tasks(s.team, tasks, [&](int64_t task, int) {
    const int64_t end = (task + 1) * kRowsPerTask < s.extent ? (task + 1) * kRowsPerTask : s.extent;
    for (int64_t row = task * kRowsPerTask; row < end; ++row)
      write_row(s, as<T>(buffers[0]) + row * s.pick, as<T>(buffers[2]),
                rows.order + rows.first[row], rows.first[row + 1] - rows.first[row]);
    if (s.streams) end_streams();
  });
  return -1;
}

// Is it one index after the other, each for a whole dense row of the result?
bool is_rows(const State& s, int64_t out_elements) {
  if (s.count != 2 || !s.rows || s.loop[0].dest != 0 || s.loop[0].index == 0) return false;
  const Loop& row = s.loop[1];
  return row.dest == 1 && row.source == 1 && row.size >= 16 && s.pick == row.size &&
         out_elements == s.extent * row.size && s.loop[0].size < INT32_MAX && s.extent < INT32_MAX;
}

// ---- scatter_add of single elements along the first axis: the columns that one cache line of the
// result holds, a strip, are added up where they lie densely and stay in the second cache. In the
// result itself nearly every addition waits for a line.

constexpr int64_t kStripBytes = 1 << 20;  // larger ones do not stay

// Adds the updates of `width` columns from `first` on. Returns the first bad position.
template <class T, class Sum>
int64_t add_strip(const State& s, Sum* sums, const void* index, const void* updates, int64_t first,
                  int64_t width) {
  const Loop &rows = s.loop[0], &columns = s.loop[1];
  const Loop strip = {1, 1, columns.index, columns.source, 0, width};
  const int64_t index_row = rows.index * s.index_size, row = rows.source * s.source_size;
  Cursor at = {sums, byte_offset(index, first * columns.index * s.index_size),
               byte_offset(updates, first * columns.source * s.source_size), first};
  int64_t bad = INT64_MAX;
  for (int64_t i = 0; i < rows.size; ++i) {
    for (int64_t line = 0; line < kStrip<T> * s.index_size; line += kLine)
      __builtin_prefetch(byte_offset(at.index, kRowsAhead * index_row + line));
    __builtin_prefetch(byte_offset(at.source, kRowsAhead * row));
    const int64_t found = walk_last<Add<T, Sum>>(s, strip, at);
    if (found < bad) bad = found;
    at = {sums, byte_offset(at.index, index_row), byte_offset(at.source, row),
          at.position + columns.size};
  }
  return bad;
}

template <class T, class Sum>
int64_t run_strips(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t columns = s.loop[1].size;
  std::atomic<int64_t> first_bad{INT64_MAX};
  run_tasks(s.team, (columns + kStrip<T> - 1) / kStrip<T>, [&](int64_t task, int thread) {
    const int64_t first = task * kStrip<T>;
    const int64_t width = columns - first < kStrip<T> ? columns - first : kStrip<T>;
    Sum* sums = as<Sum>(workspace) + thread * s.extent * kStrip<T>;
    std::fill_n(sums, s.extent * kStrip<T>, Sum(0));
    lower(first_bad, add_strip<T>(s, sums, buffers[1], buffers[2], first, width));
    T* to = as<T>(buffers[0]) + first;
    for (int64_t row = 0; row < s.extent; ++row, to += columns, sums += kStrip<T>)
      if constexpr (!std::is_same_v<T, Sum>)
        store_sums(to, sums, width);
      else if (s.streams)
        write_past_caches(to, sums, kLine);
      else
        std::memcpy(to, sums, width * sizeof(T));
    if (s.streams) end_streams();
  });
  return first_bad == INT64_MAX ? -1 : first_bad.load();
}

// Is it many elements, each with an index of its own, for a result too large for the second cache?
bool is_strips(const State& s, int64_t out_elements, int64_t line) {
  if (s.count != 2 || s.rows || s.loop[0].dest != 0 || s.loop[1].dest != 1) return false;
  const int64_t columns = s.loop[1].size;
  return s.pick == columns && out_elements == s.extent * columns && columns >= line &&
         s.clear > 2 * kStripBytes && s.extent * kLine <= kStripBytes &&
         s.loop[0].size >= s.extent / 8;
}

// ---- scatter_add along the last axis: each line of the result is cleared while it is added to

template <class T, class Sum>
int64_t run_lines(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const Loop& lines = s.loop[0];
  std::atomic<int64_t> first_bad{INT64_MAX};
  run_tasks(s.team, s.team, [&](int64_t task, int) {
    const int64_t end = lines.size * (task + 1) / s.team;
    for (int64_t i = lines.size * task / s.team; i < end; ++i) {
      T* to = as<T>(buffers[0]) + i * lines.dest;
      Sum* sums;
      if constexpr (std::is_same_v<T, Sum>)
        sums = to;
      else
        sums = as<Sum>(workspace) + task * s.extent;
      std::fill_n(sums, s.extent, Sum(0));
      const Cursor at = {sums, byte_offset(buffers[1], i * lines.index * s.index_size),
                         byte_offset(buffers[2], i * lines.source * s.source_size), i};
      const int64_t found = walk_last<Add<T, Sum>>(s, s.loop[1], at);
      if (found != INT64_MAX) lower(first_bad, found);
      if constexpr (!std::is_same_v<T, Sum>) store_sums(to, sums, s.extent);
    }
  });
  return first_bad == INT64_MAX ? -1 : first_bad.load();
}

// Is every line of the result one of the index, too?
bool is_lines(const State& s, int64_t out_elements) {
  return s.count == 2 && !s.rows && s.loop[1].dest == 0 && s.pick == 1 &&
         s.loop[0].dest == s.extent && s.loop[0].size * s.extent == out_elements;
}

// ---- scatter_add of anything else, to sums in memory of their own

template <class T, class Sum>
int64_t run_apart(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  void* const apart[] = {workspace, buffers[1], buffers[2]};
  const int64_t bad = run<Add<T, Sum>>(plan, apart, nullptr);
  constexpr int64_t kPiece = 1 << 16;
  const int64_t n = s.clear / static_cast<int64_t>(sizeof(Sum));
  run_tasks(n > kPiece ? threads() : 1, (n + kPiece - 1) / kPiece, [&](int64_t task, int) {
    const int64_t first = task * kPiece, rest = n - first;
    store_sums(as<T>(buffers[0]) + first, as<Sum>(workspace) + first,
               rest < kPiece ? rest : kPiece);
  });
  return bad;
}

template <class T, class Sum>
void choose_adding_in(Plan* plan, const Operand& out) {
  State& s = state_of<State>(plan);
  constexpr bool kSame = std::is_same_v<T, Sum>;
  constexpr int64_t kSize = sizeof(Sum);
  s.clear = element_count(out) * kItemSize[out.dtype];
  s.streams = s.pick * kItemSize[out.dtype] % kLine == 0 && s.clear >= streaming_bytes() / 4;
  if (is_rows(s, element_count(out))) {
    plan->run = run_rows<T>;
    plan->workspace = (s.extent + 1 + s.loop[0].size) * static_cast<int64_t>(sizeof(int32_t));
    s.team = team_size(s.extent, element_count(out));
  } else if (is_lines(s, element_count(out))) {
    plan->run = run_lines<T, Sum>;
    s.team = team_size(s.loop[0].size, s.loop[0].size * s.loop[1].size);
    plan->workspace = kSame ? 0 : s.team * s.extent * kSize;
  } else if (is_strips(s, element_count(out), kStrip<T>)) {
    plan->run = run_strips<T, Sum>;
    s.team = team_size(s.loop[1].size / kStrip<T>, element_count(out));
    s.pick = kStrip<T>;
    s.dest_size = kSize;
    plan->workspace = s.team * s.extent * kStrip<T> * kSize;
  } else if constexpr (kSame) {
    plan->run = run<Add<T>>;
  } else {
    plan->run = run_apart<T, Sum>;
    s.dest_size = kSize;
    s.clear = plan->workspace = element_count(out) * kSize;
  }
}

template <class T>
void choose_adding(Plan* plan, const Operand& out, int64_t updates) {
  const bool many = sums_many(updates, state_of<State>(plan).extent);
  if constexpr (kIsFloating<T>) {
    if (many) return choose_adding_in<T, double>(plan, out);
    if (sizeof(T) == 2) return choose_adding_in<T, float>(plan, out);
  }
  if constexpr (!kIsFloating<T> || sizeof(T) > 2) choose_adding_in<T, T>(plan, out);
}

// ---- put: a bad index must leave the memory unchanged, so all indices are checked first

// The position of the first bad index from the loop `level` on, or INT64_MAX.
int64_t first_wrong(const State& s, int level, const void* index, int64_t position) {
  const Loop& loop = s.loop[level];
  const int64_t size = loop.index == 0 ? 1 : loop.size;
  for (int64_t i = 0; i < size; ++i) {
    const void* at = byte_offset(index, i * loop.index * s.index_size);
    const int64_t here = position * loop.size + i;
    if (level < s.count - 1) {
      const int64_t found = first_wrong(s, level + 1, at, here);
      if (found != INT64_MAX) return found;
    } else if (int64_t own = read_index(s.index_dtype, at); !wrap(s.extent, own)) {
      return here;
    }
  }
  return INT64_MAX;
}

template <class T>
int64_t run_put(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  for (int i = 0; i < s.count; ++i)
    if (s.loop[i].size == 0) return -1;
  const int64_t wrong = first_wrong(s, 0, buffers[1], 0);
  return wrong == INT64_MAX ? run<Put<T>>(plan, buffers, workspace) : wrong;
}

// Of whole rows only the last for each destination is written, and by one thread.
template <class T>
int64_t run_put_rows(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const Loop &loop = s.loop[0], &row = s.loop[1];
  auto* last = as<int32_t>(workspace);
  std::memset(last, -1, s.extent * sizeof(int32_t));
  for (int64_t i = 0; i < loop.size; ++i) {
    int64_t to = read_index(s.index_dtype, byte_offset(buffers[1], i * loop.index * s.index_size));
    if (!wrap(s.extent, to)) return i * row.size;
    last[to] = static_cast<int32_t>(i);
  }
  run_tasks(s.team, (s.extent + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t end = (task + 1) * kRowsPerTask < s.extent ? (task + 1) * kRowsPerTask : s.extent;
    for (int64_t to = task * kRowsPerTask; to < end; ++to)
      if (last[to] >= 0)
        Put<T>::row(as<T>(buffers[0]) + to * s.pick, as<T>(buffers[2]) + last[to] * loop.source,
                    row, row.size);
  });
  return -1;
}

// Is it one index after the other, each for a row, and are there so many that it does not matter
// to look at every destination?
bool puts_rows(const State& s) {
  return s.count == 2 && s.rows && s.loop[0].dest == 0 && s.loop[0].index != 0 &&
         s.loop[1].size >= 16 && s.loop[0].size >= s.extent / 16 && s.loop[0].size < INT32_MAX;
}

template <class T>
const char* plan_put_of(Plan* plan, const Operand& out, const Operand& index, const Operand& values,
                        int32_t axis) {
  if (const char* problem = plan_loops(plan, out, index, values, axis, true)) return problem;
  State& s = state_of<State>(plan);
  plan->run = run_put<T>;
  if (!puts_rows(s)) return nullptr;
  plan->run = run_put_rows<T>;
  plan->workspace = s.extent * static_cast<int64_t>(sizeof(int32_t));
  s.team = team_size(s.extent / kRowsPerTask, s.loop[0].size * s.loop[1].size);
  return nullptr;
}

}  // namespace

const char* plan_put(Plan* plan, const Operand& out, const Operand& index, const Operand& values,
                     int32_t axis) {
  constexpr decltype(&plan_put) of_size[] = {plan_put_of<uint8_t>, plan_put_of<uint16_t>,
                                             plan_put_of<uint32_t>, plan_put_of<uint64_t>};
  return of_size[__builtin_ctzll(kItemSize[out.dtype])](plan, out, index, values, axis);
}

const char* plan_scatter_add(Plan* plan, const Operand& out, const Operand& index,
                             const Operand& updates, int32_t axis) {
  if (const char* problem = plan_loops(plan, out, index, updates, axis, true)) return problem;
  switch (out.dtype) {
    case kFloat32:
      choose_adding<float>(plan, out, index.shape[axis]);
      break;
    case kFloat64:
      choose_adding<double>(plan, out, index.shape[axis]);
      break;
    case kBFloat16:
      choose_adding<BFloat16>(plan, out, index.shape[axis]);
      break;
    case kFloat16:
      choose_adding<Half>(plan, out, index.shape[axis]);
      break;
    case kInt8:
    case kUInt8:
      choose_adding<uint8_t>(plan, out, index.shape[axis]);
      break;
    case kInt16:
      choose_adding<uint16_t>(plan, out, index.shape[axis]);
      break;
    case kInt32:
      choose_adding<uint32_t>(plan, out, index.shape[axis]);
      break;
    case kInt64:
      choose_adding<uint64_t>(plan, out, index.shape[axis]);
      break;
    default:
      return "scatter_add: not defined for bool";
  }
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
