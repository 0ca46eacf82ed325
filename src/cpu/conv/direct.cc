// Direct convolution, forward and towards the input: an implicit matrix product. A tile's rows are
// pixels that meet the same taps (direct.h), wherever they lie; its columns are output
// channels, whose weights are packed in panels [taps, c, columns].
#include "conv/direct.h"

#include "conv/lines.h"
#include "gemm/pack.h"
#include "base/spans.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPanel = kTileColumns<float>;
constexpr int64_t kChunk = 8 * kRows;                       // pixels of a task
constexpr int64_t kStripChunk = 4 * kStrips * kNeighbours;  // the same for strips, at most

struct State {
  AxisGeometry axes[kSpatial];
  int64_t images, block;  // block: images whose tasks follow one another
  int64_t groups, c, k;   // per group: c read, k written
  int64_t result_pixels;
  int64_t panels, panels_per_task;
  int64_t packed;                                        // floats of one panel's weights
  int64_t weight_tap, weight_c, weight_k, weight_group;  // strides; the tap's is negative if back
  int64_t weight_first;
  bool back;
  // Not for one whole vector of columns, which lies as if packed. Nor for few pixels: each weight
  // is used about once, and those of taps on padding not at all, so they are read in place.
  bool packs;
  int64_t b_row;  // floats from channel to channel of the weights that tiles read
  // One tap: so few products use a source that its way from memory costs time, so it is fetched
  // ahead and walked in spans. More taps, even of three channels, are faster without.
  bool reads_once;
  // Large results go past the caches, which they would only fill.
  bool streams;
  // At most one vector of columns: the rows of a tile are strips of neighbours (lines.h),
  // which each thread walks in a span of its own.
  bool strips;
  float slope;
  int team;
  int64_t spans_offset, packed_offset, lines_offset, line_count;  // workspace, bytes
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

// ---- memory layouts

struct Layout {
  const Stretch* stretches[kSpatial];
  int64_t counts[kSpatial];
  const Span* spans;
  int64_t span_count, tasks;  // tasks of a block of images
};

int64_t pixels_of(int64_t images, const Layout& l, const Span& span) {
  int64_t pixels = images;
  for (int axis = 0; axis < kSpatial; ++axis) pixels *= l.stretches[axis][span.stretch[axis]].count;
  return pixels;
}

// The pixels of a span in a block of images: where they read and write, in floats, from that of the
// first one.
struct Grid {
  struct {
    int64_t count, x, out;  // steps
  } axes[kSpatial + 1];     // images, then stretches
  int64_t x, out;           // the first pixel
  int64_t pixels, chunk;    // all of them; those of a task

  const auto& line() const { return axes[kSpatial]; }
};

// The axis that strips follow: a long one, of an image rather than of images far apart.
int strip_axis(const Grid& grid) {
  int longest = kSpatial;
  for (int axis = kSpatial; axis > 0; --axis)
    if (grid.axes[axis].count > grid.axes[longest].count) longest = axis;
  return 2 * grid.axes[longest].count < kNeighbours ? 0 : longest;
}

Grid grid_of(const State& s, const Layout& l, const Span& span, int64_t block) {
  Grid grid = {};
  int64_t x = s.c * s.groups, out = s.k * s.groups;  // floats of a place, of a line, ...
  for (int axis = kSpatial - 1; axis >= 0; --axis) {
    const Stretch& along = l.stretches[axis][span.stretch[axis]];
    grid.axes[axis + 1] = {along.count, along.from_step * x, along.step * out};
    grid.x += along.from * x;
    grid.out += along.first * out;
    x *= s.axes[axis].sources;
    out *= s.axes[axis].results;
  }
  const int64_t first = block * s.block, images = least(s.block, s.images - first);
  grid.axes[0] = {images, x, out};
  grid.x += first * x;
  grid.out += first * out;
  grid.pixels = pixels_of(images, l, span);
  grid.chunk = kChunk;
  if (s.strips) {
    std::swap(grid.axes[strip_axis(grid)], grid.axes[kSpatial]);
    const int64_t line = grid.line().count;  // whole ones, so that strips are alike
    grid.chunk = line < kStripChunk ? kStripChunk / line * line : kStripChunk;
  }
  return grid;
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
        const int64_t chunk = s.strips ? grid_of(s, l, span, 0).chunk : kChunk;
        l.tasks += parts(pixels_of(s.block, l, span), chunk) * per_chunk;
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

// Steps through the pixels of a grid, the last axis fastest.
struct PixelWalk {
  const Grid& grid;
  int64_t at[kSpatial + 1];

  PixelWalk(const Grid& g, int64_t pixel) : grid(g) {
    for (int axis = kSpatial; axis > 0; --axis) {
      at[axis] = pixel % grid.axes[axis].count;
      pixel /= grid.axes[axis].count;
    }
    at[0] = pixel;
  }
  int64_t left() const { return grid.line().count - at[kSpatial]; }  // of a line
  void advance(int64_t pixels) {                                     // at most those left
    at[kSpatial] += pixels;
    for (int axis = kSpatial; axis > 0 && at[axis] == grid.axes[axis].count; --axis) {
      at[axis] = 0;
      ++at[axis - 1];
    }
  }
  int64_t source() const {
    int64_t place = grid.x;
    for (int axis = 0; axis <= kSpatial; ++axis) place += at[axis] * grid.axes[axis].x;
    return place;
  }
  int64_t result() const {
    int64_t place = grid.out;
    for (int axis = 0; axis <= kSpatial; ++axis) place += at[axis] * grid.axes[axis].out;
    return place;
  }
};

// body(x, out, count) for the lines that such pixels of a grid lie on, or pieces of lines: where
// the first pixel reads and writes, in floats.
template <class Body>
void each_line(const Grid& grid, int64_t begin, int64_t end, const Body& body) {
  PixelWalk walk(grid, begin);
  for (int64_t count; begin < end; begin += count, walk.advance(count)) {
    count = least(end - begin, walk.left());
    body(walk.source(), walk.result(), count);
  }
}

struct Places {
  int64_t x[kChunk], out[kChunk];
};

void find_places(const Grid& grid, int64_t begin, int64_t end, Places& places) {
  int64_t i = 0;
  each_line(grid, begin, end, [&](int64_t x, int64_t out, int64_t count) {
    for (int64_t j = 0; j < count; ++j, ++i) {
      places.x[i] = x + j * grid.line().x;
      places.out[i] = out + j * grid.line().out;
    }
  });
}

struct Strips {
  struct {
    int64_t x, out, width;
  } at[kStripChunk];
  int64_t count = 0;
};

// Lines are cut into strips of one width. The strips of remainders come last, because the strips of
// a tile are equally wide.
void find_strips(const Grid& grid, int64_t begin, int64_t end, Strips& strips) {
  const auto& line = grid.line();
  const int64_t width = parts(line.count, parts(line.count, kNeighbours));
  bool some_left = false;
  each_line(grid, begin, end, [&](int64_t x, int64_t out, int64_t count) {
    for (; count >= width; count -= width, x += width * line.x, out += width * line.out)
      strips.at[strips.count++] = {x, out, width};
    some_left |= count > 0;
  });
  if (!some_left) return;
  each_line(grid, begin, end, [&](int64_t x, int64_t out, int64_t count) {
    const int64_t left = count % width, whole = count - left;
    if (left) strips.at[strips.count++] = {x + whole * line.x, out + whole * line.out, left};
  });
}

// ---- running

void pack_weights(const State& s, const float* w, int64_t index, float* packed) {
  const int64_t group = index / s.panels, first = index % s.panels * kPanel;
  const int64_t width = least(kPanel, s.k - first);
  const int64_t taps = s.axes[0].kernel * s.axes[1].kernel * s.axes[2].kernel;
  const float* from = w + s.weight_first + group * s.weight_group + first * s.weight_k;
  for (int64_t tap = 0; tap < taps; ++tap)
    pack_panel(packed + tap * s.c * s.b_row, s.b_row, from + tap * s.weight_tap, width, s.weight_k,
               s.c, s.weight_c);
}

struct Chunk {
  int64_t begin, end, group, panel_begin, panel_end;
};

Chunk chunk_of(const State& s, const Grid& grid, int64_t task) {
  const int64_t panel_parts = parts(s.panels, s.panels_per_task);
  const int64_t panel = task % panel_parts * s.panels_per_task;
  task /= panel_parts;
  const int64_t begin = task / s.groups * grid.chunk;
  return {begin, least(begin + grid.chunk, grid.pixels), task % s.groups, panel,
          least(panel + s.panels_per_task, s.panels)};
}

const Span& span_of(const Layout& l, int64_t task) {
  int64_t low = 0, high = l.span_count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (l.spans[middle].first_task <= task ? low : high) = middle;
  }
  return l.spans[low];
}

struct Task {
  const State& s;
  const Buffers& b;
  const float* packed;
  const Grid& grid;
  Chunk chunk;
  const Line* lines;
  int64_t line_count;

  const float* x() const { return b.x + chunk.group * s.c; }
  float* out() const { return b.out + chunk.group * s.k; }
  LineTile tile(int64_t panel) const {
    const int64_t column = chunk.group * s.k + panel * kPanel;
    return {lines,
            line_count,
            s.packs ? packed + (chunk.group * s.panels + panel) * s.packed
                    : b.w + chunk.group * s.weight_group + panel * kPanel,
            s.b_row,
            b.bias ? b.bias + column : nullptr,
            least(kPanel, s.k - panel * kPanel),
            s.slope};
  }
};

// The sources `ahead` floats behind those of a tile.
void fetch_sources(const RowTile& t, int64_t rows, int64_t ahead, int64_t channels) {
  constexpr int64_t kLine = 16;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; c += kLine) __builtin_prefetch(t.a[r] + ahead + c);
}

void convolve_rows(const Task& task) {
  const State& s = task.s;
  const Chunk& chunk = task.chunk;
  const int64_t step = task.grid.line().x, ahead = s.reads_once ? kRows * step : 0;
  const bool dense = step == s.c;
  RowTile t;
  t.streams = s.streams && is_streamable(task.b.out);
  Places places;  // found once for all panels
  find_places(task.grid, chunk.begin, chunk.end, places);
  for (int64_t panel = chunk.panel_begin; panel < chunk.panel_end; ++panel) {
    static_cast<LineTile&>(t) = task.tile(panel);
    for (int64_t i = 0, height; i < chunk.end - chunk.begin; i += height) {
      height = tile_height(chunk.end - chunk.begin - i, kRows);
      for (int64_t r = 0; r < height; ++r) {
        t.a[r] = task.x() + places.x[i + r];
        t.c[r] = task.out() + places.out[i + r] + panel * kPanel;
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

void convolve_strips(const Task& task) {
  Strips found;
  find_strips(task.grid, task.chunk.begin, task.chunk.end, found);
  StripTile t = {task.tile(0), {}, {}, task.grid.line().x, task.grid.line().out};
  for (int64_t i = 0, strips; i < found.count; i += strips) {
    const int64_t width = found.at[i].width;
    for (strips = 0; strips < kStrips && i + strips < found.count; ++strips) {
      const auto& strip = found.at[i + strips];
      if (strip.width != width) break;
      t.a[strips] = task.x() + strip.x;
      t.c[strips] = task.out() + strip.out;
    }
    strips_for(strips, width)(t);
  }
}

void convolve_chunk(const State& s, const Layout& l, const Buffers& b, const float* packed,
                    int64_t index, Line* lines) {
  const int64_t block = index / l.tasks;
  index %= l.tasks;
  const Span& span = span_of(l, index);
  const Grid grid = grid_of(s, l, span, block);
  const Task task = {s,
                     b,
                     packed,
                     grid,
                     chunk_of(s, grid, index - span.first_task),
                     lines,
                     lines_of(s, l, span, lines)};
  (s.strips ? convolve_strips : convolve_rows)(task);
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
  const int64_t tasks = parts(s.images, s.block) * l.tasks;
  if (s.reads_once || s.strips)
    run_spans(s.team, tasks, false, chunk);
  else
    run_tasks(s.team, tasks, chunk);
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
  s.packs = s.back || s.k % kLanes<float> != 0 || (!s.strips && g.n * g.out_pixels() > kChunk);
  s.b_row = !s.packs ? s.weight_c : s.strips ? kLanes<float> : kPanel;
}

// Images whose tasks follow one another: few enough to be in the cache when their borders are read,
// enough for whole tiles of borders.
int64_t block_of(int64_t pixels) {
  constexpr int64_t kImages = 16, kPixels = 1024;
  return most(kImages, kPixels / pixels);
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
  s.strips = !s.reads_once && s.k <= kLanes<float>;
  const int64_t stretches = read_axes(g, back, s.axes);
  choose_strides(s, g);
  s.result_pixels = back ? g.in_pixels() : g.out_pixels();
  s.block = s.strips ? least(s.images, block_of(s.result_pixels)) : s.images;
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
