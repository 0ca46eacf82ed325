// Convolution: reads the geometry and chooses the algorithm, from the geometry alone.
#include "conv/conv.h"

#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

const char* check_operands(const Window& how, int64_t groups, const Operand& x, const Operand& w,
                           const Operand& y) {
  const int axes = how.axes;
  if (axes < 1 || axes > kSpatial || x.ndim != axes + 2 || w.ndim != axes + 2 || y.ndim != axes + 2)
    return "convolution: expected 1 to 3 spatial axes";
  if (x.dtype != kFloat32 || w.dtype != kFloat32 || y.dtype != kFloat32)
    return "convolution: expected float32";
  if (!is_dense(x) || !is_dense(w) || !is_dense(y)) return "convolution: expected dense operands";
  if (element_count(x) == 0 || element_count(w) == 0 || element_count(y) == 0)
    return "convolution: expected elements";
  for (int i = 0; i < axes; ++i)
    if (w.shape[i] != how.kernel[i]) return "convolution: the weights have another kernel";
  const int64_t k = w.shape[axes + 1];
  const bool fits = groups > 0 && x.shape[axes + 1] == w.shape[axes] * groups && k % groups == 0 &&
                    y.shape[0] == x.shape[0] && y.shape[axes + 1] == k;
  return fits ? nullptr : "convolution: shapes do not fit";
}

}  // namespace

Geometry geometry_of(const Window& how, const Operand& x, const Operand& y) {
  Geometry g;
  const int missing = kSpatial - how.axes;
  g.n = x.shape[0];
  g.c = x.shape[how.axes + 1];
  g.k = y.shape[how.axes + 1];
  for (int i = 0; i < kSpatial; ++i) {
    const int axis = i - missing;
    const bool real = axis >= 0;
    g.in[i] = real ? x.shape[axis + 1] : 1;
    g.out[i] = real ? y.shape[axis + 1] : 1;
    g.kernel[i] = real ? how.kernel[axis] : 1;
    g.stride[i] = real ? how.stride[axis] : 1;
    g.dilation[i] = real ? how.dilation[axis] : 1;
    g.low[i] = real ? how.low[axis] : 0;
  }
  return g;
}

namespace {

// How many (result, tap) pairs an image has, without those on padding.
int64_t real_products(const Geometry& g) {
  int64_t product = 1;
  for (int axis = 0; axis < kSpatial; ++axis) {
    int64_t pairs = 0;
    for (int64_t t = 0; t < g.kernel[axis]; ++t) {
      const int64_t offset = t * g.dilation[axis] - g.low[axis], stride = g.stride[axis];
      const int64_t begin = offset < 0 ? parts(-offset, stride) : 0;
      const int64_t end = g.in[axis] > offset ? parts(g.in[axis] - offset, stride) : 0;
      pairs += most(0, least(end, g.out[axis]) - begin);
    }
    product *= pairs;
  }
  return product;
}

// The cost of Winograd's method, in multiplications of [c, k] matrices: the products of a
// tile, the transforms of a tile, which grow with c or k alone, and those of the weights.
struct WinogradCost {
  double products, input, output, weights;
};

// At stride 2 it pays less: the components are more than twice as many, and moving them through the
// second-level cache costs time, most of all where few channels are summed.
WinogradCost winograd_cost(bool strided, int32_t direction) {
  if (!strided) return {36, 200, 150, 150};
  if (direction == kConvolveWeight) return {90, 500, 800, 150};
  return {90, 1000, 1400, 1000};
}

// Whether Winograd's method is faster than the products that the direct method computes.
bool winograd_pays(const Geometry& g, int32_t direction) {
  constexpr int64_t kLeastChannels = 16;
  constexpr int64_t kMostSummed = 128;  // at stride 2: a block of tiles no longer fits the cache
  if (g.c < kLeastChannels || g.k < kLeastChannels) return false;
  const bool strided = g.stride[2] == 2, back = direction == kConvolveInput;
  // The gradient of the weights repeats the transforms for each block of 64 channels.
  const int64_t most_shared = direction == kConvolveWeight ? 64 : INT64_MAX;
  if (strided && direction != kConvolveWeight && (back ? g.k : g.c) > kMostSummed) return false;
  const int64_t step = g.kernel[2] != 3 ? 2 : strided && back ? 8 : 4;
  const int64_t* results = back ? g.in : g.out;
  const double tiles =
      static_cast<double>(g.n * results[0] * parts(results[1], step) * parts(results[2], step));
  const WinogradCost cost = winograd_cost(strided, direction);
  const double for_tile = cost.products +
                          cost.input / static_cast<double>(least(g.k, most_shared)) +
                          cost.output / static_cast<double>(least(g.c, most_shared));
  return tiles * for_tile + cost.weights < static_cast<double>(g.n * real_products(g));
}

// Many more pixels than weights, of few channels: reading and writing the images takes most time.
bool is_tall(const Geometry& g, int32_t direction) {
  constexpr int64_t kMostSummed = 256, kOneBlock = 128, kManyPixels = 16;
  constexpr int64_t kLargeBytes = 4 << 20;  // leave the second caches of a few threads
  const int64_t pixels = g.n * g.in_pixels(), widest = most(g.c, g.k);
  if (pixels < kManyPixels * widest) return false;
  if (direction != kConvolveWeight) return (direction == kConvolve ? g.c : g.k) <= kMostSummed;
  const int64_t bytes = pixels * (g.c + g.k) * static_cast<int64_t>(sizeof(float));
  return widest <= kOneBlock && bytes > kLargeBytes;
}

// A kernel of one tap is a product of matrices (which adds no bias: kernels.h). Tall products are
// faster by the direct method, which fetches pixels ahead. Gradients of weights are faster with up
// to 128 channels, which are one block, so that images are read once, and not with more.
bool is_product(const Geometry& g, int32_t direction) {
  if (is_tall(g, direction)) return false;
  bool plain = g.groups == 1;
  for (int i = 0; i < kSpatial; ++i)
    plain &= g.kernel[i] == 1 && g.stride[i] == 1 && g.low[i] == 0 && g.in[i] == g.out[i];
  return plain;
}

const char* plan_product(Plan* plan, int32_t direction, const Geometry& g) {
  const int64_t pixels = g.n * g.in_pixels();
  const int64_t x[2] = {pixels, g.c}, w[2] = {g.c, g.k}, y[2] = {pixels, g.k};
  const int64_t x_turned[2] = {g.c, pixels}, w_turned[2] = {g.k, g.c};
  const int64_t by_c[2] = {g.c, 1}, by_k[2] = {g.k, 1}, c_turned[2] = {1, g.c};
  const int64_t k_turned[2] = {1, g.k};
  const auto matrix = [](const int64_t* shape, const int64_t* strides) {
    return Operand{kFloat32, 2, shape, strides};
  };
  switch (direction) {
    case kConvolve:
      return plan_matmul(plan, matrix(y, by_k), matrix(x, by_c), matrix(w, by_k));
    case kConvolveInput:
      return plan_matmul(plan, matrix(x, by_c), matrix(y, by_k), matrix(w_turned, k_turned));
    default:
      return plan_matmul(plan, matrix(w, by_k), matrix(x_turned, c_turned), matrix(y, by_k));
  }
}

}  // namespace

const char* plan_convolution(Plan* plan, int32_t direction, int32_t algorithm, const Window& how,
                             int64_t groups, double slope, const Operand& x, const Operand& w,
                             const Operand& y) {
  static const PlanConvolution kDirectly[] = {plan_direct_forward, plan_direct_input,
                                              plan_direct_weight};
  static const PlanConvolution kByWinograd[] = {plan_winograd_forward, plan_winograd_input,
                                                plan_winograd_weight};
  static const PlanConvolution kByDepth[] = {plan_depthwise_forward, plan_depthwise_input,
                                             plan_depthwise_weight};
  const char* refused = check_operands(how, groups, x, w, y);
  if (refused) return refused;
  Geometry g = geometry_of(how, x, y);
  g.groups = groups;
  g.slope = static_cast<float>(slope);
  if (direction < kConvolve || direction > kConvolveWeight) return "convolution: unknown direction";
  if (algorithm == kBySpec && is_product(g, direction) && slope == 1)
    return plan_product(plan, direction, g);
  if (algorithm == kWinograd) return kByWinograd[direction](plan, g);
  if (g.groups > 1 && !kByDepth[direction](plan, g)) return nullptr;
  if (algorithm == kBySpec && winograd_pays(g, direction) && !kByWinograd[direction](plan, g))
    return nullptr;
  return kDirectly[direction](plan, g);
}

}  // namespace needle::NEEDLE_ISA
