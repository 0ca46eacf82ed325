// Calls of compiled functions without Python, in the plain cases: all arguments are tensors, given
// by position, and the program reads and writes nothing but these and other tensors. Everything
// else, and every doubt, goes to the definition, the method `_called` of compile/compiled.py.
#include <nanobind/nanobind.h>
#include <structmember.h>
#include <algorithm>
#include <memory>
#include <vector>

#include "types/graph.h"
#include "program/program.h"

namespace nb = nanobind;

namespace needle {
namespace {

PyObject *settings_variable, *changes_dict, *changes_name, *called_name;

// An argument as the program was made for.
struct Argument {
  PyTypeObject* type;  // owned, as all below
  PyObject* spec;
  bool needs;
  int same;  // the first argument that is the same object
};

// Where a source comes from: an argument, or a tensor.
struct Origin {
  int argument;      // -1: the tensor
  PyObject* tensor;  // owned
};

struct Shortcut {
  Program* program;  // of owner
  PyObject *owner, *settings, *changes, *frame, *leaf, *outside;
  bool recording;
  std::vector<Argument> arguments;
  std::vector<Origin> sources;
  std::vector<char> needs;  // of each output

  template <class Visit>
  int each(Visit visit) {
    for (PyObject** x : {&owner, &settings, &changes, &frame, &leaf, &outside}) {
      if (const int found = visit(x)) return found;
    }
    for (Argument& x : arguments) {
      if (const int found = visit(reinterpret_cast<PyObject**>(&x.type))) return found;
      if (const int found = visit(&x.spec)) return found;
    }
    for (Origin& x : sources) {
      if (const int found = visit(&x.tensor)) return found;
    }
    return 0;
  }
  ~Shortcut() {
    each([](PyObject** x) {
      Py_CLEAR(*x);
      return 0;
    });
  }
};

struct Shortcuts {
  PyObject_HEAD std::vector<std::shared_ptr<Shortcut>>* all;
};

auto& all_of(PyObject* self) { return reinterpret_cast<Shortcuts*>(self)->all; }

// ---- whether one fits

bool is_current(const Shortcut& cut) {
  PyObject* settings = nullptr;
  if (PyContextVar_Get(settings_variable, nullptr, &settings) < 0) return false;
  Py_XDECREF(settings);  // the context has it
  return settings == cut.settings && modes.open && !modes.lazy && !journal && !is_dry() &&
         modes.recording == cut.recording &&
         PyDict_GetItemWithError(changes_dict, changes_name) == cut.changes;
}

// The array of a tensor that is dense and of this spec; null: not here.
Array* dense_array(const Tensor* tensor, const PyObject* spec) {
  PyObject* held = tensor->array;
  if (!held || !is_array(held)) return nullptr;
  auto* array = reinterpret_cast<Array*>(held);
  const bool fits =
      array->storage && !array->strides && reinterpret_cast<PyObject*>(array->spec) == spec;
  return fits ? array : nullptr;
}

// Whether an argument is one of the tensors outside: what is stored there would change it.
bool is_outside(const Shortcut& cut, const PyObject* argument) {
  return std::any_of(cut.sources.begin(), cut.sources.end(),
                     [&](const Origin& x) { return x.tensor == argument; });
}

bool fits(const Shortcut& cut, PyObject* args) {
  const bool stores = cut.program->results().size() > cut.needs.size();
  if (PyTuple_GET_SIZE(args) != static_cast<Py_ssize_t>(cut.arguments.size())) return false;
  for (size_t i = 0; i < cut.arguments.size(); i++) {
    const Argument& own = cut.arguments[i];
    PyObject* x = PyTuple_GET_ITEM(args, i);
    if (Py_TYPE(x) != own.type || needs_gradient(as_tensor(x)) != own.needs) return false;
    if (!dense_array(as_tensor(x), own.spec)) return false;
    if (stores && is_outside(cut, x)) return false;
    size_t same = 0;
    while (PyTuple_GET_ITEM(args, same) != x) same++;
    if (static_cast<int>(same) != own.same) return false;
  }
  return is_current(cut);
}

// ---- a run

// The arrays of a run, owned, so that other threads may rebind the tensors meanwhile.
struct Run {
  std::vector<Array*> sources, results;
  std::vector<char*> source_addresses, result_addresses;
  std::vector<bool> alone;  // of the sources
  ~Run() {
    for (Array* x : sources) Py_XDECREF(x);
    for (Array* x : results) Py_XDECREF(x);
  }

  bool gather(const Shortcut& cut, PyObject* args) {
    const auto& specs = cut.program->sources();
    for (size_t i = 0; i < cut.sources.size(); i++) {
      const Origin& place = cut.sources[i];
      PyObject* x = place.tensor ? place.tensor : PyTuple_GET_ITEM(args, place.argument);
      alone.push_back(is_exclusive(as_tensor(x)));  // asked before we hold it
      Array* array = dense_array(as_tensor(x), reinterpret_cast<PyObject*>(specs[i].spec));
      if (!array) return false;
      Py_INCREF(array);
      sources.push_back(array);
      source_addresses.push_back(address(array));
    }
    return true;
  }

  bool add_result(const Program& program, const Result& result) {
    if (result.in_place && alone[result.source]) {
      Array* own = sources[result.source];
      Py_INCREF(own);
      results.push_back(own);
      result_addresses.push_back(address(own));
      return true;
    }
    Storage* storage = storage_new(program.record().blocks[result.block].nbytes);
    if (!storage) return false;
    result_addresses.push_back(static_cast<char*>(storage->data));
    Py_INCREF(result.spec);
    Array* made =
        array_new(result.spec, storage, result.offset, result.is_dense ? nullptr : result.strides);
    if (made) results.push_back(made);
    return made;
  }
};

PyObject* wrapped(const Shortcut& cut, const Run& run, size_t k) {
  auto* array = reinterpret_cast<PyObject*>(run.results[k]);
  Py_INCREF(array);
  return cut.needs[k] ? record_result(cut.outside, nullptr, 0, array) : wrap_array(array);
}

// The frame, with the next results where it has leaves.
PyObject* filled(const Shortcut& cut, const Run& run, PyObject* frame, size_t* next) {
  if (frame == cut.leaf) return wrapped(cut, run, (*next)++);
  const bool is_tuple = PyTuple_CheckExact(frame);
  if (!is_tuple && !PyList_CheckExact(frame)) {
    Py_INCREF(frame);
    return frame;
  }
  const Py_ssize_t n = is_tuple ? PyTuple_GET_SIZE(frame) : PyList_GET_SIZE(frame);
  PyObject* made = is_tuple ? PyTuple_New(n) : PyList_New(n);
  for (Py_ssize_t i = 0; made && i < n; i++) {
    PyObject* part =
        filled(cut, run, is_tuple ? PyTuple_GET_ITEM(frame, i) : PyList_GET_ITEM(frame, i), next);
    if (!part) Py_CLEAR(made);
    if (part && is_tuple) PyTuple_SET_ITEM(made, i, part);
    if (part && !is_tuple) PyList_SET_ITEM(made, i, part);
  }
  return made;
}

// The tensors that hold stored values from now on; false with an exception.
bool store(const Shortcut& cut, const Run& run, PyObject* args) {
  const auto& results = cut.program->results();
  for (size_t k = cut.needs.size(); k < results.size(); k++) {
    const Origin& place = cut.sources[results[k].source];
    PyObject* x = place.tensor ? place.tensor : PyTuple_GET_ITEM(args, place.argument);
    leave_graph(as_tensor(x));
    set_field(&as_tensor(x)->array, reinterpret_cast<PyObject*>(run.results[k]));
  }
  return true;
}

// Null without an exception: not here.
PyObject* run_shortcut(const Shortcut& cut, PyObject* args) {
  Run run;
  if (!run.gather(cut, args)) return nullptr;
  for (const Result& result : cut.program->results()) {
    if (!run.add_result(*cut.program, result)) return nullptr;
  }
  const int64_t failed = cut.program->run(run.source_addresses.data(), run.result_addresses.data());
  if (failed != -1) return nullptr;
  size_t next = 0;
  return store(cut, run, args) ? filled(cut, run, cut.frame, &next) : nullptr;
}

// ---- the type

PyObject* call(PyObject* self, PyObject* args, PyObject* named) {
  auto* all = all_of(self);
  const bool plain = !named || PyDict_GET_SIZE(named) == 0;
  if (all && plain) {
    for (size_t i = 0; i < all->size(); i++) {
      if (!fits(*(*all)[i], args)) continue;
      const std::shared_ptr<Shortcut> cut = (*all)[i];  // the run may make this forget it
      PyObject* result = nullptr;
      try {
        result = run_shortcut(*cut, args);
      } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
      }
      if (result) return result;
      if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;  // Ctrl-C
      PyErr_Clear();  // the definition tries again, and says what is wrong
      break;
    }
  }
  PyObject* method = PyObject_GetAttr(self, called_name);
  PyObject* result = method ? PyObject_Call(method, args, named) : nullptr;
  Py_XDECREF(method);
  return result;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  if (all_of(self)) {
    for (auto& cut : *all_of(self)) {
      const int found = cut->each([&](PyObject** x) { return *x ? visit(*x, arg) : 0; });
      if (found) return found;
    }
  }
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int clear(PyObject* self) {
  auto* all = std::exchange(all_of(self), nullptr);  // freeing may run Python, and call this again
  delete all;
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(call)},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                       {0, nullptr}};
PyType_Spec definition = {"needle._core.Shortcuts", sizeof(Shortcuts), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

PyObject* owned(nb::handle x) { return nb::object(nb::borrow(x)).release().ptr(); }

// arguments: (type, spec, needs gradient, first equal one); sources: an argument's number or a
// tensor.
void add_shortcut(nb::handle self, nb::handle program, nb::list arguments, nb::list sources,
                  nb::list needs, nb::handle frame, nb::handle leaf, nb::handle outside,
                  nb::handle settings, nb::handle changes) {
  auto cut = std::make_shared<Shortcut>();
  cut->program = nb::cast<Program*>(program);
  cut->owner = owned(program);
  cut->settings = owned(settings);
  cut->changes = owned(changes);
  cut->frame = owned(frame);
  cut->leaf = owned(leaf);
  cut->outside = owned(outside);
  cut->recording = modes.recording;
  for (nb::handle x : arguments) {
    cut->arguments.push_back({reinterpret_cast<PyTypeObject*>(owned(x[0])), owned(x[1]),
                              nb::cast<bool>(x[2]), nb::cast<int>(x[3])});
  }
  for (nb::handle x : sources) {
    const bool is_argument = PyLong_Check(x.ptr());
    cut->sources.push_back({is_argument ? nb::cast<int>(x) : -1, is_argument ? nullptr : owned(x)});
  }
  for (nb::handle x : needs) cut->needs.push_back(nb::cast<bool>(x));
  auto*& all = all_of(self.ptr());
  if (!all) all = new std::vector<std::shared_ptr<Shortcut>>;
  all->push_back(std::move(cut));
}

void forget_shortcuts(nb::handle self) { clear(self.ptr()); }

}  // namespace

void add_shortcuts(nb::module_& m) {
  PyObject* type = PyType_FromSpec(&definition);
  called_name = PyUnicode_InternFromString("_called");
  changes_name = PyUnicode_InternFromString("changes");
  if (!type || !called_name || !changes_name || PyModule_AddObject(m.ptr(), "Shortcuts", type) < 0)
    throw nb::python_error();
  m.def("add_shortcut", &add_shortcut, "Let a compiled function run a program without Python.");
  m.def("forget_shortcuts", &forget_shortcuts, "Let it run by its definition again.");
  m.def(
      "set_shortcut_guards",
      [](nb::handle variable, nb::handle module) {
        Py_XSETREF(settings_variable, owned(variable));
        Py_XSETREF(changes_dict, owned(nb::handle(PyModule_GetDict(module.ptr()))));
      },
      "The context variable of the settings, and the module whose `changes` counts changes.");
}

}  // namespace needle
