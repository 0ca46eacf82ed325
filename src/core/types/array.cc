// Spec (interned: equal specs are one object) and Array (a view: spec, storage, offset, strides).
#include "types/core.h"
#include "device/port.h"
#include "program/record.h"
#include <structmember.h>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <unordered_map>

namespace needle {

PyTypeObject *spec_type, *array_type, *storage_type;
PyObject* dtypes[kDTypes];
PyObject* native_device;

PyObject* tuple_of(const int64_t* values, int n) {
  PyObject* tuple = PyTuple_New(n);
  for (int i = 0; tuple && i < n; i++) {
    PyObject* number = PyLong_FromLongLong(values[i]);
    if (number) PyTuple_SET_ITEM(tuple, i, number);
    if (!number) Py_CLEAR(tuple);
  }
  return tuple;
}

namespace {

PyTypeObject* array_class;                     // the class of new arrays: NDArray
std::unordered_multimap<size_t, Spec*> specs;  // borrowed; a dying Spec removes itself
constexpr int kRecent = 256;
Spec* recent_specs[kRecent];  // owned, so that specs of temporaries are reused
Array* array_pool[512];
int array_pooled = 0;
Registry<Array> all_arrays;

void raise_shape_error(const char* text, int64_t number) {
  PyObject* errors = PyImport_ImportModule("needle.errors");
  PyObject* error = errors ? PyObject_GetAttrString(errors, "ShapeError") : nullptr;
  if (error) PyErr_Format(error, text, static_cast<long long>(number), kMaxDims);
  Py_XDECREF(error);
  Py_XDECREF(errors);
}

bool read_tuple(PyObject* source, int64_t* values, int* n, const char* what) {
  PyObject* tuple = PySequence_Fast(source, what);
  if (!tuple) return false;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(tuple);
  if (size > kMaxDims) {
    raise_shape_error("%lld dimensions, but at most %d are supported", size);
    Py_DECREF(tuple);
    return false;
  }
  for (Py_ssize_t i = 0; i < size; i++) {
    values[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(tuple, i));
  }
  *n = static_cast<int>(size);
  Py_DECREF(tuple);
  return !PyErr_Occurred();
}

// ---- Spec ----------------------------------------------------------------------------------

size_t hash_spec(DType code, PyObject* device, int ndim, const int64_t* shape) {
  size_t hash = reinterpret_cast<size_t>(device) * 31 + code * 7 + ndim;
  for (int i = 0; i < ndim; i++) hash = (hash ^ static_cast<size_t>(shape[i])) * 0x9E3779B97F4A7C15;
  return hash;
}

// Whether the bytes of a shape, empty axes counted as 1, are too many for any address.
bool overflows(DType code, int ndim, const int64_t* shape) {
  int64_t bytes = kItemSize[code];
  for (int i = 0; i < ndim; i++) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(shape[i], 1), &bytes)) return true;
  }
  return false;
}

bool remember(Spec* spec) {
  try {
    specs.emplace(spec->hash, spec);
  } catch (const std::bad_alloc&) {  // must not go through the interpreter's frames
    PyErr_NoMemory();
    return false;
  }
  return true;
}

Spec* build_spec(DType code, PyObject* device, int ndim, const int64_t* shape, size_t hash) {
  if (overflows(code, ndim, shape)) {
    raise_shape_error("a shape of %lld dimensions has more than 2**63 bytes", ndim);
    return nullptr;
  }
  Spec* spec = PyObject_New(Spec, spec_type);
  if (!spec) return nullptr;
  spec->code = code;
  spec->ndim = ndim;
  spec->hash = hash;
  spec->native = device == native_device;
  spec->size = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    spec->shape[i] = shape[i];
    spec->strides[i] = spec->size;
    spec->size *= shape[i];
  }
  Py_INCREF(spec->dtype = dtypes[code]);
  Py_INCREF(spec->device = device);
  spec->shape_tuple = tuple_of(spec->shape, ndim);
  spec->strides_tuple = tuple_of(spec->strides, ndim);
  if (!spec->shape_tuple || !spec->strides_tuple || !remember(spec)) Py_CLEAR(spec);
  return spec;
}

void spec_dealloc(PyObject* self) {
  auto* spec = reinterpret_cast<Spec*>(self);
  auto range = specs.equal_range(spec->hash);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second == spec) {
      specs.erase(it);
      break;
    }
  }
  Py_XDECREF(spec->dtype);
  Py_XDECREF(spec->device);
  Py_XDECREF(spec->shape_tuple);
  Py_XDECREF(spec->strides_tuple);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* make_spec(PyObject*, PyObject* const* args, Py_ssize_t n) {
  int64_t shape[kMaxDims];
  int ndim = 0;
  if (n != 3 || !read_tuple(args[2], shape, &ndim, "expected a tuple as the shape")) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "make_spec(dtype, device, shape)");
    return nullptr;
  }
  for (int code = 0; code < kDTypes; code++) {
    if (dtypes[code] == args[0]) {
      return reinterpret_cast<PyObject*>(spec_of(static_cast<DType>(code), args[1], ndim, shape));
    }
  }
  PyErr_Format(PyExc_TypeError, "make_spec: expected a dtype, got %R", args[0]);
  return nullptr;
}

PyObject* spec_repr(PyObject* self) {
  auto* spec = reinterpret_cast<Spec*>(self);
  char text[kMaxDims * 24] = "";
  for (int i = 0, end = 0; i < spec->ndim; i++) {
    end += std::snprintf(text + end, 24, i ? ", %lld" : "%lld",
                         static_cast<long long>(spec->shape[i]));
  }
  return PyUnicode_FromFormat("%S[%s] %S", spec->dtype, text, spec->device);
}

PyMemberDef spec_members[] = {
    {"dtype", T_OBJECT_EX, offsetof(Spec, dtype), READONLY, nullptr},
    {"device", T_OBJECT_EX, offsetof(Spec, device), READONLY, nullptr},
    {"shape", T_OBJECT_EX, offsetof(Spec, shape_tuple), READONLY, nullptr},
    {"strides", T_OBJECT_EX, offsetof(Spec, strides_tuple), READONLY, nullptr},
    {"size", T_LONGLONG, offsetof(Spec, size), READONLY, nullptr},
    {"ndim", T_INT, offsetof(Spec, ndim), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot spec_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(spec_dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(spec_repr)},
    {Py_tp_members, spec_members},
    {Py_tp_doc, const_cast<char*>("dtype, device and shape of an array; interned")},
    {0, nullptr}};
PyType_Spec spec_definition = {"needle._core.Spec", sizeof(Spec), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, spec_slots};

// ---- Storage, as Python sees it --------------------------------------------------------------

struct StorageObject {
  PyObject_HEAD Storage* storage;
};

PyObject* storage_object(Storage* storage) {  // steals
  if (!storage) return nullptr;
  auto* self = PyObject_New(StorageObject, storage_type);
  if (self) {
    self->storage = storage;
  } else {
    storage_release(storage);
  }
  return reinterpret_cast<PyObject*>(self);
}

Storage* storage_in(PyObject* self) { return reinterpret_cast<StorageObject*>(self)->storage; }

void storage_dealloc(PyObject* self) {
  storage_release(storage_in(self));
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

int storage_buffer(PyObject* self, Py_buffer* view, int flags) {
  Storage* storage = storage_in(self);
  view->obj = nullptr;
  if (!has_values(storage)) return -1;
  const bool readonly = storage->owner && storage->owner->readonly;
  return PyBuffer_FillInfo(view, self, storage->data, storage->nbytes, readonly, flags);
}

PyObject* storage_nbytes(PyObject* self, void*) {
  return PyLong_FromLongLong(storage_in(self)->nbytes);
}
PyObject* storage_readonly(PyObject* self, void*) {
  Storage* storage = storage_in(self);
  return PyBool_FromLong(storage->owner && storage->owner->readonly);
}
PyObject* storage_ptr(PyObject* self, PyObject*) {
  Storage* storage = storage_in(self);
  return has_values(storage) ? PyLong_FromVoidPtr(storage->data) : nullptr;
}

PyGetSetDef storage_getters[] = {
    {"nbytes", storage_nbytes, nullptr, "bytes asked for", nullptr},
    {"readonly", storage_readonly, nullptr, "whether the memory must not be written", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef storage_methods[] = {{"ptr", storage_ptr, METH_NOARGS, "the address"},
                                 {nullptr, nullptr, 0, nullptr}};
PyType_Slot storage_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(storage_dealloc)},
                               {Py_bf_getbuffer, reinterpret_cast<void*>(storage_buffer)},
                               {Py_tp_getset, storage_getters},
                               {Py_tp_methods, storage_methods},
                               {Py_tp_doc, const_cast<char*>("memory of the native CPU")},
                               {0, nullptr}};
PyType_Spec storage_definition = {"needle._core.Storage", sizeof(StorageObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  storage_slots};

PyObject* allocate(PyObject*, PyObject* nbytes) {
  const int64_t n = PyLong_AsLongLong(nbytes);
  if (n == -1 && PyErr_Occurred()) return nullptr;
  return storage_object(storage_new(n));
}

PyObject* adopt(PyObject*, PyObject* buffer) { return storage_object(storage_adopt(buffer)); }

// ---- Array -----------------------------------------------------------------------------------

Array* array_alloc(PyTypeObject* type = nullptr) {
  const bool own = !type || type == array_class;
  if (own && array_pooled) {
    Array* self = array_pool[--array_pooled];
    PyObject_Init(reinterpret_cast<PyObject*>(self), array_class);
    return self;
  }
  // Ours are never tracked: they can be in no cycle. A user's subclass may add a dict.
  Array* self =
      own ? PyObject_GC_New(Array, array_class) : reinterpret_cast<Array*>(type->tp_alloc(type, 0));
  if (self) all_arrays.add(self);
  return self;
}

void array_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Array*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weaklist) PyObject_ClearWeakRefs(object);
  storage_release(self->storage);
  Py_XDECREF(self->handle);
  Py_XDECREF(self->spec);
  if (self->strides) PyMem_Free(self->strides);
  PyTypeObject* type = Py_TYPE(object);
  if (type == array_class && array_pooled < static_cast<int>(std::size(array_pool))) {
    array_pool[array_pooled++] = self;
  } else {
    all_arrays.remove(self);
    type->tp_free(object);
  }
  Py_DECREF(type);
}

int array_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return 0;
}

bool set_strides(Array* self, const int64_t* strides) {
  self->strides = nullptr;
  const size_t bytes = self->spec->ndim * sizeof(int64_t);
  if (!strides || std::memcmp(strides, self->spec->strides, bytes) == 0) return true;
  self->strides = static_cast<int64_t*>(PyMem_Malloc(bytes));
  if (!self->strides) return false;
  std::memcpy(self->strides, strides, bytes);
  return true;
}

PyObject* make_array(PyObject*, PyObject* const* args, Py_ssize_t n) {
  auto* type = reinterpret_cast<PyTypeObject*>(n > 4 ? args[4] : nullptr);
  if (n < 2 || n > 5 || Py_TYPE(args[0]) != spec_type ||
      (type && !(PyType_Check(args[4]) && PyType_IsSubtype(type, array_type)))) {
    PyErr_SetString(PyExc_TypeError,
                    "make_array(spec, handle, offset=0, strides=None, cls=NDArray)");
    return nullptr;
  }
  auto* spec = reinterpret_cast<Spec*>(args[0]);
  const int64_t offset = n > 2 ? PyLong_AsLongLong(args[2]) : 0;
  if (PyErr_Occurred()) return nullptr;
  int64_t strides[kMaxDims];
  const bool strided = n > 3 && args[3] != Py_None;
  int ndim = spec->ndim;
  if (strided && !read_tuple(args[3], strides, &ndim, "expected a tuple of strides"))
    return nullptr;
  if (ndim != spec->ndim) {
    PyErr_SetString(PyExc_ValueError, "make_array: expected one stride for each axis");
    return nullptr;
  }
  Storage* storage = nullptr;
  if (spec->native && args[1] != Py_None) {  // None: a subclass that is not a view of memory
    if (Py_TYPE(args[1]) != storage_type) {
      PyErr_SetString(PyExc_TypeError, "make_array: the native CPU needs a Storage");
      return nullptr;
    }
    storage = storage_in(args[1]);
    storage->refs++;
  }
  Py_INCREF(spec);
  Array* self = array_new(spec, storage, offset, strided ? strides : nullptr, type);
  if (self && !storage) Py_INCREF(self->handle = args[1]);
  return reinterpret_cast<PyObject*>(self);
}

template <class T>
PyObject* new_reference(T* object) {
  Py_INCREF(object);
  return reinterpret_cast<PyObject*>(object);
}

Array* as_array(PyObject* self) { return reinterpret_cast<Array*>(self); }

PyObject* array_spec(PyObject* self, void*) { return new_reference(as_array(self)->spec); }
PyObject* array_shape(PyObject* self, void*) {
  return new_reference(as_array(self)->spec->shape_tuple);
}
PyObject* array_dtype(PyObject* self, void*) { return new_reference(as_array(self)->spec->dtype); }
PyObject* array_device(PyObject* self, void*) {
  return new_reference(as_array(self)->spec->device);
}
PyObject* array_ndim(PyObject* self, void*) { return PyLong_FromLong(as_array(self)->spec->ndim); }
PyObject* array_size(PyObject* self, void*) {
  return PyLong_FromLongLong(as_array(self)->spec->size);
}
PyObject* array_strides(PyObject* self, void*) {
  Array* x = as_array(self);
  return x->strides ? tuple_of(x->strides, x->spec->ndim) : new_reference(x->spec->strides_tuple);
}
PyObject* array_offset(PyObject* self, void*) {
  return PyLong_FromLongLong(as_array(self)->offset);
}
PyObject* array_handle(PyObject* self, void*) {
  Array* x = as_array(self);
  if (x->storage) {
    x->storage->refs++;
    return storage_object(x->storage);
  }
  return new_reference(x->handle ? x->handle : Py_None);
}

// The buffer protocol, with strides: memoryview(x), numpy.asarray(x); not for bfloat16.
int array_buffer(PyObject* object, Py_buffer* buffer, int flags) {
  static const char* const formats[kDTypes] = {"f", "d", nullptr, "e", "b",
                                               "h", "i", "q",     "B", "?"};
  Array* self = as_array(object);
  const Spec* spec = self->spec;
  const char* refused = nullptr;
  buffer->obj = nullptr;
  if (!self->storage) {
    refused = "the array is not in memory of the native CPU";
  } else if (!formats[spec->code]) {
    refused = "bfloat16 has no buffer format";
  } else if ((flags & PyBUF_WRITABLE) && self->storage->owner && self->storage->owner->readonly) {
    refused = "the memory is read-only";
  }
  bool dense = true;
  for (int i = 0; i < spec->ndim; i++) {
    dense &= spec->shape[i] == 1 || strides_of(self)[i] == spec->strides[i];
  }
  const auto asks = [flags](int what) { return (flags & what) == what; };
  const bool contiguous = !asks(PyBUF_STRIDES) || asks(PyBUF_C_CONTIGUOUS) ||
                          asks(PyBUF_F_CONTIGUOUS) || asks(PyBUF_ANY_CONTIGUOUS);
  if (!refused && contiguous && !dense && spec->size) refused = "the array is not contiguous";
  if (!refused && asks(PyBUF_F_CONTIGUOUS) && spec->ndim > 1) refused = "the array is in C order";
  if (!refused && !has_values(self->storage)) return -1;
  Py_ssize_t* sizes =
      refused ? nullptr
              : static_cast<Py_ssize_t*>(PyMem_Malloc(sizeof(Py_ssize_t) * (2 * spec->ndim + 1)));
  if (!sizes) {
    PyErr_SetString(PyExc_BufferError, refused ? refused : "out of memory");
    return -1;
  }
  const int64_t item = kItemSize[spec->code];
  for (int i = 0; i < spec->ndim; i++) {
    sizes[i] = spec->shape[i];
    sizes[spec->ndim + i] = strides_of(self)[i] * item;
  }
  Py_INCREF(buffer->obj = object);
  buffer->buf = address(self);
  buffer->len = spec->size * item;
  buffer->itemsize = item;
  buffer->readonly = self->storage->owner && self->storage->owner->readonly;
  buffer->ndim = spec->ndim;
  buffer->format = flags & PyBUF_FORMAT ? const_cast<char*>(formats[spec->code]) : nullptr;
  buffer->shape = flags & PyBUF_ND ? sizes : nullptr;
  buffer->strides = asks(PyBUF_STRIDES) ? sizes + spec->ndim : nullptr;
  buffer->suboffsets = nullptr;
  buffer->internal = sizes;
  return 0;
}

void array_release_buffer(PyObject*, Py_buffer* buffer) { PyMem_Free(buffer->internal); }

PyGetSetDef array_getters[] = {
    {"spec", array_spec, nullptr, "dtype, device and shape", nullptr},
    {"shape", array_shape, nullptr, "sizes of the axes", nullptr},
    {"dtype", array_dtype, nullptr, "element type", nullptr},
    {"device", array_device, nullptr, "where it lives", nullptr},
    {"ndim", array_ndim, nullptr, "number of axes", nullptr},
    {"size", array_size, nullptr, "number of elements", nullptr},
    {"strides", array_strides, nullptr, "steps in elements", nullptr},
    {"offset", array_offset, nullptr, "of the first element, in elements", nullptr},
    {"handle", array_handle, nullptr, "the memory", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef array_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Array, weaklist), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
// Only make_array makes arrays: one without a spec could not say what it is.
PyObject* array_refused(PyTypeObject* type, PyObject*, PyObject*) {
  PyErr_Format(PyExc_TypeError, "cannot create '%s' instances; needle.Tensor(...) makes a tensor",
               type->tp_name);
  return nullptr;
}

PyType_Slot array_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(array_refused)},
    {Py_tp_dealloc, reinterpret_cast<void*>(array_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(array_traverse)},
    {Py_tp_getset, array_getters},
    {Py_tp_members, array_members},
    {Py_bf_getbuffer, reinterpret_cast<void*>(array_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(array_release_buffer)},
    {Py_tp_doc, const_cast<char*>("a view of memory; the base of NDArray")},
    {0, nullptr}};
PyType_Spec array_definition = {"needle._core.Array", sizeof(Array), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                array_slots};

// The registered class must add nothing to the base, so that we may make and free its instances.
PyObject* set_array_class(PyObject*, PyObject* cls) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  if (!PyType_Check(cls) || !PyType_IsSubtype(type, array_type) ||
      type->tp_basicsize != array_type->tp_basicsize) {
    PyErr_SetString(PyExc_TypeError, "the array class must derive from Array with __slots__ = ()");
    return nullptr;
  }
  Py_INCREF(cls);
  array_class = type;
  type->tp_dealloc = array_dealloc;
  Py_RETURN_NONE;
}

PyObject* arrays(PyObject*, PyObject*) { return all_arrays.list(); }

PyObject* set_world(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != kDTypes) {
    PyErr_SetString(PyExc_TypeError, "set_world(dtypes, native_device)");
    return nullptr;
  }
  for (int i = 0; i < kDTypes; i++) Py_INCREF(dtypes[i] = PyTuple_GET_ITEM(args[0], i));
  Py_INCREF(native_device = args[1]);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"make_spec", function_of(make_spec), METH_FASTCALL,
     "The one spec of a dtype, a device and a shape."},
    {"make_array", function_of(make_array), METH_FASTCALL, "An array over a handle; no checks."},
    {"set_array_class", set_array_class, METH_O, "Say what new arrays are instances of."},
    {"set_world", function_of(set_world), METH_FASTCALL,
     "Say which objects stand for the dtypes and the native device."},
    {"arrays", arrays, METH_NOARGS, "All live arrays."},
    {"allocate", allocate, METH_O, "A Storage of that many bytes."},
    {"adopt", adopt, METH_O, "A Storage over the memory of a contiguous buffer."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

namespace {

bool is_spec(const Spec* spec, DType code, PyObject* device, int ndim, const int64_t* shape) {
  return spec->code == code && spec->device == device && spec->ndim == ndim &&
         std::equal(shape, shape + ndim, spec->shape);
}

// A new reference to an existing spec, or null.
Spec* known_spec(DType code, PyObject* device, int ndim, const int64_t* shape, size_t hash) {
  auto range = specs.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    if (!is_spec(it->second, code, device, ndim, shape)) continue;
    Py_INCREF(it->second);
    return it->second;
  }
  return nullptr;
}

}  // namespace

Spec* spec_of(DType code, PyObject* device, int ndim, const int64_t* shape) {
  const size_t hash = hash_spec(code, device, ndim, shape);
  Spec*& recent = recent_specs[hash * 0x9E3779B97F4A7C15 >> 56];
  if (recent && is_spec(recent, code, device, ndim, shape)) {
    Py_INCREF(recent);
    return recent;
  }
  Spec* spec = known_spec(code, device, ndim, shape, hash);
  if (!spec) spec = build_spec(code, device, ndim, shape, hash);
  if (!spec) return nullptr;
  Py_INCREF(spec);
  Py_XSETREF(recent, spec);
  return spec;
}

Array* array_new(Spec* spec, Storage* storage, int64_t offset, const int64_t* strides,
                 PyTypeObject* type) {
  Array* self = array_alloc(type);
  if (!self) {
    Py_DECREF(spec);
    storage_release(storage);
    return nullptr;
  }
  self->spec = spec;
  self->storage = storage;
  self->handle = nullptr;
  self->offset = offset;
  self->weaklist = nullptr;
  if (!set_strides(self, strides)) {
    Py_DECREF(self);
    PyErr_NoMemory();
    return nullptr;
  }
  return self;
}

bool is_view(PyObject* x) {
  if (Py_TYPE(x) != array_class) return false;
  const auto* array = reinterpret_cast<Array*>(x);
  return array->storage || (array->handle && Py_TYPE(array->handle) == block_type);
}

Array* array_view(const Array* x, Spec* spec, int64_t offset, const int64_t* strides) {
  if (x->storage) {
    x->storage->refs++;
    return array_new(spec, x->storage, offset, strides);
  }
  Array* self = array_new(spec, nullptr, offset, strides);
  if (self) Py_INCREF(self->handle = x->handle);
  return self;
}

Array* array_over(Spec* spec, PyObject* handle, const int64_t* strides) {
  Array* self = array_new(spec, nullptr, 0, strides);
  if (self) {
    self->handle = handle;
  } else {
    Py_DECREF(handle);
  }
  return self;
}

Array* first_array() { return all_arrays.first; }

Array* array_empty(Spec* spec) {
  Storage* storage = storage_new(spec->size * kItemSize[spec->code]);
  if (!storage) return nullptr;
  Py_INCREF(spec);
  return array_new(spec, storage, 0, nullptr);
}

Array* array_empty(DType code, PyObject* device, int ndim, const int64_t* shape) {
  Spec* spec = spec_of(code, device, ndim, shape);
  Array* made = spec ? array_empty(spec) : nullptr;
  Py_XDECREF(spec);
  return made;
}

bool add_array_types(PyObject* module) {
  spec_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec_definition));
  array_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&array_definition));
  storage_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&storage_definition));
  array_class = array_type;
  return spec_type && array_type && storage_type &&
         PyModule_AddObjectRef(module, "Spec", reinterpret_cast<PyObject*>(spec_type)) == 0 &&
         PyModule_AddObjectRef(module, "Array", reinterpret_cast<PyObject*>(array_type)) == 0 &&
         PyModule_AddObjectRef(module, "Storage", reinterpret_cast<PyObject*>(storage_type)) == 0 &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace needle
