// The gradient of the weights, directly: dw[tap, c, k] sums x * g over the pixels whose tap lies
// inside the image. A task is a block of channels c and of channels k, for all taps or for some
// lines of the kernel, and a part of the pixels, which it visits in a fixed order. The parts follow
// from the geometry alone and are added up in order: the result does not depend on the threads.
#include <cstring>

#include "conv/tile.h"
#include "gemm/pack.h"
#include "base/spans.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPanel = kTileColumns<float>;
constexpr int64_t kBlockC = 64, kBlockK = 64;
constexpr int64_t kOneTapBlock = 128;  // of both: the sums leave room, images are read once
constexpr int64_t kPixels = 128;       // between two visits of the sums: a panel of g is 16 KB
constexpr int64_t kFewChannels = 16;   // at most
constexpr int64_t kLineFloats = 16;    // of a line of the caches
constexpr int64_t kLeastTasks = 16;    // pixels are cut into parts where there are fewer

struct State {
  Geometry g;
  bool join;    // the taps of a line and their channels are rows of one tile: few channels
  bool g_fits;  // g is one panel as it lies
  int64_t block_c, block_k, parts_c, parts_k, lines_per_task, parts_lines, parts_pixels;
  int64_t columns, width;  // of an image's results in a block of pixels; k, padded
  int64_t pixel_rows, row_blocks, column_blocks;
  int64_t tile_rows;                       // at most
  int64_t sums, packed_g, packed_x, area;  // floats
  int team;
};

// Rows of `count` neighbouring pixels. x: of the first one, in units of x_unit floats; g: number in
// the block.
struct PixelRun {
  int64_t x, g, rows, count;
};

struct RunTile {
  const PixelRun* runs;
  int64_t run_count;
  const float *x, *g;
  int64_t x_unit, x_step, x_row, g_step, g_row;  // floats; steps from pixel to pixel
  float* sums;
  int64_t sums_row;
  const float* fetch;  // lines to fetch: one for each pixel, at this distance
  int64_t fetch_step;
};

template <int rows, int vectors>
void multiply_runs(const RunTile& t) {
  constexpr int64_t kWidth = kLanes<float>;
  Vector<float> sum[rows][vectors] = {};
  for (int r = 0; r < rows; ++r)  // needed only at the end: time to fetch them
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(t.sums + r * t.sums_row + j * kWidth, 1);
  const int64_t x_step = t.x_step, x_row = t.x_row, g_step = t.g_step, g_row = t.g_row;
  const int64_t fetch_step = t.fetch_step;
  const float* fetch = t.fetch;
  for (int64_t i = 0; i < t.run_count; ++i) {
    const PixelRun run = t.runs[i];
    const float* x_line = t.x + run.x * t.x_unit;
    const float* g_line = t.g + run.g * g_step;
    for (int64_t line = run.rows; line > 0; --line, x_line += x_row, g_line += g_row) {
      const float *x = x_line, *g = g_line;
      for (int64_t p = run.count; p > 0; --p, x += x_step, g += g_step, fetch += fetch_step) {
        __builtin_prefetch(fetch, 0, 2);
        Vector<float> column[vectors];
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) column[j] = load(g + j * kWidth);
#pragma GCC unroll 32
        for (int r = 0; r < rows; ++r) multiply_add<vectors>(sum[r], x + r, column, r % 3 != 0);
      }
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      float* to = t.sums + r * t.sums_row + j * kWidth;
      store(to, load(to) + sum[r][j]);
    }
}

// One vector of columns leaves registers for twice as many rows (joined ones: packed are fewer).
constexpr int kSlimRows = 2 * kTileRows;

using MultiplyRuns = void (*)(const RunTile&);
template <int vectors, int... rows>
MultiplyRuns runs_in(int64_t height, std::integer_sequence<int, rows...>) {
  static constexpr MultiplyRuns kTiles[] = {multiply_runs<rows + 1, vectors>...};
  return kTiles[height - 1];
}
MultiplyRuns runs_for(int64_t rows, int64_t vectors) {
  return vectors == 1 ? runs_in<1>(rows, std::make_integer_sequence<int, kSlimRows>())
                      : runs_in<2>(rows, std::make_integer_sequence<int, kTileRows>());
}

// ---- one task

// Pixels of the next block that have not been fetched yet: of each, so many lines from here on.
struct Ahead {
  const float *x, *g;
  int64_t x_lines, g_lines;
};

struct Task {
  int64_t group, c, c_count, k, k_count;  // within the group
  int64_t line_begin, line_end;           // lines of the kernel: (depth, height)
  int64_t block_begin, block_end;         // blocks of pixels
  float *sums, *packed_g, *packed_x;
  PixelRun* runs;
  const float *x, *g;
  float* out;
  Ahead* ahead;
};

struct PixelBlock {
  int64_t row_begin, row_end;        // (image, depth, height) of the results
  int64_t column_begin, column_end;  // width
  int64_t columns() const { return column_end - column_begin; }
  int64_t pixels() const { return (row_end - row_begin) * columns(); }
};

PixelBlock block_at(const State& s, int64_t index) {
  const int64_t row = index / s.column_blocks * s.pixel_rows;
  const int64_t column = index % s.column_blocks * s.columns;
  return {row, least(row + s.pixel_rows, s.g.n * s.g.out[0] * s.g.out[1]), column,
          least(column + s.columns, s.g.out[2])};
}

// The part of a block that the task reads, without the frame around images.
Ahead pixels_of(const State& s, const Task& t, const PixelBlock& b) {
  const Geometry& g = s.g;
  const int64_t plane = b.row_begin / g.out[1], h = b.row_begin % g.out[1];
  const int64_t line = (plane / g.out[0] * g.in[0] + plane % g.out[0] * g.stride[0]) * g.in[1];
  const int64_t x = (line + h * g.stride[1]) * g.in[2] + b.column_begin * g.stride[2];
  const int64_t result = b.row_begin * g.out[2] + b.column_begin;
  return {t.x + x * g.c + t.group * g.group_c() + t.c,
          t.g + result * g.k + t.group * g.group_k() + t.k, parts(t.c_count, kLineFloats),
          parts(t.k_count, kLineFloats)};
}

// A line of each of these pixels while a tile is multiplied.
void fetch_line(const State& s, Ahead* ahead, RunTile* tile) {
  tile->fetch = tile->g;  // again and again, if nothing is left
  tile->fetch_step = 0;
  if (ahead->x_lines > 0) {
    tile->fetch = ahead->x;
    tile->fetch_step = s.g.stride[2] * s.g.c;
    ahead->x += kLineFloats;
    --ahead->x_lines;
  } else if (ahead->g_lines > 0) {
    tile->fetch = ahead->g;
    tile->fetch_step = s.g.k;
    ahead->g += kLineFloats;
    --ahead->g_lines;
  }
}

// g's channels of the task: [k / kPanel][row][column][kPanel].
const float* pack_gradient(const State& s, const Task& t, const PixelBlock& b) {
  const float* block = t.g + (b.row_begin * s.g.out[2] + b.column_begin) * s.g.k;
  if (s.g_fits) return block;
  for (int64_t k = 0; k < t.k_count; k += kPanel) {
    const float* from = block + t.group * s.g.group_k() + t.k + k;
    float* to = t.packed_g + k * b.pixels();
    for (int64_t row = b.row_begin; row < b.row_end; ++row) {
      pack_panel(to, kPanel, from, least(kPanel, t.k_count - k), 1, b.columns(), s.g.k);
      to += b.columns() * kPanel;
      from += s.g.out[2] * s.g.k;
    }
  }
  return t.packed_g;
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

// body(row, end, line of x): rows of a block, all of one image and depth, whose line of the kernel
// reads inside the image; the first one's line of x, from which the others lie stride[1] apart.
template <class Body>
void each_rows(const Geometry& g, const PixelBlock& b, int64_t line, const Body& body) {
  const int64_t to_y = line % g.kernel[1] * g.dilation[1] - g.low[1];
  const int64_t to_z = line / g.kernel[1] * g.dilation[0] - g.low[0];
  const Range all = inside(0, g.out[1], g.stride[1], to_y, g.in[1]);
  int64_t h = b.row_begin % g.out[1], plane = b.row_begin / g.out[1];
  for (int64_t row = b.row_begin, next; row < b.row_end; row = next, h = 0, ++plane) {
    next = least(b.row_end, row - h + g.out[1]);
    const int64_t begin = most(h, all.begin), end = least(h + next - row, all.end);
    const int64_t image = plane / g.out[0], z = plane % g.out[0] * g.stride[0] + to_z;
    if (begin < end && z >= 0 && z < g.in[0])
      body(row - h + begin, row - h + end,
           (image * g.in[0] + z) * g.in[1] + begin * g.stride[1] + to_y);
  }
}

// x [count, height] with rows x_step apart, side by side.
void pack_pixels(float* to, const float* x, int64_t x_step, int64_t height, int64_t count) {
  if (kMaskedLoads || height < 4) {
    const Tail<float> all(height);
    for (int64_t i = 0; i < count; ++i, to += height, x += x_step) all.store(to, all.load(x));
    return;
  }
  for (int64_t i = 0; i < count; ++i, to += height, x += x_step) {
    for (int64_t c = 0; c + 4 < height; c += 4) std::memcpy(to + c, x + c, 4 * sizeof(float));
    std::memcpy(to + height - 4, x + height - 4, 4 * sizeof(float));
  }
}

// Where the pixels of `columns` of a block read at this tap, if inside. Joined taps read the image
// itself; returns the number of runs.
int64_t find_runs(const State& s, const Task& t, const PixelBlock& b, int64_t line, int64_t tap,
                  const Range& columns) {
  const Geometry& g = s.g;
  const int64_t x_column = columns.begin * g.stride[2] + tap - g.low[2];
  int64_t count = 0;
  each_rows(g, b, line, [&](int64_t row, int64_t end, int64_t x_line) {
    const int64_t place = (row - b.row_begin) * b.columns() + columns.begin - b.column_begin;
    t.runs[count++] = {(x_line * g.in[2] + x_column) * g.c, place, end - row,
                       columns.end - columns.begin};
  });
  return count;
}

// The same, with x packed: [c / height][pixel][height]. Rows that follow each other are one run.
int64_t pack_runs(const State& s, const Task& t, const PixelBlock& b, int64_t line, int64_t tap,
                  const Range& columns) {
  const Geometry& g = s.g;
  const int64_t length = columns.end - columns.begin;
  if (length <= 0) return 0;
  int64_t count = 0, taken = 0;
  each_rows(g, b, line, [&](int64_t row, int64_t end, int64_t) {
    for (; row < end; ++row, taken += length) {
      const int64_t place = (row - b.row_begin) * b.columns() + columns.begin - b.column_begin;
      PixelRun* last = t.runs + count - 1;
      if (count > 0 && last->g + last->count == place)
        last->count += length;
      else
        t.runs[count++] = {taken, place, 1, length};
    }
  });
  const int64_t x_column = columns.begin * g.stride[2] + tap * g.dilation[2] - g.low[2];
  const float* image = t.x + x_column * g.c + t.group * g.group_c() + t.c;
  int64_t done = 0;
  each_rows(g, b, line, [&](int64_t row, int64_t end, int64_t x_line) {
    for (; row < end; ++row, x_line += g.stride[1], done += length)
      for (int64_t c = 0, height; c < t.c_count; c += height) {
        height = tile_height(t.c_count - c, s.tile_rows);
        pack_pixels(t.packed_x + c * taken + done * height, image + x_line * g.in[2] * g.c + c,
                    g.stride[2] * g.c, height, length);
      }
  });
  return count;
}

// Adds the product of `rows` rows of x and all columns of g to the sums. `pixels`: in the runs.
void add_products(const State& s, const Task& t, const PixelBlock& b, const float* g,
                  int64_t run_count, int64_t rows, float* sums) {
  if (run_count == 0) return;
  int64_t pixels = 0;
  for (int64_t i = 0; i < run_count; ++i) pixels += t.runs[i].rows * t.runs[i].count;
  const int64_t pitch = s.g_fits ? s.g.k : kPanel, x_pixel = s.g.stride[2] * s.g.c;
  const int64_t x_row = s.g.stride[1] * s.g.in[2] * s.g.c, g_row = b.columns() * pitch;
  RunTile tile = {t.runs, run_count, nullptr, nullptr, 1,       x_pixel, x_row,
                  pitch,  g_row,     nullptr, s.width, nullptr, 0};
  for (int64_t k = 0; k < t.k_count; k += kPanel) {
    tile.g = g + k * b.pixels();
    for (int64_t i = 0, height; i < rows; i += height) {
      height = tile_height(rows - i, s.tile_rows);
      tile.x = s.join ? t.x + i : t.packed_x + i * pixels;
      if (!s.join) tile.x_unit = tile.x_step = height;
      tile.sums = sums + i * s.width + k;
      fetch_line(s, t.ahead, &tile);
      runs_for(height, parts(least(kPanel, t.k_count - k), kLanes<float>))(tile);
    }
  }
}

void add_line_by_taps(const State& s, const Task& t, const PixelBlock& b, const float* packed,
                      int64_t line, float* sums) {
  const Geometry& g = s.g;
  for (int64_t tap = 0; tap < g.kernel[2]; ++tap) {
    const Range columns =
        inside(b.column_begin, b.column_end, g.stride[2], tap * g.dilation[2] - g.low[2], g.in[2]);
    const int64_t count = pack_runs(s, t, b, line, tap, columns);
    add_products(s, t, b, packed, count, t.c_count, sums + tap * t.c_count * s.width);
  }
}

// Few channels, dilation 1: the rows are (tap, c), side by side in x. Columns that meet the same
// taps are taken together.
void add_line_joined(const State& s, const Task& t, const PixelBlock& b, const float* packed,
                     int64_t line, float* sums) {
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
    add_products(s, t, b, packed, count, (taps.end - taps.begin) * g.c,
                 sums + taps.begin * g.c * s.width);
  }
}

void write_sums(const State& s, const Task& t) {
  const Geometry& g = s.g;
  const float* from = t.sums;
  for (int64_t tap = t.line_begin * g.kernel[2]; tap < t.line_end * g.kernel[2]; ++tap)
    for (int64_t c = 0; c < t.c_count; ++c, from += s.width)
      std::memcpy(t.out + (tap * g.group_c() + t.c + c) * g.k + t.group * g.group_k() + t.k, from,
                  t.k_count * sizeof(float));
}

void run_task(const State& s, const Task& t) {
  const Geometry& g = s.g;
  const int64_t line_sums = g.kernel[2] * t.c_count * s.width;
  std::memset(t.sums, 0, (t.line_end - t.line_begin) * line_sums * sizeof(float));
  for (int64_t i = t.block_begin; i < t.block_end; ++i) {
    const PixelBlock b = block_at(s, i);
    *t.ahead = {};
    if (i + 1 < t.block_end) *t.ahead = pixels_of(s, t, block_at(s, i + 1));
    const float* packed = pack_gradient(s, t, b);
    for (int64_t line = t.line_begin; line < t.line_end; ++line)
      (s.join ? add_line_joined : add_line_by_taps)(s, t, b, packed, line,
                                                    t.sums + (line - t.line_begin) * line_sums);
  }
  write_sums(s, t);
}

// The parts of the pixels, one after the other from `sums` on, added up.
void add_parts(const State& s, float* __restrict out, const float* sums) {
  constexpr int64_t kPiece = 4096;
  const int64_t size = s.g.taps() * s.g.group_c() * s.g.k;
  run_tasks(team_size(parts(size, kPiece), size * s.parts_pixels), parts(size, kPiece),
            [&](int64_t piece, int) {
              const int64_t begin = piece * kPiece, end = least(begin + kPiece, size);
              std::memcpy(out + begin, sums + begin, (end - begin) * sizeof(float));
              for (int64_t part = 1; part < s.parts_pixels; ++part)
                for (int64_t i = begin; i < end; ++i) out[i] += sums[part * size + i];
            });
}

int64_t task_count(const State& s) {
  return s.g.groups * s.parts_c * s.parts_k * s.parts_lines * s.parts_pixels;
}

int64_t run(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t lines = s.g.kernel[0] * s.g.kernel[1], blocks = s.row_blocks * s.column_blocks;
  float* partial = as<float>(workspace) + s.team * s.area;
  run_spans(s.team, task_count(s), false, [&](int64_t index, int thread) {
    Task t;
    Ahead ahead;
    t.ahead = &ahead;
    t.c = index % s.parts_c * s.block_c;
    index /= s.parts_c;
    t.k = index % s.parts_k * s.block_k;
    index /= s.parts_k;
    t.line_begin = index % s.parts_lines * s.lines_per_task;
    t.line_end = least(t.line_begin + s.lines_per_task, lines);
    index /= s.parts_lines;
    const int64_t part = index % s.parts_pixels;
    t.block_begin = blocks * part / s.parts_pixels;
    t.block_end = blocks * (part + 1) / s.parts_pixels;
    t.group = index / s.parts_pixels;
    t.c_count = least(s.block_c, s.g.group_c() - t.c);
    t.k_count = least(s.block_k, s.g.group_k() - t.k);
    t.sums = as<float>(workspace) + thread * s.area;
    t.packed_g = t.sums + s.sums;
    t.packed_x = t.packed_g + s.packed_g;
    t.runs = reinterpret_cast<PixelRun*>(t.packed_x + s.packed_x);
    t.x = as<float>(buffers[1]);
    t.g = as<float>(buffers[2]);
    t.out = s.parts_pixels == 1 ? as<float>(buffers[0])
                                : partial + part * s.g.taps() * s.g.group_c() * s.g.k;
    run_task(s, t);
  });
  if (s.parts_pixels > 1) add_parts(s, as<float>(buffers[0]), partial);
  return -1;
}

void choose_blocks(State& s) {
  const Geometry& g = s.g;
  const int64_t lines = g.kernel[0] * g.kernel[1];
  const bool one_tap = g.taps() == 1;
  s.block_c = least(one_tap ? kOneTapBlock : s.join ? g.group_c() : kBlockC, g.group_c());
  s.block_k = least(one_tap ? kOneTapBlock : kBlockK, g.group_k());
  s.parts_c = parts(g.group_c(), s.block_c);
  s.parts_k = parts(g.group_k(), s.block_k);
  s.columns = least(g.out[2], kPixels);
  s.column_blocks = parts(g.out[2], s.columns);
  s.pixel_rows = s.column_blocks > 1 ? 1 : most(1, kPixels / s.columns);
  s.row_blocks = parts(g.n * g.out[0] * g.out[1], s.pixel_rows);
  const int64_t blocks = s.parts_c * s.parts_k * g.groups;
  s.parts_pixels = least(parts(kLeastTasks, blocks), parts(s.row_blocks * s.column_blocks, 2));
  // Lines of the kernel become tasks where there are too few others, or too large sums.
  const int64_t sums = g.taps() * s.block_c * s.block_k;
  const int64_t wanted = most(parts(4 * threads(), blocks * s.parts_pixels), parts(sums, 64 << 10));
  s.lines_per_task = parts(lines, least(wanted, lines));
  s.parts_lines = parts(lines, s.lines_per_task);
}

}  // namespace

const char* plan_direct_weight(Plan* plan, const Geometry& g) {
  State& s = state_of<State>(plan);
  s.g = g;
  s.join = g.c <= kFewChannels && g.groups == 1 && g.dilation[2] == 1;
  s.g_fits = g.groups == 1 && g.k <= kPanel && g.k % kLanes<float> == 0;
  choose_blocks(s);
  s.tile_rows = s.join && s.block_k <= kLanes<float> ? kSlimRows : kTileRows;
  s.width = round_up(s.block_k, kPanel);
  s.sums = spread(s.lines_per_task * g.kernel[2] * s.block_c * s.width);
  s.packed_g = s.g_fits ? 0 : spread(s.pixel_rows * s.columns * s.width);
  s.packed_x = s.join ? 0 : spread(s.pixel_rows * s.columns * s.block_c);
  s.area = spread(s.sums + s.packed_g + s.packed_x +
                  s.pixel_rows * static_cast<int64_t>(sizeof(PixelRun) / sizeof(float)));
  s.team = team_size(task_count(s), g.n * g.out_pixels() * g.taps() * g.group_c() * g.k / 8);
  const int64_t partial = s.parts_pixels > 1 ? s.parts_pixels * g.taps() * g.group_c() * g.k : 0;
  plan->workspace = (s.team * s.area + partial) * static_cast<int64_t>(sizeof(float));
  plan->run = run;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
