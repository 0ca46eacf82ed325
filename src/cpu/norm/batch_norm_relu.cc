// Batch norm in training mode, then the sum with a residual and ReLU, as in a residual network.
// float32 rows, dense [rows, c].
//
// Each direction goes over the memory twice, the second time from the last block to the first,
// because the data read last is still in the cache; large results go around the caches. Without a
// residual the backward direction computes again which elements ReLU let pass instead of reading
// the result. Columns are summed over fixed blocks of rows, then over the blocks as a tree, so that
// no result depends on the number of threads.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "conv/conv.h"
#include "base/table.h"
#include "base/spans.h"
#include "reduce/statistics.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

using Floats = Vector<float>;
constexpr int64_t kWidth = kLanes<float>;
// Large blocks: the sums of each are read by another thread.
constexpr int64_t kBlockElements = 32768, kMaxBlocks = 256;
constexpr int64_t kAhead = 512;      // floats
constexpr int64_t kNarrow = 128;     // channels
constexpr int64_t kStreamShare = 8;  // of elementwise_streaming_bytes(): there are three arrays

struct State {
  int64_t rows, c, block, blocks, pitch;  // pitch: floats of a row in the workspace
  float eps;
  bool large;  // the results: they would push the operands out of the cache
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

// body(row, std::integral_constant<rows>) for all rows of a block. Narrow ones four at a time, so
// that the state of each column is loaded and stored once for them; wide ones would use too many
// places of memory at once.
template <class Body>
inline void each_rows(const State& s, int64_t block, const Body& body) {
  const int64_t end = first_row(s, block + 1);
  int64_t row = first_row(s, block);
  for (; s.c <= kNarrow && row + 4 <= end; row += 4) body(row, std::integral_constant<int, 4>());
  for (; row < end; ++row) body(row, std::integral_constant<int, 1>());
}

// (terms[0] + terms[1]) + (terms[2] + terms[3]).
template <int count>
inline Floats sum_of(const Floats (&terms)[count]) {
  if constexpr (count == 4) return (terms[0] + terms[1]) + (terms[2] + terms[3]);
  return terms[0];
}

// Loads from an array that is walked in order, and fetches the next lines early: the processor's
// own prefetching begins anew with each page.
template <class Lanes>
inline Floats load_ahead(const Lanes& lanes, const float* p) {
  __builtin_prefetch(p + kAhead);
  return lanes.load(p);
}

// ---- forward. buffers: out, mean, var, x, weight, bias, residual

// Of a column in the block's rows. Distances from an infinite number are infinite or NaN.
[[gnu::noinline]] float plain_mean(const State& s, const float* column, int64_t block) {
  double sum = 0;
  const int64_t begin = first_row(s, block), end = first_row(s, block + 1);
  for (int64_t row = begin; row < end; ++row) sum += column[row * s.c];
  return static_cast<float>(sum / static_cast<double>(end - begin));
}

// Mean and sum of squared distances of the block's rows, in one pass: of the distances from the
// first row. The sum of their squares loses at most as many digits as the number of rows has.
void block_statistics(const State& s, const float* x, int64_t block, void* workspace) {
  float* mean = block_row(s, workspace, block, 0);
  float* square = block_row(s, workspace, block, 1);
  const float* pivot = x + first_row(s, block) * s.c;
  std::memset(mean, 0, 2 * s.pitch * sizeof(float));
  each_rows(s, block, [&](int64_t row, auto rows) {
    constexpr int kRows = decltype(rows)::value;
    const float* from = x + row * s.c;
    each_vector(s.c, [&](int64_t j, const auto& lanes) {
      const Floats middle = lanes.load(pivot + j);
      Floats distance[kRows], squared[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        distance[i] = load_ahead(lanes, from + i * s.c + j) - middle;
        squared[i] = distance[i] * distance[i];
      }
      lanes.store(mean + j, lanes.load(mean + j) + sum_of(distance));
      lanes.store(square + j, lanes.load(square + j) + sum_of(squared));
    });
  });
  const float scale = 1 / static_cast<float>(first_row(s, block + 1) - first_row(s, block));
  each_vector(s.c, [&](int64_t j, const auto& lanes) {
    const Floats sum = lanes.load(mean + j), rest = lanes.load(square + j) - sum * (sum * scale);
    lanes.store(mean + j, lanes.load(pivot + j) + sum * scale);
    lanes.store(square + j, rest < 0 ? Floats{} : rest);
  });
  for (int64_t j = 0; j < s.c; ++j)
    if (!(std::fabs(mean[j]) < INFINITY)) mean[j] = plain_mean(s, x + j, block);
}

void join_blocks(const State& s, void* workspace, int64_t left, int64_t right, int64_t end) {
  const auto row = [&](int64_t block, int which) { return block_row(s, workspace, block, which); };
  join_statistics(row(left, 0), row(left, 1), row(right, 0), row(right, 1),
                  static_cast<float>(first_row(s, right) - first_row(s, left)),
                  static_cast<float>(first_row(s, end) - first_row(s, right)), s.c);
}

// The normalised x and its factor, which both directions must compute to the same last bit.
Floats normalised(const Floats& distance, const Floats& scale, const Floats& bias) {
  return distance * scale + bias;
}
void find_scales(const State& s, const void* weight, const void* var, float* scale) {
  for (int64_t j = 0; j < s.c; ++j)
    scale[j] = as<float>(weight)[j] / std::sqrt(as<float>(var)[j] + s.eps);
}

bool streams_to(const State& s, const void* out) {
  return s.large && s.c % kWidth == 0 && is_streamable(out);
}

template <bool adds, bool streams>
void normalise_block(const State& s, void* const* buffers, int64_t block, void* workspace) {
  const float* mean = block_row(s, workspace, 0, 0);
  const float* scale = shared_row(s, workspace, 0);
  const float* bias = as<float>(buffers[5]);
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const float* x = as<float>(buffers[3]) + row * s.c;
    const float* residual = adds ? as<float>(buffers[6]) + row * s.c : nullptr;
    float* out = as<float>(buffers[0]) + row * s.c;
    each_written<streams>(s.c, [&](int64_t j, const auto& lanes) {
      Floats y = normalised(load_ahead(lanes, x + j) - lanes.load(mean + j), lanes.load(scale + j),
                            lanes.load(bias + j));
      if (adds) y += load_ahead(lanes, residual + j);
      lanes.store(out + j, y <= 0 ? Floats{} : y);  // NaN stays
    });
  }
  if (streams) end_streams();
}

using RunBlock = void (*)(const State&, void* const*, int64_t, void*);

// From the last block to the first.
void run_back(const State& s, void* const* buffers, void* workspace, RunBlock run) {
  run_spans(s.team, s.blocks, true, [&](int64_t block, int) { run(s, buffers, block, workspace); });
}

int64_t run_forward(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const float* x = as<float>(buffers[3]);
  run_spans(s.team, s.blocks, false,
            [&](int64_t block, int) { block_statistics(s, x, block, workspace); });
  for (int64_t step = 1; step < s.blocks; step *= 2)
    for (int64_t i = 0; i + step < s.blocks; i += 2 * step)
      join_blocks(s, workspace, i, i + step, i + 2 * step);
  const float* mean = block_row(s, workspace, 0, 0);
  const float* square = block_row(s, workspace, 0, 1);
  float *mean_out = as<float>(buffers[1]), *var_out = as<float>(buffers[2]);
  for (int64_t j = 0; j < s.c; ++j) {
    mean_out[j] = mean[j];
    var_out[j] = square[j] / static_cast<float>(s.rows);
  }
  find_scales(s, buffers[4], var_out, shared_row(s, workspace, 0));
  static const RunBlock kRun[2][2] = {{normalise_block<false, false>, normalise_block<false, true>},
                                      {normalise_block<true, false>, normalise_block<true, true>}};
  run_back(s, buffers, workspace, kRun[buffers[6] != nullptr][streams_to(s, buffers[0])]);
  return -1;
}

// ---- backward. buffers: dx, dweight, dbias, dresidual, g, out, x, weight, bias, mean, var; with a
// residual there are dresidual and out

Floats through(const Floats& g, const Floats& out) { return out > 0 ? g : Floats{}; }

// Sums of h * (x - mean) and of h over the block's rows; h, what passes the rectifier, is the
// gradient of the residual.
template <bool adds>
void block_gradients(const State& s, void* const* buffers, int64_t block, void* workspace) {
  float* along_x = block_row(s, workspace, block, 0);
  float* along_one = block_row(s, workspace, block, 1);
  const float* scale = shared_row(s, workspace, 0);
  const float *bias = as<float>(buffers[8]), *mean = as<float>(buffers[9]);
  std::memset(along_x, 0, 2 * s.pitch * sizeof(float));
  each_rows(s, block, [&](int64_t row, auto rows) {
    constexpr int kRows = decltype(rows)::value;
    const float* g = as<float>(buffers[4]) + row * s.c;
    const float* out = adds ? as<float>(buffers[5]) + row * s.c : nullptr;
    const float* x = as<float>(buffers[6]) + row * s.c;
    float* to = adds ? as<float>(buffers[3]) + row * s.c : nullptr;
    each_vector(s.c, [&](int64_t j, const auto& lanes) {
      const Floats middle = lanes.load(mean + j), factor = lanes.load(scale + j);
      const Floats term = lanes.load(bias + j);
      Floats h[kRows], product[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const int64_t at = i * s.c + j;
        const Floats distance = load_ahead(lanes, x + at) - middle;
        const Floats y = adds ? load_ahead(lanes, out + at) : normalised(distance, factor, term);
        h[i] = through(load_ahead(lanes, g + at), y);
        product[i] = h[i] * distance;
        if (adds) lanes.store(to + at, h[i]);
      }
      lanes.store(along_one + j, lanes.load(along_one + j) + sum_of(h));
      lanes.store(along_x + j, lanes.load(along_x + j) + sum_of(product));
    });
  });
}

template <bool adds, bool streams>
void input_gradient_block(const State& s, void* const* buffers, int64_t block, void* workspace) {
  const float* scale = shared_row(s, workspace, 0);     // weight * rstd
  const float* from_x = shared_row(s, workspace, 1);    // rstd^2 * sum(h * (x - mean)) / rows
  const float* from_one = shared_row(s, workspace, 2);  // sum(h) / rows
  const float *bias = as<float>(buffers[8]), *mean = as<float>(buffers[9]);
  for (int64_t row = first_row(s, block); row < first_row(s, block + 1); ++row) {
    const float* g = as<float>(buffers[adds ? 3 : 4]) + row * s.c;
    const float* x = as<float>(buffers[6]) + row * s.c;
    float* dx = as<float>(buffers[0]) + row * s.c;
    each_written<streams>(s.c, [&](int64_t j, const auto& lanes) {
      const Floats distance = load_ahead(lanes, x + j) - lanes.load(mean + j),
                   scaling = lanes.load(scale + j);
      Floats h = load_ahead(lanes, g + j);
      if (!adds) h = through(h, normalised(distance, scaling, lanes.load(bias + j)));
      lanes.store(dx + j,
                  scaling * (h - lanes.load(from_one + j) - distance * lanes.load(from_x + j)));
    });
  }
  if (streams) end_streams();
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
  const bool adds = buffers[3] != nullptr;
  find_scales(s, buffers[7], buffers[10], shared_row(s, workspace, 0));
  run_spans(s.team, s.blocks, false, [&](int64_t block, int) {
    (adds ? block_gradients<true> : block_gradients<false>)(s, buffers, block, workspace);
  });
  sum_blocks(s, workspace);
  const float* along_x = block_row(s, workspace, 0, 0);
  const float* along_one = block_row(s, workspace, 0, 1);
  const float rows = static_cast<float>(s.rows);
  for (int64_t j = 0; j < s.c; ++j) {
    const float rstd = 1 / std::sqrt(as<float>(buffers[10])[j] + s.eps);
    shared_row(s, workspace, 1)[j] = rstd * rstd * along_x[j] / rows;
    shared_row(s, workspace, 2)[j] = along_one[j] / rows;
    as<float>(buffers[1])[j] = along_x[j] * rstd;
    as<float>(buffers[2])[j] = along_one[j];
  }
  static const RunBlock kRun[2][2] = {
      {input_gradient_block<false, false>, input_gradient_block<false, true>},
      {input_gradient_block<true, false>, input_gradient_block<true, true>}};
  run_back(s, buffers, workspace, kRun[adds][streams_to(s, buffers[0])]);
  return -1;
}

const char* plan_rows(Plan* plan, const Operand& x, double eps, Run run) {
  if (x.dtype != kFloat32) return "batch_norm_relu: expected float32";
  if (x.ndim != 2 || !is_dense(x) || element_count(x) == 0)
    return "batch_norm_relu: expected dense [rows, c] with elements";
  State& s = state_of<State>(plan);
  s.rows = x.shape[0];
  s.c = x.shape[1];
  s.eps = static_cast<float>(eps);
  s.block = most(most(kBlockElements / s.c, 1), parts(s.rows, kMaxBlocks));
  s.blocks = parts(s.rows, s.block);
  s.pitch = spread(s.c);
  s.large = s.rows * s.c * static_cast<int64_t>(sizeof(float)) >=
            elementwise_streaming_bytes() / kStreamShare;
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
