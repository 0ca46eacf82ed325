// Op: the part of an op that the gate uses without calling Python.
#include "types/core.h"
#include "types/graph.h"
#include <cmath>
#include <structmember.h>

namespace needle {

PyTypeObject* op_type;

namespace {

Op* as_op(PyObject* self) { return reinterpret_cast<Op*>(self); }

PyObject* op_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = as_op(type->tp_alloc(type, 0));
  if (self) self->differentiable = true;  // the rest is zero
  return reinterpret_cast<PyObject*>(self);
}

int op_init(PyObject*, PyObject*, PyObject*) { return 0; }

int op_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return 0;
}

void op_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  PyMem_Free(as_op(self)->params);
  type->tp_free(self);
  Py_DECREF(type);
}

int op_set_params(PyObject* self, PyObject* value, void*) {
  PyObject* tuple =
      value ? PySequence_Fast(value, "expected a tuple of numbers as params") : nullptr;
  if (!tuple) return -1;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(tuple);
  auto* params = static_cast<int64_t*>(PyMem_Malloc(sizeof(int64_t) * (n + 1)));
  if (!params) PyErr_NoMemory();
  for (Py_ssize_t i = 0; params && i < n; i++) {
    params[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(tuple, i));
  }
  Py_DECREF(tuple);
  if (PyErr_Occurred()) {
    PyMem_Free(params);
    return -1;
  }
  PyMem_Free(as_op(self)->params);
  as_op(self)->params = params;
  as_op(self)->n_params = static_cast<int32_t>(n);
  return 0;
}

PyObject* op_get_params(PyObject* self, void*) {
  return tuple_of(as_op(self)->params, as_op(self)->n_params);
}

int op_set_masks(PyObject* self, PyObject* value, void*) {
  PyObject* tuple =
      value ? PySequence_Fast(value, "expected a tuple of numbers as save_masks") : nullptr;
  if (!tuple) return -1;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(tuple);
  if (n > kMasks) {
    PyErr_Format(PyExc_ValueError,
                 "saves: %zd entries, but at most %d are supported; the last one serves all others",
                 n, kMasks);
    Py_DECREF(tuple);
    return -1;
  }
  for (Py_ssize_t i = 0; i < n; i++) {
    as_op(self)->masks[i] = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(tuple, i));
  }
  as_op(self)->n_masks = static_cast<int32_t>(n);
  Py_DECREF(tuple);
  return PyErr_Occurred() ? -1 : 0;
}

PyObject* op_get_masks(PyObject* self, void*) {
  PyObject* tuple = PyTuple_New(as_op(self)->n_masks);
  for (int i = 0; tuple && i < as_op(self)->n_masks; i++) {
    PyObject* mask = PyLong_FromUnsignedLongLong(as_op(self)->masks[i]);
    if (mask) PyTuple_SET_ITEM(tuple, i, mask);
    if (!mask) Py_CLEAR(tuple);
  }
  return tuple;
}

PyMemberDef op_members[] = {
    {"kind", T_INT, offsetof(Op, kind), 0, "how the gate runs it; 0: only Python can"},
    {"code", T_INT, offsetof(Op, code), 0, "number of the function or reduction"},
    {"opaque", T_BOOL, offsetof(Op, opaque), 0, "whether it holds a Python callable"},
    {"differentiable", T_BOOL, offsetof(Op, differentiable), 0, "whether gradients flow through"},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef op_getters[] = {
    {"params", op_get_params, op_set_params, "numbers of the kind", nullptr},
    {"save_masks", op_get_masks, op_set_masks, "per input, what its gradient reads", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot op_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(op_new)},
    {Py_tp_init, reinterpret_cast<void*>(op_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(op_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(op_traverse)},
    {Py_tp_members, op_members},
    {Py_tp_getset, op_getters},
    {Py_tp_doc, const_cast<char*>("the part of an op that the gate uses without calling Python")},
    {0, nullptr}};
PyType_Spec op_definition = {"needle._core.Op", sizeof(Op), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                             op_slots};

// ---- Op.of: one op for the same class and attributes

constexpr Py_ssize_t kMost = 10'000;  // ops that are known; those in use stay alive in their nodes
PyObject *known_ops, *truths[2];      // a dict; the objects for False and True in its keys

PyObject* exact_tuple(PyObject* const* values, Py_ssize_t n);

// A key that only equals the same attribute, although 1 == 1.0 == True and 0.0 == -0.0.
PyObject* exact(PyObject* value) {
  if (PyLong_CheckExact(value) || PyUnicode_CheckExact(value) || value == Py_None)
    return Py_NewRef(value);
  if (PyBool_Check(value)) return Py_NewRef(truths[value == Py_True]);
  if (PyTuple_CheckExact(value)) {
    if (Py_EnterRecursiveCall(" in an op's attributes")) return nullptr;
    PyObject* made = exact_tuple(&PyTuple_GET_ITEM(value, 0), PyTuple_GET_SIZE(value));
    Py_LeaveRecursiveCall();
    return made;
  }
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (PyFloat_CheckExact(value) && std::signbit(PyFloat_AS_DOUBLE(value)))
    return PyTuple_Pack(3, type, value, Py_None);
  return PyNumber_Check(value) ? PyTuple_Pack(2, type, value) : Py_NewRef(value);
}

PyObject* exact_tuple(PyObject* const* values, Py_ssize_t n) {
  PyObject* made = PyTuple_New(n);
  for (Py_ssize_t i = 0; made && i < n; i++) {
    PyObject* each = exact(values[i]);
    if (each) PyTuple_SET_ITEM(made, i, each);
    if (!each) Py_CLEAR(made);
  }
  return made;
}

PyObject* make_op(PyObject* const* args, Py_ssize_t n) {
  return PyObject_Vectorcall(args[0], args + 1, n - 1, nullptr);
}

PyObject* op_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n == 0) return PyErr_Format(PyExc_TypeError, "op_of() takes a class and its attributes");
  PyObject* key = exact_tuple(args, n);
  PyObject* op = key ? PyDict_GetItemWithError(known_ops, key) : nullptr;
  if (op) {
    Py_INCREF(op);
  } else if (PyErr_ExceptionMatches(PyExc_TypeError)) {  // for example, lists cannot be hashed
    PyErr_Clear();
    op = make_op(args, n);
  } else if (!PyErr_Occurred() && (op = make_op(args, n))) {
    if (PyDict_GET_SIZE(known_ops) > kMost) PyDict_Clear(known_ops);
    if (PyDict_SetItem(known_ops, key, op) < 0) Py_CLEAR(op);
  }
  Py_XDECREF(key);
  return op;
}

PyMethodDef functions[] = {
    {"op_of", function_of(op_of), METH_FASTCALL,
     "The one op of a class and its attributes: the definition is ops.base.Op.of."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_op_type(PyObject* module) {
  op_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&op_definition));
  known_ops = PyDict_New();
  for (PyObject*& each : truths) {
    if (!(each = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type))))
      return false;
  }
  return known_ops && PyModule_AddObjectRef(module, "known_ops", known_ops) == 0 &&
         PyModule_AddFunctions(module, functions) == 0 && op_type &&
         PyModule_AddObjectRef(module, "Op", reinterpret_cast<PyObject*>(op_type)) == 0;
}

}  // namespace needle
