// Depthwise convolution: every channel has its own kernel, so that vectors run along the channels
// and nothing is a matrix product. Stretches (direct.h) leave out the padding.
#include <cstring>
#include <utility>

#include "conv/direct.h"
#include "base/spans.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int kNeighbours = 8;          // pixels whose sums are in registers, at most
constexpr int64_t kListedLines = 4096;  // for many taps those of one stretch
constexpr int64_t kParts = 64;  // of the pixels, each with its own sums of the weights' gradient

// ---- forward, and towards the input

struct State {
  AxisGeometry axes[kSpatial];
  int64_t images, channels, taps;
  bool back;
  float slope;
  int team;
  int64_t listed;  // stretches of the last axis whose lines are listed together
  int64_t lines_offset, line_count;
};

struct Line {
  int64_t x, w;  // source from the pixel's first one, weights of this tap
};

struct Buffers {
  float* out;
  const float* x;
  const float* w;
  const float* bias;
};

struct Pixels {
  float* out;
  const float* x;
  int64_t out_step, x_step, count;
  int64_t x_ahead;  // to the data that the next line of results reads first
};

// `count` neighbours, all channels. The taps come `in_row` at a time; where that is more than one,
// a step from pixel to pixel is one from tap to tap, so that each x is loaded once for all the
// pixels that a row of the kernel gives it to. The results are fetched from memory before they are
// written, so that stores do not wait.
template <int count, int in_row>
void convolve_neighbours(const State& s, const Buffers& b, const Pixels& p, const Line* lines,
                         int64_t line_count) {
  const float *weights = b.w, *sources = p.x;
  float* results = p.out;
  const int64_t x_step = p.x_step, out_step = p.out_step, x_ahead = p.x_ahead;
  const float slope = s.slope;
  each_vector(s.channels, [&](int64_t c, const auto& lanes) __attribute__((always_inline)) {
    const Vector<float> bias = b.bias ? lanes.load(b.bias + c) : Vector<float>{};
    Vector<float> sum[count] = {}, weight[in_row];
    for (int j = 0; j < count; ++j) __builtin_prefetch(sources + x_ahead + j * x_step + c);
    for (int j = 0; j < count; ++j)
      __builtin_prefetch(results + (kNeighbours + j) * out_step + c, 1);
    for (int64_t i = 0; i < line_count; i += in_row) {
#pragma GCC unroll 8
      for (int t = 0; t < in_row; ++t) weight[t] = lanes.load(weights + lines[i + t].w + c);
      const float* row = sources + lines[i].x + c;
#pragma GCC unroll 16
      for (int place = 0; place < count + in_row - 1; ++place, row += x_step) {
        Vector<float> x = lanes.load(row);
        load_once(x);
#pragma GCC unroll 8
        for (int t = 0; t < in_row; ++t)
          if (place >= t && place - t < count) sum[place - t] += weight[t] * x;
      }
    }
    for (int j = 0; j < count; ++j) sum[j] += bias;
    if (slope != 1)
      for (int j = 0; j < count; ++j) sum[j] = activate(sum[j], slope);
    float* to = results + c;
#pragma GCC unroll 8
    for (int j = 0; j < count; ++j, to += out_step) lanes.store(to, sum[j]);
  });
}

template <int in_row, int... counts>
auto neighbours_in(int64_t count, std::integer_sequence<int, counts...>) {
  static constexpr decltype(&convolve_neighbours<1, in_row>) kAll[] = {
      convolve_neighbours<counts + 1, in_row>...};
  return kAll[count - 1];
}

// As few groups of neighbours as there can be, of about the same size.
template <int in_row>
void convolve_pixels(const State& s, const Buffers& b, Pixels p, const Line* lines,
                     int64_t line_count) {
  for (int64_t groups = parts(p.count, kNeighbours), count; groups > 0;
       --groups, p.count -= count) {
    count = parts(p.count, groups);
    neighbours_in<in_row>(count, std::make_integer_sequence<int, kNeighbours>())(s, b, p, lines,
                                                                                 line_count);
    p.x += count * p.x_step;
    p.out += count * p.out_step;
  }
}

// The taps of one stretch along each axis.
void find_lines(const State& s, const Stretch& d, const Stretch& h, const Stretch& w, Line* lines) {
  for (int64_t i = 0; i < d.taps; ++i)
    for (int64_t j = 0; j < h.taps; ++j)
      for (int64_t k = 0; k < w.taps; ++k) {
        const int64_t from =
            (i * d.from_tap * s.axes[1].sources + j * h.from_tap) * s.axes[2].sources +
            k * w.from_tap;
        const int64_t tap = ((d.tap + i * d.tap_step) * s.axes[1].kernel + h.tap + j * h.tap_step) *
                                s.axes[2].kernel +
                            w.tap + k * w.tap_step;
        *lines++ = {from * s.channels, (s.back ? s.taps - 1 - tap : tap) * s.channels};
      }
}

struct Layout {
  const Stretch* stretches[kSpatial];
  int64_t counts[kSpatial];
};

// Some stretches of the last axis, and a list of lines for each, with room for those of all taps.
struct Listed {
  const Stretch* stretches;
  int64_t count, taps;
  Line* lines;

  template <class Body>
  void each(const Body& body) const {
    for (int64_t i = 0; i < count; ++i) body(stretches[i], lines + i * taps);
  }
};

// Convolves the listed parts of one line of the image, (image, i-th of d, j-th of h).
void convolve_line(const State& s, const Buffers& b, int64_t image, int64_t place_d,
                   int64_t place_h, const Stretch& d, const Stretch& h, const Listed& listed) {
  const AxisGeometry* a = s.axes;
  const int64_t out_line = ((image * a[0].results + d.first + place_d * d.step) * a[1].results +
                            h.first + place_h * h.step) *
                           a[2].results;
  const int64_t x_line = ((image * a[0].sources + d.from + place_d * d.from_step) * a[1].sources +
                          h.from + place_h * h.from_step) *
                         a[2].sources;
  listed.each([&](const Stretch& w, const Line* lines) {
    const bool shared = w.from_step == w.from_tap;
    const auto convolve = shared && w.taps == 3   ? convolve_pixels<3>
                          : shared && w.taps == 5 ? convolve_pixels<5>
                                                  : convolve_pixels<1>;
    convolve(s, b,
             {b.out + (out_line + w.first) * s.channels, b.x + (x_line + w.from) * s.channels,
              w.step * s.channels, w.from_step * s.channels, w.count,
              ((h.taps - 1) * h.from_tap + h.from_step) * a[2].sources * s.channels},
             lines, d.taps * h.taps * w.taps);
  });
}

int64_t run(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const Buffers b = {as<float>(buffers[0]), as<float>(buffers[1]), as<float>(buffers[2]),
                     s.back ? nullptr : as<float>(buffers[3])};
  Layout l;
  Stretch* next = as<Stretch>(workspace);
  for (int axis = 0; axis < kSpatial; ++axis) {
    l.stretches[axis] = next;
    l.counts[axis] = stretches_of(s.axes[axis], next);
    next += l.counts[axis];
  }
  Line* all_lines = as<Line>(byte_offset(workspace, s.lines_offset));
  run_spans(s.team, s.images * s.axes[0].results, false, [&](int64_t task, int thread) {
    Line* lines = all_lines + thread * s.line_count;
    int64_t place = task % s.axes[0].results, i = 0;
    for (; place >= l.stretches[0][i].count; ++i) place -= l.stretches[0][i].count;
    const Stretch& d = l.stretches[0][i];
    for (int64_t j = 0; j < l.counts[1]; ++j)
      for (int64_t k = 0; k < l.counts[2]; k += s.listed) {
        const Stretch& h = l.stretches[1][j];
        const Listed listed = {l.stretches[2] + k, least(s.listed, l.counts[2] - k), s.taps, lines};
        listed.each([&](const Stretch& w, Line* taps) { find_lines(s, d, h, w, taps); });
        for (int64_t line = 0; line < h.count; ++line)
          convolve_line(s, b, task / s.axes[0].results, place, line, d, h, listed);
      }
  });
  return -1;
}

const char* refusal(const Geometry& g) {
  return g.groups == g.c && g.c == g.k ? nullptr : "depthwise: expected one channel in each group";
}

const char* plan_depthwise(Plan* plan, const Geometry& g, bool back) {
  if (refusal(g)) return refusal(g);
  State& s = state_of<State>(plan);
  s.images = g.n;
  s.channels = g.c;
  s.taps = g.taps();
  s.back = back;
  s.slope = back ? 1 : g.slope;
  const int64_t stretches = read_axes(g, back, s.axes);
  s.listed = least(stretches, most(kListedLines / s.taps, 1));
  s.line_count = round_up(s.taps * s.listed, 8);
  s.lines_offset = round_up(stretches * sizeof(Stretch), 64);
  s.team = team_size(s.images * s.axes[0].results, g.n * g.out_pixels() * g.c * s.taps);
  plan->workspace = s.lines_offset + s.team * s.line_count * static_cast<int64_t>(sizeof(Line));
  plan->run = run;
  return nullptr;
}

// ---- the gradient of the weights

struct WeightState {
  Geometry g;
  int64_t rows, parts, pitch;  // lines of the results; parts of them; floats of a part's sums
  int team;
};

constexpr int kLinesAtOnce = 3, kTapsAtOnce = 4;  // their sums are in registers
constexpr int kBorderPixels = 8;                  // more are added later

// A pixel at which not all of the taps are inside the image.
struct BorderPixel {
  int64_t x, g;   // floats from those of the first pixel
  uint32_t taps;  // bits of those inside
};

// What neighbours in the kernel, some taps of some of its lines, add from a line of pixels: `count`
// from `begin` on, at which all taps are inside, and some at borders. Each element of g is read
// once for all taps.
struct Products {
  const float *x, *g;  // x of the first pixel at the first tap
  float* sums;         // of the first tap
  int64_t channels, x_step, tap_step, begin, count;
  int64_t line_step, sums_step;  // from line to line of the kernel
  BorderPixel borders[kBorderPixels];
  int64_t border_count;
};

// Two vectors side by side, where their sums fit the registers: one at a time is slower.
struct Pair {
  Vector<float> a, b;
  Pair operator*(const Pair& y) const { return {a * y.a, b * y.b}; }
  void operator+=(const Pair& y) { a += y.a, b += y.b; }
};
struct PairOfLanes {
  static constexpr int64_t kWidth = kLanes<float>;
  Pair load(const float* p) const {
    return {Whole<float>().load(p), Whole<float>().load(p + kWidth)};
  }
  void store(float* p, const Pair& x) const {
    Whole<float>().store(p, x.a);
    Whole<float>().store(p + kWidth, x.b);
  }
};
template <class Body>
void each_pair(int64_t n, const Body& body) {
  constexpr int64_t kWidth = kLanes<float>, kStep = kWidth == 16 ? 2 * kWidth : kWidth;  // AVX-512
  int64_t i = 0;
  if constexpr (kStep > kWidth)
    for (; i + kStep <= n; i += kStep) body(i, PairOfLanes());
  for (; i + kWidth <= n; i += kWidth) body(i, Whole<float>());
  if (i < n) body(i, Tail<float>(n - i));
}

template <int lines, int taps>
void add_products(const Products& p) {
  const int64_t channels = p.channels, x_step = p.x_step, tap_step = p.tap_step;
  const int64_t line_step = p.line_step, sums_step = p.sums_step;
  each_pair(channels, [&](int64_t c, const auto& lanes) __attribute__((always_inline)) {
    float* sums = p.sums + c;
    using Channels = decltype(lanes.load(sums));
    Channels sum[lines][taps];
#pragma GCC unroll 8
    for (int l = 0; l < lines; ++l)
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t) sum[l][t] = lanes.load(sums + l * sums_step + t * channels);
    const auto add = [&](const float* x, const Channels& g, int t) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int l = 0; l < lines; ++l) sum[l][t] += lanes.load(x + l * line_step + t * tap_step) * g;
    };
    const float *pixels = p.x + c, *grads = p.g + c;
    for (int64_t i = 0; i < p.border_count; ++i) {
      const BorderPixel& border = p.borders[i];
      const Channels g = lanes.load(grads + border.g);
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t)
        if (border.taps >> t & 1) add(pixels + border.x, g, t);
    }
    const float *x = pixels + p.begin * x_step, *grad = grads + p.begin * channels;
    for (int64_t left = p.count; left > 0; --left, x += x_step, grad += channels) {
      const Channels g = lanes.load(grad);
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t) add(x, g, t);
    }
#pragma GCC unroll 8
    for (int l = 0; l < lines; ++l)
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t) lanes.store(sums + l * sums_step + t * channels, sum[l][t]);
  });
}

template <int lines>
void add_some_taps(const Products& p, int64_t taps) {
  constexpr void (*kAdd[kTapsAtOnce])(const Products&) = {
      add_products<lines, 1>, add_products<lines, 2>, add_products<lines, 3>,
      add_products<lines, 4>};
  kAdd[taps - 1](p);
}

void add_taps(const Products& p, int64_t lines, int64_t taps) {
  constexpr void (*kAdd[kLinesAtOnce])(const Products&, int64_t) = {
      add_some_taps<1>, add_some_taps<2>, add_some_taps<3>};
  kAdd[lines - 1](p, taps);
}

// Adds a line of pixels of g to the sums of lines of the kernel.
void add_kernel_lines(const Geometry& g, int64_t lines, const float* x_line, const float* grad,
                      float* sums) {
  const int64_t stride = g.stride[2], dilation = g.dilation[2], width = g.out[2];
  for (int64_t tap = 0, taps; tap < g.kernel[2]; tap += taps) {
    taps = least(g.kernel[2] - tap, kTapsAtOnce);
    // Where the first and the last of the taps read at the first pixel.
    const int64_t from = tap * dilation - g.low[2], to = from + (taps - 1) * dilation;
    const int64_t begin = least(width, from < 0 ? parts(-from, stride) : 0);
    const int64_t end = most(begin, least(width, g.in[2] > to ? parts(g.in[2] - to, stride) : 0));
    Products p = {};
    p.x = x_line + from * g.c;
    p.g = grad;
    p.sums = sums + tap * g.c;
    p.channels = g.c;
    p.x_step = stride * g.c;
    p.tap_step = dilation * g.c;
    p.line_step = g.dilation[1] * g.in[2] * g.c;
    p.sums_step = g.kernel[2] * g.c;
    p.begin = begin;
    p.count = end - begin;
    for (int64_t i = 0; i < width; ++i) {
      if (i == begin) i = end;
      if (i == width) break;
      uint32_t inside = 0;
      for (int64_t t = 0; t < taps; ++t) {
        const int64_t at = from + i * stride + t * dilation;
        if (at >= 0 && at < g.in[2]) inside |= 1u << t;
      }
      if (inside) p.borders[p.border_count++] = {i * p.x_step, i * g.c, inside};
      if (p.border_count < kBorderPixels) continue;
      add_taps(p, lines, taps);
      p.count = p.border_count = 0;
    }
    if (p.count + p.border_count > 0) add_taps(p, lines, taps);
  }
}

// Adds a line of g to the sums of all taps.
void add_line(const Geometry& g, int64_t row, const float* x, const float* grad, float* sums) {
  const int64_t h = row % g.out[1], d = row / g.out[1] % g.out[0];
  const int64_t image = row / (g.out[0] * g.out[1]);
  const auto is_inside = [&](int64_t tap) {
    const int64_t y = h * g.stride[1] + tap * g.dilation[1] - g.low[1];
    return y >= 0 && y < g.in[1];
  };
  for (int64_t plane = 0; plane < g.kernel[0]; ++plane) {
    const int64_t z = d * g.stride[0] + plane * g.dilation[0] - g.low[0];
    if (z < 0 || z >= g.in[0]) continue;
    for (int64_t tap = 0, lines; tap < g.kernel[1]; tap += lines) {
      for (lines = 0; lines < kLinesAtOnce && tap + lines < g.kernel[1]; ++lines)
        if (!is_inside(tap + lines)) break;
      const int64_t y = h * g.stride[1] + tap * g.dilation[1] - g.low[1];
      if (lines > 0)
        add_kernel_lines(g, lines, x + ((image * g.in[0] + z) * g.in[1] + y) * g.in[2] * g.c,
                         grad + row * g.out[2] * g.c,
                         sums + (plane * g.kernel[1] + tap) * g.kernel[2] * g.c);
      lines = most(lines, 1);
    }
  }
}

int64_t run_weight(const Plan* plan, void* const* buffers, void* workspace) {
  const WeightState& s = state_of<WeightState>(plan);
  const int64_t size = s.g.taps() * s.g.c, per_part = parts(s.rows, s.parts);
  float* sums = as<float>(workspace);
  run_tasks(s.team, s.parts, [&](int64_t part, int) {
    std::memset(sums + part * s.pitch, 0, size * sizeof(float));
    for (int64_t row = part * per_part; row < least(s.rows, (part + 1) * per_part); ++row)
      add_line(s.g, row, as<float>(buffers[1]), as<float>(buffers[2]), sums + part * s.pitch);
  });
  float* __restrict out = as<float>(buffers[0]);
  std::memcpy(out, sums, size * sizeof(float));
  for (int64_t part = 1; part < s.parts; ++part)
    for (int64_t i = 0; i < size; ++i) out[i] += sums[part * s.pitch + i];
  return -1;
}

}  // namespace

const char* plan_depthwise_forward(Plan* plan, const Geometry& g) {
  return plan_depthwise(plan, g, false);
}
const char* plan_depthwise_input(Plan* plan, const Geometry& g) {
  return plan_depthwise(plan, g, true);
}

const char* plan_depthwise_weight(Plan* plan, const Geometry& g) {
  if (refusal(g)) return refusal(g);
  WeightState& s = state_of<WeightState>(plan);
  s.g = g;
  s.rows = g.n * g.out[0] * g.out[1];
  s.parts = most(1, least(kParts, s.rows));
  s.pitch = spread(g.taps() * g.c);
  s.team = team_size(s.parts, g.n * g.out_pixels() * g.c * g.taps());
  plan->workspace = s.parts * s.pitch * static_cast<int64_t>(sizeof(float));
  plan->run = run_weight;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
