// Softmax, log-softmax, the logarithm of their sum and cross entropy: one row at a time, while it
// is in the cache. Rows of float16, of bfloat16 or with steps are first copied into a buffer of
// floats.
#include <cmath>

#include "base/axes.h"
#include "base/convert.h"
#include "isa/exponential.h"
#include "base/table.h"
#include "norm/softmax_columns.h"
#include "base/spans.h"

namespace needle::NEEDLE_ISA {
namespace {

// ---- rows

template <class A>
A row_maximum(const A* x, int64_t n) {  // a NaN may be lost here: the sum of exponentials has it
  const Vector<A> first = splat<A>(x[0]);
  Vector<A> top[4] = {first, first, first, first};
  int64_t i = 0;
  for (; i + 4 * kLanes<A> <= n; i += 4 * kLanes<A>) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) top[j] = larger(load(x + i + j * kLanes<A>), top[j]);
  }
  Vector<A> best = larger(larger(top[0], top[1]), larger(top[2], top[3]));
  for (; i + kLanes<A> <= n; i += kLanes<A>) best = larger(load(x + i), best);
#pragma GCC unroll 4
  for (int width = kLanes<A> / 2; width > 0; width /= 2)
    best = larger(exchange<A>(best, width), best);
  A last = best[0];
  for (; i < n; ++i) last = x[i] > last ? x[i] : last;
  return last;
}

// Of x - shift, which is not above 0.
template <class A>
A log_sum_of_exponentials(const A* x, A shift, int64_t n, const A* next) {
  const A total = sum_vectors<A>(n, [&](int64_t i, auto part) {
    fetch_ahead(next, i);
    return lifted_exponential(part.load(x + i) - shift);
  });
  return std::log(total / kLifted<A>);
}

// The exponentials wait in `buffer`, which may be out itself.
template <bool streams, class A>
void softmax_row(A* out, const A* x, int64_t n, A* buffer, const A* next) {
  const A shift = row_maximum(x, n);
  const A total = sum_vectors<A>(n, [&](int64_t i, auto part) {
    fetch_ahead(next, i);
    const Vector<A> e = lifted_exponential(part.load(x + i) - shift);
    part.store(buffer + i, e);
    return e;
  });
  const A scale = 1 / total;
  write_row<streams>(
      out, n, [&](int64_t i, auto part) { part.store(out + i, part.load(buffer + i) * scale); });
}

// How far the mean lies below `shift`: in blocks, because the rounding errors of one long sum would
// show in a loss.
template <class A>
A mean_below(const A* x, A shift, int64_t n) {
  constexpr int64_t kBlock = 4096;
  A total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = n - begin < kBlock ? n - begin : kBlock;
    total += sum_vectors<A>(size,
                            [&](int64_t i, auto part) { return shift - part.load(x + begin + i); });
  }
  return total / static_cast<A>(n);
}

// The logarithm of a sum of exponentials in two parts: that of the differences within a row, and
// the row's shift. Far from 0 the sum of both has lost digits.
template <class A>
struct LogSumExp {
  A shift, rest;
  A value() const { return shift + rest; }
};

template <class A>
LogSumExp<A> log_sum_exp(const A* x, int64_t n, const A* next) {
  const A top = row_maximum(x, n);
  if (std::isfinite(top)) return {top, log_sum_of_exponentials(x, top, n, next)};
  // With an infinite maximum x - top would be NaN, where the answer is that infinity.
  return {0, std::log(sum_vectors<A>(
                 n, [&](int64_t i, auto part) { return exponential(part.load(x + i)); }))};
}

template <bool streams, class A>
void log_softmax_row(A* out, const A* x, int64_t n, const A* next) {
  const A shift = row_maximum(x, n);
  const A logarithm = log_sum_of_exponentials(x, shift, n, next);
  write_row<streams>(out, n, [&](int64_t i, auto part) {
    part.store(out + i, (part.load(x + i) - shift) - logarithm);
  });
}

template <bool streams, class A>
void softmax_grad_row(A* dx, const A* out, const A* g, int64_t n) {
  const A dot = sum_vectors<A>(
      n, [&](int64_t i, auto part) { return part.load(out + i) * part.load(g + i); });
  write_row<streams>(dx, n, [&](int64_t i, auto part) {
    part.store(dx + i, part.load(out + i) * (part.load(g + i) - dot));
  });
}

template <bool streams, class A>
void log_softmax_grad_row(A* dx, const A* out, const A* g, int64_t n) {
  const A total = sum_vectors<A>(n, [&](int64_t i, auto part) { return part.load(g + i); });
  write_row<streams>(dx, n, [&](int64_t i, auto part) {
    part.store(dx + i, part.load(g + i) - exponential(part.load(out + i)) * total);
  });
}

// ---- where rows lie

struct Rows {
  Axes outer;  // all axes but the last
  int64_t stride, size;
  DType dtype;
  bool direct;
};

template <class A>
Rows rows_of(const Operand& x) {
  Rows rows;
  rows.outer.count = 0;
  for (int i = 0; i + 1 < x.ndim; ++i) rows.outer.add(x.shape[i], x.strides[i], 0);
  rows.outer.merge();
  rows.stride = x.ndim && x.shape[x.ndim - 1] > 1 ? x.strides[x.ndim - 1] : 1;
  rows.size = kItemSize[x.dtype];
  rows.dtype = x.dtype;
  rows.direct = rows.stride == 1 && x.dtype == (std::is_same_v<A, float> ? kFloat32 : kFloat64);
  return rows;
}

template <class A>
const A* fetch(const Rows& rows, Read<A> read, const void* x, int64_t row, int64_t n, A* buffer) {
  const void* from = byte_offset(x, rows.outer.at(row).x * rows.size);
  if (rows.direct) return as<A>(from);
  read(buffer, from, n, rows.stride);
  return buffer;
}

template <class A>
struct State {
  Rows x, g, out;
  Read<A> read_x, read_g;
  Write<A> write;
  int32_t kind;
  int64_t rows, n, tasks, rows_per_task, buffer;  // buffer: elements of a row, padded
  int team;
  bool streams;  // results are stored past the caches
  // cross entropy
  ReadIndex read_label;
  int64_t label_stride, label_size, ignore;
  double smoothing;
};

constexpr int64_t kTask = 65536;  // elements of several rows

template <class A>
A* row_buffer(const State<A>& s, void* workspace, int thread, int which) {
  return as<A>(workspace) + (thread * 3 + which) * s.buffer;
}

template <class A>
void choose_tasks(State<A>& s, Plan* plan, const Operand& x) {
  s.n = x.ndim ? x.shape[x.ndim - 1] : 1;
  s.rows = s.n ? element_count(x) / s.n : 0;
  s.rows_per_task = s.n >= kTask ? 1 : kTask / (s.n ? s.n : 1);
  if (s.rows_per_task > (s.rows + 3) / 4) s.rows_per_task = (s.rows + 3) / 4;
  if (s.rows_per_task < 1) s.rows_per_task = 1;
  s.tasks = (s.rows + s.rows_per_task - 1) / s.rows_per_task;
  const int64_t item = sizeof(A);
  s.team = team_size(s.tasks, product({s.rows, s.n, 4}));  // an exponential: several additions
  s.buffer = round_up(s.n, 64) + 64;
  s.streams = s.out.direct && s.n >= kLongRow && product({s.rows, s.n, item}) >= streaming_bytes();
  plan->workspace = product({s.team, 3, s.buffer, item});
}

// body(row, thread) for all rows; the last one first if the caches may still hold it.
template <class A, class Body>
void for_rows(const State<A>& s, bool backwards, const Body& body) {
  run_spans(s.team, s.tasks, backwards, [&](int64_t task, int thread) {
    const int64_t first = task * s.rows_per_task;
    const int64_t end = first + s.rows_per_task < s.rows ? first + s.rows_per_task : s.rows;
    for (int64_t i = 0; i < end - first; ++i) body(backwards ? end - 1 - i : first + i, thread);
    if (s.streams) end_streams();
  });
}

// The row after this one, if the same thread will read it where it lies.
template <class A>
const A* next_row(const State<A>& s, const void* x, int64_t row) {
  if (!s.x.direct || row + 1 >= s.rows || (row + 1) % s.rows_per_task == 0) return nullptr;
  return as<A>(byte_offset(x, s.x.outer.at(row + 1).x * s.x.size));
}

// ---- softmax and its gradient

template <bool streams, class A>
int64_t run_softmax(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  for_rows(s, false, [&](int64_t row, int thread) {
    const A* x = fetch(s.x, s.read_x, buffers[1], row, s.n, row_buffer(s, workspace, thread, 0));
    const A* next = next_row(s, buffers[1], row);
    if (s.kind == kLogSumExp) {
      const A result = log_sum_exp(x, s.n, next).value();
      return s.write(byte_offset(buffers[0], row * s.out.size), &result, 1);
    }
    void* to = byte_offset(buffers[0], row * s.n * s.out.size);
    A* buffer = row_buffer(s, workspace, thread, 1);
    A* out = s.out.direct ? as<A>(to) : buffer;
    if (s.kind == kSoftmax)
      softmax_row<streams>(out, x, s.n, streams ? buffer : out, next);
    else
      log_softmax_row<streams>(out, x, s.n, next);
    if (!s.out.direct) s.write(to, out, s.n);
  });
  return -1;
}

template <bool streams, class A>
int64_t run_softmax_grad(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  for_rows(s, false, [&](int64_t row, int thread) {
    const A* x = fetch(s.x, s.read_x, buffers[1], row, s.n, row_buffer(s, workspace, thread, 0));
    const A* g = fetch(s.g, s.read_g, buffers[2], row, s.n, row_buffer(s, workspace, thread, 1));
    void* to = byte_offset(buffers[0], row * s.n * s.out.size);
    A* dx = s.out.direct ? as<A>(to) : row_buffer(s, workspace, thread, 2);
    if (s.kind == kSoftmax)
      softmax_grad_row<streams>(dx, x, g, s.n);
    else
      log_softmax_grad_row<streams>(dx, x, g, s.n);
    if (!s.out.direct) s.write(to, dx, s.n);
  });
  return -1;
}

template <class A>
const char* plan_softmax_in(Plan* plan, int32_t kind, const Operand& out, const Operand& x,
                            const Operand* g) {
  State<A>& s = state_of<State<A>>(plan);
  s.kind = kind;
  s.x = rows_of<A>(x);
  s.out = rows_of<A>(out);
  s.g = rows_of<A>(g ? *g : x);
  s.read_x = reader<A>(x.dtype);
  s.read_g = reader<A>(s.g.dtype);
  s.write = writer<A>(out.dtype);
  if (!s.read_x || !s.read_g || !s.write) return "softmax: unsupported combination of dtypes";
  choose_tasks(s, plan, x);
  if (kind == kLogSumExp) s.streams = false;
  if (g)
    plan->run = s.streams ? run_softmax_grad<true, A> : run_softmax_grad<false, A>;
  else
    plan->run = s.streams ? run_softmax<true, A> : run_softmax<false, A>;
  return nullptr;
}

// ---- cross entropy and its gradient

// The position of the first label that is neither a class nor the ignored one, or -1.
template <class A>
int64_t first_bad_label(const State<A>& s, const void* labels) {
  for (int64_t row = 0; row < s.rows; ++row) {
    const int64_t label = s.read_label(labels, row * s.label_stride);
    if (label != s.ignore && (label < 0 || label >= s.n)) return row;
  }
  return -1;
}

template <class A>
int64_t run_cross_entropy(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  const int64_t bad = first_bad_label(s, buffers[4]);
  if (bad >= 0) return bad;
  const A smoothing = static_cast<A>(s.smoothing);
  for_rows(s, false, [&](int64_t row, int thread) {
    const A* x = fetch(s.x, s.read_x, buffers[3], row, s.n, row_buffer(s, workspace, thread, 0));
    const int64_t label = s.read_label(buffers[4], row * s.label_stride);
    const auto [shift, rest] = log_sum_exp(x, s.n, next_row(s, buffers[3], row));
    as<A>(buffers[1])[row] = std::isnan(rest) ? 0 : shift;  // the maximum passes over NaN
    as<A>(buffers[2])[row] = rest;
    A loss = 0;
    if (label != s.ignore) loss = rest + (shift - x[label]);
    if (label != s.ignore && smoothing > 0)
      loss = (1 - smoothing) * loss + smoothing * (rest + mean_below(x, shift, s.n));
    as<A>(buffers[0])[row] = loss;
  });
  return -1;
}

// dx of a row whose label's part of the target is `certain`, that of every class `uniform`.
template <bool streams, class A>
void cross_entropy_grad_row(A* dx, const A* x, int64_t n, A g, LogSumExp<A> lse, A uniform,
                            A certain, int64_t label) {
  const auto gradient = [&](const Vector<A>& logit) {
    return g * (lifted_exponential((logit - lse.shift) - lse.rest) * (1 / kLifted<A>)-uniform);
  };
  const A at_label = gradient(splat(x[label]))[0] - g * certain;  // dx may be x
  write_row<streams>(dx, n,
                     [&](int64_t i, auto part) { part.store(dx + i, gradient(part.load(x + i))); });
  dx[label] = at_label;  // not -=: it has left the cache
}

// The forward pass has read the last rows last: this begins with them.
template <bool streams, class A>
int64_t run_cross_entropy_grad(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  const int64_t bad = first_bad_label(s, buffers[3]);
  if (bad >= 0) return bad;
  const A smoothing = static_cast<A>(s.smoothing), uniform = smoothing / static_cast<A>(s.n);
  for_rows(s, true, [&](int64_t row, int thread) {
    const A* x = fetch(s.x, s.read_x, buffers[2], row, s.n, row_buffer(s, workspace, thread, 0));
    const int64_t label = s.read_label(buffers[3], row * s.label_stride);
    void* to = byte_offset(buffers[0], row * s.n * s.out.size);
    A* dx = s.out.direct ? as<A>(to) : row_buffer(s, workspace, thread, 1);
    const A g = as<A>(buffers[1])[row];
    const LogSumExp<A> lse{as<A>(buffers[4])[row], as<A>(buffers[5])[row]};
    if (label == s.ignore)
      std::memset(dx, 0, s.n * sizeof(A));
    else
      cross_entropy_grad_row<streams>(dx, x, s.n, g, lse, uniform, 1 - smoothing, label);
    if (!s.out.direct) s.write(to, dx, s.n);
  });
  return -1;
}

template <class A>
const char* plan_cross_entropy_in(Plan* plan, bool gradient, const Operand& logits,
                                  const Operand& labels, int64_t ignore, double smoothing) {
  State<A>& s = state_of<State<A>>(plan);
  if (logits.ndim != 2 || labels.ndim != 1) return "cross entropy: expected [n, classes] and [n]";
  s.x = rows_of<A>(logits);
  s.out = s.x;
  s.out.direct = logits.dtype == (std::is_same_v<A, float> ? kFloat32 : kFloat64);
  s.read_x = reader<A>(logits.dtype);
  s.write = writer<A>(logits.dtype);
  s.read_label = index_reader(labels.dtype);
  s.label_stride = labels.strides[0];
  s.ignore = ignore;
  s.smoothing = smoothing;
  if (!s.read_x || !s.read_label) return "cross entropy: unsupported combination of dtypes";
  if (logits.shape[1] == 0) return "cross entropy: no classes";
  choose_tasks(s, plan, logits);
  if (gradient)
    plan->run = s.streams ? run_cross_entropy_grad<true, A> : run_cross_entropy_grad<false, A>;
  else
    plan->run = run_cross_entropy<A>;
  return nullptr;
}

}  // namespace

const char* plan_softmax(Plan* plan, int32_t kind, const Operand& out, const Operand& x) {
  if (has_columns(kind, out, x)) return plan_softmax_columns(plan, kind, out, x, nullptr);
  return x.dtype == kFloat64 ? plan_softmax_in<double>(plan, kind, out, x, nullptr)
                             : plan_softmax_in<float>(plan, kind, out, x, nullptr);
}

const char* plan_softmax_grad(Plan* plan, int32_t kind, const Operand& dx, const Operand& out,
                              const Operand& g) {
  if (has_columns(kind, dx, out)) return plan_softmax_columns(plan, kind, dx, out, &g);
  return out.dtype == kFloat64 ? plan_softmax_in<double>(plan, kind, dx, out, &g)
                               : plan_softmax_in<float>(plan, kind, dx, out, &g);
}

const char* plan_cross_entropy(Plan* plan, const Operand& logits, const Operand& labels,
                               int64_t ignore, double smoothing) {
  return logits.dtype == kFloat64
             ? plan_cross_entropy_in<double>(plan, false, logits, labels, ignore, smoothing)
             : plan_cross_entropy_in<float>(plan, false, logits, labels, ignore, smoothing);
}

const char* plan_cross_entropy_grad(Plan* plan, const Operand& logits, const Operand& labels,
                                    int64_t ignore, double smoothing) {
  return logits.dtype == kFloat64
             ? plan_cross_entropy_in<double>(plan, true, logits, labels, ignore, smoothing)
             : plan_cross_entropy_in<float>(plan, true, logits, labels, ignore, smoothing);
}

}  // namespace needle::NEEDLE_ISA
