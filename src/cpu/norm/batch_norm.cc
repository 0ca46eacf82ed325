// Batch norm in training mode: statistics of the columns of dense [rows, c]. Columns are summed
// over fixed blocks of rows, then over the blocks as a tree, so that no result depends on the
// number of threads; a second pass over the memory writes the result.
#include <cmath>

#include "base/axes.h"
#include "base/convert.h"
#include "base/table.h"
#include "base/spans.h"
#include "reduce/statistics.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kBlockElements = 8192, kMaxBlocks = 256;

template <class A>
struct State {
  int64_t rows, c, item_size, block, blocks;
  int64_t buffer;  // elements of a padded row
  A eps;
  bool direct;  // rows are of type A already
  int team;
  Read<A> read;
  Write<A> write;
};

// Workspace: two rows for each block, four shared ones, two for each thread.
template <class A>
A* block_row(const State<A>& s, void* workspace, int64_t block, int which) {
  return as<A>(workspace) + (2 * block + which) * s.buffer;
}
template <class A>
A* shared_row(const State<A>& s, void* workspace, int which) {
  return as<A>(workspace) + (2 * s.blocks + which) * s.buffer;
}
template <class A>
A* thread_row(const State<A>& s, void* workspace, int thread, int which) {
  return as<A>(workspace) + (2 * s.blocks + 4 + 2 * thread + which) * s.buffer;
}

template <class A>
int64_t first_row(const State<A>& s, int64_t block) {
  const int64_t row = block * s.block;
  return row < s.rows ? row : s.rows;
}

template <class A>
const A* fetch(const State<A>& s, const void* x, int64_t row, A* buffer) {
  const void* from = byte_offset(x, row * s.c * s.item_size);
  if (s.direct) return as<A>(from);
  s.read(buffer, from, s.c, 1);
  return buffer;
}

// ---- forward

// Mean and sum of squared distances of the block's rows. Two passes, because they are exact where
// the sum of squares would cancel; the second one finds the rows in the cache.
template <class A>
void block_statistics(const State<A>& s, const void* x, int64_t block, void* workspace,
                      int thread) {
  A* __restrict mean = block_row(s, workspace, block, 0);
  A* __restrict square = block_row(s, workspace, block, 1);
  A* buffer = thread_row(s, workspace, thread, 0);
  const int64_t begin = first_row(s, block), end = first_row(s, block + 1);
  for (int64_t j = 0; j < s.c; ++j) mean[j] = square[j] = 0;
  for (int64_t row = begin; row < end; ++row) {
    const A* from = fetch(s, x, row, buffer);
    for (int64_t j = 0; j < s.c; ++j) mean[j] += from[j];
  }
  const A scale = A(1) / static_cast<A>(end - begin);
  for (int64_t j = 0; j < s.c; ++j) mean[j] *= scale;
  for (int64_t row = begin; row < end; ++row) {
    const A* from = fetch(s, x, row, buffer);
    for (int64_t j = 0; j < s.c; ++j) square[j] += (from[j] - mean[j]) * (from[j] - mean[j]);
  }
}

template <class A>
void join_blocks(const State<A>& s, void* workspace, int64_t left, int64_t right, int64_t end) {
  const auto row = [&](int64_t block, int which) { return block_row(s, workspace, block, which); };
  join_statistics(row(left, 0), row(left, 1), row(right, 0), row(right, 1),
                  static_cast<A>(first_row(s, right) - first_row(s, left)),
                  static_cast<A>(first_row(s, end) - first_row(s, right)), s.c);
}

template <class A>
void normalise_block(const State<A>& s, void* const* buffers, int64_t block, void* workspace,
                     int thread) {
  const A* mean = block_row(s, workspace, 0, 0);
  const A* scale = shared_row(s, workspace, 2);
  const A* bias = shared_row(s, workspace, 1);
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const A* x = fetch(s, buffers[3], row, thread_row(s, workspace, thread, 0));
    void* to = byte_offset(buffers[0], row * s.c * s.item_size);
    A* out = s.direct ? as<A>(to) : thread_row(s, workspace, thread, 1);
#pragma omp simd
    for (int64_t j = 0; j < s.c; ++j) out[j] = (x[j] - mean[j]) * scale[j] + bias[j];
    if (!s.direct) s.write(to, out, s.c);
  }
}

template <class A>
int64_t run_forward(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  A* mean_out = as<A>(buffers[1]);
  A* var_out = as<A>(buffers[2]);
  if (s.rows == 0) {
    for (int64_t j = 0; j < s.c; ++j) mean_out[j] = var_out[j] = std::nan("");
    return -1;
  }
  run_spans(s.team, s.blocks, false, [&](int64_t block, int thread) {
    block_statistics(s, buffers[3], block, workspace, thread);
  });
  for (int64_t step = 1; step < s.blocks; step *= 2)
    for (int64_t i = 0; i + step < s.blocks; i += 2 * step)
      join_blocks(s, workspace, i, i + step, i + 2 * step);
  const A* mean = block_row(s, workspace, 0, 0);
  const A* square = block_row(s, workspace, 0, 1);
  A* weight = shared_row(s, workspace, 0);
  A* scale = shared_row(s, workspace, 2);
  s.read(weight, buffers[4], s.c, 1);
  s.read(shared_row(s, workspace, 1), buffers[5], s.c, 1);
  for (int64_t j = 0; j < s.c; ++j) {
    mean_out[j] = mean[j];
    var_out[j] = square[j] / static_cast<A>(s.rows);
    scale[j] = weight[j] / std::sqrt(var_out[j] + s.eps);
  }
  run_spans(s.team, s.blocks, true, [&](int64_t block, int thread) {
    normalise_block(s, buffers, block, workspace, thread);
  });
  return -1;
}

// ---- backward. buffers: dx, dweight, dbias, g, x, weight, mean, var

// Sums of g * (x - mean) and of g over the block's rows.
template <class A>
void block_gradients(const State<A>& s, void* const* buffers, int64_t block, void* workspace,
                     int thread) {
  A* __restrict along_x = block_row(s, workspace, block, 0);
  A* __restrict along_one = block_row(s, workspace, block, 1);
  const A* mean = as<A>(buffers[6]);
  for (int64_t j = 0; j < s.c; ++j) along_x[j] = along_one[j] = 0;
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const A* g = fetch(s, buffers[3], row, thread_row(s, workspace, thread, 0));
    const A* x = fetch(s, buffers[4], row, thread_row(s, workspace, thread, 1));
    for (int64_t j = 0; j < s.c; ++j) {
      along_one[j] += g[j];
      along_x[j] += g[j] * (x[j] - mean[j]);
    }
  }
}

template <class A>
void sum_blocks(const State<A>& s, void* workspace) {
  for (int64_t step = 1; step < s.blocks; step *= 2) {
    for (int64_t i = 0; i + step < s.blocks; i += 2 * step) {
      A* __restrict total = block_row(s, workspace, i, 0);  // both rows: they are neighbours
      const A* __restrict other = block_row(s, workspace, i + step, 0);
      for (int64_t j = 0; j < s.buffer + s.c; ++j) total[j] += other[j];
    }
  }
}

template <class A>
void input_gradient_block(const State<A>& s, void* const* buffers, int64_t block, void* workspace,
                          int thread) {
  const A* mean = as<A>(buffers[6]);
  const A* scale = shared_row(s, workspace, 1);     // weight * rstd
  const A* from_x = shared_row(s, workspace, 2);    // rstd^2 * sum(g * (x - mean)) / rows
  const A* from_one = shared_row(s, workspace, 3);  // sum(g) / rows
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const A* g = fetch(s, buffers[3], row, thread_row(s, workspace, thread, 0));
    const A* x = fetch(s, buffers[4], row, thread_row(s, workspace, thread, 1));
    void* to = byte_offset(buffers[0], row * s.c * s.item_size);
    A* dx = s.direct ? as<A>(to) : thread_row(s, workspace, thread, 0);
#pragma omp simd
    for (int64_t j = 0; j < s.c; ++j)
      dx[j] = scale[j] * (g[j] - from_one[j] - (x[j] - mean[j]) * from_x[j]);
    if (!s.direct) s.write(to, dx, s.c);
  }
}

template <class A>
int64_t run_backward(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  run_spans(s.team, s.blocks, false, [&](int64_t block, int thread) {
    block_gradients(s, buffers, block, workspace, thread);
  });
  sum_blocks(s, workspace);
  A* along_x = block_row(s, workspace, 0, 0);
  const A* along_one = block_row(s, workspace, 0, 1);
  A* weight = shared_row(s, workspace, 0);
  A* scale = shared_row(s, workspace, 1);
  A* from_x = shared_row(s, workspace, 2);
  A* from_one = shared_row(s, workspace, 3);
  s.read(weight, buffers[5], s.c, 1);
  for (int64_t j = 0; j < s.c; ++j) {
    const A rstd = 1 / std::sqrt(as<A>(buffers[7])[j] + s.eps);
    scale[j] = weight[j] * rstd;
    from_x[j] = rstd * rstd * along_x[j] / static_cast<A>(s.rows);
    from_one[j] = along_one[j] / static_cast<A>(s.rows);
    along_x[j] *= rstd;
  }
  s.write(buffers[1], along_x, s.c);
  s.write(buffers[2], along_one, s.c);
  run_spans(s.team, s.blocks, true, [&](int64_t block, int thread) {
    input_gradient_block(s, buffers, block, workspace, thread);
  });
  return -1;
}

template <class A>
const char* plan_in(Plan* plan, const Operand& x, double eps, bool backward) {
  State<A>& s = state_of<State<A>>(plan);
  s.read = reader<A>(x.dtype);
  s.write = writer<A>(x.dtype);
  if (!s.read) return "batch norm: expected a floating dtype";
  if (x.ndim != 2 || !is_dense(x)) return "batch norm: expected dense [rows, c]";
  s.rows = x.shape[0];
  s.c = x.shape[1];
  s.item_size = kItemSize[x.dtype];
  s.direct = s.item_size == sizeof(A);
  s.eps = static_cast<A>(eps);
  s.block = s.c < kBlockElements ? kBlockElements / (s.c ? s.c : 1) : 1;
  if (s.block < (s.rows + kMaxBlocks - 1) / kMaxBlocks)
    s.block = (s.rows + kMaxBlocks - 1) / kMaxBlocks;
  s.blocks = (s.rows + s.block - 1) / s.block;
  if (s.blocks < 1) s.blocks = 1;  // with no rows the gradients are zero
  s.buffer = round_up(s.c, 16) + 16;
  s.team = team_size(s.blocks, s.rows * s.c);
  plan->run = backward ? run_backward<A> : run_forward<A>;
  const int64_t rows = 2 * s.blocks + 4 + 2 * s.team;
  plan->workspace = rows * s.buffer * static_cast<int64_t>(sizeof(A));
  return nullptr;
}

}  // namespace

const char* plan_batch_norm(Plan* plan, const Operand& x, double eps) {
  return x.dtype == kFloat64 ? plan_in<double>(plan, x, eps, false)
                             : plan_in<float>(plan, x, eps, false);
}

const char* plan_batch_norm_grad(Plan* plan, const Operand& x, double eps) {
  return x.dtype == kFloat64 ? plan_in<double>(plan, x, eps, true)
                             : plan_in<float>(plan, x, eps, true);
}

}  // namespace needle::NEEDLE_ISA
