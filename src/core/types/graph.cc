// Node and Tensor: the graph, and the lifetime of its values. reference.py has the rules.
#include "types/core.h"
#include "types/graph.h"
#include <structmember.h>
#include <iterator>

namespace needle {

PyTypeObject *node_type, *tensor_type;
int64_t live_tensors, next_serial;
thread_local PyObject* journal = nullptr;

namespace {

PyTypeObject *tensor_class, *tuple_class;  // the classes of results
Tensor* tensor_pool[512];
int tensor_pooled = 0;
Registry<Tensor> all_tensors;

// ---- Node ------------------------------------------------------------------------------------

}  // namespace

Node* node_new(PyObject* op, int n) {
  Node* node = PyObject_GC_NewVar(Node, node_type, n);
  if (!node) return nullptr;
  Py_XINCREF(op);
  node->op = op;
  node->spec = node->value = node->receiver = node->weaklist = nullptr;
  node->tensor = nullptr;
  node->claims = 0;
  node->serial = next_serial++;
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

namespace {

// A dying chain must not recurse: nodes wait in a list that only the outermost call empties. They
// are linked by their field for weak references, which is no longer used.
thread_local Node* graveyard = nullptr;
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
  Py_XDECREF(node->receiver);
  PyObject_GC_Del(node);
  Py_DECREF(type);
}

void node_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (as_node(self)->weaklist) PyObject_ClearWeakRefs(self);
  as_node(self)->weaklist = reinterpret_cast<PyObject*>(graveyard);
  graveyard = as_node(self);
  if (burying) return;
  burying = true;
  while (graveyard) {
    Node* node = graveyard;
    graveyard = reinterpret_cast<Node*>(node->weaklist);
    node_free(node);
  }
  burying = false;
}

int node_traverse(PyObject* self, visitproc visit, void* arg) {
  Node* node = as_node(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(node->op);
  Py_VISIT(node->value);
  Py_VISIT(node->receiver);
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
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Node, weaklist), READONLY, nullptr},
    {"serial", T_LONGLONG, offsetof(Node, serial), READONLY, "its number among nodes and tensors"},
    {"needs", T_BOOL, offsetof(Node, needs), READONLY, "whether gradients flow through"},
    {"done", T_BOOL, offsetof(Node, done), READONLY, "whether it has run"},
    {"released", T_BOOL, offsetof(Node, released), READONLY, "whether its gradient has run"},
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

}  // namespace

// Nodes and tensors stay out of the collector's sight unless they can be part of a cycle: an op
// that holds a callable, or anything built on such a node.
void node_track(Node* node) {
  bool needed = node->op && reinterpret_cast<Op*>(node->op)->opaque;
  for (int i = 0; i < node->count && !needed; i++) {
    needed = PyObject_GC_IsTracked(reinterpret_cast<PyObject*>(node->inputs[i]));
  }
  if (needed) PyObject_GC_Track(reinterpret_cast<PyObject*>(node));
}

namespace {

void tensor_fill(Tensor* self, PyObject* array, Node* node) {  // steals both
  self->array = array;
  self->node = node;
  self->grad = self->name = self->weaklist = nullptr;
  self->requires_grad = false;
  self->serial = next_serial++;
  live_tensors++;
}

}  // namespace

// Return a tensor of the registered class; steals array and node.
PyObject* tensor_make(PyObject* array, Node* node, bool is_tuple) {
  PyTypeObject* type = is_tuple ? tuple_class : tensor_class;
  Tensor* self;
  if (!is_tuple && tensor_pooled) {
    self = tensor_pool[--tensor_pooled];
    PyObject_Init(reinterpret_cast<PyObject*>(self), type);
  } else {
    self = PyObject_GC_New(Tensor, type);
    if (!self) {
      Py_XDECREF(array);
      Py_XDECREF(node);
      return nullptr;
    }
    all_tensors.add(self);
  }
  tensor_fill(self, array, node);
  if (node) {
    node->tensor = self;
    if (PyObject_GC_IsTracked(reinterpret_cast<PyObject*>(node))) tensor_track(self);
  }
  return reinterpret_cast<PyObject*>(self);
}

void tensor_release(Tensor* self) {
  if (self->node) {
    if (self->node->tensor == self) self->node->tensor = nullptr;
    Node* node = self->node;
    self->node = nullptr;
    Py_DECREF(node);
  }
  Py_CLEAR(self->array);
  Py_CLEAR(self->grad);
  Py_CLEAR(self->name);
}

namespace {

void tensor_dealloc(PyObject* object) {
  Tensor* self = as_tensor(object);
  PyObject_GC_UnTrack(object);  // a subclass's destructor may have tracked it again
  // Before any Python code runs: nobody may find the dying tensor through its node.
  if (self->node && self->node->tensor == self) self->node->tensor = nullptr;
  if (self->weaklist) PyObject_ClearWeakRefs(object);
  tensor_release(self);
  live_tensors--;
  PyTypeObject* type = Py_TYPE(object);
  if (type == tensor_class && tensor_pooled < static_cast<int>(std::size(tensor_pool))) {
    tensor_pool[tensor_pooled++] = self;
  } else {
    all_tensors.remove(self);
    type->tp_free(object);
  }
  Py_DECREF(type);
}

PyObject* tensor_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self) {
    live_tensors++;
    as_tensor(self)->serial = next_serial++;
    all_tensors.add(as_tensor(self));
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
  if (node && node->tensor == as_tensor(self)) node->tensor = nullptr;
  as_tensor(self)->node = nullptr;
  Py_XDECREF(node);
  return 0;
}

PyObject* tensor_spec(PyObject* self, void*) {
  Tensor* tensor = as_tensor(self);
  if (tensor->array) return spec_of_value(tensor->array);
  if (tensor->node) return new_reference(tensor->node->spec);
  raise("GradientError", "the tensor was not initialised\n  try: needle.Tensor(...)");
  return nullptr;
}
// New reference; a tuple of arrays has more than one.
Spec* tensor_only_spec(PyObject* self) {
  PyObject* spec = tensor_spec(self, nullptr);
  if (!spec || Py_IS_TYPE(spec, spec_type)) return reinterpret_cast<Spec*>(spec);
  Py_DECREF(spec);
  PyErr_SetString(PyExc_AttributeError, "a tuple of tensors: each has its own");
  return nullptr;
}
template <PyObject* Spec::* part>
PyObject* tensor_part(PyObject* self, void*) {
  Spec* spec = tensor_only_spec(self);
  PyObject* result = spec ? new_reference(spec->*part) : nullptr;
  Py_XDECREF(spec);
  return result;
}
template <class Integer, Integer Spec::* part>
PyObject* tensor_number(PyObject* self, void*) {
  Spec* spec = tensor_only_spec(self);
  PyObject* result = spec ? PyLong_FromLongLong(spec->*part) : nullptr;
  Py_XDECREF(spec);
  return result;
}
PyObject* tensor_op(PyObject* self, void*) {
  Node* node = as_tensor(self)->node;
  return new_reference(node ? node->op : nullptr);
}
PyObject* tensor_inputs(PyObject* self, void*) {
  Node* node = as_tensor(self)->node;
  PyObject* list = PyList_New(node ? node->count : 0);
  for (int i = 0; list && node && i < node->count; i++) {
    PyObject* input = tensor_of(node->inputs[i]);
    if (input) PyList_SET_ITEM(list, i, input);
    if (!input) Py_CLEAR(list);
  }
  return list;
}
PyObject* tensor_array(PyObject* self, void*) { return new_reference(as_tensor(self)->array); }
PyObject* tensor_node(PyObject* self, void*) { return new_reference(as_tensor(self)->node); }
PyObject* tensor_grad(PyObject* self, void*) {
  if (journal && PyList_Append(journal, self) < 0) return nullptr;
  return new_reference(as_tensor(self)->grad);
}
PyObject* tensor_name(PyObject* self, void*) { return new_reference(as_tensor(self)->name); }
int tensor_set_grad(PyObject* self, PyObject* value, void*) {
  if (!note_change(as_tensor(self))) return -1;
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
  if (!note_change(tensor)) return -1;
  tensor->requires_grad = on;
  if (tensor->node && !tensor->node->op) {
    Node* node = tensor->node;
    node->tensor = nullptr;
    tensor->node = nullptr;
    Py_DECREF(node);
  }
  return 0;
}

PyObject* set_journal(PyObject*, PyObject* list) {
  PyObject* old = journal ? journal : Py_NewRef(Py_None);
  journal = list == Py_None ? nullptr : Py_NewRef(list);
  return old;
}

PyObject* restore(PyObject*, PyObject* args) {
  PyObject *object, *array, *node, *grad;
  int needs;
  if (!PyArg_ParseTuple(args, "O!OOpO", tensor_type, &object, &array, &node, &needs, &grad)) {
    return nullptr;
  }
  Tensor* tensor = as_tensor(object);
  Node* old = tensor->node;
  if (old && old->tensor == tensor) old->tensor = nullptr;
  tensor->node = node == Py_None ? nullptr : as_node(Py_NewRef(node));
  if (tensor->node) tensor->node->tensor = tensor;
  Py_XDECREF(old);
  tensor->requires_grad = needs;
  set_field(&tensor->array, array);
  set_field(&tensor->grad, grad);
  Py_RETURN_NONE;
}

PyObject* tensors(PyObject*, PyObject*) { return all_tensors.list(); }
PyMethodDef functions[] = {{"set_journal", set_journal, METH_O, "Note changes of tensors."},
                           {"restore", restore, METH_VARARGS, "Undo a noted change."},
                           {"tensors", tensors, METH_NOARGS, "All live tensors."},
                           {nullptr, nullptr, 0, nullptr}};

PyMemberDef tensor_members[] = {
    {"serial", T_LONGLONG, offsetof(Tensor, serial), READONLY, "its number among these"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Tensor, weaklist), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef tensor_getters[] = {
    {"array", tensor_array, nullptr, "the array, or None if it is not there", nullptr},
    {"node", tensor_node, nullptr, "the node it stands for, or None", nullptr},
    {"spec", tensor_spec, nullptr, "dtype, device and shape; never computes", nullptr},
    {"shape", tensor_part<&Spec::shape_tuple>, nullptr, "sizes of the axes", nullptr},
    {"dtype", tensor_part<&Spec::dtype>, nullptr, "element type", nullptr},
    {"device", tensor_part<&Spec::device>, nullptr, "where the values are", nullptr},
    {"ndim", tensor_number<int32_t, &Spec::ndim>, nullptr, "number of axes", nullptr},
    {"size", tensor_number<int64_t, &Spec::size>, nullptr, "number of elements", nullptr},
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

}  // namespace

bool note_change(Tensor* tensor) {
  if (!journal) return true;
  PyObject* entry =
      Py_BuildValue("(ONNON)", tensor, new_reference(tensor->array), new_reference(tensor->node),
                    tensor->requires_grad ? Py_True : Py_False, new_reference(tensor->grad));
  const bool done = entry && PyList_Append(journal, entry) == 0;
  Py_XDECREF(entry);
  return done;
}

void raise(const char* error, const char* message) {
  PyObject* module = PyImport_ImportModule("needle.errors");
  PyObject* kind = module ? PyObject_GetAttrString(module, error) : nullptr;
  if (kind) PyErr_SetString(kind, message);
  Py_XDECREF(kind);
  Py_XDECREF(module);
}

void refuse_result(PyObject* value) {
  char text[200];
  PyOS_snprintf(text, sizeof text, "an op returned %.100s, not an array", Py_TYPE(value)->tp_name);
  raise("ArgumentError", text);
}

PyObject* spec_of_value(PyObject* value) {  // new reference; Array or tuple of them
  if (is_array(value)) return new_reference(reinterpret_cast<Array*>(value)->spec);
  if (!PyTuple_Check(value)) {
    refuse_result(value);
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

PyObject* tensor_of(Node* node) {
  if (node->tensor) return new_reference(node->tensor);
  Py_INCREF(node);
  Py_XINCREF(node->value);
  PyObject* tensor = tensor_make(node->value, node, PyTuple_Check(node->spec));
  if (tensor) as_tensor(tensor)->requires_grad = node->needs;
  return tensor;
}

// A result class must add nothing to the base: then we may make and free its instances.
bool set_result_class(PyObject* cls, bool is_tuple) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  if (!PyType_IsSubtype(type, tensor_type) || type->tp_basicsize != tensor_type->tp_basicsize) {
    PyErr_SetString(PyExc_TypeError, "result classes derive from TensorBase, __slots__ = ()");
    return false;
  }
  Py_INCREF(cls);
  type->tp_dealloc = tensor_dealloc;
  (is_tuple ? tuple_class : tensor_class) = type;
  return true;
}

bool add_graph_types(PyObject* module) {
  node_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_definition));
  tensor_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&tensor_definition));
  tensor_class = tuple_class = tensor_type;
  return add_op_type(module) && node_type && tensor_type &&
         PyModule_AddObjectRef(module, "Node", reinterpret_cast<PyObject*>(node_type)) == 0 &&
         PyModule_AddObjectRef(module, "TensorBase", reinterpret_cast<PyObject*>(tensor_type)) ==
             0 &&
         PyModule_AddFunctions(module, functions) == 0 && add_value_functions(module) &&
         add_modes_type(module);
}

}  // namespace needle
