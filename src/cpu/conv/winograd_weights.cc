// The gradient of the weights by Winograd's method: the taps are the outputs, and each tile of the
// gradient is a small kernel. Each component is a matrix product [c, tiles] [tiles, k].
//
// A task is a block of input channels and a block of output channels; it visits all tiles in a
// fixed order and keeps its sums in the second-level cache. So nothing is shared or added up
// between threads, and the result does not depend on their number; in exchange each block of
// channels is transformed once for every block of the other side.
#include <cstring>

#include "conv/tile.h"
#include "conv/winograd.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kMaxBlock = 64;  // channels
// Tiles between two visits of the sums, with which their components share the second-level cache.
template <int points>
constexpr int64_t kTiles = points == kTilePoints ? 32 : 16;

// Stride 1 and stride 2. A tile's inputs begin kInputStep pixels from those of the tile before.
template <int taps>
struct Adjacent {
  using Input = TransformInput;
  using Gradient = TransformTaps<kTilePoints + 1 - taps>;
  using Taps = TransformOutput<taps>;
  static constexpr int kInputStep = Gradient::kFrom;
};
struct Strided {
  using Input = StridedInput;
  using Gradient = StridedGradient;
  using Taps = StridedSums;
  static constexpr int kInputStep = 2 * kOutputs;
};

struct State {
  Geometry g;
  Tiling tiling;
  int64_t block_c, block_k, parts_c, parts_k;
  int64_t components, sum_pitch, row;  // floats; components: of x, or of g
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

template <class Method>
void transform_tiles(const State& s, const Buffers& b, const Task& task, int64_t begin,
                     int64_t end) {
  const int64_t pitch = (end - begin) * s.row;
  using Input = typename Method::Input;
  using Gradient = typename Method::Gradient;
  constexpr int kTile = Gradient::kFrom;
  const Image x_shape = {s.g.in[1], s.g.in[2], s.g.c}, g_shape = {s.g.out[1], s.g.out[2], s.g.k};
  const float* patch[Input::kFrom * Input::kFrom];
  for (int64_t tile = begin; tile < end; ++tile) {
    const TilePosition at = tile_position(s.tiling, tile);
    const int64_t row = (tile - begin) * s.row;
    patch_addresses<Input::kFrom>(patch, b.x + task.c, x_shape, at.image,
                                  at.row * Method::kInputStep - s.g.low[1],
                                  at.column * Method::kInputStep - s.g.low[2], b.workspace);
    transform_patch<Input>(patch, task.c_count, task.v + row, pitch);
    patch_addresses<kTile>(patch, b.g + task.k, g_shape, at.image, at.row * kTile,
                           at.column * kTile, b.workspace);
    transform_patch<Gradient>(patch, task.k_count, task.w + row, pitch);
  }
}

template <int points>
void multiply_components(const State& s, const Task& task, int64_t tiles, bool add) {
  constexpr int64_t kColumns = kTileColumns<float>;
  const int64_t width = round_up(task.k_count, kLanes<float>);
  for (int i = 0; i < kComponents; ++i) {
    const int64_t place = first_place<points>(i, tiles * s.row);
    float* sums = task.sums + first_place<kTilePoints>(i, s.sum_pitch);
    for (int64_t j = 0; j < width; j += kColumns)
      multiply_rows({tiles * meetings_of<points>(i), task.v + place, 1, s.row, task.w + place + j,
                     s.row, sums + j, s.row, least(kColumns, width - j), add},
                    task.c_count);
  }
}

template <class Taps>
void restore_taps(const State& s, const Buffers& b, const Task& task) {
  constexpr int64_t kWidth = kLanes<float>, taps = Taps::kTo;
  for (int64_t c = 0; c < task.c_count; ++c) {
    for (int64_t k = 0; k < task.k_count; k += kWidth) {
      const Tail<float> lanes(least(kWidth, task.k_count - k));
      float* to = b.out + (task.c + c) * s.g.k + task.k + k;
      restore_vector<Taps>(task.sums + c * s.row + k, s.sum_pitch,
                           [&](int i, int j, const Floats& sum) {
                             lanes.store(to + (i * taps + j) * s.g.c * s.g.k, sum);
                           });
    }
  }
}

template <class Method>
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
    task.w = task.v + s.components;
    task.sums = task.w + s.components;
    const int64_t tiles = s.tiling.total();
    for (int64_t begin = 0; begin < tiles; begin += kTiles<Method::Input::kTo>) {
      const int64_t end = least(begin + kTiles<Method::Input::kTo>, tiles);
      transform_tiles<Method>(s, b, task, begin, end);
      multiply_components<Method::Input::kTo>(s, task, end - begin, begin > 0);
    }
    restore_taps<typename Method::Taps>(s, b, task);
  });
  return -1;
}

template <class Method>
const char* plan_method(Plan* plan, const Geometry& g) {
  constexpr int64_t step = Method::Gradient::kFrom;
  State& s = state_of<State>(plan);
  s.g = g;
  s.tiling = {g.n * g.in[0], parts(g.out[1], step), parts(g.out[2], step)};
  s.block_c = least(kMaxBlock, round_up(g.c, 16));
  s.block_k = least(kMaxBlock, round_up(g.k, 16));
  const auto tasks = [&] { return parts(g.c, s.block_c) * parts(g.k, s.block_k); };
  while (tasks() < threads() && s.block_c > 16) s.block_c = round_up(s.block_c / 2, 16);
  while (tasks() < threads() && s.block_k > 16) s.block_k = round_up(s.block_k / 2, 16);
  s.parts_c = parts(g.c, s.block_c);
  s.parts_k = parts(g.k, s.block_k);
  s.row = most(s.block_c, s.block_k);
  s.components = all_components<Method::Input::kTo>(kTiles<Method::Input::kTo> * s.row);
  s.sum_pitch = s.block_c * s.row;
  s.zeros = s.row;
  s.area = spread(2 * s.components + all_components<kTilePoints>(s.sum_pitch));
  s.team = team_size(tasks(), s.tiling.total() * g.c * g.k);
  plan->workspace = (s.zeros + s.team * s.area) * static_cast<int64_t>(sizeof(float));
  plan->run = run<Method>;
  return nullptr;
}

}  // namespace

const char* plan_winograd_weight(Plan* plan, const Geometry& g) {
  const char* refused = refuse_winograd(g);
  if (refused) return refused;
  if (g.stride[1] == 2) return plan_method<Strided>(plan, g);
  return (g.kernel[1] == 3 ? plan_method<Adjacent<3>> : plan_method<Adjacent<5>>)(plan, g);
}

}  // namespace needle::NEEDLE_ISA
