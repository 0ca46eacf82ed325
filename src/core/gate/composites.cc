// Composites that have kernels of their own: overrides of the native CPU. Each takes the op and
// its arrays. Null without an exception: its kernel does not take these, so the op is expanded.
#include <algorithm>

#include "gate/arguments.h"

namespace needle {
namespace {

Name eps_name("eps"), groups_name("groups"), ignored_name("ignore_index"), keep_name("keepdims"),
    smoothing_name("label_smoothing"), correction_name("correction");

bool is_floating(const Spec* spec) { return spec->code <= kFloat16; }

DType statistics_type(DType type) { return type == kFloat64 ? kFloat64 : kFloat32; }

bool are_like(Array* const* x, int n, const Spec* like, DType type, int ndim) {
  return std::all_of(x, x + n, [&](const Array* each) { return is_like(each, like, type, ndim); });
}

// Whether they have one element for each column of x, in which there are some.
bool are_rows(Array* const* parameters, int n, const Spec* x, DType type) {
  return x->ndim > 0 && x->size > 0 && std::all_of(parameters, parameters + n, [&](Array* each) {
           return each->spec->code == type && each->spec->ndim == 1 &&
                  each->spec->shape[0] == x->shape[x->ndim - 1];
         });
}

// A view of dense memory with few axes.
struct Shaped {
  int64_t shape[3], strides[3];
  DType dtype;
  int ndim;
  Shaped(DType type, std::initializer_list<int64_t> sizes)
      : dtype(type), ndim(static_cast<int>(sizes.size())) {
    std::copy(sizes.begin(), sizes.end(), shape);
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
      strides[i] = step;
      step *= shape[i];
    }
  }
  Operand operand() const { return {dtype, ndim, shape, strides}; }
};

// x as [rows, columns].
Shaped rows_of(const Spec* x) {
  const int64_t columns = x->shape[x->ndim - 1];
  return {x->code, {x->size / columns, columns}};
}

// ---- rows: layer norm has means and a bias, RMS norm has neither -----------------------------

// x, weight and perhaps bias -> out, perhaps means, reciprocal deviations
PyObject* norm(PyObject* op, Array* const* x, int n) {
  const Spec* spec = x[0]->spec;
  const bool has_mean = n == 3;
  double eps;
  if (!is_floating(spec) || !are_rows(x + 1, n - 1, spec, spec->code)) return nullptr;
  if (!read_attribute(op, eps_name, &eps)) return nullptr;
  Arrays in(x, n), outs;
  const DType wide = statistics_type(spec->code);
  outs.empty(spec);
  for (int i = 1; i < n; i++) outs.empty(spec, wide, spec->ndim - 1);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused =
      kernels->plan_layer_norm(&plan, has_mean ? kLayerNorm : kRmsNorm, operand(in[0]), eps);
  return finish(refused, plan, &outs,
                {outs[0], has_mean ? outs[1] : nullptr, outs[n - 1], in[0], in[1],
                 has_mean ? in[2] : nullptr},
                spec->size);
}

// g, x, weight, perhaps means, reciprocal deviations -> dx, dweight, perhaps dbias
PyObject* norm_grad(PyObject*, Array* const* x, int n) {
  const Spec* spec = x[1]->spec;
  const bool has_mean = n == 5;
  const DType wide = statistics_type(spec->code);
  if (!is_floating(spec) || !are_rows(x + 2, 1, spec, spec->code) ||
      !is_like(x[0], spec, spec->code, spec->ndim) ||
      !are_like(x + 3, n - 3, spec, wide, spec->ndim - 1)) {
    return nullptr;
  }
  Arrays in(x, n), outs;
  outs.empty(spec);
  for (int i = 3; i < n; i++) outs.empty(x[2]->spec);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused =
      kernels->plan_layer_norm_grad(&plan, has_mean ? kLayerNorm : kRmsNorm, operand(in[1]));
  return finish(refused, plan, &outs,
                {outs[0], outs[1], has_mean ? outs[2] : nullptr, in[0], in[1], in[2],
                 has_mean ? in[3] : nullptr, in[n - 1]},
                spec->size);
}

// ---- columns: batch norm, with a rectifier, group norm ---------------------------------------

// x, weight, bias -> out, means, variances
PyObject* batch_norm(PyObject* op, Array* const* x, int n) {
  const Spec* spec = x[0]->spec;
  double eps;
  if (!is_floating(spec) || !are_rows(x + 1, 2, spec, spec->code)) return nullptr;
  if (!read_attribute(op, eps_name, &eps)) return nullptr;
  Arrays in(x, n), outs;
  outs.empty(spec);
  for (int i = 0; i < 2; i++) outs.empty(x[1]->spec, statistics_type(spec->code), 1);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused = kernels->plan_batch_norm(&plan, rows_of(spec).operand(), eps);
  return finish(refused, plan, &outs, {outs[0], outs[1], outs[2], in[0], in[1], in[2]}, spec->size);
}

// g, x, weight, means, variances -> dx, dweight, dbias
PyObject* batch_norm_grad(PyObject* op, Array* const* x, int n) {
  const Spec* spec = x[1]->spec;
  double eps;
  if (!is_floating(spec) || spec->ndim != 2 || !is_like(x[0], spec, spec->code, 2) ||
      !are_rows(x + 2, 1, spec, spec->code) ||
      !are_rows(x + 3, 2, spec, statistics_type(spec->code)) ||
      !read_attribute(op, eps_name, &eps)) {
    return nullptr;
  }
  Arrays in(x, n), outs;
  for (const int like : {1, 2, 2}) outs.empty(x[like]->spec);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused = kernels->plan_batch_norm_grad(&plan, operand(in[1]), eps);
  return finish(refused, plan, &outs,
                {outs[0], outs[1], outs[2], in[0], in[1], in[2], in[3], in[4]}, spec->size);
}

// x, weight, bias, perhaps a residual -> out, means, variances
PyObject* batch_norm_relu(PyObject* op, Array* const* x, int n) {
  const Spec* spec = x[0]->spec;
  double eps;
  if (spec->code != kFloat32 || !are_rows(x + 1, 2, spec, kFloat32) ||
      !are_like(x + 3, n - 3, spec, kFloat32, spec->ndim) || !read_attribute(op, eps_name, &eps)) {
    return nullptr;
  }
  Arrays in(x, n), outs;
  for (const int like : {0, 1, 1}) outs.empty(x[like]->spec);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused = kernels->plan_batch_norm_relu(&plan, rows_of(spec).operand(), eps);
  return finish(refused, plan, &outs,
                {outs[0], outs[1], outs[2], in[0], in[1], in[2], n == 4 ? in[3] : nullptr},
                spec->size);
}

// g, x, weight, bias, means, variances, and with a residual the result
// -> dx, dweight, dbias, perhaps dresidual
PyObject* batch_norm_relu_grad(PyObject* op, Array* const* x, int n) {
  const Spec* spec = x[1]->spec;
  const bool has_residual = n == 7;
  double eps;
  if (spec->code != kFloat32 || !is_like(x[0], spec, kFloat32, spec->ndim) ||
      !are_rows(x + 2, 4, spec, kFloat32) || !are_like(x + 6, n - 6, spec, kFloat32, spec->ndim) ||
      !read_attribute(op, eps_name, &eps)) {
    return nullptr;
  }
  Arrays in(x, n), outs;
  for (const int like : {1, 2, 2}) outs.empty(x[like]->spec);
  if (has_residual) outs.empty(spec);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused = kernels->plan_batch_norm_relu_grad(&plan, rows_of(spec).operand(), eps);
  return finish(refused, plan, &outs,
                {outs[0], outs[1], outs[2], has_residual ? outs[3] : nullptr, in[0],
                 has_residual ? in[6] : nullptr, in[1], in[2], in[3], in[4], in[5]},
                spec->size);
}

// What group norm asks of images: [n, ..., channels], of which some are a group.
bool are_groups(PyObject* op, const Spec* x, int64_t* groups, double* eps) {
  return x->code == kFloat32 && x->ndim > 1 && read_attribute(op, groups_name, groups) &&
         *groups > 0 && x->size > 0 && x->shape[x->ndim - 1] % *groups == 0 &&
         read_attribute(op, eps_name, eps);
}

Shaped positions_of(const Spec* x) {
  const int64_t n = x->shape[0], channels = x->shape[x->ndim - 1];
  return {kFloat32, {n, x->size / (n * channels), channels}};
}

// x, weight, bias -> out, means, variances
PyObject* group_norm(PyObject* op, Array* const* x, int n) {
  const Spec* spec = x[0]->spec;
  int64_t groups;
  double eps;
  if (!are_groups(op, spec, &groups, &eps) || !are_rows(x + 1, 2, spec, kFloat32)) return nullptr;
  Arrays in(x, n), outs;
  outs.empty(spec);
  const int64_t shape[] = {spec->shape[0], groups};
  for (int i = 0; i < 2; i++) outs.empty(kFloat32, spec->device, 2, shape);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused = kernels->plan_group_norm(&plan, positions_of(spec).operand(), groups, eps);
  return finish(refused, plan, &outs, {outs[0], outs[1], outs[2], in[0], in[1], in[2]}, spec->size);
}

// g, x, weight, means, variances -> dx, dweight, dbias
PyObject* group_norm_grad(PyObject* op, Array* const* x, int n) {
  const Spec* spec = x[1]->spec;
  int64_t groups;
  double eps;
  if (!are_groups(op, spec, &groups, &eps) || !is_like(x[0], spec, kFloat32, spec->ndim) ||
      !are_rows(x + 2, 1, spec, kFloat32)) {
    return nullptr;
  }
  for (int i = 3; i < 5; i++) {
    const Spec* own = x[i]->spec;
    if (own->code != kFloat32 || own->ndim != 2 || own->shape[0] != spec->shape[0] ||
        own->shape[1] != groups) {
      return nullptr;
    }
  }
  Arrays in(x, n), outs;
  for (const int like : {1, 2, 2}) outs.empty(x[like]->spec);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused =
      kernels->plan_group_norm_grad(&plan, positions_of(spec).operand(), groups, eps);
  return finish(refused, plan, &outs,
                {outs[0], outs[1], outs[2], in[0], in[1], in[2], in[3], in[4]}, spec->size);
}

// ---- softmax ---------------------------------------------------------------------------------

// An operand with one axis moved behind the others.
struct Turned {
  int64_t shape[kMaxDims], strides[kMaxDims];
  DType dtype;
  int ndim;
  Turned(const Spec* spec, const int64_t* steps, int axis) : dtype(spec->code), ndim(spec->ndim) {
    for (int i = 0; i < ndim; i++) {
      const int from = i == ndim - 1 ? axis : i < axis ? i : i + 1;
      shape[i] = spec->shape[from];
      strides[i] = steps[from];
    }
  }
  explicit Turned(const Array* x, int axis) : Turned(x->spec, strides_of(x), axis) {}
  Operand operand() const { return {dtype, ndim, shape, strides}; }
};

// A new array of x's shape. If only the axis is contiguous in x, it is in the result.
Array* empty_along(const Array* x, int axis) {
  const Spec* spec = x->spec;
  Reference out(array_empty(x->spec));
  if (!out.array || axis == spec->ndim - 1 || strides_of(x)[axis] != 1) {
    return std::exchange(out.array, nullptr);
  }
  int64_t strides[kMaxDims], step = spec->shape[axis];
  for (int i = spec->ndim - 1; i >= 0; i--) {
    strides[i] = i == axis ? 1 : step;
    if (i != axis) step *= spec->shape[i];
  }
  Py_INCREF(x->spec);
  return array_view(out.array, x->spec, 0, strides);
}

template <int32_t kind>
PyObject* softmax(PyObject* op, Array* const* x, int) {
  int axis;
  if (!is_floating(x[0]->spec) || !read_axis(op, x[0]->spec->ndim, &axis)) return nullptr;
  Arrays outs;
  const Array* out = outs.add(empty_along(x[0], axis));
  if (!out) return nullptr;
  Plan plan;
  const char* refused =
      kernels->plan_softmax(&plan, kind, Turned(out, axis).operand(), Turned(x[0], axis).operand());
  return finish(refused, plan, &outs, {out, x[0]}, out->spec->size);
}

template <int32_t kind>
PyObject* softmax_grad(PyObject* op, Array* const* x, int) {
  const Spec* spec = x[0]->spec;
  int axis;
  if (!is_floating(spec) || !is_like(x[1], spec, spec->code, spec->ndim) ||
      !read_axis(op, spec->ndim, &axis)) {
    return nullptr;
  }
  Arrays outs;
  const Array* dx = outs.add(empty_along(x[0], axis));
  if (!dx) return nullptr;
  Plan plan;
  const char* refused =
      kernels->plan_softmax_grad(&plan, kind, Turned(dx, axis).operand(),
                                 Turned(x[0], axis).operand(), Turned(x[1], axis).operand());
  return finish(refused, plan, &outs, {dx, x[0], x[1]}, spec->size);
}

// Over one axis, or several that can be viewed as one.
PyObject* log_sum_exp(PyObject* op, Array* const* x, int) {
  const Spec* spec = x[0]->spec;
  uint32_t axes;
  bool keep;
  if (!is_floating(spec) || spec->size == 0 || !read_axes(op, spec->ndim, &axes) || !axes ||
      !read_attribute(op, keep_name, &keep)) {
    return nullptr;
  }
  const int first = __builtin_ctz(axes), count = __builtin_popcount(axes);
  if (axes >> first != (1u << count) - 1 || (count > 1 && !is_dense(x[0]))) return nullptr;
  int64_t shape[kMaxDims], from[kMaxDims], steps[kMaxDims], strides[kMaxDims], whole = 1, step = 1;
  int kept = 0, others = 0;  // of the result; of the axes besides those that are summed over
  for (int i = 0; i < spec->ndim; i++) {
    const bool summed = axes >> i & 1;
    if (summed) whole *= spec->shape[i];
    if (!summed || keep) shape[kept++] = summed ? 1 : spec->shape[i];
    if (summed) continue;
    from[others] = spec->shape[i];
    steps[others++] = strides_of(x[0])[i];
  }
  for (int i = others - 1; i >= 0; i--) {
    strides[i] = step;
    step *= from[i];
  }
  Arrays outs;
  const Array* out = outs.empty(spec->code, spec->device, kept, shape);
  if (!out) return nullptr;
  int64_t to[kMaxDims];
  std::copy_n(from, others, to);
  from[others] = whole;
  to[others] = 1;
  steps[others] = strides_of(x[0])[first + count - 1];
  strides[others] = 1;
  Plan plan;
  const char* refused =
      kernels->plan_softmax(&plan, kLogSumExp, {spec->code, others + 1, to, strides},
                            {spec->code, others + 1, from, steps});
  return finish(refused, plan, &outs, {out, x[0]}, spec->size);
}

// ---- cross entropy ---------------------------------------------------------------------------

// Integers, one for each row of the logits, which have classes.
bool are_labels(const Spec* labels, const Spec* logits) {
  return is_floating(logits) && labels->code >= kInt8 && labels->code <= kUInt8 &&
         logits->ndim == labels->ndim + 1 && logits->shape[labels->ndim] > 0 &&
         std::equal(labels->shape, labels->shape + labels->ndim, logits->shape);
}

bool read_loss(PyObject* op, int64_t* ignored, double* smoothing) {
  return read_attribute(op, ignored_name, ignored) && read_attribute(op, smoothing_name, smoothing);
}

// Logits as [rows, classes].
Array* matrix_of(const Array* logits) {
  const Spec* spec = logits->spec;
  const int64_t classes = spec->shape[spec->ndim - 1];
  const int64_t shape[] = {spec->size / classes, classes};
  return reshape(logits, 2, shape);
}

// logits, labels -> losses, and two parts of the logarithm of the sum of exponentials. A label that
// is not a class is left to the expansion, which says so.
PyObject* cross_entropy(PyObject* op, Array* const* x, int) {
  const Spec *spec = x[0]->spec, *own = x[1]->spec;
  int64_t ignored;
  double smoothing;
  if (!are_labels(own, spec) || !read_loss(op, &ignored, &smoothing)) return nullptr;
  Arrays in, outs;
  in.add(matrix_of(x[0]));
  in.add(reshape(x[1], 1, &own->size));
  for (int i = 0; i < 3; i++) outs.empty(own, statistics_type(spec->code), own->ndim);
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused =
      kernels->plan_cross_entropy(&plan, operand(in[0]), operand(in[1]), ignored, smoothing);
  return finish(refused, plan, &outs, {outs[0], outs[1], outs[2], in[0], in[1]}, spec->size,
                kChecked);
}

// g, logits, labels, the two parts, perhaps where to write (it may be the logits) -> dlogits
PyObject* cross_entropy_grad(PyObject* op, Array* const* x, int n) {
  const Spec *spec = x[1]->spec, *own = x[2]->spec;
  const DType wide = statistics_type(spec->code);
  int64_t ignored;
  double smoothing;
  if (!are_labels(own, spec) || !is_like(x[0], own, wide, own->ndim) ||
      !are_like(x + 3, 2, own, wide, own->ndim) || !read_loss(op, &ignored, &smoothing)) {
    return nullptr;
  }
  Arrays in, outs;
  in.add(matrix_of(x[1]));
  in.add(reshape(x[2], 1, &own->size));
  for (const int i : {0, 3, 4}) in.dense(x[i]);
  if (n == 6) {
    if (x[5]->strides || x[5]->spec != spec) return nullptr;
    Py_INCREF(outs.add(x[5]));
  } else {
    outs.empty(spec);
  }
  if (!in.is_complete() || !outs.is_complete()) return nullptr;
  Plan plan;
  const char* refused =
      kernels->plan_cross_entropy_grad(&plan, operand(in[0]), operand(in[1]), ignored, smoothing);
  return finish(refused, plan, &outs, {outs[0], in[2], in[0], in[1], in[3], in[4]}, spec->size,
                kChecked);
}

// ---- variances, deviations and lengths -------------------------------------------------------

template <int32_t reduction>
PyObject* spread(PyObject* op, Array* const* x, int) {
  const DType own = x[0]->spec->code;
  uint32_t axes;
  bool keep;
  double correction = 0;
  if (!is_floating(x[0]->spec) || !read_axes(op, x[0]->spec->ndim, &axes) ||
      !read_attribute(op, keep_name, &keep) ||
      (reduction != kNorm && !read_attribute(op, correction_name, &correction))) {
    return nullptr;
  }
  const DType wide = reduction == kVariance ? own : statistics_type(own);
  Arrays in, outs;
  if (wide == own) Py_INCREF(in.add(x[0]));
  if (wide != own) in.dense(x[0], wide);
  outs.add(in[0] ? reduction_result(reduction, axes, keep, in[0], correction) : nullptr);
  if (!outs[0] || wide == own) return outs[0] ? outs.result() : nullptr;
  return reinterpret_cast<PyObject*>(copy_of(outs[0], own, false));
}

// Each says which kernel it calls, then what it takes and gives.
PyMethodDef functions[] = {
    override<norm, 3>("LayerNorm", "layer_norm: x, weight, bias -> out, mean, rstd"),
    override<norm_grad, 5>("LayerNormGrad",
                           "layer_norm_grad: g, x, weight, mean, rstd -> dx, dweight, dbias"),
    override<norm, 2>("RMSNorm", "layer_norm: x, weight -> out, rstd"),
    override<norm_grad, 4>("RMSNormGrad", "layer_norm_grad: g, x, weight, rstd -> dx, dweight"),
    override<batch_norm, 3>("BatchNorm", "batch_norm: x, weight, bias -> out, mean, var"),
    override<batch_norm_grad, 5>("BatchNormGrad",
                                 "batch_norm_grad: g, x, weight, mean, var -> dx, dweight, dbias"),
    override<batch_norm_relu, 3, 4>(
        "BatchNormReLU", "batch_norm_relu: x, weight, bias[, residual] -> out, mean, var"),
    override<batch_norm_relu_grad, 6, 7>(
        "BatchNormReLUGrad",
        "batch_norm_relu_grad: g, x, weight, bias, mean, var[, out] -> dx, ..."),
    override<group_norm, 3>("GroupNorm", "group_norm: x, weight, bias -> out, mean, var"),
    override<group_norm_grad, 5>("GroupNormGrad",
                                 "group_norm_grad: g, x, weight, mean, var -> dx, dweight, dbias"),
    override<softmax<kSoftmax>, 1>("Softmax", "softmax: x -> out"),
    override<softmax<kLogSoftmax>, 1>("LogSoftmax", "softmax: x -> out"),
    override<softmax_grad<kSoftmax>, 2>("SoftmaxGrad", "softmax_grad: out, g -> dx"),
    override<softmax_grad<kLogSoftmax>, 2>("LogSoftmaxGrad", "softmax_grad: out, g -> dx"),
    override<log_sum_exp, 1>("LogSumExp", "softmax: x -> out"),
    override<cross_entropy, 2>("CrossEntropy",
                               "cross_entropy: logits, labels -> loss, shift, rest"),
    override<cross_entropy_grad, 5, 6>(
        "CrossEntropyGrad",
        "cross_entropy_grad: g, logits, labels, shift, rest[, where to] -> dlogits"),
    override<spread<kVariance>, 1>("Var", "reduce: x -> out"),
    override<spread<kDeviation>, 1>("StandardDeviation", "reduce: x -> out"),
    override<spread<kNorm>, 1>("EuclideanNorm", "reduce: x -> out"),
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_composites(PyObject* module) { return add_overrides(module, functions); }

}  // namespace needle
