// The parts of the gate: compute.cc computes, views.cc has views, gate.cc makes tensors of both,
// getitem.cc is x[index].
#pragma once
#include "types/core.h"
#include "program/record.h"

namespace needle {

constexpr int kMaxArgs = 3;

// Run a plan, or note it; the caller holds references to the arrays. Releases the GIL for long
// runs. What the kernel returns, or kFailed with an exception: there is no memory.
constexpr int64_t kFailed = -2;
int64_t run_kernel(const Plan& plan, void* const* buffers, int64_t n, int64_t elements,
                   int32_t traits, const char* name);
// False without memory, with an exception set; with the trait kChecked (see record.h) also, without
// one, for an index out of range.
bool run_plan(const Plan& plan, void* const* buffers, int n, int64_t elements, int32_t traits);
template <int n>
bool run_plan(const Plan& plan, void* const (&buffers)[n], int64_t elements, int32_t traits = 0) {
  return run_plan(plan, buffers, n, elements, traits);
}

// The result of an op. Null without an exception: not here, ask the definition.
Array* compute(const Op* op, Array* const* x, int n);

// Plans that are kept are of the kernels and settings that there were.
void forget_plans();

// Parts of it. code: a Function, or a Reduction; axes: a bit mask.
Array* elementwise_result(int32_t code, bool to_bool, Array* const* x, int n);
// correction: subtracted from the number of terms of a variance.
Array* reduction_result(int32_t reduction, uint32_t axes, bool keepdims, const Array* x,
                        double correction);
// Whether the definition would take the operands of a function as they are.
bool fits(int32_t code, bool to_bool, Array* const* x, int n);

// The same into arrays that are there: false without an exception, there is no such kernel.
// Operands have out's shape; of a reduction's result, which is dense, only the size matters.
bool elementwise_into(Array* out, int32_t code, Array* const* x, int n);
bool copy_into(Array* out, const Array* x);
bool reduce_into(Array* out, int32_t reduction, uint32_t axes, const Array* x, double factor);

// Where a result lies: its spec, which is owned, and its strides if it is not in C order.
struct Layout {
  Spec* spec;
  bool reordered;
  int64_t strides[kMaxDims];
  const int64_t* order() const { return reordered ? strides : nullptr; }
};
// That of elementwise work: the shape that operands broadcast to, in the memory order of the first
// one of this shape, so that images that lie channels-last stay so. False: they do not broadcast.
bool lay_out(Layout* out, DType type, Array* const* x, int n, bool in_order = true);

// The same on arrays of one device that has a Port, by its backend. Null with an
// exception that the backend raised; without one: ask the definition.
Array* elementwise_elsewhere(int32_t code, bool to_bool, Array* const* x, int n);
Array* matmul_elsewhere(Array* const* x);
Array* reduce_elsewhere(int32_t reduction, uint32_t axes, const Array* x, int ndim,
                        const int64_t* shape);
Array* copy_elsewhere(Array* x, DType type, bool in_order);
Array* empty_elsewhere(Spec* spec);

// The shape of a product whose axes before the last two broadcast, and the strides under which the
// operands have those axes.
struct Product {
  int ndim;
  int64_t shape[kMaxDims], sizes[2][kMaxDims], strides[2][kMaxDims];
};
bool fit(Product* p, Array* const* x);
DType reduced_type(int32_t reduction, DType type);
extern const char* const function_names[];
extern const char* const reduction_names[];
// A dense copy, or one in x's own memory order.
Array* copy_of(Array* x, DType type, bool in_order);

// Views of x, or null, without an exception where the definition has to decide. Numbers of a
// slice: a bit mask of the axes to drop, then per axis first index, number of elements, step.
Array* reshape(const Array* x, int n, const int64_t* shape);
Array* permute(const Array* x, int n, const int64_t* order);
Array* broadcast(const Array* x, int n, const int64_t* shape);
Array* slice(const Array* x, int n, const int64_t* numbers);
Array* slice_by(const int64_t* numbers, const Array* x);  // unchecked
bool is_dense(const Array* x);                            // axes of size 1 may have any stride
void broadcast_strides(const Array* x, int ndim, const int64_t* shape, int64_t* strides);

// x[index] for tensors that stand for the first axes, read and written (x is a leaf's, dense, and
// not shared; of value's dtype); null or false without an exception: use the definition.
PyObject* pick_item(PyObject* tensor, PyObject* index);
bool put_item(Array* x, PyObject* index, const Array* value);
// The result of Take (slices) or Gather along an axis of two tensors; null likewise.
PyObject* pick_along(PyObject* op, PyObject* const* inputs, int axis, bool slices);
Array* gathered(Array* x, Array* index, int axis);  // the result of Gather; null likewise
void set_take_op(PyObject* op);                     // the op that picks along the first axis
// int64 [axes, count]: where dense bools are true. Null without an exception for others.
Array* find_true(const Operand& x, const void* data, PyObject* device);

bool add_getitem(PyObject* module);
bool add_arrays(PyObject* module);
bool add_composites(PyObject* module);
bool add_windows(PyObject* module);
bool add_numbers(PyObject* module);
bool add_elsewhere();

}  // namespace needle
