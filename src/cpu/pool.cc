// Max pooling: vectors run along the channels, windows leave out the padding.
#include <cstring>
#include <limits>

#include "conv.h"
#include "kernels_linear.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kWidth = kLanes<float>;
constexpr int64_t kMostPlaces = 256;  // of a window: the index is a byte
typedef int32_t Places __attribute__((vector_size(kVectorBytes)));
typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));

struct State {
  Geometry g;
  bool apart;  // windows do not overlap and are as large as their step
  int team;
};

Places load_places(const uint8_t* p, int64_t count) {
  Bytes bytes = {};
  std::memcpy(&bytes, p, count);
  return __builtin_convertvector(bytes, Places);
}

// The part of the window at (d, h, w) that lies inside the image: taps [begin, end) of each axis.
struct Inside {
  int64_t origin[kSpatial], begin[kSpatial], end[kSpatial];
};

Inside inside(const Geometry& g, const int64_t* at) {
  Inside w;
  for (int i = 0; i < kSpatial; ++i) {
    const int64_t from = at[i] * g.stride[i] - g.low[i], step = g.dilation[i];
    w.origin[i] = from;
    w.begin[i] = from < 0 ? least(g.kernel[i], parts(-from, step)) : 0;
    w.end[i] = least(g.kernel[i], g.in[i] > from ? parts(g.in[i] - from, step) : 0);
  }
  return w;
}

// A place in the window and its pixel, from the pixel of the window's first place.
struct Tap {
  int32_t place;
  int64_t pixel;
};

// The places of windows that lie inside; found anew only where a window's border changes.
struct Taps {
  Tap tap[kMostPlaces];
  int count = 0;
  Inside last = {{}, {-1, -1, -1}, {}};

  void find(const Geometry& g, const Inside& w) {
    const bool same = std::memcmp(w.begin, last.begin, sizeof w.begin) == 0 &&
                      std::memcmp(w.end, last.end, sizeof w.end) == 0;
    if (same) return;
    last = w;
    count = 0;
    for (int64_t i = w.begin[0]; i < w.end[0]; ++i)
      for (int64_t j = w.begin[1]; j < w.end[1]; ++j)
        for (int64_t k = w.begin[2]; k < w.end[2]; ++k)
          tap[count++] = {
              static_cast<int32_t>((i * g.kernel[1] + j) * g.kernel[2] + k),
              (i * g.dilation[0] * g.in[1] + j * g.dilation[1]) * g.in[2] + k * g.dilation[2]};
  }
};

// body(window's position in out, pixel of its first place, taps) for the windows of one line
// (image, depth, height). That pixel may lie outside, the taps' pixels do not.
template <class Body>
inline void each_window(const Geometry& g, int64_t line, const Body& body) {
  Taps taps;
  int64_t at[kSpatial] = {line / g.out[1] % g.out[0], line % g.out[1], 0};
  for (; at[2] < g.out[2]; ++at[2]) {
    const Inside window = inside(g, at);
    taps.find(g, window);
    body(line * g.out[2] + at[2],
         (window.origin[0] * g.in[1] + window.origin[1]) * g.in[2] + window.origin[2], taps);
  }
}

int64_t run_forward(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const Geometry& g = s.g;
  run_tasks(s.team, g.n * g.out[0] * g.out[1], [&](int64_t line, int) {
    const float* image = as<float>(buffers[2]) + line / (g.out[0] * g.out[1]) * g.in_pixels() * g.c;
    each_window(g, line, [&](int64_t position, int64_t first, const Taps& taps) {
      float* out = as<float>(buffers[0]) + position * g.c;
      uint8_t* index = as<uint8_t>(buffers[1]) + position * g.c;
      each_vector(g.c, [&](int64_t c, const auto& lanes) {
        Vector<float> largest = splat(-std::numeric_limits<float>::infinity());
        Places place = {};
        for (int t = 0; t < taps.count; ++t) {
          const Vector<float> x = lanes.load(image + (first + taps.tap[t].pixel) * g.c + c);
          const Places take = ~(x <= largest) & (largest == largest);  // NaN stays
          largest = take ? x : largest;
          place = take ? Places{} + taps.tap[t].place : place;
        }
        lanes.store(out + c, largest);
        const Bytes bytes = __builtin_convertvector(place, Bytes);
        std::memcpy(index + c, &bytes, least(kWidth, g.c - c));
      });
    });
  });
  return -1;
}

// ---- backward: a task is an image, or, where windows do not overlap, a line of windows

template <bool add>
void spread_line(const Geometry& g, int64_t line, void* const* buffers) {
  float* image = as<float>(buffers[0]) + line / (g.out[0] * g.out[1]) * g.in_pixels() * g.c;
  each_window(g, line, [&](int64_t position, int64_t first, const Taps& taps) {
    const float* from = as<float>(buffers[1]) + position * g.c;
    const uint8_t* index = as<uint8_t>(buffers[2]) + position * g.c;
    each_vector(g.c, [&](int64_t c, const auto& lanes) {
      const Vector<float> x = lanes.load(from + c);
      const Places place = load_places(index + c, least(kWidth, g.c - c));
      for (int t = 0; t < taps.count; ++t) {
        float* to = image + (first + taps.tap[t].pixel) * g.c + c;
        const Vector<float> part = place == taps.tap[t].place ? x : Vector<float>{};
        lanes.store(to, add ? lanes.load(to) + part : part);
      }
    });
  });
}

int64_t run_backward(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const Geometry& g = s.g;
  const int64_t lines = g.out[0] * g.out[1];
  if (s.apart) {
    run_tasks(s.team, g.n * lines,
              [&](int64_t line, int) { spread_line<false>(g, line, buffers); });
    return -1;
  }
  run_tasks(s.team, g.n, [&](int64_t image, int) {
    const int64_t size = g.in_pixels() * g.c;
    std::memset(as<float>(buffers[0]) + image * size, 0, size * sizeof(float));
    for (int64_t line = 0; line < lines; ++line)
      spread_line<true>(g, image * lines + line, buffers);
  });
  return -1;
}

const char* plan_pool(Plan* plan, const Window& how, const Operand& x, const Operand& out) {
  if (x.dtype != kFloat32 || out.dtype != kFloat32) return "max_pool: wants float32";
  if (how.axes < 1 || how.axes > kSpatial || x.ndim != how.axes + 2 || out.ndim != x.ndim)
    return "max_pool: wants 1 to 3 spatial axes";
  if (x.shape[0] != out.shape[0] || x.shape[x.ndim - 1] != out.shape[x.ndim - 1])
    return "max_pool: shapes do not fit";
  if (!is_dense(x) || !is_dense(out)) return "max_pool: wants dense operands";
  State& s = state_of<State>(plan);
  s.g = geometry_of(how, x, out);
  if (s.g.taps() > kMostPlaces) return "max_pool: wants at most 256 elements in a window";
  // Then every element of the image belongs to one window, and is written once.
  s.apart = true;
  for (int i = 0; i < kSpatial; ++i)
    s.apart &= s.g.kernel[i] == s.g.stride[i] && s.g.dilation[i] == 1 && s.g.low[i] == 0 &&
               s.g.out[i] * s.g.stride[i] >= s.g.in[i];
  plan->workspace = 0;
  return nullptr;
}

}  // namespace

const char* plan_max_pool(Plan* plan, const Window& how, const Operand& x, const Operand& out) {
  const char* refused = plan_pool(plan, how, x, out);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.team = team_size(s.g.n * s.g.out[0] * s.g.out[1], element_count(x));
  plan->run = run_forward;
  return nullptr;
}

const char* plan_max_pool_grad(Plan* plan, const Window& how, const Operand& dx, const Operand& g) {
  const char* refused = plan_pool(plan, how, dx, g);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.team = team_size(s.apart ? s.g.n * s.g.out[0] * s.g.out[1] : s.g.n, element_count(dx));
  plan->run = run_backward;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
