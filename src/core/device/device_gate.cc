// Elementwise functions, copies, products and reductions on devices that have a Port, as in
// backend/kernels.py, with the memory and the launch from the device's backend. A Launch that a
// backend has prepared is run again for similar operands, without Python.
#include <algorithm>
#include <cstring>

#include "device/port.h"
#include "gate/arguments.h"

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

// A call of a backend's method: with a name (null: none), the result, the operands, and the axes.
struct Call {
  PyObject *method, *name, *axes;
};

// A new array that the backend has filled, and what it returned; null with an exception. The
// operands are spread over shapes, `step` numbers apart, of as many axes as the result.
Array* filled(const Call& call, const Layout& to, Array* const* x, int n, const int64_t* shapes,
              int step, PyObject** made) {
  PyObject* backend = PyObject_GetAttr(to.spec->device, backend_name);
  Array* out = backend ? new_array(backend, to.spec, to.order()) : nullptr;
  PyObject* args[4 + kMaxArgs] = {backend};
  int count = 1;
  if (call.name) args[count++] = call.name;
  args[count++] = reinterpret_cast<PyObject*>(out);
  Reference views[kMaxArgs];
  bool complete = out;
  for (int k = 0; complete && k < n; k++) {
    views[k].reset(broadcast(x[k], to.spec->ndim, shapes + k * step));
    args[count++] = reinterpret_cast<PyObject*>(views[k].array);
    complete = views[k].array;
  }
  if (call.axes) args[count++] = call.axes;
  *made = complete ? PyObject_VectorcallMethod(call.method, args, count, nullptr) : nullptr;
  Py_XDECREF(backend);
  if (!*made) Py_CLEAR(out);
  return out;
}

// The same, kept for similar operands. Gives up the layout.
Array* result(uint64_t what, const Call& call, const Layout& to, Array* const* x, int n,
              const int64_t* shapes, int step) {
  PyObject* made;
  Array* out = filled(call, to, x, n, shapes, step, &made);
  if (out) remember(what, x, n, out, made);
  Py_DECREF(to.spec);
  return out;
}

}  // namespace

Array* empty_elsewhere(Spec* spec) {
  PyObject* backend = PyObject_GetAttr(spec->device, backend_name);
  Array* out = backend ? new_array(backend, spec, nullptr) : nullptr;
  Py_XDECREF(backend);
  return out;
}

Array* elementwise_elsewhere(int32_t code, bool to_bool, Array* const* x, int n) {
  const uint64_t what = number_of(kElement, code, to_bool);
  Array* out = repeated(what, x, n);
  if (out || PyErr_Occurred()) return out;
  Layout to;
  const DType type = to_bool ? kBool : x[n - 1]->spec->code;
  if (!fits(code, to_bool, x, n) || !lay_out(&to, type, x, n)) return nullptr;
  return result(what, {elementwise_name, names[code], nullptr}, to, x, n, to.spec->shape, 0);
}

Array* copy_elsewhere(Array* x, DType type, bool in_order) {
  const uint64_t what = number_of(kCopy, type, in_order);
  Array* out = repeated(what, &x, 1);
  Layout to;
  if (out || PyErr_Occurred() || !lay_out(&to, type, &x, 1, in_order)) return out;
  return result(what, {copy_name, nullptr, nullptr}, to, &x, 1, to.spec->shape, 0);
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
  const Layout to = {spec_of(type, x[0]->spec->device, p.ndim, p.shape), false, {}};
  if (!to.spec) return nullptr;
  return result(what, {matmul_name, nullptr, nullptr}, to, x, 2, p.sizes[0], kMaxDims);
}

Array* reduce_elsewhere(int32_t reduction, uint32_t axes, const Array* x, int ndim,
                        const int64_t* shape) {
  // Axes and number of dimensions determine the shape: see the callers.
  const uint64_t what = number_of(kReduction, reduction, uint64_t{axes} << 8 | ndim);
  auto* in = const_cast<Array*>(x);
  Array* out = repeated(what, &in, 1);
  if (out || PyErr_Occurred()) return out;
  int64_t kept[kMaxDims], along[kMaxDims];
  int count = 0;
  for (int i = 0; i < x->spec->ndim; i++) {
    kept[i] = axes >> i & 1 ? 1 : x->spec->shape[i];
    if (axes >> i & 1) along[count++] = i;
  }
  const DType type = reduced_type(reduction, x->spec->code);
  PyObject *numbers = tuple_of(along, count), *made = nullptr;
  const Layout to = {spec_of(type, x->spec->device, x->spec->ndim, kept), false, {}};
  Array* whole = nullptr;
  if (numbers && to.spec) {
    whole =
        filled({reduce_name, reductions[reduction], numbers}, to, &in, 1, x->spec->shape, 0, &made);
  }
  Spec* shaped = whole ? spec_of(type, x->spec->device, ndim, shape) : nullptr;
  out = shaped ? array_view(whole, shaped, 0, nullptr) : nullptr;
  if (out) {
    remember(what, &in, 1, out, made);
  } else {
    Py_XDECREF(made);
  }
  Py_XDECREF(whole);
  Py_XDECREF(to.spec);
  Py_XDECREF(numbers);
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
