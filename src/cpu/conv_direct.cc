// Direct convolution, forward and towards the input: an implicit matrix product. A tile's rows are
// pixels that meet the same taps (conv_direct.h), wherever they lie; its columns are output
// channels, whose weights are packed in panels [taps, c, columns].
#include "conv_direct.h"
#include "conv_tile.h"
#include "gemm_pack.h"
#include "spans.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPanel = kTileColumns<float>;
constexpr int kRows = kTileRows < 12 ? kTileRows : 12;  // of a tile, each has its own pointer
constexpr int64_t kChunk = 8 * kRows;                   // pixels of a task

struct State {
  AxisGeometry axes[kSpatial];
  int64_t images, groups, c, k;  // per group: c read, k written
  int64_t source_pixels, result_pixels;
  int64_t panels, panels_per_task;
  int64_t packed;                                        // floats of one panel's weights
  int64_t weight_tap, weight_c, weight_k, weight_group;  // strides; the tap's is negative if back
  int64_t weight_first;
  bool back;
  // Few pixels: each weight is used about once, and those of taps on padding not at all, so they
  // are read where they are: inference of a small ResNet-9 at batch 1 takes 0.77 of the time
  // (Sapphire Rapids).
  bool packs;
  int64_t b_row;  // floats from channel to channel of the weights that tiles read
  // One tap: so few products follow a source that its way from memory shows. Fetching ahead and
  // walking in spans, 1x1 64-128@32 takes 0.75 of the time (Sapphire Rapids); a first convolution
  // of three channels, 3x3, takes 1.1.
  bool reads_once;
  // Large results go past the caches: 1x1 64-128@32 takes 0.93 of the time (Sapphire Rapids), to
  // the input 0.95.
  bool streams;
  float slope;
  int team;
  int64_t spans_offset, packed_offset, lines_offset, line_count;  // workspace, bytes
};

// Taps that lie one after the other in memory and in the packed weights.
struct Line {
  int64_t a, b, length;
};

struct Span {  // a stretch along each axis
  int32_t stretch[kSpatial];
  int64_t first_task;
};

struct Buffers {
  float* out;
  const float* x;
  const float* w;
  const float* bias;
};

struct RowTile {
  const float* a[kRows];
  float* c[kRows];
  const Line* lines;
  int64_t line_count;
  const float* b;
  int64_t b_row;
  const float* bias;  // null: none
  int64_t width;
  float slope;
  bool streams;
  const float* next;  // what `fetches` fetches: the sources of the next rows, side by side
};

// fetches: a part of the next sources with each step. All at once they would wait for each other,
// and the products for them: 1x1 64-128@32 takes 0.94 of the time, to the input 0.85 (Sapphire
// Rapids).
template <int rows, int vectors, bool fetches>
void multiply_lines(const RowTile& t) {
  constexpr int64_t kWidth = kLanes<float>;
  const Tail<float> last(t.width - (vectors - 1) * kWidth);
  Vector<float> sum[rows][vectors] = {};
  // The results lie far apart and are written only at the end: time to fetch their lines.
  for (int r = 0; r < rows && !t.streams; ++r)
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(t.c[r] + j * kWidth, 1);
  const int64_t b_row = t.b_row;
  [[maybe_unused]] const float* next = t.next;
  for (int64_t i = 0; i < t.line_count; ++i) {
    const Line line = t.lines[i];
    const float* b = t.b + line.b;
    for (int64_t p = line.a, end = line.a + line.length; p < end; ++p, b += b_row) {
      if constexpr (fetches) {
        __builtin_prefetch(next);
        next += rows;
      }
      Vector<float> column[vectors];
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) column[j] = load(b + j * kWidth);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) multiply_add<vectors>(sum[r], t.a[r] + p, column, r);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      const bool whole = j + 1 < vectors;
      Vector<float> x = sum[r][j];
      const float* bias = t.bias + j * kWidth;
      if (t.bias) x += whole ? load(bias) : last.load(bias);
      if (t.slope != 1) x = activate(x, t.slope);
      if (t.streams)
        Streamed<float>().store(t.c[r] + j * kWidth, x);
      else if (whole)
        store(t.c[r] + j * kWidth, x);
      else
        last.store(t.c[r] + j * kWidth, x);
    }
  }
}

using MultiplyLines = void (*)(const RowTile&);
template <int vectors, int... rows>
MultiplyLines lines_in(int64_t height, std::integer_sequence<int, rows...>) {
  static constexpr MultiplyLines kTiles[] = {multiply_lines<rows + 1, vectors, false>...};
  return kTiles[height - 1];
}
MultiplyLines lines_for(int64_t rows, int64_t vectors, bool fetches) {
  constexpr std::make_integer_sequence<int, kRows> kAll;
  if (fetches)
    return vectors == 1 ? multiply_lines<kRows, 1, true> : multiply_lines<kRows, 2, true>;
  return vectors == 1 ? lines_in<1>(rows, kAll) : lines_in<2>(rows, kAll);
}

// ---- what lies where

struct Layout {
  const Stretch* stretches[kSpatial];
  int64_t counts[kSpatial];
  const Span* spans;
  int64_t span_count, tasks;
};

int64_t pixels_of(const State& s, const Layout& l, const Span& span) {
  int64_t pixels = s.images;
  for (int axis = 0; axis < kSpatial; ++axis) pixels *= l.stretches[axis][span.stretch[axis]].count;
  return pixels;
}

Layout lay_out(const State& s, void* workspace) {
  Layout l;
  Stretch* next = as<Stretch>(workspace);
  for (int axis = 0; axis < kSpatial; ++axis) {
    l.stretches[axis] = next;
    l.counts[axis] = stretches_of(s.axes[axis], next);
    next += l.counts[axis];
  }
  Span* spans = as<Span>(byte_offset(workspace, s.spans_offset));
  l.spans = spans;
  l.span_count = l.tasks = 0;
  const int64_t per_chunk = s.groups * parts(s.panels, s.panels_per_task);
  for (int32_t i = 0; i < l.counts[0]; ++i)
    for (int32_t j = 0; j < l.counts[1]; ++j)
      for (int32_t k = 0; k < l.counts[2]; ++k) {
        Span& span = spans[l.span_count++];
        span = {{i, j, k}, l.tasks};
        l.tasks += parts(pixels_of(s, l, span), kChunk) * per_chunk;
      }
  return l;
}

// The lines of a span's taps; returns their number.
int64_t lines_of(const State& s, const Layout& l, const Span& span, Line* lines) {
  const Stretch& d = l.stretches[0][span.stretch[0]];
  const Stretch& h = l.stretches[1][span.stretch[1]];
  const Stretch& w = l.stretches[2][span.stretch[2]];
  const int64_t pitch = s.c * s.groups;
  const bool join = s.groups == 1 && w.from_tap == 1 && w.tap_step == 1;
  int64_t count = 0;
  for (int64_t i = 0; i < d.taps; ++i)
    for (int64_t j = 0; j < h.taps; ++j)
      for (int64_t k = 0; k < (join ? least(1, w.taps) : w.taps); ++k) {
        const int64_t tap = ((d.tap + i * d.tap_step) * s.axes[1].kernel + h.tap + j * h.tap_step) *
                                s.axes[2].kernel +
                            w.tap + k * w.tap_step;
        const int64_t from =
            (i * d.from_tap * s.axes[1].sources + j * h.from_tap) * s.axes[2].sources +
            k * w.from_tap;
        lines[count++] = {from * pitch, tap * s.c * s.b_row, (join ? w.taps : 1) * s.c};
      }
  return count;
}

// Steps through the pixels of a span: image, then the stretches, the last one fastest.
struct PixelWalk {
  const Stretch* stretch[kSpatial];
  int64_t at[kSpatial], image;

  PixelWalk(const Layout& l, const Span& span, int64_t pixel) {
    for (int axis = kSpatial - 1; axis >= 0; --axis) {
      stretch[axis] = &l.stretches[axis][span.stretch[axis]];
      at[axis] = pixel % stretch[axis]->count;
      pixel /= stretch[axis]->count;
    }
    image = pixel;
  }
  int64_t left() const { return stretch[kSpatial - 1]->count - at[kSpatial - 1]; }  // of a line
  void advance(int64_t pixels) {  // at most those left
    at[kSpatial - 1] += pixels;
    for (int axis = kSpatial - 1; axis >= 0; --axis) {
      if (at[axis] < stretch[axis]->count) return;
      at[axis] = 0;
      ++(axis > 0 ? at[axis - 1] : image);
    }
  }
  int64_t source(const AxisGeometry* axes) const {
    int64_t place = image;
    for (int axis = 0; axis < kSpatial; ++axis)
      place =
          place * axes[axis].sources + stretch[axis]->from + at[axis] * stretch[axis]->from_step;
    return place;
  }
  int64_t result(const AxisGeometry* axes) const {
    int64_t place = image;
    for (int axis = 0; axis < kSpatial; ++axis)
      place = place * axes[axis].results + stretch[axis]->first + at[axis] * stretch[axis]->step;
    return place;
  }
};

// Where the pixels of a chunk read and write, in floats.
struct Places {
  int64_t x[kChunk], out[kChunk];
};

void find_places(const State& s, const Layout& l, const Span& span, int64_t begin, int64_t end,
                 Places& places) {
  const Stretch& line = l.stretches[kSpatial - 1][span.stretch[kSpatial - 1]];
  const int64_t x_unit = s.c * s.groups, out_unit = s.k * s.groups;
  const int64_t x_step = line.from_step * x_unit, out_step = line.step * out_unit;
  PixelWalk walk(l, span, begin);
  for (int64_t i = 0, run; i < end - begin; i += run, walk.advance(run)) {
    run = least(end - begin - i, walk.left());
    const int64_t x = walk.source(s.axes) * x_unit, out = walk.result(s.axes) * out_unit;
    for (int64_t j = 0; j < run; ++j) {
      places.x[i + j] = x + j * x_step;
      places.out[i + j] = out + j * out_step;
    }
  }
}

// ---- running

void pack_weights(const State& s, const float* w, int64_t index, float* packed) {
  const int64_t group = index / s.panels, first = index % s.panels * kPanel;
  const int64_t width = least(kPanel, s.k - first);
  const int64_t taps = s.axes[0].kernel * s.axes[1].kernel * s.axes[2].kernel;
  const float* from = w + s.weight_first + group * s.weight_group + first * s.weight_k;
  for (int64_t tap = 0; tap < taps; ++tap)
    pack_panel(packed + tap * s.c * kPanel, kPanel, from + tap * s.weight_tap, width, s.weight_k,
               s.c, s.weight_c);
}

struct Chunk {
  int64_t begin, end, group, panel_begin, panel_end;
};

Chunk chunk_of(const State& s, int64_t pixels, int64_t task) {
  const int64_t panel_parts = parts(s.panels, s.panels_per_task);
  const int64_t panel = task % panel_parts * s.panels_per_task;
  task /= panel_parts;
  const int64_t begin = task / s.groups * kChunk;
  return {begin, least(begin + kChunk, pixels), task % s.groups, panel,
          least(panel + s.panels_per_task, s.panels)};
}

// The sources `ahead` floats behind those of a tile.
void fetch_sources(const RowTile& t, int64_t rows, int64_t ahead, int64_t channels) {
  constexpr int64_t kLine = 16;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; c += kLine) __builtin_prefetch(t.a[r] + ahead + c);
}

void convolve_chunk(const State& s, const Layout& l, const Buffers& b, const float* packed,
                    int64_t task, Line* lines) {
  int64_t low = 0, high = l.span_count;  // the span that the task belongs to
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (l.spans[middle].first_task <= task ? low : high) = middle;
  }
  const Span& span = l.spans[low];
  const Chunk chunk = chunk_of(s, pixels_of(s, l, span), task - span.first_task);
  RowTile t;
  t.lines = lines;
  t.line_count = lines_of(s, l, span, lines);
  t.slope = s.slope;
  t.b_row = s.b_row;
  t.streams = s.streams && is_streamable(b.out);
  const int64_t step = l.stretches[2][span.stretch[2]].from_step * s.c * s.groups;
  const int64_t ahead = s.reads_once ? kRows * step : 0;
  const bool dense = step == s.c;
  Places places;  // found once for all panels
  find_places(s, l, span, chunk.begin, chunk.end, places);
  for (int64_t panel = chunk.panel_begin; panel < chunk.panel_end; ++panel) {
    const int64_t column = chunk.group * s.k + panel * kPanel;
    t.b = s.packs ? packed + (chunk.group * s.panels + panel) * s.packed
                  : b.w + chunk.group * s.weight_group + panel * kPanel;
    t.bias = b.bias ? b.bias + column : nullptr;
    t.width = least(kPanel, s.k - panel * kPanel);
    for (int64_t i = 0, height; i < chunk.end - chunk.begin; i += height) {
      height = tile_height(chunk.end - chunk.begin - i, kRows);
      for (int64_t r = 0; r < height; ++r) {
        t.a[r] = b.x + places.x[i + r] + chunk.group * s.c;
        t.c[r] = b.out + places.out[i + r] + column;
      }
      const bool first = ahead && panel == chunk.panel_begin,
                 fetches = first && dense && height == kRows;
      if (first && !fetches) fetch_sources(t, height, ahead, s.c);
      t.next = t.a[0] + ahead;
      lines_for(height, parts(t.width, kLanes<float>), fetches)(t);
    }
  }
  if (t.streams) end_streams();
}

int64_t run(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const Buffers b = {as<float>(buffers[0]), as<float>(buffers[1]), as<float>(buffers[2]),
                     s.back ? nullptr : as<float>(buffers[3])};
  const Layout l = lay_out(s, workspace);
  float* packed = as<float>(byte_offset(workspace, s.packed_offset));
  Line* lines = as<Line>(byte_offset(workspace, s.lines_offset));
  run_tasks(s.team, s.packs ? s.groups * s.panels : 0,
            [&](int64_t index, int) { pack_weights(s, b.w, index, packed + index * s.packed); });
  const auto chunk = [&](int64_t task, int thread) {
    convolve_chunk(s, l, b, packed, task, lines + thread * s.line_count);
  };
  if (s.reads_once)
    run_spans(s.team, l.tasks, false, chunk);
  else
    run_tasks(s.team, l.tasks, chunk);
  return -1;
}

void choose_strides(State& s, const Geometry& g) {
  const int64_t row = g.k, tap = g.group_c() * g.k;
  if (s.back) {
    s.weight_tap = -tap;
    s.weight_first = (g.taps() - 1) * tap;
    s.weight_c = 1;
    s.weight_k = row;
  } else {
    s.weight_tap = tap;
    s.weight_first = 0;
    s.weight_c = row;
    s.weight_k = 1;
  }
  s.weight_group = g.group_k();
  s.packs = s.back || s.k % kLanes<float> != 0 || g.n * g.out_pixels() > kChunk;
  s.b_row = s.packs ? kPanel : s.weight_c;
}

bool whole_lines(int64_t bytes) { return bytes % kStreamAlignment == 0; }

const char* plan_direct(Plan* plan, const Geometry& g, bool back) {
  State& s = state_of<State>(plan);
  s.back = back;
  s.reads_once = g.taps() == 1;
  s.images = g.n;
  s.groups = g.groups;
  s.c = back ? g.group_k() : g.group_c();
  s.k = back ? g.group_c() : g.group_k();
  s.slope = back ? 1 : g.slope;
  const int64_t stretches = read_axes(g, back, s.axes);
  choose_strides(s, g);
  s.result_pixels = back ? g.in_pixels() : g.out_pixels();
  const int64_t row = s.k * static_cast<int64_t>(sizeof(float));
  s.streams = s.reads_once && whole_lines(row) && whole_lines(kPanel * sizeof(float)) &&
              s.images * s.result_pixels * s.groups * row >= streaming_bytes();
  s.panels = parts(s.k, kPanel);
  const int64_t chunks = parts(s.images * s.result_pixels, kChunk) * s.groups;
  const int64_t wanted = parts(4 * threads(), chunks);  // tasks from each chunk
  s.panels_per_task = parts(s.panels, least(wanted, s.panels));
  s.packed = g.taps() * s.c * kPanel;
  s.team = team_size(chunks * parts(s.panels, s.panels_per_task),
                     g.n * g.out_pixels() * g.taps() * s.c * s.k * s.groups / 8);
  s.line_count = round_up(g.taps(), 8);
  s.spans_offset = round_up(stretches * sizeof(Stretch), 64);
  s.packed_offset = s.spans_offset + round_up(s.result_pixels * sizeof(Span), 64);
  s.lines_offset = s.packed_offset + round_up(s.groups * s.panels * s.packed * sizeof(float), 64);
  plan->workspace = s.lines_offset + s.team * s.line_count * static_cast<int64_t>(sizeof(Line));
  plan->run = run;
  return nullptr;
}

}  // namespace

const char* plan_direct_forward(Plan* plan, const Geometry& g) {
  return plan_direct(plan, g, false);
}
const char* plan_direct_input(Plan* plan, const Geometry& g) { return plan_direct(plan, g, true); }

}  // namespace needle::NEEDLE_ISA
