// Batch norm in training mode with what follows it in a residual network: the sum with a shortcut,
// and a rectifier. float32 rows, dense [rows, c].
//
// Each direction goes over the memory twice, the second time from the last block to the first,
// because what was read last is still in the cache. Columns are summed over fixed blocks of rows,
// then over the blocks as a tree, so that no result depends on the number of threads.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "conv.h"
#include "kernels_linear.h"

namespace needle::NEEDLE_ISA {
namespace {

using Floats = Vector<float>;
constexpr int64_t kBlockElements = 8192, kMaxBlocks = 256, kWidth = kLanes<float>;
#if defined(__AVX512F__)
constexpr int kMany = 8, kFew = 4;  // vectors of a group; three registers for each
#else
constexpr int kMany = 4, kFew = 2;
#endif

struct State {
  int64_t rows, c, block, blocks, pitch;  // pitch: floats of a row in the workspace
  float eps;
  int team;
};

// Workspace: two rows for each block, then three shared ones.
float* block_row(const State& s, void* workspace, int64_t block, int which) {
  return as<float>(workspace) + (2 * block + which) * s.pitch;
}
float* shared_row(const State& s, void* workspace, int which) {
  return as<float>(workspace) + (2 * s.blocks + which) * s.pitch;
}

int64_t first_row(const State& s, int64_t block) { return least(block * s.block, s.rows); }

// body(i) for i < count, unrolled.
template <int count, class Body>
inline void each(const Body& body) {
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) body(i);
}

// body(channel, number of vectors, lanes) for all channels: groups of vectors whose sums stay in
// registers while the rows go by. Pays with one operand; with three, walking whole rows is faster.
template <class Body>
inline void each_group(int64_t channels, const Body& body) {
  int64_t c = 0;
  for (; c + kMany * kWidth <= channels; c += kMany * kWidth)
    body(c, std::integral_constant<int, kMany>(), Whole<float>());
  for (; c + kFew * kWidth <= channels; c += kFew * kWidth)
    body(c, std::integral_constant<int, kFew>(), Whole<float>());
  for (; c + kWidth <= channels; c += kWidth)
    body(c, std::integral_constant<int, 1>(), Whole<float>());
  if (c < channels) body(c, std::integral_constant<int, 1>(), Tail<float>(channels - c));
}

// ---- forward. buffers: out, mean, var, x, weight, bias, residual

// Mean and sum of squared distances of the block's rows, in two passes: exact where the sum of
// squares would cancel.
void block_statistics(const State& s, const float* x, int64_t block, void* workspace) {
  float* mean_row = block_row(s, workspace, block, 0);
  float* square_row = block_row(s, workspace, block, 1);
  const int64_t begin = first_row(s, block), end = first_row(s, block + 1);
  const float scale = 1 / static_cast<float>(end - begin);
  each_group(s.c, [&](int64_t j, auto size, const auto& lanes) {
    constexpr int kCount = decltype(size)::value;
    Floats mean[kCount] = {}, square[kCount] = {};
    for (int64_t row = begin; row < end; ++row)
      each<kCount>([&](int i) { mean[i] += lanes.load(x + row * s.c + j + i * kWidth); });
    each<kCount>([&](int i) { mean[i] *= scale; });
    for (int64_t row = begin; row < end; ++row)
      each<kCount>([&](int i) {
        const Floats distance = lanes.load(x + row * s.c + j + i * kWidth) - mean[i];
        square[i] += distance * distance;
      });
    each<kCount>([&](int i) {
      lanes.store(mean_row + j + i * kWidth, mean[i]);
      lanes.store(square_row + j + i * kWidth, square[i]);
    });
  });
}

// Joins the statistics of two neighbouring groups of rows (Chan, Golub, LeVeque 1979).
void join_statistics(const State& s, void* workspace, int64_t left, int64_t right,
                     int64_t right_end) {
  const float rows1 = static_cast<float>(first_row(s, right) - first_row(s, left));
  const float rows2 = static_cast<float>(first_row(s, right_end) - first_row(s, right));
  const float part = rows2 / (rows1 + rows2);
  float* __restrict mean = block_row(s, workspace, left, 0);
  float* __restrict square = block_row(s, workspace, left, 1);
  const float* __restrict mean2 = block_row(s, workspace, right, 0);
  const float* __restrict square2 = block_row(s, workspace, right, 1);
  for (int64_t j = 0; j < s.c; ++j) {
    const float distance = mean2[j] - mean[j];
    mean[j] += distance * part;
    square[j] += square2[j] + distance * distance * rows1 * part;
  }
}

template <bool shortcut>
void normalise_block(const State& s, void* const* buffers, int64_t block, void* workspace) {
  const float* mean = block_row(s, workspace, 0, 0);
  const float* scale = shared_row(s, workspace, 0);
  const float* bias = as<float>(buffers[5]);
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const float* x = as<float>(buffers[3]) + row * s.c;
    const float* residual = shortcut ? as<float>(buffers[6]) + row * s.c : nullptr;
    float* out = as<float>(buffers[0]) + row * s.c;
    each_vector(s.c, [&](int64_t j, const auto& lanes) {
      Floats y =
          (lanes.load(x + j) - lanes.load(mean + j)) * lanes.load(scale + j) + lanes.load(bias + j);
      if (shortcut) y += lanes.load(residual + j);
      lanes.store(out + j, y <= 0 ? Floats{} : y);  // NaN stays
    });
  }
}

int64_t run_forward(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const float* x = as<float>(buffers[3]);
  run_tasks(s.team, s.blocks,
            [&](int64_t block, int) { block_statistics(s, x, block, workspace); });
  for (int64_t step = 1; step < s.blocks; step *= 2)
    for (int64_t i = 0; i + step < s.blocks; i += 2 * step)
      join_statistics(s, workspace, i, i + step, i + 2 * step);
  const float* mean = block_row(s, workspace, 0, 0);
  const float* square = block_row(s, workspace, 0, 1);
  float *mean_out = as<float>(buffers[1]), *var_out = as<float>(buffers[2]);
  for (int64_t j = 0; j < s.c; ++j) {
    mean_out[j] = mean[j];
    var_out[j] = square[j] / static_cast<float>(s.rows);
    shared_row(s, workspace, 0)[j] = as<float>(buffers[4])[j] / std::sqrt(var_out[j] + s.eps);
  }
  run_tasks(s.team, s.blocks, [&](int64_t task, int) {
    const int64_t block = s.blocks - 1 - task;
    buffers[6] ? normalise_block<true>(s, buffers, block, workspace)
               : normalise_block<false>(s, buffers, block, workspace);
  });
  return -1;
}

// ---- backward. buffers: dx, dweight, dbias, dresidual, g, out, x, weight, mean, var

Floats through(const Floats& g, const Floats& out) { return out > 0 ? g : Floats{}; }

// Sums of h * (x - mean) and of h over the block's rows; h, what passes the rectifier, is the
// gradient of the shortcut.
template <bool shortcut>
void block_gradients(const State& s, void* const* buffers, int64_t block, void* workspace) {
  float* along_x = block_row(s, workspace, block, 0);
  float* along_one = block_row(s, workspace, block, 1);
  const float* mean = as<float>(buffers[8]);
  std::memset(along_x, 0, 2 * s.pitch * sizeof(float));
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const float* g = as<float>(buffers[4]) + row * s.c;
    const float* out = as<float>(buffers[5]) + row * s.c;
    const float* x = as<float>(buffers[6]) + row * s.c;
    float* to = shortcut ? as<float>(buffers[3]) + row * s.c : nullptr;
    each_vector(s.c, [&](int64_t j, const auto& lanes) {
      const Floats h = through(lanes.load(g + j), lanes.load(out + j));
      const Floats distance = lanes.load(x + j) - lanes.load(mean + j);
      lanes.store(along_one + j, lanes.load(along_one + j) + h);
      lanes.store(along_x + j, lanes.load(along_x + j) + h * distance);
      if (shortcut) lanes.store(to + j, h);
    });
  }
}

template <bool shortcut>
void input_gradient_block(const State& s, void* const* buffers, int64_t block, void* workspace) {
  const float* mean = as<float>(buffers[8]);
  const float* scale = shared_row(s, workspace, 0);     // weight * rstd
  const float* from_x = shared_row(s, workspace, 1);    // rstd^2 * sum(h * (x - mean)) / rows
  const float* from_one = shared_row(s, workspace, 2);  // sum(h) / rows
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const float* g = as<float>(buffers[shortcut ? 3 : 4]) + row * s.c;
    const float* out = as<float>(buffers[5]) + row * s.c;
    const float* x = as<float>(buffers[6]) + row * s.c;
    float* dx = as<float>(buffers[0]) + row * s.c;
    each_vector(s.c, [&](int64_t j, const auto& lanes) {
      Floats h = lanes.load(g + j);
      if (!shortcut) h = through(h, lanes.load(out + j));
      const Floats distance = lanes.load(x + j) - lanes.load(mean + j);
      lanes.store(dx + j, lanes.load(scale + j) *
                              (h - lanes.load(from_one + j) - distance * lanes.load(from_x + j)));
    });
  }
}

void sum_blocks(const State& s, void* workspace) {
  for (int64_t step = 1; step < s.blocks; step *= 2) {
    for (int64_t i = 0; i + step < s.blocks; i += 2 * step) {
      float* __restrict total = block_row(s, workspace, i, 0);  // both rows: they are neighbours
      const float* __restrict other = block_row(s, workspace, i + step, 0);
      for (int64_t j = 0; j < s.pitch + s.c; ++j) total[j] += other[j];
    }
  }
}

int64_t run_backward(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const bool shortcut = buffers[3] != nullptr;
  run_tasks(s.team, s.blocks, [&](int64_t block, int) {
    shortcut ? block_gradients<true>(s, buffers, block, workspace)
             : block_gradients<false>(s, buffers, block, workspace);
  });
  sum_blocks(s, workspace);
  const float* along_x = block_row(s, workspace, 0, 0);
  const float* along_one = block_row(s, workspace, 0, 1);
  const float rows = static_cast<float>(s.rows);
  for (int64_t j = 0; j < s.c; ++j) {
    const float rstd = 1 / std::sqrt(as<float>(buffers[9])[j] + s.eps);
    shared_row(s, workspace, 0)[j] = as<float>(buffers[7])[j] * rstd;
    shared_row(s, workspace, 1)[j] = rstd * rstd * along_x[j] / rows;
    shared_row(s, workspace, 2)[j] = along_one[j] / rows;
    as<float>(buffers[1])[j] = along_x[j] * rstd;
    as<float>(buffers[2])[j] = along_one[j];
  }
  run_tasks(s.team, s.blocks, [&](int64_t task, int) {
    const int64_t block = s.blocks - 1 - task;
    shortcut ? input_gradient_block<true>(s, buffers, block, workspace)
             : input_gradient_block<false>(s, buffers, block, workspace);
  });
  return -1;
}

const char* plan_rows(Plan* plan, const Operand& x, double eps, Run run) {
  if (x.dtype != kFloat32) return "batch_norm_relu: wants float32";
  if (x.ndim != 2 || !is_dense(x) || element_count(x) == 0)
    return "batch_norm_relu: wants dense [rows, c] with elements";
  State& s = state_of<State>(plan);
  s.rows = x.shape[0];
  s.c = x.shape[1];
  s.eps = static_cast<float>(eps);
  s.block = most(most(kBlockElements / s.c, 1), parts(s.rows, kMaxBlocks));
  s.blocks = parts(s.rows, s.block);
  s.pitch = spread(s.c);
  s.team = team_size(s.blocks, s.rows * s.c);
  plan->workspace = (2 * s.blocks + 3) * s.pitch * static_cast<int64_t>(sizeof(float));
  plan->run = run;
  return nullptr;
}

}  // namespace

const char* plan_batch_norm_relu(Plan* plan, const Operand& x, double eps) {
  return plan_rows(plan, x, eps, run_forward);
}
const char* plan_batch_norm_relu_grad(Plan* plan, const Operand& x, double eps) {
  return plan_rows(plan, x, eps, run_backward);
}

}  // namespace needle::NEEDLE_ISA
