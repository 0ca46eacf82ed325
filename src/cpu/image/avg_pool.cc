// Averages of windows.
#include "conv/conv.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

struct State {
  Geometry g;
  int64_t before[kSpatial], after[kSpatial];  // how much of the padding counts as elements
  int team;
};

struct Range {
  int64_t begin, end;
};

// The elements of the image that window i of an axis sees.
Range window_of(const State& s, int axis, int64_t i) {
  const int64_t start = i * s.g.stride[axis] - s.g.low[axis];
  return {most(start, 0), least(start + s.g.kernel[axis], s.g.in[axis])};
}

// The windows of an axis that see element i.
Range seen_by(const State& s, int axis, int64_t i) {
  const int64_t last = i + s.g.low[axis], first = last - s.g.kernel[axis] + 1;
  return {first > 0 ? parts(first, s.g.stride[axis]) : 0,
          least(last / s.g.stride[axis] + 1, s.g.out[axis])};
}

// By how many elements of an axis the sum over window i is divided.
int64_t divisor(const State& s, int axis, int64_t i) {
  const int64_t start = i * s.g.stride[axis] - s.g.low[axis];
  return least(start + s.g.kernel[axis], s.g.in[axis] + s.after[axis]) -
         most(start, -s.before[axis]);
}

float factor(const State& s, const int64_t* at) {
  double count = 1;
  for (int axis = 0; axis < kSpatial; ++axis)
    count *= static_cast<double>(divisor(s, axis, at[axis]));
  return static_cast<float>(1 / count);
}

// body(pixel) for the pixels of a box in an image of these sizes, in C order
template <class Body>
inline void each_pixel(const Range* box, const int64_t* sizes, const Body& body) {
  int64_t at[kSpatial];
  for (at[0] = box[0].begin; at[0] < box[0].end; ++at[0])
    for (at[1] = box[1].begin; at[1] < box[1].end; ++at[1])
      for (at[2] = box[2].begin; at[2] < box[2].end; ++at[2])
        body((at[0] * sizes[1] + at[1]) * sizes[2] + at[2], at);
}

// body(image, its pixel, where that is) for one line of images of these sizes
template <class Body>
inline void each_of_line(const int64_t* sizes, int64_t line, const Body& body) {
  const int64_t lines = sizes[0] * sizes[1], row = line % lines;
  const Range box[kSpatial] = {
      {row / sizes[1], row / sizes[1] + 1}, {row % sizes[1], row % sizes[1] + 1}, {0, sizes[2]}};
  each_pixel(box, sizes, [&](int64_t pixel, const int64_t* at) { body(line / lines, pixel, at); });
}

int64_t run_average(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const Geometry& g = s.g;
  run_tasks(s.team, g.n * g.out[0] * g.out[1], [&](int64_t line, int) {
    each_of_line(g.out, line, [&](int64_t n, int64_t pixel, const int64_t* at) {
      float* out = as<float>(buffers[0]) + (n * g.out_pixels() + pixel) * g.c;
      const float* image = as<float>(buffers[1]) + n * g.in_pixels() * g.c;
      const Range box[kSpatial] = {window_of(s, 0, at[0]), window_of(s, 1, at[1]),
                                   window_of(s, 2, at[2])};
      const float share = factor(s, at);
      each_vector(g.c, [&](int64_t c, const auto& lanes) {
        Vector<float> sum = {};
        each_pixel(box, g.in, [&](int64_t from, const int64_t*) {
          sum += lanes.load(image + from * g.c + c);
        });
        lanes.store(out + c, sum * share);
      });
    });
  });
  return -1;
}

int64_t run_average_grad(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const Geometry& g = s.g;
  run_tasks(s.team, g.n * g.in[0] * g.in[1], [&](int64_t line, int) {
    each_of_line(g.in, line, [&](int64_t n, int64_t pixel, const int64_t* at) {
      float* dx = as<float>(buffers[0]) + (n * g.in_pixels() + pixel) * g.c;
      const float* slopes = as<float>(buffers[1]) + n * g.out_pixels() * g.c;
      const Range box[kSpatial] = {seen_by(s, 0, at[0]), seen_by(s, 1, at[1]),
                                   seen_by(s, 2, at[2])};
      each_vector(g.c, [&](int64_t c, const auto& lanes) {
        Vector<float> sum = {};
        each_pixel(box, g.out, [&](int64_t from, const int64_t* window) {
          sum += lanes.load(slopes + from * g.c + c) * factor(s, window);
        });
        lanes.store(dx + c, sum);
      });
    });
  });
  return -1;
}

const char* plan_averages(Plan* plan, const Window& how, const int64_t* before,
                          const int64_t* after, const Operand& x, const Operand& out) {
  const char* refused = check_pool(how, x, out);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.g = geometry_of(how, x, out);
  for (int i = 0; i < kSpatial; ++i) {
    const int axis = i - (kSpatial - how.axes);
    s.before[i] = axis < 0 ? 0 : before[axis];
    s.after[i] = axis < 0 ? 0 : after[axis];
    if (s.g.dilation[i] != 1) return "avg_pool: expected neighbours";
  }
  plan->workspace = 0;
  return nullptr;
}

}  // namespace

const char* plan_avg_pool(Plan* plan, const Window& how, const int64_t* before,
                          const int64_t* after, const Operand& x, const Operand& out) {
  const char* refused = plan_averages(plan, how, before, after, x, out);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.team = team_size(s.g.n * s.g.out[0] * s.g.out[1], element_count(x));
  plan->run = run_average;
  return nullptr;
}

const char* plan_avg_pool_grad(Plan* plan, const Window& how, const int64_t* before,
                               const int64_t* after, const Operand& dx, const Operand& g) {
  const char* refused = plan_averages(plan, how, before, after, dx, g);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.team = team_size(s.g.n * s.g.in[0] * s.g.in[1], element_count(dx));
  plan->run = run_average_grad;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
