// Elementwise functions, copies, products and reductions on devices that have a Port, as in
// backend/kernels.py, with the memory and the launch from the device's backend. A Launch that a
// backend has prepared is run again for similar operands, without Python.
#include <algorithm>
#include <cstring>

#include "gate/gate.h"
#include "device/port.h"

namespace needle {
namespace {

PyObject *names[kFunctions], *reductions[kVariance];  // interned
PyObject *backend_name, *allocate_name, *elementwise_name, *matmul_name, *reduce_name, *copy_name;

// Work on operands of these specs and strides, as its backend prepared it.
struct Known {
  uint64_t what;
  int n;
  Spec* in[kMaxArgs];  // owned, as the rest
  int64_t strides[kMaxArgs][kMaxDims];
  Spec* out;
  bool reordered;
  int64_t out_strides[kMaxDims];
  Launch* launch;
};
Known recent[256];

enum Work : uint64_t { kElement, kProduct, kReduction, kCopy };

uint64_t number_of(Work work, int32_t code, uint64_t more) {
  return work << 62 | static_cast<uint64_t>(code) << 48 | more;
}

Known* place_for(uint64_t what, Array* const* x, int n) {
  uint64_t hash = what * 0x9E3779B97F4A7C15;
  for (int k = 0; k < n; k++) {
    hash = (hash ^ reinterpret_cast<size_t>(x[k]->spec) >> 4) * 0x9E3779B97F4A7C15;
    for (int i = 0; x[k]->strides && i < x[k]->spec->ndim; i++) {
      hash = (hash ^ static_cast<uint64_t>(x[k]->strides[i])) * 0x9E3779B97F4A7C15;
    }
  }
  return &recent[hash >> 56];
}

bool is_for(const Known& known, uint64_t what, Array* const* x, int n) {
  if (!known.launch || known.what != what || known.n != n) return false;
  for (int k = 0; k < n; k++) {
    if (known.in[k] != x[k]->spec ||
        std::memcmp(known.strides[k], strides_of(x[k]), known.in[k]->ndim * sizeof(int64_t)) != 0) {
      return false;
    }
  }
  return true;
}

PyObject* allocate_by(PyObject* backend, const Spec* spec) {
  PyObject* nbytes = PyLong_FromLongLong(spec->size * kItemSize[spec->code]);
  PyObject* args[2] = {backend, nbytes};
  PyObject* handle = nbytes ? PyObject_VectorcallMethod(allocate_name, args, 2, nullptr) : nullptr;
  Py_XDECREF(nbytes);
  return handle;
}

// A dense array; strides: in another order.
Array* new_array(PyObject* backend, Spec* spec, const int64_t* strides) {
  PyObject* handle = allocate_by(backend, spec);
  if (!handle) return nullptr;
  Py_INCREF(spec);
  return array_over(spec, handle, strides);
}

// x under a shape that it broadcasts to, a new reference.
PyObject* spread(Array* x, const Spec* like) {
  if (x->spec->ndim == like->ndim &&
      std::equal(like->shape, like->shape + like->ndim, x->spec->shape)) {
    Py_INCREF(x);
    return reinterpret_cast<PyObject*>(x);
  }
  return reinterpret_cast<PyObject*>(broadcast(x, like->ndim, like->shape));
}

// Keeps the result of a backend's method if it is a Launch; steals it.
void remember(uint64_t what, Array* const* x, int n, const Array* out, PyObject* launch) {
  if (Py_TYPE(launch) != launch_type) {
    Py_DECREF(launch);
    return;
  }
  Known* known = place_for(what, x, n);
  const Known old = *known;
  known->what = what;
  known->n = n;
  known->launch = reinterpret_cast<Launch*>(launch);
  Py_INCREF(known->out = out->spec);
  known->reordered = out->strides;
  std::copy_n(strides_of(out), out->spec->ndim, known->out_strides);
  for (int k = 0; k < n; k++) {
    Py_INCREF(known->in[k] = x[k]->spec);
    std::copy_n(strides_of(x[k]), x[k]->spec->ndim, known->strides[k]);
  }
  if (!old.launch) return;
  for (int k = 0; k < old.n; k++) Py_DECREF(old.in[k]);
  Py_DECREF(old.out);
  Py_DECREF(old.launch);
}

// Returns the result of the backend's elementwise: None, or a Launch.
PyObject* call_elementwise(PyObject* backend, int32_t code, Array* out, Array* const* x, int n) {
  PyObject* args[3 + kMaxArgs] = {backend, names[code], reinterpret_cast<PyObject*>(out)};
  bool complete = true;
  for (int k = 0; k < n; k++) complete &= (args[3 + k] = spread(x[k], out->spec)) != nullptr;
  PyObject* result =
      complete ? PyObject_VectorcallMethod(elementwise_name, args, 3 + n, nullptr) : nullptr;
  for (int k = 0; k < n; k++) Py_XDECREF(args[3 + k]);
  return result;
}

// Memory for an array, of the port or by the device's backend.
PyObject* memory_for(Port* port, const Spec* spec) {
  PyObject* handle = lend(port, spec->size * kItemSize[spec->code]);
  if (handle || PyErr_Occurred()) return handle;
  PyObject* backend = PyObject_GetAttr(spec->device, backend_name);
  handle = backend ? allocate_by(backend, spec) : nullptr;
  Py_XDECREF(backend);
  return handle;
}

// Null without an exception: nothing was prepared for these operands.
Array* repeated(uint64_t what, Array* const* x, int n) {
  const Known* known = place_for(what, x, n);
  if (!is_for(*known, what, x, n)) return nullptr;
  Launch* launch = known->launch;
  Spec* spec = known->out;
  uint64_t places[kMaxArgs + 1];
  int64_t strides[kMaxDims];
  const bool reordered = known->reordered;
  if (reordered) std::copy_n(known->out_strides, spec->ndim, strides);
  Py_INCREF(launch);  // from here on any Python may run
  Py_INCREF(spec);
  bool right = true;
  for (int k = 0; right && k < n; k++) right = place_of(launch->port, x[k], &places[k + 1]);
  PyObject* handle = right ? memory_for(launch->port, spec) : nullptr;
  Array* out = nullptr;
  if (handle && Py_TYPE(handle) == block_type) {
    places[0] = reinterpret_cast<Block*>(handle)->address;
    out = array_over(spec, handle, reordered ? strides : nullptr);
    if (out && !run_launch(launch, places, n + 1)) Py_CLEAR(out);
  } else {
    Py_XDECREF(handle);
    Py_DECREF(spec);
  }
  Py_DECREF(launch);
  return out;
}

PyObject* backend_of(const Spec* spec) {  // a new reference
  return spec ? PyObject_GetAttr(spec->device, backend_name) : nullptr;
}

// Steals the result of a backend's method, which is null with an exception.
Array* finished(uint64_t what, Array* const* x, int n, Array* out, PyObject* made) {
  if (made) {
    remember(what, x, n, out, made);
  } else {
    Py_CLEAR(out);
  }
  return out;
}

}  // namespace

Array* empty_elsewhere(Spec* spec) {
  PyObject* backend = backend_of(spec);
  Array* out = backend ? new_array(backend, spec, nullptr) : nullptr;
  Py_XDECREF(backend);
  return out;
}

Array* elementwise_elsewhere(int32_t code, bool to_bool, Array* const* x, int n) {
  const uint64_t what = number_of(kElement, code, to_bool);
  Array* out = repeated(what, x, n);
  if (out || PyErr_Occurred()) return out;
  int ndim;
  int64_t shape[kMaxDims], strides[kMaxDims];
  if (!fits(code, to_bool, x, n) || !broadcast_shape(x, n, &ndim, shape)) return nullptr;
  const DType type = to_bool ? kBool : x[n - 1]->spec->code;
  Spec* spec = spec_of(type, x[0]->spec->device, ndim, shape);
  PyObject* backend = backend_of(spec);
  const bool reordered = backend && kept_order(x, n, spec, strides);
  out = backend ? new_array(backend, spec, reordered ? strides : nullptr) : nullptr;
  PyObject* made = out ? call_elementwise(backend, code, out, x, n) : nullptr;
  out = finished(what, x, n, out, made);
  Py_XDECREF(backend);
  Py_XDECREF(spec);
  return out;
}

Array* copy_elsewhere(Array* x, DType type, bool in_order) {
  const uint64_t what = number_of(kCopy, type, in_order);
  Array* out = repeated(what, &x, 1);
  if (out || PyErr_Occurred()) return out;
  int64_t strides[kMaxDims];
  Spec* spec = spec_of(type, x->spec->device, x->spec->ndim, x->spec->shape);
  PyObject* backend = backend_of(spec);
  const bool reordered = backend && in_order && kept_order(&x, 1, spec, strides);
  out = backend ? new_array(backend, spec, reordered ? strides : nullptr) : nullptr;
  PyObject* args[3] = {backend, reinterpret_cast<PyObject*>(out), reinterpret_cast<PyObject*>(x)};
  PyObject* made = out ? PyObject_VectorcallMethod(copy_name, args, 3, nullptr) : nullptr;
  out = finished(what, &x, 1, out, made);
  Py_XDECREF(backend);
  Py_XDECREF(spec);
  return out;
}

Array* matmul_elsewhere(Array* const* x) {
  const uint64_t what = number_of(kProduct, 0, 0);
  Array* out = repeated(what, x, 2);
  if (out || PyErr_Occurred()) return out;
  Product p;
  const DType type = x[0]->spec->code;
  if (x[0]->spec->device != x[1]->spec->device || type == kBool || !fit(&p, x)) return nullptr;
  int64_t work = p.sizes[0][p.ndim - 1];
  if (work == 1 && type <= kFloat16) return elementwise_elsewhere(k_multiply, false, x, 2);
  for (int i = 0; i < p.ndim; i++) {
    if (__builtin_mul_overflow(work, p.shape[i], &work)) return nullptr;
  }
  if (work >= int64_t{1} << 60) return nullptr;  // as in kernels.py, which says so
  Spec* spec = spec_of(type, x[0]->spec->device, p.ndim, p.shape);
  PyObject* backend = backend_of(spec);
  out = backend ? new_array(backend, spec, nullptr) : nullptr;
  Array* a = out ? broadcast(x[0], p.ndim, p.sizes[0]) : nullptr;
  Array* b = a ? broadcast(x[1], p.ndim, p.sizes[1]) : nullptr;
  PyObject* args[4] = {backend, reinterpret_cast<PyObject*>(out), reinterpret_cast<PyObject*>(a),
                       reinterpret_cast<PyObject*>(b)};
  PyObject* made = b ? PyObject_VectorcallMethod(matmul_name, args, 4, nullptr) : nullptr;
  out = finished(what, x, 2, out, made);
  Py_XDECREF(a);
  Py_XDECREF(b);
  Py_XDECREF(backend);
  Py_XDECREF(spec);
  return out;
}

Array* reduce_elsewhere(int32_t reduction, uint32_t axes, const Array* x, int ndim,
                        const int64_t* shape) {
  // Axes and number of dimensions determine the shape: see the callers.
  const uint64_t what = number_of(kReduction, reduction, uint64_t{axes} << 8 | ndim);
  auto* in = const_cast<Array*>(x);
  Array* out = repeated(what, &in, 1);
  if (out || PyErr_Occurred()) return out;
  int64_t kept[kMaxDims];
  int count = 0;
  for (int i = 0; i < x->spec->ndim; i++) {
    kept[i] = axes >> i & 1 ? 1 : x->spec->shape[i];
    count += axes >> i & 1;
  }
  PyObject* along = PyTuple_New(count);
  for (int i = x->spec->ndim - 1; along && i >= 0; i--) {
    if (axes >> i & 1) PyTuple_SET_ITEM(along, --count, PyLong_FromLong(i));
  }
  const DType type = reduced_type(reduction, x->spec->code);
  Spec* spec = along ? spec_of(type, x->spec->device, x->spec->ndim, kept) : nullptr;
  PyObject* backend = backend_of(spec);
  Array* whole = backend ? new_array(backend, spec, nullptr) : nullptr;
  PyObject* args[5] = {backend, reductions[reduction], reinterpret_cast<PyObject*>(whole),
                       reinterpret_cast<PyObject*>(in), along};
  PyObject* made = whole ? PyObject_VectorcallMethod(reduce_name, args, 5, nullptr) : nullptr;
  Spec* shaped = made ? spec_of(type, x->spec->device, ndim, shape) : nullptr;
  out = shaped ? array_view(whole, shaped, 0, nullptr) : nullptr;
  if (out) {
    remember(what, &in, 1, out, made);
  } else {
    Py_XDECREF(made);
  }
  Py_XDECREF(whole);
  Py_XDECREF(backend);
  Py_XDECREF(spec);
  Py_XDECREF(along);
  return out;
}

bool add_elsewhere() {
  for (int i = 0; i < kFunctions; i++) {
    if (!(names[i] = PyUnicode_InternFromString(function_names[i]))) return false;
  }
  backend_name = PyUnicode_InternFromString("backend");
  allocate_name = PyUnicode_InternFromString("allocate");
  elementwise_name = PyUnicode_InternFromString("elementwise");
  matmul_name = PyUnicode_InternFromString("matmul");
  reduce_name = PyUnicode_InternFromString("reduce");
  copy_name = PyUnicode_InternFromString("copy");
  for (int i = 0; i < kVariance; i++) {
    if (!(reductions[i] = PyUnicode_InternFromString(reduction_names[i]))) return false;
  }
  return backend_name && allocate_name && elementwise_name && matmul_name && reduce_name &&
         copy_name;
}

}  // namespace needle
