// Shared by the convolution kernels: the geometry, the choice, and how results leave registers.
#pragma once
#include "base/axes.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {

constexpr int kSpatial = 3;

// Always three spatial axes: those that an image lacks come first and have size 1.
struct Geometry {
  int64_t n, c, k, groups = 1;  // images, input channels, output channels
  int64_t in[kSpatial], out[kSpatial], kernel[kSpatial];
  int64_t stride[kSpatial], dilation[kSpatial], low[kSpatial];
  float slope = 1;  // of the forward result below zero: 1, or that of the activation

  int64_t group_c() const { return c / groups; }
  int64_t group_k() const { return k / groups; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t in_pixels() const { return in[0] * in[1] * in[2]; }
  int64_t out_pixels() const { return out[0] * out[1] * out[2]; }
};

// A distance, in floats, between neighbours that are used together: an odd number of cache lines,
// so that they do not all fall on the same few places of the first-level cache.
inline int64_t spread(int64_t n) {
  constexpr int64_t kLine = 16;
  return (round_up(n, kLine) / kLine | 1) * kLine;
}

// body(channel, lanes) for all channels, a vector at a time.
template <class Body>
inline void each_vector(int64_t channels, const Body& body) {
  for_vectors<float>(channels, body);
}

// The same for a pixel that is written; `streams`: past the caches, whole vectors.
template <bool streams, class Body>
inline void each_written(int64_t channels, const Body& body) {
  if constexpr (streams)
    for (int64_t c = 0; c < channels; c += kLanes<float>) body(c, Streamed<float>());
  else
    each_vector(channels, body);
}

template <class V>
inline V activate(const V& x, float slope) {
  const V below = slope == 0 ? V{} : x * slope;  // not -inf * 0
  return x < 0 ? below : x;
}

Geometry geometry_of(const Window& how, const Operand& x, const Operand& y);  // but groups, slope
const char* check_pool(const Window& how, const Operand& x, const Operand& out);

// The planning functions return null, or why the algorithm does not take this geometry.
using PlanConvolution = const char* (*)(Plan*, const Geometry&);
const char* plan_direct_forward(Plan*, const Geometry&);
const char* plan_direct_input(Plan*, const Geometry&);
const char* plan_direct_weight(Plan*, const Geometry&);
const char* plan_winograd_forward(Plan*, const Geometry&);
const char* plan_winograd_input(Plan*, const Geometry&);
const char* plan_winograd_weight(Plan*, const Geometry&);
const char* plan_depthwise_forward(Plan*, const Geometry&);
const char* plan_depthwise_input(Plan*, const Geometry&);
const char* plan_depthwise_weight(Plan*, const Geometry&);

}  // namespace needle::NEEDLE_ISA
