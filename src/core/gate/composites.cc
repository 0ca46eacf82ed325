// Composites that Python calls often on little: shortcuts of backend/overrides.py, which decides
// wherever these return None.
#include <algorithm>

#include "gate/gate.h"

namespace needle {
namespace {

// The array of an argument; null: not a dense one of ours, or the gate is closed.
Array* dense_array(PyObject* x) {
  if (!modes.open || !is_array(x)) return nullptr;
  auto* array = reinterpret_cast<Array*>(x);
  return array->storage && !array->strides ? array : nullptr;
}

DType statistics_type(DType type) { return type == kFloat64 ? kFloat64 : kFloat32; }

Array* new_array(const Spec* like, DType type, int ndim) {  // of the first axes of `like`
  Spec* spec = spec_of(type, like->device, ndim, like->shape);
  Array* array = spec ? array_empty(spec) : nullptr;
  Py_XDECREF(spec);
  return array;
}

// A tuple, which owns the arrays then, or None: there was no memory for one of them, or no result.
PyObject* results(bool done, Array* const* arrays, int n) {
  PyObject* tuple = done ? PyTuple_New(n) : nullptr;
  for (int i = 0; i < n; i++) {
    if (tuple) {
      PyTuple_SET_ITEM(tuple, i, reinterpret_cast<PyObject*>(arrays[i]));
    } else {
      Py_XDECREF(arrays[i]);
    }
  }
  if (tuple) return tuple;
  PyErr_Clear();
  Py_RETURN_NONE;
}

bool has_shape(const Array* array, const Spec* like, DType type, int ndim) {
  const Spec* spec = array->spec;
  return spec->code == type && spec->ndim == ndim &&
         std::equal(spec->shape, spec->shape + ndim, like->shape);
}

bool is_row(const Array* parameter, const Spec* x) {
  const Spec* spec = parameter->spec;
  return spec->code == x->code && spec->ndim == 1 && spec->shape[0] == x->shape[x->ndim - 1];
}

template <int n>
bool dense_arrays(PyObject* const* args, const Array* (&arrays)[n]) {
  for (int i = 0; i < n; i++) {
    if (!(arrays[i] = dense_array(args[i]))) return false;
  }
  return true;
}

// ---- norms: layer norm has means and a bias, RMS norm has neither

constexpr int32_t kLayer = 0, kRms = 1;

bool are_rows(const Spec* x, const Array* weight) {
  return x->code <= kFloat16 && x->ndim > 0 && x->size > 0 && is_row(weight, x);
}

void* address_or_null(const Array* array) { return array ? address(array) : nullptr; }

// (out, mean, rstd), or (out, rstd) without a bias
PyObject* norm(const Array* x, const Array* weight, const Array* bias, double eps) {
  const Spec* spec = x->spec;
  if (!are_rows(spec, weight) || (bias && !is_row(bias, spec))) Py_RETURN_NONE;
  const DType wide = statistics_type(spec->code);
  const int n = bias ? 3 : 2;
  Array* outs[3] = {new_array(spec, spec->code, spec->ndim), new_array(spec, wide, spec->ndim - 1),
                    bias ? new_array(spec, wide, spec->ndim - 1) : nullptr};
  bool done = std::find(outs, outs + n, nullptr) == outs + n;
  if (done) {
    Plan plan;
    void* buffers[] = {address(outs[0]),     bias ? address(outs[1]) : nullptr,
                       address(outs[n - 1]), address(x),
                       address(weight),      address_or_null(bias)};
    done = !kernels->plan_layer_norm(&plan, bias ? kLayer : kRms, operand(x), eps) &&
           run_plan(plan, buffers, spec->size);
  }
  return results(done, outs, n);
}

// (dx, dweight, dbias), or (dx, dweight) without means
PyObject* norm_grad(const Array* g, const Array* x, const Array* weight, const Array* mean,
                    const Array* rstd) {
  const Spec* spec = x->spec;
  const DType wide = statistics_type(spec->code);
  if (!are_rows(spec, weight) || !has_shape(g, spec, spec->code, spec->ndim) ||
      !has_shape(rstd, spec, wide, spec->ndim - 1) ||
      (mean && !has_shape(mean, spec, wide, spec->ndim - 1))) {
    Py_RETURN_NONE;
  }
  const int n = mean ? 3 : 2;
  Array* outs[3] = {new_array(spec, spec->code, spec->ndim), new_array(weight->spec, spec->code, 1),
                    mean ? new_array(weight->spec, spec->code, 1) : nullptr};
  bool done = std::find(outs, outs + n, nullptr) == outs + n;
  if (done) {
    Plan plan;
    void* buffers[] = {address(outs[0]), address(outs[1]), address_or_null(outs[2]), address(g),
                       address(x),       address(weight),  address_or_null(mean),    address(rstd)};
    done = !kernels->plan_layer_norm_grad(&plan, mean ? kLayer : kRms, operand(x)) &&
           run_plan(plan, buffers, spec->size);
  }
  return results(done, outs, n);
}

// layer_norm_of(x, weight, bias, eps): (out, mean, rstd), or None
PyObject* layer_norm_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* in[3];
  if (n != 4 || !dense_arrays(args, in) || !PyFloat_CheckExact(args[3])) Py_RETURN_NONE;
  return norm(in[0], in[1], in[2], PyFloat_AS_DOUBLE(args[3]));
}

// rms_norm_of(x, weight, eps): (out, rstd), or None
PyObject* rms_norm_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* in[2];
  if (n != 3 || !dense_arrays(args, in) || !PyFloat_CheckExact(args[2])) Py_RETURN_NONE;
  return norm(in[0], in[1], nullptr, PyFloat_AS_DOUBLE(args[2]));
}

// layer_norm_grad_of(g, x, weight, mean, rstd): (dx, dweight, dbias), or None
PyObject* layer_norm_grad_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* in[5];
  if (n != 5 || !dense_arrays(args, in)) Py_RETURN_NONE;
  return norm_grad(in[0], in[1], in[2], in[3], in[4]);
}

// rms_norm_grad_of(g, x, weight, rstd): (dx, dweight), or None
PyObject* rms_norm_grad_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* in[4];
  if (n != 4 || !dense_arrays(args, in)) Py_RETURN_NONE;
  return norm_grad(in[0], in[1], in[2], nullptr, in[3]);
}

// ---- cross entropy

// Integers, one for each row of the logits, which have classes.
bool are_labels(const Spec* labels, const Spec* logits) {
  return logits->code <= kFloat16 && labels->code >= kInt8 && labels->code <= kUInt8 &&
         logits->ndim == labels->ndim + 1 && logits->shape[labels->ndim] > 0 &&
         std::equal(labels->shape, labels->shape + labels->ndim, logits->shape);
}

bool read_label(PyObject* number, int64_t* label) {
  int overflow;
  *label = PyLong_AsLongLongAndOverflow(number, &overflow);
  const bool failed = PyErr_Occurred();
  if (failed) PyErr_Clear();
  return !failed && !overflow;
}

// Logits and labels as the kernels take them: [rows, classes] and [rows].
struct Rows {
  int64_t shape[2], strides[2];
  Operand logits, labels;

  Rows(const Spec* x, const Spec* own)
      : shape{own->size, x->shape[own->ndim]},
        strides{shape[1], 1},
        logits{x->code, 2, shape, strides},
        labels{own->code, 1, shape, strides + 1} {}
};

// cross_entropy_of(logits, labels, ignored label, smoothing): (loss, shift, rest), or None, also
// for a label that is not a class
PyObject* cross_entropy_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* in[2];
  if (n != 4 || !dense_arrays(args, in) || !PyFloat_CheckExact(args[3])) Py_RETURN_NONE;
  const auto [logits, labels] = in;
  const Spec *spec = logits->spec, *own = labels->spec;
  int64_t ignored;
  if (!are_labels(own, spec) || !read_label(args[2], &ignored)) Py_RETURN_NONE;
  const DType wide = statistics_type(spec->code);
  Array* outs[3];
  for (Array*& out : outs) out = new_array(spec, wide, own->ndim);
  bool done = outs[0] && outs[1] && outs[2];
  if (done) {
    const Rows rows(spec, own);
    Plan plan;
    void* buffers[] = {address(outs[0]), address(outs[1]), address(outs[2]), address(logits),
                       address(labels)};
    done = !kernels->plan_cross_entropy(&plan, rows.logits, rows.labels, ignored,
                                        PyFloat_AS_DOUBLE(args[3])) &&
           run_checked(plan, buffers, spec->size);
  }
  return results(done, outs, 3);
}

// cross_entropy_grad_of(g, logits, labels, shift, rest, ignored label, smoothing): dlogits, or None
PyObject* cross_entropy_grad_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* in[4];
  if (n != 7 || !modes.open || !is_array(args[0]) || !dense_arrays(args + 1, in) ||
      !PyFloat_CheckExact(args[6])) {
    Py_RETURN_NONE;
  }
  const auto [logits, labels, shift, rest] = in;
  auto* g = reinterpret_cast<Array*>(args[0]);
  const Spec *spec = logits->spec, *own = labels->spec;
  const DType wide = statistics_type(spec->code);
  int64_t ignored;
  if (!g->storage || !are_labels(own, spec) || !has_shape(g, own, wide, own->ndim) ||
      !has_shape(shift, own, wide, own->ndim) || !has_shape(rest, own, wide, own->ndim) ||
      !read_label(args[5], &ignored)) {
    Py_RETURN_NONE;
  }
  Array* dense = g->strides ? copy_of(g, wide, false) : nullptr;  // a mean's gradient is repeated
  Array* out = new_array(spec, spec->code, spec->ndim);
  bool done = out && (dense || !g->strides);
  if (done) {
    const Rows rows(spec, own);
    Plan plan;
    void* buffers[] = {address(out),    address(dense ? dense : g),
                       address(logits), address(labels),
                       address(shift),  address(rest)};
    done = !kernels->plan_cross_entropy_grad(&plan, rows.logits, rows.labels, ignored,
                                             PyFloat_AS_DOUBLE(args[6])) &&
           run_checked(plan, buffers, spec->size);
  }
  Py_XDECREF(dense);
  if (done) return reinterpret_cast<PyObject*>(out);
  return results(false, &out, 1);
}

PyMethodDef functions[] = {
    {"layer_norm_of", function_of(layer_norm_of), METH_FASTCALL,
     "layer_norm_of(x, weight, bias, eps): (out, mean, rstd), or None"},
    {"layer_norm_grad_of", function_of(layer_norm_grad_of), METH_FASTCALL,
     "layer_norm_grad_of(g, x, weight, mean, rstd): (dx, dweight, dbias), or None"},
    {"rms_norm_of", function_of(rms_norm_of), METH_FASTCALL,
     "rms_norm_of(x, weight, eps): (out, rstd), or None"},
    {"rms_norm_grad_of", function_of(rms_norm_grad_of), METH_FASTCALL,
     "rms_norm_grad_of(g, x, weight, rstd): (dx, dweight), or None"},
    {"cross_entropy_of", function_of(cross_entropy_of), METH_FASTCALL,
     "cross_entropy_of(logits, labels, ignored, smoothing): (loss, shift, rest), or None"},
    {"cross_entropy_grad_of", function_of(cross_entropy_grad_of), METH_FASTCALL,
     "cross_entropy_grad_of(g, logits, labels, shift, rest, ignored, smoothing): dlogits, or None"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_composites(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace needle
