// Layer norm and RMS norm: a row at a time, while it is in the cache. The gradients of weight and
// bias are summed over fixed blocks of rows, then over the blocks as a tree, so that they do not
// depend on the number of threads. float16 and bfloat16 rows pass through a buffer of floats.
#include <cmath>

#include "axes.h"
#include "convert.h"
#include "kernels_linear.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kMinBlock = 16, kMaxBlocks = 64;  // rows in a block, blocks

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
  A total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < d; ++i) total += x[i];
  return total / static_cast<A>(d);
}

template <class A>
A mean_square(const A* x, A mean, int64_t d) {
  A total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < d; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total / static_cast<A>(d);
}

template <class A>
int64_t run_forward(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  const A* weight = fetch_parameter(s, buffers[4], A(1), shared_row(s, workspace, 0));
  const A* bias = fetch_parameter(s, buffers[5], A(0), shared_row(s, workspace, 1));
  run_tasks(s.team, s.blocks, [&](int64_t block, int thread) {
    for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
      const A* x = fetch(s, buffers[3], row, thread_row(s, workspace, thread, 0));
      void* to = byte_offset(buffers[0], row * s.d * s.item_size);
      A* out = s.direct ? as<A>(to) : thread_row(s, workspace, thread, 1);
      const A mean = s.kind == 0 ? mean_of(x, s.d) : A(0);
      const A rstd = 1 / std::sqrt(mean_square(x, mean, s.d) + s.eps);
#pragma omp simd
      for (int64_t i = 0; i < s.d; ++i) out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
      if (!s.direct) s.write(to, out, s.d);
      if (buffers[1]) as<A>(buffers[1])[row] = mean;
      as<A>(buffers[2])[row] = rstd;
    }
  });
  return -1;
}

// ---- backward

// dx of one row; adds the row's part to dweight and dbias.
template <class A>
void gradient_row(const State<A>& s, A* dx, A* __restrict dweight, A* __restrict dbias, const A* g,
                  const A* x, const A* weight, A mean, A rstd) {
  A along_mean = 0, along_x = 0;
#pragma omp simd reduction(+ : along_mean, along_x)
  for (int64_t i = 0; i < s.d; ++i) {
    const A scaled = g[i] * weight[i];
    along_mean += scaled;
    along_x += scaled * (x[i] - mean);
  }
  along_mean = s.kind == 0 ? along_mean / static_cast<A>(s.d) : A(0);
  along_x *= rstd / static_cast<A>(s.d);
#pragma omp simd
  for (int64_t i = 0; i < s.d; ++i) {
    const A normal = (x[i] - mean) * rstd, gradient = g[i];
    dweight[i] += gradient * normal;
    dbias[i] += gradient;
    dx[i] = rstd * (gradient * weight[i] - along_mean - normal * along_x);
  }
}

// Sums rows 2 * i + which over the blocks i, as a tree, and writes the result.
template <class A>
void sum_blocks(const State<A>& s, A* parts, int which, void* out) {
  if (!out) return;
  for (int64_t step = 1; step < s.blocks; step *= 2) {
    for (int64_t i = 0; i + step < s.blocks; i += 2 * step) {
      A* total = parts + (2 * i + which) * s.buffer;
      const A* other = parts + (2 * (i + step) + which) * s.buffer;
      for (int64_t j = 0; j < s.d; ++j) total[j] += other[j];
    }
  }
  s.write(out, parts + which * s.buffer, s.d);
}

template <class A>
void gradient_block(const State<A>& s, void* const* buffers, void* workspace, const A* weight,
                    int64_t block, int thread) {
  A* dweight = shared_row(s, workspace, 2 + 2 * block);
  A* dbias = shared_row(s, workspace, 3 + 2 * block);
  for (int64_t i = 0; i < s.d; ++i) dweight[i] = dbias[i] = 0;
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const A* g = fetch(s, buffers[3], row, thread_row(s, workspace, thread, 0));
    const A* x = fetch(s, buffers[4], row, thread_row(s, workspace, thread, 1));
    void* to = byte_offset(buffers[0], row * s.d * s.item_size);
    A* dx = s.direct ? as<A>(to) : thread_row(s, workspace, thread, 2);
    const A mean = s.kind == 0 ? as<A>(buffers[6])[row] : A(0);
    gradient_row(s, dx, dweight, dbias, g, x, weight, mean, as<A>(buffers[7])[row]);
    if (!s.direct) s.write(to, dx, s.d);
  }
}

template <class A>
int64_t run_backward(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  const A* weight = fetch_parameter(s, buffers[5], A(1), shared_row(s, workspace, 0));
  run_tasks(s.team, s.blocks, [&](int64_t block, int thread) {
    gradient_block(s, buffers, workspace, weight, block, thread);
  });
  sum_blocks(s, shared_row(s, workspace, 2), 0, buffers[1]);
  sum_blocks(s, shared_row(s, workspace, 2), 1, buffers[2]);
  return -1;
}

template <class A>
const char* plan_in(Plan* plan, int32_t kind, const Operand& x, double eps, bool backward) {
  State<A>& s = state_of<State<A>>(plan);
  s.read = reader<A>(x.dtype);
  s.write = writer<A>(x.dtype);
  if (!s.read) return "layer norm: wants a floating dtype";
  if (x.ndim < 1 || !is_dense(x)) return "layer norm: wants dense [rows, d]";
  s.kind = kind;
  s.d = x.shape[x.ndim - 1];
  s.rows = s.d ? element_count(x) / s.d : 0;
  s.item_size = kItemSize[x.dtype];
  s.direct = s.item_size == sizeof(A);
  s.eps = static_cast<A>(eps);
  s.block = (s.rows + kMaxBlocks - 1) / kMaxBlocks;
  if (s.block < kMinBlock) s.block = kMinBlock;
  s.blocks = (s.rows + s.block - 1) / s.block;
  if (s.blocks < 1) s.blocks = 1;  // with no rows the gradients are zero
  s.buffer = round_up(s.d, 16) + 16;
  s.team = team_size(s.blocks, s.rows * s.d);
  plan->run = backward ? run_backward<A> : run_forward<A>;
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
