// Winograd's convolution, forward and towards the input (the same with flipped, transposed
// weights). Each component of the inputs is a matrix product [tiles, c] [c, k].
//
// Whatever is smaller is transformed first, for all threads: the weights, then each thread takes
// blocks of tiles whose components stay in its second-level cache; or the tiles, then each thread
// takes panels of output channels and transforms their weights for itself (small images, where the
// transformed weights would not fit any cache).
#include <cstring>

#include "conv/tile.h"
#include "conv/winograd.h"
#include "gemm/pack.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPanel = kTileColumns<float>;
constexpr int64_t kLine = 16;               // floats of a cache line
constexpr int64_t kBlockBytes = 448 << 10;  // of a block's transformed input
constexpr int64_t kChannelBlock = 64;       // output channels between two visits of a block
constexpr int64_t kMaxTiles = 8 * kTileRows;
// Tiles between two visits of a panel when tiles are transformed first: their products and the
// panel's weights share the second-level cache. The weights of many input channels would not fit:
// these are summed in parts, whose weights replace each other, for more tiles.
constexpr int64_t kPanelTiles = 56, kPanelTilesOfParts = 256;
constexpr int64_t kTilesAtOnce = 8;  // transformed in a task
constexpr int64_t kManyChannels = 256, kPartChannels = 128;

// Two correlations of stride 1, and the two directions of a 3x3 convolution of stride 2. A tile's
// inputs begin kInputStep pixels from those of the tile before, its results kTo.
template <int taps>
struct Adjacent {
  using Input = TransformInput;
  using Taps = TransformTaps<taps>;
  using Output = TransformOutput<kTilePoints + 1 - taps>;
  static constexpr int kInputStep = Output::kTo;
};
struct Strided {
  using Input = StridedInput;
  using Taps = StridedTaps;
  using Output = StridedOutput;
  static constexpr int kInputStep = 2 * kOutputs;
};
struct Spread {
  using Input = SpreadInput;
  using Taps = StridedTaps;
  using Output = SpreadOutput;
  static constexpr int kInputStep = kOutputs;
};

template <class Method>
constexpr int kPoints = Method::Input::kTo;

struct State {
  Geometry g;  // c and k as this direction sees them
  bool towards_input;
  Tiling tiling;
  int64_t block, blocks, panels;
  int64_t part, part_count;  // of the input channels
  bool tiles_first;
  int team;
  // Workspace, in floats: weights or tiles for all, then an area for each thread.
  int64_t v_row, m_row, u_pitch;  // of tiles, products and components of the weights
  int64_t v, m, u;                // a block's inputs and products; a panel's weights
  int64_t shared, area, zeros;
};

struct Buffers {
  float* out;
  const float* x;
  const float* w;
  const float* bias;
  float* workspace;
};

Image image_of(const int64_t* size, int64_t channels) { return {size[1], size[2], channels}; }

float* area_of(const State& s, const Buffers& b, int thread) {
  return b.workspace + s.zeros + s.shared + thread * s.area;
}

int64_t panel_width(const State& s, int64_t panel) { return least(kPanel, s.g.k - panel * kPanel); }

// ---- transforms of blocks and panels

// Input channels from `first` on, at most a part of them. pitch: from component to component of v.
template <class Method>
void transform_tiles(const State& s, const Buffers& b, int64_t first, int64_t begin, int64_t end,
                     float* v, int64_t pitch) {
  using Input = typename Method::Input;
  const float* patch[Input::kFrom * Input::kFrom];
  for (int64_t tile = begin; tile < end; ++tile, v += s.v_row) {
    const TilePosition at = tile_position(s.tiling, tile);
    patch_addresses<Input::kFrom>(patch, b.x + first, image_of(s.g.in, s.g.c), at.image,
                                  at.row * Method::kInputStep - s.g.low[1],
                                  at.column * Method::kInputStep - s.g.low[2], b.workspace);
    transform_patch<Input>(patch, least(s.part, s.g.c - first), v, pitch);
  }
}

// Components of the weights that lead from a part of the input channels to the output channels of a
// panel, each [channels, kPanel]. `unpacked`: room for these weights [taps, channels, kPanel].
template <class Transform>
void transform_weights(const State& s, const Buffers& b, int64_t panel, int64_t part,
                       float* unpacked, float* u) {
  constexpr int taps = Transform::kFrom;
  // Input channels: their weights lie far apart and are fetched that early.
  constexpr int64_t kAhead = 6;
  const int64_t c = s.g.c, k = s.g.k, first = panel * kPanel, width = panel_width(s, panel);
  const int64_t from = part * s.part, channels = least(s.part, c - from);
  const float* w = b.w + from * k + first;
  int64_t tap_pitch = c * k, row = k;
  if (s.towards_input) {
    for (int64_t tap = 0; tap < taps * taps; ++tap)
      pack_panel(unpacked + tap * channels * kPanel, kPanel,
                 b.w + (taps * taps - 1 - tap) * c * k + first * c + from, width, c, channels, 1);
    w = unpacked;
    tap_pitch = channels * kPanel;
    row = kPanel;
  }
  const float* patch[taps * taps];
  for (int64_t i = 0; i < channels; ++i, w += row, u += kPanel) {
    for (int64_t tap = 0; tap < taps * taps; ++tap) {
      patch[tap] = w + tap * tap_pitch;
      for (int64_t j = 0; j < width; j += kLine) __builtin_prefetch(patch[tap] + kAhead * row + j);
    }
    transform_patch<Transform>(patch, width, u, s.u_pitch);
  }
}

// The results of a tile, and how much of it lies inside the image.
struct Results {
  float* corner;
  int64_t rows, columns;
};

template <int m>
Results results_of(const State& s, const Buffers& b, int64_t tile) {
  const int64_t height = s.g.out[1], width = s.g.out[2];
  const TilePosition at = tile_position(s.tiling, tile);
  const int64_t y = at.row * m, x = at.column * m;
  return {b.out + ((at.image * height + y) * width + x) * s.g.k, least(m, height - y),
          least(m, width - x)};
}

// The results are lines far apart, which arrive while the tile before is restored.
void fetch_results(const State& s, const Results& to, int64_t first, int64_t channels) {
  for (int64_t i = 0; i < to.rows; ++i)
    for (int64_t j = 0; j < to.columns; ++j)
      for (int64_t c = first; c < first + channels; c += kLine)
        __builtin_prefetch(to.corner + (i * s.g.out[2] + j) * s.g.k + c, 1);
}

// The results of each tile, from the components of `channels` output channels from `first` on.
template <class Output>
void restore_tiles(const State& s, const Buffers& b, int64_t begin, int64_t end, const float* from,
                   int64_t pitch, int64_t first, int64_t channels) {
  constexpr int64_t kWidth = kLanes<float>;
  const int64_t width = s.g.out[2], k = s.g.k;
  Results next = results_of<Output::kTo>(s, b, begin);
  for (int64_t tile = begin; tile < end; ++tile, from += s.m_row) {
    const Results to = next;
    if (tile + 1 < end) {
      next = results_of<Output::kTo>(s, b, tile + 1);
      fetch_results(s, next, first, channels);
    }
    for (int64_t c = 0; c < channels; c += kWidth) {
      const Tail<float> lanes(least(kWidth, channels - c));
      const Floats bias = b.bias ? lanes.load(b.bias + first + c) : Floats{};
      restore_vector<Output>(from + c, pitch, [&](int i, int j, const Floats& sum) {
        if (i >= to.rows || j >= to.columns) return;
        const Floats result = s.g.slope == 1 ? sum + bias : activate(sum + bias, s.g.slope);
        float* place = to.corner + (i * width + j) * k + first + c;
        if (c + kWidth <= channels)
          store(place, result);
        else
          lanes.store(place, result);
      });
    }
  }
}

// Rows of v that meet one component of the weights of a panel.
void multiply_component(const State& s, const float* v, int64_t rows, const float* u, float* m,
                        int64_t width) {
  multiply_rows(
      {s.g.c, v, s.v_row, 1, u, kPanel, m, s.m_row, round_up(width, kLanes<float>), false}, rows);
}

// ---- weights first

template <class Method>
void convolve_block(const State& s, const Buffers& b, int64_t block, int thread) {
  const int64_t begin = block * s.block, end = least(begin + s.block, s.tiling.total());
  const int64_t tiles = end - begin, v_pitch = tiles * s.v_row, m_pitch = tiles * s.m_row;
  float* v = area_of(s, b, thread);
  float* products = v + s.v;
  const float* u = b.workspace + s.zeros;
  transform_tiles<Method>(s, b, 0, begin, end, v, v_pitch);
  constexpr int64_t kPanels = kChannelBlock / kPanel;
  for (int64_t first = 0; first < s.panels; first += kPanels) {
    const int64_t last = least(first + kPanels, s.panels);
    for (int64_t panel = first; panel < last; ++panel)
      for (int i = 0; i < kComponents; ++i)
        multiply_component(
            s, v + first_place<kPoints<Method>>(i, v_pitch),
            tiles * meetings_of<kPoints<Method>>(i),
            u + panel * s.u + first_place<kTilePoints>(i, s.u_pitch),
            products + (panel - first) * kPanel + first_place<kPoints<Method>>(i, m_pitch),
            panel_width(s, panel));
    restore_tiles<typename Method::Output>(s, b, begin, end, products, m_pitch, first * kPanel,
                                           least(last * kPanel, s.g.k) - first * kPanel);
  }
}

template <class Method>
void run_weights_first(const State& s, const Buffers& b) {
  run_tasks(s.team, s.panels, [&](int64_t panel, int thread) {
    transform_weights<typename Method::Taps>(s, b, panel, 0, area_of(s, b, thread),
                                             b.workspace + s.zeros + panel * s.u);
  });
  run_tasks(s.team, s.blocks,
            [&](int64_t block, int thread) { convolve_block<Method>(s, b, block, thread); });
}

// ---- tiles first

struct Rows {
  int64_t c;
  const float *v, *u;
  int64_t v_row;
  float* m;
  bool add;
};

// m [rows, kPanel] (+)= v [rows, c] u [c, kPanel]. Meanwhile it fetches the next rows of v, which
// lie behind these: no prefetcher follows so many rows side by side.
template <int rows>
void multiply_fetching(const Rows& t) {
  constexpr int64_t kWidth = kLanes<float>;
  Vector<float> sum[rows][kTileVectors] = {};
  TileRows<float, rows, false> v(t.v, t.v_row);
  const float *u = t.u, *next = t.v + rows * t.v_row;
#pragma GCC unroll 2
  for (int64_t p = 0, c = t.c; p < c; ++p, u += kPanel, next += kLine) {
    __builtin_prefetch(next);
    Vector<float> column[kTileVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kTileVectors; ++j) column[j] = load(u + j * kWidth);
    v.multiply_add_all(sum, column);
    v.advance(1);
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < kTileVectors; ++j) {
      float* m = t.m + i * kPanel + j * kWidth;
      store(m, t.add ? sum[i][j] + load(m) : sum[i][j]);
    }
}

template <int... rows>
auto fetching_tile(int64_t height, std::integer_sequence<int, rows...>) {
  static constexpr void (*kTiles[])(const Rows&) = {multiply_fetching<rows + 1>...};
  return kTiles[height - 1];
}

// Adds the terms of some input channels to the products of a block of tiles and a panel.
template <class Method>
void multiply_part(const State& s, int64_t part, const float* v, int64_t tiles, const float* u,
                   float* products) {
  const int64_t v_pitch = tiles * s.v_row, m_pitch = tiles * kPanel;
  for (int i = 0; i < kComponents; ++i) {
    Rows t = {least(s.part, s.g.c - part * s.part),
              v + first_place<kPoints<Method>>(i, v_pitch),
              u + first_place<kTilePoints>(i, s.u_pitch),
              s.v_row,
              products + first_place<kPoints<Method>>(i, m_pitch),
              part > 0};
    int64_t left = tiles * meetings_of<kPoints<Method>>(i);
    for (int64_t height; left > 0; left -= height) {
      height = tile_height(left);
      fetching_tile(height, std::make_integer_sequence<int, kTileRows>())(t);
      t.v += height * s.v_row;
      t.m += height * kPanel;
    }
  }
}

// Where the components of a block of tiles lie.
float* components_of(const State& s, const Buffers& b, int64_t part, int64_t block) {
  return b.workspace + s.zeros + (part * s.blocks + block) * s.v;
}

template <class Method>
void convolve_panel(const State& s, const Buffers& b, int64_t panel, int thread) {
  float* u = area_of(s, b, thread);
  float* products = u + s.u;
  float* unpacked = products + s.m;
  for (int64_t block = 0; block < s.blocks; ++block) {
    const int64_t begin = block * s.block, end = least(begin + s.block, s.tiling.total());
    for (int64_t part = 0; part < s.part_count; ++part) {
      if (block == 0 || s.part_count > 1)
        transform_weights<typename Method::Taps>(s, b, panel, part, unpacked, u);
      multiply_part<Method>(s, part, components_of(s, b, part, block), end - begin, u, products);
    }
    restore_tiles<typename Method::Output>(s, b, begin, end, products, (end - begin) * kPanel,
                                           panel * kPanel, panel_width(s, panel));
  }
}

template <class Method>
void run_tiles_first(const State& s, const Buffers& b) {
  const int64_t tiles = s.tiling.total(), chunks = parts(tiles, kTilesAtOnce);
  run_tasks(s.team, s.part_count * chunks, [&](int64_t task, int) {
    const int64_t part = task / chunks, begin = task % chunks * kTilesAtOnce;
    const int64_t first = begin / s.block * s.block;
    float* v = components_of(s, b, part, begin / s.block) + (begin - first) * s.v_row;
    transform_tiles<Method>(s, b, part * s.part, begin, least(begin + kTilesAtOnce, tiles), v,
                            least(s.block, tiles - first) * s.v_row);
  });
  run_tasks(s.team, s.panels,
            [&](int64_t panel, int thread) { convolve_panel<Method>(s, b, panel, thread); });
}

template <class Method>
int64_t run_winograd(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const float* bias = s.towards_input ? nullptr : as<float>(buffers[3]);
  const Buffers b = {as<float>(buffers[0]), as<float>(buffers[1]), as<float>(buffers[2]), bias,
                     as<float>(workspace)};
  std::memset(workspace, 0, s.zeros * sizeof(float));
  if (s.tiles_first)
    run_tiles_first<Method>(s, b);
  else
    run_weights_first<Method>(s, b);
  return -1;
}

// ---- planning

int64_t tiles_of_block(const State& s, int64_t points) {
  const int64_t tiles = s.tiling.total();
  if (s.tiles_first) return least(tiles, s.part_count > 1 ? kPanelTilesOfParts : kPanelTiles);
  const int64_t fitting = kBlockBytes / (points * points * s.v_row * sizeof(float));
  const int64_t block = least(most(fitting / kTileRows, 1) * kTileRows, kMaxTiles);
  return least(block, round_up(parts(tiles, 2 * threads()), kTileRows));
}

template <int points>
void choose_blocks(State& s) {
  const int64_t tiles = s.tiling.total(), c = s.g.c;
  s.panels = parts(s.g.k, kPanel);
  s.tiles_first = tiles * points * points <= s.g.k * kComponents;
  s.part = s.tiles_first && c > kManyChannels ? kPartChannels : c;
  s.part_count = parts(c, s.part);
  s.v_row = round_up(s.part, 16) + 16;
  s.u_pitch = s.part * kPanel;
  s.u = all_components<kTilePoints>(s.u_pitch);
  s.block = tiles_of_block(s, points);
  s.blocks = parts(tiles, s.block);
  s.zeros = round_up(c, 16) + 16;
  s.m_row = s.tiles_first ? kPanel : kChannelBlock;
  s.v = all_components<points>(s.block * s.v_row);
  s.m = all_components<points>(s.block * s.m_row);
  const int64_t unpacked = s.towards_input ? s.g.taps() * s.part * kPanel : 0;
  s.shared = s.tiles_first ? s.part_count * s.blocks * s.v : s.panels * s.u;
  s.area = s.tiles_first ? s.u + s.m + unpacked : most(s.v + s.m, unpacked);
  s.area = spread(s.area);
}

template <class Method>
const char* plan_method(Plan* plan, const Geometry& g, bool towards_input) {
  constexpr int64_t step = Method::Output::kTo;
  State& s = state_of<State>(plan);
  s.g = g;
  s.towards_input = towards_input;
  s.g.n *= g.in[0];  // the first axis, which the kernel does not touch
  s.tiling = {s.g.n, parts(s.g.out[1], step), parts(s.g.out[2], step)};
  choose_blocks<kPoints<Method>>(s);
  s.team = team_size(s.tiles_first ? s.panels : s.blocks, s.tiling.total() * g.c * g.k);
  plan->workspace = (s.zeros + s.shared + s.team * s.area) * static_cast<int64_t>(sizeof(float));
  plan->run = run_winograd<Method>;
  return nullptr;
}

}  // namespace

const char* plan_winograd_forward(Plan* plan, const Geometry& g) {
  const char* refused = refuse_winograd(g);
  if (refused) return refused;
  if (g.stride[1] == 2) return plan_method<Strided>(plan, g, false);
  return (g.kernel[1] == 3 ? plan_method<Adjacent<3>> : plan_method<Adjacent<5>>)(plan, g, false);
}

const char* plan_winograd_input(Plan* plan, const Geometry& g) {
  const char* refused = refuse_winograd(g);
  if (refused) return refused;
  Geometry back = g;
  back.c = g.k;
  back.k = g.c;
  back.slope = 1;
  for (int i = 0; i < kSpatial; ++i) {
    back.in[i] = g.out[i];
    back.out[i] = g.in[i];
    back.low[i] = g.kernel[i] - 1 - g.low[i];
  }
  if (g.stride[1] == 2) {
    if (g.low[1] != 1 || g.low[2] != 1) return "winograd: expected a padding of 1 at stride 2";
    back.low[1] = back.low[2] = 0;
    return plan_method<Spread>(plan, back, true);
  }
  return (g.kernel[1] == 3 ? plan_method<Adjacent<3>> : plan_method<Adjacent<5>>)(plan, back, true);
}

}  // namespace needle::NEEDLE_ISA
