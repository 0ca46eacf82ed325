// Arguments of native functions as Python passes them, and arrays that a function owns.
#pragma once
#include <algorithm>

#include "gate/gate.h"

namespace needle {

// The array of an argument; null: not one of the native CPU's.
inline Array* native_array(PyObject* x) {
  if (!is_array(x)) return nullptr;
  auto* array = reinterpret_cast<Array*>(x);
  return array->storage ? array : nullptr;
}

inline bool read_number(PyObject* x, int64_t* number) {
  if (!PyLong_CheckExact(x)) return false;
  int overflow;
  *number = PyLong_AsLongLongAndOverflow(x, &overflow);
  return !overflow;
}

// The numbers in a tuple or list; their count, or -1.
int read_numbers(PyObject* x, int most, int64_t* numbers);

// The name of an attribute, as an object from its first use on.
class Name {
 public:
  constexpr explicit Name(const char* text) : text_(text) {}
  PyObject* object() { return object_ ? object_ : object_ = PyUnicode_InternFromString(text_); }

 private:
  const char* text_;
  PyObject* object_ = nullptr;
};

// Attributes of an op; false without an exception: the attribute is something else.
bool read_attribute(PyObject* op, Name& name, double* value);
bool read_attribute(PyObject* op, Name& name, int64_t* value);
bool read_attribute(PyObject* op, Name& name, bool* value);
bool read_attribute(PyObject* op, Name& name, int n, int64_t* values);  // a tuple of so many
bool read_pairs(PyObject* op, Name& name, int n, int64_t* firsts, int64_t* seconds);  // of pairs
// One axis, from 0; axes (None: all) as a bit mask.
bool read_axis(PyObject* op, int ndim, int* axis);
bool read_axes(PyObject* op, int ndim, uint32_t* axes);

// Owns an array, or null.
struct Reference {
  Array* array = nullptr;
  explicit Reference(Array* owned = nullptr) : array(owned) {}
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() { Py_XDECREF(array); }
  void reset(Array* owned) {
    Py_XDECREF(array);
    array = owned;
  }
};

// Owns some arrays. It is complete while none of them was null.
class Arrays {
 public:
  Arrays() = default;
  Arrays(Array* const* x, int n) {  // the same, dense
    for (int i = 0; i < n; i++) dense(x[i]);
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() {
    for (int i = 0; i < n_; i++) Py_XDECREF(all_[i]);
  }
  Array* add(Array* owned) {
    complete_ &= owned != nullptr;
    return all_[n_++] = owned;
  }
  // A new one, of the first axes of `like`. After a failure there are no more.
  Array* empty(const Spec* like, DType type, int ndim) {
    return empty(type, like->device, ndim, like->shape);
  }
  Array* empty(DType type, PyObject* device, int ndim, const int64_t* shape) {
    return add(PyErr_Occurred() ? nullptr : array_empty(type, device, ndim, shape));
  }
  Array* empty(const Spec* like) { return empty(like, like->code, like->ndim); }
  // x itself, or a copy, dense and of a dtype.
  Array* dense(Array* x, DType type);
  Array* dense(Array* x) { return dense(x, x->spec->code); }
  Array* operator[](int i) const { return all_[i]; }
  bool is_complete() const { return complete_; }
  // The only array, or a tuple of them; it owns them then.
  PyObject* result();

 private:
  Array* all_[12];
  int n_ = 0;
  bool complete_ = true;
};

// Whether it is of a dtype and has the first axes of `like`.
inline bool is_like(const Array* x, const Spec* like, DType type, int ndim) {
  return x->spec->code == type && x->spec->ndim == ndim &&
         std::equal(x->spec->shape, x->spec->shape + ndim, like->shape);
}

inline void* address_or_null(const Array* x) { return x ? address(x) : nullptr; }

// A function of an op and `least` to `most` native arrays, bound for Python: a null result without
// an exception is NotImplemented there, which means that the op's expansion has to be used.
template <PyObject* (*function)(PyObject*, Array* const*, int), int least, int most = least>
PyObject* as_override(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  Array* arrays[most];
  const auto n = static_cast<int>(n_args) - 1;
  bool ours = n >= least && n <= most;
  for (int i = 0; ours && i < n; i++) ours = (arrays[i] = native_array(args[i + 1]));
  PyObject* made = ours ? function(args[0], arrays, n) : nullptr;
  if (made || PyErr_Occurred()) return made;
  Py_RETURN_NOTIMPLEMENTED;
}

template <PyObject* (*function)(PyObject*, Array* const*, int), int least, int most = least>
constexpr PyMethodDef override(const char* op, const char* doc) {
  return {op, function_of(as_override<function, least, most>), METH_FASTCALL, doc};
}

// Adds to the module's `overrides`: functions by the names of the ops, up to one without a name.
bool add_overrides(PyObject* module, PyMethodDef* functions);

// Runs a kernel on arrays (null: none); the results, which give up what they own, or null.
PyObject* finish(const char* refused, const Plan& plan, Arrays* outs,
                 std::initializer_list<const Array*> arrays, int64_t size, int32_t traits = 0);

}  // namespace needle
