// The gradient of the weights, directly: dw[tap, c, k] sums x * g over the pixels whose tap lies
// inside the image. A task is a block of channels c and of channels k, for all taps or for one line
// of the kernel; it visits all pixels in a fixed order, so that nothing is added up between
// threads.
#include <cstring>

#include "conv_tile.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPanel = kTileColumns<float>;
constexpr int64_t kBlockC = 64, kBlockK = 64;
constexpr int64_t kPixels = 256;  // between two visits of the sums
constexpr int64_t kFewChannels = 16;

struct State {
  Geometry g;
  bool join;  // the taps of a line and their channels are rows of one tile: few channels
  int64_t block_c, block_k, parts_c, parts_k, lines_per_task, parts_lines;
  int64_t columns, width;  // of an image's results in a block of pixels; k, padded
  int64_t pixel_rows, row_blocks, column_blocks;
  int64_t sums, packed, runs, area;  // floats; runs in numbers
  int team;
};

// Pixels of one line of the image: x where the tile's first row is, g packed.
struct PixelRun {
  const float* x;
  const float* g;
  int64_t count;
};

struct RunTile {
  const PixelRun* runs;
  int64_t run_count, x_step, g_step;
  float* sums;
  int64_t sums_row;
};

template <int rows, int vectors>
void multiply_runs(const RunTile& t) {
  constexpr int64_t kWidth = kLanes<float>;
  Vector<float> sum[rows][vectors] = {};
  for (int64_t i = 0; i < t.run_count; ++i) {
    const float* x = t.runs[i].x;
    const float* g = t.runs[i].g;
    for (int64_t p = t.runs[i].count; p > 0; --p, x += t.x_step, g += t.g_step) {
      Vector<float> column[vectors];
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) column[j] = load(g + j * kWidth);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) sum[r][j] += x[r] * column[j];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      float* to = t.sums + r * t.sums_row + j * kWidth;
      store(to, load(to) + sum[r][j]);
    }
}

using MultiplyRuns = void (*)(const RunTile&);
template <int vectors, int... rows>
MultiplyRuns runs_in(int64_t height, std::integer_sequence<int, rows...>) {
  static constexpr MultiplyRuns kTiles[] = {multiply_runs<rows + 1, vectors>...};
  return kTiles[height - 1];
}
MultiplyRuns runs_for(int64_t rows, int64_t vectors) {
  constexpr std::make_integer_sequence<int, kTileRows> kAll;
  return vectors == 1 ? runs_in<1>(rows, kAll) : runs_in<2>(rows, kAll);
}

// ---- one task

struct Task {
  int64_t group, c, c_count, k, k_count;  // within the group
  int64_t line_begin, line_end;           // lines of the kernel: (depth, height)
  float *sums, *packed;
  PixelRun* runs;
  const float *x, *g;
};

struct PixelBlock {
  int64_t row_begin, row_end;        // (image, depth, height) of the results
  int64_t column_begin, column_end;  // width
};

// A row of g's channels, then zeros up to kPanel.
void pack_row(float* to, const float* from, int64_t width) {
  constexpr int64_t kWidth = kLanes<float>;
  for (int64_t i = 0; i < kPanel; i += kWidth) {
    if (i + kWidth <= width)
      store(to + i, load(from + i));
    else
      store(to + i, i < width ? Tail<float>(width - i).load(from + i) : Vector<float>{});
  }
}

// g's channels of the task: [k / kPanel][row][column][kPanel].
void pack_gradient(const State& s, const Task& t, const PixelBlock& b) {
  const int64_t columns = b.column_end - b.column_begin;
  const int64_t pixels = (b.row_end - b.row_begin) * columns;
  for (int64_t k = 0; k < t.k_count; k += kPanel) {
    const int64_t width = least(kPanel, t.k_count - k);
    float* to = t.packed + k * pixels;
    for (int64_t row = b.row_begin; row < b.row_end; ++row) {
      const float* from =
          t.g + (row * s.g.out[2] + b.column_begin) * s.g.k + t.group * s.g.group_k() + t.k + k;
      for (int64_t i = 0; i < columns; ++i, to += kPanel, from += s.g.k) pack_row(to, from, width);
    }
  }
}

// Results i of `count` from `begin` on that read inside an image of `size` at this tap.
struct Range {
  int64_t begin, end;
};
Range inside(int64_t begin, int64_t end, int64_t stride, int64_t offset, int64_t size) {
  const int64_t first = offset < 0 ? parts(-offset, stride) : 0;
  const int64_t last = size > offset ? parts(size - offset, stride) : 0;
  return {most(begin, first), least(end, last)};
}

// Runs of the block's pixels at taps (line, tap .. ) whose width reads inside for `columns`.
int64_t find_runs(const State& s, const Task& t, const PixelBlock& b, int64_t line, int64_t tap,
                  const Range& columns) {
  const Geometry& g = s.g;
  if (columns.begin >= columns.end) return 0;
  const int64_t per_row = b.column_end - b.column_begin;
  const int64_t x_column = columns.begin * g.stride[2] + tap * g.dilation[2] - g.low[2];
  int64_t count = 0;
  for (int64_t row = b.row_begin; row < b.row_end; ++row) {
    const int64_t h = row % g.out[1], d = row / g.out[1] % g.out[0];
    const int64_t image = row / (g.out[0] * g.out[1]);
    const int64_t y = h * g.stride[1] + line % g.kernel[1] * g.dilation[1] - g.low[1];
    const int64_t z = d * g.stride[0] + line / g.kernel[1] * g.dilation[0] - g.low[0];
    if (y < 0 || y >= g.in[1] || z < 0 || z >= g.in[0]) continue;
    const int64_t pixel = ((image * g.in[0] + z) * g.in[1] + y) * g.in[2] + x_column;
    const int64_t place = (row - b.row_begin) * per_row + columns.begin - b.column_begin;
    t.runs[count++] = {t.x + pixel * g.c + t.group * g.group_c() + t.c, t.packed + place * kPanel,
                       columns.end - columns.begin};
  }
  return count;
}

// Adds the product of `rows` rows of x (from t.runs on) and all columns of g to the sums.
void add_products(const State& s, const Task& t, const PixelBlock& b, int64_t run_count,
                  int64_t rows, float* sums) {
  if (run_count == 0) return;
  const int64_t pixels = (b.row_end - b.row_begin) * (b.column_end - b.column_begin);
  RunTile tile = {t.runs, run_count, s.g.stride[2] * s.g.c, kPanel, nullptr, s.width};
  for (int64_t i = 0, height; i < rows; i += height) {
    height = tile_height(rows - i);
    for (int64_t k = 0; k < t.k_count; k += kPanel) {
      tile.sums = sums + i * s.width + k;
      runs_for(height, parts(least(kPanel, t.k_count - k), kLanes<float>))(tile);
      for (int64_t r = 0; r < run_count; ++r) t.runs[r].g += kPanel * pixels;
    }
    for (int64_t r = 0; r < run_count; ++r) {
      t.runs[r].g -= parts(t.k_count, kPanel) * kPanel * pixels;
      t.runs[r].x += height;
    }
  }
}

void add_line_by_taps(const State& s, const Task& t, const PixelBlock& b, int64_t line,
                      float* sums) {
  const Geometry& g = s.g;
  for (int64_t tap = 0; tap < g.kernel[2]; ++tap) {
    const Range columns =
        inside(b.column_begin, b.column_end, g.stride[2], tap * g.dilation[2] - g.low[2], g.in[2]);
    const int64_t count = find_runs(s, t, b, line, tap, columns);
    add_products(s, t, b, count, t.c_count, sums + tap * t.c_count * s.width);
  }
}

// Few channels, dilation 1: the rows are (tap, c), side by side in x. Columns that meet the same
// taps are taken together.
void add_line_joined(const State& s, const Task& t, const PixelBlock& b, int64_t line,
                     float* sums) {
  const Geometry& g = s.g;
  const auto taps_at = [&](int64_t column) {
    const int64_t from = column * g.stride[2] - g.low[2];
    return Range{most(0, -from), least(g.kernel[2], g.in[2] - from)};
  };
  for (int64_t begin = b.column_begin, end; begin < b.column_end; begin = end) {
    const Range taps = taps_at(begin);
    for (end = begin + 1; end < b.column_end; ++end) {
      const Range next = taps_at(end);
      if (next.begin != taps.begin || next.end != taps.end) break;
    }
    if (taps.begin >= taps.end) continue;
    const int64_t count = find_runs(s, t, b, line, taps.begin, {begin, end});
    add_products(s, t, b, count, (taps.end - taps.begin) * g.c, sums + taps.begin * g.c * s.width);
  }
}

void write_sums(const State& s, const Task& t, float* out) {
  const Geometry& g = s.g;
  const float* from = t.sums;
  for (int64_t tap = t.line_begin * g.kernel[2]; tap < t.line_end * g.kernel[2]; ++tap)
    for (int64_t c = 0; c < t.c_count; ++c, from += s.width)
      std::memcpy(out + (tap * g.group_c() + t.c + c) * g.k + t.group * g.group_k() + t.k, from,
                  t.k_count * sizeof(float));
}

void run_task(const State& s, Task& t, float* out) {
  const Geometry& g = s.g;
  const int64_t line_sums = g.kernel[2] * t.c_count * s.width, rows = g.n * g.out[0] * g.out[1];
  std::memset(t.sums, 0, (t.line_end - t.line_begin) * line_sums * sizeof(float));
  for (int64_t i = 0; i < s.row_blocks * s.column_blocks; ++i) {
    const int64_t row = i / s.column_blocks * s.pixel_rows;
    const int64_t column = i % s.column_blocks * s.columns;
    const PixelBlock b = {row, least(row + s.pixel_rows, rows), column,
                          least(column + s.columns, g.out[2])};
    pack_gradient(s, t, b);
    for (int64_t line = t.line_begin; line < t.line_end; ++line)
      (s.join ? add_line_joined : add_line_by_taps)(s, t, b, line,
                                                    t.sums + (line - t.line_begin) * line_sums);
  }
  write_sums(s, t, out);
}

int64_t run(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t lines = s.g.kernel[0] * s.g.kernel[1];
  const int64_t tasks = s.g.groups * s.parts_c * s.parts_k * s.parts_lines;
  run_tasks(s.team, tasks, [&](int64_t index, int thread) {
    Task t;
    t.c = index % s.parts_c * s.block_c;
    index /= s.parts_c;
    t.k = index % s.parts_k * s.block_k;
    index /= s.parts_k;
    t.line_begin = index % s.parts_lines * s.lines_per_task;
    t.line_end = least(t.line_begin + s.lines_per_task, lines);
    t.group = index / s.parts_lines;
    t.c_count = least(s.block_c, s.g.group_c() - t.c);
    t.k_count = least(s.block_k, s.g.group_k() - t.k);
    t.sums = as<float>(workspace) + thread * s.area;
    t.packed = t.sums + s.sums;
    t.runs = reinterpret_cast<PixelRun*>(t.packed + s.packed);
    t.x = as<float>(buffers[1]);
    t.g = as<float>(buffers[2]);
    run_task(s, t, as<float>(buffers[0]));
  });
  return -1;
}

void choose_blocks(State& s) {
  const Geometry& g = s.g;
  const int64_t lines = g.kernel[0] * g.kernel[1];
  s.block_c = s.join ? g.group_c() : least(kBlockC, g.group_c());
  s.block_k = least(kBlockK, g.group_k());
  s.parts_c = parts(g.group_c(), s.block_c);
  s.parts_k = parts(g.group_k(), s.block_k);
  // Lines of the kernel become tasks where there are too few blocks, or too large sums.
  const int64_t sums = g.taps() * s.block_c * s.block_k, blocks = s.parts_c * s.parts_k * g.groups;
  const int64_t wanted = most(parts(4 * threads(), blocks), parts(sums, 64 << 10));
  s.lines_per_task = parts(lines, least(wanted, lines));
  s.parts_lines = parts(lines, s.lines_per_task);
  s.columns = least(g.out[2], kPixels);
  s.column_blocks = parts(g.out[2], s.columns);
  s.pixel_rows = s.column_blocks > 1 ? 1 : most(1, kPixels / s.columns);
  s.row_blocks = parts(g.n * g.out[0] * g.out[1], s.pixel_rows);
}

}  // namespace

const char* plan_direct_weight(Plan* plan, const Geometry& g) {
  State& s = state_of<State>(plan);
  s.g = g;
  s.join = g.c < kFewChannels && g.groups == 1 && g.dilation[2] == 1;
  choose_blocks(s);
  s.width = round_up(s.block_k, kPanel);
  s.sums = spread(s.lines_per_task * g.kernel[2] * s.block_c * s.width);
  s.packed = spread(s.pixel_rows * s.columns * s.width);
  s.area = spread(s.sums + s.packed +
                  s.pixel_rows * static_cast<int64_t>(sizeof(PixelRun) / sizeof(float)));
  const int64_t tasks = g.groups * s.parts_c * s.parts_k * s.parts_lines;
  s.team = team_size(tasks, g.n * g.out_pixels() * g.taps() * g.group_c() * g.k / 8);
  plan->workspace = s.team * s.area * static_cast<int64_t>(sizeof(float));
  plan->run = run;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
