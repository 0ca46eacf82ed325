// Convolution and pooling as functions of Arrays, which return whether there is such a kernel.
#include "bind/calls.h"
#include <algorithm>

namespace needle {
namespace {

// Up to three numbers, from a tuple or list. (A vector as parameter would be filled by nanobind,
// which ends the process where there is no memory for it.)
class Sizes {
 public:
  explicit Sizes(nb::handle source) {
    const nb::object fast =
        nb::steal(PySequence_Fast(source.ptr(), "expected a tuple or list of sizes"));
    if (!fast.is_valid()) throw nb::python_error();
    n_ = PySequence_Fast_GET_SIZE(fast.ptr());
    if (n_ > 3) throw nb::value_error("window: expected at most 3 spatial axes");
    for (int64_t i = 0; i < n_; i++) {
      numbers_[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    }
    if (PyErr_Occurred()) throw nb::python_error();
  }
  int64_t size() const { return n_; }
  const int64_t* begin() const { return numbers_; }
  const int64_t* end() const { return numbers_ + n_; }

 private:
  int64_t numbers_[3] = {};
  int64_t n_;
};

Window window_of(const Sizes& kernel, const Sizes& stride, const Sizes& dilation,
                 const Sizes& low) {
  Window window = {static_cast<int32_t>(kernel.size()), {}, {}, {}, {}};
  if (stride.size() != kernel.size() || dilation.size() != kernel.size() ||
      low.size() != kernel.size()) {
    throw nb::value_error("window: expected the same number of spatial axes throughout");
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

const Array* optional(nb::handle x) { return x.is_none() ? nullptr : native(x); }

bool is_one_tap(const Sizes& kernel) {
  return std::all_of(kernel.begin(), kernel.end(), [](int64_t n) { return n == 1; });
}

bool convolution(int direction, int algorithm, nb::handle out, nb::handle a, nb::handle b,
                 nb::object bias_object, double slope, nb::handle kernel, nb::handle stride,
                 nb::handle dilation, nb::handle low, int64_t groups) {
  const Array *result = native(out), *first = native(a), *second = native(b);
  const Array* bias = optional(bias_object);
  if (direction < kConvolve || direction > kConvolveWeight) {
    throw nb::value_error("convolution: unknown direction");
  }
  const Array* roles[3][3] = {// image, weights, result of the convolution
                              {first, second, result},
                              {result, second, first},
                              {first, result, second}};
  const auto& [x, w, y] = roles[direction];
  if (bias) {
    check_dense(bias, "convolution");
    const bool fits = bias->spec->ndim == 1 && bias->spec->code == kFloat32 && y->spec->ndim > 0 &&
                      bias->spec->size == y->spec->shape[y->spec->ndim - 1];
    if (!fits)
      throw nb::value_error("convolution: expected a bias of one float32 for each channel");
  }
  if (bias && algorithm == kBySpec && is_one_tap(Sizes(kernel))) {
    algorithm = kDirect;  // by spec it is a product of matrices, which adds no bias
  }
  Plan plan;
  if (kernels->plan_convolution(
          &plan, direction, algorithm,
          window_of(Sizes(kernel), Sizes(stride), Sizes(dilation), Sizes(low)), groups, slope,
          operand(x), operand(w), operand(y))) {
    return false;
  }
  run(plan, {result, first, second, bias});
  return true;
}

void check_index(const Array* index, const Array* like) {
  check_dense(index, "max_pool");
  if (index->spec->code != kUInt8 || index->spec->size != like->spec->size) {
    throw nb::value_error("max_pool: expected an index of one uint8 for each result");
  }
}

bool max_pool(nb::handle out, nb::handle index, nb::handle x, nb::handle kernel, nb::handle stride,
              nb::handle dilation, nb::handle low) {
  check_index(native(index), native(out));
  Plan plan;
  if (kernels->plan_max_pool(&plan,
                             window_of(Sizes(kernel), Sizes(stride), Sizes(dilation), Sizes(low)),
                             operand(native(x)), operand(native(out)))) {
    return false;
  }
  run(plan, {native(out), native(index), native(x)});
  return true;
}

bool max_pool_grad(nb::handle dx, nb::handle g, nb::handle index, nb::handle kernel,
                   nb::handle stride, nb::handle dilation, nb::handle low) {
  check_index(native(index), native(g));
  Plan plan;
  if (kernels->plan_max_pool_grad(
          &plan, window_of(Sizes(kernel), Sizes(stride), Sizes(dilation), Sizes(low)),
          operand(native(dx)), operand(native(g)))) {
    return false;
  }
  run(plan, {native(dx), native(g), native(index)});
  return true;
}

bool max_pool_take(nb::handle out, nb::handle x, nb::handle index, nb::handle kernel,
                   nb::handle stride, nb::handle dilation, nb::handle low) {
  check_index(native(index), native(out));
  Plan plan;
  if (kernels->plan_max_pool_take(
          &plan, window_of(Sizes(kernel), Sizes(stride), Sizes(dilation), Sizes(low)),
          operand(native(x)), operand(native(out)))) {
    return false;
  }
  return run(plan, {native(out), native(x), native(index)}) < 0;  // >= 0: a bad position
}

bool avg_pool(bool grad, nb::handle out, nb::handle x, nb::handle kernel, nb::handle stride,
              nb::handle low, nb::handle before, nb::handle after) {
  const Sizes spans(kernel), counted[] = {Sizes(before), Sizes(after)};
  if (counted[0].size() != spans.size() || counted[1].size() != spans.size()) {
    throw nb::value_error("avg_pool: expected the same number of spatial axes throughout");
  }
  Window window = window_of(spans, Sizes(stride), spans, Sizes(low));
  std::fill_n(window.dilation, spans.size(), 1);  // averages have none
  const auto make = grad ? kernels->plan_avg_pool_grad : kernels->plan_avg_pool;
  Plan plan;
  if (make(&plan, window, counted[0].begin(), counted[1].begin(), operand(native(grad ? out : x)),
           operand(native(grad ? x : out)))) {
    return false;
  }
  run(plan, {native(out), native(x)});
  return true;
}

// A matrix for an axis of the image: where the rows of it begin, and their elements. Returns how
// many they are in a row.
int64_t check_bands(const Array* first, const Array* weight, const Array* image,
                    const Array* result, int axis) {
  check_dense(first, "banded");
  check_dense(weight, "banded");
  const int64_t m = result->spec->shape[axis];
  const bool fits = first->spec->code == kInt64 && weight->spec->code == image->spec->code &&
                    weight->spec->ndim == 2 && first->spec->size == m &&
                    weight->spec->shape[0] == m;
  if (!fits) throw nb::value_error("banded: expected a start and a row of weights for each result");
  const int64_t span = weight->spec->shape[1], last = image->spec->shape[axis] - span;
  if (!is_known(first)) refuse_dry("the rows of a banded matrix depend on values");
  const auto* begin = reinterpret_cast<const int64_t*>(address(first));
  if (std::any_of(begin, begin + m, [&](int64_t i) { return i < 0 || i > last; })) {
    throw nb::value_error("banded: a row of the matrix goes beyond the axis");
  }
  return span;
}

void banded(nb::handle out, nb::handle x, nb::handle first, nb::handle weight,
            nb::handle second_first, nb::handle second_weight) {
  const Array *result = native(out), *image = native(x);
  if (result->spec->ndim != 4 || image->spec->ndim != 4) {
    throw nb::value_error("banded: expected [rows, n, width, inner]");
  }
  const Array *starts = optional(second_first), *factors = optional(second_weight);
  if (!starts != !factors)
    throw nb::value_error("banded: expected both starts and factors, or neither");
  const int64_t span = check_bands(native(first), native(weight), image, result, 1);
  const int64_t second_span = starts ? check_bands(starts, factors, image, result, 2) : 0;
  Plan plan;
  check(kernels->plan_banded(&plan, operand(image), operand(result), span, second_span), "banded",
        image);
  run(plan, {result, image, native(first), native(weight), starts, factors});
}

}  // namespace

void add_image_kernels(nb::module_& m) {
  m.def("convolution", &convolution, nb::arg("direction"), nb::arg("algorithm"), nb::arg("out"),
        nb::arg("a"), nb::arg("b"), nb::arg("bias").none(), nb::arg("slope"), nb::arg("kernel"),
        nb::arg("stride"), nb::arg("dilation"), nb::arg("low"), nb::arg("groups"));
  m.def("max_pool", &max_pool);
  m.def("max_pool_grad", &max_pool_grad);
  m.def("max_pool_take", &max_pool_take);
  m.def("avg_pool", &avg_pool);
  m.def("banded", &banded, nb::arg("out"), nb::arg("x"), nb::arg("first"), nb::arg("weight"),
        nb::arg("second_first").none(), nb::arg("second_weight").none());
}

}  // namespace needle
