// gather, scatter_add and put: nested loops over an index of the result's shape. The innermost loop
// is a whole row wherever the index does not change along it.
#include <atomic>
#include <cstring>

#include "index_loops.h"
#include "kernels_linear.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {
namespace {

// Walks the loops from `level` on. Returns the position of the first bad index, or INT64_MAX.
template <class Op>
int64_t walk(const State& s, const Loop* loops, int level, Cursor at) {
  const Loop& loop = loops[level];
  if (level == s.count - 1) return walk_last<Op>(s, loop, at);
  int64_t bad = INT64_MAX;
  for (int64_t i = loop.begin; i < loop.end; ++i) {
    const Cursor next = {byte_offset(at.dest, i * loop.dest * s.dest_size),
                         byte_offset(at.index, i * loop.index * s.index_size),
                         byte_offset(at.source, i * loop.source * s.source_size),
                         at.position * loop.size + i};
    const int64_t found = walk<Op>(s, loops, level + 1, next);
    if (found < bad) bad = found;
  }
  return bad;
}

// Zeros where scatter_add adds.
void clear(const State& s, void* out) {
  constexpr int64_t kPiece = 1 << 20;
  run_tasks(s.clear > kPiece ? threads() : 1, (s.clear + kPiece - 1) / kPiece,
            [&](int64_t task, int) {
              const int64_t rest = s.clear - task * kPiece;
              std::memset(byte_offset(out, task * kPiece), 0, rest < kPiece ? rest : kPiece);
            });
}

template <class Op>
int64_t run(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  // Gather has its index last, scatter_add in the middle.
  const Cursor start = Op::kPicksSource ? Cursor{buffers[0], buffers[2], buffers[1], 0}
                                        : Cursor{buffers[0], buffers[1], buffers[2], 0};
  if (s.clear) clear(s, buffers[0]);
  for (int i = 0; i < s.count; ++i)
    if (s.loop[i].size == 0) return -1;
  std::atomic<int64_t> first_bad{INT64_MAX};
  run_tasks(s.team, s.team, [&](int64_t task, int) {
    Loop loops[kMaxDims + 1];
    std::memcpy(loops, s.loop, s.count * sizeof(Loop));
    Loop& split = loops[s.split];
    split.begin = split.size * task / s.team;
    split.end = split.size * (task + 1) / s.team;
    lower(first_bad, walk<Op>(s, loops, 0, start));
  });
  return first_bad == INT64_MAX ? -1 : first_bad.load();
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

template <class T>
void write_row(const State& s, T* to, const T* updates, const int32_t* order, int64_t count) {
  const int64_t n = s.loop[1].size, bytes = n * static_cast<int64_t>(sizeof(T));
  const auto update = [&](int64_t i) { return updates + order[i] * s.loop[0].source; };
  if (s.streams && count < 2) {
    write_past_caches(to, count ? update(0) : nullptr, bytes);
  } else if (count == 0) {
    std::memset(to, 0, bytes);
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

constexpr int64_t kLine = 64;             // bytes
constexpr int64_t kStripBytes = 1 << 20;  // larger ones do not stay
constexpr int64_t kRowsAhead = 8;         // strips of index and updates are fetched so much earlier

template <class T>
constexpr int64_t kStrip = kLine / static_cast<int64_t>(sizeof(T));

// Adds the updates of `width` columns from `first` on. Returns the first bad position.
template <class T>
int64_t add_strip(const State& s, T* sums, const void* index, const void* updates, int64_t first,
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
    const int64_t found = walk_last<Add<T>>(s, strip, at);
    if (found < bad) bad = found;
    at = {sums, byte_offset(at.index, index_row), byte_offset(at.source, row),
          at.position + columns.size};
  }
  return bad;
}

template <class T>
int64_t run_strips(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t columns = s.loop[1].size;
  std::atomic<int64_t> first_bad{INT64_MAX};
  run_tasks(s.team, (columns + kStrip<T> - 1) / kStrip<T>, [&](int64_t task, int thread) {
    const int64_t first = task * kStrip<T>;
    const int64_t width = columns - first < kStrip<T> ? columns - first : kStrip<T>;
    T* sums = as<T>(workspace) + thread * s.extent * kStrip<T>;
    std::memset(static_cast<void*>(sums), 0, s.extent * kLine);
    lower(first_bad, add_strip(s, sums, buffers[1], buffers[2], first, width));
    T* to = as<T>(buffers[0]) + first;
    for (int64_t row = 0; row < s.extent; ++row, to += columns, sums += kStrip<T>)
      if (s.streams)
        write_past_caches(to, sums, kLine);
      else
        std::memcpy(static_cast<void*>(to), sums, width * sizeof(T));
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

template <class T>
void choose_adding(Plan* plan, const Operand& out) {
  State& s = state_of<State>(plan);
  s.clear = element_count(out) * kItemSize[out.dtype];
  plan->run = run<Add<T>>;
  s.streams = s.pick * kItemSize[out.dtype] % kLine == 0 && s.clear >= streaming_bytes() / 4;
  if (is_rows(s, element_count(out))) {
    plan->run = run_rows<T>;
    plan->workspace = (s.extent + 1 + s.loop[0].size) * static_cast<int64_t>(sizeof(int32_t));
    s.team = team_size(s.extent, element_count(out));
  } else if (is_strips(s, element_count(out), kStrip<T>)) {
    plan->run = run_strips<T>;
    s.team = team_size(s.loop[1].size / kStrip<T>, element_count(out));
    s.pick = kStrip<T>;
    plan->workspace = s.team * s.extent * kLine;
  }
}

void add_loop(State& s, const Loop& loop) {
  if (loop.size == 1) return;
  Loop* last = s.count ? &s.loop[s.count - 1] : nullptr;
  if (last && last->dest == loop.size * loop.dest && last->index == loop.size * loop.index &&
      last->source == loop.size * loop.source) {
    *last = {last->size * loop.size, loop.dest, loop.index, loop.source, 0, 0};
  } else {
    s.loop[s.count++] = loop;
  }
}

// The longest loop is shared, but not, when adding, the indexed axis: two tasks could meet in one
// destination. Short rows are not worth cutting.
void choose_split(State& s, bool adding) {
  int64_t work = 1, longest = 0;
  s.split = 0;
  for (int i = 0; i < s.count; ++i) {
    const Loop& loop = s.loop[i];
    work *= loop.size;
    const bool indexed = adding && loop.dest == 0;
    const bool short_row = s.rows && i == s.count - 1 && loop.size < 64;
    if (indexed || short_row || loop.size <= longest) continue;
    longest = loop.size;
    s.split = i;
  }
  s.team = team_size(longest, work);
}

const char* plan_loops(Plan* plan, const Operand& dest, const Operand& index, const Operand& source,
                       int32_t axis, bool adding) {
  State& s = state_of<State>(plan);
  plan->workspace = 0;
  s.clear = 0;
  s.streams = false;
  if (index.dtype == kBool || is_floating(index.dtype)) return "index: wants an integer dtype";
  if (dest.dtype != source.dtype) return "index: dtypes differ";
  const Operand& indexed = adding ? dest : source;
  if (dest.ndim == 0) return "index: wants at least one axis";
  s.pick = indexed.strides[axis];
  s.extent = indexed.shape[axis];
  s.dest_size = s.source_size = kItemSize[dest.dtype];
  s.index_size = kItemSize[index.dtype];
  s.index_dtype = index.dtype;
  s.count = 0;
  for (int i = 0; i < index.ndim; ++i) {
    const bool here = i == axis;
    add_loop(s, {index.shape[i], here && adding ? 0 : dest.strides[i], index.strides[i],
                 here && !adding ? 0 : source.strides[i], 0, 0});
  }
  if (!s.count) s.loop[s.count++] = {1, 1, 0, 1, 0, 0};
  const Loop& last = s.loop[s.count - 1];
  s.rows = last.index == 0 && (adding ? last.dest : last.source) != 0;
  for (int i = 0; i < s.count; ++i) s.loop[i].end = s.loop[i].size;
  choose_split(s, adding);
  return nullptr;
}

// ---- gather of single elements along the first axis of a table too large for the second cache:
// the columns that two cache lines hold, a strip, are copied to where they lie densely and stay
// there (4096 x 256 from 10000 x 256: 0.7 of the time on Sapphire Rapids; strips of one line take
// as long as none, because the processor fetches lines in pairs).

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
// loads are faster than gather instructions, they are faster than strips, too.
bool gathers_strips(const State& s) {
  if (s.count != 2 || s.rows || s.loop[0].source != 0 || gathers_by_loads()) return false;
  const Loop &rows = s.loop[0], &columns = s.loop[1];
  if (columns.source != 1 || columns.dest != 1 || columns.index == 0) return false;
  const int64_t row = columns.size * s.source_size, cache = second_cache_bytes();
  return row >= 2 * kLine * threads() && s.extent * row > 2 * cache &&
         s.extent * 2 * kLine <= cache / 4 * 3 && rows.size >= s.extent / 3;
}

// ---- gather of single elements from a table too large for the second cache, by loads: what a
// vector of indices picks is found kAhead indices earlier and requested of the second cache. The
// first waits for no more than some 24 lines at once, which from the third cache is 8 cycles for
// each on Zen 4 (4096 x 256 from 10000 x 256: 0.85 of the time, from 20000 x 256 0.6, down to 0.3
// where other programs use the third cache).

constexpr int64_t kAhead = 256, kIndices = kLanes<int64_t>;

// Where in rows of indices a walk is that finds what they pick.
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

// ---- put: what is there stays if an index is wrong, so they are all looked at first

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
      choose_adding<float>(plan, out);
      break;
    case kFloat64:
      choose_adding<double>(plan, out);
      break;
    case kBFloat16:
      choose_adding<BFloat16>(plan, out);
      break;
    case kFloat16:
      choose_adding<Half>(plan, out);
      break;
    case kInt8:
    case kUInt8:
      choose_adding<uint8_t>(plan, out);
      break;
    case kInt16:
      choose_adding<uint16_t>(plan, out);
      break;
    case kInt32:
      choose_adding<uint32_t>(plan, out);
      break;
    case kInt64:
      choose_adding<uint64_t>(plan, out);
      break;
    default:
      return "scatter_add: not for bool";
  }
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
