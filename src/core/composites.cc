// Composites that Python calls often on little: shortcuts of backend/overrides.py, which decides
// wherever these return None.
#include <algorithm>

#include "gate.h"

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

// layer_norm_of(x, weight, bias, eps): (out, mean, rstd), or None
PyObject* layer_norm_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* x[3];
  if (n != 4 || !dense_arrays(args, x) || !PyFloat_CheckExact(args[3])) Py_RETURN_NONE;
  const Spec* spec = x[0]->spec;
  if (spec->code > kFloat16 || spec->ndim == 0 || spec->size == 0 || !is_row(x[1], spec) ||
      !is_row(x[2], spec)) {
    Py_RETURN_NONE;
  }
  const DType wide = statistics_type(spec->code);
  Array* outs[3] = {new_array(spec, spec->code, spec->ndim), new_array(spec, wide, spec->ndim - 1),
                    new_array(spec, wide, spec->ndim - 1)};
  bool done = outs[0] && outs[1] && outs[2];
  if (done) {
    Plan plan;
    void* buffers[] = {address(outs[0]), address(outs[1]), address(outs[2]),
                       address(x[0]),    address(x[1]),    address(x[2])};
    done = !kernels->plan_layer_norm(&plan, 0, operand(x[0]), PyFloat_AS_DOUBLE(args[3])) &&
           run_plan(plan, buffers, spec->size);
  }
  return results(done, outs, 3);
}

bool has_shape(const Array* array, const Spec* like, DType type, int ndim) {
  const Spec* spec = array->spec;
  return spec->code == type && spec->ndim == ndim &&
         std::equal(spec->shape, spec->shape + ndim, like->shape);
}

// layer_norm_grad_of(g, x, weight, mean, rstd): (dx, dweight, dbias), or None
PyObject* layer_norm_grad_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* in[5];
  if (n != 5 || !dense_arrays(args, in)) Py_RETURN_NONE;
  const auto [g, x, weight, mean, rstd] = in;
  const Spec* spec = x->spec;
  if (spec->code > kFloat16 || spec->ndim == 0 || spec->size == 0 || !is_row(weight, spec)) {
    Py_RETURN_NONE;
  }
  const DType wide = statistics_type(spec->code);
  const int rows = spec->ndim - 1;
  if (!has_shape(g, spec, spec->code, spec->ndim) || !has_shape(mean, spec, wide, rows) ||
      !has_shape(rstd, spec, wide, rows)) {
    Py_RETURN_NONE;
  }
  Array* outs[3] = {new_array(spec, spec->code, spec->ndim), new_array(weight->spec, spec->code, 1),
                    new_array(weight->spec, spec->code, 1)};
  bool done = outs[0] && outs[1] && outs[2];
  if (done) {
    Plan plan;
    void* buffers[] = {address(outs[0]), address(outs[1]), address(outs[2]), address(g),
                       address(x),       address(weight),  address(mean),    address(rstd)};
    done =
        !kernels->plan_layer_norm_grad(&plan, 0, operand(x)) && run_plan(plan, buffers, spec->size);
  }
  return results(done, outs, 3);
}

// cross_entropy_of(logits, labels, ignored label, smoothing): (loss, lse), or None, for a label
// that is no class, too
PyObject* cross_entropy_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array *logits = n == 4 ? dense_array(args[0]) : nullptr,
              *labels = n == 4 ? dense_array(args[1]) : nullptr;
  if (!logits || !labels || !PyFloat_CheckExact(args[3])) Py_RETURN_NONE;
  const Spec *spec = logits->spec, *own = labels->spec;
  const bool fits = spec->code <= kFloat16 && own->code >= kInt8 && own->code <= kUInt8 &&
                    spec->ndim == own->ndim + 1 && spec->shape[own->ndim] > 0;
  for (int i = 0; fits && i < own->ndim; i++) {
    if (own->shape[i] != spec->shape[i]) Py_RETURN_NONE;
  }
  int overflow;
  const int64_t ignored = PyLong_AsLongLongAndOverflow(args[2], &overflow);
  if (!fits || overflow || PyErr_Occurred()) return results(false, nullptr, 0);
  const DType wide = statistics_type(spec->code);
  Array* outs[2] = {new_array(spec, wide, own->ndim), new_array(spec, wide, own->ndim)};
  bool done = outs[0] && outs[1];
  if (done) {
    const int64_t shape[2] = {own->size, spec->shape[own->ndim]}, strides[2] = {shape[1], 1};
    Plan plan;
    void* buffers[] = {address(outs[0]), address(outs[1]), address(logits), address(labels)};
    done = !kernels->plan_cross_entropy(&plan, {spec->code, 2, shape, strides},
                                        {own->code, 1, shape, strides + 1}, ignored,
                                        PyFloat_AS_DOUBLE(args[3])) &&
           run_checked(plan, buffers, spec->size);
  }
  return results(done, outs, 2);
}

template <class F>
constexpr PyCFunction function_of(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef functions[] = {
    {"layer_norm_of", function_of(layer_norm_of), METH_FASTCALL,
     "layer_norm_of(x, weight, bias, eps): (out, mean, rstd), or None"},
    {"layer_norm_grad_of", function_of(layer_norm_grad_of), METH_FASTCALL,
     "layer_norm_grad_of(g, x, weight, mean, rstd): (dx, dweight, dbias), or None"},
    {"cross_entropy_of", function_of(cross_entropy_of), METH_FASTCALL,
     "cross_entropy_of(logits, labels, ignored, smoothing): (loss, lse), or None"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_composites(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace needle
