// gather: loops, or the faster ways of large tables.
#include <atomic>
#include <cstring>

#include "index/index_loops.h"
#include "base/table.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

// ---- gather of single elements along the first axis of a table too large for the second cache:
// the columns of two cache lines, a strip, are copied to where they lie densely and stay in the
// cache. Strips of one line gain nothing, because the processor fetches lines in pairs.

template <class T>
constexpr int64_t kWideStrip = 2 * kStrip<T>;

template <class T>
void copy_strip(const State& s, T* dense, const T* x, int64_t width) {
  constexpr int64_t kAhead = 16;
  for (int64_t row = 0; row < s.extent; ++row, x += s.pitch, dense += kWideStrip<T>) {
    __builtin_prefetch(x + kAhead * s.pitch);
    __builtin_prefetch(x + kAhead * s.pitch + kStrip<T>);
    std::memcpy(dense, x, width * sizeof(T));
  }
}

// Fills `width` columns from `first` on. Returns the first bad position.
template <class T>
int64_t gather_strip(const State& s, T* out, const T* dense, const void* index, int64_t first,
                     int64_t width) {
  const Loop &rows = s.loop[0], &columns = s.loop[1];
  const Loop strip = {1, 1, columns.index, 1, 0, width};
  const int64_t index_row = rows.index * s.index_size, row = rows.dest * s.dest_size;
  Cursor at = {out + first, byte_offset(index, first * columns.index * s.index_size), dense, first};
  int64_t bad = INT64_MAX;
  for (int64_t i = 0; i < rows.size; ++i) {
    for (int64_t line = 0; line < kWideStrip<T> * s.index_size; line += kLine)
      __builtin_prefetch(byte_offset(at.index, kRowsAhead * index_row + line));
    __builtin_prefetch(byte_offset(at.dest, kRowsAhead * row), 1);
    __builtin_prefetch(byte_offset(at.dest, kRowsAhead * row + kLine), 1);
    const int64_t found = walk_last<Copy<T>>(s, strip, at);
    if (found < bad) bad = found;
    at = {byte_offset(at.dest, row), byte_offset(at.index, index_row), dense,
          at.position + columns.size};
  }
  return bad;
}

template <class T>
int64_t run_gather_strips(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t columns = s.loop[1].size;
  std::atomic<int64_t> first_bad{INT64_MAX};
  run_tasks(s.team, (columns + kWideStrip<T> - 1) / kWideStrip<T>, [&](int64_t task, int thread) {
    const int64_t first = task * kWideStrip<T>;
    const int64_t width = columns - first < kWideStrip<T> ? columns - first : kWideStrip<T>;
    T* dense = as<T>(workspace) + thread * s.extent * kWideStrip<T>;
    copy_strip(s, dense, as<T>(buffers[1]) + first, width);
    lower(first_bad, gather_strip(s, as<T>(buffers[0]), dense, buffers[2], first, width));
  });
  return first_bad == INT64_MAX ? -1 : first_bad.load();
}

// Do strips stay in the second cache, which the table does not fit, and is each used enough? Where
// there are gather instructions and loads are faster, these are faster than strips, too.
bool gathers_strips(const State& s) {
  const bool by_loads = kGathers && gathers_by_loads();
  if (s.count != 2 || s.rows || s.loop[0].source != 0 || by_loads) return false;
  const Loop &rows = s.loop[0], &columns = s.loop[1];
  if (columns.source != 1 || columns.dest != 1 || columns.index == 0) return false;
  const int64_t row = columns.size * s.source_size, cache = second_cache_bytes();
  return row >= 2 * kLine * threads() && s.extent * row > 2 * cache &&
         s.extent * 2 * kLine <= cache / 4 * 3 && rows.size >= s.extent / 3;
}

// ---- gather of single elements from a table too large for the second cache, by loads: the
// elements of a vector of indices are found kAhead indices earlier and requested of the second
// cache. The first cache can wait for few lines at once, so without this the third cache's latency
// limits the speed, most of all where other programs use it.

constexpr int64_t kAhead = 256, kIndices = kLanes<int64_t>;

// The position of a walk in rows of indices that finds the elements they pick.
template <class T>
struct Ahead {
  const State& s;
  const Loop& row;
  const int64_t* index;
  const T* source;
  int64_t column;

  // Stores the offsets that the next vector of indices picks. False if one of them is wrong.
  bool pick(int64_t* offsets) {
    using Unsigned = Vector<uint64_t>;
    const Vector<int64_t> extent = splat(s.extent), numbers = load(kLaneNumbers<int64_t>);
    Vector<int64_t> picked = load(index);
    picked += (picked < 0) & extent;
    if (add_lanes<int64_t>((Unsigned)picked >= (Unsigned)extent) != 0) return false;
    store(offsets, picked * s.pick + (numbers + column) * row.source);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kIndices; ++k) __builtin_prefetch(source + offsets[k], 0, 2);
    index += kIndices;
    column = column + kIndices == row.size ? 0 : column + kIndices;
    return true;
  }
};

// Of the indices begin..end, whole vectors; false if one is wrong.
template <class T>
bool gather_ahead(const State& s, void* const* buffers, int64_t begin, int64_t end) {
  alignas(64) int64_t offsets[kAhead];
  const Loop& row = s.loop[s.count - 1];
  const int64_t first_column = begin % row.size, step = s.count > 1 ? s.loop[0].dest : row.size;
  const T* source = as<T>(buffers[1]);
  Ahead<T> ahead = {s, row, as<int64_t>(buffers[2]) + begin, source, first_column};
  for (int64_t i = 0; i < kAhead && begin + i < end; i += kIndices)
    if (!ahead.pick(offsets + i)) return false;
  T* to = as<T>(buffers[0]) + begin / row.size * step + first_column;
  for (int64_t i = begin, column = first_column; i < end; i += kIndices) {
    int64_t* picked = offsets + (i - begin) % kAhead;
#pragma GCC unroll 8
    for (int64_t k = 0; k < kIndices; ++k) to[k] = source[picked[k]];
    if (i + kAhead < end && !ahead.pick(picked)) return false;
    to += kIndices;
    column += kIndices;
    if (column == row.size) to += step - row.size, column = 0;
  }
  return true;
}

template <class T>
int64_t run_gather_ahead(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t vectors = s.loop[0].size * (s.count > 1 ? s.loop[1].size : 1) / kIndices;
  std::atomic<bool> right{true};
  run_tasks(s.team, s.team, [&](int64_t task, int) {
    const int64_t begin = vectors * task / s.team, end = vectors * (task + 1) / s.team;
    if (!gather_ahead<T>(s, buffers, begin * kIndices, end * kIndices)) right.store(false);
  });
  return right.load() ? -1 : run<Copy<T>>(plan, buffers, workspace);  // which says where
}

// Do rows of indices, one after the other, pick from one place that the second cache does not hold?
bool gathers_ahead(const State& s) {
  const Loop &first = s.loop[0], &last = s.loop[s.count - 1];
  const bool dense = last.index == 1 && last.dest == 1 && last.size % kIndices == 0;
  const bool one_source = s.count == 1 || (first.source == 0 && first.index == last.size);
  return gathers_by_loads() && s.index_dtype == kInt64 && s.count <= 2 && dense && one_source &&
         s.extent * s.pick * s.source_size > second_cache_bytes();
}

template <class T>
const char* plan_gather_of(Plan* plan, const Operand& out, const Operand& x, const Operand& index,
                           int32_t axis) {
  State& s = state_of<State>(plan);
  plan->run = run<Copy<T>>;
  if (const char* problem = plan_loops(plan, out, index, x, axis, false)) return problem;
  if (gathers_ahead(s)) plan->run = run_gather_ahead<T>;
  if (!gathers_strips(s)) return nullptr;
  plan->run = run_gather_strips<T>;
  s.pitch = s.pick;
  s.pick = kWideStrip<T>;
  const int64_t strips = (s.loop[1].size + kWideStrip<T> - 1) / kWideStrip<T>;
  s.team = team_size(strips, element_count(out));
  plan->workspace = s.team * s.extent * 2 * kLine;
  return nullptr;
}

}  // namespace

const char* plan_gather(Plan* plan, const Operand& out, const Operand& x, const Operand& index,
                        int32_t axis) {
  constexpr decltype(&plan_gather) of_size[] = {plan_gather_of<uint8_t>, plan_gather_of<uint16_t>,
                                                plan_gather_of<uint32_t>, plan_gather_of<uint64_t>};
  return of_size[__builtin_ctzll(kItemSize[x.dtype])](plan, out, x, index, axis);
}

}  // namespace needle::NEEDLE_ISA
