// Operations of the gate and Python on nodes and tensors: record, postpone, finish, release, order.
#include "types/core.h"
#include "types/graph.h"
#include <new>
#include <unordered_set>
#include <vector>

namespace needle {

namespace {

bool default_lazy = false, default_open = true;

}  // namespace

// Each thread's first call comes here, and allocates everything that a later error about exhausted
// memory needs: the system ends a process without memory for the state of C++ exceptions, or for
// the destructors of a thread's variables.
Modes::Modes() : recording(true), lazy(default_lazy), open(default_open), pending(0) {
  try {
    throw 0;
  } catch (int) {
  }
  workspace(0);
}
thread_local Modes modes;

namespace {

// Borrowed: the tensor's node, which is made if needed.
Node* leaf_of(Tensor* tensor) {
  if (tensor->node) return tensor->node;
  if (!tensor->array) {
    raise("GradientError", "the tensor was not initialised\n  try: needle.Tensor(...)");
    return nullptr;
  }
  Node* node = node_new(nullptr, 0);
  if (!node) return nullptr;
  node->spec = spec_of_value(tensor->array);
  node->receiver = PyWeakref_NewRef(reinterpret_cast<PyObject*>(tensor), nullptr);
  node->needs = tensor->requires_grad;
  node->done = true;
  if (!node->spec || !node->receiver || tensor->node) {  // the collector ran code that made it
    Py_DECREF(node);
    return PyErr_Occurred() ? nullptr : tensor->node;
  }
  node->tensor = tensor;
  tensor->node = node;
  return node;
}

bool link_inputs(Node* node, PyObject* const* tensors, int n) {
  for (int i = 0; i < n; i++) {
    if (!is_tensor(tensors[i])) {
      PyErr_Format(PyExc_TypeError, "expected a tensor, got %s", Py_TYPE(tensors[i])->tp_name);
      return false;
    }
    Node* below = leaf_of(as_tensor(tensors[i]));
    if (!below) return false;
    Py_INCREF(below);
    node->inputs[i] = below;
    node->count = i + 1;
  }
  node_track(node);
  return true;
}

bool check_op(PyObject* op) {
  if (PyObject_TypeCheck(op, op_type)) return true;
  PyErr_Format(PyExc_TypeError, "expected an op, got %s", Py_TYPE(op)->tp_name);
  return false;
}

PyObject* wrap(PyObject*, PyObject* array) {
  Py_INCREF(array);
  return wrap_array(array);
}

PyObject* record(PyObject*, PyObject* const* args, Py_ssize_t n) {
  PyObject* tensors = n == 3 ? PySequence_Fast(args[1], "tensors are a sequence") : nullptr;
  if (!tensors || !check_op(args[0])) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "record(op, tensors, array)");
    Py_XDECREF(tensors);
    return nullptr;
  }
  Py_INCREF(args[2]);
  PyObject* result = record_result(args[0], PySequence_Fast_ITEMS(tensors),
                                   static_cast<int>(PySequence_Fast_GET_SIZE(tensors)), args[2]);
  Py_DECREF(tensors);
  return result;
}

PyObject* pend(PyObject*, PyObject* const* args, Py_ssize_t n) {
  PyObject* tensors = n == 4 ? PySequence_Fast(args[1], "tensors are a sequence") : nullptr;
  if (!tensors || !check_op(args[0])) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "pend(op, tensors, spec, needs)");
    Py_XDECREF(tensors);
    return nullptr;
  }
  const int count = static_cast<int>(PySequence_Fast_GET_SIZE(tensors));
  Node* node = node_new(args[0], count);
  if (!node) {
    Py_DECREF(tensors);
    return nullptr;
  }
  Py_INCREF(node->spec = args[2]);
  node->needs = PyObject_IsTrue(args[3]) == 1;
  modes.pending++;
  if (!link_inputs(node, PySequence_Fast_ITEMS(tensors), count)) {
    Py_DECREF(tensors);
    Py_DECREF(node);
    return nullptr;
  }
  for (int i = 0; i < count; i++) {
    claim(node->inputs[i], as_tensor(PySequence_Fast_ITEMS(tensors)[i])->array);
    node->held |= bit_of(i);
  }
  Py_DECREF(tensors);
  if (node->needs && saved(node) >> kOutputBit & 1) {
    claim(node, nullptr);
    node->held |= uint64_t{1} << kOutputBit;
  }
  return tensor_make(nullptr, node, PyTuple_Check(args[2]));
}

PyObject* finish(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || Py_TYPE(args[0]) != node_type) {
    PyErr_SetString(PyExc_TypeError, "finish(node, array)");
    return nullptr;
  }
  Node* node = as_node(args[0]);
  if (node->done) Py_RETURN_NONE;
  node->done = true;
  if (modes.pending > 0) modes.pending--;
  if (node->claims) set_field(&node->value, args[1]);
  if (node->tensor) set_field(&node->tensor->array, args[1]);
  if (node->needs) {
    drop(node, node->released ? 0 : saved(node));
  } else {
    drop(node, 0);
    const int count = node->count;
    node->count = 0;
    for (int i = 0; i < count; i++) Py_DECREF(node->inputs[i]);
  }
  Py_RETURN_NONE;
}

bool check_node(PyObject* node) {
  if (Py_TYPE(node) == node_type) return true;
  PyErr_Format(PyExc_TypeError, "expected a node, got %s", Py_TYPE(node)->tp_name);
  return false;
}
bool check_tensor(PyObject* tensor) {
  if (is_tensor(tensor)) return true;
  PyErr_Format(PyExc_TypeError, "expected a tensor, got %s", Py_TYPE(tensor)->tp_name);
  return false;
}

PyObject* release(PyObject*, PyObject* node) {
  if (!check_node(node)) return nullptr;
  as_node(node)->released = true;
  drop(as_node(node), as_node(node)->done ? 0 : ~(uint64_t{1} << kOutputBit));
  Py_RETURN_NONE;
}

PyObject* peek(PyObject*, PyObject* node) {
  return check_node(node) ? new_reference(as_node(node)->tensor) : nullptr;
}

PyObject* tensor_of(PyObject*, PyObject* node) {
  return check_node(node) ? tensor_of(as_node(node)) : nullptr;
}

PyObject* receiver_of(PyObject*, PyObject* node) {
  if (!check_node(node)) return nullptr;
  if (as_node(node)->op) return new_reference(as_node(node)->tensor);
  PyObject* weak = as_node(node)->receiver;
  if (!weak) Py_RETURN_NONE;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* tensor;
  if (PyWeakref_GetRef(weak, &tensor) < 0) return nullptr;
  if (!tensor) Py_RETURN_NONE;
  return tensor;
#else
  return new_reference(PyWeakref_GetObject(weak));
#endif
}

PyObject* leaf(PyObject*, PyObject* tensor) {
  if (!check_tensor(tensor)) return nullptr;
  Node* node = leaf_of(as_tensor(tensor));
  return node ? new_reference(node) : nullptr;
}

PyObject* set_array(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !is_tensor(args[0]) || !is_array(args[1])) {
    PyErr_SetString(PyExc_TypeError, "set_array(tensor, array)");
    return nullptr;
  }
  Tensor* tensor = as_tensor(args[0]);
  if (!note_change(tensor)) return nullptr;
  leave_graph(tensor);
  set_field(&tensor->array, args[1]);
  Py_RETURN_NONE;
}

PyObject* rebind(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !is_tensor(args[0]) || !is_tensor(args[1])) {
    PyErr_SetString(PyExc_TypeError, "rebind(tensor, source)");
    return nullptr;
  }
  Tensor* tensor = as_tensor(args[0]);
  Tensor* source = as_tensor(args[1]);
  if (tensor == source) Py_RETURN_NONE;
  if (!note_change(tensor) || !note_change(source)) return nullptr;
  Node* old = tensor->node;
  if (old && old->tensor == tensor) old->tensor = nullptr;
  if (old && old->op) tensor->requires_grad = needs_gradient(source);
  tensor->node = source->node;
  source->node = nullptr;
  if (tensor->node && tensor->node->tensor == source) tensor->node->tensor = tensor;
  set_field(&tensor->array, source->array ? source->array : Py_None);
  Py_CLEAR(source->array);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

// The arrays of a list of tensors that have these specs and are dense, and for each whether nobody
// else holds it; None if one is not so. compile/cells.py has the definition.
PyObject* gather_arrays(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1]) ||
      PyList_GET_SIZE(args[0]) != PyList_GET_SIZE(args[1])) {
    PyErr_SetString(PyExc_TypeError, "gather_arrays(tensors, specs)");
    return nullptr;
  }
  const Py_ssize_t count = PyList_GET_SIZE(args[0]);
  PyObject *arrays = PyList_New(count), *alone = PyList_New(count);
  bool fits = arrays && alone;
  for (Py_ssize_t i = 0; fits && i < count; i++) {
    PyObject* tensor = PyList_GET_ITEM(args[0], i);
    PyObject* found = is_tensor(tensor) ? as_tensor(tensor)->array : nullptr;
    const auto* array = reinterpret_cast<Array*>(found);
    fits = found && is_array(found) && !array->strides &&
           reinterpret_cast<PyObject*>(array->spec) == PyList_GET_ITEM(args[1], i);
    if (!fits) break;
    PyList_SET_ITEM(alone, i, PyBool_FromLong(is_exclusive(as_tensor(tensor))));
    PyList_SET_ITEM(arrays, i, new_reference(found));
  }
  PyObject* pair = fits ? PyTuple_Pack(2, arrays, alone) : nullptr;
  Py_XDECREF(arrays);
  Py_XDECREF(alone);
  if (!fits && !PyErr_Occurred()) Py_RETURN_NONE;
  return pair;
}

PyObject* set_arrays(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1]) ||
      PyList_GET_SIZE(args[0]) != PyList_GET_SIZE(args[1])) {
    PyErr_SetString(PyExc_TypeError, "set_arrays(tensors, arrays)");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); i++) {
    PyObject* pair[] = {PyList_GET_ITEM(args[0], i), PyList_GET_ITEM(args[1], i)};
    PyObject* done = set_array(nullptr, pair, 2);
    if (!done) return nullptr;
    Py_DECREF(done);
  }
  Py_RETURN_NONE;
}

PyObject* init_tensor(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 3 || !is_tensor(args[0])) {
    PyErr_SetString(PyExc_TypeError, "init_tensor(tensor, array, requires_grad)");
    return nullptr;
  }
  Tensor* tensor = as_tensor(args[0]);
  tensor_release(tensor);
  set_field(&tensor->array, args[1]);
  tensor->requires_grad = PyObject_IsTrue(args[2]) == 1;
  Py_RETURN_NONE;
}

// Visit nodes depth first in the order of inputs, without recursion. False with an exception set,
// or one of C++ where there is no memory left.
template <class Enter>
bool visit(PyObject* sequence, PyObject* order, const Enter& enter) {
  std::unordered_set<Node*> seen;
  std::vector<std::pair<Node*, int>> stack;
  for (Py_ssize_t r = 0; r < PySequence_Fast_GET_SIZE(sequence); r++) {
    PyObject* root = PySequence_Fast_GET_ITEM(sequence, r);
    if (!check_node(root)) return false;
    if (!enter(as_node(root)) || !seen.insert(as_node(root)).second) continue;
    stack.emplace_back(as_node(root), 0);
    while (!stack.empty()) {
      auto& [node, i] = stack.back();
      const int count = enter(node) == 2 ? 0 : node->count;
      Node* next = nullptr;
      while (i < count && !next) {
        Node* below = node->inputs[i++];
        if (enter(below) && seen.insert(below).second) next = below;
      }
      if (next) {
        stack.emplace_back(next, 0);
      } else {
        if (PyList_Append(order, reinterpret_cast<PyObject*>(node)) < 0) return false;
        stack.pop_back();
      }
    }
  }
  return true;
}

template <class Enter>
PyObject* post_order(PyObject* roots, const Enter& enter) {  // a new reference to a list
  PyObject* sequence = PySequence_Fast(roots, "nodes are a sequence");
  PyObject* order = sequence ? PyList_New(0) : nullptr;
  bool done = false;
  try {
    done = order && visit(sequence, order, enter);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  Py_XDECREF(sequence);
  if (!done) Py_CLEAR(order);
  return order;
}

PyObject* topo(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const bool needs = n > 1 && PyObject_IsTrue(args[1]) == 1;
  PyObject* stop = n > 2 && args[2] != Py_None && PyObject_Size(args[2]) > 0 ? args[2] : nullptr;
  return post_order(args[0], [&](Node* node) {  // 0: stay out, 1: visit, 2: visit it alone
    if (needs && !node->needs) return 0;
    return stop && PySet_Contains(stop, reinterpret_cast<PyObject*>(node)) == 1 ? 2 : 1;
  });
}

PyObject* pending_order(PyObject*, PyObject* roots) {
  return post_order(roots, [](Node* node) { return node->done ? 0 : 1; });
}

PyObject* swap_flag(bool* flag, PyObject* value) {
  const bool old = *flag;
  const int on = PyObject_IsTrue(value);
  if (on < 0) return nullptr;
  *flag = on;
  return PyBool_FromLong(old);
}
PyObject* recording(PyObject*, PyObject*) { return PyBool_FromLong(modes.recording); }
PyObject* lazy(PyObject*, PyObject*) { return PyBool_FromLong(modes.lazy); }
PyObject* pending(PyObject*, PyObject*) { return PyLong_FromLongLong(modes.pending); }
PyObject* set_recording(PyObject*, PyObject* on) { return swap_flag(&modes.recording, on); }
PyObject* set_lazy(PyObject*, PyObject* on) { return swap_flag(&modes.lazy, on); }
PyObject* set_open(PyObject*, PyObject* on) { return swap_flag(&modes.open, on); }
PyObject* count_live(PyObject*, PyObject*) { return PyLong_FromLongLong(live_tensors); }
PyObject* serial(PyObject*, PyObject*) { return PyLong_FromLongLong(next_serial); }

PyObject* set_defaults(PyObject*, PyObject* args) {
  int lazy_on, open_on;
  if (!PyArg_ParseTuple(args, "pp", &lazy_on, &open_on)) return nullptr;
  modes.lazy = default_lazy = lazy_on;
  modes.open = default_open = open_on;
  Py_RETURN_NONE;
}

PyObject* exclusive(PyObject*, PyObject* tensor) {
  return check_tensor(tensor) ? PyBool_FromLong(is_exclusive(as_tensor(tensor))) : nullptr;
}

PyObject* set_tensor_classes(PyObject*, PyObject* args) {
  PyObject *tensor, *pair;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &tensor, &PyType_Type, &pair)) return nullptr;
  if (!set_result_class(tensor, false) || !set_result_class(pair, true)) return nullptr;
  Py_RETURN_NONE;
}

#define FAST(name, doc) {#name, function_of(name), METH_FASTCALL, doc}
PyMethodDef functions[] = {
    {"wrap", wrap, METH_O, "A tensor of an array, without graph."},
    FAST(record, "The tensor of a computed result that needs a gradient."),
    FAST(pend, "The tensor of a result that is not computed yet."),
    FAST(finish, "Give a pending node its value."),
    FAST(set_array, "Give a tensor new data."),
    FAST(set_arrays, "Give tensors new data."),
    FAST(gather_arrays, "The arrays of tensors, if they have these specs."),
    FAST(rebind, "Make a tensor stand for what another one does."),
    FAST(init_tensor, "Fill a new tensor object: a leaf."),
    FAST(topo, "All nodes below, inputs first."),
    {"release", release, METH_O, "Release the values that the node's gradient would read."},
    {"peek", peek, METH_O, "The live tensor of a node, or None."},
    {"tensor_of", tensor_of, METH_O, "The live tensor of a node, or a new one."},
    {"receiver_of", receiver_of, METH_O,
     "The tensor that a gradient of the node belongs to, or None."},
    {"leaf", leaf, METH_O, "The tensor's node, made where there is none."},
    {"pending_order", pending_order, METH_O, "The nodes below that have not run."},
    {"exclusive", exclusive, METH_O, "Whether nobody else holds the tensor's memory."},
    {"recording", recording, METH_NOARGS, "Whether operations are recorded."},
    {"lazy", lazy, METH_NOARGS, "Whether computation is postponed."},
    {"pending", pending, METH_NOARGS, "How many nodes wait in this thread."},
    {"set_recording", set_recording, METH_O, "Switch; returns the old state."},
    {"set_lazy", set_lazy, METH_O, "Switch; returns the old state."},
    {"set_open", set_open, METH_O, "Let native functions act or not; returns the old state."},
    {"set_defaults", set_defaults, METH_VARARGS, "lazy, open: of this and of new threads."},
    {"set_tensor_classes", set_tensor_classes, METH_VARARGS, "What results are instances of."},
    {"next_serial", serial, METH_NOARGS, "The number that the next node or tensor gets."},
    {"live_tensors", count_live, METH_NOARGS, "Number of live tensors."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void leave_graph(Tensor* tensor) {
  Node* node = tensor->node;
  if (!node) return;
  if (node->op) tensor->requires_grad = node->needs;
  node->tensor = nullptr;
  tensor->node = nullptr;
  Py_DECREF(node);
}

bool is_exclusive(const Tensor* tensor) {
  PyObject* array = tensor->array;
  if (!array || !is_array(array) || Py_REFCNT(array) != 1) return false;
  const Storage* storage = reinterpret_cast<Array*>(array)->storage;
  return storage && storage->refs == 1 && !storage->owner;  // not adopted from others
}

PyObject* wrap_array(PyObject* array) { return tensor_make(array, nullptr, PyTuple_Check(array)); }

PyObject* record_result(PyObject* op, PyObject* const* tensors, int n, PyObject* array) {
  Node* node = node_new(op, n);
  if (!node) {
    Py_DECREF(array);
    return nullptr;
  }
  node->spec = spec_of_value(array);
  node->needs = node->done = true;
  if (!node->spec || !link_inputs(node, tensors, n)) {
    Py_DECREF(array);
    Py_DECREF(node);
    return nullptr;
  }
  const uint64_t mask = saved(node);
  for (int i = 0; i < n; i++) {
    if (mask & bit_of(i)) claim(node->inputs[i], as_tensor(tensors[i])->array);
  }
  if (mask >> kOutputBit & 1) claim(node, array);
  node->held = mask;
  return tensor_make(array, node, PyTuple_Check(array));
}

bool add_value_functions(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace needle
