// The gate: what executor.apply does, for the common cases, without Python. Whatever it cannot
// take (other dtypes, other devices, lazy mode, an error to be explained) it hands over to the
// Python definition, which is always right.
#include "gate/gate.h"
#include <cstring>

namespace needle {
namespace {

PyObject *slow_path, *explained;  // executor._apply and _explained
PyObject* constant_elsewhere;     // ops.operands.constant
PyObject* compute_name;           // "compute"
constexpr int kMaxOperands = 16;

// ---- weak scalars --------------------------------------------------------------------------

struct Constant {
  uint64_t bits;
  DType code;
  PyObject *device, *tensor, *array;  // owned: the tensor, and the array that it was made of
};
Constant constants[256];

// The bits of a number in a dtype that can hold it (elsewhere of float64, for all that float);
// false: ask the definition.
bool bits_of(PyObject* number, DType code, bool native, uint64_t* bits) {
  if (code <= (native ? kFloat64 : kFloat16)) {
    const double value =
        PyFloat_CheckExact(number) ? PyFloat_AS_DOUBLE(number) : PyLong_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred()) return false;
    const auto narrow = static_cast<float>(value);
    *bits = 0;
    native&& code == kFloat32 ? std::memcpy(bits, &narrow, sizeof narrow)
                              : std::memcpy(bits, &value, sizeof value);
    return true;
  }
  if ((code != kInt32 && code != kInt64) || !PyLong_CheckExact(number)) return false;
  int overflow;
  const int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow || (code == kInt32 && value != static_cast<int32_t>(value))) return false;
  const auto narrow = static_cast<int32_t>(value);
  *bits = 0;
  code == kInt32 ? std::memcpy(bits, &narrow, sizeof narrow)
                 : std::memcpy(bits, &value, sizeof value);
  return true;
}

// Whether the tensor of a constant is still what it was made: who asks a graph for its inputs has
// it in hand, and may have given it other data.
bool is_untouched(const Constant& entry) {
  const auto* tensor = reinterpret_cast<Tensor*>(entry.tensor);
  const auto* array = reinterpret_cast<Array*>(entry.array);
  return tensor->array == entry.array && !tensor->requires_grad &&
         (!array->storage ||  // held twice: no write is in place
          std::memcmp(array->storage->data, &entry.bits, kItemSize[entry.code]) == 0);
}

// The tensor of a number, new.
PyObject* make_constant(PyObject* number, uint64_t bits, const Spec* like) {
  const Wet wet;  // it is kept
  if (!like->native) {
    PyObject* args[3] = {number, like->dtype, like->device};
    PyObject* made =
        constant_elsewhere ? PyObject_Vectorcall(constant_elsewhere, args, 3, nullptr) : nullptr;
    if (made && is_tensor(made) && reinterpret_cast<Tensor*>(made)->array) return made;
    Py_XDECREF(made);
    return nullptr;
  }
  Array* array = array_empty(like->code, like->device, 0, nullptr);
  if (!array) return nullptr;
  std::memcpy(array->storage->data, &bits, kItemSize[like->code]);
  return wrap_array(reinterpret_cast<PyObject*>(array));
}

// Borrowed: a cached 0-d tensor of a Python float or int beside a tensor.
PyObject* constant(PyObject* number, const Spec* like) {
  uint64_t bits;
  if (!bits_of(number, like->code, like->native, &bits)) {
    PyErr_Clear();
    return nullptr;
  }
  Constant& entry = constants[(bits * 0x9E3779B97F4A7C15 >> 56 ^ like->code) & 255];
  if (entry.tensor && entry.bits == bits && entry.code == like->code &&
      entry.device == like->device && is_untouched(entry)) {
    return entry.tensor;
  }
  PyObject* tensor = make_constant(number, bits, like);
  if (!tensor) return nullptr;
  PyObject* held = reinterpret_cast<Tensor*>(tensor)->array;
  Py_INCREF(held);
  const Constant old = entry;
  entry = {bits, like->code, like->device, tensor, held};
  Py_XDECREF(old.tensor);  // after the entry has gone: this may run Python
  Py_XDECREF(old.array);
  return entry.tensor == tensor ? tensor : nullptr;
}

bool is_number(PyObject* x) { return PyFloat_CheckExact(x) || PyLong_CheckExact(x); }

void drop_references(PyObject** tensors, Array** arrays, int n) {
  for (int i = 0; i < n; i++) {
    Py_DECREF(arrays[i]);
    Py_DECREF(tensors[i]);
  }
}

// The array of a tensor, borrowed, if it is in memory of the device of `like` (null: of any).
Array* array_of(PyObject* tensor, const Spec* like) {
  PyObject* held = reinterpret_cast<Tensor*>(tensor)->array;
  if (!held || !is_array(held)) return nullptr;
  auto* array = reinterpret_cast<Array*>(held);
  if (!array->storage && !is_view(held)) return nullptr;
  return !like || like->device == array->spec->device ? array : nullptr;
}

bool unwrap_like(const Spec* like, const Op* op, PyObject* const* inputs, int n, PyObject** tensors,
                 Array** arrays) {
  for (int i = 0; i < n; i++) {
    const bool number = !is_tensor(inputs[i]);
    const bool plain = !number || (op->kind == kElementwise && is_number(inputs[i]));
    tensors[i] = !plain ? nullptr : number ? constant(inputs[i], like) : inputs[i];
    arrays[i] = tensors[i] ? array_of(tensors[i], like) : nullptr;
    if (!arrays[i]) {
      drop_references(tensors, arrays, i);
      return false;
    }
    Py_INCREF(arrays[i]);
    Py_INCREF(tensors[i]);
  }
  return true;
}

// Turn the arguments into tensors and their arrays, new references: another thread may rebind a
// tensor while a kernel runs or a constant is made, and one constant may take the place of another.
// False: not here.
bool unwrap(const Op* op, PyObject* const* inputs, int n, PyObject** tensors, Array** arrays) {
  Spec* like = nullptr;
  for (int i = 0; i < n; i++) {
    if (!is_tensor(inputs[i])) continue;
    const Array* array = array_of(inputs[i], like);
    if (!array) return false;
    like = array->spec;
  }
  if (!like) return false;
  Py_INCREF(like);
  const bool done = unwrap_like(like, op, inputs, n, tensors, arrays);
  Py_DECREF(like);
  return done;
}

// The tensor of a result (whose reference it takes), recorded if an input needs a gradient.
PyObject* record_or_wrap(PyObject* op, PyObject* const* tensors, int n, PyObject* array) {
  bool needs = false;
  for (int i = 0; i < n; i++) needs |= needs_gradient(reinterpret_cast<Tensor*>(tensors[i]));
  needs &= modes.recording && reinterpret_cast<Op*>(op)->differentiable;
  return needs ? record_result(op, tensors, n, array) : wrap_array(array);
}

// One of several results; null without an exception: not here.
PyObject* item(PyObject* op, PyObject* const* inputs, int n) {
  if (n != 1 || !is_tensor(inputs[0])) return nullptr;
  PyObject* arrays = reinterpret_cast<Tensor*>(inputs[0])->array;
  const int64_t index = reinterpret_cast<Op*>(op)->params[0];
  if (!arrays || !PyTuple_Check(arrays) || index >= PyTuple_GET_SIZE(arrays)) return nullptr;
  PyObject* array = PyTuple_GET_ITEM(arrays, index);
  Py_INCREF(array);
  return record_or_wrap(op, inputs, 1, array);
}

// Whether the definition would leave the operands' dtypes as they are.
bool is_promoted(const Op* op, Array* const* x, int n) {
  const DType first = x[0]->spec->code;
  if (op->code >= kPromoteFloating && first > kFloat16) return false;
  if (op->code == kPromoteNothing || op->code == kPromoteFirst) return true;
  for (int i = 1; i < n; i++) {
    if (x[i]->spec->code != first) return false;
  }
  return true;
}

// Lets the definition turn a method's exception into an error about the operands.
void explain_error(PyObject* op, PyObject* const* tensors, int n) {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace) PyException_SetTraceback(error, trace);
  PyObject* operands = PyTuple_New(n);
  for (int i = 0; operands && i < n; i++) {
    Py_INCREF(tensors[i]);
    PyTuple_SET_ITEM(operands, i, tensors[i]);
  }
  PyObject* args[3] = {op, operands, error};
  PyObject* found = operands ? PyObject_Vectorcall(explained, args, 3, nullptr) : nullptr;
  Py_XDECREF(operands);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(trace);
  if (!found) return;
  Py_INCREF(Py_TYPE(found));
  PyErr_Restore(reinterpret_cast<PyObject*>(Py_TYPE(found)), found,
                PyException_GetTraceback(found));
}

// Calls the op's own method on arrays; returns an array, or a tuple of them.
PyObject* call_compute(PyObject* op, PyObject* const* tensors, Array* const* arrays, int n) {
  PyObject* args[kMaxOperands + 1] = {op};
  for (int i = 0; i < n; i++) args[i + 1] = reinterpret_cast<PyObject*>(arrays[i]);
  PyObject* out = PyObject_VectorcallMethod(compute_name, args, n + 1, nullptr);
  if (out && !is_array(out) && !PyTuple_Check(out)) {
    refuse_result(out);
    Py_CLEAR(out);
  }
  if (!out && PyErr_ExceptionMatches(PyExc_Exception)) explain_error(op, tensors, n);
  return out;
}

// The result of an op that only Python computes; null without an exception: not here.
PyObject* by_method(PyObject* object, PyObject* const* inputs, int n) {
  const Op* op = reinterpret_cast<Op*>(object);
  PyObject* tensors[kMaxOperands];
  Array* arrays[kMaxOperands];
  if (op->opaque || n > kMaxOperands || (op->params[0] >= 0 && op->params[0] != n)) return nullptr;
  if (!unwrap(op, inputs, n, tensors, arrays)) {
    PyErr_Clear();
    return nullptr;
  }
  PyObject* out = is_promoted(op, arrays, n) ? call_compute(object, tensors, arrays, n) : nullptr;
  PyObject* result = out ? record_or_wrap(object, tensors, n, out) : nullptr;
  drop_references(tensors, arrays, n);
  return result;
}

bool is_view_kind(int32_t kind) { return kind >= kReshape && kind <= kSlice; }

// The result of an op on arrays of another device; null without an exception: not here.
PyObject* elsewhere(PyObject* object, PyObject* const* tensors, Array* const* arrays, int n) {
  const Op* op = reinterpret_cast<Op*>(object);
  Array* out = compute(op, arrays, n);
  if (!out && is_view_kind(op->kind)) PyErr_Clear();  // the definition says more about it
  if (!out && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
    explain_error(object, tensors, n);
  }
  return reinterpret_cast<PyObject*>(out);
}

PyObject* apply(PyObject*, PyObject* const* args, Py_ssize_t n_args, PyObject* names) {
  // The definition raises the error for keyword arguments.
  if (names) return PyObject_Vectorcall(slow_path, args, n_args, names);
  const int n = static_cast<int>(n_args) - 1;
  if (n < 0 || !PyObject_TypeCheck(args[0], op_type)) {
    PyErr_SetString(PyExc_TypeError, "apply(op, *inputs)");
    return nullptr;
  }
  const Op* op = reinterpret_cast<Op*>(args[0]);
  PyObject* tensors[kMaxArgs];
  Array* arrays[kMaxArgs];
  if (op->kind == kPython || !modes.open || modes.lazy || n < 1) {
    return PyObject_Vectorcall(slow_path, args, n_args, nullptr);
  }
  if (op->kind == kCompute) {
    PyObject* result = by_method(args[0], args + 1, n);
    if (result || PyErr_Occurred()) return result;
    return PyObject_Vectorcall(slow_path, args, n_args, nullptr);
  }
  if (op->kind == kItem) {
    PyObject* result = item(args[0], args + 1, n);
    if (result || PyErr_Occurred()) return result;
  }
  if (op->kind == kItem || n > kMaxArgs || !unwrap(op, args + 1, n, tensors, arrays)) {
    PyErr_Clear();
    return PyObject_Vectorcall(slow_path, args, n_args, nullptr);
  }
  const bool native = arrays[0]->storage;
  PyObject* out = native ? reinterpret_cast<PyObject*>(compute(op, arrays, n))
                         : elsewhere(args[0], tensors, arrays, n);
  PyObject* result = out ? record_or_wrap(args[0], tensors, n, out) : nullptr;
  drop_references(tensors, arrays, n);
  if (result || (!native && PyErr_Occurred())) return result;
  PyErr_Clear();  // no memory left, for one: the definition tries again, and says in which op
  return PyObject_Vectorcall(slow_path, args, n_args, nullptr);
}

// full(spec, value): a dense native array of one value.
PyObject* full(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || Py_TYPE(args[0]) != spec_type || !reinterpret_cast<Spec*>(args[0])->native) {
    PyErr_SetString(PyExc_TypeError, "full(spec of the native CPU, value)");
    return nullptr;
  }
  auto* spec = reinterpret_cast<Spec*>(args[0]);
  const double value = PyFloat_AsDouble(args[1]);
  if (value == -1.0 && PyErr_Occurred()) return nullptr;
  Array* out = array_empty(spec);
  if (!out) return nullptr;
  Plan plan;
  void* buffers[1] = {out->storage->data};
  kernels->plan_fill(&plan, operand(out), value);
  run_plan(plan, buffers, spec->size);
  return reinterpret_cast<PyObject*>(out);
}

PyObject* set_slow_path(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) {
    PyErr_SetString(PyExc_TypeError, "set_slow_path(apply, explain)");
    return nullptr;
  }
  Py_INCREF(args[0]);
  Py_INCREF(args[1]);
  Py_XSETREF(slow_path, args[0]);
  Py_XSETREF(explained, args[1]);
  Py_RETURN_NONE;
}

PyObject* set_constants(PyObject*, PyObject* function) {
  Py_INCREF(function);
  Py_XSETREF(constant_elsewhere, function);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"apply", function_of(apply), METH_FASTCALL | METH_KEYWORDS,
     "apply(op, *inputs): the result of an op on tensors or Python numbers."},
    {"full", function_of(full), METH_FASTCALL, "full(spec, value): a dense array of one value."},
    {"set_slow_path", function_of(set_slow_path), METH_FASTCALL,
     "The definition of apply, in Python, and what it makes of errors."},
    {"set_constants", set_constants, METH_O,
     "What makes constants of numbers on devices other than the native CPU."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_gate(PyObject* module) {
  compute_name = PyUnicode_InternFromString("compute");
  return compute_name && PyModule_AddFunctions(module, functions) == 0 && add_getitem(module) &&
         add_arrays(module) && add_composites(module) && add_windows(module) && add_elsewhere();
}

}  // namespace needle
