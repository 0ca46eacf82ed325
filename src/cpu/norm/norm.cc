// Layer norm and RMS norm: a row at a time, while it is in the cache. The gradients of weight and
// bias are summed over fixed blocks of rows, then over the blocks as a tree, so that they do not
// depend on the number of threads. float16 and bfloat16 rows pass through a buffer of floats.
#include <algorithm>
#include <cmath>

#include "base/axes.h"
#include "base/convert.h"
#include "isa/lanes.h"
#include "base/table.h"
#include "base/spans.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kMinBlock = 16, kMaxBlocks = 64;  // rows in a block, blocks
constexpr int64_t kRowsAhead = 4;                   // are fetched while one is written
constexpr int64_t kColumns = 256;                   // of parts that are summed together

template <class A>
struct State {
  int32_t kind;  // 0: layer norm, 1: RMS norm
  int64_t rows, d, item_size, blocks, block;
  int64_t buffer;  // elements of a padded row
  A eps;
  bool direct;  // rows are of type A already
  int team;
  Read<A> read;
  Write<A> write;
};

// Buffers: first those of each thread (kPerThread rows), then weight and bias, then two rows per
// block of partial sums.
constexpr int kPerThread = 3;

template <class A>
A* thread_row(const State<A>& s, void* workspace, int thread, int which) {
  return as<A>(workspace) + (thread * kPerThread + which) * s.buffer;
}

template <class A>
A* shared_row(const State<A>& s, void* workspace, int64_t which) {
  return as<A>(workspace) + (s.team * kPerThread + which) * s.buffer;
}

template <class A>
const A* fetch(const State<A>& s, const void* x, int64_t row, A* buffer) {
  const void* from = byte_offset(x, row * s.d * s.item_size);
  if (s.direct) return as<A>(from);
  s.read(buffer, from, s.d, 1);
  return buffer;
}

// weight or bias as numbers to compute with; `missing` in place of a null pointer.
template <class A>
const A* fetch_parameter(const State<A>& s, const void* x, A missing, A* buffer) {
  if (x) return fetch(s, x, 0, buffer);
  for (int64_t i = 0; i < s.d; ++i) buffer[i] = missing;
  return buffer;
}

template <class A>
int64_t first_row(const State<A>& s, int64_t block) {
  const int64_t row = block * s.block;
  return row < s.rows ? row : s.rows;
}

// ---- forward

template <class A>
A mean_of(const A* x, int64_t d) {
  return sum_vectors<A>(d, [&](int64_t i, auto part) { return part.load(x + i); }) /
         static_cast<A>(d);
}

template <class A>
A mean_square(const A* x, A mean, int64_t d) {
  const auto square = [&](int64_t i, auto part) {
    const Vector<A> distance = part.load(x + i) - mean;
    return distance * distance;
  };
  return sum_vectors<A>(d, square) / static_cast<A>(d);
}

// The mean and 1 / sqrt(variance + eps) of a row whose squares, or whose sum, leave the range of A:
// of its elements times a power of two, in double.
template <class A>
void far_statistics(const A* x, int64_t d, bool centred, A eps, A& mean, A& rstd) {
  A most = 0;
  for (int64_t i = 0; i < d; ++i) most = std::max(most, std::fabs(x[i]));
  if (!(most > 0 && most < INFINITY)) return;
  const double scale = std::ldexp(1.0, -std::ilogb(most));
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < d && centred; ++i) sum += x[i] * scale;
  const double middle = sum / static_cast<double>(d);
  for (int64_t i = 0; i < d; ++i) {
    const double distance = x[i] * scale - middle;
    squares += distance * distance;
  }
  mean = static_cast<A>(middle / scale);
  const double var = squares / static_cast<double>(d) + eps * scale * scale;
  rstd = static_cast<A>(scale / std::sqrt(var));
}

template <bool streams, class A>
int64_t run_forward(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  const A* weight = fetch_parameter(s, buffers[4], A(1), shared_row(s, workspace, 0));
  const A* bias = fetch_parameter(s, buffers[5], A(0), shared_row(s, workspace, 1));
  run_spans(s.team, s.blocks, false, [&](int64_t block, int thread) {
    for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
      const A* x = fetch(s, buffers[3], row, thread_row(s, workspace, thread, 0));
      void* to = byte_offset(buffers[0], row * s.d * s.item_size);
      A* out = s.direct ? as<A>(to) : thread_row(s, workspace, thread, 1);
      A mean = s.kind == kLayerNorm ? mean_of(x, s.d) : A(0);
      const A var = mean_square(x, mean, s.d);
      A rstd = 1 / std::sqrt(var + s.eps);
      if (!(var < INFINITY)) far_statistics(x, s.d, s.kind == kLayerNorm, s.eps, mean, rstd);
      const A* later = streams && row + kRowsAhead < s.rows ? x + kRowsAhead * s.d : nullptr;
      write_row<streams>(out, s.d, [=](int64_t i, auto part) {
        fetch_ahead(later, i);
        const Vector<A> normal = (part.load(x + i) - mean) * rstd;
        part.store(out + i, normal * part.load(weight + i) + part.load(bias + i));
      });
      if (!s.direct) s.write(to, out, s.d);
      if (buffers[1]) as<A>(buffers[1])[row] = mean;
      as<A>(buffers[2])[row] = rstd;
    }
    if (streams) end_streams();
  });
  return -1;
}

// ---- backward

template <class A>
struct Row {
  const A *g, *x;
  A *dx, mean, rstd;
};

template <class A>
struct Sums {
  A along_mean, along_x;  // of g * weight, and of that times (x - mean)
};

// The sums of a row, whose parts of dweight and dbias are added in the same go. The next row's g
// comes from memory meanwhile. (Inline: to pass a row's numbers in memory waits for the stores of
// the row before, 100 cycles.)
template <class A>
inline __attribute__((always_inline)) Sums<A> add_sums(const Row<A>& r, A* dweight, A* dbias,
                                                       const A* weight, const A* next, int64_t d) {
  const bool past = reads_past_caches();
  Vector<A> along_mean[2] = {}, along_x[2] = {};
  const auto add = [&](int64_t i, int which, auto part) {
    past ? fetch_past(next, i) : fetch_ahead(next, i);
    const Vector<A> g = part.load(r.g + i);  // a lane that does not exist adds 0
    const Vector<A> scale = part.load(weight + i), along = g * (part.load(r.x + i) - r.mean);
    along_mean[which] += g * scale;
    along_x[which] += along * scale;
    const Whole<A> whole;  // the buffers of sums are padded
    whole.store(dweight + i, whole.load(dweight + i) + part.keep(along * r.rstd));
    whole.store(dbias + i, whole.load(dbias + i) + g);
  };
  constexpr int64_t kWidth = kLanes<A>;
  int64_t i = 0;
  for (; i + 2 * kWidth <= d; i += 2 * kWidth) {
    add(i, 0, Whole<A>());
    add(i + kWidth, 1, Whole<A>());
  }
  for (; i + kWidth <= d; i += kWidth) add(i, 0, Whole<A>());
  if (i < d) add(i, 1, Tail<A>(d - i));
  return {add_lanes<A>(along_mean[0] + along_mean[1]), add_lanes<A>(along_x[0] + along_x[1])};
}

// dx = rstd * (g * weight - along_mean - normal * along_x), of the sums' means.
template <bool streams, class A>
inline __attribute__((always_inline)) void write_gradient(const Row<A>& r, const Sums<A>& sums,
                                                          const A* weight, const A* next,
                                                          int64_t d) {
  const A along_mean = sums.along_mean / static_cast<A>(d);
  const A along_x = sums.along_x * r.rstd / static_cast<A>(d);
  write_row<streams>(r.dx, d, [=](int64_t i, auto part) {
    fetch_ahead(next, i);
    const Vector<A> normal = (part.load(r.x + i) - r.mean) * r.rstd;
    const Vector<A> scaled = part.load(r.g + i) * part.load(weight + i);
    part.store(r.dx + i, r.rstd * (scaled - (along_mean + normal * along_x)));
  });
}

// One row at a time: four at once, which would add to dweight and dbias once, take longer where
// they come from memory, because reading and writing then alternate less often.
template <bool streams, class A>
void gradient_block(const State<A>& s, void* const* buffers, void* workspace, const A* weight,
                    int64_t block, int thread) {
  A* dweight = shared_row(s, workspace, 2 + 2 * block);
  A* dbias = shared_row(s, workspace, 3 + 2 * block);
  for (int64_t i = 0; i < s.buffer; ++i) dweight[i] = dbias[i] = 0;
  const int64_t end = first_row(s, block + 1);
  for (int64_t i = first_row(s, block); i < end; ++i) {
    Row<A> row;
    row.g = fetch(s, buffers[3], i, thread_row(s, workspace, thread, 0));
    row.x = fetch(s, buffers[4], i, thread_row(s, workspace, thread, 1));
    void* to = byte_offset(buffers[0], i * s.d * s.item_size);
    row.dx = s.direct ? as<A>(to) : thread_row(s, workspace, thread, 2);
    row.mean = s.kind == kLayerNorm ? as<A>(buffers[6])[i] : A(0);
    row.rstd = as<A>(buffers[7])[i];
    const bool more = s.direct && i + 1 < end;
    Sums<A> sums = add_sums(row, dweight, dbias, weight, more ? row.g + s.d : nullptr, s.d);
    if (s.kind != 0) sums.along_mean = 0;
    write_gradient<streams>(row, sums, weight, more ? row.x + s.d : nullptr, s.d);
    if (!s.direct) s.write(to, row.dx, s.d);
  }
  if (streams) end_streams();
}

// Sums the blocks' parts of dweight and dbias as a tree, for the columns from `first` on.
template <class A>
void sum_blocks(const State<A>& s, A* parts, int64_t first) {
  const int64_t end = first + kColumns < s.d ? first + kColumns : s.d;
  for (int64_t step = 1; step < s.blocks; step *= 2) {
    for (int64_t i = 0; i + step < s.blocks; i += 2 * step) {
      for (int which = 0; which < 2; ++which) {
        A* total = parts + (2 * i + which) * s.buffer;
        const A* other = parts + (2 * (i + step) + which) * s.buffer;
        for (int64_t j = first; j < end; ++j) total[j] += other[j];
      }
    }
  }
}

// The forward pass has read the last blocks last: this begins with them.
template <bool streams, class A>
int64_t run_backward(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  const A* weight = fetch_parameter(s, buffers[5], A(1), shared_row(s, workspace, 0));
  run_spans(s.team, s.blocks, true, [&](int64_t block, int thread) {
    gradient_block<streams>(s, buffers, workspace, weight, block, thread);
  });
  A* parts = shared_row(s, workspace, 2);
  const int64_t strips = (s.d + kColumns - 1) / kColumns;
  run_tasks(team_size(strips, s.d * s.blocks), strips,
            [&](int64_t strip, int) { sum_blocks(s, parts, strip * kColumns); });
  for (int which = 0; which < 2; ++which)
    if (buffers[1 + which]) s.write(buffers[1 + which], parts + which * s.buffer, s.d);
  return -1;
}

template <class A>
const char* plan_in(Plan* plan, int32_t kind, const Operand& x, double eps, bool backward) {
  State<A>& s = state_of<State<A>>(plan);
  s.read = reader<A>(x.dtype);
  s.write = writer<A>(x.dtype);
  if (!s.read) return "layer norm: expected a floating dtype";
  if (x.ndim < 1 || !is_dense(x)) return "layer norm: expected dense [rows, d]";
  s.kind = kind;
  s.d = x.shape[x.ndim - 1];
  s.rows = s.d ? element_count(x) / s.d : 0;
  s.item_size = kItemSize[x.dtype];
  s.direct = s.item_size == sizeof(A);
  s.eps = static_cast<A>(eps);
  s.block = (s.rows + kMaxBlocks - 1) / kMaxBlocks;
  if (s.block < kMinBlock) s.block = kMinBlock;
  s.blocks = (s.rows + s.block - 1) / s.block;
  if (s.blocks < 1) s.blocks = 1;     // with no rows the gradients are zero
  s.buffer = round_up(s.d, 16) + 32;  // a vector may begin at any element
  s.team = team_size(s.blocks, s.rows * s.d);
  const bool streams = s.direct && s.d >= kLongRow &&
                       s.rows * s.d * static_cast<int64_t>(sizeof(A)) >= streaming_bytes();
  if (backward)
    plan->run = streams ? run_backward<true, A> : run_backward<false, A>;
  else
    plan->run = streams ? run_forward<true, A> : run_forward<false, A>;
  const int64_t shared = backward ? 2 + 2 * s.blocks : 2;
  plan->workspace = (s.team * kPerThread + shared) * s.buffer * static_cast<int64_t>(sizeof(A));
  return nullptr;
}

}  // namespace

const char* plan_layer_norm(Plan* plan, int32_t kind, const Operand& x, double eps) {
  return x.dtype == kFloat64 ? plan_in<double>(plan, kind, x, eps, false)
                             : plan_in<float>(plan, kind, x, eps, false);
}

const char* plan_layer_norm_grad(Plan* plan, int32_t kind, const Operand& x) {
  return x.dtype == kFloat64 ? plan_in<double>(plan, kind, x, 0, true)
                             : plan_in<float>(plan, kind, x, 0, true);
}

}  // namespace needle::NEEDLE_ISA
