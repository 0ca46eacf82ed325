// Winograd's convolution, forward and towards the input (the same with flipped, transposed
// weights). The 36 components are 36 matrix products [tiles, c] [c, k].
//
// Whatever is smaller is transformed first, for all threads: the weights, then each thread takes
// blocks of tiles whose components stay in its second-level cache; or the tiles, then each thread
// takes panels of output channels and transforms their weights for itself (small images, where the
// transformed weights would not fit any cache).
#include <cstring>

#include "conv_tile.h"
#include "conv_winograd.h"
#include "gemm_pack.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPanel = kTileColumns<float>;
constexpr int64_t kBlockBytes = 448 << 10;  // of a block's transformed input
constexpr int64_t kChannelBlock = 64;       // output channels between two visits of a block
constexpr int64_t kMaxTiles = 8 * kTileRows, kPanelTiles = 256;
constexpr int64_t kMostPanels = 4;  // of a task when tiles are transformed first

struct State {
  Geometry g;  // c and k as this direction sees them
  bool towards_input;
  Tiling tiling;
  int64_t block, blocks, panels;
  int64_t group, groups;  // panels of a task when tiles are transformed first
  bool tiles_first;
  int team;
  // Workspace, in floats: weights or tiles for all, then an area for each thread.
  int64_t v_row, v_pitch, m_row, m_pitch, u_pitch;
  int64_t shared, area, zeros, unpacked;
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

template <int m>
void transform_tiles(const State& s, const Buffers& b, int64_t begin, int64_t end, float* v) {
  const float* patch[kComponents];
  for (int64_t tile = begin; tile < end; ++tile, v += s.v_row) {
    const TilePosition at = tile_position(s.tiling, tile);
    patch_addresses<kTilePoints>(patch, b.x, image_of(s.g.in, s.g.c), at.image, at.y - s.g.low[1],
                                 at.x - s.g.low[2], b.workspace);
    transform_patch<TransformInput>(patch, s.g.c, v, s.v_pitch);
  }
}

// Components of the weights that lead to the output channels of a panel: [36][c][kPanel].
// `unpacked`: room for the panel's weights [taps, c, kPanel].
template <int taps>
void transform_weights(const State& s, const Buffers& b, int64_t panel, float* unpacked, float* u) {
  const int64_t c = s.g.c, k = s.g.k, first = panel * kPanel, width = panel_width(s, panel);
  const float* w = b.w + first;
  int64_t tap_pitch = c * k, row = k;
  if (s.towards_input) {
    for (int64_t tap = 0; tap < taps * taps; ++tap)
      pack_panel(unpacked + tap * c * kPanel, kPanel,
                 b.w + (taps * taps - 1 - tap) * c * k + first * c, width, c, c, 1);
    w = unpacked;
    tap_pitch = c * kPanel;
    row = kPanel;
  }
  const float* patch[taps * taps];
  for (int64_t i = 0; i < c; ++i, w += row, u += kPanel) {
    for (int64_t tap = 0; tap < taps * taps; ++tap) patch[tap] = w + tap * tap_pitch;
    transform_patch<TransformTaps<taps>>(patch, width, u, s.u_pitch);
  }
}

// m x m results of each tile, from the components of `channels` output channels from `first` on.
template <int m>
void restore_tiles(const State& s, const Buffers& b, int64_t begin, int64_t end, const float* from,
                   int64_t first, int64_t channels) {
  constexpr int64_t kWidth = kLanes<float>;
  const int64_t height = s.g.out[1], width = s.g.out[2], k = s.g.k;
  for (int64_t tile = begin; tile < end; ++tile, from += s.m_row) {
    const TilePosition at = tile_position(s.tiling, tile);
    float* corner = b.out + ((at.image * height + at.y) * width + at.x) * k + first;
    const int64_t rows = least(m, height - at.y), columns = least(m, width - at.x);
    for (int64_t c = 0; c < channels; c += kWidth) {
      const Tail<float> lanes(least(kWidth, channels - c));
      const Floats bias = b.bias ? lanes.load(b.bias + first + c) : Floats{};
      restore_vector<m>(from + c, s.m_pitch, [&](int i, int j, const Floats& sum) {
        if (i >= rows || j >= columns) return;
        const Floats result = s.g.slope == 1 ? sum + bias : activate(sum + bias, s.g.slope);
        float* to = corner + (i * width + j) * k + c;
        if (c + kWidth <= channels)
          store(to, result);
        else
          lanes.store(to, result);
      });
    }
  }
}

// One component of `tiles` tiles and one panel.
void multiply_component(const State& s, const float* v, int64_t tiles, const float* u, float* m,
                        int64_t width) {
  multiply_rows(
      {s.g.c, v, s.v_row, 1, u, kPanel, m, s.m_row, round_up(width, kLanes<float>), false}, tiles);
}

// ---- weights first

template <int m>
void convolve_block(const State& s, const Buffers& b, int64_t block, int thread) {
  const int64_t begin = block * s.block, end = least(begin + s.block, s.tiling.total());
  float* v = area_of(s, b, thread);
  float* products = v + kComponents * s.v_pitch;
  const float* u = b.workspace + s.zeros;
  transform_tiles<m>(s, b, begin, end, v);
  constexpr int64_t kPanels = kChannelBlock / kPanel;
  for (int64_t first = 0; first < s.panels; first += kPanels) {
    const int64_t last = least(first + kPanels, s.panels);
    for (int64_t panel = first; panel < last; ++panel)
      for (int component = 0; component < kComponents; ++component)
        multiply_component(s, v + component * s.v_pitch, end - begin,
                           u + (panel * kComponents + component) * s.u_pitch,
                           products + (panel - first) * kPanel + component * s.m_pitch,
                           panel_width(s, panel));
    restore_tiles<m>(s, b, begin, end, products, first * kPanel,
                     least(last * kPanel, s.g.k) - first * kPanel);
  }
}

template <int m>
void run_weights_first(const State& s, const Buffers& b) {
  run_tasks(s.team, s.panels, [&](int64_t panel, int thread) {
    transform_weights<7 - m>(s, b, panel, area_of(s, b, thread),
                             b.workspace + s.zeros + panel * kComponents * s.u_pitch);
  });
  run_tasks(s.team, s.blocks,
            [&](int64_t block, int thread) { convolve_block<m>(s, b, block, thread); });
}

// ---- tiles first

// A component of the tiles is read from the last cache once for all panels of the group.
template <int m>
void convolve_panels(const State& s, const Buffers& b, int64_t group, int thread) {
  const int64_t first = group * s.group, last = least(first + s.group, s.panels);
  float* u = area_of(s, b, thread);
  float* products = u + s.group * kComponents * s.u_pitch;
  const int64_t tiles = s.tiling.total(), in_group = (last - first) * kPanel;
  for (int64_t panel = first; panel < last; ++panel)
    transform_weights<7 - m>(s, b, panel, products, u + (panel - first) * kComponents * s.u_pitch);
  for (int64_t begin = 0; begin < tiles; begin += kPanelTiles) {
    const int64_t end = least(begin + kPanelTiles, tiles);
    const float* v = b.workspace + s.zeros + begin * s.v_row;
    for (int component = 0; component < kComponents; ++component)
      for (int64_t panel = first; panel < last; ++panel)
        multiply_component(s, v + component * s.v_pitch, end - begin,
                           u + ((panel - first) * kComponents + component) * s.u_pitch,
                           products + component * s.m_pitch + (panel - first) * kPanel,
                           panel_width(s, panel));
    restore_tiles<m>(s, b, begin, end, products, first * kPanel,
                     least(in_group, s.g.k - first * kPanel));
  }
}

template <int m>
void run_tiles_first(const State& s, const Buffers& b) {
  run_tasks(s.team, s.blocks, [&](int64_t block, int) {
    const int64_t begin = block * s.block, end = least(begin + s.block, s.tiling.total());
    transform_tiles<m>(s, b, begin, end, b.workspace + s.zeros + begin * s.v_row);
  });
  run_tasks(s.team, s.groups,
            [&](int64_t group, int thread) { convolve_panels<m>(s, b, group, thread); });
}

template <int m>
int64_t run_winograd(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const float* bias = s.towards_input ? nullptr : as<float>(buffers[3]);
  const Buffers b = {as<float>(buffers[0]), as<float>(buffers[1]), as<float>(buffers[2]), bias,
                     as<float>(workspace)};
  std::memset(workspace, 0, s.zeros * sizeof(float));
  if (s.tiles_first)
    run_tiles_first<m>(s, b);
  else
    run_weights_first<m>(s, b);
  return -1;
}

// ---- planning

// As many panels for a task as leave tasks for all threads, and everything in half of the last
// cache.
void choose_group(State& s, int64_t tiles) {
  const int64_t v = kComponents * s.v_pitch;
  const int64_t for_panel = kComponents * (s.u_pitch + tiles * kPanel) * threads();
  const auto fits = [&](int64_t group) {
    return (v + group * for_panel) * static_cast<int64_t>(sizeof(float)) <=
               last_cache_bytes() / 2 &&
           parts(s.panels, group) >= 2 * threads();
  };
  s.group = kMostPanels;
  while (s.group > 1 && !fits(s.group)) s.group /= 2;
  s.groups = parts(s.panels, s.group);
}

void choose_blocks(State& s) {
  const int64_t tiles = s.tiling.total(), c = s.g.c;
  s.panels = parts(s.g.k, kPanel);
  s.v_row = round_up(c, 16) + 16;
  s.u_pitch = spread(c * kPanel);
  s.tiles_first = tiles <= s.g.k;
  const int64_t fitting = kBlockBytes / (kComponents * s.v_row * sizeof(float));
  s.block = most(fitting / kTileRows, 1) * kTileRows;
  s.block = least(least(s.block, kMaxTiles), round_up(parts(tiles, 2 * threads()), kTileRows));
  s.blocks = parts(tiles, s.block);
  s.zeros = round_up(c, 16) + 16;
  const int64_t in_v = s.tiles_first ? tiles : s.block;
  const int64_t in_m = s.tiles_first ? least(tiles, kPanelTiles) : s.block;
  s.v_pitch = spread(in_v * s.v_row);
  s.unpacked = s.towards_input ? s.g.taps() * c * kPanel : 0;
  const int64_t v = kComponents * s.v_pitch, u = kComponents * s.u_pitch;
  if (s.tiles_first) choose_group(s, in_m);
  s.m_row = s.tiles_first ? s.group * kPanel : kChannelBlock;
  s.m_pitch = spread(in_m * s.m_row);
  const int64_t m = kComponents * s.m_pitch;
  s.shared = s.tiles_first ? v : s.panels * u;
  s.area = s.tiles_first ? s.group * u + most(m, s.unpacked) : most(v + m, s.unpacked);
  s.area = spread(s.area);
}

const char* plan_winograd(Plan* plan, const Geometry& g, bool towards_input) {
  const bool three = g.kernel[1] == 3 && g.kernel[2] == 3;
  const bool five = g.kernel[1] == 5 && g.kernel[2] == 5;
  if (g.kernel[0] != 1 || !(three || five)) return "winograd: wants a kernel of 3x3 or 5x5";
  for (int i = 0; i < kSpatial; ++i)
    if (g.stride[i] != 1 || g.dilation[i] != 1) return "winograd: wants stride and dilation 1";
  if (g.groups != 1) return "winograd: wants one group";
  State& s = state_of<State>(plan);
  s.g = g;
  s.towards_input = towards_input;
  // The first axis, which the kernel does not touch, only multiplies the images.
  if (g.in[0] != g.out[0]) return "winograd: wants two spatial axes";
  s.g.n *= g.in[0];
  const int64_t step = three ? 4 : 2;
  s.tiling = {s.g.n, parts(s.g.out[1], step), parts(s.g.out[2], step), step};
  choose_blocks(s);
  s.team = team_size(s.tiles_first ? s.groups : s.blocks, s.tiling.total() * g.c * g.k);
  plan->workspace = (s.zeros + s.shared + s.team * s.area) * static_cast<int64_t>(sizeof(float));
  plan->run = three ? run_winograd<4> : run_winograd<2>;
  return nullptr;
}

}  // namespace

const char* plan_winograd_forward(Plan* plan, const Geometry& g) {
  return plan_winograd(plan, g, false);
}

const char* plan_winograd_input(Plan* plan, const Geometry& g) {
  Geometry back = g;
  back.c = g.k;
  back.k = g.c;
  back.slope = 1;
  for (int i = 0; i < kSpatial; ++i) {
    back.in[i] = g.out[i];
    back.out[i] = g.in[i];
    back.low[i] = g.kernel[i] - 1 - g.low[i];
  }
  return plan_winograd(plan, back, true);
}

}  // namespace needle::NEEDLE_ISA
