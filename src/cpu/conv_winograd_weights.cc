// The gradient of the weights by Winograd's method: the taps are the outputs, and each tile of the
// gradient is a small kernel. The 36 components are 36 matrix products [c, tiles] [tiles, k].
//
// A task is a block of input channels and a block of output channels; it visits all tiles in a
// fixed order and keeps its sums in the second-level cache. So nothing is shared or added up
// between threads, and the result does not depend on their number; in exchange each block of
// channels is transformed once for every block of the other side.
#include <cstring>

#include "conv_tile.h"
#include "conv_winograd.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kMaxBlock = 64;  // channels
constexpr int64_t kTiles = 32;     // between two visits of the sums

struct State {
  Geometry g;
  Tiling tiling;
  int64_t block_c, block_k, parts_c, parts_k;
  int64_t v_pitch, w_pitch, sum_pitch, row;
  int64_t zeros, area;
  int team;
};

struct Buffers {
  float* out;
  const float* x;
  const float* g;
  float* workspace;
};

// Channels c.. of x and k.. of g, of which this task computes the product.
struct Task {
  int64_t c, c_count, k, k_count;
  float *v, *w, *sums;
};

template <int m>
void transform_tiles(const State& s, const Buffers& b, const Task& task, int64_t begin,
                     int64_t end) {
  const Image x_shape = {s.g.in[1], s.g.in[2], s.g.c}, g_shape = {s.g.out[1], s.g.out[2], s.g.k};
  const float* patch[kComponents];
  for (int64_t tile = begin; tile < end; ++tile) {
    const TilePosition at = tile_position(s.tiling, tile);
    const int64_t row = (tile - begin) * s.row;
    patch_addresses<kTilePoints>(patch, b.x + task.c, x_shape, at.image, at.y - s.g.low[1],
                                 at.x - s.g.low[2], b.workspace);
    transform_patch<TransformInput>(patch, task.c_count, task.v + row, s.v_pitch);
    patch_addresses<m>(patch, b.g + task.k, g_shape, at.image, at.y, at.x, b.workspace);
    transform_patch<TransformTaps<m>>(patch, task.k_count, task.w + row, s.w_pitch);
  }
}

void multiply_components(const State& s, const Task& task, int64_t tiles, bool add) {
  constexpr int64_t kColumns = kTileColumns<float>;
  const int64_t width = round_up(task.k_count, kLanes<float>);
  for (int component = 0; component < kComponents; ++component) {
    const float* v = task.v + component * s.v_pitch;
    const float* w = task.w + component * s.w_pitch;
    float* sums = task.sums + component * s.sum_pitch;
    for (int64_t j = 0; j < width; j += kColumns)
      multiply_rows(
          {tiles, v, 1, s.row, w + j, s.row, sums + j, s.row, least(kColumns, width - j), add},
          task.c_count);
  }
}

template <int taps>
void restore_taps(const State& s, const Buffers& b, const Task& task) {
  constexpr int64_t kWidth = kLanes<float>;
  for (int64_t c = 0; c < task.c_count; ++c) {
    for (int64_t k = 0; k < task.k_count; k += kWidth) {
      const Tail<float> lanes(least(kWidth, task.k_count - k));
      float* to = b.out + (task.c + c) * s.g.k + task.k + k;
      restore_vector<taps>(task.sums + c * s.row + k, s.sum_pitch,
                           [&](int i, int j, const Floats& sum) {
                             lanes.store(to + (i * taps + j) * s.g.c * s.g.k, sum);
                           });
    }
  }
}

template <int taps>
int64_t run(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const Buffers b = {as<float>(buffers[0]), as<float>(buffers[1]), as<float>(buffers[2]),
                     as<float>(workspace)};
  std::memset(workspace, 0, s.zeros * sizeof(float));
  run_tasks(s.team, s.parts_c * s.parts_k, [&](int64_t index, int thread) {
    Task task;
    task.c = index % s.parts_c * s.block_c;
    task.k = index / s.parts_c * s.block_k;
    task.c_count = least(s.block_c, s.g.c - task.c);
    task.k_count = least(s.block_k, s.g.k - task.k);
    task.v = b.workspace + s.zeros + thread * s.area;
    task.w = task.v + kComponents * s.v_pitch;
    task.sums = task.w + kComponents * s.w_pitch;
    const int64_t tiles = s.tiling.total();
    for (int64_t begin = 0; begin < tiles; begin += kTiles) {
      const int64_t end = least(begin + kTiles, tiles);
      transform_tiles<7 - taps>(s, b, task, begin, end);
      multiply_components(s, task, end - begin, begin > 0);
    }
    restore_taps<taps>(s, b, task);
  });
  return -1;
}

}  // namespace

const char* plan_winograd_weight(Plan* plan, const Geometry& g) {
  const bool three = g.kernel[1] == 3 && g.kernel[2] == 3;
  const bool five = g.kernel[1] == 5 && g.kernel[2] == 5;
  if (g.kernel[0] != 1 || !(three || five)) return "winograd: wants a kernel of 3x3 or 5x5";
  for (int i = 0; i < kSpatial; ++i)
    if (g.stride[i] != 1 || g.dilation[i] != 1) return "winograd: wants stride and dilation 1";
  if (g.groups != 1) return "winograd: wants one group";
  if (g.in[0] != g.out[0]) return "winograd: wants two spatial axes";
  State& s = state_of<State>(plan);
  s.g = g;
  const int64_t images = g.n * g.in[0], step = three ? 4 : 2;
  s.tiling = {images, parts(g.out[1], step), parts(g.out[2], step), step};
  s.block_c = least(kMaxBlock, round_up(g.c, 16));
  s.block_k = least(kMaxBlock, round_up(g.k, 16));
  const auto tasks = [&] { return parts(g.c, s.block_c) * parts(g.k, s.block_k); };
  while (tasks() < threads() && s.block_c > 16) s.block_c = round_up(s.block_c / 2, 16);
  while (tasks() < threads() && s.block_k > 16) s.block_k = round_up(s.block_k / 2, 16);
  s.parts_c = parts(g.c, s.block_c);
  s.parts_k = parts(g.k, s.block_k);
  s.row = most(s.block_c, s.block_k);
  s.v_pitch = s.w_pitch = spread(kTiles * s.row);
  s.sum_pitch = spread(s.block_c * s.row);
  s.zeros = s.row;
  s.area = spread(kComponents * (2 * s.v_pitch + s.sum_pitch));
  s.team = team_size(tasks(), s.tiling.total() * g.c * g.k);
  plan->workspace = (s.zeros + s.team * s.area) * static_cast<int64_t>(sizeof(float));
  plan->run = three ? run<3> : run<5>;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
