// x[index] for integers and slices, read and written; getitem_tensor.cc does it for tensors.
#include "gate/gate.h"
#include "types/graph.h"
#include <cmath>

namespace needle {
namespace {

PyObject* make_slice;    // (ranges, dropped) -> the op, in Python
PyObject* known_slices;  // its results, by the bytes of the numbers

bool read_part(PyObject* part, int axis, int64_t size, int64_t* numbers) {
  int64_t* range = numbers + 1 + 3 * axis;
  if (PySlice_Check(part)) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(part, &start, &stop, &step) < 0) {
      PyErr_Clear();
      return false;
    }
    range[1] = PySlice_AdjustIndices(size, &start, &stop, step);
    range[0] = start;
    range[2] = step;
    return true;
  }
  if (!PyLong_CheckExact(part)) return false;
  int overflow;
  const int64_t i = PyLong_AsLongLongAndOverflow(part, &overflow);
  if (overflow || i < -size || i >= size) return false;
  range[0] = i < 0 ? i + size : i;
  range[1] = range[2] = 1;
  numbers[0] |= int64_t{1} << axis;
  return true;
}

bool read_index(PyObject* index, const Spec* spec, int64_t* numbers) {
  numbers[0] = 0;
  const bool many = PyTuple_CheckExact(index);
  const Py_ssize_t n = many ? PyTuple_GET_SIZE(index) : 1;
  if (n > spec->ndim) return false;
  for (int axis = 0; axis < spec->ndim; axis++) {
    int64_t* range = numbers + 1 + 3 * axis;
    range[0] = 0;
    range[1] = spec->shape[axis];
    range[2] = 1;
    if (axis >= n) continue;
    PyObject* part = many ? PyTuple_GET_ITEM(index, axis) : index;
    if (!read_part(part, axis, spec->shape[axis], numbers)) return false;
  }
  return true;
}

// Borrowed: the op of these ranges.
PyObject* slice_op(const int64_t* numbers, int ndim) {
  const int count = 1 + 3 * ndim;
  PyObject* key =
      PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers), sizeof(int64_t) * count);
  PyObject* op = key ? PyDict_GetItemWithError(known_slices, key) : nullptr;
  if (!op && key && !PyErr_Occurred()) {
    PyObject* tuple = tuple_of(numbers, count);
    PyObject* made = tuple ? PyObject_CallOneArg(make_slice, tuple) : nullptr;
    Py_XDECREF(tuple);
    if (PyDict_GET_SIZE(known_slices) > 10000) PyDict_Clear(known_slices);
    if (made && PyDict_SetItem(known_slices, key, made) == 0) op = made;
    Py_XDECREF(made);
  }
  Py_XDECREF(key);
  return op;
}

// x[index], or None where the definition has to decide.
PyObject* getitem(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t numbers[1 + 3 * kMaxDims];
  if (n != 2 || !modes.open || modes.lazy || !is_tensor(args[0])) Py_RETURN_NONE;
  PyObject* array = reinterpret_cast<Tensor*>(args[0])->array;
  if (!array || !is_array(array)) Py_RETURN_NONE;
  auto* x = reinterpret_cast<Array*>(array);
  if (!x->storage && !is_view(array)) Py_RETURN_NONE;
  if (!read_index(args[1], x->spec, numbers)) {
    if (!x->storage) Py_RETURN_NONE;
    PyObject* picked = pick_item(args[0], args[1]);
    if (picked) return picked;
    PyErr_Clear();  // no memory left: the definition says so
    Py_RETURN_NONE;
  }
  auto* out = reinterpret_cast<PyObject*>(slice_by(numbers, x));
  if (!out || !modes.recording || !needs_gradient(reinterpret_cast<Tensor*>(args[0]))) {
    return out ? wrap_array(out) : nullptr;
  }
  PyObject* op = slice_op(numbers, x->spec->ndim);
  if (!op) {
    Py_DECREF(out);
    return nullptr;
  }
  Py_INCREF(op);
  PyObject* result = record_result(op, args, 1, out);
  Py_DECREF(op);
  return result;
}

// ---- writing: in place, if the memory is not shared ------------------------------------------

// Whether a tensor may be overwritten: a dense leaf whose memory is not shared.
bool writable(const Tensor* tensor) {
  if (tensor->node && tensor->node->op) return false;
  return is_exclusive(tensor) && !reinterpret_cast<Array*>(tensor->array)->strides;
}

// The value of a Python number in this dtype; false where the definition has to decide.
bool read_number(PyObject* number, DType code, double* value) {
  const bool is_integer = PyLong_CheckExact(number);
  if (!is_integer && !PyFloat_CheckExact(number)) return false;
  if (code <= kFloat16 && !is_integer) {
    *value = PyFloat_AS_DOUBLE(number);
    return true;
  }
  if (!is_integer || code == kBool) return false;
  *value = PyLong_AsDouble(number);
  if (*value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  if (code <= kFloat16) return true;
  const int bits = static_cast<int>(8 * kItemSize[code]);
  const double most = bits > 53 ? 0x1p53 - 1 : code == kUInt8 ? 255 : std::ldexp(1.0, bits - 1) - 1;
  return *value <= most && *value >= (code == kUInt8 ? 0 : -most);  // exact, if doubles hold it
}

// A 0-d array of a number.
Array* number_array(const Spec* like, double value) {
  Array* array = array_empty(like->code, like->device, 0, nullptr);
  if (!array) return nullptr;
  Plan plan;
  void* buffers[1] = {address(array)};
  kernels->plan_fill(&plan, operand(array), value);
  run_plan(plan, buffers, 1);
  return array;
}

bool write_number(const Array* place, double value) {
  Plan plan;
  void* buffers[1] = {address(place)};
  return !kernels->plan_fill(&plan, operand(place), value) &&
         run_plan(plan, buffers, place->spec->size);
}

bool write_array(const Array* place, const Array* value) {
  Plan plan;
  Array* spread = broadcast(value, place->spec->ndim, place->spec->shape);
  if (!spread) return false;
  void* buffers[2] = {address(place), address(spread)};
  const bool done = !kernels->plan_copy(&plan, operand(place), operand(spread)) &&
                    run_plan(plan, buffers, place->spec->size);
  Py_DECREF(spread);
  return done;
}

// Write a number, or an array if there is one, to places that tensors say.
bool write_picked(Array* x, PyObject* index, double number, Array* value) {
  if (value) Py_INCREF(value);
  Array* held = value ? value : number_array(x->spec, number);
  Py_INCREF(x);  // other threads may run
  const bool done = held && put_item(x, index, held);
  Py_DECREF(x);
  Py_XDECREF(held);
  return done;
}

// The native array that a value is, if it may be written into a leaf without being recorded.
Array* plain_array(PyObject* value) {
  if (!is_tensor(value)) return nullptr;
  auto* tensor = reinterpret_cast<Tensor*>(value);
  const bool is_native =
      tensor->array && is_array(tensor->array) && reinterpret_cast<Array*>(tensor->array)->storage;
  if (!is_native || (modes.recording && needs_gradient(tensor))) return nullptr;
  return reinterpret_cast<Array*>(tensor->array);
}

// setitem(x, index, value): whether it was done; otherwise the definition has to do it.
PyObject* setitem(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t numbers[1 + 3 * kMaxDims];
  // within a trace the assignment is part of the graph
  if (n != 3 || !modes.open || journal || !is_tensor(args[0])) Py_RETURN_FALSE;
  auto* tensor = reinterpret_cast<Tensor*>(args[0]);
  if (!writable(tensor)) Py_RETURN_FALSE;
  auto* x = reinterpret_cast<Array*>(tensor->array);
  double number = 0;
  const bool is_number = read_number(args[2], x->spec->code, &number);
  Array* value = is_number ? nullptr : plain_array(args[2]);
  if (!is_number && (!value || value == x || value->spec->code != x->spec->code)) Py_RETURN_FALSE;
  bool done;
  if (read_index(args[1], x->spec, numbers)) {
    Array* place = slice_by(numbers, x);
    done = place && (value ? write_array(place, value) : write_number(place, number));
    Py_XDECREF(place);
  } else {
    done = write_picked(x, args[1], number, value);
  }
  PyErr_Clear();  // no memory left: the definition says so
  if (done) leave_graph(tensor);
  return PyBool_FromLong(done);
}

PyObject* set_make_slice(PyObject*, PyObject* function) {
  if (!known_slices && !(known_slices = PyDict_New())) return nullptr;
  Py_INCREF(function);
  Py_XSETREF(make_slice, function);
  Py_RETURN_NONE;
}

// pick(op, axis, slices, x, index): the result of Take or Gather along an axis, or None.
PyObject* pick(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 5 || !modes.open || modes.lazy || !is_tensor(args[3]) || !is_tensor(args[4]) ||
      !PyObject_TypeCheck(args[0], op_type)) {
    Py_RETURN_NONE;
  }
  const long axis = PyLong_AsLong(args[1]);
  if (axis == -1 && PyErr_Occurred()) return nullptr;
  PyObject* picked = pick_along(args[0], args + 3, static_cast<int>(axis), args[2] == Py_True);
  if (picked) return picked;
  PyErr_Clear();  // no memory left: the definition says so
  Py_RETURN_NONE;
}

PyObject* set_take(PyObject*, PyObject* op) {
  set_take_op(op);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"getitem", function_of(getitem), METH_FASTCALL, "x[index] for integers and slices, or None."},
    {"setitem", function_of(setitem), METH_FASTCALL,
     "x[index] = value in place for integers and slices; whether it was possible."},
    {"pick", function_of(pick), METH_FASTCALL,
     "pick(op, axis, slices, x, index): what Take or Gather along an axis gives, or None."},
    {"set_take", set_take, METH_O, "The op of x[index] for a tensor of integers."},
    {"set_make_slice", set_make_slice, METH_O, "What makes the op of x[index]."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_getitem(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace needle
