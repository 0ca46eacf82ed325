// The loops of gather, scatter_add and put: nested loops over an index of the result's shape. The
// innermost loop is a whole row wherever the index does not change along it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/axes.h"
#include "base/convert.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {

// A loop and the steps, in elements, that its turn takes in each operand. The indexed operand does
// not move along the indexed axis: there it moves by index * pick.
struct Loop {
  int64_t size, dest, index, source;
  int64_t begin, end;  // the part of it that a task walks
};

struct State {
  Loop loop[kMaxDims + 1];
  int count;
  bool rows;             // the last loop is a row: the index does not change along it
  int split;             // the loop that tasks share
  int64_t pick, extent;  // of the indexed axis
  int64_t pitch;         // of the table whose strips are copied; pick is then that of the copy
  int64_t dest_size, index_size, source_size;
  DType index_dtype;
  int team;
  int64_t clear;  // bytes of the result of scatter_add
  bool streams;   // its rows are stored past the caches
};

inline void lower(std::atomic<int64_t>& least, int64_t value) {
  int64_t known = least.load();
  while (value < known && !least.compare_exchange_weak(known, value)) {
  }
}

inline int64_t read_index(DType dtype, const void* p) {
  switch (dtype) {
    case kInt64:
      return *as<int64_t>(p);
    case kInt32:
      return *as<int32_t>(p);
    case kInt16:
      return *as<int16_t>(p);
    case kInt8:
      return *as<int8_t>(p);
    default:
      return *as<uint8_t>(p);
  }
}

// The operations on a row.
template <class T>
struct Copy {
  static constexpr bool kPicksSource = true;
  using Type = T;  // of the source
  using Dest = T;
  static void element(T& dest, const T& source) { dest = source; }
  static void row(T* to, const T* from, const Loop& loop, int64_t n) {
    if (loop.dest == 1 && loop.source == 1)
      std::memcpy(to, from, n * sizeof(T));
    else
      for (int64_t i = 0; i < n; ++i) to[i * loop.dest] = from[i * loop.source];
  }
};

// The same, to places that the index picks; of equal places the last one counts.
template <class T>
struct Put {
  static constexpr bool kPicksSource = false;
  using Type = T;
  using Dest = T;
  static void element(T& dest, const T& source) { dest = source; }
  static void row(T* to, const T* from, const Loop& loop, int64_t n) {
    if (loop.dest == 1 && loop.source == 0)
      std::fill(to, to + n, *from);
    else
      Copy<T>::row(to, from, loop, n);
  }
};

// Adds to a Sum: one of more bits than T where many small numbers would not change a large one.
template <class T, class Sum = T>
struct Add {
  static constexpr bool kPicksSource = false;
  using Type = T;
  using Dest = Sum;
  static void element(Sum& dest, const T& source) { dest += widen<Sum>(source); }
  static void row(Sum* __restrict to, const T* __restrict from, const Loop& loop, int64_t n) {
    if (loop.dest == 1 && loop.source == 1)
      for (int64_t i = 0; i < n; ++i) to[i] += widen<Sum>(from[i]);
    else
      for (int64_t i = 0; i < n; ++i) to[i * loop.dest] += widen<Sum>(from[i * loop.source]);
  }
};

struct Cursor {
  void* dest;
  const void* index;
  const void* source;
  int64_t position;  // in the index operand, C order
};

// Makes an index count from the front; false if it is out of range.
inline bool wrap(int64_t extent, int64_t& index) {
  if (index < 0) index += extent;
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(extent);
}

// The last loop, if every element has an index of its own. read(i) is the i-th of them. Everything
// that does not change lies in local variables, so that registers hold it.
template <class Op, class ReadAt>
int64_t walk_elements(const State& s, const Loop& loop, const Cursor& at, const ReadAt& read) {
  using T = typename Op::Type;
  auto* dest = as<typename Op::Dest>(at.dest);
  const T* source = as<T>(at.source);
  const int64_t dest_step = loop.dest, index_step = loop.index, source_step = loop.source;
  const int64_t extent = s.extent, pick = s.pick, end = loop.end;
  int64_t bad = INT64_MAX;
  for (int64_t i = loop.begin; i < end; ++i) {
    int64_t index = read(i * index_step);
    if (!wrap(extent, index)) {
      if (bad == INT64_MAX) bad = at.position * loop.size + i;
      continue;
    }
    const int64_t picked = index * pick;
    Op::element(dest[i * dest_step + (Op::kPicksSource ? 0 : picked)],
                source[i * source_step + (Op::kPicksSource ? picked : 0)]);
  }
  return bad;
}

constexpr int64_t kBlock = 64;  // indices that are looked at together

// Whether copy_vectors has instructions that gather.
#if defined(__AVX512F__)
constexpr bool kGathers = true;
#else
constexpr bool kGathers = false;
#endif

// The last loop where every element has an index of its own, as far as these are right and count
// from the front, in blocks of which all do: nothing is asked of one of them. The barrier keeps the
// compiler from taking them out of the vectors in which they were compared. What is picked to be
// copied is in the first cache, or instructions that gather are as fast. Returns where that ends.
// Not inlined, because that slows down loops over strips, which are shorter than a block.
template <class Op>
[[gnu::noinline]] int64_t walk_blocks(const State& s, const Loop& loop, const Cursor& at) {
  constexpr int64_t kFirstCache = 32 << 10;
  constexpr bool kCopies = Op::kPicksSource;
  int64_t i = loop.begin;
  const bool dense = (kCopies ? loop.dest : loop.source) == 1 && loop.index == 1;
  const bool still = (kCopies ? loop.source : loop.dest) == 0;
  if (!dense || !still) return i;
  const bool near = s.extent * s.pick * s.source_size <= kFirstCache;
  if (kCopies && kGathers && !(near && gathers_near_by_loads())) return i;
  using T = typename Op::Type;
  const int64_t pick = s.pick;
  const auto extent = static_cast<uint64_t>(s.extent);
  for (; i + kBlock <= loop.end; i += kBlock) {
    const int64_t* index = as<int64_t>(at.index) + i;
    uint64_t wrong = 0;
    for (int64_t k = 0; k < kBlock; ++k) wrong |= static_cast<uint64_t>(index[k]) >= extent;
    if (wrong) break;
    asm volatile("" ::: "memory");
    auto* dest = as<typename Op::Dest>(at.dest) + (kCopies ? i : 0);
    const T* source = as<T>(at.source) + (kCopies ? 0 : i);
#pragma GCC unroll 16
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t picked = index[k] * pick;
      Op::element(dest[kCopies ? k : picked], source[kCopies ? picked : k]);
    }
  }
  return i;
}

// Copies elements of four bytes a vector of indices at a time, as far as whole vectors and right
// indices go. Returns where that ends.
inline int64_t copy_vectors([[maybe_unused]] const State& s, const Loop& loop,
                            [[maybe_unused]] const Cursor& at) {
  int64_t i = loop.begin;
#if defined(__AVX512F__)
  if (loop.dest != 1 || loop.index != 1) return i;
  constexpr int64_t kWidth = kLanes<int64_t>;
  const bool by_loads = gathers_by_loads();
  const Vector<int64_t> extent = splat(s.extent), numbers = load(kLaneNumbers<int64_t>);
  for (; i + kWidth <= loop.end; i += kWidth) {
    Vector<int64_t> index = load(as<int64_t>(at.index) + i);
    index += (index < 0) & extent;
    if (_mm512_cmpge_epu64_mask((__m512i)index, (__m512i)extent)) break;
    const Vector<int64_t> from = index * s.pick + (numbers + i) * loop.source;
    float* dest = as<float>(at.dest) + i;
    if (by_loads) {
      alignas(64) int64_t offset[kWidth];
      store(offset, from);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kWidth; ++k) dest[k] = as<float>(at.source)[offset[k]];
    } else {
      _mm256_storeu_ps(dest, _mm512_i64gather_ps((__m512i)from, at.source, 4));
    }
  }
#endif
  return i;
}

template <class Op>
int64_t walk_row(const State& s, const Loop& loop, const Cursor& at) {
  using T = typename Op::Type;
  int64_t index = read_index(s.index_dtype, at.index);
  if (!wrap(s.extent, index)) return at.position * loop.size;
  const int64_t picked = index * s.pick;
  Op::row(as<typename Op::Dest>(at.dest) + loop.begin * loop.dest + (Op::kPicksSource ? 0 : picked),
          as<T>(at.source) + loop.begin * loop.source + (Op::kPicksSource ? picked : 0), loop,
          loop.end - loop.begin);
  return INT64_MAX;
}

template <class Op>
int64_t walk_last(const State& s, const Loop& loop, const Cursor& at) {
  if (s.rows) return walk_row<Op>(s, loop, at);
  if (s.index_dtype == kInt64) {
    Loop rest = loop;
    if (loop.end - loop.begin >= kBlock) rest.begin = walk_blocks<Op>(s, rest, at);
    if (Op::kPicksSource && sizeof(typename Op::Type) == 4) rest.begin = copy_vectors(s, rest, at);
    return walk_elements<Op>(s, rest, at, [&](int64_t i) { return as<int64_t>(at.index)[i]; });
  }
  return walk_elements<Op>(s, loop, at, [&](int64_t i) {
    return read_index(s.index_dtype, byte_offset(at.index, i * s.index_size));
  });
}

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
inline void clear(const State& s, void* out) {
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

inline void add_loop(State& s, const Loop& loop) {
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
inline void choose_split(State& s, bool adding) {
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

inline const char* plan_loops(Plan* plan, const Operand& dest, const Operand& index,
                              const Operand& source, int32_t axis, bool adding) {
  State& s = state_of<State>(plan);
  plan->workspace = 0;
  s.clear = 0;
  s.streams = false;
  if (index.dtype == kBool || is_floating(index.dtype)) return "index: expected an integer dtype";
  if (dest.dtype != source.dtype) return "index: dtypes differ";
  const Operand& indexed = adding ? dest : source;
  if (dest.ndim == 0) return "index: expected at least one axis";
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

constexpr int64_t kLine = 64;      // bytes
constexpr int64_t kRowsAhead = 8;  // strips of index and data are fetched so much earlier

// Elements in a cache line.
template <class T>
constexpr int64_t kStrip = kLine / static_cast<int64_t>(sizeof(T));

}  // namespace needle::NEEDLE_ISA
