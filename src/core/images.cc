// Convolution and pooling as functions of Arrays. They return whether there is such a kernel.
#include "calls.h"
#include <nanobind/stl/vector.h>
#include <algorithm>

namespace needle {
namespace {

using Sizes = std::vector<int64_t>;

Window window_of(const Sizes& kernel, const Sizes& stride, const Sizes& dilation,
                 const Sizes& low) {
  Window window = {static_cast<int32_t>(kernel.size()), {}, {}, {}, {}};
  if (kernel.size() > 3 || stride.size() != kernel.size() || dilation.size() != kernel.size() ||
      low.size() != kernel.size()) {
    throw nb::value_error("window: wants the same number of spatial axes, at most 3, throughout");
  }
  for (const Sizes* sizes : {&kernel, &stride, &dilation}) {
    if (std::any_of(sizes->begin(), sizes->end(), [](int64_t n) { return n < 1; })) {
      throw nb::value_error("window: sizes and steps are at least 1");
    }
  }
  std::copy(kernel.begin(), kernel.end(), window.kernel);
  std::copy(stride.begin(), stride.end(), window.stride);
  std::copy(dilation.begin(), dilation.end(), window.dilation);
  std::copy(low.begin(), low.end(), window.low);
  return window;
}

bool convolution(int direction, int algorithm, nb::handle out, nb::handle a, nb::handle b,
                 nb::object bias, double slope, const Sizes& kernel, const Sizes& stride,
                 const Sizes& dilation, const Sizes& low, int64_t groups) {
  const Array *result = native(out), *first = native(a), *second = native(b);
  const Array* offsets = bias.is_none() ? nullptr : native(bias);
  if (direction < kConvolve || direction > kConvolveWeight) {
    throw nb::value_error("convolution: no such direction");
  }
  const Array* roles[3][3] = {// image, weights, result of the convolution
                              {first, second, result},
                              {result, second, first},
                              {first, result, second}};
  const auto& [x, w, y] = roles[direction];
  if (offsets) {
    check_dense(offsets, "convolution");
    const bool fits = offsets->spec->ndim == 1 && offsets->spec->code == kFloat32 &&
                      y->spec->ndim > 0 && offsets->spec->size == y->spec->shape[y->spec->ndim - 1];
    if (!fits) throw nb::value_error("convolution: the bias has one float32 for each channel");
  }
  Plan plan;
  if (kernels->plan_convolution(&plan, direction, algorithm,
                                window_of(kernel, stride, dilation, low), groups, slope, operand(x),
                                operand(w), operand(y))) {
    return false;
  }
  run(plan, {result, first, second, offsets});
  return true;
}

void check_index(const Array* index, const Array* like) {
  check_dense(index, "max_pool");
  if (index->spec->code != kUInt8 || index->spec->size != like->spec->size) {
    throw nb::value_error("max_pool: the index has one uint8 for each result");
  }
}

bool max_pool(nb::handle out, nb::handle index, nb::handle x, const Sizes& kernel,
              const Sizes& stride, const Sizes& dilation, const Sizes& low) {
  check_index(native(index), native(out));
  Plan plan;
  if (kernels->plan_max_pool(&plan, window_of(kernel, stride, dilation, low), operand(native(x)),
                             operand(native(out)))) {
    return false;
  }
  run(plan, {native(out), native(index), native(x)});
  return true;
}

bool max_pool_grad(nb::handle dx, nb::handle g, nb::handle index, const Sizes& kernel,
                   const Sizes& stride, const Sizes& dilation, const Sizes& low) {
  check_index(native(index), native(g));
  Plan plan;
  if (kernels->plan_max_pool_grad(&plan, window_of(kernel, stride, dilation, low),
                                  operand(native(dx)), operand(native(g)))) {
    return false;
  }
  run(plan, {native(dx), native(g), native(index)});
  return true;
}

}  // namespace

void add_image_kernels(nb::module_& m) {
  m.def("convolution", &convolution, nb::arg("direction"), nb::arg("algorithm"), nb::arg("out"),
        nb::arg("a"), nb::arg("b"), nb::arg("bias").none(), nb::arg("slope"), nb::arg("kernel"),
        nb::arg("stride"), nb::arg("dilation"), nb::arg("low"), nb::arg("groups"));
  m.def("max_pool", &max_pool);
  m.def("max_pool_grad", &max_pool_grad);
}

}  // namespace needle
