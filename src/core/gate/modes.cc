// The `with` block that switches modes. It is native so that no signal comes between switching and
// being sure to switch back: Python handles signals where a function of its own begins, and
// __exit__ would be one. An interrupted program continues in its previous modes.
#include "types/core.h"
#include "types/graph.h"

namespace needle {
namespace {

enum Mode { kRecording, kLazy, kOpen, kMemoryLimit, kThreads, kProducts, kModes };
constexpr int kFlags = kMemoryLimit;  // the first are true or false, the others numbers
const char* const names[] = {"recording", "lazy",     "open",    "memory_limit",
                             "threads",   "products", "settings"};

int32_t threads_set = 0, products_by_rows = 0;

struct Switch {
  PyObject_HEAD int64_t wanted[kModes], found[kModes];  // wanted -1: as outside
  PyObject *settings, *token;                           // (context variable, value), or null
  const Modes* thread;                                  // that entered; null: nobody is in it
  Switch *older, *newer;
};

Switch* newest;  // of the blocks that some thread is in

Switch* as_switch(PyObject* self) { return reinterpret_cast<Switch*>(self); }

int64_t mode(int i) {
  switch (i) {
    case kRecording:
      return modes.recording;
    case kLazy:
      return modes.lazy;
    case kOpen:
      return modes.open;
    case kMemoryLimit:
      return memory_limit();
    case kProducts:
      return products_by_rows;
    default:
      return threads_set;
  }
}

void set_mode(int i, int64_t value) {
  switch (i) {
    case kRecording:
      modes.recording = value;
      break;
    case kLazy:
      modes.lazy = value;
      break;
    case kOpen:
      modes.open = value;
      break;
    case kMemoryLimit:
      set_memory_limit(value);
      break;
    case kThreads:
      set_threads(static_cast<int32_t>(value));
      break;
    default:
      set_products(static_cast<int32_t>(value));
  }
}

// What a block found holds again when it is left. Where blocks are left in another order than they
// were entered, as tasks and threads do, the next one that switches the same takes over what was
// found: after the last of them all is as it was before the first.
void leave(const Switch* s, int i) {
  const bool of_process = i >= kThreads;
  for (Switch* later = s->newer; later; later = later->newer) {
    if (later->wanted[i] >= 0 && (of_process || later->thread == s->thread)) {
      later->found[i] = s->found[i];
      return;
    }
  }
  if (of_process || s->thread == &modes) set_mode(i, s->found[i]);
}

void unlink(Switch* s) {
  if (!s->thread) return;
  (s->newer ? s->newer->older : newest) = s->older;
  if (s->older) s->older->newer = s->newer;
  s->older = s->newer = nullptr;
  s->thread = nullptr;
}

bool read(Switch* s, int i, PyObject* value) {
  if (i == kModes) {
    if (value == Py_None) return true;
    Py_INCREF(value);
    s->settings = value;
    return PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 2;
  }
  s->wanted[i] = value == Py_None ? -1
                 : i < kFlags     ? PyObject_IsTrue(value)
                                  : PyLong_AsLongLong(value);
  return !PyErr_Occurred();
}

// modes(recording=None, lazy=None, open=None, memory_limit=None, threads=None, products=None,
// settings=None).
// Takes arguments as they are called, because each backward makes one.
PyObject* new_switch(PyObject* type, PyObject* const* args, size_t flags, PyObject* named) {
  const Py_ssize_t n = PyVectorcall_NARGS(flags), rest = named ? PyTuple_GET_SIZE(named) : 0;
  if (n > kModes + 1)
    return PyErr_Format(PyExc_TypeError, "modes: expected 7 arguments, got %zd", n);
  auto* of_type = reinterpret_cast<PyTypeObject*>(type);
  PyObject* self = of_type->tp_alloc(of_type, 0);
  if (!self) return nullptr;
  for (int64_t& value : as_switch(self)->wanted) value = -1;
  bool right = true;
  for (Py_ssize_t i = 0; i < n && right; i++) {
    right = read(as_switch(self), static_cast<int>(i), args[i]);
  }
  for (Py_ssize_t k = 0; k < rest && right; k++) {
    PyObject* name = PyTuple_GET_ITEM(named, k);
    int i = 0;
    while (i <= kModes && PyUnicode_CompareWithASCIIString(name, names[i]) != 0) i++;
    if (i > kModes) PyErr_Format(PyExc_TypeError, "modes: unexpected argument %R", name);
    right = i <= kModes && read(as_switch(self), i, args[n + k]);
  }
  if (right) return self;
  Py_DECREF(self);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "modes: settings are a pair");
  return nullptr;
}

PyObject* switch_enter(PyObject* self, PyObject*) {
  Switch* s = as_switch(self);
  if (s->thread) return PyErr_Format(PyExc_RuntimeError, "modes: the block was entered before");
  if (s->settings) {
    PyObject* variable = PyTuple_GET_ITEM(s->settings, 0);
    s->token = PyContextVar_Set(variable, PyTuple_GET_ITEM(s->settings, 1));
    if (!s->token) return nullptr;
  }
  s->thread = &modes;
  s->older = newest;
  if (newest) newest->newer = s;
  newest = s;
  for (int i = 0; i < kModes; i++) {
    if (s->wanted[i] < 0) continue;
    s->found[i] = mode(i);
    set_mode(i, s->wanted[i]);
  }
  Py_RETURN_NONE;
}

PyObject* switch_exit(PyObject* self, PyObject*) {
  Switch* s = as_switch(self);
  if (!s->thread) Py_RETURN_NONE;
  for (int i = 0; i < kModes; i++) {
    if (s->wanted[i] >= 0) leave(s, i);
  }
  unlink(s);
  const int failed = s->token ? PyContextVar_Reset(PyTuple_GET_ITEM(s->settings, 0), s->token) : 0;
  Py_CLEAR(s->token);
  if (failed) return nullptr;
  Py_RETURN_NONE;
}

void switch_dealloc(PyObject* self) {
  Switch* s = as_switch(self);
  PyTypeObject* type = Py_TYPE(self);
  unlink(s);
  Py_XDECREF(s->settings);
  Py_XDECREF(s->token);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef switch_methods[] = {{"__enter__", switch_enter, METH_NOARGS, "Switch, in this thread."},
                                {"__exit__", switch_exit, METH_VARARGS, "Switch back."},
                                {nullptr, nullptr, 0, nullptr}};
PyType_Slot switch_slots[] = {{Py_tp_methods, switch_methods},
                              {Py_tp_dealloc, reinterpret_cast<void*>(switch_dealloc)},
                              {0, nullptr}};
PyType_Spec switch_definition = {"needle._core.modes", sizeof(Switch), 0, Py_TPFLAGS_DEFAULT,
                                 switch_slots};

}  // namespace

void set_threads(int32_t n) {
  threads_set = n;
  kernels->set_threads(n);
}

void set_products(int32_t by_rows) {
  products_by_rows = by_rows;
  kernels->set_products(by_rows);
}

bool add_modes_type(PyObject* module) {
  PyObject* type = PyType_FromSpec(&switch_definition);
  if (type) reinterpret_cast<PyTypeObject*>(type)->tp_vectorcall = new_switch;
  const bool added = type && PyModule_AddObjectRef(module, "modes", type) == 0;
  Py_XDECREF(type);
  return added;
}

}  // namespace needle
