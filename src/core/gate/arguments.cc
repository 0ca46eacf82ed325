#include "gate/arguments.h"

#include <utility>

namespace needle {
namespace {

Name axis_name("axis"), axes_name("axes");

PyObject* attribute(PyObject* op, Name& name) {  // null without an exception
  PyObject* x = PyObject_GetAttr(op, name.object());
  if (!x) PyErr_Clear();
  return x;
}

}  // namespace

int read_numbers(PyObject* x, int most, int64_t* numbers) {
  const bool is_tuple = PyTuple_CheckExact(x);
  if (!is_tuple && !PyList_CheckExact(x)) return -1;
  const Py_ssize_t n = is_tuple ? PyTuple_GET_SIZE(x) : PyList_GET_SIZE(x);
  if (n > most) return -1;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* part = is_tuple ? PyTuple_GET_ITEM(x, i) : PyList_GET_ITEM(x, i);
    if (!read_number(part, numbers + i)) return -1;
  }
  return static_cast<int>(n);
}

bool read_attribute(PyObject* op, Name& name, double* value) {
  PyObject* x = attribute(op, name);
  *value = x ? PyFloat_AsDouble(x) : 0.0;
  const bool failed = PyErr_Occurred();
  if (failed) PyErr_Clear();
  Py_XDECREF(x);
  return x && !failed;
}

bool read_attribute(PyObject* op, Name& name, int64_t* value) {
  PyObject* x = attribute(op, name);
  const bool is_number = x && read_number(x, value);
  Py_XDECREF(x);
  return is_number;
}

bool read_attribute(PyObject* op, Name& name, bool* value) {
  PyObject* x = attribute(op, name);
  *value = x == Py_True;
  Py_XDECREF(x);
  return x && PyBool_Check(x);
}

bool read_attribute(PyObject* op, Name& name, int n, int64_t* values) {
  PyObject* x = attribute(op, name);
  const bool fits = x && read_numbers(x, n, values) == n;
  Py_XDECREF(x);
  return fits;
}

bool read_pairs(PyObject* op, Name& name, int n, int64_t* firsts, int64_t* seconds) {
  PyObject* x = attribute(op, name);
  bool fits = x && PyTuple_CheckExact(x) && PyTuple_GET_SIZE(x) == n;
  for (int i = 0; fits && i < n; i++) {
    int64_t pair[2];
    fits = read_numbers(PyTuple_GET_ITEM(x, i), 2, pair) == 2;
    if (fits) firsts[i] = pair[0];
    if (fits) seconds[i] = pair[1];
  }
  Py_XDECREF(x);
  return fits;
}

bool read_axis(PyObject* op, int ndim, int* axis) {
  int64_t number;
  if (!read_attribute(op, axis_name, &number)) return false;
  if (number < -ndim || number >= ndim) return false;
  *axis = static_cast<int>(number < 0 ? number + ndim : number);
  return true;
}

bool read_axes(PyObject* op, int ndim, uint32_t* axes) {
  PyObject* x = attribute(op, axes_name);
  int64_t numbers[kMaxDims];
  int n = 1;
  if (!x) return false;
  const bool all = x == Py_None;
  if (!all && !read_number(x, numbers)) n = read_numbers(x, kMaxDims, numbers);
  Py_DECREF(x);
  *axes = all ? (1u << ndim) - 1 : 0;
  for (int i = 0; !all && i < n; i++) {
    if (numbers[i] < -ndim || numbers[i] >= ndim) return false;
    const uint32_t bit = 1u << (numbers[i] < 0 ? numbers[i] + ndim : numbers[i]);
    if (*axes & bit) return false;
    *axes |= bit;
  }
  return all || n >= 0;
}

Array* Arrays::dense(Array* x, DType type) {
  if (x->spec->code == type && is_dense(x)) {
    Py_INCREF(x->strides ? static_cast<void*>(x->spec) : static_cast<void*>(x));
    return add(x->strides ? array_view(x, x->spec, x->offset, nullptr) : x);
  }
  return add(PyErr_Occurred() ? nullptr : copy_of(x, type, false));
}

PyObject* Arrays::result() {
  PyObject* tuple = n_ == 1 ? nullptr : PyTuple_New(n_);
  if (n_ != 1 && !tuple) return nullptr;
  for (int i = 0; i < n_; i++) {
    if (tuple) PyTuple_SET_ITEM(tuple, i, reinterpret_cast<PyObject*>(all_[i]));
  }
  const int n = std::exchange(n_, 0);
  return n == 1 ? reinterpret_cast<PyObject*>(all_[0]) : tuple;
}

PyObject* finish(const char* refused, const Plan& plan, Arrays* outs,
                 std::initializer_list<const Array*> arrays, int64_t size, int32_t traits) {
  void* buffers[12];
  std::transform(arrays.begin(), arrays.end(), buffers, address_or_null);
  const auto n = static_cast<int>(arrays.size());
  return !refused && run_plan(plan, buffers, n, size, traits) ? outs->result() : nullptr;
}

bool add_overrides(PyObject* module, PyMethodDef* functions) {
  PyObject* all = PyObject_GetAttrString(module, "overrides");
  if (!all) PyErr_Clear();
  if (!all && (!(all = PyDict_New()) || PyModule_AddObjectRef(module, "overrides", all) < 0)) {
    Py_XDECREF(all);
    return false;
  }
  PyObject* place = PyModule_GetNameObject(module);
  bool added = place;
  for (PyMethodDef* own = functions; added && own->ml_name; own++) {
    PyObject* function = PyCFunction_NewEx(own, nullptr, place);
    added = function && PyDict_SetItemString(all, own->ml_name, function) == 0;
    Py_XDECREF(function);
  }
  Py_XDECREF(place);
  Py_DECREF(all);
  return added;
}

}  // namespace needle
