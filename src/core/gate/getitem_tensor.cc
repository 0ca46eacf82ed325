// x[index] for tensors of integers or bools that stand for the first axes, read and written. What
// cannot be done here is left to the definition: null or false without an exception.
#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "gate/arguments.h"

namespace needle {

namespace {

PyObject* take_op;  // picks along the first axis

// Indices into the first axes of x, as indices into one.
struct Picked {
  Reference table;              // x as [n, rest...]
  Reference places;             // [m], integers
  int64_t shape[2 * kMaxDims];  // of the picked elements
  int ndim, lead;               // of these axes, those of the indices
};

Array* array_of(PyObject* x) {  // borrowed
  PyObject* array = is_tensor(x) ? reinterpret_cast<Tensor*>(x)->array : nullptr;
  const bool is_native = array && is_array(array) && reinterpret_cast<Array*>(array)->storage;
  return is_native ? reinterpret_cast<Array*>(array) : nullptr;
}

bool is_index(const Array* x) {
  return x && x->spec->code >= kInt8 && x->spec->code <= kUInt8 && x->spec->ndim > 0;
}

bool is_mask(const Array* mask, const Spec* x) {
  return mask && mask->spec->code == kBool && mask->spec->ndim > 0 && !mask->strides &&
         mask->spec->ndim <= x->ndim &&
         std::equal(mask->spec->shape, mask->spec->shape + mask->spec->ndim, x->shape);
}

Array* flat(const Array* x) { return reshape(x, 1, &x->spec->size); }

// The places in C order of indices of one shape into axes of these sizes.
Array* places_of(Array* const* indices, int n, const Spec* x) {
  const int64_t size = indices[0]->spec->size;
  Reference out(array_empty(kInt64, x->device, 1, &size));
  for (int i = 0; i < n && out.array; i++) {
    const Reference index(flat(indices[i]));
    Plan plan;
    if (!index.array || kernels->plan_linear_index(&plan, operand(out.array), operand(index.array),
                                                   x->shape[i], i == 0)) {
      return nullptr;
    }
    void* buffers[] = {address(out.array), address(index.array)};
    if (!run_plan(plan, buffers, size, kChecked)) return nullptr;
  }
  return std::exchange(out.array, nullptr);
}

// How many of the first axes the index stands for; 0: not here. Sets places and their shape.
int read_places(const Spec* x, PyObject* index, Picked* found) {
  Array* arrays[kMaxDims];
  const bool many = PyTuple_CheckExact(index);
  const int n = many ? static_cast<int>(PyTuple_GET_SIZE(index)) : 1;
  if (n < 1 || n > x->ndim) return 0;
  for (int i = 0; i < n; i++) {
    arrays[i] = array_of(many ? PyTuple_GET_ITEM(index, i) : index);
    if (!arrays[i] || arrays[i]->spec->device != x->device) return 0;
  }
  const Spec* first = arrays[0]->spec;
  if (n == 1 && is_mask(arrays[0], x)) {
    const Operand bools = {kBool, 1, &first->size, arrays[0]->spec->strides + first->ndim - 1};
    Py_INCREF(arrays[0]);
    const Reference kept(arrays[0]);  // other threads may run
    Reference positions(find_true(bools, address(arrays[0]), x->device));
    if (!positions.array) return 0;
    found->places.reset(flat(positions.array));
    found->shape[0] = positions.array->spec->size;
    found->lead = 1;
    return found->places.array ? first->ndim : 0;
  }
  for (int i = 0; i < n; i++) {
    const Spec* own = arrays[i]->spec;
    if (!is_index(arrays[i]) || own->ndim != first->ndim ||
        !std::equal(own->shape, own->shape + own->ndim, first->shape)) {
      return 0;
    }
  }
  std::copy_n(first->shape, first->ndim, found->shape);
  found->lead = first->ndim;
  found->places.reset(n == 1 ? flat(arrays[0]) : places_of(arrays, n, x));
  return found->places.array ? n : 0;
}

bool locate(Array* x, PyObject* index, Picked* found) {
  const Spec* spec = x->spec;
  const int axes = read_places(spec, index, found);
  if (!axes) return false;
  const int rest = spec->ndim - axes;
  int64_t table[kMaxDims] = {1};
  for (int i = 0; i < axes; i++) table[0] *= spec->shape[i];
  std::copy_n(spec->shape + axes, rest, table + 1);
  std::copy_n(spec->shape + axes, rest, found->shape + found->lead);
  found->ndim = found->lead + rest;
  if (found->ndim > kMaxDims) return false;
  if (axes == 1) {
    Py_INCREF(x);
    found->table.reset(x);
  } else {
    found->table.reset(reshape(x, 1 + rest, table));
  }
  return found->table.array != nullptr;
}

// A call of gather or put: the shape of the picked elements, and the steps of the index in it.
struct Rows {
  int64_t shape[kMaxDims], index[kMaxDims];
  int ndim;

  Rows() = default;
  explicit Rows(const Picked& found) : ndim(found.table.array->spec->ndim) {
    std::copy_n(found.table.array->spec->shape, ndim, shape);
    std::fill_n(index, ndim, 0);
    shape[0] = found.places.array->spec->size;
    index[0] = strides_of(found.places.array)[0];
  }
};

// The elements picked along an axis of x, which has `steps`, as an array of n axes.
Array* gather(const Rows& rows, const Array* x, const int64_t* steps, const Array* index, int axis,
              int n, const int64_t* result) {
  Reference out(array_empty(x->spec->code, x->spec->device, n, result));
  // nothing is picked: the definition checks the index all the same
  if (!out.array || (out.array->spec->size == 0 && index->spec->size > 0)) return nullptr;
  int64_t dense[kMaxDims], from[kMaxDims], step = 1;
  for (int i = rows.ndim - 1; i >= 0; i--) {
    dense[i] = step;
    step *= rows.shape[i];
    from[i] = i == axis ? x->spec->shape[axis] : rows.shape[i];
  }
  Plan plan;
  const Operand picked = {x->spec->code, rows.ndim, rows.shape, dense};
  const Operand source = {x->spec->code, rows.ndim, from, steps};
  const Operand where = {index->spec->code, rows.ndim, rows.shape, rows.index};
  if (kernels->plan_gather(&plan, picked, source, where, axis)) return nullptr;
  void* buffers[] = {address(out.array), address(x), address(index)};
  if (!run_plan(plan, buffers, out.array->spec->size, kChecked)) return nullptr;
  return std::exchange(out.array, nullptr);
}

Array* gather(const Picked& found) {
  const Array* table = found.table.array;
  return gather(Rows(found), table, strides_of(table), found.places.array, 0, found.ndim,
                found.shape);
}

// Slices of x along an axis, at an index of any shape.
Array* take(const Array* x, const Array* index, int axis) {
  const int own = index->spec->ndim, rest = x->spec->ndim - axis - 1;
  const Reference places(flat(index));
  int64_t result[2 * kMaxDims];
  if (!places.array || axis + own + rest > kMaxDims) return nullptr;
  Rows rows;
  rows.ndim = x->spec->ndim;
  std::copy_n(x->spec->shape, rows.ndim, rows.shape);
  std::fill_n(rows.index, rows.ndim, 0);
  rows.shape[axis] = index->spec->size;
  rows.index[axis] = strides_of(places.array)[0];
  std::copy_n(x->spec->shape, axis, result);
  std::copy_n(index->spec->shape, own, result + axis);
  std::copy_n(x->spec->shape + axis + 1, rest, result + axis + own);
  return gather(rows, x, strides_of(x), places.array, axis, axis + own + rest, result);
}

// Elements of x along an axis, each at an index of its own; the other axes broadcast.
Array* take_along(const Array* x, const Array* index, int axis) {
  if (x->spec->ndim != index->spec->ndim) return nullptr;
  Rows rows;
  int64_t steps[kMaxDims];
  rows.ndim = x->spec->ndim;
  for (int i = 0; i < rows.ndim; i++) {
    const int64_t own = index->spec->shape[i], other = i == axis ? own : x->spec->shape[i];
    if (own != other && own != 1 && other != 1) return nullptr;
    rows.shape[i] = own == 1 ? other : own;
    rows.index[i] = own == rows.shape[i] ? strides_of(index)[i] : 0;
    steps[i] = i == axis || other == rows.shape[i] ? strides_of(x)[i] : 0;
  }
  return gather(rows, x, steps, index, axis, rows.ndim, rows.shape);
}

// Where a mask of x's shape is true, one number.
bool put_number(Array* x, const Array* mask, const Array* number) {
  const int64_t none[kMaxDims] = {};
  const Operand same = operand(x);
  const Operand operands[] = {operand(mask), {same.dtype, same.ndim, same.shape, none}, same};
  const Reference kept(broadcast(mask, same.ndim, same.shape));  // other threads may run
  Plan plan;
  if (!kept.array || kernels->plan_elementwise(&plan, k_where, same, operands, 3)) return false;
  void* buffers[] = {address(x), address(mask), address(number), address(x)};
  return run_plan(plan, buffers, x->spec->size);
}

}  // namespace

Array* find_true(const Operand& x, const void* data, PyObject* device) {
  if (is_dry()) {
    raise_not_recorded("a shape depends on values");
    return nullptr;
  }
  int64_t size = 1;
  for (int i = 0; i < x.ndim; i++) size *= x.shape[i];
  const int64_t blocks = (size + kTrueBlock - 1) / kTrueBlock;
  const std::unique_ptr<int64_t[]> starts(new (std::nothrow) int64_t[blocks + 1]());
  if (!starts) PyErr_NoMemory();
  Plan plan;
  if (!starts || kernels->plan_count_true(&plan, x)) return nullptr;
  void* bools = const_cast<void*>(data);
  void* counting[] = {starts.get() + 1, bools};
  if (!run_plan(plan, counting, size)) return nullptr;
  std::partial_sum(starts.get(), starts.get() + blocks + 1, starts.get());
  const int64_t shape[] = {x.ndim, starts[blocks]};
  Reference out(array_empty(kInt64, device, 2, shape));
  if (!out.array || kernels->plan_find_true(&plan, x)) return nullptr;
  void* finding[] = {address(out.array), starts.get(), bools};
  if (!run_plan(plan, finding, size)) return nullptr;
  return std::exchange(out.array, nullptr);
}

PyObject* pick_item(PyObject* tensor, PyObject* index) {
  Array* x = array_of(tensor);
  const bool records = modes.recording && needs_gradient(reinterpret_cast<Tensor*>(tensor));
  if (!x || !take_op || x->spec->ndim == 0) return nullptr;
  // the graph of anything else has more nodes than one; and integers may be part of a graph
  if (records && (!is_tensor(index) || !is_index(array_of(index)))) return nullptr;
  if (is_tensor(index) && needs_gradient(reinterpret_cast<Tensor*>(index))) return nullptr;
  Picked found;
  Array* out = locate(x, index, &found) ? gather(found) : nullptr;
  if (!out) return nullptr;
  PyObject* const inputs[] = {tensor, index};
  auto* array = reinterpret_cast<PyObject*>(out);
  return records ? record_result(take_op, inputs, 2, array) : wrap_array(array);
}

PyObject* pick_along(PyObject* op, PyObject* const* inputs, int axis, bool slices) {
  const Array *x = array_of(inputs[0]), *index = array_of(inputs[1]);
  const bool fits = x && index && index->spec->code >= kInt8 && index->spec->code <= kUInt8 &&
                    x->spec->device == index->spec->device && axis >= 0 && axis < x->spec->ndim;
  if (!fits || needs_gradient(reinterpret_cast<Tensor*>(inputs[1]))) return nullptr;
  const Reference table(array_of(inputs[0])), places(array_of(inputs[1]));
  Py_INCREF(table.array);  // other threads may run
  Py_INCREF(places.array);
  Array* out = slices ? take(x, index, axis) : take_along(x, index, axis);
  if (!out) return nullptr;
  auto* array = reinterpret_cast<PyObject*>(out);
  const bool records = modes.recording && needs_gradient(reinterpret_cast<Tensor*>(inputs[0]));
  return records ? record_result(op, inputs, 2, array) : wrap_array(array);
}

Array* gathered(Array* x, Array* index, int axis) {
  if (index->spec->code < kInt8 || index->spec->code > kUInt8 || axis >= x->spec->ndim ||
      x->spec->device != index->spec->device) {
    return nullptr;
  }
  return take_along(x, index, axis);
}

bool put_item(Array* x, PyObject* index, const Array* value) {
  Picked found;
  const Array* mask = array_of(index);
  if (mask == x) return false;
  if (value->spec->size == 1 && is_mask(mask, x->spec) && mask->spec->ndim == x->spec->ndim) {
    return put_number(x, mask, value);
  }
  if (!locate(x, index, &found) || found.places.array->storage == x->storage) return false;
  Reference values(broadcast(value, found.ndim, found.shape));
  const Rows rows(found);
  if (values.array && found.lead != 1) {
    values.reset(reshape(values.array, rows.ndim, rows.shape));
  }
  const Array *table = found.table.array, *places = found.places.array;
  Plan plan;
  if (!values.array || kernels->plan_put(&plan, operand(table),
                                         {places->spec->code, rows.ndim, rows.shape, rows.index},
                                         operand(values.array), 0)) {
    return false;
  }
  void* buffers[] = {address(table), address(places), address(values.array)};
  return run_plan(plan, buffers, values.array->spec->size, kChecked);
}

void set_take_op(PyObject* op) {
  Py_INCREF(op);
  Py_XSETREF(take_op, op);
}

}  // namespace needle
