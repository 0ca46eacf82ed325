// Convolution and pooling of images [n, spatial..., c]: overrides of the native CPU, as in
// composites.cc. The kernels take float32.
#include <algorithm>

#include "gate/arguments.h"

namespace needle {
namespace {

Name kernel_name("kernel"), stride_name("stride"), dilation_name("dilation"),
    padding_name("padding"), counted_name("counted"), spatial_name("spatial"),
    groups_name("groups"), slope_name("slope");

constexpr int kMostAxes = 3;
constexpr int64_t kMostPlaces = 256;             // of a window, whose places are uint8
constexpr int64_t kMostSize = int64_t{1} << 61;  // so that three of them can be added

bool fits(const int64_t* sizes, int n, int64_t least) {
  return std::all_of(sizes, sizes + n, [=](int64_t x) { return x >= least && x < kMostSize; });
}

bool read_sizes(PyObject* op, Name& name, int axes, int64_t least, int64_t* sizes) {
  return read_attribute(op, name, axes, sizes) && fits(sizes, axes, least);
}

// Windows of an op over the spatial axes of images.
struct Windows : Window {
  int64_t high[kMostAxes];  // elements behind the image

  // kernel: if it is not the op's.
  bool read(PyObject* op, const Spec* image, const int64_t* sizes, bool is_dilated) {
    axes = image->ndim - 2;
    if (axes < 1 || axes > kMostAxes) return false;
    if (sizes) std::copy_n(sizes, axes, kernel);
    std::fill_n(dilation, axes, 1);
    return (sizes ? fits(kernel, axes, 1) : read_sizes(op, kernel_name, axes, 1, kernel)) &&
           (!is_dilated || read_sizes(op, dilation_name, axes, 1, dilation)) &&
           read_sizes(op, stride_name, axes, 1, stride) &&
           read_pairs(op, padding_name, axes, low, high) && fits(low, axes, 0) &&
           fits(high, axes, 0);
  }
  int64_t places() const {
    int64_t count = 1;
    for (int i = 0; i < axes; i++) count *= std::min(kernel[i], kMostPlaces + 1);
    return count;
  }
  // How many there are in an image of these sizes.
  void count(const int64_t* sizes, int64_t* counts) const {
    for (int i = 0; i < axes; i++) {
      int64_t span;
      if (__builtin_mul_overflow(dilation[i], kernel[i] - 1, &span)) span = INT64_MAX - 1;
      const int64_t room = sizes[i] + low[i] + high[i] - span - 1;
      counts[i] = room < 0 ? 0 : room / stride[i] + 1;
    }
  }
};

// A new array [first, sizes..., last]; null without an exception: too large.
Array* new_images(DType type, const Spec* like, int64_t first, const int64_t* sizes, int64_t last) {
  int64_t shape[kMostAxes + 2] = {first}, size = first;
  if (PyErr_Occurred()) return nullptr;
  std::copy_n(sizes, like->ndim - 2, shape + 1);
  shape[like->ndim - 1] = last;
  for (int i = 1; i < like->ndim; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(size, shape[i], &size)) return nullptr;
  }
  return size < INT64_MAX / 8 ? array_empty(type, like->device, like->ndim, shape) : nullptr;
}

// ---- convolution -----------------------------------------------------------------------------

// Float16 and bfloat16 are converted to float32 and back.
bool is_convolved(const Spec* x, const Spec* like) {
  return (x->code == kFloat32 || x->code == kFloat16 || x->code == kBFloat16) && x->size > 0 &&
         x->code == like->code;
}

// x and w, g and w, or x and g; forward perhaps a bias. Null without an exception: no kernel.
Array* convolve(int direction, int algorithm, PyObject* op, Array* const* x, int n) {
  const Spec *image = x[0]->spec, *second = x[1]->spec;
  const bool weighs = direction == kConvolveWeight, is_bias = n == 3;
  const int last = image->ndim - 1;
  Windows how{};
  int64_t groups, counts[kMostAxes], first = image->shape[0], channels = second->shape[last];
  double slope;
  if (second->ndim != image->ndim || !how.read(op, image, weighs ? nullptr : second->shape, true) ||
      !std::all_of(x, x + n, [&](Array* each) { return is_convolved(each->spec, image); }) ||
      !read_attribute(op, groups_name, &groups) || groups < 1) {
    return nullptr;
  }
  if (!read_attribute(op, slope_name, &slope)) slope = 1.0;
  if (direction == kConvolve) {
    how.count(image->shape + 1, counts);
  } else if (weighs) {  // [kernel..., c / groups, o]
    first = how.kernel[0];
    std::copy(how.kernel + 1, how.kernel + how.axes, counts);
    counts[how.axes - 1] = image->shape[last] / groups;
  } else if (read_sizes(op, spatial_name, how.axes, 0, counts)) {
    channels = second->shape[last - 1] * groups;
  } else {
    return nullptr;
  }
  Arrays in, outs;
  for (int i = 0; i < n; i++) in.dense(x[i], kFloat32);
  outs.add(new_images(kFloat32, image, first, counts, channels));
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  const Array* const roles[3][3] = {// image, weights, result of the convolution
                                    {in[0], in[1], outs[0]},
                                    {outs[0], in[1], in[0]},
                                    {in[0], outs[0], in[1]}};
  const auto& [images, weights, result] = roles[direction];
  if (is_bias && (direction != kConvolve || x[2]->spec->ndim != 1 || x[2]->spec->size != channels))
    return nullptr;
  // by spec a kernel of one tap is a product of matrices, which adds no bias
  if (is_bias && algorithm == kBySpec && how.places() == 1) algorithm = kDirect;
  Plan plan;
  void* buffers[] = {address(outs[0]), address(in[0]), address(in[1]),
                     is_bias ? address(in[2]) : nullptr};
  if (kernels->plan_convolution(&plan, direction, algorithm, how, groups, slope, operand(images),
                                operand(weights), operand(result)) ||
      !run_plan(plan, buffers, 8 * (images->spec->size + result->spec->size))) {
    return nullptr;
  }
  return image->code == kFloat32 ? reinterpret_cast<Array*>(outs.result())
                                 : copy_of(outs[0], image->code, false);
}

// convolution(direction, algorithm, op, *arrays)
PyObject* convolution(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  const int n = static_cast<int>(n_args) - 3;
  int64_t direction, algorithm;
  Array* x[3];
  bool ours = (n == 2 || n == 3) && read_number(args[0], &direction) &&
              read_number(args[1], &algorithm) && direction >= kConvolve &&
              direction <= kConvolveWeight && algorithm >= kBySpec && algorithm <= kWinograd;
  for (int i = 0; ours && i < n; i++) ours = (x[i] = native_array(args[3 + i]));
  Array* out = nullptr;
  if (ours) out = convolve(static_cast<int>(direction), static_cast<int>(algorithm), args[2], x, n);
  if (out || PyErr_Occurred()) return reinterpret_cast<PyObject*>(out);
  Py_RETURN_NOTIMPLEMENTED;
}

// ---- pooling ---------------------------------------------------------------------------------

// The kinds of pooling take the same arguments, and those of gradients give an image.
enum Pool { kLargest, kLargestGrad, kAverage, kAverageGrad };

// x -> out, perhaps index; or g, perhaps index -> dx
template <Pool pool>
PyObject* pooled(PyObject* op, Array* const* x, int n) {
  constexpr bool is_grad = pool == kLargestGrad || pool == kAverageGrad, is_average = pool > 1;
  const Spec* spec = x[0]->spec;
  Windows how{};
  int64_t before[kMostAxes], after[kMostAxes], sizes[kMostAxes];
  if (spec->code != kFloat32 || spec->size == 0 || !how.read(op, spec, nullptr, !is_average) ||
      (is_average ? !read_pairs(op, counted_name, how.axes, before, after)
                  : how.places() > kMostPlaces) ||
      (is_grad && !read_sizes(op, spatial_name, how.axes, 0, sizes)) ||
      (n == 2 && !is_like(x[1], spec, kUInt8, spec->ndim))) {
    return nullptr;
  }
  if (!is_grad) how.count(spec->shape + 1, sizes);
  Arrays in(x, n), outs;
  for (const DType type : {kFloat32, kUInt8}) {
    if (type == kUInt8 && pool != kLargest) continue;
    outs.add(new_images(type, spec, spec->shape[0], sizes, spec->shape[spec->ndim - 1]));
  }
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const Operand image = operand(is_grad ? outs[0] : in[0]);
  const Operand result = operand(is_grad ? in[0] : outs[0]);
  const char* refused =
      pool == kLargest       ? kernels->plan_max_pool(&plan, how, image, result)
      : pool == kLargestGrad ? kernels->plan_max_pool_grad(&plan, how, image, result)
      : pool == kAverage ? kernels->plan_avg_pool(&plan, how, before, after, image, result)
                         : kernels->plan_avg_pool_grad(&plan, how, before, after, image, result);
  if (is_average) return finish(refused, plan, &outs, {outs[0], in[0]}, spec->size);
  const Array *second = is_grad ? in[0] : outs[1], *third = in[n - 1];
  return finish(refused, plan, &outs, {outs[0], second, third}, spec->size);
}

PyMethodDef overrides[] = {
    override<pooled<kLargest>, 1>("MaxPool", "max_pool: x -> out, index"),
    override<pooled<kLargestGrad>, 2>("MaxPoolGrad", "max_pool_grad: g, index -> dx"),
    override<pooled<kAverage>, 1>("AvgPool", "avg_pool: x -> out"),
    override<pooled<kAverageGrad>, 1>("AvgPoolGrad", "avg_pool_grad: g -> dx"),
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef functions[] = {{"convolution", function_of(convolution), METH_FASTCALL,
                            "convolution(direction, algorithm, op, *arrays), or NotImplemented"},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_windows(PyObject* module) {
  return add_overrides(module, overrides) && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace needle
