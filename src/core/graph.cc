// Op, Node and Tensor: the graph and who keeps its values alive. definition.py has the rules.
#include "core.h"
#include <structmember.h>
#include <unordered_set>
#include <vector>

namespace needle {

PyTypeObject *op_type, *node_type, *tensor_type;

namespace {

bool default_lazy = false, default_open = true;

}  // namespace

Modes::Modes() : recording(true), lazy(default_lazy), open(default_open), pending(0) {}
thread_local Modes modes;

namespace {

PyTypeObject *tensor_class, *tuple_class;  // what results are instances of
std::vector<Tensor*> tensor_pool;
int64_t live_tensors;

template <class T>
PyObject* new_reference(T* object) {
  PyObject* result = object ? reinterpret_cast<PyObject*>(object) : Py_None;
  Py_INCREF(result);
  return result;
}

uint64_t bit_of(int64_t i) { return uint64_t{1} << (i < 62 ? i : 62); }

// ---- Op --------------------------------------------------------------------------------------

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
  PyObject* tuple = value ? PySequence_Fast(value, "params are a tuple of numbers") : nullptr;
  if (!tuple) return -1;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(tuple);
  auto* params = static_cast<int64_t*>(PyMem_Malloc(sizeof(int64_t) * (n + 1)));
  for (Py_ssize_t i = 0; i < n; i++) {
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
  PyObject* tuple = PyTuple_New(as_op(self)->n_params);
  for (int i = 0; tuple && i < as_op(self)->n_params; i++) {
    PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(as_op(self)->params[i]));
  }
  return tuple;
}

int op_set_masks(PyObject* self, PyObject* value, void*) {
  PyObject* tuple = value ? PySequence_Fast(value, "save_masks are a tuple of numbers") : nullptr;
  if (!tuple) return -1;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(tuple);
  if (n > kMasks) {
    PyErr_Format(PyExc_ValueError, "saves: %zd entries, at most %d; the last serves the rest", n,
                 kMasks);
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
    PyTuple_SET_ITEM(tuple, i, PyLong_FromUnsignedLongLong(as_op(self)->masks[i]));
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
    {Py_tp_doc, const_cast<char*>("what the gate knows of an op without asking Python")},
    {0, nullptr}};
PyType_Spec op_definition = {"needle._core.Op", sizeof(Op), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                             op_slots};

// ---- Node ------------------------------------------------------------------------------------

Node* as_node(PyObject* self) { return reinterpret_cast<Node*>(self); }
Tensor* as_tensor(PyObject* self) { return reinterpret_cast<Tensor*>(self); }

Node* node_new(PyObject* op, int n) {
  Node* node = PyObject_GC_NewVar(Node, node_type, n);
  if (!node) return nullptr;
  Py_XINCREF(op);
  node->op = op;
  node->spec = node->value = node->owner = nullptr;
  node->handle = nullptr;
  node->claims = 0;
  node->held = 0;
  node->count = 0;
  node->needs = node->done = node->released = false;
  return node;
}

void claim(Node* node, PyObject* value) {
  node->claims++;
  if (value && value != node->value) {
    Py_INCREF(value);
    Py_XSETREF(node->value, value);
  }
}

void unclaim(Node* node) {
  if (--node->claims == 0) Py_CLEAR(node->value);
}

// Give up the claims that are not in `keep`.
void drop(Node* node, uint64_t keep) {
  const uint64_t gone = node->held & ~keep;
  if (!gone) return;
  node->held &= keep;
  for (int i = 0; i < node->count; i++) {
    if (gone & bit_of(i)) unclaim(node->inputs[i]);
  }
  if (gone >> kOutputBit & 1) unclaim(node);
}

uint64_t saved(const Node* node) {
  const Op* op = reinterpret_cast<Op*>(node->op);
  uint64_t mask = 0;
  if (op->n_masks) {
    for (int i = 0; i < node->count; i++) {
      if (node->inputs[i]->needs) mask |= op->masks[i < op->n_masks ? i : op->n_masks - 1];
    }
  }
  return mask;
}

// A dying chain must not recurse: nodes wait in a list that only the outermost call empties.
thread_local std::vector<Node*> graveyard;
thread_local bool burying = false;

void node_free(Node* node) {
  if (!node->done && modes.pending > 0) modes.pending--;
  drop(node, 0);
  PyTypeObject* type = Py_TYPE(node);
  const int count = node->count;
  node->count = 0;
  for (int i = 0; i < count; i++) Py_DECREF(node->inputs[i]);
  Py_XDECREF(node->op);
  Py_XDECREF(node->spec);
  Py_XDECREF(node->value);
  Py_XDECREF(node->owner);
  PyObject_GC_Del(node);
  Py_DECREF(type);
}

void node_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  graveyard.push_back(as_node(self));
  if (burying) return;
  burying = true;
  while (!graveyard.empty()) {
    Node* node = graveyard.back();
    graveyard.pop_back();
    node_free(node);
  }
  burying = false;
}

int node_traverse(PyObject* self, visitproc visit, void* arg) {
  Node* node = as_node(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(node->op);
  Py_VISIT(node->value);
  Py_VISIT(node->owner);
  for (int i = 0; i < node->count; i++) Py_VISIT(node->inputs[i]);
  return 0;
}

int node_clear(PyObject* self) {
  Node* node = as_node(self);
  drop(node, 0);
  const int count = node->count;
  node->count = 0;
  for (int i = 0; i < count; i++) Py_DECREF(node->inputs[i]);
  Py_CLEAR(node->op);
  return 0;
}

PyObject* node_inputs(PyObject* self, void*) {
  Node* node = as_node(self);
  PyObject* tuple = PyTuple_New(node->count);
  for (int i = 0; tuple && i < node->count; i++) {
    PyTuple_SET_ITEM(tuple, i, new_reference(node->inputs[i]));
  }
  return tuple;
}
PyObject* node_op(PyObject* self, void*) { return new_reference(as_node(self)->op); }
PyObject* node_spec(PyObject* self, void*) { return new_reference(as_node(self)->spec); }
PyObject* node_value(PyObject* self, void*) { return new_reference(as_node(self)->value); }

PyMemberDef node_members[] = {
    {"needs", T_BOOL, offsetof(Node, needs), READONLY, "whether gradients flow through"},
    {"done", T_BOOL, offsetof(Node, done), READONLY, "whether it has run"},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef node_getters[] = {
    {"op", node_op, nullptr, "the op, or None for a leaf", nullptr},
    {"inputs", node_inputs, nullptr, "the nodes it reads", nullptr},
    {"spec", node_spec, nullptr, "spec of the result", nullptr},
    {"value", node_value, nullptr, "the array, while somebody claims it", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot node_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(node_dealloc)},
                            {Py_tp_traverse, reinterpret_cast<void*>(node_traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(node_clear)},
                            {Py_tp_members, node_members},
                            {Py_tp_getset, node_getters},
                            {Py_tp_doc, const_cast<char*>("one operation of the graph, or a leaf")},
                            {0, nullptr}};
PyType_Spec node_definition = {
    "needle._core.Node", offsetof(Node, inputs), sizeof(Node*),
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, node_slots};

// ---- Tensor ----------------------------------------------------------------------------------

void tensor_track(Tensor* tensor) {
  auto* self = reinterpret_cast<PyObject*>(tensor);
  if (!PyObject_GC_IsTracked(self)) PyObject_GC_Track(self);
}

// Nodes and tensors stay out of the collector's sight unless they can be part of a cycle: an op
// that holds a callable, or anything built on such a node.
void node_track(Node* node) {
  bool needed = node->op && reinterpret_cast<Op*>(node->op)->opaque;
  for (int i = 0; i < node->count && !needed; i++) {
    needed = PyObject_GC_IsTracked(reinterpret_cast<PyObject*>(node->inputs[i]));
  }
  if (needed) PyObject_GC_Track(reinterpret_cast<PyObject*>(node));
}

void tensor_fill(Tensor* self, PyObject* array, Node* node) {  // steals both
  self->array = array;
  self->node = node;
  self->grad = self->name = self->weaklist = nullptr;
  self->requires_grad = false;
  live_tensors++;
}

// Return a tensor of the registered class; steals array and node.
PyObject* tensor_make(PyObject* array, Node* node, bool is_tuple) {
  PyTypeObject* type = is_tuple ? tuple_class : tensor_class;
  Tensor* self;
  if (!is_tuple && !tensor_pool.empty()) {
    self = tensor_pool.back();
    tensor_pool.pop_back();
    PyObject_Init(reinterpret_cast<PyObject*>(self), type);
  } else {
    self = PyObject_GC_New(Tensor, type);
    if (!self) {
      Py_XDECREF(array);
      Py_XDECREF(node);
      return nullptr;
    }
  }
  tensor_fill(self, array, node);
  if (node) {
    node->handle = self;
    if (PyObject_GC_IsTracked(reinterpret_cast<PyObject*>(node))) tensor_track(self);
  }
  return reinterpret_cast<PyObject*>(self);
}

void tensor_release(Tensor* self) {
  if (self->node) {
    if (self->node->handle == self) self->node->handle = nullptr;
    Node* node = self->node;
    self->node = nullptr;
    Py_DECREF(node);
  }
  Py_CLEAR(self->array);
  Py_CLEAR(self->grad);
  Py_CLEAR(self->name);
}

void tensor_dealloc(PyObject* object) {
  Tensor* self = as_tensor(object);
  PyObject_GC_UnTrack(object);  // a subclass's destructor may have tracked it again
  // Before any Python code runs: nobody may find the dying tensor through its node.
  if (self->node && self->node->handle == self) self->node->handle = nullptr;
  if (self->weaklist) PyObject_ClearWeakRefs(object);
  tensor_release(self);
  live_tensors--;
  PyTypeObject* type = Py_TYPE(object);
  if (type == tensor_class && tensor_pool.size() < 512) {
    tensor_pool.push_back(self);
  } else {
    type->tp_free(object);
  }
  Py_DECREF(type);
}

PyObject* tensor_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self) {
    live_tensors++;
    if (type == tensor_class) PyObject_GC_UnTrack(self);
  }
  return self;
}

int tensor_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_tensor(self)->node);
  Py_VISIT(as_tensor(self)->grad);
  return 0;
}

int tensor_clear(PyObject* self) {
  Py_CLEAR(as_tensor(self)->grad);
  Node* node = as_tensor(self)->node;
  if (node && node->handle == as_tensor(self)) node->handle = nullptr;
  as_tensor(self)->node = nullptr;
  Py_XDECREF(node);
  return 0;
}

PyObject* spec_of_value(PyObject* value);
PyObject* handle(PyObject*, PyObject* self);

PyObject* tensor_spec(PyObject* self, void*) {
  Tensor* tensor = as_tensor(self);
  if (tensor->array) return spec_of_value(tensor->array);
  if (tensor->node) return new_reference(tensor->node->spec);
  PyErr_SetString(PyExc_RuntimeError, "the tensor was not initialised");
  return nullptr;
}
PyObject* tensor_op(PyObject* self, void*) {
  Node* node = as_tensor(self)->node;
  return new_reference(node ? node->op : nullptr);
}
PyObject* tensor_inputs(PyObject* self, void*) {
  Node* node = as_tensor(self)->node;
  PyObject* list = PyList_New(node ? node->count : 0);
  for (int i = 0; list && node && i < node->count; i++) {
    PyList_SET_ITEM(list, i, handle(nullptr, reinterpret_cast<PyObject*>(node->inputs[i])));
  }
  return list;
}
PyObject* tensor_array(PyObject* self, void*) { return new_reference(as_tensor(self)->array); }
PyObject* tensor_node(PyObject* self, void*) { return new_reference(as_tensor(self)->node); }
PyObject* tensor_grad(PyObject* self, void*) { return new_reference(as_tensor(self)->grad); }
PyObject* tensor_name(PyObject* self, void*) { return new_reference(as_tensor(self)->name); }
int set_field(PyObject** field, PyObject* value) {
  if (value == Py_None) value = nullptr;
  Py_XINCREF(value);
  Py_XSETREF(*field, value);
  return 0;
}
int tensor_set_grad(PyObject* self, PyObject* value, void*) {
  if (value && value != Py_None) tensor_track(as_tensor(self));
  return set_field(&as_tensor(self)->grad, value);
}
int tensor_set_name(PyObject* self, PyObject* value, void*) {
  return set_field(&as_tensor(self)->name, value);
}
PyObject* tensor_requires_grad(PyObject* self, void*) {
  return PyBool_FromLong(needs_gradient(as_tensor(self)));
}
int tensor_set_requires_grad(PyObject* self, PyObject* value, void*) {
  const int on = value ? PyObject_IsTrue(value) : 0;
  if (on < 0) return -1;
  Tensor* tensor = as_tensor(self);
  tensor->requires_grad = on;
  if (tensor->node && !tensor->node->op) {
    Node* node = tensor->node;
    node->handle = nullptr;
    tensor->node = nullptr;
    Py_DECREF(node);
  }
  return 0;
}

PyMemberDef tensor_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Tensor, weaklist), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef tensor_getters[] = {
    {"array", tensor_array, nullptr, "the array, or None if it is not there", nullptr},
    {"node", tensor_node, nullptr, "the node it stands for, or None", nullptr},
    {"spec", tensor_spec, nullptr, "dtype, device and shape; never computes", nullptr},
    {"op", tensor_op, nullptr, "the op that made it, or None", nullptr},
    {"inputs", tensor_inputs, nullptr, "the tensors the op was applied to", nullptr},
    {"grad", tensor_grad, tensor_set_grad, "the gradient that backward stored, or None", nullptr},
    {"name", tensor_name, tensor_set_name, "name of a parameter, or None", nullptr},
    {"requires_grad", tensor_requires_grad, tensor_set_requires_grad,
     "whether gradients flow to or through it", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot tensor_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(tensor_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(tensor_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(tensor_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(tensor_clear)},
    {Py_tp_members, tensor_members},
    {Py_tp_getset, tensor_getters},
    {Py_tp_doc, const_cast<char*>("a mutable handle on a node; the base of Tensor")},
    {0, nullptr}};
PyType_Spec tensor_definition = {"needle._core.TensorBase", sizeof(Tensor), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                 tensor_slots};

// ---- what Python and the gate do with them -----------------------------------------------------

PyObject* spec_of_value(PyObject* value) {  // new reference; Array or tuple of them
  if (is_array(value)) return new_reference(reinterpret_cast<Array*>(value)->spec);
  if (!PyTuple_Check(value)) {
    PyErr_Format(PyExc_TypeError, "an op returned %s, not an array", Py_TYPE(value)->tp_name);
    return nullptr;
  }
  const Py_ssize_t n = PyTuple_GET_SIZE(value);
  PyObject* specs = PyTuple_New(n);
  for (Py_ssize_t i = 0; specs && i < n; i++) {
    PyObject* spec = spec_of_value(PyTuple_GET_ITEM(value, i));
    if (!spec) {
      Py_DECREF(specs);
      return nullptr;
    }
    PyTuple_SET_ITEM(specs, i, spec);
  }
  return specs;
}

// Borrowed: the tensor's node, made where there is none.
Node* leaf_of(Tensor* tensor) {
  if (tensor->node) return tensor->node;
  if (!tensor->array) {
    PyErr_SetString(PyExc_RuntimeError, "the tensor was not initialised");
    return nullptr;
  }
  Node* node = node_new(nullptr, 0);
  if (!node) return nullptr;
  node->spec = spec_of_value(tensor->array);
  node->owner = PyWeakref_NewRef(reinterpret_cast<PyObject*>(tensor), nullptr);
  node->needs = tensor->requires_grad;
  node->done = true;
  node->handle = tensor;
  tensor->node = node;
  if (node->spec && node->owner) return node;
  return nullptr;
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
  if (node->handle) set_field(&node->handle->array, args[1]);
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
  return check_node(node) ? new_reference(as_node(node)->handle) : nullptr;
}

PyObject* handle(PyObject*, PyObject* self) {
  if (!check_node(self)) return nullptr;
  Node* node = as_node(self);
  if (node->handle) return new_reference(node->handle);
  Py_INCREF(node);
  Py_XINCREF(node->value);
  PyObject* tensor = tensor_make(node->value, node, PyTuple_Check(node->spec));
  if (tensor) as_tensor(tensor)->requires_grad = node->needs;
  return tensor;
}

PyObject* owner(PyObject*, PyObject* node) {
  if (!check_node(node)) return nullptr;
  PyObject* weak = as_node(node)->owner;
  return new_reference(weak ? PyWeakref_GetObject(weak) : Py_None);
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
  Node* node = tensor->node;
  auto* spec = reinterpret_cast<PyObject*>(reinterpret_cast<Array*>(args[1])->spec);
  if (node && (node->op || node->claims || node->spec != spec)) {
    if (node->op) tensor->requires_grad = node->needs;
    node->handle = nullptr;
    tensor->node = nullptr;
    Py_DECREF(node);
  }
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
  Node* old = tensor->node;
  if (old && old->handle == tensor) old->handle = nullptr;
  if (old && old->op) tensor->requires_grad = old->needs;
  tensor->node = source->node;
  source->node = nullptr;
  if (tensor->node && tensor->node->handle == source) tensor->node->handle = tensor;
  set_field(&tensor->array, source->array ? source->array : Py_None);
  Py_CLEAR(source->array);
  Py_XDECREF(old);
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

// Visit nodes depth first in the order of inputs, without recursion; a new reference to a list.
template <class Enter>
PyObject* post_order(PyObject* roots, Enter enter) {
  PyObject* sequence = PySequence_Fast(roots, "nodes are a sequence");
  if (!sequence) return nullptr;
  PyObject* order = PyList_New(0);
  std::unordered_set<Node*> seen;
  std::vector<std::pair<Node*, int>> stack;
  for (Py_ssize_t r = 0; r < PySequence_Fast_GET_SIZE(sequence); r++) {
    PyObject* root = PySequence_Fast_GET_ITEM(sequence, r);
    if (!check_node(root)) {
      Py_DECREF(sequence);
      Py_DECREF(order);
      return nullptr;
    }
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
        PyList_Append(order, reinterpret_cast<PyObject*>(node));
        stack.pop_back();
      }
    }
  }
  Py_DECREF(sequence);
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

PyObject* set_defaults(PyObject*, PyObject* args) {
  int lazy_on, open_on;
  if (!PyArg_ParseTuple(args, "pp", &lazy_on, &open_on)) return nullptr;
  modes.lazy = default_lazy = lazy_on;
  modes.open = default_open = open_on;
  Py_RETURN_NONE;
}

// Whether nobody but this tensor holds its memory, so that it may be overwritten.
PyObject* exclusive(PyObject*, PyObject* tensor) {
  if (!check_tensor(tensor)) return nullptr;
  PyObject* array = as_tensor(tensor)->array;
  if (!array || !is_array(array)) Py_RETURN_FALSE;
  Storage* storage = reinterpret_cast<Array*>(array)->storage;
  const bool own = storage && storage->refs == 1 && !storage->owner;  // not adopted from others
  return PyBool_FromLong(Py_REFCNT(array) == 1 && own);
}

PyObject* set_tensor_classes(PyObject*, PyObject* args) {
  PyObject *tensor, *pair;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &tensor, &PyType_Type, &pair)) return nullptr;
  for (PyObject* cls : {tensor, pair}) {
    auto* type = reinterpret_cast<PyTypeObject*>(cls);
    if (!PyType_IsSubtype(type, tensor_type) || type->tp_basicsize != tensor_type->tp_basicsize) {
      PyErr_SetString(PyExc_TypeError, "result classes derive from TensorBase, __slots__ = ()");
      return nullptr;
    }
    Py_INCREF(cls);
    type->tp_dealloc = tensor_dealloc;  // it adds nothing, so the base's destructor is enough
  }
  tensor_class = reinterpret_cast<PyTypeObject*>(tensor);
  tuple_class = reinterpret_cast<PyTypeObject*>(pair);
  Py_RETURN_NONE;
}

#define FAST(name, doc) \
  {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(name)), METH_FASTCALL, doc}
PyMethodDef functions[] = {
    {"wrap", wrap, METH_O, "A tensor of an array, without graph."},
    FAST(record, "The tensor of a computed result that needs a gradient."),
    FAST(pend, "The tensor of a result that is not computed yet."),
    FAST(finish, "Give a pending node its value."),
    FAST(set_array, "Give a tensor new data."),
    FAST(rebind, "Make a tensor stand for what another one does."),
    FAST(init_tensor, "Fill a new tensor object: a leaf."),
    FAST(topo, "All nodes below, inputs first."),
    {"release", release, METH_O, "Give up what the node's gradient would read."},
    {"peek", peek, METH_O, "The live tensor of a node, or None."},
    {"handle", handle, METH_O, "The live tensor of a node, or a new one."},
    {"owner", owner, METH_O, "The tensor a leaf's gradient belongs to, or None."},
    {"leaf", leaf, METH_O, "The tensor's node, made where there is none."},
    {"pending_order", pending_order, METH_O, "The nodes below that have not run."},
    {"exclusive", exclusive, METH_O, "Whether nobody else holds the tensor's memory."},
    {"recording", recording, METH_NOARGS, "Whether operations are recorded."},
    {"lazy", lazy, METH_NOARGS, "Whether computation is postponed."},
    {"pending", pending, METH_NOARGS, "How many nodes wait in this thread."},
    {"set_recording", set_recording, METH_O, "Switch; returns the old state."},
    {"set_lazy", set_lazy, METH_O, "Switch; returns the old state."},
    {"set_open", set_open, METH_O, "Let the gate take shortcuts or not; returns the old state."},
    {"set_defaults", set_defaults, METH_VARARGS, "lazy, open: of this and of new threads."},
    {"set_tensor_classes", set_tensor_classes, METH_VARARGS, "What results are instances of."},
    {"live_tensors", count_live, METH_NOARGS, "Number of live tensors."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* wrap_array(PyObject* array) { return tensor_make(array, nullptr, PyTuple_Check(array)); }

PyObject* record_result(PyObject* op, PyObject* const* tensors, int n, PyObject* array) {
  Node* node = node_new(op, n);
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

bool add_graph_types(PyObject* module) {
  op_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&op_definition));
  node_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_definition));
  tensor_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&tensor_definition));
  tensor_class = tuple_class = tensor_type;
  return op_type && node_type && tensor_type &&
         PyModule_AddObjectRef(module, "Op", reinterpret_cast<PyObject*>(op_type)) == 0 &&
         PyModule_AddObjectRef(module, "Node", reinterpret_cast<PyObject*>(node_type)) == 0 &&
         PyModule_AddObjectRef(module, "TensorBase", reinterpret_cast<PyObject*>(tensor_type)) ==
             0 &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace needle
