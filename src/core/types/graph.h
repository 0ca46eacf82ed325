// Shared by the files of the graph: graph.cc has the types, handles.cc the operations on them.
#pragma once
#include "types/core.h"

namespace needle {

template <class T>
PyObject* new_reference(T* object) {  // None for null
  PyObject* result = object ? reinterpret_cast<PyObject*>(object) : Py_None;
  Py_INCREF(result);
  return result;
}

inline int set_field(PyObject** field, PyObject* value) {
  if (value == Py_None) value = nullptr;
  Py_XINCREF(value);
  Py_XSETREF(*field, value);
  return 0;
}

inline uint64_t bit_of(int64_t i) { return uint64_t{1} << (i < 62 ? i : 62); }
inline Node* as_node(PyObject* self) { return reinterpret_cast<Node*>(self); }
inline Tensor* as_tensor(PyObject* self) { return reinterpret_cast<Tensor*>(self); }

extern int64_t live_tensors, next_serial;

// While a function is traced: the thread's list of how tensors were before they changed, or null.
extern thread_local PyObject* journal;
bool note_change(Tensor* tensor);  // false with an exception set

Node* node_new(PyObject* op, int n);
void claim(Node* node, PyObject* value);
void unclaim(Node* node);
void drop(Node* node, uint64_t keep);  // give up the claims that are not in `keep`
uint64_t saved(const Node* node);      // mask of the values that its gradients will read
void node_track(Node* node);           // show it to the collector where it can be in a cycle

PyObject* tensor_make(PyObject* array, Node* node, bool is_tuple);  // steals both
void tensor_release(Tensor* self);
bool set_result_class(PyObject* cls, bool is_tuple);
PyObject* spec_of_value(PyObject* value);  // of an Array, or a tuple of them
PyObject* tensor_of(Node* node);           // the live tensor, or a new one

bool add_op_type(PyObject* module);
bool add_value_functions(PyObject* module);
bool add_modes_type(PyObject* module);

}  // namespace needle
