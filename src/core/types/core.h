// The native base types: Spec, Array, Op, Node, Tensor. python/needle/reference.py is their
// definition in Python and explains the rules; here are the same rules with less overhead.
//
// Everything below runs under the GIL. A function returning PyObject* returns a new reference or
// null with an exception set, as in CPython; "borrowed" is said where it is otherwise. Exceptions
// of C++, std::bad_alloc too, would end the process in the frames of the interpreter: only what
// nanobind binds may throw.
#pragma once
#include <Python.h>
#include <unistd.h>
#include <cstdint>
#include "kernels.h"

namespace needle {

extern const Kernels* kernels;       // of the chosen instruction set; null until select_isa
void set_threads(int32_t n);         // of the kernels; 0: all cores
void set_products(int32_t by_rows);  // whether rows have the same bits beside any others

// Lets other Python threads run while it lives. If the interpreter ends meanwhile, taking the GIL
// again ends this thread (until Python 3.13) by unwinding its stack: through destructors that need
// the GIL, and handlers that take everything for an exception and end the process. So the thread
// stops here instead, as Python 3.14 has it.
class Released {
 public:
  Released() = default;
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_ = PyEval_SaveThread();
};

// ---- memory: aligned blocks, kept for reuse by size class (memory.cc) ------------------------

struct Storage {
  int64_t refs;
  void* data;
  int64_t nbytes;    // asked for
  int64_t capacity;  // of the block; 0 for adopted memory, below it for virtual (record.h)
  Py_buffer* owner;  // of adopted memory; null for our own
  Storage* next;     // in a free list
};

Storage* storage_new(int64_t nbytes);  // null with OutOfMemoryError set
Storage* storage_adopt(PyObject* buffer);
void storage_free(Storage* storage);
inline void storage_release(Storage* storage) {
  if (storage && --storage->refs == 0) storage_free(storage);
}
struct MemoryInfo {
  int64_t live, cached, scratch, peak, blocks, limit;
};
MemoryInfo memory_info();
int64_t memory_limit();                   // of this thread; 0: none
void set_memory_limit(int64_t nbytes);    // the same
void start_memory_limit(int64_t nbytes);  // of this thread and those to come
void set_exhausted_hook(PyObject* function);
void* workspace(int64_t nbytes);  // this thread's, until its next call; null as storage_new
void* arena(int64_t nbytes);      // the same, for the values of a program

// All objects of a type that were allocated, those that wait in its pool too: so that the report
// of exhausted memory can name its users, at no cost to objects that come from the pool.
template <class T>
struct Registry {
  T* first = nullptr;
  void add(T* object) {
    object->before = nullptr;
    object->after = first;
    if (first) first->before = object;
    first = object;
  }
  void remove(T* object) {
    if (object->after) object->after->before = object->before;
    if (object->before) {
      object->before->after = object->after;
    } else if (first == object) {
      first = object->after;
    }
  }
  PyObject* list() const {  // new references to the live ones
    PyObject* result = PyList_New(0);
    for (T* object = first; result && object; object = object->after) {
      auto* item = reinterpret_cast<PyObject*>(object);
      if (Py_REFCNT(item) > 0 && PyList_Append(result, item) < 0) Py_CLEAR(result);
    }
    return result;
  }
};

// ---- Spec and Array (array.cc) ---------------------------------------------------------------

struct Spec {
  PyObject_HEAD PyObject* dtype;  // needle.dtype.DType
  PyObject* device;               // needle.devices.Device
  PyObject* shape_tuple;
  PyObject* strides_tuple;
  size_t hash;
  int64_t size;
  DType code;
  int32_t ndim;
  bool native;  // lives on the native CPU
  int64_t shape[kMaxDims];
  int64_t strides[kMaxDims];  // dense
};

struct Array {
  PyObject_HEAD Spec* spec;
  Storage* storage;  // of native arrays
  PyObject* handle;  // of the others
  int64_t offset;    // in elements, as the strides
  int64_t* strides;  // null: dense
  PyObject* weaklist;
  Array *before, *after;  // in the registry
};

extern PyTypeObject* spec_type;
extern PyTypeObject* array_type;    // the base
extern PyTypeObject* storage_type;  // Python's view of a Storage
extern PyObject* dtypes[kDTypes];   // needle.dtype.ALL
extern PyObject* native_device;

PyObject* tuple_of(const int64_t* values, int n);
Spec* spec_of(DType code, PyObject* device, int ndim, const int64_t* shape);
// Steals spec and storage. type: a subclass of the registered class, or null for that class.
Array* array_new(Spec* spec, Storage* storage, int64_t offset, const int64_t* strides,
                 PyTypeObject* type = nullptr);
Array* array_empty(Spec* spec);
Array* array_empty(DType code, PyObject* device, int ndim, const int64_t* shape);
Array* first_array();  // of all that were allocated (Registry)
inline bool is_array(PyObject* x) { return PyObject_TypeCheck(x, array_type); }
// Whether it is an array in memory of the native CPU or of a Port's device (see port.h): subclasses
// need not be, and other devices go by the definition.
bool is_view(PyObject* x);
// A view of the same memory; steals spec. Null with an exception.
Array* array_view(const Array* x, Spec* spec, int64_t offset, const int64_t* strides);
// An array over a handle that is not a Storage; steals both.
Array* array_over(Spec* spec, PyObject* handle, const int64_t* strides);
inline const int64_t* strides_of(const Array* x) {
  return x->strides ? x->strides : x->spec->strides;
}
inline char* address(const Array* x) {
  return static_cast<char*>(x->storage->data) + x->offset * kItemSize[x->spec->code];
}
inline Operand operand(const Array* x) {
  return {x->spec->code, x->spec->ndim, x->spec->shape, strides_of(x)};
}

// ---- Op, Node, Tensor (graph.cc) -------------------------------------------------------------

constexpr int kOutputBit = 63;
constexpr int kMasks = 4;  // of different inputs; the last serves the rest

enum Kind : int32_t {
  kPython,
  kElementwise,
  kReshape,
  kPermute,
  kBroadcast,
  kSlice,
  kReduce,
  kMatMul,
  kSumTo,
  kItem,
  kCast,
  kCompute,  // by the op's Python method, on arrays; code: a Promotion, params: how many operands
};

enum Promotion : int32_t { kPromoteNothing, kPromoteAll, kPromoteFloating, kPromoteFirst };

struct Op {
  PyObject_HEAD int32_t kind, code;
  int32_t n_params, n_masks;
  int64_t* params;
  uint64_t masks[kMasks];
  bool opaque, differentiable;
};

struct Tensor;
struct Node {
  PyObject_VAR_HEAD PyObject* op;  // null for a leaf
  PyObject* spec;                  // Spec, or a tuple of them
  PyObject* value;                 // Array or tuple of them; null unless claimed
  Tensor* tensor;                  // borrowed: its destructor clears it
  PyObject* receiver;  // of a leaf: weak reference to the tensor that gradients belong to
  int64_t claims;
  int64_t serial;  // nodes and tensors are numbered as they are made
  PyObject* weaklist;
  uint64_t held;               // claims on inputs, by position, and on itself
  int32_t count;               // of inputs
  bool needs, done, released;  // released: its gradient will not run (again)
  Node* inputs[1];
};

struct Tensor {
  PyObject_HEAD PyObject* array;
  Node* node;
  PyObject* grad;
  PyObject* name;
  PyObject* weaklist;
  int64_t serial;
  Tensor *before, *after;  // in the registry
  bool requires_grad;      // of a leaf
};

extern PyTypeObject *op_type, *node_type, *tensor_type;

struct Modes {
  bool recording, lazy, open;
  int64_t pending;
  Modes();
};
extern thread_local Modes modes;

inline bool is_tensor(PyObject* x) { return PyObject_TypeCheck(x, tensor_type); }
inline bool needs_gradient(const Tensor* t) {
  return t->node && t->node->op ? t->node->needs : t->requires_grad;
}
// Make a tensor with new data a leaf outside of all graphs: a freed value must not reappear with
// other values.
void leave_graph(Tensor* tensor);
// Whether nobody but this tensor holds its memory, so that it may be overwritten.
bool is_exclusive(const Tensor* tensor);
void raise(const char* error, const char* message);  // an error of needle.errors, by name
void refuse_result(PyObject* value);                 // of an op that is no array
PyObject* wrap_array(PyObject* array);               // steals; without graph
// Record a computed result; array is stolen. Null with an exception if a tensor has no value.
PyObject* record_result(PyObject* op, PyObject* const* tensors, int n, PyObject* array);

// A function of any calling convention, for a table of methods.
template <class F>
constexpr PyCFunction function_of(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

bool add_array_types(PyObject* module);
bool add_graph_types(PyObject* module);
bool add_gate(PyObject* module);
bool add_port_types(PyObject* module);

}  // namespace needle
