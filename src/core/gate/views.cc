// Views of arrays, and what native arrays give without an op: native twins of the methods of
// NDArray and of backend/kernels.py, which decide wherever these return None.
#include "gate/arguments.h"
#include <cstring>

namespace needle {

bool is_dense(const Array* x) {
  if (!x->strides) return true;
  for (int i = 0; i < x->spec->ndim; i++) {
    if (x->spec->shape[i] != 1 && x->strides[i] != x->spec->strides[i]) return x->spec->size == 0;
  }
  return true;
}

namespace {

Array* view(const Array* x, int ndim, const int64_t* shape, const int64_t* strides,
            int64_t offset) {
  Spec* spec = spec_of(x->spec->code, x->spec->device, ndim, shape);
  if (!spec) return nullptr;
  return array_view(x, spec, offset, strides);
}

// Whether the ranges of a slice stay within the array.
bool slice_fits(const Array* x, int n, const int64_t* numbers) {
  const int ndim = x->spec->ndim;
  if (n != 1 + 3 * ndim || numbers[0] >> ndim) return false;
  for (int i = 0; i < ndim; i++) {
    const int64_t first = numbers[1 + 3 * i], count = numbers[2 + 3 * i];
    const int64_t size = x->spec->shape[i], step = numbers[3 + 3 * i];
    const bool dropped = numbers[0] >> i & 1;
    if (count < 0 || count > size || (dropped && count != 1)) return false;
    if (count == 0) continue;
    if (first < 0 || first >= size || (count > 1 && (step > size || step < -size))) return false;
    const int64_t last = first + (count - 1) * step;
    if (last < 0 || last >= size) return false;
  }
  return true;
}

}  // namespace

void broadcast_strides(const Array* x, int ndim, const int64_t* shape, int64_t* strides) {
  const int lead = ndim - x->spec->ndim;
  const int64_t* own = strides_of(x);
  for (int i = 0; i < ndim; i++) {
    const bool repeated = i < lead || x->spec->shape[i - lead] != shape[i];
    strides[i] = repeated ? 0 : own[i - lead];
  }
}

// The strides under which the elements of x lie in another shape of the same size; false: they lie
// in another order. No size is 0.
static bool strides_in(const Array* x, int n, const int64_t* shape, int64_t* strides) {
  int64_t room = 1, step = 1;  // elements of x's axes that are not used yet, and their distance
  for (int i = 0, axis = 0; i < n; i++) {
    bool is_first = room == 1;
    for (; room < shape[i]; axis++) {
      const int64_t size = x->spec->shape[axis], stride = x->strides[axis];
      if (size == 1) continue;
      if (!is_first && step != size * stride) return false;
      is_first = false;
      step = stride;
      room *= size;
    }
    if (room % shape[i] != 0) return false;
    room /= shape[i];
    strides[i] = shape[i] == 1 ? (i ? strides[i - 1] : 1) : step * room;
  }
  return true;
}

Array* reshape(const Array* x, int n, const int64_t* shape) {
  int64_t size = 1, strides[kMaxDims];
  if (n > kMaxDims) return nullptr;
  for (int i = 0; i < n; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(size, shape[i], &size)) return nullptr;
  }
  if (size != x->spec->size) return nullptr;
  if (is_dense(x)) return view(x, n, shape, nullptr, x->offset);
  if (strides_in(x, n, shape, strides)) return view(x, n, shape, strides, x->offset);
  Array* dense = copy_of(const_cast<Array*>(x), x->spec->code, false);
  Array* out = dense ? view(dense, n, shape, nullptr, 0) : nullptr;
  Py_XDECREF(dense);
  return out;
}

Array* permute(const Array* x, int n, const int64_t* order) {
  int64_t shape[kMaxDims], strides[kMaxDims];
  uint32_t seen = 0;
  if (n != x->spec->ndim) return nullptr;
  for (int i = 0; i < n; i++) {
    if (order[i] < 0 || order[i] >= n) return nullptr;
    seen |= 1u << order[i];
    shape[i] = x->spec->shape[order[i]];
    strides[i] = strides_of(x)[order[i]];
  }
  return seen + 1 == 1u << n ? view(x, n, shape, strides, x->offset) : nullptr;
}

Array* broadcast(const Array* x, int n, const int64_t* shape) {
  const int lead = n - x->spec->ndim;
  if (lead < 0 || n > kMaxDims) return nullptr;
  for (int i = 0; i < n; i++) {
    const bool fits =
        i < lead || x->spec->shape[i - lead] == 1 || x->spec->shape[i - lead] == shape[i];
    if (!fits || shape[i] < 0) return nullptr;
  }
  int64_t strides[kMaxDims];
  broadcast_strides(x, n, shape, strides);
  return view(x, n, shape, strides, x->offset);
}

Array* slice_by(const int64_t* numbers, const Array* x) {
  int64_t shape[kMaxDims], strides[kMaxDims], offset = x->offset;
  int kept = 0;
  for (int i = 0; i < x->spec->ndim; i++) {
    const int64_t* range = numbers + 1 + 3 * i;
    offset += range[0] * strides_of(x)[i];
    if (numbers[0] >> i & 1) continue;
    shape[kept] = range[1];
    // The step of one element goes nowhere, and may be any number.
    strides[kept++] = (range[1] > 1 ? range[2] : 1) * strides_of(x)[i];
  }
  return view(x, kept, shape, strides, offset);
}

Array* slice(const Array* x, int n, const int64_t* numbers) {
  return slice_fits(x, n, numbers) ? slice_by(numbers, x) : nullptr;
}

// ---- for Python ------------------------------------------------------------------------------

namespace {

// The array of an argument; null: not one of ours, or the gate is closed.
Array* open_array(PyObject* x) { return modes.open ? native_array(x) : nullptr; }

// The array of an argument in any device's memory; null: not one of ours, or the gate is closed.
Array* any_array(PyObject* x) {
  return modes.open && is_view(x) ? reinterpret_cast<Array*>(x) : nullptr;
}

PyObject* or_none(Array* made) {
  if (made) return reinterpret_cast<PyObject*>(made);
  PyErr_Clear();  // the definition fails in the same way, and says more about it
  Py_RETURN_NONE;
}

// The same for work like x's: what another device's backend raises stands.
PyObject* result_of(const Array* x, Array* made) {
  return x->storage || !PyErr_Occurred() ? or_none(made) : nullptr;
}

template <Array* (*function)(const Array*, int, const int64_t*)>
PyObject* by_numbers(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t numbers[kMaxDims];
  const Array* x = n == 2 ? any_array(args[0]) : nullptr;
  const int count = x ? read_numbers(args[1], kMaxDims, numbers) : -1;
  return or_none(count < 0 ? nullptr : function(x, count, numbers));
}

PyObject* sliced(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t numbers[1 + 3 * kMaxDims] = {0};
  const Array* x = n == 2 ? any_array(args[0]) : nullptr;
  if (!x || !PyList_CheckExact(args[1]) || PyList_GET_SIZE(args[1]) != x->spec->ndim) {
    return or_none(nullptr);
  }
  for (int i = 0; i < x->spec->ndim; i++) {
    if (read_numbers(PyList_GET_ITEM(args[1], i), 3, numbers + 1 + 3 * i) != 3) {
      return or_none(nullptr);
    }
  }
  return or_none(slice(x, 1 + 3 * x->spec->ndim, numbers));
}

// The result of work into an array that is there: None if there is no such kernel.
PyObject* written(Array* out, bool done) {
  if (!done && PyErr_Occurred()) return nullptr;
  return Py_NewRef(done ? reinterpret_cast<PyObject*>(out) : Py_None);
}

// elementwise(code, to, *arrays); to: None (the operands' dtype), bool's dtype, or an array
PyObject* elementwise(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  const int n = static_cast<int>(n_args) - 2;
  int64_t code;
  Array* arrays[kMaxArgs];
  if (n < 1 || n > kMaxArgs || !read_number(args[0], &code)) return or_none(nullptr);
  if (code < 0 || code >= kFunctions) return or_none(nullptr);
  Array* out = native_array(args[1]);
  for (int i = 0; i < n; i++) {
    if (!(arrays[i] = out ? native_array(args[2 + i]) : any_array(args[2 + i]))) {
      return or_none(nullptr);
    }
    if (arrays[i]->spec->device != arrays[0]->spec->device) return or_none(nullptr);
  }
  const auto function = static_cast<int32_t>(code);
  if (out) return written(out, elementwise_into(out, function, arrays, n));
  const bool to_bool = args[1] == dtypes[kBool];
  if (!to_bool && args[1] != Py_None) return or_none(nullptr);
  return result_of(arrays[0], elementwise_result(function, to_bool, arrays, n));
}

// reduce(code, array, axes, to, factor = 1); to: whether the axes stay, or an array
PyObject* reduce(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t code, axes[kMaxDims];
  Array* out = n > 3 ? native_array(args[3]) : nullptr;
  Array* x = n < 4 ? nullptr : out ? native_array(args[1]) : any_array(args[1]);
  const int count = x ? read_numbers(args[2], kMaxDims, axes) : -1;
  const double factor = n > 4 ? PyFloat_AsDouble(args[4]) : 1.0;
  if (PyErr_Occurred()) return nullptr;
  if (count < 0 || !read_number(args[0], &code) || code < 0 || code >= kReductions)
    return or_none(nullptr);
  uint32_t mask = 0;
  for (int i = 0; i < count; i++) {
    if (axes[i] < 0 || axes[i] >= kMaxDims || mask >> axes[i]) return or_none(nullptr);
    mask |= 1u << axes[i];
  }
  const auto function = static_cast<int32_t>(code);
  if (out) return written(out, reduce_into(out, function, mask, x, factor));
  if (code == kVariance || code == kDeviation) return or_none(nullptr);  // of what factor?
  return result_of(x, reduction_result(function, mask, args[3] == Py_True, x, 0));
}

// gathered_along(array, index, axis)
PyObject* gathered_along(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t axis;
  Array *x = n == 3 ? open_array(args[0]) : nullptr, *index = x ? open_array(args[1]) : nullptr;
  if (!index || !read_number(args[2], &axis) || axis < 0 || axis >= kMaxDims) {
    return or_none(nullptr);
  }
  return or_none(gathered(x, index, static_cast<int>(axis)));
}

// Whether all are arrays like the first one but for their sizes along an axis (-1: none).
bool are_alike(PyObject* const* arrays, Py_ssize_t n, int axis) {
  const Array* first = n ? open_array(arrays[0]) : nullptr;
  for (Py_ssize_t k = 0; first && k < n; k++) {
    const Array* x = open_array(arrays[k]);
    if (!x || x->spec->code != first->spec->code || x->spec->ndim != first->spec->ndim)
      return false;
    for (int i = 0; i < first->spec->ndim; i++) {
      if (i != axis && x->spec->shape[i] != first->spec->shape[i]) return false;
    }
  }
  return first;
}

// Arrays one behind the other along an axis; along a new one, which each of them lacks.
Array* join(PyObject* const* arrays, Py_ssize_t n, int axis, bool is_new) {
  const Spec* first = reinterpret_cast<Array*>(arrays[0])->spec;
  int64_t shape[kMaxDims + 1] = {0}, strides[kMaxDims], size = 1, along = is_new ? n : 0;
  for (Py_ssize_t k = 0; k < n && !is_new; k++) {
    const int64_t more = reinterpret_cast<Array*>(arrays[k])->spec->shape[axis];
    if (__builtin_add_overflow(along, more, &along)) return nullptr;
  }
  const int ndim = first->ndim + is_new;
  for (int i = 0; i < ndim; i++) {
    shape[i] = i == axis ? along : first->shape[i - (is_new && i > axis)];
    if (__builtin_mul_overflow(size, shape[i], &size)) return nullptr;
  }
  if (size >= INT64_MAX / 8) return nullptr;
  Array* out = array_empty(first->code, first->device, ndim, shape);
  if (!out) return nullptr;
  for (int i = 0; i < first->ndim; i++) strides[i] = strides_of(out)[i + (is_new && i >= axis)];
  char* place = address(out);
  for (Py_ssize_t k = 0; k < n; k++) {
    const auto* x = reinterpret_cast<Array*>(arrays[k]);
    const Operand part = {first->code, first->ndim, x->spec->shape, strides};
    void* buffers[2] = {place, address(x)};
    Plan plan;
    if (kernels->plan_copy(&plan, part, operand(x)) || !run_plan(plan, buffers, x->spec->size)) {
      Py_DECREF(out);
      return nullptr;
    }
    const int64_t step = is_new ? 1 : x->spec->shape[axis];
    place += step * strides_of(out)[axis] * kItemSize[first->code];
  }
  return out;
}

// joined(arrays, axis, whether it is a new one)
PyObject* joined(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t axis;
  if (n != 3 || !PyTuple_CheckExact(args[0]) || !read_number(args[1], &axis) || axis < 0 ||
      axis >= kMaxDims) {
    return or_none(nullptr);
  }
  PyObject* const* arrays = &PyTuple_GET_ITEM(args[0], 0);
  const Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
  const bool is_new = args[2] == Py_True;
  if (!are_alike(arrays, count, is_new ? -1 : static_cast<int>(axis))) return or_none(nullptr);
  const int ndim = reinterpret_cast<Array*>(arrays[0])->spec->ndim + is_new;
  if (axis >= ndim || ndim > kMaxDims) return or_none(nullptr);
  return or_none(join(arrays, count, static_cast<int>(axis), is_new));
}

// taken_apart(array, axis): a tuple of views without the axis
PyObject* taken_apart(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t axis, numbers[1 + 3 * kMaxDims];
  const Array* x = n == 2 ? any_array(args[0]) : nullptr;
  if (!x || !read_number(args[1], &axis) || axis < 0 || axis >= x->spec->ndim) {
    return or_none(nullptr);
  }
  numbers[0] = int64_t{1} << axis;
  for (int i = 0; i < x->spec->ndim; i++) {
    numbers[1 + 3 * i] = 0;
    numbers[2 + 3 * i] = i == axis ? 1 : x->spec->shape[i];
    numbers[3 + 3 * i] = 1;
  }
  const int64_t count = x->spec->shape[axis];
  PyObject* parts = PyTuple_New(count);
  for (int64_t k = 0; parts && k < count; k++) {
    numbers[1 + 3 * axis] = k;
    Array* part = slice_by(numbers, x);
    if (!part) Py_CLEAR(parts);
    if (part) PyTuple_SET_ITEM(parts, k, reinterpret_cast<PyObject*>(part));
  }
  if (parts) return parts;
  return or_none(nullptr);
}

// The number of a needle.dtype.DType, or kDTypes.
int dtype_code(PyObject* x) {
  int code = 0;
  while (code < kDTypes && dtypes[code] != x) code++;
  return code;
}

// copy(array, to, in its memory order); to: a dtype, or an array
PyObject* copy(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (Array* out = n == 3 ? native_array(args[1]) : nullptr) {
    const Array* from = native_array(args[0]);
    return written(out, from && copy_into(out, from));
  }
  Array* x = n == 3 ? any_array(args[0]) : nullptr;
  const int code = x ? dtype_code(args[1]) : kDTypes;
  if (code == kDTypes) return or_none(nullptr);
  return result_of(x, copy_of(x, static_cast<DType>(code), args[2] == Py_True));
}

// empty_of(spec)
PyObject* empty_of(PyObject*, PyObject* object) {
  if (!modes.open || Py_TYPE(object) != spec_type) return or_none(nullptr);
  auto* spec = reinterpret_cast<Spec*>(object);
  return spec->native ? or_none(array_empty(spec))
                      : reinterpret_cast<PyObject*>(empty_elsewhere(spec));
}

// empty(shape, dtype, device)
PyObject* empty(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t shape[kMaxDims], size = 1;
  const bool ours = n == 3 && modes.open && Py_TYPE(args[2]) == Py_TYPE(native_device);
  const int count = ours ? read_numbers(args[0], kMaxDims, shape) : -1;
  const int code = count < 0 ? kDTypes : dtype_code(args[1]);
  if (code == kDTypes) return or_none(nullptr);
  for (int i = 0; i < count; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(size, shape[i], &size)) return or_none(nullptr);
  }
  if (size >= INT64_MAX / 8) return or_none(nullptr);
  Spec* spec = spec_of(static_cast<DType>(code), args[2], count, shape);
  if (!spec) return or_none(nullptr);
  PyObject* out = empty_of(nullptr, reinterpret_cast<PyObject*>(spec));
  Py_DECREF(spec);
  return out;
}

// The shape of x with widths (before, after) of its axes around it; false: the definition has to
// say something about them, or gives something else.
bool padded_shape(const Spec* x, PyObject* widths, int64_t mode, int64_t* before, int64_t* shape) {
  if (!PyTuple_CheckExact(widths) || PyTuple_GET_SIZE(widths) != x->ndim) return false;
  int64_t size = 1;
  for (int i = 0; i < x->ndim; i++) {
    int64_t pair[2];
    if (read_numbers(PyTuple_GET_ITEM(widths, i), 2, pair) != 2) return false;
    const int64_t n = x->shape[i], most = pair[0] > pair[1] ? pair[0] : pair[1];
    const int64_t reach = mode == kPadZeros || (mode == kPadEdge && n) ? INT64_MAX
                          : mode == kPadReflect && n                   ? n - 1
                                                                       : n;
    if (pair[0] < 0 || pair[1] < 0 || most > reach) return false;
    before[i] = pair[0];
    if (__builtin_add_overflow(n, pair[0], shape + i) ||
        __builtin_add_overflow(shape[i], pair[1], shape + i) ||
        __builtin_mul_overflow(size, shape[i], &size)) {
      return false;
    }
  }
  return size < INT64_MAX / 8;
}

// padded(array, widths, mode)
PyObject* padded(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t mode, before[kMaxDims], shape[kMaxDims];
  const Array* x = n == 3 ? open_array(args[0]) : nullptr;
  if (!x || !read_number(args[2], &mode) || mode < 0 || mode >= kPadModes ||
      !padded_shape(x->spec, args[1], mode, before, shape)) {
    return or_none(nullptr);
  }
  Array* out = array_empty(x->spec->code, x->spec->device, x->spec->ndim, shape);
  if (!out) return or_none(nullptr);
  Plan plan;
  void* buffers[2] = {address(out), address(x)};
  if (!kernels->plan_pad(&plan, static_cast<int32_t>(mode), operand(out), operand(x), before) &&
      run_plan(plan, buffers, out->spec->size)) {
    return reinterpret_cast<PyObject*>(out);
  }
  Py_DECREF(out);
  return or_none(nullptr);
}

// upload(array, buffer): whether the buffer's bytes are now the array's. Both are dense, and small:
// while NumPy copies others may run.
PyObject* upload(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const Array* out = n == 2 ? open_array(args[0]) : nullptr;
  Py_buffer bytes;
  if (!out || out->strides) Py_RETURN_FALSE;
  if (PyObject_GetBuffer(args[1], &bytes, PyBUF_C_CONTIGUOUS) < 0) {
    PyErr_Clear();  // it has none, or lies otherwise: NumPy knows how to read it
    Py_RETURN_FALSE;
  }
  const int64_t nbytes = out->spec->size * kItemSize[out->spec->code];
  const bool is_noted = is_virtual(out->storage) && bytes.len == nbytes;
  const bool fits = !is_noted && bytes.len == nbytes && nbytes < 65536;
  if (is_noted && !note_values(out, bytes.buf, nbytes)) {
    PyBuffer_Release(&bytes);
    return nullptr;
  }
  if (fits) std::memcpy(address(out), bytes.buf, static_cast<size_t>(bytes.len));
  PyBuffer_Release(&bytes);
  return PyBool_FromLong(fits || is_noted);
}

PyMethodDef functions[] = {
    {"reshaped", function_of(by_numbers<reshape>), METH_FASTCALL, "reshaped(array, shape)"},
    {"permuted", function_of(by_numbers<permute>), METH_FASTCALL, "permuted(array, order)"},
    {"broadcast", function_of(by_numbers<broadcast>), METH_FASTCALL, "broadcast(array, shape)"},
    {"sliced", function_of(sliced), METH_FASTCALL, "sliced(array, [(first, count, step), ...])"},
    {"joined", function_of(joined), METH_FASTCALL,
     "joined(tuple of arrays, axis, whether it is a new one)"},
    {"taken_apart", function_of(taken_apart), METH_FASTCALL, "taken_apart(array, axis)"},
    {"elementwise", function_of(elementwise), METH_FASTCALL,
     "elementwise(code, to, *arrays). to: None, bool's dtype, or an array to write to"},
    {"reduce", function_of(reduce), METH_FASTCALL,
     "reduce(code, array, axes, to, factor=1). to: whether axes stay, or an array to write to"},
    {"copy", function_of(copy), METH_FASTCALL,
     "copy(array, to, in its memory order). to: a dtype, or an array to write to"},
    {"empty", function_of(empty), METH_FASTCALL, "empty(shape, dtype, device)"},
    {"empty_of", empty_of, METH_O, "empty_of(spec)"},
    {"gathered_along", function_of(gathered_along), METH_FASTCALL,
     "gathered_along(array, index, axis)"},
    {"padded", function_of(padded), METH_FASTCALL, "padded(array, widths, mode)"},
    {"upload", function_of(upload), METH_FASTCALL, "upload(array, buffer): is it done?"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_arrays(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace needle
