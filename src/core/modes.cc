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

int switch_init(PyObject* self, PyObject* args, PyObject* named) {
  static const char* names[] = {"recording", "lazy", nullptr};
  PyObject *recording = Py_None, *lazy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, named, "|OO:modes", const_cast<char**>(names), &recording,
                                   &lazy)) {
    return -1;
  }
  return read(recording, &as_switch(self)->recording) && read(lazy, &as_switch(self)->lazy) ? 0
                                                                                            : -1;
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
PyType_Slot switch_slots[] = {{Py_tp_init, reinterpret_cast<void*>(switch_init)},
                              {Py_tp_methods, switch_methods},
                              {0, nullptr}};
PyType_Spec switch_definition = {"needle._core.modes", sizeof(Switch), 0, Py_TPFLAGS_DEFAULT,
                                 switch_slots};

}  // namespace

bool add_modes_type(PyObject* module) {
  PyObject* type = PyType_FromSpec(&switch_definition);
  const bool added = type && PyModule_AddObjectRef(module, "modes", type) == 0;
  Py_XDECREF(type);
  return added;
}

}  // namespace needle
