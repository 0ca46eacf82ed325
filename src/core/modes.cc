// The `with` block that switches recording or lazy mode. It is native so that no signal comes
// between switching and being sure to switch back: Python handles signals where a function of its
// own begins, and __exit__ would be one. An interrupted program goes on in the modes it was in.
#include "core.h"
#include "graph.h"

namespace needle {
namespace {

struct Switch {
  PyObject_HEAD int recording, lazy;  // what holds in the block; -1: as outside
  int old_recording, old_lazy;
};

Switch* as_switch(PyObject* self) { return reinterpret_cast<Switch*>(self); }

bool read(PyObject* value, int* flag) {
  *flag = value == Py_None ? -1 : PyObject_IsTrue(value);
  return value == Py_None || *flag >= 0;
}

// modes(recording=None, lazy=None). Takes arguments as they are called, because each backward makes
// one.
PyObject* new_switch(PyObject* type, PyObject* const* args, size_t flags, PyObject* names) {
  static const char* const known[] = {"recording", "lazy"};
  const Py_ssize_t n = PyVectorcall_NARGS(flags), named = names ? PyTuple_GET_SIZE(names) : 0;
  PyObject* given[] = {Py_None, Py_None};
  if (n > 2) return PyErr_Format(PyExc_TypeError, "modes takes 2 arguments, got %zd", n);
  for (Py_ssize_t i = 0; i < n; i++) given[i] = args[i];
  for (Py_ssize_t i = 0; i < named; i++) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const bool second = PyUnicode_CompareWithASCIIString(name, known[1]) == 0;
    if (!second && PyUnicode_CompareWithASCIIString(name, known[0]) != 0)
      return PyErr_Format(PyExc_TypeError, "modes has no argument %R", name);
    given[second] = args[n + i];
  }
  auto* of_type = reinterpret_cast<PyTypeObject*>(type);
  PyObject* self = of_type->tp_alloc(of_type, 0);
  if (self && read(given[0], &as_switch(self)->recording) &&
      read(given[1], &as_switch(self)->lazy)) {
    return self;
  }
  Py_XDECREF(self);
  return nullptr;
}

PyObject* switch_enter(PyObject* self, PyObject*) {
  Switch* s = as_switch(self);
  s->old_recording = modes.recording;
  s->old_lazy = modes.lazy;
  if (s->recording >= 0) modes.recording = s->recording;
  if (s->lazy >= 0) modes.lazy = s->lazy;
  Py_RETURN_NONE;
}

PyObject* switch_exit(PyObject* self, PyObject*) {
  const Switch* s = as_switch(self);
  if (s->recording >= 0) modes.recording = s->old_recording;
  if (s->lazy >= 0) modes.lazy = s->old_lazy;
  Py_RETURN_NONE;
}

PyMethodDef switch_methods[] = {{"__enter__", switch_enter, METH_NOARGS, "Switch, in this thread."},
                                {"__exit__", switch_exit, METH_VARARGS, "Switch back."},
                                {nullptr, nullptr, 0, nullptr}};
PyType_Slot switch_slots[] = {{Py_tp_methods, switch_methods}, {0, nullptr}};
PyType_Spec switch_definition = {"needle._core.modes", sizeof(Switch), 0, Py_TPFLAGS_DEFAULT,
                                 switch_slots};

}  // namespace

bool add_modes_type(PyObject* module) {
  PyObject* type = PyType_FromSpec(&switch_definition);
  if (type) reinterpret_cast<PyTypeObject*>(type)->tp_vectorcall = new_switch;
  const bool added = type && PyModule_AddObjectRef(module, "modes", type) == 0;
  Py_XDECREF(type);
  return added;
}

}  // namespace needle
