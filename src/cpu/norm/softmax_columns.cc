// Columns are computed side by side, as many as stay in the second cache with what is known of
// them. They are copied there while they are read for the first time, because their rows lie far
// apart: where that is a power of two, all of them fall on the same few lines of a cache.
#include "norm/softmax_columns.h"

#include <cmath>

#include "base/axes.h"
#include "base/convert.h"
#include "isa/exponential.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kMostColumns = 1024;
constexpr int64_t kBufferBytes = 256 << 10;  // of a strip of columns
constexpr int64_t kTask = 65536;             // elements of several strips
constexpr int64_t kSumRows = 32;             // added one after the other, so that errors stay small
constexpr int64_t kAhead = 8;                // rows

struct Source {
  Axes outer;         // all axes but the two of the strip
  int64_t row, step;  // strides in a strip: to the next row, to the next column
  int64_t size;       // bytes of an element
};

template <class A>
struct State {
  Source x, g;
  Axes out;  // of `outer`; rows of results lie out_row apart
  Read<A> read_x, read_g;
  Write<A> write;
  int32_t kind;
  bool direct;  // results are of type A
  int64_t out_row, out_size;
  int64_t n, columns, width, strips, units, units_per_task, buffer;
  int team;
};

// A strip in the buffer: n rows of `width` numbers.
template <class A>
struct Strip {
  A* numbers;
  int64_t n, width;
  A* row(int64_t i) const { return numbers + i * width; }
};

// body(i, row) for each row, which has just been read.
template <class A, class Body>
void read_strip(const Strip<A>& strip, const Source& from, Read<A> read, const void* x,
                const Body& body) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < strip.n; ++i) {
    const void* row = byte_offset(x, i * from.row * from.size);
    const auto* later = as<char>(byte_offset(row, kAhead * from.row * from.size));
    for (int64_t j = 0; from.step == 1 && j < strip.width * from.size; j += kLine)
      __builtin_prefetch(later + j);
    read(strip.row(i), row, strip.width, from.step);
    body(strip.row(i));
  }
}

// total[j] = the sum of term(row, j, part) over all rows.
template <class A, class Term>
void sum_columns(const Strip<A>& strip, A* total, const Term& term) {
  A part_of[kMostColumns];
  std::memset(total, 0, strip.width * sizeof(A));
  for (int64_t i = 0; i < strip.n;) {
    const int64_t end = least(strip.n, i + kSumRows);
    std::memset(part_of, 0, strip.width * sizeof(A));
    for (; i < end; ++i)
      for_vectors<A>(strip.width, [&](int64_t j, auto part) {
        part.store(part_of + j, part.load(part_of + j) + term(i, j, part));
      });
    for_vectors<A>(strip.width, [&](int64_t j, auto part) {
      part.store(total + j, part.load(total + j) + part.load(part_of + j));
    });
  }
}

// result(i, j, part) for all numbers of a strip, where results lie or by way of its buffer.
template <class A, class Result>
void write_strip(const State<A>& s, const Strip<A>& strip, void* out, const Result& result) {
  for (int64_t i = 0; i < strip.n; ++i) {
    void* to = byte_offset(out, i * s.out_row * s.out_size);
    A* row = s.direct ? as<A>(to) : strip.row(i);
    for_vectors<A>(strip.width,
                   [&](int64_t j, auto part) { part.store(row + j, result(i, j, part)); });
    if (!s.direct) s.write(to, row, strip.width);
  }
}

template <class A>
void log_sum_exp(const State<A>& s, const Strip<A>& strip, void* out, A* top) {
  A total[kMostColumns];
  // With an infinite maximum x - top would be NaN, where the answer is that infinity.
  for (int64_t j = 0; j < strip.width; ++j)
    if (!std::isfinite(top[j])) top[j] = 0;
  sum_columns(strip, total, [&](int64_t i, int64_t j, auto part) {
    return exponential(part.load(strip.row(i) + j) - part.load(top + j));
  });
  for (int64_t j = 0; j < strip.width; ++j) total[j] = top[j] + std::log(total[j]);
  s.write(out, total, strip.width);
}

template <class A>
void softmax(const State<A>& s, const Strip<A>& strip, void* out, const A* top) {
  A total[kMostColumns];
  sum_columns(strip, total, [&](int64_t i, int64_t j, auto part) {
    const Vector<A> e = lifted_exponential(part.load(strip.row(i) + j) - part.load(top + j));
    part.store(strip.row(i) + j, e);
    return e;
  });
  for (int64_t j = 0; j < strip.width; ++j) total[j] = 1 / total[j];
  write_strip(s, strip, out, [&](int64_t i, int64_t j, auto part) {
    return part.load(strip.row(i) + j) * part.load(total + j);
  });
}

template <class A>
void log_softmax(const State<A>& s, const Strip<A>& strip, void* out, const A* top) {
  A total[kMostColumns];
  sum_columns(strip, total, [&](int64_t i, int64_t j, auto part) {
    return lifted_exponential(part.load(strip.row(i) + j) - part.load(top + j));
  });
  for (int64_t j = 0; j < strip.width; ++j) total[j] = std::log(total[j] / kLifted<A>);
  write_strip(s, strip, out, [&](int64_t i, int64_t j, auto part) {
    return (part.load(strip.row(i) + j) - part.load(top + j)) - part.load(total + j);
  });
}

template <class A>
void run_strip(const State<A>& s, const Strip<A>& strip, void* out, const void* x) {
  A top[kMostColumns];
  for (int64_t j = 0; j < strip.width; ++j) top[j] = -std::numeric_limits<A>::infinity();
  // A NaN may be lost here: the sum of exponentials has it.
  read_strip(strip, s.x, s.read_x, x, [&](const A* row) {
    for_vectors<A>(strip.width, [&](int64_t j, auto part) {
      const Vector<A> now = part.load(row + j), best = part.load(top + j);
      part.store(top + j, larger(now, best));
    });
  });
  if (s.kind == kLogSumExp)
    log_sum_exp(s, strip, out, top);
  else if (s.kind == kSoftmax)
    softmax(s, strip, out, top);
  else
    log_softmax(s, strip, out, top);
}

template <class A>
void run_grad_strip(const State<A>& s, const Strip<A>& x, const Strip<A>& g, void* dx,
                    const void* from_x, const void* from_g) {
  A total[kMostColumns];
  read_strip(x, s.x, s.read_x, from_x, [](const A*) {});
  read_strip(g, s.g, s.read_g, from_g, [](const A*) {});
  if (s.kind == kSoftmax) {
    sum_columns(x, total, [&](int64_t i, int64_t j, auto part) {
      return part.load(x.row(i) + j) * part.load(g.row(i) + j);
    });
    write_strip(s, x, dx, [&](int64_t i, int64_t j, auto part) {
      return part.load(x.row(i) + j) * (part.load(g.row(i) + j) - part.load(total + j));
    });
  } else {
    sum_columns(g, total, [&](int64_t i, int64_t j, auto part) { return part.load(g.row(i) + j); });
    write_strip(s, x, dx, [&](int64_t i, int64_t j, auto part) {
      return part.load(g.row(i) + j) - exponential(part.load(x.row(i) + j)) * part.load(total + j);
    });
  }
}

template <bool gradient, class A>
int64_t run(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  const auto run_unit = [&](int64_t unit, A* buffer) {
    const int64_t first = unit % s.strips * s.width, outer = unit / s.strips;
    const int64_t width = least(s.width, s.columns - first);
    const auto at = [&](const void* from, const Source& source) {
      return byte_offset(from, (source.outer.at(outer).x + first * source.step) * source.size);
    };
    void* out = byte_offset(buffers[0], (s.out.at(outer).x + first) * s.out_size);
    const Strip<A> strip = {buffer, s.n, width};
    if constexpr (gradient)
      run_grad_strip(s, strip, {buffer + s.buffer, s.n, width}, out, at(buffers[1], s.x),
                     at(buffers[2], s.g));
    else
      run_strip(s, strip, out, at(buffers[1], s.x));
  };
  run_tasks(s.team, parts(s.units, s.units_per_task), [&](int64_t task, int thread) {
    const int64_t end = least(s.units, (task + 1) * s.units_per_task);
    A* buffer = as<A>(workspace) + thread * (gradient ? 2 : 1) * s.buffer;
    for (int64_t unit = task * s.units_per_task; unit < end; ++unit) run_unit(unit, buffer);
  });
  return -1;
}

int64_t step_of(const Operand& x, int axis) { return x.shape[axis] == 1 ? 1 : x.strides[axis]; }

// How many of the axes before the last, which is softmax's, step like one in all operands.
int joined_axes(const Operand* const* operands, int count) {
  const Operand& first = *operands[0];
  int axis = first.ndim - 2;
  for (int64_t size = first.shape[axis]; axis > 0; size *= first.shape[--axis])
    for (int i = 0; i < count; ++i)
      if (step_of(*operands[i], axis - 1) != size * step_of(*operands[i], first.ndim - 2))
        return first.ndim - 1 - axis;
  return first.ndim - 1 - axis;
}

// A strip lies along the joined axes.
Source source_of(const Operand& x, int joined) {
  Source source;
  for (int i = 0; i < x.ndim - 1 - joined; ++i) source.outer.add(x.shape[i], x.strides[i], 0);
  source.row = x.strides[x.ndim - 1];
  source.step = step_of(x, x.ndim - 2);
  source.size = kItemSize[x.dtype];
  return source;
}

template <class A>
void choose_strips(State<A>& s, bool gradient, int64_t outer) {
  const int64_t bytes = product({s.n, sizeof(A), gradient ? 2 : 1});
  const int64_t fit = most(kLanes<A>, least(kMostColumns, kBufferBytes / most(bytes, 1)));
  s.strips = parts(s.columns, fit / kLanes<A> * kLanes<A>);
  s.width = least(s.columns, round_up(parts(s.columns, s.strips), kLanes<A>));
  s.strips = parts(s.columns, s.width);
  s.units = outer * s.strips;
  s.units_per_task = most(1, least(kTask / (s.n * s.width), parts(s.units, 4)));
  s.team = team_size(parts(s.units, s.units_per_task), product({s.units, s.width, s.n, 4}));
  s.buffer = round_up(s.n * s.width, kLanes<A>);
}

template <class A>
const char* plan_in(Plan* plan, int32_t kind, const Operand& out, const Operand& x,
                    const Operand* g) {
  State<A>& s = state_of<State<A>>(plan);
  s.kind = kind;
  const Operand* const operands[] = {&x, &out, g};
  const int joined = joined_axes(operands, g ? 3 : 2);
  s.x = source_of(x, joined);
  s.g = source_of(g ? *g : x, joined);
  s.read_x = reader<A>(x.dtype);
  s.read_g = reader<A>(g ? g->dtype : x.dtype);
  s.write = writer<A>(out.dtype);
  if (!s.read_x || !s.read_g || !s.write) return "softmax: unsupported combination of dtypes";
  const Source results = source_of(out, joined);
  if (results.step != 1) return "softmax: results of columns are not side by side";
  s.out = results.outer;
  s.out_row = results.row;
  s.out_size = results.size;
  s.direct = out.dtype == (std::is_same_v<A, float> ? kFloat32 : kFloat64);
  s.n = x.shape[x.ndim - 1];
  s.columns = 1;
  for (int i = x.ndim - 1 - joined; i < x.ndim - 1; ++i) s.columns *= x.shape[i];
  choose_strips(s, g != nullptr, s.out.total());
  plan->workspace = product({s.team, s.buffer, sizeof(A), g ? 2 : 1});
  plan->run = g ? run<true, A> : run<false, A>;
  return nullptr;
}

}  // namespace

bool has_columns(int32_t kind, const Operand& out, const Operand& x) {
  const int last = x.ndim - 1;
  if (last < 1 || x.shape[last] < 2 || element_count(x) == 0) return false;
  if (kind == kLogSumExp) return x.strides[last] != 1 && x.strides[last - 1] == 1;
  return out.strides[last] != 1;
}

const char* plan_softmax_columns(Plan* plan, int32_t kind, const Operand& out, const Operand& x,
                                 const Operand* g) {
  return x.dtype == kFloat64 ? plan_in<double>(plan, kind, out, x, g)
                             : plan_in<float>(plan, kind, out, x, g);
}

}  // namespace needle::NEEDLE_ISA
